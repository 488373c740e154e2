//! The search among readings of the paper for one that brings all of its results.

use std::fmt::Write as _;

use super::criteria::{self, Criterion};
use super::figures;
use super::reading::{Disks, Lab, NAMES, Reading};
use super::run_all;
use crate::measure::MeasureError;

/// How many of the best readings have all of their results measured.
const FINALISTS: usize = 2;

/// A reading, and the disputed results under it.
struct Tried {
    lab: Lab,
    disputed: Vec<Criterion>,
}

impl Tried {
    fn met(&self) -> usize {
        self.disputed.iter().filter(|criterion| criterion.met).count()
    }
}

/// How many steps a search among these readings has.
pub fn steps(readings: &[Reading]) -> u64 {
    (disks(readings).len() + readings.len() + readings.len().min(FINALISTS)) as u64
}

/// The readings whose disks have to be fitted.
fn disks(readings: &[Reading]) -> Vec<Reading> {
    let mut disks: Vec<Reading> = Vec::new();
    for reading in readings.iter().map(|reading| reading.disks()) {
        if !disks.contains(&reading) {
            disks.push(reading);
        }
    }
    disks
}

/// Fits disks to every reading, measures the disputed results under each, and all results under the best ones. Returns the
/// search as text.
///
/// # Errors
/// The first reading that could not be measured.
pub fn run(readings: &[Reading], progress: impl Fn(u64) + Sync) -> Result<String, MeasureError> {
    let kinds = disks(readings);
    let fitted = lockify_sim::run_parts(&kinds, fit, &progress)?;
    let labs: Vec<Lab> = readings.iter().map(|reading| lab(*reading, &fitted)).collect();
    let begun = kinds.len() as u64;
    let tried = lockify_sim::run_parts(&labs, attempt, |done| progress(begun + done))?;
    let begun = begun + labs.len() as u64;
    let mut best: Vec<&Tried> = tried.iter().collect();
    best.sort_by_key(|tried| std::cmp::Reverse(tried.met()));
    let best: Vec<Lab> = best.into_iter().take(FINALISTS).map(|tried| tried.lab).collect();
    let finalists = lockify_sim::run_parts(&best, finish, |done| progress(begun + done))?;
    Ok(text(&tried, &finalists))
}

fn fit(reading: &Reading) -> Result<Vec<(Reading, Disks)>, MeasureError> {
    Ok(vec![(*reading, Disks::of(*reading)?)])
}

fn lab(reading: Reading, fitted: &[(Reading, Disks)]) -> Lab {
    let found = fitted.iter().find(|(of, _)| *of == reading.disks());
    Lab::new(reading, found.map_or_else(Disks::fixed, |(_, disks)| *disks))
}

fn attempt(lab: &Lab) -> Result<Vec<Tried>, MeasureError> {
    let rows = run_all(&figures::disputed(*lab))?;
    Ok(vec![Tried { lab: *lab, disputed: criteria::disputed(&rows) }])
}

fn finish(lab: &Lab) -> Result<Vec<(Lab, Vec<Criterion>)>, MeasureError> {
    let rows = run_all(&figures::compared(*lab))?;
    Ok(vec![(*lab, criteria::criteria(&rows))])
}

fn text(tried: &[Tried], finalists: &[(Lab, Vec<Criterion>)]) -> String {
    let mut text = format!(
        "Readings of the paper. {NAMES} Disks are fitted to zero-overhead for each reading. 1 to 4 are the results that the fixed reading \
         does not bring:\n"
    );
    let names = tried.first().map_or(&[][..], |tried| &tried.disputed);
    for (number, criterion) in (1..).zip(names) {
        let _ = writeln!(text, "  {number}  {}", criterion.what);
    }
    text += "\n";
    for tried in tried {
        let marks = (1..).zip(&tried.disputed);
        let marks: String = marks
            .map(|(n, c): (u8, _)| if c.met { format!("{n} ") } else { "- ".into() })
            .collect();
        let _ = writeln!(text, "{marks} {}", tried.lab.reading);
        for criterion in &tried.disputed {
            let _ = writeln!(text, "           {}", criterion.here);
        }
    }
    text += &excluded(tried);
    for (lab, criteria) in finalists {
        let met = criteria.iter().filter(|criterion| criterion.met).count();
        let _ = writeln!(text, "\n{met} of {} as published: {}", criteria.len(), lab.reading);
        for criterion in criteria.iter().filter(|criterion| !criterion.met) {
            let _ = writeln!(text, "    {}: {}", criterion.what, criterion.here);
        }
    }
    text
}

/// Which of the disputed results no reading has together.
fn excluded(tried: &[Tried]) -> String {
    let count = tried.first().map_or(0, |tried| tried.disputed.len());
    let met = |tried: &Tried, n: usize| tried.disputed.get(n).is_some_and(|c| c.met);
    let mut text = String::from("\nReadings that have both:\n");
    for a in 0..count {
        for b in a + 1..count {
            let both = tried.iter().filter(|tried| met(tried, a) && met(tried, b)).count();
            let _ = writeln!(text, "  {} and {}: {both} of {}", a + 1, b + 1, tried.len());
        }
    }
    text
}
