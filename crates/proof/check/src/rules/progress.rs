//! Progress. Once faults have stopped, everything pending completes before the end.
//!
//! An operation may wait for a lock that a client still holds. Operations that are queued with it
//! may wait, too. These are counted. All other operations that are pending at rest are stuck. The
//! length of a wait is not judged: a history does not show the delays of its network.

use hashbrown::HashMap;
use lockify_history::{Mode, Resource};

use crate::invariant::{Counts, End, Field, Invariant, Seen, Violation};
use crate::state::{Lock, LockKey, OpKind};

const NAME: &str = "progress";

/// Everything pending completes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Progress;

impl Invariant for Progress {
    fn name(&self) -> &'static str {
        NAME
    }

    fn needs(&self) -> &'static [Field] {
        &[Field::Request, Field::Grant, Field::End]
    }

    fn observe(&mut self, _: &Seen<'_>, _: &mut Counts) -> Result<(), Violation> {
        Ok(())
    }

    fn finish(&mut self, end: &End<'_>, counts: &mut Counts) -> Vec<Violation> {
        if !end.quiet {
            return Vec::new();
        }
        let mut by_resource: HashMap<&Resource, Vec<(LockKey, &Lock)>> = HashMap::new();
        for (key, lock) in end.state.locks() {
            if let Some(resource) = &lock.resource {
                by_resource.entry(resource).or_default().push((key, lock));
            }
        }
        let mut violations = Vec::new();
        for (resource, locks) in by_resource {
            let blocked = is_blocked(&locks);
            for (key, lock) in &locks {
                for op in lock.ops.iter().filter(|op| !op.absorbed) {
                    if blocked && op.kind != OpKind::Unlock {
                        counts.blocked_at_end += 1;
                        continue;
                    }
                    let what = format!(
                        "{resource:?}: the {} of {key} never completed, and nobody holds a lock in its way",
                        op.kind
                    );
                    violations.push(end.violation(NAME, vec![op.line], what));
                }
            }
        }
        violations
    }
}

/// Returns true if a client holds a lock that others wait for.
fn is_blocked(locks: &[(LockKey, &Lock)]) -> bool {
    let held = |key: LockKey, wanted: Mode| {
        locks.iter().any(|(other, lock)| {
            *other != key && lock.held.is_some_and(|mode| !mode.compatible(wanted))
        })
    };
    locks.iter().any(|(key, lock)| {
        lock.ops.iter().filter_map(|op| op.mode).any(|wanted| held(*key, wanted))
    })
}
