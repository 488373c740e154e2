//! The upkeep of a running array. Hosts that died are fenced, devices that died are taken out, and those that came back
//! are rebuilt. On real arrays the devices' processes do this. They have no coordinator either, and any process may begin
//! any task again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use lockify_array::{
    AddedGroup, ArrayState, Change, Condition, DeviceId, Group, HostAnswer, Layout, Life,
    LockChange, Member, OpError, Term, Work,
};
use lockify_sim::Nanos;

/// A repair that is to be done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Repair {
    /// Fence a life, which was reported again so many times while it was being fenced.
    Fence(Life, u32),
    /// Take out a device that was last let in for this term.
    Fail(DeviceId, u64),
    /// Let in a device that was away.
    LetIn(DeviceId, Term),
    /// Begin to rebuild a device.
    Begin(DeviceId),
    /// Rebuild a stripe of it, after so many absences.
    Rebuild(DeviceId, u64, u64),
    /// Say that it is rebuilt, after so many absences.
    Rebuilt(DeviceId, u64),
    /// Check a stripe that a device suspects.
    Check(u64),
    /// Repair a stripe with a block that its medium does not return, whatever is lost.
    Settle(u64),
    /// Have the array grow from so many stripes ([`ArrayState::stripes`]), with so many groups that it has got, to so many stripes.
    Grow(u64, usize, u64),
    /// Have it get the group that begins with this device, when it has so many stripes ([`ArrayState::stripes`]).
    Add(u64, AddedGroup),
    /// Agree on a change of the lock servers. They ask again by themselves.
    Locks(LockChange),
}

impl Repair {
    /// The piece of work, in an array with groups of this size.
    pub fn work(self, group_size: u16) -> Work {
        match self {
            Repair::Fence(life, _) => Work::Fence { life },
            Repair::Fail(device, term) => Work::Change { change: Change::Fail(device, term) },
            Repair::LetIn(device, term) => Work::Change { change: Change::LetIn(device, term) },
            Repair::Begin(device) => Work::Change { change: Change::Rebuild(device) },
            Repair::Rebuild(device, stripe, _) => Work::Rebuild { device, stripe },
            Repair::Rebuilt(device, absences) => {
                Work::Change { change: Change::Rebuilt(device, u64::MAX, absences) }
            }
            Repair::Check(stripe) => Work::Scrub { stripe, repair: true },
            Repair::Settle(stripe) => Work::AcceptLoss { stripe },
            Repair::Grow(after, groups, stripes) => {
                Work::Change { change: Change::Grow { after, groups, stripes } }
            }
            Repair::Add(after, AddedGroup { from, first }) => {
                let address = |device: u16| format!("device-{device}:1");
                let member = |device| Member { address: address(device), node: 0 };
                let members = (first.0..first.0 + group_size).map(member).collect();
                let group = Group { from, first, members };
                Work::Change { change: Change::Add { after, group } }
            }
            Repair::Locks(change) => Work::Change { change: Change::Locks(change) },
        }
    }
}

/// Knows the broken parts, and the repairs under way.
#[derive(Debug)]
pub struct Caretaker {
    layout: Layout,
    /// Those who only vote.
    witnesses: Range<u16>,
    detection: Nanos,
    /// The newest state that a host has told.
    state: ArrayState,
    /// Lives that are to be fenced, and from when on.
    dead: BTreeMap<Life, Nanos>,
    /// Those of them that were reported again while they were being fenced, and from when on they are fenced once more. A device that
    /// has started meanwhile may not have heard of it, and the first fence may wait for what that device has.
    reported_again: BTreeMap<Life, Nanos>,
    /// How often that was. Only the last fence of a life counts: an earlier one does not know what a device had left when it started.
    fenced_again: BTreeMap<Life, u32>,
    /// Devices that do not answer, since when.
    down: BTreeMap<DeviceId, Nanos>,
    /// The next stripe of devices that are being rebuilt, by device and its absences.
    next: BTreeMap<(DeviceId, u64), u64>,
    /// Devices of which a stripe could not be rebuilt. They may have been taken out, or only a host that died knew of the
    /// rebuild.
    unsure: BTreeSet<DeviceId>,
    under_way: BTreeSet<Repair>,
    /// Devices that do not know hosts' writes, or went without knowing them.
    unsettled: BTreeSet<DeviceId>,
    /// Failed repairs, each with the time of the next attempt.
    again: BTreeMap<Repair, Nanos>,
    /// The last failure, for who wants to know why it does not end.
    pub trouble: Option<String>,
    /// Repairs done.
    pub done: u64,
    /// How often another lock server has begun to serve than the one before, as far as hosts and devices have told.
    pub successions: u64,
}

impl Caretaker {
    /// All is well.
    pub fn new(layout: Layout, voters: u16, state: ArrayState, detection: Nanos) -> Caretaker {
        Caretaker {
            layout,
            witnesses: layout.devices()..voters,
            detection,
            state,
            dead: BTreeMap::new(),
            reported_again: BTreeMap::new(),
            fenced_again: BTreeMap::new(),
            down: BTreeMap::new(),
            next: BTreeMap::new(),
            unsure: BTreeSet::new(),
            under_way: BTreeSet::new(),
            unsettled: BTreeSet::new(),
            again: BTreeMap::new(),
            trouble: None,
            done: 0,
            successions: 0,
        }
    }

    /// A host has learned of a state.
    pub fn learn(&mut self, state: &ArrayState) {
        if state.epoch > self.state.epoch {
            let (before, locks) = (&self.state.locks, &state.locks);
            let other = before.term > 0 && before.serving != locks.serving;
            self.successions += u64::from(other);
            self.state = state.clone();
            self.layout = self.layout.grown(state);
        }
    }

    /// How the array is laid out, by the newest state known.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The newest state known.
    pub fn state(&self) -> &ArrayState {
        &self.state
    }

    /// A life has ended, or is taken for dead.
    pub fn host_died(&mut self, at: Nanos, life: Life) {
        let from = at + self.detection;
        self.dead.entry(life).or_insert(from);
        if self.under_way.contains(&self.fence(life)) {
            self.reported_again.entry(life).or_insert(from);
        }
    }

    fn fence(&self, life: Life) -> Repair {
        Repair::Fence(life, self.fenced_again.get(&life).copied().unwrap_or_default())
    }

    /// A device has stopped.
    pub fn device_stopped(&mut self, at: Nanos, device: DeviceId) {
        if !self.witnesses.contains(&device.0) {
            self.down.entry(device).or_insert(at);
        }
    }

    /// A device runs again. Returns whether it was away for so long that the array may go on without it.
    pub fn device_runs(&mut self, at: Nanos, device: DeviceId) -> bool {
        self.down.remove(&device).is_some_and(|since| since + self.detection <= at)
    }

    /// Returns true if everything is repaired.
    pub fn is_idle(&self) -> bool {
        let good = self.state.devices.iter().all(|c| *c == Condition::Good);
        good && self.dead.is_empty() && self.down.is_empty() && self.under_way.is_empty()
    }

    /// Returns true if a device is being given up.
    pub fn gives_up(&self) -> bool {
        self.under_way.iter().any(|repair| matches!(repair, Repair::Fail(..)))
    }

    /// The repairs to begin now. Each is under way until [`Caretaker::ended`]. `settled` names the present devices that
    /// know hosts' writes. Beside a device that is not settled, no other of its group is given up. `old` names the devices
    /// that have an older copy of their medium.
    pub fn due(
        &mut self,
        at: Nanos,
        settled: impl Fn(DeviceId) -> bool,
        old: impl Fn(DeviceId) -> bool,
    ) -> Vec<Repair> {
        let mut due = Vec::new();
        for device in self.layout.all_devices() {
            if settled(device) {
                self.unsettled.remove(&device);
            } else if !self.down.contains_key(&device) {
                self.unsettled.insert(device);
            }
        }
        let times = &mut self.fenced_again;
        self.reported_again.retain(|life, from| {
            let waits = at < *from;
            if !waits {
                *times.entry(*life).or_default() += 1;
            }
            waits
        });
        let fences = self.dead.iter().filter(|(_, from)| **from <= at);
        due.extend(fences.map(|(life, _)| self.fence(*life)));
        for (device, condition) in self.state.conditions() {
            let since = self.down.get(&device);
            due.extend(match condition {
                Condition::Good => {
                    let late = since.is_some_and(|since| since + self.detection <= at);
                    let beside = self.is_settled_beside(device, &settled);
                    ((late || old(device)) && beside)
                        .then(|| Repair::Fail(device, self.state.term(device)))
                }
                _ if since.is_some() => None,
                Condition::Failed | Condition::Unfinished => Some(Repair::Begin(device)),
                Condition::Rebuilding { .. } | Condition::Returning { .. }
                    if self.unsure.contains(&device) =>
                {
                    Some(Repair::Begin(device))
                }
                Condition::Rebuilding { done } | Condition::Returning { done, .. } => {
                    let absences = self.state.absences(device);
                    let next = self.next.entry((device, absences)).or_insert(done);
                    Some(if *next < self.layout.stripes {
                        Repair::Rebuild(device, *next, absences)
                    } else {
                        Repair::Rebuilt(device, absences)
                    })
                }
            });
        }
        due.retain(|repair| self.begins(at, *repair));
        due
    }

    /// Returns true if all others of a device's group know hosts' writes. With two parities, one may be gone that knew them when it
    /// went, or be out.
    fn is_settled_beside(&self, device: DeviceId, settled: &impl Fn(DeviceId) -> bool) -> bool {
        let mut bears = usize::from(self.layout.parities()) - 1;
        self.layout.beside(device).all(|other| {
            let is_out = self.state.is_failed(other) && bears > 0;
            let is_down = self.down.contains_key(&other) && !self.unsettled.contains(&other);
            match (settled(other) && !is_out, is_out || is_down) {
                (true, _) => true,
                (false, true) if bears > 0 => {
                    bears -= 1;
                    true
                }
                (false, _) => false,
            }
        })
    }

    /// Returns true if a repair is begun now; then it is under way.
    pub fn begins(&mut self, at: Nanos, repair: Repair) -> bool {
        let waits = self.again.get(&repair).is_some_and(|time| at < *time);
        !waits && self.under_way.insert(repair)
    }

    /// A repair has ended, or its host has died.
    pub fn ended(
        &mut self,
        at: Nanos,
        repair: Repair,
        result: Option<&Result<HostAnswer, OpError>>,
    ) {
        self.under_way.remove(&repair);
        if let Repair::Fence(life, _) = repair
            && repair != self.fence(life)
        {
            return;
        }
        let Some(Ok(_)) = result else {
            if let Repair::Fence(life, _) = repair {
                self.reported_again.remove(&life);
            }
            if let Some(Err(error)) = result {
                self.trouble = Some(format!("{repair:?}: {error}"));
            }
            self.again.insert(repair, at + self.detection / 4);
            if let Repair::Rebuild(device, _, absences) = repair {
                self.next.remove(&(device, absences));
                self.unsure.insert(device);
            }
            return;
        };
        self.done += u64::from(!matches!(
            repair,
            Repair::LetIn(..)
                | Repair::Check(_)
                | Repair::Settle(_)
                | Repair::Grow(..)
                | Repair::Add(..)
                | Repair::Locks(_)
        ));
        self.again.remove(&repair);
        match repair {
            Repair::Fence(life, _) => match self.reported_again.remove(&life) {
                Some(from) => drop(self.dead.insert(life, from)),
                None => drop(self.dead.remove(&life)),
            },
            Repair::Begin(device) => drop(self.unsure.remove(&device)),
            Repair::Rebuilt(device, absences) => {
                self.next.remove(&(device, absences));
                self.unsure.remove(&device);
            }
            Repair::Rebuild(device, stripe, absences) => {
                let next = self.next.entry((device, absences));
                next.and_modify(|next| *next = (*next).max(stripe + 1));
            }
            Repair::Fail(..)
            | Repair::LetIn(..)
            | Repair::Check(_)
            | Repair::Settle(_)
            | Repair::Grow(..)
            | Repair::Add(..)
            | Repair::Locks(_) => {}
        }
    }

    /// The remaining repairs, for people.
    pub fn rest(&self) -> String {
        format!(
            "to fence: {:?}; devices down: {:?}; unsettled: {:?}; state: {:?}; under way: {:?}; last trouble: {}",
            self.dead.keys().collect::<Vec<_>>(),
            self.down.keys().collect::<Vec<_>>(),
            self.unsettled,
            self.state.devices,
            self.under_way,
            self.trouble.as_deref().unwrap_or("none")
        )
    }
}
