//! Links: the network's memory of two nodes that talk to each other.

use crate::delay::chance;
use crate::time::transfer_time;
use crate::{Delay, Nanos, NodeId, Random};
use rand::RngExt;
use std::collections::{HashMap, VecDeque};

/// Index of a link.
pub(crate) type LinkId = usize;

/// Latency and bandwidth of one direction between two nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkProfile {
    /// Time on the way, without transfer.
    pub latency: Delay,
    /// Bytes per second of this direction; unlimited if absent.
    pub bandwidth: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkPhase {
    /// Never connected.
    Idle,
    /// The first attempt is under way.
    Connecting,
    Up,
    /// Broken or refused; comes up again once both ends can be reached.
    Down,
}

/// One incarnation's knowledge of the connection at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Told {
    /// Nothing yet: messages wait for the first notice.
    #[default]
    Nothing,
    Up,
    Down,
}

#[derive(Debug, Default)]
pub(crate) struct End {
    pub told: Told,
    /// This incarnation wants the connection, so it is told if it cannot be made.
    pub asked: bool,
    /// When the last notice is delivered; a later one must not overtake it.
    pub last_notice: Nanos,
}

/// Messages kept for later; most lanes never need any.
#[derive(Debug)]
pub(crate) struct Buffers<Msg> {
    /// Sent before the connection was made.
    pub waiting: VecDeque<Msg>,
    /// Arrived at a partition: delivered if it heals before the connection breaks.
    pub stalled: VecDeque<Msg>,
    /// Last messages sent, which may be repeated after a reconnect.
    pub recent: VecDeque<Msg>,
}

impl<Msg> Default for Buffers<Msg> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), stalled: VecDeque::new(), recent: VecDeque::new() }
    }
}

/// One direction of a link.
#[derive(Debug)]
pub(crate) struct Lane<Msg> {
    /// When the sender's side of the wire is free again.
    pub free_at: Nanos,
    pub last_arrival: Nanos,
    /// Of the broken connection `cut_epoch`, messages arriving up to `cut_at` still arrive.
    pub cut_epoch: u32,
    pub cut_at: Nanos,
    /// Added to the latency by a slow-link fault.
    pub extra: Nanos,
    pub profile: Option<Box<LinkProfile>>,
    buffers: Option<Box<Buffers<Msg>>>,
}

impl<Msg> Default for Lane<Msg> {
    fn default() -> Self {
        Self {
            free_at: 0,
            last_arrival: 0,
            cut_epoch: 0,
            cut_at: 0,
            extra: 0,
            profile: None,
            buffers: None,
        }
    }
}

impl<Msg> Lane<Msg> {
    pub fn buffers(&mut self) -> &mut Buffers<Msg> {
        self.buffers.get_or_insert_default()
    }

    pub fn has_stalled(&self) -> bool {
        self.buffers.as_ref().is_some_and(|buffers| !buffers.stalled.is_empty())
    }

    pub fn take_waiting(&mut self) -> VecDeque<Msg> {
        self.buffers
            .as_mut()
            .map(|buffers| std::mem::take(&mut buffers.waiting))
            .unwrap_or_default()
    }

    pub fn forget_stalled(&mut self) {
        if let Some(buffers) = &mut self.buffers {
            buffers.stalled.clear();
        }
    }

    pub fn forget_all(&mut self) {
        self.buffers = None;
    }

    /// Puts `size` bytes on the wire, one message after the other, and returns when they arrive.
    pub fn transmit(
        &mut self,
        now: Nanos,
        size: usize,
        usual: &LinkProfile,
        random: &mut Random,
    ) -> Nanos {
        let profile = self.profile.as_deref().unwrap_or(usual);
        self.free_at = self.free_at.max(now).saturating_add(transfer_time(size, profile.bandwidth));
        self.free_at.saturating_add(profile.latency.sample(random)).saturating_add(self.extra)
    }

    /// As [`transmit`](Self::transmit), but never before an earlier message of the connection.
    pub fn transmit_in_order(
        &mut self,
        now: Nanos,
        size: usize,
        usual: &LinkProfile,
        random: &mut Random,
    ) -> Nanos {
        self.last_arrival = self.transmit(now, size, usual, random).max(self.last_arrival);
        self.last_arrival
    }
}

#[derive(Debug)]
pub(crate) struct Link<Msg> {
    /// The lower number first.
    pub nodes: [NodeId; 2],
    pub phase: LinkPhase,
    /// Number of the connection; messages of an older one do not arrive.
    pub epoch: u32,
    /// A connection attempt is in the event queue.
    pub attempt_pending: bool,
    pub ends: [End; 2],
    /// `lanes[i]` leads away from `nodes[i]`.
    pub lanes: [Lane<Msg>; 2],
}

impl<Msg> Link<Msg> {
    fn new(nodes: [NodeId; 2]) -> Self {
        Self {
            nodes,
            phase: LinkPhase::Idle,
            epoch: 0,
            attempt_pending: false,
            ends: Default::default(),
            lanes: Default::default(),
        }
    }

    /// Which end a node is.
    pub fn side(&self, node: NodeId) -> usize {
        usize::from(self.nodes[0] != node)
    }

    /// A new connection: nothing of the old one is in the way.
    pub fn begin_epoch(&mut self, now: Nanos) {
        self.epoch += 1;
        self.phase = LinkPhase::Up;
        for lane in &mut self.lanes {
            lane.free_at = now;
            lane.last_arrival = now;
            lane.forget_stalled();
        }
        for end in &mut self.ends {
            end.told = Told::Up;
            end.last_notice = now;
        }
    }

    /// The connection breaks: of the messages on the way on `lane`, a part of random length still arrives.
    pub fn cut(&mut self, lane: usize, now: Nanos, random: &mut Random) {
        if self.lanes[lane].has_stalled() {
            return self.cut_all(lane); // stalled messages are first in line, and lost
        }
        let epoch = self.epoch;
        let lane = &mut self.lanes[lane];
        lane.cut_epoch = epoch;
        let last = lane.last_arrival.max(now);
        // Everything or nothing are possible outcomes too; the latter is why the range begins before `now`.
        let everything = chance(random, 0.2);
        lane.cut_at =
            if everything { last } else { random.random_range(now.saturating_sub(1)..=last) };
    }

    /// The connection breaks, and nothing that is on the way on `lane` arrives.
    pub fn cut_all(&mut self, lane: usize) {
        self.lanes[lane].cut_epoch = 0; // epochs count from 1
        self.lanes[lane].forget_stalled();
    }

    /// Returns true if a message of connection `epoch` on `lane` still arrives at `now`.
    pub fn still_arrives(&self, lane: usize, epoch: u32, now: Nanos) -> bool {
        let lane = &self.lanes[lane];
        self.is_current(epoch) || (epoch == lane.cut_epoch && now <= lane.cut_at)
    }

    /// Returns true if connection `epoch` is up.
    pub fn is_current(&self, epoch: u32) -> bool {
        self.phase == LinkPhase::Up && epoch == self.epoch
    }
}

/// All links; made when first used, so that a thousand nodes do not cost half a million links.
#[derive(Debug)]
pub(crate) struct Links<Msg> {
    list: Vec<Link<Msg>>,
    /// Only looked up, never iterated: its order is not deterministic.
    by_nodes: HashMap<(NodeId, NodeId), LinkId>,
}

impl<Msg> Links<Msg> {
    pub fn new() -> Self {
        Self { list: Vec::new(), by_nodes: HashMap::new() }
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn find(&self, a: NodeId, b: NodeId) -> Option<LinkId> {
        self.by_nodes.get(&(a.min(b), a.max(b))).copied()
    }

    pub fn find_or_make(&mut self, a: NodeId, b: NodeId) -> LinkId {
        let nodes = (a.min(b), a.max(b));
        *self.by_nodes.entry(nodes).or_insert_with(|| {
            self.list.push(Link::new([nodes.0, nodes.1]));
            self.list.len() - 1
        })
    }

    pub fn get(&mut self, id: LinkId) -> &mut Link<Msg> {
        &mut self.list[id]
    }

    pub fn iter(&self) -> impl Iterator<Item = (LinkId, &Link<Msg>)> {
        self.list.iter().enumerate()
    }
}
