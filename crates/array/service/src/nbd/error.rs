//! Why an export is not served.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Something is there already.
    #[error("{} exists, and is served by another process or is no socket; give another path", .0.display())]
    Taken(PathBuf),
    /// An address that others can reach.
    #[error(
        "{0} is not loopback, and who reaches it may read and write everything; use TLS or a Unix socket, or say so in words: \
         {words:?}", words = super::OPEN_TO_NETWORK
    )]
    Exposed(SocketAddr),
    /// The system refuses.
    #[error("cannot listen on {place}: {error}")]
    Bind {
        /// The address or path.
        place: String,
        /// The system's error.
        error: io::Error,
    },
    /// The export cannot be served.
    #[error("{0}")]
    Export(&'static str),
}
