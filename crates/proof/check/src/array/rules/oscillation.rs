//! No oscillation. A write without an answer (its host crashed, or gave up) may be visible or not, sector by sector. But a value
//! that was seen stays (docs/design/array.md 1 and 4).

use crate::array::register::Fault;
use crate::array::report::Counts;
use crate::array::rules::{Found, Rule, Seen};

/// The rule that a seen value stays.
#[derive(Clone, Copy, Debug)]
pub struct Oscillation;

impl Rule for Oscillation {
    fn name(&self) -> &'static str {
        "oscillation"
    }

    fn judge(&self, seen: &Seen<'_>, _: &mut Counts) -> Found {
        let found = seen.registers.iter().filter(|finding| finding.fault == Fault::Back);
        let violations = found.map(|f| {
            let what = format!(
                "{} was {:#x} again, for {}, after {:#x} had been seen there",
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
