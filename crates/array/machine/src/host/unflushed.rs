//! The writes that devices have answered to this host, and that no flush has followed (docs/design/array.md 3.8).
//!
//! Each reply of a device names the device's start. A flush compares the starts of the devices that have unflushed writes. A device
//! that has started anew may have lost them with its cache. Their stripes are then repaired, and each block has to have the timestamp
//! of its write, or a newer one. Only then devices flush again, and the caller gets its answer. If a block is older, the flush fails,
//! and so does every later one until the block is written anew.
//!
//! The host remembers a bounded number of writes. It flushes by itself when half of that is reached. What exceeds it is forgotten: then
//! a flush fails if any device has started anew.

use std::collections::{BTreeMap, BTreeSet};

use super::ArrayHost;
use super::engine::{Owner, Role, Sibling, Task};
use super::repair::{Pass, Wanted};
use crate::recovery::column::Rule;
use crate::{ArrayState, DeviceId, HostAnswer, Layout, OpError, Peer, Span, Stamp, Time, Work};

/// As many writes are remembered,
const MOST_WRITES: usize = 1 << 16;
/// and blocks of writes.
const MOST_BLOCKS: u64 = 1 << 20;
/// So often, a flush looks at all stripes again because a device has started anew meanwhile.
const MOST_ROUNDS: u32 = 16;
/// After a flush of its own has failed, the host tries again after so many writes.
const PAUSE: u64 = 1024;

/// The remembered writes.
#[derive(Debug, Default)]
pub(super) struct Unflushed {
    /// By first block and number of blocks: the newest timestamp, and the place in the order of answers.
    writes: BTreeMap<(u64, u64), (Stamp, u64)>,
    /// Blocks of all of them.
    blocks: u64,
    /// The longest of them, since there were none.
    longest: u64,
    /// Writes that were answered.
    answered: u64,
    /// The newest write that was not remembered, by its place.
    forgotten: Option<u64>,
    /// By device: the start under which it has got the writes; none if there were several.
    boots: BTreeMap<DeviceId, Option<u64>>,
    /// Devices that were connected anew after a start, and after how many answered writes.
    restarted: BTreeMap<DeviceId, u64>,
    /// This host's own flush is under way, or is not tried again before so many writes.
    own: Option<u64>,
}

/// A flush on its way.
#[derive(Clone, Debug, Default)]
pub(super) struct Flush {
    /// It makes these writes durable.
    up_to: u64,
    /// When stripes were looked at last: the start of each device, or none if it was gone.
    checked: BTreeMap<DeviceId, Option<u64>>,
    /// Stripes that are still to be looked at.
    left: Vec<u64>,
    rounds: u32,
}

/// The devices' starts, as the flush's answers tell them.
struct Starts<'a> {
    /// The starts that have answered the flush.
    now: &'a BTreeMap<DeviceId, u64>,
    unflushed: &'a Unflushed,
    checked: &'a BTreeMap<DeviceId, Option<u64>>,
}

impl Starts<'_> {
    /// Returns true if a device may have lost writes since they were answered.
    fn may_have_lost(&self, device: DeviceId) -> bool {
        let now = self.now.get(&device).copied();
        if self.checked.get(&device) == Some(&now) {
            return false;
        }
        let before = self.unflushed.boots.get(&device);
        let is_another = before.is_some_and(|before| *before != now || now.is_none());
        is_another || self.unflushed.restarted.contains_key(&device)
    }
}

impl Unflushed {
    /// A write is answered.
    fn note(&mut self, span: Span, stamp: Stamp, boots: impl Iterator<Item = (DeviceId, u64)>) {
        self.answered += 1;
        for (device, boot) in boots {
            let known = self.boots.entry(device).or_insert(Some(boot));
            *known = known.filter(|known| *known == boot);
        }
        let key = (span.start, span.count);
        if let Some((newest, place)) = self.writes.get_mut(&key) {
            (*newest, *place) = (stamp.max(*newest), self.answered);
        } else if self.writes.len() < MOST_WRITES && self.blocks + span.count <= MOST_BLOCKS {
            self.writes.insert(key, (stamp, self.answered));
            self.blocks += span.count;
            self.longest = self.longest.max(span.count);
        } else {
            self.forgotten = Some(self.answered);
        }
    }

    /// A device has started anew.
    pub(super) fn restarted(&mut self, device: DeviceId) {
        self.restarted.insert(device, self.answered);
    }

    /// All writes up to a place are durable, at these starts of the devices.
    fn flushed(&mut self, up_to: u64, now: &BTreeMap<DeviceId, u64>) {
        self.writes.retain(|_, (_, place)| *place > up_to);
        self.blocks = self.writes.keys().map(|(_, count)| count).sum();
        self.forgotten = self.forgotten.filter(|place| *place > up_to);
        if self.writes.is_empty() && self.forgotten.is_none() {
            self.boots.clear();
            self.longest = 0;
        }
        // The remaining writes may have been answered before a device started anew.
        for (device, boot) in &mut self.boots {
            *boot = boot.filter(|boot| now.get(device) == Some(boot));
        }
        self.restarted.retain(|_, place| *place > up_to);
    }

    fn is_half_full(&self) -> bool {
        self.writes.len() >= MOST_WRITES / 2 || self.blocks >= MOST_BLOCKS / 2
    }

    /// The remembered blocks of a stripe, each with its newest timestamp.
    fn of_stripe(&self, layout: &Layout, stripe: u64) -> Vec<Wanted> {
        let first = layout.logical(stripe, 0);
        let end = first + u64::from(layout.data) * u64::from(layout.unit);
        let mut newest: BTreeMap<u64, Stamp> = BTreeMap::new();
        for (&(start, count), &(stamp, _)) in
            self.writes.range((first.saturating_sub(self.longest), 0)..(end, 0))
        {
            for block in start.max(first)..(start + count).min(end) {
                let known = newest.entry(block).or_default();
                *known = stamp.max(*known);
            }
        }
        let wanted = |(block, stamp)| Wanted::of(layout.place(block), stamp, true);
        newest.into_iter().map(wanted).collect()
    }

    /// The stripes of all remembered writes.
    fn stripes(&self, layout: &Layout) -> BTreeSet<u64> {
        let per_stripe = u64::from(layout.data) * u64::from(layout.unit);
        let of =
            |(start, count): &(u64, u64)| start / per_stripe..=(start + count - 1) / per_stripe;
        self.writes.keys().flat_map(of).collect()
    }

    /// The stripes to look at before a flush may succeed.
    ///
    /// # Errors
    /// Nobody can know any more if all writes are there.
    fn doubtful(
        &self,
        layout: &Layout,
        state: &ArrayState,
        starts: &Starts<'_>,
    ) -> Result<Vec<u64>, String> {
        let lost: Vec<DeviceId> =
            layout.all_devices().filter(|d| starts.may_have_lost(*d)).collect();
        if lost.is_empty() {
            return Ok(Vec::new());
        }
        if self.forgotten.is_some() {
            return Err(format!(
                "{} started anew before it, and there were more unflushed writes than this host remembers",
                names(&lost)
            ));
        }
        let mut doubtful = Vec::new();
        for stripe in self.stripes(layout) {
            let group: Vec<DeviceId> = layout.units(stripe).collect();
            if !group.iter().any(|device| lost.contains(device)) {
                continue;
            }
            let may_lack =
                |device: &&DeviceId| !state.has(**device, stripe) || lost.contains(device);
            // With two parities, the others still have all of it.
            let bears = layout.parities() > 1
                && group.iter().filter(may_lack).count() <= usize::from(layout.parities());
            for wanted in self.of_stripe(layout, stripe).into_iter().filter(|_| !bears) {
                let device = layout.data(stripe, wanted.unit);
                let other = lost.iter().find(|other| **other != device && group.contains(other));
                if let (false, Some(other)) = (state.has(device, stripe), other) {
                    let block = layout.logical(stripe, wanted.unit) + u64::from(wanted.column);
                    return Err(format!(
                        "block {block} of the array was written before it, {device} is not whole, and {other} started anew"
                    ));
                }
            }
            doubtful.push(stripe);
        }
        Ok(doubtful)
    }
}

fn names(devices: &[DeviceId]) -> String {
    devices.iter().map(DeviceId::to_string).collect::<Vec<_>>().join(", ")
}

impl ArrayHost {
    /// A write of this host has been answered by all of its devices.
    pub(super) fn note_unflushed(&mut self, now: Time, span: Span, stamp: Stamp, by: &[Sibling]) {
        if self.config.durable {
            return;
        }
        let boots = by.iter().filter_map(|sibling| match sibling.peer {
            Peer::Device(device) if sibling.writes => Some((device, sibling.boot?)),
            _ => None,
        });
        self.unflushed.note(span, stamp, boots);
        let waits = self.unflushed.own.is_some_and(|until| self.unflushed.answered < until);
        if self.unflushed.is_half_full() && !waits {
            self.unflushed.own = Some(u64::MAX);
            self.start(now, Task::new(now, Owner::Own, Work::Flush, Role::Work));
        }
    }

    /// This host's own flush is done.
    pub(super) fn own_flush_done(&mut self, result: &Result<HostAnswer, OpError>) {
        let pause = self.unflushed.answered + PAUSE;
        self.unflushed.own = result.is_err().then_some(pause);
    }

    /// The writes that a flush is for: those that were answered before it was asked for.
    pub(super) fn begin_flush(&self) -> Flush {
        Flush { up_to: self.unflushed.answered, ..Flush::default() }
    }

    /// All devices have flushed. The caller is answered if none has started anew since the writes.
    pub(super) fn devices_flushed(&mut self, now: Time, seq: u64) {
        let Some(this) = self.tries.get_mut(&seq) else { return };
        let boots = this.siblings.iter().filter_map(|sibling| match sibling.peer {
            Peer::Device(device) => Some((device, sibling.boot?)),
            Peer::Server => None,
        });
        let boots: BTreeMap<DeviceId, u64> = boots.collect();
        let Some(flush) = this.task.as_mut().and_then(|task| task.flush.as_mut()) else { return };
        let starts = Starts { now: &boots, unflushed: &self.unflushed, checked: &flush.checked };
        let doubtful = self.unflushed.doubtful(&self.config.layout, &self.state, &starts);
        #[cfg(feature = "mutations")]
        let doubtful = match self.config.mutation {
            Some(crate::mutation::Mutation::FlushTrustsRestarts) => Ok(Vec::new()),
            _ => doubtful,
        };
        match doubtful {
            Ok(stripes) if stripes.is_empty() => {
                self.unflushed.flushed(flush.up_to, &boots);
                self.finish(now, seq, Ok(HostAnswer::Done));
            }
            Ok(_) if flush.rounds >= MOST_ROUNDS => {
                let why = "devices start anew again and again".to_owned();
                self.fail(now, seq, OpError::Unflushed(why));
            }
            Ok(stripes) => {
                flush.rounds += 1;
                flush.left = stripes;
                let all = self.config.layout.all_devices();
                flush.checked = all.map(|device| (device, boots.get(&device).copied())).collect();
                let Some(task) = this.task.take() else { return };
                self.give_up(now, seq);
                self.look_at_next(now, task);
            }
            Err(why) => self.fail(now, seq, OpError::Unflushed(why)),
        }
    }

    /// Has the next stripe of a flush repaired, and looks if all writes are there. After the last one, devices flush again.
    fn look_at_next(&mut self, now: Time, mut task: Task) {
        let Some(flush) = task.flush.as_mut() else { return };
        let Some(stripe) = flush.left.pop() else { return self.start(now, task) };
        // Its time is bounded for each stripe: there may be many.
        task.since = now;
        let wanted = self.unflushed.of_stripe(&self.config.layout, stripe);
        self.look_at(now, task, Pass { wanted, ..Pass::over(stripe, true, Rule::Leave) });
    }

    /// A stripe of a flush is repaired.
    pub(super) fn looked_at(
        &mut self,
        now: Time,
        task: Task,
        stripe: u64,
        missing: Option<(u16, u32)>,
    ) {
        let Some((unit, column)) = missing else { return self.look_at_next(now, task) };
        let layout = &self.config.layout;
        let block = layout.logical(stripe, unit) + u64::from(column);
        let why = format!(
            "block {block} of the array was written before it, and {} has lost that with its cache; the other devices do not tell \
             what was there",
            layout.data(stripe, unit)
        );
        self.fail_task(now, task, OpError::Unflushed(why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Redundancy;

    const DEVICE: DeviceId = DeviceId(0);

    fn layout() -> Layout {
        let redundancy = Redundancy::Raid5;
        Layout {
            redundancy,
            data: 2,
            groups: 1,
            unit: 4,
            block_size: 16,
            stripes: 1 << 30,
            added: Default::default(),
        }
    }

    fn note(unflushed: &mut Unflushed, start: u64, count: u64, time: Time, boot: u64) {
        let boots = [(DEVICE, boot)].into_iter();
        unflushed.note(Span { start, count }, Stamp { time, host: 1 }, boots);
    }

    fn doubtful(unflushed: &Unflushed, boot: u64) -> Result<Vec<u64>, String> {
        let now = BTreeMap::from([(DEVICE, boot), (DeviceId(1), 1), (DeviceId(2), 1)]);
        let checked = BTreeMap::new();
        let starts = Starts { now: &now, unflushed, checked: &checked };
        unflushed.doubtful(&layout(), &ArrayState::new(3), &starts)
    }

    #[test]
    fn memory_is_bounded_and_what_exceeds_it_makes_flushes_fail() {
        for (writes, count) in [(MOST_WRITES as u64 + 10, 1), (40, MOST_BLOCKS / 32)] {
            let mut unflushed = Unflushed::default();
            for write in 0..writes {
                note(&mut unflushed, write * count, count, 5, 7);
            }
            assert!(unflushed.writes.len() <= MOST_WRITES && unflushed.blocks <= MOST_BLOCKS);
            assert!(unflushed.is_half_full());
            assert_eq!(doubtful(&unflushed, 7), Ok(Vec::new()), "nobody has started anew");
            let why = doubtful(&unflushed, 8).unwrap_err();
            assert!(why.contains("more unflushed writes than this host remembers"), "{why}");
            let up_to = unflushed.answered;
            unflushed.flushed(up_to, &BTreeMap::from([(DEVICE, 7)]));
            assert!(unflushed.writes.is_empty() && unflushed.boots.is_empty());
            assert_eq!(doubtful(&unflushed, 8), Ok(Vec::new()));
        }
    }

    #[test]
    fn the_same_blocks_are_remembered_once_and_with_the_newest_timestamp() {
        let mut unflushed = Unflushed::default();
        for time in [5, 9, 7] {
            note(&mut unflushed, 6, 4, time, 7);
        }
        note(&mut unflushed, 7, 1, 11, 7);
        assert_eq!(unflushed.writes.len(), 2);
        let of = |stripe| {
            let wanted = unflushed.of_stripe(&layout(), stripe).into_iter();
            wanted.map(|w| (w.unit, w.column, w.stamp.time)).collect::<Vec<_>>()
        };
        assert_eq!(of(0), [(1, 2, 9), (1, 3, 11)]);
        assert_eq!(of(1), [(0, 0, 9), (0, 1, 9)]);
        assert_eq!(doubtful(&unflushed, 8), Ok(vec![0, 1]));
    }

    /// A write that was answered while devices flushed may have been lost before they did.
    #[test]
    fn a_flush_says_nothing_of_later_writes() {
        let mut unflushed = Unflushed::default();
        note(&mut unflushed, 0, 1, 5, 7);
        let up_to = unflushed.answered;
        note(&mut unflushed, 100, 1, 6, 7);
        unflushed.flushed(up_to, &BTreeMap::from([(DEVICE, 8)]));
        assert_eq!(doubtful(&unflushed, 8), Ok(vec![12]));
    }

    #[test]
    fn a_missing_device_is_told_beside_one_that_has_started_anew() {
        let mut unflushed = Unflushed::default();
        note(&mut unflushed, 0, 8, 5, 7);
        let now = BTreeMap::from([(DEVICE, 8), (DeviceId(2), 1)]);
        let checked = BTreeMap::new();
        let starts = Starts { now: &now, unflushed: &unflushed, checked: &checked };
        let failed = ArrayState::new(3);
        let failed = failed.changed(crate::Change::Fail(DeviceId(1), 0)).unwrap().unwrap();
        let why = unflushed.doubtful(&layout(), &failed, &starts).unwrap_err();
        assert!(why.contains("block 4") && why.contains("d1 is not whole"), "{why}");
        assert!(why.contains("d0 started anew"), "{why}");
    }
}
