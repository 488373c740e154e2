//! The cost of the schemes: real processes on the loopback interface, over files of this machine.
//!
//! Every round measures every case once, one subject after the other. Each has files and processes of its own. A
//! disturbance of the machine affects all alike.

mod case;
mod fleet;
mod goals;
mod proxies;
mod raw;
mod rows;
mod work;
pub mod worker;

use std::path::{Path, PathBuf};
use std::time::Duration;

use hdrhistogram::Histogram;
use lockify_array::{OpError, Scheme};
use lockify_report::crew::{Program, Worker, WorkerError};
use lockify_volume::store::Access;

pub use case::{DEPTH, Effort, Subject, Workload};
pub use goals::{Goal, goals};
pub use proxies::{Export, Proxies};
pub use rows::{page, rows};

use fleet::Fleet;
use raw::Raw;
use work::{Done, Load};
use worker::{Job, Reply, Role};

/// How long a worker may take beyond its job.
const PATIENCE: Duration = Duration::from_secs(30);

/// How much is measured, and on what.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How often.
    pub rounds: u32,
    /// How long each time.
    pub duration: Duration,
    /// The loads of hosts.
    pub workloads: Vec<Workload>,
    /// The subjects that are measured under each of them.
    pub subjects: Vec<Subject>,
    /// Each write is durable when it is answered; else after a flush.
    pub durable: bool,
    /// Through the system's cache.
    pub buffered: bool,
    /// Stripes of 256 KiB.
    pub stripes: u64,
    /// Where the files are.
    pub folder: PathBuf,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// No folder for files.
    #[error("cannot make a folder in {}: {error}; give another one", folder.display())]
    Folder {
        /// The folder that cannot be used.
        folder: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The array cannot be described, or its files not made.
    #[error("cannot make the array: {0}")]
    Array(String),
    /// A process did not do its job.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// An operation on bare files failed.
    #[error("bare files: {0}")]
    Raw(#[from] OpError),
    /// A program that Lockify is compared with fails, or is not there.
    #[error("{program}: {what}; install it: apt-get install {package}")]
    Other {
        /// The program.
        program: &'static str,
        /// Its Debian package.
        package: &'static str,
        /// The event.
        what: String,
    },
}

/// One measurement of one case.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Operations per second, of all hosts together.
    pub ops_per_s: f64,
    /// Messages per operation.
    pub messages: f64,
    /// The model's figure for the measured operations.
    pub expected: f64,
    /// Share of operations that others delayed.
    pub delayed: f64,
    /// Processor time of hosts, devices and lock server per operation, in microseconds.
    pub processor_us: f64,
    /// How long operations took, in nanoseconds.
    pub times: Histogram<u64>,
}

/// A case's rounds.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// By what.
    pub subject: Subject,
    /// The load.
    pub workload: Workload,
    /// One for each round.
    pub rounds: Vec<Measured>,
}

/// The results of the measurements.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Each case, in order.
    pub outcomes: Vec<Outcome>,
    /// The block device beside nbdkit's.
    pub proxies: Proxies,
}

/// The number of measurements, for a progress display.
pub fn steps(settings: &Settings) -> u64 {
    let cases = settings.workloads.len() * settings.subjects.len();
    u64::from(settings.rounds) * (cases as u64 + 1)
}

/// Measures everything; `step` is called after each measurement.
///
/// # Errors
/// [`BenchError`].
pub fn measure(
    settings: &Settings,
    how: &Program,
    mut step: impl FnMut(),
) -> Result<Results, BenchError> {
    let outcome = |workload| {
        let outcome = move |&subject| Outcome { subject, workload, rounds: Vec::new() };
        settings.subjects.iter().map(outcome)
    };
    let outcomes = settings.workloads.iter().copied().flat_map(outcome).collect();
    let mut results = Results { outcomes, proxies: Proxies::new() };
    for round in 0..settings.rounds {
        // Every other round goes backwards, so that nothing always has the same neighbour.
        let mut order: Vec<usize> = (0..results.outcomes.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let Outcome { subject, workload, rounds } = &mut results.outcomes[at];
            rounds.push(once(*subject, *workload, round, settings, how)?);
            step();
        }
        if results.proxies.lacking.is_none() {
            results.proxies.measure(settings, how)?;
        }
        step();
    }
    Ok(results)
}

fn folder(settings: &Settings) -> Result<tempfile::TempDir, BenchError> {
    let failed = |error| BenchError::Folder { folder: settings.folder.clone(), error };
    tempfile::Builder::new().prefix("lockify-array").tempdir_in(&settings.folder).map_err(failed)
}

fn once(
    subject: Subject,
    workload: Workload,
    round: u32,
    settings: &Settings,
    how: &Program,
) -> Result<Measured, BenchError> {
    let dir = folder(settings)?;
    let stripes = settings.stripes * u64::from(workload.groups);
    let addressed = (stripes as f64 * workload.addressed).round() as u64;
    let load = |host: u32| Load {
        stripes: addressed.max(1),
        reads: workload.reads,
        depth: DEPTH,
        duration_ns: settings.duration.as_nanos() as u64,
        // The same for all subjects, another one for each round and host.
        seed: u64::from(round) << 32 | u64::from(host),
    };
    let scheme = match subject {
        Subject::Raw => {
            let load = Load { depth: DEPTH * workload.hosts, ..load(1) };
            return Ok(together(&[raw(&load, workload.groups, dir.path(), settings)?], 0));
        }
        Subject::Array(scheme) => scheme,
    };
    let file = fleet::file(scheme, workload.groups, settings)
        .map_err(|e| BenchError::Array(e.to_string()))?;
    let fleet = Fleet::start(&file, dir.path(), settings, how)?;
    let start = |host: u32| {
        let role = Role::Host { load: load(host) };
        Worker::start(how, format!("host {host}"), &Job { array: fleet.array.clone(), role })
    };
    let mut hosts = (1..=workload.hosts).map(start).collect::<Result<Vec<_>, _>>()?;
    hosts.iter_mut().try_for_each(ready)?;
    hosts.iter_mut().try_for_each(|host| host.send_line("go"))?;
    let warm = |host: &mut Worker| ready_within(host, settings.duration + PATIENCE);
    hosts.iter_mut().try_for_each(warm)?;
    let before = fleet.processor_time();
    hosts.iter_mut().try_for_each(|host| host.send_line("go"))?;
    let done = |host: &mut Worker| match host.hear(settings.duration + PATIENCE)? {
        Reply::Done(done) => Ok(done),
        reply => Err(host.unexpected(&reply)),
    };
    let done = hosts.iter_mut().map(done).collect::<Result<Vec<_>, _>>()?;
    let took = fleet.processor_time().saturating_sub(before);
    Ok(together(&done, took.as_nanos() as u64))
}

/// Waits until a worker serves, or is ready to begin.
fn ready(worker: &mut Worker) -> Result<(), WorkerError> {
    ready_within(worker, PATIENCE)
}

fn ready_within(worker: &mut Worker, patience: Duration) -> Result<(), WorkerError> {
    match worker.hear(patience)? {
        Reply::Ready => Ok(()),
        reply => Err(worker.unexpected(&reply)),
    }
}

fn raw(load: &Load, groups: u16, dir: &Path, settings: &Settings) -> Result<Done, BenchError> {
    let scheme = Scheme::ZeroOverhead;
    let file =
        fleet::file(scheme, groups, settings).map_err(|e| BenchError::Array(e.to_string()))?;
    let access = if settings.buffered { Access::Buffered } else { Access::Direct };
    let raw = Raw::create(&file, dir, access, settings.durable).map_err(BenchError::Array)?;
    work::put(&load.warm_up(), &file.layout, scheme, &raw)?;
    let done = work::put(load, &file.layout, scheme, &raw)?;
    // There is nobody to tell anything.
    Ok(Done { expected: 0, ..done })
}

/// `fleet`: the processor time of devices and lock server, in nanoseconds.
fn together(done: &[Done], fleet: u64) -> Measured {
    let sum = |of: fn(&Done) -> u64| done.iter().map(of).sum::<u64>() as f64;
    let ops = sum(|d| d.ops).max(1.0);
    let elapsed = done.iter().map(|d| d.elapsed_ns).max().unwrap_or(0).max(1);
    let mut times = work::histogram();
    for (value, count) in done.iter().flat_map(|d| &d.times) {
        // It resizes itself, so every value has its place.
        let _ = times.record_n(*value, *count);
    }
    Measured {
        ops_per_s: ops * 1e9 / elapsed as f64,
        messages: sum(|d| d.messages) / ops,
        expected: sum(|d| d.expected) / ops,
        delayed: sum(|d| d.delayed) / ops,
        processor_us: (sum(|d| d.processor_ns) + fleet as f64) / 1e3 / ops,
        times,
    }
}
