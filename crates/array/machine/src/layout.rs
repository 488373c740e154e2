//! The place of a block in the array: left-symmetric RAID-5 and RAID-6, and mirrors, over one or more groups
//! (docs/design/array.md 1.1).

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{ArrayState, DeviceId, Group};

/// The redundancy of a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Redundancy {
    /// One unit of parity beside the data units, in turn on each device.
    Raid5,
    /// One copy.
    Mirror,
    /// Two units of different parity beside the data units, in turn on each device. Any two units of a stripe may be missing.
    Raid6,
}

impl Redundancy {
    /// All of them.
    pub const ALL: [Redundancy; 3] = [Redundancy::Raid5, Redundancy::Mirror, Redundancy::Raid6];

    /// Its name in files and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Redundancy::Raid5 => "raid5",
            Redundancy::Mirror => "mirror",
            Redundancy::Raid6 => "raid6",
        }
    }

    /// Units of a stripe beside its data units: as many may be missing.
    pub fn parities(self) -> u16 {
        match self {
            Redundancy::Raid5 | Redundancy::Mirror => 1,
            Redundancy::Raid6 => 2,
        }
    }
}

/// How an array is laid out. Lengths are in blocks, the size of which is the smallest piece that is read, written, locked and
/// checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Layout {
    /// The redundancy of each stripe.
    pub redundancy: Redundancy,
    /// Data units per stripe; 1 in a mirror.
    pub data: u16,
    /// Groups of as many devices as a stripe has units; stripe s lies in group s mod groups.
    pub groups: u16,
    /// Blocks per stripe unit.
    pub unit: u32,
    /// Bytes per block.
    pub block_size: u32,
    /// Stripes in all groups together.
    pub stripes: u64,
    /// The groups that it has got since it was made. The array's state has them. They are no part of the layout in an array's file,
    /// which all processes compare.
    #[serde(skip)]
    pub added: Added,
}

/// More groups than this an array does not get after it was made.
pub const MOST_ADDED: usize = 8;

/// A group of devices that an array got when it had this many stripes. The stripes from that one on are on it alone, up to the
/// first one of the next such group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct AddedGroup {
    /// Its first stripe.
    pub from: u64,
    /// Its first device; the others have the numbers behind that.
    pub first: DeviceId,
}

/// The groups of devices that an array has got since it was made, in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Added([Option<AddedGroup>; MOST_ADDED]);

impl Added {
    /// All of them.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = AddedGroup> + use<> {
        self.0.into_iter().flatten()
    }

    /// The last one.
    pub fn last(&self) -> Option<AddedGroup> {
        self.iter().next_back()
    }
}

impl FromIterator<AddedGroup> for Added {
    /// More than [`MOST_ADDED`] are in no array's state.
    fn from_iter<I: IntoIterator<Item = AddedGroup>>(groups: I) -> Added {
        let mut groups = groups.into_iter();
        Added(std::array::from_fn(|_| groups.next()))
    }
}

/// Where a stripe is: the first device of its group, and the row in the group.
#[derive(Clone, Copy)]
struct Home {
    first: u16,
    row: u64,
}

/// A run of the array's blocks, as applications see them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Span {
    /// The first block.
    pub start: u64,
    /// How many; at least 1.
    pub count: u64,
}

impl Span {
    /// The block behind the last.
    pub fn end(self) -> u64 {
        self.start + self.count
    }
}

/// A block's place: in its stripe, and on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The stripe.
    pub stripe: u64,
    /// The data unit in the stripe, from 0.
    pub data_unit: u16,
    /// The block's offset in its unit.
    pub offset: u32,
    /// The device.
    pub device: DeviceId,
    /// The block on the device.
    pub block: u64,
}

/// An error in a layout.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// Too few or too many data units.
    #[error("a stripe of RAID-5 or RAID-6 has 2 to 64 data units, and a mirror 1; not {0}")]
    Data(u16),
    /// Something is 0, or an address does not fit.
    #[error("{0}")]
    Size(&'static str),
}

impl Layout {
    /// The layout of the array when it has grown by this state. A stripe's place does not depend on the number of stripes, so that
    /// all have the same layout of the stripes that both know.
    #[must_use]
    pub fn grown(self, state: &ArrayState) -> Layout {
        let group = |group: &Group| AddedGroup { from: group.from, first: group.first };
        let added = state.added.iter().map(group).collect();
        Layout { stripes: self.stripes.max(state.stripes), added, ..self }
    }

    /// Refuses a layout that cannot be used.
    pub fn check(&self) -> Result<(), LayoutError> {
        let data = match self.redundancy {
            Redundancy::Raid5 | Redundancy::Raid6 => 2..=64,
            Redundancy::Mirror => 1..=1,
        };
        if !data.contains(&self.data) {
            return Err(LayoutError::Data(self.data));
        }
        if self.groups == 0 || self.unit == 0 || self.block_size == 0 || self.stripes == 0 {
            return Err(LayoutError::Size(
                "groups, blocks per unit, bytes per block and stripes are at least 1 each",
            ));
        }
        if u32::from(self.groups) * u32::from(self.group_size()) > u32::from(u16::MAX) {
            return Err(LayoutError::Size("an array has at most 65,535 devices"));
        }
        let bytes = u128::from(self.stripes)
            * u128::from(self.data)
            * u128::from(self.unit)
            * u128::from(self.block_size);
        if bytes > i64::MAX as u128 {
            return Err(LayoutError::Size("an array has less than 2^63 bytes"));
        }
        Ok(())
    }

    /// Devices per group, and units per stripe.
    pub fn group_size(&self) -> u16 {
        self.data + self.parities()
    }

    /// Units of a stripe beside its data units: as many may be missing.
    pub fn parities(&self) -> u16 {
        self.redundancy.parities()
    }

    /// Bytes of a stripe on all of its devices together.
    pub fn stripe_bytes(&self) -> u64 {
        u64::from(self.group_size()) * u64::from(self.unit) * u64::from(self.block_size)
    }

    /// The other devices of a device's group.
    pub fn beside(&self, device: DeviceId) -> impl Iterator<Item = DeviceId> + use<> {
        let group = self.group(device).map(|group| self.numbers_from(self.first_of(group)));
        group.into_iter().flatten().map(DeviceId).filter(move |other| *other != device)
    }

    /// Devices that the array was made with.
    pub fn devices(&self) -> u16 {
        self.groups * self.group_size()
    }

    /// All devices, those of added groups included.
    pub fn all_devices(&self) -> impl Iterator<Item = DeviceId> + use<> {
        let layout = *self;
        let added = self.added.iter().flat_map(move |group| layout.numbers_from(group.first.0));
        (0..self.devices()).chain(added).map(DeviceId)
    }

    /// The number of a device's group: those that the array was made with come first. `None` for a witness, and for a device that the
    /// array does not have.
    pub fn group(&self, device: DeviceId) -> Option<u16> {
        if device.0 < self.devices() {
            return Some(device.0 / self.group_size());
        }
        let has = |group: AddedGroup| self.numbers_from(group.first.0).contains(&device.0);
        let number = self.added.iter().position(has)?;
        Some(self.groups + number as u16)
    }

    /// The number of a stripe's group, as [`Layout::group`] has it.
    pub fn group_of(&self, stripe: u64) -> u16 {
        match self.added.iter().filter(|group| group.from <= stripe).count() {
            0 => (stripe % u64::from(self.groups)) as u16,
            number => self.groups + number as u16 - 1,
        }
    }

    /// The numbers of a group's devices, by the first one.
    fn numbers_from(&self, first: u16) -> Range<u16> {
        first..first.saturating_add(self.group_size())
    }

    /// The first device of a group.
    fn first_of(&self, group: u16) -> u16 {
        let added = group.checked_sub(self.groups);
        let added = added.and_then(|number| self.added.iter().nth(number.into()));
        added.map_or(group * self.group_size(), |added| added.first.0)
    }

    /// The array's length in blocks.
    pub fn blocks(&self) -> u64 {
        self.stripes * u64::from(self.data) * u64::from(self.unit)
    }

    /// Blocks on each of the devices that the array was made with.
    pub fn device_blocks(&self) -> u64 {
        self.end_of(0).div_ceil(u64::from(self.groups)) * u64::from(self.unit)
    }

    /// Blocks on a device; none on a witness.
    pub fn blocks_on(&self, device: DeviceId) -> u64 {
        self.rows(device, 0..self.stripes).end * u64::from(self.unit)
    }

    /// The length that this device has to have, as a device's file tells it: by the number of stripes with which an array that was
    /// just made has such devices.
    pub fn room(&self, device: DeviceId) -> u64 {
        match self.group(device) {
            Some(group) if group >= self.groups => {
                self.rows(device, 0..self.stripes).end.saturating_mul(self.groups.into())
            }
            _ => self.end_of(0),
        }
    }

    /// The stripe behind the last one of a group. All groups that the array was made with have the same one.
    fn end_of(&self, group: u16) -> u64 {
        let later = usize::from((group + 1).saturating_sub(self.groups));
        let next = self.added.iter().nth(later);
        next.map_or(self.stripes, |next| next.from.min(self.stripes))
    }

    /// The rows of a device's group between two stripes of the array. Stripes of other groups are not on it.
    pub fn rows(&self, device: DeviceId, stripes: Range<u64>) -> Range<u64> {
        let Some(group) = self.group(device) else { return 0..0 };
        let (groups, number) = (u64::from(self.groups), u64::from(group));
        let end = self.end_of(group);
        let row = |stripe: u64| match self.added_group(group) {
            Some(added) => stripe.min(end).saturating_sub(added.from),
            None => stripe.min(end).saturating_sub(number).div_ceil(groups),
        };
        row(stripes.start)..row(stripes.end)
    }

    /// The stripe in a row of a device's group.
    pub fn stripe_in(&self, device: DeviceId, row: u64) -> u64 {
        let group = self.group(device).unwrap_or_default();
        match self.added_group(group) {
            Some(added) => added.from.saturating_add(row),
            None => row.saturating_mul(self.groups.into()).saturating_add(group.into()),
        }
    }

    /// The row of a stripe in its group.
    pub fn row(&self, stripe: u64) -> u64 {
        self.home(stripe).row
    }

    fn added_group(&self, group: u16) -> Option<AddedGroup> {
        self.added.iter().nth(group.checked_sub(self.groups)?.into())
    }

    /// Returns true if the whole span is in the array.
    pub fn contains(&self, span: Span) -> bool {
        span.count > 0 && span.start.checked_add(span.count).is_some_and(|end| end <= self.blocks())
    }

    /// The device of a stripe's parity, or of a mirror's copy; of RAID-6, that of the first parity.
    pub fn parity(&self, stripe: u64) -> DeviceId {
        self.behind_parity(stripe, 0)
    }

    /// The device of a stripe's second parity, if it has one.
    pub fn second_parity(&self, stripe: u64) -> Option<DeviceId> {
        (self.parities() > 1).then(|| self.behind_parity(stripe, 1))
    }

    /// The device of a stripe's data unit.
    pub fn data(&self, stripe: u64, data_unit: u16) -> DeviceId {
        self.behind_parity(stripe, u64::from(self.parities()) + u64::from(data_unit))
    }

    /// The devices of all units of a stripe: data units, then parity, then the second parity.
    pub fn units(&self, stripe: u64) -> impl Iterator<Item = DeviceId> + use<> {
        let layout = *self;
        let data = (0..layout.data).map(move |unit| layout.data(stripe, unit));
        data.chain([layout.parity(stripe)]).chain(layout.second_parity(stripe))
    }

    fn behind_parity(&self, stripe: u64, places: u64) -> DeviceId {
        let Home { first, row } = self.home(stripe);
        let size = u64::from(self.group_size());
        let index = (size - 1 + size - row % size + places) % size;
        DeviceId(first.saturating_add(index as u16))
    }

    fn home(&self, stripe: u64) -> Home {
        match self.added.iter().rfind(|group| group.from <= stripe) {
            Some(group) => Home { first: group.first.0, row: stripe - group.from },
            None => {
                let groups = u64::from(self.groups);
                let group = (stripe % groups) as u16;
                Home { first: group * self.group_size(), row: stripe / groups }
            }
        }
    }

    /// The first block of a stripe's units on its devices; the same on all.
    pub fn unit_start(&self, stripe: u64) -> u64 {
        self.row(stripe) * u64::from(self.unit)
    }

    /// Where a block of the array lies.
    pub fn place(&self, block: u64) -> Place {
        let unit = block / u64::from(self.unit);
        let stripe = unit / u64::from(self.data);
        let data_unit = (unit % u64::from(self.data)) as u16;
        let offset = (block % u64::from(self.unit)) as u32;
        Place {
            stripe,
            data_unit,
            offset,
            device: self.data(stripe, data_unit),
            block: self.unit_start(stripe) + u64::from(offset),
        }
    }

    /// The first block of the array in a stripe's data unit.
    pub fn logical(&self, stripe: u64, data_unit: u16) -> u64 {
        (stripe * u64::from(self.data) + u64::from(data_unit)) * u64::from(self.unit)
    }

    /// The stripe that a device's block belongs to; `None` if it is behind the last.
    pub fn stripe_of(&self, device: DeviceId, block: u64) -> Option<u64> {
        let group = self.group(device)?;
        let stripe = self.stripe_in(device, block / u64::from(self.unit));
        (stripe < self.end_of(group)).then_some(stripe)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn layout(data: u16, groups: u16) -> Layout {
        let redundancy = if data == 1 { Redundancy::Mirror } else { Redundancy::Raid5 };
        Layout {
            redundancy,
            data,
            groups,
            unit: 4,
            block_size: 4096,
            stripes: 40,
            added: Added::default(),
        }
    }

    #[test]
    fn parity_and_data_of_a_stripe_are_on_different_devices_of_one_group() {
        for (data, groups) in [(4, 1), (2, 3), (1, 2)] {
            let layout = layout(data, groups);
            for stripe in 0..layout.stripes {
                let mut devices = BTreeSet::from([layout.parity(stripe)]);
                devices.extend((0..data).map(|unit| layout.data(stripe, unit)));
                assert_eq!(devices.len(), usize::from(data) + 1);
                let group = (stripe % u64::from(groups)) as u16;
                assert!(devices.iter().all(|d| d.0 / layout.group_size() == group));
            }
        }
    }

    #[test]
    fn parity_moves_left_and_the_first_data_unit_follows_it() {
        let layout = layout(4, 1);
        let parity: Vec<_> = (0..6).map(|stripe| layout.parity(stripe).0).collect();
        assert_eq!(parity, [4, 3, 2, 1, 0, 4]);
        let second: Vec<_> = (0..4).map(|unit| layout.data(1, unit).0).collect();
        assert_eq!(second, [4, 0, 1, 2]);
    }

    fn raid6(data: u16, groups: u16) -> Layout {
        Layout { redundancy: Redundancy::Raid6, ..layout(data, groups) }
    }

    #[test]
    fn the_second_parity_is_between_the_first_one_and_the_data() {
        for (data, groups) in [(4, 1), (2, 3)] {
            let layout = raid6(data, groups);
            for stripe in 0..layout.stripes {
                let devices: Vec<u16> = layout.units(stripe).map(|device| device.0).collect();
                let all: BTreeSet<u16> = devices.iter().copied().collect();
                assert_eq!(all.len(), usize::from(data) + 2);
                let group = (stripe % u64::from(groups)) as u16;
                assert!(all.iter().all(|device| device / layout.group_size() == group));
                let second = layout.second_parity(stripe).unwrap();
                assert_eq!(devices[usize::from(data)..], [layout.parity(stripe).0, second.0]);
            }
        }
        let layout = raid6(4, 1);
        let of = |place: fn(&Layout, u64) -> DeviceId| {
            (0..7).map(|stripe| place(&layout, stripe).0).collect::<Vec<_>>()
        };
        assert_eq!(of(|layout, stripe| layout.parity(stripe)), [5, 4, 3, 2, 1, 0, 5]);
        assert_eq!(of(|layout, stripe| layout.data(stripe, 0)), [1, 0, 5, 4, 3, 2, 1]);
        assert_eq!(layout.units(0).map(|device| device.0).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 0]);
        assert_eq!(super::tests::layout(4, 1).second_parity(0), None);
    }

    #[test]
    fn every_block_has_a_place_of_its_own() {
        let single = [(4, 1), (2, 3), (1, 2)].map(|(data, groups)| layout(data, groups));
        let double = [(4, 1), (2, 3)].map(|(data, groups)| raid6(data, groups));
        for layout in single.into_iter().chain(double) {
            let mut taken = BTreeSet::new();
            for block in 0..layout.blocks() {
                let place = layout.place(block);
                assert!(taken.insert((place.device, place.block)));
                assert!(place.block < layout.device_blocks());
                assert_eq!(layout.stripe_of(place.device, place.block), Some(place.stripe));
                let first = layout.logical(place.stripe, place.data_unit);
                assert_eq!(first + u64::from(place.offset), block);
                assert_ne!(place.device, layout.parity(place.stripe));
                assert_ne!(Some(place.device), layout.second_parity(place.stripe));
            }
        }
    }

    #[test]
    fn a_layout_that_cannot_be_used_is_refused() {
        assert_eq!(layout(4, 1).check(), Ok(()));
        assert_eq!(Layout { data: 1, ..layout(4, 1) }.check(), Err(LayoutError::Data(1)));
        assert!(Layout { unit: 0, ..layout(4, 1) }.check().is_err());
        assert!(Layout { stripes: u64::MAX, ..layout(4, 1) }.check().is_err());
        assert!(Layout { groups: 20_000, ..layout(4, 1) }.check().is_err());
        assert_eq!((raid6(2, 1).check(), raid6(64, 1).check()), (Ok(()), Ok(())));
        assert_eq!(raid6(1, 1).check(), Err(LayoutError::Data(1)));
    }

    /// A layout of 40 stripes that has got two groups behind a witness. They have 6 and 5 stripes.
    fn with_groups(made: Layout) -> Layout {
        let (size, behind) = (made.group_size(), made.devices() + 1);
        let added = [(40, behind), (46, behind + size)];
        let added = added.map(|(from, first)| AddedGroup { from, first: DeviceId(first) });
        Layout { stripes: 51, added: added.into_iter().collect(), ..made }
    }

    #[test]
    fn stripes_stay_where_they_are_when_groups_are_added() {
        for made in [layout(4, 1), layout(2, 3), layout(1, 2), raid6(4, 1), raid6(2, 3)] {
            let grown = with_groups(made);
            for block in 0..made.blocks() {
                assert_eq!(grown.place(block), made.place(block));
            }
            for stripe in 0..made.stripes {
                assert!(grown.units(stripe).eq(made.units(stripe)));
            }
            assert_eq!(grown.device_blocks(), made.device_blocks());
        }
    }

    #[test]
    fn added_stripes_are_on_added_groups_alone_and_each_block_has_a_place_of_its_own() {
        for made in [layout(4, 1), layout(2, 3), layout(1, 2), raid6(4, 1), raid6(2, 3)] {
            let grown = with_groups(made);
            let mut taken = BTreeSet::new();
            for block in 0..grown.blocks() {
                let place = grown.place(block);
                assert!(taken.insert((place.device, place.block)), "{place:?}");
                assert!(place.block < grown.blocks_on(place.device));
                assert_eq!(grown.stripe_of(place.device, place.block), Some(place.stripe));
            }
            for stripe in 0..grown.stripes {
                let units: BTreeSet<DeviceId> = grown.units(stripe).collect();
                assert_eq!(units.len(), usize::from(made.group_size()));
                let group = grown.group_of(stripe);
                assert!(units.iter().all(|device| grown.group(*device) == Some(group)));
                let late = u16::from(stripe >= 40) + u16::from(stripe >= 46);
                assert_eq!(group.saturating_sub(made.groups - 1), late, "{stripe}");
                let first = *units.first().unwrap();
                assert!(grown.beside(first).all(|other| units.contains(&other)));
                assert_eq!(grown.beside(first).count(), units.len() - 1);
            }
            // Neither the witness nor anybody behind the last group has blocks.
            let devices: BTreeSet<DeviceId> = grown.all_devices().collect();
            let [witness, behind] = [made.devices(), 3 * made.group_size() + made.devices() + 1];
            for other in [DeviceId(witness), DeviceId(behind)] {
                assert!(!devices.contains(&other) && grown.group(other).is_none());
                assert_eq!((grown.blocks_on(other), grown.stripe_of(other, 0)), (0, None));
                assert_eq!(grown.beside(other).count(), 0);
            }
            assert_eq!(devices.len(), usize::from(made.devices() + 2 * made.group_size()));
        }
    }

    #[test]
    fn rows_of_a_device_are_its_stripes() {
        for made in [layout(4, 1), layout(2, 3), layout(1, 2), raid6(2, 3)] {
            let grown = with_groups(made);
            for device in grown.all_devices() {
                let of = |stripes: Range<u64>| -> Vec<u64> {
                    grown.rows(device, stripes).map(|row| grown.stripe_in(device, row)).collect()
                };
                let is_there = |stripe: &u64| grown.units(*stripe).any(|unit| unit == device);
                for (start, end) in [(0, 51), (0, 40), (3, 44), (41, 46), (46, 51), (39, 47)] {
                    let wanted: Vec<u64> = (start..end).filter(is_there).collect();
                    assert_eq!(of(start..end), wanted, "{device} {start}..{end}");
                }
                let blocks = grown.rows(device, 0..51).end * u64::from(grown.unit);
                assert_eq!(grown.blocks_on(device), blocks);
                assert_eq!(grown.stripe_of(device, blocks), None);
                // A file of an array as it was made, with this number of stripes, is as long.
                let alone = Layout { stripes: grown.room(device), ..made };
                assert_eq!(
                    alone.device_blocks(),
                    grown.blocks_on(device).max(if device.0 < made.devices() {
                        grown.device_blocks()
                    } else {
                        0
                    })
                );
            }
        }
    }
}
