//! Claims across a change of members: suspended with the view, made again when the directory is
//! rebuilt, with the barrier closed all the while.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::{Claim, State};
use crate::error::Status;
use crate::ids::{LockId, NodeId};
use crate::io::Trace;
use crate::lock::OpStage;
use crate::mode::Mode;
use crate::resource::Master;
use crate::space::Lockspace;

impl Lockspace {
    /// A new view: answers that were under way will not come, gathered batches have lost their
    /// addressee. Strict claims begin again as requests; the others are claimed again when the
    /// directory is rebuilt, the barrier still closed.
    pub(crate) fn suspend_claims(&mut self, departed: &BTreeSet<NodeId>) {
        self.claims.batches.clear();
        let all: Vec<(u64, Claim)> = self.claims.open.iter().map(|(o, c)| (o, *c)).collect();
        for (ordinal, claim) in all {
            match claim.state {
                State::Pending if claim.strict => {
                    self.claims.open.remove(ordinal);
                    self.store[claim.resource].claim = None;
                    self.trace_of(claim.resource, |name| Trace::Drop { name, claim: ordinal });
                }
                State::Merging(master) if departed.contains(&master) => {
                    if let Some(claim) = self.claims.open.get_mut(ordinal) {
                        claim.state = State::Pending;
                    }
                    // It was refused: who follows the claim from outside may have taken that for its end.
                    self.trace_of(claim.resource, |name| Trace::Claim { name, claim: ordinal });
                    self.become_master(claim.resource);
                }
                State::Conflict(master) if departed.contains(&master) => {
                    self.store[claim.resource].master = Master::Unknown;
                }
                _ => {}
            }
        }
    }

    /// The directory is rebuilt: pending claims are made again.
    pub(crate) fn resume_claims(&mut self) {
        let pending: Vec<(u64, Claim)> = self
            .claims
            .open
            .iter()
            .filter(|(_, c)| c.state == State::Pending)
            .map(|(o, c)| (o, *c))
            .collect();
        // A lock is frozen only while its claim is open, and not those of other locks.
        let frozen: Vec<LockId> = self.claims.open.iter().map(|(_, c)| c.lock).collect();
        for (ordinal, claim) in pending {
            let name = self.name_of(claim.resource);
            if mutated!(self, PendingAdvertised | NotClaimedAgain) {
                self.confirm(ordinal);
                continue;
            }
            if mutated!(self, RecoveryRequestsAgain) && self.store.get(claim.lock).is_some() {
                self.store[claim.lock].granted = Some(Mode::NL);
                self.store.mode_changed(claim.lock);
                self.complete(claim.lock, Status::Granted);
            }
            self.stats.resends += 1;
            self.trace(|| Trace::Resend { name, claim: ordinal });
            self.claim_again(ordinal);
        }
        self.flush_batches();
        self.open_barrier();
        for id in frozen {
            if self.store.get(id).is_some_and(|l| l.stage == OpStage::Frozen) {
                self.issue(id);
            }
        }
    }
}
