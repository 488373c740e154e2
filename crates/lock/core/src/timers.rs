//! Deadlines. Entries are not withdrawn at once: when one fires, its reason is checked again, and those without one are
//! dropped when they have become many.

use alloc::collections::BTreeMap;
use core::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::error::Status;
use crate::flags::{LockFlags, UnlockFlags};
use crate::ids::{ClientId, LockId, Time};
use crate::io::{Completion, Ended, Output, UnlockArgs};
use crate::lock::{CancelCause, Lock, Op, OpStage, Owner};
use crate::mode::Mode;
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

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns true if most entries may be obsolete, with so many locks. Looked at now and then: a
    /// look through all entries is paid for by those that were made since the last one.
    fn is_cluttered(&self, locks: usize) -> bool {
        const NOW_AND_THEN: usize = 4096;
        self.count.is_multiple_of(NOW_AND_THEN as u64)
            && self.queue.len() > 2 * locks + NOW_AND_THEN
    }

    fn pop_due(&mut self, now: Time) -> Option<Timer> {
        let entry = self.queue.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}

impl Hash for Timers {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The set of deadlines decides the possible next steps. Their times do not, because a model
        // checker lets any of them fire.
        self.queue.values().for_each(|t| t.hash(state));
    }
}

impl Lockspace {
    pub(crate) fn set_timer(&mut self, after: Time, timer: Timer) {
        self.timers.set(self.now.saturating_add(after), timer);
        if self.timers.is_cluttered(self.store.lock_count()) {
            self.drop_spent_timers();
        }
    }

    /// Forgets time-outs of operations that have ended.
    fn drop_spent_timers(&mut self) {
        let (store, running) = (&self.store, self.running);
        self.timers.queue.retain(|_, timer| match *timer {
            Timer::Operation(lock, op) => {
                store.get(lock).is_some_and(|l| l.op_start == op && (l.op != Op::None || !running))
            }
            _ => true,
        });
    }

    pub(crate) fn fire_timers(&mut self) {
        if mutated!(self, BarrierInterrupted) {
            self.open_barrier();
        }
        self.flush_due_batches();
        self.toss_idle();
        // More than that, and the next ones are due at once.
        for _ in 0..self.config.bulk.max(1) {
            let Some(timer) = self.timers.pop_due(self.now) else { return };
            match timer {
                Timer::Operation(lock, op_no) => self.time_out(lock, op_no),
                Timer::Resend(ordinal) => self.resend_claim(ordinal),
                Timer::Merge(lock) => self.give_up_merge(lock),
                Timer::Conflict(ordinal) => self.withdraw_if_conflict_stands(ordinal),
                Timer::Deadlocks(setting) => self.look_for_long_waits(setting),
            }
        }
    }

    /// An operation has waited long enough, even if a node does not answer. A new lock then has no
    /// owner, and a conversion's lock stays in its mode. If the grant may not cover that mode, or
    /// writes the value block, only the master knows the lock's state, and the operation waits for
    /// it.
    fn time_out(&mut self, id: LockId, op_no: u32) {
        let Some(lock) = self.store.get(id).filter(|l| l.op_start == op_no) else { return };
        match lock.op {
            Op::Request if self.answers_at_once(lock) => {
                self.cancel_lock(id, CancelCause::TimedOut)
            }
            Op::Request => self.expire(id),
            Op::Convert if !self.answers_at_once(lock) && is_undone_by_old_mode(lock) => {
                self.expire_conversion(id)
            }
            Op::None if !self.running => self.expire_held_back(id, op_no),
            Op::None => {}
            Op::Convert | Op::Unlock => self.cancel_lock(id, CancelCause::TimedOut),
        }
    }

    /// Returns true if a cancel of this operation ends it without a message or the end of a
    /// recovery.
    fn answers_at_once(&self, lock: &Lock) -> bool {
        match lock.stage {
            OpStage::Idle | OpStage::Barrier | OpStage::Frozen | OpStage::AwaitsMaster => true,
            OpStage::Queued => self.running && self.store[lock.resource].master == Master::Here,
            OpStage::Gate | OpStage::LookUp | OpStage::Asked(_) => false,
        }
    }

    /// The client is told now, past the gate, as this gives and takes nothing; the lock goes as
    /// that of a client that has gone does: if it is granted after all, it is unlocked. If many are
    /// on their way already, another one waits for its answer and counts as the client's. Repeated
    /// requests with short time-outs must not fill the memory while a master is dead.
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
        self.tell_timed_out(id, client, None);
        self.store.disown(id);
        let flags = UnlockFlags::FORCE;
        self.unlock_lock(UnlockArgs { client, lock: id, tag: 0, flags, lvb: None });
    }

    /// The same for a conversion: the lock is in its old mode as far as its client is concerned, and
    /// taken back to it if another one is granted after all.
    fn expire_conversion(&mut self, id: LockId) {
        let lock = &self.store[id];
        let taken_back = lock.overlap.as_ref().is_some_and(|o| o.unlock.is_some());
        if taken_back || lock.mode_reported.is_some() {
            return;
        }
        if let (Owner::Local(client), Some(mode)) = (lock.owner, lock.granted) {
            self.tell_timed_out(id, client, Some(mode));
        }
        self.cancel_lock(id, CancelCause::TimedOut);
    }

    fn tell_timed_out(&mut self, id: LockId, client: ClientId, mode: Option<Mode>) {
        let lock = &mut self.store[id];
        let provisional = mode.is_some() && lock.provisional;
        let ended = Ended { mode, provisional, ..Ended::new(Status::TimedOut) };
        let completion = Completion { client, lock: id, tag: lock.tag, ended };
        if mode.is_some() {
            lock.mode_reported = mode;
            lock.cast_mode = mode;
            lock.last_bast = None;
        }
        if !self.has_exited(client) {
            self.out.push_back(Output::Complete(completion));
        }
    }

    /// A lock has been granted in time, but its client has not been told yet, as a recovery runs:
    /// it has not used what it held, either.
    fn expire_held_back(&mut self, id: LockId, op_no: u32) {
        let granted = |o: &Output| matches!(o, Output::Complete(c) if c.lock == id && c.status == Status::Granted);
        let lock = &self.store[id];
        if lock.lost || !self.deferred_callbacks.iter().any(granted) {
            return;
        }
        if op_no == Lock::FIRST_OP {
            self.deferred_callbacks.retain(|output| !output.is_about(id));
            return self.expire(id);
        }
        let (Owner::Local(client), Some(mode)) = (lock.owner, lock.mode_at_call) else { return };
        if lock.granted.is_some_and(|now| now.covers(mode)) && !says_more(lock, mode) {
            self.deferred_callbacks.retain(|output| !granted(output));
            self.tell_timed_out(id, client, Some(mode));
            self.convert_back_later(id, mode);
        }
    }
}

/// Returns true if the return to the old mode undoes a granted conversion completely.
fn is_undone_by_old_mode(lock: &Lock) -> bool {
    let modes = lock.granted.zip(lock.requested);
    modes.is_some_and(|(gr, rq)| rq.covers(gr) && !lock.granted_unknown && !says_more(lock, gr))
}

/// Returns true if a conversion from this mode may give another mode than it asks for, give up the
/// one it has, or write or invalidate the value block.
fn says_more(lock: &Lock, from: Mode) -> bool {
    let other = LockFlags::CONVDEADLK | LockFlags::ALTPR | LockFlags::ALTCW | LockFlags::IVVALBLK;
    lock.flags.intersects(other) || from.writes() && lock.flags.contains(LockFlags::VALBLK)
}
