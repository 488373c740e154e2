//! Liveness. When everything has come to rest, every operation of a live host has an answer. The machines keep no state for
//! any operation: no pre-writes, no queued requests, no locks (docs/design/array.md 4). The length of a wait is not judged: a
//! history does not show the delays of its network.

use crate::array::report::Counts;
use crate::array::rules::{Found, Rule, Seen};

/// Everything ends.
#[derive(Clone, Copy, Debug)]
pub struct Liveness;

impl Rule for Liveness {
    fn name(&self) -> &'static str {
        "liveness"
    }

    fn judge(&self, seen: &Seen<'_>, counts: &mut Counts) -> Found {
        let run = seen.run;
        let Some(end) = run.end else { return Err("no `end` event") };
        let open = run.ops.iter().filter(|op| op.answer.is_none());
        let (dead, stuck): (Vec<_>, Vec<_>) = open.partition(|op| run.crashed.contains_key(&op.by));
        counts.unanswered = dead.len() as u64;
        let stuck = stuck.into_iter().map(|op| {
            let what = format!("{op} was never answered");
            seen.violation(self.name(), vec![op.line, end], what)
        });
        let left = run.left.iter().filter(|(.., count, _)| *count > 0);
        let left = left.map(|(at, what, count, line)| {
            seen.violation(self.name(), vec![*line], format!("{at} still has {count} {what}"))
        });
        Ok(stuck.chain(left).collect())
    }
}
