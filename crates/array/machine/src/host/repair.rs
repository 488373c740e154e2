//! One pass of a repair over one stripe. It is a storage transaction that reads all columns of the stripe from all devices
//! that have them. It writes the blocks that [`crate::recovery::column`] decides.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use crate::message::{Blocks, Content, Doubt, Flaw, Past};
use crate::plan::{self, Access, Method, Plan, StripePlan, Unit};
use crate::recovery::column::{Column, Mend, Rule, Seen, Trace, examine, mended};
use crate::{ArrayState, BlockError, DeviceId, Header, HostAnswer, Layout, Life, OpError, Stamp};

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
    pub found: Found,
}

/// The findings and actions of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Found {
    pub mismatches: u32,
    pub lost: u32,
    /// Columns of which nobody knows which block is right.
    pub undecided: u32,
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
        Pass { stripe, repair: true, rule, onto: None, past, traces, found }
    }

    pub fn plan(&self, layout: &Layout, state: &ArrayState) -> Result<Plan, OpError> {
        let columns = 0..layout.unit;
        if plan::missing_units(layout, state, self.stripe) > 1 {
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
        self.found = Found::default();
        let rule = self.rule(contents);
        for ((column, units), finding) in stripe.iter().zip(examine(&stripe, &self.traces, rule)) {
            self.found.mismatches += u32::from(finding.mismatch);
            self.found.lost += finding.lost;
            self.found.undecided += u32::from(finding.undecided);
            let undecided = finding.undecided;
            for mend in finding.mends {
                let access = plan.accesses.iter().position(|a| index(a.unit) == mend.unit);
                if let Some(access) = access {
                    mends[access].push((column.offset, mend));
                }
            }
            // The others do not yield a missing block of an undecided column.
            if let Some(access) = missing.filter(|_| !undecided) {
                let unit = index(plan.accesses[access].unit);
                rebuilt.push((column.offset, column.rebuild(units, unit)));
            }
        }
        if !self.repair {
            return vec![None; plan.accesses.len()];
        }
        self.found.wrote = mends.iter().any(|mends| !mends.is_empty());
        if !self.found.wrote
            && let Some(access) = missing
        {
            mends[access] = rebuilt;
        }
        let header = mended(stamp);
        mends.iter().map(|mends| self.blocks(layout, header, mends)).collect()
    }

    /// The first run of columns; a later pass finds the others.
    fn blocks(&self, layout: &Layout, header: Header, mends: &[(u32, Mend)]) -> Option<Blocks> {
        let (first, _) = mends.first()?;
        let run = mends.iter().zip(*first..).take_while(|((offset, _), next)| offset == next);
        let mut data = BytesMut::new();
        let mut lost = Vec::new();
        let mut count = 0;
        for ((_, mend), _) in run {
            data.extend_from_slice(&mend.data);
            if mend.lost {
                lost.push(count);
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
        let (traces, rule) = (Vec::new(), Rule::Leave);
        let mut pass = Pass { stripe: 0, repair: true, rule, onto: None, past, traces, found };
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
