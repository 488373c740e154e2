//! A device's memory of finished requests. A request that arrives late or twice then has no effect (docs/design/array.md 2:
//! messages of a broken connection, and of a new one, come in any order).

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashMap;

use crate::message::Call;
use crate::{Extent, Header, Life, OpId, Time};

/// How a sibling ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// It was written, or dropped as too old.
    Written,
    /// It was given up, rejected or unlocked: a lock or pre-write that comes now is refused.
    GivenUp,
}

/// Siblings that have ended, for as long as one of their messages may be under way.
#[derive(Debug)]
pub(super) struct Memory {
    keep: Time,
    /// How far ahead of the clock timestamps may be.
    ahead: Time,
    /// Writes with timestamps up to this may be forgotten.
    forgotten: Time,
    ended: HashMap<(OpId, u32), Ended>,
    /// Finished writes, each with its blocks and its linkage record.
    written: HashMap<(OpId, u32), (Extent, Header)>,
    /// Fenced lives whose writes are remembered until they are repaired, and up to which timestamps others were forgotten before.
    pinned: BTreeMap<Life, Time>,
    by_age: VecDeque<(Time, (OpId, u32))>,
}

impl Memory {
    /// Forgets after `keep`, in nanoseconds. Writes with timestamps up to `forgotten` may be forgotten already.
    pub(super) fn new(keep: Time, ahead: Time, forgotten: Time) -> Self {
        Memory {
            keep,
            ahead,
            forgotten,
            ended: HashMap::new(),
            written: HashMap::new(),
            pinned: BTreeMap::new(),
            by_age: VecDeque::new(),
        }
    }

    pub(super) fn put(&mut self, now: Time, call: Call, ended: Ended) {
        let sibling = (call.op, call.sibling);
        if self.ended.insert(sibling, ended).is_none() {
            self.by_age.push_back((now.saturating_add(self.keep), sibling));
        }
    }

    /// A sibling that has ended has written this.
    pub(super) fn wrote(&mut self, call: Call, extent: Extent, header: Header) {
        self.written.insert((call.op, call.sibling), (extent, header));
    }

    /// The recent writes of a life.
    pub(super) fn written_by(&self, life: Life) -> impl Iterator<Item = (Extent, Header)> {
        let theirs = self.written.iter().filter(move |((op, _), _)| op.life == life);
        theirs.map(|(_, written)| *written)
    }

    /// Up to which timestamps writes of a life may be forgotten.
    pub(super) fn forgotten_of(&self, life: Life) -> Time {
        self.pinned.get(&life).copied().unwrap_or(self.forgotten)
    }

    /// Remembers the writes of a fenced life until it is repaired: the repair may wait for long for a device that is away. Returns
    /// true if there are any.
    pub(super) fn pin(&mut self, life: Life) -> bool {
        let forgotten = self.forgotten;
        let any = self.written.keys().any(|(op, _)| op.life == life);
        if any {
            self.pinned.entry(life).or_insert(forgotten);
        }
        any
    }

    /// It is repaired.
    pub(super) fn unpin(&mut self, life: Life) {
        if self.pinned.remove(&life).is_some() {
            self.written.retain(|(op, _), _| op.life != life);
        }
    }

    /// Fenced lives whose writes are remembered.
    pub(super) fn pinned(&self) -> impl Iterator<Item = Life> {
        self.pinned.keys().copied()
    }

    pub(super) fn get(&self, call: Call) -> Option<Ended> {
        self.ended.get(&(call.op, call.sibling)).copied()
    }

    pub(super) fn expire(&mut self, now: Time) {
        while let Some((until, sibling)) = self.by_age.front() {
            if *until > now {
                break;
            }
            self.ended.remove(sibling);
            let is_pinned = self.pinned.contains_key(&sibling.0.life);
            if !is_pinned && self.written.remove(sibling).is_some() {
                // Its timestamp was not further ahead of the clock than that when it was prepared.
                let newest = until.saturating_sub(self.keep).saturating_add(self.ahead);
                self.forgotten = self.forgotten.max(newest);
            }
            self.by_age.pop_front();
        }
    }

    /// How many siblings are remembered.
    pub(super) fn len(&self) -> usize {
        self.ended.len()
    }
}
