//! One run: create, settle, count, release, check, clean up; or two runs whose creations take turns.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lockify_core::Stats;
use lockify_history::ReadError;
use lockify_report::crew::WorkerError;

use crate::cluster::Cluster;
use crate::wire::{Portion, Prepare};
use crate::{folder, proof};

/// Why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The workers failed.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The folder of the run cannot be made or listed.
    #[error("{path}: {error}; choose another place with --shared DIR")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// A history cannot be read back.
    #[error("a worker's history cannot be read: {0}")]
    History(#[from] ReadError),
    /// The workers report more entries than exist.
    #[error(
        "{said} entries were created, but {found} are in the shared folder: this is a defect of the demo or of the file system"
    )]
    Count {
        /// The workers' number.
        said: u64,
        /// The present number.
        found: u64,
    },
}

/// The specification of a run.
#[derive(Clone, Debug)]
pub struct Spec<'a> {
    /// The policy's name.
    pub policy: &'a str,
    /// How many nodes create at the same time, in one folder.
    pub active: u32,
    /// File with the entries.
    pub entries: &'a Path,
    /// How many of them to create at most.
    pub limit: u32,
    /// Stop after this time…
    pub budget: Duration,
    /// …if each creator has created so many.
    pub min: u32,
    /// How long the parent's lock is kept after it was granted.
    pub hold: Duration,
    /// Where to create.
    pub scratch: &'a Path,
}

impl Spec<'_> {
    fn folder_error(&self, error: std::io::Error) -> RunError {
        RunError::Folder { path: self.scratch.to_owned(), error }
    }
}

/// The measurements of a run.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Entries created.
    pub created: u64,
    /// From the first creation's beginning to the last final barrier, without pauses, nanoseconds.
    pub elapsed_ns: u64,
    /// Time of each creation, nanoseconds, sorted.
    pub latencies: Vec<u64>,
    /// Time in lock calls, over all creators, nanoseconds.
    pub lock_ns: u64,
    /// The work of all nodes' lock managers meanwhile.
    pub stats: Stats,
    /// Events of the checked history.
    pub events: u64,
    /// Violations in it.
    pub violations: u64,
    /// The first violations, for people.
    pub report: Option<String>,
}

impl Measured {
    /// Entries created per second.
    pub fn rate(&self) -> f64 {
        per(self.created as f64 * 1e9, self.elapsed_ns)
    }

    /// Wall time per creation in microseconds.
    pub fn micros(&self) -> f64 {
        per(self.elapsed_ns as f64 / 1e3, self.created)
    }

    /// So many of something, per creation.
    pub fn each(&self, count: u64) -> f64 {
        per(count as f64, self.created)
    }

    /// The share of the creators' time that was spent in lock calls.
    pub fn lock_share(&self) -> f64 {
        per(self.lock_ns as f64, self.latencies.iter().sum())
    }

    /// The latency that a share of the creations does not exceed, in microseconds.
    pub fn percentile(&self, share: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        let rank = (share * last as f64).round() as usize;
        self.latencies.get(rank).map_or(0.0, |&ns| ns as f64 / 1e3)
    }
}

fn per(value: f64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { value / count as f64 }
}

/// Portions of runs that take turns. File systems change their pace within a run (ext4 by half:
/// where it looks for inodes, what its journal does), so that runs one after the other differ by
/// that; a portion lasts some milliseconds.
const TURNS: u32 = 20;

/// Runs once.
///
/// # Errors
/// [`RunError`].
pub fn run(cluster: &mut Cluster, spec: &Spec<'_>) -> Result<Measured, RunError> {
    let mut run = Run::begin(cluster, spec)?;
    run.create(u32::MAX)?;
    run.finish()
}

/// Runs once on each of two clusters with one creator each, which create the same entries a portion
/// at a time, in turn. The clock of a run stands still while the other creates.
///
/// # Errors
/// [`RunError`].
pub fn run_in_turn(
    first: &mut Cluster,
    second: &mut Cluster,
    spec: &Spec<'_>,
) -> Result<(Measured, Measured), RunError> {
    let (mut first, mut second) = (Run::begin(first, spec)?, Run::begin(second, spec)?);
    for turn in 1..=TURNS {
        let pause_at = spec.limit.div_ceil(TURNS) * turn;
        first.create(pause_at)?;
        second.create(pause_at)?;
    }
    Ok((first.finish()?, second.finish()?))
}

/// Bare round trips between creations of the first node's, nanoseconds.
///
/// # Errors
/// [`RunError`].
pub fn ping(
    cluster: &mut Cluster,
    delay: Duration,
    entries: &Path,
    count: u32,
    scratch: &Path,
) -> Result<Vec<u64>, RunError> {
    let folder_error = |error| RunError::Folder { path: scratch.to_owned(), error };
    let folder = folder::make(scratch).map_err(folder_error)?;
    cluster.place(true)?;
    let trips = cluster.ping(delay, entries, count, &folder)?;
    folder::clean(&folder).map_err(folder_error)?;
    Ok(trips)
}

/// A run that is under way.
struct Run<'a> {
    cluster: &'a mut Cluster,
    spec: &'a Spec<'a>,
    folder: PathBuf,
    /// Counters of all nodes, when it began.
    before: Vec<Stats>,
    over: bool,
    measured: Measured,
}

impl<'a> Run<'a> {
    fn begin(cluster: &'a mut Cluster, spec: &'a Spec<'a>) -> Result<Run<'a>, RunError> {
        let folder = folder::make(spec.scratch).map_err(|error| spec.folder_error(error))?;
        let prepare = Prepare {
            policy: spec.policy.to_owned(),
            entries: spec.entries.to_owned(),
            limit: spec.limit,
            folder: folder.clone(),
            share: (0, spec.active),
            hold_ns: spec.hold.as_nanos() as u64,
        };
        cluster.place(spec.active == 1)?;
        cluster.prepare(spec.active, &prepare)?;
        let before = cluster.stats(spec.policy)?;
        Ok(Run { cluster, spec, folder, before, over: false, measured: Measured::default() })
    }

    /// Goes on until so many entries are there, or the run is over.
    fn create(&mut self, pause_at: u32) -> Result<(), RunError> {
        if self.over {
            return Ok(());
        }
        let &Spec { active, budget, min, .. } = self.spec;
        let portion = Portion { pause_at, budget_ns: budget.as_nanos() as u64, min };
        let created = self.cluster.create(active, portion)?;
        let began = created.iter().map(|c| c.began).min().unwrap_or(0);
        let ended = created.iter().map(|c| c.ended).max().unwrap_or(0);
        self.measured.elapsed_ns += ended.saturating_sub(began);
        self.over = created.iter().all(|c| c.over);
        for creator in created {
            self.measured.lock_ns += creator.lock_ns;
            self.measured.latencies.extend(creator.latencies);
        }
        Ok(())
    }

    fn finish(self) -> Result<Measured, RunError> {
        let Run { cluster, spec, folder, before, mut measured, .. } = self;
        measured.latencies.sort_unstable();
        measured.created = measured.latencies.len() as u64;
        measured.stats = difference(&before, &cluster.stats(spec.policy)?);
        let files = cluster.release(spec.active, spec.scratch)?;
        let found = count_below(&folder).map_err(|error| spec.folder_error(error))?;
        if found != measured.created {
            return Err(RunError::Count { said: measured.created, found });
        }
        let (report, cleaned) = std::thread::scope(|both| {
            let cleaner = both.spawn(|| folder::clean(&folder));
            (proof::check(&files), cleaner.join())
        });
        cleaned
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            .map_err(|error| spec.folder_error(error))?;
        let report = report?;
        measured.events = report.counts.events;
        measured.violations = report.violated;
        measured.report = (!report.is_clean()).then(|| report.to_string());
        Ok(measured)
    }
}

/// The work of all nodes from one look at their counters to another.
fn difference(before: &[Stats], after: &[Stats]) -> Stats {
    let mut stats = Stats::default();
    for (b, a) in before.iter().zip(after) {
        stats.messages_sent += a.messages_sent.saturating_sub(b.messages_sent);
        stats.round_trips += a.round_trips.saturating_sub(b.round_trips);
        stats.claims += a.claims.saturating_sub(b.claims);
        stats.resends += a.resends.saturating_sub(b.resends);
        stats.refusals += a.refusals.saturating_sub(b.refusals);
        stats.barrier_waits += a.barrier_waits.saturating_sub(b.barrier_waits);
    }
    stats
}

/// How many entries are below a directory.
fn count_below(dir: &Path) -> std::io::Result<u64> {
    let mut count = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        count += 1;
        if entry.file_type()?.is_dir() {
            count += count_below(&entry.path())?;
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_from_what_was_measured() {
        let m = Measured {
            created: 4,
            elapsed_ns: 2_000_000,
            latencies: vec![100_000, 200_000, 300_000, 400_000],
            lock_ns: 250_000,
            ..Measured::default()
        };
        assert_eq!(m.rate(), 2000.0);
        assert_eq!(m.micros(), 500.0);
        assert_eq!(m.each(6), 1.5);
        assert_eq!(m.lock_share(), 0.25);
        assert_eq!((m.percentile(0.0), m.percentile(1.0)), (100.0, 400.0));
        assert_eq!(Measured::default().rate(), 0.0);
    }

    #[test]
    fn counts_everything_below() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/f"), "").unwrap();
        assert_eq!(count_below(dir.path()).unwrap(), 3);
    }
}
