//! One connection: its socket, its output, and its progress.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::SocketAddr;

use lockify_core::{ResourceInfo, Time};
use lockify_trust::{Reading, Socket};
use mio::net::TcpStream;

use crate::outbox::Outbox;
use crate::page::Rest;
use crate::wire::MAX_FRAME;

/// The bytes that are read at once.
const READ: usize = 64 * 1024;

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
    pub(crate) socket: Socket,
    pub(crate) address: SocketAddr,
    pub(crate) origin: Origin,
    pub(crate) stage: ConnStage,
    pub(crate) since: Time,
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
            socket: Socket::new(stream),
            address,
            origin,
            stage,
            since: now,
            out: Outbox::default(),
            blocked: false,
            dirty: false,
            delayed: VecDeque::new(),
            answers: VecDeque::new(),
        }
    }

    /// Reads once, as [`Socket::read`].
    pub(crate) fn read(&mut self) -> (usize, Reading) {
        // A stranger's length gets no memory.
        let up = matches!(self.stage, ConnStage::Up { .. });
        self.socket.read(READ, if up { MAX_FRAME } else { 0 })
    }

    pub(crate) fn pending(&self) -> &[u8] {
        self.socket.inbox.rest()
    }

    /// Writes as much as the socket takes, at most about `most` bytes.
    pub(crate) fn write(&mut self, most: usize) -> Result<(), ErrorKind> {
        let enough = self.out.len().saturating_sub(most);
        while !self.blocked {
            // Without output, a handshake may have something to say.
            let (taken, written) = self.socket.write(self.out.next());
            self.out.advance(taken);
            self.blocked = written?;
            if self.out.len() <= enough || taken == 0 {
                break;
            }
        }
        Ok(())
    }

    /// A read has led to something to write: answers of a handshake, or what waited for its end.
    pub(crate) fn wants_write(&self) -> bool {
        !self.blocked && self.socket.wants_write() || self.wants_turn()
    }

    /// There is more to write, and the socket may take it.
    pub(crate) fn wants_turn(&self) -> bool {
        !self.blocked && !self.out.is_empty() && !self.socket.is_handshaking()
    }

    /// Everything has been written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.out.is_empty() && !self.socket.wants_write()
    }
}
