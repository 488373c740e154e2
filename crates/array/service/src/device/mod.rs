//! The process of a device, or of a witness. It has the state machine of a device over a file, its connections, and its
//! part in finding dead members.
//!
//! - A device agrees on the members with a majority of the voting devices and witnesses. It serves hosts only within a
//!   lease after that. A device that has been left behind therefore stops before the others continue. Their agreement is
//!   on their media.
//! - The lowest member takes a device out of the array that has been out of the view for a lease.
//! - A device fences a host that holds something there and is silent for a lease. It first pauses, the longer the higher
//!   its number, so that mostly one device does it.
//! - A restarted device checks the writes that were under way when it stopped (`checks.rs`).
//! - A device whose clock is wrong serves nobody, and is taken out of the array as well (`clocks.rs`).
//! - A new device's blocks count as the array's only in two cases. All devices are new, or the array has been told that
//!   the device missed everything.

mod checks;
mod clocks;
mod members;
mod process;
mod repairs;
mod settled;
mod spare;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use lockify_array::{BootError, DeviceId};
use lockify_trust::{Address, Identity, PLAIN_TEXT};

use crate::store::{Access, Space, Store, StoreError};
use crate::{ArrayFile, HistoryError};
pub(crate) use repairs::{Job, Repairs};
pub use spare::{Rebuilder, make_spare};

/// How a device is served.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Which one.
    pub device: DeviceId,
    /// Its file or block device.
    pub path: PathBuf,
    /// Make a new one.
    pub create: bool,
    /// Of a new file: space is taken as blocks are written, and not at once.
    pub sparse: bool,
    /// Past the system's cache or not.
    pub access: Access,
    /// Where it listens, if not at its address in the array's file.
    pub listen: Option<SocketAddr>,
    /// How it proves who it is.
    pub identity: Identity,
    /// Is told what an operator should know.
    pub log: fn(&str),
}

/// Why a device is not served, or no more.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// There is no such device.
    #[error("the array's file has devices and witnesses 0 to {last}, and not {id}: correct --id")]
    NoDevice {
        /// The number that was given.
        id: u16,
        /// The last one.
        last: u16,
    },
    /// An address that others can reach, without keys.
    #[error(
        "{0} is not loopback, and nothing says how hosts and devices prove who they are: give --ca and --identity, or \
         --cluster-key (`lockify cluster` makes them), or --plain-text {PLAIN_TEXT:?}"
    )]
    Exposed(Address),
    /// The keys of another node than that of the array's file, as which nobody would believe it.
    #[error(
        "the array's file says that device {id} is node {entry}'s, and --node is {node}: correct `node` there, for all \
         processes, or --node and the keys"
    )]
    OtherNode {
        /// Which device.
        id: u16,
        /// The node of the device in the array's file.
        entry: u32,
        /// The node of this process.
        node: u32,
    },
    /// The array has got a group of devices, and the file has other witnesses than before that.
    #[error(
        "the array has got devices from number {first} on, and the array's file does not have {first} devices and witnesses in front \
         of them: the number of witnesses stays as it was when they came"
    )]
    OtherWitnesses {
        /// The first device that came later.
        first: u16,
    },
    /// A witness with a spare.
    #[error(
        "witness {id} needs no spare: it has no blocks to rebuild; --spare is for devices 0 to {last}"
    )]
    SpareOfWitness {
        /// Which one.
        id: u16,
        /// The last device.
        last: u16,
    },
    /// Its file.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The device's file does not fit.
    #[error("{}: {error}; if the array works without it, begin anew with --create on another file", path.display())]
    Boot {
        /// Which file.
        path: PathBuf,
        /// The reason.
        error: BootError,
    },
    /// The membership's state on the medium is unusable.
    #[error(
        "{}: what it has kept of who is there cannot be used: {error}. Was it copied from another device, or served by another \
         release? If the array works without it, begin anew with --create on another file, and have it rebuilt: lockify array \
         replace", path.display()
    )]
    Kept {
        /// The device's file.
        path: PathBuf,
        /// The reason, from reading the image.
        error: lockify_membership::log::ImageError,
    },
    /// The address.
    #[error(
        "cannot listen at {address}: {error}; is the device served already, and is the address of this machine?"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: std::io::Error,
    },
    /// Its history.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The system refuses.
    #[error("the system refuses: {0}")]
    System(#[from] std::io::Error),
    /// The disk has failed.
    #[error(
        "the disk has failed: {0}; the array goes on without it if it can: have it rebuilt when it is back (`lockify array rebuild`), or \
         replace it (`lockify array replace`)"
    )]
    Disk(String),
}

/// A device that is ready to be served.
pub struct Server(process::Process);

impl Server {
    /// Opens or makes the file, and listens.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn start(file: &ArrayFile, serving: &Serving) -> Result<Server, ServeError> {
        let id = serving.device.0;
        let last = file.entries().last().map_or(0, |entry| entry.id);
        let entry = file.entry(serving.device).ok_or(ServeError::NoDevice { id, last })?;
        let listen = serving.listen.map(Address::from);
        let mut addresses = file.entries().map(|entry| &entry.address).chain(&listen);
        if let Some(exposed) = addresses.find(|address| !serving.identity.allows_at(address)) {
            return Err(ServeError::Exposed(exposed.clone()));
        }
        if !serving.identity.is_found_as(entry.node) {
            let node = serving.identity.node();
            return Err(ServeError::OtherNode { id, entry: entry.node, node });
        }
        let store = if serving.create {
            let log = serving.log;
            let space = if serving.sparse { Space::Sparse } else { Space::Allocated { log } };
            Store::create(&serving.path, file, id, serving.access, space)?
        } else {
            Store::open(&serving.path, file, id, serving.access)?
        };
        Ok(Server(process::Process::new(file, entry, serving, store)?))
    }

    /// Records all further steps of blocks in a new file, for `lockify check`. When the process ends in order, it reads all
    /// blocks for the end of its history. Hosts must have ended before.
    ///
    /// # Errors
    /// [`ServeError::History`].
    pub fn record(&mut self, path: &Path) -> Result<(), ServeError> {
        Ok(self.0.record(path)?)
    }

    /// Serves until `stop` is set, or the disk fails. It checks `stop` ten times a second and after every signal.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn run(self, stop: &AtomicBool) -> Result<(), ServeError> {
        self.0.run(stop)
    }
}
