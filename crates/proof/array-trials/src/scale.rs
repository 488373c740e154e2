//! Two hundred hosts at an array of two hundred devices: ten times the paper's. One run has the checker of histories, and
//! one has Table 1's costs.

use std::time::{Duration, Instant};

use lockify_array::{Layout, Scheme};
use lockify_report::{Row, metric};
use lockify_sim::{Delay, MICROSECOND, MILLISECOND, SECOND};

use crate::content::BLOCK_SIZE;
use crate::measure::{BENCH, Case, MeasureError, Measured, measure};
use crate::profile::{Calibration, Profile};
use crate::scenario::{Faults, Scenario};
use crate::setting::Variants;
use crate::trial::{Outcome, Trial};
use crate::workload::{self, Alignment, Mix, SOURCES};

/// The number of hosts.
pub const HOSTS: u32 = 200;
/// The number of devices.
pub const DEVICES: u16 = 200;

/// The stripes of each group in the checked run. There are few, so that conflicts are frequent, and all can be read in
/// the end.
const STRIPES: u64 = 40;

/// The results of a scheme at this size.
#[derive(Clone, Debug)]
pub struct AtScale {
    /// With Table 1's costs, unchecked.
    pub measured: Measured,
    /// The counts of the checked run, or its violation. Without control there must be a violation.
    pub checked: Result<Outcome, String>,
    /// The real time that it took, the checker included.
    pub took: Duration,
}

/// The checked run. It has as many operations per host as Table 1, on less of the array. Slow connections break, and
/// nodes pause. Disks take almost no time, so that queues hide no error.
fn scenario(scheme: Scheme, hosts: u32, layout: Layout, seed: u64) -> Scenario {
    Scenario {
        seed,
        scheme,
        layout,
        devices: layout.devices(),
        hosts,
        depth: SOURCES,
        operations: None,
        reads: 0.7,
        patches: 0.0,
        hot: 0.02,
        longest: 5,
        // 80 ms on average.
        think: 160 * MILLISECOND,
        latency: Delay::Exponential { base: 50 * MICROSECOND, mean: 200 * MICROSECOND },
        sectors_per_block: 1,
        detection: 20 * MILLISECOND,
        quiet_at: 2 * SECOND,
        faults: Faults::Interruptions,
        old_copy: None,
        outage: None,
        checks: false,
        bad_sectors: Vec::new(),
        losses: false,
        flushes: None,
        blackout: None,
        growth: None,
        succession: None,
        variants: Variants::default(),
        most_events: u64::MAX,
        #[cfg(feature = "mutations")]
        mutation: None,
    }
}

/// Runs a scheme at this size.
///
/// # Errors
/// There is no such array, an operation failed, or the checker found something although the scheme keeps operations apart.
pub fn run(scheme: Scheme, hosts: u32, devices: u16, seed: u64) -> Result<AtScale, MeasureError> {
    let layout = workload::layout(devices).ok_or(MeasureError::Devices(devices))?;
    let layout =
        Layout { stripes: STRIPES * u64::from(layout.groups), block_size: BLOCK_SIZE, ..layout };
    let scenario = scenario(scheme, hosts, layout, seed);
    let begun = Instant::now();
    let checked = Trial::new(&scenario, 0).run();
    let took = begun.elapsed();
    if let (Err(what), true) = (&checked, scheme != Scheme::ZeroOverhead) {
        return Err(MeasureError::Check(what.clone()));
    }

    let profile = Profile::table_1(Calibration::Peak.positioning(Alignment::Stripe));
    let mix = Mix::table_1(Alignment::Stripe);
    let case = Case { devices, length: 4 * SECOND, ..Case::table_1(scheme, hosts, mix, profile) };
    Ok(AtScale { measured: measure(&case, seed)?, checked, took })
}

impl AtScale {
    /// As result rows, without properties.
    pub fn rows(&self) -> Vec<Row> {
        let row = |metric, value: f64| Row::of(BENCH, metric, &[value]);
        let mut rows = self.measured.rows();
        match &self.checked {
            Ok(checked) => {
                let events = checked.events as f64;
                rows.push(row(&metric::CHECKED_OPS, checked.operations as f64));
                rows.push(row(&metric::VIOLATIONS, 0.0));
                rows.push(row(&metric::EVENTS_PER_S, events / self.took.as_secs_f64().max(1e-9)));
            }
            Err(what) => {
                let found = what.lines().filter(|line| line.starts_with("VIOLATED")).count();
                rows.push(row(&metric::VIOLATIONS, found as f64));
            }
        }
        rows
    }
}
