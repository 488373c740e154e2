//! The cost of the protocols: real processes on the fabric of shared memory, next to the processor's limit.
//!
//! Every round measures every case once, one protocol after the other, and the limits between them: a disturbance of
//! the machine affects all alike.

mod case;
mod crew;
mod history;
mod limit;
pub mod proof;
mod rows;
pub mod worker;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use lockify_onesided::{Options, Protocol};
use lockify_remote::{ServeError, Server, Settings};
use lockify_report::crew::{Program, WorkerError};

pub use case::{Case, Workload, workloads};
pub use crew::Crew;
pub use limit::Limits;
pub use rows::{page, rows};

use worker::{Done, Job, Place};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// How often.
    pub rounds: u32,
    /// How long each time.
    pub duration: Duration,
    /// All workloads, or the few that tell most.
    pub all: bool,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// No folder for the segments.
    #[error("cannot make a folder for the table: {0}; free memory or set TMPDIR")]
    Folder(std::io::Error),
    /// A bare measurement failed.
    #[error("cannot measure the machine's limit: {0}")]
    Limit(std::io::Error),
    /// The table cannot be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Its server panicked.
    #[error("the memory server ended by a defect; its message is above")]
    Server,
    /// Workers did not do their jobs.
    #[error("{what}: {error}")]
    Crew {
        /// In which case.
        what: String,
        /// The system's error.
        error: WorkerError,
    },
}

/// One measurement of one case.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Pairs of lock and unlock per second, of all clients together.
    pub pairs_per_s: f64,
    /// Verbs at the home per pair.
    pub verbs: f64,
    /// Messages per pair.
    pub messages: f64,
    /// How long acquisitions took, in nanoseconds.
    pub waits: Histogram<u64>,
}

/// A case's rounds.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The case.
    pub case: Case,
    /// One for each round.
    pub rounds: Vec<Measured>,
}

/// The measurements.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Each case, in order.
    pub outcomes: Vec<Outcome>,
    /// The machine's limits, with each number of clients.
    pub limits: Limits,
}

/// The number of cases in a round, for a progress display.
pub fn cases(effort: Effort) -> Vec<Case> {
    let of = |workload: Workload| {
        Protocol::ALL.iter().map(move |protocol| Case { protocol: *protocol, workload })
    };
    workloads(effort.all).into_iter().flat_map(of).collect()
}

/// Measures everything; `step` is called after each case.
///
/// # Errors
/// [`BenchError`].
pub fn measure(
    effort: Effort,
    how: &Program,
    mut step: impl FnMut(),
) -> Result<Results, BenchError> {
    let shared = Path::new("/dev/shm");
    // A file elsewhere is slower only while its pages are new.
    let dir = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
    let dir = dir.map_err(BenchError::Folder)?;
    let outcome = |case| Outcome { case, rounds: Vec::new() };
    let outcomes = cases(effort).into_iter().map(outcome).collect();
    let mut results = Results { outcomes, limits: Limits::default() };
    for round in 0..effort.rounds {
        let mut before = None;
        for outcome in &mut results.outcomes {
            let workload = outcome.case.workload;
            if before != Some(workload) {
                results.limits.measure(workload, effort.duration).map_err(BenchError::Limit)?;
                before = Some(workload);
            }
            let path = dir.path().join("table");
            outcome.rounds.push(once(outcome.case, effort.duration, round.into(), &path, how)?);
            step();
        }
    }
    Ok(results)
}

fn once(
    case: Case,
    duration: Duration,
    seed: u64,
    path: &Path,
    how: &Program,
) -> Result<Measured, BenchError> {
    let Workload { clients, locks, skew, shared } = case.workload;
    let options = Options::new(case.protocol);
    let settings =
        Settings { path: path.to_owned(), locks, clients: clients.into(), mode: 0o600, options };
    let job = |client: u32| Job {
        table: Place::Segment(path.to_owned()),
        locks,
        skew,
        shared,
        hold_ns: 0,
        duration_ns: duration.as_nanos() as u64,
        seed: seed << 32 | u64::from(client),
        history: None,
    };
    let served = serving(settings, || {
        let mut crew = Crew::start(how, (0..clients).map(job))?;
        crew.go()?;
        crew.done()
    })?;
    let done = served.map_err(|error| BenchError::Crew { what: case.to_string(), error })?;
    Ok(together(&done))
}

/// Does something while a table is served. The server's fabric belongs to one thread, so that is made here.
fn serving<T>(settings: Settings, work: impl FnOnce() -> T) -> Result<T, BenchError> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let (ready, started) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || -> Result<(), ServeError> {
        let server = Server::start(&settings)?;
        // A thread that waits for it is there until this thread has ended.
        let _ = ready.send(());
        server.run(&stopped)
    });
    let value = started.recv().is_ok().then(work);
    stop.store(true, Ordering::Relaxed);
    thread.join().map_err(|_| BenchError::Server)??;
    value.ok_or(BenchError::Server)
}

fn together(done: &[Done]) -> Measured {
    let pairs: u64 = done.iter().map(|d| d.pairs).sum();
    let elapsed = done.iter().map(|d| d.elapsed_ns).max().unwrap_or(0).max(1);
    let per_pair =
        |of: fn(&Done) -> u64| done.iter().map(of).sum::<u64>() as f64 / pairs.max(1) as f64;
    let mut waits: Histogram<u64> = worker::histogram();
    for (value, count) in done.iter().flat_map(|d| &d.waits) {
        // It resizes itself, so every value has its place.
        let _ = waits.record_n(*value, *count);
    }
    Measured {
        pairs_per_s: pairs as f64 * 1e9 / elapsed as f64,
        verbs: per_pair(Done::verbs),
        messages: per_pair(|d| d.messages),
        waits,
    }
}
