//! INV-4. An EX or PW lock is weakened only when all earlier claims of its node are settled. A lock
//! whose object is being freed is exempt.
//!
//! A history shows the call of the weakening. It shows the begin and end of its wait behind the
//! barrier (`barrier` events), and its completion. The lock was weakened after the wait, if there
//! was one. If the history has `barrier` events, an operation without a wait took effect at its
//! call. If it has none, the operation took effect at some time before its completion.

use hashbrown::HashMap;
use lockify_history::{Flags, Kind, Mode, SbFlags};

use crate::invariant::{Counts, End, Field, Invariant, Seen, Violation};
use crate::state::{LockKey, is_unlocked};

const NAME: &str = "barrier";

/// Conversions that may come out weaker than they went in.
const MAY_WEAKEN: Flags = Flags::CONVDEADLK.union(Flags::ALTPR).union(Flags::ALTCW);

#[derive(Clone, Copy, Debug)]
struct Weakening {
    line: u64,
    /// Claims made before it: those with a smaller sequence number.
    claims: u64,
    /// The line of a claim that was unsettled when it was called.
    unsettled: Option<u64>,
    /// The mode that it started from.
    from: Mode,
    waited: bool,
    recoveries: u64,
}

/// INV-4: earlier claims are settled before a lock is weakened.
#[derive(Default, Debug)]
pub struct Barrier {
    pending: HashMap<LockKey, Weakening>,
    recoveries: u64,
}

impl Invariant for Barrier {
    fn name(&self) -> &'static str {
        NAME
    }

    fn needs(&self) -> &'static [Field] {
        &[Field::Claim, Field::Grant]
    }

    fn wants(&self) -> &'static [(Field, &'static str)] {
        &[(
            Field::Barrier,
            "weakenings that completed after the claims were settled, but were done before",
        )]
    }

    fn observe(&mut self, seen: &Seen<'_>, _: &mut Counts) -> Result<(), Violation> {
        match seen.event.kind {
            Kind::Convert | Kind::Unlock => {
                self.call(seen);
                Ok(())
            }
            Kind::Barrier => self.wait(seen),
            Kind::Grant | Kind::Complete => self.complete(seen),
            Kind::View | Kind::Recover => {
                self.recoveries += 1;
                Ok(())
            }
            Kind::Crash | Kind::Leave => {
                self.recoveries += 1;
                self.pending.retain(|key, _| key.life != seen.life);
                Ok(())
            }
            Kind::Lost => {
                seen.key.and_then(|key| self.pending.remove(&key));
                Ok(())
            }
            Kind::Gone => {
                let client = seen.event.client.as_deref().unwrap_or_default();
                for (key, _) in seen.state.locks_of(seen.life, client) {
                    self.pending.remove(&key);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, _: &End<'_>, _: &mut Counts) -> Vec<Violation> {
        Vec::new()
    }
}

impl Barrier {
    fn call(&mut self, seen: &Seen<'_>) {
        let (Some(key), Some(lock)) = (seen.key, seen.lock) else {
            return;
        };
        let Some(granted) = lock.granted.filter(|mode| mode.writes() && !lock.lost) else {
            return;
        };
        let event = seen.event;
        if event.freed || event.flags.contains(Flags::FREED) {
            return;
        }
        let weakens = event.kind == Kind::Unlock || event.mode.is_some_and(|to| to < granted);
        if !weakens && !event.flags.intersects(MAY_WEAKEN) {
            return;
        }
        let unsettled = seen.state.claims(key.life).and_then(|c| c.oldest()).map(|c| c.line);
        self.pending.insert(
            key,
            Weakening {
                line: seen.line,
                claims: seen.state.claims_made(),
                unsettled,
                from: granted,
                waited: false,
                recoveries: self.recoveries,
            },
        );
    }

    fn wait(&mut self, seen: &Seen<'_>) -> Result<(), Violation> {
        let Some(weakening) = seen.key.and_then(|key| self.pending.get_mut(&key)) else {
            return Ok(());
        };
        weakening.waited = true;
        match seen.event.waits {
            Some(false) => judge(seen, weakening),
            _ => Ok(()),
        }
    }

    fn complete(&mut self, seen: &Seen<'_>) -> Result<(), Violation> {
        let Some(key) = seen.key else { return Ok(()) };
        let Some(weakening) = self.pending.get(&key).copied() else {
            return Ok(());
        };
        let ends_it =
            is_unlocked(seen.event) || seen.op.is_some_and(|op| op.line == weakening.line);
        if !ends_it {
            return Ok(());
        }
        self.pending.remove(&key);
        // The mode after a conversion shows its effect.
        let weakened = is_unlocked(seen.event)
            || seen.event.sb_flags.contains(SbFlags::DEMOTED)
            || seen.event.mode.is_some_and(|mode| mode < weakening.from);
        if !weakened || weakening.waited {
            return Ok(());
        }
        judge(seen, &weakening)?;
        // Operations that were called during a recovery wait for its end, and need no barrier then.
        let undisturbed = weakening.recoveries == self.recoveries;
        match weakening.unsettled {
            Some(claim) if seen.fields.has(Field::Barrier) && undisturbed => {
                let what = format!(
                    "{key} was weakened without waiting, although a claim of its node was unsettled"
                );
                Err(seen.violation(NAME, [claim, weakening.line], what))
            }
            _ => Ok(()),
        }
    }
}

/// The weakening is done now: every claim made before it must be settled.
fn judge(seen: &Seen<'_>, weakening: &Weakening) -> Result<(), Violation> {
    let oldest = seen.state.claims(seen.life).and_then(|claims| claims.oldest());
    match oldest.filter(|claim| claim.seq < weakening.claims) {
        None => Ok(()),
        Some(claim) => {
            let lock = seen.key.map(|key| key.to_string()).unwrap_or_default();
            let what = format!(
                "{lock} was weakened while the earlier claim for {:?} of its node was unsettled",
                claim.resource
            );
            Err(seen.violation(NAME, [claim.line, weakening.line], what))
        }
    }
}
