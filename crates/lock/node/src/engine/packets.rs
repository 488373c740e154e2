//! The messages of connected peers.

use lockify_core::link::Frame;
use lockify_core::{Input, Message, Time};

use super::NodeEngine;
use super::work::WINDOW;
use crate::conn::ConnStage;
use crate::event::HostEvent;
use crate::membership::Event;
use crate::wire::{Greeting, Packet, Payload, decode_greeting, decode_packet, is_greeting};

/// Messages received after which an acknowledgement is sent that nothing else carried.
const ACK_EVERY: u64 = 64;

impl NodeEngine {
    /// Handles a frame; false if none is complete.
    pub(super) fn handle_frame(&mut self, at: usize, peer: usize, now: Time) -> bool {
        let conn = &mut self.conns[at];
        if is_greeting(conn.pending()) {
            return self.hear_refusal(at, peer, now);
        }
        match decode_packet(conn.pending()) {
            Ok(None) => return false,
            Ok(Some((packet, used))) => {
                conn.socket.inbox.skip(used);
                self.stats.frames_received += 1;
                self.handle_packet(at, peer, packet, now);
            }
            Err(e) => self.reject(at, peer, &e.to_string(), now),
        }
        true
    }

    /// A peer that this node has admitted may still refuse this node: it answers an introduction with a refusal, where
    /// frames would follow. False if that is not complete.
    fn hear_refusal(&mut self, at: usize, peer: usize, now: Time) -> bool {
        match decode_greeting(self.conns[at].pending()) {
            Ok(None) => return false,
            Ok(Some((Greeting::Refusal(why), _))) => {
                self.refused(at, ConnStage::Up { peer }, &why, now)
            }
            Ok(Some(_)) => self.reject(at, peer, "a second introduction", now),
            Err(_) => self.reject(at, peer, "a greeting that is none", now),
        }
        true
    }

    /// Closes a connection on which a peer sent a forbidden message.
    fn reject(&mut self, at: usize, peer: usize, why: &str, now: Time) {
        let node = self.peers[peer].node;
        self.complain(format!(
            "node {node} sent {why}: the connection was closed and is made anew; \
             if this repeats, check that both run the same release"
        ));
        self.stats.rejected += 1;
        self.close(at, format!("the peer sent {why}"), now);
    }

    fn handle_packet(&mut self, at: usize, peer: usize, packet: Packet, now: Time) {
        if self.parting {
            // It was meant for the life that has just ended.
            return;
        }
        match packet {
            Packet::Data { seq, ack, payload } => {
                self.receive(at, peer, seq, ack, Some(payload), now);
            }
            Packet::Ack { ack } => self.receive(at, peer, 0, ack, None, now),
            Packet::Vote(vote) => {
                let from = self.peers[peer].node;
                self.membership_event(now, Event::Vote { from, vote });
            }
            Packet::Ask { id, query } => self.answer(at, peer, id, query, now),
            Packet::Tell { id, part, last } => {
                let node = self.peers[peer].node;
                self.collect(node, id, part, last);
            }
        }
    }

    fn receive(
        &mut self,
        at: usize,
        peer: usize,
        seq: u64,
        ack: u64,
        payload: Option<Payload>,
        now: Time,
    ) {
        let p = &mut self.peers[peer];
        let (from, to) = (p.link.peer().unwrap_or(0), self.incarnation);
        match p.link.receive(Frame { from, to, seq, ack, payload }) {
            Ok(None) => {}
            Ok(Some(Payload::Open { space, name })) => {
                p.channels.insert(space, name);
            }
            Ok(Some(Payload::Lock { space, message })) => self.lock(peer, space, message, now),
            Err(e) => return self.reject(at, peer, &e.to_string(), now),
        }
        self.note_backlog(peer);
        let link = &self.peers[peer].link;
        if link.unacknowledged() >= ACK_EVERY || link.unacknowledged_weight() >= WINDOW / 4 {
            self.acknowledge(peer, now);
        }
    }

    /// Acknowledges received payloads to a peer.
    pub(super) fn acknowledge(&mut self, peer: usize, now: Time) {
        let due = self.delayed_until(now);
        let p = &mut self.peers[peer];
        let (Some(at), Some(frame)) = (p.conn, p.link.acknowledgement()) else { return };
        self.put_urgent(at, &Packet::<Payload>::Ack { ack: frame.ack }, due);
    }

    /// A message of a lockspace.
    fn lock(&mut self, peer: usize, number: u32, message: Message, now: Time) {
        let p = &self.peers[peer];
        let from = p.node;
        let name = p.channels.get(&number).map(String::as_str).unwrap_or_default();
        let Some(at) = self.spaces.iter().position(|s| s.as_ref().is_some_and(|s| s.name == name))
        else {
            self.stats.strays += 1;
            return;
        };
        let Some(space) = self.spaces[at].as_ref() else { return };
        if space.is_stale(from, message.view) {
            self.stats.strays += 1;
            return;
        }
        self.log_message(at, from, self.identity.node, &message.body);
        let Some(space) = self.spaces[at].as_mut() else { return };
        // Only client calls fail.
        let _ = space.core.handle(now, Input::Receive { from, message });
        self.drain(at, now);
    }

    /// Says so when a peer's backlog goes over its limit, or has fallen to half of it.
    pub(super) fn note_backlog(&mut self, peer: usize) {
        let half = self.backlog / 2;
        let p = &mut self.peers[peer];
        let congested = if p.congested { p.link.backlog() > half } else { p.link.over_limit() };
        if congested != p.congested {
            p.congested = congested;
            let peer = p.node;
            self.pending.push(HostEvent::Congested { peer, congested });
        }
    }
}
