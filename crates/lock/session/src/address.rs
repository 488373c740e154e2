//! The addresses of a daemon's sockets, and the names that sessions have below them.

use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The socket of one shard: the configured path for shard 0, with `.N` appended for shard N.
pub fn shard_path(socket: &Path, shard: u16) -> PathBuf {
    match shard {
        0 => socket.to_owned(),
        n => {
            let mut path = socket.as_os_str().to_owned();
            path.push(format!(".{n}"));
            path.into()
        }
    }
}

/// The address of a daemon's socket: a path, or, where it begins with `@`, a name in the abstract
/// namespace of unix(7). A file whose path begins with `@` is `./@...`.
///
/// # Errors
/// It is too long, or has a zero in it.
pub fn socket_address(socket: &Path) -> io::Result<SocketAddr> {
    match socket.as_os_str().as_bytes() {
        [b'@', name @ ..] if name.len() < LONGEST_NAME => SocketAddr::from_abstract_name(name),
        [b'@', ..] => {
            let what = format!("a name in the abstract namespace has at most {LONGEST_NAME} bytes");
            Err(io::Error::new(ErrorKind::InvalidInput, what))
        }
        _ => SocketAddr::from_pathname(socket),
    }
}

/// Returns true if a socket is a name in the abstract namespace.
pub fn is_abstract(socket: &Path) -> bool {
    socket.as_os_str().as_bytes().starts_with(b"@")
}

/// A socket with a name below that of a daemon with an abstract name, until it is closed. By these, a starting daemon
/// finds the processes that may still use locks of the former one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Named {
    /// A session of a program.
    Session,
    /// A command under a lock (`lockify run`).
    Command,
}

/// The beginning of all such names.
pub fn names_of(socket: &Path, what: Named) -> String {
    let what = match what {
        Named::Session => "session",
        Named::Command => "command",
    };
    format!("{}/{what}/", socket.display())
}

/// Bytes of an abstract name, with its `@`: those below it have to fit, too.
const LONGEST_NAME: usize = 64;
