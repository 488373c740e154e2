//! When a state is written to the disk: one write at a time, and again after a failure.

use lockify_core::Time;

/// The writes of a state. `T` is kept during a write, and comes back at its end.
#[derive(Clone, Debug)]
pub(super) struct Writes<T> {
    /// The number of the last write.
    number: u64,
    /// The write that is under way: how many changes it has, and what is kept.
    running: Option<(u64, T)>,
    /// A write failed: it is tried again then.
    again: Option<Time>,
    /// Changes there have been, and those that the disk has.
    changes: u64,
    written: u64,
}

impl<T> Default for Writes<T> {
    fn default() -> Self {
        Writes { number: 0, running: None, again: None, changes: 0, written: 0 }
    }
}

impl<T> Writes<T> {
    /// The number of the last write.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The writes of a process that goes on from another one, whose last write had this number.
    pub(super) fn go_on(&mut self, number: u64) {
        self.number = number;
    }

    /// The state has changed. Returns the number of the change.
    pub(super) fn change(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }

    /// Returns true if the disk has this change.
    pub(super) fn has(&self, change: u64) -> bool {
        change <= self.written
    }

    /// Returns true if the disk has everything.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none() && self.written == self.changes
    }

    /// Returns true if the last write that has ended failed.
    pub(super) fn has_failed(&self) -> bool {
        self.again.is_some()
    }

    /// When a failed write is tried again, unless that is under way.
    pub(super) fn again(&self) -> Option<Time> {
        self.again.filter(|_| self.running.is_none())
    }

    /// Returns true if a write is to begin.
    pub(super) fn is_due(&self, now: Time) -> bool {
        !self.is_idle() && self.running.is_none() && self.again.is_none_or(|at| at <= now)
    }

    /// Begins a write of the present state. Returns its number.
    pub(super) fn begin(&mut self, kept: T) -> u64 {
        self.number += 1;
        self.running = Some((self.changes, kept));
        self.number
    }

    /// A write has ended: if it is the one under way, returns what was kept.
    pub(super) fn end(&mut self, number: u64, success: bool, again: Time) -> Option<T> {
        let (changes, kept) = self.running.take_if(|_| number == self.number)?;
        if success {
            (self.again, self.written) = (None, changes);
        } else {
            self.again = Some(again);
        }
        Some(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_write_at_a_time_and_again_after_a_failure() {
        let mut writes = Writes::default();
        assert!(writes.is_idle() && !writes.is_due(0));
        let first = writes.change();
        assert!(writes.is_due(0));
        let number = writes.begin('a');
        assert!(!writes.is_due(0), "one at a time");
        let second = writes.change();
        assert_eq!(writes.end(number + 1, true, 9), None, "no such write");
        assert_eq!(writes.end(number, false, 9), Some('a'));
        assert!(writes.has_failed() && writes.again() == Some(9) && !writes.has(first));
        assert!(!writes.is_due(8) && writes.is_due(9));
        let number = writes.begin('b');
        assert_eq!(writes.again(), None, "it is under way");
        let third = writes.change();
        assert_eq!(writes.end(number, true, 0), Some('b'));
        assert!(writes.has(second) && !writes.has(third) && !writes.has_failed());
        assert!(!writes.is_idle() && writes.is_due(9), "the third change came after the begin");
    }
}
