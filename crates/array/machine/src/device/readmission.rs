//! After a restart, hosts take up their unfinished writes before the device serves others.
//!
//! A restarted device has forgotten locks and pre-writes. Suppose that it served others at once. They could read and
//! overwrite blocks that an operation has written elsewhere and not here yet. The operation would then have to run once
//! more, over their data (docs/design/array.md 3.4).
//!
//! Instead, the record names the lives that may have had state here. On its new connection, each of them repeats its
//! unanswered writes. When these are answered, it *settles* ([`crate::message::Action::Settled`]). It requests locks and
//! pre-writes of phase 1 anew. The device serves nothing else until all of them have settled or are fenced. The lock
//! server does the same after a crash (docs/design/array.md 3.6).
//!
//! No operation has come between such a write and its phase 1, so the write is as valid as before. The stamps of the
//! blocks' headers tell whether it, or a newer write, was done before the crash. Under every scheme, all blocks' stamps
//! grow. For a block that a crash has torn, the header alone is enough.

use std::collections::{BTreeMap, BTreeSet};

use super::disk::{Job, Purpose};
use super::fence::Fences;
use super::memory::Ended;
use super::{Device, Effect, Holding, Part};
use crate::message::{Action, Answer, Blocks, Call, Past, Request};
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::{BadBlock, Block, BlockError, Extent, Life, Scheme, Stamp, Time};

#[derive(Debug, Default)]
pub(super) struct Readmission {
    /// Lives that may have something to take up.
    awaited: BTreeSet<Life>,
    /// Lives that may have something here which they have not taken up, be it that they are fenced.
    forgotten: BTreeSet<Life>,
    /// Those of them that are fenced, and whose known leftovers are not repaired yet.
    leftovers: BTreeSet<Life>,
    /// Lives that have not taken up what they may have had here. A life stays in this set even if its known leftovers were
    /// repaired.
    unsure: BTreeSet<Life>,
    /// Requests that are served when they have.
    waiting: Vec<(Life, Request)>,
    /// Stamps of writes that were taken up. Two writes of a block may read its header before either is on the disk.
    written: BTreeMap<u64, Stamp>,
}

impl Readmission {
    /// Of these lives something was forgotten; those that are fenced will not take it up.
    pub(super) fn at_start(holders: &BTreeSet<Life>, fenced: &Fences) -> Self {
        // A fence may be durable before its life's leftovers are repaired.
        let (leftovers, awaited) = holders.iter().copied().partition(|life| fenced.has(*life));
        Readmission {
            awaited,
            leftovers,
            forgotten: holders.clone(),
            unsure: holders.clone(),
            ..Readmission::default()
        }
    }

    /// Returns true if the device forgot state of a life that has not taken it up.
    pub(super) fn forgot(&self, life: Life) -> bool {
        self.forgotten.contains(&life)
    }

    /// Its known leftovers were repaired.
    pub(super) fn repaired(&mut self, life: Life) {
        self.forgotten.remove(&life);
        self.leftovers.remove(&life);
    }

    /// It was fenced before it has taken anything up.
    pub(super) fn leaves(&mut self, life: Life) {
        self.leftovers.insert(life);
    }

    /// The fenced lives whose leftovers somebody is to repair.
    pub(super) fn leftovers(&self) -> impl Iterator<Item = Life> {
        self.leftovers.iter().copied()
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

    /// The medium has not taken a write that was taken up: older ones do not come too late.
    pub(super) fn not_taken(&mut self, extent: Extent, stamp: Stamp) {
        self.written.retain(|block, last| {
            !((extent.start..extent.end()).contains(block) && *last == stamp)
        });
    }

    /// Gives up a sibling's waiting requests. They may wait for longer than siblings are remembered.
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
    /// Returns true if only this device's group may know of a host's write. Three conditions hold then. This device has
    /// restarted. The host has not taken up its state here. The check of its possible writes is not complete. The write's
    /// other units may have been read.
    ///
    /// The host's fence does not settle this: a device that has also restarted, or is new, has nothing to repair. The
    /// group's other devices fit each other. So if a device of the group is given up now, the old content of its blocks
    /// comes back from them. So devices are given up only after this one is settled, or when an operator insists.
    ///
    /// A device that has not been let in yet may turn out to have an older copy of its content.
    pub fn is_unsettled(&self) -> bool {
        #[cfg(feature = "mutations")]
        if self.config.mutation == Some(Mutation::GivesUpBesideUnsettled) {
            return false;
        }
        let unsure = !self.readmission.unsure.is_empty() && self.suspects().next().is_some();
        unsure || !self.is_let_in()
    }

    /// The fenced lives that may have left a write of these blocks cut short. A repair that does not know from all devices what they
    /// have written could make a block of others that do not fit.
    pub(super) fn left_in(&self, extent: Extent) -> Box<[Life]> {
        let writes = |held: &Holding| held.writes.is_some_and(|writes| writes.overlaps(extent));
        let held = self.in_flight().filter(writes).map(|held| held.life);
        let stripe = self.config.layout.stripe_of(self.config.id, extent.start);
        let is_suspect = stripe.is_some_and(|stripe| self.suspects_stripe(stripe));
        let forgotten = self.readmission.leftovers().filter(|_| is_suspect);
        let left: BTreeSet<Life> =
            held.filter(|life| self.is_fenced(*life)).chain(forgotten).collect();
        left.into_iter().collect()
    }

    /// Returns true if a repair comes before that of a fenced life's leftovers, which knows from all devices what the life has
    /// written. Headers need not tell that. A repair after another fenced life is not refused: it learns the rest
    /// ([`Content::left`](crate::message::Content)). Two such repairs would wait for each other.
    pub(super) fn is_too_early(&self, action: &Action) -> bool {
        let (extent, past) = match action {
            Action::Prepare { repairs: true, read: Some(extent), past, .. }
            | Action::Lock { repairs: true, extent, past, .. } => (extent, past),
            _ => return false,
        };
        let stripe = self.config.layout.stripe_of(self.config.id, extent.start);
        let is_suspect = stripe.is_some_and(|stripe| self.suspects_stripe(stripe));
        let left = self.readmission.leftovers().next().is_some();
        left && is_suspect && !matches!(past, Past::Life(_))
    }

    /// Returns true if a host may have been writing here when the device stopped, and has not said what.
    pub(super) fn has_forgotten_writes(&self) -> bool {
        !self.readmission.unsure.is_empty()
    }

    /// Returns true if the record must name a life as long as stripes are suspect. After another restart, the life's writes
    /// elsewhere are still unknown.
    pub(super) fn is_unsure_of(&self, life: Life) -> bool {
        self.readmission.unsure.contains(&life) && self.suspects().next().is_some()
    }

    /// A life has taken up its state here, or is fenced.
    pub(super) fn returned(&mut self, now: Time, life: Life, effects: &mut Vec<Effect>) {
        if self.readmission.awaited.remove(&life) && self.readmission.is_over() {
            self.readmission.written.clear();
            self.serve_waiting(now, effects);
        }
    }

    /// Serves waiting requests. A request that has to wait for something else is put back.
    pub(super) fn serve_waiting(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for (from, request) in std::mem::take(&mut self.readmission.waiting) {
            self.request(now, from, request, effects);
        }
    }

    /// Nobody is waited for any more, and what waited is refused: hosts go on without this device.
    pub(super) fn forget_readmission(&mut self) {
        let awaited = std::mem::take(&mut self.readmission);
        for (_, request) in awaited.waiting {
            self.reply(request.call, true, Answer::Stale(Box::new(self.record.state().clone())));
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

    /// Continues when the stored blocks are known: writes if they are older.
    pub(super) fn taken_up_after(
        &mut self,
        now: Time,
        call: Call,
        stamp: Stamp,
        blocks: Blocks,
        found: &[Result<Block, BadBlock>],
    ) {
        // Fenced while its blocks were read: repairs may have looked at them, too, and go by what lies there.
        if self.is_fenced(call.op.life) {
            return self.reply(call, false, Answer::Fenced);
        }
        // With timestamps, newer writes may have been done beside this one's pre-write. A block that its medium does not return
        // does not tell. Its host does the operation once more, when the stripe is repaired.
        let is_unknown = |found: &Result<Block, BadBlock>| {
            matches!(found, Err(BadBlock { error: BlockError::Unreadable, stamp: None }))
        };
        if self.config.scheme == Scheme::TimestampOrdering && found.iter().any(is_unknown) {
            self.memory.put(now, call, Ended::GivenUp);
            return self.reply(call, false, Answer::NotPrepared);
        }
        let mut parts: Vec<Part> = Vec::new();
        for (block, found) in (blocks.extent.start..blocks.extent.end()).zip(found) {
            let last = self.readmission.written.get(&block).copied().unwrap_or_default();
            let is_done = match found {
                // It is there; or something newer, which may have come after it.
                Ok(block) => block.header.stamp >= stamp,
                // A newer write was cut short, and this one had been done before. It must not replace the newer one's blocks.
                // The newer write's host takes it up as well, or the other devices repair it.
                Err(bad) => bad.stamp.is_some_and(|cut_short| cut_short > stamp),
            };
            // What is newer may have come first, after the crash had undone this one. Then this one is dropped. A lock is exclusive, so
            // that nothing newer comes before the write that has it.
            let is_behind = self.config.scheme == Scheme::TimestampOrdering
                && matches!(found, Ok(block) if block.header.stamp > stamp);
            if is_done && !is_behind {
                continue;
            }
            let applies = stamp > last && !is_behind;
            if applies {
                self.readmission.written.insert(block, stamp);
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
