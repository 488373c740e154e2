//! Metrics. Shards are asked only when a reader asks, so that metrics cost only the counting, which
//! each shard's thread does for itself.

mod http;
mod text;

use std::io;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockify_host::meter::Figures;
use lockify_node::NodeStatus;

use crate::config::{Config, Metrics};
use crate::log::Log;

/// How long the shards may take to answer; one that is busier than that is left out.
const PATIENCE: Duration = Duration::from_secs(2);

/// A shard's report.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub status: NodeStatus,
    /// Views that have begun.
    pub view_changes: u64,
    /// The era of tokens; `None`: this membership has none, or has not begun.
    pub era: Option<u64>,
    pub figures: Figures,
    pub sessions: Sessions,
}

/// The sessions of a shard's local clients.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sessions {
    /// Open now.
    pub open: u64,
    /// Opened since the start.
    pub opened: u64,
    /// Refused, or ended because of the client's behaviour.
    pub ended_by_force: u64,
    /// Bytes read from clients.
    pub bytes_received: u64,
    /// Bytes written to clients.
    pub bytes_sent: u64,
    /// Locks, and requests for locks, of all sessions.
    pub locks: u64,
}

/// Where the reader of metrics leaves its question for a shard.
#[derive(Clone, Default)]
pub(crate) struct SnapshotCell {
    asked: Arc<AtomicBool>,
    answer: Arc<Mutex<Option<SyncSender<Snapshot>>>>,
}

impl SnapshotCell {
    fn ask(&self, answer: SyncSender<Snapshot>) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        self.asked.store(true, Ordering::Release);
    }

    /// On the shard's thread: answers if somebody has asked.
    pub(crate) fn answer(&self, snapshot: impl FnOnce() -> Snapshot) {
        if self.asked.swap(false, Ordering::AcqRel) {
            let to = self.answer.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(to) = to {
                // The reader may have lost patience.
                let _ = to.try_send(snapshot());
            }
        }
    }
}

/// Asks all shards.
pub(crate) struct Reader {
    cells: Vec<(SnapshotCell, Arc<mio::Waker>)>,
}

impl Reader {
    pub(crate) fn new(cells: Vec<(SnapshotCell, Arc<mio::Waker>)>) -> Reader {
        Reader { cells }
    }

    /// The shards' answers, as Prometheus reads them.
    fn read(&self) -> Result<String, std::fmt::Error> {
        let (to, answers) = sync_channel(self.cells.len());
        for (cell, waker) in &self.cells {
            cell.ask(to.clone());
            // A shard that has ended already has no event queue.
            let _ = waker.wake();
        }
        drop(to);
        text::encode(self.cells.len(), collect(&answers, self.cells.len()))
    }
}

fn collect(answers: &Receiver<Snapshot>, all: usize) -> Vec<Snapshot> {
    let end = Instant::now() + PATIENCE;
    let mut found = Vec::new();
    while found.len() < all {
        match answers.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(snapshot) => found.push(snapshot),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    found.sort_by_key(|s| s.status.shard);
    found
}

/// Serves metrics on a thread until it is dropped.
pub(crate) struct Server {
    stop: Arc<AtomicBool>,
    waker: Arc<mio::Waker>,
    thread: Option<std::thread::JoinHandle<()>>,
    /// Keeps the file of a Unix socket, and removes it.
    _socket: Option<crate::listener::Reserved>,
}

impl Server {
    /// Binds the configured address; `None` without metrics.
    ///
    /// # Errors
    /// The address or the socket cannot be bound.
    pub(crate) fn start(
        config: &Config,
        reader: Reader,
        log: &Log,
    ) -> Result<Option<Server>, crate::Error> {
        let what = "cannot serve metrics";
        let system = |error: io::Error| crate::Error::System { what, error };
        let Metrics { address, socket } = &config.metrics;
        let (listener, reserved) = match (address, socket) {
            (Some(address), _) => {
                let listener = std::net::TcpListener::bind(address).map_err(system)?;
                let bound = listener.local_addr().map_err(system)?;
                log.info(format!("metrics at http://{bound}/metrics"));
                listener.set_nonblocking(true).map_err(system)?;
                (http::Listener::Tcp(mio::net::TcpListener::from_std(listener)), None)
            }
            (None, Some(path)) => {
                let (reserved, listener): (_, UnixListener) =
                    crate::listener::Reserved::bind(path, config.socket_mode)?;
                log.info(format!("metrics at {}", path.display()));
                listener.set_nonblocking(true).map_err(system)?;
                (http::Listener::Unix(mio::net::UnixListener::from_std(listener)), Some(reserved))
            }
            (None, None) => return Ok(None),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let service = http::Service::new(listener).map_err(system)?;
        let (stopped, waker) = (stop.clone(), service.waker());
        let thread = std::thread::Builder::new().name("lockify-metrics".into());
        let spawned = thread.spawn(move || service.run(&stopped, || reader.read().ok()));
        let thread = Some(spawned.map_err(system)?);
        Ok(Some(Server { stop, waker, thread, _socket: reserved }))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Fails only if its thread has ended.
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // It panicked, or it has nothing left to do.
            let _ = thread.join();
        }
    }
}
