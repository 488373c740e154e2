//! Every way to interrupt one write of one column, with every single fault beside it.

use bytes::Bytes;
use rand::RngExt as _;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::column::{Column, Finding, Mend, Rule, Seen, doubtful, examine, mended};
use crate::{Header, Layout, Redundancy, Stamp};

const DATA: usize = 3;
const STRIPE: u64 = 2;

fn layout() -> Layout {
    let data = DATA as u16;
    Layout {
        redundancy: Redundancy::Raid5,
        data,
        groups: 1,
        unit: 1,
        block_size: 4,
        stripes: 8,
        added: Default::default(),
    }
}

fn stamp(time: u64) -> Stamp {
    Stamp { time, host: 1 }
}

fn old(unit: usize) -> Bytes {
    vec![1 << unit; 4].into()
}

fn new(unit: usize) -> Bytes {
    vec![0x10 << unit; 4].into()
}

fn sum(blocks: &[Bytes]) -> Bytes {
    let mut sum = vec![0; 4];
    blocks.iter().for_each(|b| sum.iter_mut().zip(b.iter()).for_each(|(s, b)| *s ^= b));
    sum.into()
}

/// A record of some operation, which may have been on other stripes than this one, or have skipped a device.
pub(super) fn random_record(
    random: &mut Xoshiro256PlusPlus,
    layout: &Layout,
    stripe: u64,
) -> Header {
    let blocks = u64::from(layout.data) * u64::from(layout.unit);
    let first = stripe * blocks - 2 + random.random_range(0..blocks + 2);
    let last = first + random.random_range(0..blocks.min(7)) - u64::from(random.random_bool(0.2));
    let device = crate::DeviceId(random.random_range(0..layout.devices()));
    Header {
        stamp: stamp(random.random_range(0..6)),
        first,
        last,
        skipped: random.random_bool(0.2).then_some(device).into_iter().collect(),
        lost: random.random_bool(0.03),
        lost_data: (0..DATA).filter(|_| random.random_bool(0.03)).collect(),
    }
}

/// A unit with any of these records, or one that yields nothing.
pub(super) fn random_unit(random: &mut Xoshiro256PlusPlus, records: &[Header]) -> Seen {
    let header = records[random.random_range(0..records.len())];
    match random.random_range(0..30) {
        0 => Seen::Torn,
        1 => Seen::Unreadable,
        _ => Seen::There { header, data: vec![random.random_range(0..2_u8); 4].into() },
    }
}

/// How far each unit's write got.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Got {
    Old,
    New,
    Torn,
}

/// Units after a write of data units `first..=last` that got so far.
fn cut_short(first: usize, last: usize, got: &[Got]) -> Vec<Seen> {
    let base = STRIPE * DATA as u64;
    let link = |time, first: usize, last: usize| Header {
        stamp: stamp(time),
        first: base + first as u64,
        last: base + last as u64,
        ..Header::default()
    };
    let before = link(5, 0, DATA - 1);
    let after = link(10, first, last);
    let contents = |to: &dyn Fn(usize) -> Bytes| (0..DATA).map(to).collect::<Vec<_>>();
    let all_old = contents(&old);
    let all_new =
        contents(&|unit| if (first..=last).contains(&unit) { new(unit) } else { old(unit) });
    (0..=DATA)
        .map(|unit| {
            let pick = |all: &[Bytes]| if unit == DATA { sum(all) } else { all[unit].clone() };
            match got[unit] {
                Got::Old => Seen::There { header: before, data: pick(&all_old) },
                Got::New => Seen::There { header: after, data: pick(&all_new) },
                Got::Torn => Seen::Torn,
            }
        })
        .collect()
}

fn write(units: &mut [Seen], mend: &Mend, time: u64) {
    let Mend { lost, lost_data, content, .. } = *mend;
    let of_all = Header::of_repair(stamp(time), content.unwrap_or(stamp(time)));
    let header = Header { lost, lost_data, ..of_all };
    units[mend.unit] = Seen::There { header, data: mend.data.clone() };
}

/// The content that a reader gets of a data unit; `None`: an error.
fn read(units: &[Seen], unit: usize) -> Option<Bytes> {
    match &units[unit] {
        Seen::Torn | Seen::Unreadable => panic!("a torn block after the repair"),
        Seen::There { header, data } => (!header.lost).then(|| data.clone()),
        Seen::Absent => match &units[DATA] {
            Seen::There { header, .. } if !header.lost => {
                let others = units.iter().filter_map(|u| match u {
                    Seen::There { data, .. } => Some(data.clone()),
                    _ => None,
                });
                Some(sum(&others.collect::<Vec<_>>()))
            }
            _ => None,
        },
    }
}

/// A column of which nothing is in others.
fn alone(column: Column<'_>, units: &[Seen]) -> Finding {
    examine(&[(column, units.to_vec())], &[vec![]], &[], Rule::FitParity).remove(0)
}

/// Repairs, and at every pass that writes several blocks tries every part of them being written before a crash, too.
fn repair(units: Vec<Seen>, pass: u64, visit: &mut dyn FnMut(&[Seen])) {
    let layout = layout();
    let column = Column::at(&layout, STRIPE, 0);
    assert!(pass < 12, "no end: {units:?}");
    let finding = alone(column, &units);
    if finding.mends.is_empty() {
        return visit(&units);
    }
    for written in 1..1u32 << finding.mends.len() {
        let mut after = units.clone();
        for (index, mend) in finding.mends.iter().enumerate() {
            if written & 1 << index != 0 {
                write(&mut after, mend, 100 + pass);
            }
        }
        repair(after, pass + 1, visit);
    }
}

/// A block was given up while parity's medium did not return it. It does again, and has that block's former content.
#[test]
fn parity_that_has_missed_a_loss_makes_nothing_up() {
    for (lost, missing) in [(0, 1), (1, 0), (2, 1)] {
        for gone in [Seen::Absent, Seen::Torn] {
            let mut units = cut_short(0, 0, &[Got::Old; DATA + 1]);
            let header = Header { lost: true, ..mended(stamp(20)) };
            units[lost] = Seen::There { header, data: vec![0; 4].into() };
            units[missing] = gone;
            repair(units, 0, &mut |units| {
                assert_eq!((read(units, lost), read(units, missing)), (None, None), "{units:?}");
            });
        }
    }
}

fn every_write(mut each: impl FnMut(usize, usize, Vec<Got>)) {
    for first in 0..DATA {
        for last in first..DATA {
            let targets: Vec<usize> = (first..=last).chain([DATA]).collect();
            for code in 0..3u32.pow(targets.len() as u32) {
                let mut got = vec![Got::Old; DATA + 1];
                let mut code = code;
                for &target in &targets {
                    got[target] = [Got::Old, Got::New, Got::Torn][code as usize % 3];
                    code /= 3;
                }
                each(first, last, got);
            }
        }
    }
}

#[test]
fn after_any_cut_write_every_block_is_old_or_new_or_reported_lost() {
    let mut ends = 0;
    every_write(|first, last, got| {
        for absent in (0..=DATA).map(Some).chain([None]) {
            let mut units = cut_short(first, last, &got);
            if let Some(absent) = absent {
                units[absent] = Seen::Absent;
            }
            let before = units.clone();
            repair(units, 0, &mut |units| {
                ends += 1;
                let torn =
                    got.iter().enumerate().any(|(u, g)| *g == Got::Torn && Some(u) != absent);
                for (unit, &unit_got) in got.iter().enumerate().take(DATA) {
                    let written = (first..=last).contains(&unit);
                    match read(units, unit) {
                        Some(data) => {
                            let fits = data == old(unit) || written && data == new(unit);
                            assert!(
                                fits,
                                "unit {unit}: {data:?}, {absent:?}, {before:?} {units:?}"
                            );
                        }
                        // Nothing is lost without a fault beside the crash, and nothing that can be read.
                        None => assert!(absent == Some(unit) || torn, "{before:?} {units:?}"),
                    }
                    if absent != Some(unit) && unit_got != Got::Torn {
                        assert!(read(units, unit).is_some(), "{before:?} {units:?}");
                    }
                }
                if absent.is_none() {
                    let all: Vec<Bytes> = (0..=DATA)
                        .map(|u| match &units[u] {
                            Seen::There { data, .. } => data.clone(),
                            other => panic!("{other:?}"),
                        })
                        .collect();
                    assert!(sum(&all).iter().all(|b| *b == 0), "{before:?} {units:?}");
                }
            });
        }
    });
    assert!(ends > 1000);
}

#[test]
fn a_write_that_was_finished_or_never_began_leaves_nothing_to_mend_and_loses_nothing() {
    let layout = layout();
    let column = Column::at(&layout, STRIPE, 0);
    every_write(|first, last, got| {
        let targets = (first..=last).chain([DATA]);
        let same = targets.clone().all(|t| got[t] == Got::Old)
            || targets.clone().all(|t| got[t] == Got::New);
        if !same {
            return;
        }
        for absent in (0..=DATA).map(Some).chain([None]) {
            let mut units = cut_short(first, last, &got);
            if let Some(absent) = absent {
                units[absent] = Seen::Absent;
            }
            let finding = alone(column, &units);
            assert_eq!((finding.mends.len(), finding.lost), (0, 0), "{units:?}");
            if let Some(absent) = absent {
                let whole = cut_short(first, last, &got);
                let Seen::There { data, .. } = &whole[absent] else { panic!() };
                assert_eq!(column.rebuild(&units, absent).data, data);
            }
        }
    });
}

/// Repairs two columns until nothing is left to mend, with every part of a pass being written before a crash.
fn repair_both(both: [Vec<Seen>; 2], pass: u64, visit: &mut dyn FnMut(&[Vec<Seen>; 2])) {
    let layout = Layout { unit: 2, ..layout() };
    assert!(pass < 12, "no end: {both:?}");
    let column = |offset: u32| (Column::at(&layout, STRIPE, offset), both[offset as usize].clone());
    let findings = examine(&[column(0), column(1)], &[vec![], vec![]], &[], Rule::FitParity);
    let mends: Vec<(usize, Mend)> =
        (0..2).flat_map(|c| findings[c].mends.iter().map(move |mend| (c, mend.clone()))).collect();
    if mends.is_empty() {
        return visit(&both);
    }
    for written in 1..1u32 << mends.len() {
        let mut after = both.clone();
        for (index, (column, mend)) in mends.iter().enumerate() {
            if written & 1 << index != 0 {
                write(&mut after[*column], mend, 100 + pass);
            }
        }
        repair_both(after, pass + 1, visit);
    }
}

/// A write of the second block of unit 0 and the first of unit 1, which are neighbours, is interrupted. Each column has one of
/// them.
#[test]
fn what_one_column_has_of_a_write_tells_that_another_has_nothing() {
    let first = STRIPE * DATA as u64 * 2 + 1;
    let mut losses = 0;
    for code in 0..16u32 {
        // Unit 1 and parity of column 0, unit 0 and parity of column 1.
        let got = |bit: u32| if code & 1 << bit == 0 { Got::Old } else { Got::New };
        let (mut zero, mut one) = (vec![Got::Old; DATA + 1], vec![Got::Old; DATA + 1]);
        (zero[1], zero[DATA], one[0], one[DATA]) = (got(0), got(1), got(2), got(3));
        let mut whole = [cut_short(1, 1, &zero), cut_short(0, 0, &one)];
        for (unit, got) in
            whole.iter_mut().zip([&zero, &one]).flat_map(|(u, g)| u.iter_mut().zip(g))
        {
            let Seen::There { header, .. } = unit else { panic!() };
            (header.first, header.last) = match got {
                Got::New => (first, first + 1),
                _ => (first - 1, first + 4),
            };
        }
        for absent in (0..=DATA).map(Some).chain([None]) {
            let mut both = whole.clone();
            absent
                .into_iter()
                .for_each(|unit| both.iter_mut().for_each(|c| c[unit] = Seen::Absent));
            let shows = both.iter().flatten().any(
                |seen| matches!(seen, Seen::There { header, .. } if header.stamp == stamp(10)),
            );
            repair_both(both.clone(), 0, &mut |after| {
                for (column, unit) in (0..2).flat_map(|c| (0..DATA).map(move |u| (c, u))) {
                    let Seen::There { data, .. } = &whole[column][unit] else { panic!() };
                    let found = read(&after[column], unit);
                    let named = (column, unit) == (0, 1) || (column, unit) == (1, 0);
                    if absent != Some(unit) {
                        // The repair may complete the write.
                        let fits =
                            found.as_ref() == Some(data) || named && found == Some(new(unit));
                        assert!(fits, "{both:?} {after:?}");
                    }
                    // Its own block may have been new, and read: parity does not know it.
                    let parity = [&zero, &one][column][DATA];
                    if absent == Some(unit) && named && shows && parity == Got::Old {
                        losses += 1;
                        assert_eq!(found, None, "{both:?} {after:?}");
                    }
                }
            });
        }
    }
    assert!(losses > 0);
}

#[test]
fn a_missing_unit_is_lost_if_a_write_beside_it_was_cut_short_and_stays_so_when_rebuilt() {
    let layout = layout();
    let column = Column::at(&layout, STRIPE, 0);
    let mut units = cut_short(0, 0, &[Got::New, Got::Old, Got::Old, Got::Old]);
    units[2] = Seen::Absent;
    repair(units, 0, &mut |units| {
        assert_eq!(read(units, 2), None);
        assert_eq!(alone(column, units).lost, 1);
        let mut units = units.to_vec();
        let mend = column.rebuild(&units, 2);
        assert!(mend.lost);
        // Parity is good again, with the same pass. The block is still lost, also if it is not written any more.
        let parity = column.parity_beside(&units, 2, &[]).unwrap();
        write(&mut units, &parity, 200);
        let not_yet = alone(column, &units);
        assert_eq!((not_yet.lost, not_yet.mends), (1, vec![]));
        assert!(column.rebuild(&units, 2).lost);
        write(&mut units, &mend, 200);
        let finding = alone(column, &units);
        assert_eq!((finding.lost, finding.mends), (1, vec![]));
        assert_eq!(read(&units, 2), None);
        // Another device may fail now.
        units[1] = Seen::Absent;
        assert_eq!(read(&units, 1), Some(old(1)));
    });
}

#[test]
fn a_degraded_write_says_what_it_left_out() {
    let layout = layout();
    let column = Column::at(&layout, STRIPE, 0);
    let mut units = cut_short(0, 1, &[Got::New, Got::Old, Got::Old, Got::New]);
    let mut finding = alone(column, &units);
    assert!(!finding.mends.is_empty());
    for unit in [0, DATA] {
        let Seen::There { header, .. } = &mut units[unit] else { panic!() };
        header.skipped = [layout.data(STRIPE, 1)].into_iter().collect();
    }
    units[1] = Seen::Absent;
    finding = alone(column, &units);
    assert_eq!((finding.mends.len(), finding.lost), (0, 0));
    assert_eq!(column.rebuild(&units, 1).data, new(1));
}

/// A stripe of one column whose last writes were those of each single unit, in order, so that parity names the last only; and a
/// stripe that one operation has written.
fn written() -> [Vec<Seen>; 2] {
    let base = STRIPE * DATA as u64;
    let block = |time: u64, first: usize, last: usize, data: Bytes| Seen::There {
        header: Header {
            stamp: stamp(time),
            first: base + first as u64,
            last: base + last as u64,
            ..Header::default()
        },
        data,
    };
    let all: Vec<Bytes> = (0..DATA).map(new).collect();
    let single = (0..DATA).map(|unit| block(10 + unit as u64, unit, unit, new(unit)));
    let last = block(9 + DATA as u64, DATA - 1, DATA - 1, sum(&all));
    let together = (0..DATA).map(|unit| block(20, 0, DATA - 1, new(unit)));
    let parity = block(20, 0, DATA - 1, sum(&all));
    [single.chain([last]).collect(), together.chain([parity]).collect()]
}

/// What a medium returns for a block after it has lost its last write: nothing at all, or the block before.
fn stale() -> [Seen; 2] {
    let before = Header { stamp: stamp(5), first: 0, last: u64::MAX, ..Header::default() };
    [
        Seen::There { header: Header::default(), data: vec![0; 4].into() },
        Seen::There { header: before, data: vec![0x5a; 4].into() },
    ]
}

const RULES: [Rule; 3] = [Rule::Leave, Rule::CutShort, Rule::FitParity];

#[test]
fn a_block_that_lost_its_last_write_gets_it_back_wherever_a_record_names_it() {
    let layout = layout();
    let column = Column::at(&layout, STRIPE, 0);
    for (stale, rule) in stale().into_iter().flat_map(|seen| RULES.map(|rule| (seen.clone(), rule)))
    {
        for unit in 0..=DATA {
            for (whole, named) in written().into_iter().zip([unit >= DATA - 1, true]) {
                let mut units = whole.clone();
                units[unit] = stale.clone();
                let finding = examine(&[(column, units.clone())], &[vec![]], &[], rule).remove(0);
                assert!(finding.mismatch);
                if named {
                    let Seen::There { data, .. } = &whole[unit] else { panic!() };
                    let content = whole[DATA].header().map(Header::content).filter(|_| unit < DATA);
                    assert_eq!(
                        finding.mends,
                        [Mend { content, ..Mend::new(unit, data.clone(), false) }]
                    );
                    assert!(!finding.undecided);
                } else {
                    // Nobody knows, so that only a loss that is accepted changes anything.
                    assert_eq!(finding.undecided, rule != Rule::FitParity, "{rule:?} {unit}");
                    assert_eq!(finding.mends.is_empty(), finding.undecided);
                }
            }
        }
    }
}

#[test]
fn two_blocks_that_lost_their_last_writes_are_left_until_a_loss_is_accepted() {
    let layout = layout();
    let column = Column::at(&layout, STRIPE, 0);
    let [_, whole] = written();
    for (a, b) in (0..=DATA).flat_map(|a| (0..a).map(move |b| (a, b))) {
        for other in [stale()[0].clone(), Seen::Torn, Seen::Unreadable, Seen::Absent] {
            let mut units = whole.clone();
            (units[a], units[b]) = (stale()[0].clone(), other);
            let finding =
                examine(&[(column, units.clone())], &[vec![]], &[], Rule::Leave).remove(0);
            assert_eq!((finding.undecided, &finding.mends[..]), (true, &[][..]), "{units:?}");
            repair(units, 0, &mut |_| ());
        }
    }
}

fn beside_is_absent(units: &[Seen]) -> bool {
    units.contains(&Seen::Absent)
}

/// An unreadable block may be there again: nothing is marked lost for it unless somebody accepts that.
#[test]
fn an_unreadable_block_is_made_of_the_others_or_left() {
    let layout = layout();
    let column = Column::at(&layout, STRIPE, 0);
    for unit in 0..=DATA {
        let [whole, _] = written();
        let mut units = whole.clone();
        units[unit] = Seen::Unreadable;
        let finding = examine(&[(column, units.clone())], &[vec![]], &[], Rule::Leave).remove(0);
        let Seen::There { data, .. } = &whole[unit] else { panic!() };
        let content = whole[DATA].header().map(Header::content).filter(|_| unit < DATA);
        assert_eq!(finding.mends, [Mend { content, ..Mend::new(unit, data.clone(), false) }]);
        for beside in (0..=DATA).filter(|beside| *beside != unit) {
            for other in [Seen::Absent, Seen::Unreadable, Seen::Torn] {
                let mut units = units.clone();
                units[beside] = other;
                let finding =
                    examine(&[(column, units.clone())], &[vec![]], &[], Rule::Leave).remove(0);
                let absent_parity = beside == DATA && units[DATA] == Seen::Absent;
                assert!(finding.undecided && finding.mends.is_empty(), "{absent_parity} {units:?}");
                repair(units, 0, &mut |after| {
                    // Without redundancy it stays, and is an error.
                    assert_eq!(
                        after[unit] == Seen::Unreadable,
                        beside_is_absent(after),
                        "{after:?}"
                    );
                });
            }
        }
    }
}

/// Of two copies that differ the newer one is right, also if a repair has written it.
#[test]
fn the_newer_copy_of_a_mirror_is_the_right_one() {
    let layout = Layout { redundancy: Redundancy::Mirror, data: 1, ..layout() };
    let column = Column::at(&layout, STRIPE, 0);
    let copy = |header: Header, unit: usize| Seen::There { header, data: new(unit) };
    let named = Header { stamp: stamp(9), first: STRIPE, last: STRIPE, ..Header::default() };
    for (newer, rule) in [named, mended(stamp(9))].into_iter().flat_map(|h| RULES.map(|r| (h, r))) {
        for old in stale() {
            for unit in 0..2 {
                let mut units = vec![copy(newer, 2), copy(newer, 2)];
                units[unit] = old.clone();
                let finding = examine(&[(column, units)], &[vec![]], &[], rule).remove(0);
                let content = Some(stamp(9)).filter(|_| unit == 0);
                assert_eq!(finding.mends, [Mend { content, ..Mend::new(unit, new(2), false) }]);
            }
        }
    }
    let units = vec![copy(named, 0), copy(named, 1)];
    let finding = examine(&[(column, units)], &[vec![]], &[], Rule::Leave).remove(0);
    assert!(finding.undecided && finding.mends.is_empty());
}

/// A column in which a write of unit 1 came last, and unit 0 has lost the write before that. No record names it.
fn with_a_lost_cache() -> Vec<Seen> {
    let mut units = cut_short(1, 1, &[Got::Old, Got::New, Got::Old, Got::New]);
    units[0] = Seen::There { header: mended(stamp(3)), data: vec![0xee; 4].into() };
    units[2] = Seen::There { header: mended(stamp(5)), data: old(2) };
    units
}

/// One pass over a column whose devices name these timestamps of durable writes.
fn doubted(units: &[Seen], durable_to: &[u64], rule: Rule) -> (Vec<usize>, Finding) {
    let layout = layout();
    let column = Column::at(&layout, STRIPE, 0);
    let doubts = doubtful(&layout, units, durable_to);
    let finding = examine(&[(column, units.to_vec())], std::slice::from_ref(&doubts), &[], rule);
    (doubts, finding.into_iter().next().unwrap())
}

const SURE: u64 = u64::MAX;

#[test]
fn the_only_doubtful_block_comes_from_the_others() {
    let units = with_a_lost_cache();
    for rule in RULES {
        let (doubts, finding) = doubted(&units, &[4, SURE, SURE, SURE], rule);
        assert_eq!(doubts, [0]);
        let content = Some(stamp(10));
        assert_eq!(finding.mends, [Mend { content, ..Mend::new(0, old(0), false) }], "{rule:?}");
        assert!(!finding.undecided);
    }
    // All that is beside it is durable, so that it cannot have missed anything.
    let (doubts, finding) = doubted(&units, &[10, SURE, SURE, SURE], Rule::Leave);
    assert_eq!((doubts, finding.undecided), (Vec::new(), true));
    // Lost parity is made to fit, as ever.
    let mut units = cut_short(1, 1, &[Got::Old, Got::New, Got::Old, Got::New]);
    units[DATA] = Seen::There { header: mended(stamp(3)), data: vec![0xee; 4].into() };
    let (_, finding) = doubted(&units, &[SURE, SURE, SURE, 4], Rule::Leave);
    let all = [old(0), new(1), old(2)];
    assert_eq!(finding.mends, [Mend::new(DATA, sum(&all), false)]);
}

/// Content that nobody has written must not come of it.
#[test]
fn nothing_is_made_of_two_doubtful_blocks() {
    let units = with_a_lost_cache();
    for rule in RULES {
        let (doubts, finding) = doubted(&units, &[4, SURE, 4, SURE], rule);
        assert_eq!(doubts, [0, 2]);
        let data = [vec![0xee; 4].into(), new(1), old(2)];
        let content = Some(stamp(3));
        let parity = Mend { content, ..Mend::new(DATA, sum(&data), false) };
        assert_eq!(finding.mends, [parity], "{rule:?}");
    }
    // A record accuses unit 1, and the others are doubtful.
    let mut units = with_a_lost_cache();
    let Seen::There { header, .. } = &mut units[1] else { panic!() };
    header.stamp = stamp(4);
    let (_, finding) = doubted(&units, &[3, SURE, SURE, SURE], Rule::Leave);
    assert!(finding.mends.iter().all(|mend| mend.unit == DATA), "{finding:?}");
}

/// Parity has lost a write with its cache, and so the block that is made of it has not got that write, although its record is newer.
#[test]
fn a_block_that_is_made_of_others_says_how_new_they_were() {
    let mut units = with_a_lost_cache();
    for content in [stamp(10), stamp(3), stamp(8)] {
        let parity = sum(&[old(0), new(1), old(2)]);
        units[DATA] = Seen::There { header: Header::of_repair(stamp(10), content), data: parity };
        for hole in [Seen::Torn, Seen::Unreadable] {
            units[0] = hole;
            let (_, finding) = doubted(&units, &[SURE; 4], Rule::Leave);
            let mend = Mend { content: Some(content), ..Mend::new(0, old(0), false) };
            assert_eq!(finding.mends, [mend]);
            write(&mut units, &finding.mends[0], 100);
            let header = units[0].header().unwrap();
            assert_eq!((header.stamp, header.content()), (stamp(100), content));
        }
        units[0] = Seen::Absent;
        let layout = layout();
        let column = Column::at(&layout, STRIPE, 0);
        assert_eq!(column.rebuild(&units, 0).content, Some(content));
    }
}

#[test]
fn what_only_doubtful_blocks_could_yield_is_lost() {
    for hole in [Seen::Absent, Seen::Torn] {
        let mut units = with_a_lost_cache();
        units[2] = hole.clone();
        let (_, finding) = doubted(&units, &[4, SURE, SURE, SURE], Rule::Leave);
        let [Mend { unit: DATA, lost: true, .. }] = finding.mends[..] else {
            panic!("{finding:?}")
        };
        let (_, finding) = doubted(&units, &[10, SURE, SURE, SURE], Rule::Leave);
        // As without a restart.
        let made = finding.mends.first();
        assert_eq!(made.map(|mend| mend.lost), (hole == Seen::Torn).then_some(false));
    }
}

/// A flush looks for its writes by their timestamps.
#[test]
fn content_that_stays_keeps_its_timestamp() {
    let units = cut_short(0, 1, &[Got::New, Got::Old, Got::Old, Got::Old]);
    let mut seen = units;
    let mut times = Vec::new();
    for pass in 0..8 {
        let finding = alone(Column::at(&layout(), STRIPE, 0), &seen);
        if finding.mends.is_empty() {
            break;
        }
        for mend in &finding.mends {
            let time = mend.kept.map_or(100 + pass, |kept| kept.stamp.time);
            times.push((mend.unit, time));
            write(&mut seen, mend, time);
        }
    }
    assert!(times.contains(&(DATA, 100)), "parity was made anew: {times:?}");
    assert!(times.contains(&(0, 10)), "{times:?}");
}

/// Its device does not give up its medium as long as another one is missing. A repair that wrote the block would begin anew for ever.
#[test]
fn an_unreadable_block_stays_beside_a_missing_one_that_is_lost() {
    let layout = layout();
    let column = Column::at(&layout, STRIPE, 0);
    let mut units = cut_short(0, 0, &[Got::Old; DATA + 1]);
    units[2] = Seen::Absent;
    let Seen::There { header, .. } = &mut units[DATA] else { panic!() };
    header.lost_data = header.lost_data.with(2);
    units[1] = Seen::Unreadable;
    let finding = alone(column, &units);
    assert_eq!((finding.mends, finding.mismatch, finding.undecided), (vec![], true, false));
    assert!(column.rebuild(&units, 2).lost);
    // A torn one is written: its medium takes and returns it.
    units[1] = Seen::Torn;
    assert_eq!(alone(column, &units).mends.len(), 1);
}

/// Neither does it beside one that is not rebuilt yet, and that was read from the medium with which its device has left. Marked parity
/// yields that block afterwards: it is good again, and names the other one.
#[test]
fn an_unreadable_block_is_lost_beside_one_that_comes_back() {
    let layout = layout();
    let column = Column { beside_rebuilt: true, ..Column::at(&layout, STRIPE, 0) };
    let mut units = cut_short(0, 0, &[Got::Old; DATA + 1]);
    units[1] = Seen::Unreadable;
    assert_eq!(alone(column, &units).mends, []);
    let Seen::There { header, .. } = &mut units[DATA] else { panic!() };
    *header = Header { lost: true, ..Header::of_repair(stamp(20), stamp(1)) };
    let finding = alone(column, &units);
    let [mend @ Mend { unit: DATA, lost: false, .. }] = &finding.mends[..] else {
        panic!("{finding:?}")
    };
    write(&mut units, mend, 30);
    assert_eq!(alone(column, &units).mends, []);
    let Seen::There { data, .. } = std::mem::replace(&mut units[2], Seen::Absent) else { panic!() };
    let column = Column { beside_rebuilt: false, ..column };
    assert_eq!(alone(column, &units).mends, []);
    let rebuilt = column.rebuild(&units, 2);
    assert_eq!((rebuilt.data, rebuilt.lost), (data, false));
}

/// One pass of a scrub over a column.
fn left(units: &[Seen]) -> Finding {
    doubted(units, &[SURE; DATA + 1], Rule::Leave).1
}

/// A medium may return an older state of another block, with a record that names it. The block must not look older than that: the others
/// do not yield it.
#[test]
fn a_block_that_stays_beside_lost_caches_looks_newer_than_what_it_has_missed() {
    let mut units = with_a_lost_cache();
    let durable_to = [4, SURE, 4, SURE];
    let mut passes = 0;
    loop {
        let (_, finding) = doubted(&units, &durable_to, Rule::Leave);
        if finding.mends.is_empty() {
            break;
        }
        passes += 1;
        assert!(passes < 8, "{units:?}");
        finding.mends.iter().for_each(|mend| write(&mut units, mend, 100 + passes));
    }
    let header = units[0].header().unwrap();
    assert!(header.stamp > stamp(100) && header.content() == stamp(3), "{header:?}");
    assert_eq!(read(&units, 0), Some(vec![0xee; 4].into()));
    // Unit 1 is as it was after a write of units 0 and 1.
    units[1] = cut_short(0, 1, &[Got::Old, Got::New, Got::Old, Got::Old])[1].clone();
    let Seen::There { data, .. } = &mut units[1] else { panic!() };
    *data = vec![0x77; 4].into();
    let finding = left(&units);
    assert_eq!((finding.mends, finding.undecided), (vec![], true));
}

/// A repair marks a missing block, and its device is back before it gets the mark.
#[test]
fn a_block_that_parity_counts_as_lost_is_lost_although_its_device_does_not_say_so() {
    let mut units = cut_short(0, DATA - 1, &[Got::New; DATA + 1]);
    let header = Header { lost_data: [2].into_iter().collect(), ..mended(stamp(20)) };
    units[DATA] = Seen::There { header, data: sum(&[new(0), new(1)]) };
    let finding = left(&units);
    assert_eq!(finding.mends, [Mend::new(2, vec![0; 4].into(), true)]);
    write(&mut units, &finding.mends[0], 30);
    let finding = left(&units);
    assert_eq!((finding.mends, finding.undecided, finding.lost), (vec![], false, 1));
    // A write of the block has come after the mark, or parity does not fit without it either.
    for (time, data) in [(10, sum(&[new(0), new(1)])), (20, vec![0x77; 4].into())] {
        let mut units = cut_short(0, DATA - 1, &[Got::New; DATA + 1]);
        let header = Header { stamp: stamp(time), ..header };
        units[DATA] = Seen::There { header, data };
        let finding = left(&units);
        assert_eq!((finding.mends, finding.undecided), (vec![], true), "{time}");
    }
}
