//! Locks of a device's own blocks (docs/design/array.md 2.3). Conflicting locks are granted in order of arrival. A request
//! that waits too long is denied.

use super::fence::Fences;
use super::memory::{Ended, Memory};
use super::{Effect, Holding, Part};
use crate::message::{Answer, Blocks, Call, Mode, Past};
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::{Extent, Life, Stamp, Time};

/// L and LR.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub call: Call,
    /// Older than the writes under it.
    pub stamp: Stamp,
    pub extent: Extent,
    pub mode: Mode,
    pub read: Option<Extent>,
    pub repairs: bool,
    pub patience: Time,
    pub past: Past,
}

#[derive(Debug)]
struct Lock {
    ask: Ask,
    granted: bool,
    /// When it is denied if it still waits.
    until: Time,
}

/// The locks of a device, in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct Locks {
    queue: Vec<Lock>,
    fenced: Fences,
    /// The newest timestamp on anything written.
    newest: Time,
    #[cfg(feature = "mutations")]
    pub mutation: Option<Mutation>,
}

impl Locks {
    /// Nothing that was written before is newer than `newest`.
    pub(super) fn new(newest: Time) -> Self {
        Locks { newest, ..Locks::default() }
    }

    pub(super) fn newest(&self) -> Time {
        self.newest
    }

    fn find(&self, call: Call) -> Option<usize> {
        let same = |other: Call| other.op == call.op && other.sibling == call.sibling;
        self.queue.iter().position(|lock| same(lock.ask.call))
    }

    /// L and LR.
    pub(super) fn lock(&mut self, now: Time, ask: Ask, memory: &Memory, effects: &mut Vec<Effect>) {
        match memory.get(ask.call) {
            // U has overtaken it, or it has come twice.
            Some(Ended::GivenUp) => {
                return effects.push(Effect::answer(ask.call, Answer::Denied));
            }
            Some(Ended::Written) => return,
            None => {}
        }
        if let Some(index) = self.find(ask.call) {
            if self.queue[index].granted {
                effects.push(Effect::locked(&ask, false, self.newest));
            }
            return;
        }
        let until = now.saturating_add(ask.patience);
        self.queue.push(Lock { ask, granted: false, until });
        let index = self.queue.len() - 1;
        if self.is_free(index) {
            self.grant(index, false, effects);
        }
    }

    /// Returns true if no earlier lock or request conflicts.
    fn is_free(&self, index: usize) -> bool {
        let ask = &self.queue[index].ask;
        !self.queue[..index].iter().any(|earlier| {
            earlier.ask.extent.overlaps(ask.extent)
                && (earlier.ask.mode, ask.mode) != (Mode::Shared, Mode::Shared)
                && !self.fenced.is_past(&ask.past, earlier.ask.call.op)
        })
    }

    fn grant(&mut self, index: usize, waited: bool, effects: &mut Vec<Effect>) {
        let lock = &mut self.queue[index];
        lock.granted = true;
        let ask = &lock.ask;
        effects.push(Effect::locked(ask, waited, self.newest));
    }

    fn settle(&mut self, effects: &mut Vec<Effect>) {
        for index in 0..self.queue.len() {
            if !self.queue[index].granted && self.is_free(index) {
                self.grant(index, true, effects);
            }
        }
    }

    /// U. Whatever is unlocked before its lock has come must not be locked any more.
    pub(super) fn unlock(
        &mut self,
        now: Time,
        call: Call,
        memory: &mut Memory,
        effects: &mut Vec<Effect>,
    ) {
        let found = self.find(call);
        let remember = memory.get(call).is_none();
        #[cfg(feature = "mutations")]
        let remember = remember
            && (found.is_some() || self.mutation != Some(Mutation::UnlockLeavesNoTombstone));
        if remember {
            memory.put(now, call, Ended::GivenUp);
        }
        if let Some(index) = found {
            self.queue.remove(index);
        }
        effects.push(Effect::answer(call, Answer::Done));
        self.settle(effects);
    }

    /// WU. The disk keeps the order in which it is asked, so that the lock is free at once.
    pub(super) fn write_unlock(
        &mut self,
        now: Time,
        call: Call,
        stamp: Stamp,
        blocks: Blocks,
        memory: &mut Memory,
        effects: &mut Vec<Effect>,
    ) {
        let Some(index) = self.find(call).filter(|index| {
            let lock = &self.queue[*index];
            let (held, wanted) = (lock.ask.extent, blocks.extent);
            let covers = held.start <= wanted.start && wanted.end() <= held.end();
            lock.granted && lock.ask.mode == Mode::Exclusive && covers
        }) else {
            let again = memory.get(call) == Some(Ended::Written);
            let known =
                if again { Effect::WrittenBefore { call } } else { Effect::not_prepared(call) };
            return effects.push(known);
        };
        self.queue.remove(index);
        self.newest = self.newest.max(stamp.time);
        memory.put(now, call, Ended::Written);
        let parts = vec![Part { extent: blocks.extent, applies: true }];
        effects.push(Effect::Write { call, stamp, blocks, parts, waited: false });
        self.settle(effects);
    }

    /// Takes a lock back that was granted.
    pub(super) fn deny(
        &mut self,
        now: Time,
        (call, waited): (Call, bool),
        memory: &mut Memory,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(index) = self.find(call) {
            self.queue.remove(index);
        }
        memory.put(now, call, Ended::GivenUp);
        effects.push(Effect::Answer { call, waited, answer: Answer::Denied });
        self.settle(effects);
    }

    /// Denies requests that have waited too long.
    pub(super) fn expire(&mut self, now: Time, memory: &mut Memory, effects: &mut Vec<Effect>) {
        let due = |lock: &Lock| !lock.granted && lock.until <= now;
        let before = self.queue.len();
        self.queue.retain(|lock| {
            if due(lock) {
                let call = lock.ask.call;
                memory.put(now, call, Ended::GivenUp);
                effects.push(Effect::Answer { call, waited: true, answer: Answer::Denied });
            }
            !due(lock)
        });
        if self.queue.len() < before {
            self.settle(effects);
        }
    }

    pub(super) fn next_timer(&self) -> Option<Time> {
        self.queue.iter().filter(|lock| !lock.granted).map(|lock| lock.until).min()
    }

    /// Locks and requests; exclusively locked blocks may be written.
    pub(super) fn holders(&self) -> impl Iterator<Item = Holding> {
        self.queue.iter().map(|lock| {
            let Ask { call, stamp, extent, mode, .. } = lock.ask;
            let written = lock.granted && mode == Mode::Exclusive;
            Holding { life: call.op.life, writes: written.then_some(extent), stamp }
        })
    }

    /// Blocks that are locked exclusively, or will be.
    pub(super) fn may_be_written(&self) -> impl Iterator<Item = Extent> {
        let exclusive = self.queue.iter().filter(|lock| lock.ask.mode == Mode::Exclusive);
        exclusive.map(|lock| lock.ask.extent)
    }

    /// Locks and requests, in their order, for people.
    pub(super) fn under_way(&self) -> impl Iterator<Item = String> {
        self.queue.iter().map(|lock| {
            let Ask { call, extent, mode, .. } = &lock.ask;
            let how = if lock.granted { "has" } else { "waits for" };
            format!("{:?} {how} {mode:?} {extent:?}", call.op)
        })
    }

    /// Repairs need not wait for these lives any more. Their requests that wait are refused: a lock that is granted from now
    /// on would let its holder write at devices that have not fenced it yet, and nobody would hear of these writes.
    pub(super) fn fence(&mut self, fenced: &Fences, effects: &mut Vec<Effect>) {
        self.fenced = fenced.clone();
        self.queue.retain(|lock| {
            let call = lock.ask.call;
            let refused = !lock.granted && fenced.has(call.op.life);
            if refused {
                effects.push(Effect::Answer { call, waited: true, answer: Answer::Fenced });
            }
            !refused
        });
        self.settle(effects);
    }

    /// Drops a life's locks and requests, or all (docs/design/array.md 3.2: only after its writes were repaired).
    pub(super) fn clear(&mut self, life: Option<Life>, effects: &mut Vec<Effect>) {
        self.queue.retain(|lock| life.is_some_and(|life| lock.ask.call.op.life != life));
        self.settle(effects);
    }
}

#[cfg(test)]
mod tests;
