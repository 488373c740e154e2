//! Fencing: once a life of a host is fenced at a device, its writes no longer take effect there
//! (docs/design/array.md 3.2).

use crate::array::report::Counts;
use crate::array::rules::{Found, Rule, Seen};
use crate::array::run::Did;

/// Fenced lives write nothing.
#[derive(Clone, Copy, Debug)]
pub struct Fencing;

impl Rule for Fencing {
    fn name(&self) -> &'static str {
        "fencing"
    }

    fn judge(&self, seen: &Seen<'_>, counts: &mut Counts) -> Found {
        let run = seen.run;
        counts.fenced = run.fenced.len() as u64;
        let mut violations = Vec::new();
        for (&(device, block), accesses) in &run.blocks {
            for access in accesses.iter().filter(|access| matches!(access.did, Did::Write(_))) {
                let by = run.tries[access.attempt].by;
                let Some(&fenced) = run.fenced.get(&(device, by)) else { continue };
                if fenced < access.line {
                    let what = format!(
                        "device {device} wrote block {block} for {by}, which was fenced there"
                    );
                    violations.push(seen.violation(self.name(), vec![fenced, access.line], what));
                }
            }
        }
        Ok(violations)
    }
}
