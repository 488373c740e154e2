//! Claimed mastery (protocol section 4): the creator of an object makes itself the master of the
//! object's locks, tells the directory node, and goes on at once.
//!
//! The claim's state belongs to the resource, never to the lock: a granted lock under a pending
//! claim is a granted lock. Who may learn of the object before the claim is settled is the
//! business of the barrier (`barrier.rs`).
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

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::config::ClaimMode;
use crate::error::{Error, Status};
use crate::flags::LockFlags;
use crate::grant::Outcome;
use crate::ids::{LockId, NodeId, Time};
use crate::inspect::Queue;
use crate::io::{LostReason, Output, Trace, WithdrawReason};
use crate::lock::{Lock, Op, Owner, Stage};
use crate::mastery::directory::Record;
use crate::message::{Answer, Body, ClaimReply, NewLock, Verdict};
use crate::mode::Mode;
use crate::name::Name;
use crate::remote::Accepts;
use crate::resource::{Master, ResourceKey};
use crate::space::Lockspace;
use crate::timers::Timer;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum State {
    Pending,
    Merging(NodeId),
    Conflict(NodeId),
}

/// A claim that is not settled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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

#[derive(Clone, Debug)]
struct Batch {
    entries: Vec<(Name, u64)>,
    deadline: Time,
}

/// This node's claims, by ordinal: the order in which they were made, which is what the barrier
/// compares and what never changes.
#[derive(Clone, Default)]
pub(crate) struct Claims {
    open: BTreeMap<u64, Claim>,
    by_id: HashMap<u64, u64>,
    /// Gathered claims, by directory node.
    batches: BTreeMap<NodeId, Batch>,
    last_ordinal: u64,
}

impl core::hash::Hash for Claims {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.open.hash(state);
        self.batches.iter().for_each(|(node, batch)| (node, &batch.entries).hash(state));
    }
}

impl Claims {
    pub fn unsettled(&self) -> usize {
        self.open.len()
    }

    pub fn oldest_unsettled(&self) -> Option<u64> {
        self.open.first_key_value().map(|(ordinal, _)| *ordinal)
    }

    /// Larger than the ordinal of every claim made so far.
    pub fn next_ordinal(&self) -> u64 {
        self.last_ordinal + 1
    }

    pub fn is_merging(&self, claim: Option<u64>) -> bool {
        claim.and_then(|c| self.open.get(&c)).is_some_and(|c| matches!(c.state, State::Merging(_)))
    }

    pub fn next_batch_deadline(&self) -> Option<Time> {
        self.batches.values().map(|b| b.deadline).min()
    }

    fn pending(&mut self, ordinal: u64) -> Option<&mut Claim> {
        self.open.get_mut(&ordinal).filter(|c| c.state == State::Pending)
    }
}

impl Lockspace {
    /// Marks an operation number as that of a merge.
    const MERGE: u32 = !Lock::OP_MASK;

    pub(crate) fn may_claim(&self, key: ResourceKey) -> bool {
        // Where this node is the directory, its own table says at once what a claim would.
        self.claims_agreed && !self.is_directory_of(key)
    }

    /// Claims the mastership for a new lock of a resource that this node knows nothing of.
    pub(crate) fn claim(&mut self, key: ResourceKey, lock: LockId, mode: ClaimMode) {
        let full = self.claims.open.len() >= self.config.claim_cap;
        self.stats.capped += u64::from(full);
        let strict = full || mode == ClaimMode::Strict;
        self.claims.last_ordinal += 1;
        let ordinal = self.claims.last_ordinal;
        let claim = Claim { resource: key, lock, id: 0, strict, state: State::Pending, tries: 0 };
        self.claims.open.insert(ordinal, claim);
        self.store[key].claim = Some(ordinal);
        self.stats.claims += 1;
        self.stats.unsettled_max = self.stats.unsettled_max.max(self.claims.open.len() as u64);
        let name = self.name_of(key);
        self.trace(|| Trace::Claim { name, claim: ordinal });
        self.submit_claim(ordinal);
        if strict {
            self.store[lock].stage = Stage::Parked;
            self.flush_batches();
        } else {
            self.become_master(key);
            self.store[lock].provisional = true;
            self.request_here(lock);
        }
    }

    /// Puts a claim, under a new id, into the batch for its directory node.
    fn submit_claim(&mut self, ordinal: u64) {
        let id = self.directory.new_id();
        let Some(claim) = self.claims.open.get_mut(&ordinal) else { return };
        self.claims.by_id.remove(&claim.id);
        claim.id = id;
        claim.tries = 0;
        self.claims.by_id.insert(id, ordinal);
        self.gather(ordinal);
    }

    fn gather(&mut self, ordinal: u64) {
        let Some(claim) = self.claims.open.get(&ordinal) else { return };
        let resource = &self.store[claim.resource];
        let (entry, node) = ((resource.name, claim.id), self.directory_node(resource.hash));
        let deadline = self.now.saturating_add(self.config.batch_age);
        let batch =
            self.claims.batches.entry(node).or_insert(Batch { entries: Vec::new(), deadline });
        batch.entries.push(entry);
        if batch.entries.len() >= self.config.batch_entries {
            self.flush_batch_to(node);
        }
    }

    pub(crate) fn flush_batches(&mut self) {
        while let Some(&node) = self.claims.batches.keys().next() {
            self.flush_batch_to(node);
        }
    }

    pub(crate) fn flush_due_batches(&mut self) {
        let now = self.now;
        while let Some(node) =
            self.claims.batches.iter().find(|(_, b)| b.deadline <= now).map(|(n, _)| *n)
        {
            self.flush_batch_to(node);
        }
    }

    pub(crate) fn flush_batch_to(&mut self, node: NodeId) {
        let Some(Batch { mut entries, .. }) = self.claims.batches.remove(&node) else { return };
        if mutated!(self, FailedSendConfirms) && entries.len() > 1 {
            let unsent = entries.pop().and_then(|(_, id)| self.claims.by_id.get(&id).copied());
            unsent.into_iter().for_each(|ordinal| self.confirm(ordinal));
        }
        if let Some(interval) = self.config.claim_resend.filter(|_| !mutated!(self, NeverResent)) {
            for (_, id) in &entries {
                let Some(&ordinal) = self.claims.by_id.get(id) else { continue };
                let tries = self.claims.open.get(&ordinal).map_or(0, |c| c.tries);
                let wait =
                    interval.saturating_mul(1 << tries.min(5)).min(interval.saturating_mul(20));
                self.set_timer(wait, Timer::Resend(ordinal));
            }
        }
        self.stats.claim_batches += 1;
        self.send(node, Body::Claims(entries));
    }

    /// No answer in time on a transport that can lose messages: the same claim once more.
    pub(crate) fn resend_claim(&mut self, ordinal: u64) {
        let Some(claim) = self.claims.pending(ordinal) else { return };
        claim.tries = claim.tries.saturating_add(1);
        let key = claim.resource;
        let name = self.name_of(key);
        self.stats.resends += 1;
        self.trace(|| Trace::Resend { name, claim: ordinal });
        self.gather(ordinal);
        self.flush_batch_to(self.directory_node(self.store[key].hash));
    }

    // ---- the directory node's side ----

    pub(crate) fn receive_claims(&mut self, from: NodeId, entries: Vec<(Name, u64)>) {
        let lossy = self.config.claim_resend.is_some();
        let replies = entries
            .into_iter()
            .filter(|(name, id)| {
                let on_record =
                    self.directory.get(name).is_some_and(|r| r.master == from && r.id >= *id);
                !(mutated!(self, DuplicateClaimUnanswered) && on_record)
            })
            .collect::<Vec<_>>()
            .into_iter()
            .map(|(name, id)| ClaimReply {
                id,
                verdict: self.judge(from, &name, id),
                name: lossy.then_some(name),
            })
            .collect();
        self.send(from, Body::ClaimReplies(replies));
    }

    /// The directory's table of protocol section 4. It says the same however often it is asked.
    fn judge(&mut self, claimer: NodeId, name: &Name, id: u64) -> Verdict {
        let hash = name.hash64();
        if self.directory_node(hash) != self.me() {
            return Verdict::WrongDirectory;
        }
        if self.mastered_here(name, hash).is_some() && !mutated!(self, DirectoryIgnoresOwnResources)
        {
            return Verdict::Exists(self.me());
        }
        if mutated!(self, DirectoryOverwrites) {
            self.directory.put(*name, Record { master: claimer, id });
        }
        match self.directory.get_or_record(name, claimer, id) {
            master if master == claimer => Verdict::Ok,
            master => Verdict::Exists(master),
        }
    }

    // ---- verdicts ----

    pub(crate) fn receive_claim_replies(&mut self, from: NodeId, replies: Vec<ClaimReply>) {
        for reply in replies {
            self.receive_verdict(from, reply);
        }
    }

    fn receive_verdict(&mut self, from: NodeId, reply: ClaimReply) {
        let mut known = self.claims.by_id.get(&reply.id).copied();
        if mutated!(self, ReplyIdIgnored) {
            known = self.claims.oldest_unsettled();
        }
        let Some(ordinal) = known else {
            return self.heal(from, reply);
        };
        if self.claims.pending(ordinal).is_none() {
            return;
        }
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
    fn heal(&mut self, directory: NodeId, reply: ClaimReply) {
        let Some(name) = reply.name.filter(|_| reply.verdict == Verdict::Ok) else { return };
        if self.store.find(&name, name.hash64()).is_none() && !mutated!(self, NoHealing) {
            self.send(directory, Body::Remove { name, id: reply.id });
        }
    }

    /// The directory has this node on record.
    fn confirm(&mut self, ordinal: u64) {
        let Some(claim) = self.claims.open.get(&ordinal).copied() else { return };
        let name = self.name_of(claim.resource);
        self.stats.confirmed += 1;
        self.trace(|| Trace::Confirm { name, claim: ordinal });
        if claim.strict {
            self.become_master(claim.resource);
        }
        self.settle(ordinal, claim);
    }

    /// The directory knows another master: the lock becomes one of that master's.
    fn refuse(&mut self, ordinal: u64, master: NodeId) {
        let Some(claim) = self.claims.open.get(&ordinal).copied() else { return };
        let key = claim.resource;
        let name = self.name_of(key);
        self.stats.refusals += 1;
        self.trace(|| Trace::Refuse { name, claim: ordinal, master });
        if self.store[key].master == Master::Here {
            self.trace(|| Trace::Master { name, gained: false });
        }
        self.store[key].master = Master::At(master);
        if claim.strict || self.store.get(claim.lock).is_none() {
            // Nothing was granted (or nothing is left): the standard path from here on.
            return self.settle(ordinal, claim);
        }
        self.merge(ordinal, master);
        self.replay_parked(key);
    }

    fn merge(&mut self, ordinal: u64, master: NodeId) {
        let Some(claim) = self.claims.open.get_mut(&ordinal) else { return };
        claim.state = State::Merging(master);
        claim.tries = (claim.tries + 1) & Lock::OP_MASK;
        let (key, lock, op) = (claim.resource, claim.lock, claim.tries | Self::MERGE);
        let mut new = self.new_lock_of(lock);
        new.ask.op = op;
        new.ask.mode = self.store[lock].granted.unwrap_or(Mode::NL);
        let resource = &mut self.store[key];
        new.ask.lvb = resource.lvb.take();
        let lvb_seq = resource.lvb_seq;
        let patience = self.config.merge_patience;
        self.send(master, Body::Merge { new, patience, lvb_seq });
    }

    /// At the master: a lock that was granted under a refused claim, as an ordinary request that
    /// goes first: its holder holds already.
    pub(crate) fn merge_for(
        &mut self,
        from: NodeId,
        key: ResourceKey,
        new: NewLock,
        patience: Time,
        lvb_seq: u32,
    ) {
        let NewLock { ask, bast, client, .. } = new;
        let resource = &mut self.store[key];
        resource.idle_since = None;
        if resource.lvb.is_none() && ask.lvb.is_some() {
            resource.lvb = ask.lvb;
            resource.lvb_seq = lvb_seq;
        }
        let mut lock =
            Lock::new(key, Owner::Remote { node: from, lkid: ask.lkid, client }, self.now);
        lock.requested = Some(ask.mode);
        lock.flags = (ask.flags & LockFlags::VALBLK) | LockFlags::HEADQUE | LockFlags::NOORDER;
        lock.op_no = ask.op;
        lock.bast = bast;
        lock.merging = true;
        let id = self.store.insert(lock, Queue::Parked);
        match self.do_request(id) {
            Outcome::Granted => self.tell_granted(id),
            _ => {
                self.set_timer(patience, Timer::Merge(id));
                self.notify_blockers(id, key, ask.mode, false);
            }
        }
    }

    /// The conflicting locks have not gone in time.
    pub(crate) fn give_up_merge(&mut self, id: LockId) {
        let Some(lock) = self.store.get(id).filter(|l| l.merging && l.queue == Queue::Waiting)
        else {
            return;
        };
        let (Owner::Remote { node, lkid, .. }, op) = (lock.owner, lock.op_no) else { return };
        let key = self.store.remove(id).resource;
        self.reply(node, lkid, op, id, Answer::Conflict);
        self.run_pending_if_exists(key);
        self.drop_if_unused(key);
    }

    pub(crate) fn receive_merge_reply(
        &mut self,
        from: NodeId,
        lkid: LockId,
        op: u32,
        remid: LockId,
        answer: Answer,
    ) {
        let claim = self.store.get(lkid).and_then(|l| self.store[l.resource].claim);
        let open = claim.and_then(|c| self.claims.open.get(&c).map(|claim| (c, *claim)));
        let matching = open.filter(|(_, c)| {
            c.state == State::Merging(from) && c.lock == lkid && c.tries | Self::MERGE == op
        });
        let Some((ordinal, claim)) = matching else {
            self.stats.dropped += 1;
            return;
        };
        match answer {
            Answer::Granted(granted) => {
                let name = self.name_of(claim.resource);
                self.stats.merges += 1;
                self.trace(|| Trace::Merge { name, claim: ordinal, master: from });
                let lock = &mut self.store[lkid];
                lock.remid = Some(remid);
                lock.token = granted.token;
                lock.lvb_seq = granted.lvb_seq;
                self.settle(ordinal, claim);
            }
            Answer::Conflict => self.conflict(ordinal, claim, from),
            // M had left already, its REMOVE was on the way: the name is free again.
            _ => self.back_to_pending(ordinal),
        }
    }

    fn back_to_pending(&mut self, ordinal: u64) {
        let Some(claim) = self.claims.open.get_mut(&ordinal) else { return };
        claim.state = State::Pending;
        let (key, lock) = (claim.resource, claim.lock);
        self.become_master(key);
        self.claim_again(ordinal);
        self.flush_batches();
        self.thaw(lock);
    }

    /// The directory has changed, or its answer was outdated; it may be this node now.
    fn claim_again(&mut self, ordinal: u64) {
        let Some(claim) = self.claims.open.get(&ordinal) else { return };
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
    fn thaw(&mut self, lock: LockId) {
        if self.store.get(lock).is_some_and(|l| l.stage == Stage::Frozen) {
            self.issue(lock);
        }
    }

    /// The claim is over: confirmed, merged, or without a lock. What waited for that goes on.
    fn settle(&mut self, ordinal: u64, claim: Claim) {
        self.claims.open.remove(&ordinal);
        self.claims.by_id.remove(&claim.id);
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
            self.place_parked(key);
        }
        self.replay_parked(key);
        self.drop_if_unused(key);
        self.open_barrier();
    }

    // ---- conflicts ----

    /// The name was locked elsewhere after all: the caller's guarantee did not hold. The lock is
    /// lost, and the barrier stays closed until the caller has undone what it was creating.
    fn conflict(&mut self, ordinal: u64, claim: Claim, master: NodeId) {
        let name = self.name_of(claim.resource);
        self.stats.conflicts += 1;
        self.trace(|| Trace::Conflict { name, claim: ordinal });
        if let Some(claim) = self.claims.open.get_mut(&ordinal) {
            claim.state = State::Conflict(master);
        }
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
        self.store.remove(id);
        let open = claim.and_then(|c| self.claims.open.get(&c).map(|claim| (c, *claim)));
        match open {
            Some((ordinal, claim)) if claim.lock == id => {
                let name = self.name_of(key);
                self.trace(|| Trace::Drop { name, claim: ordinal });
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
            .values()
            .filter(|c| matches!(c.state, State::Conflict(_)))
            .map(|c| c.lock)
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

    /// The mutation that forgets a pending claim with its last lock, and sends REMOVE at once.
    #[cfg(feature = "mutations")]
    pub(crate) fn remove_while_pending(&mut self, key: ResourceKey) {
        let Some(ordinal) = self.store[key].claim.filter(|_| !self.store[key].has_locks()) else {
            return;
        };
        let Some(claim) = self.claims.pending(ordinal).copied() else { return };
        let (name, hash) = (self.store[key].name, self.store[key].hash);
        let id = self.directory.new_id();
        self.send(self.directory_node(hash), Body::Remove { name, id });
        self.trace(|| Trace::Drop { name, claim: ordinal });
        self.trace(|| Trace::Master { name, gained: false });
        self.store[key].master = Master::Unknown;
        self.settle(ordinal, claim);
    }

    pub(crate) fn withdraw_if_conflict_stands(&mut self, ordinal: u64) {
        if self.claims.open.get(&ordinal).is_some_and(|c| matches!(c.state, State::Conflict(_))) {
            self.out.push_back(Output::Withdraw(WithdrawReason::ConflictNotAbandoned));
        }
    }

    // ---- other nodes' requests meanwhile ----

    pub(crate) fn accepts_under_claim(
        &mut self,
        key: ResourceKey,
        ordinal: u64,
        from_directory: bool,
    ) -> Accepts {
        match self.claims.open.get(&ordinal).map(|c| c.state) {
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

    // ---- recovery ----

    /// A new view: answers that were under way will not come, gathered batches have lost their
    /// addressee. Strict claims begin again as requests; the others are claimed again when the
    /// directory is rebuilt, the barrier still closed.
    pub(crate) fn suspend_claims(&mut self, departed: &BTreeSet<NodeId>) {
        self.claims.batches.clear();
        let all: Vec<(u64, Claim)> = self.claims.open.iter().map(|(o, c)| (*o, *c)).collect();
        for (ordinal, claim) in all {
            match claim.state {
                State::Pending if claim.strict => {
                    self.claims.open.remove(&ordinal);
                    self.claims.by_id.remove(&claim.id);
                    self.store[claim.resource].claim = None;
                    let name = self.name_of(claim.resource);
                    self.trace(|| Trace::Drop { name, claim: ordinal });
                }
                State::Merging(master) if departed.contains(&master) => {
                    if let Some(claim) = self.claims.open.get_mut(&ordinal) {
                        claim.state = State::Pending;
                    }
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
            .map(|(o, c)| (*o, *c))
            .collect();
        for (ordinal, claim) in pending {
            let name = self.name_of(claim.resource);
            if mutated!(self, PendingAdvertised | NotClaimedAgain) {
                self.confirm(ordinal);
                continue;
            }
            if mutated!(self, RecoveryRequestsAgain) && self.store.get(claim.lock).is_some() {
                self.store[claim.lock].granted = Some(Mode::NL);
                self.complete(claim.lock, Status::Granted);
            }
            self.stats.resends += 1;
            self.trace(|| Trace::Resend { name, claim: ordinal });
            self.claim_again(ordinal);
        }
        self.flush_batches();
        self.open_barrier();
        for id in self.locks_where(|l| l.stage == Stage::Frozen) {
            if self.store.get(id).is_some() {
                self.issue(id);
            }
        }
    }
}
