//! A range of seeds of one kind of run, and the results, as `lockify sim` shows them for arrays and remote locks.

use std::fmt;

use crate::seeds::{Failure, SeedFailure, Seeds, run_seeds, trace_failures};

/// The events of one run, or of several. Its text is a list of counts.
pub trait Outcome: Default + Send + fmt::Display {
    /// Adds what happened in another run.
    fn add(&mut self, other: &Self);
}

/// The results of a range of seeds.
#[derive(Clone, Debug)]
pub struct Summary<O> {
    /// The name of the run, padded to the width of those shown with it.
    pub name: String,
    /// Seeds that were run.
    pub runs: u64,
    /// All of their outcomes.
    pub total: O,
    /// The seeds that failed.
    pub failures: Vec<SeedFailure>,
}

impl<O: fmt::Display> fmt::Display for Summary<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.failures {
            writeln!(f, "{failure}")?;
        }
        let Summary { name, runs, total, failures } = self;
        write!(f, "{name} {runs} seeds, {} failed; {total}", failures.len())
    }
}

/// Runs all seeds. `one` gets a seed, and whether to keep its trace. Failing seeds run again with a trace if `trace` is
/// set. `progress` gets the number of finished seeds.
pub fn run<O: Outcome>(
    name: String,
    seeds: &Seeds,
    trace: bool,
    one: impl Fn(u64, bool) -> Result<O, Failure> + Sync,
    progress: impl Fn(u64) + Sync,
) -> Summary<O> {
    let report = if trace {
        run_seeds(seeds, trace_failures(one), progress)
    } else {
        run_seeds(seeds, |seed| one(seed, false), progress)
    };
    let runs = (report.passed.len() + report.failures.len()) as u64;
    let mut total = O::default();
    report.passed.iter().for_each(|(_, outcome)| total.add(outcome));
    Summary { name, runs, total, failures: report.failures }
}
