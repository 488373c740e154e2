//! INV-2. No two incompatible locks are granted.
//!
//! A hold lasts from the delivery of a grant to the call that ends it. So a lock is really held
//! whenever the checker sees it as held. Provisional grants are exempt until their claim is
//! settled. They are counted, and none may be left at the end. A dead node's holds block until a
//! view without it has been recovered.

use hashbrown::HashMap;
use lockify_history::{Kind, Member, Mode, Resource};

use crate::invariant::{Counts, End, Field, Invariant, Seen, Violation};
use crate::state::{LockKey, OpKind, held_during, mode_kept};

const NAME: &str = "compatible_grants";

#[derive(Clone, Copy, Debug)]
struct Hold {
    key: LockKey,
    mode: Mode,
    line: u64,
    provisional: bool,
    claim: Option<u64>,
    /// The line at which its node was seen to be dead.
    dead: Option<u64>,
}

/// INV-2: no two incompatible grants at one time.
#[derive(Default, Debug)]
pub struct CompatibleGrants {
    holds: HashMap<Resource, Vec<Hold>>,
    dead: usize,
}

impl Invariant for CompatibleGrants {
    fn name(&self) -> &'static str {
        NAME
    }

    fn needs(&self) -> &'static [Field] {
        &[Field::Grant]
    }

    fn wants(&self) -> &'static [(Field, &'static str)] {
        &[(Field::End, "whether provisional grants were left at the end")]
    }

    fn observe(&mut self, seen: &Seen<'_>, counts: &mut Counts) -> Result<(), Violation> {
        match seen.event.kind {
            Kind::Grant => self.grant(seen, counts),
            Kind::Complete => self.complete(seen, counts),
            Kind::Convert => {
                self.convert(seen);
                Ok(())
            }
            Kind::Unlock | Kind::Lost => {
                self.release_seen(seen);
                Ok(())
            }
            Kind::Settled | Kind::Confirm | Kind::Merge => self.settle(seen, counts),
            Kind::Gone => {
                let client = seen.event.client.as_deref().unwrap_or_default();
                for (key, lock) in seen.state.locks_of(seen.life, client) {
                    if let Some(resource) = &lock.resource {
                        self.release(resource, key);
                    }
                }
                Ok(())
            }
            Kind::Crash => {
                self.crash(seen);
                Ok(())
            }
            Kind::Leave => {
                self.retain(|hold| hold.key.life != seen.life);
                Ok(())
            }
            Kind::Recover => {
                self.recover(seen.event.members.as_deref());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, end: &End<'_>, _: &mut Counts) -> Vec<Violation> {
        if !end.quiet {
            return Vec::new();
        }
        let left = self.holds.iter().flat_map(|(resource, holds)| {
            let provisional = holds.iter().filter(|h| h.provisional && h.dead.is_none());
            provisional.map(move |hold| {
                let what = format!(
                    "{} on {resource:?} is still provisional at the end: its claim was never settled",
                    hold.key
                );
                end.violation(NAME, vec![hold.line], what)
            })
        });
        left.collect()
    }
}

impl CompatibleGrants {
    fn grant(&mut self, seen: &Seen<'_>, counts: &mut Counts) -> Result<(), Violation> {
        let (Some(resource), Some(key), Some(mode)) = (seen.resource(), seen.key, seen.event.mode)
        else {
            return Ok(());
        };
        // The client let go (or was told of the loss) while the grant was on its way.
        let ended = seen
            .lock
            .is_some_and(|lock| lock.lost || lock.ops.iter().any(|op| op.kind == OpKind::Unlock));
        if ended {
            return Ok(());
        }
        let hold = Hold {
            key,
            mode,
            line: seen.line,
            provisional: seen.event.provisional,
            claim: seen.event.claim_id,
            dead: None,
        };
        self.hold(seen, resource, hold, counts)
    }

    fn hold(
        &mut self,
        seen: &Seen<'_>,
        resource: &Resource,
        hold: Hold,
        counts: &mut Counts,
    ) -> Result<(), Violation> {
        let holds = self.holds.entry(resource.clone()).or_default();
        holds.retain(|h| h.key != hold.key);
        let verdict = judge(seen, resource, holds, &hold, counts);
        holds.push(hold);
        verdict
    }

    /// An operation that did not succeed leaves its lock with a mode that counts in full again.
    fn complete(&mut self, seen: &Seen<'_>, counts: &mut Counts) -> Result<(), Violation> {
        let (Some(key), Some(lock), Some(op)) = (seen.key, seen.lock, seen.op) else {
            return Ok(());
        };
        if op.kind != OpKind::Convert || lock.lost || lock.ops.len() > 1 {
            return Ok(());
        }
        let (Some(resource), Some(mode)) = (&lock.resource, mode_kept(seen.event, lock.granted))
        else {
            return Ok(());
        };
        let claim = self.holds.get(resource).into_iter().flatten().find(|h| h.key == key);
        let hold = Hold {
            key,
            mode,
            line: lock.line,
            provisional: lock.provisional,
            claim: claim.and_then(|h| h.claim),
            dead: None,
        };
        self.hold(seen, resource, hold, counts)
    }

    fn convert(&mut self, seen: &Seen<'_>) {
        let (Some(resource), Some(key), Some(to)) = (seen.resource(), seen.key, seen.event.mode)
        else {
            return;
        };
        let holds = self.holds.get_mut(resource).into_iter().flatten();
        for hold in holds.filter(|h| h.key == key) {
            hold.mode = held_during(hold.mode, to, seen.event.flags);
        }
    }

    fn release_seen(&mut self, seen: &Seen<'_>) {
        if let (Some(resource), Some(key)) = (seen.resource(), seen.key) {
            self.release(resource, key);
        }
    }

    fn release(&mut self, resource: &Resource, key: LockKey) {
        if let Some(holds) = self.holds.get_mut(resource) {
            holds.retain(|h| h.key != key);
            if holds.is_empty() {
                self.holds.remove(resource);
            }
        }
    }

    /// Provisional holds count in full from here on.
    fn settle(&mut self, seen: &Seen<'_>, counts: &mut Counts) -> Result<(), Violation> {
        let Some(resource) = seen.resource() else {
            return Ok(());
        };
        let Some(holds) = self.holds.get_mut(resource) else {
            return Ok(());
        };
        let settles = |h: &Hold| match seen.event.kind {
            Kind::Settled => Some(h.key) == seen.key,
            _ => {
                h.key.life == seen.life && h.claim.is_none_or(|id| Some(id) == seen.event.claim_id)
            }
        };
        let mut verdict = Ok(());
        for i in 0..holds.len() {
            if holds[i].provisional && settles(&holds[i]) {
                holds[i].provisional = false;
                let hold = holds[i];
                let others: Vec<Hold> =
                    holds.iter().filter(|h| h.key != hold.key).copied().collect();
                verdict = verdict.and(judge(seen, resource, &others, &hold, counts));
            }
        }
        verdict
    }

    fn crash(&mut self, seen: &Seen<'_>) {
        let mut dead = 0;
        // No other node could see a dead node's unsettled claims: its journal undoes them.
        self.retain(|hold| hold.key.life != seen.life || !hold.provisional);
        for hold in self.holds.values_mut().flatten().filter(|h| h.key.life == seen.life) {
            hold.dead = Some(seen.line);
            dead += 1;
        }
        self.dead += dead;
    }

    fn recover(&mut self, members: Option<&[Member]>) {
        if self.dead == 0 {
            return;
        }
        self.retain(|hold| hold.dead.is_none() || hold.key.life.is_among(members));
        self.dead = self.holds.values().flatten().filter(|h| h.dead.is_some()).count();
    }

    fn retain(&mut self, keep: impl Fn(&Hold) -> bool) {
        self.holds.retain(|_, holds| {
            holds.retain(&keep);
            !holds.is_empty()
        });
    }
}

fn judge(
    seen: &Seen<'_>,
    resource: &Resource,
    others: &[Hold],
    new: &Hold,
    counts: &mut Counts,
) -> Result<(), Violation> {
    let mut verdict = Ok(());
    for old in others.iter().filter(|old| !old.mode.compatible(new.mode)) {
        if old.provisional || new.provisional {
            counts.provisional_overlaps += 1;
            continue;
        }
        let so = match old.dead {
            None => "is held",
            Some(_) => "was held by a node that died, and no view without it has been recovered",
        };
        let what = format!(
            "{resource:?}: {} got {} while {} {so} by {}",
            new.key, new.mode, old.mode, old.key
        );
        let mut lines = vec![old.line, old.dead.unwrap_or(0), new.line];
        lines.sort_unstable();
        verdict = verdict.and(Err(seen.violation(NAME, lines, what)));
    }
    verdict
}
