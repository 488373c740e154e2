//! The cross-check of linkage records, and the blocks to write (docs/design/array.md 3.1 and 3.5).
//!
//! A *column* is the blocks at one offset of a stripe's units. Parity fits or does not fit within one column. A repair is
//! a sequence of passes. Each pass is a storage transaction of its own that holds whole columns. It reads them and writes
//! the result of [`examine`]. Another pass follows until nothing is left to write. The blocks of a pass may be written in
//! any order and in part. The next pass, by any host, reaches the same end.
//!
//! All columns of a stripe are examined together. An operation that wrote several columns may have left nothing in one of
//! them except the record in another.
//!
//! **Limits of headers.** A read-modify-write continues from the present parity, and leaves its own record there. Suppose
//! that it follows a write that reached parity and not its data. Only the writer of that data would read it. Then no
//! header shows the missing write any more, and parity yields data that nobody wrote. No other write hides anything. Each
//! reads, or writes anew, all data units of its columns. Each waits for writes under way there, and none reaches parity
//! while a write is under way there. So a repair after a host also needs the host's [`Trace`]s.
//!
//! **Older blocks.** A medium may lose a write that it has acknowledged, or return zeros for a block. The block then has an
//! older record than a record of the stripe says, as after a write that was cut short. If it is the only such block of its
//! column, all other blocks of the column are as new as anybody knows. Their sum is its newest content, and a repair writes
//! that. A cut short write is completed in this way. For parity has an operation's record only if it has the operation's
//! effect. If several blocks are older, or parity does not fit and no record says why, nobody knows which block is right.
//! The [`Rule`] then decides.
//!
//! **Doubtful blocks.** A device that loses its cache in a power loss may return older blocks although it had answered the
//! writes. It names the timestamp up to which its writes are durable. If another block of the column is newer than that, the
//! device's block is doubtful. If it is the only one, and the column does not fit, the others yield its newest content. If there are
//! more, or one is missing, more is lost than redundancy replaces. Then nothing is made of them: each data block stays as it is, old
//! or new, and parity is made to fit. What only they could yield is lost.
//!
//! **Lost blocks.** A lost data block says so itself. Its content is zeros, and parity fits these zeros. If the device of
//! a data block is missing, parity records the loss: a *lost* parity block cannot reconstruct it. Lost parity is repaired
//! as soon as all data blocks can be read.
//!
//! Parity also names the lost data blocks of its column ([`Header::lost_data`]). So the mark of a block outlives its device:
//! the others do not yield it, and a rebuild marks it again. As long as a data block is there, it knows better than parity. A block
//! without any record has lost its own, and knows nothing.

use bytes::Bytes;

use super::double::Told;
use super::records::{Headers, Newest};
use crate::code;
use crate::message::Mark;
use crate::plan::{Columns, Unit};
use crate::{DeviceId, Header, Layout, Redundancy, Skipped, Stamp, Time, Units};

/// A block of a column, as a repair finds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    /// Its device is missing, or does not have it yet.
    Absent,
    /// Its checksum is wrong: its content is gone.
    Torn,
    /// Its medium does not return it. It may do so later.
    Unreadable,
    /// It is there.
    There { header: Header, data: Bytes },
}

impl Seen {
    pub(crate) fn header(&self) -> Option<&Header> {
        match self {
            Seen::There { header, .. } => Some(header),
            _ => None,
        }
    }

    pub(crate) fn lost(&self) -> bool {
        self.header().is_some_and(|header| header.lost)
    }
}

/// What a pass does where headers do not tell which block of a column is right.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum Rule {
    /// Nothing: any block may be the good one.
    #[default]
    Leave,
    /// A device of the stripe has restarted, and no write of hosts is unknown there. What a header accuses was cut short:
    /// parity is made to fit the data. The rest is left.
    CutShort,
    /// A write may have been cut short without a trace, or an operator accepts a loss: parity is made to fit the data.
    FitParity,
    /// As before there was a rule: a block without a record counts as never written, and parity is made to fit it.
    #[cfg(feature = "mutations")]
    ZerosAreData,
}

/// A block that a pass writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mend {
    /// Its unit: data units from 0, then parity.
    pub unit: usize,
    pub data: Bytes,
    pub lost: bool,
    /// Of parity: the lost data units.
    pub lost_data: Units,
    /// Its record, if its content stays as it is: hosts know by the timestamp which write it is of.
    pub kept: Option<Header>,
    /// The newest write whose effect it is known to have, if that is not the repair itself. A record that is kept says it.
    pub content: Option<Stamp>,
    /// Of parity: what its record says of the media of devices ([`Column::vouch`]).
    pub elsewhere: Skipped,
}

impl Mend {
    pub fn new(unit: usize, data: Bytes, lost: bool) -> Mend {
        let (lost_data, elsewhere) = (Units::default(), Skipped::default());
        Mend { unit, data, lost, lost_data, kept: None, content: None, elsewhere }
    }

    /// Its content is that of this record's block, or was made of it.
    pub(super) fn known_by(self, source: &Header) -> Mend {
        Mend { content: Some(source.content()), ..self }
    }

    /// The record that is written with it, but for the mark.
    pub fn header(&self, stamp: Stamp) -> Header {
        match self.kept {
            Some(kept) if !kept.is_of_repair() => kept,
            kept => Header { skipped: self.elsewhere, ..kept.unwrap_or(mended(stamp)) },
        }
    }

    /// The rest of its record, if there is more to say.
    pub fn mark(&self, index: u32) -> Option<Mark> {
        let Mend { lost, lost_data, content, .. } = *self;
        let says_more = lost || !lost_data.is_empty() || content.is_some();
        says_more.then_some(Mark { index, lost, lost_data, content })
    }
}

/// A pass's findings, and the blocks that it has to write.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Finding {
    /// Parity does not fit, or something cannot be read.
    pub mismatch: bool,
    /// Nobody knows which block is right, and nothing is written.
    pub undecided: bool,
    /// Data blocks that are lost, missing ones included.
    pub lost: u32,
    pub mends: Vec<Mend>,
}

/// The devices' memory of a fenced life's writes. It lasts until the blocks that have missed them have been written anew. So it
/// may come again, and it accuses no block twice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Trace {
    /// A device has written this record.
    Written(Header),
    /// A data unit's device still waits for this write, and parity's may have got it and does not remember.
    Awaited {
        unit: usize,
        columns: Columns,
        /// Not newer than what would be written.
        stamp: Stamp,
    },
}

impl Trace {
    pub fn stamp(&self) -> Stamp {
        match self {
            Trace::Written(header) => header.stamp,
            Trace::Awaited { stamp, .. } => *stamp,
        }
    }
}

/// The header of a repair's write that has the effect of all writes before it.
pub(crate) fn mended(stamp: Stamp) -> Header {
    Header::of_repair(stamp, stamp)
}

/// The units of a column whose blocks may have missed writes that their devices answered. `durable_to` has each device's
/// timestamp of durable writes; later ones are beside it. Both blocks of a mirror have all content, so none is doubtful there.
pub(crate) fn doubtful(layout: &Layout, units: &[Seen], durable_to: &[Time]) -> Vec<usize> {
    let newer = |unit: usize, time: Time| {
        let beside = units.iter().enumerate().filter(|(other, _)| *other != unit);
        beside.filter_map(|(_, seen)| seen.header()).any(|header| header.stamp.time > time)
    };
    let is_doubtful =
        |unit: &usize| units[*unit].header().is_some() && newer(*unit, durable_to[*unit]);
    match layout.redundancy {
        Redundancy::Mirror => Vec::new(),
        Redundancy::Raid5 | Redundancy::Raid6 => (0..units.len()).filter(is_doubtful).collect(),
    }
}

/// Returns true if a doubtful data block stays as it is, and another block of its column has a newer write. Older states of blocks may
/// have records that name it, and a medium may return them.
fn may_have_missed(column: &Column<'_>, units: &[Seen], unit: usize, doubtful: &[usize]) -> bool {
    let newer = |stamp| units.iter().filter_map(Seen::header).any(|other| other.content() > stamp);
    unit < column.parity()
        && doubtful.contains(&unit)
        && units[unit].header().is_some_and(|header| newer(header.stamp))
}

/// One pass over adjacent columns of a stripe, in each of which no more units are absent than there are parities. Units are the data
/// units, then parity, then the second parity. `doubts` has the doubtful units of each column.
pub(crate) fn examine(
    columns: &[(Column<'_>, Vec<Seen>)],
    doubts: &[Vec<usize>],
    traces: &[Trace],
    rule: Rule,
) -> Vec<Finding> {
    let Some(headers) = headers_of(columns) else { return Vec::new() };
    let missed = missed(columns, &headers, traces);
    let accused = accused(columns, &headers, &missed, traces, rule);
    let told = Told::new(&headers, traces);
    let one = |(at, ((column, units), accused)): (usize, (&(Column<'_>, Vec<Seen>), _))| {
        let doubtful = &doubts[at];
        match column.layout.parities() {
            1 => column.examine(units, accused, doubtful, rule),
            _ => column.examine_double(units, accused, doubtful, rule, &|| told.of(at, column)),
        }
    };
    let mut findings: Vec<Finding> = columns.iter().zip(&accused).enumerate().map(one).collect();
    if findings.iter().any(|finding| !finding.mends.is_empty()) {
        keep_evidence(columns, &headers, &mut findings);
    } else if findings.iter().all(|finding| !finding.undecided) {
        // All is as it should be; now the records may say so. Not before: they are what tells that something is missing.
        let oldest = headers.oldest(|_| true);
        for (at, ((column, seen), finding)) in columns.iter().zip(&mut findings).enumerate() {
            for (unit, block) in seen.iter().enumerate() {
                let Seen::There { header, data } = block else { continue };
                let missed = missed[at][unit] || may_have_missed(column, seen, unit, &doubts[at]);
                if missed || headers.accuses(&oldest, header, None) {
                    // One that has missed a write has to look newer than that.
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

/// As [`examine`], over columns in which several units are absent. Their content is lost unless one of their devices comes back
/// with its medium. Then parity has to fit. Where it may not, it is marked: it yields nothing any more. A torn block
/// is lost.
pub(crate) fn examine_remains(
    columns: &[(Column<'_>, Vec<Seen>)],
    doubts: &[Vec<usize>],
    traces: &[Trace],
) -> Vec<Finding> {
    let Some(headers) = headers_of(columns) else { return Vec::new() };
    let missed = missed(columns, &headers, traces);
    let accused = accused(columns, &headers, &missed, traces, Rule::FitParity);
    let one = |(((column, units), accused), doubtful): (
        (&(Column<'_>, Vec<Seen>), &Accused),
        &Vec<_>,
    )| { column.examine_remains(units, accused.any() || !doubtful.is_empty()) };
    columns.iter().zip(&accused).zip(doubts).map(one).collect()
}

/// The headers of adjacent columns; none of no columns.
pub(super) fn headers_of<'a>(columns: &'a [(Column<'_>, Vec<Seen>)]) -> Option<Headers<'a>> {
    let (first, _) = columns.first()?;
    let mut headers = Headers::new(first.layout, first.stripe, first.offset, columns.len());
    for (column, units) in columns {
        for (unit, header) in units.iter().enumerate().filter_map(|(u, s)| Some((u, s.header()?))) {
            headers.put(unit, column.offset, header);
        }
    }
    Some(headers)
}

/// By column: the accusations of records.
fn accused(
    columns: &[(Column<'_>, Vec<Seen>)],
    headers: &Headers<'_>,
    missed: &[Vec<bool>],
    traces: &[Trace],
    rule: Rule,
) -> Vec<Accused> {
    let newest = headers.newest(headers.all());
    let awaited = traces.iter().any(|trace| matches!(trace, Trace::Awaited { .. }));
    let one = |(at, (column, units)): (usize, &(Column<'_>, Vec<Seen>))| {
        let is_older = |unit: &usize| column.is_older(units, *unit, (at, &newest), rule);
        Accused {
            older: (0..units.len()).filter(is_older).collect(),
            missed: (0..units.len()).filter(|unit| missed[at][*unit]).collect(),
            awaited,
        }
    };
    columns.iter().enumerate().map(one).collect()
}

/// By column, and unit: the block has missed a write that others of the column may have, as a trace says.
fn missed(
    columns: &[(Column<'_>, Vec<Seen>)],
    headers: &Headers<'_>,
    traces: &[Trace],
) -> Vec<Vec<bool>> {
    let written = traces.iter().filter_map(|trace| match trace {
        Trace::Written(record) => Some(record),
        Trace::Awaited { .. } => None,
    });
    let newest = headers.newest(written);
    let of_column = |(at, (_, units)): (usize, &(Column<'_>, Vec<Seen>))| {
        let unit = |(unit, seen): (usize, &Seen)| newest.is_ahead(at, unit, seen.header());
        units.iter().enumerate().map(unit).collect()
    };
    let mut missed: Vec<Vec<bool>> = columns.iter().enumerate().map(of_column).collect();
    for trace in traces {
        let Trace::Awaited { unit, columns: awaited, stamp } = trace else { continue };
        let inside = |offset: u32| columns.partition_point(|(column, _)| column.offset < offset);
        let range = inside(awaited.start)..inside(awaited.end);
        for ((_, units), missed) in columns[range.clone()].iter().zip(&mut missed[range]) {
            // Others that are all older have not got it, and nothing has come over it there.
            let newer = |seen: &Seen| seen.header().is_some_and(|h| h.stamp > *stamp);
            let waits = units[*unit].header().is_some_and(|h| h.stamp < *stamp);
            missed[*unit] |= waits && units.iter().any(newer);
        }
    }
    missed
}

/// What records say against a column.
pub(super) struct Accused {
    /// Its units whose blocks are older than a record of the stripe says.
    older: Vec<usize>,
    /// Those of which a fenced life's trace says it: parity may have that write, or not.
    missed: Vec<usize>,
    /// Some traces are of writes that devices wait for.
    awaited: bool,
}

impl Accused {
    /// All of these units.
    pub(super) fn units(&self) -> impl Iterator<Item = usize> {
        self.older.iter().chain(&self.missed).copied()
    }

    pub(super) fn any(&self) -> bool {
        !self.missed.is_empty() || !self.older.is_empty()
    }

    /// Returns true if all that is said is that this block has missed writes which others of the column have got.
    fn is_only(&self, unit: usize) -> bool {
        let said = self.older.iter().chain(&self.missed);
        !self.awaited && said.clone().all(|other| *other == unit)
    }

    /// The only older block.
    fn only(&self) -> Option<usize> {
        match self.older[..] {
            [unit] if self.missed.is_empty() => Some(unit),
            _ => None,
        }
    }
}

/// Leaves out blocks that would destroy the only record by which another column can be repaired. A crash in the middle of the
/// pass could leave that column as it is, without any record.
fn keep_evidence(
    columns: &[(Column<'_>, Vec<Seen>)],
    headers: &Headers<'_>,
    findings: &mut [Finding],
) {
    let is_mended = |at: usize, unit: usize| findings[at].mends.iter().any(|m| m.unit == unit);
    let blocks = columns.iter().enumerate().flat_map(|(at, (_, units))| {
        units.iter().enumerate().map(move |(unit, seen)| (at, unit, seen))
    });
    let stays = blocks.filter(|(at, unit, _)| !is_mended(*at, *unit));
    let staying = headers.newest(stays.filter_map(|(_, _, seen)| seen.header()));
    // Columns to be mended that no record accuses any more which stays.
    let is_at_risk = |at: usize| {
        let units = columns[at].1.iter().enumerate();
        !findings[at].mends.is_empty()
            && !units.clone().any(|(unit, seen)| staying.is_ahead(at, unit, seen.header()))
    };
    let at_risk: Vec<bool> = (0..columns.len()).map(is_at_risk).collect();
    let oldest = headers.oldest(|at| at_risk[at]);
    let needed = |at: usize, unit: usize| {
        let record = columns[at].1[unit].header();
        record.is_some_and(|record| headers.accuses(&oldest, record, Some(at)))
    };
    let later: Vec<(usize, usize)> = (0..columns.len())
        .flat_map(|at| findings[at].mends.iter().map(move |mend| (at, mend.unit)))
        .filter(|&(at, unit)| needed(at, unit))
        .collect();
    // Two that need each other are written together.
    if later.len() < findings.iter().map(|finding| finding.mends.len()).sum() {
        for (at, unit) in later {
            findings[at].mends.retain(|mend| mend.unit != unit);
        }
    }
}

/// Where a column is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column<'a> {
    pub layout: &'a Layout,
    pub stripe: u64,
    pub offset: u32,
    /// One of its blocks was read from a device that is still being rebuilt. The array could not go on without another one.
    pub beside_rebuilt: bool,
}

impl Column<'_> {
    /// One whose blocks are all of devices that have everything, or absent.
    pub fn at(layout: &Layout, stripe: u64, offset: u32) -> Column<'_> {
        Column { layout, stripe, offset, beside_rebuilt: false }
    }

    /// Returns true if the array could not go on without another device.
    fn is_degraded(&self, units: &[Seen]) -> bool {
        self.beside_rebuilt || units.contains(&Seen::Absent)
    }

    fn parity(&self) -> usize {
        usize::from(self.layout.data)
    }

    /// Returns true if a unit's block is older than records of its stripe say. Both blocks of a mirror have the same content,
    /// so that the newer of two that differ is right, whoever wrote it.
    fn is_older(
        &self,
        units: &[Seen],
        unit: usize,
        (at, newest): (usize, &Newest),
        rule: Rule,
    ) -> bool {
        #[cfg(feature = "mutations")]
        if rule == Rule::ZerosAreData
            && units[unit].header().is_some_and(|header| header.stamp == Stamp::default())
        {
            return false;
        }
        #[cfg(not(feature = "mutations"))]
        let _ = rule;
        let beside = |other: &Seen| match (&units[unit], other) {
            (Seen::There { header, data }, Seen::There { header: newer, data: theirs }) => {
                header.stamp < newer.stamp && data != theirs
            }
            _ => false,
        };
        let in_mirror = self.layout.redundancy == Redundancy::Mirror && units.iter().any(beside);
        in_mirror || newest.is_ahead(at, unit, units[unit].header())
    }

    /// The sum of all units but one; those that are not there count as zeros.
    fn sum(&self, units: &[Seen], but: usize) -> Bytes {
        self.sum_of(units.iter().enumerate().filter_map(|(unit, seen)| match seen {
            Seen::There { data, .. } if unit != but => Some(data),
            _ => None,
        }))
    }

    fn sum_of<'b>(&self, blocks: impl Iterator<Item = &'b Bytes>) -> Bytes {
        let mut sum = vec![0; self.layout.block_size as usize];
        for data in blocks {
            sum.iter_mut().zip(data.iter()).for_each(|(sum, byte)| *sum ^= byte);
        }
        sum.into()
    }

    pub(super) fn zeros(&self) -> Bytes {
        vec![0; self.layout.block_size as usize].into()
    }

    /// The data units whose blocks are lost, as they say themselves. `is_named` speaks for those that are not there, and for those
    /// without any record.
    pub(super) fn lost_by(&self, units: &[Seen], is_named: impl Fn(usize) -> bool) -> Units {
        let is_lost = |unit: &usize| match units[*unit].header() {
            Some(header) if header.stamp > Stamp::default() => header.lost,
            _ => units[*unit].lost() || is_named(*unit),
        };
        (0..self.parity()).filter(is_lost).collect()
    }

    fn lost_data(&self, units: &[Seen]) -> Units {
        self.lost_by(units, |unit| self.is_marked(units, unit))
    }

    /// Returns true if a parity says that a data unit's block is lost.
    fn is_marked(&self, units: &[Seen], unit: usize) -> bool {
        let mut parities = units.iter().skip(self.parity()).filter_map(Seen::header);
        parities.any(|parity| parity.lost_data.has(unit))
    }

    /// Returns true if a write marks a data block as lost that was not marked before, by itself or by parity.
    pub fn is_new_loss(&self, units: &[Seen], mend: &Mend) -> bool {
        let is_data = mend.unit < self.parity();
        is_data && mend.lost && !units[mend.unit].lost() && !self.is_marked(units, mend.unit)
    }

    /// A data unit's block that is lost from now on. Its content counts as zeros.
    pub(super) fn lose(&self, unit: usize) -> Mend {
        Mend::new(unit, self.zeros(), true)
    }

    /// Parity that fits the data; `lost` if it cannot stand for a missing unit.
    fn new_parity(&self, units: &[Seen], lost: bool) -> Mend {
        let (data, lost_data) = (self.sum(units, self.parity()), self.lost_data(units));
        Mend { lost_data, ..Mend::new(self.parity(), data, lost) }
    }

    /// One of the parities, as [`Column::new_parity`] makes the first one.
    fn any_parity(&self, units: &[Seen], unit: usize, lost: bool) -> Mend {
        match unit == self.parity() {
            true => self.new_parity(units, lost),
            false => self.fitting(units, unit, lost, self.lost_data(units)),
        }
    }

    /// A data unit's block, made of all others. It has the writes that parity has, and perhaps not all: parity may have lost its
    /// newest ones with a cache, as the block has.
    fn made_of_others(&self, units: &[Seen], unit: usize) -> Mend {
        let mend = Mend::new(unit, self.sum(units, unit), false);
        match units[self.parity()].header() {
            Some(parity) => mend.known_by(parity),
            None => mend,
        }
    }

    /// The newest write that parity has if it is made to fit the data: one of these may have missed later ones.
    pub(super) fn oldest_of(
        &self,
        units: &[Seen],
        behind: impl Iterator<Item = usize>,
    ) -> Option<Stamp> {
        let data = behind.filter(|unit| *unit < self.parity());
        data.filter_map(|unit| units[unit].header()).map(Header::content).min()
    }

    /// Data blocks that are lost and do not say so, because their media have lost the mark. They are written first: the
    /// content in their place may be anything.
    fn unmarked(&self, units: &[Seen], lost: Units) -> Vec<Mend> {
        // A medium that does not return a block may not take one either. It stays as it is as long as the array could not go on
        // without its device.
        let is_degraded = self.is_degraded(units);
        let stays = |unit: usize| is_degraded && units[unit] == Seen::Unreadable;
        let is_there = |unit: usize| units[unit] != Seen::Absent && !units[unit].lost();
        let all = (0..self.parity()).filter(|unit| lost.has(*unit));
        all.filter(|unit| is_there(*unit) && !stays(*unit)).map(|unit| self.lose(unit)).collect()
    }

    /// Returns true if parity does not name a block that is lost. It was lost while its medium did not return parity, which still has its
    /// former content (docs/design/array.md 3.5). So parity yields nothing.
    fn has_missed_a_loss(&self, units: &[Seen]) -> bool {
        let Some(parity) = units[self.parity()].header().filter(|header| !header.lost) else {
            return false;
        };
        (0..self.parity()).any(|unit| units[unit].lost() && !parity.lost_data.has(unit))
    }

    /// The data blocks that a newer parity names as lost, and that do not say so, if parity fits without them. A repair has marked them
    /// while their device was missing, and the device is back without the mark.
    fn counted_as_lost(&self, units: &[Seen]) -> Vec<usize> {
        let Seen::There { header: parity, data } = &units[self.parity()] else { return Vec::new() };
        let is_unmarked = |unit: &usize| {
            let header = units[*unit].header().filter(|header| !header.lost);
            parity.lost_data.has(*unit) && header.is_some_and(|header| header.stamp < parity.stamp)
        };
        let unmarked: Vec<usize> = (0..self.parity()).filter(is_unmarked).collect();
        let others = (0..self.parity()).filter(|unit| !unmarked.contains(unit));
        let others = others.filter_map(|unit| match &units[unit] {
            Seen::There { data, .. } => Some(data),
            _ => None,
        });
        if self.sum_of(others) == *data { unmarked } else { Vec::new() }
    }

    /// Parity that names other lost blocks than there are: its record is all that changes.
    fn new_marks(&self, units: &[Seen], lost: Units) -> Option<Mend> {
        let unit = self.parity();
        let Seen::There { header, data } = &units[unit] else { return None };
        (header.lost_data != lost).then(|| {
            let kept = Header { lost: false, lost_data: Units::default(), ..*header };
            let mend = Mend::new(unit, data.clone(), header.lost);
            Mend { lost_data: lost, kept: Some(kept), ..mend }
        })
    }

    /// One pass over it.
    fn examine(
        &self,
        units: &[Seen],
        accused: &Accused,
        doubtful: &[usize],
        rule: Rule,
    ) -> Finding {
        let parity = self.parity();
        let lost = self.lost_data(units);
        // A block that is known to be lost is no hole: it counts as zeros.
        let is_hole = |unit: &usize| !lost.has(*unit);
        let absent = units.iter().position(|seen| *seen == Seen::Absent).filter(is_hole);
        let is_degraded = self.is_degraded(units);
        let is_torn = |unit: &usize| matches!(units[*unit], Seen::Torn | Seen::Unreadable);
        let torn: Vec<usize> = (0..=parity).filter(is_torn).filter(is_hole).collect();
        let torn_data: Vec<usize> = torn.iter().copied().filter(|unit| *unit < parity).collect();
        let parity_lost = units[parity].lost();
        let absent_data = absent.filter(|unit| *unit < parity);
        let whole = absent.is_none() && torn.is_empty();
        let only = accused.only().filter(|_| whole);
        let mut finding = Finding {
            mismatch: !torn.is_empty(),
            undecided: false,
            lost: lost.count() + u32::from(absent_data.is_some() && parity_lost),
            mends: self.unmarked(units, lost),
        };
        if !finding.mends.is_empty() {
            finding.mismatch = true;
            return finding;
        }
        let lose = |unit: usize| self.lose(unit);
        let behind = accused.units().chain(doubtful.iter().copied());
        let content = self.oldest_of(units, behind);
        let new_parity = |lost: bool| Mend { content, ..self.new_parity(units, lost) };
        // One missing or torn data unit can be made of the others, if no record says that they do not fit.
        let holes = torn.len() + usize::from(absent.is_some());
        let hole_in_data = absent_data.is_some() || !torn_data.is_empty();
        if hole_in_data && self.has_missed_a_loss(units) {
            finding.mismatch = true;
            finding.mends = vec![new_parity(true)];
            return finding;
        }
        let parity_is_there = !parity_lost && units[parity].header().is_some();
        let fits = !accused.any() && doubtful.is_empty() && parity_is_there;
        // Overwriting is no loss where headers accuse nobody but torn blocks. A medium may yet return an unreadable one.
        let unreadable = units.contains(&Seen::Unreadable);
        let settles = rule >= Rule::FitParity
            || rule == Rule::CutShort && accused.any()
            || !doubtful.is_empty();
        // The others yield a block only if none of them is doubtful.
        let yields = |unit: &usize| doubtful.iter().all(|doubtful| doubtful == unit);
        let misfits = self.sum(units, usize::MAX).iter().any(|byte| *byte != 0);
        let stale = match doubtful {
            [unit] if whole && accused.is_only(*unit) && misfits => Some(*unit),
            _ => None,
        };
        let may_lose = settles || !accused.any() && !unreadable;
        if hole_in_data && absent != Some(parity) && !parity_lost && !(fits && holes == 1) {
            // Parity first: once a torn block has been written anew, nothing else would tell.
            finding.mismatch = true;
            if may_lose && is_degraded && units[parity] == Seen::Unreadable {
                // As below: it stays, and says enough by that.
                let lost = torn_data.iter().copied().filter(|unit| units[*unit] == Seen::Torn);
                finding.mends = lost.map(lose).collect();
            } else if may_lose {
                finding.mends = vec![new_parity(true)];
            } else {
                finding.undecided = true;
            }
        } else if !torn_data.is_empty() {
            // A medium that does not return a block may not take one either. It stays as it is as long as the array could not go on
            // without its device, also beside a missing block that is known to be lost.
            let stays = |unit: &usize| is_degraded && units[*unit] == Seen::Unreadable;
            let written = torn_data.iter().copied().filter(|unit| !stays(unit));
            if fits {
                finding.mends = written.map(|unit| self.made_of_others(units, unit)).collect();
            } else if may_lose {
                finding.mends = written.map(lose).collect();
                if finding.mends.is_empty() && self.beside_rebuilt {
                    // Lost parity names it, and is good again: it yields the block beside that is not rebuilt yet.
                    let mend = new_parity(false);
                    let lost_data = torn_data.iter().copied().fold(mend.lost_data, Units::with);
                    finding.mends = vec![Mend { lost_data, ..mend }];
                }
            } else {
                finding.undecided = true;
            }
        } else if torn == [parity] && (settles || !accused.any()) {
            finding.mends = vec![new_parity(false)];
        } else if let Some(unit) =
            only.or(stale).filter(|unit| *unit < parity && !parity_lost && yields(unit))
        {
            let mend = match self.is_marked(units, unit) {
                true => self.lose(unit),
                false => self.made_of_others(units, unit),
            };
            let is_right = matches!(&units[unit], Seen::There { header, data } if (data, header.lost) == (&mend.data, mend.lost));
            if !is_right {
                finding.mismatch = true;
                finding.mends = vec![mend];
            }
        } else if whole {
            finding.mismatch = misfits;
            let known = only == Some(parity) || parity_lost && !accused.any();
            let unmarked = self.counted_as_lost(units);
            if (finding.mismatch || parity_lost) && (settles || known) {
                finding.mends = vec![new_parity(false)];
            } else if finding.mismatch && !accused.any() && !unmarked.is_empty() {
                finding.mends = unmarked.into_iter().map(lose).collect();
            } else {
                finding.undecided = finding.mismatch;
            }
        }
        let is_known = only.is_some() && !parity_lost || !finding.mends.is_empty();
        if accused.any() && !settles && !is_known {
            (finding.mismatch, finding.undecided) = (true, true);
        }
        if finding.mends.is_empty() && !finding.undecided {
            finding.mends.extend(self.new_marks(units, lost));
        }
        finding
    }

    /// Several units are absent. `unfit`: parity may not fit the data that are there.
    fn examine_remains(&self, units: &[Seen], unfit: bool) -> Finding {
        let parity = self.parity();
        let parities = parity..units.len();
        let has_holes = units.iter().any(|seen| matches!(seen, Seen::Torn | Seen::Unreadable));
        let absent = (0..parity).filter(|unit| units[*unit] == Seen::Absent);
        let torn = (0..parity).filter(|unit| units[*unit] == Seen::Torn);
        let lost = absent.fold(self.lost_data(units), Units::with).count();
        let mismatch = unfit || has_holes;
        // One that its medium does not return says enough by that.
        let says_so = |seen: &Seen| matches!(seen, Seen::Absent | Seen::Unreadable) || seen.lost();
        let silent: Vec<usize> =
            parities.filter(|parity| mismatch && !says_so(&units[*parity])).collect();
        let mends: Vec<Mend> = match silent.is_empty() {
            false => silent.iter().map(|unit| self.any_parity(units, *unit, true)).collect(),
            true => torn.map(|unit| self.lose(unit)).collect(),
        };
        let undecided = mends.is_empty() && units.contains(&Seen::Unreadable);
        Finding { mismatch, undecided, lost, mends }
    }

    /// Returns true if a missing data unit's block can be made of the others, after these blocks are written. Otherwise
    /// it is lost.
    pub fn yields(&self, units: &[Seen], unit: usize, finding: &Finding) -> bool {
        let parity = self.parity();
        let is_whole = |seen: &Seen| matches!(seen, Seen::There { .. } | Seen::Absent);
        let gives_up = finding.mends.iter().any(|mend| mend.unit == parity && mend.lost);
        let parity_yields = units[parity].header().is_some_and(|header| !header.lost);
        parity_yields && !gives_up && units.iter().all(is_whole) && !self.is_marked(units, unit)
    }

    /// The blocks of a column that has lost more units than it has parities. One of them is written anew: `onto`. All blocks that are
    /// there are written, but those that their media do not return.
    pub fn make_do(&self, units: &[Seen], onto: usize) -> Vec<Mend> {
        let parity = self.parity();
        let was_lost = self.lost_data(units);
        let block = |unit: usize| match &units[unit] {
            Seen::Absent if unit != onto => None,
            Seen::Unreadable => None,
            Seen::There { header, data } if !was_lost.has(unit) => {
                Some(Mend::new(unit, data.clone(), false).known_by(header))
            }
            _ => Some(self.lose(unit)),
        };
        let mut mends: Vec<Mend> = (0..parity).filter_map(block).collect();
        let lost = mends.iter().filter(|mend| mend.lost).map(|mend| mend.unit);
        let lost_data = lost.fold(was_lost, Units::with);
        let is_lost = mends.len() < parity;
        let mut data = vec![None; units.len()];
        mends.iter().for_each(|mend| data[mend.unit] = Some(mend.data.clone()));
        for unit in Unit::all(self.layout).skip(parity) {
            let index = unit.index(self.layout);
            // Without a parity's device there is no such parity.
            if units[index] != Seen::Absent || onto == index {
                let block = code::parity(self.layout, unit, &data).into();
                mends.push(Mend { lost_data, ..Mend::new(index, block, is_lost) });
            }
        }
        mends
    }

    /// The block of a unit that is absent, when [`examine`] has nothing left to mend.
    pub fn rebuild(&self, units: &[Seen], unit: usize) -> Mend {
        let parity = &units[self.parity()];
        if unit == self.parity() {
            // Parity without a block that is still unreadable must not yield zeros for it.
            return self.new_parity(units, units.contains(&Seen::Unreadable));
        }
        if parity.lost() || parity.header().is_none() || self.is_marked(units, unit) {
            return self.lose(unit);
        }
        self.made_of_others(units, unit)
    }

    /// What parity's record says from now on of the media of devices (docs/design/array.md 3.11). `gone`: units to which nobody writes,
    /// or whose devices come back with the media that they left with.
    pub fn vouch(&self, units: &[Seen], mend: Mend, gone: Units) -> Mend {
        let is_absent = |unit: &usize| *unit != mend.unit && units[*unit] == Seen::Absent;
        let absent: Vec<usize> = (0..units.len()).filter(is_absent).collect();
        let left = match absent[..] {
            [unit] if gone.has(unit) => self.device(unit),
            _ => None,
        };
        let own = self.layout.parity(self.stripe);
        let header = units[self.parity()].header();
        let stays =
            |device: &DeviceId| header.is_some_and(|header| header.has_everything(own, *device));
        let vouched = left.filter(stays);
        match mend.lost {
            // The last write that has come to parity.
            true => {
                let content = header.map(|header| match header.vouches_for(own) {
                    true => header.content(),
                    false => header.stamp,
                });
                let says = header.map(|_| own).into_iter().chain(vouched);
                Mend { elsewhere: says.collect(), content: content.or(mend.content), ..mend }
            }
            false => {
                let all = absent.is_empty().then_some(own);
                Mend { elsewhere: all.or(vouched).into_iter().collect(), ..mend }
            }
        }
    }

    /// Parity as it is, if it says that this unit's device has everything: it does not say so any more.
    pub fn disavow(&self, units: &[Seen], unit: usize) -> Option<Mend> {
        let Seen::There { header, data } = &units[self.parity()] else { return None };
        let (own, device) = (self.layout.parity(self.stripe), self.device(unit)?);
        let says_so = header.has_everything(own, device) || header.vouches_for(own);
        let Header { lost, lost_data, .. } = *header;
        let mend = Mend { lost_data, ..Mend::new(self.parity(), data.clone(), lost) };
        says_so.then(|| mend.known_by(header))
    }

    /// Returns true if the block that this unit's device has left with is the newest, as marked parity says, or parity that a repair has
    /// made of it.
    pub fn vouches_for(&self, units: &[Seen], unit: usize) -> bool {
        let (Some(parity), Some(own)) = (units[self.parity()].header(), units[unit].header())
        else {
            return false;
        };
        let of_parity = self.layout.parity(self.stripe);
        let says_so = match parity.lost {
            true => {
                let flagged = self.device(unit).is_some_and(|device| parity.vouches_for(device));
                flagged || parity.vouches_for(of_parity) && own.stamp >= parity.content()
            }
            false => parity.is_of_repair() && parity.skipped.has(of_parity),
        };
        says_so && !own.lost
    }

    fn device(&self, unit: usize) -> Option<DeviceId> {
        let unit = u16::try_from(unit).ok().filter(|unit| *unit < self.layout.data)?;
        Some(self.layout.data(self.stripe, unit))
    }

    /// Parity beside the rebuilt block of a data unit. Lost parity yields nothing because of that block. It is good again: it names
    /// the block instead. Otherwise the next block that fails would be lost as well. Doubtful blocks wait for a repair.
    pub fn parity_beside(&self, units: &[Seen], unit: usize, doubtful: &[usize]) -> Option<Mend> {
        let Seen::There { header, data } = &units[self.parity()] else { return None };
        if header.lost && doubtful.is_empty() && !units.contains(&Seen::Unreadable) {
            let mend = self.new_parity(units, false);
            return Some(Mend { lost_data: mend.lost_data.with(unit), ..mend });
        }
        let Header { lost, lost_data, .. } = *header;
        let mend = Mend { lost_data, ..Mend::new(self.parity(), data.clone(), lost) };
        Some(mend.known_by(header))
    }
}

#[cfg(test)]
mod oracle;
