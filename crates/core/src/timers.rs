//! Deadlines. Entries are not withdrawn: whoever fires looks whether there still is a reason.

use alloc::collections::BTreeMap;
use core::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::error::Status;
use crate::flags::{SbFlags, UnlockFlags};
use crate::ids::{LockId, Time};
use crate::io::{Completion, Output, UnlockArgs};
use crate::lock::{CancelCause, Lock, Op, Owner, Stage};
use crate::resource::Master;
use crate::space::Lockspace;

/// Locks that have timed out and are still to be unlocked, with those of clients that have gone.
const MOST_EXPIRED: usize = 10_000;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) enum Timer {
    /// The operation of this number has waited long enough (ETIMEDOUT).
    Operation(LockId, u32),
    /// The claim of this ordinal has had no answer.
    Resend(u64),
    /// A merged lock has waited long enough at the master.
    Merge(LockId),
    /// The caller has not abandoned a lock lost to a conflict.
    Conflict(u64),
    /// Locks may have waited for long at this master, as it was set then.
    Deadlocks(u32),
}

#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
                Timer::Deadlocks(setting) => self.look_for_long_waits(setting),
            }
        }
    }

    /// An operation has waited long enough. A conversion ends when its master says in which mode
    /// the lock is left; a new lock is nobody's then, whoever has to be asked.
    fn time_out(&mut self, id: LockId, op_no: u32) {
        let Some(lock) = self.store.get(id).filter(|l| l.op_start == op_no) else { return };
        match lock.op {
            Op::Request if self.answers_at_once(lock) => {
                self.cancel_lock(id, CancelCause::TimedOut)
            }
            Op::Request => self.expire(id),
            Op::None if op_no == Lock::FIRST_OP && !self.running => self.expire_held_back(id),
            Op::None => {}
            Op::Convert | Op::Unlock => self.cancel_lock(id, CancelCause::TimedOut),
        }
    }

    /// Whether a cancel of this request ends it without a message or the end of a recovery.
    fn answers_at_once(&self, lock: &Lock) -> bool {
        match lock.stage {
            Stage::Idle | Stage::Barrier | Stage::Frozen | Stage::Parked => true,
            Stage::Queued => self.running && self.store[lock.resource].master == Master::Here,
            Stage::Gate | Stage::LookUp | Stage::Asked(_) => false,
        }
    }

    /// The client is told now, past the gate, as this gives and takes nothing; the lock goes as
    /// that of a client that has gone does: if it is granted after all, it is unlocked. Where many
    /// are on their way already, another one waits for its answer and counts as the client's: who
    /// asks again and again with short time-outs must not fill the memory while a master is dead.
    fn expire(&mut self, id: LockId) {
        let lock = &self.store[id];
        let Owner::Local(client) = lock.owner else { return };
        let taken_back = lock.overlap.as_ref().is_some_and(|o| o.unlock.is_some());
        if taken_back {
            return;
        }
        if self.store.disowned() >= MOST_EXPIRED {
            return self.cancel_lock(id, CancelCause::TimedOut);
        }
        let completion = Completion {
            client,
            lock: id,
            tag: lock.tag,
            status: Status::TimedOut,
            mode: None,
            sb: SbFlags::empty(),
            lvb: None,
            token: 0,
            provisional: false,
        };
        if !self.has_exited(client) {
            self.out.push_back(Output::Complete(completion));
        }
        self.store.disown(id);
        let flags = UnlockFlags::FORCE;
        self.unlock_lock(UnlockArgs { client, lock: id, tag: 0, flags, lvb: None });
    }

    /// A new lock has been granted in time, but its client has not been told yet, as a recovery
    /// runs: it has not used what it held, either.
    fn expire_held_back(&mut self, id: LockId) {
        let granted = |o: &Output| matches!(o, Output::Complete(c) if c.lock == id && c.status == Status::Granted);
        if self.store[id].lost || !self.held.iter().any(granted) {
            return;
        }
        self.held.retain(|output| !output.is_about(id));
        self.expire(id);
    }
}
