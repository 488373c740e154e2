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
    /// Another server, or clients of one that has ended, use the segment.
    #[error(
        "{} is in use by {peers} processes{server}: end them, or serve another path",
        path.display(), server = if *served { ", a memory server among them" } else { "" }
    )]
    InUse {
        /// Which segment.
        path: PathBuf,
        /// How many processes.
        peers: usize,
        /// True if its server is among them.
        served: bool,
    },
    /// The table that is there is another one.
    #[error(
        "{} has a table of {there}, not of {wanted}: serve it as it is, or, when nobody uses it, a new one in its place with \
         --new (its tokens begin anew)",
        path.display()
    )]
    Other {
        /// Which segment.
        path: PathBuf,
        /// The present table.
        there: String,
        /// The table that was to be served.
        wanted: String,
    },
    /// Serving failed.
    #[error(transparent)]
    Serving(#[from] LockError),
}

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the segment is to be.
    pub path: PathBuf,
    /// Locks in the table.
    pub locks: u64,
    /// Clients at a time.
    pub clients: u64,
    /// The permissions of the segment: bits of a file mode.
    pub mode: u32,
    /// The protocol, leases.
    pub options: Options,
}

/// A table that is served until it is dropped.
pub struct Server {
    fabric: Shm,
    table: Table,
    settings: Settings,
    /// When it may grant what only a server can grant.
    quiet: u64,
    /// The next server finds the table.
    stays: bool,
}

impl Server {
    /// Makes the segment and the table in it, or continues with those of a former server, in whatever way it ended:
    /// its clients keep their locks, and tokens continue.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn start(settings: &Settings) -> Result<Server, ServeError> {
        Server::start_at(settings, false)
    }

    /// As [`Server::start`], with a new table in the place of one that nobody uses.
    ///
    /// # Errors
    /// [`ServeError`]; [`ServeError::InUse`]: its users may hold locks, and a new table would not know.
    pub fn start_new(settings: &Settings) -> Result<Server, ServeError> {
        Server::start_at(settings, true)
    }

    fn start_at(settings: &Settings, new: bool) -> Result<Server, ServeError> {
        settings.options.check()?;
        // The server is a peer, too.
        let peers = settings.clients.saturating_add(1);
        let too_many = ServeError::TooMany(settings.locks);
        // Two for each client that may wait (docs/design/onesided.md 2.8).
        let slots =
            peers.saturating_mul(2).checked_next_power_of_two().ok_or(ShmError::Full { peers })?;
        let Some(memory) = Table::bytes(settings.locks, slots) else { return Err(too_many) };
        let shape = Shape { peers, memory };
        let segment = match Segment::create(&settings.path, shape, settings.mode) {
            Err(ShmError::Exists { .. }) => {
                if !new && let Some(server) = Server::go_on(settings, shape, slots)? {
                    return Ok(server);
                }
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

    /// Serves the table that is there; `None`: there is none that anybody could have used.
    fn go_on(settings: &Settings, shape: Shape, slots: u64) -> Result<Option<Server>, ServeError> {
        let segment = Segment::open(&settings.path, Owner::Me)?;
        let notice = segment.notice()?;
        if segment.is_closed() || notice.is_empty() {
            return Ok(None);
        }
        let path = || settings.path.clone();
        let damaged = |_| ShmError::Damaged { path: path(), what: "its notice makes no sense" };
        let notice = Notice::decode(&notice).map_err(damaged)?;
        let table = notice.table()?;
        let wanted = Notice::new(table.region(), settings.locks, slots, &settings.options);
        if wanted.differs(&notice) || segment.places() != shape.peers {
            let (there, wanted) = (notice.words(), wanted.words());
            return Err(ServeError::Other { path: path(), there, wanted });
        }
        let fabric = as_next_home(&settings.path, segment)?;
        let options = settings.options;
        let others = || fabric.peers().len().saturating_sub(1);
        let end = Instant::now() + LINGERING;
        let unknown = options.protocol.needs_home() && options.lease.is_none();
        while unknown && others() > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        let peers = others();
        if unknown && peers > 0 {
            // Only the server before knew who holds what, and nothing ends that but the holders.
            return Err(ServeError::InUse { path: path(), peers, served: false });
        }
        let quiet = options.lease.map_or(0, |lease| fabric.now().saturating_add(lease));
        let settings = settings.clone();
        Ok(Some(Server { fabric, table, settings, quiet, stays: false }))
    }

    fn in_segment(segment: Segment, slots: u64, settings: &Settings) -> Result<Server, ServeError> {
        let fabric = Shm::join_as_home(segment)?;
        let bytes = Table::bytes(settings.locks, slots).unwrap_or(u64::MAX);
        let region = fabric.register(bytes)?;
        let table = Table::new(region, settings.locks, slots)?;
        let notice = Notice::new(region, settings.locks, slots, &settings.options);
        fabric.segment().publish(&notice.encode())?;
        Ok(Server { fabric, table, settings: settings.clone(), quiet: 0, stays: false })
    }

    /// Answers clients until `stop` is set, which is looked at ten times a second and after every signal.
    ///
    /// # Errors
    /// [`ServeError::Serving`].
    pub fn run(&self, stop: &AtomicBool) -> Result<(), ServeError> {
        let (fabric, options) = (self.fabric.clone(), self.settings.options);
        let serving = lockify_onesided::serve_after(fabric, self.table, options, self.quiet);
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

    /// Ends it as if it were killed: clients keep the table and their locks, and the next server goes on with it.
    pub fn leave(mut self) {
        self.stays = true;
    }
}

/// Unless it was left, clients find their key revoked from now on, and the table is gone.
impl Drop for Server {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        self.fabric.segment().close();
        self.fabric.revoke(self.table.region().key);
        // Nobody can join it, so it does no harm if it stays.
        let _ = self.fabric.segment().remove();
    }
}

/// A process that was killed keeps its place until the system has taken its memory apart, which can be after it was
/// waited for.
const LINGERING: Duration = Duration::from_secs(1);

/// Takes the place of a server that has ended.
fn as_next_home(path: &Path, segment: Segment) -> Result<Shm, ServeError> {
    let end = Instant::now() + LINGERING;
    let mut segment = segment;
    loop {
        let peers = segment.peers().len();
        match Shm::join_as_home(segment) {
            Err(ShmError::Served { .. }) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(10));
                segment = Segment::open(path, Owner::Me)?;
            }
            Err(ShmError::Served { .. }) => {
                return Err(ServeError::InUse { path: path.to_owned(), peers, served: true });
            }
            joined => return Ok(joined?),
        }
    }
}

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
