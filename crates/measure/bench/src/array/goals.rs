//! The goals, and whether they were met.

use std::fmt;

use lockify_array::Scheme;
use lockify_report::Spread;

use super::{Outcome, Results, Subject, Workload};

/// A goal and its result.
#[derive(Clone, PartialEq, Debug)]
pub struct Goal {
    /// The promise.
    pub what: String,
    /// The measured figure.
    pub found: f64,
    /// True if the figure keeps the promise.
    pub held: bool,
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.held { "held  " } else { "missed" };
        write!(f, "{word}  {}: {:.3}", self.what, self.found)
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
            }
            Subject::Raw | Subject::Array(_) => {}
        }
        goals.extend(as_modelled(outcome));
    }
    let pairs = results.proxies.lockify.iter().zip(&results.proxies.nbdkit);
    goals.extend(Spread::of(&pairs.map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>()).map(
        |ratio| Goal {
            what: "reads by NBD, at least 0.8 of nbdkit's nbd in front of its file".into(),
            found: ratio.median,
            held: ratio.median >= 0.8,
        },
    ));
    goals
}

fn result_of(results: &Results, workload: Workload, scheme: Scheme) -> Option<&Outcome> {
    let is = |o: &&Outcome| o.workload == workload && o.subject == Subject::Array(scheme);
    results.outcomes.iter().find(is)
}

/// Round by round: what disturbs one mostly disturbs the other.
fn ratio(of: &Outcome, to: &Outcome) -> Option<Goal> {
    let pairs = of.rounds.iter().zip(&to.rounds);
    let ratios: Vec<f64> = pairs.map(|(a, b)| a.ops_per_s / b.ops_per_s.max(1e-9)).collect();
    let found = Spread::of(&ratios)?.median;
    let Workload { hosts, addressed, reads } = of.workload;
    let what = format!(
        "timestamp-ordering, at least 0.95 of zero-overhead ({hosts} hosts on {:.1} %, {:.0} % reads)",
        addressed * 100.0,
        reads * 100.0
    );
    Some(Goal { what, found, held: found >= 0.95 })
}

/// A single host disturbs nobody but itself, so the model fits. For callback locking the model is an upper bound.
fn as_modelled(outcome: &Outcome) -> Option<Goal> {
    let Subject::Array(scheme) = outcome.subject else { return None };
    if outcome.workload.hosts > 1 {
        return None;
    }
    let ratios: Vec<f64> =
        outcome.rounds.iter().map(|m| m.messages / m.expected.max(1e-9)).collect();
    let found = Spread::of(&ratios)?.median;
    let bound = scheme == Scheme::CallbackLocking;
    let (word, held) = match bound {
        true => ("at most", found <= 1.01),
        false => ("equal to", (0.99..=1.01).contains(&found)),
    };
    Some(Goal { what: format!("{scheme}'s messages, {word} the model's (1 host)"), found, held })
}
