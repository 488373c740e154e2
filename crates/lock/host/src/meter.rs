//! How long clients' operations take, as histograms.

use std::collections::BTreeMap;

use lockify_core::{ClientId, Status};

/// Upper bounds of the classes, in nanoseconds: powers of four from 1 µs to 268 s.
pub const BOUNDS: [u64; 15] = {
    let mut bounds = [1_000; 15];
    let mut i = 1;
    while i < bounds.len() {
        bounds[i] = bounds[i - 1] * 4;
        i += 1;
    }
    bounds
};

/// Durations, counted in classes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Durations {
    /// How many fall into each class of [`BOUNDS`]; the last ones are longer than all bounds.
    pub counts: [u64; BOUNDS.len() + 1],
    /// Their sum, nanoseconds.
    pub sum: u64,
}

impl Durations {
    fn add(&mut self, nanoseconds: u64) {
        let class = BOUNDS.iter().position(|&b| nanoseconds <= b).unwrap_or(BOUNDS.len());
        self.counts[class] += 1;
        self.sum = self.sum.saturating_add(nanoseconds);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds those of another shard.
    pub fn merge(&mut self, other: &Durations) {
        self.counts.iter_mut().zip(other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.sum = self.sum.saturating_add(other.sum);
    }
}

/// The outcomes of requests and conversions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outcomes {
    /// Granted operations.
    pub granted: u64,
    /// Operations that ended with EAGAIN.
    pub again: u64,
    /// Operations that ended with ECANCEL.
    pub canceled: u64,
    /// Operations that ended with EDEADLK.
    pub deadlock: u64,
    /// Operations that ended with ETIMEDOUT.
    pub timed_out: u64,
    /// Refused, at once or later.
    pub refused: u64,
}

/// A host's measurements of its clients' requests and conversions.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// From the call to the grant, all of them.
    pub grants: Durations,
    /// From the call to the end of any kind, for operations that did not end at once.
    pub waits: Durations,
    /// How they ended.
    pub outcomes: Outcomes,
    /// Blocking notices.
    pub basts: u64,
    /// Locks reported lost.
    pub lost: u64,
}

/// Measures: at the cost of two looks at the clock for each operation.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub figures: Figures,
    /// When the operations that have not ended were called, by client and tag.
    open: BTreeMap<(ClientId, u64), u64>,
}

impl Meter {
    /// An operation did not end at once.
    pub fn waits(&mut self, client: ClientId, tag: u64, since: u64) {
        self.open.insert((client, tag), since);
    }

    /// An operation ended at once.
    pub fn ended_at_once(&mut self, status: Status, took: u64) {
        if status == Status::Granted {
            self.figures.grants.add(took);
        }
        self.count(status);
    }

    /// An operation that may have waited has ended.
    pub fn ended(&mut self, client: ClientId, tag: u64, status: Status, now: u64) {
        if let Some(since) = self.open.remove(&(client, tag)) {
            let took = now.saturating_sub(since);
            self.figures.waits.add(took);
            self.ended_at_once(status, took);
        }
    }

    /// Returns true if an operation is under way.
    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// A client is gone; nobody hears of its operations.
    pub fn forget(&mut self, client: ClientId) {
        let all = (client, 0)..=(client, u64::MAX);
        let open: Vec<_> = self.open.range(all).map(|(key, _)| *key).collect();
        for key in open {
            self.open.remove(&key);
        }
    }

    /// No operation will be answered.
    pub fn forget_all(&mut self) {
        self.open.clear();
    }

    fn count(&mut self, status: Status) {
        let outcomes = &mut self.figures.outcomes;
        *match status {
            Status::Granted => &mut outcomes.granted,
            // Unlocks are not measured: a forced one takes its operation along.
            Status::Unlocked | Status::Canceled => &mut outcomes.canceled,
            Status::Again => &mut outcomes.again,
            Status::Deadlock => &mut outcomes.deadlock,
            Status::TimedOut => &mut outcomes.timed_out,
            Status::Refused(_) => &mut outcomes.refused,
        } += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_at_once_and_what_waits_are_told_apart() {
        let mut meter = Meter::default();
        let client = ClientId(1);
        meter.ended_at_once(Status::Granted, 1_000);
        meter.waits(client, 7, 100);
        meter.waits(client, 8, 100);
        meter.ended(client, 9, Status::Granted, 200);
        meter.ended(client, 7, Status::TimedOut, 5_000_000_100);
        meter.ended(client, 8, Status::Granted, 1_101);
        assert!(meter.is_idle());
        let Figures { grants, waits, outcomes, .. } = meter.figures;
        assert_eq!((grants.count(), grants.counts[0], grants.counts[1]), (2, 1, 1));
        assert_eq!((waits.count(), waits.sum), (2, 5_000_001_001));
        assert_eq!((outcomes.granted, outcomes.timed_out), (2, 1));
    }
}
