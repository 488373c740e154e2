//! A device's knowledge of its medium: blocks that it does not return, and writes that it has acknowledged and lost.
//!
//! A block that cannot be read is made anew by a repair. The medium then puts it elsewhere, or it fails again. After a few such
//! rounds the device gives up, and the array goes on without it. A device beside one that is not whole stays: the array could
//! not go on, and all its other blocks are good.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashMap;

use super::disk::Job;
use super::memory::Ended;
use super::{Device, DeviceOutput};
use crate::message::{Answer, Call};
use crate::{BadBlock, Block, BlockError, DiskError, Extent, Life, Scheme, Stamp, Time};

/// A block may fail again after it was written anew, so often.
const MOST_REWRITES: u32 = 2;
/// So many blocks may be unreadable at once.
const MOST_UNREADABLE: usize = 4096;
/// So many blocks may have been written anew since the start.
const MOST_REWRITTEN: u64 = 4096;

/// A device's errors of its medium since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MediumCounts {
    /// Blocks that a read did not return, each as often as it was read.
    pub errors: u64,
    /// Blocks of which the last read has failed, and that were not written since.
    pub unreadable: u64,
    /// Blocks that were written anew after they could not be read.
    pub rewritten: u64,
    /// Blocks that a read returned in an older state than the last write's.
    pub lost_writes: u64,
    /// The block of the device that was found last, of either kind.
    pub last: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Medium {
    /// Blocks of which a read has failed, or found an older state. Each has the number of times that it was written anew since, and whether the last of
    /// these came after the last failure.
    bad: BTreeMap<u64, (u32, bool)>,
    /// The stamp of the last write of each block, as long as siblings are remembered.
    written: HashMap<u64, (Stamp, Time)>,
    by_age: VecDeque<(Time, u64)>,
    /// Writes that the medium has not taken. The others may have them, until the host has had the stripe repaired.
    lacking: Vec<(Call, Extent)>,
    counts: MediumCounts,
    /// Why the medium is of no more use.
    useless: Option<String>,
}

impl Medium {
    /// A write has been done.
    fn wrote(&mut self, until: Time, start: u64, blocks: &[Block]) {
        for (number, block) in (start..).zip(blocks) {
            if self.written.insert(number, (block.header.stamp, until)).is_none() {
                self.by_age.push_back((until, number));
            }
            if let Some((times, since)) = self.bad.get_mut(&number)
                && !std::mem::replace(since, true)
            {
                *times += 1;
                self.counts.rewritten += 1;
            }
        }
        if self.counts.rewritten > MOST_REWRITTEN {
            self.useless = Some(format!(
                "more than {MOST_REWRITTEN} of its blocks could not be read and were written anew"
            ));
        }
    }

    /// A host takes back what is left of an operation.
    pub(super) fn is_resolved(&mut self, call: Call) {
        self.lacking.retain(|(of, _)| (of.op, of.sibling) != (call.op, call.sibling));
    }

    /// What lives have left is repaired.
    pub(super) fn are_resolved(&mut self, of: impl Fn(Life) -> bool) {
        self.lacking.retain(|(call, _)| !of(call.op.life));
    }

    /// Forgets old writes.
    pub(super) fn expire(&mut self, now: Time, keep: Time) {
        while let Some(&(until, number)) = self.by_age.front() {
            if until > now {
                break;
            }
            self.by_age.pop_front();
            match self.written.get(&number) {
                // It was written again.
                Some(&(_, later)) if later > now => {
                    self.by_age.push_back((later.max(now.saturating_add(keep / 4)), number));
                }
                _ => drop(self.written.remove(&number)),
            }
        }
    }

    /// Judges a block that was read.
    fn read(&mut self, number: u64, found: &mut Result<Block, BadBlock>) {
        match found {
            Err(BadBlock { error: BlockError::Unreadable, .. }) => {
                self.counts.errors += 1;
                self.fails(number, "cannot be read");
            }
            Err(_) => {}
            Ok(block) => {
                let written = self.written.get(&number);
                if written.is_some_and(|(stamp, _)| *stamp != block.header.stamp) {
                    *found = Err(BlockError::Torn.into());
                    self.counts.lost_writes += 1;
                    self.fails(number, "does not have its last write");
                } else {
                    self.bad.remove(&number);
                }
            }
        }
    }

    fn fails(&mut self, number: u64, how: &str) {
        self.counts.last = Some(number);
        let (times, since) = self.bad.entry(number).or_default();
        *since = false;
        if *times > MOST_REWRITES {
            let times = *times;
            self.useless =
                Some(format!("block {number} {how}, although it was written anew {times} times"));
        }
        if self.bad.len() > MOST_UNREADABLE {
            self.useless = Some(format!("more than {MOST_UNREADABLE} of its blocks fail"));
        }
    }
}

impl Device {
    /// The errors of the medium since the start.
    pub fn medium(&self) -> MediumCounts {
        let unreadable = self.medium.bad.values().filter(|(_, since)| !since).count() as u64;
        MediumCounts { unreadable, ..self.medium.counts }
    }

    /// Blocks have been written.
    pub(super) fn note_written(&mut self, now: Time, start: u64, blocks: &[Block]) {
        self.medium.wrote(now.saturating_add(self.config.remember), start, blocks);
        if !self.config.durable {
            let times = blocks.iter().map(|block| block.header.stamp.time);
            times.for_each(|time| self.durable.wrote(time));
            // From here on only a flush makes the region clean.
            if let Some(stripe) = self.config.layout.stripe_of(self.config.id, start) {
                let region = self.suspects.region(stripe);
                self.suspects.used(now, region);
            }
        }
        self.give_up_medium();
    }

    /// Notes what the medium has not returned, or not in its last state.
    pub(super) fn note_read(&mut self, extent: Extent, blocks: &mut [Result<Block, BadBlock>]) {
        for (number, found) in (extent.start..).zip(blocks) {
            self.medium.read(number, found);
        }
        self.give_up_medium();
    }

    /// The medium has not taken a write. Older writes that were dropped for it are not there either: nobody may take them for done
    /// (docs/design/array.md 3.7).
    pub(super) fn not_taken(&mut self, now: Time, call: Call, waited: bool, job: &Job) {
        self.unwritable(now, call, waited);
        let Job::Write { start, blocks, stamp } = job else { return };
        let extent = Extent { start: *start, count: blocks.len() as u32 };
        // A lock server keeps others away until then.
        if matches!(self.config.scheme, Scheme::TimestampOrdering | Scheme::DeviceLocking) {
            self.medium.lacking.push((call, extent));
        }
        self.tso.not_taken(extent, *stamp);
        self.readmission.not_taken(extent, *stamp);
        for call in self.disk.dropped_for(extent) {
            self.unwritable(now, call, true);
        }
    }

    /// Returns true if parity may have a write of these blocks that is not here. A block of a missing device would be made of both.
    pub(super) fn lacks_a_write(&self, read: Extent) -> bool {
        self.medium.lacking.iter().any(|(_, extent)| extent.overlaps(read))
    }

    /// Its host tries again, until the stripe is repaired. Nothing waits here: the repair's timestamp is newer.
    pub(super) fn refuse_read(&mut self, now: Time, call: Call, read: Extent, waited: bool) {
        let (memory, mut effects) = (&mut self.memory, Vec::new());
        match self.config.scheme {
            Scheme::DeviceLocking => self.locks.deny(now, (call, waited), memory, &mut effects),
            _ => self.tso.reject(now, (call, read, waited), memory, &mut effects),
        }
        self.carry_out(effects);
    }

    fn unwritable(&mut self, now: Time, call: Call, waited: bool) {
        if self.memory.get(call) != Some(Ended::GivenUp) {
            self.memory.put(now, call, Ended::GivenUp);
            self.reply(call, waited, Answer::Unwritable);
        }
    }

    /// The device leaves the array if its medium is of no more use, and the array can go on without it.
    fn give_up_medium(&mut self) {
        #[cfg(feature = "mutations")]
        if self.config.mutation == Some(crate::mutation::Mutation::ReadErrorsAreForgotten) {
            return;
        }
        if self.is_group_whole()
            && let Some(why) = self.medium.useless.take()
        {
            self.break_down(DiskError(why));
        }
    }

    /// Returns true if the array can go on without this device, as far as it knows.
    pub(super) fn is_group_whole(&self) -> bool {
        self.record.state().not_whole_beside(&self.config.layout, self.config.id).is_none()
    }

    /// The disk has failed, and nothing more is served.
    pub(super) fn break_down(&mut self, error: DiskError) {
        if !std::mem::replace(&mut self.broken, true) {
            self.output.push_back(DeviceOutput::Broken(error));
        }
    }
}
