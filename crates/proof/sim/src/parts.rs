//! An experiment's parts, measured on all cores.

use std::panic::resume_unwind;

use crate::seeds::{Seeds, run_seeds};

/// Runs all parts on all cores; `progress` is told how many are done.
///
/// # Errors
/// The first part that could not be measured.
pub fn run_parts<P: Sync, T: Send, E: Send>(
    parts: &[P],
    measure: impl Fn(&P) -> Result<Vec<T>, E> + Sync,
    progress: impl Fn(u64) + Sync,
) -> Result<Vec<T>, E> {
    let seeds = Seeds { max_failures: 0, ..Seeds::new(0..parts.len() as u64, "") };
    let one = |number: u64| Ok(parts.get(number as usize).map_or(Ok(Vec::new()), &measure));
    let report = run_seeds(&seeds, one, progress);
    if let Some(failure) = report.failures.first() {
        // Only a panic is a failure here. Nobody would notice that its results are missing.
        resume_unwind(Box::new(failure.to_string()));
    }
    let mut results = Vec::new();
    for (_, part) in report.passed {
        results.extend(part?);
    }
    Ok(results)
}
