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

use bytes::Bytes;

use crate::plan::Columns;
use crate::{Header, Layout, Redundancy, Stamp, Time};

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
    fn header(&self) -> Option<&Header> {
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
    /// Its timestamp, if its content stays as it is: hosts know by that which write it is of.
    pub stamp: Option<Stamp>,
}

impl Mend {
    pub fn new(unit: usize, data: Bytes, lost: bool) -> Mend {
        Mend { unit, data, lost, stamp: None }
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

/// The header of a repair's write: it names nothing, so that it accuses nobody.
pub(crate) fn mended(stamp: Stamp) -> Header {
    Header { stamp, first: 1, last: 0, ..Header::default() }
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
        Redundancy::Raid5 => (0..units.len()).filter(is_doubtful).collect(),
    }
}

/// One pass over columns of a stripe, in each of which at most one unit is absent. Units are the data units, then parity.
/// `doubts` has the doubtful units of each column.
pub(crate) fn examine(
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
                .filter(|&unit| column.is_older(units, unit, records(), rule))
                .collect(),
            missed: (0..units.len()).filter(|&unit| missed(column, units, unit)).collect(),
            awaited: traces.iter().any(|trace| matches!(trace, Trace::Awaited { .. })),
        };
        column.examine(units, &accused, doubtful, rule)
    };
    let mut findings: Vec<Finding> = columns.iter().zip(doubts).map(one).collect();
    if findings.iter().any(|finding| !finding.mends.is_empty()) {
        keep_evidence(columns, &mut findings);
    } else if findings.iter().all(|finding| !finding.undecided) {
        // All is as it should be; now the records may say so. Not before: they are what tells that something is missing.
        for ((here, seen), finding) in columns.iter().zip(&mut findings) {
            for (unit, block) in seen.iter().enumerate() {
                let accuses =
                    |header| columns.iter().any(|(column, units)| column.is_accused(units, header));
                let Seen::There { header, data } = block else { continue };
                let missed = missed(here, seen, unit);
                if accuses(header) || missed {
                    // One that has missed a write has to look newer than that.
                    let stamp = Some(header.stamp).filter(|_| !missed);
                    let (data, lost) = (data.clone(), header.lost);
                    finding.mends.push(Mend { unit, data, lost, stamp });
                }
            }
        }
    }
    findings
}

/// The first block of some columns that is older than a record of theirs says: its column's offset, and its unit. Blocks that
/// were not read are absent.
pub(crate) fn older_of_any(columns: &[(Column<'_>, Vec<Seen>)]) -> Option<(u32, usize)> {
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

/// What records say against a column.
struct Accused {
    /// Its units whose blocks are older than a record of the stripe says.
    older: Vec<usize>,
    /// Those of which a fenced life's trace says it: parity may have that write, or not.
    missed: Vec<usize>,
    /// Some traces are of writes that devices wait for.
    awaited: bool,
}

impl Accused {
    fn any(&self) -> bool {
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
fn keep_evidence(columns: &[(Column<'_>, Vec<Seen>)], findings: &mut [Finding]) {
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

/// Where a column is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column<'a> {
    pub layout: &'a Layout,
    pub stripe: u64,
    pub offset: u32,
}

impl Column<'_> {
    fn parity(&self) -> usize {
        usize::from(self.layout.data)
    }

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
        if header.skipped == Some(device) {
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

    /// Returns true if a unit's block is older than records of its stripe say. Both blocks of a mirror have the same content,
    /// so that the newer of two that differ is right, whoever wrote it.
    fn is_older<'r>(
        &self,
        units: &[Seen],
        unit: usize,
        mut records: impl Iterator<Item = &'r Header>,
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
        in_mirror || records.any(|record| self.is_behind(units, unit, record))
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

    /// The sum of all units but one; those that are not there count as zeros.
    fn sum(&self, units: &[Seen], but: usize) -> Bytes {
        let mut sum = vec![0; self.layout.block_size as usize];
        for (unit, seen) in units.iter().enumerate() {
            if let Seen::There { data, .. } = seen
                && unit != but
            {
                sum.iter_mut().zip(data.iter()).for_each(|(sum, byte)| *sum ^= byte);
            }
        }
        sum.into()
    }

    fn zeros(&self) -> Bytes {
        vec![0; self.layout.block_size as usize].into()
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
        let absent = units.iter().position(|seen| *seen == Seen::Absent);
        let is_torn = |unit: &usize| matches!(units[*unit], Seen::Torn | Seen::Unreadable);
        let torn: Vec<usize> = (0..=parity).filter(is_torn).collect();
        let torn_data: Vec<usize> = torn.iter().copied().filter(|unit| *unit < parity).collect();
        let parity_lost = units[parity].lost();
        let data_lost = (0..parity).filter(|unit| units[*unit].lost()).count() as u32;
        let absent_data = absent.filter(|unit| *unit < parity);
        let whole = absent.is_none() && torn.is_empty();
        let only = accused.only().filter(|_| whole);
        let mut finding = Finding {
            mismatch: !torn.is_empty(),
            undecided: false,
            lost: data_lost + u32::from(absent_data.is_some() && parity_lost),
            mends: Vec::new(),
        };
        let lose = |unit: usize| Mend::new(unit, self.zeros(), true);
        let new_parity = |lost: bool| Mend::new(parity, self.sum(units, parity), lost);
        // One missing or torn data unit can be made of the others, if no record says that they do not fit.
        let holes = torn.len() + usize::from(absent.is_some());
        let hole_in_data = absent_data.is_some() || !torn_data.is_empty();
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
            if may_lose && absent.is_some() && units[parity] == Seen::Unreadable {
                // As below: it stays, and says enough by that.
                let lost = torn_data.iter().copied().filter(|unit| units[*unit] == Seen::Torn);
                finding.mends = lost.map(lose).collect();
            } else if may_lose {
                finding.mends = vec![new_parity(true)];
            } else {
                finding.undecided = true;
            }
        } else if !torn_data.is_empty() {
            if fits {
                let unit = torn_data[0];
                finding.mends = vec![Mend::new(unit, self.sum(units, unit), false)];
            } else if may_lose {
                // A medium that does not return a block may not take one either. It stays as it is as long as the array could not
                // go on without its device.
                let stays = |unit: &usize| absent.is_some() && units[*unit] == Seen::Unreadable;
                let lost = torn_data.iter().copied().filter(|unit| !stays(unit));
                finding.mends = lost.map(lose).collect();
            } else {
                finding.undecided = true;
            }
        } else if torn == [parity] && (settles || !accused.any()) {
            finding.mends = vec![new_parity(false)];
        } else if let Some(unit) =
            only.or(stale).filter(|unit| *unit < parity && !parity_lost && yields(unit))
        {
            let data = self.sum(units, unit);
            let is_right = matches!(&units[unit], Seen::There { header, data: found } if *found == data && !header.lost);
            if !is_right {
                finding.mismatch = true;
                finding.mends = vec![Mend::new(unit, data, false)];
            }
        } else if whole {
            finding.mismatch = misfits;
            let known = only == Some(parity) || parity_lost && !accused.any();
            if (finding.mismatch || parity_lost) && (settles || known) {
                finding.mends = vec![new_parity(false)];
            } else {
                finding.undecided = finding.mismatch;
            }
        }
        let is_known = only.is_some() && !parity_lost || !finding.mends.is_empty();
        if accused.any() && !settles && !is_known {
            (finding.mismatch, finding.undecided) = (true, true);
        }
        finding
    }

    /// The blocks of a column that has lost two units, one of which is written anew: `onto`. All blocks that are there are
    /// written, but those that their media do not return.
    pub fn make_do(&self, units: &[Seen], onto: usize) -> Vec<Mend> {
        let parity = self.parity();
        let block = |unit: usize| match &units[unit] {
            Seen::There { header, data } => Some(Mend::new(unit, data.clone(), header.lost)),
            Seen::Absent if unit != onto => None,
            Seen::Unreadable => None,
            Seen::Torn | Seen::Absent => Some(Mend::new(unit, self.zeros(), true)),
        };
        let mut mends: Vec<Mend> = (0..parity).filter_map(block).collect();
        // Without parity's device there is no parity.
        if units[parity] != Seen::Absent || onto == parity {
            let lost = mends.len() < parity;
            mends.push(Mend::new(parity, self.sum(units, parity), lost));
        }
        mends
    }

    /// The block of a unit that is absent, when [`examine`] has nothing left to mend.
    pub fn rebuild(&self, units: &[Seen], unit: usize) -> Mend {
        let parity = &units[self.parity()];
        if unit < self.parity() && (parity.lost() || parity.header().is_none()) {
            return Mend::new(unit, self.zeros(), true);
        }
        // Parity without a block that is still unreadable must not yield zeros for it.
        let lost = unit == self.parity() && units.contains(&Seen::Unreadable);
        Mend::new(unit, self.sum(units, unit), lost)
    }
}
