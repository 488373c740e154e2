//! The errors of a segment.

use std::io;
use std::path::PathBuf;

use super::layout::{MAX_PEERS, VERSION};

/// Why there is no segment, or no place in it.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// The system refused something.
    #[error("cannot {what} {}: {error}{hint}", path.display(), hint = hint(error))]
    System {
        /// The attempted step.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's words.
        error: io::Error,
    },
    /// There is one already.
    #[error("{} is there already: use another path, or end its memory server", path.display())]
    Exists {
        /// The file of the segment.
        path: PathBuf,
    },
    /// Its home lives.
    #[error("{} is served already: end its memory server first, or use another path", path.display())]
    Served {
        /// The file of the segment.
        path: PathBuf,
    },
    /// The file is something else.
    #[error("{} is no segment of a memory server: give the path that `lockify memory-server` printed", path.display())]
    Foreign {
        /// Which file.
        path: PathBuf,
    },
    /// Made by a program of another version.
    #[error("{} has version {found}, this program knows {VERSION}: use the same release on both sides", path.display())]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
    /// Its sizes contradict each other, or the file's length.
    #[error("{} is damaged ({what}): end its users, and start the memory server again", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// The way in which it is damaged.
        what: &'static str,
    },
    /// It belongs to somebody who could mislead us.
    #[error("{} belongs to user {found}, not to you or root: if that is who serves it, say so with --owner {found}", path.display())]
    Owner {
        /// Which file.
        path: PathBuf,
        /// The user that owns it.
        found: u32,
    },
    /// Its home ended in order.
    #[error("{}: its memory server has ended; start it, and connect again", path.display())]
    Closed {
        /// Which file.
        path: PathBuf,
    },
    /// No room for another peer.
    #[error(
        "all {peers} places are taken by living processes: end some, or serve more with --clients"
    )]
    Full {
        /// How many there are.
        peers: u64,
    },
    /// Impossible sizes.
    #[error(
        "a segment has 2 to {MAX_PEERS} peers and at least 8 bytes of memory, not {peers} and {memory}"
    )]
    Shape {
        /// Peers wanted.
        peers: u64,
        /// Bytes wanted.
        memory: u64,
    },
    /// A notice that does not fit.
    #[error("a notice has at most {most} bytes, not {len}")]
    Notice {
        /// The largest permitted number.
        most: usize,
        /// Its length.
        len: usize,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "; is the memory server running, and is this the path that it printed?"
        }
        io::ErrorKind::PermissionDenied => "; ask its owner for access (memory-server --mode)",
        io::ErrorKind::StorageFull | io::ErrorKind::OutOfMemory => {
            "; serve fewer locks or peers, or free memory"
        }
        _ => "",
    }
}
