//! A small fixed piece of work, with a crash after every single message and every single write to a disk.

use lockify_array::{DeviceEvent, Layout, Redundancy, Scheme};
use lockify_sim::{
    Delay, Fault, FaultPlan, Inject, MICROSECOND, MILLISECOND, NodeId, Observed, Step, at_nth,
};

use crate::array::content::BLOCK_SIZE;
use crate::array::host::{Node, Note, Places, Role};
use crate::array::scenario::{Faults, Scenario};
use crate::array::trial::{Outcome, Trial};

/// Who crashes, and at which steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Victim {
    /// A host, after each message that it sends.
    Host,
    /// A device, after each message that it sends.
    Device,
    /// A device, while it writes to its disk; the process only.
    DeviceWriting,
    /// A device, while it writes to its disk, with the disk's cache.
    DeviceWithoutPower,
}

impl Victim {
    /// All.
    pub const ALL: [Victim; 4] =
        [Victim::Host, Victim::Device, Victim::DeviceWriting, Victim::DeviceWithoutPower];

    /// Whether this is one of the steps after which it crashes.
    fn is_step(self, places: Places, observed: &Observed<'_, Node>) -> bool {
        match (self, places.role(observed.node), &observed.step) {
            // Host 0 is the one that repairs.
            (Victim::Host, Role::Host(host), Step::Send { .. }) => host.0 > 0,
            (Victim::Device, Role::Device(_), Step::Send { .. }) => true,
            (
                Victim::DeviceWriting | Victim::DeviceWithoutPower,
                Role::Device(_),
                Step::Note(Note::Event(DeviceEvent::Write { dropped: false, .. })),
            ) => true,
            _ => false,
        }
    }
}

/// The piece of work: two hosts write and read the same two stripes. With [`Faults::All`] whoever crashed is seen to before it
/// comes back, with less it comes back first.
pub fn scenario(scheme: Scheme, faults: Faults) -> Scenario {
    let layout = Layout {
        redundancy: Redundancy::Raid5,
        data: 3,
        groups: 1,
        unit: 1,
        block_size: BLOCK_SIZE,
        stripes: 2,
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
        hot: 0.5,
        longest: 5,
        think: 2 * MILLISECOND,
        latency: Delay::Exponential { base: 20 * MICROSECOND, mean: 200 * MICROSECOND },
        sectors_per_block: 1,
        detection: 10 * MILLISECOND,
        quiet_at: 60 * MILLISECOND,
        faults,
        #[cfg(feature = "mutations")]
        mutation: None,
    }
}

/// Crashes the victim after its `nth` step, counted from 1; `None` if there are less.
///
/// # Errors
/// What was violated.
pub fn crash_after(
    scenario: &Scenario,
    victim: Victim,
    nth: u64,
) -> Result<Option<Outcome>, String> {
    let mut trial = Trial::new(scenario, 0);
    let places = trial.places();
    let power_loss = victim == Victim::DeviceWithoutPower;
    let fault = move |node: NodeId| Inject::After(Fault::Crash { node, power_loss });
    trial.sim.add_hook(at_nth(
        nth,
        move |observed| victim.is_step(places, observed),
        move |observed| fault(observed.node),
    ));
    // Then whoever crashed comes back.
    let quiet = FaultPlan::new(vec![(scenario.quiet_at, Fault::HealAll)]);
    let outcome = trial.run_with(&quiet).map_err(|why| {
        format!("{}, {victim:?} crashed after step {nth}: {why}", scenario.scheme)
    })?;
    Ok((outcome.faults > 0).then_some(outcome))
}
