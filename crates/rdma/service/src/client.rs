//! A client of a table.

use core::future::Future as _;
use core::pin::pin;
use core::task::Poll;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use lockify_fabric::FabricExecutor;
use lockify_fabric::shm::{Owner, Segment, Shm, ShmError};
use lockify_fabric::verbs::{Settings, Verbs, VerbsError};
use lockify_onesided::{
    Client, Guard, LockError, LockId, Mode, Options, Released, Table, TableError, UnknownProtocol,
};

use crate::courier::{Courier, CourierError, peer_of};
use crate::notice::Notice;
use crate::rendezvous::{Identity, Rendezvous, RendezvousError};

/// Why a table cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Its segment cannot be.
    #[error(transparent)]
    Segment(#[from] ShmError),
    /// The server's published notice is invalid.
    #[error("{}: what its memory server published cannot be used: {why}; use the same release on both sides", path.display())]
    Notice {
        /// Which segment.
        path: PathBuf,
        /// The error.
        why: String,
    },
    /// There is no way to its network.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// Its server cannot be reached.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The server's offer is invalid.
    #[error(
        "what the memory server at {address} offers cannot be used: {why}; use the same release on both sides"
    )]
    Offer {
        /// The address.
        address: SocketAddr,
        /// The error.
        why: String,
    },
    /// The table does not fit its region.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Nothing can be heard of other clients.
    #[error(transparent)]
    Courier(#[from] CourierError),
    /// Its protocol is not known here.
    #[error(transparent)]
    Protocol(#[from] UnknownProtocol),
    /// The settings are impossible.
    #[error(transparent)]
    Settings(#[from] LockError),
    /// Its server is gone, and its protocol needs one; without leases nobody asks again.
    #[error("{}: its memory server is gone, and {protocol} without leases needs it: start it again", path.display())]
    NoHome {
        /// Which segment.
        path: PathBuf,
        /// The protocol's name.
        protocol: &'static str,
    },
}

/// How a table is reached whose memory server listens on a network.
#[derive(Clone, Debug)]
pub struct Joining {
    /// Where it listens.
    pub address: SocketAddr,
    /// The identity of this process.
    pub identity: Identity,
    /// The number of its node.
    pub server: u32,
    /// The device here; its `peers` follow from the server's offer.
    pub verbs: Settings,
}

/// The lock of a table that a name stands for; see [`Remote::lock_of`].
pub fn lock_of(table: &Table, name: &[u8]) -> LockId {
    table.lock_of(xxhash_rust::xxh3::xxh3_64(name))
}

/// A client of a table of locks. For one thread.
pub struct Remote<F = Shm> {
    fabric: F,
    client: Client<F>,
    table: Table,
    options: Options,
}

impl Remote {
    /// Connects to the table that a memory server has published under this path.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(path: &Path, owner: Owner) -> Result<Remote, ConnectError> {
        let segment = Segment::open(path, owner)?;
        let unusable = |why| ConnectError::Notice { path: path.to_owned(), why };
        let notice = Notice::decode(&segment.notice()?).map_err(unusable)?;
        let (table, options) = (notice.table()?, notice.options()?);
        let fabric = Shm::join(segment)?;
        // With leases, a waiter asks again until there is a server.
        let waits = options.lease.is_some();
        if options.protocol.needs_home() && !waits && !fabric.lives(notice.home()) {
            let protocol = options.protocol.name();
            return Err(ConnectError::NoHome { path: path.to_owned(), protocol });
        }
        Remote::on(fabric, table, options)
    }

    /// Returns true if its server serves it, as far as this machine's kernel knows.
    pub fn is_served(&self) -> bool {
        !self.fabric.segment().is_closed() && self.fabric.lives(self.table.region().home)
    }
}

impl Remote<Verbs> {
    /// Connects to the table that a memory server offers at a rendezvous.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn join(settings: &Joining) -> Result<Remote<Verbs>, ConnectError> {
        let Joining { address, identity, server, verbs } = settings;
        let (rendezvous, welcome) = Rendezvous::join(*address, identity, *server)?;
        let unusable = |why| ConnectError::Offer { address: *address, why };
        let notice = Notice::decode(&welcome.offer).map_err(unusable)?;
        let (table, options) = (notice.table()?, notice.options()?);
        // All others, and the server.
        let peers = u16::try_from(notice.clients().saturating_add(1)).unwrap_or(u16::MAX);
        let fabric = Verbs::open(&Settings { peers, ..verbs.clone() }, peer_of(welcome.rank))?;
        fabric.meet(Box::new(Courier::of_participant(rendezvous)?));
        Remote::on(fabric, table, options)
    }
}

impl<F: FabricExecutor> Remote<F> {
    fn on(fabric: F, table: Table, options: Options) -> Result<Remote<F>, ConnectError> {
        let client = Client::new(fabric.clone(), table, options)?;
        Ok(Remote { fabric, client, table, options })
    }

    /// The lock that a name stands for.
    ///
    /// Names are hashed; a table of `n` locks gives two names the same one with a chance of 1 in `n`. Such names exclude
    /// each other without need, which costs time and is no fault. But **who holds one and asks for the other would wait
    /// for itself**, and is refused ([`LockError::Held`]); and who takes several sorts the *locks*, not the names, and
    /// takes each once: that is the order in which nobody waits in a circle.
    pub fn lock_of(&self, name: &[u8]) -> LockId {
        lock_of(&self.table, name)
    }

    /// The table.
    pub fn table(&self) -> Table {
        self.table
    }

    /// The common options of the table's clients.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Locks in the table.
    pub fn locks(&self) -> u64 {
        self.table.locks()
    }

    /// Nanoseconds until a hold ends by itself; `None` if it does not.
    pub fn time_left(&self, guard: &Guard) -> Option<u64> {
        let until = guard.valid_until();
        (until != u64::MAX).then(|| until.saturating_sub(self.fabric.now()))
    }

    /// Takes a lock, and waits as long as it takes.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn lock(&mut self, lock: LockId, mode: Mode) -> Result<Guard, LockError> {
        self.fabric.block_on(self.client.lock(lock, mode))
    }

    /// As [`Remote::lock`], but gives up when `stop` is set, which is looked at ten times a second. Then this client has
    /// left a request behind that others repair when a lease is over: it should be dropped.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn lock_unless(
        &mut self,
        lock: LockId,
        mode: Mode,
        stop: &AtomicBool,
    ) -> Result<Option<Guard>, LockError> {
        let mut locking = pin!(self.client.lock(lock, mode));
        self.fabric.block_on(core::future::poll_fn(|context| match stop.load(Relaxed) {
            true => Poll::Ready(Ok(None)),
            false => locking.as_mut().poll(context).map_ok(Some),
        }))
    }

    /// Gives it back.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn unlock(&mut self, guard: Guard) -> Result<Released, LockError> {
        self.fabric.block_on(self.client.unlock(guard))
    }

    /// The fabric and the client, for code that waits by itself.
    pub fn parts(&mut self) -> (F, &mut Client<F>) {
        (self.fabric.clone(), &mut self.client)
    }
}
