//! How a word is judged, and how a stuck lock is noticed.

use super::{Session, Spot, Stop};
use crate::fabric::{Fabric, Nanos};
use crate::protocol::Field;
use crate::table::{Generation, WORDS};

/// How a protocol's words are judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Law {
    /// Set in a closed word.
    pub closed: u64,
    /// How often the word's place was used before, so that who knows an old generation of that place notices.
    pub stamp: Field,
    /// Bits that are set with it, so that late fetch-and-adds borrow from nothing.
    pub padding: u64,
    /// The bits that change whenever somebody else becomes a holder, or a holder goes.
    pub progress: u64,
}

impl Law {
    pub fn is_closed(&self, word: u64) -> bool {
        word & self.closed != 0
    }

    /// A generation's word when nobody has used it.
    pub fn fresh_word(&self, generation: Generation) -> u64 {
        self.stamp.set(0, u64::from(generation / WORDS))
    }

    /// The closed word of a generation.
    pub fn closed_word(&self, generation: Generation) -> u64 {
        self.closed | self.padding | self.fresh_word(generation)
    }

    /// Returns true if a word at the place of this generation is of this generation.
    pub fn is_of(&self, word: u64, generation: Generation) -> bool {
        (word ^ self.fresh_word(generation)) & self.stamp.mask() == 0
    }
}

/// A waiter's observations of a lock's progress, with times.
///
/// A lease starts with the *issue* of the last verb that showed another state than the one in which the lock was granted;
/// stillness lasts from the *completion* of the first to the *issue* of the last that showed the same. So a client that
/// judges a holder dead, by more than a lease of stillness, began to count after that holder did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    progress: u64,
    first_done: Nanos,
    last_issued: Nanos,
    /// Issue of the last verb that showed something else; of the first of all, if there was none.
    before: Nanos,
}

impl Watch {
    pub fn new(issued: Nanos, done: Nanos, progress: u64) -> Watch {
        Watch { progress, first_done: done, last_issued: issued, before: issued }
    }

    pub fn saw(&mut self, issued: Nanos, done: Nanos, progress: u64) {
        if progress == self.progress {
            self.last_issued = issued;
        } else {
            *self =
                Watch { progress, first_done: done, last_issued: issued, before: self.last_issued };
        }
    }

    /// When a lease starts that was given by the change to `granted`.
    pub fn lease_start(&self, granted: u64) -> Nanos {
        if granted == self.progress { self.before } else { self.last_issued }
    }

    /// The last observed word.
    pub fn seen(&self) -> u64 {
        self.progress
    }

    fn still_for(&self) -> Nanos {
        self.last_issued.saturating_sub(self.first_done)
    }
}

impl<F: Fabric> Session<F> {
    /// How often a waiter looks whether its lock is stuck.
    pub(super) fn interval(&self) -> Nanos {
        self.options.lease.map_or(Nanos::MAX, |lease| (lease / 4).max(1))
    }

    /// Reads the word. If nothing has changed for too long, closes the generation.
    pub async fn look(&self, spot: Spot, watch: &mut Watch) -> Result<u64, Stop> {
        let issued = self.fabric.now();
        let word = self.read(self.word(spot)).await?;
        self.judge(spot, watch, issued, word).await?;
        Ok(word)
    }

    /// A waiter's judgement of a word that it saw.
    pub async fn judge(
        &self,
        spot: Spot,
        watch: &mut Watch,
        issued: Nanos,
        word: u64,
    ) -> Result<(), Stop> {
        if self.law.is_closed(word) {
            return Err(Stop::Evicted);
        }
        watch.saw(issued, self.fabric.now(), word & self.law.progress);
        if self.is_dead(watch) && self.close(spot, word).await? {
            return Err(Stop::Evicted);
        }
        Ok(())
    }

    /// Closes the generation unless the lock has made progress since it was seen as `seen`; whether it is closed.
    pub async fn close(&self, spot: Spot, seen: u64) -> Result<bool, Stop> {
        let in_place = mutated!(self.options, RepairInPlace) && self.options.lease.is_some();
        let closed = if in_place { 0 } else { self.law.closed_word(spot.generation) };
        let mut expected = seen;
        loop {
            let found = self.compare_and_swap(self.word(spot), expected, closed).await?;
            if found == expected || self.law.is_closed(found) {
                return Ok(true);
            }
            // Rule for ShiftLock's hole 2: who arrives meanwhile changes nothing, but a new holder does.
            if (found ^ seen) & self.law.progress != 0
                && !mutated!(self.options, RepairUnconditional)
            {
                return Ok(false);
            }
            expected = found;
        }
    }

    /// Returns true if nothing has changed for so long that no holder has a lease any more.
    pub fn is_dead(&self, watch: &Watch) -> bool {
        let quarters = self.options.protocol.patience_quarters();
        let repairs = !mutated!(self.options, NothingIsRepaired);
        let lease = self.options.lease.filter(|_| repairs);
        lease.is_some_and(|lease| watch.still_for() >= (lease / 4).max(1) * quarters)
    }

    /// When a hold ends that was given at `start`.
    pub fn lease_end(&self, start: Nanos) -> Nanos {
        let start = if mutated!(self.options, LeaseFromNotice) { self.fabric.now() } else { start };
        let endless = mutated!(self.options, HolderNotFenced);
        self.options
            .lease
            .filter(|_| !endless)
            .map_or(Nanos::MAX, |lease| start.saturating_add(lease))
    }
}
