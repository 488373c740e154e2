//! The memory server: a table of locks, and who answers for it.

use core::future::Future as _;
use core::pin::pin;
use core::task::Poll;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lockify_fabric::shm::{Owner, Segment, Shape, Shm, ShmError};
use lockify_fabric::verbs::VerbsError;
use lockify_onesided::{Fabric as _, LockError, Options, Peer, RegionError, Table, TableError};

use crate::courier::CourierError;
use crate::notice::Notice;
use crate::rendezvous::RendezvousError;

/// Why a table is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The segment cannot be made.
    #[error(transparent)]
    Segment(#[from] ShmError),
    /// The device cannot be used.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// Clients cannot find the server.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// Nothing can be heard of clients.
    #[error(transparent)]
    Courier(#[from] CourierError),
    /// The table's memory cannot be registered.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// Impossible numbers.
    #[error(transparent)]
    Table(#[from] TableError),
    /// More locks than memory can have.
    #[error("{0} locks are more than any memory holds: serve fewer")]
    TooMany(u64),
    /// Another server, or clients of one that was killed, use the segment.
    #[error(
        "{} is in use by {peers} processes{server}: end them, or serve another path",
        path.display(), server = if *served { ", a memory server among them" } else { "; its memory server was killed" }
    )]
    InUse {
        /// Which segment.
        path: PathBuf,
        /// How many processes.
        peers: usize,
        /// Whether its server is among them.
        served: bool,
    },
    /// Serving failed.
    #[error(transparent)]
    Serving(#[from] LockError),
}

/// What a server serves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the segment is to be.
    pub path: PathBuf,
    /// Locks in the table.
    pub locks: u64,
    /// Clients at a time.
    pub clients: u64,
    /// Who may open the segment: bits of a file mode.
    pub mode: u32,
    /// The protocol, leases.
    pub options: Options,
}

/// A table that is served until it is dropped.
pub struct Server {
    fabric: Shm,
    table: Table,
    settings: Settings,
}

impl Server {
    /// Makes the segment and the table in it.
    ///
    /// What a server that was killed has left is replaced, once nobody uses it any more: whoever still does may hold
    /// locks, and a new table would not know.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn start(settings: &Settings) -> Result<Server, ServeError> {
        settings.options.check()?;
        // The server is a peer, too.
        let peers = settings.clients.saturating_add(1);
        let too_many = ServeError::TooMany(settings.locks);
        // Two for each client that may wait (section 2.8).
        let slots =
            peers.saturating_mul(2).checked_next_power_of_two().ok_or(ShmError::Full { peers })?;
        let Some(memory) = Table::bytes(settings.locks, slots) else { return Err(too_many) };
        let shape = Shape { peers, memory };
        let segment = match Segment::create(&settings.path, shape, settings.mode) {
            Err(ShmError::Exists { .. }) => {
                remove_left(&settings.path)?;
                Segment::create(&settings.path, shape, settings.mode)?
            }
            made => made?,
        };
        match Server::in_segment(segment, slots, settings) {
            Ok(server) => Ok(server),
            Err(e) => {
                // Made by this call, and of no use to anybody.
                let _ = std::fs::remove_file(&settings.path);
                Err(e)
            }
        }
    }

    fn in_segment(segment: Segment, slots: u64, settings: &Settings) -> Result<Server, ServeError> {
        let fabric = Shm::join(segment)?;
        let bytes = Table::bytes(settings.locks, slots).unwrap_or(u64::MAX);
        let region = fabric.register(bytes)?;
        let table = Table::new(region, settings.locks, slots)?;
        let notice = Notice::new(region, settings.locks, slots, &settings.options);
        fabric.segment().publish(&notice.encode())?;
        Ok(Server { fabric, table, settings: settings.clone() })
    }

    /// Answers clients until `stop` is set, which is looked at ten times a second and after every signal.
    ///
    /// # Errors
    /// [`ServeError::Serving`].
    pub fn run(&self, stop: &AtomicBool) -> Result<(), ServeError> {
        let serving =
            lockify_onesided::serve(self.fabric.clone(), self.table, self.settings.options);
        let mut serving = pin!(serving);
        let until_stopped = core::future::poll_fn(|context| match stop.load(Relaxed) {
            true => Poll::Ready(Ok(())),
            false => serving.as_mut().poll(context),
        });
        Ok(self.fabric.block_on(until_stopped)?)
    }

    /// Clients that are connected.
    pub fn clients(&self) -> usize {
        self.fabric.peers().len().saturating_sub(1)
    }
}

/// Clients find their key revoked from now on.
impl Drop for Server {
    fn drop(&mut self) {
        self.fabric.segment().close();
        self.fabric.revoke(self.table.region().key);
        // Nobody can join it, so it does no harm if it stays.
        let _ = self.fabric.segment().remove();
    }
}

/// A process that was killed keeps its place until the system has taken its memory apart, which can be after it was
/// waited for.
const LINGERING: Duration = Duration::from_secs(1);

/// Removes a segment that nobody uses.
fn remove_left(path: &Path) -> Result<(), ServeError> {
    let segment = Segment::open(path, Owner::Me)?;
    if !segment.is_closed() {
        let notice = segment.notice().ok().and_then(|bytes| Notice::decode(&bytes).ok());
        let home = notice.map(|notice| notice.home());
        // Nobody may join between the look and the removal.
        segment.close();
        let is_served = |peers: &[Peer]| home.is_some_and(|home| peers.contains(&home));
        let mut peers = segment.peers();
        let end = Instant::now() + LINGERING;
        while !peers.is_empty() && !is_served(&peers) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
            peers = segment.peers();
        }
        if !peers.is_empty() {
            segment.reopen();
            let served = is_served(&peers);
            return Err(ServeError::InUse { path: path.to_owned(), peers: peers.len(), served });
        }
    }
    Ok(segment.remove()?)
}
