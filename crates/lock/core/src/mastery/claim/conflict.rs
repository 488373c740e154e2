//! A refused claim whose lock cannot be had: the caller's guarantee did not hold.

use alloc::vec::Vec;

use super::{Claim, State};
use crate::error::{Error, Status};
use crate::ids::{LockId, NodeId};
use crate::io::{LostReason, Output, Trace, WithdrawReason};
use crate::lock::{Op, Owner};
use crate::space::Lockspace;
use crate::timers::Timer;

impl Lockspace {
    /// The name was locked elsewhere after all: the caller's guarantee did not hold. The lock is
    /// lost, and the barrier stays closed until the caller has undone the creation.
    pub(super) fn conflict(&mut self, ordinal: u64, claim: Claim, master: NodeId) {
        self.stats.conflicts += 1;
        self.trace_of(claim.resource, |name| Trace::Conflict { name, claim: ordinal });
        if let Some(claim) = self.claims.open.get_mut(ordinal) {
            claim.state = State::Conflict(master);
        }
        self.store[claim.resource].forget_block();
        let id = claim.lock;
        let lock = &mut self.store[id];
        lock.lost = true;
        lock.provisional = false;
        let (owner, tag, op) = (lock.owner, lock.tag, lock.op);
        let Owner::Local(client) = owner else { return self.abandon(id) };
        self.callback(Output::Lost { client, lock: id, tag, reason: LostReason::Conflict });
        match op {
            Op::Unlock => return self.abandon(id),
            Op::Convert => self.finish(id, Status::Refused(Error::Lost)),
            Op::Request | Op::None => {}
        }
        if self.is_exiting(client) {
            return self.abandon(id);
        }
        self.set_timer(self.config.conflict_patience, Timer::Conflict(ordinal));
    }

    /// The caller gives a lost lock up.
    pub(crate) fn abandon(&mut self, id: LockId) {
        let key = self.store[id].resource;
        let claim = self.store[key].claim;
        self.complete(id, Status::Unlocked);
        let owner = self.store.remove(id).owner;
        self.tell_orphan_gone(owner);
        let open = claim.and_then(|c| self.claims.open.get(c).map(|claim| (c, *claim)));
        match open {
            Some((ordinal, claim)) if claim.lock == id => {
                self.trace_of(key, |name| Trace::Drop { name, claim: ordinal });
                self.settle(ordinal, claim);
            }
            _ => self.drop_if_unused(key),
        }
    }

    /// Nobody is left to abandon locks of clients whose exit waits for the barrier.
    pub(crate) fn abandon_orphaned_conflicts(&mut self) {
        let conflicts: Vec<LockId> = self
            .claims
            .open
            .iter()
            .filter(|(_, c)| matches!(c.state, State::Conflict(_)))
            .map(|(_, c)| c.lock)
            .collect();
        for id in conflicts {
            let exiting = self.store.get(id).is_some_and(|l| match l.owner {
                Owner::Local(client) => self.is_exiting(client),
                _ => true,
            });
            if exiting {
                self.abandon(id);
            }
        }
    }

    pub(crate) fn withdraw_if_conflict_stands(&mut self, ordinal: u64) {
        if self.claims.open.get(ordinal).is_some_and(|c| matches!(c.state, State::Conflict(_))) {
            self.out.push_back(Output::Withdraw(WithdrawReason::ConflictNotAbandoned));
        }
    }
}
