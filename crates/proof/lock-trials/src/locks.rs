//! Runs seeds of simulated clusters: `lockify sim locks`.

use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::time::{Duration, Instant};

use lockify_core::Policy;
use lockify_sim::{Failure, SeedFailure, Seeds, run_seeds};

use crate::cluster::{Cluster, Outcome};
use crate::coverage::{Coverage, Transition, Trouble};
use crate::scenario::{Faults, Scenario, Work};

/// In one of so many seeds, if both kinds of membership are hosted, it is corosync's.
const CORO_SHARE: u64 = 4;

/// Which membership services are hosted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Membership {
    /// A log of the nodes' own.
    Log,
    /// Corosync, as a model of its guarantees.
    Corosync,
    /// Corosync in every fourth seed, a log in the others.
    #[default]
    Both,
}

impl Membership {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Membership::Log => "log",
            Membership::Corosync => "corosync",
            Membership::Both => "both",
        }
    }

    fn is_corosync(self, seed: u64) -> bool {
        match self {
            Membership::Log => false,
            Membership::Corosync => true,
            Membership::Both => seed % CORO_SHARE == CORO_SHARE - 1,
        }
    }
}

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How masters are found.
    pub policy: Policy,
    /// Sizes of clusters; each seed picks one.
    pub nodes: RangeInclusive<usize>,
    /// Which faults happen.
    pub faults: Faults,
    /// The seeds.
    pub seeds: Range<u64>,
    /// Keep the trace of a failing seed.
    pub trace: bool,
    /// Begin no further seed after this time.
    pub budget: Option<Duration>,
    /// Threads; 0 for as many as there are cores.
    pub threads: usize,
    /// True if an empty cell of the table is a failure: for a full run of seeds.
    pub require_coverage: bool,
    /// True if clients use lock value blocks.
    pub value_blocks: bool,
    /// True if all clients run transactions that deadlock, and the search for deadlocks is on.
    pub deadlocks: bool,
    /// The membership services that nodes have.
    pub membership: Membership,
    /// A defect to switch on in the lock manager.
    #[cfg(feature = "mutations")]
    pub mutation: Option<lockify_core::mutation::Mutation>,
    /// A defect to switch on in the membership service.
    #[cfg(feature = "mutations")]
    pub member_mutation: Option<lockify_membership::mutation::Mutation>,
}

impl Options {
    /// A run of these seeds with every kind of fault.
    pub fn new(policy: Policy, seeds: Range<u64>) -> Options {
        Options {
            policy,
            nodes: 3..=7,
            faults: Faults::All,
            seeds,
            trace: false,
            budget: None,
            threads: 0,
            require_coverage: false,
            value_blocks: true,
            deadlocks: false,
            membership: Membership::Both,
            #[cfg(feature = "mutations")]
            mutation: None,
            #[cfg(feature = "mutations")]
            member_mutation: None,
        }
    }

    /// The command that replays one seed, which is put for `{seed}`.
    fn replay(&self) -> String {
        let faults = match self.faults {
            Faults::All => "all",
            Faults::None => "none",
        };
        format!(
            "lockify sim locks --policy {} --membership {} --nodes {}..{} --faults {faults}{} --seed {{seed}} \
             --trace",
            self.policy.name(),
            self.membership.name(),
            self.nodes.start(),
            self.nodes.end(),
            if self.deadlocks { " --deadlocks" } else { "" },
        )
    }
}

/// The results of all seeds.
#[derive(Clone, Debug)]
pub struct Summary {
    /// How masters were found.
    pub policy: Policy,
    /// Seeds that were run.
    pub runs: u64,
    /// Seeds that the budget did not allow.
    pub skipped: u64,
    /// The seeds that failed.
    pub failures: Vec<SeedFailure>,
    /// Steps of the claim protocol by kinds of faults.
    pub coverage: Coverage,
    /// Cells of the table that must not be empty and are; only looked for if asked for.
    pub gaps: Vec<(Transition, Trouble)>,
    /// Calls that clients made.
    pub calls: u64,
    /// Recoveries that nodes completed.
    pub recoveries: u64,
    /// Requests that were ended as deadlocks.
    pub deadlocks: u64,
    /// Events that the engine handled.
    pub events: u64,
    /// Wall-clock time.
    pub elapsed: Duration,
}

impl Summary {
    /// Returns true if no seed failed and the coverage suffices.
    pub fn is_clean(&self) -> bool {
        self.failures.is_empty() && self.gaps.is_empty()
    }
}

/// Runs one seed.
///
/// # Errors
/// The violation, with the trace if it was kept.
pub fn run_one(options: &Options, seed: u64) -> Result<Outcome, Failure> {
    let mut scenario = Scenario::draw(seed, options.policy, &options.nodes, options.faults);
    if options.deadlocks {
        scenario = scenario.deadlocking();
    }
    if options.membership.is_corosync(seed) {
        scenario.group = scenario.group.with_corosync();
    }
    if let Work::General(general) = &mut scenario.work {
        general.value_blocks = options.value_blocks;
    }
    #[cfg(feature = "mutations")]
    {
        scenario.config.mutation = options.mutation;
        scenario.group.mutation = options.member_mutation;
    }
    run_scenario(scenario, options.trace)
}

/// Runs a scenario.
///
/// # Errors
/// The violation, with the trace if it was kept.
pub fn run_scenario(scenario: Scenario, trace: bool) -> Result<Outcome, Failure> {
    let service = if scenario.group.corosync { "corosync" } else { "log" };
    let what = format!("{} nodes, {service}, {} workload", scenario.nodes, scenario.work_name());
    let mut cluster = Cluster::new(scenario, if trace { 2_000_000 } else { 0 });
    let run = std::panic::AssertUnwindSafe(|| cluster.run());
    // A panic is a failure like any other: with the command that repeats it.
    let outcome = std::panic::catch_unwind(run).unwrap_or_else(|panic| Err(panicked(&*panic)));
    outcome.map_err(|message| Failure {
        message: format!("{message} ({what})"),
        trace: cluster.trace(),
    })
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("a panic: {}", text.unwrap_or("of no words"))
}

/// Runs all seeds; `progress` is told how many are done.
pub fn run(options: &Options, progress: impl Fn(u64) + Sync) -> Summary {
    let started = Instant::now();
    let over = || options.budget.is_some_and(|budget| started.elapsed() >= budget);
    let mut seeds = Seeds::new(options.seeds.clone(), options.replay());
    seeds.threads = options.threads;
    let report = run_seeds(
        &seeds,
        |seed| if over() { Ok(None) } else { run_one(options, seed).map(Some) },
        progress,
    );
    let mut summary = Summary {
        policy: options.policy,
        runs: report.failures.len() as u64,
        skipped: 0,
        failures: report.failures,
        coverage: Coverage::default(),
        gaps: Vec::new(),
        calls: 0,
        recoveries: 0,
        deadlocks: 0,
        events: 0,
        elapsed: started.elapsed(),
    };
    for (_, outcome) in report.passed {
        match outcome {
            Some(outcome) => summary.add(&outcome),
            None => summary.skipped += 1,
        }
    }
    // A failure ends the run early. Steps that were not met until then prove nothing.
    let complete = summary.skipped == 0 && summary.failures.is_empty();
    if options.require_coverage && options.faults == Faults::All && complete {
        summary.gaps = summary.coverage.gaps(options.policy);
    }
    summary
}

impl Summary {
    fn add(&mut self, outcome: &Outcome) {
        self.runs += 1;
        self.coverage.merge(&outcome.coverage);
        self.calls += outcome.calls;
        self.recoveries += outcome.recoveries;
        self.deadlocks += outcome.deadlocks;
        self.events += outcome.events;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.failures {
            writeln!(f, "{failure}")?;
        }
        write!(f, "{}", self.coverage.of(self.policy))?;
        for (step, kind) in &self.gaps {
            writeln!(f, "never seen: {} near a {} fault", step.name(), kind.name())?;
        }
        if self.skipped > 0 {
            writeln!(f, "{} seeds were left out: the budget was used up", self.skipped)?;
        }
        write!(
            f,
            "{}: {} seeds, {} failed; {} calls, {} recoveries, {} deadlocks, {} events in {:.1} s",
            self.policy.name(),
            self.runs,
            self.failures.len(),
            self.calls,
            self.recoveries,
            self.deadlocks,
            self.events,
            self.elapsed.as_secs_f64()
        )
    }
}
