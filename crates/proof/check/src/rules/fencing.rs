//! Fencing tokens grow. Every final grant of PW or EX has a larger token than all earlier ones of
//! its resource. This holds across vanished and re-created resources, other masters, and recovery.
//! A provisional grant is exempt. The token with which it becomes final (`settled`) is not.
//!
//! PW and EX exclude each other, so the order of delivery is the order of the grants.
//!
//! Tokens have to be remembered longer than their resource lives. To bound memory, the rule forgets
//! the least recently used ones beyond a limit, and counts them.

use hashbrown::HashMap;
use lockify_history::{Kind, Mode, Resource};

use crate::invariant::{Counts, End, Field, Invariant, Seen, Violation};
use crate::state::OpKind;

const NAME: &str = "fencing";

#[derive(Clone, Copy, Debug)]
struct Last {
    token: u64,
    line: u64,
}

/// Fencing tokens grow.
#[derive(Debug)]
pub struct Fencing {
    /// Tokens of two generations. When the young one is full, it becomes the old one, and tokens
    /// without a use since then are forgotten.
    young: HashMap<Resource, Last>,
    old: HashMap<Resource, Last>,
    limit: usize,
}

impl Fencing {
    /// The rule, remembering at least this many resources.
    pub fn new(remembered: usize) -> Fencing {
        Fencing { young: HashMap::new(), old: HashMap::new(), limit: remembered.max(1) }
    }

    fn replace(&mut self, resource: &Resource, last: Last, counts: &mut Counts) -> Option<Last> {
        if let Some(before) = self.young.get_mut(resource) {
            return Some(std::mem::replace(before, last));
        }
        let before = self.old.remove(resource);
        if self.young.len() >= self.limit {
            counts.tokens_forgotten += self.old.len() as u64;
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(resource.clone(), last);
        before
    }
}

impl Invariant for Fencing {
    fn name(&self) -> &'static str {
        NAME
    }

    fn needs(&self) -> &'static [Field] {
        &[Field::Grant, Field::Token]
    }

    fn observe(&mut self, seen: &Seen<'_>, counts: &mut Counts) -> Result<(), Violation> {
        let (Some(mode), Some(token)) = (final_mode(seen), seen.event.token) else {
            return Ok(());
        };
        let Some(resource) = seen.resource().filter(|_| mode.writes()) else {
            return Ok(());
        };
        if token == 0 {
            let what = format!("{resource:?}: a grant of {mode} carries no fencing token");
            return Err(seen.violation(NAME, [], what));
        }
        counts.tokens += 1;
        let now = Last { token, line: seen.line };
        match self.replace(resource, now, counts) {
            Some(before) if before.token >= token => {
                let what = format!(
                    "{resource:?}: token {token} of a grant of {mode} is not larger than {}, the one before",
                    before.token
                );
                Err(seen.violation(NAME, [before.line], what))
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, _: &End<'_>, _: &mut Counts) -> Vec<Violation> {
        Vec::new()
    }
}

/// The mode that becomes final with this event.
pub(super) fn final_mode(seen: &Seen<'_>) -> Option<Mode> {
    match seen.event.kind {
        // Once its release was called, a lock's token is of no use to anybody, and may be late.
        _ if seen
            .lock
            .is_some_and(|l| l.lost || l.ops.iter().any(|op| op.kind == OpKind::Unlock)) =>
        {
            None
        }
        Kind::Grant if !seen.event.provisional => seen.event.mode,
        Kind::Settled => seen.lock.filter(|l| l.provisional).and_then(|l| l.granted),
        _ => None,
    }
}
