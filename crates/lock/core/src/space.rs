//! One node's part of a lockspace: its state and the one function in, one list out.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use crate::barrier::Barrier;
use crate::config::{Config, Policy};
use crate::deadlock::Deadlocks;
use crate::error::Error;
use crate::flags::LockFlags;
use crate::ids::{ClientId, LockId, NodeId, Time, View};
use crate::inspect::{Defect, LockInfo, ResourceInfo, Seen, Wait};
use crate::io::{Input, Output, Stats, Trace};
use crate::lock::{CancelCause, OpStage, Owner};
use crate::mastery::broadcast::Round;
use crate::mastery::claim::Claims;
use crate::mastery::directory::Directory;
use crate::message::{Body, Message};
use crate::mode::Mode;
use crate::name::Name;
use crate::queue::Queue;
use crate::recovery::{Recovery, Walk};
use crate::resource::{Master, ResourceKey};
use crate::store::Store;
use crate::timers::Timers;

/// One node's part of one lockspace.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Lockspace {
    pub(crate) config: Config,
    pub(crate) stats: Stats,
    pub(crate) now: Time,
    /// Lamport clock, carried by every message, floored by the view's number: fencing tokens are
    /// drawn from it, so that a node that has heard of a grant draws a larger one.
    pub(crate) clock: u64,

    pub(crate) store: Store,
    pub(crate) view: View,
    /// Directory nodes by hash, each as often as its weight says.
    pub(crate) slots: Vec<NodeId>,
    pub(crate) member: bool,
    pub(crate) leaving: bool,
    /// Halted or left: this life of the node in the lockspace has ended.
    pub(crate) over: bool,
    /// The recovery gate: closed (false) from a view's announcement to the end of its recovery.
    pub(crate) running: bool,
    /// All members understand claims.
    pub(crate) claims_agreed: bool,
    pub(crate) recovery: Option<Recovery>,
    /// The work on every resource, in pieces.
    pub(crate) walk: Option<Walk>,

    pub(crate) directory: Directory,
    pub(crate) claims: Claims,
    pub(crate) rounds: HashMap<ResourceKey, Round>,
    pub(crate) barrier: Barrier,
    pub(crate) timers: Timers,
    pub(crate) deadlocks: Deadlocks,

    /// Operations that wait for the gate, oldest first.
    pub(crate) gated: VecDeque<LockId>,
    /// Locks whose clients are gone and that are still to be released.
    pub(crate) departed: VecDeque<LockId>,
    /// The gate is open, but some operations from before still wait.
    pub(crate) backlog: bool,
    /// Messages that wait for the gate.
    pub(crate) queued: VecDeque<(NodeId, Message)>,
    /// Messages of views that this node has not heard of yet.
    pub(crate) early: VecDeque<(NodeId, Message)>,
    /// Requests of other nodes for resources whose mastership is not settled here yet.
    pub(crate) awaiting_mastership: BTreeMap<ResourceKey, VecDeque<(NodeId, Message)>>,
    /// Resources that were without locks, and when they were listed, oldest first; entries may be
    /// stale.
    pub(crate) idle: VecDeque<(Time, ResourceKey)>,

    pub(crate) out: VecDeque<Output>,
    /// Callbacks held back while the gate is closed.
    pub(crate) deferred_callbacks: VecDeque<Output>,
}

/// The node that a hash falls to.
pub(crate) fn slot_of(slots: &[NodeId], hash: u64) -> Option<NodeId> {
    let n = slots.len().max(1);
    slots.get((hash >> 16) as usize % n).copied()
}

impl Lockspace {
    /// A lockspace that is not yet a member: give it an [`Input::View`] first.
    pub fn new(config: Config) -> Lockspace {
        Lockspace {
            stats: Stats::default(),
            now: 0,
            clock: 0,
            store: Store::new(config.incarnation),
            view: View::default(),
            slots: Vec::new(),
            member: false,
            leaving: false,
            over: false,
            running: false,
            claims_agreed: false,
            recovery: None,
            walk: None,
            directory: Directory::default(),
            claims: Claims::default(),
            rounds: HashMap::new(),
            barrier: Barrier::default(),
            timers: Timers::default(),
            deadlocks: Deadlocks::default(),
            gated: VecDeque::new(),
            departed: VecDeque::new(),
            backlog: false,
            queued: VecDeque::new(),
            early: VecDeque::new(),
            awaiting_mastership: BTreeMap::new(),
            idle: VecDeque::new(),
            out: VecDeque::new(),
            deferred_callbacks: VecDeque::new(),
            config,
        }
    }

    /// Feeds one input. `Ok(Some(id))` answers [`Input::Lock`]; calls may be made while a recovery
    /// runs and then wait for its end. An error means that nothing was started and nothing changed.
    /// Time that runs backwards is taken as standing still.
    pub fn handle(&mut self, now: Time, input: Input) -> Result<Option<LockId>, Error> {
        self.now = self.now.max(now);
        match input {
            Input::Lock { client, args } => return self.lock(client, args).map(Some),
            Input::Convert(args) => self.convert(args)?,
            Input::Unlock(args) => self.unlock(args)?,
            Input::Cancel { client, lock } => self.cancel(client, lock, CancelCause::Asked)?,
            Input::BreakDeadlock { client, lock } => {
                self.cancel(client, lock, CancelCause::Deadlock)?;
            }
            Input::ClientGone(client) => self.client_gone(client),
            Input::Purge { node, clients } => self.purge(node, clients)?,
            Input::Receive { from, message } => self.receive(from, message),
            Input::View(view) => self.enter_view(view),
            Input::Halt => self.halt(),
            Input::Leave => self.leave(),
            Input::AwaitClaims(number) => self.await_claims(number),
            Input::SearchAfter(after) => self.search_after(after),
            Input::Tick => self.fire_timers(),
            Input::Work { full } => self.work(&full),
        }
        self.serve_gated();
        self.left_if_idle();
        Ok(None)
    }

    /// The next thing to do; call until `None` after each input.
    pub fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// When to call with [`Input::Tick`] at the latest.
    pub fn next_timer(&self) -> Option<Time> {
        let toss =
            self.idle.front().map(|&(since, _)| since.saturating_add(self.config.toss_after));
        let batch = self.claims.next_batch_deadline();
        [toss, batch, self.timers.next()].into_iter().flatten().min()
    }

    /// The counters of this lockspace.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Makes it behave with this defect from here on: a state that was read has none.
    #[cfg(feature = "mutations")]
    #[must_use]
    pub fn mutated(mut self, mutation: Option<crate::mutation::Mutation>) -> Lockspace {
        self.config.mutation = mutation;
        self
    }

    /// Its configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The current view (whose recovery may still run).
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Returns true if the lockspace runs: it is a member and no recovery is going on.
    pub fn is_running(&self) -> bool {
        self.member && self.running
    }

    /// Claims of this node that are not settled.
    pub fn unsettled_claims(&self) -> usize {
        self.claims.unsettled()
    }

    /// Locks of this node's clients, the orphans that they left included.
    pub fn own_lock_count(&self) -> usize {
        let own = |l: &crate::lock::Lock| matches!(l.owner, Owner::Local(_) | Owner::Orphan(_));
        self.store.lock_ids().filter(|&id| own(&self.store[id])).count()
    }

    /// The locks and orphans of this node's clients: name, mode and client.
    pub fn held(&self) -> impl Iterator<Item = (Name, Mode, ClientId)> + '_ {
        self.store.lock_ids().filter_map(|id| {
            let lock = &self.store[id];
            let (Owner::Local(client) | Owner::Orphan(client)) = lock.owner else { return None };
            Some((self.name_of(lock.resource), lock.granted?, client))
        })
    }

    /// Locks in memory, copies for other nodes included.
    pub fn lock_count(&self) -> usize {
        self.store.lock_count()
    }

    pub(crate) fn me(&self) -> NodeId {
        self.config.node
    }

    /// The node that keeps the directory record of a name (or, with [`Policy::Home`], masters it).
    pub(crate) fn directory_node(&self, hash: u64) -> NodeId {
        slot_of(&self.slots, hash).unwrap_or(self.me())
    }

    pub(crate) fn is_directory_of(&self, key: ResourceKey) -> bool {
        self.directory_node(self.store[key].hash) == self.me()
    }

    /// Directory and claim keep records of masters; the other policies have no directory.
    pub(crate) fn has_directory(&self) -> bool {
        matches!(self.config.policy, Policy::Directory | Policy::Claim(_))
    }

    pub(crate) fn next_token(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(crate) fn send(&mut self, to: NodeId, body: Body) {
        debug_assert!(to != self.me(), "a message to itself: {body:?}");
        self.stats.messages_sent += 1;
        let message = Message { view: self.view.seq, clock: self.clock, body };
        self.out.push_back(Output::Send { to, message: Box::new(message) });
    }

    /// A callback to a client: held back while the gate is closed. An exiting client hears no more.
    pub(crate) fn callback(&mut self, output: Output) {
        if output.client().is_some_and(|client| self.has_exited(client)) {
            return;
        }
        if self.running {
            self.out.push_back(output)
        } else {
            self.deferred_callbacks.push_back(output)
        }
    }

    pub(crate) fn trace(&mut self, event: impl FnOnce() -> Trace) {
        if self.config.trace {
            self.out.push_back(Output::Trace(Box::new(event())));
        }
    }

    /// An event about a resource. Its name is read only if somebody listens: when a claim is
    /// confirmed, the resource has left the processor's caches.
    pub(crate) fn trace_of(&mut self, key: ResourceKey, event: impl FnOnce(Name) -> Trace) {
        if self.config.trace {
            let name = self.name_of(key);
            self.trace(|| event(name));
        }
    }

    pub(crate) fn name_of(&self, key: ResourceKey) -> Name {
        self.store[key].name
    }

    /// This node's knowledge of a resource.
    pub fn resource(&self, name: &Name) -> Option<ResourceInfo> {
        self.store.find(name, name.hash64()).map(|key| self.info(key))
    }

    /// As [`Lockspace::resource`], if it has locks, with at most so many of them; and how many are
    /// left out.
    pub fn resource_in_part(&self, name: &Name, most: usize) -> Option<(ResourceInfo, usize)> {
        let key = self.store.find(name, name.hash64()).filter(|&k| self.store[k].has_locks())?;
        let locks = self.store.locks_of(key).take(most).map(|l| self.lock_info(l)).collect();
        let all = self.store.locks_of(key).count();
        Some((self.info_with(key, locks), all.saturating_sub(most)))
    }

    /// Tells of each resource that has locks, in the slots from `from` on, of which it looks at so
    /// many; returns where to go on, until there are no more. A resource that exists throughout is
    /// seen once.
    pub fn survey(&self, from: u32, slots: u32, mut see: impl FnMut(Seen)) -> Option<u32> {
        let end = self.store.resource_slots();
        let next = from.saturating_add(slots).min(end);
        let keys = (from..next).filter(|&k| self.store.contains_resource(k));
        for key in keys.filter(|&k| self.store[k].has_locks()) {
            let waits = |q| self.store.first(key, q).is_some();
            see(Seen {
                name: self.store[key].name,
                master: self.master_of(key),
                waited: [Queue::Converting, Queue::Waiting, Queue::Unanswered]
                    .into_iter()
                    .any(waits),
            });
        }
        (next < end).then_some(next)
    }

    fn master_of(&self, key: ResourceKey) -> Option<NodeId> {
        match self.store[key].master {
            Master::Unknown => None,
            Master::Here => Some(self.me()),
            Master::At(node) => Some(node),
        }
    }

    /// This node's knowledge of all resources that have locks here.
    pub fn resources(&self) -> Vec<ResourceInfo> {
        self.store
            .resource_keys()
            .filter(|&k| self.store[k].has_locks())
            .map(|k| self.info(k))
            .collect()
    }

    /// Directory records held here for other masters.
    pub fn directory(&self) -> Vec<(Name, NodeId)> {
        self.directory.iter().map(|(name, record)| (*name, record.master)).collect()
    }

    /// How many locks walks along queues have come by: the cost of granting, of notices to blockers,
    /// and of the search for grantable locks, on any machine.
    pub fn queue_visits(&self) -> u64 {
        self.store.visits()
    }

    /// Deadlines in memory, those that have lost their reason included.
    pub fn timer_count(&self) -> usize {
        self.timers.len()
    }

    /// Resources in memory, without locks or with some.
    pub fn resource_count(&self) -> usize {
        self.store.resource_count()
    }

    /// Locks in a queue; those of other nodes count where their master is, and at their owner.
    pub fn count_in(&self, queue: Queue) -> usize {
        self.store.count_in(queue)
    }

    pub(crate) fn info(&self, key: ResourceKey) -> ResourceInfo {
        self.info_with(key, self.store.locks_of(key).map(|l| self.lock_info(l)).collect())
    }

    fn info_with(&self, key: ResourceKey, locks: Vec<LockInfo>) -> ResourceInfo {
        let r = &self.store[key];
        ResourceInfo {
            name: r.name,
            master: self.master_of(key),
            claim_pending: r.claim.is_some(),
            locks,
            lvb: r.lvb.as_ref().map(|v| (v.to_vec(), r.lvb_seq)),
            lvb_invalid: r.lvb_invalid,
        }
    }

    fn lock_info(&self, l: &crate::lock::Lock) -> LockInfo {
        let (node, lock) = match l.owner {
            Owner::Remote { node, lkid, .. } => (node, lkid),
            _ => (self.me(), l.id),
        };
        LockInfo {
            node,
            client: l.client(),
            lock,
            queue: l.queue,
            granted: l.granted,
            requested: l.requested,
            token: l.token,
            since: l.since,
            wait: wait_of(l),
            op: l.op_no,
            flags: if l.disordered { l.flags | LockFlags::NOORDER } else { l.flags },
            transaction: self.store.transaction(l.id),
        }
    }

    /// Checks this node's structural invariants; for tests, as it walks everything.
    pub fn defects(&self) -> Vec<Defect> {
        let mut found = Vec::new();
        for key in self.store.resource_keys() {
            let name = self.store[key].name;
            let mut defect = |what| found.push(Defect { name, what });
            let here = self.store[key].master == Master::Here;
            let in_force: Vec<_> =
                self.store.locks_of(key).filter(|l| l.granted.is_some()).collect();
            for (i, a) in in_force.iter().enumerate() {
                let clash = in_force[i + 1..]
                    .iter()
                    .any(|b| a.granted.zip(b.granted).is_some_and(|(a, b)| !a.compatible(b)));
                let excused = a.granted_unknown || self.store[key].claim.is_some() || a.lost;
                if clash && !excused && self.running && here {
                    defect("incompatible locks granted");
                }
            }
            for l in self.store.locks_of(key) {
                // A forced unlock leaves the queue when the master has heard of it.
                let unlocking = l.op == crate::lock::Op::Unlock;
                match l.queue {
                    _ if unlocking => {}
                    Queue::Granted if l.granted.is_none() => {
                        defect("a granted lock without a mode")
                    }
                    Queue::Converting if l.granted.is_none() || l.requested.is_none() => {
                        defect("a converting lock without both modes");
                    }
                    Queue::Waiting if l.granted.is_some() || l.requested.is_none() => {
                        defect("a waiting lock that is granted, or asks for nothing");
                    }
                    _ => {}
                }
                if matches!(l.owner, Owner::Remote { .. }) && !here && self.running {
                    defect("a copy of another node's lock at a node that is not the master");
                }
            }
            if !self.store.is_counted(key) {
                defect("queues that are not what they are counted as");
            }
            if !self.store[key].has_locks()
                && self.store[key].idle_since.is_none()
                && self.store[key].claim.is_none()
                && !self.store[key].regrant
                && self.running
                && self.store[key].finding == crate::resource::Finding::Nothing
            {
                defect("a resource without locks that nothing will drop");
            }
        }
        found
    }

    /// Feeds everything that determines future behaviour, except clocks and tokens, to a hasher:
    /// equal fingerprints may be taken for equal states (model checking).
    pub fn fingerprint(&self, h: &mut impl Hasher) {
        (self.member, self.leaving, self.running, self.claims_agreed).hash(h);
        self.view.hash(h);
        for key in self.store.resource_keys() {
            let r = &self.store[key];
            (
                key,
                r.name,
                r.master,
                r.finding,
                r.claim,
                r.lvb_invalid,
                r.lvb_lost,
                r.moved,
                r.regrant,
            )
                .hash(h);
            (&r.lvb, r.lvb_seq, r.idle_since.is_some()).hash(h);
            for l in self.store.locks_of(key) {
                (l.id, l.owner, l.queue, l.granted, l.requested, l.flags, l.status_flags).hash(h);
                (l.op, l.stage, l.op_no, &l.overlap, l.remid, l.provisional, l.lost, l.merging)
                    .hash(h);
                (
                    l.high_bast,
                    l.cast_mode,
                    l.last_bast,
                    l.granted_unknown,
                    l.disordered,
                    &l.lvb,
                    l.lvb_seq,
                    l.mode_at_call,
                    l.mode_reported,
                )
                    .hash(h);
            }
        }
        self.directory.hash(h);
        self.claims.hash(h);
        self.barrier.hash(h);
        self.recovery.hash(h);
        (&self.walk, self.backlog, &self.departed).hash(h);
        let mut rounds: Vec<_> = self.rounds.iter().collect();
        rounds.sort_by_key(|(k, _)| **k);
        rounds.hash(h);
        self.gated.hash(h);
        for (from, message) in
            self.queued.iter().chain(&self.early).chain(self.awaiting_mastership.values().flatten())
        {
            (from, message.view, &message.body).hash(h);
        }
        self.timers.hash(h);
        self.deadlocks.hash(h);
    }
}

/// The reason for a lock's wait.
fn wait_of(l: &crate::lock::Lock) -> Wait {
    if !l.is_local() {
        return match l.queue {
            Queue::Granted => Wait::Nothing,
            _ if l.merging => Wait::Merge,
            _ => Wait::Queue,
        };
    }
    match l.stage {
        OpStage::Idle => Wait::Nothing,
        OpStage::Barrier => Wait::Claims,
        OpStage::Gate => Wait::Recovery,
        OpStage::Frozen => Wait::Merge,
        OpStage::AwaitsMaster | OpStage::LookUp => Wait::Master,
        OpStage::Asked(node) => Wait::Answer(node),
        OpStage::Queued => Wait::Queue,
    }
}
