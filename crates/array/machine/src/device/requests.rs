//! Admission: which requests are served, and whose.

use super::locks::Ask;
use super::memory::Ended;
use super::tso::Prepare;
use super::{Device, Effect, Part};
use crate::message::{Action, Answer, Blocks, Call, Request};
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::{Epoch, Extent, Life, Stamp, Time};

impl Device {
    /// Serves a request that passes eight guards. Their order matters: each guard relies on those before it.
    pub(super) fn request(
        &mut self,
        now: Time,
        from: Life,
        request: Request,
        effects: &mut Vec<Effect>,
    ) {
        let Request { call, stamp, epoch, .. } = request;
        // 1. No life may act for another: its locks and pre-writes are its own. Nothing else of such a request counts.
        if call.op.life != from {
            return self.reply_to(from, call, Answer::Invalid);
        }
        // Every request shows that the host lives, even one that is refused below.
        self.note_heard(now, from);
        // 2. Before anything waits or takes effect: no fenced life, and no plan of another state of the array.
        if let Err(answer) = self.admit(from, epoch, &request.action) {
            return effects.push(Effect::answer(call, answer));
        }
        // 3. A device that is not let in may have old blocks. It may be let in soon, so the request waits instead of
        // failing.
        let touches = extents(&request.action).is_some_and(|all| all.iter().any(Option::is_some));
        if touches && !self.may_serve() {
            return self.readmission.wait(from, request);
        }
        // 4. After a restart, a new phase 1 must not come between a forgotten phase 1 and its phase 2.
        if self.begins_phase_1(&request.action) && !self.readmission.is_over() {
            return self.readmission.wait(from, request);
        }
        // 5. The host tries again: those who repair the leftovers need the locks that it may have elsewhere.
        if self.is_too_early(&request.action) {
            self.memory.put(now, call, Ended::GivenUp);
            return effects.push(Effect::answer(call, Answer::Denied));
        }
        // 6. Stamps are judged when the request is served. Above, it may have waited for long.
        if let Err(answer) = self.fits_clocks(now, stamp, &request.action) {
            return effects.push(Effect::answer(call, answer));
        }
        // 7. Only a repair may use a suspect stripe. This guard notes that a repair examines it, so it comes after all that
        // refuse or defer.
        if let Some(extents) = extents(&request.action)
            && let Err(answer) = self.unsuspected(call.op, &request.action, extents)
        {
            return effects.push(Effect::answer(call, answer));
        }
        // 8. After the next restart, only the record shows this life and region. So the marks become
        // durable first. This guard is the last one, so that no refused request leaves a mark.
        let Some(request) = self.noted(now, from, request) else { return };
        self.serve(now, from, request, effects);
    }

    fn note_heard(&mut self, now: Time, from: Life) {
        self.heard.insert(from, now);
        self.silence.get_or_insert(now.saturating_add(self.config.lease));
        self.reported.remove(&from);
    }

    fn begins_phase_1(&self, action: &Action) -> bool {
        let begins = matches!(action, Action::Prepare { .. } | Action::Lock { .. });
        #[cfg(feature = "mutations")]
        let begins = begins && self.config.mutation != Some(Mutation::ServesBeforeSettled);
        begins
    }

    /// Does what an admitted request wants.
    fn serve(&mut self, now: Time, from: Life, request: Request, effects: &mut Vec<Effect>) {
        let Request { call, stamp, .. } = request;
        if matches!(request.action, Action::Cancel | Action::Unlock) {
            self.readmission.give_up(call);
            self.medium.is_resolved(call);
        }
        match request.action {
            Action::Read { extent, .. } => {
                let (waited, locked, repairs) = (false, false, false);
                effects.push(Effect::Read { call, extent, waited, locked, repairs });
            }
            Action::Write { blocks, .. } => self.write(now, call, stamp, blocks, effects),
            Action::Prepare { read, write, repairs, starving, past } => {
                let asked = Prepare { call, stamp, read, write, repairs, starving, past };
                self.tso.prepare(now, asked, &mut self.memory, effects);
            }
            // The device has forgotten this write's phase 1, so the scheme would not find it.
            Action::Commit(blocks) | Action::WriteUnlock(blocks)
                if self.readmission.awaits(from) && self.memory.get(call).is_none() =>
            {
                self.take_up(now, call, stamp, blocks);
            }
            Action::Commit(blocks) => {
                self.tso.commit(now, call, blocks, &mut self.memory, effects);
            }
            Action::Cancel => self.tso.cancel(now, call, &mut self.memory, effects),
            Action::Lock { extent, mode, read, repairs, patience, past } => {
                let ask = Ask { call, stamp, extent, mode, read, repairs, patience, past };
                self.locks.lock(now, ask, &self.memory, effects);
            }
            Action::WriteUnlock(blocks) => {
                self.locks.write_unlock(now, call, stamp, blocks, &mut self.memory, effects);
            }
            Action::Unlock => self.locks.unlock(now, call, &mut self.memory, effects),
            Action::Flush { newest } => {
                let newest = newest.min(now.saturating_add(self.config.ahead));
                self.flush_disk(now, newest, Some(call));
            }
            Action::Lease => effects.push(Effect::answer(call, Answer::Done)),
            Action::Install(state) => self.install(now, call, *state, effects),
            Action::Agree(ask) => self.vote(call, ask, effects),
            Action::Fence { life } => self.fence(now, call, life, effects),
            Action::Clear { life } => self.clear(now, call, life, effects),
            Action::ListFences => self.list_fences(call, effects),
            Action::LearnFences { lives } => self.learn_fences(now, call, &lives, effects),
            Action::Repaired { stripe, pass } => {
                self.suspects.repaired(stripe, pass);
                effects.push(Effect::answer(call, Answer::Done));
            }
            Action::Settled => {
                effects.push(Effect::answer(call, Answer::Done));
                self.readmission.remembers(from);
                self.returned(now, from, effects);
            }
        }
    }

    /// Refuses a request that may not be served at all.
    fn admit(&self, from: Life, epoch: Epoch, action: &Action) -> Result<(), Answer> {
        if self.is_fenced(from) {
            return Err(Answer::Fenced);
        }
        if self.broken {
            return Err(Answer::Broken);
        }
        let Some(extents) = extents(action) else { return Ok(()) };
        if let Action::Write { blocks, .. } | Action::Commit(blocks) | Action::WriteUnlock(blocks) =
            action
        {
            let length = blocks.extent.count as usize * self.config.layout.block_size as usize;
            if blocks.data.len() != length {
                return Err(Answer::Invalid);
            }
        }
        let since = self.record.state().since;
        // The array may have grown since then.
        if epoch > since {
            return Err(Answer::Behind(since));
        }
        if !extents.into_iter().flatten().all(|extent| self.is_valid(extent)) {
            return Err(Answer::Invalid);
        }
        if epoch < since {
            return Err(Answer::Stale(Box::new(self.record.state().clone())));
        }
        Ok(())
    }

    /// Refuses a stamp that this device's clock cannot judge now, or that is too far ahead of it.
    fn fits_clocks(&self, now: Time, stamp: Stamp, action: &Action) -> Result<(), Answer> {
        match action {
            Action::Prepare { .. } if now < self.starting_until => {
                Err(Answer::Starting { wait: self.starting_until - now })
            }
            Action::Lock { .. } => super::ahead(now, self.config.ahead, stamp).map_or(Ok(()), Err),
            _ => Ok(()),
        }
    }

    /// Extents are within one unit, so that no request makes a device keep more than that.
    fn is_valid(&self, extent: Extent) -> bool {
        let layout = &self.config.layout;
        let unit = u64::from(layout.unit);
        extent.count > 0
            && extent.count <= layout.unit
            && extent.start / unit == (extent.end() - 1) / unit
            && layout.stripe_of(self.config.id, extent.start).is_some()
    }

    fn write(
        &mut self,
        now: Time,
        call: Call,
        stamp: Stamp,
        blocks: Blocks,
        effects: &mut Vec<Effect>,
    ) {
        if self.memory.get(call) == Some(Ended::Written) {
            return effects.push(Effect::WrittenBefore { call });
        }
        self.memory.put(now, call, Ended::Written);
        let parts = vec![Part { extent: blocks.extent, applies: true }];
        effects.push(Effect::Write { call, stamp, blocks, parts, waited: false });
    }
}

/// The blocks that a request touches, if it is right in one state of the array only. The others take something back or change
/// no block, so that they are right in any.
fn extents(action: &Action) -> Option<[Option<Extent>; 2]> {
    match action {
        Action::Read { extent, .. } => Some([Some(*extent), None]),
        Action::Prepare { read, write, .. } => Some([*read, *write]),
        Action::Lock { extent, read, .. } => Some([Some(*extent), *read]),
        Action::Write { blocks, .. } | Action::Commit(blocks) | Action::WriteUnlock(blocks) => {
            Some([Some(blocks.extent), None])
        }
        // An older state would leave out a device that is back by now. That device learned the fences that the others knew when
        // they had its state. A host that fences by an older state begins anew.
        Action::Fence { .. } | Action::ListFences => Some([None, None]),
        Action::Cancel
        | Action::Unlock
        | Action::Flush { .. }
        | Action::Lease
        | Action::Install(_)
        | Action::Agree(_)
        | Action::Clear { .. }
        | Action::LearnFences { .. }
        | Action::Repaired { .. }
        | Action::Settled => None,
    }
}
