//! The claim barrier (docs/design/claim.md 4.6): an operation that would let others learn of an object
//! in creation waits until the object's locks are known to be this node's.
//!
//! One barrier for the lockspace: any weakening of an EX or PW lock waits until every claim made
//! before it is settled. It comes before the recovery gate and never holds it, so that a recovery can
//! always run and settle claims (INV-4). Locks whose object is being freed are exempt: else crossed
//! refusals would wait for each other for ever.

use alloc::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::flags::LockFlags;
use crate::ids::{ClientId, LockId, Time};
use crate::io::{Output, Trace};
use crate::lock::{Lock, Op, OpStage};
use crate::space::Lockspace;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
enum Waiter {
    /// The lock's operation that began with this number.
    Lock(LockId, u32),
    Client(ClientId),
    AwaitClaims(u64),
    Leave,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Wait {
    waiter: Waiter,
    /// Every claim with a smaller ordinal must be settled.
    claims_before: u64,
    since: Time,
}

/// The waiting operations, in order of arrival.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Barrier {
    waits: VecDeque<Wait>,
}

impl core::hash::Hash for Barrier {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.waits.iter().for_each(|w| (w.waiter, w.claims_before).hash(state));
    }
}

#[cfg(feature = "mutations")]
impl Barrier {
    pub fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }
}

impl Lockspace {
    /// Returns true if the lock's operation weakens a lock that hides objects under creation.
    pub(crate) fn must_wait_at_barrier(&self, lock: &Lock) -> bool {
        let freed = lock.flags.contains(LockFlags::FREED) && !mutated!(self, FreedLocksWait);
        if self.claims.unsettled() == 0 || freed {
            return false;
        }
        let Some(gr) = lock.granted else { return false };
        // A converter may come out weaker than it went in: by demotion, or in the alternative mode.
        let may_weaken = LockFlags::CONVDEADLK | LockFlags::ALTPR | LockFlags::ALTCW;
        match (lock.op, lock.requested) {
            (Op::Unlock, _) => gr.writes(),
            (Op::Convert, _) if mutated!(self, BarrierOnlyInUnlock) => false,
            (Op::Convert, Some(rq)) => {
                gr.is_middle(rq) || gr.writes() && (rq < gr || lock.flags.intersects(may_weaken))
            }
            _ => false,
        }
    }

    pub(crate) fn wait_at_barrier(&mut self, id: LockId) {
        self.store[id].stage = OpStage::Barrier;
        let start = self.store[id].op_start;
        self.stats.barrier_waits += 1;
        self.trace(|| Trace::Barrier { lock: id, waits: true });
        self.wait_for_claims(Waiter::Lock(id, start));
    }

    pub(crate) fn wait_for_client(&mut self, client: ClientId) {
        self.stats.barrier_waits += 1;
        self.wait_for_claims(Waiter::Client(client));
    }

    pub(crate) fn await_claims(&mut self, number: u64) {
        if self.claims.unsettled() == 0 {
            self.out.push_back(Output::ClaimsSettled(number));
        } else {
            self.wait_for_claims(Waiter::AwaitClaims(number));
        }
    }

    pub(crate) fn leave(&mut self) {
        if self.leaving || !self.member {
            return;
        }
        self.leaving = true;
        self.wait_for_claims(Waiter::Leave);
        self.open_barrier();
    }

    fn wait_for_claims(&mut self, waiter: Waiter) {
        let claims_before = self.claims.next_ordinal();
        self.barrier.waits.push_back(Wait { waiter, claims_before, since: self.now });
        // An operation that waits here waits for the answers to everything gathered so far.
        self.flush_batches();
        if matches!(waiter, Waiter::Client(_) | Waiter::Leave) {
            self.abandon_orphaned_conflicts();
        }
    }

    /// Returns true if the client's exit waits: no client is left to be told anything.
    pub(crate) fn has_exited(&self, client: ClientId) -> bool {
        self.barrier.waits.iter().any(|w| w.waiter == Waiter::Client(client))
    }

    /// Returns true if the client's exit waits for the barrier, so that no client is left to
    /// abandon a lock.
    pub(crate) fn is_exiting(&self, client: ClientId) -> bool {
        self.leaving || self.has_exited(client)
    }

    /// Lets everything pass whose claims are settled.
    pub(crate) fn open_barrier(&mut self) {
        while let Some(wait) = self.barrier.waits.front().copied() {
            let unsettled =
                self.claims.oldest_unsettled().is_some_and(|oldest| oldest < wait.claims_before);
            if unsettled && !mutated!(self, BarrierInterrupted) {
                return;
            }
            self.barrier.waits.pop_front();
            let waited = self.now - wait.since;
            self.stats.barrier_wait_ns += waited;
            self.stats.barrier_wait_max_ns = self.stats.barrier_wait_max_ns.max(waited);
            self.pass(wait.waiter);
        }
    }

    fn pass(&mut self, waiter: Waiter) {
        match waiter {
            Waiter::Lock(id, start) => {
                let waits = |l: &Lock| l.stage == OpStage::Barrier && l.op_start == start;
                if self.store.get(id).is_some_and(waits) {
                    self.trace(|| Trace::Barrier { lock: id, waits: false });
                    self.issue_in_turn(id);
                }
            }
            Waiter::Client(client) => self.release_client(client),
            Waiter::AwaitClaims(number) => self.out.push_back(Output::ClaimsSettled(number)),
            Waiter::Leave => self.release_everything(),
        }
    }

    /// Leaving: unlocks what local clients still hold; ends when nothing is outstanding.
    fn release_everything(&mut self) {
        for id in self.locks_where(Lock::is_local) {
            if self.store.get(id).is_some() {
                self.release(id);
            }
        }
        self.left_if_idle();
    }

    /// Leaving ends when the last local lock is gone.
    pub(crate) fn left_if_idle(&mut self) {
        let idle = self.leaving && self.member && self.store.local_count() == 0;
        if idle && !self.barrier.waits.iter().any(|w| w.waiter == Waiter::Leave) {
            self.member = false;
            self.running = false;
            self.over = true;
            self.out.push_back(Output::Left);
        }
    }
}
