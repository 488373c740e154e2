//! Durability: a write that was answered is never followed by an older value, whatever crashes (docs/design/array.md 4).

use crate::array::register::Fault;
use crate::array::report::Counts;
use crate::array::rules::{Found, Rule, Seen};

/// The rule that an answered write stays.
#[derive(Clone, Copy, Debug)]
pub struct Durability;

impl Rule for Durability {
    fn name(&self) -> &'static str {
        "durability"
    }

    fn judge(&self, seen: &Seen<'_>, _: &mut Counts) -> Found {
        let found = seen.registers.iter().filter(|finding| finding.fault == Fault::Undone);
        let violations = found.map(|f| {
            let what = format!(
                "{} was {:#x} again, for {}, after the write of {:#x} had been answered",
                seen.run.layout.name_of(f.sector),
                f.tag,
                seen.run.ops[f.shown_by],
                f.other
            );
            seen.violation(self.name(), f.lines.clone(), what)
        });
        Ok(violations.collect())
    }
}
