//! Random numbers: one seed, and an independent stream for each subject.

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

/// The generator used everywhere in the simulator; its output is the same on every platform.
pub type Random = Xoshiro256PlusPlus;

/// One stream per subject, so that (say) one more message does not change which faults are injected.
///
/// The streams are 2^192 steps apart on one generator's cycle (`long_jump`), hence never overlap.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Latencies, losses and duplicates.
    pub network: Random,
    /// Disk latencies, and the state of a disk after a crash.
    pub disk: Random,
    /// Random choices of the machines themselves.
    pub machines: Random,
    /// The host's workload.
    pub workload: Random,
    /// Fault plans.
    pub faults: Random,
}

impl Streams {
    pub fn new(seed: u64) -> Self {
        let mut next = Random::seed_from_u64(seed);
        let mut stream = || {
            let this = next.clone();
            next.long_jump();
            this
        };
        Self {
            network: stream(),
            disk: stream(),
            machines: stream(),
            workload: stream(),
            faults: stream(),
        }
    }
}
