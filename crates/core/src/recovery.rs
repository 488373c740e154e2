//! Recovery after a change of members (semantics section 9), step by step, restartable at any.
//!
//! A view closes the gate. What the departed left behind is dealt with at once, as it needs nobody
//! else; then come four barriers, which the lowest member counts:
//!
//! ```text
//! NODES      everybody has stopped; who masters what is sent to the new directory nodes
//! DIRECTORY  the directory is complete; resources without a master find a new one there
//! LOCKS      their locks have reached it
//! DONE       everybody is ready: the gate opens
//! ```
//!
//! Every mark that a step leaves (`moved`, `regrant`, `lvb_lost`, [`Stage::Gate`]) stays on the
//! lock or resource until the recovery is done, so that a newer view starts over from them.
//!
//! Difference to the kernel: names are pushed by their masters rather than pulled, to every member
//! and even if there are none. As connections keep order, their last message also says that
//! everything the sender said in the old view has arrived.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::config::Policy;
use crate::error::Status;
use crate::flags::LockFlags;
use crate::ids::{LockId, NodeId, Time, View};
use crate::inspect::{Queue, RecoveryInfo};
use crate::io::{LostReason, Output, Trace, WithdrawReason};
use crate::lock::{CancelCause, Lock, Op, Owner, Stage};
use crate::mastery::directory::Record;
use crate::message::{Body, Features, Message, MovedLock, Step};
use crate::mode::Mode;
use crate::name::Name;
use crate::resource::{Finding, Master, ResourceKey};
use crate::space::{Lockspace, slot_of};

/// Names in one message of the directory's reconstruction.
const NAMES_PER_MESSAGE: usize = 512;
/// Locks in one message to their new master.
const LOCKS_PER_MESSAGE: usize = 64;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Recovery {
    /// The barrier that this node has passed last.
    passed: Option<Step>,
    /// This node was a member before.
    established: bool,
    /// At the coordinator: who has reached what.
    reached: BTreeMap<Step, BTreeMap<NodeId, Features>>,
    /// Whose names have not all come.
    names_missing: BTreeSet<NodeId>,
    /// Resources whose new master has not been named yet.
    adopting: usize,
    /// Locks that a new master has not acknowledged.
    moving: BTreeSet<LockId>,
    clock: Clock,
}

/// When a recovery began and its last step did; only figures depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Clock {
    began: Time,
    step: Time,
}

impl core::hash::Hash for Clock {
    fn hash<H: core::hash::Hasher>(&self, _: &mut H) {}
}

impl Lockspace {
    pub(crate) fn enter_view(&mut self, mut view: View) {
        if self.over || (self.member && view.seq <= self.view.seq) {
            return;
        }
        let me = self.me();
        if view.member(me).is_none_or(|m| m.incarnation != self.config.incarnation) {
            return self.halt();
        }
        view.members.sort_by_key(|m| m.node);
        let old = core::mem::replace(&mut self.view, view);
        if !mutated!(self, TokensNotCarried) {
            self.clock = self.clock.max(self.view.seq << 32);
        }
        self.slots = directory_slots(&self.view);
        self.out.push_back(Output::RecoveryBegun(self.view.seq));
        let established = self.member;
        self.member = true;
        self.running = false;
        self.recovery = Some(Recovery {
            passed: None,
            established,
            reached: BTreeMap::new(),
            names_missing: self.view.members.iter().map(|m| m.node).filter(|&n| n != me).collect(),
            adopting: 0,
            moving: BTreeSet::new(),
            clock: Clock { began: self.now, step: self.now },
        });
        self.stop_search();
        let departed: BTreeSet<NodeId> = old
            .members
            .iter()
            .filter(|m| self.view.member(m.node).is_none_or(|now| now.incarnation != m.incarnation))
            .map(|m| m.node)
            .collect();
        self.stop(&departed);
        #[cfg(feature = "mutations")]
        if mutated!(self, BarrierHoldsGate) && !self.barrier.is_empty() {
            return;
        }
        self.reach(Step::Nodes);
        for (from, message) in core::mem::take(&mut self.early) {
            self.receive(from, message);
        }
    }

    // ---- steps 0, 1, 3, 4, 5: what needs nobody else ----

    fn stop(&mut self, departed: &BTreeSet<NodeId>) {
        self.directory.clear();
        self.rounds.clear();
        self.idle.clear();
        self.unpark();
        self.queued.retain(|(from, m)| !departed.contains(from) && !is_directory_message(m));
        self.drop_requests_to_old_home();
        self.suspend_claims(departed);
        for key in self.store.resource_keys().collect::<Vec<_>>() {
            self.store[key].idle_entry = None;
            self.stop_finding(key, departed);
            self.remaster(key, departed);
            // The end of an unlock that the old master cannot answer takes the resource along.
            if !self.store.contains_resource(key) {
                continue;
            }
            self.purge_departed(key, departed);
            if !self.store[key].has_locks() && self.store[key].claim.is_none() {
                self.forget(key);
            }
        }
    }

    /// What waited for the outcome of a search or claim is looked at again when the gate opens: the
    /// search begins anew, and the resource may not even survive.
    fn unpark(&mut self) {
        let parked = core::mem::take(&mut self.parked);
        let mut queued: VecDeque<_> = parked.into_values().flatten().collect();
        queued.append(&mut self.queued);
        self.queued = queued;
    }

    /// Requests that came before this view, for names that are not at home here any more: their
    /// senders know and ask the new home.
    fn drop_requests_to_old_home(&mut self) {
        if self.config.policy == Policy::Home {
            let (slots, me) = (core::mem::take(&mut self.slots), self.me());
            self.queued.retain(|(_, message)| match &message.body {
                Body::Request(new) => slot_of(&slots, new.name.hash64()) == Some(me),
                _ => true,
            });
            self.slots = slots;
        }
    }

    /// Look-ups and rounds of the old view will not be answered: begin them again at the gate.
    fn stop_finding(&mut self, key: ResourceKey, departed: &BTreeSet<NodeId>) {
        self.store[key].finding = Finding::Nothing;
        let behind_claim = self.store[key].claim.is_some();
        for id in self.ids_in(key, Queue::Parked) {
            match self.store[id].stage {
                Stage::LookUp => self.gate(id),
                Stage::Asked(node) if departed.contains(&node) => self.ask_again(id),
                Stage::Parked if !behind_claim => self.gate(id),
                _ => {}
            }
        }
    }

    pub(crate) fn gate(&mut self, id: LockId) {
        self.store[id].stage = Stage::Gate;
        self.gated.push_back(id);
    }

    /// Whether the resource needs another master, and what that means for its locks here.
    fn remaster(&mut self, key: ResourceKey, departed: &BTreeSet<NodeId>) {
        let (old, hash) = (self.store[key].master, self.store[key].hash);
        if self.store[key].claim.is_some() {
            return;
        }
        let home = self.directory_node(hash);
        let at_home = self.config.policy == Policy::Home;
        let lost = match old {
            Master::Unknown => return,
            Master::Here => at_home && home != self.me(),
            Master::At(node) => {
                departed.contains(&node) || self.store[key].moved || (at_home && node != home)
            }
        };
        if !lost {
            // A master that holds none of our locks was only remembered; it may be it no more.
            if matches!(old, Master::At(_)) && !at_home && !self.is_known_at_master(key) {
                self.store[key].master = Master::Unknown;
            }
            return;
        }
        if old == Master::Here {
            self.trace_of(key, |name| Trace::Master { name, gained: false });
            self.drop_copies(key);
        }
        for id in self.store.locks_of(key).map(|l| l.id).collect::<Vec<_>>() {
            self.lose_master(id, at_home);
        }
        if !self.store.contains_resource(key) {
            return;
        }
        let known_there = self.is_known_at_master(key);
        let me = self.me();
        let resource = &mut self.store[key];
        resource.lvb = None;
        resource.moved = known_there;
        resource.master = match at_home && known_there && home != me {
            true => Master::At(home),
            false => Master::Unknown,
        };
        if at_home && known_there && home == me {
            self.become_master(key);
        }
    }

    /// Whether the master holds (or held) any lock of the resource.
    fn is_known_at_master(&self, key: ResourceKey) -> bool {
        [Queue::Granted, Queue::Converting, Queue::Waiting]
            .into_iter()
            .any(|q| self.store.first(key, q).is_some())
    }

    fn drop_copies(&mut self, key: ResourceKey) {
        for id in
            self.store.locks_of(key).filter(|l| !l.is_local()).map(|l| l.id).collect::<Vec<_>>()
        {
            self.store.remove(id);
        }
    }

    /// The lock's master is gone (or is it no longer): step 3 of semantics section 9.
    fn lose_master(&mut self, id: LockId, at_home: bool) {
        let lock = &mut self.store[id];
        lock.remid = None;
        let cancelling = lock.overlap.as_ref().filter(|o| o.cancel_sent).and_then(|o| o.cancel);
        match (lock.op, lock.stage) {
            (Op::Unlock, Stage::Asked(_)) => self.finish(id, Status::Unlocked),
            (_, Stage::Queued) if cancelling.is_some() => {
                self.end_cancelled(id, cancelling.unwrap_or(CancelCause::Asked));
            }
            (Op::Convert, Stage::Asked(_)) => {
                let middle =
                    lock.granted.zip(lock.requested).is_some_and(|(gr, rq)| gr.is_middle(rq));
                if middle {
                    // The old master may have granted it: which mode is in force is not known.
                    lock.granted_unknown = true;
                    lock.stage = Stage::Queued;
                    self.store.enqueue(id, Queue::Converting, false);
                } else {
                    self.ask_again(id);
                }
            }
            // The old home drops the request, as it is home no more.
            (Op::Request, Stage::Asked(_)) if at_home => self.ask_again(id),
            _ => {}
        }
    }

    fn ask_again(&mut self, id: LockId) {
        let lock = &mut self.store[id];
        lock.op_no = (lock.op_no + 1) & Lock::OP_MASK;
        self.gate(id);
    }

    /// At the master: locks of dead nodes go (step 4).
    fn purge_departed(&mut self, key: ResourceKey, departed: &BTreeSet<NodeId>) {
        let of_departed =
            |l: &&Lock| matches!(l.owner, Owner::Remote { node, .. } if departed.contains(&node));
        let ids: Vec<LockId> = self.store.locks_of(key).filter(of_departed).map(|l| l.id).collect();
        for id in ids {
            let lock = self.store.remove(id);
            let wrote =
                lock.granted.is_some_and(Mode::writes) && lock.flags.contains(LockFlags::VALBLK);
            let resource = &mut self.store[key];
            resource.lvb_lost |= wrote;
            resource.regrant = true;
        }
    }

    // ---- barriers ----

    pub(crate) fn coordinator(&self) -> NodeId {
        self.view.members.first().map_or(self.me(), |m| m.node)
    }

    fn reach(&mut self, step: Step) {
        let features = Features {
            claims: true,
            family: self.family(),
            lvb_len: self.config.lvb_len as u32,
            established: self.recovery.as_ref().is_some_and(|r| r.established),
        };
        let coordinator = self.coordinator();
        if coordinator == self.me() {
            self.count_reached(coordinator, step, features);
        } else {
            self.send(coordinator, Body::Reached { step, features });
        }
    }

    fn count_reached(&mut self, from: NodeId, step: Step, features: Features) {
        let members = self.view.members.len();
        let Some(recovery) = self.recovery.as_mut() else { return };
        let reached = recovery.reached.entry(step).or_default();
        reached.insert(from, features);
        if reached.len() < members {
            return;
        }
        let claims = reached.values().all(|f| f.claims);
        // Newcomers adapt to those who were there before them.
        let model = reached.values().find(|f| f.established).or(reached.values().next()).copied();
        let Some(model) = model else { return };
        let features = Features { claims, ..model };
        let me = self.me();
        let others: Vec<NodeId> =
            self.view.members.iter().map(|m| m.node).filter(|&n| n != me).collect();
        for node in others {
            self.send(node, Body::Passed { step, features });
        }
        self.pass_step(step, features);
    }

    fn pass_step(&mut self, step: Step, features: Features) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        recovery.passed = Some(step);
        let spent = self.now.saturating_sub(recovery.clock.step);
        recovery.clock.step = self.now;
        self.stats.recovery_step_ns[step as usize] += spent;
        match step {
            Step::Nodes => {
                self.claims_agreed = features.claims;
                if features.family != self.family()
                    || features.lvb_len != self.config.lvb_len as u32
                {
                    self.out.push_back(Output::Withdraw(WithdrawReason::ConfigurationMismatch));
                    return;
                }
                self.send_names();
                self.directory_if_complete();
            }
            Step::Directory => {
                self.find_new_masters();
                self.locks_if_complete();
            }
            Step::Locks => {
                self.settle_moved();
                self.reach(Step::Done);
            }
            Step::Done => self.resume(),
        }
    }

    pub(crate) fn receive_recovery(&mut self, from: NodeId, body: Body) {
        if self.recovery.is_none() {
            self.stats.dropped += 1;
            return;
        }
        match body {
            Body::Reached { step, features } => self.count_reached(from, step, features),
            Body::Passed { step, features } => self.pass_step(step, features),
            Body::Names { names, last } => self.receive_names(from, names, last),
            Body::Orphaned(names) => self.receive_orphaned(from, names),
            Body::Adopted(masters) => self.receive_adopted(masters),
            Body::Moved(locks) => self.receive_moved(from, locks),
            Body::MovedReply(ids) => self.receive_moved_reply(ids),
            _ => self.stats.dropped += 1,
        }
    }

    // ---- step 2: the directory ----

    fn send_names(&mut self) {
        let mut names: BTreeMap<NodeId, Vec<Name>> = BTreeMap::new();
        for key in self.store.resource_keys() {
            if self.advertises(key) {
                let resource = &self.store[key];
                names.entry(self.directory_node(resource.hash)).or_default().push(resource.name);
            }
        }
        let me = self.me();
        let others: Vec<NodeId> =
            self.view.members.iter().map(|m| m.node).filter(|&n| n != me).collect();
        for node in others {
            let mut rest = names.remove(&node).unwrap_or_default();
            while rest.len() > NAMES_PER_MESSAGE {
                let later = rest.split_off(NAMES_PER_MESSAGE);
                self.send(node, Body::Names { names: rest, last: false });
                rest = later;
            }
            self.send(node, Body::Names { names: rest, last: true });
        }
    }

    fn receive_names(&mut self, from: NodeId, names: Vec<Name>, last: bool) {
        for name in names {
            self.directory.put(name, Record { master: from, id: 0 });
        }
        if let Some(recovery) = self.recovery.as_mut().filter(|_| last) {
            recovery.names_missing.remove(&from);
            self.directory_if_complete();
        }
    }

    fn directory_if_complete(&mut self) {
        let complete = |r: &Recovery| r.passed == Some(Step::Nodes) && r.names_missing.is_empty();
        if self.recovery.as_ref().is_some_and(complete) {
            self.reach(Step::Directory);
        }
    }

    // ---- steps 5 and 6: new masters and their locks ----

    fn find_new_masters(&mut self) {
        let mut asks: BTreeMap<NodeId, Vec<Name>> = BTreeMap::new();
        let mut moves = Vec::new();
        for key in self.store.resource_keys().collect::<Vec<_>>() {
            let (name, hash, moved, master) = {
                let r = &self.store[key];
                (r.name, r.hash, r.moved, r.master)
            };
            let directory = self.directory_node(hash);
            match master {
                _ if !moved => {}
                Master::Here => {}
                Master::At(node) => moves.push((node, key)),
                Master::Unknown if directory == self.me() => {
                    let node = self.new_master(&name, hash, directory);
                    moves.extend(self.adopt_master(key, node).map(|node| (node, key)));
                }
                Master::Unknown => asks.entry(directory).or_default().push(name),
            }
        }
        for (node, names) in asks {
            if let Some(recovery) = self.recovery.as_mut() {
                recovery.adopting += names.len();
            }
            for chunk in names.chunks(NAMES_PER_MESSAGE) {
                self.send(node, Body::Orphaned(chunk.to_vec()));
            }
        }
        self.move_locks(moves);
    }

    /// As the directory node: the new master, the first asker if there is none yet.
    fn new_master(&mut self, name: &Name, hash: u64, asker: NodeId) -> NodeId {
        if self.mastered_here(name, hash).is_some() {
            return self.me();
        }
        match self.directory.get(name) {
            Some(record) => record.master,
            None if asker == self.me() => asker,
            None => self.directory.get_or_record(name, asker, 0),
        }
    }

    fn receive_orphaned(&mut self, from: NodeId, names: Vec<Name>) {
        let masters = names
            .into_iter()
            .map(|name| (name, self.new_master(&name, name.hash64(), from)))
            .collect();
        self.send(from, Body::Adopted(masters));
    }

    fn receive_adopted(&mut self, masters: Vec<(Name, NodeId)>) {
        if let Some(recovery) = self.recovery.as_mut() {
            recovery.adopting = recovery.adopting.saturating_sub(masters.len());
        }
        let mut moves = Vec::new();
        for (name, node) in masters {
            if let Some(key) = self.store.find(&name, name.hash64()) {
                moves.extend(self.adopt_master(key, node).map(|node| (node, key)));
            }
        }
        self.move_locks(moves);
        self.locks_if_complete();
    }

    /// Learns the new master; names it if it is another node, to which the locks must move.
    fn adopt_master(&mut self, key: ResourceKey, node: NodeId) -> Option<NodeId> {
        if self.store[key].master != Master::Unknown {
            return None;
        }
        if node == self.me() {
            self.become_master(key);
            return None;
        }
        self.store[key].master = Master::At(node);
        Some(node)
    }

    fn move_locks(&mut self, resources: Vec<(NodeId, ResourceKey)>) {
        let mut moving: BTreeMap<NodeId, Vec<MovedLock>> = BTreeMap::new();
        for (node, key) in resources {
            for queue in [Queue::Granted, Queue::Converting, Queue::Waiting] {
                for lock in self.store.queue(key, queue) {
                    moving.entry(node).or_default().push(self.moved_lock(lock));
                }
            }
        }
        for (node, locks) in moving {
            if let Some(recovery) = self.recovery.as_mut() {
                recovery.moving.extend(locks.iter().map(|l| l.lkid));
            }
            for chunk in locks.chunks(LOCKS_PER_MESSAGE) {
                self.send(node, Body::Moved(chunk.to_vec()));
            }
        }
    }

    fn moved_lock(&self, lock: &Lock) -> MovedLock {
        MovedLock {
            name: self.name_of(lock.resource),
            lkid: lock.id,
            client: lock.client(),
            granted: lock.granted,
            granted_unknown: lock.granted_unknown,
            requested: lock.requested.filter(|_| lock.stage == Stage::Queued),
            flags: lock.flags,
            bast: lock.bast,
            lvb: lock.lvb.clone(),
            lvb_seq: lock.lvb_seq,
            lvb_current: lock.lvb_current,
            since: lock.since,
            op: lock.op_no,
            transaction: self.store.transaction(lock.id),
        }
    }

    /// As the new master. Sent again after a restart of the recovery: what is here is replaced.
    fn receive_moved(&mut self, from: NodeId, locks: Vec<MovedLock>) {
        let mut ids = Vec::with_capacity(locks.len());
        for moved in locks {
            let key = self.store.find_or_insert(&moved.name, moved.name.hash64());
            if self.store[key].master != Master::Here {
                self.become_master(key);
                self.store[key].moved = true;
            }
            self.store[key].regrant = true;
            ids.push((moved.lkid, self.install_moved(from, key, moved)));
        }
        self.send(from, Body::MovedReply(ids));
    }

    fn install_moved(&mut self, from: NodeId, key: ResourceKey, moved: MovedLock) -> LockId {
        let same = |l: &&Lock| matches!(l.owner, Owner::Remote { node, lkid, .. } if node == from && lkid == moved.lkid);
        let old = self.store.locks_of(key).find(same).map(|l| l.id);
        if let Some(id) = old {
            self.store.remove(id);
        }
        let owner = Owner::Remote { node: from, lkid: moved.lkid, client: moved.client };
        let mut lock = Lock::new(key, owner, moved.since.min(self.now));
        lock.granted = moved.granted;
        lock.granted_unknown = moved.granted_unknown;
        lock.requested = moved.requested;
        lock.flags = moved.flags;
        lock.bast = moved.bast;
        lock.lvb = moved.lvb;
        lock.lvb_seq = moved.lvb_seq;
        lock.lvb_current = moved.lvb_current;
        lock.op_no = moved.op;
        let id = self.store.insert(lock, Queue::Parked);
        self.store.set_transaction(id, moved.transaction);
        match (moved.granted, moved.requested) {
            (Some(gr), None) => self.store.enqueue_granted(id, gr),
            (Some(_), Some(_)) => self.store.enqueue(id, Queue::Converting, false),
            (None, _) => self.store.enqueue(id, Queue::Waiting, false),
        }
        id
    }

    fn receive_moved_reply(&mut self, ids: Vec<(LockId, LockId)>) {
        for (lkid, remid) in ids {
            let Some(recovery) = self.recovery.as_mut() else { return };
            recovery.moving.remove(&lkid);
            if self.store.get(lkid).is_some() {
                self.store[lkid].remid = Some(remid);
            }
        }
        self.locks_if_complete();
    }

    fn locks_if_complete(&mut self) {
        let complete = |r: &Recovery| {
            r.passed == Some(Step::Directory) && r.adopting == 0 && r.moving.is_empty()
        };
        if self.recovery.as_ref().is_some_and(complete) {
            self.reach(Step::Locks);
        }
    }

    // ---- step 7: what the new masters make of them ----

    fn settle_moved(&mut self) {
        for key in self.store.resource_keys().collect::<Vec<_>>() {
            let here = self.store[key].master == Master::Here;
            let moved = core::mem::take(&mut self.store[key].moved);
            let lvb_lost = core::mem::take(&mut self.store[key].lvb_lost);
            if here && moved {
                self.resolve_unknown(key);
                self.recover_lvb(key);
                self.store[key].regrant = true;
                for id in self.ids_in(key, Queue::Converting) {
                    self.store[id].disordered = true;
                    self.store.recount(id);
                }
                // Who was told of a waiter by an earlier master must hear of it from this one.
                for id in self.ids_in(key, Queue::Granted) {
                    self.store[id].high_bast = None;
                }
                self.store.forget_made(key);
            } else if here && lvb_lost {
                self.store[key].lvb_invalid = true;
            }
        }
    }

    /// A PR-CW conversion whose outcome nobody knows: the mode that other holders have shows it.
    /// (Semantics section 9 looks at granted locks only; converting ones hold theirs as well.)
    fn resolve_unknown(&mut self, key: ResourceKey) {
        let middle =
            |l: &&Lock| !l.granted_unknown && matches!(l.granted, Some(Mode::PR | Mode::CW));
        let granted = self.store.queue(key, Queue::Granted);
        let converting = self.store.queue(key, Queue::Converting);
        let held = granted.chain(converting).find(middle).and_then(|l| l.granted);
        for id in self.ids_in(key, Queue::Converting) {
            let lock = &mut self.store[id];
            if core::mem::take(&mut lock.granted_unknown) {
                lock.granted = held.or(lock.requested);
                self.store.recount(id);
            }
        }
    }

    /// The best copy that a lock has. One above CR has excluded all writers since it was granted,
    /// so its copy is the block if it read (or wrote) it then; any other copy may be old.
    fn recover_lvb(&mut self, key: ResourceKey) {
        let candidates = || {
            self.store
                .queue(key, Queue::Granted)
                .chain(self.store.queue(key, Queue::Converting))
                .filter(|l| l.lvb.is_some())
        };
        let current = candidates().find(|l| l.lvb_current && l.granted > Some(Mode::CR));
        let best = current.or_else(|| candidates().max_by_key(|l| l.lvb_seq));
        let Some((value, seq)) = best.map(|l| (l.lvb.clone(), l.lvb_seq)) else { return };
        let invalid = current.is_none();
        let resource = &mut self.store[key];
        resource.lvb = value;
        resource.lvb_seq = seq;
        resource.lvb_invalid |= invalid;
    }

    // ---- steps 8, 9, 10: on again ----

    fn resume(&mut self) {
        if let Some(recovery) = self.recovery.take() {
            let took = self.now.saturating_sub(recovery.clock.began);
            self.stats.recovery_max_ns = self.stats.recovery_max_ns.max(took);
        }
        self.running = true;
        self.stats.recoveries += 1;
        self.out.push_back(Output::RecoveryDone(self.view.seq));
        self.out.append(&mut self.held);
        if !self.has_directory() {
            self.directory.clear();
        }
        self.resume_claims();
        for (from, message) in core::mem::take(&mut self.queued) {
            self.dispatch(from, message);
        }
        for id in self.locks_where(|l| l.stage == Stage::Queued && l.overlap.is_some()) {
            if self.store.get(id).is_some() {
                self.continue_overlap(id);
            }
        }
        self.issue_gated();
        for key in self.store.resource_keys().collect::<Vec<_>>() {
            if self.store.contains_resource(key) && core::mem::take(&mut self.store[key].regrant) {
                if self.store[key].master == Master::Here {
                    self.run_recovered(key);
                }
                self.drop_if_unused(key);
            }
        }
        self.open_barrier();
        self.resume_search();
    }

    /// Where the recovery that goes on is.
    pub fn recovery(&self) -> Option<RecoveryInfo> {
        let recovery = self.recovery.as_ref()?;
        let step = match recovery.passed {
            None => Step::Nodes,
            Some(Step::Nodes) => Step::Directory,
            Some(Step::Directory) => Step::Locks,
            Some(Step::Locks | Step::Done) => Step::Done,
        };
        let reached = recovery.reached.get(&step);
        let missing = |node: &NodeId| reached.is_none_or(|r| !r.contains_key(node));
        let counts = self.coordinator() == self.me();
        let members = self.view.members.iter().map(|m| m.node).filter(|_| counts);
        Some(RecoveryInfo { step, missing: members.filter(missing).collect() })
    }

    fn ids_in(&self, key: ResourceKey, queue: Queue) -> Vec<LockId> {
        self.store.queue(key, queue).map(|l| l.id).collect()
    }

    // ---- the end ----

    /// Everything is lost: clients are told at once.
    pub(crate) fn halt(&mut self) {
        let lost: Vec<_> = self
            .store
            .lock_ids()
            .filter_map(|id| {
                let lock = &self.store[id];
                match lock.owner {
                    Owner::Local(client) => Some((client, id, lock.tag)),
                    _ => None,
                }
            })
            .collect();
        for (client, lock, tag) in lost {
            self.out.push_back(Output::Lost { client, lock, tag, reason: LostReason::Halted });
        }
        let ended = Lockspace {
            view: core::mem::take(&mut self.view),
            stats: self.stats,
            now: self.now,
            clock: self.clock,
            out: core::mem::take(&mut self.out),
            over: true,
            ..Lockspace::new(self.config.clone())
        };
        *self = ended;
    }
}

fn is_directory_message(message: &Message) -> bool {
    matches!(crate::remote::class(&message.body), crate::remote::Class::Directory)
}

/// Directory nodes by hash: each member as often as its weight says; all equally if nobody has any.
fn directory_slots(view: &View) -> Vec<NodeId> {
    let weighted: Vec<NodeId> =
        view.members.iter().flat_map(|m| core::iter::repeat_n(m.node, m.weight as usize)).collect();
    if weighted.is_empty() { view.members.iter().map(|m| m.node).collect() } else { weighted }
}
