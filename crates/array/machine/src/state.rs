//! The state that hosts and devices have agreed on: which devices may be read (docs/design/array.md 3.3).

use serde::{Deserialize, Serialize};

use crate::layout::MOST_ADDED;
use crate::{DeviceId, Epoch, Layout, LockChange, LockService, NodeName, Nodes, Time, Usage};

/// The uses that a device permits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Condition {
    /// It has everything.
    #[default]
    Good,
    /// It has failed, or missed writes: hosts go on without it.
    Failed,
    /// It is being rebuilt: stripes below `done` are good, the others as if it had failed.
    Rebuilding {
        /// The first stripe that is not rebuilt yet.
        done: u64,
    },
    /// As [`Condition::Rebuilding`], on the medium that it had. Where the others do not yield a block, that one may be used which it
    /// left with (docs/design/array.md 3.9 and 3.11).
    Returning {
        /// The first stripe that is not rebuilt yet.
        done: u64,
        /// Its medium has every write up to this timestamp, as an operator says. 0: nobody says so, and only blocks are used that
        /// parity vouches for.
        whole_to: Time,
    },
    /// It has failed before its rebuild was done. Its medium never had everything.
    Unfinished,
}

impl Condition {
    /// Returns true if the device has a stripe's unit.
    pub fn has(self, stripe: u64) -> bool {
        match self {
            Condition::Good => true,
            Condition::Failed | Condition::Unfinished => false,
            Condition::Rebuilding { done } | Condition::Returning { done, .. } => stripe < done,
        }
    }

    /// Returns true if hosts go on without the device, and nobody rebuilds it.
    pub fn is_out(self) -> bool {
        matches!(self, Condition::Failed | Condition::Unfinished)
    }

    /// The first stripe that is not rebuilt yet, of a device that is being rebuilt.
    pub fn rebuilt_to(self) -> Option<u64> {
        match self {
            Condition::Rebuilding { done } | Condition::Returning { done, .. } => Some(done),
            Condition::Good | Condition::Failed | Condition::Unfinished => None,
        }
    }

    /// Up to which timestamp the medium has all writes. Only a device that an operator brings back with its old blocks has such a
    /// time.
    pub fn whole_to(self) -> Option<Time> {
        match self {
            Condition::Returning { whole_to, .. } if whole_to > 0 => Some(whole_to),
            _ => None,
        }
    }

    /// The condition after a failure. Only a medium that had everything may come back with its blocks.
    fn failed(self) -> Condition {
        if self == Condition::Good { Condition::Failed } else { Condition::Unfinished }
    }

    /// The condition of a device that is let in with another medium than it had.
    fn on_another_medium(self) -> Condition {
        match self {
            Condition::Returning { done, .. } => Condition::Rebuilding { done },
            other => other,
        }
    }

    /// The condition when a rebuild has come to a stripe. With `u64::MAX`, all of it is done.
    fn rebuilt(self, to: u64) -> Condition {
        match self {
            _ if to == u64::MAX => Condition::Good,
            Condition::Returning { whole_to, .. } => Condition::Returning { done: to, whole_to },
            _ => Condition::Rebuilding { done: to },
        }
    }
}

/// The state of an array. Devices keep it durably. A majority of them agrees on the next one, by compare-and-swap of the
/// epoch, without a coordinator.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ArrayState {
    /// Grows with every change.
    pub epoch: Epoch,
    /// The epoch of the last change of a device's condition. Plans of this epoch or a later one still fit.
    pub since: Epoch,
    /// By device id.
    pub devices: Vec<Condition>,
    /// The term of each device: it serves blocks only in the one that it has been let in for. By device id.
    pub terms: Vec<u64>,
    /// The random number that each device's medium had last. One with another number is an older copy, or a new medium: only a device
    /// that the array goes on without may have it ([`ArrayState::takes_any_medium`]). 0: none. By device id.
    pub keys: Vec<u64>,
    /// How many hosts have attached; this is the number of the newest one.
    pub hosts: u64,
    /// The random number under which the newest one asked for that.
    pub newest_host: u64,
    /// Which hosts each node has that have neither ended nor been fenced.
    pub nodes: Nodes,
    /// Which lock server serves, and which have every lock.
    pub locks: LockService,
    /// Stripes in all groups together, since the array has grown. 0: as many as it was made with.
    pub stripes: u64,
    /// The groups that the array has got since it was made. Their devices follow in `devices`, `terms` and `keys` behind those that the
    /// array was made with. Not serialized: messages and records that earlier releases read do not have them. Whoever sends or keeps
    /// a state does the same with its groups beside it ([`ArrayState::with_groups`]).
    #[serde(skip)]
    pub added: Vec<Group>,
}

/// A group of devices that an array has got since it was made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Group {
    /// Its first stripe. All before it are on other groups.
    pub from: u64,
    /// Its first device; the others have the numbers behind that.
    pub first: DeviceId,
    /// Its devices, in their order.
    pub members: Vec<Member>,
}

/// A device of a group that was added. Processes that were started with an older array's file find it by this.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its address.
    pub address: String,
    /// The cluster's node whose keys it shows.
    pub node: u32,
}

/// The longest address of a member, in bytes: a name, and a port.
pub const LONGEST_ADDRESS: usize = 300;

impl Group {
    /// The device behind the last one; `None` if there is no such number.
    fn end(&self) -> Option<u16> {
        self.first.0.checked_add(u16::try_from(self.members.len()).ok()?)
    }

    /// Its devices, with their entries.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, &Member)> {
        (self.first.0..=u16::MAX).map(DeviceId).zip(&self.members)
    }
}

/// The entry of a device, for which the array's state is changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Term {
    /// Grows with every time that the device asks.
    pub number: u64,
    /// The random number that its medium has.
    pub follows: u64,
    /// The one that it has from then on.
    pub key: u64,
}

impl ArrayState {
    /// That of a new array.
    pub fn new(devices: u16) -> Self {
        let devices = usize::from(devices);
        ArrayState {
            epoch: Epoch(1),
            since: Epoch(1),
            devices: vec![Condition::Good; devices],
            terms: vec![0; devices],
            keys: vec![0; devices],
            hosts: 0,
            newest_host: 0,
            nodes: Nodes::default(),
            locks: LockService::default(),
            stripes: 0,
            added: Vec::new(),
        }
    }

    /// The state with these groups: one that was serialized has none.
    #[must_use]
    pub fn with_groups(self, added: Vec<Group>) -> ArrayState {
        ArrayState { added, ..self }
    }

    /// Returns true if the state may follow the other one. It has an entry for each device, and no further entries. It has all groups
    /// of the other one, and maybe others behind them.
    pub fn fits(&self, other: &ArrayState) -> bool {
        let devices = self.devices.len();
        [self.terms.len(), self.keys.len()] == [devices; 2]
            && self.added.starts_with(&other.added)
            && self.are_groups_sound()
            && self.founders().is_some_and(|founders| other.founders() == Some(founders))
    }

    fn are_groups_sound(&self) -> bool {
        let mut free = self.founders();
        let mut from = 0;
        self.added.len() <= MOST_ADDED
            && self.added.iter().all(|group| {
                let behind = free.is_some_and(|free| usize::from(group.first.0) >= free);
                let addresses = group.members.iter().all(|m| m.address.len() <= LONGEST_ADDRESS);
                let grows = group.from > from && group.from <= self.stripes;
                (free, from) = (group.end().map(usize::from), group.from);
                behind && addresses && grows && free.is_some() && !group.members.is_empty()
            })
    }

    /// How many devices the array was made with.
    fn founders(&self) -> Option<usize> {
        let added: usize = self.added.iter().map(|group| group.members.len()).sum();
        self.devices.len().checked_sub(added)
    }

    /// The place of a device in the lists of devices.
    fn index(&self, device: DeviceId) -> Option<usize> {
        let id = usize::from(device.0);
        let mut place = self.founders()?;
        if id < place {
            return Some(id);
        }
        for group in &self.added {
            let of_group = id.checked_sub(group.first.0.into());
            if let Some(index) = of_group.filter(|index| *index < group.members.len()) {
                return Some(place + index);
            }
            place += group.members.len();
        }
        None
    }

    /// All devices, in the order of the lists.
    pub fn ids(&self) -> impl Iterator<Item = DeviceId> {
        let founders = u16::try_from(self.founders().unwrap_or(0)).unwrap_or(u16::MAX);
        let added = self.added.iter().flat_map(Group::devices).map(|(device, _)| device);
        (0..founders).map(DeviceId).chain(added)
    }

    /// All devices, with their conditions.
    pub fn conditions(&self) -> impl Iterator<Item = (DeviceId, Condition)> {
        self.ids().zip(self.devices.iter().copied())
    }

    /// The entry of a device of an added group.
    pub fn member(&self, device: DeviceId) -> Option<&Member> {
        let mut all = self.added.iter().flat_map(Group::devices);
        all.find(|(id, _)| *id == device).map(|(_, member)| member)
    }

    /// The last group that was added, if it has no stripes yet.
    pub fn unused_group(&self) -> Option<&Group> {
        self.added.last().filter(|group| group.from == self.stripes)
    }

    /// The term of a device; 0 for one that the array does not have.
    pub fn term(&self, device: DeviceId) -> u64 {
        self.index(device).and_then(|index| self.terms.get(index)).copied().unwrap_or(0)
    }

    /// The random number that a device's medium had last; 0 for one that the array does not have.
    pub fn key(&self, device: DeviceId) -> u64 {
        self.index(device).and_then(|index| self.keys.get(index)).copied().unwrap_or(0)
    }

    /// Returns true if a device may be let in with another medium than it had: there was none, or the array goes on without it. Once
    /// the device is let in, a rebuild relies on that medium.
    pub fn takes_any_medium(&self, device: DeviceId) -> bool {
        let is_new_to_rebuild = self.term(device) & u64::from(u32::MAX) == 0;
        self.key(device) == 0
            || self.condition(device).is_some_and(|condition| {
                condition.is_out() || condition.rebuilt_to().is_some() && is_new_to_rebuild
            })
    }

    /// Returns true if the array goes on without a device, and it is not known which medium it left with: that had no number, or another
    /// one has come since. No medium gets a number as long as the device is out.
    pub fn is_unnumbered(&self, device: DeviceId) -> bool {
        self.key(device) == 0 && self.is_failed(device)
    }

    /// That a device is to be left out which was found to be gone by this state.
    pub fn without(&self, device: DeviceId) -> Change {
        Change::Fail(device, self.term(device))
    }

    /// That a device is to be left out whatever is lost by that.
    pub fn without_at_a_loss(&self, device: DeviceId) -> Change {
        Change::Lose(device, self.term(device))
    }

    /// How often the array has gone on without a device.
    pub fn absences(&self, device: DeviceId) -> u64 {
        self.term(device) >> 32
    }

    /// That a device has been rebuilt up to this stripe, as in [`Change::Rebuilt`], in the rebuild that this state has.
    pub fn rebuilt(&self, device: DeviceId, to: u64) -> Change {
        Change::Rebuilt(device, to, self.absences(device))
    }

    /// Returns true if a device is being rebuilt.
    pub fn is_rebuilding(&self, device: DeviceId) -> bool {
        self.condition(device).is_some_and(|condition| condition.rebuilt_to().is_some())
    }

    /// Returns true if a device is being rebuilt on the medium that it left with.
    pub fn comes_back(&self, device: DeviceId) -> bool {
        matches!(self.condition(device), Some(Condition::Returning { .. }))
    }

    /// A device's condition; none if the array has no such device.
    pub fn condition(&self, device: DeviceId) -> Option<Condition> {
        self.devices.get(self.index(device)?).copied()
    }

    /// Returns true if the array goes on without a device.
    pub fn is_failed(&self, device: DeviceId) -> bool {
        self.condition(device).is_some_and(Condition::is_out)
    }

    /// That a device that has failed comes back with the medium that it left with. The medium was found as this state has it,
    /// and has all writes up to this timestamp.
    pub fn with_old_blocks(&self, device: DeviceId, whole_to: Time) -> Change {
        Change::Return(device, self.term(device), whole_to.max(1))
    }

    /// Returns true if a device has everything.
    pub fn is_good(&self, device: DeviceId) -> bool {
        self.condition(device) == Some(Condition::Good)
    }

    /// A device of another one's group that does not have everything, if the array cannot go on without that other one for its sake.
    /// With two parities, one such device is not enough.
    pub fn not_whole_beside(&self, layout: &Layout, device: DeviceId) -> Option<DeviceId> {
        let mut others = layout.beside(device).filter(|other| !self.is_good(*other));
        others.nth(usize::from(layout.parities()) - 1)
    }

    /// Returns true if a device has a stripe's unit.
    pub fn has(&self, device: DeviceId, stripe: u64) -> bool {
        self.condition(device).is_some_and(|c| c.has(stripe))
    }

    /// The state after a change; `None` if it is already so. An invalid change is refused, with the reason. The proposer
    /// checks whether the redundancy bears another failure: the state does not know the layout.
    pub fn changed(&self, change: Change) -> Result<Option<ArrayState>, String> {
        match change {
            Change::Attach { after, by, node, usage } => self.attached(after, by, node, usage),
            Change::Detach { host } => Ok(self.detached(host)),
            Change::Locks(change) => self.locks_changed(change),
            Change::Grow { after, groups, stripes } => self.grown(after, groups, stripes),
            Change::Add { after, group } => self.with_group(after, group),
            Change::Fail(device, _)
            | Change::Lose(device, _)
            | Change::LetIn(device, _)
            | Change::Rebuild(device)
            | Change::Return(device, ..)
            | Change::Rebuilt(device, ..) => self.device_changed(device, change),
        }
    }

    /// Two hosts that ask at the same time get different numbers: who does not come next asks again. One whose change was
    /// accepted has its number, also if it learns of that after others have attached.
    fn attached(
        &self,
        after: u64,
        by: u64,
        node: NodeName,
        usage: Usage,
    ) -> Result<Option<ArrayState>, String> {
        let (epoch, hosts) = (Epoch(self.epoch.0 + 1), after.saturating_add(1));
        let number = u32::try_from(hosts)
            .map_err(|_| format!("{after} hosts have attached, and there are no more numbers"))?;
        if self.nodes.has(number, by) || (self.hosts, self.newest_host) == (hosts, by) {
            return Ok(None);
        }
        if self.hosts != after {
            return Err("another host has attached at the same time".into());
        }
        let nodes = self.nodes.with(node, number, by, usage)?;
        Ok(Some(ArrayState { epoch, hosts, newest_host: by, nodes, ..self.clone() }))
    }

    fn detached(&self, host: u32) -> Option<ArrayState> {
        let nodes = self.nodes.without(host)?;
        Some(ArrayState { epoch: Epoch(self.epoch.0 + 1), nodes, ..self.clone() })
    }

    /// No device's condition changes, so that plans still fit.
    fn locks_changed(&self, change: LockChange) -> Result<Option<ArrayState>, String> {
        let next = self.locks.changed(change)?;
        let epoch = Epoch(self.epoch.0 + 1);
        Ok(next.map(|locks| ArrayState { epoch, locks, ..self.clone() }))
    }

    /// A device that is not good may be given another medium, or be rebuilt by somebody who knows fewer stripes. So all have to
    /// be good. The proposer checks the number: the state does not know the layout.
    fn grown(&self, after: u64, groups: usize, stripes: u64) -> Result<Option<ArrayState>, String> {
        if self.stripes == stripes {
            return Ok(None);
        }
        if self.stripes != after {
            return Err(format!("the array has {} stripes by now", self.stripes));
        }
        if self.added.len() != groups {
            return Err(
                "the array has got a group of devices by now, which has what it grows by".into()
            );
        }
        if stripes < after {
            return Err(format!("the array has {after} stripes, and cannot have fewer: {stripes}"));
        }
        if let Some((device, _)) = self.conditions().find(|(_, now)| *now != Condition::Good) {
            return Err(format!("{device} is not good: the array grows when all devices are"));
        }
        let epoch = Epoch(self.epoch.0 + 1);
        // A host that knows the state before is told the new one before its next request is served.
        Ok(Some(ArrayState { epoch, since: epoch, stripes, ..self.clone() }))
    }

    /// The group has no stripes at first, and its devices do not count. So nobody can miss anything on them. Each is let in as a new one
    /// that is rebuilt, and knows all fences then. The group gets stripes as the array grows.
    fn with_group(&self, after: u64, group: Group) -> Result<Option<ArrayState>, String> {
        if self.added.last() == Some(&group) {
            return Ok(None);
        }
        if self.stripes != after {
            return Err(format!("the array has {} stripes by now", self.stripes));
        }
        if let Some(unused) = self.unused_group() {
            return Err(format!(
                "the group of {} has no stripes yet: the array gets another one when it has",
                unused.first
            ));
        }
        if self.added.len() >= MOST_ADDED {
            return Err(format!("an array gets {MOST_ADDED} groups at most after it was made"));
        }
        let (epoch, devices) = (Epoch(self.epoch.0 + 1), group.members.len());
        let mut next = self.clone();
        (next.epoch, next.since, next.stripes) = (epoch, epoch, group.from);
        next.devices.extend(std::iter::repeat_n(Condition::Failed, devices));
        // As those of devices that the array goes on without.
        next.terms.extend(std::iter::repeat_n(FIRST_ABSENCE, devices));
        next.keys.extend(std::iter::repeat_n(0, devices));
        next.added.push(group);
        match next.fits(self) && (after == 0 || after == next.stripes) {
            true => Ok(Some(next)),
            false => Err("such a group does not fit behind the devices that the array has".into()),
        }
    }

    fn device_changed(
        &self,
        device: DeviceId,
        change: Change,
    ) -> Result<Option<ArrayState>, String> {
        let index = self.index(device).unwrap_or(usize::MAX);
        let (Some(&now), Some(&term), Some(&key)) =
            (self.devices.get(index), self.terms.get(index), self.keys.get(index))
        else {
            return Err(format!("the array has no device {device}"));
        };
        let mut next = self.clone();
        next.epoch.0 += 1;
        let then = match (change, now) {
            (Change::LetIn(_, to), _) if to.number < term => return Ok(None),
            (Change::LetIn(_, to), _) if (to.number, to.key) == (term, key) => return Ok(None),
            (Change::LetIn(_, to), _) => {
                let unnumbered = self.is_unnumbered(device);
                if unnumbered && to.number == term {
                    return Ok(None);
                }
                let may_be_same = [0, to.follows, to.key].contains(&key);
                if !may_be_same && !self.takes_any_medium(device) {
                    return Err(format!("{device} has an older copy of its content"));
                }
                // Beside a number, nobody could tell that this is not the medium that left.
                let is_other = now.is_out() && !may_be_same;
                let number = if unnumbered || is_other { 0 } else { to.key };
                (next.terms[index], next.keys[index]) = (to.number, number);
                let then = if may_be_same { now } else { now.on_another_medium() };
                if then != now {
                    (next.devices[index], next.since) = (then, next.epoch);
                }
                return Ok(Some(next));
            }
            (
                Change::Attach { .. }
                | Change::Detach { .. }
                | Change::Locks(_)
                | Change::Grow { .. }
                | Change::Add { .. },
                _,
            ) => {
                return Ok(None);
            }
            (Change::Fail(..) | Change::Lose(..), Condition::Failed | Condition::Unfinished) => {
                return Ok(None);
            }
            (Change::Fail(_, seen) | Change::Lose(_, seen), _) if seen != term => {
                return Err(format!("{device} has come back"));
            }
            (Change::Fail(..) | Change::Lose(..), _) => now.failed(),
            // As far as anybody knows, it has the medium that it left with. It is let in as what it has otherwise.
            (Change::Rebuild(_), Condition::Failed) if key != 0 => {
                Condition::Returning { done: 0, whole_to: 0 }
            }
            (Change::Rebuild(_), Condition::Failed | Condition::Unfinished) => {
                Condition::Rebuilding { done: 0 }
            }
            (Change::Rebuild(_), Condition::Rebuilding { .. } | Condition::Returning { .. }) => {
                return Ok(None);
            }
            (Change::Return(_, seen, _), Condition::Failed) if seen != term => {
                return Err(format!("{device} has started again, maybe with another medium"));
            }
            (Change::Return(_, _, whole_to), Condition::Failed) => {
                Condition::Returning { done: 0, whole_to }
            }
            (Change::Return(..), now) if now.whole_to().is_some() => return Ok(None),
            (Change::Return(..), Condition::Rebuilding { .. } | Condition::Returning { .. }) => {
                return Err(format!("{device} is being rebuilt already"));
            }
            (Change::Return(..), Condition::Unfinished) => {
                return Err(format!(
                    "{device} failed before it was rebuilt: it never had everything"
                ));
            }
            (Change::Rebuild(_) | Change::Return(..), Condition::Good) => {
                return Err(format!("{device} is in use; it has to fail before it is rebuilt"));
            }
            (Change::Rebuilt(_, _, absences), _) if absences != self.absences(device) => {
                return Err(format!("{device} has failed again"));
            }
            (Change::Rebuilt(..), Condition::Failed | Condition::Unfinished) => {
                return Err(format!("{device} has failed again"));
            }
            (Change::Rebuilt(_, to, _), _) if now.rebuilt_to().is_none_or(|done| to <= done) => {
                return Ok(None);
            }
            (Change::Rebuilt(_, to, _), _) => now.rebuilt(to),
        };
        if then.is_out() {
            // A term's upper half counts the absences. The next term is one that the device cannot have asked for, since it counts its
            // own by one: late requests to let it in do not count, and no earlier one lets it in.
            next.terms[index] = (term | u64::from(u32::MAX)) + 1;
        }
        next.since = next.epoch;
        next.devices[index] = then;
        Ok(Some(next))
    }
}

/// The first term of a device that the array has gone on without once.
const FIRST_ABSENCE: u64 = 1 << 32;

/// A change of the array's state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// A device is gone that was last let in for this term.
    Fail(DeviceId, u64),
    /// A device that was away serves again, for this term. One that serves gets another random number.
    LetIn(DeviceId, Term),
    /// A device, new or returned, is to be rebuilt from the first stripe.
    Rebuild(DeviceId),
    /// It has been rebuilt up to this stripe; with `u64::MAX`, all of it. That was after so many absences: what an earlier rebuild has
    /// written may be on another medium ([`ArrayState::absences`]).
    Rebuilt(DeviceId, u64, u64),
    /// A host attaches, and gets the number after this one.
    Attach {
        /// How many had attached.
        after: u64,
        /// Its random number.
        by: u64,
        /// The node that it runs on.
        node: NodeName,
        /// What it is for.
        usage: Usage,
    },
    /// A host is fenced, or has ended and no device has a write of it to do: its node need not be fenced for its sake.
    Detach {
        /// Its number.
        host: u32,
    },
    /// As [`Change::Fail`], beside a device that is not whole: an operator accepts that stripes lose more than their redundancy
    /// replaces.
    Lose(DeviceId, u64),
    /// A device that is out comes back with the medium that it left with. It was last let in for this term. The medium has all
    /// writes up to this timestamp.
    Return(DeviceId, u64, Time),
    /// Another lock server serves, or other ones have every lock.
    Locks(LockChange),
    /// The array has more stripes. The medium of each device has room for them.
    Grow {
        /// How many it had ([`ArrayState::stripes`]): of two changes at the same time, one counts.
        after: u64,
        /// How many groups it had got: the last one has the stripes, and no other device was asked for room.
        groups: usize,
        /// How many it has from then on.
        stripes: u64,
    },
    /// The array gets a group of devices, which has no stripes yet.
    Add {
        /// How many stripes it had ([`ArrayState::stripes`]): of two changes at the same time, one counts.
        after: u64,
        /// The group. It begins behind the array's last stripe.
        group: Group,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_grows_when_all_devices_are_good() {
        let grow = |after, stripes| Change::Grow { after, groups: 0, stripes };
        let then = |state: &ArrayState, change| state.changed(change).unwrap().unwrap();
        let new = ArrayState::new(3);
        let grown = then(&new, grow(0, 10));
        // Plans of the state before do not fit any more, so that nobody is told late.
        assert_eq!((grown.stripes, grown.epoch, grown.since), (10, Epoch(2), Epoch(2)));
        assert_eq!(grown.changed(grow(0, 10)), Ok(None));
        assert!(grown.changed(grow(0, 12)).is_err(), "another one was chosen");
        assert!(grown.changed(grow(10, 9)).is_err(), "it has more already");
        assert_eq!(then(&grown, grow(10, 12)).stripes, 12);
        let failed = then(&new, new.without(DeviceId(1)));
        assert!(failed.changed(grow(0, 10)).unwrap_err().contains("not good"));
        let rebuilding = then(&failed, Change::Rebuild(DeviceId(1)));
        assert!(rebuilding.changed(grow(0, 10)).is_err());
        let rebuilt = then(&rebuilding, rebuilding.rebuilt(DeviceId(1), u64::MAX));
        assert_eq!(then(&rebuilt, grow(0, 10)).stripes, 10);
    }

    fn group(from: u64, first: u16) -> Group {
        let member = |id: u16| Member { address: format!("10.0.0.1:{id}"), node: 0 };
        let members = (first..first + 3).map(member).collect();
        Group { from, first: DeviceId(first), members }
    }

    fn then(state: &ArrayState, change: Change) -> ArrayState {
        let next = state.changed(change).unwrap().unwrap();
        assert!(next.fits(state));
        next
    }

    #[test]
    fn an_array_gets_a_group_that_is_rebuilt_before_it_has_stripes() {
        let add = |after, group| Change::Add { after, group };
        let new = ArrayState::new(3);
        // Numbers 3 and 4 are witnesses'.
        let added = then(&new, add(0, group(10, 5)));
        assert_eq!((added.stripes, added.epoch, added.since), (10, Epoch(2), Epoch(2)));
        assert!(added.ids().eq([0, 1, 2, 5, 6, 7].map(DeviceId)));
        assert_eq!(added.condition(DeviceId(3)), None);
        assert_eq!(added.condition(DeviceId(6)), Some(Condition::Failed));
        assert_eq!((added.absences(DeviceId(7)), added.absences(DeviceId(2))), (1, 0));
        assert_eq!(added.changed(add(0, group(10, 5))), Ok(None));
        assert!(added.changed(add(0, group(10, 8))).is_err(), "another one was chosen");
        assert!(added.changed(add(10, group(10, 8))).unwrap_err().contains("no stripes yet"));
        let grow = Change::Grow { after: 10, groups: 1, stripes: 14 };
        assert!(added.changed(grow.clone()).unwrap_err().contains("d5 is not good"));
        let good = [5, 6, 7].map(DeviceId).into_iter().fold(added, |state, device| {
            let rebuilding = then(&state, Change::Rebuild(device));
            assert_eq!(rebuilding.condition(device), Some(Condition::Rebuilding { done: 0 }));
            then(&rebuilding, rebuilding.rebuilt(device, u64::MAX))
        });
        // Somebody has asked the former devices for room.
        let former = Change::Grow { after: 10, groups: 0, stripes: 14 };
        assert!(good.changed(former).unwrap_err().contains("a group of devices by now"));
        let grown = then(&good, grow);
        assert!(grown.is_good(DeviceId(7)) && grown.unused_group().is_none());
        let more = then(&grown, add(14, group(14, 8)));
        assert_eq!(more.condition(DeviceId(10)), Some(Condition::Failed));
        assert!(more.is_good(DeviceId(7)));
        assert_eq!(more.member(DeviceId(9)).unwrap().address, "10.0.0.1:9");
        let failed = then(&more, more.without(DeviceId(5)));
        assert!(failed.is_failed(DeviceId(5)) && failed.is_good(DeviceId(0)));
    }

    #[test]
    fn a_group_that_does_not_fit_is_refused() {
        let new = ArrayState::new(3);
        let refused = |state: &ArrayState, after, group| {
            state.changed(Change::Add { after, group }).unwrap_err()
        };
        let long = Member { address: "x".repeat(LONGEST_ADDRESS + 1), node: 0 };
        for bad in [
            group(10, 2),
            group(0, 3),
            Group { first: DeviceId(u16::MAX - 2), ..group(10, 3) },
            Group { members: Vec::new(), ..group(10, 3) },
            Group { members: vec![long], ..group(10, 3) },
        ] {
            assert!(refused(&new, 0, bad).contains("does not fit"));
        }
        let grown = then(&new, Change::Grow { after: 0, groups: 0, stripes: 12 });
        assert!(refused(&grown, 0, group(10, 3)).contains("12 stripes by now"));
        assert!(refused(&grown, 12, group(10, 3)).contains("does not fit"));
        let full = (0..MOST_ADDED as u16).fold(new, |state, number| {
            let (from, after) = (12 + u64::from(number), state.stripes);
            let change = Change::Add { after, group: group(from, 3 + 3 * number) };
            let mut added = then(&state, change);
            added.stripes += 1;
            added
        });
        assert!(refused(&full, full.stripes, group(full.stripes, 99)).contains("8 groups at most"));
        // Nor does a state count that has lost a group, or has another one.
        let less = ArrayState { added: full.added[1..].to_vec(), ..full.clone() };
        let mut moved = full.clone();
        moved.added[0].members[0].node = 7;
        assert!(!less.fits(&full) && !moved.fits(&full) && full.fits(&full));
    }
}
