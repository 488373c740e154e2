//! One pass of a repair over one stripe. It is a storage transaction that reads all columns of the stripe from all devices
//! that have them. It writes the blocks that [`crate::recovery::column`] decides.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};

use super::engine::Unheld;
use crate::message::{Blocks, Content, Doubt, Flaw, Past};
use crate::plan::{self, Access, Columns, Method, Old, Plan, StripePlan, Unit};
use crate::recovery::column::{
    Column, Finding, Mend, Rule, Seen, Trace, doubtful, examine, examine_remains,
};
use crate::recovery::returned::{Returned, Verdict};
use crate::{
    ArrayState, BlockError, DeviceId, HostAnswer, Layout, Life, OpError, Outlook, Place, Skipped,
    Stamp, Time, Units,
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pass {
    pub stripe: u64,
    /// True if the pass may write.
    pub repair: bool,
    /// What it does at least where headers do not tell which block is right. Devices may know more.
    pub rule: Rule,
    /// The device that a rebuild is for. It gets its unit when there is nothing to repair, as does each that is being rebuilt.
    pub onto: Option<DeviceId>,
    /// The operations whose locks and pre-writes do not count.
    pub past: Past,
    /// The devices' records beside headers.
    pub traces: Vec<Trace>,
    /// The fenced lives of which these are all records.
    pub known: BTreeSet<Life>,
    /// Other fenced lives that may have left something in the stripe: then the pass has judged nothing.
    pub unknown: BTreeSet<Life>,
    /// Blocks that should have a write of this host, or a newer one.
    pub wanted: Vec<Wanted>,
    /// Parts of a write that devices may not have which have left: parity must not say that they have everything.
    pub unheld: Vec<Unheld>,
    /// Blocks that passes of this repair have marked as lost, by unit and offset, and that were not marked before.
    pub marked: BTreeSet<(usize, u32)>,
    /// The columns of which it reads the old blocks of a device that is rebuilt: parity vouches for some.
    pub reads_old: Option<Columns>,
    /// Passes before it have read those before this column.
    pub has_read_to: u32,
    /// It only looks what would be left if a device came back with its medium, and another one were lost.
    pub survey: Option<Survey>,
    /// Marked parity vouches for the medium of any missing device.
    #[cfg(feature = "mutations")]
    pub vouches_for_any: bool,
    pub found: Found,
}

/// A loss that is not accepted yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Survey {
    /// The device that would come back with its medium.
    pub device: DeviceId,
    /// Its medium has every write up to this timestamp.
    pub whole_to: Time,
    /// The device that is lost.
    pub without: DeviceId,
}

/// A write that has to be there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    /// The data unit.
    pub unit: u16,
    /// Its block.
    pub column: u32,
    pub stamp: Stamp,
    /// If its device is missing, the others yield it.
    pub yielded: bool,
}

impl Wanted {
    pub fn of(place: Place, stamp: Stamp, yielded: bool) -> Wanted {
        Wanted { unit: place.data_unit, column: place.offset, stamp, yielded }
    }
}

/// The findings and actions of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Found {
    pub mismatches: u32,
    pub lost: u32,
    /// Columns of which nobody knows which block is right.
    pub undecided: u32,
    /// A medium does not return a block.
    pub unreadable: bool,
    /// The first wanted write that is not there, by unit and column.
    pub missing: Option<(u16, u32)>,
    /// Blocks that this repair has marked as lost.
    pub marked: u32,
    /// Something was mended: another pass is needed.
    pub wrote: bool,
    /// Parity may vouch for old blocks of a device that is rebuilt, and they were not read: another pass is needed.
    pub vouched: Option<(u32, u32)>,
    /// The findings of a survey.
    pub outlook: Outlook,
}

/// The columns of a stripe, with the blocks of its units.
type Stripe<'a> = [(Column<'a>, Vec<Seen>)];

/// A stripe as a pass has read it.
struct Reading<'a> {
    stripe: Vec<(Column<'a>, Vec<Seen>)>,
    /// By unit: its device's writes up to this timestamp are durable.
    durable_to: Vec<Time>,
    /// Columns in which parity may vouch for a block that was not read.
    marked: BTreeSet<u32>,
    /// Old blocks that were read, and for which parity does not vouch.
    useless: Vec<Unheld>,
}

impl Reading<'_> {
    /// Returns true if no device has writes that are not durable.
    fn is_durable(&self) -> bool {
        self.durable_to.iter().all(|time| *time == Time::MAX)
    }

    /// The first marked columns from this one on, as a half-open range.
    fn next_marked(&self, from: u32) -> Option<(u32, u32)> {
        let first = *self.marked.range(from..).next()?;
        let end = (first..).find(|column| !self.marked.contains(column)).unwrap_or(first);
        Some((first, end))
    }
}

impl Found {
    /// The answer to who asked.
    pub fn answer(self) -> HostAnswer {
        let Found { mismatches, lost, undecided, .. } = self;
        match undecided {
            0 => HostAnswer::Scrubbed { mismatches, lost },
            _ => HostAnswer::Undecided { mismatches, lost, undecided },
        }
    }
}

impl Pass {
    /// One over a stripe that waits for all operations there.
    pub fn over(stripe: u64, repair: bool, rule: Rule) -> Pass {
        Pass {
            stripe,
            repair,
            rule,
            onto: None,
            past: Past::Nobody,
            traces: Vec::new(),
            known: BTreeSet::new(),
            unknown: BTreeSet::new(),
            wanted: Vec::new(),
            unheld: Vec::new(),
            marked: BTreeSet::new(),
            reads_old: None,
            has_read_to: 0,
            survey: None,
            #[cfg(feature = "mutations")]
            vouches_for_any: false,
            found: Found::default(),
        }
    }

    /// One that repairs after a fenced life.
    pub fn after(life: Life, stripe: u64, traces: Vec<Trace>, known: BTreeSet<Life>) -> Pass {
        let past = Past::Life(life);
        Pass { past, traces, known, ..Pass::over(stripe, true, Rule::FitParity) }
    }

    /// Notes fenced lives that it has passed by and does not know. Returns true if there are any.
    pub fn meets_unknown(&mut self, contents: &[Option<Content>]) -> bool {
        if matches!(self.past, Past::Life(_)) {
            let left = contents.iter().flatten().flat_map(|content| content.left.iter());
            self.unknown = left.filter(|life| !self.known.contains(life)).copied().collect();
        }
        !self.unknown.is_empty()
    }

    /// The device whose old blocks the pass reads, and which of them it uses. An operator's word is of use only beside one other missing
    /// unit; if both devices come back, one of them counts as missing. Parity vouches only if it is there.
    fn comes_back(&self, layout: &Layout, state: &ArrayState) -> Option<(DeviceId, Old)> {
        if let Some(Survey { device, whole_to, .. }) = self.survey {
            return Some((device, Old::WholeTo(whole_to)));
        }
        let mut missing =
            layout.units(self.stripe).filter(|device| !state.has(*device, self.stripe));
        let whole_to = |device| Some((device, Old::WholeTo(state.condition(device)?.whole_to()?)));
        match plan::missing_units(layout, state, self.stripe) {
            2 => missing.find_map(whole_to),
            1 if self.repair && layout.parities() == 1 => {
                missing.find(|device| state.comes_back(*device)).map(|d| (d, Old::VouchedFor))
            }
            _ => None,
        }
    }

    /// Returns true if the pass reads a device's unit.
    fn reads(&self, state: &ArrayState, device: DeviceId, old: Option<Old>) -> bool {
        let is_lost = self.survey.is_some_and(|survey| survey.without == device);
        match old {
            Some(Old::WholeTo(_)) => true,
            Some(Old::VouchedFor) => self.reads_old.is_some(),
            None => state.has(device, self.stripe) && !is_lost,
        }
    }

    pub fn plan(&self, layout: &Layout, state: &ArrayState) -> Result<Plan, OpError> {
        let columns = 0..layout.unit;
        let missing = plan::missing_units(layout, state, self.stripe);
        let comes_back = self.comes_back(layout, state);
        // More devices of a group are out than redundancy replaces only if an operator has accepted the loss: repairs make the best of
        // it.
        if !self.repair && self.survey.is_none() && missing > usize::from(layout.parities()) {
            let what = format!("stripe {} has lost more units than it can", self.stripe);
            return Err(OpError::Unavailable(what));
        }
        let mut accesses = Vec::new();
        for (unit, device) in Unit::all(layout).zip(layout.units(self.stripe)) {
            let old = comes_back.filter(|(returned, _)| *returned == device);
            let old = old.map(|(_, old)| old);
            let reads = self.reads(state, device, old);
            // Blocks that are rebuilt, but not yet known to be, must fit the repaired ones.
            let rebuilding = self.repair && state.is_rebuilding(device);
            if reads || self.onto == Some(device) || rebuilding {
                let read = match (old, &self.reads_old) {
                    (Some(Old::VouchedFor), Some(columns)) => columns.clone(),
                    _ => columns.clone(),
                };
                accesses.push(Access {
                    device,
                    stripe: self.stripe,
                    unit,
                    read: reads.then_some(read),
                    write: self.repair.then(|| columns.clone()),
                    old,
                });
            }
        }
        let part = StripePlan {
            stripe: self.stripe,
            method: Method::Read,
            covered: Vec::new(),
            hull: columns,
            skipped: Skipped::default(),
            missing: None,
            accesses: 0..accesses.len(),
        };
        Ok(Plan::new(vec![part], accesses))
    }

    /// What the pass does where headers do not tell which block is right. A restarted device knows if a write may have been
    /// cut short.
    fn rule(&self, contents: &[Option<Content>]) -> Rule {
        let doubts = contents.iter().flatten().map(|content| match content.doubt {
            Doubt::None => Rule::Leave,
            Doubt::Suspect => Rule::CutShort,
            Doubt::Unsure => Rule::FitParity,
        });
        doubts.max().unwrap_or_default().max(self.rule)
    }

    /// The stripe by columns. An old block counts only if parity vouches for it.
    fn reading<'a>(
        &self,
        layout: &'a Layout,
        plan: &Plan,
        contents: &[Option<Content>],
    ) -> Reading<'a> {
        let index = |unit: Unit| unit.index(layout);
        let units = usize::from(layout.group_size());
        let mut reading = Reading {
            stripe: Vec::new(),
            durable_to: vec![Time::MAX; units],
            marked: BTreeSet::new(),
            useless: Vec::new(),
        };
        for (access, content) in plan.accesses.iter().zip(contents) {
            if let Some(content) = content {
                reading.durable_to[index(access.unit)] = content.durable_to;
            }
        }
        let is_durable = reading.is_durable();
        let with_bad = |content: &Option<Content>| content.as_ref().map(bad_blocks);
        let bad: Vec<_> = contents.iter().map(with_bad).collect();
        for offset in 0..layout.unit {
            let mut units = vec![Seen::Absent; units];
            for ((access, content), bad) in plan.accesses.iter().zip(contents).zip(&bad) {
                if let (Some(content), Some(bad), Some(read)) = (content, bad, &access.read)
                    && read.contains(&offset)
                {
                    let at = offset - read.start;
                    units[index(access.unit)] = seen(layout, content, bad.get(&at), at as usize);
                }
            }
            let mut column = Column::at(layout, self.stripe, offset);
            for access in plan.accesses.iter().filter(|a| a.old == Some(Old::VouchedFor)) {
                let unit = index(access.unit);
                if units[index(Unit::Parity)].lost() && access.read.is_none() {
                    reading.marked.insert(offset);
                }
                if !is_durable || !column.vouches_for(&units, unit) {
                    let is_read = access.read.as_ref().is_some_and(|read| read.contains(&offset));
                    let block = is_read.then(|| Unheld::block(self.stripe, unit, offset));
                    reading.useless.extend(block);
                    units[unit] = Seen::Absent;
                }
                column.beside_rebuilt = units[unit] != Seen::Absent;
            }
            reading.stripe.push((column, units));
        }
        reading
    }

    /// The blocks that each access writes.
    pub fn writes(
        &mut self,
        layout: &Layout,
        plan: &Plan,
        contents: &[Option<Content>],
        stamp: Stamp,
    ) -> Vec<Option<Blocks>> {
        let index = |unit: Unit| unit.index(layout);
        // By access: columns in which it is written, and what.
        let mut mends: Vec<Vec<(u32, Mend)>> = vec![Vec::new(); plan.accesses.len()];
        let mut rebuilt: Vec<(u32, Mend)> = Vec::new();
        let mut beside: Vec<(u32, Mend)> = Vec::new();
        // With two parities: all of that.
        let mut double: Vec<(u32, Mend)> = Vec::new();
        let missing = plan.accesses.iter().position(|access| access.read.is_none());
        let parity = plan.accesses.iter().position(|access| access.unit == Unit::Parity);
        let bears = usize::from(layout.parities());
        let reading = self.reading(layout, plan, contents);
        let is_durable = reading.is_durable();
        let vouches = is_durable && bears == 1;
        // Their devices have left, and have that medium or none yet.
        let others = plan.accesses.iter().filter(|access| access.old.is_none());
        let others: Units = others.map(|access| index(access.unit)).collect();
        let gone = (0..usize::from(layout.group_size())).filter(|unit| !others.has(*unit));
        let gone: Units = gone.collect();
        if let Some(columns) = reading.next_marked(self.has_read_to).filter(|_| is_durable) {
            self.found = Found { vouched: Some(columns), ..Found::default() };
            return vec![None; plan.accesses.len()];
        }
        let Reading { mut stripe, durable_to, useless, .. } = reading;
        let useless = [self.unheld.clone(), useless].concat();
        let unreadable = stripe.iter().any(|(_, units)| units.contains(&Seen::Unreadable));
        self.found = Found { missing: self.missing(&stripe), unreadable, ..Found::default() };
        let absent = stripe
            .first()
            .map_or(0, |(_, units)| units.iter().filter(|seen| **seen == Seen::Absent).count());
        let onto = plan.accesses.iter().find(|access| Some(access.device) == self.onto);
        if let Some(onto) = onto.filter(|_| absent > bears) {
            return self.make_do(layout, plan, &stripe, index(onto.unit), stamp);
        }
        let unread = plan.accesses.iter().filter(|access| access.read.is_none());
        let written: Units = unread.map(|access| index(access.unit)).collect();
        let mut newly_lost = 0;
        let doubts: Vec<Vec<usize>> =
            stripe.iter().map(|(_, units)| doubtful(layout, units, &durable_to)).collect();
        let returned = returned(layout, plan);
        let verdicts = self.judge(returned, &mut stripe);
        let findings = match absent <= bears {
            true => examine(&stripe, &doubts, &self.traces, self.rule(contents)),
            false => examine_remains(&stripe, &doubts, &self.traces),
        };
        if let (Some(survey), Some(returned)) = (self.survey, returned) {
            self.found.outlook = outlook(survey, &returned, &stripe, &verdicts, &findings);
            return vec![None; plan.accesses.len()];
        }
        let findings = with_used(returned, &stripe, findings);
        for (((column, units), doubtful), finding) in stripe.iter().zip(&doubts).zip(findings) {
            self.found.mismatches += u32::from(finding.mismatch);
            self.found.lost += finding.lost;
            self.found.undecided += u32::from(finding.undecided);
            let undecided = finding.undecided;
            for mut mend in finding.mends {
                if vouches && mend.unit == index(Unit::Parity) {
                    mend = column.vouch(units, mend, gone);
                    #[cfg(feature = "mutations")]
                    if self.vouches_for_any && mend.lost {
                        let all = Unit::all(layout).zip(layout.units(self.stripe));
                        let out = all.filter(|(unit, _)| gone.has(index(*unit)));
                        mend.elsewhere = out.map(|(_, device)| device).collect();
                    }
                }
                if column.is_new_loss(units, &mend) {
                    self.marked.insert((mend.unit, column.offset));
                }
                let access = plan.accesses.iter().position(|a| index(a.unit) == mend.unit);
                if let Some(access) = access {
                    mends[access].push((column.offset, mend));
                }
            }
            if bears > 1 {
                if !undecided && absent <= bears && !written.is_empty() {
                    for mend in column.rebuild_double(units, written, doubtful) {
                        newly_lost += u32::from(column.is_new_loss(units, &mend));
                        double.push((column.offset, mend));
                    }
                }
                continue;
            }
            // The others do not yield a missing block of an undecided column.
            if let Some(access) = missing.filter(|_| !undecided && absent < 2) {
                let unit = index(plan.accesses[access].unit);
                let mut mend = column.rebuild(units, unit);
                if vouches && unit == index(Unit::Parity) {
                    mend = column.vouch(units, mend, gone);
                }
                let parity = column.parity_beside(units, unit, doubtful);
                beside.extend(parity.map(|mend| (column.offset, mend)));
                newly_lost += u32::from(column.is_new_loss(units, &mend));
                rebuilt.push((column.offset, mend));
            }
        }
        if !self.repair {
            return vec![None; plan.accesses.len()];
        }
        if mends.iter().all(Vec::is_empty)
            && let Some(parity) = parity
        {
            mends[parity] = self.disavow(&stripe, &useless);
        }
        self.found.wrote = mends.iter().any(|mends| !mends.is_empty());
        self.found.marked = self.still_marked(&stripe) + newly_lost;
        if !self.found.wrote && bears > 1 {
            let is_parity = |unit: usize| unit >= usize::from(layout.data) && !written.has(unit);
            let was_lost = stripe.iter().any(|(_, units)| {
                units.iter().enumerate().any(|(unit, seen)| is_parity(unit) && seen.lost())
            });
            for (access, mends) in plan.accesses.iter().zip(&mut mends) {
                let unit = index(access.unit);
                if written.has(unit) || was_lost && is_parity(unit) {
                    let of_unit = double.iter().filter(|(_, mend)| mend.unit == unit);
                    mends.extend(of_unit.cloned());
                }
            }
        } else if !self.found.wrote
            && let Some(access) = missing
        {
            mends[access] = of_one_record(rebuilt);
            let was_lost = stripe.iter().any(|(_, units)| units.last().is_some_and(Seen::lost));
            if let Some(parity) = parity.filter(|parity| was_lost && *parity != access) {
                mends[parity] = beside;
            }
        }
        mends.iter().map(|mends| self.blocks(layout, stamp, mends)).collect()
    }

    /// Parity that says of a device that its medium has everything, and is wrong.
    fn disavow(&mut self, stripe: &Stripe<'_>, useless: &[Unheld]) -> Vec<(u32, Mend)> {
        let mut mends = BTreeMap::new();
        for unheld in useless {
            let columns = unheld.columns.start as usize..unheld.columns.end as usize;
            for (column, units) in stripe.get(columns).unwrap_or_default() {
                let is_marked = units.get(column.layout.data as usize).is_some_and(Seen::lost);
                if is_marked && !self.unheld.is_empty() {
                    self.found.missing = Some((unheld.unit, column.offset));
                }
                let mend = column.disavow(units, unheld.unit.into());
                mends.extend(mend.map(|mend| (column.offset, mend)));
            }
        }
        mends.into_iter().collect()
    }

    /// Blocks that a device has left with count if nobody has written them since. Returns what is known of each.
    fn judge(
        &self,
        returned: Option<Returned>,
        stripe: &mut [(Column<'_>, Vec<Seen>)],
    ) -> Vec<Verdict> {
        let Some(returned) = returned else { return Vec::new() };
        let verdicts = returned.verdicts(stripe);
        for ((_, units), verdict) in stripe.iter_mut().zip(&verdicts) {
            if *verdict == Verdict::Outdated {
                units[returned.unit] = Seen::Torn;
            }
        }
        verdicts
    }

    /// The first wanted write that is not there. The others may yield the blocks of as many missing devices as redundancy replaces: then
    /// these are not judged.
    fn missing(&self, stripe: &Stripe<'_>) -> Option<(u16, u32)> {
        let is_missing = |wanted: &&Wanted| {
            let Some((column, units)) = stripe.get(wanted.column as usize) else { return true };
            match &units[usize::from(wanted.unit)] {
                Seen::Absent => {
                    let absent = units.iter().filter(|seen| **seen == Seen::Absent).count();
                    !wanted.yielded || absent > usize::from(column.layout.parities())
                }
                Seen::There { header, .. } => header.lost || header.content() < wanted.stamp,
                Seen::Torn | Seen::Unreadable => true,
            }
        };
        self.wanted.iter().find(is_missing).map(|wanted| (wanted.unit, wanted.column))
    }

    /// More units of the stripe are missing than redundancy replaces, and this one is rebuilt: its data are lost, and so are those of
    /// the others. Parity says so of the others. All is written at once, and comes out the same if it is done again.
    fn make_do(
        &mut self,
        layout: &Layout,
        plan: &Plan,
        stripe: &Stripe<'_>,
        onto: usize,
        stamp: Stamp,
    ) -> Vec<Option<Blocks>> {
        let columns = stripe.iter().map(|(column, units)| column.make_do(units, onto));
        let columns: Vec<Vec<Mend>> = columns.collect();
        let is_data = |mend: &&Mend| mend.unit < usize::from(layout.data);
        let lost = columns.iter().flatten().filter(is_data).filter(|mend| mend.lost).count() as u32;
        let new = stripe.iter().zip(&columns).flat_map(|((column, units), mends)| {
            mends.iter().filter(|mend| column.is_new_loss(units, mend))
        });
        (self.found.lost, self.found.marked) = (lost, new.count() as u32);
        let all = plan.accesses.iter().map(|access| {
            let unit = access.unit.index(layout);
            let mends = (0..).zip(&columns).filter_map(|(offset, mends)| {
                mends.iter().find(|mend| mend.unit == unit).map(|mend| (offset, mend.clone()))
            });
            self.blocks(layout, stamp, &mends.collect::<Vec<_>>())
        });
        all.collect()
    }

    /// The blocks that this repair has marked, and that nobody has written anew since.
    fn still_marked(&self, stripe: &Stripe<'_>) -> u32 {
        let units = |offset: u32| stripe.iter().find(|(column, _)| column.offset == offset);
        let is_lost =
            |(unit, offset): &&(usize, u32)| units(*offset).is_some_and(|(_, u)| u[*unit].lost());
        self.marked.iter().filter(is_lost).count() as u32
    }

    /// The first run of columns; a later pass finds the others.
    fn blocks(&self, layout: &Layout, stamp: Stamp, mends: &[(u32, Mend)]) -> Option<Blocks> {
        let (first, mend) = mends.first()?;
        let header = mend.header(stamp);
        let run = mends
            .iter()
            .zip(*first..)
            .take_while(|((offset, mend), next)| offset == next && mend.header(stamp) == header);
        let mut data = BytesMut::new();
        let mut marks = Vec::new();
        let mut count = 0;
        for ((_, mend), _) in run {
            data.extend_from_slice(&mend.data);
            marks.extend(mend.mark(count));
            count += 1;
        }
        let extent = plan::extent(layout, self.stripe, &(*first..first + count));
        Some(Blocks { extent, data: data.freeze(), header, marks })
    }
}

/// The blocks of a rebuilt unit are written at once, and so with one record. Parity vouches in all of its columns or in none.
fn of_one_record(mut rebuilt: Vec<(u32, Mend)>) -> Vec<(u32, Mend)> {
    let says = rebuilt.first().map(|(_, mend)| mend.elsewhere).unwrap_or_default();
    if rebuilt.iter().any(|(_, mend)| mend.elsewhere != says) {
        rebuilt.iter_mut().for_each(|(_, mend)| mend.elsewhere = Skipped::default());
    }
    rebuilt
}

/// The device that comes back with its medium, if the pass reads what that has.
fn returned(layout: &Layout, plan: &Plan) -> Option<Returned> {
    let of = |access: &Access| match access.old {
        Some(Old::WholeTo(whole_to)) => {
            let (device, unit) = (access.device, access.unit.index(layout));
            Some(Returned { device, unit, whole_to })
        }
        _ => None,
    };
    plan.accesses.iter().find_map(of)
}

/// Blocks of a device that comes back are written again beside those that are mended: they must not look older.
fn with_used(
    returned: Option<Returned>,
    stripe: &Stripe<'_>,
    mut findings: Vec<Finding>,
) -> Vec<Finding> {
    let Some(returned) = returned else { return findings };
    for ((_, units), finding) in stripe.iter().zip(&mut findings) {
        finding.mends.extend(returned.again(units, &finding.mends));
    }
    findings
}

/// Counts the data blocks of both devices.
fn outlook(
    survey: Survey,
    returned: &Returned,
    stripe: &Stripe<'_>,
    verdicts: &[Verdict],
    findings: &[Finding],
) -> Outlook {
    let mut outlook = Outlook::default();
    for (((column, units), verdict), finding) in stripe.iter().zip(verdicts).zip(findings) {
        let parity = units.len() - 1;
        if returned.unit < parity {
            outlook.count(*verdict);
        }
        let (layout, number) = (column.layout, column.stripe);
        let other = (0..layout.data).find(|unit| layout.data(number, *unit) == survey.without);
        let Some(other) = other.map(usize::from) else { continue };
        match column.yields(units, other, finding) {
            true if *verdict == Verdict::MayBeOld => outlook.other_may_be_old += 1,
            true => outlook.other_current += 1,
            false => outlook.other_lost += 1,
        }
    }
    outlook
}

/// The blocks of a content that have no content, and why.
pub(super) fn bad_blocks(content: &Content) -> BTreeMap<u32, BlockError> {
    let bad = content.flaws.iter().filter_map(|(index, flaw)| match flaw {
        Flaw::Unreadable(error) => Some((*index, *error)),
        Flaw::Lost => None,
    });
    // The first flaw of a block counts.
    bad.rev().collect()
}

fn seen(layout: &Layout, content: &Content, flaw: Option<&BlockError>, at: usize) -> Seen {
    let size = layout.block_size as usize;
    match (flaw, content.headers.get(at)) {
        (Some(BlockError::Unreadable), _) => Seen::Unreadable,
        (Some(BlockError::Torn), _) | (None, None) => Seen::Torn,
        (None, Some(&header)) => {
            let from = (at * size).min(content.data.len());
            let to = (from + size).min(content.data.len());
            let data: Bytes = content.data.slice(from..to);
            Seen::There { header, data }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::column::mended;
    use crate::{Change, Condition, HostId, Redundancy};

    #[test]
    fn a_repair_writes_also_what_is_being_rebuilt() {
        let layout = Layout {
            redundancy: Redundancy::Raid5,
            data: 2,
            groups: 1,
            unit: 2,
            block_size: 16,
            stripes: 2,
            added: Default::default(),
        };
        let device = layout.data(0, 1);
        let failed = ArrayState::new(3).changed(Change::Fail(device, 0)).unwrap().unwrap();
        let rebuilding = failed.changed(Change::Rebuild(device)).unwrap().unwrap();
        let mut pass = Pass::over(0, true, Rule::Leave);
        assert_eq!(pass.plan(&layout, &failed).unwrap().accesses.len(), 2);
        let plan = pass.plan(&layout, &rebuilding).unwrap();
        assert_eq!(plan.accesses.len(), 3);
        let written = plan.accesses.iter().find(|access| access.device == device).unwrap();
        assert_eq!((&written.read, &written.write), (&None, &Some(0..2)));
        // It gets the content that the others yield, even if they have nothing new.
        let header = mended(Stamp { time: 1, host: 1 });
        let content = |byte: u8| Content {
            data: vec![byte; 32].into(),
            flaws: Vec::new(),
            headers: vec![header; 2],
            doubt: Doubt::None,
            durable_to: Time::MAX,
            left: Box::default(),
        };
        let bytes = plan.accesses.iter().zip([5, 6, 3]);
        let contents: Vec<_> =
            bytes.map(|(access, byte)| access.read.as_ref().map(|_| content(byte))).collect();
        let writes = pass.writes(&layout, &plan, &contents, Stamp { time: 2, host: 1 });
        for (access, blocks) in plan.accesses.iter().zip(writes) {
            let wanted = (access.device == device).then(|| vec![5 ^ 3; 32]);
            assert_eq!(blocks.map(|blocks| blocks.data.to_vec()), wanted);
        }
        pass.repair = false;
        assert_eq!(pass.plan(&layout, &rebuilding).unwrap().accesses.len(), 2);
    }

    /// Only the device knows which of its columns are rebuilt, and it is not asked.
    #[test]
    fn all_of_a_unit_is_rebuilt_at_once() {
        let layout = Layout {
            redundancy: Redundancy::Raid5,
            data: 2,
            groups: 1,
            unit: 3,
            block_size: 16,
            stripes: 1,
            added: Default::default(),
        };
        for rebuilt in layout.units(0) {
            let failed = ArrayState::new(3).changed(Change::Fail(rebuilt, 0)).unwrap().unwrap();
            let state = failed.changed(Change::Rebuild(rebuilt)).unwrap().unwrap();
            let mut pass = Pass { onto: Some(rebuilt), ..Pass::over(0, true, Rule::FitParity) };
            let plan = pass.plan(&layout, &state).unwrap();
            for bad in 0..3 {
                // One medium does not return one of its blocks.
                let content = |access: &Access| Content {
                    data: vec![7; 48].into(),
                    flaws: match access.unit {
                        Unit::Data(0) => vec![(bad, Flaw::Unreadable(BlockError::Unreadable))],
                        _ => Vec::new(),
                    },
                    headers: vec![mended(Stamp { time: 1, host: 1 }); 3],
                    doubt: Doubt::None,
                    durable_to: Time::MAX,
                    left: Box::default(),
                };
                let contents: Vec<_> = plan
                    .accesses
                    .iter()
                    .map(|access| access.read.as_ref().map(|_| content(access)))
                    .collect();
                let stamp = Stamp { time: 2, host: 1 };
                let writes = pass.writes(&layout, &plan, &contents, stamp);
                let at = plan.accesses.iter().position(|access| access.device == rebuilt).unwrap();
                // With parity marked first, that is another pass.
                if !pass.found.wrote {
                    let blocks = writes[at].as_ref().expect("rebuilt");
                    assert_eq!(blocks.extent.count, 3, "{rebuilt}, bad block {bad}");
                }
            }
        }
    }

    /// Old blocks are read beside one other missing unit only, and those of one device only.
    #[test]
    fn a_repair_reads_the_old_blocks_of_one_device() {
        let (redundancy, stripes) = (Redundancy::Raid5, 2);
        let layout = Layout {
            redundancy,
            data: 2,
            groups: 1,
            unit: 2,
            block_size: 16,
            stripes,
            added: Default::default(),
        };
        let life = Life { host: HostId(1), incarnation: 1 };
        let mut pass = Pass::after(life, 0, Vec::new(), BTreeSet::new());
        let old = |pass: &Pass, devices: [Condition; 3]| {
            let state = ArrayState { devices: devices.to_vec(), ..ArrayState::new(3) };
            let plan = pass.plan(&layout, &state).unwrap();
            let read = |access: &Access| Some((access.old?, access.read.clone()?));
            plan.accesses.iter().filter_map(read).map(|(old, _)| old).collect::<Vec<_>>()
        };
        use Condition::{Failed, Good};
        let back = |whole_to| Condition::Returning { done: 0, whole_to };
        assert_eq!(old(&pass, [back(7), Failed, Good]), [Old::WholeTo(7)]);
        assert_eq!(old(&pass, [back(7), Failed, Failed]), []);
        assert_eq!(old(&pass, [back(7), back(8), Good]).len(), 1);
        assert_eq!(old(&pass, [Condition::Returning { done: 1, whole_to: 7 }, Failed, Good]), []);
        // No operator says what the medium has.
        assert_eq!(old(&pass, [back(0), Failed, Good]), []);
        // Beside no other missing unit, only if parity is known to vouch for something.
        assert_eq!(old(&pass, [back(7), Good, Good]), []);
        pass.reads_old = Some(0..1);
        assert_eq!(old(&pass, [back(7), Good, Good]), [Old::VouchedFor]);
        assert_eq!(old(&pass, [back(0), Good, Good]), [Old::VouchedFor]);
    }
}
