//! Which writes survive a power loss of a device that answers them before they do.
//!
//! The device's record has a timestamp. All writes at or below it are durable. After a restart, blocks of suspect stripes may
//! have missed writes with later timestamps. A block beside them shows such a write by its header, because no write of hosts
//! changes one block of a column alone. So a repair knows by [`Content::durable_to`](crate::message::Content) which blocks are
//! doubtful.
//!
//! - A flush raises the timestamp. No write under way may be older, so the bound is taken when the flush begins.
//! - A write at or below the timestamp may still come: a clock is behind, or a message was late. It waits until the record has
//!   an older one.
//! - While stripes are suspect, or the device is not whole, the timestamp stays. Repairs and rebuilds write what no other header
//!   shows.
//!
//! A region is marked clean (`suspect.rs`) when a flush has begun after its last write. The device flushes by itself for that.

use std::collections::BTreeMap;

use super::Device;
use super::disk::{Job, Purpose};
use super::record::Record;
use crate::message::Call;
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::{Condition, Extent, Time};

/// The record follows flushes at most so often, in parts of the time for which siblings are remembered.
const SAVES: u64 = 50;

#[derive(Debug, Default)]
pub(super) struct Durable {
    /// The record's timestamp when the device started.
    at_start: Time,
    /// The newest timestamp of a write that is done.
    newest: Time,
    /// What the record's timestamp may be raised to.
    flushed: Time,
    /// Flushes under way, by number: what each will make of `flushed`, and when it began.
    flushing: BTreeMap<u64, (Time, Time)>,
    next: u64,
    /// When the newest flush that is done began.
    began: Option<Time>,
    saved: Time,
    /// The device flushes by itself.
    sweeps: bool,
}

impl Durable {
    pub(super) fn at_start(record: &Record) -> Self {
        Durable { at_start: record.durable_to, ..Durable::default() }
    }

    /// A write with this timestamp will come: no flush before it makes it durable.
    fn will_come(&mut self, time: Time) {
        let before = time.saturating_sub(1);
        self.flushed = self.flushed.min(before);
        self.flushing.values_mut().for_each(|(to, _)| *to = (*to).min(before));
    }

    /// The device's blocks are made anew. No older ones are left from before the start. But no flush has followed the new ones.
    pub(super) fn forget(&mut self) {
        self.will_come(0);
        self.at_start = Time::MAX;
    }

    /// A write has been done.
    pub(super) fn wrote(&mut self, time: Time) {
        self.newest = self.newest.max(time);
    }

    /// Returns true if a flush has begun since.
    pub(super) fn covers(&self, written: Time) -> bool {
        self.began.is_some_and(|began| began > written)
    }
}

impl Device {
    /// Makes everything durable that is done; then answers the call, if there is one.
    pub(super) fn flush_disk(&mut self, now: Time, call: Option<Call>) {
        let to = self.durable_bound();
        self.durable.next += 1;
        let number = self.durable.next;
        self.durable.flushing.insert(number, (to, now));
        self.disk.add(None, Job::Flush, Purpose::Flush { call, number });
    }

    /// All writes up to this are done, unless one comes late.
    fn durable_bound(&self) -> Time {
        let own = self.record.state().devices.get(usize::from(self.config.id.0));
        let is_whole = own == Some(&Condition::Good);
        if !is_whole || !self.readmission.is_over() || self.suspects().next().is_some() {
            return 0;
        }
        let held = self.in_flight().map(|held| held.stamp.time);
        let least = held.chain(self.disk.writes_under_way()).min();
        let before = least.map_or(Time::MAX, |least| least.saturating_sub(1));
        self.durable.newest.min(before)
    }

    /// A flush is done.
    pub(super) fn flushed(&mut self, now: Time, number: u64) {
        let Some((to, began)) = self.durable.flushing.remove(&number) else { return };
        self.durable.sweeps = false;
        self.durable.flushed = self.durable.flushed.max(to);
        self.durable.began = self.durable.began.max(Some(began));
        let due = self.durable.saved.saturating_add(self.config.remember / SAVES) <= now;
        if !self.config.durable && due && self.durable.flushed > self.record.durable_to {
            self.durable.saved = now;
            self.record.durable_to = self.durable.flushed;
            self.save(None);
        }
    }

    /// A write with this timestamp is about to be admitted. Returns the save of the record that it has to wait for.
    pub(super) fn admits_write(&mut self, time: Time) -> Option<u64> {
        if self.config.durable {
            return None;
        }
        self.durable.will_come(time);
        if time <= self.record.durable_to {
            let was = self.record.durable_to;
            self.record.durable_to = time.saturating_sub(1);
            self.save(None);
            let save = self.last_save();
            self.marks.lower(was, save);
        }
        self.marks.lowered_over(time)
    }

    /// Flushes by itself, if the last flush was before the last writes.
    pub(super) fn sweep(&mut self, now: Time, is_wanted: bool) {
        let behind = is_wanted || self.durable.newest > self.record.durable_to;
        if !self.config.durable && behind && !self.durable.sweeps && !self.broken {
            self.durable.sweeps = true;
            self.flush_disk(now, None);
        }
    }

    /// Returns true if a region that was last used then has nothing in the disk's cache.
    pub(super) fn is_flushed(&self, used: Time) -> bool {
        #[cfg(feature = "mutations")]
        if self.config.mutation == Some(Mutation::CleanBeforeFlushed) {
            return true;
        }
        self.config.durable || self.durable.covers(used)
    }

    /// What a repair has to know of blocks here: writes with later timestamps may be lost.
    pub(super) fn durable_to(&self, extent: Extent) -> Time {
        #[cfg(feature = "mutations")]
        if self.config.mutation == Some(Mutation::CacheLossFitsParity) {
            return Time::MAX;
        }
        let stripe = self.config.layout.stripe_of(self.config.id, extent.start);
        let is_doubtful = stripe.is_some_and(|stripe| self.suspects_stripe(stripe));
        if is_doubtful && !self.config.durable { self.durable.at_start } else { Time::MAX }
    }
}
