//! Serializability. There is an order of the operations, one after the other, that explains the accesses of each device to
//! each block (docs/design/array.md 4).

use crate::array::report::Counts;
use crate::array::rules::{Found, Rule, Seen};

/// The conflict graph has no circle.
#[derive(Clone, Copy, Debug)]
pub struct Serializable;

impl Rule for Serializable {
    fn name(&self) -> &'static str {
        "serializable"
    }

    fn judge(&self, seen: &Seen<'_>, counts: &mut Counts) -> Found {
        if seen.run.blocks.is_empty() {
            return Err("no `devread` and `devwrite` events");
        }
        if seen.run.may_lose_writes() {
            return Err("devices do not say which writes they have lost");
        }
        counts.conflicts = seen.graph.edges.len() as u64;
        let violations = seen.graph.circles().into_iter().map(|circle| {
            let mut lines = Vec::new();
            let mut steps = Vec::new();
            for (i, &from) in circle.iter().enumerate() {
                let to = circle[(i + 1) % circle.len()];
                if let Some(why) = seen.graph.edges.get(&(from, to)) {
                    lines.extend(why.lines);
                    let (device, block) = why.at;
                    let from = seen.graph.name(seen.run, from);
                    steps
                        .push(format!("{from} (before the next at device {device} block {block})"));
                }
            }
            let what = format!("no serial order: {}", steps.join(", "));
            seen.violation(self.name(), lines, what)
        });
        Ok(violations.collect())
    }
}
