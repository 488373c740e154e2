//! The service's behaviour with a known defect ([`crate::mutation`]); not in releases.

use super::*;
use crate::mutation::Mutation;

/// So many refused proposals use up all numbers.
const NUMBERS: u64 = 1 << 27;

impl CorosyncMembership {
    /// Makes it behave with this defect from here on.
    #[must_use]
    pub fn mutated(mut self, mutation: Option<Mutation>) -> CorosyncMembership {
        self.mutation = mutation;
        if mutated!(self, ViewFromClock) {
            self.kept.memory.number = 0;
        }
        self
    }

    /// The life that a process takes, where `life` is the next one.
    pub(super) fn mutated_life(&self, life: u64) -> u64 {
        if mutated!(self, LifeFromClock) { self.wall } else { life }
    }

    /// The number of the next view, where `seq` is one above all others.
    pub(super) fn mutated_number(&self, seq: u64) -> u64 {
        let own = self.kept.memory.number + 1;
        if mutated!(self, ViewFromClock) { self.wall.max(own) } else { seq }
    }

    /// The number that a refused proposal has used up.
    pub(super) fn mutated_refusal(&self) -> u64 {
        (self.kept.memory.number + NUMBERS).min(crate::log::LAST_VIEW - 1)
    }
}
