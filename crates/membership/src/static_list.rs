//! Membership by a fixed list of nodes, majority and leases.
//!
//! **How it works.** The lowest node that sees a majority of the list proposes a view: itself and all
//! nodes that it can reach. A node accepts a proposal only if it is higher than every one accepted
//! before, if it reaches all its members, and if no node outside it can still be acting in an older
//! view. A view holds when all its members, a majority of the list, have accepted it. Numbers are
//! unique (each node draws from its own residue class) and at least the seconds since 1970, so that
//! they grow over a restart of the whole cluster, unless a cluster went through more views than
//! seconds and restarts at once.
//!
//! **Leases.** Every node sends beats; those who count it as a member echo them. A node acts in its
//! view only while a majority (itself included) has echoed beats sent less than `lease` ago; then it
//! halts, and its clients are told. A node that echoed a member's beat accepts a view without that
//! life of it only `2 * lease` later and echoes no more once it has accepted. Any majority that echoed
//! and any majority that accepted share a node; so the member has halted before the view without it
//! holds, as long as its clock runs at more than half the speed of the other's. A node that just
//! started does not know what it echoed before, and waits as if it had echoed everybody when it
//! started. There is no waiting for a process known to be gone: it said goodbye, or its connection
//! broke and nothing listens at its address on this host.
//!
//! **Fencing.** With [`FenceKind::Command`] a member that is left behind has to be fenced by an agent,
//! too: the coordinator has it run when the lease is over, and tells the others. With
//! [`FenceKind::None`] nobody waits for leases.
//!
//! **What it does not guarantee.** A lease ends a node's part in the lock manager; it cannot end what
//! a program on that node is doing, for example a write to storage that is already under way, nor stop
//! a process that is paused between looking at the clock and sending. Fencing tokens are for that. Two
//! nodes of a list of two need each other. Two members that cannot talk to each other while both reach
//! the coordinator are separated only after several leases.

use std::collections::VecDeque;

use lockify_core::{Member, NodeId, Time};
use serde::{Deserialize, Serialize};

use super::fences::Fences;
use super::messages::{Refusal, SpaceJoin, Vote};
use super::{
    Action, Event, FenceKind, Halt, Membership, MembershipImage, NodeView, Service, SpaceView,
    Standing, joined_spaces, numbered,
};

/// How much longer the next coordinator waits for its turn where the first one may be waiting for
/// an agent: two of them would fence twice.
const AGENT_TURN: Time = 120_000_000_000;

/// Configuration of a [`StaticMembership`].
#[derive(Clone, Debug)]
pub struct StaticConfig {
    /// This node.
    pub node: NodeId,
    /// Its first life.
    pub life: u64,
    /// Its share of directories.
    pub weight: u32,
    /// All nodes, this one included.
    pub nodes: Vec<NodeId>,
    /// See the module; nanoseconds.
    pub lease: Time,
    /// The proof that recoveries wait for.
    pub fence: FenceKind,
}

/// Membership by a fixed list; see the module.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StaticMembership {
    me: NodeId,
    life: u64,
    weight: u32,
    lease: Time,
    fence: FenceKind,
    fences: Fences,
    /// Sorted; `peers` has the same order.
    nodes: Vec<NodeId>,
    peers: Vec<Peer>,
    spaces: Vec<SpaceJoin>,
    started: Time,
    /// The highest view accepted, and no view below it will be.
    promised: u64,
    accepted: Option<NodeView>,
    installed: Option<NodeView>,
    /// The lease's start as the installing coordinator attested it, and all that it attested.
    attested: Time,
    stamps: Vec<Time>,
    /// The highest number seen anywhere.
    seen: u64,
    /// The newest view that any refusal told of; spaces are numbered afresh when it is not ours.
    base: u64,
    proposal: Option<Proposal>,
    /// No new proposal before this, after one was refused.
    patience: Time,
    /// Since when this node wants another view than it has.
    wanting: Option<Time>,
    /// When a lower node last proposed something.
    led: Time,
    next_beat: Time,
    /// Halted, and not reborn yet.
    halted: bool,
    /// When this was last called.
    last: Time,
    /// Empty between two calls of its host.
    #[serde(skip)]
    actions: VecDeque<Action>,
}

/// This node's knowledge of a node of the list.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Peer {
    connected: Option<u64>,
    /// When its last beat came, and that beat's stamp.
    heard: Time,
    stamp: Option<Time>,
    promised: u64,
    weight: u32,
    spaces: Option<Vec<SpaceJoin>>,
    /// The life last echoed (or accepted into a view), and when.
    echoed: Option<(u64, Time)>,
    /// This node's newest stamp that it echoed.
    renewed: Option<Time>,
    /// Every life below is known to be gone; of all lives if `absent`.
    gone_below: u64,
    absent: bool,
    /// Somebody cannot reach it: not proposed, and not echoed, until then.
    shunned: Time,
}

/// A view that this node has proposed.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Proposal {
    view: NodeView,
    stamps: Vec<Time>,
    accepted: Vec<NodeId>,
    since: Time,
}

impl StaticMembership {
    /// A membership service that starts now.
    pub fn new(config: StaticConfig, now: Time) -> StaticMembership {
        let mut nodes = config.nodes;
        nodes.sort_unstable();
        nodes.dedup();
        StaticMembership {
            me: config.node,
            life: config.life,
            weight: config.weight,
            lease: config.lease.max(1),
            fence: config.fence,
            fences: Fences::default(),
            peers: vec![Peer::default(); nodes.len()],
            nodes,
            spaces: Vec::new(),
            started: now,
            promised: 0,
            accepted: None,
            installed: None,
            attested: 0,
            stamps: Vec::new(),
            seen: 0,
            base: 0,
            proposal: None,
            patience: 0,
            wanting: None,
            led: now,
            next_beat: now,
            halted: false,
            last: now,
            actions: VecDeque::new(),
        }
    }

    fn peer(&mut self, node: NodeId) -> Option<&mut Peer> {
        let i = self.nodes.binary_search(&node).ok()?;
        (node != self.me).then(|| &mut self.peers[i])
    }

    fn known(&self, node: NodeId) -> Option<&Peer> {
        self.nodes.binary_search(&node).ok().map(|i| &self.peers[i])
    }

    fn is_majority(&self, nodes: usize) -> bool {
        nodes * 2 > self.nodes.len()
    }

    fn others(&self) -> impl Iterator<Item = (NodeId, &Peer)> {
        self.nodes.iter().copied().zip(&self.peers).filter(|(n, _)| *n != self.me)
    }

    fn send(&mut self, to: NodeId, vote: Vote) {
        self.actions.push_back(Action::Send { to, vote });
    }

    fn send_all(&mut self, vote: &Vote) {
        let to: Vec<NodeId> =
            self.others().filter(|(_, p)| p.connected.is_some()).map(|(n, _)| n).collect();
        to.into_iter().for_each(|n| self.send(n, vote.clone()));
    }

    fn beat(&self, now: Time) -> Vote {
        let installed = self.installed.as_ref().map_or(0, |v| v.seq);
        Vote::Beat { stamp: now, promised: self.promised, installed }
    }

    fn connected(&mut self, now: Time, node: NodeId, life: u64, sole: bool) {
        let Some(peer) = self.peer(node) else { return };
        peer.connected = Some(life);
        peer.heard = now;
        peer.stamp = None;
        peer.spaces = None;
        // No process ran when the peer was found dead, so every earlier life had ended by then.
        if sole || peer.absent {
            peer.gone_below = peer.gone_below.max(life);
        }
        peer.absent = false;
        let (weight, spaces) = (self.weight, self.spaces.clone());
        self.send(node, Vote::Spaces { weight, spaces });
        self.send(node, self.beat(now));
    }

    fn disconnected(&mut self, node: NodeId) {
        if let Some(peer) = self.peer(node) {
            peer.connected = None;
            peer.stamp = None;
            peer.spaces = None;
        }
    }

    fn dead(&mut self, node: NodeId) {
        let Some(peer) = self.peer(node) else { return };
        peer.absent = true;
        if let Some((life, _)) = peer.echoed {
            peer.gone_below = peer.gone_below.max(life.saturating_add(1));
        }
        self.patience = 0;
    }

    fn vote(&mut self, now: Time, from: NodeId, vote: Vote) {
        let Some(life) = self.known(from).and_then(|p| p.connected) else {
            return;
        };
        match vote {
            Vote::Beat { stamp, promised, installed } => {
                self.beaten(now, from, life, stamp, promised);
                if promised > installed {
                    self.repeat_install(from, life, promised);
                }
            }
            Vote::Echo { stamp } => {
                let Some(peer) = self.peer(from) else { return };
                // A stamp from the future is not this node's: it would prolong a lease for ever.
                if stamp <= now {
                    peer.renewed = peer.renewed.max(Some(stamp));
                }
            }
            Vote::Spaces { weight, mut spaces } => {
                spaces.sort_by(|a, b| a.name.cmp(&b.name));
                spaces.dedup_by(|a, b| a.name == b.name);
                let Some(peer) = self.peer(from) else { return };
                peer.weight = weight;
                peer.spaces = Some(spaces);
            }
            Vote::Propose { view, base } => {
                let seq = view.seq;
                self.seen = self.seen.max(seq);
                if from < self.me {
                    self.led = now;
                    self.proposal = None;
                }
                match self.accept(now, from, view, base) {
                    Ok(()) => self.send(from, Vote::Accept { seq }),
                    Err(why) => self.send(from, Vote::Refuse { seq, why }),
                }
            }
            Vote::Accept { seq } => self.accepted_by(from, seq),
            Vote::Refuse { seq, why } => self.refused(now, from, seq, why),
            Vote::Install { view, stamps } => self.install(view, &stamps),
            Vote::Fenced { node, below } => self.over(node, below),
            // Of another service.
            Vote::Log(_) => {}
            Vote::Goodbye => {
                self.dead(from);
                self.disconnected(from);
                self.actions.push_back(Action::Disconnect { node: from });
            }
        }
    }

    fn beaten(&mut self, now: Time, from: NodeId, life: u64, stamp: Time, promised: u64) {
        self.seen = self.seen.max(promised);
        let member = self.accepted.as_ref().and_then(|v| v.life(from)) == Some(life);
        let Some(peer) = self.peer(from) else { return };
        peer.heard = now;
        peer.stamp = Some(stamp);
        peer.promised = promised;
        if member && peer.shunned <= now {
            peer.echoed = Some((life, now));
            self.send(from, Vote::Echo { stamp });
        }
    }

    /// A member has accepted this node's view, but never heard that it holds.
    fn repeat_install(&mut self, to: NodeId, life: u64, promised: u64) {
        let Some(view) = &self.installed else { return };
        if view.seq == promised && view.life(to) == Some(life) {
            let vote = Vote::Install { view: view.clone(), stamps: self.stamps.clone() };
            self.send(to, vote);
        }
    }

    /// Decides on a proposal, as every acceptor does; the coordinator asks itself, too.
    fn accept(
        &mut self,
        now: Time,
        from: NodeId,
        view: NodeView,
        base: u64,
    ) -> Result<(), Refusal> {
        if view.seq <= self.promised {
            return Err(Refusal::Promised(self.promised));
        }
        if !self.fits(from, &view) {
            return Err(Refusal::Misfit);
        }
        if let Some(v) = self.installed.as_ref().filter(|v| v.seq > base) {
            return Err(Refusal::Base(v.seq));
        }
        let unreachable = |m: &&Member| {
            m.node != self.me && self.known(m.node).and_then(|p| p.connected) != Some(m.incarnation)
        };
        if let Some(m) = view.members.iter().find(unreachable) {
            return Err(Refusal::Unreachable(m.node));
        }
        let leased: Vec<NodeId> = self
            .others()
            .filter(|(n, p)| self.may_act(now, p, view.life(*n)))
            .map(|(n, _)| n)
            .collect();
        if let Some(&first) = leased.first() {
            let until = now + 4 * self.lease;
            for node in leased {
                // The coordinator has waited for its own lease already, so it will not reach it
                // soon: let the lease run out here, too, or it never would.
                if from != self.me
                    && view.life(node).is_none()
                    && let Some(peer) = self.peer(node)
                {
                    peer.shunned = until;
                }
            }
            return Err(Refusal::Leased(first));
        }
        for m in &view.members {
            if let Some(peer) = self.peer(m.node) {
                peer.echoed = Some((m.incarnation, now));
                peer.shunned = 0;
            }
        }
        self.promised = view.seq;
        self.accepted = Some(view);
        Ok(())
    }

    /// Returns true if a life of this node other than the one in the new view may act in an older
    /// view.
    fn may_act(&self, now: Time, peer: &Peer, included: Option<u64>) -> bool {
        if self.fence == FenceKind::None {
            return false;
        }
        let over = |since: Time| now >= since.saturating_add(2 * self.lease);
        let echoed = match peer.echoed {
            Some((life, _)) if Some(life) == included => false,
            // A lease is no proof where an agent's word is wanted.
            Some((life, at)) => {
                life >= peer.gone_below && (self.fence == FenceKind::Command || !over(at))
            }
            None => false,
        };
        // The lives that this node's own former life may have echoed.
        let unknown = match included {
            Some(life) => peer.gone_below < life,
            None => !peer.absent,
        };
        echoed || (unknown && !over(self.started))
    }

    /// The view is well-formed, and this node, in this life, and the proposer are in it.
    fn fits(&self, from: NodeId, view: &NodeView) -> bool {
        view.is_well_formed()
            && view.members.iter().all(|m| self.known(m.node).is_some())
            && self.is_majority(view.members.len())
            && view.life(self.me) == Some(self.life)
            && view.life(from).is_some()
            && view.seq < 1 << 32
    }

    fn accepted_by(&mut self, from: NodeId, seq: u64) {
        let Some(p) = self.proposal.as_mut().filter(|p| p.view.seq == seq) else {
            return;
        };
        if !p.accepted.contains(&from) {
            p.accepted.push(from);
        }
        if !p.view.members.iter().all(|m| p.accepted.contains(&m.node)) {
            return;
        }
        let Some(Proposal { view, stamps, .. }) = self.proposal.take() else {
            return;
        };
        self.send_all(&Vote::Install { view: view.clone(), stamps: stamps.clone() });
        self.install(view, &stamps);
    }

    fn refused(&mut self, now: Time, from: NodeId, seq: u64, why: Refusal) {
        if self.proposal.as_ref().is_none_or(|p| p.view.seq != seq) {
            return;
        }
        self.proposal = None;
        self.patience = now + self.lease / 16;
        match why {
            Refusal::Promised(n) => self.seen = self.seen.max(n),
            Refusal::Base(n) => {
                self.base = self.base.max(n);
                self.seen = self.seen.max(n);
                self.patience = now;
            }
            // Connections are still being made, at first; who cannot talk for long is parted.
            Refusal::Unreachable(n) if self.wanting.is_some_and(|w| now >= w + 2 * self.lease) => {
                // Longer than the others' leases, which begin to run out when these have.
                let until = now + 8 * self.lease;
                if let Some(peer) = self.peer(n.max(from)) {
                    peer.shunned = until;
                }
            }
            // It has not heard that an agent has succeeded.
            Refusal::Leased(node) if self.fence == FenceKind::Command => {
                if let Some(below) = self.known(node).map(|p| p.gone_below).filter(|b| *b > 0) {
                    self.send(from, Vote::Fenced { node, below });
                }
            }
            Refusal::Unreachable(_) | Refusal::Leased(_) | Refusal::Misfit => {}
        }
    }

    fn install(&mut self, view: NodeView, stamps: &[Time]) {
        if self.installed.as_ref().is_some_and(|v| v.seq >= view.seq) {
            return;
        }
        self.seen = self.seen.max(view.seq);
        if view.life(self.me) != Some(self.life) {
            // The others believe that this node has stopped: make it true.
            if self.installed.is_some() {
                self.halt();
            }
            return;
        }
        if view.seq != self.promised || self.accepted.as_ref() != Some(&view) {
            return;
        }
        let own = view.members.iter().position(|m| m.node == self.me);
        self.attested = own.and_then(|i| stamps.get(i)).copied().unwrap_or(0);
        self.stamps = stamps.to_vec();
        self.base = view.seq;
        self.installed = Some(view.clone());
        self.wanting = None;
        self.fences.clear();
        self.actions.push_back(Action::Install(view));
    }

    fn halt(&mut self) {
        self.installed = None;
        self.accepted = None;
        self.proposal = None;
        self.halted = true;
        self.actions.push_back(Action::Halt(Halt::Lease));
    }

    fn reborn(&mut self, life: u64) {
        self.life = life;
        self.halted = false;
        for peer in &mut self.peers {
            peer.connected = None;
            peer.stamp = None;
            peer.spaces = None;
            peer.renewed = None;
        }
        self.spaces.clear();
        self.attested = 0;
        self.wanting = None;
    }

    fn tick(&mut self, now: Time) {
        if now >= self.next_beat {
            self.next_beat = now + self.lease / 4;
            let beat = self.beat(now);
            self.send_all(&beat);
        }
        let silent = |(_, p): &(NodeId, &Peer)| {
            p.connected.is_some() && now >= p.heard.saturating_add(2 * self.lease)
        };
        let gone: Vec<NodeId> = self.others().filter(silent).map(|(n, _)| n).collect();
        for node in gone {
            self.disconnected(node);
            self.actions.push_back(Action::Disconnect { node });
        }
    }

    /// The possible members of a view that this node proposes: connected, and known well enough.
    fn candidates(&self, now: Time) -> Vec<(Member, Time)> {
        let mut all: Vec<(Member, Time)> = self
            .others()
            .filter(|(_, p)| p.spaces.is_some() && p.shunned <= now)
            .filter_map(|(node, p)| {
                let member = Member { node, incarnation: p.connected?, weight: p.weight };
                Some((member, p.stamp?))
            })
            .collect();
        let me = Member { node: self.me, incarnation: self.life, weight: self.weight };
        all.push((me, now));
        all.sort_unstable_by_key(|(m, _)| m.node);
        all
    }

    /// Proposes a view if this node should, and none that says the same is on the way.
    fn consider(&mut self, now: Time, wall: u64) {
        let (members, stamps): (Vec<Member>, Vec<Time>) = self.candidates(now).into_iter().unzip();
        if !self.is_majority(members.len()) {
            self.proposal = None;
            return;
        }
        let spaces = self.joined(&members);
        if self.is_settled(&members, &spaces) {
            self.wanting = None;
            return;
        }
        let since = *self.wanting.get_or_insert(now);
        // A lower node that cannot see a majority would block all others for ever.
        let lower = members.iter().filter(|m| m.node < self.me).count() as u64;
        let agent = if self.fence == FenceKind::Command { AGENT_TURN } else { 0 };
        let turn = lower == 0 || now >= since.max(self.led) + (2 + lower) * self.lease + agent;
        let asked = self
            .proposal
            .as_ref()
            .is_some_and(|p| p.view.says(&members, &spaces) && now < p.since + self.lease / 2);
        if !turn || asked || now < self.patience {
            return;
        }
        self.propose(now, wall, members, spaces, stamps);
    }

    fn is_settled(&self, members: &[Member], spaces: &[SpaceView]) -> bool {
        let Some(v) = &self.installed else {
            return false;
        };
        v.says(members, spaces)
            && self.promised == v.seq
            && self.others().all(|(_, p)| p.connected.is_none() || p.promised <= v.seq)
    }

    fn propose(
        &mut self,
        now: Time,
        wall: u64,
        members: Vec<Member>,
        spaces: Vec<SpaceView>,
        stamps: Vec<Time>,
    ) {
        let seq = self.next_seq(wall);
        let newest = self.installed.as_ref().filter(|v| v.seq == self.base);
        let spaces = numbered(spaces, seq, newest);
        let view = NodeView { seq, members, spaces };
        let base = self.base;
        if self.accept(now, self.me, view.clone(), base).is_err() {
            self.fence_left(now, &view);
            // A lease must run out first; the beats' timer tries again.
            self.patience = now + self.lease / 16;
            return;
        }
        self.seen = seq;
        for m in view.members.iter().filter(|m| m.node != self.me) {
            let vote = Vote::Propose { view: view.clone(), base };
            self.actions.push_back(Action::Send { to: m.node, vote });
        }
        self.proposal = Some(Proposal { view, stamps, accepted: Vec::new(), since: now });
        self.accepted_by(self.me, seq);
    }

    /// Has an agent fence those whose lease is over, but whose end nobody has proven.
    fn fence_left(&mut self, now: Time, view: &NodeView) {
        if self.fence != FenceKind::Command {
            return;
        }
        let left = |(node, p): (NodeId, &Peer)| {
            let (life, at) = p.echoed?;
            let over = now >= at.saturating_add(2 * self.lease);
            let proven = life < p.gone_below || view.life(node) == Some(life);
            (over && !proven).then_some((node, life.saturating_add(1)))
        };
        let left = self.others().filter_map(left).collect();
        self.fences.set(&left, now);
        self.run_agents(now);
    }

    fn run_agents(&mut self, now: Time) {
        for node in self.fences.start(now) {
            // The first life that is known of its process.
            let born = self.known(node).and_then(|p| p.echoed).map_or(0, |(life, _)| life);
            self.actions.push_back(Action::Fence { node, born });
        }
        for (node, below) in self.fences.tell(now, 2 * self.lease) {
            self.send_all(&Vote::Fenced { node, below });
            if let Some(peer) = self.peer(node) {
                peer.gone_below = peer.gone_below.max(below);
            }
            self.patience = now;
        }
    }

    /// The lives of a node below this one are over.
    fn over(&mut self, node: NodeId, below: u64) {
        self.fences.over(node, below);
        if let Some(peer) = self.peer(node) {
            peer.gone_below = peer.gone_below.max(below);
        }
    }

    /// The next number above all seen that belongs to this node.
    fn next_seq(&self, wall: u64) -> u64 {
        let n = self.nodes.len() as u64;
        let mine = self.nodes.binary_search(&self.me).unwrap_or(0) as u64;
        let least = wall.max(self.seen + 1).max(self.promised + 1);
        least + (mine + n - least % n) % n
    }

    /// The lockspaces of these nodes, by name, not numbered yet.
    fn joined(&self, members: &[Member]) -> Vec<SpaceView> {
        joined_spaces(members.iter().filter_map(|m| {
            let own = (m.node == self.me).then_some(&self.spaces);
            let theirs = || self.known(m.node).and_then(|p| p.spaces.as_ref());
            Some((*m, own.or_else(theirs)?.as_slice()))
        }))
    }
}

impl Membership for StaticMembership {
    fn handle(&mut self, now: Time, wall: u64, event: Event) {
        if self.lease_end().is_some_and(|end| now >= end) {
            self.halt();
        }
        self.last = now;
        match event {
            Event::Vote { .. } if self.halted => {}
            Event::Connected { node, life, sole } => self.connected(now, node, life, sole),
            Event::Disconnected { node } => self.disconnected(node),
            Event::Dead { node } => self.dead(node),
            Event::Vote { from, vote } => self.vote(now, from, vote),
            Event::Spaces(spaces) => {
                self.spaces = spaces.clone();
                self.send_all(&Vote::Spaces { weight: self.weight, spaces });
            }
            Event::Reborn { life } => self.reborn(life),
            // There is no cluster manager.
            Event::Cluster(_) => {}
            Event::Fenced { node, success } => {
                self.fences.ended(node, success, now);
                self.run_agents(now);
            }
            // It keeps nothing, and has nothing that an operator could change.
            Event::Persisted { .. } => {}
            Event::Request { id, .. } => self.actions.push_back(super::no_log(id)),
            Event::Tick => self.tick(now),
        }
        if !self.halted {
            self.consider(now, wall);
        }
    }

    fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn next_timer(&self) -> Time {
        let retry = (self.wanting.is_some() && self.patience > self.last).then_some(self.patience);
        let lease = self.lease_end().unwrap_or(Time::MAX);
        self.next_beat.min(lease).min(self.fences.next(self.last)).min(retry.unwrap_or(Time::MAX))
    }

    fn lease_end(&self) -> Option<Time> {
        self.installed.as_ref()?;
        if self.is_majority(1) {
            return None;
        }
        // The newest stamp that a majority, this node included, has echoed.
        let mut stamps: Vec<Time> = self.others().filter_map(|(_, p)| p.renewed).collect();
        stamps.sort_unstable_by(|a, b| b.cmp(a));
        let needed = self.nodes.len() / 2;
        let renewed = stamps.get(needed - 1).copied().unwrap_or(0);
        Some(renewed.max(self.attested).saturating_add(self.lease))
    }

    fn view(&self) -> Option<&NodeView> {
        self.installed.as_ref()
    }

    fn standing(&self) -> Standing {
        Standing {
            service: "static".into(),
            quorate: None,
            fence: self.fence,
            waits: self.fences.waits(self.last),
        }
    }

    fn image(&self) -> Result<MembershipImage, String> {
        let alone = self.is_majority(1);
        if !alone && self.fence == FenceKind::None {
            return Err("fence = \"none\" lets the other nodes take the locks at once".into());
        }
        // One that runs belongs to this program.
        if !alone && !self.fences.is_empty() {
            return Err("a fencing agent runs".into());
        }
        Ok(MembershipImage(Service::Static(self.clone())))
    }

    fn unfenced(&self) -> Vec<NodeId> {
        let members = self.installed.iter().flat_map(|v| &v.members);
        let gone = members.filter_map(|m| {
            let peer = self.known(m.node).filter(|_| m.node != self.me)?;
            let silent = self.last >= peer.heard.saturating_add(self.lease);
            let gone = peer.connected != Some(m.incarnation) || silent;
            (gone && self.may_act(self.last, peer, None)).then_some(m.node)
        });
        gone.collect()
    }
}

#[cfg(test)]
#[path = "static_list_tests.rs"]
mod tests;
