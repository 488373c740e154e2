//! The same decisions by comparing every block with every record, which is the definition; and that this is not how they are
//! made.

use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;
use crate::recovery::tests::{random_record, random_unit};

/// One pass over columns of a stripe, in each of which at most one unit is absent. Units are the data units, then parity.
fn examine_slowly(
    columns: &[(Column<'_>, Vec<Seen>)],
    doubts: &[Vec<usize>],
    traces: &[Trace],
    rule: Rule,
) -> Vec<Finding> {
    let records = || columns.iter().flat_map(|(_, units)| units).filter_map(Seen::header);
    let missed = |column: &Column<'_>, units: &[Seen], unit: usize| {
        traces.iter().any(|trace| column.has_missed(units, unit, trace))
    };
    let one = |((column, units), doubtful): (&(Column<'_>, Vec<Seen>), &Vec<usize>)| {
        let accused = Accused {
            older: (0..units.len())
                .filter(|&unit| column.is_older_slowly(units, unit, records().copied()))
                .collect(),
            missed: (0..units.len()).filter(|&unit| missed(column, units, unit)).collect(),
            awaited: traces.iter().any(|trace| matches!(trace, Trace::Awaited { .. })),
        };
        column.examine(units, &accused, doubtful, rule)
    };
    let mut findings: Vec<Finding> = columns.iter().zip(doubts).map(one).collect();
    if findings.iter().any(|finding| !finding.mends.is_empty()) {
        keep_evidence_slowly(columns, &mut findings);
    } else if findings.iter().all(|finding| !finding.undecided) {
        // All is as it should be; now the records may say so. Not before: they are what tells that something is missing.
        for (((here, seen), doubtful), finding) in columns.iter().zip(doubts).zip(&mut findings) {
            for (unit, block) in seen.iter().enumerate() {
                let accuses =
                    |header| columns.iter().any(|(column, units)| column.is_accused(units, header));
                let Seen::There { header, data } = block else { continue };
                let missed =
                    missed(here, seen, unit) || may_have_missed(here, seen, unit, doubtful);
                if accuses(header) || missed {
                    let Header { lost, lost_data, .. } = *header;
                    let mend = Mend { lost_data, ..Mend::new(unit, data.clone(), lost) };
                    finding.mends.push(match missed {
                        true => mend.known_by(header),
                        false => Mend { kept: Some(mended(header.stamp)), ..mend },
                    });
                }
            }
        }
    }
    findings
}

/// The first block of some columns that is older than a record of theirs says: its column's offset, and its unit. Blocks that
/// were not read are absent.
fn older_of_any_slowly(columns: &[(Column<'_>, Vec<Seen>)]) -> Option<(u32, usize)> {
    // Most columns were written by few operations.
    let mut records: Vec<Header> = Vec::new();
    for header in columns.iter().flat_map(|(_, units)| units).filter_map(Seen::header) {
        if records.last() != Some(header)
            && header.first <= header.last
            && !records.contains(header)
        {
            records.push(*header);
        }
    }
    columns.iter().find_map(|(column, units)| {
        let is_older =
            |unit: &usize| records.iter().any(|record| column.is_behind(units, *unit, record));
        (0..units.len()).find(is_older).map(|unit| (column.offset, unit))
    })
}

/// Leaves out blocks that would destroy the only record by which another column can be repaired. A crash in the middle of the
/// pass could leave that column as it is, without any record.
fn keep_evidence_slowly(columns: &[(Column<'_>, Vec<Seen>)], findings: &mut [Finding]) {
    let record = |at: usize, unit: usize| columns[at].1[unit].header();
    let accuses = |at: usize, header: &Header| columns[at].0.is_accused(&columns[at].1, header);
    let is_mended = |findings: &[Finding], at: usize, unit: usize| {
        findings[at].mends.iter().any(|mend| mend.unit == unit)
    };
    let stays = |findings: &[Finding], accused: usize| {
        columns.iter().enumerate().any(|(at, (_, units))| {
            (0..units.len()).any(|unit| {
                !is_mended(findings, at, unit)
                    && record(at, unit).is_some_and(|header| accuses(accused, header))
            })
        })
    };
    let needed = |findings: &[Finding], at: usize, unit: usize| {
        (0..columns.len()).any(|accused| {
            accused != at
                && !findings[accused].mends.is_empty()
                && record(at, unit).is_some_and(|header| accuses(accused, header))
                && !stays(findings, accused)
        })
    };
    let later: Vec<(usize, usize)> = (0..columns.len())
        .flat_map(|at| findings[at].mends.iter().map(move |mend| (at, mend.unit)))
        .filter(|&(at, unit)| needed(findings, at, unit))
        .collect();
    // Two that need each other are written together.
    if later.len() < findings.iter().map(|finding| finding.mends.len()).sum() {
        for (at, unit) in later {
            findings[at].mends.retain(|mend| mend.unit != unit);
        }
    }
}

impl Column<'_> {
    fn names_data(&self, header: &Header, unit: usize) -> bool {
        let block = self.layout.logical(self.stripe, unit as u16) + u64::from(self.offset);
        (header.first..=header.last).contains(&block)
    }

    /// Returns true if an operation with this record wrote a unit's block of the column.
    fn names(&self, header: &Header, unit: usize) -> bool {
        let device = if unit == self.parity() {
            self.layout.parity(self.stripe)
        } else {
            self.layout.data(self.stripe, unit as u16)
        };
        if header.skipped.has(device) {
            return false;
        }
        if unit < self.parity() {
            return self.names_data(header, unit);
        }
        (0..self.parity()).any(|unit| self.names_data(header, unit))
    }

    /// Returns true if a record names a block of this column that is older: its operation was cut short.
    fn is_accused(&self, units: &[Seen], record: &Header) -> bool {
        (0..units.len()).any(|unit| self.is_behind(units, unit, record))
    }

    /// Returns true if a record names a unit's block of this column, and the block is older.
    fn is_behind(&self, units: &[Seen], unit: usize, record: &Header) -> bool {
        units[unit].header().is_some_and(|h| h.stamp < record.stamp) && self.names(record, unit)
    }

    fn is_older_slowly(
        &self,
        units: &[Seen],
        unit: usize,
        records: impl Iterator<Item = Header>,
    ) -> bool {
        let beside = |other: &Seen| match (&units[unit], other) {
            (Seen::There { header, data }, Seen::There { header: newer, data: theirs }) => {
                header.stamp < newer.stamp && data != theirs
            }
            _ => false,
        };
        let in_mirror = self.layout.redundancy == Redundancy::Mirror && units.iter().any(beside);
        let mut records = records;
        in_mirror || records.any(|record| self.is_behind(units, unit, &record))
    }

    /// Returns true if a unit's block has missed a write that others of the column may have.
    fn has_missed(&self, units: &[Seen], unit: usize, trace: &Trace) -> bool {
        match trace {
            Trace::Written(record) => self.is_behind(units, unit, record),
            // Others that are all older have not got it, and nothing has come over it there.
            Trace::Awaited { unit: waiting, columns, stamp } => {
                let newer = |seen: &Seen| seen.header().is_some_and(|h| h.stamp > *stamp);
                *waiting == unit
                    && columns.contains(&self.offset)
                    && units[unit].header().is_some_and(|h| h.stamp < *stamp)
                    && units.iter().any(newer)
            }
        }
    }
}

fn layout(mirror: bool, unit: u32) -> Layout {
    let (redundancy, data) = if mirror { (Redundancy::Mirror, 1) } else { (Redundancy::Raid5, 3) };
    Layout {
        redundancy,
        data,
        groups: 1,
        unit,
        block_size: 4,
        stripes: 8,
        added: Default::default(),
    }
}

const STRIPE: u64 = 3;

fn stripe<'a>(
    random: &mut Xoshiro256PlusPlus,
    layout: &'a Layout,
    records: &[Header],
) -> Vec<(Column<'a>, Vec<Seen>)> {
    let units = usize::from(layout.data) + 1;
    let absent = random.random_range(0..2 * units);
    let column = |offset| {
        let mut all: Vec<Seen> = (0..units).map(|_| random_unit(random, records)).collect();
        all.get_mut(absent).into_iter().for_each(|unit| *unit = Seen::Absent);
        (Column::at(layout, STRIPE, offset), all)
    };
    (0..layout.unit).map(column).collect()
}

fn trace(random: &mut Xoshiro256PlusPlus, layout: &Layout) -> Trace {
    if random.random_bool(0.5) {
        return Trace::Written(random_record(random, layout, STRIPE));
    }
    let start = random.random_range(0..layout.unit);
    Trace::Awaited {
        unit: random.random_range(0..usize::from(layout.data)),
        columns: start..random.random_range(start..=layout.unit),
        stamp: Stamp { time: random.random_range(0..6), host: 1 },
    }
}

/// Mostly none.
fn doubtful_units(random: &mut Xoshiro256PlusPlus, layout: &Layout) -> Vec<usize> {
    (0..=usize::from(layout.data)).filter(|_| random.random_bool(0.1)).collect()
}

#[test]
fn decisions_are_those_of_the_definition() {
    let mut mended = [0; 2];
    for seed in 0..4000 {
        let random = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let layout = layout(seed % 4 == 0, 1 + seed as u32 % 7);
        let few = if seed % 3 == 0 { 2 } else { 8 };
        let records: Vec<Header> =
            (0..few).map(|_| random_record(random, &layout, STRIPE)).collect();
        let columns = stripe(random, &layout, &records);
        let traces: Vec<Trace> =
            (0..random.random_range(0..3)).map(|_| trace(random, &layout)).collect();
        let doubts: Vec<Vec<usize>> =
            columns.iter().map(|_| doubtful_units(random, &layout)).collect();
        for rule in [Rule::Leave, Rule::CutShort, Rule::FitParity] {
            let slow = examine_slowly(&columns, &doubts, &traces, rule);
            assert_eq!(examine(&columns, &doubts, &traces, rule), slow, "seed {seed}, {rule:?}");
            let writes = slow.iter().any(|finding| !finding.mends.is_empty());
            mended[usize::from(writes)] += 1;
        }
        let from = seed as usize % columns.len();
        let mut headers =
            Headers::new(&layout, STRIPE, columns[from].0.offset, columns.len() - from);
        for (column, units) in &columns {
            for (unit, seen) in units.iter().enumerate() {
                // Those before the first column are left out.
                seen.header().into_iter().for_each(|h| headers.put(unit, column.offset, h));
            }
        }
        assert_eq!(headers.first_behind(), older_of_any_slowly(&columns[from..]), "seed {seed}");
    }
    assert!(mended.iter().all(|count| *count > 500), "{mended:?}");
}

/// Sixteen thousand blocks in a unit, with a record of its own in each: 600 million comparisons of blocks with records. That is
/// too many for a test, whatever the machine's speed; in one pass over them it is not noticed.
#[test]
fn a_stripe_of_large_units_is_examined_in_one_pass() {
    let layout = layout(false, 16_384);
    let random = &mut Xoshiro256PlusPlus::seed_from_u64(1);
    let mut stamp = 0;
    let mut one = |unit: u64, offset: u32| {
        stamp += 1;
        let block = layout.logical(STRIPE, unit.min(2) as u16) + u64::from(offset);
        let header = Header {
            stamp: Stamp { time: stamp, host: 1 },
            first: block,
            // Each also names the next block, which is older or newer.
            last: block + random.random_range(0..2),
            ..Header::default()
        };
        Seen::There { header, data: vec![0; 4].into() }
    };
    let columns: Vec<_> = (0..layout.unit)
        .map(|offset| {
            let column = Column::at(&layout, STRIPE, offset);
            (column, (0..4).map(|unit| one(unit, offset)).collect::<Vec<_>>())
        })
        .collect();
    super::super::records::STEPS.with(|steps| steps.set(0));
    for rule in [Rule::Leave, Rule::FitParity] {
        let doubts = vec![Vec::new(); columns.len()];
        assert_eq!(examine(&columns, &doubts, &[], rule).len(), 16_384);
    }
    let steps = super::super::records::STEPS.with(|steps| steps.get());
    // Blocks, units and the depth of a tree over a unit.
    assert!((1..2 * 65_536 * 64).contains(&steps), "{steps} steps");
}
