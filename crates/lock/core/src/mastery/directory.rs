//! Directory mastery, as in Linux `fs/dlm` (docs/design/claim.md 1.1): a node chosen by the name's hash
//! records the master; the first node that asks for a name without a record becomes its master.
//!
//! The record of a resource that the directory node masters itself is the resource: the table holds the
//! others. Lookups, claims and removes of a node carry ids from one counter, so that a REMOVE that
//! comes late cannot delete what a later look-up has recorded.

use hashbrown::DefaultHashBuilder;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::ids::{LockId, NodeId};
use crate::lock::{Lock, OpStage};
use crate::message::{Body, NewLock};
use crate::name::Name;
use crate::resource::{Finding, Master, Resource, ResourceKey};
use crate::space::Lockspace;

/// The master of a name, and the look-up or claim by which it became that.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub master: NodeId,
    pub id: u64,
}

#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Directory {
    /// Its entries are in one list, which grows in place: a table of entries that doubles is there twice meanwhile,
    /// in the recovery that makes it grow.
    records: IndexMap<Name, Record, DefaultHashBuilder>,
    /// The last id given to a look-up, claim or remove of this node.
    last_id: u64,
}

impl core::hash::Hash for Directory {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        let mut records: alloc::vec::Vec<_> = self.records.iter().collect();
        records.sort_by_key(|(name, _)| **name);
        records.hash(state);
    }
}

impl Directory {
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &Record)> {
        self.records.iter()
    }

    pub fn get(&self, name: &Name) -> Option<Record> {
        self.records.get(name).copied()
    }

    pub fn clear(&mut self) {
        self.records.clear();
    }

    pub fn put(&mut self, name: Name, record: Record) {
        self.records.insert(name, record);
    }

    pub fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// The name's master; `asker` if there is none so far, or if it is on record already.
    pub fn get_or_record(&mut self, name: &Name, asker: NodeId, id: u64) -> NodeId {
        let record = self.records.entry(*name).or_insert(Record { master: asker, id });
        if record.master == asker {
            record.id = record.id.max(id);
        }
        record.master
    }
}

impl Lockspace {
    pub(crate) fn look_up(&mut self, key: ResourceKey, id: LockId) {
        let (name, hash) = (self.store[key].name, self.store[key].hash);
        let directory = self.directory_node(hash);
        if directory != self.me() {
            let new = self.new_lock_of(id);
            let request = self.directory.new_id();
            self.store[key].finding = Finding::LookUp;
            self.store[id].stage = OpStage::LookUp;
            return self.send(directory, Body::Lookup { new, id: request });
        }
        match self.directory.get(&name) {
            Some(record) => {
                self.store[key].master = Master::At(record.master);
                self.request_at(id, record.master);
            }
            None => {
                self.become_master(key);
                self.request_here(id);
            }
        }
    }

    /// As the directory node: tells the master, or makes the asker the master; if this node is the
    /// master itself, the lock asked for is answered at once.
    pub(crate) fn receive_lookup(&mut self, from: NodeId, new: NewLock, id: u64) {
        let hash = new.name.hash64();
        if self.directory_node(hash) != self.me() || !self.has_directory() {
            self.stats.dropped += 1;
            return;
        }
        if let Some(key) = self.mastered_here(&new.name, hash) {
            return self.request_for(from, key, new);
        }
        let master = self.directory.get_or_record(&new.name, from, id);
        let (lkid, op) = (new.ask.lkid, new.ask.op);
        self.send(from, Body::LookupReply { lkid, op, master });
    }

    /// As the directory node: the resource, if this node masters it.
    pub(crate) fn mastered_here(&self, name: &Name, hash: u64) -> Option<ResourceKey> {
        self.store.find(name, hash).filter(|&key| {
            // A claim of our own that is not settled is no mastership yet.
            let resource = &self.store[key];
            resource.master == Master::Here && resource.claim.is_none()
        })
    }

    pub(crate) fn receive_lookup_reply(&mut self, lkid: LockId, op: u32, master: NodeId) {
        let asked = |l: &&Lock| l.op_no == op && l.stage == OpStage::LookUp;
        let Some(key) = self.store.get(lkid).filter(asked).map(|l| l.resource) else {
            self.stats.dropped += 1;
            return;
        };
        self.stats.round_trips += 1;
        // A request that was out to an old master may have found it meanwhile.
        if self.store[key].finding == Finding::LookUp {
            self.store[key].finding = Finding::Nothing;
        }
        match self.store[key].master {
            Master::Unknown if master == self.me() => self.become_master(key),
            Master::Unknown => self.store[key].master = Master::At(master),
            Master::Here | Master::At(_) => {}
        }
        // In the order of the calls: the one that asked may not be the first.
        self.place_waiting(key);
        self.drop_if_unused(key);
    }

    pub(crate) fn send_remove(&mut self, directory: NodeId, name: Name) {
        let id = self.directory.new_id();
        // A claim of the name must not be overtaken by the REMOVE that ends it.
        self.flush_batch_to(directory);
        self.send(directory, Body::Remove { name, id });
    }

    /// The resource's master; where this node keeps the directory, its record counts, not what a
    /// former view has left in the cache: the master takes a request from here for the directory's
    /// word, even if it has dropped the resource in a recovery, without a REMOVE.
    pub(crate) fn master_by_record(&mut self, key: ResourceKey) -> Master {
        let resource = &self.store[key];
        if let Master::At(cached) = resource.master
            && self.has_directory()
            && self.is_directory_of(key)
            && self.directory.get(&resource.name).is_none_or(|record| record.master != cached)
        {
            self.store[key].master = Master::Unknown;
        }
        self.store[key].master
    }

    /// Another node took this one for the master of an unknown name. Where messages can be lost,
    /// the REMOVE may have been lost: without it, no node would ever get past the record
    /// (docs/design/claim.md 4.8).
    pub(crate) fn repeat_remove(&mut self, name: &Name) {
        let hash = name.hash64();
        let directory = self.directory_node(hash);
        let lossy = self.config.claim_resend.is_some() && self.has_directory();
        if lossy && directory != self.me() && self.store.find(name, hash).is_none() {
            self.send_remove(directory, *name);
        }
    }

    /// As the directory node: the master's last lock has gone. Ignored while this node has locks
    /// on their way to that master (which then takes the resource up again), and if a later
    /// look-up or claim is on record. A request that has not been sent is not on its way: if it ended here,
    /// the master would never hear of the name, and its record would stay for ever.
    pub(crate) fn receive_remove(&mut self, from: NodeId, name: Name, id: u64) {
        let Some(record) = self.directory.get(&name) else { return };
        if record.master != from || (record.id > id && !mutated!(self, RemoveWithoutId)) {
            return;
        }
        if let Some(key) = self.store.find(&name, name.hash64()) {
            let searching = |r: &Resource| r.finding != Finding::Nothing || r.claim.is_some();
            match self.store[key].has_locks() {
                true if searching(&self.store[key]) => return,
                true if self.store.locks_of(key).any(|lock| !lock.is_unsent()) => return,
                true => self.store[key].master = Master::Unknown,
                false if searching(&self.store[key]) => {}
                false => self.forget(key),
            }
        }
        self.directory.records.swap_remove(&name);
    }
}
