//! Making, reading, writing and closing connections.

use std::io::ErrorKind;
use std::net::SocketAddr;

use lockify_core::link::Frame;
use lockify_core::{NodeId, Time};
use lockify_trust::{Reading, Security};
use mio::net::TcpStream;
use mio::{Interest, Token};
use serde::Serialize;

use super::{FIRST_CONN, MS, NodeEngine};
use crate::conn::{Conn, ConnStage, Origin};
use crate::membership::Event;
use crate::news::News;
use crate::notice::Level;
use crate::wire::{Packet, Part, Payload, encode_packet};

/// Connections that are accepted before those that are there have their turn.
const ACCEPTS: usize = 64;
/// Reads of one connection before the others have their turn.
const READS: usize = 8;
/// Bytes that are written to one connection before the others have their turn, about.
const WRITE: usize = 1024 * 1024;
/// The kernel's buffer of a connection, in bytes (it takes twice as much for its own records).
/// Urgent frames wait behind it.
const IN_KERNEL: usize = 256 * 1024;
/// A part of an answer is closed when it has this many bytes.
const PART: usize = 128 * 1024;

impl NodeEngine {
    /// Dials the peers that are due.
    pub(super) fn dial(&mut self, now: Time) {
        for i in 0..self.peers.len() {
            if self.peers[i].due() <= now {
                self.dial_peer(i, now);
            }
        }
    }

    fn dial_peer(&mut self, peer: usize, now: Time) {
        match self.peers[peer].address(self.identity.shard) {
            Some(address) => self.dial_address(peer, address, now),
            None => self.look_up(peer),
        }
    }

    /// Looks a peer's name up, on a thread: the system may take long to answer.
    fn look_up(&mut self, peer: usize) {
        let p = &mut self.peers[peer];
        p.looking_up = true;
        let (node, place, mailbox) = (p.node, p.place().to_owned(), self.mailbox.clone());
        let look = move || {
            let addresses = std::net::ToSocketAddrs::to_socket_addrs(&place)
                .map(Iterator::collect)
                .map_err(|e| e.to_string());
            mailbox.post(News::Resolved { node, addresses });
        };
        let thread = std::thread::Builder::new().name("lockify-names".into()).spawn(look);
        if let Err(e) = thread {
            self.mailbox.post(News::Resolved { node, addresses: Err(e.to_string()) });
        }
    }

    /// A peer's name was looked up.
    pub(super) fn resolved(
        &mut self,
        node: NodeId,
        addresses: Result<Vec<SocketAddr>, String>,
        now: Time,
    ) {
        let Some(peer) = self.peer_of(node) else { return };
        let shard = self.identity.shard;
        let p = &mut self.peers[peer];
        p.looking_up = false;
        match addresses.map(|all| all.first().copied()) {
            Ok(Some(address)) => {
                let address = super::shard_address(address, shard).unwrap_or(address);
                self.admission.knows(address.ip());
                if self.peers[peer].wants_dial() {
                    self.dial_address(peer, address, now);
                }
            }
            other => {
                let why = other.err().unwrap_or_else(|| "it has no address".into());
                p.error = Some(format!("cannot look up {}: {why}", p.place()));
                p.back_off(now);
                p.try_next();
            }
        }
    }

    fn dial_address(&mut self, peer: usize, address: SocketAddr, now: Time) {
        let stage = ConnStage::Dialing { peer, probe: !self.peers[peer].dials };
        match TcpStream::connect(address) {
            Ok(stream) => {
                let conn = self.add(Conn::new(stream, address, Origin::Dialled, stage, now));
                self.peers[peer].dialing = conn;
                if conn.is_none() {
                    self.peers[peer].back_off(now);
                }
            }
            Err(e) => self.dial_failed(peer, e.kind(), now),
        }
    }

    /// Registers a connection for good: edge-triggered, so that nothing need be changed later.
    fn add(&mut self, mut conn: Conn) -> Option<usize> {
        let entry = self.conns.vacant_entry();
        let token = Token(FIRST_CONN + entry.key());
        let both = Interest::READABLE | Interest::WRITABLE;
        // Without it, more waits in the kernel; that is all.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(conn.socket.stream(), IN_KERNEL);
        self.poll.registry().register(&mut conn.socket, token, both).ok()?;
        let key = entry.key();
        entry.insert(conn);
        self.stats.connections += 1;
        Some(key)
    }

    fn dial_failed(&mut self, peer: usize, kind: ErrorKind, now: Time) {
        let p = &mut self.peers[peer];
        p.dialing = None;
        p.back_off(now);
        p.error = Some(format!("cannot connect to {}: {kind}", p.place()));
        p.try_next();
        let proof = kind == ErrorKind::ConnectionRefused && p.same_host && p.conn.is_none();
        if proof && !p.dead {
            p.dead = true;
            let node = p.node;
            self.membership_event(now, Event::Dead { node });
        }
    }

    pub(super) fn accept(&mut self, now: Time) {
        self.accept_again = Time::MAX;
        for at in 0..=self.other_listeners.len() {
            self.accept_from(at, now);
        }
    }

    /// Accepts at one of this node's addresses.
    fn accept_from(&mut self, at: usize, now: Time) {
        for _ in 0..ACCEPTS {
            let others = || self.other_listeners.get(at.checked_sub(1)?);
            let Some(listener) = others().or(self.listener.as_ref().filter(|_| at == 0)) else {
                return;
            };
            match listener.accept() {
                Ok((stream, address)) => match self.may_enter(address.ip(), now) {
                    Some(origin) => self.welcome(stream, address, origin, now),
                    None => {
                        self.stats.turned_away += 1;
                        let from = address.ip();
                        self.complain(format!("{from}: dropped, too many connections at once"));
                    }
                },
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) => {
                    self.complain(format!("cannot accept connections: {e}; trying again"));
                    self.accept_again = now + 100 * MS;
                    return;
                }
            }
        }
        // The event queue will not tell again of those that are left.
        self.accept_again = now;
    }

    fn welcome(&mut self, stream: TcpStream, address: SocketAddr, origin: Origin, now: Time) {
        // A stream that takes no options is broken, which the first read shows.
        let _ = stream.set_nodelay(true);
        let mut conn = Conn::new(stream, address, origin, ConnStage::Accepted, now);
        if let Security::Tls(keyring) = &self.security {
            match keyring.current().accept() {
                Ok(session) => conn.socket.secure(session),
                Err(e) => return self.complain(format!("{address}: dropped: {e}")),
            }
        }
        self.add(conn);
    }

    pub(super) fn connection_event(&mut self, at: usize, event: &mio::event::Event, now: Time) {
        let Some(conn) = self.conns.get_mut(at) else { return };
        if let ConnStage::Dialing { peer, probe } = conn.stage {
            self.dialled(at, peer, probe, now);
            if self.conns.get(at).is_none_or(|c| matches!(c.stage, ConnStage::Dialing { .. })) {
                return;
            }
        }
        let Some(conn) = self.conns.get_mut(at) else { return };
        if conn.blocked && event.is_writable() {
            conn.blocked = false;
            self.mark(at);
        }
        let ended = event.is_read_closed() || event.is_error();
        if event.is_readable() || ended {
            self.readable(at, ended, now);
        }
    }

    /// A connection that was dialled is there, or failed, or neither yet.
    fn dialled(&mut self, at: usize, peer: usize, probe: bool, now: Time) {
        let conn = &mut self.conns[at];
        let stream = conn.socket.stream();
        let failed = match (stream.take_error(), stream.peer_addr()) {
            (Ok(Some(e)) | Err(e), _) => Some(e.kind()),
            (_, Err(e)) if e.kind() == ErrorKind::NotConnected => return,
            (_, Err(e)) => Some(e.kind()),
            (_, Ok(_)) => None,
        };
        if let Some(kind) = failed {
            self.conns.remove(at);
            self.dial_failed(peer, kind, now);
        } else if probe {
            self.conns.remove(at);
            self.peers[peer].dialing = None;
            self.peers[peer].back_off(now);
        } else {
            let _ = stream.set_nodelay(true);
            conn.stage = ConnStage::Introduced { peer };
            conn.since = now;
            if let Security::Tls(keyring) = &self.security {
                match keyring.current().dial(self.peers[peer].node.0) {
                    Ok(session) => conn.socket.secure(session),
                    Err(e) => return self.close(at, e.to_string(), now),
                }
            }
            self.introduce(at, peer);
        }
    }

    /// Reads and handles what came on a connection. `ended`: the peer's end may have come with
    /// data before it, as one event, so that a short read does not mean that nothing is left.
    pub(super) fn readable(&mut self, at: usize, ended: bool, now: Time) {
        for _ in 0..READS {
            if self.is_turn_over() {
                break;
            }
            let Some(conn) = self.conns.get_mut(at) else { return };
            if matches!(conn.stage, ConnStage::Dialing { .. }) {
                return;
            }
            let (came, reading) = conn.read();
            self.stats.reads += 1;
            self.stats.bytes_received += came as u64;
            self.handle_input(at, now);
            if self.conns.get(at).is_some_and(Conn::wants_write) {
                self.mark(at);
            }
            match reading {
                Reading::Drained if came == 0 || !ended => return,
                Reading::Drained | Reading::More => {}
                Reading::Closed(error) => {
                    self.close(at, error.map_or_else(String::new, |e| e.to_string()), now);
                    return;
                }
                Reading::Distrusted(why) => return self.distrust(at, &why, now),
            }
        }
        if !self.unread.contains(&at) {
            self.unread.push(at);
        }
    }

    /// Closes a connection; `why` goes into the status if not empty.
    pub(super) fn close(&mut self, at: usize, why: String, now: Time) {
        let Some(conn) = self.conns.try_remove(at) else { return };
        match conn.stage {
            ConnStage::Up { peer } => {
                let p = &mut self.peers[peer];
                p.conn = None;
                p.link.disconnect();
                p.try_next();
                p.dial_soon(now);
                p.error =
                    Some(if why.is_empty() { "the connection was closed".into() } else { why });
                let node = p.node;
                self.silence(node);
                self.membership_event(now, Event::Disconnected { node });
            }
            ConnStage::Introduced { peer } | ConnStage::Dialing { peer, .. } => {
                let p = &mut self.peers[peer];
                p.dialing = None;
                p.back_off(now);
                if !why.is_empty() {
                    p.error = Some(why);
                } else if p.error.is_none() {
                    p.error = Some(format!("{} closed the connection at once", p.place()));
                }
                p.try_next();
            }
            ConnStage::Accepted | ConnStage::Closing => {}
        }
    }

    /// When something must be done about a connection.
    pub(super) fn due(&self, conn: &Conn) -> Time {
        let delayed = conn.delayed.front().map_or(Time::MAX, |(t, _)| *t);
        match conn.stage {
            ConnStage::Up { .. } => delayed,
            // The other addresses have their turns before a lease is over.
            ConnStage::Dialing { peer, .. } => {
                conn.since + self.patience() / self.peers[peer].links() as Time
            }
            _ => conn.since + self.patience(),
        }
    }

    /// How long introductions may take.
    fn patience(&self) -> Time {
        self.lease.max(1000 * MS)
    }

    /// Closes connections that did not get anywhere in time.
    pub(super) fn expire(&mut self, now: Time) {
        let late = |c: &Conn| !matches!(c.stage, ConnStage::Up { .. }) && self.due(c) <= now;
        let late: Vec<usize> = self.conns.iter().filter(|(_, c)| late(c)).map(|(i, _)| i).collect();
        for at in late {
            self.close(at, "no answer in time".into(), now);
        }
    }

    /// Remembers that a connection has something to write.
    pub(super) fn mark(&mut self, at: usize) {
        if let Some(conn) = self.conns.get_mut(at)
            && !conn.dirty
        {
            conn.dirty = true;
            self.dirty.push(at);
        }
    }

    /// Writes as much as sockets take. If there is much, it does not write all, even to a socket
    /// that takes it as fast as it comes.
    pub(super) fn flush(&mut self, now: Time) {
        self.write_histories();
        let mut again = Vec::new();
        while let Some(at) = self.dirty.pop() {
            let Some(conn) = self.conns.get_mut(at) else { continue };
            conn.dirty = false;
            let before = conn.out.len();
            let result = conn.write(WRITE);
            self.stats.writes += 1;
            self.stats.bytes_sent += (before - conn.out.len()) as u64;
            let (flushed, stage) = (conn.is_flushed(), conn.stage);
            if !flushed && conn.wants_turn() {
                again.push(at);
            }
            match result {
                Err(kind) if matches!(stage, ConnStage::Introduced { .. }) => {
                    self.last_words(at, stage, kind, now);
                }
                Err(kind) => self.close(at, kind.to_string(), now),
                // The other side closes when it has read that. A side that closes with unread input discards its own
                // last output (RFC 1122, 4.2.2.13).
                Ok(()) if flushed && stage == ConnStage::Closing => {
                    let _ = conn.socket.stream().shutdown(std::net::Shutdown::Write);
                }
                Ok(()) if flushed => self.next_answer(at),
                Ok(()) => {}
            }
        }
        again.into_iter().for_each(|at| self.mark(at));
    }

    /// Puts the next part of an answer into an empty buffer.
    fn next_answer(&mut self, at: usize) {
        let Some(conn) = self.conns.get_mut(at) else { return };
        let Some((id, resources, rest)) = conn.answers.front_mut() else { return };
        let (id, rest, mut part, mut size) = (*id, *rest, Vec::new(), 0);
        while size < PART
            && let Some(r) = resources.pop()
        {
            size += 128 + 64 * r.locks.len() + r.lvb.as_ref().map_or(0, |l| l.0.len());
            part.push(r);
        }
        let last = resources.is_empty();
        if last {
            conn.answers.pop_front();
        }
        let part = Part::Resources(part);
        let packet = Packet::<Payload>::Tell { id, part, last: last && rest.is_none() };
        self.put(at, &packet, 0);
        if let Some(rest) = rest.filter(|_| last) {
            self.put(at, &Packet::<Payload>::Tell { id, part: Part::Rest(rest), last }, 0);
        }
    }

    /// Moves messages whose delay is over to where they are written from.
    pub(super) fn release_delayed(&mut self, now: Time) {
        if self.delay == 0 {
            return;
        }
        for at in 0..self.conns.capacity() {
            let Some(conn) = self.conns.get_mut(at) else { continue };
            let before = conn.delayed.len();
            while conn.delayed.front().is_some_and(|(t, _)| *t <= now)
                && let Some((_, bytes)) = conn.delayed.pop_front()
            {
                conn.out.append(|out| out.extend_from_slice(&bytes));
            }
            if conn.delayed.len() < before {
                self.mark(at);
            }
        }
    }

    /// Queues a packet on a connection: until `due`, if that is not 0.
    pub(super) fn put<P: Serialize>(&mut self, at: usize, packet: &Packet<P>, due: Time) {
        self.put_in(at, packet, due, false);
    }

    /// The same before everything else that has not begun to be written.
    pub(super) fn put_urgent(&mut self, at: usize, packet: &Packet<Payload>, due: Time) {
        self.put_in(at, packet, due, true);
    }

    fn put_in<P: Serialize>(&mut self, at: usize, packet: &Packet<P>, due: Time, urgent: bool) {
        let Some(conn) = self.conns.get_mut(at) else { return };
        self.stats.frames_sent += 1;
        let result = if due == 0 && urgent {
            conn.out.append_urgent(|out| encode_packet(out, packet))
        } else if due == 0 {
            conn.out.append(|out| encode_packet(out, packet))
        } else {
            let mut bytes = Vec::new();
            let result = encode_packet(&mut bytes, packet);
            conn.delayed.push_back((due, bytes));
            result
        };
        if due == 0 {
            self.mark(at);
        } else {
            self.set_timer(due);
        }
        if let Err(e) = result {
            self.notice(Level::Error, format!("a message was not sent: {e}; please report this"));
        }
    }

    /// When a packet sent now may be written; 0: at once.
    pub(super) fn delayed_until(&self, now: Time) -> Time {
        if self.delay == 0 { 0 } else { now + self.delay }
    }

    /// Sends a message of a link.
    pub(super) fn transmit(&mut self, peer: usize, payload: Payload, now: Time) {
        let due = self.delayed_until(now);
        let NodeEngine { peers, conns, stats, .. } = self;
        let p = &mut peers[peer];
        let at = p.conn;
        let Some(frame) = p.link.send(payload) else { return self.note_backlog(peer) };
        let Frame { seq, ack, payload: Some(payload), .. } = frame else { return };
        let Some(at) = at else { return };
        if due == 0
            && let Some(conn) = conns.get_mut(at)
        {
            // The usual case, without an owned copy of the message.
            stats.frames_sent += 1;
            let packet = Packet::Data { seq, ack, payload };
            if let Err(e) = conn.out.append(|out| encode_packet(out, &packet)) {
                self.notice(Level::Error, format!("a message was not sent: {e}; please report it"));
            }
            self.mark(at);
        } else {
            let packet = Packet::Data { seq, ack, payload: payload.clone() };
            self.put(at, &packet, due);
        }
        self.note_backlog(peer);
    }
}
