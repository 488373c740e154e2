//! A small fixed piece of work, with a crash after every single message and around every single use of a disk:
//! `lockify sim array --every-step`.

use std::cell::Cell;
use std::rc::Rc;
use std::str::FromStr;

use lockify_array::{DeviceEvent, Layout, Redundancy, Scheme};
use lockify_sim::{
    Delay, Failure, Fault, FaultPlan, Inject, Input, MICROSECOND, MILLISECOND, Observed,
    SeedFailure, Seeds, Step, at_nth, run_seeds,
};

use crate::content::BLOCK_SIZE;
use crate::host::{Node, Note};
use crate::medium::{BadSector, Failing};
use crate::places::{Places, Role};
use crate::scenario::{Faults, Scenario};
use crate::setting::Variants;
use crate::trial::{Outcome, Trial};

/// Lines of a failing run's trace that are kept.
const TRACE_LINES: usize = 1_000_000;

/// The victims of crashes, each with its steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Victim {
    /// A host, after each message that it sends.
    Host,
    /// The lock server, after each message that it sends.
    Server,
    /// A device, after each message that it sends.
    Device,
    /// A device, while its disk writes; the process only.
    Writing,
    /// A device, while its disk writes, with the disk's cache.
    WritingPower,
    /// A device, when its disk has ended something and before it knows: blocks, and the record that it keeps.
    Written,
    /// The same, with the disk's cache.
    WrittenPower,
    /// A device that answers writes before they are durable, after each message that it sends, with the disk's cache.
    Cache,
    /// A sector of a device, when it is used: it fails, in each way.
    Sector,
}

/// There is no such victim.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "nobody fails as \"{0}\"; there are host, server, device, writing, writing-power, written, written-power, cache and \
     sector"
)]
pub struct UnknownVictim(String);

impl FromStr for Victim {
    type Err = UnknownVictim;

    fn from_str(name: &str) -> Result<Self, UnknownVictim> {
        let found = Victim::ALL.into_iter().find(|victim| victim.name() == name);
        found.ok_or_else(|| UnknownVictim(name.to_owned()))
    }
}

impl Victim {
    /// All victims, in the order of their runs.
    pub const ALL: [Victim; 9] = [
        Victim::Host,
        Victim::Server,
        Victim::Device,
        Victim::Writing,
        Victim::WritingPower,
        Victim::Written,
        Victim::WrittenPower,
        Victim::Cache,
        Victim::Sector,
    ];

    /// Its name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Victim::Host => "host",
            Victim::Server => "server",
            Victim::Device => "device",
            Victim::Writing => "writing",
            Victim::WritingPower => "writing-power",
            Victim::Written => "written",
            Victim::WrittenPower => "written-power",
            Victim::Cache => "cache",
            Victim::Sector => "sector",
        }
    }

    /// Returns true if the victim exists under a scheme, and its leftovers are repaired with these faults. Others repair
    /// the unfinished work of a host or of the lock server.
    pub fn is_in(self, scheme: Scheme, faults: Faults) -> bool {
        match self {
            Victim::Host => faults == Faults::All,
            Victim::Server => faults == Faults::All && scheme.has_server(),
            _ => matches!(faults, Faults::Restarts | Faults::All),
        }
    }

    fn loses_power(self) -> bool {
        matches!(self, Victim::WritingPower | Victim::WrittenPower | Victim::Cache)
    }

    /// Returns true if this is one of the steps at which it crashes.
    fn is_step(self, places: Places, observed: &Observed<'_, Node>) -> bool {
        let role = places.role(observed.node);
        match (self, &observed.step) {
            // Host 0 is the one that repairs.
            (Victim::Host, Step::Send { .. }) => matches!(role, Role::Host(host) if host.0 > 0),
            (Victim::Server, Step::Send { .. }) => matches!(role, Role::Server(_)),
            (Victim::Device | Victim::Cache, Step::Send { .. }) => matches!(role, Role::Device(_)),
            (
                Victim::Writing | Victim::WritingPower,
                Step::Note(Note::Event(DeviceEvent::Write { dropped: false, .. })),
            ) => true,
            (Victim::Written | Victim::WrittenPower, Step::Input(Input::Disk(_))) => true,
            (Victim::Sector, step) => used(step).is_some(),
            _ => false,
        }
    }
}

/// The first block that a device uses in a step.
fn used(step: &Step<'_, Node>) -> Option<u64> {
    match step {
        Step::Note(Note::Event(
            DeviceEvent::Read { extent, .. } | DeviceEvent::Write { extent, dropped: false, .. },
        )) => Some(extent.start),
        _ => None,
    }
}

/// The ways in which a sector fails. With less than [`Faults::All`], nobody takes a device out that has given up.
fn ways(faults: Faults) -> &'static [Failing] {
    if faults == Faults::All { &Failing::ALL } else { &Failing::ALL[..1] }
}

/// The piece of work: two hosts write and read the same two stripes. With [`Faults::All`] the victim is fenced or taken
/// out before it comes back; with less it comes back first.
pub fn scenario(scheme: Scheme, faults: Faults, victim: Victim) -> Scenario {
    let layout = Layout {
        redundancy: Redundancy::Raid5,
        data: 3,
        groups: 1,
        unit: 1,
        block_size: BLOCK_SIZE,
        stripes: 2,
        added: Default::default(),
    };
    Scenario {
        seed: 5,
        scheme,
        layout,
        devices: layout.devices(),
        hosts: 2,
        depth: 2,
        operations: Some(6),
        reads: 0.2,
        patches: 0.5,
        hot: 0.5,
        longest: 5,
        think: 2 * MILLISECOND,
        latency: Delay::Exponential { base: 20 * MICROSECOND, mean: 200 * MICROSECOND },
        sectors_per_block: 1,
        detection: 10 * MILLISECOND,
        quiet_at: 60 * MILLISECOND,
        faults,
        // Ten times the usual number.
        old_copy: None,
        outage: None,
        checks: true,
        bad_sectors: Vec::new(),
        losses: false,
        // A cache is lost only if writes stay in it until they are flushed.
        flushes: (victim == Victim::Cache).then_some(0.3),
        blackout: None,
        growth: None,
        succession: None,
        variants: Variants::default(),
        most_events: 30_000,
        #[cfg(feature = "mutations")]
        mutation: None,
    }
}

/// The victim comes back then. Before that time nothing counts as a step, so that every victim
/// comes back.
fn return_of_all(scenario: &Scenario) -> FaultPlan {
    FaultPlan::new(vec![(scenario.quiet_at, Fault::HealAll)])
}

/// The number of a victim's steps without a crash.
///
/// # Errors
/// The violation, although nobody crashed.
pub fn steps(scenario: &Scenario, victim: Victim) -> Result<u64, String> {
    let mut trial = Trial::new(scenario, 0);
    let places = trial.places();
    let quiet_at = scenario.quiet_at;
    let seen = Rc::new(Cell::new(0));
    let counter = Rc::clone(&seen);
    trial.sim.add_hook(Box::new(move |observed: &Observed<'_, Node>| {
        let counts = observed.at < quiet_at && victim.is_step(places, observed);
        counter.set(counter.get() + u64::from(counts));
        None
    }));
    trial.run_with(&return_of_all(scenario))?;
    let ways = if victim == Victim::Sector { ways(scenario.faults).len() as u64 } else { 1 };
    Ok(seen.get() * ways)
}

/// The sector that fails at the `nth` step of [`Victim::Sector`].
fn bad_sector(scenario: &Scenario, nth: u64) -> Result<BadSector, String> {
    let ways = ways(scenario.faults);
    let (use_of_disk, way) = ((nth - 1) / ways.len() as u64, (nth - 1) % ways.len() as u64);
    let mut trial = Trial::new(scenario, 0);
    let (places, quiet_at) = (trial.places(), scenario.quiet_at);
    let found = Rc::new(Cell::new((0, None)));
    let seen = Rc::clone(&found);
    trial.sim.add_hook(Box::new(move |observed: &Observed<'_, Node>| {
        if let (Some(block), Role::Device(device)) =
            (used(&observed.step), places.role(observed.node))
            && observed.at < quiet_at
        {
            let (count, found) = seen.get();
            let here = (count == use_of_disk).then_some((device, block, observed.at));
            seen.set((count + 1, found.or(here)));
        }
        None
    }));
    trial.run_with(&return_of_all(scenario))?;
    let (device, block, from) = found.get().1.ok_or("nobody crashed: there is no such step")?;
    let failing = ways[way as usize];
    Ok(BadSector { device, block, failing, from, until: quiet_at })
}

/// Crashes the victim at its `nth` step, counted from 1.
///
/// # Errors
/// The violation, with the trace if it was kept.
pub fn crash_at(
    scenario: &Scenario,
    victim: Victim,
    nth: u64,
    trace: bool,
) -> Result<Outcome, Failure> {
    if victim == Victim::Sector {
        let bad_sectors = vec![
            bad_sector(scenario, nth)
                .map_err(|message| Failure { message, trace: String::new() })?,
        ];
        let scenario = Scenario { bad_sectors, ..scenario.clone() };
        let mut trial = Trial::new(&scenario, if trace { TRACE_LINES } else { 0 });
        let outcome = trial.run_with(&return_of_all(&scenario));
        let trace = || trial.sim.trace().to_string();
        return outcome.map_err(|message| Failure { message, trace: trace() });
    }
    let mut trial = Trial::new(scenario, if trace { TRACE_LINES } else { 0 });
    let places = trial.places();
    let quiet_at = scenario.quiet_at;
    trial.sim.add_hook(at_nth(
        nth,
        move |observed| observed.at < quiet_at && victim.is_step(places, observed),
        move |observed| {
            let crash = Fault::Crash { node: observed.node, power_loss: victim.loses_power() };
            match observed.step {
                // The effect of the step is not known yet.
                Step::Input(_) => Inject::Before(crash),
                Step::Send { .. } | Step::Note(_) => Inject::After(crash),
            }
        },
    ));
    let outcome = trial.run_with(&return_of_all(scenario));
    let failed = |message| Failure { message, trace: trial.sim.trace().to_string() };
    match outcome {
        Ok(outcome) if outcome.faults == 0 => Err("nobody crashed: there is no such step".into()),
        Ok(outcome) => Ok(outcome),
        Err(message) => Err(failed(message)),
    }
}

/// The results of crashes at every step of a victim.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The scheme.
    pub scheme: Scheme,
    /// The victim.
    pub victim: Victim,
    /// The faults: with repairs, or with a return only.
    pub faults: Faults,
    /// Steps, each with a run of its own.
    pub steps: u64,
    /// All of their outcomes.
    pub total: Outcome,
    /// The steps that failed.
    pub failures: Vec<SeedFailure>,
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(first) = self.failures.first() {
            writeln!(f, "{first}")?;
        }
        let Summary { scheme, victim, faults, steps, total, failures } = self;
        write!(
            f,
            "{scheme:<18} {:<13} {:<8} {steps:>4} steps, {} failed; {} operations, {} restarts, {} repairs, {} blocks lost",
            victim.name(),
            faults.name(),
            failures.len(),
            total.operations,
            total.restarts,
            total.repairs,
            total.lost
        )
    }
}

/// A crash at every step of a victim, each in a run of its own, on all cores.
///
/// # Errors
/// The violation, although nobody crashed.
pub fn run(
    scheme: Scheme,
    faults: Faults,
    victim: Victim,
    progress: impl Fn(u64) + Sync,
) -> Result<Summary, String> {
    let scenario = || scenario(scheme, faults, victim);
    let steps = steps(&scenario(), victim)?;
    let replay = format!(
        "lockify sim array --scheme {scheme} --faults {} --every-step={} --replay {{seed}}",
        faults.name(),
        victim.name()
    );
    let seeds = Seeds { max_failures: 0, ..Seeds::new(1..steps + 1, replay) };
    let report = run_seeds(&seeds, |nth| crash_at(&scenario(), victim, nth, false), progress);
    let mut total = Outcome::default();
    report.passed.iter().for_each(|(_, outcome)| total.add(outcome));
    Ok(Summary { scheme, victim, faults, steps, total, failures: report.failures })
}
