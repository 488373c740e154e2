//! Seeds of hosts that share an array, with faults: `lockify sim array`.

use std::ops::Range;

use lockify_array::{Redundancy, Scheme};
use lockify_sim::{Failure, MILLISECOND, Seeds};

use crate::scenario::{Faults, Scenario};
use crate::setting::Variants;
use crate::trial::{Outcome, Trial};

/// Lines of a failing seed's trace that are kept.
const TRACE_LINES: usize = 1_000_000;

/// Schemes that keep operations apart, as far as hosts have them.
pub const CONTROLLED: [Scheme; 4] = [
    Scheme::DeviceLocking,
    Scheme::TimestampOrdering,
    Scheme::ServerLocking,
    Scheme::CallbackLocking,
];

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The scheme.
    pub scheme: Scheme,
    /// The seeds.
    pub seeds: Range<u64>,
    /// Which faults happen.
    pub faults: Faults,
    /// Media fail and lose blocks, as far as the faults have that.
    pub media: bool,
    /// In some seeds, writes stay in the devices' caches until they are flushed.
    pub caches: bool,
    /// In most seeds, some writes are not of whole blocks.
    pub patches: bool,
    /// The arrays' redundancy; drawn if absent.
    pub redundancy: Option<Redundancy>,
    /// The choices that the schemes leave open.
    pub variants: Variants,
    /// Keep the trace of a failing seed.
    pub trace: bool,
    /// Run the other seeds after one has failed.
    pub keep_going: bool,
    /// Threads; 0 for as many as there are cores.
    pub threads: usize,
    /// A rule to leave out.
    #[cfg(feature = "mutations")]
    pub mutation: Option<lockify_array::mutation::Mutation>,
}

impl Run {
    /// These seeds, with faults.
    pub fn new(scheme: Scheme, seeds: Range<u64>) -> Run {
        Run {
            scheme,
            seeds,
            faults: Faults::All,
            media: true,
            caches: true,
            patches: true,
            redundancy: None,
            variants: Variants::default(),
            trace: false,
            keep_going: false,
            threads: 0,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }

    fn scenario(&self, seed: u64) -> Scenario {
        let mut scenario = Scenario {
            variants: self.variants,
            #[cfg(feature = "mutations")]
            mutation: self.mutation,
            ..Scenario::draw(seed, self.scheme, self.faults, self.redundancy)
        };
        if !self.media {
            (scenario.bad_sectors, scenario.losses) = (Vec::new(), false);
        }
        if !self.patches {
            scenario.patches = 0.0;
        }
        if !self.caches {
            (scenario.flushes, scenario.blackout) = (None, None);
        }
        scenario
    }

    fn replay(&self) -> String {
        let Run { scheme, faults, variants: Variants { basic, delta_at_half }, .. } = self;
        let basic = if *basic { " --basic" } else { "" };
        let half = if *delta_at_half { " --half-stripe read-modify-write" } else { "" };
        let faults = faults.name();
        let redundancy = self.redundancy.map(Redundancy::name);
        let redundancy = redundancy.map(|name| format!(" --redundancy {name}")).unwrap_or_default();
        format!(
            "lockify sim array --scheme {scheme} --faults {faults}{redundancy}{basic}{half} --replay {{seed}}"
        )
    }
}

/// The results of all seeds.
pub type Summary = lockify_sim::summary::Summary<Outcome>;

impl lockify_sim::summary::Outcome for Outcome {
    fn add(&mut self, other: &Outcome) {
        Outcome::add(self, other);
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Outcome {
            operations,
            failed,
            unflushed,
            restarts,
            repairs,
            successions,
            lost,
            faults,
            events,
            longest,
            ..
        } = self;
        if *successions > 0 {
            write!(f, "{successions} times another lock server, ")?;
        }
        write!(
            f,
            "{operations} operations, {failed} failed, {unflushed} flushes among them, {restarts} restarts, {repairs} repairs, {lost} blocks lost, \
             {faults} faults, {events} events, at most {} ms for an operation afterwards",
            longest / MILLISECOND
        )
    }
}

/// Runs all seeds; `progress` is told how many are done.
pub fn run(run: &Run, progress: impl Fn(u64) + Sync) -> Summary {
    let all = Seeds::new(run.seeds.clone(), run.replay());
    let max_failures = if run.keep_going { 0 } else { all.max_failures };
    let seeds = Seeds { threads: run.threads, max_failures, ..all };
    let name = format!("{:<18}", run.scheme);
    lockify_sim::summary::run(
        name,
        &seeds,
        run.trace,
        |seed, trace| run_one(run, seed, trace),
        progress,
    )
}

/// Runs one seed.
///
/// # Errors
/// The violation, with the trace if it was kept.
pub fn run_one(run: &Run, seed: u64, trace: bool) -> Result<Outcome, Failure> {
    let scenario = run.scenario(seed);
    let mut trial = Trial::new(&scenario, if trace { TRACE_LINES } else { 0 });
    trial.run().map_err(|message| Failure {
        message: format!("{message}\n{scenario:?}"),
        trace: trial.sim.trace().to_string(),
    })
}
