//! Carries the lock manager's messages over the simulated network.
//!
//! Between two incarnations every message arrives once and in order, even if connections break. The same [`Link`] as
//! in a real node does that. If the lock manager resends claims, it protects claims and their replies by itself. They
//! then travel as datagrams.

use lockify_core::link::{Frame, Hello, Link, LinkError};
use lockify_core::message::{Body, Message};
use lockify_core::{NodeId, View};
use lockify_membership::Vote;
use serde::{Deserialize, Serialize};

use crate::host::{HostContext, sim_id};

/// Frames received after which the peer is told, if nothing else is sent to it.
const ACKNOWLEDGE_AFTER: u64 = 64;

/// A packet between nodes.
#[derive(Clone, Debug)]
pub enum Packet {
    /// First on every connection.
    Hello {
        /// The identity by which the membership service knows the sender's connections.
        identity: u64,
        /// The numbers that the sender has received.
        link: Hello,
    },
    /// A message between membership services, which is never sent again.
    Vote(Vote),
    /// A message that is sent again until it is acknowledged.
    Frame(Frame<Message>),
    /// A message that may be lost, doubled and overtaken.
    Datagram {
        /// The sender's incarnation.
        from: u64,
        /// The incarnation that is meant.
        to: u64,
        /// The message.
        message: Message,
    },
}

impl Packet {
    /// The lock manager's message in it.
    pub fn message(&self) -> Option<&Message> {
        match self {
            Packet::Hello { .. } | Packet::Vote(_) => None,
            Packet::Frame(frame) => frame.payload.as_ref(),
            Packet::Datagram { message, .. } => Some(message),
        }
    }
}

/// Returns true if the lock manager itself protects this message against loss and duplication.
pub fn may_be_datagram(body: &Body) -> bool {
    matches!(body, Body::Claims(_) | Body::ClaimReplies(_))
}

/// One node's connections.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
pub struct Transport {
    incarnation: u64,
    datagrams: bool,
    /// By node, whose numbers are dense: a search would cost large clusters more than the link itself does.
    links: Vec<Option<Link<Message>>>,
}

impl Transport {
    /// No connections yet.
    pub fn new(incarnation: u64, datagrams: bool) -> Transport {
        Transport { incarnation, datagrams, links: Vec::new() }
    }

    fn link(&mut self, peer: NodeId) -> &mut Link<Message> {
        // The simulated host has no back-pressure: workloads are closed loops.
        let incarnation = self.incarnation;
        let index = peer.0 as usize;
        if self.links.len() <= index {
            self.links.resize_with(index + 1, || None);
        }
        self.links[index].get_or_insert_with(|| Link::new(incarnation, usize::MAX))
    }

    /// Sends to the incarnation of `to` in `view`. A node outside the view has no incarnation to send to.
    pub fn send(&mut self, cx: &mut HostContext<'_>, view: &View, to: NodeId, message: Message) {
        // In order of nodes, once a lockspace has it; large clusters send much.
        let Ok(found) = view.members.binary_search_by_key(&to, |member| member.node) else {
            return;
        };
        let member = view.members[found];
        if self.datagrams && may_be_datagram(&message.body) {
            let (from, life) = (self.incarnation, member.incarnation);
            return cx.send_datagram(sim_id(to), Packet::Datagram { from, to: life, message });
        }
        let incarnation = self.incarnation;
        let link = self.link(to);
        match link.peer() {
            // That life has ended; the next view will say so.
            Some(life) if life > member.incarnation => return,
            // The view is ahead of the network: messages for the former life must not go along.
            Some(life) if life < member.incarnation => *link = Link::new(incarnation, usize::MAX),
            _ => {}
        }
        cx.connect(sim_id(to));
        if let Some(frame) = link.send(message) {
            cx.send(sim_id(to), Packet::Frame(owned(frame)));
        }
    }

    /// The connection with a peer is up: introduce ourselves.
    pub fn up(&mut self, cx: &mut HostContext<'_>, peer: NodeId, identity: u64) {
        let link = self.link(peer).hello();
        cx.send(sim_id(peer), Packet::Hello { identity, link });
    }

    /// The connection with a peer is down.
    pub fn down(&mut self, peer: NodeId) {
        self.link(peer).disconnect();
    }

    /// A packet came; returns the message to handle.
    ///
    /// # Errors
    /// The link's promise is broken: a defect of the link or of the simulated network.
    pub fn receive(
        &mut self,
        cx: &mut HostContext<'_>,
        from: NodeId,
        packet: Packet,
    ) -> Result<Option<Message>, LinkError> {
        match packet {
            Packet::Hello { link, .. } => self.greeted(cx, from, link).map(|()| None),
            Packet::Vote(_) => Ok(None),
            Packet::Frame(frame) => self.frame(cx, from, frame),
            Packet::Datagram { from: life, to, message } => {
                let known = self.link(from).peer();
                let current = known.is_none_or(|known| known == life) && to == self.incarnation;
                Ok(current.then_some(message))
            }
        }
    }

    fn greeted(
        &mut self,
        cx: &mut HostContext<'_>,
        from: NodeId,
        hello: Hello,
    ) -> Result<(), LinkError> {
        let link = self.link(from);
        match link.connect(hello) {
            Err(LinkError::OldLife { .. }) => return Ok(()),
            other => other?,
        };
        let frames: Vec<_> = link.resend().map(owned).collect();
        for frame in frames {
            cx.send(sim_id(from), Packet::Frame(frame));
        }
        Ok(())
    }

    fn frame(
        &mut self,
        cx: &mut HostContext<'_>,
        from: NodeId,
        frame: Frame<Message>,
    ) -> Result<Option<Message>, LinkError> {
        let link = self.link(from);
        let message = match link.receive(frame) {
            Err(LinkError::WrongLife { .. }) => return Ok(None),
            // The sender has not noticed yet that the connection was replaced, where a socket would
            // have failed. It greets and resends when it does. If it never did, the run would not
            // come to rest.
            Err(LinkError::Gap { .. }) => return Ok(None),
            other => other?,
        };
        if link.unacknowledged() >= ACKNOWLEDGE_AFTER
            && let Some(frame) = link.acknowledgement()
        {
            cx.send(sim_id(from), Packet::Frame(frame));
        }
        Ok(message)
    }
}

fn owned(frame: Frame<&Message>) -> Frame<Message> {
    let Frame { from, to, seq, ack, payload } = frame;
    Frame { from, to, seq, ack, payload: payload.cloned() }
}
