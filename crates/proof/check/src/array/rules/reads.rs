//! Reads. For each of its blocks, a read returns the last write before it, in the serial order of all operations
//! (docs/design/array.md 4).
//!
//! An operation may have written a block without a good answer. The block then has two values, until one is read or the
//! block is written anew.

use std::collections::BTreeMap;

use lockify_history::array::Tag;

use crate::array::graph::Transaction;
use crate::array::register::Fault;
use crate::array::report::Counts;
use crate::array::rules::{Found, Rule, Seen};
use crate::array::run::What;

/// Reads return the last write.
#[derive(Clone, Copy, Debug)]
pub struct Reads;

/// The possible content of blocks.
#[derive(Default)]
struct Model {
    /// The values of each block that was written.
    values: BTreeMap<u64, Vec<Tag>>,
    /// Values of writes of which it is not known when they happened, if at all.
    whenever: BTreeMap<u64, Vec<Tag>>,
}

impl Rule for Reads {
    fn name(&self) -> &'static str {
        "reads"
    }

    fn judge(&self, seen: &Seen<'_>, counts: &mut Counts) -> Found {
        let run = seen.run;
        let unwritten = seen.registers.iter().filter(|finding| finding.fault == Fault::Unwritten);
        let mut violations: Vec<_> = unwritten
            .map(|f| {
                let reader = &run.ops[f.shown_by];
                let what = format!(
                    "{reader} got {:#x} at block {}, which nobody had written",
                    f.tag, f.block
                );
                seen.violation(self.name(), f.lines.clone(), what)
            })
            .collect();
        // Without an order, `serializable` says so. Without events of devices, the order is not known, and this is all.
        let Some(order) = seen.graph.serial_order() else { return Ok(violations) };
        let mut model = Model::default();
        // Uncertain writes have no place in the order: a read may show them at any time.
        for &(attempt, device, block) in &seen.graph.uncertain {
            for (block, tag) in written(seen, attempt, device, block) {
                model.whenever.entry(block).or_default().push(tag);
            }
        }
        for id in order {
            match seen.graph.nodes[id as usize].what {
                Transaction::Part(attempt, device, block) => {
                    for (block, tag) in written(seen, attempt, device, block) {
                        model.values.entry(block).or_insert_with(|| vec![0]).push(tag);
                    }
                }
                Transaction::Whole(index) => {
                    let op = &run.ops[index];
                    let answer = op.answer.as_ref().map_or(&[][..], |answer| &answer.tags);
                    match &op.what {
                        What::Write(tags) => {
                            let new = (op.start..).zip(tags);
                            model.values.extend(new.map(|(block, tag)| (block, vec![*tag])));
                        }
                        What::Read => {
                            for (block, &tag) in (op.start..).zip(answer) {
                                counts.blocks_read += 1;
                                if let Some(expected) = model.read(block, tag) {
                                    let what = format!(
                                        "{op} got {tag:#x} at block {block}; the last write before it wrote {expected:#x}"
                                    );
                                    let answered = op.answer.iter().map(|answer| answer.line);
                                    let lines = answered.chain([op.line]).collect();
                                    violations.push(seen.violation(self.name(), lines, what));
                                }
                            }
                        }
                        What::Repair => {}
                    }
                }
            }
        }
        Ok(violations)
    }
}

impl Model {
    /// Reads a block; returns the expected value, if it is another.
    fn read(&mut self, block: u64, tag: Tag) -> Option<Tag> {
        let values = self.values.entry(block).or_insert_with(|| vec![0]);
        if values.contains(&tag) {
            // A read decides which value the block has from then on.
            *values = vec![tag];
            return None;
        }
        let whenever = self.whenever.get(&block).is_some_and(|tags| tags.contains(&tag));
        (!whenever).then(|| values.last().copied().unwrap_or(0))
    }
}

/// The array's blocks that depend on a try's write to a device's block, including parity, and their new values.
fn written(seen: &Seen<'_>, attempt: usize, device: u16, block: u64) -> Vec<(u64, Tag)> {
    let Some(op) = seen.run.tries[attempt].op.map(|op| &seen.run.ops[op]) else {
        return Vec::new();
    };
    let column = seen.run.layout.column(device, block);
    column.filter_map(|block| Some((block, op.writes(block)?))).collect()
}
