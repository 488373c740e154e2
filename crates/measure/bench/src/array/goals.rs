//! The goals, and whether they were met.

use std::fmt;

use lockify_array::Scheme;
use lockify_report::Spread;

use super::case::{DATA, MANY_GROUPS};
use super::{Outcome, Results, Subject, Workload};

/// A goal and its result.
#[derive(Clone, PartialEq, Debug)]
pub struct Goal {
    /// The promise.
    pub what: String,
    /// The measured figure, with the smallest and the largest of the rounds.
    pub found: Spread,
    /// True if the figure keeps the promise.
    pub held: bool,
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.held { "held  " } else { "missed" };
        let Spread { median, min, max, .. } = self.found;
        write!(f, "{word}  {}: {median:.3} ({min:.3} to {max:.3})", self.what)
    }
}

/// All goals.
pub fn goals(results: &Results) -> Vec<Goal> {
    let mut goals = Vec::new();
    for outcome in &results.outcomes {
        let of = |scheme| result_of(results, outcome.workload, scheme);
        match outcome.subject {
            Subject::Array(Scheme::TimestampOrdering) => {
                goals.extend(of(Scheme::ZeroOverhead).and_then(|zero| ratio(outcome, zero)));
                goals.extend(many_devices(results, outcome));
            }
            Subject::Raw | Subject::Array(_) => {}
        }
        goals.extend(as_modelled(outcome));
    }
    let pairs = results.proxies.lockify.iter().zip(&results.proxies.nbdkit);
    let ratios: Vec<f64> = pairs.map(|(ours, theirs)| ours / theirs).collect();
    goals.extend(at_least(0.95, "reads by NBD", "nbdkit's nbd in front of its file", &ratios));
    goals
}

fn result_of(results: &Results, workload: Workload, scheme: Scheme) -> Option<&Outcome> {
    let is = |o: &&Outcome| o.workload == workload && o.subject == Subject::Array(scheme);
    results.outcomes.iter().find(is)
}

/// A goal for the median of such ratios; none without rounds.
fn at_least(least: f64, what: &str, of: &str, ratios: &[f64]) -> Option<Goal> {
    let found = Spread::of(ratios)?;
    Some(Goal {
        what: format!("{what}, at least {least} of {of}"),
        found,
        held: found.median >= least,
    })
}

/// Round by round: what disturbs one mostly disturbs the other.
fn pairwise(of: &Outcome, to: &Outcome) -> Vec<f64> {
    let pairs = of.rounds.iter().zip(&to.rounds);
    pairs.map(|(a, b)| a.ops_per_s / b.ops_per_s.max(1e-9)).collect()
}

fn ratio(of: &Outcome, to: &Outcome) -> Option<Goal> {
    let Workload { hosts, addressed, reads, groups } = of.workload;
    let load = format!(
        "zero-overhead ({hosts} hosts on {:.1} % of {} devices, {:.0} % reads)",
        addressed * 100.0,
        (DATA + 1) * groups,
        reads * 100.0
    );
    at_least(0.95, "timestamp-ordering", &load, &pairwise(of, to))
}

/// More devices and hosts than processors: what is shared does not become slower for it.
fn many_devices(results: &Results, many: &Outcome) -> Option<Goal> {
    let Workload { hosts, groups, .. } = many.workload;
    let wanted = Workload { groups: 1, ..many.workload };
    let is_few = |o: &&Outcome| o.workload == wanted && o.subject == many.subject;
    let few = (groups == MANY_GROUPS).then(|| results.outcomes.iter().find(is_few)).flatten()?;
    let what = format!("{} devices and {hosts} hosts", (DATA + 1) * groups);
    at_least(0.8, &what, "five devices", &pairwise(many, few))
}

/// A single host disturbs nobody but itself, so the model fits. For callback locking the model is an upper bound.
fn as_modelled(outcome: &Outcome) -> Option<Goal> {
    let Subject::Array(scheme) = outcome.subject else { return None };
    if outcome.workload.hosts > 1 || outcome.workload.groups > 1 {
        return None;
    }
    let ratios: Vec<f64> =
        outcome.rounds.iter().map(|m| m.messages / m.expected.max(1e-9)).collect();
    let found = Spread::of(&ratios)?;
    let bound = scheme == Scheme::CallbackLocking;
    let (word, held) = match bound {
        true => ("at most", found.median <= 1.01),
        false => ("equal to", (0.99..=1.01).contains(&found.median)),
    };
    Some(Goal { what: format!("{scheme}'s messages, {word} the model's (1 host)"), found, held })
}
