//! Two devices of a group are gone, and the medium of the one that went first is there (docs/design/array.md 3.9).

use std::sync::{Mutex, PoisonError};

use lockify_array::{DeviceId, OpError, Outlook, Time};

use crate::host::Array;
use crate::upkeep::{Pace, each};
use crate::{ArrayFile, Durability};

/// Operations may be under way when a device leaves, and clocks differ. So a medium may lack a write that is older than its
/// newest block.
///
/// - A device fences a host that it does not hear and that has an operation under way there, after a lease. The write is
///   repaired while the device is there.
/// - No operation takes longer than sixteen leases.
/// - A host whose clock is more than a second ahead is refused.
///
/// The margin is larger than all that together.
const MARGIN: Time = 60_000_000_000;
/// Leases that are a part of the margin.
const LEASES: u64 = 16;

/// Up to which timestamp a medium certainly has every write. `newest` is the one of its newest block, and flushes have made
/// durable what is not newer than `flushed_to` ([`RecordView::flushed_to`](lockify_array::RecordView::flushed_to)).
pub fn whole_to(file: &ArrayFile, flushed_to: Time, newest: Time) -> Time {
    let durable = match file.durability {
        Durability::Write => newest,
        // A power loss may have taken any write that no flush has followed.
        Durability::Flush => newest.min(flushed_to),
    };
    let leases = file.timing.lease_ms.saturating_mul(1_000_000).saturating_mul(LEASES);
    durable.saturating_sub(MARGIN.saturating_add(leases))
}

/// The findings of a survey.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Survey {
    /// The data blocks of both devices.
    pub outlook: Outlook,
    /// How many stripes could not be looked at.
    pub failed: u64,
    /// The first reason for that, with the stripe's number.
    pub failure: Option<(u64, OpError)>,
}

/// Looks what would be left if `device`, which is out, came back with its medium, and `without` were lost. The medium has every
/// write up to `whole_to`. Nothing is written. `progress` is called after each stripe.
///
/// # Errors
/// This host is of no more use, or the work was stopped.
pub fn survey(
    array: &Array,
    device: DeviceId,
    whole_to: Time,
    without: DeviceId,
    pace: &Pace,
    progress: &(dyn Fn() + Sync),
) -> Result<Survey, OpError> {
    let layout = array.layout();
    let found = Mutex::new(Survey::default());
    let all = layout.rows(device, 0..layout.stripes);
    let end = all.end;
    let next = each(all, pace, |row| {
        let stripe = layout.stripe_in(device, row);
        let surveyed = array.survey(device, whole_to, without, stripe);
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        match surveyed {
            Ok(outlook) => found.outlook += outlook,
            Err(error @ (OpError::Fenced | OpError::Clock { .. } | OpError::Range)) => {
                return Err(error);
            }
            Err(error) => {
                found.failed += 1;
                found.failure.get_or_insert((stripe, error));
            }
        }
        progress();
        Ok(())
    })?;
    match next < end {
        true => Err(OpError::State("the survey was stopped".into())),
        false => Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_medium_has_what_is_older_than_all_that_may_have_been_under_way() {
        let mut file = crate::file::tests::file();
        let second = 1_000_000_000;
        file.timing.lease_ms = 1_000;
        file.durability = Durability::Write;
        assert_eq!(whole_to(&file, 0, 100 * second), 24 * second);
        assert_eq!(whole_to(&file, 0, 5), 0);
        file.durability = Durability::Flush;
        assert_eq!(whole_to(&file, 90 * second, 100 * second), 14 * second);
        assert_eq!(whole_to(&file, 100 * second, 90 * second), 14 * second);
        file.timing.lease_ms = u64::MAX;
        assert_eq!(whole_to(&file, u64::MAX, u64::MAX), 0);
    }
}
