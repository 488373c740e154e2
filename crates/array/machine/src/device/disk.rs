//! The order in which a device's disk is used. Operations that overlap run in the order of arrival if one of them writes.
//! All others start at once.
//!
//! Requests are short, so the queue is searched as a whole. A long queue means that the disk is slow.

use std::collections::{BTreeMap, VecDeque};

use crate::message::{Blocks, Call};
use crate::{Block, DeviceEvent, DiskAsk, DiskToken, Extent, Life, OpId, Stamp};

/// Whom a disk operation is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// The answer to this read.
    Read { call: Call, extent: Extent, waited: bool, locked: bool, repairs: bool },
    /// A write that is taken up again (`readmission.rs`), when it is known what lies there.
    TakeUp { call: Call, stamp: Stamp, blocks: Blocks },
    /// The answer to this write is given when all of its parts are done.
    Write { call: Call, waited: bool },
    /// Make durable the writes of earlier lives of the device.
    Start,
    /// The answer to this flush; the device flushes by itself, too.
    Flush { call: Option<Call>, number: u64 },
    /// The record with this number is saved.
    Save { number: u64 },
}

/// A task for the disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Job {
    Read(Extent),
    Write {
        start: u64,
        blocks: Vec<Block>,
        stamp: Stamp,
    },
    /// Nothing, but only after the operations under way at these blocks. A dropped write may be answered only when its
    /// replacement is as durable as it should have been.
    After {
        extent: Extent,
        stamp: Stamp,
    },
    Flush,
    Save(bytes::Bytes),
}

impl Job {
    fn extent(&self) -> Option<Extent> {
        match self {
            Job::Read(extent) | Job::After { extent, .. } => Some(*extent),
            Job::Write { start, blocks, .. } => {
                Some(Extent { start: *start, count: blocks.len() as u32 })
            }
            Job::Flush | Job::Save(_) => None,
        }
    }

    fn conflicts(&self, other: &Job) -> bool {
        let writes = matches!(self, Job::Write { .. }) || matches!(other, Job::Write { .. });
        match (self.extent(), other.extent()) {
            (Some(a), Some(b)) => writes && a.overlaps(b),
            // The last record counts.
            _ => matches!((self, other), (Job::Save(_), Job::Save(_))),
        }
    }
}

/// An operation that the disk was asked for, or that waits for others.
#[derive(Debug)]
struct Entry {
    op: Option<OpId>,
    job: Job,
    purpose: Purpose,
}

/// The disk's operations.
#[derive(Debug, Default)]
pub(super) struct Disk {
    durable: bool,
    next: u64,
    running: BTreeMap<DiskToken, Entry>,
    waiting: VecDeque<Entry>,
}

/// A task to begin as soon as possible.
pub(super) enum Begin {
    Ask(DiskAsk, Option<DeviceEvent>),
    /// Nothing had to be done.
    Over(Purpose, Option<DeviceEvent>),
}

impl Disk {
    pub(super) fn new(durable: bool) -> Self {
        Disk { durable, ..Disk::default() }
    }

    pub(super) fn add(&mut self, op: Option<OpId>, job: Job, purpose: Purpose) {
        self.waiting.push_back(Entry { op, job, purpose });
    }

    /// The next operation that can begin.
    pub(super) fn begin(&mut self) -> Option<Begin> {
        let free = |index: usize| {
            let job = &self.waiting[index].job;
            let earlier = self.waiting.iter().take(index);
            !earlier.chain(self.running.values()).any(|entry| entry.job.conflicts(job))
        };
        let index = (0..self.waiting.len()).find(|index| free(*index))?;
        let mut entry = self.waiting.remove(index)?;
        if let Job::After { extent, stamp } = entry.job {
            let dropped = |op| DeviceEvent::Write { op, extent, stamp, dropped: true };
            return Some(Begin::Over(entry.purpose, entry.op.map(dropped)));
        }
        self.next += 1;
        let token = DiskToken(self.next);
        let (ask, event) = match &mut entry.job {
            Job::Read(extent) => {
                let event = entry.op.map(|op| DeviceEvent::Read { op, extent: *extent });
                (DiskAsk::Read { token, extent: *extent }, event)
            }
            Job::Write { start, blocks, stamp } => {
                let extent = Extent { start: *start, count: blocks.len() as u32 };
                let event = entry.op.map(|op| DeviceEvent::Write {
                    op,
                    extent,
                    stamp: *stamp,
                    dropped: false,
                });
                let blocks = blocks.clone();
                (DiskAsk::Write { token, start: *start, blocks, durable: self.durable }, event)
            }
            Job::Save(record) => (DiskAsk::Save { token, record: record.clone() }, None),
            Job::Flush | Job::After { .. } => (DiskAsk::Flush { token }, None),
        };
        self.running.insert(token, entry);
        Some(Begin::Ask(ask, event))
    }

    /// The disk is done with an operation.
    pub(super) fn end(&mut self, token: DiskToken) -> Option<(Job, Purpose)> {
        self.running.remove(&token).map(|entry| (entry.job, entry.purpose))
    }

    /// The blocks of writes that are not done.
    pub(super) fn writes_under_way(&self) -> impl Iterator<Item = Extent> {
        let all = self.waiting.iter().chain(self.running.values());
        all.filter_map(|entry| match (&entry.job, &entry.purpose) {
            (Job::Write { .. }, _) | (_, Purpose::TakeUp { .. }) => entry.job.extent(),
            _ => None,
        })
    }

    /// The dropped writes of these blocks that wait for a newer one.
    pub(super) fn dropped_for(&self, extent: Extent) -> Vec<Call> {
        let dropped = |entry: &Entry| match (&entry.job, &entry.purpose) {
            (Job::After { extent: other, .. }, Purpose::Write { call, .. }) => {
                other.overlaps(extent).then_some(*call)
            }
            _ => None,
        };
        self.waiting.iter().filter_map(dropped).collect()
    }

    /// Returns true if a part of a write is still under way.
    pub(super) fn writes(&self, call: Call) -> bool {
        let mut all = self.waiting.iter().chain(self.running.values());
        all.any(|entry| match &entry.purpose {
            Purpose::Write { call: other, .. } | Purpose::TakeUp { call: other, .. } => {
                *other == call
            }
            _ => false,
        })
    }

    /// Returns true if a life's write waits for others.
    pub(super) fn waits_with_writes_of(&self, life: Life) -> bool {
        let of = |entry: &Entry| entry.op.is_some_and(|op| op.life == life);
        let writes = |entry: &Entry| matches!(entry.job, Job::Write { .. });
        self.waiting.iter().any(|entry| of(entry) && writes(entry))
    }

    /// How many operations are under way, and how many wait for others.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.running.len(), self.waiting.len())
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }
}
