//! Every way to interrupt one write of one column with two parities, with up to two missing devices beside it.

use super::*;
use crate::recovery::column::examine;
use crate::{Layout, Redundancy};

const DATA: usize = 3;
const UNITS: usize = DATA + 2;
const STRIPE: u64 = 2;

fn layout() -> Layout {
    let (redundancy, data) = (Redundancy::Raid6, DATA as u16);
    Layout { redundancy, data, groups: 1, unit: 1, block_size: 4, stripes: 8 }
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

/// How far each unit's write got.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Got {
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
    let column = Column { layout: &layout, stripe: STRIPE, offset: 0 };
    examine(&[(column, units.to_vec())], &[vec![]], traces, rule).remove(0)
}

/// The content that a reader gets of each data unit; `None`: an error.
fn contents(units: &[Seen]) -> Vec<Option<Bytes>> {
    let layout = layout();
    let column = Column { layout: &layout, stripe: STRIPE, offset: 0 };
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
                    assert!(!lost || !(absent.is_empty() && torn == 0), "{what}");
                    assert!(!lost || !(is_single && few), "{what}");
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
