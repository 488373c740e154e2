//! Reads. For each of its sectors, a read returns the last write before it, in the serial order of all operations
//! (docs/design/array.md 4).
//!
//! An operation may have written a sector without a good answer. The sector then has two values, until one is read or the
//! sector is written anew.

use std::collections::BTreeMap;

use lockify_history::array::Tag;

use crate::array::graph::Transaction;
use crate::array::register::{Fault, Finding};
use crate::array::report::Counts;
use crate::array::rules::{Found, Rule, Seen};
use crate::array::run::{Op, What};
use crate::invariant::Violation;

/// Reads return the last write.
#[derive(Clone, Copy, Debug)]
pub struct Reads;

/// The possible content of sectors.
#[derive(Default)]
struct Model {
    /// The values of each sector that was written.
    values: BTreeMap<u64, Vec<Tag>>,
    /// Values of writes of which it is not known when they happened, if at all.
    whenever: BTreeMap<u64, Vec<Tag>>,
}

impl Rule for Reads {
    fn name(&self) -> &'static str {
        "reads"
    }

    fn judge(&self, seen: &Seen<'_>, counts: &mut Counts) -> Found {
        let mut violations = self.unwritten(seen);
        // Without an order, `serializable` says so. Without events of devices, the order is not known, and this is all.
        let Some(order) = seen.graph.serial_order() else { return Ok(violations) };
        // `durability` judges each block by itself.
        if seen.run.may_lose_writes() {
            return Ok(violations);
        }
        let mut model = Model::default();
        // Uncertain writes have no place in the order: a read may show them at any time.
        for &(attempt, device, block) in &seen.graph.uncertain {
            for (sector, tag) in written(seen, attempt, device, block) {
                model.whenever.entry(sector).or_default().push(tag);
            }
        }
        for id in order {
            let op = match seen.graph.nodes[id as usize].what {
                Transaction::Part(attempt, device, block) => {
                    model.may_have_written(written(seen, attempt, device, block));
                    continue;
                }
                Transaction::Whole(index) => &seen.run.ops[index],
            };
            match &op.what {
                What::Write(tags) => {
                    let new = (op.start..).zip(tags);
                    model.values.extend(new.map(|(sector, tag)| (sector, vec![*tag])));
                }
                What::Read => violations.extend(self.judge_read(seen, op, &mut model, counts)),
                What::Flush | What::Repair => {}
            }
        }
        Ok(violations)
    }
}

impl Reads {
    /// Reads of what nobody had written, or of a block that no write has left so.
    fn unwritten(self, seen: &Seen<'_>) -> Vec<Violation> {
        let of = |finding: &&Finding| matches!(finding.fault, Fault::Unwritten | Fault::Mixed);
        let violation = |f: &Finding| {
            let reader = &seen.run.ops[f.shown_by];
            let place = seen.run.layout.name_of(f.sector);
            let what = match f.fault {
                Fault::Mixed => format!(
                    "{reader} got {:#x} at {place} beside a part of the write that replaced it by {:#x}",
                    f.tag, f.other
                ),
                _ => format!("{reader} got {:#x} at {place}, which nobody had written", f.tag),
            };
            seen.violation(self.name(), f.lines.clone(), what)
        };
        seen.registers.iter().filter(of).map(violation).collect()
    }

    fn judge_read(
        self,
        seen: &Seen<'_>,
        op: &Op,
        model: &mut Model,
        counts: &mut Counts,
    ) -> Vec<Violation> {
        let answer = op.answer.as_ref().map_or(&[][..], |answer| &answer.tags);
        let mut violations = Vec::new();
        let known = |(sector, _): &(u64, &Tag)| !seen.run.partial.contains(sector);
        for (sector, &tag) in (op.start..).zip(answer).filter(known) {
            counts.sectors_read += 1;
            let Some(expected) = model.read(sector, tag) else { continue };
            let place = seen.run.layout.name_of(sector);
            let what = format!(
                "{op} got {tag:#x} at {place}; the last write before it wrote {expected:#x}"
            );
            let answered = op.answer.iter().map(|answer| answer.line);
            let lines = answered.chain([op.line]).collect();
            violations.push(seen.violation(self.name(), lines, what));
        }
        violations
    }
}

impl Model {
    /// A write had no good answer: each sector has one more possible value.
    fn may_have_written(&mut self, written: Vec<(u64, Tag)>) {
        for (sector, tag) in written {
            self.values.entry(sector).or_insert_with(|| vec![0]).push(tag);
        }
    }

    /// Reads a sector; returns the expected value, if it is another.
    fn read(&mut self, sector: u64, tag: Tag) -> Option<Tag> {
        let values = self.values.entry(sector).or_insert_with(|| vec![0]);
        if values.contains(&tag) {
            // A read decides which value the sector has from then on.
            *values = vec![tag];
            return None;
        }
        let whenever = self.whenever.get(&sector).is_some_and(|tags| tags.contains(&tag));
        (!whenever).then(|| values.last().copied().unwrap_or(0))
    }
}

/// The array's sectors that depend on a try's write to a device's block, including parity, and their new values.
fn written(seen: &Seen<'_>, attempt: usize, device: u16, block: u64) -> Vec<(u64, Tag)> {
    let Some(op) = seen.run.tries[attempt].op.map(|op| &seen.run.ops[op]) else {
        return Vec::new();
    };
    let layout = &seen.run.layout;
    let sectors = layout.column(device, block).flat_map(|block| layout.sectors_of(block));
    sectors.filter_map(|sector| Some((sector, op.writes(sector)?))).collect()
}
