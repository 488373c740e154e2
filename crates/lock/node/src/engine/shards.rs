//! The claim barrier across the shards of a node (docs/design/claim.md 4.10).
//!
//! An operation that may weaken a PW or EX lock waits until every claim that this node made
//! before it is settled, whichever shard made it. Within a shard the state machine sees to that.
//! Across shards the operation is held here until the others, if they have unsettled claims at
//! all, have said that their earlier ones are settled. Not covered is a demotion by CONVDEADLK:
//! its conversion waits for the claims made before the call, not for those made while it waits.

use lockify_core::{
    ClientId, Completion, Ended, Input, LockFlags, LockId, Status, Time, UnlockFlags,
};
use serde::{Deserialize, Serialize};

use super::NodeEngine;
use super::spaces::Space;
use crate::error::CallError;
use crate::event::HostEvent;
use crate::shard::ShardLetter;

/// An operation that waits for other shards.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Held {
    space: usize,
    number: u64,
    /// Shards that have not answered.
    waits: usize,
    input: Input,
}

/// The lock that a call is about.
fn subject(input: &Input) -> Option<(ClientId, LockId)> {
    match input {
        Input::Convert(a) => Some((a.client, a.lock)),
        Input::Unlock(a) => Some((a.client, a.lock)),
        Input::Cancel { client, lock } | Input::BreakDeadlock { client, lock } => {
            Some((*client, *lock))
        }
        _ => None,
    }
}

fn may_weaken(input: &Input) -> bool {
    match input {
        Input::Convert(a) => !a.flags.contains(LockFlags::FREED),
        Input::Unlock(a) => !a.flags.contains(UnlockFlags::FREED),
        Input::ClientGone(_) => true,
        _ => false,
    }
}

impl NodeEngine {
    /// Gives the call back, unless it must wait for other shards.
    pub(super) fn hold_for_shards(
        &mut self,
        at: usize,
        input: Input,
        now: Time,
    ) -> Result<Option<Input>, CallError> {
        let Some(group) = self.identity.group.clone() else { return Ok(Some(input)) };
        let about = subject(&input);
        let waits = |h: &Held| h.space == at && about.is_some() && subject(&h.input) == about;
        if self.held.iter().any(waits) {
            return Err(CallError::Lock(lockify_core::Error::Busy));
        }
        if !may_weaken(&input) {
            return Ok(Some(input));
        }
        let Some(space) = &self.spaces[at] else { return Err(CallError::NoSpace) };
        let number = self.next_claim_wait;
        let waits = group.ask(self.identity.shard, &space.name, number);
        if waits == 0 {
            return Ok(Some(input));
        }
        self.next_claim_wait += 1;
        self.held.push(Held { space: at, number, waits, input });
        let _ = now;
        Ok(None)
    }

    /// Reads what other shards of this node have written.
    pub(super) fn open_letters(&mut self, now: Time) {
        let Some(group) = self.identity.group.clone() else { return };
        for letter in group.take(self.identity.shard) {
            match letter {
                ShardLetter::AwaitClaims { from, space, number } => {
                    self.await_claims(from, &space, number, now)
                }
                ShardLetter::ClaimsSettled { number } => self.unhold(number, now),
            }
        }
    }

    /// Another shard wants to know when this one's claims are settled.
    fn await_claims(&mut self, from: u32, space: &str, number: u64, now: Time) {
        let at = self.spaces.iter().position(|s| s.as_ref().is_some_and(|s| s.name == space));
        let Some((at, s)) = at.and_then(|at| Some((at, self.spaces[at].as_mut()?))) else {
            return self.release([(from, number)]);
        };
        let own = self.next_claim_wait;
        self.next_claim_wait += 1;
        s.claim_waits.insert(own, (from, number));
        // Only client calls fail.
        let _ = s.core.handle(now, Input::AwaitClaims(own));
        self.drain(at, now);
    }

    /// The state machine says that its claims are settled.
    pub(super) fn claims_settled(&mut self, at: usize, number: u64, _now: Time) {
        let asker = self.spaces[at].as_mut().and_then(|s| s.claim_waits.remove(&number));
        self.release(asker);
    }

    pub(super) fn release(&self, askers: impl IntoIterator<Item = (u32, u64)>) {
        let Some(group) = &self.identity.group else { return };
        askers
            .into_iter()
            .for_each(|(shard, number)| group.send(shard, ShardLetter::ClaimsSettled { number }));
    }

    /// A lockspace is gone, and its claims with it.
    pub(super) fn release_claim_waits(&self, space: &Space) {
        self.release(space.claim_waits.values().copied());
    }

    /// Another shard's claims are settled: does what waited for that.
    fn unhold(&mut self, number: u64, now: Time) {
        let Some(i) = self.held.iter().position(|h| h.number == number) else { return };
        self.held[i].waits -= 1;
        if self.held[i].waits > 0 {
            return;
        }
        let Held { space, input, .. } = self.held.remove(i);
        let about = subject(&input);
        let tag = match &input {
            Input::Convert(a) => a.tag,
            Input::Unlock(a) => a.tag,
            _ => 0,
        };
        if let (Err(CallError::Lock(e)), Some((client, lock))) =
            (self.call(space, input, now), about)
        {
            self.refuse_late(space, client, lock, tag, e);
        }
    }

    /// A call that had waited is not possible any more.
    fn refuse_late(
        &mut self,
        at: usize,
        client: ClientId,
        lock: LockId,
        tag: u64,
        error: lockify_core::Error,
    ) {
        let Some(space) = self.spaces[at].as_ref().map(|s| s.id) else { return };
        let ended = Ended::new(Status::Refused(error));
        let completion = Completion { client, lock, tag, ended };
        self.pending.push(HostEvent::Completed { space, completion });
    }

    /// Forgets what waits in a lockspace that is over.
    pub(super) fn drop_held(&mut self, at: usize) {
        self.held.retain(|h| h.space != at);
    }

    /// Tells the other shards how many claims of this one are unsettled.
    pub(super) fn share_unsettled(&self) {
        if let Some(group) = &self.identity.group {
            let claims = self.spaces.iter().flatten().map(|s| s.core.unsettled_claims()).sum();
            group.set_unsettled(self.identity.shard, claims);
        }
    }
}
