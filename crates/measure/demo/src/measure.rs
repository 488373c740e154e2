//! The whole measurement: every case, several rounds, compared policies in turn.

use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use lockify_report::crew::Program;

use crate::cluster::Cluster;
use crate::run::{Measured, RunError, Spec, ping, run, run_in_turn};

/// Nodes of the larger cluster.
pub const NODES: u32 = 5;

/// Messages that a creation waits for under the directory policy: two new locks, each with its
/// directory at another node with probability (N-1)/N, a round trip each (docs/design/claim.md 1.1).
pub fn directory_round_trips(nodes: u32) -> f64 {
    2.0 * f64::from(nodes - 1) / f64::from(nodes)
}

/// The least number of entries that a run creates: enough to see the share of new locks whose
/// directory is at another node.
const MIN_ENTRIES: u32 = 200;

/// The messages that the release of a run's locks leads to are over after this (see the workers'
/// `TOSS_AFTER_NS`); a message's delay comes on top, four times, for an answer each way.
const CALM: Duration = Duration::from_millis(20);

/// How long bare round trips are measured at a time, about…
const PING_TIME: Duration = Duration::from_millis(150);
/// …and between how many creations at most.
const PING_CREATIONS: u32 = 250;

/// Pairs of one node and five that a round of claims has: their expectation is decided by 5 %, and
/// such short runs differ by more.
const CLAIM_PAIRS: u32 = 4;

/// The plan of the measurements.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// Names of the policies.
    pub policies: &'a [String],
    /// Delays added to every message.
    pub delays: &'a [Duration],
    /// Rounds that count.
    pub rounds: u32,
    /// Longest time of a run, from which the number of entries of its case follows.
    pub budget: Duration,
    /// How long the parent's lock is kept after it was granted.
    pub hold: Duration,
    /// How long claims are gathered at most.
    pub batch_age: Duration,
    /// Number of entries.
    pub entries: u32,
    /// File with the tree's entries.
    pub tree: &'a Path,
    /// File with the entries under one parent.
    pub flat: &'a Path,
    /// Where to create.
    pub scratch: &'a Path,
    /// How to start a worker.
    pub worker: &'a Program,
}

impl<'a> Plan<'a> {
    fn cluster(&self, nodes: u32, delay: Duration) -> Result<Cluster, RunError> {
        Ok(Cluster::start(nodes, delay, self.batch_age, self.policies, self.worker)?)
    }

    fn spec(&self, policy: &'a str, active: u32, entries: &'a Path, limit: u32) -> Spec<'a> {
        let &Plan { budget, hold, scratch, .. } = self;
        let min = if active == 1 { MIN_ENTRIES } else { MIN_ENTRIES / 2 / active };
        Spec { policy, active, entries, limit, budget, min, hold, scratch }
    }
}

/// A round: one node alone, and the same with five nodes, in turn.
#[derive(Clone, Debug)]
pub struct Pair {
    /// One node.
    pub one: Measured,
    /// Five nodes, one active.
    pub five: Measured,
    /// A bare round trip right after both, microseconds: a mean, as times per creation are
    /// means.
    pub round_trip_us: f64,
}

impl DelayResult {
    /// Bare round trips, microseconds.
    pub fn round_trips_us(&self) -> impl Iterator<Item = f64> {
        self.policies.iter().flat_map(|p| &p.pairs).map(|r| r.round_trip_us)
    }
}

/// All rounds of a policy at a delay.
#[derive(Clone, Debug)]
pub struct PolicyResult {
    /// The policy's name.
    pub policy: String,
    /// One node, and one active of five.
    pub pairs: Vec<Pair>,
    /// Five nodes that create under one parent.
    pub all: Vec<Measured>,
    /// The first round, which counts for the proof only.
    pub unmeasured: Vec<Measured>,
}

/// All results at a delay.
#[derive(Clone, Debug)]
pub struct DelayResult {
    /// The delay added to every message.
    pub delay: Duration,
    /// By policy.
    pub policies: Vec<PolicyResult>,
}

/// Measures everything.
///
/// # Errors
/// [`RunError`].
pub fn measure(plan: &Plan<'_>) -> Result<Vec<DelayResult>, RunError> {
    let each = |policy: &String| u64::from(3 + plan.rounds * (1 + 2 * pairs(policy)));
    let runs = plan.delays.len() as u64 * plan.policies.iter().map(each).sum::<u64>();
    let progress = progress(runs);
    let mut one = plan.cluster(1, Duration::ZERO)?;
    let mut results = Vec::new();
    for &delay in plan.delays {
        let five = plan.cluster(NODES, delay)?;
        let mut at = At { plan, delay, one: &mut one, five, progress: &progress };
        results.push(at.measure()?);
    }
    progress.finish_and_clear();
    Ok(results)
}

fn progress(runs: u64) -> ProgressBar {
    let bar = ProgressBar::new(runs);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {msg} ({elapsed})");
    // The template is a constant; if it were wrong, the default bar would do.
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    // Draws between the runs only: a drawing thread would take time from the measured one.
    bar
}

/// The measurement at one delay.
struct At<'a> {
    plan: &'a Plan<'a>,
    delay: Duration,
    one: &'a mut Cluster,
    five: Cluster,
    progress: &'a ProgressBar,
}

/// Pairs in a round of a policy.
fn pairs(policy: &str) -> u32 {
    if policy.starts_with("claim") { CLAIM_PAIRS } else { 1 }
}

/// How many entries a policy's cases have at a delay, from a first round that does not count.
#[derive(Clone, Copy)]
struct Limits {
    tree: u32,
    flat: u32,
}

impl At<'_> {
    fn measure(&mut self) -> Result<DelayResult, RunError> {
        let mut policies = Vec::new();
        let mut limits = Vec::new();
        for policy in self.plan.policies {
            let (limit, unmeasured) = self.calibrate(policy)?;
            limits.push(limit);
            let policy = policy.clone();
            policies.push(PolicyResult { policy, pairs: vec![], all: vec![], unmeasured });
        }
        for round in 0..self.plan.rounds as usize {
            // The policies take turns, each round begins with another one.
            for i in 0..policies.len() {
                let at = (round + i) % policies.len();
                self.round(&mut policies[at], limits[at], round)?;
            }
        }
        Ok(DelayResult { delay: self.delay, policies })
    }

    /// The mean of some bare round trips in the rhythm of creations, microseconds.
    fn ping(&mut self) -> Result<f64, RunError> {
        let trip = self.delay * 2 + Duration::from_micros(50);
        let creation = trip.as_secs_f64() * directory_round_trips(NODES);
        let count = ((PING_TIME.as_secs_f64() / creation) as u32).clamp(20, PING_CREATIONS);
        let &Plan { tree, scratch, .. } = self.plan;
        let trips = ping(&mut self.five, self.delay, tree, count, scratch)?;
        Ok(trips.iter().sum::<u64>() as f64 / 1e3 / trips.len().max(1) as f64)
    }

    fn calibrate(&mut self, policy: &str) -> Result<(Limits, Vec<Measured>), RunError> {
        let entries = Limits { tree: self.plan.entries, flat: self.plan.entries };
        let one = self.one(policy, entries)?;
        let five = self.five(policy, entries)?;
        let all = self.all(policy, entries)?;
        let limits = Limits { tree: five.created as u32, flat: all.created as u32 };
        Ok((limits, vec![one, five, all]))
    }

    fn round(
        &mut self,
        result: &mut PolicyResult,
        limits: Limits,
        round: usize,
    ) -> Result<(), RunError> {
        let policy = result.policy.clone();
        for pair in 0..pairs(&policy) as usize {
            let pair = self.pair(&policy, limits, (round + pair).is_multiple_of(2))?;
            result.pairs.push(pair);
        }
        result.all.push(self.all(&policy, limits)?);
        Ok(())
    }

    fn pair(&mut self, policy: &str, limits: Limits, one_first: bool) -> Result<Pair, RunError> {
        self.step(&format!("{policy}, 1 node and 1 active of {NODES} in turn"), 2);
        let spec = self.plan.spec(policy, 1, self.plan.tree, limits.tree);
        let (one, five) = if one_first {
            run_in_turn(self.one, &mut self.five, &spec)?
        } else {
            let (five, one) = run_in_turn(&mut self.five, self.one, &spec)?;
            (one, five)
        };
        self.calm_down();
        let round_trip_us = self.ping()?;
        Ok(Pair { one, five, round_trip_us })
    }

    fn one(&mut self, policy: &str, limits: Limits) -> Result<Measured, RunError> {
        self.step(&format!("{policy}, 1 node"), 1);
        let measured = run(self.one, &self.plan.spec(policy, 1, self.plan.tree, limits.tree))?;
        self.calm_down();
        Ok(measured)
    }

    fn five(&mut self, policy: &str, limits: Limits) -> Result<Measured, RunError> {
        self.step(&format!("{policy}, {NODES} nodes, 1 active"), 1);
        self.cluster(&self.plan.spec(policy, 1, self.plan.tree, limits.tree))
    }

    fn all(&mut self, policy: &str, limits: Limits) -> Result<Measured, RunError> {
        self.step(&format!("{policy}, {NODES} nodes, all active"), 1);
        self.cluster(&self.plan.spec(policy, NODES, self.plan.flat, limits.flat))
    }

    fn cluster(&mut self, spec: &Spec<'_>) -> Result<Measured, RunError> {
        let measured = run(&mut self.five, spec)?;
        self.calm_down();
        Ok(measured)
    }

    fn calm_down(&self) {
        std::thread::sleep(CALM + self.delay * 4);
    }

    fn step(&self, what: &str, runs: u64) {
        self.progress.set_message(format!("{what}, delay {:?}", self.delay));
        self.progress.inc(runs);
    }
}
