//! Membership by corosync: its process groups give the members and one order of messages, and its
//! quorum service says which of them may continue.
//!
//! **How it works.** Each shard's processes are a group. Whenever the group or what a member knows
//! changes, the members report to it: their life, their lockspaces, whom they are connected to.
//! When all have reported, the lowest of those in the newest view proposes the next one, every
//! member accepts or refuses, and the view holds when the last acceptance is delivered. Proposal
//! and acceptances are messages of the group, which corosync delivers to all of a ring in one order
//! with the changes of the group: so all members see the same proposals, void or not, and the view
//! begins for all at the same place. A ring without quorum agrees on nothing.
//!
//! **Numbers.** Lives and views are counted, and no clock has a part in that. Each node keeps on its
//! disk the largest numbers that it knows (see `memory`). A process has no life until enough nodes
//! have reported the lives of it that they remember. A view's number is one above every number that
//! a member has accepted, and a member's disk has the number before it accepts. A refused proposal
//! gives its number back.
//!
//! A member may have seen an acceptance that others did not before the ring broke, and be alone in
//! a view. It can do nothing there: every member takes part in recovering a view.
//!
//! **A lost quorum**, a lost corosync daemon or a view without this node halt it at once.
//! [`FenceKind`] decides about the lives that a new view leaves behind:
//! - `Lease`: as with a [log](super::LogMembership): a node acts only while nodes with a
//!   majority of the votes of corosync's node list echo its beats, and is left behind two leases
//!   after the last echo. Beats go over the nodes' own connections, not through corosync, which
//!   says nothing while it forms a ring. A node echoes who is in its group and in the view that it
//!   accepted.
//! - `Command`: the proposer has an agent run for every node left behind, and waits for it.
//! - `None`: nothing is waited for.
//!
//! No waiting is needed for a life that is known to be over: its process said goodbye (also when it
//! lost its quorum), or a later life of the same process has reported. Unless an agent is wanted,
//! corosync's word that the process has ended is enough, and so is a new process of the node: it
//! listens where the former one did. A process that becomes another program has said so before, and
//! is waited for (see `restart`).

mod decide;
#[cfg(feature = "mutations")]
mod defects;
mod memory;
mod restart;
mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lockify_core::{Member, NodeId, Time};
use lockify_corosync::{Event as Said, Process, Reason, RingId};
use serde::{Deserialize, Serialize};

use self::memory::{DiskWrites, Image, Memory, Record};
pub(crate) use self::memory::{MAGIC, highest_view};
pub(super) use self::restart::GroupImage;
use self::restart::{Absence, Plan};
use self::words::{Envelope, MOST_LIVES, Offer, Report, VERSION, Veto, Word, decode, encode};
use super::fences::Fences;
use super::leases::Leases;
use super::log::{ImageError, Random, Request, VISITS};
use super::messages::{SpaceJoin, Vote};
use super::{
    Action, ClusterEvent, Event, FenceKind, Halt, Membership, MembershipImage, NodeView, Service,
    SpaceView, Standing, joined_spaces, numbered,
};

/// Configuration of a [`CorosyncMembership`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupConfig {
    /// The cluster's name.
    pub cluster: String,
    /// This node.
    pub node: NodeId,
    /// A random number, from which all others of this process are drawn.
    pub seed: u64,
    /// The next views have higher numbers: those that other shards have used.
    pub floor: u64,
    /// Tells the boots of its machine from each other.
    pub boot: u64,
    /// Its share of directories.
    pub weight: u32,
    /// The votes of every node of the list, this one included; until corosync says otherwise.
    pub votes: BTreeMap<NodeId, u32>,
    /// See the module; nanoseconds. Also without leases, a member that says nothing for twice as
    /// long is taken for dead.
    pub lease: Time,
    /// The proof that recoveries wait for.
    pub fence: FenceKind,
    /// With `Command`: nodes that have not come this long after this process began are fenced
    /// before the first view; nanoseconds.
    pub startup: Time,
}

/// The last report of the quorum service.
#[derive(Clone, Debug)]
struct Quorum {
    quorate: bool,
    ring: RingId,
    nodes: Vec<u32>,
}

/// Membership by corosync; see the module.
pub struct CorosyncMembership {
    config: GroupConfig,
    kept: Kept,
    /// Connected to corosync.
    up: bool,
    ring: RingId,
    quorum: Option<Quorum>,
    /// The group has lost a node that the quorum still counts: its report is of an earlier ring.
    quorum_lags: bool,
    /// The members of the group.
    seats: BTreeMap<NodeId, Seat>,
    proposal: Option<Proposal>,
    /// The changes of this node's last acceptance.
    former: Option<Former>,
    /// Proposals that were refused, the last ones: they are not accepted any more.
    refused: VecDeque<u64>,
    disk_writes: DiskWrites,
    /// This node's largest life, as its disk has it, or as it was taken since.
    own_life: u64,
    /// The disk had no state when the process began.
    forgot: bool,
    /// Corosync's rules may let nodes go on that have no more than half of all votes.
    minorities: bool,
    /// Why there can be no first view.
    lack: Option<String>,
    fences: Fences,
    /// No new proposal before this, after one was refused.
    patience: Time,
    /// Since when this node wants another view than it has.
    wanting: Option<Time>,
    /// Since when some members are not connected to each other.
    parted: Option<Time>,
    /// When to report, if anything new is to be said.
    report_due: Option<Time>,
    /// A restart of this process, and how many there have been.
    plan: Option<Plan>,
    plans: u64,
    /// Members that have left the group to come back.
    absent: BTreeMap<NodeId, Absence>,
    /// Halted, and not reborn yet.
    halted: bool,
    actions: VecDeque<Action>,
    #[cfg(feature = "mutations")]
    mutation: Option<crate::mutation::Mutation>,
    #[cfg(feature = "mutations")]
    wall: u64,
}

/// The state that the next program needs, besides the configuration. Corosync gives the rest again.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    started: Time,
    random: Random,
    /// A random number by which peers know a process that has no life.
    visit: u64,
    life: Option<u64>,
    /// The first life of the process, 0 before it has one.
    born: u64,
    /// Others have said which lives of this node they remember.
    asked: bool,
    memory: Memory,
    /// The part of it that the disk has.
    written: Memory,
    leases: Leases,
    /// Connections to peers: their lives, and when they were last heard.
    reach: BTreeMap<NodeId, (u64, Time)>,
    spaces: Vec<SpaceJoin>,
    /// The last view that was accepted: its members are echoed.
    accepted: Option<NodeView>,
    installed: Option<NodeView>,
    /// The lives in the installed view: first life of the process, boot.
    origins: BTreeMap<NodeId, (u64, u64)>,
    next_beat: Time,
    /// When this was last called.
    last: Time,
}

/// A member of the group.
#[derive(Clone, Debug)]
struct Seat {
    pid: u32,
    life: u64,
    born: u64,
    boot: u64,
    since: Time,
    report: Option<Report>,
    /// The last that it said is that it restarts.
    restarts: bool,
}

/// The view that is being agreed on.
#[derive(Clone, Debug)]
struct Proposal {
    offer: Offer,
    /// Tells it from others.
    of: u64,
    accepted: BTreeSet<NodeId>,
    /// Those of them whose disks have it.
    durable: BTreeSet<NodeId>,
    by: NodeId,
    since: Time,
}

/// This node's accepted state from before it accepted a proposal.
#[derive(Clone, Debug)]
struct Former {
    of: u64,
    number: u64,
    record: Option<Record>,
    view: Option<NodeView>,
}

impl CorosyncMembership {
    /// A membership service that starts now, with what the disk has.
    ///
    /// # Errors
    /// The image is damaged, or another node's.
    pub fn new(
        mut config: GroupConfig,
        image: Option<&[u8]>,
        now: Time,
    ) -> Result<CorosyncMembership, ImageError> {
        config.lease = config.lease.max(1);
        let image = image.map(Image::decode).transpose()?;
        if let Some(i) =
            image.as_ref().filter(|i| (i.node, &i.cluster) != (config.node, &config.cluster))
        {
            let (node, cluster) = (i.node, i.cluster.clone());
            let (me, ours) = (config.node, config.cluster.clone());
            return Err(ImageError::Foreign { node, cluster, me, ours });
        }
        let mut memory = image.map(|i| i.memory).unwrap_or_default();
        memory.number = memory.number.max(config.floor);
        let mut random = Random(config.seed);
        let kept = Kept {
            started: now,
            visit: random.visit(),
            random,
            life: None,
            born: 0,
            asked: false,
            written: memory.clone(),
            memory,
            leases: Leases::new(config.lease, now),
            reach: BTreeMap::new(),
            spaces: Vec::new(),
            accepted: None,
            installed: None,
            origins: BTreeMap::new(),
            next_beat: now,
            last: now,
        };
        Ok(CorosyncMembership::go_on(config, kept))
    }

    /// Not yet connected to corosync.
    fn go_on(config: GroupConfig, kept: Kept) -> CorosyncMembership {
        CorosyncMembership {
            own_life: kept.memory.life(config.node),
            forgot: !kept.memory.remembers(),
            config,
            kept,
            up: false,
            ring: RingId::default(),
            quorum: None,
            quorum_lags: false,
            seats: BTreeMap::new(),
            proposal: None,
            former: None,
            refused: VecDeque::new(),
            disk_writes: DiskWrites::default(),
            minorities: false,
            lack: None,
            fences: Fences::default(),
            patience: 0,
            wanting: None,
            parted: None,
            report_due: None,
            plan: None,
            plans: 0,
            absent: BTreeMap::new(),
            halted: false,
            actions: VecDeque::new(),
            #[cfg(feature = "mutations")]
            mutation: None,
            #[cfg(feature = "mutations")]
            wall: 0,
        }
    }

    fn is_quorate(&self) -> bool {
        // Both connections to corosync tell of the same ring, or one lags behind the other; and the
        // group hears of lost nodes before it hears of the ring that it lost them to.
        let said = self.quorum.as_ref();
        self.up && !self.quorum_lags && said.is_some_and(|q| q.quorate && q.ring == self.ring)
    }

    /// Returns true if these nodes have more than half of all votes.
    fn is_majority<'a>(&self, nodes: impl Iterator<Item = &'a NodeId>) -> bool {
        let of = |n: &NodeId| u64::from(self.config.votes.get(n).copied().unwrap_or(0));
        2 * nodes.map(of).sum::<u64>() > self.config.votes.keys().map(of).sum::<u64>()
    }

    /// Which group this is: the same for all members at one place of the one order.
    fn digest(&self) -> u64 {
        let list: String = self.seats.iter().map(|(n, s)| format!("{n} {}\n", s.pid)).collect();
        xxhash_rust::xxh3::xxh3_64(list.as_bytes())
    }

    fn cast(&mut self, word: Word) {
        if !self.up || self.halted {
            return;
        }
        // Whoever has had a life says no more until it has another one.
        if self.kept.life.is_none() && self.kept.born > 0 {
            return;
        }
        self.plan = None;
        let (life, born, boot) = (self.kept.life.unwrap_or(0), self.kept.born, self.config.boot);
        let bytes = encode(&Envelope { version: VERSION, life, born, boot, word });
        self.actions.push_back(Action::Cast(bytes));
    }

    fn send_connected(&mut self, vote: &Vote) {
        let to: Vec<NodeId> = self.kept.reach.keys().copied().collect();
        self.actions.extend(to.into_iter().map(|to| Action::Send { to, vote: vote.clone() }));
    }

    /// Reports soon, together with other changes of the same time.
    fn report_soon(&mut self, now: Time) {
        self.report_due.get_or_insert(now + (self.config.lease / 128).min(20_000_000));
    }

    fn report(&mut self) {
        self.report_due = None;
        let report = Report {
            weight: self.config.weight,
            spaces: self.kept.spaces.clone(),
            reach: self.kept.reach.iter().map(|(node, (life, _))| (*node, *life)).collect(),
            installed: self.kept.installed.as_ref().map_or(0, |v| v.seq),
            memory: self.told_memory(),
            minorities: self.minorities,
        };
        self.cast(Word::Report(report));
    }

    fn halt(&mut self, why: Halt) {
        self.kept.installed = None;
        self.kept.accepted = None;
        self.drop_proposal();
        self.wanting = None;
        self.absent.clear();
        self.halted = true;
        self.actions.push_back(Action::Halt(why));
    }

    fn reborn(&mut self) {
        self.kept.life = None;
        self.kept.visit = self.kept.random.visit();
        self.halted = false;
        self.kept.reach.clear();
        self.kept.spaces.clear();
        self.kept.leases.reborn();
        if self.kept.asked {
            self.seek_life(self.kept.last);
        }
    }

    /// Returns true if this is this node, in its present life.
    fn is_me(&self, life: Option<u64>) -> bool {
        life.is_some() && life == self.kept.life && !self.halted
    }

    // Events of corosync.

    fn cluster(&mut self, now: Time, event: ClusterEvent) {
        match event {
            ClusterEvent::Joined => {
                self.up = true;
                self.seats.clear();
                self.forget_quorum();
                self.report_soon(now);
            }
            ClusterEvent::Parted => {
                self.up = false;
                self.seats.clear();
                self.forget_quorum();
                self.drop_proposal();
                if self.kept.installed.is_some() {
                    self.halt(Halt::NoCorosync);
                }
            }
            ClusterEvent::Votes(votes) => self.config.votes = votes,
            ClusterEvent::Minorities(minorities) => self.minorities = minorities,
            ClusterEvent::Said(said) => self.said(now, said),
        }
    }

    fn forget_quorum(&mut self) {
        self.quorum = None;
        self.quorum_lags = false;
    }

    fn said(&mut self, now: Time, said: Said) {
        match said {
            Said::Members { left, members, .. } => self.regroup(now, &members, &left),
            Said::Ring(ring) => {
                // From here on, the rings say whether the quorum's word is of this one: it may have
                // come first, and count a node that left and came back in one step.
                self.quorum_lags &= self.ring == ring;
                self.ring = ring;
            }
            Said::Quorum { quorate, ring, nodes } => {
                self.quorum_lags &= self.quorum.as_ref().is_some_and(|q| q.ring == ring);
                self.quorum = Some(Quorum { quorate, ring, nodes });
                if !quorate && self.kept.installed.is_some() {
                    self.halt(Halt::NoQuorum);
                }
            }
            Said::Message { from, bytes } => self.message(now, from, &bytes),
            Said::Nodes => {}
        }
    }

    fn regroup(&mut self, now: Time, members: &[Process], left: &[(Process, Reason)]) {
        // A proposal is agreed on by the group that saw it made, or by none.
        self.drop_proposal();
        for (process, reason) in left {
            let counted = self.quorum.as_ref().is_some_and(|q| q.nodes.contains(&process.node));
            self.quorum_lags |= *reason == Reason::NodeDown && counted;
            let node = NodeId(process.node);
            let Some(seat) = self.seats.get(&node).filter(|s| s.pid == process.pid) else {
                continue;
            };
            let ended = matches!(reason, Reason::Left | Reason::ProcessDown);
            let (life, restarts) = (seat.life, seat.restarts);
            if ended && restarts {
                self.await_return(now, node, life);
            } else if ended && self.config.fence != FenceKind::Command && life > 0 {
                self.kept.leases.over(node, life.saturating_add(1));
            }
            self.seats.remove(&node);
        }
        let (life, born, boot) = (0, 0, 0);
        for p in members {
            let node = NodeId(p.node);
            if self.seats.get(&node).is_none_or(|s| s.pid != p.pid) {
                let (report, restarts) = (None, false);
                let seat = Seat { pid: p.pid, life, born, boot, since: now, report, restarts };
                self.seats.insert(node, seat);
                self.kept.leases.present(node);
            }
        }
        // A new member does not know the others, and numbers of views must reach everybody.
        self.report_soon(now);
    }

    fn message(&mut self, now: Time, from: Process, bytes: &[u8]) {
        let node = NodeId(from.node);
        let Some(seat) = self.seats.get_mut(&node).filter(|s| s.pid == from.pid) else { return };
        let Some(envelope) = decode(bytes).filter(|e| e.word.is_sane()) else { return };
        if envelope.life < seat.life {
            return;
        }
        if envelope.life > seat.life {
            (seat.life, seat.born, seat.boot) = (envelope.life, envelope.born, envelope.boot);
            seat.report = None;
            self.begun(node, envelope.life, envelope.born, envelope.boot);
        }
        if let Some(seat) = self.seats.get_mut(&node) {
            seat.restarts = false;
        }
        match envelope.word {
            Word::Restarts { number } => self.restarts(node, number),
            Word::Report(report) => self.reported(node, report),
            Word::Propose(offer) => self.proposed(now, node, *offer),
            Word::Accept { of, stamps, durable } => {
                if let Some((_, stamp)) = stamps.iter().find(|(n, _)| *n == self.config.node) {
                    self.kept.leases.renew(node, *stamp, now);
                }
                self.accepted_by(now, node, of, durable);
            }
            Word::Refuse { of, why } => self.refused(now, node, of, why),
            Word::Fenced { node, below } => {
                if below < u64::MAX {
                    self.kept.leases.over(node, below);
                }
                if !self.seats.contains_key(&node) {
                    self.kept.leases.absent(node);
                }
                self.fences.over(node, below);
                self.patience = 0;
            }
        }
    }

    /// A new life of a node reports: which earlier ones does that end?
    fn begun(&mut self, node: NodeId, life: u64, born: u64, boot: u64) {
        if node == self.config.node {
            return;
        }
        let same = |old: u64| born <= old && old < life;
        let old = self.kept.installed.as_ref().and_then(|v| v.life(node));
        let rebooted = self.kept.origins.get(&node).is_some_and(|(_, b)| *b != boot);
        // With an agent, a process that crashed on a machine that runs on is no proof: its clients
        // may be in the middle of something.
        let over = match old {
            Some(old) => same(old) || rebooted || self.config.fence != FenceKind::Command,
            None => true,
        };
        if over {
            self.kept.leases.over(node, life);
        }
    }

    fn reported(&mut self, node: NodeId, report: Report) {
        self.learn_lives(&report.memory);
        let newer = self.kept.installed.as_ref().is_some_and(|v| v.seq < report.installed);
        if let Some(seat) = self.seats.get_mut(&node) {
            seat.report = Some(report);
        }
        // Views begin at one place of the one order: this node was not in that one.
        if newer {
            self.halt(Halt::LeftBehind);
        }
    }

    // Messages of peers on their connections.

    fn vote(&mut self, now: Time, from: NodeId, vote: Vote) {
        let Some((life, heard)) = self.kept.reach.get_mut(&from) else { return };
        *heard = now;
        let life = *life;
        match vote {
            Vote::Beat { stamp, .. } => {
                self.kept.leases.beaten(from, stamp);
                let member = self.kept.accepted.as_ref().and_then(|v| v.life(from)) == Some(life);
                let seated = self.seats.get(&from).is_some_and(|s| s.life == life);
                if member
                    && seated
                    && let Some(stamp) = self.kept.leases.echo(from, life, now)
                {
                    self.actions.push_back(Action::Send { to: from, vote: Vote::Echo { stamp } });
                }
            }
            Vote::Echo { stamp } => self.kept.leases.renew(from, stamp, now),
            Vote::Install { view, .. } => {
                let newer = self.kept.installed.as_ref().is_some_and(|v| v.seq < view.seq);
                if newer && !self.is_me(view.life(self.config.node)) {
                    self.halt(Halt::LeftBehind);
                }
            }
            Vote::Goodbye => {
                // One that has had no life yet has nothing to end.
                if life < VISITS {
                    self.kept.leases.over(from, life + 1);
                }
                self.disconnected(now, from);
                self.actions.push_back(Action::Disconnect { node: from });
                self.patience = 0;
            }
            // Of static lists; a peer of another kind is refused when it introduces itself.
            Vote::Log(_)
            | Vote::Spaces { .. }
            | Vote::Propose { .. }
            | Vote::Accept { .. }
            | Vote::Refuse { .. }
            | Vote::Fenced { .. } => {}
        }
    }

    fn connected(&mut self, now: Time, node: NodeId, life: u64) {
        self.kept.reach.insert(node, (life, now));
        self.kept.leases.disconnected(node);
        self.report_soon(now);
        let vote = self.beat(now);
        self.actions.push_back(Action::Send { to: node, vote });
    }

    fn disconnected(&mut self, now: Time, node: NodeId) {
        if self.kept.reach.remove(&node).is_some() {
            self.kept.leases.disconnected(node);
            self.report_soon(now);
        }
    }

    fn beat(&self, now: Time) -> Vote {
        let installed = self.kept.installed.as_ref().map_or(0, |v| v.seq);
        Vote::Beat { stamp: now, promised: self.kept.memory.number, installed }
    }

    fn tick(&mut self, now: Time) {
        if now >= self.kept.next_beat {
            self.kept.next_beat = now + self.config.lease / 4;
            let beat = self.beat(now);
            self.send_connected(&beat);
        }
        if self.report_due.is_some_and(|due| now >= due) {
            self.report();
        }
        let silent =
            |(_, (_, heard)): &(&NodeId, &(u64, Time))| now >= *heard + 2 * self.config.lease;
        let gone: Vec<NodeId> = self.kept.reach.iter().filter(silent).map(|(n, _)| *n).collect();
        for node in gone {
            self.disconnected(now, node);
            self.actions.push_back(Action::Disconnect { node });
        }
        self.run_agents(now);
        self.forget_restart(now);
        self.accept_without_disk(now);
    }

    /// This process was stopped, or starved: it has not listened, so nobody was silent.
    fn woken(&mut self, now: Time) {
        for (_, heard) in self.kept.reach.values_mut() {
            *heard = now;
        }
        self.parted = None;
        self.wanting = None;
        self.patience = now + self.config.lease / 4;
    }

    // Agents.

    fn run_agents(&mut self, now: Time) {
        if !self.is_quorate() {
            return;
        }
        for node in self.fences.start(now, |node| self.kept.memory.life(node)) {
            let born = self.kept.origins.get(&node).map_or(0, |(born, _)| *born);
            self.actions.push_back(Action::Fence { node, born });
        }
        // Again, if the message was lost with a ring.
        for (node, below) in self.fences.reports_due(now, 2 * self.config.lease) {
            self.cast(Word::Fenced { node, below });
        }
    }

    fn fenced(&mut self, now: Time, node: NodeId, success: bool) {
        self.fences.ended(node, success, now);
        self.run_agents(now);
    }
}

impl Membership for CorosyncMembership {
    // The time of day has no part in anything.
    #[cfg_attr(not(feature = "mutations"), expect(unused_variables))]
    fn handle(&mut self, now: Time, wall: u64, event: Event) {
        #[cfg(feature = "mutations")]
        {
            self.wall = wall;
        }
        if self.lease_end().is_some_and(|end| now >= end) {
            self.halt(Halt::Lease);
        }
        if now > self.kept.next_beat + self.config.lease / 4 {
            self.woken(now);
        }
        self.kept.last = now;
        match event {
            Event::Vote { .. } if self.halted => {}
            Event::Connected { node, life, .. } => self.connected(now, node, life),
            Event::Disconnected { node } => self.disconnected(now, node),
            // Only true of processes of this host: corosync knows those of all.
            Event::Dead { .. } => {}
            Event::Vote { from, vote } => self.vote(now, from, vote),
            Event::Spaces(spaces) => {
                self.kept.spaces = spaces;
                self.kept.spaces.sort_by(|a, b| a.name.cmp(&b.name));
                self.report_soon(now);
            }
            Event::Reborn { .. } => self.reborn(),
            Event::Cluster(event) => self.cluster(now, event),
            Event::Fenced { node, success } => self.fenced(now, node, success),
            Event::Persisted { number, success } => self.persisted(now, number, success),
            Event::Request { id, request } => self.request(id, &request),
            Event::Tick => self.tick(now),
        }
        if !self.halted {
            self.consider(now);
        }
        self.write(now);
    }

    fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn next_timer(&self) -> Time {
        let mut next = self.kept.next_beat.min(self.report_due.unwrap_or(Time::MAX));
        if self.patience > self.kept.last {
            next = next.min(self.patience);
        }
        next = next.min(self.fences.next(self.kept.last)).min(self.disk_due());
        next.min(self.lease_end().unwrap_or(Time::MAX))
    }

    fn lease_end(&self) -> Option<Time> {
        self.kept.installed.as_ref()?;
        match self.config.fence {
            FenceKind::Lease => {
                let votes = self.config.votes.iter().map(|(n, v)| (*n, *v));
                self.kept.leases.end(self.config.node, votes)
            }
            FenceKind::Command | FenceKind::None => None,
        }
    }

    fn view(&self) -> Option<&NodeView> {
        self.kept.installed.as_ref()
    }

    fn standing(&self) -> Standing {
        Standing {
            service: "corosync".into(),
            quorate: self.up.then(|| self.is_quorate()),
            fence: self.config.fence,
            waits: {
                let waits = self.fences.waits(self.kept.last).into_iter();
                waits.chain(self.absences()).chain(self.lacks()).collect()
            },
        }
    }

    fn identity(&self) -> u64 {
        self.kept.life.unwrap_or(self.kept.visit)
    }

    fn prepare_image(&mut self, now: Time) {
        self.plan_restart(now);
    }

    fn image(&self) -> Result<MembershipImage, String> {
        self.group_image().map(|image| MembershipImage(Service::Group(Box::new(image))))
    }
}

#[cfg(test)]
#[path = "../corosync_tests.rs"]
mod tests;
