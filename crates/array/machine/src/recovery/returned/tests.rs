//! Each line of the rule, in a stripe of three data units and parity, and in a mirror.

use bytes::Bytes;

use super::*;
use crate::recovery::column::{Rule, examine, mended};
use crate::{Layout, Redundancy};

const STRIPE: u64 = 4;
const PARITY: usize = 3;
/// The medium of the device that comes back has everything up to this.
const WHOLE_TO: Time = 50;

fn layout() -> Layout {
    Layout {
        redundancy: Redundancy::Raid5,
        data: 3,
        groups: 1,
        unit: 2,
        block_size: 4,
        stripes: 8,
        added: Default::default(),
    }
}

fn device(unit: usize) -> DeviceId {
    match unit {
        PARITY => layout().parity(STRIPE),
        unit => layout().data(STRIPE, unit as u16),
    }
}

fn returned(unit: usize) -> Returned {
    Returned { device: device(unit), unit, whole_to: WHOLE_TO }
}

fn stamp(time: Time) -> Stamp {
    Stamp { time, host: 1 }
}

/// A block that nothing is said of by its record.
fn block(time: Time) -> Seen {
    there(mended(stamp(time)))
}

fn there(header: Header) -> Seen {
    Seen::There { header, data: Bytes::from_static(&[1; 4]) }
}

/// A write of the data units from one to another, in the first column.
fn record(time: Time, first: u16, last: u16, skipped: Option<usize>) -> Seen {
    let block = |unit: u16| layout().logical(STRIPE, unit);
    // Units are two blocks, so that the record ends with the first one of the last unit.
    let (first, last) = (block(first), block(last));
    there(Header {
        stamp: stamp(time),
        first,
        last,
        skipped: skipped.map(device).into_iter().collect(),
        ..Header::default()
    })
}

fn verdict(unit: usize, units: [Seen; 4]) -> Verdict {
    let layout = layout();
    let column = Column::at(&layout, STRIPE, 0);
    returned(unit).verdicts(&[(column, units.to_vec())])[0]
}

use Seen::{Absent, Torn, Unreadable};
use Verdict::{Current, Gone, MayBeOld, Outdated};

#[test]
fn a_data_block_is_current_if_parity_is_not_newer() {
    // The same operation has written both; or a later one the block.
    assert_eq!(verdict(0, [block(90), Absent, block(7), block(90)]), Current);
    assert_eq!(verdict(0, [block(91), Absent, block(7), block(90)]), Current);
    // Parity was written while the device was there.
    assert_eq!(verdict(0, [block(10), Absent, block(7), block(WHOLE_TO)]), Current);
    assert_eq!(verdict(0, [block(0), Absent, block(0), block(0)]), Current);
}

#[test]
fn a_data_block_is_outdated_if_parity_was_written_since() {
    assert_eq!(verdict(0, [block(10), Absent, block(7), block(WHOLE_TO + 1)]), Outdated);
    // Another unit's write may hide one of this unit.
    assert_eq!(verdict(0, [block(10), Absent, block(60), block(60)]), Outdated);
    // Of the same time, by another host.
    let parity = there(mended(Stamp { time: 60, host: 2 }));
    assert_eq!(verdict(0, [block(60), Absent, block(7), parity]), Outdated);
}

#[test]
fn a_block_that_a_record_names_is_outdated() {
    let names = |skipped| record(40, 0, 2, skipped);
    // Earlier than the medium's time, too: the record counts more.
    assert_eq!(verdict(0, [block(10), Absent, names(None), block(40)]), Outdated);
    assert_eq!(verdict(0, [block(10), Absent, block(7), names(None)]), Outdated);
    // The write has skipped the device.
    assert_eq!(verdict(0, [block(10), Absent, names(Some(0)), Absent]), Outdated);
    // It has skipped another device, and was one of this block.
    assert_eq!(verdict(0, [block(10), Absent, names(Some(1)), Absent]), Outdated);
    // It is of other blocks, or not newer.
    assert_eq!(verdict(0, [block(10), Absent, record(40, 1, 2, None), Absent]), MayBeOld);
    assert_eq!(verdict(0, [block(40), Absent, names(None), block(40)]), Current);
    assert_eq!(verdict(PARITY, [block(7), Absent, names(Some(PARITY)), block(10)]), Outdated);
}

#[test]
fn without_parity_nothing_tells() {
    assert_eq!(verdict(0, [block(10), block(90), block(90), Absent]), MayBeOld);
    assert_eq!(verdict(0, [block(10), Absent, block(90), Torn]), MayBeOld);
    assert_eq!(verdict(0, [block(10), Absent, block(90), Unreadable]), MayBeOld);
}

#[test]
fn parity_fits_unless_a_data_block_was_written_since() {
    assert_eq!(verdict(PARITY, [block(10), Absent, block(20), block(20)]), MayBeOld);
    assert_eq!(verdict(PARITY, [block(WHOLE_TO), Absent, block(20), block(20)]), MayBeOld);
    assert_eq!(verdict(PARITY, [block(WHOLE_TO + 1), Absent, block(20), block(20)]), Outdated);
    // The same operation has written both.
    assert_eq!(verdict(PARITY, [block(90), Absent, block(20), block(90)]), MayBeOld);
}

#[test]
fn what_the_medium_does_not_have_is_gone() {
    assert_eq!(verdict(0, [Torn, Absent, block(7), block(7)]), Gone);
    assert_eq!(verdict(0, [Unreadable, Absent, block(7), block(7)]), Gone);
    let lost = || there(Header { lost: true, ..mended(stamp(10)) });
    assert_eq!(verdict(0, [lost(), Absent, block(7), block(10)]), Gone);
    // The mark is old: somebody has written the block since.
    assert_eq!(verdict(0, [lost(), Absent, block(7), block(60)]), Outdated);
}

#[test]
fn a_mirrors_other_half_tells_nothing_when_it_is_lost() {
    let layout = Layout { redundancy: Redundancy::Mirror, data: 1, ..layout() };
    let column = Column::at(&layout, STRIPE, 0);
    for unit in [0, 1] {
        let mut units = vec![Absent, Absent];
        units[unit] = block(10);
        let device = [layout.data(STRIPE, 0), layout.parity(STRIPE)][unit];
        let returned = Returned { device, unit, whole_to: WHOLE_TO };
        assert_eq!(returned.verdicts(&[(column, units)]), [MayBeOld]);
    }
}

/// A block that is used is written again beside one that gets a new timestamp: it must not look older afterwards.
#[test]
fn a_used_block_does_not_get_old_by_the_repair_of_another_one() {
    let layout = layout();
    let column = Column::at(&layout, STRIPE, 0);
    let mut units = vec![block(10), Absent, Torn, block(20)];
    let returned = returned(0);
    for time in 100.. {
        let stripe = [(column, units.clone())];
        assert_eq!(returned.verdicts(&stripe), [Current]);
        let mut finding = examine(&stripe, &[Vec::new()], &[], Rule::FitParity).remove(0);
        finding.mends.extend(returned.again(&units, &finding.mends));
        if finding.mends.is_empty() {
            break;
        }
        for mend in &finding.mends {
            let Mend { lost, lost_data, .. } = *mend;
            let header = Header { lost, lost_data, ..mend.header(stamp(time)) };
            units[mend.unit] = Seen::There { header, data: mend.data.clone() };
        }
        assert!(time < 110, "it does not end");
    }
    // The torn block is lost, and so is the absent one. The block of the device is as it was.
    assert!(units[2].lost() && units[PARITY].lost() && !units[0].lost());
    assert_eq!(returned.again(&units, &[]), None);
}

#[test]
fn what_is_known_of_blocks_is_counted() {
    let mut outlook = Outlook::default();
    for verdict in [Current, Current, MayBeOld, Outdated, Gone] {
        outlook.count(verdict);
    }
    outlook += Outlook { other_lost: 2, other_current: 1, other_may_be_old: 3, ..outlook };
    let twice = Outlook { current: 4, may_be_old: 2, outdated: 2, gone: 2, ..outlook };
    assert_eq!(outlook, twice);
    assert_eq!((outlook.other_current, outlook.other_may_be_old, outlook.other_lost), (1, 3, 2));
}
