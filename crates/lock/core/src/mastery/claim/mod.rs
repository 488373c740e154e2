//! Claimed mastery (docs/design/claim.md 4): the creator of an object makes itself the master of the
//! object's locks, tells the directory node, and goes on at once.
//!
//! The claim's state belongs to the resource, never to the lock: a granted lock under a pending
//! claim is a granted lock. The barrier (`barrier.rs`) decides which nodes may learn of the object
//! before the claim is settled.
//!
//! ```text
//!            OK, or a REQUEST from the directory node
//! PENDING ---------------------------------------------> settled (confirmed)
//!    | ^ \                            merged
//!    | |  EXISTS(M) --> MERGING ---------------------->  settled (a lock at M like any other)
//!    | |________________|   \                 abandoned
//!    |   M has left          CONFLICT ---------------->  settled (the lock was reported lost)
//!    |__ a new view: claimed again, with a new id
//! ```

mod again;
mod batch;
mod conflict;
mod judge;
mod ledger;
mod merge;
mod verdict;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::config::ClaimMode;
use crate::ids::{LockId, NodeId, Time};
use crate::io::Trace;
use crate::lock::OpStage;
use crate::name::Name;
use crate::resource::ResourceKey;
use crate::space::Lockspace;
use ledger::Ledger;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
enum State {
    Pending,
    Merging(NodeId),
    Conflict(NodeId),
}

/// A claim that is not settled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
struct Claim {
    resource: ResourceKey,
    /// The one lock under it.
    lock: LockId,
    /// As the directory knows it; a claim made again gets a new one.
    id: u64,
    /// The lock is granted only when the claim is confirmed.
    strict: bool,
    state: State,
    /// Times sent (claims) and merges tried; numbers both.
    tries: u32,
}

/// This node's claims, by ordinal: the order in which they were made, which is what the barrier
/// compares and what never changes.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claims {
    open: Ledger,
    /// Gathered claims, by directory node.
    batches: BTreeMap<NodeId, Vec<(Name, u64)>>,
    /// When they are sent at the latest, if there are any.
    batches_due: Time,
    last_ordinal: u64,
}

impl core::hash::Hash for Claims {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.open.hash(state);
        self.batches.hash(state);
    }
}

impl Claims {
    pub fn unsettled(&self) -> usize {
        self.open.len()
    }

    pub fn oldest_unsettled(&self) -> Option<u64> {
        self.open.oldest()
    }

    /// Larger than the ordinal of every claim made so far.
    pub fn next_ordinal(&self) -> u64 {
        self.last_ordinal + 1
    }

    pub fn is_merging(&self, claim: Option<u64>) -> bool {
        claim.and_then(|c| self.open.get(c)).is_some_and(|c| matches!(c.state, State::Merging(_)))
    }

    pub fn next_batch_deadline(&self) -> Option<Time> {
        (!self.batches.is_empty()).then_some(self.batches_due)
    }

    fn pending(&mut self, ordinal: u64) -> Option<&mut Claim> {
        self.open.get_mut(ordinal).filter(|c| c.state == State::Pending)
    }
}

impl Lockspace {
    pub(crate) fn may_claim(&self, key: ResourceKey) -> bool {
        // Where this node is the directory, its own table already has a claim's answer.
        self.claims_agreed && !self.is_directory_of(key)
    }

    /// Claims the mastership for a new lock of a resource that this node knows nothing of.
    pub(crate) fn claim(&mut self, key: ResourceKey, lock: LockId, mode: ClaimMode) {
        let full = self.claims.open.len() >= self.config.claim_cap;
        self.stats.capped += u64::from(full);
        let strict = full || mode == ClaimMode::Strict;
        self.claims.last_ordinal += 1;
        let ordinal = self.claims.last_ordinal;
        let id = self.directory.new_id();
        let claim = Claim { resource: key, lock, id, strict, state: State::Pending, tries: 0 };
        self.claims.open.push(ordinal, claim);
        self.store[key].claim = Some(ordinal);
        self.stats.claims += 1;
        self.stats.unsettled_max = self.stats.unsettled_max.max(self.claims.open.len() as u64);
        self.trace_of(key, |name| Trace::Claim { name, claim: ordinal });
        self.gather_claim(key, id);
        if strict {
            self.store[lock].stage = OpStage::AwaitsMaster;
            self.flush_batches();
        } else {
            self.become_master(key);
            self.store[lock].provisional = true;
            self.request_here(lock);
        }
    }

    /// The mutation that forgets a pending claim with its last lock, and sends REMOVE at once.
    #[cfg(feature = "mutations")]
    pub(crate) fn remove_while_pending(&mut self, key: ResourceKey) {
        let Some(ordinal) = self.store[key].claim.filter(|_| !self.store[key].has_locks()) else {
            return;
        };
        let Some(claim) = self.claims.pending(ordinal).copied() else { return };
        let (name, hash) = (self.store[key].name, self.store[key].hash);
        let id = self.directory.new_id();
        self.send(self.directory_node(hash), crate::message::Body::Remove { name, id });
        self.trace(|| Trace::Drop { name, claim: ordinal });
        self.trace(|| Trace::Master { name, gained: false });
        self.store[key].master = crate::resource::Master::Unknown;
        self.settle(ordinal, claim);
    }
}
