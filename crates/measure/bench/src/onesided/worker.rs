//! A process that takes and releases locks as its parent tells it: for benchmarks, and for tests that kill it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use hdrhistogram::Histogram;
use lockify_fabric::FabricExecutor;
use lockify_fabric::shm::Owner;
use lockify_fabric::verbs::Settings;
use lockify_onesided::{Client, Fabric, LockId, Mode, Released};
use lockify_remote::rendezvous::Identity;
use lockify_remote::{Joining, Remote};
use lockify_report::crew::{self, Failure};
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use super::history::History;

/// A worker's task.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The table.
    pub table: Place,
    /// It uses locks below this.
    pub locks: u64,
    /// How unevenly: the exponent of Zipf's law; 0 is evenly.
    pub skew: f64,
    /// Share of acquisitions that share.
    pub shared: f64,
    /// How long a lock is held.
    pub hold_ns: u64,
    /// How long it goes on, unless its standard input ends before.
    pub duration_ns: u64,
    /// The seed of its choices.
    pub seed: u64,
    /// Where to write its history.
    pub history: Option<PathBuf>,
}

/// Where a table is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Place {
    /// In a segment of shared memory.
    Segment(PathBuf),
    /// At a memory server on a network that is safe by other means, which was told so: workers prove nothing.
    Network {
        /// Where it listens.
        server: SocketAddr,
        /// The RDMA device here; the first if none is named.
        device: Option<String>,
    },
}

/// The work of a worker.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// Locks taken and released.
    pub pairs: u64,
    /// Those of them whose lease was over before the release.
    pub revoked: u64,
    /// From its first request to its last release.
    pub elapsed_ns: u64,
    /// The number of compare-and-swaps.
    pub cas: u64,
    /// The number of fetch-and-adds.
    pub faa: u64,
    /// The number of READs.
    pub read: u64,
    /// The number of WRITEs.
    pub write: u64,
    /// Messages sent.
    pub messages: u64,
    /// How often an acquisition took how many nanoseconds, to three digits.
    pub waits: Vec<(u64, u64)>,
}

impl Done {
    /// Verbs at the home.
    pub fn verbs(&self) -> u64 {
        self.cas + self.faa + self.read + self.write
    }
}

/// A worker's message to its parent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// It is connected, with this number.
    Ready(u16),
    /// It has done its job.
    Done(Done),
}

/// How long acquisitions took, in nanoseconds, to three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

/// Does the job that the first line of standard input describes, when the second has come.
///
/// # Errors
/// Standard output cannot be written; all else is told to the parent.
pub fn run() -> std::io::Result<()> {
    crew::work(|job| Ok(Some(Reply::Done(do_it(&job)?))))
}

fn do_it(job: &Job) -> Result<Done, Failure> {
    match &job.table {
        Place::Segment(path) => do_with(job, Remote::connect(path, Owner::Me)?),
        Place::Network { server, device } => {
            let joining = Joining {
                address: *server,
                identity: Identity::plain_text("lockify", 0),
                server: 0,
                // Workers share their machine with many: a peer is not gone after half a second.
                verbs: Settings { device: device.clone(), ack_timeout: 16, ..Settings::default() },
            };
            do_with(job, Remote::join(&joining)?)
        }
    }
}

fn do_with<F: FabricExecutor>(job: &Job, mut remote: Remote<F>) -> Result<Done, Failure> {
    let choice = Choice::new(job, remote.locks())?;
    let protocol = remote.options().protocol;
    let (fabric, client) = remote.parts();
    let history = job
        .history
        .as_ref()
        .map(|path| History::create(path, fabric.me(), protocol))
        .transpose()?;
    crew::reply(&Reply::Ready(fabric.me().0))?;
    crew::line()?;
    let stop = crew::until_the_parent_ends()?;
    fabric.block_on(work(&fabric, client, job, choice, history, &stop))
}

/// Which locks, in which modes.
struct Choice {
    random: Xoshiro256PlusPlus,
    zipf: Option<Zipf<f64>>,
    locks: u64,
    shared: f64,
}

impl Choice {
    fn new(job: &Job, most: u64) -> Result<Choice, Failure> {
        let locks = job.locks.min(most).max(1);
        let zipf = (job.skew > 0.0)
            .then(|| Zipf::new(locks as f64, job.skew))
            .transpose()
            .map_err(|e| e.to_string())?;
        let random = Xoshiro256PlusPlus::seed_from_u64(job.seed);
        Ok(Choice { random, zipf, locks, shared: job.shared.clamp(0.0, 1.0) })
    }

    fn next(&mut self) -> (LockId, Mode) {
        let lock = match &self.zipf {
            // Ranks from 1.
            Some(zipf) => {
                (zipf.sample(&mut self.random) as u64).saturating_sub(1).min(self.locks - 1)
            }
            None => self.random.random_range(0..self.locks),
        };
        let mode =
            if self.random.random_bool(self.shared) { Mode::Shared } else { Mode::Exclusive };
        (LockId(lock), mode)
    }
}

async fn work<F: Fabric>(
    fabric: &F,
    client: &mut Client<F>,
    job: &Job,
    mut choice: Choice,
    mut history: Option<History>,
    stop: &AtomicBool,
) -> Result<Done, Failure> {
    let mut waits = histogram();
    let mut done = Done::default();
    let start = fabric.now();
    let end = start.saturating_add(job.duration_ns);
    let mut now = start;
    while now < end && !stop.load(Relaxed) {
        let (lock, mode) = choice.next();
        if let Some(history) = &mut history {
            history.requested(now, lock, mode)?;
        }
        let guard = client.lock(lock, mode).await?;
        let held = fabric.now();
        // It resizes itself, so every value has its place.
        waits.record(held - now)?;
        if let Some(history) = &mut history {
            history.granted(held, &guard)?;
        }
        if job.hold_ns > 0 {
            fabric.sleep_until(held + job.hold_ns).await;
        }
        if let Some(history) = &mut history {
            history.releases(held, fabric.now(), &guard)?;
        }
        done.revoked += u64::from(client.unlock(guard).await? == Released::Revoked);
        done.pairs += 1;
        now = fabric.now();
    }
    if let Some(history) = history {
        history.end(now)?;
    }
    let counts = client.counts();
    done.elapsed_ns = now - start;
    (done.cas, done.faa, done.read, done.write) =
        (counts.cas, counts.faa, counts.read, counts.write);
    done.messages = counts.send;
    done.waits =
        waits.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value())).collect();
    Ok(done)
}
