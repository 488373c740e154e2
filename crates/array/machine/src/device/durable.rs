//! Which writes survive a power loss of a device that answers them before they do.
//!
//! The device's record has a timestamp. All writes at or below it are durable, but for those of some blocks (`covered.rs`). After a
//! restart, blocks of suspect stripes may have missed other writes. A block beside them shows such a write by its header, because
//! no write of hosts changes one block of a column alone. So a repair knows by
//! [`Content::durable_to`](crate::message::Content) which blocks are doubtful.
//!
//! - A flush is answered when the record has the newest timestamp of all that was done before. Blocks with operations under way are
//!   left out: their writes may have older timestamps.
//! - A write at or below the record's timestamp may still come: a clock is behind, or a message was late. It waits until the record
//!   leaves its blocks out.
//! - While stripes are suspect, or the device is not whole, the record stays. Repairs and rebuilds write what no other header
//!   shows.
//!
//! A region is marked clean (`suspect.rs`) when a flush has begun after its last write. The device flushes by itself for that.

use std::collections::BTreeMap;

use super::Device;
use super::covered::Covered;
use super::disk::{Job, Purpose};
use super::record::Record;
use crate::message::{Answer, Call};
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::{Extent, Time};

/// A flush of the disk.
#[derive(Debug)]
struct Flushing {
    /// When it began.
    began: Time,
    /// The writes that it makes durable, if that can be said.
    covers: Option<Covered>,
}

#[derive(Debug, Default)]
pub(super) struct Durable {
    /// As the record had it when the device started; none if all that is here was written since.
    at_start: Option<Covered>,
    /// The newest timestamp of a write that is done.
    newest: Time,
    /// Flushes under way, by number.
    flushing: BTreeMap<u64, Flushing>,
    next: u64,
    /// The newest flush that the record has followed.
    recorded: u64,
    /// When the newest flush that is done began.
    began: Option<Time>,
    /// The device flushes by itself.
    sweeps: bool,
}

impl Durable {
    pub(super) fn at_start(record: &Record) -> Self {
        Durable { at_start: Some(record.durable.clone()), ..Durable::default() }
    }

    /// The device's blocks are made anew. No older ones are left from before the start. But no flush has followed the new ones.
    pub(super) fn forget(&mut self) {
        self.at_start = None;
        self.flushing.values_mut().for_each(|flushing| flushing.covers = None);
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
    /// Makes everything durable that is done; then answers the call, if there is one. No write that it is for has a timestamp after
    /// `newest`: blocks beside them do not show any that this device lacks.
    pub(super) fn flush_disk(&mut self, now: Time, newest: Time, call: Option<Call>) {
        self.durable.next += 1;
        let number = self.durable.next;
        let covers = self.covered_by_flush(newest);
        self.durable.flushing.insert(number, Flushing { began: now, covers });
        self.disk.add(None, Job::Flush, Purpose::Flush { call, number });
    }

    /// The writes that a flush makes durable which begins now.
    fn covered_by_flush(&self, newest: Time) -> Option<Covered> {
        let is_good = self.record.state().is_good(self.config.id);
        let is_whole = is_good && self.readmission.is_over();
        if self.config.durable || !is_whole || self.suspects().next().is_some() {
            return None;
        }
        let held = self.tso.holders().filter_map(|held| held.writes);
        let all = held.chain(self.locks.may_be_written()).chain(self.disk.writes_under_way());
        let left_out: Vec<Extent> = all.collect();
        Covered::new(self.durable.newest.max(newest), left_out)
    }

    /// A flush is done. The caller is answered when the record says so.
    pub(super) fn flushed(&mut self, number: u64, call: Option<Call>) {
        let Some(Flushing { began, covers }) = self.durable.flushing.remove(&number) else {
            return;
        };
        self.durable.sweeps = false;
        self.durable.began = self.durable.began.max(Some(began));
        let newer = covers
            .filter(|covers| number > self.durable.recorded && *covers != self.record.durable);
        let answer = call.map(|call| (call, Answer::Done));
        match (newer, answer) {
            (Some(covers), answer) => {
                self.durable.recorded = number;
                self.record.durable = covers;
                self.save(answer);
            }
            // The record of the writes that it has made durable may be on its way.
            (None, Some(answer)) if self.is_saving() => self.save(Some(answer)),
            (None, Some((call, answer))) => self.reply(call, false, answer),
            (None, None) => {}
        }
    }

    /// A write is about to be admitted. Returns the save of the record that it has to wait for.
    pub(super) fn admits_write(&mut self, time: Time, extent: Extent) -> Option<u64> {
        if self.config.durable {
            return None;
        }
        let flushing = self.durable.flushing.values_mut();
        let covers = flushing.filter_map(|flushing| flushing.covers.as_mut());
        covers.for_each(|covers| covers.leave_out(time, extent));
        let before = self.record.durable.clone();
        self.record.durable.leave_out(time, extent);
        if self.record.durable != before {
            self.save(None);
            let save = self.last_save();
            self.marks.lower(before.to, save);
        }
        self.marks.lowered_over(time)
    }

    /// Flushes by itself, if the last flush was before the last writes.
    pub(super) fn sweep(&mut self, now: Time, is_wanted: bool) {
        let behind = is_wanted || self.durable.newest > self.record.durable.to;
        if !self.config.durable && behind && !self.durable.sweeps && !self.broken {
            self.durable.sweeps = true;
            self.flush_disk(now, 0, None);
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

    /// A repair has to know this of blocks here: writes with later timestamps may be lost.
    pub(super) fn durable_to(&self, extent: Extent) -> Time {
        #[cfg(feature = "mutations")]
        if self.config.mutation == Some(Mutation::CacheLossFitsParity) {
            return Time::MAX;
        }
        let stripe = self.config.layout.stripe_of(self.config.id, extent.start);
        let is_doubtful = stripe.is_some_and(|stripe| self.suspects_stripe(stripe));
        let at_start = self.durable.at_start.as_ref();
        let at_start = at_start.filter(|_| is_doubtful && !self.config.durable);
        at_start.map_or(Time::MAX, |covered| covered.up_to(extent))
    }
}
