//! Walks: a recovery's work on every resource, in pieces.
//!
//! A node may have millions of locks, and its heartbeats must not wait for all of them. So a walk
//! goes through the slots of the store, [`crate::Config::bulk`] resources at a time, whenever its
//! host says so ([`crate::Input::Work`]). It gathers the news for each node until they fill a
//! message. It makes a message only when the link to that node has room. The rest stays in its
//! present form: as locks.
//!
//! Resources that are made during a walk need none of them. There is at most one walk, and a newer
//! view begins the first one again.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::mem::take;

use serde::{Deserialize, Serialize};

use crate::ids::{NodeId, View};
use crate::message::{Body, MovedLock};
use crate::name::Name;
use crate::queue::Queue;
use crate::recovery::step::Step;
use crate::resource::{Master, ResourceKey};
use crate::space::Lockspace;

/// Names in one message of the directory's reconstruction.
const NAMES_PER_MESSAGE: usize = 512;
/// Locks in one message to their new master.
const LOCKS_PER_MESSAGE: usize = 64;
/// Names asked for, or locks sent, that have not been answered: the answers of a node that does not
/// get rid of them must not fill its memory.
const UNANSWERED: usize = 8192;
/// Empty slots cost little: as many are passed for each resource that a piece may have.
const SLOTS_PER_RESOURCE: usize = 16;

type Gathered<T> = BTreeMap<NodeId, Vec<T>>;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// Without these nodes.
    Stop(BTreeSet<NodeId>),
    /// To every other member, even if there are none for it.
    Names(Gathered<Name>),
    Masters(Gathered<Name>),
    Moves(Gathered<MovedLock>),
    Settle,
    Grant,
}

impl Task {
    pub(super) fn names(view: &View, me: NodeId) -> Task {
        let others = view.members.iter().map(|m| m.node).filter(|&node| node != me);
        Task::Names(others.map(|node| (node, Vec::new())).collect())
    }

    /// Nothing is left to be sent.
    fn is_sent(&self) -> bool {
        match self {
            Task::Stop(_) | Task::Settle | Task::Grant => true,
            Task::Names(names) | Task::Masters(names) => names.is_empty(),
            Task::Moves(locks) => locks.is_empty(),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Walk {
    task: Task,
    /// The first slot that it has not visited.
    next: ResourceKey,
    /// The node to which a message was due that had no room.
    blocked: Option<NodeId>,
}

impl Lockspace {
    /// Returns true if [`crate::Input::Work`] would make progress, while the links to the nodes in
    /// `full` take no more.
    pub fn has_work(&self, full: &[NodeId]) -> bool {
        let waits = self.backlog || !self.departed.is_empty();
        let serves = self.running && waits && full.is_empty();
        serves || self.walk.as_ref().is_some_and(|walk| self.can_go_on(walk, full))
    }

    pub(crate) fn work(&mut self, full: &[NodeId]) {
        if self.running && full.is_empty() {
            self.release_more();
            self.serve_gated();
        }
        self.walk_on(full);
    }

    fn can_go_on(&self, walk: &Walk, full: &[NodeId]) -> bool {
        match walk.blocked {
            Some(node) => !full.contains(&node) && self.unanswered() < UNANSWERED,
            None => {
                let left = walk.next < self.store.resource_slots() || !walk.task.is_sent();
                left || self.unanswered() == 0
            }
        }
    }

    pub(super) fn begin_walk(&mut self, task: Task) {
        self.walk = Some(Walk { task, next: 0, blocked: None });
        self.walk_on(&[]);
    }

    /// The last answer has come: no piece is left.
    pub(super) fn end_walk_if_answered(&mut self) {
        let ends = |w: &Walk| w.next >= self.store.resource_slots() && w.task.is_sent();
        if self.unanswered() == 0 && self.walk.as_ref().is_some_and(ends) {
            self.walk_on(&[]);
        }
    }

    /// For whose departure resources have still to be stopped.
    pub(super) fn not_stopped_for(&mut self) -> BTreeSet<NodeId> {
        match self.walk.take() {
            Some(Walk { task: Task::Stop(departed), .. }) if !mutated!(self, StopForgotten) => {
                departed
            }
            _ => BTreeSet::new(),
        }
    }

    fn walk_on(&mut self, full: &[NodeId]) {
        let Some(mut walk) = self.walk.take() else { return };
        walk.blocked = None;
        if self.do_piece(&mut walk, full) {
            self.end_walk(&walk.task);
        } else {
            self.walk = Some(walk);
        }
    }

    /// True if that was the last piece.
    fn do_piece(&mut self, walk: &mut Walk, full: &[NodeId]) -> bool {
        let mut resources = self.config.bulk.max(1);
        let mut slots = resources.saturating_mul(SLOTS_PER_RESOURCE);
        while walk.next < self.store.resource_slots() {
            if resources == 0 || slots == 0 {
                return false;
            }
            slots -= 1;
            if self.store.contains_resource(walk.next) {
                resources -= 1;
                if let Err(node) = self.visit(&mut walk.task, walk.next, full) {
                    walk.blocked = Some(node);
                    return false;
                }
            }
            walk.next += 1;
        }
        match self.send_rest(&mut walk.task, full) {
            Ok(()) => self.unanswered() == 0,
            Err(node) => {
                walk.blocked = Some(node);
                false
            }
        }
    }

    /// An error names the node for which there is no room: the resource has not been visited.
    fn visit(&mut self, task: &mut Task, key: ResourceKey, full: &[NodeId]) -> Result<(), NodeId> {
        match task {
            Task::Stop(departed) => self.stop_resource(key, departed),
            Task::Names(names) => return self.gather_name(names, key, full),
            Task::Masters(names) => return self.gather_orphan(names, key, full),
            Task::Moves(locks) => return self.gather_locks(locks, key, full),
            Task::Settle => self.settle_moved(key),
            Task::Grant => self.grant_again(key),
        }
        Ok(())
    }

    fn end_walk(&mut self, task: &Task) {
        match task {
            Task::Stop(_) => self.stopped(),
            Task::Names(_) => self.directory_if_complete(),
            Task::Masters(_) => self.begin_walk(Task::Moves(BTreeMap::new())),
            Task::Moves(_) => self.reach(Step::Locks),
            Task::Settle => self.reach(Step::Done),
            Task::Grant => {}
        }
    }

    // ---- gathering ----

    fn gather_name(
        &mut self,
        names: &mut Gathered<Name>,
        key: ResourceKey,
        full: &[NodeId],
    ) -> Result<(), NodeId> {
        let (name, node) = (self.store[key].name, self.directory_node(self.store[key].hash));
        if node == self.me() || !self.advertises(key) {
            return Ok(());
        }
        let gathered = names.entry(node).or_default();
        if gathered.len() >= NAMES_PER_MESSAGE {
            room(node, full)?;
            self.send(node, Body::Names { names: take(gathered), last: false });
        }
        gathered.push(name);
        Ok(())
    }

    fn gather_orphan(
        &mut self,
        names: &mut Gathered<Name>,
        key: ResourceKey,
        full: &[NodeId],
    ) -> Result<(), NodeId> {
        let resource = &self.store[key];
        let (name, hash) = (resource.name, resource.hash);
        if !resource.moved || resource.master != Master::Unknown {
            return Ok(());
        }
        let directory = self.directory_node(hash);
        if directory == self.me() {
            let node = self.new_master(&name, hash, directory);
            self.adopt_master(key, node);
            return Ok(());
        }
        let gathered = names.entry(directory).or_default();
        if gathered.len() >= NAMES_PER_MESSAGE {
            self.send_orphans(directory, gathered, full)?;
        }
        gathered.push(name);
        Ok(())
    }

    fn gather_locks(
        &mut self,
        locks: &mut Gathered<MovedLock>,
        key: ResourceKey,
        full: &[NodeId],
    ) -> Result<(), NodeId> {
        let Master::At(node) = self.store[key].master else { return Ok(()) };
        if !self.store[key].moved {
            return Ok(());
        }
        let gathered = locks.entry(node).or_default();
        if gathered.len() >= LOCKS_PER_MESSAGE {
            self.send_locks(node, gathered, full)?;
        }
        for queue in [Queue::Granted, Queue::Converting, Queue::Waiting] {
            gathered.extend(self.store.queue(key, queue).map(|lock| self.moved_lock(lock)));
        }
        Ok(())
    }

    // ---- sending ----

    /// Sends the entries that have not filled a message.
    fn send_rest(&mut self, task: &mut Task, full: &[NodeId]) -> Result<(), NodeId> {
        match task {
            Task::Stop(_) | Task::Settle | Task::Grant => {}
            Task::Names(names) => {
                while let Some(entry) = names.first_entry() {
                    let node = *entry.key();
                    room(node, full)?;
                    let names = entry.remove();
                    self.send(node, Body::Names { names, last: true });
                }
            }
            Task::Masters(names) => {
                while let Some(mut entry) = names.first_entry() {
                    self.send_orphans(*entry.key(), entry.get_mut(), full)?;
                    entry.remove();
                }
            }
            Task::Moves(locks) => {
                while let Some(mut entry) = locks.first_entry() {
                    self.send_locks(*entry.key(), entry.get_mut(), full)?;
                    entry.remove();
                }
            }
        }
        Ok(())
    }

    fn send_orphans(
        &mut self,
        node: NodeId,
        names: &mut Vec<Name>,
        full: &[NodeId],
    ) -> Result<(), NodeId> {
        self.room_for_answers(node, full)?;
        if let Some(recovery) = self.recovery.as_mut() {
            recovery.adopting += names.len();
        }
        self.send(node, Body::Orphaned(take(names)));
        Ok(())
    }

    /// More than one message, if a resource has many.
    fn send_locks(
        &mut self,
        node: NodeId,
        locks: &mut Vec<MovedLock>,
        full: &[NodeId],
    ) -> Result<(), NodeId> {
        self.room_for_answers(node, full)?;
        if let Some(recovery) = self.recovery.as_mut() {
            recovery.moving += locks.len();
        }
        let mut rest = take(locks);
        while rest.len() > LOCKS_PER_MESSAGE {
            let later = rest.split_off(LOCKS_PER_MESSAGE);
            self.send(node, Body::Moved(rest));
            rest = later;
        }
        self.send(node, Body::Moved(rest));
        Ok(())
    }

    fn room_for_answers(&self, node: NodeId, full: &[NodeId]) -> Result<(), NodeId> {
        if self.unanswered() < UNANSWERED { room(node, full) } else { Err(node) }
    }

    fn unanswered(&self) -> usize {
        self.recovery.as_ref().map_or(0, |r| r.adopting + r.moving)
    }
}

fn room(node: NodeId, full: &[NodeId]) -> Result<(), NodeId> {
    if full.contains(&node) { Err(node) } else { Ok(()) }
}
