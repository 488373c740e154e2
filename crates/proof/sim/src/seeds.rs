//! Running many seeds over the processor's cores.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which seeds to run, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds {
    /// The seeds.
    pub range: Range<u64>,
    /// Threads; 0 for as many as there are cores.
    pub threads: usize,
    /// After so many failures no further seed is begun; 0 for all of them.
    pub max_failures: usize,
    /// The command that replays a seed, with `{seed}` where the seed goes: `lockify sim locks --seed {seed} --trace`.
    pub replay: String,
}

impl Seeds {
    /// All seeds of a range, on all cores, stopping at the first failure.
    pub fn new(range: Range<u64>, replay: impl Into<String>) -> Self {
        Self { range, threads: 0, max_failures: 1, replay: replay.into() }
    }

    fn thread_count(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let wanted = if self.threads == 0 { cores() } else { self.threads };
        let seeds =
            usize::try_from(self.range.end.saturating_sub(self.range.start)).unwrap_or(usize::MAX);
        wanted.min(seeds).max(1)
    }
}

/// Why a seed failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// The violation, in a few lines.
    pub message: String,
    /// The events before it, usually [`Trace`](crate::Trace) as text; may be empty.
    pub trace: String,
}

impl<S: Into<String>> From<S> for Failure {
    fn from(message: S) -> Self {
        Self { message: message.into(), trace: String::new() }
    }
}

/// A seed that failed. Its `Display` is the trace, the reason, and how to replay it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedFailure {
    /// The seed.
    pub seed: u64,
    /// The reason.
    pub failure: Failure,
    /// The command that replays it.
    pub replay: String,
}

impl fmt::Display for SeedFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.failure.trace.is_empty() {
            writeln!(f, "{}", self.failure.trace.trim_end())?;
        }
        writeln!(f, "seed {} failed: {}", self.seed, self.failure.message)?;
        write!(f, "replay: {}", self.replay)
    }
}

/// The results of a range of seeds, each list by ascending seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedReport<T> {
    /// The results of the seeds that passed.
    pub passed: Vec<(u64, T)>,
    /// The seeds that failed.
    pub failures: Vec<SeedFailure>,
}

impl<T> SeedReport<T> {
    /// Returns true if no seed failed.
    pub fn is_clean(&self) -> bool {
        self.failures.is_empty()
    }
}

/// Runs every seed, each on one thread. A panic counts as a failure of its seed.
///
/// `progress` is called after each seed with the number of seeds done, on any of the threads.
pub fn run_seeds<T: Send>(
    seeds: &Seeds,
    run: impl Fn(u64) -> Result<T, Failure> + Sync,
    progress: impl Fn(u64) + Sync,
) -> SeedReport<T> {
    let next = AtomicU64::new(seeds.range.start);
    let done = AtomicU64::new(0);
    let report = Mutex::new(SeedReport { passed: Vec::new(), failures: Vec::new() });
    std::thread::scope(|scope| {
        for _ in 0..seeds.thread_count() {
            scope.spawn(|| {
                while let Some(seed) = take_seed(&next, seeds, &report) {
                    let outcome = run_one(|| run(seed));
                    record(&report, seeds, seed, outcome);
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1);
                }
            });
        }
    });
    let mut report = report.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    report.passed.sort_by_key(|(seed, _)| *seed);
    report.failures.sort_by_key(|failure| failure.seed);
    report
}

/// Makes a run that traces only what fails, since a trace costs much more than the run itself.
///
/// `run` gets a seed and whether to trace. A seed that fails without is run again with the trace on, and that outcome is
/// reported; if it passes then, the run does not follow from its seed alone, and the failure says so.
pub fn trace_failures<T>(
    run: impl Fn(u64, bool) -> Result<T, Failure> + Sync,
) -> impl Fn(u64) -> Result<T, Failure> + Sync {
    move |seed| {
        run_one(|| run(seed, false)).map_err(|first| match run_one(|| run(seed, true)) {
            Err(traced) => traced,
            Ok(_) => not_reproducible(first),
        })
    }
}

fn not_reproducible(first: Failure) -> Failure {
    let hint =
        "passed when run again with the trace on; something in it does not follow from the seed";
    Failure { message: format!("{}\n({hint})", first.message), ..first }
}

fn take_seed<T>(next: &AtomicU64, seeds: &Seeds, report: &Mutex<SeedReport<T>>) -> Option<u64> {
    let failures = lock(report).failures.len();
    if seeds.max_failures > 0 && failures >= seeds.max_failures {
        return None;
    }
    let seed = next.fetch_add(1, Ordering::Relaxed);
    seeds.range.contains(&seed).then_some(seed)
}

fn run_one<T>(run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // Nothing that the closure could leave half-changed is used after a panic: every seed builds its own cluster.
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| Err(Failure::from(format!("panic: {}", panic_message(&*panic)))))
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no message)")
}

fn record<T>(report: &Mutex<SeedReport<T>>, seeds: &Seeds, seed: u64, outcome: Result<T, Failure>) {
    let mut report = lock(report);
    match outcome {
        Ok(value) => report.passed.push((seed, value)),
        Err(failure) => {
            let replay = seeds.replay.replace("{seed}", &seed.to_string());
            report.failures.push(SeedFailure { seed, failure, replay });
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn odd_fails(seed: u64) -> Result<u64, Failure> {
        match seed {
            7 => panic!("boom {seed}"),
            odd if odd % 2 == 1 => Err(Failure { message: "odd".into(), trace: "line\n".into() }),
            even => Ok(even * 10),
        }
    }

    #[test]
    fn collects_results_failures_and_panics_in_order() {
        let seeds = Seeds {
            max_failures: 0,
            threads: 3,
            ..Seeds::new(4..9, "lockify sim locks --seed {seed} --trace")
        };
        let progress = AtomicU64::new(0);
        let report = run_seeds(&seeds, odd_fails, |done| {
            progress.fetch_max(done, Ordering::Relaxed);
        });
        assert_eq!(report.passed, [(4, 40), (6, 60), (8, 80)]);
        let failures: Vec<_> = report.failures.iter().map(ToString::to_string).collect();
        assert_eq!(
            failures,
            [
                "line\nseed 5 failed: odd\nreplay: lockify sim locks --seed 5 --trace",
                "seed 7 failed: panic: boom 7\nreplay: lockify sim locks --seed 7 --trace",
            ]
        );
        assert_eq!(progress.into_inner(), 5);
    }

    #[test]
    fn stops_at_the_first_failure() {
        let seeds = Seeds { threads: 1, ..Seeds::new(0..1_000, "") };
        let report = run_seeds(&seeds, odd_fails, |_| {});
        assert!(!report.is_clean());
        assert_eq!((report.passed.len(), report.failures.len()), (1, 1));
    }

    #[test]
    fn an_empty_range_is_clean() {
        assert!(run_seeds(&Seeds::new(5..5, ""), odd_fails, |_| {}).is_clean());
    }
    #[test]
    fn only_failures_are_traced() {
        let run = |seed: u64, trace: bool| match seed {
            2 => Err(Failure {
                message: "bad".into(),
                trace: if trace { "line" } else { "" }.into(),
            }),
            3 if !trace => Err(Failure::from("only once")),
            seed => Ok((seed, trace)),
        };
        let seeds = Seeds { max_failures: 0, ..Seeds::new(1..5, "") };
        let report = run_seeds(&seeds, trace_failures(run), |_| {});
        assert_eq!(report.passed, [(1, (1, false)), (4, (4, false))]);
        assert_eq!(report.failures[0].failure.trace, "line");
        let unstable = &report.failures[1].failure.message;
        assert!(
            unstable.starts_with("only once") && unstable.contains("does not follow from the seed")
        );
    }
}
