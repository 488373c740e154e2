//! The effects of the directory's verdict on a claim, and the moment when the claim is settled.

use alloc::vec::Vec;
use core::hint::black_box;

use super::{Claim, State};
use crate::ids::{LockId, NodeId};
use crate::io::{Output, Trace};
use crate::lock::{Lock, OpStage, Owner};
use crate::message::{Body, ClaimReply, Verdict};
use crate::mode::Mode;
use crate::remote::Accepts;
use crate::resource::{Master, ResourceKey};
use crate::space::Lockspace;

impl Lockspace {
    pub(crate) fn receive_claim_replies(&mut self, from: NodeId, replies: Vec<ClaimReply>) {
        self.fetch(&replies);
        for reply in replies {
            self.receive_verdict(from, reply);
        }
    }

    /// Replies come by the hundred, long after their claims. By then the claims' locks and
    /// resources have left the processor's caches, and the processor would wait for them one after
    /// the other. Reading all of them beforehand fetches them in parallel.
    fn fetch(&self, replies: &[ClaimReply]) {
        for reply in replies {
            let Some((_, claim)) = self.claims.open.by_id(reply.id) else { continue };
            if let Some(l) = self.store.get(claim.lock) {
                black_box((l.owner, l.granted, l.token, l.provisional, l.stage, l.tag));
            }
            if self.store.contains_resource(claim.resource) {
                let r = &self.store[claim.resource];
                black_box((r.claim, r.finding, r.has_locks()));
            }
        }
    }

    pub(super) fn receive_verdict(&mut self, from: NodeId, reply: ClaimReply) {
        let mut known = self.claims.open.by_id(reply.id).map(|(ordinal, c)| (ordinal, c.state));
        if mutated!(self, ReplyIdIgnored) {
            known = self.claims.open.iter().next().map(|(ordinal, c)| (ordinal, c.state));
        }
        let ordinal = match known {
            None => return self.heal(from, reply),
            Some((ordinal, State::Pending)) => ordinal,
            Some((_, State::Merging(_) | State::Conflict(_))) => return,
        };
        match reply.verdict {
            Verdict::Ok => self.confirm(ordinal),
            Verdict::Exists(master) if master == self.me() || mutated!(self, RefusalConfirms) => {
                self.confirm(ordinal);
            }
            Verdict::Exists(master) => self.refuse(ordinal, master),
            Verdict::WrongDirectory => self.submit_claim(ordinal),
        }
    }

    /// A late duplicate of a settled claim was recorded although the resource has gone since: the
    /// record is taken back, under the duplicate's own id, so that nothing newer can be hit.
    pub(super) fn heal(&mut self, directory: NodeId, reply: ClaimReply) {
        let Some(name) = reply.name.filter(|_| reply.verdict == Verdict::Ok) else { return };
        let name = *name;
        if self.store.find(&name, name.hash64()).is_none() && !mutated!(self, NoHealing) {
            self.send(directory, Body::Remove { name, id: reply.id });
        }
    }

    /// The directory has this node on record.
    pub(super) fn confirm(&mut self, ordinal: u64) {
        let Some(claim) = self.claims.open.get(ordinal).copied() else { return };
        self.stats.confirmed += 1;
        self.trace_of(claim.resource, |name| Trace::Confirm { name, claim: ordinal });
        if claim.strict {
            self.become_master(claim.resource);
        }
        // Every earlier grant of the name is older than the directory's answer, but not always than
        // the claim: the provisional token may be too small.
        let writes = |l: &Lock| l.provisional && l.granted.is_some_and(Mode::writes);
        if self.store.get(claim.lock).is_some_and(writes) {
            self.store[claim.lock].token = self.next_token();
        }
        self.settle(ordinal, claim);
    }

    /// The directory knows another master: the lock becomes one of that master's.
    pub(super) fn refuse(&mut self, ordinal: u64, master: NodeId) {
        let Some(claim) = self.claims.open.get(ordinal).copied() else { return };
        let key = claim.resource;
        self.stats.refusals += 1;
        self.trace_of(key, |name| Trace::Refuse { name, claim: ordinal, master });
        if self.store[key].master == Master::Here {
            self.trace_of(key, |name| Trace::Master { name, gained: false });
        }
        self.store[key].master = Master::At(master);
        if claim.strict || self.store.get(claim.lock).is_none() {
            // Nothing was granted (or nothing is left): the standard path from here on.
            self.store[key].forget_block();
            return self.settle(ordinal, claim);
        }
        self.merge(ordinal, master);
        self.replay_awaiting_mastership(key);
    }

    /// The directory has changed, or its answer was outdated; it may be this node now.
    pub(super) fn claim_again(&mut self, ordinal: u64) {
        let Some(claim) = self.claims.open.get(ordinal) else { return };
        let key = claim.resource;
        if !self.is_directory_of(key) {
            return self.submit_claim(ordinal);
        }
        let name = self.name_of(key);
        match self.directory.get(&name) {
            Some(record) => self.refuse(ordinal, record.master),
            None => self.confirm(ordinal),
        }
    }

    /// An operation that waited for the merge goes on.
    pub(super) fn thaw(&mut self, lock: LockId) {
        if self.store.get(lock).is_some_and(|l| l.stage == OpStage::Frozen) {
            self.issue(lock);
        }
    }

    /// The claim is over: confirmed, merged, or without a lock. Operations that waited for it
    /// continue.
    pub(super) fn settle(&mut self, ordinal: u64, claim: Claim) {
        self.claims.open.remove(ordinal);
        let key = claim.resource;
        self.store[key].claim = None;
        if let Some(lock) = self.store.get(claim.lock).filter(|l| l.provisional) {
            let (owner, tag, token) = (lock.owner, lock.tag, lock.token);
            self.store[claim.lock].provisional = false;
            if let Owner::Local(client) = owner {
                self.callback(Output::Settled { client, lock: claim.lock, tag, token });
            }
        }
        self.thaw(claim.lock);
        if self.store.contains_resource(key) {
            self.place_awaiting_master(key);
        }
        self.replay_awaiting_mastership(key);
        self.drop_if_unused(key);
        self.open_barrier();
    }

    pub(crate) fn accepts_under_claim(
        &mut self,
        key: ResourceKey,
        ordinal: u64,
        from_directory: bool,
    ) -> Accepts {
        match self.claims.open.get(ordinal).map(|c| c.state) {
            // The directory asks here because it has this node on record: that confirms the claim.
            // From anybody else it proves nothing (a stale cached master also leads here).
            Some(State::Pending) if from_directory || mutated!(self, AnyRequestConfirms) => {
                self.confirm(ordinal);
                Accepts::Yes(key)
            }
            Some(State::Pending) => Accepts::Later(key),
            _ => Accepts::No,
        }
    }
}
