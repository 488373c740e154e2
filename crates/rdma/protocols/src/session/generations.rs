//! Which generation of a lock is the one in use, and opening the next one.

use super::{Session, Stop};
use crate::fabric::Fabric;
use crate::table::{Generation, LockId, WORDS};

impl<F: Fabric> Session<F> {
    /// The latest generation that this client knows of.
    pub fn generation(&self, lock: LockId) -> Generation {
        self.generations.borrow().get(&lock).copied().unwrap_or(0)
    }

    /// Finds the generation after a closed one, and opens it if nobody has. Any number of clients may do so at once.
    pub async fn advance(&self, lock: LockId, closed: Generation) -> Result<(), Stop> {
        if mutated!(self.options, RepairInPlace) && self.options.lease.is_some() {
            return Ok(());
        }
        let next = closed.wrapping_add(1);
        let place = self.table.word(lock, next);
        loop {
            // The word first: if the number has not changed after that, the word had not been opened.
            let word = self.read(place).await?;
            let number = self.read(self.table.generation(lock)).await?;
            if self.note_generation(lock, number) != closed {
                return Ok(());
            }
            if self.law.is_of(word, next) {
                // Ready, perhaps even in use by a client that knows it from long ago. Other data beside the number
                // (N-CoSED's intents) ends with the generation.
                self.compare_and_swap(self.table.generation(lock), number, next.into()).await?;
            } else {
                // Nobody uses it until the number says so; what was counted there late is gone with it.
                self.compare_and_swap(place, word, self.law.fresh_word(next)).await?;
            }
        }
    }

    /// Reads the lock's generation.
    async fn refresh(&self, lock: LockId) -> Result<Generation, Stop> {
        let number = self.read(self.table.generation(lock)).await?;
        Ok(self.note_generation(lock, number))
    }

    fn note_generation(&self, lock: LockId, number: u64) -> Generation {
        let now = number as Generation;
        self.generations.borrow_mut().insert(lock, now);
        self.guesses.borrow_mut().remove(&lock);
        now
    }

    /// The generation of a word that this client has just counted itself into, believing it to be of `believed`. It may be
    /// a later one at the same place: then the client belongs to that one.
    pub async fn generation_of(
        &self,
        lock: LockId,
        believed: Generation,
        word: u64,
    ) -> Result<Generation, Stop> {
        if self.law.is_closed(word) {
            return Err(Stop::Evicted);
        }
        if self.law.is_of(word, believed) {
            return Ok(believed);
        }
        loop {
            let now = self.refresh(lock).await?;
            if now % WORDS == believed % WORDS && self.law.is_of(word, now) {
                return Ok(now);
            }
            if now % WORDS != believed.wrapping_sub(1) % WORDS {
                // That generation is over, too.
                return Err(Stop::Evicted);
            }
            // It is ready, but nobody has said so yet.
            self.advance(lock, now).await?;
        }
    }
}
