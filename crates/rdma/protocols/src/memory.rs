//! A home's memory for fabrics that execute verbs themselves, the explorer and the simulator.

use hashbrown::HashMap;

use crate::fabric::{Address, Key, Peer, Region, RegionError, Verb, VerbError};

/// Registered regions of all homes. Words that were never written take no room, so a table of ten million locks costs
/// what its used locks cost.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    regions: HashMap<(Peer, Key), u64>,
    words: HashMap<(Peer, Key, u64), u64>,
    keys: u32,
}

impl Memory {
    /// Registers zeroed memory.
    ///
    /// # Errors
    /// The length is no whole number of words, or there are no keys left.
    pub fn register(&mut self, home: Peer, bytes: u64) -> Result<Region, RegionError> {
        if bytes == 0 || !bytes.is_multiple_of(8) {
            return Err(RegionError::Length(bytes));
        }
        let next = self.keys.checked_add(1);
        self.keys = next
            .ok_or_else(|| RegionError::Refused { bytes, reason: "all keys were used".into() })?;
        let key = Key(self.keys);
        self.regions.insert((home, key), bytes);
        Ok(Region { home, key, len: bytes })
    }

    /// Revokes a key; its region is gone.
    pub fn revoke(&mut self, home: Peer, key: Key) {
        if self.regions.remove(&(home, key)).is_some() {
            self.words.retain(|(h, k, _), _| (*h, *k) != (home, key));
        }
    }

    /// Executes a verb: the word as it was before (for WRITE 0).
    ///
    /// # Errors
    /// The key or the offset is wrong.
    pub fn execute(&mut self, at: Address, verb: Verb) -> Result<u64, VerbError> {
        let len = self.regions.get(&(at.home, at.key)).copied().ok_or(VerbError::WrongKey(at))?;
        if !at.offset.is_multiple_of(8) || at.offset.saturating_add(8) > len {
            return Err(VerbError::OutOfBounds(at));
        }
        let place = (at.home, at.key, at.offset);
        let before = self.words.get(&place).copied().unwrap_or(0);
        if let Some(after) = verb.apply(before).filter(|after| *after != before) {
            self.words.insert(place, after);
        }
        Ok(if matches!(verb, Verb::Write(_)) { 0 } else { before })
    }

    /// Executes a READ of an observer of the memory.
    pub fn peek(&self, at: Address) -> u64 {
        self.words.get(&(at.home, at.key, at.offset)).copied().unwrap_or(0)
    }

    /// Every word that is not zero, in order, by which states are compared.
    pub fn contents(&self) -> Vec<(Address, u64)> {
        let used = self.words.iter().filter(|(_, word)| **word != 0);
        let address = |&(home, key, offset): &(Peer, Key, u64)| Address { home, key, offset };
        let mut all: Vec<_> = used.map(|(place, word)| (address(place), *word)).collect();
        all.sort_by_key(|(at, _)| (at.home, at.key, at.offset));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_mean_what_the_specification_says() {
        let mut memory = Memory::default();
        let word = memory.register(Peer(1), 16).unwrap().word(8);
        assert_eq!(memory.execute(word, Verb::Write(5)), Ok(0));
        assert_eq!(memory.execute(word, Verb::FetchAndAdd(u64::MAX)), Ok(5));
        assert_eq!(memory.execute(word, Verb::CompareAndSwap { expected: 5, new: 9 }), Ok(4));
        assert_eq!(memory.execute(word, Verb::CompareAndSwap { expected: 4, new: 0x19 }), Ok(4));
        let swap =
            Verb::MaskedCompareAndSwap { expected: 0, compare_mask: 0, new: 0xff, swap_mask: 0xf };
        assert_eq!(memory.execute(word, swap), Ok(0x19));
        let compared = Verb::MaskedCompareAndSwap {
            expected: 0x2f,
            compare_mask: 0xf0,
            new: 0,
            swap_mask: !0,
        };
        assert_eq!(memory.execute(word, compared), Ok(0x1f), "0x1 is not 0x2");
        assert_eq!(memory.execute(word, Verb::Read), Ok(0x1f));
    }

    #[test]
    fn wrong_keys_places_and_lengths_are_refused() {
        let mut memory = Memory::default();
        assert_eq!(memory.register(Peer(1), 12), Err(RegionError::Length(12)));
        let region = memory.register(Peer(1), 16).unwrap();
        for offset in [4, 16, u64::MAX - 7] {
            let at = region.word(offset);
            assert_eq!(memory.execute(at, Verb::Read), Err(VerbError::OutOfBounds(at)));
        }
        let elsewhere = Address { home: Peer(2), ..region.word(0) };
        assert_eq!(memory.execute(elsewhere, Verb::Read), Err(VerbError::WrongKey(elsewhere)));
        memory.execute(region.word(0), Verb::Write(1)).unwrap();
        memory.revoke(Peer(1), region.key);
        let late = memory.execute(region.word(0), Verb::FetchAndAdd(1));
        assert_eq!(late, Err(VerbError::WrongKey(region.word(0))));
        assert!(memory.contents().is_empty());
    }
}
