//! One connection: its buffers, and its progress.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;

use lockify_core::{ResourceInfo, Time};
use lockify_trust::{Reading, Secured};
use mio::net::TcpStream;

use crate::outbox::Outbox;
use crate::page::Rest;
use crate::wire::{MAX_FRAME, PREFIX};

/// The bytes that are read at once.
pub(crate) const READ: usize = 64 * 1024;

/// The progress of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnStage {
    /// Dialled, not connected yet. `probe`: only to see whether anybody listens.
    Dialing { peer: usize, probe: bool },
    /// Accepted; the peer has not introduced itself.
    Accepted,
    /// Connected, and this node has introduced itself to `peer`.
    Introduced { peer: usize },
    /// Both have introduced themselves.
    Up { peer: usize },
    /// Refused: only the refusal has still to be written.
    Closing,
}

/// How many connections whose peers have not introduced themselves may come from where
/// ([`crate::engine`]'s `admission`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// This node has dialled.
    Dialled,
    /// From an address in the list of nodes.
    Known,
    /// From anywhere else.
    Strange,
}

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) stream: TcpStream,
    /// Encryption and proof of identity, where there is any.
    pub(crate) secured: Option<Box<Secured>>,
    pub(crate) address: SocketAddr,
    pub(crate) origin: Origin,
    pub(crate) stage: ConnStage,
    pub(crate) since: Time,
    /// Bytes read: `input[start..end]` is not handled yet.
    pub(crate) input: Vec<u8>,
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Frames to write.
    pub(crate) out: Outbox,
    /// The socket's buffer is full: wait until it is writable.
    pub(crate) blocked: bool,
    /// In the engine's list of connections with something to write.
    pub(crate) dirty: bool,
    /// Frames whose delay runs, with when they may be written.
    pub(crate) delayed: VecDeque<(Time, Vec<u8>)>,
    /// Answers that are sent piece by piece, as the socket takes them.
    pub(crate) answers: VecDeque<(u64, Vec<ResourceInfo>, Option<Rest>)>,
}

impl Conn {
    pub(crate) fn new(
        stream: TcpStream,
        address: SocketAddr,
        origin: Origin,
        stage: ConnStage,
        now: Time,
    ) -> Conn {
        Conn {
            stream,
            secured: None,
            address,
            origin,
            stage,
            since: now,
            input: Vec::new(),
            start: 0,
            end: 0,
            out: Outbox::default(),
            blocked: false,
            dirty: false,
            delayed: VecDeque::new(),
            answers: VecDeque::new(),
        }
    }

    /// Reads once. A read that fills less than the buffer has drained the socket of data, which
    /// saves the one that would say so (epoll(7), "edge-triggered"); an end may still follow.
    pub(crate) fn read(&mut self) -> Reading {
        self.make_room();
        if let Some(secured) = &mut self.secured {
            let (came, reading) = secured.read(&mut self.stream, &mut self.input[self.end..]);
            self.end += came;
            return reading;
        }
        loop {
            match self.stream.read(&mut self.input[self.end..]) {
                Ok(0) => return Reading::Closed(None),
                Ok(n) => {
                    self.end += n;
                    let full = self.end == self.input.len();
                    return if full { Reading::More } else { Reading::Drained };
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Reading::Drained,
                Err(e) => return Reading::Closed(Some(e.kind())),
            }
        }
    }

    /// Moves what is left to the front and makes the buffer larger if one frame fills it; never
    /// larger than the longest frame needs.
    fn make_room(&mut self) {
        if self.start > 0 {
            self.input.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.input.len() < READ {
            self.input.resize(READ, 0);
        } else if self.end == self.input.len() {
            let size = (2 * self.input.len()).min(READ + MAX_FRAME + PREFIX);
            self.input.resize(size, 0);
        }
    }

    pub(crate) fn pending(&self) -> &[u8] {
        &self.input[self.start..self.end]
    }

    /// Writes as much as the socket takes, at most about `most` bytes.
    pub(crate) fn write(&mut self, most: usize) -> Result<(), ErrorKind> {
        let enough = self.out.len().saturating_sub(most);
        loop {
            let before = self.out.len();
            self.write_once()?;
            if self.blocked || self.out.len() <= enough || self.out.len() == before {
                return Ok(());
            }
        }
    }

    fn write_once(&mut self) -> Result<(), ErrorKind> {
        if self.blocked {
            return Ok(());
        }
        if let Some(secured) = &mut self.secured {
            let (taken, written) = secured.write(&mut self.stream, self.out.next());
            self.out.advance(taken);
            self.blocked = written?;
            return Ok(());
        }
        let bytes = self.out.next();
        if bytes.is_empty() {
            return Ok(());
        }
        match self.stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero),
            Ok(n) => self.out.advance(n),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => self.blocked = true,
            Err(e) => return Err(e.kind()),
        }
        Ok(())
    }

    /// A read has led to something to write: answers of a handshake, or what waited for its end.
    pub(crate) fn wants_write(&self) -> bool {
        let waits = |s: &Secured| s.wants_write() || !s.is_handshaking() && !self.out.is_empty();
        !self.blocked && self.secured.as_deref().is_some_and(waits)
    }

    /// There is more to write, and the socket may take it.
    pub(crate) fn wants_turn(&self) -> bool {
        let shakes_hands = self.secured.as_deref().is_some_and(Secured::is_handshaking);
        !self.blocked && !self.out.is_empty() && !shakes_hands
    }

    /// Everything has been written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.out.is_empty() && self.secured.as_deref().is_none_or(|s| !s.wants_write())
    }
}
