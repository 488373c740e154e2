//! Deadlines. Entries are not withdrawn: whoever fires looks whether there still is a reason.

use alloc::collections::BTreeMap;
use core::hash::{Hash, Hasher};

use crate::ids::{LockId, Time};
use crate::lock::CancelCause;
use crate::space::Lockspace;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Timer {
    /// The operation of this number has waited long enough (ETIMEDOUT).
    Operation(LockId, u32),
    /// The claim of this ordinal has had no answer.
    Resend(u64),
    /// A merged lock has waited long enough at the master.
    Merge(LockId),
    /// The caller has not abandoned a lock lost to a conflict.
    Conflict(u64),
}

#[derive(Clone, Default)]
pub(crate) struct Timers {
    queue: BTreeMap<(Time, u64), Timer>,
    count: u64,
}

impl Timers {
    pub fn next(&self) -> Option<Time> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    pub fn set(&mut self, at: Time, timer: Timer) {
        self.count += 1;
        self.queue.insert((at, self.count), timer);
    }

    fn pop_due(&mut self, now: Time) -> Option<Timer> {
        let entry = self.queue.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}

impl Hash for Timers {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Which deadlines exist decides what can happen next; when they are due does not, as a
        // model checker lets any of them fire.
        self.queue.values().for_each(|t| t.hash(state));
    }
}

impl Lockspace {
    pub(crate) fn set_timer(&mut self, after: Time, timer: Timer) {
        self.timers.set(self.now.saturating_add(after), timer);
    }

    pub(crate) fn fire_timers(&mut self) {
        if mutated!(self, BarrierInterrupted) {
            self.open_barrier();
        }
        self.flush_due_batches();
        self.toss_idle();
        while let Some(timer) = self.timers.pop_due(self.now) {
            match timer {
                Timer::Operation(lock, op_no) => self.time_out(lock, op_no),
                Timer::Resend(ordinal) => self.resend_claim(ordinal),
                Timer::Merge(lock) => self.give_up_merge(lock),
                Timer::Conflict(ordinal) => self.withdraw_if_conflict_stands(ordinal),
            }
        }
    }

    fn time_out(&mut self, id: LockId, op_no: u32) {
        let waits = self
            .store
            .get(id)
            .is_some_and(|l| l.op_start == op_no && l.op != crate::lock::Op::None);
        if waits {
            self.cancel_lock(id, CancelCause::TimedOut);
        }
    }
}
