//! A client's connection in plain text, or with TLS in it.
//!
//! One thread reads and one writes, at the same time. Neither waits for the other's socket: the session of TLS is locked only
//! to turn bytes into others, never while the socket is read or written.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lockify_trust::rustls::Connection;
use lockify_trust::{Credentials, explain, proven_node};

use super::stream::Until;

/// Bytes that are read from the socket at once.
const READ: usize = 64 * 1024;

/// A connection.
pub(crate) struct Channel<'a> {
    socket: Until<'a>,
    secured: Option<Box<Secured>>,
}

/// What TLS needs to know.
struct Secured {
    session: Mutex<Connection>,
    /// The reader's.
    unread: Mutex<Unread>,
    /// The writer's, which it keeps until they are sent: records count, so that they go in their order.
    records: Mutex<Vec<u8>>,
}

/// Bytes from the socket. `bytes[start..end]` are not given to the session yet, which takes no more while it holds much that
/// has not been read from it.
#[derive(Default)]
struct Unread {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl<'a> Channel<'a> {
    /// In plain text.
    pub fn plain(socket: Until<'a>) -> Channel<'a> {
        Channel { socket, secured: None }
    }

    /// Has TLS from here on. The client proves that it is a node of the credentials' cluster.
    ///
    /// # Errors
    /// The connection fails, or the client proves nothing (then the kind is `InvalidData`).
    pub fn secure(self, credentials: &Credentials) -> io::Result<Channel<'a>> {
        let mut session = credentials.accept().map_err(io::Error::other)?;
        while session.is_handshaking() {
            session.complete_io(&mut &self.socket).map_err(in_words)?;
        }
        if proven_node(&session, credentials.cluster()).is_none() {
            let what =
                format!("shows a certificate of no node of cluster {:?}", credentials.cluster());
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let secured = Secured {
            session: Mutex::new(session),
            unread: Mutex::default(),
            records: Mutex::default(),
        };
        Ok(Channel { socket: self.socket, secured: Some(Box::new(secured)) })
    }

    /// From now on, the client may keep this side waiting without end.
    pub fn forever(&self) -> io::Result<()> {
        self.socket.forever()
    }

    /// Returns true if the client sends no more, or this side does not read any more.
    pub fn has_ended(&self) -> bool {
        self.socket.has_ended()
    }

    /// Ends one direction, or both.
    pub fn shutdown(&self, how: Shutdown) {
        self.socket.shutdown(how);
    }
}

impl Secured {
    fn read(&self, mut socket: &Until<'_>, buffer: &mut [u8]) -> io::Result<usize> {
        let mut unread = lock(&self.unread);
        loop {
            if let Some(count) = self.decrypted(&mut unread, buffer)? {
                return Ok(count);
            }
            unread.bytes.resize(READ, 0);
            let came = socket.read(&mut unread.bytes)?;
            if came == 0 {
                // A client that does not announce its end hides nothing: requests have their lengths in front.
                return Ok(0);
            }
            (unread.start, unread.end) = (0, came);
        }
    }

    /// Bytes that the client has sent; `None` if more of the socket's are needed for any.
    fn decrypted(&self, unread: &mut Unread, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut session = lock(&self.session);
        loop {
            match session.reader().read(buffer) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                read => return read.map(Some),
            }
            if unread.start == unread.end {
                return Ok(None);
            }
            let mut rest = &unread.bytes[unread.start..unread.end];
            unread.start += session.read_tls(&mut rest)?;
            session.process_new_packets().map_err(|e| distrusted(&e))?;
        }
    }

    fn write(&self, mut socket: &Until<'_>, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut records = lock(&self.records);
        let mut session = lock(&self.session);
        let taken = session.writer().write_vectored(slices)?;
        records.clear();
        while session.wants_write() {
            session.write_tls(&mut *records)?;
        }
        drop(session);
        socket.write_all(&records)?;
        Ok(taken)
    }
}

impl Read for &Channel<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.secured {
            None => (&self.socket).read(buffer),
            Some(_) if buffer.is_empty() => Ok(0),
            Some(secured) => secured.read(&self.socket, buffer),
        }
    }
}

impl Write for &Channel<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.secured {
            None => (&self.socket).write_vectored(slices),
            Some(secured) => secured.write(&self.socket, slices),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error of the handshake that says what to do.
fn in_words(error: io::Error) -> io::Error {
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref());
    of_tls.map(distrusted).unwrap_or(error)
}

fn distrusted(error: &lockify_trust::rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("fails at TLS: {}", explain(error)))
}
