//! The claims that are not settled.
//!
//! Claims are made in the order of their ordinals, are first sent in that order under ids of one
//! counter, and are mostly settled in about that order: so a queue sorted by both serves as the map
//! from either, and a claim costs no tree and no hashing.

use alloc::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::Claim;

/// Settled claims between open ones that are kept whatever their share: more than a volley of full
/// batches has, of which one directory node answers before the other. Without gaps a claim is found
/// at once.
const SPARSE: usize = 4096;

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Slot {
    ordinal: u64,
    /// The id under which it was sent first.
    first_id: u64,
    /// `None`: settled, but an older one is not.
    claim: Option<Claim>,
}

/// Claims by ordinal and by id.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ledger {
    /// Ascending in both numbers; the first one is open.
    slots: VecDeque<Slot>,
    open: usize,
    /// Ordinals of claims that were made again, by the new id.
    again: BTreeMap<u64, u64>,
}

impl core::hash::Hash for Ledger {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.open.hash(state);
        self.iter().for_each(|entry| entry.hash(state));
    }
}

impl Ledger {
    pub fn len(&self) -> usize {
        self.open
    }

    pub fn oldest(&self) -> Option<u64> {
        self.slots.front().map(|s| s.ordinal)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Claim)> {
        self.slots.iter().filter_map(|s| Some((s.ordinal, s.claim.as_ref()?)))
    }

    /// Adds a claim, whose ordinal and id must be larger than all before.
    pub fn push(&mut self, ordinal: u64, claim: Claim) {
        debug_assert!(self.slots.back().is_none_or(|s| s.ordinal < ordinal));
        self.slots.push_back(Slot { ordinal, first_id: claim.id, claim: Some(claim) });
        self.open += 1;
    }

    fn position(&self, ordinal: u64) -> Option<usize> {
        self.find(ordinal, |s| s.ordinal)
    }

    /// Where the slot with this number is; the numbers ascend.
    fn find(&self, number: u64, number_of: impl Fn(&Slot) -> u64) -> Option<usize> {
        let distance = number.checked_sub(number_of(self.slots.front()?))?;
        // Without gaps, which is usual, that is the place.
        let guess = usize::try_from(distance).ok()?;
        if self.slots.get(guess).is_some_and(|s| number_of(s) == number) {
            return Some(guess);
        }
        self.slots.binary_search_by_key(&number, number_of).ok()
    }

    pub fn get(&self, ordinal: u64) -> Option<&Claim> {
        self.slots.get(self.position(ordinal)?)?.claim.as_ref()
    }

    pub fn get_mut(&mut self, ordinal: u64) -> Option<&mut Claim> {
        let at = self.position(ordinal)?;
        self.slots.get_mut(at)?.claim.as_mut()
    }

    /// The open claim whose present id this is.
    pub fn by_id(&self, id: u64) -> Option<(u64, &Claim)> {
        let at = match self.again.get(&id) {
            Some(&ordinal) => self.position(ordinal),
            None => self.find(id, |s| s.first_id),
        };
        let slot = self.slots.get(at?)?;
        let claim = slot.claim.as_ref().filter(|c| c.id == id)?;
        Some((slot.ordinal, claim))
    }

    /// Gives a claim that is made again its new id.
    pub fn set_id(&mut self, ordinal: u64, id: u64) {
        let Some(claim) = self.get_mut(ordinal) else { return };
        let old = core::mem::replace(&mut claim.id, id);
        self.again.remove(&old);
        self.again.insert(id, ordinal);
    }

    pub fn remove(&mut self, ordinal: u64) {
        let Some(at) = self.position(ordinal) else { return };
        let Some(claim) = self.slots[at].claim.take() else { return };
        self.open -= 1;
        if !self.again.is_empty() {
            self.again.remove(&claim.id);
        }
        while self.slots.front().is_some_and(|s| s.claim.is_none()) {
            self.slots.pop_front();
        }
        // One claim that waits for long must not keep the memory of all that came after it.
        if self.slots.len() > 2 * self.open + SPARSE {
            self.slots.retain(|s| s.claim.is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;
    use crate::ids::LockId;
    use crate::resource::ResourceKey;

    fn ledger(count: u64) -> Ledger {
        let mut ledger = Ledger::default();
        for ordinal in 1..=count {
            let (resource, lock) = (ResourceKey::default(), LockId(ordinal));
            let state = State::Pending;
            let id = 10 * ordinal;
            ledger.push(ordinal, Claim { resource, lock, id, strict: false, state, tries: 0 });
        }
        ledger
    }

    fn found(ledger: &Ledger, id: u64) -> Option<u64> {
        ledger.by_id(id).map(|(ordinal, _)| ordinal)
    }

    #[test]
    fn finds_by_ordinal_and_by_id_until_removed() {
        let mut ledger = ledger(5);
        assert_eq!(
            (found(&ledger, 30), found(&ledger, 31), ledger.oldest()),
            (Some(3), None, Some(1))
        );
        ledger.remove(3);
        assert!(ledger.get(3).is_none() && found(&ledger, 30).is_none());
        assert_eq!((ledger.len(), ledger.oldest()), (4, Some(1)));
        ledger.remove(1);
        ledger.remove(2);
        assert_eq!((ledger.len(), ledger.oldest(), found(&ledger, 50)), (2, Some(4), Some(5)));
    }

    #[test]
    fn a_claim_made_again_has_only_its_new_id() {
        let mut ledger = ledger(3);
        ledger.set_id(2, 77);
        assert_eq!((found(&ledger, 20), found(&ledger, 77)), (None, Some(2)));
        ledger.set_id(2, 78);
        assert_eq!((found(&ledger, 77), found(&ledger, 78)), (None, Some(2)));
        ledger.remove(2);
        assert_eq!(found(&ledger, 78), None);
        assert!(ledger.again.is_empty());
    }

    #[test]
    fn one_open_claim_keeps_no_memory_of_many_settled_ones() {
        let mut ledger = ledger(10_000);
        (2..10_000).for_each(|ordinal| ledger.remove(ordinal));
        assert!(ledger.slots.len() <= 2 * 2 + SPARSE);
        assert_eq!(found(&ledger, 100_000), Some(10_000));
        assert_eq!(ledger.iter().map(|(o, _)| o).collect::<alloc::vec::Vec<_>>(), [1, 10_000]);
    }
}
