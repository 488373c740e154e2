//! The place of a block in the array: left-symmetric RAID-5 and RAID-6, and mirrors, over one or more groups
//! (docs/design/array.md 1.1).

use serde::{Deserialize, Serialize};

use crate::{ArrayState, DeviceId};

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
        Layout { stripes: self.stripes.max(state.stripes), ..self }
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
    pub fn beside(&self, device: DeviceId) -> impl Iterator<Item = DeviceId> {
        let group = device.0 / self.group_size();
        let all = (0..self.devices()).filter(move |other| *other != device.0);
        let size = self.group_size();
        all.filter(move |other| other / size == group).map(DeviceId)
    }

    /// Devices in all.
    pub fn devices(&self) -> u16 {
        self.groups * self.group_size()
    }

    /// The array's length in blocks.
    pub fn blocks(&self) -> u64 {
        self.stripes * u64::from(self.data) * u64::from(self.unit)
    }

    /// Blocks on each device.
    pub fn device_blocks(&self) -> u64 {
        self.stripes.div_ceil(u64::from(self.groups)) * u64::from(self.unit)
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
        let row = stripe / u64::from(self.groups);
        let size = u64::from(self.group_size());
        self.in_group(stripe, (size - 1 + size - row % size + places) % size)
    }

    fn in_group(&self, stripe: u64, index: u64) -> DeviceId {
        let group = stripe % u64::from(self.groups);
        DeviceId((group * u64::from(self.group_size()) + index) as u16)
    }

    /// The first block of a stripe's units on its devices; the same on all.
    pub fn unit_start(&self, stripe: u64) -> u64 {
        stripe / u64::from(self.groups) * u64::from(self.unit)
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
        let group = u64::from(device.0 / self.group_size());
        let stripe = block / u64::from(self.unit) * u64::from(self.groups) + group;
        (device.0 < self.devices() && stripe < self.stripes).then_some(stripe)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn layout(data: u16, groups: u16) -> Layout {
        let redundancy = if data == 1 { Redundancy::Mirror } else { Redundancy::Raid5 };
        Layout { redundancy, data, groups, unit: 4, block_size: 4096, stripes: 40 }
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
}
