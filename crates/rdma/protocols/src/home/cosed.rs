//! N-CoSED's home (docs/design/onesided.md 2.3): counts the readers that leave, and grants writers that wait for readers.
//!
//! It touches the words through its own fabric, as everybody does. While its reset of `S` is under way it handles nothing
//! else (hole 5): the releases that the reset takes away still count until then.

use hashbrown::HashMap;

use crate::error::LockError;
use crate::fabric::{Address, Fabric};
use crate::letter::{Claimant, Kind, LockLetter};
use crate::options::Options;
use crate::protocol::cosed::{E, LAW, PROGRESS, S};
use crate::table::{Generation, LockId, Table};

/// The home's state of a lock in one generation.
#[derive(Default)]
struct Readers {
    /// Readers that have left, and that nobody has taken into account yet. They may leave before a writer asks about them
    /// (hole 6).
    left: u64,
    /// A writer that waits for so many.
    waiting: Option<(Claimant, u64)>,
}

impl Readers {
    fn count(&mut self, letter: &LockLetter, options: &Options) {
        match letter.kind {
            Kind::SharedDone => self.left += 1,
            Kind::Exclusive => {
                self.waiting = Some((letter.from, letter.value));
                if mutated!(options, CosedCountsFromTheRequest) {
                    self.left = 0;
                }
            }
            _ => {}
        }
    }
}

pub(super) async fn serve<F: Fabric>(
    fabric: &F,
    table: Table,
    options: Options,
) -> Result<(), LockError> {
    let home = Home { fabric, table, options };
    let mut locks: HashMap<(LockId, Generation), Readers> = HashMap::new();
    loop {
        let Some(letter) = home.next().await else { continue };
        let place = (letter.lock, letter.generation);
        let mut lock =
            Lock { home: &home, place, readers: locks.remove(&place).unwrap_or_default() };
        lock.readers.count(&letter, &options);
        lock.grant().await?;
        if lock.readers.waiting.is_none() && lock.readers.left > 0 {
            lock.fold().await?;
        }
        if lock.readers.waiting.is_some() || lock.readers.left > 0 {
            locks.insert(place, lock.readers);
        }
    }
}

struct Home<'a, F> {
    fabric: &'a F,
    table: Table,
    options: Options,
}

impl<F: Fabric> Home<'_, F> {
    async fn next(&self) -> Option<LockLetter> {
        let received = self.fabric.receive(u64::MAX).await?;
        let letter = LockLetter::decode(received.message)
            .filter(|letter| letter.lock.0 < self.table.locks())?;
        // A writer passes on its successor; readers speak for themselves.
        let genuine = match letter.kind {
            Kind::Exclusive => letter.from != Claimant::NOBODY,
            _ => letter.from.peer() == received.from,
        };
        genuine.then_some(letter)
    }
}

/// A lock about which a letter has come.
struct Lock<'a, F> {
    home: &'a Home<'a, F>,
    place: (LockId, Generation),
    readers: Readers,
}

impl<F: Fabric> Lock<'_, F> {
    fn word(&self) -> Address {
        self.home.table.word(self.place.0, self.place.1)
    }

    /// Returns true if a word at this lock's place is of its generation, and open.
    fn is_open(&self, word: u64) -> bool {
        !LAW.is_closed(word) && LAW.is_of(word, self.place.1)
    }

    async fn grant(&mut self) -> Result<(), LockError> {
        let readers = &mut self.readers;
        let Some((who, wanted)) = readers.waiting.filter(|(_, wanted)| readers.left >= *wanted)
        else {
            return Ok(());
        };
        readers.waiting = None;
        readers.left -= wanted;
        let (lock, generation) = self.place;
        let mut value = 0;
        if self.home.options.lease.is_some() {
            // Seen in the word before it is told, as with every change of holder.
            let old = self.home.fabric.fetch_and_add(self.word(), PROGRESS.one()).await?;
            if !self.is_open(old) {
                return Ok(());
            }
            value = PROGRESS.get(old) + 1;
        }
        let letter = LockLetter {
            kind: Kind::Grant,
            lock,
            generation,
            to: who,
            from: Claimant::NOBODY,
            value,
        };
        // Not waited for: if the receiver is gone, those behind it repair the lock.
        drop(self.home.fabric.send(who.peer(), letter.encode()));
        Ok(())
    }

    /// Takes the readers that have left out of the word, if no writer counts them. It folds at most the count in the
    /// word, because some may overlap with others that stay (hole 10).
    async fn fold(&mut self) -> Result<(), LockError> {
        let options = self.home.options;
        let folded = self.readers.left;
        let mut expected = S.set(0, folded);
        loop {
            let mut reset = S.set(expected, S.get(expected).saturating_sub(folded));
            if options.lease.is_some() {
                // Else the word would be as before when as many have come as have left, and look as if nobody had moved.
                reset = PROGRESS.set(reset, PROGRESS.get(reset) + 1);
            }
            let reset = self.home.fabric.compare_and_swap(self.word(), expected, reset);
            if mutated!(options, CosedGrantsWhileResetting | CosedResetForgetsReleases)
                && let Some(letter) = self.home.next().await
                && (letter.lock, letter.generation) == self.place
            {
                self.readers.count(&letter, &options);
                if mutated!(options, CosedGrantsWhileResetting) {
                    self.grant().await?;
                }
            }
            let found = reset.await?;
            if found == expected {
                let forgets = mutated!(options, CosedResetForgetsReleases);
                self.readers.left =
                    if forgets { 0 } else { self.readers.left.saturating_sub(folded) };
                return Ok(());
            }
            let part = S.get(found) > folded;
            if !self.is_open(found)
                || E.get(found) != 0
                || S.get(found) < folded
                || part && mutated!(options, CosedFoldsAllOrNothing)
            {
                return Ok(());
            }
            expected = found;
        }
    }
}
