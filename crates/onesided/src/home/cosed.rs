//! N-CoSED's home (section 2.3): counts the readers that leave, and grants writers that wait for readers.
//!
//! It touches the words through its own fabric, as everybody does. While its reset of `S` is under way it handles nothing
//! else (hole 5): the releases that the reset takes away still count until then.

use hashbrown::HashMap;

use crate::client::LockError;
use crate::fabric::Fabric;
use crate::letter::{Claimant, Kind, Letter};
use crate::options::Options;
use crate::protocol::cosed::{E, LAW, PROGRESS, S};
use crate::table::{Generation, LockId, Table};

/// What the home keeps of a lock in one generation.
#[derive(Default)]
struct Readers {
    /// Readers that have left, and that nobody has taken into account yet.
    left: u64,
    /// A writer that waits for so many.
    waiting: Option<(Claimant, u64)>,
}

pub(super) async fn serve<F: Fabric>(
    fabric: &F,
    table: Table,
    options: Options,
) -> Result<(), LockError> {
    let mut locks: HashMap<(LockId, Generation), Readers> = HashMap::new();
    loop {
        let Some(letter) = next(fabric, table).await else { continue };
        let place = (letter.lock, letter.generation);
        let lock = locks.entry(place).or_default();
        count(lock, &letter);
        grant(fabric, table, options, place, lock).await?;
        if lock.waiting.is_none() && lock.left > 0 {
            fold(fabric, table, options, place, lock).await?;
        }
        if lock.waiting.is_none() && lock.left == 0 {
            locks.remove(&place);
        }
    }
}

async fn next<F: Fabric>(fabric: &F, table: Table) -> Option<Letter> {
    let received = fabric.receive(u64::MAX).await?;
    let letter = Letter::decode(received.message).filter(|letter| letter.lock.0 < table.locks())?;
    // A writer passes on who is behind it; readers speak for themselves.
    let genuine = match letter.kind {
        Kind::Exclusive => letter.from != Claimant::NOBODY,
        _ => letter.from.peer() == received.from,
    };
    genuine.then_some(letter)
}

fn count(lock: &mut Readers, letter: &Letter) {
    match letter.kind {
        Kind::SharedDone => lock.left += 1,
        Kind::Exclusive => lock.waiting = Some((letter.from, letter.value)),
        _ => {}
    }
}

async fn grant<F: Fabric>(
    fabric: &F,
    table: Table,
    options: Options,
    (lock, generation): (LockId, Generation),
    readers: &mut Readers,
) -> Result<(), LockError> {
    let Some((who, wanted)) = readers.waiting.filter(|(_, wanted)| readers.left >= *wanted) else {
        return Ok(());
    };
    readers.waiting = None;
    readers.left -= wanted;
    let word = table.word(lock, generation);
    // Seen in the word before it is told, as with every change of holder.
    let old = match options.lease {
        Some(_) => fabric.fetch_and_add(word, PROGRESS.one()).await?,
        None => 0,
    };
    if LAW.is_closed(old) || !LAW.is_of(old, generation) && options.lease.is_some() {
        return Ok(());
    }
    let value = PROGRESS.get(old) + u64::from(options.lease.is_some());
    let letter =
        Letter { kind: Kind::Grant, lock, generation, to: who, from: Claimant::NOBODY, value };
    // Not waited for: if the receiver is gone, those behind it repair the lock.
    drop(fabric.send(who.peer(), letter.encode()));
    Ok(())
}

/// Takes the readers that have left out of the word, if no writer counts them. What is folded is at most what the word
/// shows, since some may overlap with others that stay (hole 10).
async fn fold<F: Fabric>(
    fabric: &F,
    table: Table,
    options: Options,
    (lock, generation): (LockId, Generation),
    readers: &mut Readers,
) -> Result<(), LockError> {
    let word = table.word(lock, generation);
    let folded = readers.left;
    let mut expected = S.set(0, folded);
    loop {
        let mut reset = S.set(expected, S.get(expected) - folded);
        if options.lease.is_some() {
            // Else the word would be as before when as many have come as have left, and look as if nobody had moved.
            reset = PROGRESS.set(reset, PROGRESS.get(reset) + 1);
        }
        let reset = fabric.compare_and_swap(word, expected, reset);
        if mutated!(options, CosedGrantsWhileResetting)
            && let Some(letter) = next(fabric, table).await
            && (letter.lock, letter.generation) == (lock, generation)
        {
            count(readers, &letter);
            grant(fabric, table, options, (lock, generation), readers).await?;
        }
        if mutated!(options, CosedResetForgetsReleases)
            && let Some(letter) = next(fabric, table).await
            && (letter.lock, letter.generation) == (lock, generation)
        {
            count(readers, &letter);
        }
        let found = reset.await?;
        if found == expected {
            let forgets = mutated!(options, CosedResetForgetsReleases);
            readers.left = if forgets { 0 } else { readers.left.saturating_sub(folded) };
            return Ok(());
        }
        let open = !LAW.is_closed(found) && LAW.is_of(found, generation);
        if !open || E.get(found) != 0 || S.get(found) < folded {
            return Ok(());
        }
        expected = found;
    }
}
