//! TLS over a socket that does not block.

use std::io::{ErrorKind, Read, Write};

use rustls::Connection;

use crate::credentials::{Credentials, proves};
use crate::explain::explain;

/// The bytes that are read at once.
const READ: usize = 64 * 1024;

/// How reading went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reading {
    /// Nothing more is there.
    Drained,
    /// There may be more.
    More,
    /// The peer has closed the connection, or it broke.
    Closed(Option<ErrorKind>),
    /// The peer has not proved who it is, or what came is not what it has sent: nothing of it may
    /// be used.
    Distrusted(String),
}

/// The state of TLS on one connection.
#[derive(Debug)]
pub(crate) struct Secured {
    session: Connection,
    /// Bytes from the socket: `raw[start..end]` has not been given to the session yet, which takes
    /// no more while it holds much that has not been read from it.
    raw: Vec<u8>,
    start: usize,
    end: usize,
}

impl Secured {
    /// At a connection's begin.
    pub(crate) fn new(session: Connection) -> Secured {
        Secured { session, raw: Vec::new(), start: 0, end: 0 }
    }

    /// Returns true if the other side has not proved its identity yet.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    /// Returns true if it has something to send by itself: `write` sends it, even with nothing to
    /// write.
    pub(crate) fn wants_write(&self) -> bool {
        self.session.wants_write()
    }

    /// Returns true if the peer has proved to be this node of this cluster.
    pub(crate) fn proves(&self, cluster: &str, node: u32) -> bool {
        proves(&self.session, cluster, node)
    }

    /// Reads at most once from the socket, and puts what it says into `room`, which is not empty;
    /// returns how many bytes. As for a plain socket, `Drained` says that a later event will tell
    /// of more, and nothing else of what was sent remains.
    pub(crate) fn read(
        &mut self,
        stream: &mut (impl Read + Write),
        room: &mut [u8],
    ) -> (usize, Reading) {
        let (mut came, mut after) = (0, None);
        loop {
            // First what the session has: it takes no more otherwise.
            match self.session.reader().read(&mut room[came..]) {
                // The peer has said that it closes.
                Ok(0) => return (came, Reading::Closed(None)),
                Ok(n) => {
                    came += n;
                    if came == room.len() {
                        return (came, Reading::More);
                    }
                    continue;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return (came, Reading::Closed(Some(e.kind()))),
            }
            if self.start < self.end {
                if let Err(why) = self.decrypt(stream) {
                    return (came, Reading::Distrusted(why));
                }
                continue;
            }
            if let Some(after) = after {
                return (came, after);
            }
            self.raw.resize(READ, 0);
            match stream.read(&mut self.raw) {
                // Whoever uses this has frames that say where they end: an end that the peer has not
                // announced hides nothing.
                Ok(0) => return (came, Reading::Closed(None)),
                Ok(n) => {
                    (self.start, self.end) = (0, n);
                    after = Some(if n == READ { Reading::More } else { Reading::Drained });
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return (came, Reading::Drained),
                Err(e) => return (came, Reading::Closed(Some(e.kind()))),
            }
        }
    }

    /// Gives the session some of what the socket has said.
    fn decrypt(&mut self, stream: &mut impl Write) -> Result<(), String> {
        let mut rest = &self.raw[self.start..self.end];
        let taken = self.session.read_tls(&mut rest).map_err(|e| format!("TLS failed: {e}"))?;
        self.start += taken;
        let processed = self.session.process_new_packets();
        processed.map(drop).map_err(|e| {
            // The peer is told, if its socket takes it.
            let _ = self.session.write_tls(stream);
            explain(&e)
        })
    }

    /// When what the other side has shown ends ([`Credentials::end_of`]); `None` before it has shown anything.
    pub(crate) fn shown_ends(&self, credentials: &Credentials) -> Option<i64> {
        credentials.end_of(self.session.peer_certificates()?)
    }

    /// Encrypts and writes as much of `out` as the socket takes; returns how many bytes of it the
    /// session has taken, and whether the socket is full. Nothing is taken before the peer has
    /// proved who it is.
    pub(crate) fn write(
        &mut self,
        stream: &mut impl Write,
        out: &[u8],
    ) -> (usize, Result<bool, ErrorKind>) {
        let mut taken = 0;
        loop {
            if !self.session.is_handshaking() && taken < out.len() {
                match self.session.writer().write(&out[taken..]) {
                    Ok(n) => taken += n,
                    Err(e) => return (taken, Err(e.kind())),
                }
            }
            if !self.session.wants_write() {
                return (taken, Ok(false));
            }
            match self.session.write_tls(stream) {
                Ok(0) => return (taken, Err(ErrorKind::WriteZero)),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return (taken, Ok(true)),
                Err(e) => return (taken, Err(e.kind())),
            }
        }
    }
}
