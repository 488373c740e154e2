//! The view of a client of the model, and the invariants that follow from it alone.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use lockify_core::message::Body;
use lockify_core::{Completion, Input, LockId, Mode, Name, Output, Trace};

use crate::observer;

/// A lock as its client knows it.
#[derive(Clone, Debug, Hash)]
pub struct Held {
    /// The resource.
    pub name: Name,
    /// The mode on which the client may rely; none before the first grant and during its release.
    pub mode: Option<Mode>,
    /// The mode last granted.
    pub granted: Option<Mode>,
    /// The grant is provisional.
    pub provisional: bool,
    /// An operation is outstanding.
    pub busy: bool,
    /// Reported lost.
    pub lost: bool,
    /// Claims that must be settled before the outstanding operation takes effect (INV-4).
    pub behind: BTreeSet<u64>,
}

/// One node's client side.
#[derive(Clone, Debug, Default)]
pub struct Monitor {
    /// Its locks.
    pub locks: BTreeMap<LockId, Held>,
    /// Claims that are not settled, as the node's trace says.
    pub claims: BTreeSet<u64>,
}

impl Monitor {
    /// A call was accepted.
    pub fn called(&mut self, input: &Input, id: Option<LockId>) {
        match input {
            Input::Lock { args, .. } => {
                if let Some(id) = id {
                    self.locks.insert(
                        id,
                        Held {
                            name: args.name,
                            mode: None,
                            granted: None,
                            provisional: false,
                            busy: true,
                            lost: false,
                            behind: BTreeSet::new(),
                        },
                    );
                }
            }
            Input::Convert(args) => {
                let freed = args.flags.contains(lockify_core::LockFlags::FREED);
                self.begin(args.lock, Some(args.mode), freed);
            }
            Input::Unlock(args) => {
                self.begin(args.lock, None, args.flags.contains(lockify_core::UnlockFlags::FREED));
            }
            Input::ClientGone(_) => self.gone(),
            _ => {}
        }
    }

    /// The client hears nothing more. Its lock goes when the claims made so far are settled.
    fn gone(&mut self) {
        for held in self.locks.values_mut() {
            let weakens = held.granted.is_some_and(Mode::writes) && !held.lost;
            held.behind = if weakens { self.claims.clone() } else { BTreeSet::new() };
            held.mode = None;
            held.busy = false;
            held.provisional = false;
        }
    }

    fn begin(&mut self, lock: LockId, to: Option<Mode>, freed: bool) {
        let claims = self.claims.clone();
        let Some(held) = self.locks.get_mut(&lock) else { return };
        held.busy = true;
        let weakens =
            held.granted.is_some_and(|from| from.writes() && to.is_none_or(|to| to < from));
        held.behind = if weakens && !freed && !held.lost { claims } else { BTreeSet::new() };
        held.mode = match (held.mode, to) {
            (Some(from), Some(to)) => Some(observer::meet(from, to)),
            _ => None,
        };
    }

    /// The node said something.
    ///
    /// # Errors
    /// A violation of INV-4, or a completion that nobody waits for.
    pub fn said(&mut self, output: &Output) -> Result<(), String> {
        match output {
            Output::Complete(done) => self.complete(done),
            Output::Lost { lock, .. } => {
                if let Some(held) = self.locks.get_mut(lock) {
                    held.lost = true;
                    held.mode = None;
                    held.behind.clear();
                }
                Ok(())
            }
            Output::Settled { lock, .. } => {
                if let Some(held) = self.locks.get_mut(lock) {
                    held.provisional = false;
                }
                Ok(())
            }
            Output::Trace(trace) => {
                self.trace(trace);
                Ok(())
            }
            Output::Send { message, .. } => self.sent(&message.body),
            _ => Ok(()),
        }
    }

    fn complete(&mut self, done: &Completion) -> Result<(), String> {
        let Some(held) = self.locks.get_mut(&done.lock) else {
            return Err(format!("a completion for a lock that is gone: {done:?}"));
        };
        if !std::mem::take(&mut held.busy) {
            return Err(format!("a completion that nobody waits for: {done:?}"));
        }
        held.granted = done.mode;
        held.mode = done.mode.filter(|_| !held.lost);
        held.provisional = done.provisional;
        let behind = std::mem::take(&mut held.behind);
        if done.mode.is_none() {
            self.locks.remove(&done.lock);
        }
        self.open(&behind)
    }

    /// INV-4: what these claims hold back takes effect now.
    fn open(&self, behind: &BTreeSet<u64>) -> Result<(), String> {
        match behind.intersection(&self.claims).next() {
            Some(claim) => {
                Err(format!("INV-4: a lock was weakened before claim {claim} was settled"))
            }
            None => Ok(()),
        }
    }

    /// A weakening takes effect at the latest when the master is told.
    fn sent(&self, body: &Body) -> Result<(), String> {
        match body {
            Body::Convert { ask, .. } | Body::Unlock { ask, .. } => match self.locks.get(&ask.lkid)
            {
                Some(held) => self.open(&held.behind),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn trace(&mut self, trace: &Trace) {
        match trace {
            Trace::Claim { claim, .. } => {
                self.claims.insert(*claim);
            }
            Trace::Confirm { claim, .. }
            | Trace::Merge { claim, .. }
            | Trace::Conflict { claim, .. }
            | Trace::Drop { claim, .. } => {
                self.claims.remove(claim);
            }
            _ => {}
        }
    }

    /// Feeds what matters for the future: numbers that only identify are left out.
    pub fn fingerprint(&self, hasher: &mut impl Hasher) {
        for held in self.locks.values() {
            (held.name, held.mode, held.granted, held.provisional).hash(hasher);
            (held.busy, held.lost, held.behind.len()).hash(hasher);
        }
        self.claims.len().hash(hasher);
    }
}

/// INV-2: no two incompatible holds; exempt is a provisional one whose claim is not settled.
///
/// # Errors
/// The two holds.
pub fn compatible<'a>(held: impl Iterator<Item = &'a Held> + Clone) -> Result<(), String> {
    let final_holds = held.filter(|held| !held.provisional && held.mode.is_some());
    for (i, a) in final_holds.clone().enumerate() {
        for b in final_holds.clone().skip(i + 1) {
            if let (Some(x), Some(y)) = (a.mode, b.mode)
                && a.name == b.name
                && !x.compatible(y)
            {
                return Err(format!("INV-2: {} is held in {x} and in {y}", a.name));
            }
        }
    }
    Ok(())
}
