//! Where clients connect.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error::ListenError;

/// The words that allow addresses which other machines reach, without TLS.
pub const OPEN_TO_NETWORK: &str = "anybody who reaches the network may read and write the array";

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listen {
    /// A Unix socket, for users of this machine who may write to the file.
    Unix {
        /// Its file.
        path: PathBuf,
        /// The file's permissions: 0o600 is for the owner alone.
        mode: u32,
        /// The file's group, unless it is the process's.
        group: Option<u32>,
    },
    /// A TCP address; port 0 is a free one.
    Tcp {
        /// The address.
        address: SocketAddr,
        /// It may be one that other machines reach: clients prove who they are, or somebody gave the words
        /// [`OPEN_TO_NETWORK`].
        open: bool,
    },
}

/// A listening socket.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Listener {
    pub fn bind(listen: &Listen) -> Result<Listener, ListenError> {
        match listen {
            Listen::Unix { path, mode, group } => {
                let failed = |error| ListenError::Bind { place: path.display().to_string(), error };
                remove_stale(path)?;
                let listener = UnixListener::bind(path).map_err(failed)?;
                // From here on, the file is removed with the listener.
                let listener = Listener::Unix(listener, path.clone());
                std::os::unix::fs::chown(path, None, *group).map_err(failed)?;
                let permissions = std::fs::Permissions::from_mode(*mode);
                std::fs::set_permissions(path, permissions).map_err(failed)?;
                Ok(listener)
            }
            Listen::Tcp { address, open } => {
                if !open && !address.ip().to_canonical().is_loopback() {
                    return Err(ListenError::Exposed(*address));
                }
                let failed = |error| ListenError::Bind { place: address.to_string(), error };
                Ok(Listener::Tcp(TcpListener::bind(address).map_err(failed)?))
            }
        }
    }

    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Unix(listener, _) => Ok(Stream::Unix(listener.accept()?.0)),
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                // So that a machine that vanished does not keep its place for ever.
                rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }

    /// How clients name this place and this export, by TLS or without it.
    pub fn uri(&self, export: &str, tls: bool) -> io::Result<String> {
        let export = encoded(export.as_bytes());
        let scheme = if tls { "nbds" } else { "nbd" };
        Ok(match self {
            Listener::Unix(_, path) => {
                let path = std::path::absolute(path)?;
                format!(
                    "{scheme}+unix:///{export}?socket={}",
                    encoded(path.as_os_str().as_encoded_bytes())
                )
            }
            Listener::Tcp(listener) => format!("{scheme}://{}/{export}", listener.local_addr()?),
        })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(listener, _) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            // Somebody may have removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes the socket of a server that was killed; another one's, or something else, is left.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let Ok(there) = std::fs::symlink_metadata(path) else { return Ok(()) };
    let taken = || ListenError::Taken(path.to_owned());
    if !there.file_type().is_socket() || UnixStream::connect(path).is_ok() {
        return Err(taken());
    }
    std::fs::remove_file(path).map_err(|_| taken())
}

/// Percent-encodes what means something in a URI.
fn encoded(bytes: &[u8]) -> String {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"-._~/".contains(b);
    let one = |b: &u8| if plain(b) { char::from(*b).to_string() } else { format!("%{b:02X}") };
    bytes.iter().map(one).collect()
}

/// A client's connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    pub fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Unix(stream) => Stream::Unix(stream.try_clone()?),
            Stream::Tcp(stream) => Stream::Tcp(stream.try_clone()?),
        })
    }

    /// Ends one direction, or both.
    pub fn shutdown(&self, how: Shutdown) {
        // Fails only if the other side was faster.
        let _ = match self {
            Stream::Unix(stream) => stream.shutdown(how),
            Stream::Tcp(stream) => stream.shutdown(how),
        };
    }

    /// Returns true if the other side sends no more, or this side does not read any more.
    fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(self, PollFlags::RDHUP)];
        let look = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let over = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        look.is_ok() && fds[0].revents().intersects(over)
    }

    fn patience(&self, time: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => {
                stream.set_read_timeout(time).and_then(|()| stream.set_write_timeout(time))
            }
            Stream::Tcp(stream) => {
                stream.set_read_timeout(time).and_then(|()| stream.set_write_timeout(time))
            }
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => (&*stream).read(buffer),
            Stream::Tcp(stream) => (&*stream).read(buffer),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => (&*stream).write_vectored(slices),
            Stream::Tcp(stream) => (&*stream).write_vectored(slices),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection, and until when a client may keep this side waiting.
pub(crate) struct Until<'a> {
    stream: &'a Stream,
    end: Mutex<Option<Instant>>,
}

impl<'a> Until<'a> {
    pub fn new(stream: &'a Stream, patience: Duration) -> Until<'a> {
        Until { stream, end: Mutex::new(Some(Instant::now() + patience)) }
    }

    /// From now on without end.
    pub fn forever(&self) -> io::Result<()> {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.stream.patience(None)
    }

    /// Ends one direction, or both.
    pub fn shutdown(&self, how: Shutdown) {
        self.stream.shutdown(how);
    }

    /// As [`Stream::has_ended`].
    pub fn has_ended(&self) -> bool {
        self.stream.has_ended()
    }

    fn prepare(&self) -> io::Result<()> {
        let end = *self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(end) = end else { return Ok(()) };
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.patience(Some(left))
    }
}

impl Read for &Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.prepare()?;
        (&mut &*self.stream).read(buffer)
    }
}

impl Write for &Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.prepare()?;
        (&mut &*self.stream).write_vectored(slices)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Unix { path, .. } => path.display().fmt(f),
            Listen::Tcp { address, .. } => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_a_dead_server_left_is_replaced_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket with a space");
        let listen = Listen::Unix { path: path.clone(), mode: 0o600, group: None };
        // Bound without our listener, nothing removes its file.
        drop(UnixListener::bind(&path).unwrap());
        let alive = Listener::bind(&listen).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(alive.uri("a b", false).unwrap().starts_with("nbd+unix:///a%20b?socket=/"));
        assert!(alive.uri("", false).unwrap().ends_with("socket%20with%20a%20space"));
        assert!(matches!(Listener::bind(&listen), Err(ListenError::Taken(_))));
        drop(alive);
        assert!(!path.exists());
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::bind(&listen), Err(ListenError::Taken(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_socket_has_the_permissions_that_were_asked_for() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let own = std::fs::metadata(dir.path()).unwrap().gid();
        let listen = Listen::Unix { path: path.clone(), mode: 0o660, group: Some(own) };
        let listener = Listener::bind(&listen).unwrap();
        let there = std::fs::metadata(&path).unwrap();
        assert_eq!((there.permissions().mode() & 0o777, there.gid()), (0o660, own));
        drop(listener);
        // A group that the system does not give leaves nothing behind.
        if !rustix::process::geteuid().is_root() {
            let listen = Listen::Unix { path: path.clone(), mode: 0o660, group: Some(0) };
            assert!(matches!(Listener::bind(&listen), Err(ListenError::Bind { .. })));
            assert!(!path.exists());
        }
    }

    #[test]
    fn addresses_that_others_reach_need_words() {
        let tcp = |address: &str, open| Listen::Tcp { address: address.parse().unwrap(), open };
        assert!(matches!(Listener::bind(&tcp("0.0.0.0:0", false)), Err(ListenError::Exposed(_))));
        assert!(matches!(Listener::bind(&tcp("[::]:0", false)), Err(ListenError::Exposed(_))));
        assert!(Listener::bind(&tcp("0.0.0.0:0", true)).is_ok());
        let loopback = Listener::bind(&tcp("127.0.0.1:0", false)).unwrap();
        assert!(loopback.uri("x", false).unwrap().starts_with("nbd://127.0.0.1:"));
        assert!(loopback.uri("x", true).unwrap().starts_with("nbds://127.0.0.1:"));
    }
}
