//! Work on all stripes of an array: scrubs and rebuilds.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lockify_array::{Change, Condition, DeviceId, OpError};

use crate::host::{Array, Repair, Scrubbed};

/// Stripes between two notes of how far a rebuild has come.
const BATCH: u64 = 256;
/// The last stripe of a rebuild: all are done.
const ALL: u64 = u64::MAX;

/// The findings of a scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Stripes that were checked.
    pub stripes: u64,
    /// Those whose blocks did not fit.
    pub unfit: u64,
    /// Those of them that are as they were, because nobody knows which block is right.
    pub undecided: u64,
    /// Blocks whose content is lost.
    pub lost: u64,
    /// Stripes that could not be checked.
    pub failed: u64,
}

/// What a scrub has found, and the first reason why a stripe could not be checked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scrub {
    /// The findings.
    pub found: Found,
    /// The reason, with the stripe's number.
    pub failure: Option<(u64, OpError)>,
}

impl Found {
    /// Counts one more stripe.
    pub(crate) fn add(&mut self, scrubbed: Scrubbed) {
        self.stripes += 1;
        self.unfit += u64::from(scrubbed.mismatches > 0 || scrubbed.undecided > 0);
        self.undecided += u64::from(scrubbed.undecided > 0);
        self.lost += u64::from(scrubbed.lost);
    }

    /// The remedy for undecided stripes, for the end of a sentence; empty if there are none.
    pub fn of_undecided(&self) -> String {
        match self.undecided {
            0 => String::new(),
            n => format!(
                "; {n} do not fit, and nothing tells which block is wrong, so that they are as they were: bring back the medium that \
                 has lost something, or make parity fit by `lockify array scrub --repair --accept-loss`, and compare with a backup"
            ),
        }
    }

    /// The remedy for lost blocks, for the end of a sentence; empty if there are none.
    pub fn of_lost(&self) -> String {
        match self.lost {
            0 => String::new(),
            n => format!("; {n} blocks are lost: write them anew, or restore them from a backup"),
        }
    }
}

/// Checks stripes, `jobs` at a time; `progress` is called after each.
///
/// A stripe that cannot be checked does not end it.
///
/// # Errors
/// This host is of no more use. The other stripes of the range may or may not have been checked then.
pub fn scrub(
    array: &Array,
    stripes: Range<u64>,
    repair: Repair,
    jobs: usize,
    progress: &(dyn Fn() + Sync),
) -> Result<Scrub, OpError> {
    let all = Mutex::new(Scrub::default());
    each(stripes, jobs, |stripe| {
        let scrubbed = array.scrub(stripe, repair);
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        match scrubbed {
            Ok(scrubbed) => all.found.add(scrubbed),
            Err(error @ (OpError::Fenced | OpError::Clock { .. } | OpError::Range)) => {
                return Err(error);
            }
            Err(error) => {
                all.found.failed += 1;
                all.failure.get_or_insert((stripe, error));
            }
        }
        progress();
        Ok(())
    })?;
    Ok(all.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Rebuilds a device that has failed, or continues a rebuild. `progress` gets the number of finished
/// stripes, of [`stripes_of`].
///
/// # Errors
/// The first that occurred. Finished stripes stay finished: the next call continues.
pub fn rebuild(
    array: &Array,
    device: DeviceId,
    jobs: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), OpError> {
    array.change(Change::Rebuild(device))?;
    let layout = *array.layout();
    let groups = u64::from(layout.groups);
    let group = u64::from(device.0 / layout.group_size());
    let state = array.status().state;
    let mut next = match state.devices.get(usize::from(device.0)) {
        Some(Condition::Rebuilding { done }) => *done,
        Some(Condition::Good) => return Ok(()),
        _ => 0,
    };
    let done = AtomicU64::new(next / groups);
    let damaged = Mutex::new(Vec::new());
    while next < layout.stripes {
        let end = next.saturating_add(BATCH * groups).min(layout.stripes);
        // Stripes of other groups are not on this device.
        let rows =
            next.saturating_sub(group).div_ceil(groups)..end.saturating_sub(group).div_ceil(groups);
        each(rows, jobs, |row| {
            let stripe = row * groups + group;
            if array.rebuild(device, stripe)?.lost > 0 {
                damaged.lock().unwrap_or_else(PoisonError::into_inner).push(stripe);
            }
            progress(done.fetch_add(1, Relaxed) + 1);
            Ok(())
        })?;
        array.change(Change::Rebuilt(device, if end == layout.stripes { ALL } else { end }))?;
        next = end;
    }
    // Parity is there again, also of what remains lost.
    for stripe in damaged.into_inner().unwrap_or_else(PoisonError::into_inner) {
        array.scrub(stripe, Repair::Known)?;
    }
    Ok(())
}

/// How many stripes have a unit on a device.
pub fn stripes_of(array: &Array, device: DeviceId) -> u64 {
    let layout = array.layout();
    let group = u64::from(device.0 / layout.group_size());
    layout.stripes.saturating_sub(group).div_ceil(u64::from(layout.groups))
}

/// Calls `one` for each number, from so many threads; the first error ends it.
fn each(
    numbers: Range<u64>,
    jobs: usize,
    one: impl Fn(u64) -> Result<(), OpError> + Sync,
) -> Result<(), OpError> {
    let next = AtomicU64::new(numbers.start);
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= numbers.end {
                        return;
                    }
                    if let Err(e) = one(number) {
                        next.store(numbers.end, Relaxed);
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                        return;
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}
