//! The directory's reconstruction (step 2), new masters (step 5) and the locks that move to them
//! (step 6): the walks in [`super::walk`] gather the messages to the others.

use alloc::vec::Vec;

use hashbrown::HashMap;

use super::Recovery;
use crate::ids::{LockId, NodeId};
use crate::lock::{Lock, OpStage, Owner};
use crate::mastery::directory::Record;
use crate::message::{Body, MovedLock};
use crate::name::Name;
use crate::queue::Queue;
use crate::recovery::step::Step;
use crate::resource::{Master, ResourceKey};
use crate::space::Lockspace;

impl Lockspace {
    pub(super) fn receive_names(&mut self, from: NodeId, names: Vec<Name>, last: bool) {
        for name in names {
            self.directory.put(name, Record { master: from, id: 0 });
        }
        if let Some(recovery) = self.recovery.as_mut().filter(|_| last) {
            recovery.names_missing.remove(&from);
            self.directory_if_complete();
        }
    }

    pub(super) fn directory_if_complete(&mut self) {
        let complete = |r: &Recovery| r.passed == Some(Step::Nodes) && r.names_missing.is_empty();
        if self.walk.is_none() && self.recovery.as_ref().is_some_and(complete) {
            self.reach(Step::Directory);
        }
    }

    /// As the directory node: the new master, the first asker if there is none yet.
    pub(super) fn new_master(&mut self, name: &Name, hash: u64, asker: NodeId) -> NodeId {
        if self.mastered_here(name, hash).is_some() {
            return self.me();
        }
        match self.directory.get(name) {
            Some(record) => record.master,
            None if asker == self.me() => asker,
            None => self.directory.get_or_record(name, asker, 0),
        }
    }

    pub(super) fn receive_orphaned(&mut self, from: NodeId, names: Vec<Name>) {
        let masters = names
            .into_iter()
            .map(|name| (name, self.new_master(&name, name.hash64(), from)))
            .collect();
        self.send(from, Body::Adopted(masters));
    }

    pub(super) fn receive_adopted(&mut self, masters: Vec<(Name, NodeId)>) {
        if let Some(recovery) = self.recovery.as_mut() {
            recovery.adopting = recovery.adopting.saturating_sub(masters.len());
        }
        for (name, node) in masters {
            if let Some(key) = self.store.find(&name, name.hash64()) {
                self.adopt_master(key, node);
            }
        }
        self.end_walk_if_answered();
    }

    /// Learns the new master; if it is another node, the locks must move there.
    pub(super) fn adopt_master(&mut self, key: ResourceKey, node: NodeId) {
        if self.store[key].master != Master::Unknown {
            return;
        }
        if node == self.me() {
            self.become_master(key);
        } else {
            self.store[key].master = Master::At(node);
        }
    }

    pub(super) fn moved_lock(&self, lock: &Lock) -> MovedLock {
        MovedLock {
            name: self.name_of(lock.resource),
            lkid: lock.id,
            client: lock.client(),
            granted: lock.granted,
            granted_unknown: lock.granted_unknown,
            requested: lock.requested.filter(|_| lock.stage == OpStage::Queued),
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

    /// As the new master. It is sent again after a restart of the recovery, and replaces the
    /// present locks.
    pub(super) fn receive_moved(&mut self, from: NodeId, locks: Vec<MovedLock>) {
        let mut ids = Vec::with_capacity(locks.len());
        let mut present = (None, HashMap::new());
        for moved in locks {
            let key = self.store.find_or_insert(&moved.name, moved.name.hash64());
            // Very many locks of one name move in many messages: each looks through the queues once.
            if present.0 != Some(key) {
                present = (Some(key), self.store.locks_from(key, from));
            }
            if self.store[key].master != Master::Here {
                self.become_master(key);
                self.store[key].moved = true;
            }
            self.store[key].regrant = true;
            if let Some(old) = present.1.remove(&moved.lkid) {
                self.store.remove(old);
            }
            ids.push((moved.lkid, self.install_moved(from, key, moved)));
        }
        self.send(from, Body::MovedReply(ids));
    }

    fn install_moved(&mut self, from: NodeId, key: ResourceKey, moved: MovedLock) -> LockId {
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
        let id = self.store.insert(lock, Queue::Unanswered);
        self.store.set_transaction(id, moved.transaction);
        match (moved.granted, moved.requested) {
            (Some(gr), None) => self.store.enqueue_granted(id, gr),
            (Some(_), Some(_)) => self.store.enqueue(id, Queue::Converting, false),
            (None, _) => self.store.enqueue(id, Queue::Waiting, false),
        }
        id
    }

    pub(super) fn receive_moved_reply(&mut self, ids: Vec<(LockId, LockId)>) {
        if let Some(recovery) = self.recovery.as_mut() {
            recovery.moving = recovery.moving.saturating_sub(ids.len());
        }
        for (lkid, remid) in ids {
            if self.store.get(lkid).is_some() {
                self.store[lkid].remid = Some(remid);
            }
        }
        self.end_walk_if_answered();
    }
}
