//! The search for deadlocks over several resources and nodes (docs/design/semantics.md 8.3).
//!
//! A master whose locks wait for long asks the lowest member to search. That one asks every member
//! for its waiting locks, and looks for circles ([`crate::waits`]). It then asks the members that
//! know of a circle's waits to look twice more:
//!
//! ```text
//! Waits      what waits at each master: circles in it are suspects, taken at different times
//! Witnessed  each wait of a suspect, seen by its master, its waiter's and its blocker's node
//! Witnessed  once more: nothing may have changed
//! Victim     the youngest wait of a circle ends with EDEADLK
//! ```
//!
//! Why there are no false victims: a lock's operations are numbered at its owner, so that the same
//! numbers twice mean that nothing was begun or ended between. All first looks are over before any
//! second one begins; at that moment every wait of the circle existed, and no release was on its
//! way, as the blockers' owners have seen. Only a wait that ends by itself (time-out, cancel, death
//! of a node) after that can make the end of the victim unnecessary; never a race.
//!
//! There is no search while a recovery runs: its messages count only in their view.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::crowd::Modes;
use crate::ids::{LockId, NodeId, Time};
use crate::inspect::ResourceInfo;
use crate::lock::{CancelCause, Lock, Op, OpStage, Owner};
use crate::message::Body;
use crate::name::Name;
use crate::queue::Queue;
use crate::resource::{Master, ResourceKey};
use crate::space::Lockspace;
use crate::timers::Timer;
use crate::waits::{Cycle, Edge, first_cycles};

/// Locks in one message, so that it fits a frame.
const LOCKS_PER_MESSAGE: usize = 2048;
/// Locks of one resource that a message tells of: granted ones, and as many waiting ones.
const LOCKS_PER_RESOURCE: usize = 1024;
/// Circles that one search ends; more are found by the next.
const CYCLES_PER_SEARCH: usize = 64;

/// A node's view of a wait: the numbers of the operations of its two locks, at the master, then at
/// their owners; 0 for those that the node cannot see.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Sight {
    /// The waiter's operation, as the master knows it.
    pub waiter_here: u32,
    /// The blocker's, as the master knows it.
    pub blocker_here: u32,
    /// The waiter's, at its owner.
    pub waiter: u32,
    /// The blocker's, at its owner.
    pub blocker: u32,
}

/// A node's part in searches.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Deadlocks {
    /// Resources mastered here that had locks in their queues; kept only with the search for
    /// deadlocks, and checked again before they count.
    queued: BTreeSet<ResourceKey>,
    /// A timer to look at them is set.
    armed: bool,
    /// How often [`crate::Config::deadlock_after`] has changed: timers of another setting do not count.
    setting: u32,
    /// At the lowest member: the search that goes on.
    search: Option<Search>,
    /// Numbers the stages of searches, so that late answers are recognized.
    round: u64,
    /// At the lowest member: no search begins before this.
    not_before: Time,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
struct Search {
    /// The nodes that have not answered in this round.
    missing: BTreeSet<NodeId>,
    stage: Stages,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
enum Stages {
    Collecting(Vec<ResourceInfo>),
    Witnessing {
        /// The suspects, as the ends of each one's edges in `edges`, and its victim.
        suspects: Vec<(usize, usize)>,
        edges: Vec<Edge>,
        /// The views of all nodes in this round.
        seen: BTreeMap<NodeId, Vec<Option<Sight>>>,
        /// And in the one before, if it is the second.
        before: Option<BTreeMap<NodeId, Vec<Option<Sight>>>>,
    },
}

impl Lockspace {
    /// A lock was queued at this master.
    pub(crate) fn note_queued(&mut self, key: ResourceKey) {
        self.stats.queued += 1;
        if self.config.deadlock_after.is_some() {
            self.deadlocks.queued.insert(key);
            self.watch_queues();
        }
    }

    fn watch_queues(&mut self) {
        if let Some(after) = self.config.deadlock_after
            && !self.deadlocks.queued.is_empty()
            && !core::mem::replace(&mut self.deadlocks.armed, true)
        {
            self.set_timer(after, Timer::Deadlocks(self.deadlocks.setting));
        }
    }

    /// From now on, deadlocks are searched for after another time, or not any more.
    pub(crate) fn search_after(&mut self, after: Option<Time>) {
        if self.config.deadlock_after == after {
            return;
        }
        self.config.deadlock_after = after;
        self.deadlocks.setting += 1;
        self.deadlocks.armed = false;
        self.deadlocks.not_before = 0;
        self.stop_search();
        if self.running {
            self.resume_search();
        }
    }

    /// A recovery stops every search and moves queues from master to master.
    pub(crate) fn stop_search(&mut self) {
        self.deadlocks.search = None;
        self.deadlocks.queued.clear();
    }

    /// After a recovery: what waits here now.
    pub(crate) fn resume_search(&mut self) {
        if self.config.deadlock_after.is_none() {
            return;
        }
        self.deadlocks.queued = self.store.resource_keys().collect();
        self.drop_unqueued();
        self.watch_queues();
    }

    fn drop_unqueued(&mut self) {
        let store = &self.store;
        let waits = |key: ResourceKey, queue| store.first(key, queue).is_some();
        self.deadlocks.queued.retain(|&key| {
            store.contains_resource(key)
                && store[key].master == Master::Here
                && (waits(key, Queue::Converting) || waits(key, Queue::Waiting))
        });
    }

    /// Looks whether somebody has waited for long here.
    pub(crate) fn look_for_long_waits(&mut self, setting: u32) {
        if setting != self.deadlocks.setting {
            return;
        }
        self.deadlocks.armed = false;
        let Some(after) = self.config.deadlock_after else { return };
        self.drop_unqueued();
        self.watch_queues();
        let long = |l: &Lock| self.now.saturating_sub(l.since) >= after;
        let waits = |key: &ResourceKey| {
            let mut queues = [Queue::Converting, Queue::Waiting].into_iter();
            queues.any(|queue| self.store.queue(*key, queue).any(long))
        };
        if !self.running || !self.deadlocks.queued.iter().any(waits) {
            return;
        }
        match self.coordinator() {
            node if node == self.me() => self.search(),
            node => self.send(node, Body::SuspectDeadlock),
        }
    }

    // ---- the node that leads the search ----

    /// Begins a search, unless one goes on or has just ended.
    pub(crate) fn search(&mut self) {
        let Some(after) = self.config.deadlock_after else { return };
        let begun = self.deadlocks.search.is_some() || self.now < self.deadlocks.not_before;
        if begun || !self.running || self.coordinator() != self.me() {
            return;
        }
        self.stats.deadlock_searches += 1;
        self.deadlocks.not_before = self.now.saturating_add(after / 2);
        let mine = self.waits_here();
        let missing = self.others().into_iter().collect();
        self.begin_round(missing, Stages::Collecting(mine), |round| Body::TellWaits { round });
    }

    fn begin_round(&mut self, missing: BTreeSet<NodeId>, stage: Stages, ask: impl Fn(u64) -> Body) {
        self.deadlocks.round += 1;
        let round = self.deadlocks.round;
        for &node in &missing {
            self.send(node, ask(round));
        }
        self.deadlocks.search = Some(Search { missing, stage });
        self.end_round_if_complete();
    }

    fn current(&mut self, round: u64) -> Option<&mut Search> {
        (round == self.deadlocks.round).then_some(())?;
        self.deadlocks.search.as_mut()
    }

    pub(crate) fn receive_waits(
        &mut self,
        from: NodeId,
        round: u64,
        now: Time,
        mut resources: Vec<ResourceInfo>,
        last: bool,
    ) {
        let here = self.now;
        let Some(search) = self.current(round) else { return };
        let Stages::Collecting(all) = &mut search.stage else { return };
        for lock in resources.iter_mut().flat_map(|r| &mut r.locks) {
            // The nodes' clocks have nothing to do with each other.
            lock.since = here.saturating_sub(now.saturating_sub(lock.since));
        }
        all.append(&mut resources);
        if last {
            search.missing.remove(&from);
        }
        self.end_round_if_complete();
    }

    pub(crate) fn receive_witnessed(
        &mut self,
        from: NodeId,
        round: u64,
        sights: Vec<Option<Sight>>,
    ) {
        let Some(search) = self.current(round) else { return };
        let Stages::Witnessing { seen, edges, .. } = &mut search.stage else { return };
        if sights.len() == edges.len() && search.missing.remove(&from) {
            seen.insert(from, sights);
        }
        self.end_round_if_complete();
    }

    fn end_round_if_complete(&mut self) {
        if self.deadlocks.search.as_ref().is_none_or(|s| !s.missing.is_empty()) {
            return;
        }
        let Some(search) = self.deadlocks.search.take() else { return };
        match search.stage {
            Stages::Collecting(all) => {
                let found = first_cycles(&all, CYCLES_PER_SEARCH);
                if !found.is_empty() {
                    self.witness_all(found);
                }
            }
            Stages::Witnessing { suspects, edges, seen, before: None } => {
                self.ask_witnesses(suspects, edges, Some(seen));
            }
            Stages::Witnessing { suspects, edges, seen, before: Some(before) } => {
                self.end_cycles(&suspects, &edges, &before, &seen);
            }
        }
    }

    fn witness_all(&mut self, found: Vec<Cycle>) {
        let mut suspects = Vec::with_capacity(found.len());
        let mut edges = Vec::new();
        for cycle in found {
            let victim = edges.len() + cycle.victim;
            edges.extend(cycle.edges);
            suspects.push((edges.len(), victim));
        }
        self.ask_witnesses(suspects, edges, None);
    }

    fn ask_witnesses(
        &mut self,
        suspects: Vec<(usize, usize)>,
        edges: Vec<Edge>,
        before: Option<BTreeMap<NodeId, Vec<Option<Sight>>>>,
    ) {
        let me = self.me();
        let mut seen = BTreeMap::new();
        seen.insert(me, self.sights_of(&edges));
        let involved = edges.iter().flat_map(|e| [e.master, e.waiter.0, e.blocker.0]);
        let missing: BTreeSet<NodeId> = involved.filter(|&n| n != me).collect();
        if missing.iter().any(|&n| self.view.member(n).is_none()) {
            return;
        }
        let asked = edges.clone();
        let stage = Stages::Witnessing { suspects, edges, seen, before };
        self.begin_round(missing, stage, |round| Body::Witness { round, edges: asked.clone() });
    }

    /// Ends one wait of each circle that nobody has seen change.
    fn end_cycles(
        &mut self,
        suspects: &[(usize, usize)],
        edges: &[Edge],
        before: &BTreeMap<NodeId, Vec<Option<Sight>>>,
        seen: &BTreeMap<NodeId, Vec<Option<Sight>>>,
    ) {
        let stands = |i: usize| {
            before.iter().all(|(node, sights)| {
                sights[i].is_some() && seen.get(node).is_some_and(|now| now[i] == sights[i])
            })
        };
        let mut begin = 0;
        for &(end, victim) in suspects {
            if (begin..end).all(stands) {
                let (node, lock) = edges[victim].waiter;
                let sight = seen.get(&node).and_then(|sights| sights[victim]).unwrap_or_default();
                self.stats.deadlocks += 1;
                match node == self.me() {
                    true => self.end_deadlocked(lock, sight.waiter),
                    false => self.send(node, Body::Victim { lkid: lock, op: sight.waiter }),
                }
            }
            begin = end;
        }
    }

    // ---- every member ----

    pub(crate) fn receive_tell_waits(&mut self, from: NodeId, round: u64) {
        let mut part = Vec::new();
        let (mut locks, now) = (0, self.now);
        for r in self.waits_here() {
            locks += r.locks.len();
            part.push(r);
            if locks >= LOCKS_PER_MESSAGE {
                let resources = core::mem::take(&mut part);
                self.send(from, Body::Waits { round, now, resources, last: false });
                locks = 0;
            }
        }
        self.send(from, Body::Waits { round, now, resources: part, last: true });
    }

    /// The waiting locks of this master, and the locks that they wait for.
    fn waits_here(&mut self) -> Vec<ResourceInfo> {
        self.drop_unqueued();
        let mut all = Vec::with_capacity(self.deadlocks.queued.len());
        for &key in &self.deadlocks.queued {
            let mut info = self.info(key);
            info.lvb = None;
            let wanted: Modes = info.locks.iter().filter_map(|l| l.requested).collect();
            let (mut held, mut queued) = (0, 0);
            info.locks.retain(|l| {
                let count = if l.waits_in_queue() { &mut queued } else { &mut held };
                let blocks = l.granted.is_some_and(|gr| wanted.conflict_with(gr));
                let matters = l.waits_in_queue() || (l.queue == Queue::Granted && blocks);
                *count += usize::from(matters);
                matters && *count <= LOCKS_PER_RESOURCE
            });
            all.push(info);
        }
        all
    }

    pub(crate) fn receive_witness(&mut self, from: NodeId, round: u64, edges: &[Edge]) {
        let sights = self.sights_of(edges);
        self.send(from, Body::Witnessed { round, sights });
    }

    fn sights_of(&self, edges: &[Edge]) -> Vec<Option<Sight>> {
        // Most circles are between few resources, which may have many locks.
        let mut mastered: BTreeMap<Name, Option<ResourceInfo>> = BTreeMap::new();
        for edge in edges.iter().filter(|edge| edge.master == self.me()) {
            let look = || self.resource(&edge.name).filter(|r| r.master == Some(self.me()));
            mastered.entry(edge.name).or_insert_with(look);
        }
        edges.iter().map(|edge| self.sight_of(edge, &mastered)).collect()
    }

    /// This node's view of a wait; `None` if there is certainly no such wait.
    fn sight_of(
        &self,
        edge: &Edge,
        mastered: &BTreeMap<Name, Option<ResourceInfo>>,
    ) -> Option<Sight> {
        let (me, mut sight) = (self.me(), Sight::default());
        if edge.master == me {
            let r = mastered.get(&edge.name)?.as_ref()?;
            let waiter = r.locks.iter().find(|l| l.key() == edge.waiter)?;
            let blocker = r.blockers(waiter).find(|l| l.key() == edge.blocker)?;
            sight.waiter_here = waiter.op;
            sight.blocker_here = blocker.op;
        }
        if edge.waiter.0 == me {
            sight.waiter =
                self.resting(edge.waiter.1).filter(|l| l.stage == OpStage::Queued)?.op_no;
        }
        if edge.blocker.0 == me {
            sight.blocker = self.resting(edge.blocker.1)?.op_no;
        }
        Some(sight)
    }

    /// A client's lock that holds or waits at its master, with nothing on its way there.
    fn resting(&self, id: LockId) -> Option<&Lock> {
        self.store.get(id).filter(|l| {
            let queued = l.stage == OpStage::Queued && l.op != Op::Unlock;
            let holds = l.op == Op::None && l.granted.is_some() && !l.lost;
            l.overlap.is_none() && matches!(l.owner, Owner::Local(_)) && (queued || holds)
        })
    }

    /// The wait that was chosen, if it is still that one.
    pub(crate) fn end_deadlocked(&mut self, id: LockId, op: u32) {
        let waits = |l: &&Lock| l.stage == OpStage::Queued && l.op_no == op;
        if self.resting(id).filter(waits).is_some() {
            self.cancel_lock(id, CancelCause::Deadlock);
        }
    }
}
