//! Every way to interrupt one write of one column with two parities, with up to two missing devices beside it.

use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;
use crate::recovery::column::examine;
use crate::recovery::tests::{Got, random_record, random_unit};
use crate::{Layout, Redundancy};

const DATA: usize = 3;
const UNITS: usize = DATA + 2;
const STRIPE: u64 = 2;

fn layout() -> Layout {
    let (redundancy, data) = (Redundancy::Raid6, DATA as u16);
    Layout {
        redundancy,
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
    vec![1 << unit, 7, 0, unit as u8].into()
}

fn new(unit: usize) -> Bytes {
    vec![0x10 << unit, 7, 9, 100 + unit as u8].into()
}

fn whole(data: impl Fn(usize) -> Bytes) -> Vec<Bytes> {
    let mut blocks: code::Blocks = (0..DATA).map(|unit| Some(data(unit))).collect();
    blocks.resize(UNITS, None);
    assert!(code::fill(&layout(), &mut blocks));
    blocks.into_iter().flatten().collect()
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
    let all_old = whole(old);
    let all_new = whole(|unit| if (first..=last).contains(&unit) { new(unit) } else { old(unit) });
    let unit = |(unit, got): (usize, &Got)| match got {
        Got::Old => Seen::There { header: link(5, 0, DATA - 1), data: all_old[unit].clone() },
        Got::New => Seen::There { header: link(10, first, last), data: all_new[unit].clone() },
        Got::Torn => Seen::Torn,
    };
    got.iter().enumerate().map(unit).collect()
}

fn write(units: &mut [Seen], mend: &Mend, time: u64) {
    let Mend { lost, lost_data, content, .. } = *mend;
    let kept = mend.kept.unwrap_or(Header::of_repair(stamp(time), content.unwrap_or(stamp(time))));
    let header = Header { lost, lost_data, ..kept };
    units[mend.unit] = Seen::There { header, data: mend.data.clone() };
}

fn alone(units: &[Seen], traces: &[Trace], rule: Rule) -> Finding {
    let layout = layout();
    let column = Column::at(&layout, STRIPE, 0);
    examine(&[(column, units.to_vec())], &[vec![]], traces, rule).remove(0)
}

/// The content that a reader gets of each data unit; `None`: an error.
fn contents(units: &[Seen]) -> Vec<Option<Bytes>> {
    let layout = layout();
    let column = Column::at(&layout, STRIPE, 0);
    let absent: Units = (0..DATA).filter(|unit| units[*unit] == Seen::Absent).collect();
    let mut read: Vec<Option<Bytes>> = units
        .iter()
        .map(|seen| match seen {
            Seen::There { header, data } => (!header.lost).then(|| data.clone()),
            Seen::Absent => None,
            other => panic!("{other:?} after the repair: {units:?}"),
        })
        .take(DATA)
        .collect();
    for mend in column.rebuild_double(units, absent, &[]) {
        if absent.has(mend.unit) && !mend.lost {
            read[mend.unit] = Some(mend.data);
        }
    }
    read
}

/// Repairs, and at every pass that writes several blocks tries every part of them being written before a crash, if there are any.
fn repair(units: Vec<Seen>, pass: u64, crashes: bool, visit: &mut dyn FnMut(&[Seen])) {
    assert!(pass < 14, "no end: {units:?}");
    let finding = alone(&units, &[], Rule::FitParity);
    assert!(!finding.undecided);
    if finding.mends.is_empty() {
        return visit(&units);
    }
    let all = (1_u32 << finding.mends.len()) - 1;
    for written in (1..=all).filter(|written| crashes || *written == all) {
        let mut after = units.clone();
        for (index, mend) in finding.mends.iter().enumerate() {
            if written & 1 << index != 0 {
                write(&mut after, mend, 100 + pass);
            }
        }
        repair(after, pass + 1, crashes, visit);
    }
}

fn every_write(mut each: impl FnMut(usize, usize, Vec<Got>)) {
    for first in 0..DATA {
        for last in first..DATA {
            let targets: Vec<usize> = (first..=last).chain(DATA..UNITS).collect();
            for code in 0..3u32.pow(targets.len() as u32) {
                let mut got = vec![Got::Old; UNITS];
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

/// No device, each one, and each two.
fn absences() -> impl Iterator<Item = Vec<usize>> {
    let two = (0..UNITS).flat_map(|one| (0..one).map(move |other| vec![other, one]));
    [vec![]].into_iter().chain((0..UNITS).map(|unit| vec![unit])).chain(two)
}

#[test]
fn after_any_cut_write_every_block_is_old_or_new_or_reported_lost() {
    let (mut ends, mut losses) = (0, [[0; 3]; 3]);
    every_write(|first, last, got| {
        for absent in absences() {
            for crashes in [false, true] {
                let mut units = cut_short(first, last, &got);
                absent.iter().for_each(|unit| units[*unit] = Seen::Absent);
                let before = units.clone();
                let is_there = |unit: usize| !absent.contains(&unit);
                let torn = (0..UNITS).filter(|u| is_there(*u) && got[*u] == Got::Torn).count();
                repair(units, 0, crashes, &mut |units| {
                    ends += 1;
                    let what = format!("{before:?}\n{units:?}");
                    let mut lost = false;
                    for (unit, read) in contents(units).into_iter().enumerate() {
                        let written = (first..=last).contains(&unit);
                        match read {
                            // A block that somebody may have read does not become older.
                            Some(data) if is_there(unit) && got[unit] == Got::New => {
                                assert_eq!(data, new(unit), "{what}");
                            }
                            Some(data) => {
                                let fits = data == old(unit) || written && data == new(unit);
                                assert!(fits, "unit {unit}: {data:?}, {what}");
                            }
                            None => {
                                assert!(!is_there(unit) || got[unit] == Got::Torn, "{what}");
                                lost = true;
                            }
                        }
                    }
                    if !crashes && lost {
                        losses[absent.len()][torn.min(2)] += 1;
                    }
                    // One failure beside the write costs nothing if the write is of one block.
                    let is_single = first == last && !crashes;
                    let few = absent.len() + torn <= 1;
                    assert!(!(lost && absent.is_empty() && torn == 0), "{what}");
                    assert!(!(lost && is_single && few), "{what}");
                    if absent.is_empty() {
                        let blocks = units.iter().map(|seen| match seen {
                            Seen::There { header, data }
                                if !header.lost || units[..DATA].contains(seen) =>
                            {
                                Some(data.clone())
                            }
                            other => panic!("{other:?}"),
                        });
                        assert!(code::fits(&layout(), &blocks.collect::<Vec<_>>()), "{what}");
                    }
                });
            }
        }
    });
    assert!(ends > 1000);
    println!("{ends} ends; losses by missing and torn: {losses:?}");
}

/// Stripes of anything: records of any writes, torn and missing blocks, doubts and traces. Repairs end, and leave nothing that does
/// not fit. Nobody who reads is told anything that a parity contradicts.
#[test]
fn every_repair_ends_and_leaves_parities_that_fit() {
    let (mut passes, mut undecided) = (0, 0);
    for seed in 0..6000 {
        let random = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let layout = Layout { unit: 1 + seed as u32 % 4, ..layout() };
        let records: Vec<Header> = (0..6).map(|_| random_record(random, &layout, STRIPE)).collect();
        let absent: Vec<usize> =
            (0..random.random_range(0..3)).map(|_| random.random_range(0..UNITS)).collect();
        let mut stripe: Vec<(Column<'_>, Vec<Seen>)> = (0..layout.unit)
            .map(|offset| {
                let mut units: Vec<Seen> =
                    (0..UNITS).map(|_| random_unit(random, &records)).collect();
                absent.iter().for_each(|unit| units[*unit] = Seen::Absent);
                (Column::at(&layout, STRIPE, offset), units)
            })
            .collect();
        let traces: Vec<Trace> = (0..random.random_range(0..2))
            .map(|_| Trace::Written(random_record(random, &layout, STRIPE)))
            .collect();
        let doubts: Vec<Vec<usize>> = stripe
            .iter()
            .map(|_| (0..UNITS).filter(|_| random.random_bool(0.05)).collect())
            .collect();
        let rule = if seed % 3 == 0 { Rule::Leave } else { Rule::FitParity };
        for pass in 0.. {
            assert!(pass < u64::from(layout.unit) * 8 + 32, "seed {seed} does not end");
            let findings = examine(&stripe, &doubts, &traces, rule);
            let mends = findings.iter().map(|finding| finding.mends.len()).sum::<usize>();
            passes += 1;
            if mends == 0 {
                undecided += findings.iter().filter(|finding| finding.undecided).count();
                assert!(
                    rule == Rule::Leave || findings.iter().all(|f| !f.undecided),
                    "seed {seed}"
                );
                break;
            }
            for ((_, units), finding) in stripe.iter_mut().zip(&findings) {
                finding.mends.iter().for_each(|mend| write(units, mend, 1000 + pass));
            }
        }
        for (column, units) in stripe.iter().filter(|_| rule != Rule::Leave) {
            let is_there = |unit: usize| matches!(units[unit], Seen::There { .. });
            let blocks = units.iter().enumerate().map(|(unit, seen)| match seen {
                Seen::There { header, data } if unit < DATA || !header.lost => Some(data.clone()),
                _ => None,
            });
            let mut blocks: code::Blocks = blocks.collect();
            if code::fill(&layout, &mut blocks) {
                assert!(code::fits(&layout, &blocks), "seed {seed}: {column:?} {units:?}");
            }
            let unreadable = units.contains(&Seen::Unreadable);
            assert!(!absent.is_empty() || unreadable || (0..UNITS).all(is_there), "seed {seed}");
            // Nobody would look for a torn block: devices count only blocks that they cannot read.
            assert!(!units.contains(&Seen::Torn), "seed {seed}: {units:?}");
        }
    }
    assert!(passes > 12_000 && undecided > 500, "{passes} {undecided}");
}

/// Nothing yields the missing block, as three are gone. Its rebuild leaves a column that bears the next two failures.
#[test]
fn parities_beside_a_missing_block_that_nothing_yields_are_good_after_its_rebuild() {
    let column_of = layout();
    let column = Column::at(&column_of, STRIPE, 0);
    for bad in [Seen::Torn, Seen::Unreadable] {
        for missing in 0..DATA {
            for others in [vec![DATA, DATA + 1], vec![(missing + 1) % DATA, DATA]] {
                let mut units = cut_short(0, 0, &[Got::Old; UNITS]);
                units[missing] = Seen::Absent;
                others.iter().for_each(|unit| units[*unit] = bad.clone());
                repair(units, 0, true, &mut |units| {
                    let mut units = units.to_vec();
                    assert!(
                        units.iter().all(|seen| matches!(seen, Seen::There { .. } | Seen::Absent))
                    );
                    let onto = Units::default().with(missing);
                    let mends = column.rebuild_double(&units, onto, &[]);
                    assert!(mends.iter().any(|mend| mend.unit == missing && mend.lost));
                    mends.iter().for_each(|mend| write(&mut units, mend, 200));
                    let finding = alone(&units, &[], Rule::Leave);
                    assert!(!finding.mismatch && finding.mends.is_empty(), "{finding:?} {units:?}");
                });
            }
        }
    }
}

/// All devices may have lost what they had cached, so that no parity is above suspicion. They fit each other all the same: the block
/// that they name as lost stays lost while its device is missing.
#[test]
fn doubtful_parities_still_name_a_missing_lost_block() {
    let (layout, missing) = (layout(), 1);
    let column = Column::at(&layout, STRIPE, 0);
    let is_lost = |unit: usize| unit <= missing;
    let blocks = whole(|unit| if is_lost(unit) { vec![0; 4].into() } else { old(unit) });
    let names: Units = (0..=missing).collect();
    for rule in [Rule::Leave, Rule::CutShort, Rule::FitParity] {
        let block = |(unit, data): (usize, &Bytes)| {
            let lost_data = if unit < DATA { Units::default() } else { names };
            let record = Header::of_repair(stamp(10 + unit as u64), stamp(9));
            let header = Header { lost: is_lost(unit), lost_data, ..record };
            Seen::There { header, data: data.clone() }
        };
        let mut units: Vec<Seen> = blocks.iter().enumerate().map(block).collect();
        units[missing] = Seen::Absent;
        let doubts: Vec<usize> = (0..UNITS).filter(|unit| *unit != missing).collect();
        for pass in 0.. {
            assert!(pass < 14, "no end: {units:?}");
            let columns = [(column, units.clone())];
            let finding = examine(&columns, std::slice::from_ref(&doubts), &[], rule).remove(0);
            assert!(!finding.undecided, "{rule:?}");
            finding.mends.iter().for_each(|mend| write(&mut units, mend, 20 + pass));
            if finding.mends.is_empty() {
                break;
            }
        }
        assert_eq!(contents(&units), [None, None, Some(old(2))], "{rule:?}");
    }
}
