//! The Unix socket that clients connect to: a file, or a name in the abstract namespace.

use std::fs::{OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use lockify_session::{is_abstract, socket_address};
use lockify_trust::LockedFile;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::predecessor::Before;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Why a socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another daemon serves it.
    #[error("another lock daemon serves {0}: stop it first, or give this one a socket of its own")]
    InUse(PathBuf),
    /// An abstract name is taken.
    #[error(
        "another process has the name {0}, and only one may: it is another lock daemon, or a process \
         that keeps it from its owner (`ss -xlp` shows it to root)"
    )]
    Taken(PathBuf),
    /// Something that is no socket has the name.
    #[error("{0} exists and is no socket: remove it, or name another path")]
    NoSocket(PathBuf),
    /// The system refused.
    #[error(
        "cannot listen on {path}: {error}; make sure that its directory exists and belongs to this user"
    )]
    System {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// A socket that listens. Dropped, it removes its files.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: mio::net::UnixListener,
    /// `None`: an abstract name, which goes with the socket.
    path: Option<Reserved>,
    /// The clients of the daemon that had the name before.
    before: Option<Before>,
}

impl Listener {
    pub(crate) fn bind(path: &Path, mode: u32) -> Result<Listener, SocketError> {
        let system = |error: io::Error| SocketError::System { path: path.to_owned(), error };
        let (path, socket, before) = if is_abstract(path) {
            let (socket, before) = take_name(path)?;
            (None, socket, Some(before))
        } else {
            let (reserved, socket) = Reserved::bind(path, mode)?;
            (Some(reserved), socket, None)
        };
        socket.set_nonblocking(true).map_err(system)?;
        Ok(Listener { socket: mio::net::UnixListener::from_std(socket), path, before })
    }

    /// The clients of the former daemon, if they can be known of this socket.
    pub(crate) fn before(&mut self) -> Option<Before> {
        self.before.take()
    }

    /// The descriptors with which another program continues to listen: the socket, and the lock on
    /// its path, in the place of which an abstract name has the socket again.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        let socket = self.socket.as_fd();
        [socket, self.path.as_ref().map_or(socket, |path| path.lock.as_fd())]
    }

    /// Goes on listening with another listener's descriptors.
    pub(crate) fn resume(path: &Path, socket: OwnedFd, lock: OwnedFd) -> Listener {
        let socket = mio::net::UnixListener::from_std(UnixListener::from(socket));
        let reserved =
            || Reserved { path: path.to_owned(), lock: LockedFile::inherited(lock.into()) };
        let path = (!is_abstract(path)).then(reserved);
        Listener { socket, path, before: None }
    }
}

/// Takes an abstract name: at most one process has it, and it is free when that ends, however it
/// does.
fn take_name(name: &Path) -> Result<(UnixListener, Before), SocketError> {
    let system = |error: Errno| SocketError::System { path: name.to_owned(), error: error.into() };
    socket_address(name).map_err(|error| SocketError::System { path: name.to_owned(), error })?;
    let bytes = name.as_os_str().as_bytes();
    let address = SocketAddrUnix::new_abstract_name(&bytes[1..]).map_err(system)?;
    let socket = new_socket().map_err(system)?;
    rustix::net::bind(&socket, &address).map_err(|e| match e {
        Errno::ADDRINUSE => SocketError::Taken(name.to_owned()),
        e => system(e),
    })?;
    // Nobody has connected yet: the present names are those of former daemons' clients.
    let before = Before::look(name);
    rustix::net::listen(&socket, BACKLOG).map_err(system)?;
    Ok((socket.into(), before))
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// The path of a socket that listens. Dropped, it removes its files.
#[derive(Debug)]
pub(crate) struct Reserved {
    path: PathBuf,
    /// Locked as long as this daemon lives: its holder may replace a socket left behind.
    lock: LockedFile,
}

impl Reserved {
    pub(crate) fn bind(path: &Path, mode: u32) -> Result<(Reserved, UnixListener), SocketError> {
        let system = |error: io::Error| SocketError::System { path: path.to_owned(), error };
        let lock = lock(path)?;
        remove_stale(path)?;
        let socket = listen(path, mode).map_err(system)?;
        Ok((Reserved { path: path.to_owned(), lock }, socket))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // The lock file stays: removing it would let two daemons lock two files of one name.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Permissions of the file that is locked.
const LOCK_MODE: u32 = 0o600;

fn lock(path: &Path) -> Result<LockedFile, SocketError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let system = |error: io::Error| SocketError::System { path: path.to_owned(), error };
    // A process that can open it could lock it, and keep this daemon from its socket. One that was made when that was
    // possible is closed to others now, if it belongs to this user.
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(LOCK_MODE);
    let file = options.open(PathBuf::from(name)).map_err(system)?;
    let _ = file.set_permissions(Permissions::from_mode(LOCK_MODE));
    LockedFile::try_lock(file).map_err(system)?.ok_or_else(|| SocketError::InUse(path.to_owned()))
}

/// Removes the socket that a killed daemon has left.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let system = |error: io::Error| SocketError::System { path: path.to_owned(), error };
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(system(e)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(SocketError::NoSocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    // A program that does not use the lock file may serve it all the same.
    if UnixStream::connect(path).is_ok() {
        return Err(SocketError::InUse(path.to_owned()));
    }
    std::fs::remove_file(path).map_err(system)
}

/// Nobody can connect before the permissions are set: only `listen` lets them.
fn listen(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let socket = new_socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}
