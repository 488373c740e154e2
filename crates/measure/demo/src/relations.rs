//! The expectations about the results, and whether they are met.

use lockify_report::median;

use crate::measure::{DelayResult, NODES, Pair, PolicyResult, directory_round_trips};

/// An expectation and the finding.
#[derive(Clone, PartialEq, Debug)]
pub struct Relation {
    /// The expectation, in words.
    pub expected: String,
    /// The finding, in figures.
    pub found: String,
    /// True if the expectation is met.
    pub met: bool,
}

/// Every relation that can be judged with the policies measured.
pub fn judge(results: &[DelayResult], violations: u64, events: u64) -> Vec<Relation> {
    let mut all = Vec::new();
    for at in results {
        if let Some(claim) = policy(at, "claim") {
            all.push(claim_waits_for_nothing(at, claim));
            all.push(claim_is_as_fast_as_one_node(at, claim));
        }
        if let Some(directory) = policy(at, "directory") {
            all.push(directory_waits(at, directory));
            all.push(directory_takes_its_round_trips(at, directory));
        }
    }
    all.push(Relation {
        expected: "no two incompatible locks were ever held".into(),
        found: format!("{violations} violations in {events} events"),
        met: violations == 0 && events > 0,
    });
    all
}

fn policy<'a>(at: &'a DelayResult, name: &str) -> Option<&'a PolicyResult> {
    at.policies.iter().find(|p| p.policy == name)
}

fn round_trips(p: &PolicyResult) -> f64 {
    median(p.pairs.iter().map(|r| r.five.each(r.five.stats.round_trips)))
}

/// Five nodes' throughput by one node's, by rounds.
pub fn ratios(p: &PolicyResult) -> Vec<f64> {
    p.pairs.iter().map(|r| r.five.rate() / r.one.rate().max(f64::MIN_POSITIVE)).collect()
}

fn claim_waits_for_nothing(at: &DelayResult, p: &PolicyResult) -> Relation {
    let found = round_trips(p);
    Relation {
        expected: format!("{}: claim waits for 0.00 round trips per creation", delay(at)),
        found: format!("{found:.2}"),
        // As printed: one lock of the shared folder among thousands does not count.
        met: found < 0.005,
    }
}

fn claim_is_as_fast_as_one_node(at: &DelayResult, p: &PolicyResult) -> Relation {
    let ratio = median(ratios(p));
    Relation {
        expected: format!("{}: claim creates at least 0.95 times as fast as one node", delay(at)),
        found: format!("{ratio:.3}"),
        met: ratio >= 0.95,
    }
}

fn directory_waits(at: &DelayResult, p: &PolicyResult) -> Relation {
    let (found, wanted) = (round_trips(p), directory_round_trips(NODES));
    Relation {
        expected: format!(
            "{}: directory waits for 2(N-1)/N = {wanted:.2} round trips per creation, within 5 %",
            delay(at)
        ),
        found: format!("{found:.2}"),
        met: (found / wanted - 1.0).abs() <= 0.05,
    }
}

fn directory_takes_its_round_trips(at: &DelayResult, p: &PolicyResult) -> Relation {
    let trip = median(p.pairs.iter().map(|r| r.round_trip_us));
    // Paired: each round has its own one-node time and round trip.
    let waits = |trip: f64| directory_round_trips(NODES) * trip;
    let expected = |r: &Pair| r.one.micros() + waits(r.round_trip_us);
    let ratio = median(p.pairs.iter().map(|r| r.five.micros() / expected(r)));
    let five = median(p.pairs.iter().map(|r| r.five.micros()));
    let one = median(p.pairs.iter().map(|r| r.one.micros()));
    Relation {
        expected: format!(
            "{}: a creation under directory takes one node's time and {:.1} bare round trips, \
             within 15 %",
            delay(at),
            directory_round_trips(NODES)
        ),
        found: format!(
            "{five:.1} us; {one:.1} us + {:.1} x {trip:.1} us; ratio {ratio:.3}",
            directory_round_trips(NODES)
        ),
        met: (ratio - 1.0).abs() <= 0.15,
    }
}

fn delay(at: &DelayResult) -> String {
    format!("delay {:?}", at.delay)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Measured;
    use std::time::Duration;

    fn measured(micros: u64, round_trips: u64) -> Measured {
        let mut m =
            Measured { created: 1000, elapsed_ns: micros * 1_000_000, ..Measured::default() };
        m.stats.round_trips = round_trips;
        m
    }

    fn result(policy: &str, one: u64, five: u64, round_trips: u64) -> PolicyResult {
        let (one, five) = (measured(one, 0), measured(five, round_trips));
        let pair = Pair { one, five, round_trip_us: 100.0 };
        PolicyResult {
            policy: policy.into(),
            pairs: vec![pair; 3],
            all: vec![],
            unmeasured: vec![],
        }
    }

    fn at(policies: Vec<PolicyResult>) -> Vec<DelayResult> {
        vec![DelayResult { delay: Duration::ZERO, policies }]
    }

    #[test]
    fn expected_figures_meet_every_relation() {
        let r = at(vec![result("claim", 40, 41, 1), result("directory", 40, 205, 1610)]);
        let all = judge(&r, 0, 10);
        assert_eq!(all.len(), 5);
        assert!(all.iter().all(|r| r.met), "{all:?}");
    }

    #[test]
    fn each_relation_can_fall_short() {
        let r = at(vec![result("claim", 40, 45, 10), result("directory", 40, 260, 1800)]);
        assert!(judge(&r, 1, 10).iter().all(|r| !r.met));
    }
}
