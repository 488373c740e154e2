//! A table of locks in registered memory.
//!
//! ```text
//! lock: | generation | word of generation 0 | word 1 | ... | word 6 |    64 bytes
//! after the locks: | slot | slot | ...                                    8 bytes each
//! ```
//!
//! # Generations
//! All protocols keep a lock's state in one word, so that one compare-and-swap can judge and end it. A client that
//! repairs a lock *closes* its word and opens the next generation's, which is zero. This is where the published
//! protocols reset the word in place, and where a late fetch-and-add then changes who owns the lock: here it hits a
//! closed word, and its client sees by the mark that it was evicted. A place is used again after six further
//! generations, with another *stamp* in the word: a client that remembers an old generation of that place finds out by
//! the word itself which it is in. So nothing but the word has to be looked at to take a lock. The assumptions are: no
//! verb is under way for six repairs (seven leases and more), and no client that comes back after exactly 112 of them
//! looks at its token.

use crate::fabric::{Address, Region};
use crate::memory::Memory;
use crate::options::Protocol;
use crate::protocol::{is_idle, law};

/// A lock: its place in the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockId(pub u64);

/// How often a lock was repaired or ran out of counters.
pub type Generation = u32;

/// Words of generations in a lock's record.
pub(crate) const WORDS: Generation = 7;
const RECORD: u64 = 8 * (1 + WORDS as u64);

/// Why memory cannot hold a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TableError {
    /// Too little memory.
    #[error(
        "{locks} locks with {slots} slots need {needs} bytes, the region has {has}: register more, or fewer locks"
    )]
    TooSmall {
        /// Locks wanted.
        locks: u64,
        /// Slots wanted.
        slots: u64,
        /// Bytes that they need.
        needs: u64,
        /// Bytes that there are.
        has: u64,
    },
    /// A table without locks, or with a number of slots that is no power of two.
    #[error("a table needs at least one lock and a power of two of slots, not {locks} and {slots}")]
    Shape {
        /// Locks wanted.
        locks: u64,
        /// Slots wanted.
        slots: u64,
    },
}

/// Where a table lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Table {
    region: Region,
    locks: u64,
    slots: u64,
}

impl Table {
    /// Bytes that a table needs; `None` if more than a region can have.
    pub fn bytes(locks: u64, slots: u64) -> Option<u64> {
        locks.checked_mul(RECORD)?.checked_add(slots.checked_mul(8)?)
    }

    /// A table in zeroed memory. Two slots for each client that may wait are enough (see `ShiftLock-S`); other
    /// protocols need none, but one has to be there.
    ///
    /// # Errors
    /// The region is too small.
    pub fn new(region: Region, locks: u64, slots: u64) -> Result<Table, TableError> {
        if locks == 0 || !slots.is_power_of_two() {
            return Err(TableError::Shape { locks, slots });
        }
        let needs = Table::bytes(locks, slots).unwrap_or(u64::MAX);
        if needs > region.len {
            return Err(TableError::TooSmall { locks, slots, needs, has: region.len });
        }
        Ok(Table { region, locks, slots })
    }

    /// Locks in it.
    pub fn locks(&self) -> u64 {
        self.locks
    }

    /// The memory that it lies in.
    pub fn region(&self) -> Region {
        self.region
    }

    /// The lock that a key of any kind stands for. Two keys may share a lock: then they exclude each other without
    /// need, and a client that wants both asks for the lock once.
    pub fn lock_of(&self, hash: u64) -> LockId {
        // The high bits of the product: every bit of the hash counts.
        LockId(((u128::from(hash) * u128::from(self.locks)) >> 64) as u64)
    }

    /// Returns true if memory shows neither holder nor waiter of this lock.
    pub fn is_idle(&self, memory: &Memory, protocol: Protocol, lock: LockId) -> bool {
        let generation = memory.peek(self.generation(lock)) as Generation;
        let word = memory.peek(self.word(lock, generation));
        // A closed word is free; whoever comes next opens the next generation.
        law(protocol).is_closed(word) || is_idle(protocol, self, memory, lock, word)
    }

    pub(crate) fn generation(&self, lock: LockId) -> Address {
        self.region.word(lock.0 * RECORD)
    }

    pub(crate) fn word(&self, lock: LockId, generation: Generation) -> Address {
        self.region.word(lock.0 * RECORD + 8 * (1 + u64::from(generation % WORDS)))
    }

    pub(crate) fn slot(&self, number: u64) -> Address {
        self.region.word(self.locks * RECORD + 8 * (number & (self.slots - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Key, Peer};

    #[test]
    fn a_region_that_is_too_small_is_refused_with_what_it_needs() {
        let region = Region { home: Peer(1), key: Key(1), len: 64 * 10 + 8 * 15 };
        let error = Table::new(region, 10, 16).unwrap_err();
        let text = "10 locks with 16 slots need 768 bytes, the region has 760: register more, or fewer locks";
        assert_eq!(error.to_string(), text);
        assert!(Table::new(Region { len: 768, ..region }, 10, 16).is_ok());
        assert!(matches!(Table::new(region, u64::MAX, 16), Err(TableError::TooSmall { .. })));
        assert!(matches!(Table::new(region, 1, 3), Err(TableError::Shape { .. })));
    }

    #[test]
    fn words_do_not_overlap() {
        let region = Region { home: Peer(1), key: Key(1), len: 1 << 20 };
        let table = Table::new(region, 3, 4).unwrap();
        let mut all: Vec<u64> = (0..4).map(|n| table.slot(n).offset).collect();
        for lock in (0..3).map(LockId) {
            all.push(table.generation(lock).offset);
            all.extend((0..7).map(|g| table.word(lock, g).offset));
        }
        all.sort_unstable();
        let expected: Vec<u64> = (0..all.len() as u64).map(|n| 8 * n).collect();
        assert_eq!(all, expected);
        assert_eq!((table.lock_of(0), table.lock_of(u64::MAX)), (LockId(0), LockId(2)));
    }
}
