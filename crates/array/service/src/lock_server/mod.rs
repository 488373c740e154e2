//! The process of a lock server. It has the state machine of server locking and callback locking over a log, and its
//! connections.
//!
//! - It serves in the terms that the array's state gives it. In others it stands by, and keeps a copy of the log
//!   (docs/design/array.md 3.6).
//! - A grant is on stable storage before a host hears of it. After a restart, hosts name their locks within a lease. The locks
//!   of hosts that do not are repaired before they are granted to others (docs/design/array.md 3.6).
//! - If others wait for a host and it is silent for a lease, this process fences it at all devices and repairs its writes, as a
//!   host of the array. Only then are its locks free.
//! - While the server is away, hosts wait. With callback locking they continue with their locks until their leases end.

mod log;
mod process;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use lockify_array::{Scheme, ServerError, ServerId};
use lockify_trust::{Address, Identity, PLAIN_TEXT};

use crate::ArrayFile;
pub use log::LogError;

/// How a lock server is run.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Which of the array's lock servers it is.
    pub id: ServerId,
    /// Its log.
    pub log_file: PathBuf,
    /// Make a new one.
    pub create: bool,
    /// All hosts have ended, and no log with the array's locks is left.
    pub accept_loss: bool,
    /// Where it listens, if not at its address in the array's file.
    pub listen: Option<SocketAddr>,
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
    /// It has no such one.
    #[error(
        "the array's file has {count} lock servers, numbered from 0, and no {id}: correct --id, or add a [[standby]] to the file"
    )]
    NoSuch {
        /// The one that was asked for.
        id: ServerId,
        /// How many there are.
        count: usize,
    },
    /// An address that others can reach, without keys.
    #[error(
        "{0} is not loopback, and nothing says how hosts and the lock server prove who they are: give --ca and --identity, \
         or --cluster-key (`lockify cluster` makes them), or --plain-text {PLAIN_TEXT:?}"
    )]
    Exposed(Address),
    /// The keys of another node than that of the array's file, as which nobody would believe it.
    #[error(
        "the array's file says that the lock server is node {entry}'s, and --node is {node}: correct `node` there, for all \
         processes, or --node and the keys"
    )]
    OtherNode {
        /// The node of the lock server in the array's file.
        entry: u32,
        /// The node of this process.
        node: u32,
    },
    /// Its log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The server's log does not fit.
    #[error("{}: {error}", path.display())]
    Table {
        /// Which log.
        path: PathBuf,
        /// The reason.
        error: ServerError,
    },
    /// The address.
    #[error(
        "cannot listen at {address}: {error}; does the lock server run already, and is the address of this machine?"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
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
        if file.lock_server.is_none() {
            return Err(ServeError::NoServer(file.scheme));
        }
        let (id, count) = (serving.id, file.lock_servers().count());
        let entry = file.lock_servers().nth(id.0.into());
        let entry = entry.ok_or(ServeError::NoSuch { id, count })?;
        let listen = serving.listen.map(Address::from);
        let voters = file.voters().map(|voter| &voter.address);
        let servers = file.lock_servers().map(|server| &server.address);
        let mut addresses = voters.chain(servers).chain(&listen);
        if let Some(exposed) = addresses.find(|address| !serving.identity.allows_at(address)) {
            return Err(ServeError::Exposed(exposed.clone()));
        }
        if !serving.identity.is_found_as(entry.node) {
            let node = serving.identity.node();
            return Err(ServeError::OtherNode { entry: entry.node, node });
        }
        let listens = serving.listen.unwrap_or_else(|| entry.address.listens());
        Ok(Server(process::Process::new(file, listens, serving)?))
    }

    /// Serves until `stop` is set, or the log cannot be written. It checks `stop` ten times a second and after every signal.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn run(self, stop: &AtomicBool) -> Result<(), ServeError> {
        self.0.run(stop)
    }
}
