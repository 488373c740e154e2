//! A TCP connection, perhaps with TLS in it.

use std::io::{ErrorKind, Read as _, Write as _};

use mio::net::TcpStream;

use crate::credentials::Credentials;
use crate::inbox::Inbox;
use crate::secured::{Reading, Secured};

/// A connection that does not block, and its received bytes. What they mean is its user's business.
#[derive(Debug)]
pub struct Socket {
    stream: TcpStream,
    secured: Option<Box<Secured>>,
    /// What came.
    pub inbox: Inbox,
}

impl Socket {
    /// A connection in plain text.
    pub fn new(stream: TcpStream) -> Socket {
        Socket { stream, secured: None, inbox: Inbox::default() }
    }

    /// Has TLS in it ([`Credentials::dial`], [`accept`](Credentials::accept)). Nothing has been read or written yet.
    pub fn secure(&mut self, session: rustls::Connection) {
        self.secured = Some(Box::new(Secured::new(session)));
    }

    /// The connection without TLS, for the system's calls about it.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Returns true if the other side has proved to be this node; without keys none has to.
    pub fn proves(&self, cluster: &str, node: u32) -> bool {
        self.secured.as_ref().is_none_or(|secured| secured.proves(cluster, node))
    }

    /// When what the other side has shown ends ([`Credentials::end_of`]); `None` before it has shown anything.
    pub fn shown_ends(&self, credentials: &Credentials) -> Option<i64> {
        self.secured.as_ref()?.shown_ends(credentials)
    }

    /// Returns true if the other side has to prove its identity, and has not yet.
    pub fn is_handshaking(&self) -> bool {
        self.secured.as_ref().is_some_and(|secured| secured.is_handshaking())
    }

    /// Returns true if TLS has something to send by itself: [`Socket::write`] sends it, even with nothing to write.
    pub fn wants_write(&self) -> bool {
        self.secured.as_ref().is_some_and(|secured| secured.wants_write())
    }

    /// Reads once into the inbox's [room](Inbox::room); returns how many bytes came. [`Reading::Drained`] says that a later
    /// event will tell of more (epoll(7), "edge-triggered"), but the end may have come already.
    pub fn read(&mut self, least: usize, longest: usize) -> (usize, Reading) {
        let room = self.inbox.room(least, longest);
        let (came, reading) = match &mut self.secured {
            Some(secured) => secured.read(&mut self.stream, room),
            None => read(&mut self.stream, room),
        };
        self.inbox.came(came);
        (came, reading)
    }

    /// Writes as much of `out` as the socket takes; returns how many bytes of it are gone, and whether the socket is full.
    /// Nothing is taken before the other side has proved who it is, if it has to.
    pub fn write(&mut self, out: &[u8]) -> (usize, Result<bool, ErrorKind>) {
        match &mut self.secured {
            Some(secured) => secured.write(&mut self.stream, out),
            None => write(&mut self.stream, out),
        }
    }

    /// Discards the other side's further input; returns true if it has closed. A side that closes with unread input may
    /// discard its own last output (RFC 1122, 4.2.2.13).
    pub fn discard(&mut self) -> bool {
        let mut room = [0; 4096];
        loop {
            match read(&mut self.stream, &mut room) {
                (0, Reading::Drained) => return false,
                (_, Reading::More | Reading::Drained) => {}
                _ => return true,
            }
        }
    }
}

impl mio::event::Source for Socket {
    fn register(
        &mut self,
        registry: &mio::Registry,
        token: mio::Token,
        interests: mio::Interest,
    ) -> std::io::Result<()> {
        self.stream.register(registry, token, interests)
    }

    fn reregister(
        &mut self,
        registry: &mio::Registry,
        token: mio::Token,
        interests: mio::Interest,
    ) -> std::io::Result<()> {
        self.stream.reregister(registry, token, interests)
    }

    fn deregister(&mut self, registry: &mio::Registry) -> std::io::Result<()> {
        self.stream.deregister(registry)
    }
}

/// As [`Secured::read`].
fn read(stream: &mut TcpStream, room: &mut [u8]) -> (usize, Reading) {
    loop {
        match stream.read(room) {
            Ok(0) => return (0, Reading::Closed(None)),
            Ok(n) if n < room.len() => return (n, Reading::Drained),
            Ok(n) => return (n, Reading::More),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return (0, Reading::Drained),
            Err(e) => return (0, Reading::Closed(Some(e.kind()))),
        }
    }
}

/// As [`Secured::write`].
fn write(stream: &mut TcpStream, out: &[u8]) -> (usize, Result<bool, ErrorKind>) {
    let mut taken = 0;
    while taken < out.len() {
        match stream.write(&out[taken..]) {
            Ok(0) => return (taken, Err(ErrorKind::WriteZero)),
            Ok(n) => taken += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return (taken, Ok(true)),
            Err(e) => return (taken, Err(e.kind())),
        }
    }
    (taken, Ok(false))
}
