//! No completion is lost or doubled: every accepted operation completes exactly once.
//!
//! The rule uses operation ids where the history has them. Otherwise it assumes one outstanding
//! operation per lock. A forced unlock and the loss of the lock end a pending operation, whose
//! completion may be absent. The rule `progress` judges operations that are merely pending at the
//! end.

use lockify_history::{Flags, Kind};

use crate::invariant::{Counts, End, Field, Invariant, Seen, Violation};
use crate::state::is_unlocked;

const NAME: &str = "completion_once";

/// No lost or doubled completion.
#[derive(Clone, Copy, Default, Debug)]
pub struct CompletionOnce;

impl Invariant for CompletionOnce {
    fn name(&self) -> &'static str {
        NAME
    }

    fn needs(&self) -> &'static [Field] {
        &[Field::Request, Field::Grant]
    }

    fn observe(&mut self, seen: &Seen<'_>, _: &mut Counts) -> Result<(), Violation> {
        match seen.event.kind {
            Kind::Request | Kind::Convert | Kind::Unlock => call(seen),
            Kind::Grant | Kind::Complete => completion(seen),
            _ => Ok(()),
        }
    }

    fn finish(&mut self, _: &End<'_>, _: &mut Counts) -> Vec<Violation> {
        Vec::new()
    }
}

/// A lock has one outstanding operation: a new call means that the old one's completion is lost.
fn call(seen: &Seen<'_>) -> Result<(), Violation> {
    let (Some(key), Some(lock)) = (seen.key, seen.lock) else {
        return Ok(());
    };
    if seen.event.flags.contains(Flags::FORCE) {
        return Ok(());
    }
    match lock.ops.iter().find(|op| !op.absorbed) {
        None => Ok(()),
        Some(op) => {
            let what = format!(
                "{key}: a new operation was accepted while the completion of its {} is missing",
                op.kind
            );
            Err(seen.violation(NAME, [op.line], what))
        }
    }
}

fn completion(seen: &Seen<'_>) -> Result<(), Violation> {
    let Some(key) = seen.key else { return Ok(()) };
    if seen.op.is_none() {
        // A history that began later cannot know the operation of a lock it never saw.
        if seen.lock.is_none() && !seen.whole {
            return Ok(());
        }
        let before = seen.lock.map(|lock| lock.line).unwrap_or(0);
        let what = format!(
            "{key}: a completion ({}) came for no outstanding operation: doubled, or never asked for",
            seen.event.kind.name()
        );
        return Err(seen.violation(NAME, [before], what));
    }
    let rest = seen.lock.into_iter().flat_map(|lock| &lock.ops);
    let mut lost =
        rest.filter(|op| !op.absorbed && seen.op.is_some_and(|done| done.line != op.line));
    match lost.next() {
        Some(op) if is_unlocked(seen.event) => {
            let what = format!("{key} is gone, but its {} never completed", op.kind);
            Err(seen.violation(NAME, [op.line], what))
        }
        _ => Ok(()),
    }
}
