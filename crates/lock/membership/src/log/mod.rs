//! Membership that remembers: views, lives and safety keys in a replicated, durable log.
//!
//! **The log.** Up to seven nodes vote (`agree`); the rest learns. The decisions lead to one [`ClusterState`]
//! on every node (`state`). A node's disk keeps its part of the log as one image (`store`); nothing that
//! depends on a change is said before the change is on the disk.
//!
//! **Lives.** A process asks for a life under a random number, its visit. The log hands out the next number. No
//! clock and no memory of the node has a part in that, so a node that was restored, copied, or started with a
//! wrong clock comes as a new life like any other.
//!
//! **Views.** Every node reports whom it reaches, and passes on what others report. The leader of the log
//! chooses the next view from these reports (`choose`). A member that is not in it is first *excluded*: once
//! that is decided, a majority of the voters echoes it no more. Then the leader waits until the member cannot
//! act: two leases, an agent, or a proof that its process is gone. The log records that as *over*, and only
//! then takes a view without the member ([`ClusterState::apply`]).
//!
//! **Leases.** A member acts while a majority of the voters has echoed beats sent less than a lease ago. A
//! voter echoes no member that its own log, decided or not, excludes. Any majority that echoed and any majority
//! that accepted the exclusion share a voter, so the member's lease ends at most a lease after the decision, by
//! its own clock; two leases cover a clock at half the speed. Voters change by one node at a time, and only
//! when every member knows the voters before: so majorities of two successive configurations share a node as
//! well.
//!
//! **Disks.** Each disk has a random number, and a configuration names its voters' disks. A voter whose disk is
//! new, or says less than other voters remember of it, does not vote: it takes a new number, and the others
//! begin a configuration with it. That needs a majority that has its disks. If a majority is lost, nothing goes
//! on until an operator begins a new era on a survivor.
//!
//! **Begin.** Nodes without state begin a cluster only together: when all listed nodes are connected, none has
//! a state, and all have the same list and keys. If only some disks get so far, their nodes teach the others.

mod absence;
mod agree;
mod choose;
mod conduct;
#[cfg(feature = "mutations")]
mod defects;
mod state;
mod store;
mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lockify_core::{NodeId, Time};
use serde::{Deserialize, Serialize};

use super::fences::Fences;
use super::leases::Leases;
use super::messages::{SpaceJoin, Vote};
use super::writes::Writes;
use super::{
    Action, Event, FenceKind, Halt, Membership, MembershipImage, NodeView, Service, Standing,
};
pub use absence::{Absence, Lack};
use agree::{Agreement, Paxos, note};
use conduct::Conduct;
use state::MAX_NODES;
pub use state::{
    ClusterState, Command, ConfigId, FIRST_ERA, Keys, Life, MAX_VOTERS, NodeEntry, Position, Why,
};
pub(crate) use state::{ERA_SHIFT, LAST_VIEW};
use store::{Image, Records, Witness};
pub use store::{ImageError, highest_view};
pub(crate) use store::{MAGIC, open, seal};
use words::First;
pub use words::{Hello, LogWord, Report};

/// Lives stay below; a visit's random number is not.
pub(crate) const VISITS: u64 = 1 << 63;

/// Messages of the consensus that may wait for the disk; more are dropped, as a network may.
const MOST_WAITING: usize = 4096;

/// Commands of one configuration are far fewer.
const MOST_COMMANDS: u64 = 1 << 32;

/// Visits of a node that are known to be over.
const VISITS_KEPT: usize = 16;

/// How long a write of the disk that failed is waited for before it is tried again, in heartbeats.
const WRITE_AGAIN: Time = 10;

/// Configuration of a [`LogMembership`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogConfig {
    /// The cluster's name.
    pub cluster: String,
    /// This node.
    pub node: NodeId,
    /// Its share of directories.
    pub weight: u32,
    /// The nodes of the configuration file: the first configuration, where there is none yet.
    pub nodes: BTreeMap<NodeId, NodeEntry>,
    /// The lease of the file, in nanoseconds; `None`: the cluster's, 2 s in a new one.
    pub lease: Option<Time>,
    /// The fence of the file; `None`: the cluster's, leases in a new one.
    pub fence: Option<FenceKind>,
    /// Shards of each node.
    pub shards: u32,
    /// Between two heartbeats of the consensus, in nanoseconds; `None`: 100 ms, less with a lease below 800 ms.
    pub heartbeat: Option<Time>,
    /// Views are numbered above this, too: what other shards of this node have reached. A name may have been theirs.
    pub floor: u64,
    /// A random number, from which all others of this process are drawn.
    pub seed: u64,
}

/// The lease of a new cluster whose files name none.
pub const DEFAULT_LEASE: Time = 2_000_000_000;

const MS: Time = 1_000_000;

impl LogConfig {
    /// How the file would begin the cluster.
    fn first(&self) -> First {
        First {
            nodes: self.nodes.clone(),
            keys: Keys {
                lease: self.lease.unwrap_or(DEFAULT_LEASE),
                fence: self.fence.unwrap_or_default(),
                shards: self.shards,
            },
        }
    }
}

/// An operator's request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Adds a node, or changes its address or whether it votes.
    Join {
        /// The node.
        node: NodeId,
        /// The node's entry.
        entry: NodeEntry,
    },
    /// Removes a node.
    Leave {
        /// The node.
        node: NodeId,
    },
    /// Changes the lease, in nanoseconds.
    Lease(Time),
    /// Changes what recovery waits for.
    Fence(FenceKind),
    /// Begins a new era on this node: a majority of the voters has lost its disks for good.
    Recover,
}

/// Membership by a replicated log; see the module.
pub struct LogMembership {
    config: LogConfig,
    random: Random,
    disk: u64,
    /// The state at the beginning of the configuration, for voters; `None`: no cluster yet.
    base: Option<ClusterState>,
    /// The state now.
    state: ClusterState,
    /// How many commands of the configuration `state` includes: those that this node's own log has
    /// decided, or more, which others have told.
    index: u64,
    /// Only on voters.
    agreement: Option<Agreement>,
    witnesses: BTreeMap<NodeId, Witness>,
    disk_writes: DiskWrites,

    visit: u64,
    life: Option<u64>,
    weight: u32,
    spaces: Vec<SpaceJoin>,
    peers: BTreeMap<NodeId, Peer>,
    reports: BTreeMap<NodeId, Known>,
    /// The number of this node's newest report.
    reported: u64,
    /// When the report is repeated.
    next_report: Time,
    proofs: BTreeMap<NodeId, u64>,

    leases: Leases,
    installed: Option<NodeView>,
    /// Applied, and to be installed when this node's lease has begun.
    entering: Option<NodeView>,
    halted: bool,
    /// When this node applied that a life is excluded.
    excluded_at: BTreeMap<(NodeId, u64), Time>,
    conduct: Conduct,
    fences: Fences,
    requests: Vec<Pending>,
    /// When this node's address is told to the log again, if that has another one.
    address_due: Time,

    /// Counts changes of the data from which this node reports, or a leader acts.
    changes: u64,
    /// The changes that were looked at last, and when to look in any case.
    looked: (u64, Time),
    next_beat: Time,
    next_pulse: Time,
    last: Time,
    actions: VecDeque<Action>,
    #[cfg(feature = "mutations")]
    mutation: Option<crate::mutation::Mutation>,
    #[cfg(feature = "mutations")]
    wall: u64,
}

impl std::fmt::Debug for LogMembership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogMembership")
            .field("node", &self.config.node)
            .field("life", &self.life)
            .field("position", &self.position())
            .field("view", &self.state.view.seq)
            .finish_non_exhaustive()
    }
}

/// This node's knowledge of another, by its connection.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Peer {
    /// The life, or the visit, of a usable connection.
    connected: Option<u64>,
    /// When a beat last came.
    heard: Time,
    /// When the connection broke.
    parted: Time,
    /// The last life or visit that was heard.
    id: u64,
    position: Position,
    #[serde(skip)]
    hello: Option<Hello>,
    /// Its disk said less, when it introduced itself, than it had said before.
    #[serde(skip)]
    forgot: bool,
}

/// The newest report of a node, and the visits that are over.
#[derive(Clone, Debug)]
struct Known {
    report: Report,
    former: VecDeque<u64>,
}

/// An operator's request that waits to come true.
#[derive(Clone, Debug)]
struct Pending {
    id: u64,
    request: Request,
    until: Time,
    again: Time,
}

/// The writes of the state, and what waits for the disk.
#[derive(Debug, Default)]
struct DiskWrites {
    /// Each change must be written before anything else is said. Each write keeps how many entries of the log it has.
    schedule: Writes<usize>,
    /// The nodes that wait for this node's greeting, until the disk has it.
    greets: BTreeSet<NodeId>,
    /// To be sent when the disk has it.
    held: Vec<(NodeId, LogWord)>,
    /// To be handled then.
    inbox: VecDeque<(NodeId, Paxos)>,
}

impl DiskWrites {
    /// A new state is to be written.
    fn new(is_new: bool) -> DiskWrites {
        let mut writes = DiskWrites::default();
        if is_new {
            writes.schedule.change();
        }
        writes
    }
}

/// Random numbers from a seed (splitmix64): drawn by the process, not by the clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn visit(&mut self) -> u64 {
        self.next() | VISITS
    }
}

impl LogMembership {
    /// A service that starts now, with the disk's content.
    ///
    /// # Errors
    /// The image is damaged, or another node's.
    pub fn new(
        config: LogConfig,
        image: Option<&[u8]>,
        now: Time,
    ) -> Result<LogMembership, ImageError> {
        let mut random = Random(config.seed);
        let image = image.map(Image::decode).transpose()?;
        if let Some(i) =
            image.as_ref().filter(|i| (i.node, &i.cluster) != (config.node, &config.cluster))
        {
            return Err(ImageError::Foreign {
                node: i.node,
                cluster: i.cluster.clone(),
                me: config.node,
                ours: config.cluster.clone(),
            });
        }
        let fresh = Image {
            cluster: config.cluster.clone(),
            node: config.node,
            disk: random.next(),
            base: None,
            index: 0,
            records: Records::default(),
            witnesses: BTreeMap::new(),
        };
        let is_new = image.is_none();
        let image = image.unwrap_or(fresh);
        let mut service = LogMembership {
            disk: image.disk,
            state: image.base.clone().unwrap_or_default(),
            base: image.base,
            index: image.index,
            agreement: None,
            witnesses: image.witnesses,
            disk_writes: DiskWrites::new(is_new),
            visit: random.visit(),
            life: None,
            weight: config.weight,
            spaces: Vec::new(),
            peers: BTreeMap::new(),
            reports: BTreeMap::new(),
            reported: 0,
            next_report: 0,
            proofs: BTreeMap::new(),
            leases: Leases::new(config.lease.unwrap_or(DEFAULT_LEASE), now),
            installed: None,
            entering: None,
            halted: false,
            excluded_at: BTreeMap::new(),
            conduct: Conduct::new(now),
            fences: Fences::default(),
            requests: Vec::new(),
            address_due: now,
            changes: 0,
            looked: (0, now),
            next_beat: now,
            next_pulse: now,
            last: now,
            actions: VecDeque::new(),
            #[cfg(feature = "mutations")]
            mutation: None,
            #[cfg(feature = "mutations")]
            wall: 0,
            random,
            config,
        };
        service.vote_from(image.records, now);
        Ok(service)
    }

    fn me(&self) -> NodeId {
        self.config.node
    }

    /// Returns true if this node's disk knows of a cluster.
    fn has_begun(&self) -> bool {
        self.base.is_some()
    }

    fn is_voter(&self) -> bool {
        self.state.voters.get(&self.me()) == Some(&self.disk)
    }

    /// Returns true if this node is the only voter: then its disk is the log, and its lock on it proves that no
    /// other process uses it.
    fn is_alone(&self) -> bool {
        self.is_voter() && self.state.voters.len() == 1
    }

    fn heartbeat(&self) -> Time {
        let usual = self.config.heartbeat.unwrap_or_else(|| (self.lease() / 8).min(100 * MS));
        usual.max(MS)
    }

    fn lease(&self) -> Time {
        match self.has_begun() {
            true => self.state.lease_to_hold(),
            false => self.config.lease.unwrap_or(DEFAULT_LEASE),
        }
    }

    fn position(&self) -> Position {
        Position { config: self.state.config, index: self.index }
    }

    // Saying things.

    fn connected(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.peers.iter().filter(|(_, p)| p.connected.is_some()).map(|(n, _)| *n)
    }

    fn send(&mut self, to: NodeId, word: LogWord) {
        self.actions.push_back(Action::Send { to, vote: Vote::Log(word) });
    }

    fn send_all(&mut self, word: &LogWord) {
        let to: Vec<NodeId> = self.connected().collect();
        to.into_iter().for_each(|n| self.send(n, word.clone()));
    }

    /// Sends when the disk has all that it says.
    fn send_durable(&mut self, to: NodeId, word: LogWord) {
        self.disk_writes.held.push((to, word));
    }

    fn beat(&mut self, now: Time) {
        self.next_beat = now + (self.lease() / 4).max(1);
        let beat = LogWord::Beat { stamp: now, position: self.position() };
        self.send_all(&beat);
    }

    fn witness(&self) -> Witness {
        match &self.agreement {
            Some(agreement) => agreement.witness(&self.state, self.disk),
            None => Witness { disk: self.disk, config: self.state.config, ..Witness::default() },
        }
    }

    /// Says who this is, when the disk has all that it says.
    fn hello(&mut self, to: NodeId) {
        self.disk_writes.greets.insert(to);
    }

    fn say_hello(&mut self, to: NodeId) {
        let hello = Hello {
            cluster: if self.has_begun() { self.state.cluster } else { 0 },
            witness: self.witness(),
            recalls: self.witnesses.get(&to).copied(),
            first: self.config.first(),
        };
        self.send(to, LogWord::Hello(Box::new(hello)));
    }

    // Connections.

    fn on_connected(&mut self, now: Time, node: NodeId, id: u64, sole: bool) {
        if node == self.me() {
            return;
        }
        if sole {
            self.prove_before(node, id);
        }
        self.forget_messages(node);
        let peer = self.peers.entry(node).or_default();
        *peer = Peer { connected: Some(id), heard: now, parted: 0, id, ..Peer::default() };
        self.hello(node);
        let known: Vec<LogWord> =
            self.reports.values().map(|k| LogWord::Report(Box::new(k.report.clone()))).collect();
        known.into_iter().for_each(|word| self.send(node, word));
        let beat = LogWord::Beat { stamp: now, position: self.position() };
        self.send(node, beat);
        if let Some(agreement) = &mut self.agreement {
            agreement.reconnected(node);
        }
    }

    fn on_disconnected(&mut self, now: Time, node: NodeId) {
        self.leases.disconnected(node);
        self.forget_messages(node);
        if let Some(peer) = self.peers.get_mut(&node) {
            (peer.connected, peer.parted, peer.hello) = (None, now, None);
        }
    }

    /// Forgets the messages from and for a connection that is over. On the next one they would be out of date: the
    /// consensus takes messages of one connection for a sequence without gaps, and starts anew with each.
    fn forget_messages(&mut self, node: NodeId) {
        self.collect();
        self.disk_writes.greets.remove(&node);
        self.disk_writes.held.retain(|(to, _)| *to != node);
        self.disk_writes.inbox.retain(|(from, _)| *from != node);
    }

    /// No process of the node runs: every life handed out so far is over.
    fn on_dead(&mut self, node: NodeId) {
        if let Some(life) = self.state.life(node) {
            self.prove(node, life + 1);
        }
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.id = 0;
        }
    }

    /// A process came under `id`, and none before it runs.
    fn prove_before(&mut self, node: NodeId, id: u64) {
        let own = self.state.lives.get(&node).filter(|l| l.number == id || l.visit == id);
        let below = match own {
            Some(life) => life.number,
            None if id >= VISITS => self.state.life(node).map_or(0, |l| l + 1),
            None => id,
        };
        self.prove(node, below);
    }

    fn prove(&mut self, node: NodeId, below: u64) {
        let known = self.proofs.entry(node).or_default();
        *known = below.max(*known);
        self.changes += 1;
    }

    // Messages of others.

    fn vote(&mut self, now: Time, from: NodeId, vote: Vote) {
        let Some(id) = self.peers.get(&from).and_then(|p| p.connected) else { return };
        match vote {
            Vote::Log(word) => self.hear(now, from, id, word),
            Vote::Goodbye => self.goodbye(now, from, id),
            // Of other services.
            _ => {}
        }
    }

    fn goodbye(&mut self, now: Time, from: NodeId, id: u64) {
        // A life that says so halted first; the visit of a life that is not known yet has none.
        if id < VISITS {
            self.prove(from, id.saturating_add(1));
        }
        self.on_disconnected(now, from);
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.id = 0;
        }
        self.actions.push_back(Action::Disconnect { node: from });
    }

    fn hear(&mut self, now: Time, from: NodeId, id: u64, word: LogWord) {
        match word {
            LogWord::Beat { stamp, position } => self.beaten(now, from, id, stamp, position),
            LogWord::Echo { stamp } => self.leases.renew(from, stamp, now),
            LogWord::Hello(hello) => self.greeted(from, *hello),
            LogWord::Report(report) => self.told(from, *report),
            LogWord::Begin(state) => self.begun(now, *state),
            LogWord::Truth { state, index } => self.learn(now, *state, index),
            LogWord::Paxos { config, bytes } => self.consult(from, config, &bytes),
            LogWord::Propose(command) => self.propose(*command),
        }
    }

    fn beaten(&mut self, now: Time, from: NodeId, id: u64, stamp: Time, position: Position) {
        self.leases.beaten(from, stamp);
        if let Some(peer) = self.peers.get_mut(&from) {
            (peer.heard, peer.position) = (now, position);
        }
        self.echo(now, from, id);
        self.teach(from);
    }

    /// Prolongs a member's lease, unless this voter knows of anything against it.
    fn echo(&mut self, now: Time, node: NodeId, id: u64) {
        if !self.is_voter() || self.state.view.life(node) != Some(id) {
            return;
        }
        let excludes = |c: &Command| matches!(c, Command::Exclude { node: n, life, .. } if (*n, *life) == (node, id));
        let pending = self.agreement.as_ref().is_some_and(|a| a.has_pending(excludes));
        if pending || self.state.is_excluded(node, id) || self.state.is_over(node, id) {
            return;
        }
        if let Some(stamp) = self.leases.echo(node, id, now) {
            self.send(node, LogWord::Echo { stamp });
        }
    }

    /// Sends a node the state that it has missed and cannot learn by the consensus.
    fn teach(&mut self, node: NodeId) {
        let Some(hello) = self.peers.get(&node).and_then(|p| p.hello.as_ref()) else { return };
        let theirs = self.peers[&node].position;
        let ours = self.position();
        if !self.has_begun() || (hello.cluster != 0 && !self.may_teach(hello.cluster, theirs)) {
            return;
        }
        let votes = self.state.voters.get(&node) == Some(&hello.witness.disk);
        // A node without a vote that knows just the beginning may be the only one that knows it.
        let knows_beginning = self.is_voter() || self.index == 0;
        let (state, index) = match &self.base {
            // From the configuration's beginning, so that it votes from there.
            Some(base) if votes && theirs.config < ours.config && knows_beginning => (base, 0),
            _ if votes && theirs.config < ours.config => return,
            _ => (&self.state, ours.index),
        };
        if theirs < (Position { config: ours.config, index }) {
            let word = LogWord::Truth { state: Box::new(state.clone()), index };
            self.send_durable(node, word);
        }
    }

    /// A node of another era learns of the newer one; of another cluster, nothing.
    fn may_teach(&self, cluster: u64, theirs: Position) -> bool {
        cluster == self.state.cluster || theirs.config.era < self.state.config.era
    }

    fn greeted(&mut self, from: NodeId, hello: Hello) {
        let forgot = |recalls: &Witness| self.witness().forgot(recalls);
        if self.has_begun() && hello.recalls.as_ref().is_some_and(forgot) {
            self.take_new_disk();
        }
        let forgot = self.witnesses.get(&from).is_some_and(|once| hello.witness.forgot(once));
        if let Some(peer) = self.peers.get_mut(&from) {
            (peer.hello, peer.forgot) = (Some(hello), forgot);
        }
        self.teach(from);
    }

    /// This disk has forgotten what it once said, as an older copy has: it votes no more under its
    /// number, and the others are asked to begin a configuration with the new one.
    fn take_new_disk(&mut self) {
        if self.is_alone() {
            return;
        }
        self.base = Some(self.state.clone());
        self.agreement = None;
        self.disk = self.random.next();
        self.disk_writes.schedule.change();
        self.disk_writes.inbox.clear();
        self.disk_writes.held.clear();
        self.introduce();
    }

    /// Returns true if a voter's disk is the one that the configuration names, and has forgotten
    /// nothing.
    fn is_trusted(&self, node: NodeId) -> bool {
        let Some(peer) = self.peers.get(&node).filter(|p| !p.forgot) else { return false };
        peer.hello.as_ref().is_some_and(|hello| {
            self.state.voters.get(&node) == Some(&hello.witness.disk)
                && hello.cluster == self.state.cluster
        })
    }

    fn told(&mut self, from: NodeId, report: Report) {
        if report.node == self.me() {
            return;
        }
        let direct = report.node == from;
        let known = self.reports.contains_key(&report.node);
        if !known && !direct && self.reports.len() >= MAX_NODES {
            return;
        }
        let newer = match self.reports.get(&report.node) {
            None => true,
            Some(k) if k.report.visit == report.visit => report.number > k.report.number,
            // A node speaks for itself; others may repeat an older state, of a visit before this node began, too.
            Some(_) if direct => true,
            Some(Known { report: Report { life: Some(known), .. }, .. })
                if report.life.is_some() =>
            {
                report.life > Some(*known)
            }
            Some(k) => !k.former.contains(&report.visit),
        };
        if !newer {
            return;
        }
        let mut former = self.reports.remove(&report.node).map_or_else(VecDeque::new, |k| {
            let mut former = k.former;
            if k.report.visit != report.visit {
                former.push_back(k.report.visit);
            }
            former
        });
        former.retain(|v| *v != report.visit);
        while former.len() > VISITS_KEPT {
            former.pop_front();
        }
        let word = LogWord::Report(Box::new(report.clone()));
        let node = report.node;
        self.reports.insert(node, Known { report, former });
        self.conduct.links_may_differ();
        self.changes += 1;
        let to: Vec<NodeId> = self.connected().filter(|n| *n != from && *n != node).collect();
        to.into_iter().for_each(|n| self.send(n, word.clone()));
    }

    fn consult(&mut self, from: NodeId, config: ConfigId, bytes: &[u8]) {
        if config != self.state.config || self.agreement.is_none() || !self.is_trusted(from) {
            return;
        }
        let Ok(message) = postcard::from_bytes::<Paxos>(bytes) else { return };
        // A message from or to the wrong node is ignored.
        if (message.get_sender(), message.get_receiver())
            != (agree::pid(from), agree::pid(self.me()))
        {
            return;
        }
        if self.disk_writes.inbox.len() < MOST_WAITING {
            self.disk_writes.inbox.push_back((from, message));
        }
    }

    // Beginning.

    /// Begins the cluster when all listed nodes are here and none has a state.
    fn begin(&mut self, now: Time) {
        if self.has_begun() || !self.config.nodes.contains_key(&self.me()) {
            return;
        }
        let first = self.config.first();
        let mut disks = BTreeMap::from([(self.me(), self.disk)]);
        for node in first.nodes.keys().filter(|n| **n != self.me()) {
            let hello = self.peers.get(node).and_then(|p| p.hello.as_ref());
            let Some(hello) = hello.filter(|h| h.cluster == 0 && h.first == first) else { return };
            disks.insert(*node, hello.witness.disk);
        }
        let state = self.first_state(&first, disks);
        let word = LogWord::Begin(Box::new(state.clone()));
        self.adopt(now, state, 0);
        let to: Vec<NodeId> = self.connected().collect();
        to.into_iter().for_each(|n| self.send_durable(n, word.clone()));
    }

    /// The state that all nodes of a list begin with: the same for all.
    fn first_state(&self, first: &First, disks: BTreeMap<NodeId, u64>) -> ClusterState {
        use std::hash::{Hash as _, Hasher as _};
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        (&self.config.cluster, first, &disks).hash(&mut hash);
        let marked = |n: &NodeId| first.nodes.get(n).is_some_and(|e| e.voter);
        let voters: BTreeMap<NodeId, u64> =
            disks.into_iter().filter(|(n, _)| marked(n)).take(MAX_VOTERS).collect();
        let mut nodes = first.nodes.clone();
        nodes.iter_mut().for_each(|(n, e)| e.voter = voters.contains_key(n));
        ClusterState::first(hash.finish().max(1), nodes, voters, first.keys.clone())
    }

    /// Another node has seen that nobody has a state.
    fn begun(&mut self, now: Time, state: ClusterState) {
        let own = state.voters.get(&self.me()).is_none_or(|disk| *disk == self.disk);
        let first = self.config.first();
        let listed =
            first.nodes.keys().eq(state.nodes.keys()) && Some(&first.keys) == state.keys.as_ref();
        if !self.has_begun() && own && listed && state.config.number == 1 && state.is_sane() {
            self.adopt(now, state, 0);
        }
    }

    /// Takes what another node knows, if it is newer.
    fn learn(&mut self, now: Time, state: ClusterState, index: u64) {
        let newer = Position { config: state.config, index } > self.position();
        let same = !self.has_begun() || state.cluster == self.state.cluster;
        let later = state.config.era > self.state.config.era;
        if !newer || !(same || later) || !state.is_sane() || index > MOST_COMMANDS {
            return;
        }
        if self.agreement.is_some() && state.config == self.state.config {
            // A voter that the leader does not reach: its own log follows when it can.
            (self.state, self.index) = (state, index);
            self.changes += 1;
            self.look(now);
        } else if state.voters.get(&self.me()) != Some(&self.disk) || index == 0 {
            self.adopt(now, state, index);
        }
    }

    /// Goes on from this state, as a voter if its configuration says so.
    fn adopt(&mut self, now: Time, state: ClusterState, index: u64) {
        self.base = Some(state.clone());
        self.state = state;
        self.index = index;
        self.disk_writes.inbox.clear();
        self.disk_writes.schedule.change();
        self.vote_from(Records::default(), now);
        self.introduce();
        self.tell_nodes();
        self.look(now);
    }

    /// Says anew who this is, to all.
    fn introduce(&mut self) {
        let to: Vec<NodeId> = self.connected().collect();
        to.into_iter().for_each(|n| self.hello(n));
    }

    /// Votes with these records, if this node votes.
    fn vote_from(&mut self, records: Records, now: Time) {
        self.agreement = None;
        self.conduct.forget(now);
        if self.has_begun() && self.is_voter() {
            let mut agreement = Agreement::new(&self.state, self.me(), records);
            for node in self.connected() {
                agreement.reconnected(node);
            }
            self.agreement = Some(agreement);
        }
        self.note_exclusions(now);
    }

    // The log.

    fn propose(&mut self, command: Command) {
        match &mut self.agreement {
            Some(agreement) => agreement.propose(command),
            None => {
                let voter = self.connected().find(|n| self.state.voters.contains_key(n));
                if let Some(voter) = voter {
                    self.send(voter, LogWord::Propose(Box::new(command)));
                }
            }
        }
    }

    /// Handles input of the consensus, has changes written, and sends durable messages.
    fn turn(&mut self, now: Time) {
        while self.disk_writes.schedule.is_idle() {
            self.apply_decided(now);
            if let Some(agreement) = &self.agreement
                && agreement.take_dirty()
            {
                self.disk_writes.schedule.change();
            }
            self.collect();
            if !self.disk_writes.schedule.is_idle() {
                break;
            }
            let Some((from, message)) = self.disk_writes.inbox.pop_front() else { break };
            let hello = self.peers.get(&from).and_then(|p| p.hello.as_ref());
            let disk = hello.map(|h| h.witness.disk);
            if let Some(disk) = disk {
                let config = self.state.config;
                let witness = self.witnesses.entry(from).or_default();
                if (witness.disk, witness.config) != (disk, config) {
                    *witness = Witness { disk, config, ..Witness::default() };
                }
                note(witness, &message);
            }
            if let Some(agreement) = &mut self.agreement {
                agreement.handle(message);
                if let Some(witness) =
                    self.witnesses.get_mut(&from).filter(|w| Some(w.disk) == disk)
                {
                    agreement.note_leader(from, witness);
                }
            }
        }
        self.write(now);
        if self.disk_writes.schedule.is_idle() || mutated!(self, SendsBeforeDisk) {
            let greets = std::mem::take(&mut self.disk_writes.greets);
            greets.into_iter().for_each(|to| self.say_hello(to));
            let held = std::mem::take(&mut self.disk_writes.held);
            held.into_iter().for_each(|(to, word)| self.send(to, word));
        }
    }

    /// Moves out the messages of the consensus.
    fn collect(&mut self) {
        let Some(agreement) = &mut self.agreement else { return };
        let config = self.state.config;
        for message in agreement.take_messages() {
            let to = message.get_receiver().checked_sub(1).and_then(|n| u32::try_from(n).ok());
            if let (Some(to), Ok(bytes)) = (to, postcard::to_allocvec(&message)) {
                self.disk_writes.held.push((NodeId(to), LogWord::Paxos { config, bytes }));
            }
        }
    }

    fn write(&mut self, now: Time) {
        if !self.disk_writes.schedule.is_due(now) {
            return;
        }
        let records = self.agreement.as_ref().map(Agreement::records).unwrap_or_default();
        let number = self.disk_writes.schedule.begin(records.len());
        let image = Image {
            cluster: self.config.cluster.clone(),
            node: self.me(),
            disk: self.disk,
            base: self.base.clone(),
            index: if self.agreement.is_some() { 0 } else { self.index },
            records,
            witnesses: self.witnesses.clone(),
        };
        self.actions.push_back(Action::Persist { number, image: image.encode() });
    }

    fn persisted(&mut self, now: Time, number: u64, success: bool) {
        let again = now + WRITE_AGAIN * self.heartbeat();
        let ended = self.disk_writes.schedule.end(number, success, again);
        if let Some(entries) = ended.filter(|_| success)
            && let Some(agreement) = &mut self.agreement
        {
            agreement.written(entries);
        }
    }

    fn apply_decided(&mut self, now: Time) {
        loop {
            let Some(agreement) = &mut self.agreement else { return };
            let decided = agreement.take_decided();
            if decided.is_empty() {
                return;
            }
            let voted_for = self.state.config;
            let first = agreement.taken() - decided.len() as u64;
            self.collect();
            for (at, command) in (first..).zip(decided) {
                // Others may have reported its effect already.
                if at >= self.index && self.state.config == voted_for {
                    self.index = at + 1;
                    if self.apply_command(&command) {
                        self.applied(now, &command);
                    }
                }
            }
            if self.state.config != voted_for {
                self.next_configuration(now);
            }
            self.look(now);
        }
    }

    fn apply_command(&mut self, command: &Command) -> bool {
        self.changes += 1;
        #[cfg(feature = "mutations")]
        if self.mutation.is_some() {
            return self.apply_mutated(command);
        }
        self.state.apply(command)
    }

    /// The configuration was sealed: the next one begins with its result.
    fn next_configuration(&mut self, now: Time) {
        self.base = Some(self.state.clone());
        self.index = 0;
        self.disk_writes.inbox.clear();
        self.disk_writes.schedule.change();
        self.vote_from(Records::default(), now);
        let to: Vec<NodeId> = self.connected().collect();
        to.into_iter().for_each(|n| self.teach(n));
    }

    fn applied(&mut self, now: Time, command: &Command) {
        match command {
            Command::Node { .. } => self.tell_nodes(),
            Command::Exclude { .. } => self.note_exclusions(now),
            Command::ChangeLease { .. } | Command::SettleLease { .. } => {
                self.next_beat = self.next_beat.min(now);
            }
            _ => {}
        }
    }

    fn tell_nodes(&mut self) {
        self.actions.push_back(Action::Nodes(self.state.nodes.clone()));
    }

    fn note_exclusions(&mut self, now: Time) {
        let excluded: BTreeMap<(NodeId, u64), Time> = self
            .state
            .excluded
            .iter()
            .map(|(node, e)| (*node, e.life))
            .map(|key| (key, self.excluded_at.get(&key).copied().unwrap_or(now)))
            .collect();
        self.excluded_at = excluded;
    }

    // This node's part.

    /// Acts on the state's changes that concern this node.
    fn look(&mut self, now: Time) {
        let own = self.config.lease.unwrap_or(DEFAULT_LEASE);
        let lease = if mutated!(self, OwnLease) { own } else { self.state.lease_to_hold() };
        self.leases.set_lease(lease);
        self.conduct.links_may_differ();
        self.note_exclusions(now);
        let me = self.me();
        if let Some(life) = self.life {
            let newest = self.state.life(me);
            if self.state.is_excluded(me, life) {
                let why = self.state.excluded[&me].why;
                self.halt(Halt::Excluded(why));
            } else if newest.is_some_and(|l| l > life) || self.state.is_over(me, life) {
                self.halt(Halt::LeftBehind);
            }
        } else if let Some(l) = self.state.lives.get(&me).filter(|l| l.visit == self.visit) {
            self.live(l.number);
        }
        self.follow_view(now);
        // A node that does not vote, or that the leader does not reach, learns at once, not with the next beat.
        if self.agreement.as_ref().is_some_and(Agreement::leads) {
            let learners: Vec<NodeId> = self.connected().filter(|n| !self.is_trusted(*n)).collect();
            learners.into_iter().for_each(|n| self.teach(n));
        }
    }

    /// The log has handed out a life: every connection is made anew under it.
    fn live(&mut self, life: u64) {
        self.life = Some(life);
        self.leases.reborn();
        for peer in self.peers.values_mut() {
            (peer.connected, peer.hello, peer.parted) = (None, None, self.last);
        }
        self.actions.push_back(Action::Reconnect);
    }

    fn follow_view(&mut self, now: Time) {
        let view = &self.state.view;
        let Some(life) = self.life else { return };
        if view.life(self.me()) != Some(life) {
            self.entering = None;
            if self.installed.is_some() {
                self.halt(Halt::LeftBehind);
            }
            return;
        }
        if self.installed.as_ref().is_none_or(|v| v.seq < view.seq) {
            self.entering = Some(view.clone());
        }
        // Members wait for echoes of all voters that know them now.
        self.beat(now);
        let members: Vec<(NodeId, u64)> =
            self.state.view.members.iter().map(|m| (m.node, m.incarnation)).collect();
        for (node, life) in members {
            if self.peers.get(&node).is_some_and(|p| p.connected == Some(life)) {
                self.echo(now, node, life);
            }
        }
    }

    fn newest_view(&self) -> Option<NodeView> {
        (!self.state.view.members.is_empty()).then(|| self.state.view.clone())
    }

    /// When the lease ends that a member has; `None`: it needs nobody.
    fn end_of_lease(&self) -> Option<Time> {
        self.leases.end(self.me(), self.state.voters.keys().map(|n| (*n, 1)))
    }

    fn try_install(&mut self, now: Time) {
        if self.halted || self.end_of_lease().is_some_and(|end| now >= end) {
            return;
        }
        if let Some(view) = self.entering.take() {
            self.installed = Some(view.clone());
            self.fences.clear();
            self.actions.push_back(Action::Install(view));
        }
    }

    fn halt(&mut self, why: Halt) {
        if self.halted {
            return;
        }
        self.halted = true;
        (self.installed, self.entering) = (None, None);
        self.actions.push_back(Action::Halt(why));
    }

    /// The host has halted all lockspaces and closed all connections: another visit begins.
    fn reborn(&mut self) {
        self.halted = false;
        self.life = None;
        self.visit = self.random.visit();
        self.spaces.clear();
        self.leases.reborn();
        for peer in self.peers.values_mut() {
            (peer.connected, peer.hello, peer.parted) = (None, None, self.last);
        }
    }

    /// Whom this node reaches now, by the life or the visit.
    fn reaches(&self, now: Time) -> impl Iterator<Item = (NodeId, u64)> + '_ {
        let lease = self.lease();
        // A broken connection is made again at once, if it can be.
        let reaches = move |p: &Peer| {
            let silent = now >= p.heard.saturating_add(lease);
            let parted = p.connected.is_none() && now >= p.parted.saturating_add(lease / 4);
            p.id != 0 && !silent && !parted
        };
        self.peers.iter().filter(move |(_, p)| reaches(p)).map(|(n, p)| (*n, p.id))
    }

    fn reach(&self, now: Time) -> BTreeMap<NodeId, u64> {
        self.reaches(now).collect()
    }

    /// Reports this node's state to all, if it has changed.
    fn report(&mut self, now: Time) {
        let known = self.reports.get(&self.me()).filter(|k| self.is_true_of(&k.report, now));
        if known.is_some() && now < self.next_report {
            return;
        }
        // It is repeated: a node may have taken an older one for it, which a third node passed on.
        self.next_report = now + self.lease();
        let report = match known {
            Some(known) => known.report.clone(),
            None => {
                self.reported += 1;
                self.conduct.links_may_differ();
                self.new_report(now)
            }
        };
        let word = LogWord::Report(Box::new(report.clone()));
        self.reports.insert(self.me(), Known { report, former: VecDeque::new() });
        self.send_all(&word);
    }

    fn new_report(&self, now: Time) -> Report {
        Report {
            node: self.me(),
            visit: self.visit,
            number: self.reported,
            life: self.life,
            asks: self.asks(),
            weight: self.weight,
            spaces: self.spaces.clone(),
            reach: self.reaches(now).collect(),
            proofs: self.proofs.clone(),
            config: self.state.config,
            keys: self.state.keys_version,
        }
    }

    /// Returns true if this node would report the same now.
    fn is_true_of(&self, report: &Report, now: Time) -> bool {
        let Report {
            node,
            visit,
            number: _,
            life,
            asks,
            weight,
            spaces,
            reach,
            proofs,
            config,
            keys,
        } = report;
        (*node, *visit, *life) == (self.me(), self.visit, self.life)
            && (*weight, *config, *keys)
                == (self.weight, self.state.config, self.state.keys_version)
            && (spaces, proofs) == (&self.spaces, &self.proofs)
            && *asks == self.asks()
            && reach.iter().map(|(node, id)| (*node, *id)).eq(self.reaches(now))
    }

    /// Returns true if this node wants a life. A node whose file contradicts the cluster does not
    /// join.
    fn asks(&self) -> bool {
        self.life.is_none() && !self.halted && self.has_begun() && self.contradiction().is_none()
    }

    /// Which key of this node's file differs from the cluster's.
    fn contradiction(&self) -> Option<String> {
        let keys = self.state.keys.as_ref()?;
        let millis = |t: Time| format!("{} ms", t / MS);
        let differs = |key: &str, ours: String, theirs: String| {
            Some(format!(
                "this node does not join: its file says {key} = {ours} and the cluster has {theirs}; \
                 correct the file, or change the cluster with `lockify cluster set {key} VALUE`"
            ))
        };
        let known = |lease: &Time| *lease == keys.lease || Some(*lease) == self.state.next_lease;
        if let Some(lease) = self.config.lease.filter(|l| !known(l)) {
            return differs("lease", millis(lease), millis(keys.lease));
        }
        if let Some(fence) = self.config.fence.filter(|f| *f != keys.fence) {
            return differs("fence", fence.name().into(), keys.fence.name().into());
        }
        // A lone node has nobody who could have another number.
        if self.config.shards != keys.shards && !self.is_alone() {
            return Some(format!(
                "this node does not join: its file says shards = {} and the cluster has {}; all nodes \
                 have the same number: correct the file",
                self.config.shards, keys.shards
            ));
        }
        if !self.state.nodes.contains_key(&self.me()) {
            return Some(format!(
                "this node does not join: the cluster has no node {}; add it with `lockify cluster join \
                 {} HOST:PORT` on a member",
                self.me(),
                self.me()
            ));
        }
        None
    }

    fn tick(&mut self, now: Time) {
        if now >= self.next_beat {
            self.beat(now);
        }
        if now >= self.next_pulse {
            self.next_pulse = now + self.heartbeat();
            if self.disk_writes.schedule.is_idle()
                && let Some(agreement) = &mut self.agreement
            {
                agreement.tick();
            }
            self.close_silent(now);
        }
    }

    /// A connection on which nothing comes may be of no use.
    fn close_silent(&mut self, now: Time) {
        let lease = self.lease();
        let silent = |p: &Peer| p.connected.is_some() && now >= p.heard.saturating_add(2 * lease);
        let silent: Vec<NodeId> =
            self.peers.iter().filter(|(_, p)| silent(p)).map(|(n, _)| *n).collect();
        for node in silent {
            self.on_disconnected(now, node);
            self.actions.push_back(Action::Disconnect { node });
        }
    }

    // Operators.

    fn request(&mut self, now: Time, id: u64, request: Request) {
        if let Err(why) = self.check(&request) {
            return self.actions.push_back(Action::Answer { id, result: Err(why) });
        }
        if request == Request::Recover {
            let result = self.recover(now);
            return self.actions.push_back(Action::Answer { id, result });
        }
        let until = now + 8 * self.state.lease_to_wait().max(1_000 * MS);
        self.requests.push(Pending { id, request, until, again: now });
    }

    fn check(&self, request: &Request) -> Result<(), String> {
        let text = |why: &str| Err(why.to_owned());
        if !self.has_begun() && *request != Request::Recover {
            return text(
                "this node does not know the cluster yet; ask a member, or wait until it has joined",
            );
        }
        match request {
            Request::Join { node, entry } => {
                let taken = |(n, e): (&NodeId, &NodeEntry)| n != node && e.address == entry.address;
                match self.state.nodes.iter().find(|(n, e)| taken((n, e))) {
                    Some((n, e)) => Err(format!(
                        "node {n} has the address {} already: give each its own",
                        e.address
                    )),
                    None if self.state.nodes.len() >= MAX_NODES => text("1024 nodes are the most"),
                    None => Ok(()),
                }
            }
            Request::Leave { node } if !self.state.nodes.contains_key(node) => {
                Err(format!("the cluster has no node {node}: `lockify cluster status` lists them"))
            }
            Request::Leave { node } if self.state.voters.keys().eq([node]) => {
                Err(format!("node {node} is the only voter: join another one first"))
            }
            Request::Lease(lease) if !(10 * MS..=3_600_000 * MS).contains(lease) => {
                Err(format!("a lease of {} ms: it is between 10 ms and 1 h", lease / MS))
            }
            Request::Lease(_) if self.state.next_lease.is_some() => text(
                "the lease is being changed: wait until every member knows (`lockify cluster status`)",
            ),
            _ => Ok(()),
        }
    }

    /// Returns true if the state already has the requested change.
    fn is_true(&self, request: &Request) -> bool {
        match request {
            Request::Join { node, entry } => {
                self.state.nodes.get(node).is_some_and(|e| e.address == entry.address)
            }
            Request::Leave { node } => {
                !self.state.nodes.contains_key(node) && !self.state.voters.contains_key(node)
            }
            Request::Lease(lease) => {
                self.state.next_lease.is_none()
                    && self.state.keys.as_ref().is_some_and(|k| k.lease == *lease)
            }
            Request::Fence(fence) => self.state.fence() == *fence,
            Request::Recover => true,
        }
    }

    fn pursue_requests(&mut self, now: Time) {
        for mut pending in std::mem::take(&mut self.requests) {
            if self.is_true(&pending.request) {
                let result = Ok(self.done(&pending.request));
                self.actions.push_back(Action::Answer { id: pending.id, result });
                continue;
            }
            if now >= pending.until {
                let why = "the voters did not agree in time; it may still come true: see `lockify cluster \
                           status`, and whether a majority of the voters runs";
                self.actions.push_back(Action::Answer { id: pending.id, result: Err(why.into()) });
                continue;
            }
            if now >= pending.again {
                pending.again = now + 4 * self.heartbeat();
                self.propose(command_of(&pending.request));
            }
            self.requests.push(pending);
        }
    }

    /// A node that has moved says so itself: safety does not rest on where it is reached.
    fn correct_address(&mut self, now: Time) {
        let Some(own) = self.config.nodes.get(&self.me()) else { return };
        let Some(known) = self.state.nodes.get(&self.me()) else { return };
        if self.life.is_none() || known.address == own.address || now < self.address_due {
            return;
        }
        let entry = NodeEntry { address: own.address.clone(), voter: known.voter };
        self.address_due = now + 8 * self.heartbeat();
        self.propose(Command::Node { node: self.me(), entry: Some(entry) });
    }

    fn done(&self, request: &Request) -> String {
        match request {
            Request::Join { node, entry } => {
                format!("node {node} at {} belongs to the cluster", entry.address)
            }
            Request::Leave { node } => {
                format!("node {node} does not belong to the cluster any more")
            }
            Request::Lease(lease) => {
                format!("the lease is {} ms on every member; correct the files, too", lease / MS)
            }
            Request::Fence(fence) => {
                format!("recovery waits for {:?}; correct the files, too", fence.name())
            }
            Request::Recover => "a new era has begun".into(),
        }
    }

    /// Begins a new era with this node as the only voter.
    fn recover(&mut self, now: Time) -> Result<String, String> {
        if self.agreement.as_ref().is_some_and(|a| a.leader().is_some()) && self.sees_majority(now)
        {
            return Err(
                "a majority of the voters is here, with its disks: nothing is to be recovered"
                    .into(),
            );
        }
        let first = self.config.first();
        let cluster = self.random.next().max(1);
        let state = match self.has_begun() {
            true => self.state.recovered(cluster, self.me(), self.disk),
            false => {
                let disks = BTreeMap::from([(self.me(), self.disk)]);
                let mut state = self.first_state(&first, disks);
                (state.nodes, state.cluster) = (first.nodes.clone(), cluster);
                state.recovered(cluster, self.me(), self.disk)
            }
        };
        let state = state.ok_or("no era is left: token numbers are used up")?;
        let era = state.config.era;
        if self.installed.is_some() || self.life.is_some() {
            self.halt(Halt::LeftBehind);
        }
        self.adopt(now, state, 0);
        Ok(format!(
            "era {era} has begun on node {}: start the other nodes, which join it",
            self.me()
        ))
    }

    fn sees_majority(&self, now: Time) -> bool {
        let reach = self.reach(now);
        let here = |n: &&NodeId| match **n == self.me() {
            true => self.is_voter(),
            false => reach.contains_key(n) && self.is_trusted(**n),
        };
        self.state.is_majority(self.state.voters.keys().filter(here).count())
    }
}

fn command_of(request: &Request) -> Command {
    match request {
        Request::Join { node, entry } => Command::Node { node: *node, entry: Some(entry.clone()) },
        Request::Leave { node } => Command::Node { node: *node, entry: None },
        Request::Lease(lease) => Command::ChangeLease { lease: *lease },
        Request::Fence(fence) => Command::ChangeFence { fence: *fence },
        // Not a command of any log: it begins one.
        Request::Recover => Command::SettleLease { keys: 0 },
    }
}

impl Membership for LogMembership {
    // The time of day has no part in anything.
    #[cfg_attr(not(feature = "mutations"), expect(unused_variables))]
    fn handle(&mut self, now: Time, wall: u64, event: Event) {
        #[cfg(feature = "mutations")]
        self.note_wall(wall);
        if self.installed.is_some() && self.end_of_lease().is_some_and(|end| now >= end) {
            self.halt(Halt::Lease);
        }
        self.last = now;
        let is_usual = is_usual(&event);
        match event {
            Event::Vote { .. } if self.halted => {}
            Event::Connected { node, life, sole } => self.on_connected(now, node, life, sole),
            Event::Disconnected { node } => self.on_disconnected(now, node),
            Event::Dead { node } => self.on_dead(node),
            Event::Vote { from, vote } => self.vote(now, from, vote),
            Event::Spaces(mut spaces) => {
                spaces.sort_by(|a, b| a.name.cmp(&b.name));
                self.spaces = spaces;
            }
            Event::Reborn { .. } => self.reborn(),
            // There is no cluster manager.
            Event::Cluster(_) => {}
            Event::Fenced { node, success } => self.fences.ended(node, success, now),
            Event::Persisted { number, success } => self.persisted(now, number, success),
            Event::Request { id, request } => self.request(now, id, request),
            Event::Tick => {}
        }
        self.tick(now);
        self.begin(now);
        self.turn(now);
        if !self.halted {
            if !is_usual || self.looked.0 != self.changes || now >= self.looked.1 {
                self.report(now);
                self.lead(now);
                self.looked = (self.changes, now + self.heartbeat() / 4);
            }
            self.pursue_requests(now);
            self.correct_address(now);
            // The latest proposals.
            self.turn(now);
        }
        self.try_install(now);
    }

    fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn next_timer(&self) -> Time {
        // A node without peers and without waits sleeps.
        let settled = self.installed.is_some() && self.installed == self.newest_view();
        let rests = self.is_alone() && self.peers.is_empty() && settled;
        if rests && self.requests.is_empty() && self.disk_writes.schedule.is_idle() {
            return self.fences.next(self.last);
        }
        let mut next = self.next_beat.min(self.next_pulse);
        next = next.min(self.fences.next(self.last));
        if self.installed.is_some() {
            next = next.min(self.end_of_lease().unwrap_or(Time::MAX));
        }
        next
    }

    fn lease_end(&self) -> Option<Time> {
        self.installed.as_ref()?;
        self.end_of_lease()
    }

    fn view(&self) -> Option<&NodeView> {
        self.installed.as_ref()
    }

    fn identity(&self) -> u64 {
        self.life.unwrap_or(self.visit)
    }

    fn standing(&self) -> Standing {
        Standing {
            service: "log".into(),
            quorate: None,
            fence: self.state.fence(),
            waits: self.waits(),
        }
    }

    fn unfenced(&self) -> Vec<NodeId> {
        let gone = self.state.excluded.iter().filter(|(n, e)| !self.state.is_over(**n, e.life));
        gone.map(|(n, _)| *n).collect()
    }

    fn cluster(&self) -> Option<&ClusterState> {
        self.has_begun().then_some(&self.state)
    }

    fn image(&self) -> Result<MembershipImage, String> {
        if !self.is_alone() && self.state.fence() == FenceKind::None {
            return Err("fence = \"none\" lets the other nodes take the locks at once".into());
        }
        if !self.fences.is_empty() {
            return Err("a fencing agent runs".into());
        }
        if !self.disk_writes.schedule.is_idle() || self.halted || !self.actions.is_empty() {
            return Err("its state is being written".into());
        }
        Ok(MembershipImage(Service::Log(Box::new(self.keep()))))
    }
}

/// The state for the next program. The log itself is on the disk, and here once more.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Kept {
    config: LogConfig,
    image: Vec<u8>,
    random: u64,
    visit: u64,
    life: Option<u64>,
    spaces: Vec<SpaceJoin>,
    peers: BTreeMap<NodeId, Peer>,
    reported: u64,
    proofs: BTreeMap<NodeId, u64>,
    leases: Leases,
    installed: Option<NodeView>,
    entering: Option<NodeView>,
    excluded_at: Vec<((NodeId, u64), Time)>,
    last: Time,
    writes: u64,
}

impl LogMembership {
    fn keep(&self) -> Kept {
        let image = Image {
            cluster: self.config.cluster.clone(),
            node: self.me(),
            disk: self.disk,
            base: self.base.clone(),
            index: if self.agreement.is_some() { 0 } else { self.index },
            records: self.agreement.as_ref().map(Agreement::records).unwrap_or_default(),
            witnesses: self.witnesses.clone(),
        };
        Kept {
            config: self.config.clone(),
            image: image.encode(),
            random: self.random.0,
            visit: self.visit,
            life: self.life,
            spaces: self.spaces.clone(),
            peers: self.peers.clone(),
            reported: self.reported,
            proofs: self.proofs.clone(),
            leases: self.leases.clone(),
            installed: self.installed.clone(),
            entering: self.entering.clone(),
            excluded_at: self.excluded_at.iter().map(|(k, t)| (*k, *t)).collect(),
            last: self.last,
            writes: self.disk_writes.schedule.number(),
        }
    }

    /// Goes on as the service of another program.
    ///
    /// # Errors
    /// The image is not this release's.
    pub(crate) fn go_on(kept: Kept) -> Result<LogMembership, ImageError> {
        let seed = LogConfig { seed: kept.random, ..kept.config };
        let mut service = LogMembership::new(seed, Some(&kept.image), kept.last)?;
        service.visit = kept.visit;
        service.life = kept.life;
        service.spaces = kept.spaces;
        service.peers = kept.peers;
        service.reported = kept.reported;
        service.proofs = kept.proofs;
        service.leases = kept.leases;
        service.installed = kept.installed;
        service.entering = kept.entering;
        service.excluded_at = kept.excluded_at.into_iter().collect();
        service.disk_writes.schedule.go_on(kept.writes);
        // Decided entries are in the records; the view that they lead to holds already.
        if let Some(agreement) = &mut service.agreement {
            for command in agreement.take_decided() {
                service.state.apply(&command);
            }
            service.index = agreement.taken();
        }
        Ok(service)
    }

    /// For the status: what keeps this node, or others, out.
    fn waits(&self) -> Vec<String> {
        let mut waits = self.fences.waits(self.last);
        if !self.has_begun() {
            waits.extend(self.waits_to_begin());
            return waits;
        }
        waits.extend(self.contradiction());
        if self.disk_writes.schedule.again().is_some() {
            waits.push("a write of state_dir, which failed: see the log".into());
        }
        if !self.sees_majority(self.last) {
            waits.push(self.waits_for_quorum());
        }
        for (node, e) in &self.state.excluded {
            if !self.state.is_over(*node, e.life) {
                waits.push(format!("the end of node {node}'s lease ({})", e.why));
            }
        }
        for node in self.state.nodes.keys() {
            if self.state.view.life(*node).is_none() {
                waits.push(format!(
                    "node {node}, which is out: {}",
                    self.absence(*node).text("node")
                ));
            }
        }
        waits
    }

    fn waits_to_begin(&self) -> Vec<String> {
        let first = self.config.first();
        let others = first.nodes.keys().filter(|n| **n != self.me());
        let wait = |node: &NodeId| {
            let peer = self.peers.get(node);
            match peer.and_then(|p| p.hello.as_ref()) {
                None => Some(format!(
                    "node {node}: a new cluster begins when all listed nodes are there (or with `lockify \
                     cluster recover` on one of them)"
                )),
                Some(h) if h.cluster != 0 => Some(format!(
                    "what node {node} knows of the cluster, and a majority of its voters"
                )),
                Some(h) if h.first != first => Some(contrast(*node, &first, &h.first)),
                Some(_) => None,
            }
        };
        others.filter_map(wait).collect()
    }

    fn waits_for_quorum(&self) -> String {
        let missing = self.lacking_voters().into_iter().map(|(n, lack)| match lack {
            Lack::Unreached => format!("node {n} is not reached"),
            _ => format!("node {n} has lost its state, or has that of another cluster"),
        });
        format!("a majority of the voters: {}", missing.collect::<Vec<_>>().join(", "))
    }
}

/// How another node's file differs from this one's.
fn contrast(node: NodeId, ours: &First, theirs: &First) -> String {
    let what = if ours.nodes != theirs.nodes {
        "another list of nodes".to_owned()
    } else if ours.keys.lease != theirs.keys.lease {
        format!("lease = {} ms, and this node {} ms", theirs.keys.lease / MS, ours.keys.lease / MS)
    } else if ours.keys.fence != theirs.keys.fence {
        format!(
            "fence = {:?}, and this node {:?}",
            theirs.keys.fence.name(),
            ours.keys.fence.name()
        )
    } else {
        format!("shards = {}, and this node {}", theirs.keys.shards, ours.keys.shards)
    };
    format!("node {node}, whose file has {what}: give all nodes the same")
}

/// Returns true if an event is one of the frequent ones that mostly change nothing.
fn is_usual(event: &Event) -> bool {
    let Event::Vote { vote: Vote::Log(word), .. } = event else { return false };
    matches!(word, LogWord::Beat { .. } | LogWord::Echo { .. } | LogWord::Paxos { .. })
}

/// Nodes as a set.
fn set(nodes: impl Iterator<Item = NodeId>) -> BTreeSet<NodeId> {
    nodes.collect()
}

#[cfg(test)]
mod tests;
