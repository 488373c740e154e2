//! Timestamp ordering at a device (docs/design/array.md 2.4).
//!
//! Each block has the timestamps of its last read (`rts`) and write (`wts`). A *sibling* is the device's state for an
//! operation: a pre-write, a read that waits for older pre-writes, or both. Every wait is for a smaller timestamp, so that no
//! circle of waits can form.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::fence::Fences;
use super::memory::{Ended, Memory};
use super::{Effect, Holding, Part};
use crate::message::{Answer, Blocks, Call, Past};
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::{Extent, Life, OpId, Stamp, Time};

/// Timestamps of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    read: Stamp,
    written: Stamp,
}

/// A request of phase 1.
#[derive(Clone, Debug)]
pub(super) struct Prepare {
    pub call: Call,
    pub stamp: Stamp,
    pub read: Option<Extent>,
    pub write: Option<Extent>,
    pub repairs: bool,
    pub starving: bool,
    pub past: Past,
}

#[derive(Debug)]
struct Sibling {
    asked: Prepare,
    /// Its read waits for older pre-writes.
    waiting: bool,
    /// Its write has come and waits for older reads.
    held: Option<(Call, Blocks)>,
}

impl Sibling {
    fn is_past(&self, past: &Past, fenced: &Fences) -> bool {
        fenced.is_past(past, self.asked.call.op)
    }
}

/// The protocol's state at a device.
#[derive(Debug)]
pub(super) struct Tso {
    /// Blocks that nobody has touched for this long are forgotten.
    remember: Time,
    /// How far ahead timestamps may be.
    ahead: Time,
    /// The unoptimised variant: writes wait for all older reads.
    basic: bool,
    /// Blocks that are not in `times` were read and written then, for all that is known. Never decreases.
    floor: Time,
    swept: Time,
    /// Looked up block by block for every request: the standard library's hasher would take much of a request's time.
    times: HashMap<u64, Times>,
    /// Blocks whose newest write the medium has not taken, and that write.
    untaken: BTreeMap<u64, Stamp>,
    siblings: BTreeMap<(OpId, u32), Sibling>,
    fenced: Fences,
    #[cfg(feature = "mutations")]
    pub mutation: Option<Mutation>,
}

fn blocks(extent: Extent) -> std::ops::Range<u64> {
    extent.start..extent.end()
}

impl Tso {
    pub(super) fn new(remember: Time, ahead: Time, basic: bool, floor: Time) -> Self {
        Tso {
            remember,
            ahead,
            basic,
            floor,
            swept: 0,
            times: HashMap::new(),
            untaken: BTreeMap::new(),
            siblings: BTreeMap::new(),
            fenced: Fences::default(),
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }

    fn at_floor(&self) -> Times {
        let floor = Stamp { time: self.floor, host: u32::MAX };
        Times { read: floor, written: floor }
    }

    fn times(&self, block: u64) -> Times {
        self.times.get(&block).copied().unwrap_or_else(|| self.at_floor())
    }

    fn change(&mut self, block: u64, change: impl FnOnce(&mut Times)) {
        let floor = self.at_floor();
        change(self.times.entry(block).or_insert(floor));
    }

    /// R, P and RP.
    pub(super) fn prepare(
        &mut self,
        now: Time,
        asked: Prepare,
        memory: &mut Memory,
        effects: &mut Vec<Effect>,
    ) {
        let Prepare { call, stamp, .. } = asked;
        match memory.get(call) {
            // C has overtaken it, or it was rejected and has come twice.
            Some(Ended::GivenUp) => {
                let answer = Answer::Rejected { seen: stamp.time };
                return effects.push(Effect::answer(call, answer));
            }
            Some(Ended::Written) => return,
            None => {}
        }
        if let Some(known) = self.siblings.get(&(call.op, call.sibling)) {
            if known.waiting {
                return;
            }
            // The first answer may be on its way, and the pre-write in use: it stays. But what would be read now is newer.
            return effects.push(match asked.read.and_then(|read| self.overtaken(stamp, read)) {
                Some(seen) => Effect::answer(call, Answer::Overtaken { seen }),
                None => Effect::granted(call, known.asked.read, known.asked.repairs, false),
            });
        }
        if let Some(answer) = super::ahead(now, self.ahead, stamp) {
            return effects.push(Effect::answer(call, answer));
        }
        let in_vain = || self.waits_for_fenced(&asked).then_some(stamp.time);
        if let Some(seen) = self.refuses(&asked).or_else(in_vain) {
            // Its host regards it as finished. If it comes again, nothing may block it any more, and its state here would
            // stay.
            memory.put(now, call, Ended::GivenUp);
            return effects.push(Effect::answer(call, Answer::Rejected { seen }));
        }
        let waiting = asked.read.is_some_and(|extent| self.is_blocked(stamp, extent, &asked.past));
        if !waiting {
            if let Some(extent) = asked.read {
                self.has_read(extent, stamp);
            }
            effects.push(Effect::granted(call, asked.read, asked.repairs, false));
        }
        if waiting || asked.write.is_some() {
            let sibling = Sibling { asked, waiting, held: None };
            self.siblings.insert((call.op, call.sibling), sibling);
        }
    }

    /// The tests of R and P: the age of the timestamp, and the timestamps of the blocks.
    fn refuses(&self, asked: &Prepare) -> Option<Time> {
        if asked.stamp.time <= self.floor {
            return Some(self.floor);
        }
        let mut refused = false;
        let mut seen = 0;
        for (extent, writes) in [(asked.read, false), (asked.write, true)] {
            for block in extent.into_iter().flat_map(blocks) {
                let times = self.times(block);
                refused |= asked.stamp < times.written || writes && asked.stamp < times.read;
                seen = seen.max(times.written.time).max(times.read.time);
            }
        }
        refused.then_some(seen)
    }

    /// Returns true if a read would wait for a fenced life's pre-write. It must not wait. The repair that removes the
    /// pre-write has a larger timestamp. It would wait for this operation's own pre-writes.
    fn waits_for_fenced(&self, asked: &Prepare) -> bool {
        let Some(read) = asked.read else { return false };
        self.siblings.values().any(|other| {
            let write = other.asked.write.filter(|write| write.overlaps(read));
            write.is_some()
                && other.asked.stamp < asked.stamp
                && self.fenced.has(other.asked.call.op.life)
                && !other.is_past(&asked.past, &self.fenced)
        })
    }

    /// Returns true if an older pre-write blocks a read.
    fn is_blocked(&self, stamp: Stamp, read: Extent, past: &Past) -> bool {
        self.siblings.values().any(|other| {
            let write = other.asked.write.filter(|write| write.overlaps(read));
            write.is_some() && other.asked.stamp < stamp && !other.is_past(past, &self.fenced)
        })
    }

    fn has_read(&mut self, extent: Extent, stamp: Stamp) {
        for block in blocks(extent) {
            self.change(block, |times| times.read = times.read.max(stamp));
        }
    }

    /// W: the write of phase 2.
    pub(super) fn commit(
        &mut self,
        now: Time,
        call: Call,
        blocks: Blocks,
        memory: &mut Memory,
        effects: &mut Vec<Effect>,
    ) {
        let key = (call.op, call.sibling);
        let Some(sibling) = self.siblings.get_mut(&key) else {
            let again = memory.get(call) == Some(Ended::Written);
            let known =
                if again { Effect::WrittenBefore { call } } else { Effect::not_prepared(call) };
            return effects.push(known);
        };
        let covers = |write: Extent| {
            write.start <= blocks.extent.start && blocks.extent.end() <= write.end()
        };
        if sibling.waiting || !sibling.asked.write.is_some_and(covers) {
            return effects.push(Effect::answer(call, Answer::Invalid));
        }
        sibling.held = Some((call, blocks));
        if self.waits_for_reads(key) {
            return;
        }
        self.write(now, key, false, memory, effects);
        self.settle(now, memory, effects);
    }

    /// Returns true if a write has to wait for a read with a smaller timestamp. In the basic variant it waits for each,
    /// else for starving ones.
    fn waits_for_reads(&self, key: (OpId, u32)) -> bool {
        let Some(writer) = self.siblings.get(&key) else { return false };
        let Some((_, blocks)) = &writer.held else { return false };
        self.siblings.values().any(|other| {
            let read = other.asked.read.filter(|read| read.overlaps(blocks.extent));
            other.waiting
                && read.is_some()
                && other.asked.stamp < writer.asked.stamp
                && (self.basic || other.asked.starving)
        })
    }

    /// Writes the blocks of a pre-write where no newer ones are, and ends the pre-write.
    fn write(
        &mut self,
        now: Time,
        key: (OpId, u32),
        waited: bool,
        memory: &mut Memory,
        effects: &mut Vec<Effect>,
    ) {
        let Some(sibling) = self.siblings.remove(&key) else { return };
        let Some((call, to_write)) = sibling.held else { return };
        let stamp = sibling.asked.stamp;
        if self.is_behind_untaken(stamp, to_write.extent) {
            memory.put(now, call, Ended::GivenUp);
            return effects.push(Effect::Answer { call, waited, answer: Answer::Unwritable });
        }
        let mut parts: Vec<Part> = Vec::new();
        for block in blocks(to_write.extent) {
            let applies = stamp > self.times(block).written;
            #[cfg(feature = "mutations")]
            let applies = applies || self.mutation == Some(Mutation::TsoWritesUnconditionally);
            match parts.last_mut() {
                Some(part) if part.applies == applies => part.extent.count += 1,
                _ => parts.push(Part { extent: Extent { start: block, count: 1 }, applies }),
            }
            self.change(block, |times| times.written = times.written.max(stamp));
        }
        memory.put(now, call, Ended::Written);
        effects.push(Effect::Write { call, stamp, blocks: to_write, parts, waited });
    }

    /// The medium has not taken a write. Its timestamp stays: it may be there all the same.
    pub(super) fn not_taken(&mut self, extent: Extent, stamp: Stamp) {
        self.untaken.extend(blocks(extent).map(|block| (block, stamp)));
        self.forget_untaken();
    }

    /// Returns true if a write would be dropped for a newer one that the medium has not taken.
    fn is_behind_untaken(&self, stamp: Stamp, extent: Extent) -> bool {
        let mut untaken = self.untaken.range(blocks(extent));
        untaken.any(|(block, last)| stamp < *last && self.times(*block).written == *last)
    }

    /// Forgets those over which a newer write has come, with the blocks' timestamps.
    fn forget_untaken(&mut self) {
        let times = &self.times;
        self.untaken.retain(|block, last| times.get(block).is_some_and(|t| t.written == *last));
    }

    /// Rejects an operation that was let through to read these blocks.
    pub(super) fn reject(
        &mut self,
        now: Time,
        (call, read, waited): (Call, Extent, bool),
        memory: &mut Memory,
        effects: &mut Vec<Effect>,
    ) {
        self.siblings.remove(&(call.op, call.sibling));
        memory.put(now, call, Ended::GivenUp);
        let seen = blocks(read).map(|block| self.times(block).written.time).max();
        let answer = Answer::Rejected { seen: seen.unwrap_or_default() };
        effects.push(Effect::Answer { call, waited, answer });
        self.settle(now, memory, effects);
    }

    /// C: cancels a pre-write or a waiting read.
    pub(super) fn cancel(
        &mut self,
        now: Time,
        call: Call,
        memory: &mut Memory,
        effects: &mut Vec<Effect>,
    ) {
        if memory.get(call).is_none() {
            memory.put(now, call, Ended::GivenUp);
        }
        self.siblings.remove(&(call.op, call.sibling));
        effects.push(Effect::answer(call, Answer::Done));
        self.settle(now, memory, effects);
    }

    /// Serves the queue: rejects reads that a newer write has overtaken, lets through what nothing older blocks.
    fn settle(&mut self, now: Time, memory: &mut Memory, effects: &mut Vec<Effect>) {
        loop {
            let mut waiting: Vec<_> = self.siblings.values().filter(|s| s.waiting).collect();
            waiting.sort_unstable_by_key(|s| s.asked.stamp);
            let next = waiting.iter().find_map(|sibling| {
                let Prepare { call, stamp, .. } = sibling.asked;
                let read = sibling.asked.read?;
                let in_vain = self.waits_for_fenced(&sibling.asked).then_some(stamp.time);
                let seen = self.overtaken(stamp, read).or(in_vain);
                if seen.is_some() {
                    return Some((call, read, seen));
                }
                (!self.is_blocked(stamp, read, &sibling.asked.past)).then_some((call, read, None))
            });
            if let Some((call, read, seen)) = next {
                self.serve(now, call, read, seen, memory, effects);
                continue;
            }
            let held = self.siblings.iter().filter(|(_, s)| s.held.is_some());
            let ready = held.map(|(key, _)| *key).find(|key| !self.waits_for_reads(*key));
            let Some(key) = ready else { return };
            self.write(now, key, true, memory, effects);
        }
    }

    /// The timestamp of a write at these blocks that is newer than the read.
    fn overtaken(&self, stamp: Stamp, read: Extent) -> Option<Time> {
        #[cfg(feature = "mutations")]
        if self.mutation == Some(Mutation::TsoKeepsQueuedReads) {
            return None;
        }
        let times = || blocks(read).map(|block| self.times(block));
        let overtaken = times().any(|times| stamp < times.written);
        let seen = times().map(|times| times.written.time.max(times.read.time)).max();
        seen.filter(|_| overtaken)
    }

    fn serve(
        &mut self,
        now: Time,
        call: Call,
        read: Extent,
        seen: Option<Time>,
        memory: &mut Memory,
        effects: &mut Vec<Effect>,
    ) {
        let key = (call.op, call.sibling);
        if let Some(seen) = seen {
            self.siblings.remove(&key);
            memory.put(now, call, Ended::GivenUp);
            effects.push(Effect::Answer { call, waited: true, answer: Answer::Rejected { seen } });
            return;
        }
        let Some(sibling) = self.siblings.get_mut(&key) else { return };
        sibling.waiting = false;
        let Prepare { stamp, repairs, .. } = sibling.asked;
        if sibling.asked.write.is_none() {
            self.siblings.remove(&key);
        }
        self.has_read(read, stamp);
        effects.push(Effect::granted(call, Some(read), repairs, true));
    }

    /// Forgets blocks that were not used for long, and moves the floor up. Blocks with a pre-write or a waiting read keep
    /// their timestamps. A late write is not too old for that reason.
    pub(super) fn forget(&mut self, now: Time) {
        let every = self.remember / 4;
        if now.saturating_sub(self.swept) < every {
            return;
        }
        self.swept = now;
        let floor = self.floor.max(now.saturating_sub(self.remember));
        if floor == self.floor {
            return;
        }
        let pinned: Vec<Extent> = self.extents(|_| true);
        for block in pinned.iter().copied().flat_map(blocks) {
            self.change(block, |_| {});
        }
        self.floor = floor;
        self.times.retain(|block, times| {
            times.read.max(times.written).time > floor
                || pinned.iter().any(|extent| blocks(*extent).contains(block))
        });
        self.forget_untaken();
    }

    fn extents(&self, of: impl Fn(OpId) -> bool) -> Vec<Extent> {
        let siblings = self.siblings.values().filter(|s| of(s.asked.call.op));
        siblings.flat_map(|s| [s.asked.read, s.asked.write]).flatten().collect()
    }

    /// Pre-writes and waiting reads.
    pub(super) fn holders(&self) -> impl Iterator<Item = Holding> {
        self.siblings.values().map(|sibling| {
            let Prepare { call, stamp, write, .. } = sibling.asked;
            Holding { life: call.op.life, writes: write, stamp }
        })
    }

    /// Pre-writes and waiting reads, for people.
    pub(super) fn under_way(&self) -> impl Iterator<Item = String> {
        self.siblings.values().map(|sibling| {
            let Prepare { call, stamp, read, write, .. } = &sibling.asked;
            let waits = if sibling.waiting { ", its read waits" } else { "" };
            let held = if sibling.held.is_some() { ", its write waits for reads" } else { "" };
            let (op, time) = (call.op, stamp.time);
            format!("{op:?} at {time}: reads {read:?}, pre-writes {write:?}{waits}{held}")
        })
    }

    /// Drops writes of fenced lives that wait for reads. Their pre-writes stay, as if the write had never come.
    pub(super) fn fence(
        &mut self,
        now: Time,
        fenced: &Fences,
        memory: &mut Memory,
        effects: &mut Vec<Effect>,
    ) {
        self.fenced = fenced.clone();
        self.siblings
            .iter_mut()
            .filter(|((op, _), _)| fenced.has(op.life))
            .for_each(|(_, sibling)| sibling.held = None);
        self.settle(now, memory, effects);
    }

    /// Drops a life's state here (docs/design/array.md 3.2: only after its writes were repaired).
    pub(super) fn clear(
        &mut self,
        now: Time,
        life: Option<Life>,
        memory: &mut Memory,
        effects: &mut Vec<Effect>,
    ) {
        self.siblings.retain(|(op, _), _| life.is_some_and(|life| op.life != life));
        self.settle(now, memory, effects);
    }
}

#[cfg(test)]
mod tests;
