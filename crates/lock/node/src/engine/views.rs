//! The outputs of the membership service.

use std::collections::BTreeMap;

use lockify_core::{NodeId, Time};

use super::NodeEngine;
use super::peer::Peer;
use crate::clock::wall;
use crate::event::HostEvent;
use crate::fence::Target;
use crate::membership::{
    Action, ClusterState, Event, Halt, LogWord, NodeEntry, NodeView, Request, Vote,
};
use crate::notice::Level;
use crate::wire::{Packet, Payload};

impl NodeEngine {
    /// Passes an event to the membership service and executes its actions.
    pub(super) fn membership_event(&mut self, now: Time, event: Event) {
        self.members.handle(now + self.skew, wall() / 1_000_000_000, event);
        self.act(now);
    }

    /// The next thing that the membership service wants done; last of all, this node's
    /// lockspaces are told to it again, if its life is a new one.
    fn next_action(&mut self, now: Time) -> Option<Action> {
        if let Some(action) = self.members.poll() {
            return Some(action);
        }
        if std::mem::take(&mut self.announce_soon) {
            let joins = self.joins();
            self.members.handle(now + self.skew, wall() / 1_000_000_000, Event::Spaces(joins));
        }
        self.members.poll()
    }

    /// Executes the membership service's actions.
    pub(super) fn act(&mut self, now: Time) {
        while let Some(action) = self.next_action(now) {
            match action {
                Action::Send { to, vote } => self.send_vote(to, vote, now),
                Action::Install(view) => self.install(view, now),
                Action::Halt(why) => self.halt(why, now),
                Action::Disconnect { node } => self.disconnect(node, now),
                Action::Cast(bytes) => {
                    if let Some(cluster) = &self.cluster {
                        cluster.cast(bytes);
                    }
                }
                Action::Fence { node, born } => self.run_agent(node, born),
                Action::Persist { number, image } => self.persist(number, image, now),
                Action::Reconnect => self.reconnect(now),
                Action::Nodes(nodes) => self.know_nodes(&nodes, now),
                Action::Answer { id, result } => {
                    self.pending.push(HostEvent::Requested { id, result });
                }
            }
        }
        self.lease_end = self.members.lease_end();
        self.members_due = self.members.next_timer();
    }

    /// Has the membership service's state written.
    fn persist(&mut self, number: u64, image: Vec<u8>, now: Time) {
        match &mut self.disk {
            Some(disk) if self.starts_alone => {
                let result = disk.write_now(&image);
                let success = result.is_ok();
                if let Err(e) = result {
                    self.notice(Level::Error, format!("cannot write the state: {e}; trying again"));
                }
                let event = Event::Persisted { number, success };
                self.members.handle(now + self.skew, wall() / 1_000_000_000, event);
            }
            Some(disk) => disk.write(number, image, &self.mailbox),
            // Kept in memory only, as the configuration says.
            None => self.members.handle(
                now + self.skew,
                wall() / 1_000_000_000,
                Event::Persisted { number, success: true },
            ),
        }
    }

    /// The node has a life now: peers get to know it by that.
    fn reconnect(&mut self, now: Time) {
        self.flush(now);
        self.incarnation = self.members.identity();
        for i in 0..self.peers.len() {
            self.begin_anew(i, now);
        }
        self.notice(Level::Info, format!("this node is in its life {} now", self.incarnation));
        self.rejoin_all();
        self.announce_soon = true;
    }

    /// The cluster has these nodes: peers that are new are dialled, and those that are gone no more.
    fn know_nodes(&mut self, nodes: &BTreeMap<NodeId, NodeEntry>, now: Time) {
        for p in &mut self.peers {
            p.removed = !nodes.contains_key(&p.node);
        }
        let me = self.identity.node;
        for (node, entry) in nodes.iter().filter(|(n, _)| **n != me) {
            match self.peer_of(*node) {
                Some(at) => self.peers[at].moved_to(&entry.address, &self.identity),
                None => {
                    let peer = Peer::new(
                        *node,
                        vec![entry.address.clone()],
                        &self.identity,
                        self.incarnation,
                        self.backlog,
                        now,
                    );
                    self.peers.push(peer);
                }
            }
        }
    }

    /// Requests a change of the cluster's agreed state; [`HostEvent::Requested`] has the result.
    pub fn request(&mut self, request: Request) -> u64 {
        let id = self.next_request;
        self.next_request += 1;
        let now = self.now();
        self.membership_event(now, Event::Request { id, request });
        self.settle(now);
        id
    }

    /// The agreed state of the cluster, if its membership keeps one.
    pub fn cluster(&self) -> Option<&ClusterState> {
        self.members.cluster()
    }

    /// Where a node is in the list of peers.
    pub(super) fn peer_of(&self, node: NodeId) -> Option<usize> {
        self.peers.iter().position(|p| p.node == node)
    }

    fn send_vote(&mut self, to: NodeId, vote: Vote, now: Time) {
        let Some(peer) = self.peer_of(to) else { return };
        let Some(at) = self.peers[peer].conn else { return };
        // Beats carry the acknowledgement of whatever no message has acknowledged.
        let beats = matches!(vote, Vote::Beat { .. } | Vote::Log(LogWord::Beat { .. }));
        if beats && self.peers[peer].link.unacknowledged() > 0 {
            self.acknowledge(peer, now);
        }
        let due = self.delayed_until(now);
        // Only a goodbye stays behind earlier messages.
        match vote {
            Vote::Goodbye => self.put(at, &Packet::<Payload>::Vote(vote), due),
            vote => self.put_urgent(at, &Packet::<Payload>::Vote(vote), due),
        }
    }

    fn install(&mut self, view: NodeView, now: Time) {
        self.view_changes += 1;
        let members: Vec<String> = view.members.iter().map(|m| m.node.to_string()).collect();
        let text = format!("view {}: nodes {}", view.seq, members.join(" "));
        self.notice(Level::Info, text);
        self.forget_gone(&view);
        self.pending.push(HostEvent::View(view.clone()));
        for at in 0..self.spaces.len() {
            let part = self.spaces[at].as_ref().and_then(|s| view.space(&s.name));
            if let Some(part) = part {
                self.enter(at, part, now);
            }
        }
        self.leave_misfits(now);
    }

    /// Messages to a life that is over need not be kept.
    fn forget_gone(&mut self, view: &NodeView) {
        for i in 0..self.peers.len() {
            let p = &mut self.peers[i];
            if p.conn.is_none() && p.link.peer().is_some() && view.life(p.node) != p.link.peer() {
                p.forget(self.incarnation, self.backlog);
                self.note_backlog(i);
            }
        }
    }

    /// This node may not act any more: every lock is lost.
    fn halt(&mut self, why: Halt, now: Time) {
        self.stats.halts += 1;
        self.notice(Level::Error, why.to_string());
        self.pending.push(HostEvent::QuorumLost);
        for at in 0..self.spaces.len() {
            self.halt_space(at, now);
        }
        self.parting = true;
    }

    /// Every client knows that its locks are lost: tells the peers, so that they need not wait for
    /// this node's lease, and begins a new life.
    pub(super) fn part(&mut self, now: Time) {
        self.parting = false;
        self.say_goodbye(now);
        // Peers must not be dialled under this node's former identity.
        self.membership_event(now, Event::Reborn { life: self.incarnation });
        self.incarnation = self.members.identity();
        for i in 0..self.peers.len() {
            self.begin_anew(i, now);
        }
        self.announce(now);
    }

    fn say_goodbye(&mut self, now: Time) {
        let to: Vec<NodeId> = self.peers.iter().map(|p| p.node).collect();
        for node in to {
            self.send_vote(node, Vote::Goodbye, now);
        }
        self.release_delayed(Time::MAX);
        self.flush(now);
    }

    /// Has the agent fence a node.
    fn run_agent(&mut self, node: NodeId, born: u64) {
        let address = self.peers.iter().find(|p| p.node == node).map(|p| p.host().to_owned());
        let address = address.unwrap_or_default();
        let name = self.names.get(&node).unwrap_or(&address).clone();
        self.notice(
            Level::Warning,
            format!("node {node} ({name}) is left behind: running the agent that fences it"),
        );
        let shard = self.identity.shard;
        self.fencer.fence(Target { node, name, address, born, shard }, self.mailbox.clone());
    }

    /// Closes the connection to a peer and forgets its messages to this life.
    fn begin_anew(&mut self, peer: usize, now: Time) {
        let p = &mut self.peers[peer];
        let (conn, dialing) = (p.conn.take(), p.dialing.take());
        p.forget(self.incarnation, self.backlog);
        p.dial_soon(now);
        let node = p.node;
        for at in [conn, dialing].into_iter().flatten() {
            self.conns.try_remove(at);
        }
        self.silence(node);
        self.note_backlog(peer);
    }

    /// Closes the connection to a peer that is silent or said goodbye.
    fn disconnect(&mut self, node: NodeId, now: Time) {
        let Some(peer) = self.peer_of(node) else { return };
        if let Some(at) = self.peers[peer].conn {
            self.close(at, "silent for too long, or it said goodbye".into(), now);
        }
    }

    /// Tells the peers that this process ends, so that they need not wait for its lease, and
    /// closes the connections. Locks still held are lost and recovered as after a crash: leave
    /// first. The engine is of no use afterwards.
    pub fn goodbye(&mut self) {
        let now = self.now();
        for at in 0..self.spaces.len() {
            if let Some(s) = self.spaces[at].as_mut() {
                s.leaving = true;
            }
            self.halt_space(at, now);
        }
        self.say_goodbye(now);
        self.cluster = None;
        self.conns.clear();
        self.listener = None;
        self.other_listeners.clear();
        for p in &mut self.peers {
            (p.conn, p.dialing, p.next_dial) = (None, None, Time::MAX);
        }
    }
}
