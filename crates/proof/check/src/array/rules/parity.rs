//! Parity at rest. At the end, all units of a stripe make zero by XOR, except where content is marked as
//! lost (docs/design/array.md 4). In a mirror, both copies are equal.

use std::collections::BTreeMap;

use crate::array::report::Counts;
use crate::array::rules::{Found, Rule, Seen};
use crate::array::run::Dumped;

/// The redundancy fits.
#[derive(Clone, Copy, Debug)]
pub struct Parity;

impl Rule for Parity {
    fn name(&self) -> &'static str {
        "parity"
    }

    fn judge(&self, seen: &Seen<'_>, counts: &mut Counts) -> Found {
        let run = seen.run;
        if run.dumped.is_empty() {
            return Err("no `dump` events");
        }
        // A column: one block of each device of a group.
        let mut columns: BTreeMap<(u16, u64), Vec<&Dumped>> = BTreeMap::new();
        for (&(device, block), dumped) in &run.dumped {
            columns.entry((device / run.layout.members(), block)).or_default().push(dumped);
        }
        let mut violations = Vec::new();
        for ((group, block), column) in columns {
            if column.len() < usize::from(run.layout.members()) {
                counts.columns_not_judged += 1;
                continue;
            }
            if column.iter().any(|dumped| dumped.lost) {
                counts.columns_lost += 1;
                continue;
            }
            counts.columns += 1;
            let mut sum = vec![0_u8; column.iter().map(|d| d.bytes.len()).max().unwrap_or(0)];
            for dumped in &column {
                sum.iter_mut().zip(&dumped.bytes).for_each(|(sum, byte)| *sum ^= byte);
            }
            if sum.iter().any(|byte| *byte != 0) {
                let stripe = run.layout.stripe(group * run.layout.members(), block);
                let lines = column.iter().map(|dumped| dumped.line).collect();
                let what =
                    format!("stripe {stripe}, block {block} of its devices: parity does not fit");
                violations.push(seen.violation(self.name(), lines, what));
            }
        }
        Ok(violations)
    }
}
