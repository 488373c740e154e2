//! One pass of a repair over one stripe. It is a storage transaction that reads all columns of the stripe from all devices
//! that have them. It writes the blocks that [`crate::recovery::column`] decides.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};

use crate::message::{Blocks, Content, Doubt, Flaw, Lost, Past};
use crate::plan::{self, Access, Method, Plan, StripePlan, Unit};
use crate::recovery::column::{Column, Mend, Rule, Seen, Trace, doubtful, examine};
use crate::{ArrayState, BlockError, DeviceId, HostAnswer, Layout, Life, OpError, Stamp, Time};

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
    /// Blocks that should have a write of this host, or a newer one.
    pub wanted: Vec<Wanted>,
    /// Blocks that passes of this repair have marked as lost, by unit and offset, and that were not marked before.
    pub marked: BTreeSet<(usize, u32)>,
    pub found: Found,
}

/// A write that has to be there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    /// The data unit.
    pub unit: u16,
    /// Its block.
    pub column: u32,
    pub stamp: Stamp,
}

/// The findings and actions of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Found {
    pub mismatches: u32,
    pub lost: u32,
    /// Columns of which nobody knows which block is right.
    pub undecided: u32,
    /// The first wanted write that is not there, by unit and column.
    pub missing: Option<(u16, u32)>,
    /// Blocks that this repair has marked as lost.
    pub marked: u32,
    /// Something was mended: another pass is needed.
    pub wrote: bool,
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
    /// One that repairs after a fenced life.
    pub fn after(life: Life, stripe: u64, traces: Vec<Trace>) -> Pass {
        let (past, found, rule) = (Past::Life(life), Found::default(), Rule::FitParity);
        let (wanted, marked) = (Vec::new(), BTreeSet::new());
        Pass { stripe, repair: true, rule, onto: None, past, traces, wanted, marked, found }
    }

    pub fn plan(&self, layout: &Layout, state: &ArrayState) -> Result<Plan, OpError> {
        let columns = 0..layout.unit;
        // Two devices of a group are out only if an operator has accepted the loss: a rebuild makes the best of it.
        if self.onto.is_none() && plan::missing_units(layout, state, self.stripe) > 1 {
            let what = format!("stripe {} has lost more units than it can", self.stripe);
            return Err(OpError::Unavailable(what));
        }
        let units = (0..layout.data).map(|u| (Unit::Data(u), layout.data(self.stripe, u)));
        let parity = (Unit::Parity, layout.parity(self.stripe));
        let mut accesses = Vec::new();
        for (unit, device) in units.chain([parity]) {
            let has = state.has(device, self.stripe);
            // Blocks that are rebuilt, but not yet known to be, must fit the repaired ones.
            let rebuilding = self.repair && state.is_rebuilding(device);
            if has || self.onto == Some(device) || rebuilding {
                accesses.push(Access {
                    device,
                    stripe: self.stripe,
                    unit,
                    read: has.then(|| columns.clone()),
                    write: self.repair.then(|| columns.clone()),
                });
            }
        }
        let part = StripePlan {
            stripe: self.stripe,
            method: Method::Read,
            covered: Vec::new(),
            hull: columns,
            skipped: None,
            accesses: 0..accesses.len(),
        };
        Ok(Plan { stripes: vec![part], accesses })
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

    /// The blocks that each access writes.
    pub fn writes(
        &mut self,
        layout: &Layout,
        plan: &Plan,
        contents: &[Option<Content>],
        stamp: Stamp,
    ) -> Vec<Option<Blocks>> {
        let index = |unit: Unit| match unit {
            Unit::Data(unit) => usize::from(unit),
            Unit::Parity => usize::from(layout.data),
        };
        // By access: columns in which it is written, and what.
        let mut mends: Vec<Vec<(u32, Mend)>> = vec![Vec::new(); plan.accesses.len()];
        let mut rebuilt: Vec<(u32, Mend)> = Vec::new();
        let missing = plan.accesses.iter().position(|access| access.read.is_none());
        let mut durable_to = vec![Time::MAX; usize::from(layout.data) + 1];
        for (access, content) in plan.accesses.iter().zip(contents) {
            durable_to[index(access.unit)] = content.as_ref().map_or(Time::MAX, |c| c.durable_to);
        }
        let mut stripe: Vec<(Column<'_>, Vec<Seen>)> = Vec::new();
        let with_bad = |content: &Option<Content>| content.as_ref().map(bad_blocks);
        let bad: Vec<_> = contents.iter().map(with_bad).collect();
        for offset in 0..layout.unit {
            let mut units = vec![Seen::Absent; usize::from(layout.data) + 1];
            for ((access, content), bad) in plan.accesses.iter().zip(contents).zip(&bad) {
                if let (Some(content), Some(bad)) = (content, bad) {
                    let at = offset as usize;
                    units[index(access.unit)] = seen(layout, content, bad.get(&offset), at);
                }
            }
            stripe.push((Column { layout, stripe: self.stripe, offset }, units));
        }
        self.found = Found { missing: self.missing(&stripe), ..Found::default() };
        let read = plan.accesses.iter().filter(|access| access.read.is_some()).count();
        let onto = plan.accesses.iter().find(|access| Some(access.device) == self.onto);
        if let Some(onto) = onto.filter(|_| read < usize::from(layout.data)) {
            return self.make_do(layout, plan, &stripe, index(onto.unit), stamp);
        }
        let (rule, mut newly_lost) = (self.rule(contents), 0);
        let doubts: Vec<Vec<usize>> =
            stripe.iter().map(|(_, units)| doubtful(layout, units, &durable_to)).collect();
        let findings = examine(&stripe, &doubts, &self.traces, rule);
        for ((column, units), finding) in stripe.iter().zip(findings) {
            self.found.mismatches += u32::from(finding.mismatch);
            self.found.lost += finding.lost;
            self.found.undecided += u32::from(finding.undecided);
            let undecided = finding.undecided;
            for mend in finding.mends {
                if column.is_new_loss(units, &mend) {
                    self.marked.insert((mend.unit, column.offset));
                }
                let access = plan.accesses.iter().position(|a| index(a.unit) == mend.unit);
                if let Some(access) = access {
                    mends[access].push((column.offset, mend));
                }
            }
            // The others do not yield a missing block of an undecided column.
            if let Some(access) = missing.filter(|_| !undecided) {
                let mend = column.rebuild(units, index(plan.accesses[access].unit));
                newly_lost += u32::from(column.is_new_loss(units, &mend));
                rebuilt.push((column.offset, mend));
            }
        }
        if !self.repair {
            return vec![None; plan.accesses.len()];
        }
        self.found.wrote = mends.iter().any(|mends| !mends.is_empty());
        self.found.marked = self.still_marked(&stripe) + newly_lost;
        if !self.found.wrote
            && let Some(access) = missing
        {
            mends[access] = rebuilt;
        }
        mends.iter().map(|mends| self.blocks(layout, stamp, mends)).collect()
    }

    /// The first wanted write that is not there. Blocks of missing devices are not judged.
    fn missing(&self, stripe: &[(Column<'_>, Vec<Seen>)]) -> Option<(u16, u32)> {
        let is_missing = |wanted: &&Wanted| {
            let Some((_, units)) = stripe.get(wanted.column as usize) else { return true };
            match &units[usize::from(wanted.unit)] {
                Seen::Absent => false,
                Seen::There { header, .. } => header.lost || header.stamp < wanted.stamp,
                Seen::Torn | Seen::Unreadable => true,
            }
        };
        self.wanted.iter().find(is_missing).map(|wanted| (wanted.unit, wanted.column))
    }

    /// Two units of the stripe are missing, and this one is rebuilt: its data are lost, and so are those of the other. Parity
    /// says so of the other. All is written at once, and comes out the same if it is done again.
    fn make_do(
        &mut self,
        layout: &Layout,
        plan: &Plan,
        stripe: &[(Column<'_>, Vec<Seen>)],
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
            let unit = match access.unit {
                Unit::Data(unit) => usize::from(unit),
                Unit::Parity => usize::from(layout.data),
            };
            let mends = (0..).zip(&columns).filter_map(|(offset, mends)| {
                mends.iter().find(|mend| mend.unit == unit).map(|mend| (offset, mend.clone()))
            });
            self.blocks(layout, stamp, &mends.collect::<Vec<_>>())
        });
        all.collect()
    }

    /// The blocks that this repair has marked, and that nobody has written anew since.
    fn still_marked(&self, stripe: &[(Column<'_>, Vec<Seen>)]) -> u32 {
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
        let mut lost = Vec::new();
        let mut count = 0;
        for ((_, mend), _) in run {
            data.extend_from_slice(&mend.data);
            if mend.lost || !mend.lost_data.is_empty() {
                lost.push(Lost { index: count, itself: mend.lost, data: mend.lost_data });
            }
            count += 1;
        }
        let extent = plan::extent(layout, self.stripe, &(*first..first + count));
        Some(Blocks { extent, data: data.freeze(), header, lost })
    }
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
    use crate::{Change, Redundancy};

    #[test]
    fn a_repair_writes_also_what_is_being_rebuilt() {
        let layout = Layout {
            redundancy: Redundancy::Raid5,
            data: 2,
            groups: 1,
            unit: 2,
            block_size: 16,
            stripes: 2,
        };
        let device = layout.data(0, 1);
        let failed = ArrayState::new(3).changed(Change::Fail(device, 0)).unwrap().unwrap();
        let rebuilding = failed.changed(Change::Rebuild(device)).unwrap().unwrap();
        let (past, found) = (Past::Nobody, Found::default());
        let (traces, rule, marked) = (Vec::new(), Rule::Leave, BTreeSet::new());
        let wanted = Vec::new();
        let mut pass =
            Pass { stripe: 0, repair: true, rule, onto: None, past, traces, wanted, marked, found };
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
}
