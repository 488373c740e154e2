//! Locks at the devices (docs/design/array.md 2.3): L or LR, then WU or U. An operation has all its locks before it
//! writes, so that a denied one has nothing to undo.

use std::collections::VecDeque;

use super::control::{Context, Control, Second};
use crate::Time;
use crate::message::{Action, Blocks, Mode};
use crate::plan::{self, Access};

pub(super) struct DeviceLocks;

impl Control for DeviceLocks {
    fn first(&self, context: &Context<'_>, access: &Access) -> Option<Action> {
        let extent = |columns| plan::extent(context.layout, access.stripe, columns);
        Some(Action::Lock {
            extent: extent(&access.hull()),
            mode: if access.write.is_some() { Mode::Exclusive } else { Mode::Shared },
            read: access.read.as_ref().map(extent),
            repairs: context.repairs,
            patience: context.patience,
            past: context.past.clone(),
        })
    }

    fn second(&self, _access: &Access, blocks: Option<Blocks>, _repairs: bool) -> Option<Second> {
        Some(match blocks {
            Some(blocks) => Second { action: Action::WriteUnlock(blocks), hidden: false },
            None => Second { action: Action::Unlock, hidden: true },
        })
    }

    fn give_up(&self, _access: &Access, _answered: bool) -> Option<Action> {
        Some(Action::Unlock)
    }
}

/// How long requests wait for locks: five times the median latency of the host's last operations.
pub(super) struct Patience {
    recent: VecDeque<Time>,
    range: std::ops::RangeInclusive<Time>,
    current: Time,
    unseen: u32,
}

/// Operations that the median is taken of, and after how many it is taken again.
const REMEMBERED: usize = 63;
const RENEWED_AFTER: u32 = 16;

impl Patience {
    pub(super) fn new(first: Time, range: std::ops::RangeInclusive<Time>) -> Self {
        Patience { recent: VecDeque::new(), range, current: first, unseen: 0 }
    }

    pub(super) fn current(&self) -> Time {
        self.current
    }

    pub(super) fn observe(&mut self, latency: Time) {
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(latency);
        self.unseen += 1;
        if self.unseen == RENEWED_AFTER {
            self.unseen = 0;
            let mut sorted: Vec<_> = self.recent.iter().copied().collect();
            sorted.sort_unstable();
            let wanted = sorted[sorted.len() / 2].saturating_mul(5);
            self.current = wanted.max(*self.range.start()).min(*self.range.end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_follows_the_median_within_its_range() {
        let mut patience = Patience::new(1_000, 500..=5_000);
        assert_eq!(patience.current(), 1_000);
        for latency in 1..=16 {
            patience.observe(latency * 50);
        }
        assert_eq!(patience.current(), 9 * 50 * 5);
        for _ in 0..64 {
            patience.observe(1);
        }
        assert_eq!(patience.current(), 500);
        for _ in 0..64 {
            patience.observe(1_000_000);
        }
        assert_eq!(patience.current(), 5_000);
    }
}
