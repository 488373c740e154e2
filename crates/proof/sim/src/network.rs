//! The network's settings, and its connections.
//!
//! A connection behaves as TCP with automatic reconnect does. Messages of one direction arrive in order; different
//! connections do not wait for each other. A broken connection loses a suffix of what is in flight, then tells both ends.
//! Across a partition messages stall; they arrive if it heals in time, else the connection breaks.

use crate::datagram::DatagramConfig;
use crate::delay::chance;
use crate::filter::Verdict;
use crate::link::{LinkId, LinkPhase, LinkProfile, Told};
use crate::machine::{Input, LinkState, Machine};
use crate::world::{Event, World};
use crate::{Delay, FaultKind, MICROSECOND, MILLISECOND, Nanos, NodeId, SECOND};
use rand::RngExt;

/// The properties of the network.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkConfig {
    /// Every link that [`Sim::set_link`](crate::Sim::set_link) has not set otherwise.
    pub link: LinkProfile,
    /// From the break of a connection until an end is told.
    pub break_notice: Delay,
    /// How long a connection stalls (partition, power loss) before it breaks.
    pub stall_timeout: Nanos,
    /// From the later of both notices until the connection is made again; also after a partition heals or a peer restarts.
    pub reconnect: Delay,
    /// Probability that a sender repeats its last messages after a reconnect, as transports with acknowledgements of
    /// their own do. Per direction; never towards or from a new incarnation.
    pub repeat_after_reconnect: f64,
    /// How many messages are repeated at most.
    pub repeat_at_most: usize,
    /// The faults of datagrams.
    pub datagram: DatagramConfig,
}

impl Default for NetworkConfig {
    /// About a data centre's Ethernet: 25 µs with a tail, 10 Gb/s.
    fn default() -> Self {
        Self {
            link: LinkProfile {
                latency: Delay::LogNormal {
                    base: 15 * MICROSECOND,
                    median: 10 * MICROSECOND,
                    sigma: 0.6,
                },
                bandwidth: Some(1_250_000_000),
            },
            break_notice: Delay::Uniform(0, MILLISECOND),
            stall_timeout: SECOND,
            reconnect: Delay::Uniform(MILLISECOND, 20 * MILLISECOND),
            repeat_after_reconnect: 0.0,
            repeat_at_most: 16,
            datagram: DatagramConfig::default(),
        }
    }
}

impl<M: Machine> World<M> {
    pub fn send(&mut self, from: NodeId, to: NodeId, msg: M::Msg) {
        self.stats.sent += 1;
        self.look_at_send(from, to, &msg);
        self.trace_node(from, || format!("-> {to}: {msg:?}"));
        if from == to {
            return self.send_to_itself(from, msg);
        }
        match self.ask_filters(from, to, false, &msg) {
            Verdict::Pass => self.send_connected(from, to, msg),
            Verdict::Lose => self.lose(from, to, "filter"),
            Verdict::Delay(by) => {
                self.hold_lane(from, to, by);
                self.send_connected(from, to, msg);
            }
            Verdict::Duplicate | Verdict::DuplicateLater(_) => {
                self.stats.duplicated += 1;
                self.send_connected(from, to, msg.clone());
                self.send_connected(from, to, msg);
            }
            Verdict::Break => {
                self.lose(from, to, "filter breaks the connection");
                // At once: the sender's next message must not arrive in its stead.
                if self.break_connection(from, to) {
                    self.count_fault(FaultKind::BreakConnection);
                }
            }
        }
    }

    fn send_to_itself(&mut self, node: NodeId, msg: M::Msg) {
        let input = Input::Message { from: node, msg };
        self.push_input(self.now, node, input);
    }

    fn send_connected(&mut self, from: NodeId, to: NodeId, msg: M::Msg) {
        let id = self.link_between(from, to);
        let link = self.links.get(id);
        let side = link.side(from);
        if link.phase == LinkPhase::Up {
            self.transmit(id, side, msg);
        } else if link.ends[side].told == Told::Nothing {
            link.lanes[side].buffers().waiting.push_back(msg);
            self.ask_for(id, side);
        } else {
            self.lose(from, to, "not connected");
        }
    }

    pub fn connect(&mut self, from: NodeId, to: NodeId) {
        if from != to {
            let id = self.link_between(from, to);
            let side = self.links.get(id).side(from);
            self.ask_for(id, side);
        }
    }

    /// An end wants the connection: tries to make it unless it is there or was already refused.
    fn ask_for(&mut self, id: LinkId, side: usize) {
        let link = self.links.get(id);
        link.ends[side].asked = true;
        if link.phase == LinkPhase::Up
            || link.ends[side].told != Told::Nothing
            || link.attempt_pending
        {
            return;
        }
        link.phase = LinkPhase::Connecting;
        // One round trip, as TCP's handshake.
        let there = self.links.get(id).lanes[side].transmit(
            self.now,
            0,
            &self.net.link,
            &mut self.streams.network,
        );
        let back = self.links.get(id).lanes[1 - side].transmit(
            there,
            0,
            &self.net.link,
            &mut self.streams.network,
        );
        self.push_attempt(id, back);
    }

    fn push_attempt(&mut self, id: LinkId, at: Nanos) {
        self.links.get(id).attempt_pending = true;
        self.queue.push(at, Event::Connect(id));
    }

    pub fn link_between(&mut self, a: NodeId, b: NodeId) -> LinkId {
        let links = self.links.len();
        let id = self.links.find_or_make(a, b);
        if self.links.len() > links {
            for node in [a, b] {
                if let Some(state) = self.nodes.get_mut(node.index()) {
                    state.links.push(id);
                }
            }
        }
        id
    }

    fn transmit(&mut self, id: LinkId, side: usize, msg: M::Msg) {
        let link = self.links.get(id);
        let epoch = link.epoch;
        let lane = &mut link.lanes[side];
        if self.net.repeat_after_reconnect > 0.0 {
            let recent = &mut lane.buffers().recent;
            recent.push_back(msg.clone());
            if recent.len() > self.net.repeat_at_most {
                recent.pop_front();
            }
        }
        let arrival = lane.transmit_in_order(
            self.now,
            M::size_of(&msg),
            &self.net.link,
            &mut self.streams.network,
        );
        self.queue.push(arrival, Event::Message { link: id, side, epoch, msg });
    }

    /// A message reached the receiver's end of its lane: what does the receiver get?
    pub fn arrive(
        &mut self,
        id: LinkId,
        side: usize,
        epoch: u32,
        msg: M::Msg,
    ) -> Option<(NodeId, Input<M>)> {
        let now = self.now;
        let link = self.links.get(id);
        let (from, to) = (link.nodes[side], link.nodes[1 - side]);
        if !link.still_arrives(side, epoch, now) {
            self.lose(from, to, "connection broken");
            return None;
        }
        // Also behind messages that have stalled already: order.
        if self.partitions.blocks(from, to) || self.links.get(id).lanes[side].has_stalled() {
            self.stall(id, side, epoch, msg);
            return None;
        }
        self.stats.delivered += 1;
        Some((to, Input::Message { from, msg }))
    }

    /// A partition is in a message's way: it waits, but only as long as its connection lives.
    fn stall(&mut self, id: LinkId, side: usize, epoch: u32, msg: M::Msg) {
        let link = self.links.get(id);
        let (from, to) = (link.nodes[side], link.nodes[1 - side]);
        if link.is_current(epoch) {
            self.trace_node(to, || format!("message from {from} stalls: {msg:?}"));
            self.links.get(id).lanes[side].buffers().stalled.push_back(msg);
        } else {
            link.cut_all(side); // nothing that follows may arrive without it
            self.lose(from, to, "connection broken and partitioned");
        }
    }

    /// The next stalled message of a lane arrives, if nothing blocks it any more.
    pub fn unstall(&mut self, id: LinkId, side: usize) -> Option<(NodeId, Input<M>)> {
        let link = self.links.get(id);
        let (from, to) = (link.nodes[side], link.nodes[1 - side]);
        if self.partitions.blocks(from, to) {
            return None;
        }
        let link = self.links.get(id);
        let msg = link.lanes[side].buffers().stalled.pop_front()?;
        if link.lanes[side].has_stalled() {
            self.queue.push(self.now, Event::Unstall { link: id, side });
        }
        self.stats.delivered += 1;
        Some((to, Input::Message { from, msg }))
    }

    /// The time of a connection attempt has come.
    pub fn attempt(&mut self, id: LinkId) {
        let now = self.now;
        let link = self.links.get(id);
        link.attempt_pending = false;
        let nodes = link.nodes;
        // Nobody is told of a new connection before he was told of the end of the old one.
        let notices = link.ends[0].last_notice.max(link.ends[1].last_notice);
        if link.phase == LinkPhase::Up {
            return;
        }
        if notices > now {
            return self.push_attempt(id, notices);
        }
        if self.can_connect(nodes) { self.establish(id) } else { self.refuse(id) }
    }

    fn can_connect(&self, nodes: [NodeId; 2]) -> bool {
        nodes.iter().all(|node| self.is_alive(*node)) && !self.partitions.separates(nodes)
    }

    fn establish(&mut self, id: LinkId) {
        let now = self.now;
        let link = self.links.get(id);
        link.begin_epoch(now);
        let nodes = link.nodes;
        for (node, peer) in [(nodes[0], nodes[1]), (nodes[1], nodes[0])] {
            let incarnation = self.nodes[peer.index()].incarnation;
            self.push_input(now, node, Input::Link { peer, state: LinkState::Up { incarnation } });
        }
        for side in [0, 1] {
            self.repeat_recent(id, side);
            for msg in self.links.get(id).lanes[side].take_waiting() {
                self.transmit(id, side, msg);
            }
        }
    }

    fn repeat_recent(&mut self, id: LinkId, side: usize) {
        if self.net.repeat_after_reconnect <= 0.0 {
            return;
        }
        // Taken in any case: only the last connection's messages are ever repeated.
        let recent = std::mem::take(&mut self.links.get(id).lanes[side].buffers().recent);
        if recent.is_empty() || !chance(&mut self.streams.network, self.net.repeat_after_reconnect)
        {
            return;
        }
        let skip = self.streams.network.random_range(0..recent.len());
        let nodes = self.links.get(id).nodes;
        self.trace_node(nodes[side], || {
            format!("repeats {} messages to {}", recent.len() - skip, nodes[1 - side])
        });
        for msg in recent.into_iter().skip(skip) {
            self.stats.duplicated += 1;
            self.transmit(id, side, msg);
        }
    }

    /// The attempt failed: the askers are told, and their messages are lost.
    fn refuse(&mut self, id: LinkId) {
        self.links.get(id).phase = LinkPhase::Down;
        for side in [0, 1] {
            let link = self.links.get(id);
            let (node, peer) = (link.nodes[side], link.nodes[1 - side]);
            if link.ends[side].asked && link.ends[side].told == Told::Nothing {
                let lost = link.lanes[side].take_waiting().len() as u64;
                self.stats.lost += lost;
                self.tell_down(id, side, self.now);
                self.trace_node(node, || format!("cannot connect to {peer}; {lost} messages lost"));
            }
        }
    }

    /// Tells an end that its connection is down, not before `earliest`; returns when.
    fn tell_down(&mut self, id: LinkId, side: usize, earliest: Nanos) -> Nanos {
        let delay = self.net.break_notice.sample(&mut self.streams.network);
        let link = self.links.get(id);
        let at = earliest.max(self.now.saturating_add(delay)).max(link.ends[side].last_notice);
        link.ends[side].told = Told::Down;
        link.ends[side].last_notice = at;
        let (node, peer) = (link.nodes[side], link.nodes[1 - side]);
        self.push_input(at, node, Input::Link { peer, state: LinkState::Down });
        at
    }

    /// Breaks the connection of two nodes, if there is one.
    pub fn break_connection(&mut self, a: NodeId, b: NodeId) -> bool {
        let Some(id) = self.links.find(a, b) else {
            return false;
        };
        if self.links.get(id).phase != LinkPhase::Up {
            return false;
        }
        self.break_link(id);
        true
    }

    fn break_link(&mut self, id: LinkId) {
        let now = self.now;
        self.links.get(id).phase = LinkPhase::Down;
        let mut told_at = now;
        for side in [0, 1] {
            let nodes = self.links.get(id).nodes;
            self.cut_lane(id, side, self.partitions.blocks(nodes[side], nodes[1 - side]));
        }
        for side in [0, 1] {
            // Messages that still arrive do so before the notice.
            let incoming = &self.links.get(id).lanes[1 - side];
            let earliest = if incoming.cut_epoch == 0 { now } else { incoming.cut_at.max(now) };
            told_at = told_at.max(self.tell_down(id, side, earliest));
        }
        let [a, b] = self.links.get(id).nodes;
        self.trace_line(|| format!("connection {a}-{b} breaks"));
        self.reconnect(id, told_at);
    }

    fn cut_lane(&mut self, id: LinkId, side: usize, everything: bool) {
        if everything {
            self.links.get(id).cut_all(side);
        } else {
            let now = self.now;
            self.links.get(id).cut(side, now, &mut self.streams.network);
        }
    }

    /// Schedules an attempt to connect again, if none is scheduled.
    fn reconnect(&mut self, id: LinkId, earliest: Nanos) {
        if !self.links.get(id).attempt_pending {
            let delay = self.net.reconnect.sample(&mut self.streams.network);
            self.push_attempt(id, earliest.saturating_add(delay));
        }
    }

    /// A node is gone: its connections break, and its next incarnation knows nothing of them.
    ///
    /// `in_order`: its sent messages still arrive. `silent`: no reset reaches the peers, they find out by time-out.
    pub fn drop_links_of(&mut self, node: NodeId, in_order: bool, silent: bool) {
        for id in self.nodes[node.index()].links.clone() {
            let now = self.now;
            let link = self.links.get(id);
            let side = link.side(node);
            let was_up = link.phase == LinkPhase::Up;
            let last_arrival = link.lanes[side].last_arrival;
            link.ends[side].told = Told::Nothing;
            link.ends[side].asked = false;
            link.ends[side].last_notice = now;
            link.cut_all(1 - side);
            if !was_up {
                // The peer's later messages still wait for the next incarnation.
                link.lanes[side].forget_all();
                link.lanes[1 - side].buffers().recent.clear();
                continue;
            }
            link.phase = LinkPhase::Down;
            let blocked = self
                .partitions
                .blocks(self.links.get(id).nodes[side], self.links.get(id).nodes[1 - side]);
            self.cut_lane(id, side, blocked);
            let link = self.links.get(id);
            if in_order && !blocked {
                link.lanes[side].cut_at = last_arrival.max(now);
            }
            // The next incarnation is another peer: nothing is repeated to it, nor by it.
            link.lanes.iter_mut().for_each(|lane| lane.forget_all());
            let cut = &link.lanes[side];
            let arrives_until = if cut.cut_epoch == 0 { now } else { cut.cut_at };
            let silence = if silent || blocked { self.net.stall_timeout } else { 0 };
            self.tell_down(id, 1 - side, arrives_until.max(now.saturating_add(silence)));
        }
    }

    /// Something became reachable again: stalled messages move, broken connections are made again.
    pub fn revive_links(&mut self, ids: impl IntoIterator<Item = LinkId>) {
        for id in ids {
            let link = self.links.get(id);
            let (nodes, phase) = (link.nodes, link.phase);
            for side in [0, 1] {
                if self.links.get(id).lanes[side].has_stalled()
                    && !self.partitions.blocks(nodes[side], nodes[1 - side])
                {
                    let lane = &mut self.links.get(id).lanes[side];
                    let at = lane.transmit_in_order(
                        self.now,
                        0,
                        &self.net.link,
                        &mut self.streams.network,
                    );
                    self.queue.push(at, Event::Unstall { link: id, side });
                }
            }
            if phase == LinkPhase::Down && self.can_connect(nodes) {
                self.reconnect(id, self.now);
            }
        }
    }

    pub fn revive_all_links(&mut self) {
        self.revive_links(0..self.links.len());
    }

    /// A partition began: connections across it break if it lasts.
    pub fn watch_separated_links(&mut self) {
        let at = self.now.saturating_add(self.net.stall_timeout);
        let separated: Vec<_> = self
            .links
            .iter()
            .filter(|(_, link)| {
                link.phase == LinkPhase::Up && self.partitions.separates(link.nodes)
            })
            .map(|(id, link)| (id, link.epoch))
            .collect();
        for (link, epoch) in separated {
            self.queue.push(at, Event::StallTimeout { link, epoch });
        }
    }

    /// A partition heals and begins again within one time-out: the connection breaks a little early, as it may.
    pub fn stall_timeout(&mut self, id: LinkId, epoch: u32) {
        let link = self.links.get(id);
        let stalls = link.phase == LinkPhase::Up && link.epoch == epoch;
        let nodes = link.nodes;
        if stalls && self.partitions.separates(nodes) {
            self.break_link(id);
        }
    }

    fn hold_lane(&mut self, from: NodeId, to: NodeId, by: Nanos) {
        let now = self.now;
        let id = self.link_between(from, to);
        let link = self.links.get(id);
        let side = link.side(from);
        let lane = &mut link.lanes[side];
        lane.free_at = lane.free_at.max(now).saturating_add(by);
    }

    pub fn lose(&mut self, from: NodeId, to: NodeId, why: &str) {
        self.stats.lost += 1;
        self.trace_node(from, || format!("message to {to} lost: {why}"));
    }
}
