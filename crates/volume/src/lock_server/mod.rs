//! The process of a lock server: the state machine of server locking and callback locking over a log, and its connections.
//!
//! - A grant is on stable storage before a host hears of it. After a restart hosts say what they hold, within a lease; what is
//!   held by those who do not is repaired before it is granted to anybody (docs/design/array.md 3.6).
//! - A host that others wait for and that is silent for a lease is fenced at all devices and repaired by this process, as a host
//!   of the array; only then are its locks free.
//! - While the server is away, hosts wait; with callback locking they go on with what they have until their leases end.

mod log;
mod process;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use lockify_array::{Scheme, ServerError};
use lockify_trust::{Identity, PLAIN_TEXT};

use crate::ArrayFile;
pub use log::LogError;

/// How a lock server is run.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Its log.
    pub log_file: PathBuf,
    /// Make a new one.
    pub create: bool,
    /// How it proves who it is.
    pub identity: Identity,
    /// Is told what an operator should know.
    pub log: fn(&str),
}

/// Why there is no lock server, or no more.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The array has none.
    #[error(
        "the array's scheme is {0}, which has no lock server: nothing is to be run here for it"
    )]
    NoServer(Scheme),
    /// An address that others can reach, without keys.
    #[error(
        "{0} is not loopback, and nothing says how hosts and the lock server prove who they are: give --ca and --identity, \
         or --cluster-key (`lockify cluster` makes them), or --plain-text {PLAIN_TEXT:?}"
    )]
    Exposed(SocketAddr),
    /// The keys of another node than that of the array's file, as which nobody would believe it.
    #[error(
        "the array's file says that the lock server is node {entry}'s, and --node is {node}: correct `node` there, for all \
         processes, or --node and the keys"
    )]
    OtherNode {
        /// Whose it is.
        entry: u32,
        /// Who would serve it.
        node: u32,
    },
    /// Its log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// What its log says.
    #[error("{}: {error}", path.display())]
    Table {
        /// Which log.
        path: PathBuf,
        /// What is wrong with it.
        error: ServerError,
    },
    /// The address.
    #[error(
        "cannot listen at {address}: {error}; does the lock server run already, and is the address of this machine?"
    )]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// The system refuses.
    #[error("the system refuses: {0}")]
    System(#[from] std::io::Error),
    /// The log cannot be written any more.
    #[error(
        "cannot write the log: {0}; nothing can be locked until the server is started again. What was granted is in the log"
    )]
    Full(std::io::Error),
}

/// A lock server that is ready.
pub struct Server(process::Process);

impl Server {
    /// Opens or makes the log, and listens.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn start(file: &ArrayFile, serving: &Serving) -> Result<Server, ServeError> {
        let entry = file.lock_server.as_ref().ok_or(ServeError::NoServer(file.scheme))?;
        let mut addresses =
            file.voters().map(|voter| voter.address).chain(std::iter::once(entry.address));
        if let Some(exposed) = addresses.find(|address| !serving.identity.allows(*address)) {
            return Err(ServeError::Exposed(exposed));
        }
        if !serving.identity.is_found_as(entry.node) {
            let node = serving.identity.node();
            return Err(ServeError::OtherNode { entry: entry.node, node });
        }
        Ok(Server(process::Process::new(file, entry.address, serving)?))
    }

    /// Serves until `stop` is set, which is looked at ten times a second and after every signal, or the log cannot be written.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn run(self, stop: &AtomicBool) -> Result<(), ServeError> {
        self.0.run(stop)
    }
}
