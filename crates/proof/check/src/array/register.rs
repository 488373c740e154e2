//! Each sector of the array by itself, as applications see it: a register that is written and read.
//!
//! Each value has a time: from the first answer that shows it to the last call that still finds it. If the times of two
//! values overlap, each was seen after the other. If a value's time is within another value's time, it was seen between
//! two sights of that. See Gibbons and Korach, *Testing shared memories*, for values that are written once. The check
//! needs no devices. It holds across crashes of hosts, of devices, and of power.
//!
//! Devices write whole blocks. So the sectors of a block that one operation writes change together, also if it was never answered.

use std::collections::BTreeMap;

use lockify_history::array::Tag;

use crate::array::run::{Op, Run, What};

/// Why a sector is no register.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The kind of fault.
    pub fault: Fault,
    /// The sector of the array.
    pub sector: u64,
    /// The operation that shows it, by index.
    pub shown_by: usize,
    /// Lines that led to it.
    pub lines: Vec<u64>,
    /// The value that was read.
    pub tag: Tag,
    /// The value that was there, or should have been.
    pub other: Tag,
    /// The losses that would permit that; each one would explain it.
    losses: Vec<Loss>,
}

/// A loss after which an older value is there again.
#[derive(Clone, Copy, Debug)]
struct Loss {
    /// The write that was lost, by index.
    write: usize,
    /// The operation that shows the older value, by index.
    shown_by: usize,
}

/// The kind of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A value that nobody wrote there, or only afterwards.
    Unwritten,
    /// A write was answered, and the value before it is read after that.
    Undone,
    /// A write that was not answered was seen, and the value before it is read after that.
    Back,
    /// A block has a part of a write, and beside it what that write has replaced.
    Mixed,
}

/// A value of a sector.
#[derive(Default, Debug)]
struct Value {
    /// Line of the call of its write, and of its answer if it was answered well.
    written: Option<(u64, Option<u64>)>,
    /// The operation that writes it, by index.
    writer: Option<usize>,
    /// More than one operation writes it: nothing can be told.
    ambiguous: bool,
    /// The first line that shows that it was there.
    first_seen: Option<u64>,
    /// The last call that finds it, and whose it is.
    last_call: (u64, usize),
}

/// All sectors' findings, and how many values were judged. Nothing is said of sectors that were written in part.
pub fn judge(run: &Run) -> (Vec<Finding>, u64) {
    let mut sectors: BTreeMap<u64, BTreeMap<Tag, Value>> = BTreeMap::new();
    let mut findings = Vec::new();
    for (index, op) in run.ops.iter().enumerate() {
        let What::Write(tags) = &op.what else { continue };
        for (sector, tag) in (op.start..).zip(tags) {
            let values = sectors.entry(sector).or_default();
            let value = values.entry(*tag).or_default();
            value.ambiguous |= value.written.is_some() || *tag == 0;
            let done = op.answer.as_ref().filter(|answer| answer.error.is_none());
            value.writer = Some(index);
            value.written = Some((op.line, done.map(|answer| answer.line)));
            value.first_seen = done.map(|answer| answer.line);
            value.last_call = (op.line, index);
        }
    }
    for (index, op) in run.ops.iter().enumerate().filter(|(_, op)| op.is_done()) {
        let Some(answer) = op.answer.as_ref().filter(|_| op.what == What::Read) else { continue };
        for (sector, &tag) in (op.start..).zip(&answer.tags) {
            let values = sectors.entry(sector).or_default();
            if tag == 0 {
                // The first content, as if it had been written before everything.
                values.entry(0).or_default().written.get_or_insert((0, Some(0)));
            }
            findings.extend(read(values.entry(tag).or_default(), index, op, sector, tag));
        }
    }
    findings.extend(mixes(run, &sectors));
    findings.retain(|finding| !run.partial.contains(&finding.sector));
    let mut judged = 0;
    for (&sector, values) in sectors.iter_mut().filter(|(sector, _)| !run.partial.contains(sector))
    {
        if let Some(first) = values.get_mut(&0) {
            first.first_seen = Some(0);
        }
        judged += values.len() as u64;
        findings.extend(overlaps(sector, values));
    }
    if run.volatile {
        findings.retain(|finding| !may_be_lost(run, finding));
    }
    (findings, judged)
}

fn read(value: &mut Value, index: usize, op: &Op, sector: u64, tag: Tag) -> Option<Finding> {
    let answered = op.answer.as_ref().map_or(op.line, |answer| answer.line);
    let unwritten = match value.written {
        None => true,
        Some((called, _)) => called > answered && !value.ambiguous,
    };
    if unwritten {
        let lines = vec![op.line, answered];
        let fault = Fault::Unwritten;
        return Some(Finding {
            fault,
            sector,
            shown_by: index,
            lines,
            tag,
            other: 0,
            losses: Vec::new(),
        });
    }
    value.first_seen = Some(value.first_seen.map_or(answered, |line| line.min(answered)));
    value.last_call = value.last_call.max((op.line, index));
    None
}

/// A sector as a read shows it, if its value has one writer. The first content has none.
struct Shown {
    sector: u64,
    tag: Tag,
    writer: Option<usize>,
}

/// Blocks that a read shows as a mix, at most one sector of each.
fn mixes(run: &Run, values: &BTreeMap<u64, BTreeMap<Tag, Value>>) -> Vec<Finding> {
    let shown = |(sector, &tag): (u64, &Tag)| {
        let value = values.get(&sector)?.get(&tag)?;
        let known = !value.ambiguous && value.written.is_some() && !run.partial.contains(&sector);
        known.then_some(Shown { sector, tag, writer: value.writer })
    };
    let mut findings = Vec::new();
    for (index, op) in run.ops.iter().enumerate().filter(|(_, op)| op.is_done()) {
        let Some(answer) = op.answer.as_ref().filter(|_| op.what == What::Read) else { continue };
        let shown: Vec<Shown> = (op.start..).zip(&answer.tags).filter_map(shown).collect();
        for block in
            shown.chunk_by(|a, b| run.layout.block_of(a.sector) == run.layout.block_of(b.sector))
        {
            let pairs = block.iter().flat_map(|new| block.iter().map(move |old| (new, old)));
            let mix = pairs.into_iter().find_map(|(new, old)| {
                let replaced = replaced(run, new, old)?;
                let write = new.writer.map_or(0, |write| run.ops[write].line);
                Some((write, old, replaced))
            });
            findings.extend(mix.map(|(write, old, replaced)| Finding {
                fault: Fault::Mixed,
                sector: old.sector,
                shown_by: index,
                lines: vec![write, op.line, answer.line],
                tag: old.tag,
                other: replaced,
                losses: Vec::new(),
            }));
        }
    }
    findings
}

/// What the write of `new` has put in the place of `old`, a sector of the same block; `None` if `old` may have come afterwards.
fn replaced(run: &Run, new: &Shown, old: &Shown) -> Option<Tag> {
    let write = &run.ops[new.writer?];
    let replaced = write.writes(old.sector).filter(|tag| *tag != old.tag)?;
    let is_before = old.writer.is_none_or(|earlier| {
        let earlier = &run.ops[earlier];
        let answered = earlier.answer.as_ref().filter(|_| earlier.is_done());
        // Had it come afterwards, it would have replaced both.
        earlier.writes(new.sector).is_some_and(|tag| tag != new.tag)
            || answered.is_some_and(|answer| answer.line < write.line)
    });
    is_before.then_some(replaced)
}

/// A value, from the first line that shows it to the last call that finds it.
struct Zone<'a> {
    from: u64,
    to: u64,
    tag: Tag,
    value: &'a Value,
}

fn overlaps(sector: u64, values: &BTreeMap<Tag, Value>) -> Vec<Finding> {
    let seen = values.iter().filter(|(_, value)| !value.ambiguous && value.written.is_some());
    // Writes that were neither answered nor seen may never have happened.
    let zones = seen.filter_map(|(&tag, value)| {
        let from = value.first_seen?;
        Some(Zone { from, to: value.last_call.0, tag, value })
    });
    let (mut long, brief): (Vec<_>, Vec<_>) = zones.partition(|zone| zone.from < zone.to);
    long.sort_by_key(|zone| zone.from);
    let mut findings = Vec::new();
    let mut longest: Option<&Zone<'_>> = None;
    for zone in &long {
        if let Some(before) = longest.filter(|before| zone.from < before.to) {
            findings.push(finding(sector, before, zone));
        }
        if longest.is_none_or(|before| before.to < zone.to) {
            longest = Some(zone);
        }
    }
    for zone in &brief {
        // All that shows or finds it lies between `to` and `from`.
        let place = long.partition_point(|other| other.from < zone.to);
        let around = place.checked_sub(1).map(|i| &long[i]).filter(|other| zone.from < other.to);
        findings.extend(around.map(|around| finding(sector, around, zone)));
    }
    findings
}

/// Returns true if a loss that is permitted explains a finding.
fn may_be_lost(run: &Run, finding: &Finding) -> bool {
    let block = run.layout.block_of(finding.sector);
    finding.losses.iter().any(|loss| run.may_lose(loss.write, block, &run.ops[loss.shown_by]))
}

/// Of two values that were each seen after the other, the one that was found last came back. A read that finds the other one
/// may have waited until after that. Then the other one came back.
fn finding(sector: u64, a: &Zone<'_>, b: &Zone<'_>) -> Finding {
    let (back, gone) = if a.to > b.to { (a, b) } else { (b, a) };
    let answered = gone.value.written.and_then(|(_, answered)| answered);
    let undone = answered.is_some_and(|answered| answered < back.to);
    let mut lines = vec![back.from, gone.from, back.to];
    lines.retain(|line| *line != 0);
    let losses =
        [(back, gone), (gone, back)].into_iter().filter_map(|(back, gone)| loss(back, gone));
    Finding {
        fault: if undone { Fault::Undone } else { Fault::Back },
        sector,
        shown_by: back.value.last_call.1,
        lines,
        tag: back.tag,
        other: gone.tag,
        losses: losses.collect(),
    }
}

/// The loss of one value that would let an older one come back; none if that may not have been there before.
fn loss(back: &Zone<'_>, gone: &Zone<'_>) -> Option<Loss> {
    let is_older = back.value.written.is_some_and(|(called, _)| called < gone.from);
    let write = gone.value.writer.filter(|_| is_older)?;
    Some(Loss { write, shown_by: back.value.last_call.1 })
}
