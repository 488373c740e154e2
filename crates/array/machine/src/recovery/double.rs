//! One column of a stripe with two parities (docs/design/array.md 3.10). Its records accuse blocks as those of one parity do
//! ([`super::column`]). The second parity gives a further equation. It yields a second unknown block, or tells if a column fits
//! beside one that is unknown.
//!
//! *Unknown* are blocks that are absent, torn or unreadable, lost parity, and blocks that are accused or doubtful. If they are no
//! more than two, the others yield them, and repairs go towards the newer side. Otherwise nothing is made of anything: data
//! blocks stay as they are, holes in data are lost, and parities are made to fit.
//!
//! *Crashes.* A pass may be cut short after any block. So a block is written while the records that accuse the other unknown
//! blocks stay: the oldest one first, and holes with it, which have no record. Parities that are to fit the data are both marked as
//! lost before one of them is good again. A good one beside one of another time would yield what nobody has written.

use bytes::Bytes;

use super::column::{Accused, Column, Finding, Mend, Rule, Seen, Trace};
use super::records::Headers;
use crate::code;
use crate::plan::Unit;
use crate::{Header, Stamp, Units};

/// Writes that records and traces tell of.
pub(super) struct Told<'a> {
    headers: &'a Headers<'a>,
    records: Vec<&'a Header>,
    traces: &'a [Trace],
}

impl<'a> Told<'a> {
    pub(super) fn new(headers: &'a Headers<'a>, traces: &'a [Trace]) -> Told<'a> {
        let written = traces.iter().filter_map(|trace| match trace {
            Trace::Written(record) => Some(record),
            Trace::Awaited { .. } => None,
        });
        let records = headers.distinct(headers.all().chain(written));
        Told { headers, records, traces }
    }

    /// The writes of a column: the stamp of each, and the units that it names there. `at` counts from the first column.
    pub(super) fn of(&self, at: usize, column: &Column<'_>) -> Vec<(Stamp, Units)> {
        let written = self.records.iter();
        let written = written.map(|record| (record.stamp, self.headers.named_at(record, at)));
        // A parity may have such a write, and none of its records tells.
        let awaited = self.traces.iter().filter_map(|trace| match trace {
            Trace::Awaited { unit, columns, stamp } if columns.contains(&column.offset) => {
                Some((*stamp, column.parities().chain([*unit]).collect()))
            }
            _ => None,
        });
        written.chain(awaited).filter(|(_, units): &(Stamp, Units)| units.count() > 1).collect()
    }
}

/// The blocks of a column as the known ones tell.
struct Solution {
    /// Of every unit.
    blocks: code::Blocks,
    /// Units whose blocks were not used.
    unknown: Units,
    /// Data units whose blocks are lost.
    lost: Units,
    /// These of the wrong blocks have to be written before the others, and in one pass.
    first: Units,
}

/// Returns true if no write has come to some blocks of a column and not to others that it names.
fn is_of_one_time(units: &[Seen], but: Units, told: &[(Stamp, Units)]) -> bool {
    told.iter().all(|(stamp, named)| {
        let blocks = (0..units.len()).filter(|unit| named.has(*unit) && !but.has(*unit));
        let mut have = blocks.filter_map(|unit| Some(units[unit].header()?.stamp >= *stamp));
        let first = have.next();
        have.all(|has| Some(has) == first)
    })
}

impl Column<'_> {
    fn parities(&self) -> std::ops::Range<usize> {
        usize::from(self.layout.data)..usize::from(self.layout.group_size())
    }

    /// The data units whose blocks are lost. The parities speak that are not suspicious.
    fn lost_of_double(&self, units: &[Seen], suspicious: Units) -> Units {
        self.lost_by(units, |unit| self.is_named(units, suspicious, unit))
    }

    /// Returns true if a parity that is not suspicious says that a data unit's block is lost.
    fn is_named(&self, units: &[Seen], suspicious: Units, unit: usize) -> bool {
        let mut parities = self.parities().filter(|parity| !suspicious.has(*parity));
        parities
            .any(|parity| units[parity].header().is_some_and(|header| header.lost_data.has(unit)))
    }

    /// As `lost`, with what all parities name. Suspicious ones are believed if everything fits what they say. For a solution that is
    /// made of them would have zeros in the place of such a block.
    fn lost_if_it_fits(&self, units: &[Seen], lost: Units) -> Units {
        let parities = self.parities().filter_map(|unit| units[unit].header());
        let parities: Vec<&Header> = parities.filter(|header| !header.lost).collect();
        let all_name = |unit: usize| {
            !parities.is_empty() && parities.iter().all(|parity| parity.lost_data.has(unit))
        };
        let named = self.lost_by(units, |unit| lost.has(unit) || all_name(unit));
        let fits =
            || self.solve(units, self.holes(units, named), named, Units::default()).is_some();
        if named != lost && fits() { named } else { lost }
    }

    /// The blocks that are not known, whatever records say.
    fn holes(&self, units: &[Seen], lost: Units) -> Units {
        let is_hole = |unit: &usize| match &units[*unit] {
            Seen::There { header, .. } => header.lost && self.parities().contains(unit),
            _ => !lost.has(*unit),
        };
        (0..units.len()).filter(is_hole).collect()
    }

    /// The blocks of all units by those that are not `unknown`; `None` if these are too few, or do not fit each other. With two
    /// unknown ones, nothing is left to compare. `gone`: data units that are lost although something is in their place.
    fn solve(&self, units: &[Seen], unknown: Units, lost: Units, gone: Units) -> Option<Solution> {
        let known = |unit: usize| match &units[unit] {
            _ if unknown.has(unit) => None,
            _ if gone.has(unit) => Some(self.zeros()),
            Seen::There { data, .. } => Some(data.clone()),
            _ => lost.has(unit).then(|| self.zeros()),
        };
        let mut blocks: code::Blocks = (0..units.len()).map(known).collect();
        let is_lost = |unit: &usize| lost.has(*unit) && !unknown.has(*unit) || gone.has(*unit);
        let lost = (0..units.len()).filter(is_lost).collect();
        let solved = code::fill(self.layout, &mut blocks) && code::fits(self.layout, &blocks);
        solved.then_some(Solution { blocks, unknown, lost, first: Units::default() })
    }

    /// As [`Column::solve`], beside one hole in data, if what accuses others is one block alone. That block is of a write which has
    /// not come further. The others are of the time before, and yield the hole. A data block may have been read since, so it stays,
    /// and parities are made to fit. A parity is made of the others.
    fn solve_by_former(
        &self,
        units: &[Seen],
        holes: Units,
        lost: Units,
        told: &[(Stamp, Units)],
    ) -> Option<Solution> {
        let data = 0..self.parities().start;
        if holes.count() != 1 || !data.clone().any(|unit| holes.has(unit)) {
            return None;
        }
        let is_there = |unit: &usize| matches!(units[*unit], Seen::There { .. });
        let ahead = (0..units.len()).filter(|unit| is_there(unit) && !holes.has(*unit));
        let mut ahead = ahead.filter(|unit| is_of_one_time(units, holes.with(*unit), told));
        let ahead = ahead.next()?;
        let mut solution = self.solve(units, holes.with(ahead), lost, Units::default())?;
        // The hole comes last. Written anew, it would look as if it had the write, too.
        solution.first = Units::default().with(ahead);
        if let (Seen::There { header, data: stays }, true) = (&units[ahead], data.contains(&ahead))
        {
            solution.blocks[ahead] = Some(stays.clone());
            self.parities().for_each(|parity| solution.blocks[parity] = None);
            code::fill(self.layout, &mut solution.blocks);
            solution.first = self.parities().collect();
            if header.lost {
                solution.lost = solution.lost.with(ahead);
            }
        }
        Some(solution)
    }

    /// One pass over a column of which two blocks at most are absent.
    pub(super) fn examine_double(
        &self,
        units: &[Seen],
        accused: &Accused,
        doubtful: &[usize],
        rule: Rule,
        told: &dyn Fn() -> Vec<(Stamp, Units)>,
    ) -> Finding {
        let suspicious: Units = accused.units().chain(doubtful.iter().copied()).collect();
        let lost = self.lost_if_it_fits(units, self.lost_of_double(units, suspicious));
        let holes = self.holes(units, lost);
        let absent = units.iter().filter(|seen| **seen == Seen::Absent).count();
        // The array could not go on without the device of such a block, which may not be written either (docs/design/array.md 3.7).
        let stays = |unit: usize| {
            units[unit] == Seen::Absent
                || units[unit] == Seen::Unreadable && absent >= self.parities().len()
        };
        let is_bad = |seen: &Seen| matches!(seen, Seen::Torn | Seen::Unreadable);
        let mut finding = Finding {
            mismatch: (0..units.len()).any(|unit| is_bad(&units[unit]) && holes.has(unit)),
            lost: lost.count(),
            ..Finding::default()
        };
        let unmarked = |unit: &usize| lost.has(*unit) && !stays(*unit) && !units[*unit].lost();
        finding.mends = (0..units.len()).filter(unmarked).map(|unit| self.lose(unit)).collect();
        if !finding.mends.is_empty() {
            finding.mismatch = true;
            return finding;
        }
        // A suspicious block that a good parity names as lost is known: it counts as zeros.
        let gone: Units = (0..self.parities().start)
            .filter(|unit| suspicious.has(*unit) && self.is_named(units, suspicious, *unit))
            .collect();
        let unknown: Units = (0..units.len())
            .filter(|unit| holes.has(*unit) || suspicious.has(*unit) && !gone.has(*unit))
            .collect();
        let settles = rule >= Rule::FitParity
            || rule == Rule::CutShort && accused.any()
            || !doubtful.is_empty();
        // With two holes there is nothing to compare. Then records tell if the others are of one time.
        let is_trusted = || {
            holes.count() < 2
                || suspicious.is_empty()
                || doubtful.is_empty() && is_of_one_time(units, holes, &told())
        };
        let solution = self
            .solve(units, holes, lost, Units::default())
            .filter(|_| is_trusted())
            .or_else(|| self.solve(units, unknown, lost, gone))
            .or_else(|| {
                let may = settles && doubtful.is_empty() && gone.is_empty();
                may.then(|| self.solve_by_former(units, holes, lost, &told()))?
            });
        let names = match &solution {
            Some(solution) => {
                let wrong = self.wrong(units, solution);
                let wrong = wrong.into_iter().filter(|unit| !stays(*unit));
                finding.mends = self.next(units, solution, wrong.collect(), suspicious);
                solution.lost
            }
            None => {
                let unreadable = units.contains(&Seen::Unreadable);
                let too_many = holes.count() > 2 && !accused.any() && !unreadable;
                finding.undecided = !settles && !too_many;
                if !finding.undecided {
                    let behind = accused.units().chain(doubtful.iter().copied());
                    let content = self.oldest_of(units, behind);
                    finding.mends = self.give_up(units, holes, lost, content, stays);
                }
                if self.yields_nothing(units) {
                    let is_missing =
                        |unit: &usize| holes.has(*unit) && units[*unit] == Seen::Absent;
                    let missing = (0..self.parities().start).filter(is_missing);
                    finding.lost += missing.count() as u32;
                }
                lost
            }
        };
        finding.mismatch |= !finding.mends.is_empty() || finding.undecided;
        if finding.mends.is_empty() && !finding.undecided {
            finding.mends = self.renamed(units, names);
        }
        finding
    }

    /// Units whose blocks are not as the others say.
    fn wrong(&self, units: &[Seen], solution: &Solution) -> Vec<usize> {
        let is_right = |unit: &usize| match &units[*unit] {
            Seen::There { header, data } => {
                let is_lost = solution.lost.has(*unit);
                solution.blocks[*unit].as_ref() == Some(data) && header.lost == is_lost
            }
            _ => false,
        };
        (0..units.len()).filter(|unit| !is_right(unit)).collect()
    }

    /// The wrong blocks that may be written in one pass.
    fn next(
        &self,
        units: &[Seen],
        solution: &Solution,
        wrong: Vec<usize>,
        suspicious: Units,
    ) -> Vec<Mend> {
        let stamp = |unit: &usize| units[*unit].header().map(|header| (header.stamp, *unit));
        let oldest = wrong.iter().filter_map(stamp).min();
        let is_any_first = wrong.iter().any(|unit| solution.first.has(*unit));
        let now = |unit: &usize| match is_any_first {
            true => solution.first.has(*unit),
            false => units[*unit].header().is_none() || oldest == stamp(unit),
        };
        let mend = |unit: usize| self.solved(units, unit, solution, suspicious);
        wrong.into_iter().filter(now).map(mend).collect()
    }

    /// Returns true if no parity can stand for a missing block.
    fn yields_nothing(&self, units: &[Seen]) -> bool {
        self.parities().all(|parity| units[parity].header().is_none_or(|header| header.lost))
    }

    /// A unit's block as the others say.
    fn solved(&self, units: &[Seen], unit: usize, solution: &Solution, suspicious: Units) -> Mend {
        let block = solution.blocks[unit].clone().unwrap_or_else(|| self.zeros());
        if solution.lost.has(unit) {
            return self.lose(unit);
        }
        let is_parity = self.parities().contains(&unit);
        let lost_data = if is_parity { solution.lost } else { Units::default() };
        // It has the writes that the parities have, and perhaps not all: these may have lost their newest ones with a cache.
        let used = self.parities().filter(|parity| !solution.unknown.has(*parity));
        let content = used.filter_map(|parity| units[parity].header()).map(Header::content).min();
        let behind = (0..units.len()).filter(|unit| suspicious.has(*unit));
        let content = content.or_else(|| self.oldest_of(units, behind));
        Mend { lost_data, content, ..Mend::new(unit, block, false) }
    }

    /// Parities that name other lost blocks than there are: their records are all that changes.
    fn renamed(&self, units: &[Seen], lost: Units) -> Vec<Mend> {
        let other_names = |unit: usize| match &units[unit] {
            Seen::There { header, data } if header.lost_data != lost => {
                let kept = Header { lost: false, lost_data: Units::default(), ..*header };
                let mend = Mend::new(unit, data.clone(), header.lost);
                Some(Mend { lost_data: lost, kept: Some(kept), ..mend })
            }
            _ => None,
        };
        self.parities().filter_map(other_names).collect()
    }

    /// Parity that fits the data that are there.
    pub(super) fn fitting(&self, units: &[Seen], unit: usize, lost: bool, names: Units) -> Mend {
        let known = units.iter().map(|seen| match seen {
            Seen::There { data, .. } => Some(data.clone()),
            _ => None,
        });
        let known: code::Blocks = known.collect();
        let of = Unit::all(self.layout).nth(unit).unwrap_or(Unit::Parity);
        let data = Bytes::from(code::parity(self.layout, of, &known));
        Mend { lost_data: names, ..Mend::new(unit, data, lost) }
    }

    /// The next step where the others do not yield the unknown blocks.
    fn give_up(
        &self,
        units: &[Seen],
        holes: Units,
        lost: Units,
        content: Option<Stamp>,
        stays: impl Fn(usize) -> bool,
    ) -> Vec<Mend> {
        let data = 0..self.parities().start;
        let has_holes = data.clone().any(|unit| holes.has(unit));
        let fitting = |unit: usize, is_lost: bool| Mend {
            content,
            ..self.fitting(units, unit, is_lost, lost)
        };
        // First, no parity yields anything any more: once a torn block has been written anew, nothing else would tell. A medium may
        // return its block later. A torn one would stay so beside a missing block, and after its rebuild.
        let misleads = |unit: &usize| match &units[*unit] {
            Seen::There { header, data } => {
                !header.lost && (has_holes || fitting(*unit, false).data != *data)
            }
            Seen::Torn | Seen::Unreadable => has_holes && !stays(*unit),
            Seen::Absent => false,
        };
        let misleading: Vec<usize> = self.parities().filter(misleads).collect();
        if !misleading.is_empty() {
            return misleading.into_iter().map(|unit| fitting(unit, true)).collect();
        }
        if has_holes {
            let gone = data.filter(|unit| holes.has(*unit) && !stays(*unit));
            return gone.map(|unit| self.lose(unit)).collect();
        }
        let bad = self.parities().filter(|unit| holes.has(*unit) && !stays(*unit));
        bad.map(|unit| fitting(unit, false)).collect()
    }

    /// The blocks of absent units that are written anew, when [`Column::examine_double`] has nothing left to mend. The parities beside
    /// them come with them: where they yield nothing because of such a block alone, they are good again, and name it. All have a mend
    /// here, so that the blocks of all columns can be written at once.
    pub fn rebuild_double(&self, units: &[Seen], onto: Units, doubtful: &[usize]) -> Vec<Mend> {
        let lost = self.lost_of_double(units, Units::default());
        let holes = self.holes(units, lost);
        let solution = self.solve(units, holes, lost, Units::default());
        let again = |unit: usize| match &units[unit] {
            Seen::There { header, data } => {
                let Header { lost, lost_data, .. } = *header;
                let mend = Mend { lost_data, ..Mend::new(unit, data.clone(), lost) };
                Some(mend.known_by(header))
            }
            _ => None,
        };
        if let Some(solution) = solution {
            let beside = self.parities().filter(|unit| !onto.has(*unit)).filter_map(again);
            let rebuilt = (0..units.len()).filter(|unit| onto.has(*unit));
            let rebuilt = rebuilt.map(|unit| match lost.has(unit) {
                true => self.lose(unit),
                false => self.solved(units, unit, &solution, Units::default()),
            });
            return rebuilt.chain(beside).collect();
        }
        // Blocks that are written now are lost, and known to be: they count as zeros.
        let data = 0..self.parities().start;
        let names: Units = data
            .clone()
            .filter(|unit| lost.has(*unit) || holes.has(*unit) && onto.has(*unit))
            .collect();
        let remain = data.clone().any(|unit| holes.has(unit) && !onto.has(unit));
        let fitting = |unit: usize| self.fitting(units, unit, remain, names);
        let parity = |unit: usize| match &units[unit] {
            _ if onto.has(unit) => Some(fitting(unit)),
            // Doubtful blocks wait for a repair.
            Seen::There { header, .. } if header.lost && doubtful.is_empty() => Some(fitting(unit)),
            _ => again(unit),
        };
        let rebuilt = data.filter(|unit| onto.has(*unit)).map(|unit| self.lose(unit));
        rebuilt.chain(self.parities().filter_map(parity)).collect()
    }
}

#[cfg(test)]
mod tests;
