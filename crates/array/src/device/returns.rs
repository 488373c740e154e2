//! After a restart: who had something under way here takes it up again before anybody else is served.
//!
//! A device that restarts has forgotten locks and pre-writes. If it let others in at once, they could read and overwrite what
//! an operation has written elsewhere and not here yet, and the operation would have to be done once more, over what they have
//! written (docs/design/array.md 3.4). Instead the record says which lives may have had something here. Each of them, on its
//! new connection, sends its unanswered writes again, and *settles* ([`crate::message::Action::Settled`]) when they are
//! answered; locks and pre-writes of phase 1 it asks for anew. Until all have settled, or are fenced, nothing else is served.
//! It is what the lock server does after a crash (docs/design/array.md 3.6), at each device.
//!
//! Nobody has come between such a write and what it was prepared by, so that it is as valid as before. Whether it was done
//! before the crash, or something newer was, shows in the stamps of the blocks' headers: all blocks' stamps grow, whatever the
//! scheme. Of a block that a crash has torn the header alone may say it.

use std::collections::{BTreeMap, BTreeSet};

use super::disk::{Job, Purpose};
use super::fence::Fences;
use super::memory::Ended;
use super::{Device, Effect, Part};
use crate::message::{Answer, Blocks, Call, Request};
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::{BadBlock, Block, Extent, Life, Stamp, Time};

#[derive(Debug, Default)]
pub(super) struct Returns {
    /// Lives that may have something to take up.
    awaited: BTreeSet<Life>,
    /// Lives that may have something here which they have not taken up, be it that they are fenced.
    forgotten: BTreeSet<Life>,
    /// Lives that have not taken up what they may have had here, even if what they left was repaired where somebody knew of it.
    unsure: BTreeSet<Life>,
    /// Requests that are served when they have.
    waiting: Vec<(Life, Request)>,
    /// Stamps of what was taken up: of two writes of a block, neither may be on the disk when the other reads its header.
    written: BTreeMap<u64, Stamp>,
}

impl Returns {
    /// Of these lives something was forgotten; those that are fenced will not take it up.
    pub(super) fn at_start(holders: &BTreeSet<Life>, fenced: &Fences) -> Self {
        let awaited = holders.iter().copied().filter(|life| !fenced.has(*life)).collect();
        Returns {
            awaited,
            forgotten: holders.clone(),
            unsure: holders.clone(),
            ..Returns::default()
        }
    }

    /// Whether something of a life was forgotten and not taken up.
    pub(super) fn forgot(&self, life: Life) -> bool {
        self.forgotten.contains(&life)
    }

    /// What it had left was repaired, as far as anybody knew of it.
    pub(super) fn repaired(&mut self, life: Life) {
        self.forgotten.remove(&life);
    }

    /// It has taken up everything.
    pub(super) fn remembers(&mut self, life: Life) {
        self.forgotten.remove(&life);
        self.unsure.remove(&life);
    }

    pub(super) fn awaits(&self, life: Life) -> bool {
        self.awaited.contains(&life)
    }

    /// Whom the device waits for.
    pub(super) fn awaited(&self) -> impl Iterator<Item = Life> {
        self.awaited.iter().copied()
    }

    pub(super) fn is_over(&self) -> bool {
        self.awaited.is_empty()
    }

    pub(super) fn wait(&mut self, from: Life, request: Request) {
        self.waiting.push((from, request));
    }

    /// What waits of a sibling is given up: it may wait for longer than siblings are remembered.
    pub(super) fn give_up(&mut self, call: Call) {
        let of =
            |request: &Request| request.call.op == call.op && request.call.sibling == call.sibling;
        self.waiting.retain(|(_, request)| !of(request));
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

impl Device {
    /// Whether something that a host wrote may be known to other devices of this one's group only: this one has restarted, that
    /// host has not taken up what it had here, and not all of what it may have been writing has been checked. Its other
    /// units may have been read. That the host was fenced is not enough: a device that has restarted as well, or is new, knows
    /// of nothing to repair. If one of the group is given up now, the old content of its blocks comes back from
    /// the others, which fit each other. So who gives up devices waits until this one is settled, or an operator insists.
    pub fn is_unsettled(&self) -> bool {
        #[cfg(feature = "mutations")]
        if self.config.mutation == Some(Mutation::GivesUpBesideUnsettled) {
            return false;
        }
        !self.returns.unsure.is_empty() && self.suspects().next().is_some()
    }

    /// Whether the record has to name a life for as long as stripes are suspect: after another restart it is still not known what
    /// the life wrote elsewhere.
    pub(super) fn is_unsure_of(&self, life: Life) -> bool {
        self.returns.unsure.contains(&life) && self.suspects().next().is_some()
    }

    /// A life has taken up what it had here, or is fenced.
    pub(super) fn returned(&mut self, now: Time, life: Life, effects: &mut Vec<Effect>) {
        if self.returns.awaited.remove(&life) && self.returns.is_over() {
            self.returns.written.clear();
            self.serve_waiting(now, effects);
        }
    }

    /// Serves what waited. What has to wait for something else is put back.
    pub(super) fn serve_waiting(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for (from, request) in std::mem::take(&mut self.returns.waiting) {
            self.request(now, from, request, effects);
        }
    }

    /// Nobody is waited for any more, and what waited is refused: hosts go on without this device.
    pub(super) fn forget_returns(&mut self) {
        let awaited = std::mem::take(&mut self.returns);
        for (_, request) in awaited.waiting {
            self.reply(request.call, true, Answer::Stale(self.record.state().clone()));
        }
    }

    /// Takes up a write whose lock or pre-write was forgotten.
    pub(super) fn take_up(&mut self, now: Time, call: Call, stamp: Stamp, blocks: Blocks) {
        self.memory.put(now, call, Ended::Written);
        let layout = self.config.layout;
        if let Some(stripe) = layout.stripe_of(self.config.id, blocks.extent.start) {
            let region = self.suspects.region(stripe);
            self.suspects.used(now, region);
        }
        let job = Job::Read(blocks.extent);
        self.disk.add(None, job, Purpose::TakeUp { call, stamp, blocks });
    }

    /// What lay there is known: writes what is older.
    pub(super) fn taken_up_after(
        &mut self,
        call: Call,
        stamp: Stamp,
        blocks: Blocks,
        found: &[Result<Block, BadBlock>],
    ) {
        // Fenced while its blocks were read: repairs may have looked at them, too, and go by what lies there.
        if self.is_fenced(call.op.life) {
            return self.reply(call, false, Answer::Fenced);
        }
        let mut parts: Vec<Part> = Vec::new();
        for (block, found) in (blocks.extent.start..blocks.extent.end()).zip(found) {
            let last = self.returns.written.get(&block).copied().unwrap_or_default();
            let is_done = match found {
                // It is there; or something newer, which may have come after it.
                Ok(block) => block.header.stamp >= stamp,
                // What was cut short was newer, and this had been done before. It must not come back in the place of what the
                // newer one has replaced: whoever wrote that takes it up as well, or it is repaired by the other devices.
                Err(bad) => bad.stamp.is_some_and(|cut_short| cut_short > stamp),
            };
            if is_done {
                continue;
            }
            let applies = stamp > last;
            if applies {
                self.returns.written.insert(block, stamp);
            }
            match parts.last_mut() {
                Some(part) if part.applies == applies && part.extent.end() == block => {
                    part.extent.count += 1;
                }
                _ => parts.push(Part { extent: Extent { start: block, count: 1 }, applies }),
            }
        }
        self.taken += 1;
        if parts.is_empty() {
            return self.reply(call, false, Answer::Written);
        }
        self.carry_out(vec![Effect::Write { call, stamp, blocks, parts, waited: false }]);
    }
}
