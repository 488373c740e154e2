//! The place of a block in the array: left-symmetric RAID-5 and RAID-6, and mirrors (docs/design/array.md 1.1). It is written anew:
//! the checker shares no code with the checked program.

use serde::{Deserialize, Serialize};

/// The redundancy of a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Redundancy {
    /// A unit of parity in each stripe.
    Raid5,
    /// A copy.
    Mirror,
    /// Two units of parity in each stripe.
    Raid6,
}

impl Redundancy {
    /// Units of a stripe beside its data: so many may be missing.
    pub fn units(self) -> u16 {
        if self == Redundancy::Raid6 { 2 } else { 1 }
    }
}

/// How an array is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Layout {
    /// The redundancy of each stripe.
    pub redundancy: Redundancy,
    /// Data units per stripe.
    pub data: u16,
    /// Groups of devices, one for each unit of a stripe.
    pub groups: u16,
    /// Blocks per unit.
    pub unit: u32,
    /// Bytes per block.
    pub block_size: u32,
    /// The number of stripes.
    pub stripes: u64,
    /// Sectors per block: operations read and write whole sectors, and devices whole blocks.
    #[serde(skip_serializing_if = "is_one")]
    pub sectors: u32,
    /// Groups that came later. A history's first event has none.
    #[serde(skip)]
    pub later: LaterGroups,
}

/// An array gets so many groups later, and no more.
const MOST_LATER: usize = 8;

/// The groups that an array has got later, in their order.
pub type LaterGroups = [Option<LaterGroup>; MOST_LATER];

/// A group of devices that an array has got later: all stripes from one on are there, up to the next such group's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaterGroup {
    /// Its first stripe.
    pub from: u64,
    /// Its first device. The others have the next numbers.
    pub first: u16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unchecked {
    redundancy: Redundancy,
    data: u16,
    groups: u16,
    unit: u32,
    block_size: u32,
    stripes: u64,
    #[serde(default = "whole_blocks")]
    sectors: u32,
}

/// An array whose operations are in whole blocks.
fn whole_blocks() -> u32 {
    1
}

fn is_one(count: &u32) -> bool {
    *count == 1
}

impl TryFrom<Unchecked> for Layout {
    type Error = String;

    fn try_from(raw: Unchecked) -> Result<Layout, String> {
        let Unchecked { redundancy, data, groups, unit, block_size, stripes, sectors } = raw;
        let later = LaterGroups::default();
        Layout { redundancy, data, groups, unit, block_size, stripes, sectors, later }.checked()
    }
}

impl Layout {
    fn checked(self) -> Result<Layout, String> {
        let Layout { redundancy, data, groups, unit, block_size, stripes, sectors, .. } = self;
        let counts = [data.into(), groups.into(), unit, block_size, sectors];
        if stripes == 0 || counts.contains(&0) {
            return Err("nothing of an array's layout can be 0".to_owned());
        }
        let devices = u32::from(groups) * (u32::from(data) + u32::from(redundancy.units()));
        let blocks = u128::from(stripes) * u128::from(data) * u128::from(unit);
        // A factor of four billion does not exceed the type.
        if devices > u32::from(u16::MAX) || blocks * u128::from(sectors) > i64::MAX as u128 {
            return Err("the array's layout is too large".to_owned());
        }
        Ok(self)
    }

    /// The layout of the array when it has so many stripes. Each stripe stays where it is.
    ///
    /// # Errors
    /// It would have fewer than before, or too many.
    pub fn with_stripes(self, stripes: u64) -> Result<Layout, String> {
        if stripes < self.stripes {
            return Err(format!("the array has {} stripes, and cannot have fewer", self.stripes));
        }
        Layout { stripes, ..self }.checked()
    }

    /// The layout when it has got these groups, and maybe more. Each stripe stays where it is.
    ///
    /// # Errors
    /// It has got others, or such groups cannot be.
    pub fn with_groups(self, groups: &[LaterGroup]) -> Result<Layout, String> {
        let known: Vec<LaterGroup> = self.later.into_iter().flatten().collect();
        if known.iter().zip(groups).any(|(one, other)| one != other) {
            return Err("the array has got other groups than an earlier event says".to_owned());
        }
        if groups.len() <= known.len() {
            return Ok(self);
        }
        if groups.len() > MOST_LATER {
            return Err(format!("an array gets {MOST_LATER} groups at most"));
        }
        let (mut from, mut free) = (0, self.devices());
        for group in groups {
            let behind = group.first.checked_add(self.members());
            let Some(behind) = behind.filter(|_| group.from > from && group.first >= free) else {
                return Err("the array's groups are not one behind the other".to_owned());
            };
            (from, free) = (group.from, behind);
        }
        let mut groups = groups.iter().copied();
        Ok(Layout { later: std::array::from_fn(|_| groups.next()), ..self })
    }
}

impl Layout {
    /// Devices of a group.
    pub fn members(&self) -> u16 {
        self.data + self.redundancy.units()
    }

    /// The number of devices that the array began with, without witnesses.
    pub fn devices(&self) -> u16 {
        self.groups * self.members()
    }

    /// The group that came later of which this device is, and the first stripe of the group after it.
    fn later_of(&self, device: u16) -> Option<(LaterGroup, u64)> {
        let mut groups = self.later.into_iter().flatten().peekable();
        while let Some(group) = groups.next() {
            let end = groups.peek().map_or(self.stripes, |next| next.from);
            if (group.first..group.first.saturating_add(self.members())).contains(&device) {
                return Some((group, end));
            }
        }
        None
    }

    /// Returns true if the array has this block of a device.
    pub fn has(&self, device: u16, block: u64) -> bool {
        let of_first = self.later[0].map_or(self.stripes, |later| later.from);
        let end = match self.later_of(device) {
            Some((_, end)) => end,
            None if device < self.devices() => of_first,
            None => 0,
        };
        self.stripe(device, block) < end.min(self.stripes)
    }

    /// The first device of the group of a device.
    pub fn first_of_group(&self, device: u16) -> u16 {
        match self.later_of(device) {
            Some((group, _)) => group.first,
            None => device - device % self.members(),
        }
    }

    /// The first device of the group that has a stripe.
    pub fn first_of_stripe(&self, stripe: u64) -> u16 {
        let later = self.later.into_iter().flatten().rfind(|group| group.from <= stripe);
        match later {
            Some(group) => group.first,
            None => (stripe % u64::from(self.groups)) as u16 * self.members(),
        }
    }

    /// Blocks of the array.
    pub fn blocks(&self) -> u64 {
        self.stripes * u64::from(self.data) * u64::from(self.unit)
    }

    /// The sectors of a block of the array.
    pub fn sectors_of(&self, block: u64) -> std::ops::Range<u64> {
        let sectors = u64::from(self.sectors);
        block * sectors..(block + 1) * sectors
    }

    /// The block of the array that has a sector.
    pub fn block_of(&self, sector: u64) -> u64 {
        sector / u64::from(self.sectors)
    }

    /// A sector's name, for people.
    pub fn name_of(&self, sector: u64) -> String {
        let block = self.block_of(sector);
        match self.sectors {
            1 => format!("block {block}"),
            _ => format!("block {block}, sector {}", sector - self.sectors_of(block).start),
        }
    }

    /// The stripe of a device's block.
    pub fn stripe(&self, device: u16, block: u64) -> u64 {
        let row = block / u64::from(self.unit);
        match self.later_of(device) {
            Some((group, _)) => group.from.saturating_add(row),
            None => row * u64::from(self.groups) + u64::from(device / self.members()),
        }
    }

    /// The blocks of the array in the same column of the same stripe as this block of a device. Its content depends on them.
    pub fn column(&self, device: u16, block: u64) -> impl Iterator<Item = u64> {
        let (unit, data) = (u64::from(self.unit), u64::from(self.data));
        let (stripe, offset) = (self.stripe(device, block), block % unit);
        (0..data).map(move |j| (stripe * data + j) * unit + offset)
    }

    /// How many places a device is behind that of the stripe's first parity, which goes one place to the left with each row.
    fn behind_parity(&self, device: u16, stripe: u64) -> u64 {
        let members = u64::from(self.members());
        let (row, place) = match self.later_of(device) {
            Some((group, _)) => (stripe.saturating_sub(group.from), device - group.first),
            None => (stripe / u64::from(self.groups), device % self.members()),
        };
        (u64::from(place) + row % members + 1) % members
    }

    /// The data unit of a stripe that a device has; `None` if it has parity.
    pub fn data_unit(&self, device: u16, stripe: u64) -> Option<u64> {
        self.behind_parity(device, stripe).checked_sub(u64::from(self.redundancy.units()))
    }

    /// Returns true if a device has the second parity of a stripe.
    pub fn has_second_parity(&self, device: u16, stripe: u64) -> bool {
        self.redundancy == Redundancy::Raid6 && self.behind_parity(device, stripe) == 1
    }

    /// The block of the array that a device's block holds; `None` if it holds parity, or nothing.
    pub fn logical(&self, device: u16, block: u64) -> Option<u64> {
        let stripe = self.stripe(device, block);
        let unit = self.data_unit(device, stripe).filter(|_| self.has(device, block))?;
        self.column(device, block).nth(unit as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lie_where_the_specification_says() {
        let layout = Layout {
            redundancy: Redundancy::Raid5,
            data: 4,
            groups: 1,
            unit: 2,
            block_size: 16,
            stripes: 6,
            sectors: 2,
            later: LaterGroups::default(),
        };
        // Stripe 0: data 0..8 on devices 0..4, parity on 4. Stripe 1: parity on 3, data from device 4 on.
        assert_eq!(
            (0..5).map(|d| layout.logical(d, 1)).collect::<Vec<_>>(),
            [Some(1), Some(3), Some(5), Some(7), None]
        );
        assert_eq!(
            (0..5).map(|d| layout.logical(d, 2)).collect::<Vec<_>>(),
            [Some(10), Some(12), Some(14), None, Some(8)]
        );
        assert_eq!(layout.logical(0, 12), None, "there are six stripes");
        assert_eq!(layout.column(3, 2).collect::<Vec<_>>(), [8, 10, 12, 14]);
        assert_eq!((layout.sectors_of(3), layout.block_of(6), layout.block_of(7)), (6..8, 3, 3));
        assert_eq!(layout.name_of(7), "block 3, sector 1");
        assert_eq!(Layout { sectors: 1, ..layout }.name_of(7), "block 7");
    }

    /// In front of the data are the first and the second parity, in this order, whichever device the stripe begins with.
    #[test]
    fn two_parities_lie_where_the_specification_says() {
        let (redundancy, sectors) = (Redundancy::Raid6, 1);
        let layout = Layout {
            redundancy,
            data: 3,
            groups: 2,
            unit: 1,
            block_size: 16,
            stripes: 12,
            sectors,
            later: LaterGroups::default(),
        };
        assert_eq!((layout.members(), layout.devices()), (5, 10));
        let of = |stripe: u64| {
            let first = (stripe % 2 * 5) as u16;
            let unit = |device: u16| layout.data_unit(device, stripe);
            (first..first + 5).map(unit).collect::<Vec<_>>()
        };
        // Row 0: the first parity on device 4, the second one on device 0.
        assert_eq!(of(0), [None, Some(0), Some(1), Some(2), None]);
        assert_eq!(of(1), of(0));
        assert_eq!(of(2), [Some(0), Some(1), Some(2), None, None]);
        assert_eq!(of(10), of(0));
        let second: Vec<u16> = (0..5).filter(|d| layout.has_second_parity(*d, 2)).collect();
        assert_eq!(second, [4]);
        assert_eq!(layout.logical(5, 1), Some(9), "the first data unit of stripe 3");
        assert_eq!(layout.logical(9, 0), None);
    }

    #[test]
    fn a_group_that_came_later_has_the_last_stripes() {
        let made = Layout {
            redundancy: Redundancy::Mirror,
            data: 1,
            groups: 2,
            unit: 1,
            block_size: 16,
            stripes: 7,
            sectors: 1,
            later: LaterGroups::default(),
        };
        let later = |from, first| LaterGroup { from, first };
        // Device 4 is a witness.
        let grown = made.with_groups(&[later(5, 5), later(6, 7)]).unwrap();
        let of = |device: u16| -> Vec<_> { (0..4).map(|row| grown.logical(device, row)).collect() };
        // Of each row, the copy is on one of both devices.
        assert_eq!(
            (of(0), of(1)),
            (vec![Some(0), None, Some(4), None], vec![None, Some(2), None, None])
        );
        assert_eq!((of(5), of(6)), (vec![Some(5), None, None, None], vec![None; 4]));
        assert_eq!((of(7), of(4)), (vec![Some(6), None, None, None], vec![None; 4]));
        assert!(grown.has(6, 0) && !grown.has(6, 1) && !grown.has(4, 0) && !grown.has(9, 0));
        assert!(grown.has(3, 1) && !grown.has(3, 2), "stripe 5 came later");
        assert_eq!([0, 5, 6].map(|stripe| grown.first_of_stripe(stripe)), [0, 5, 7]);
        assert_eq!([1, 3, 6, 8].map(|device| grown.first_of_group(device)), [0, 2, 5, 7]);
        assert_eq!(grown.with_groups(&[later(5, 5)]), Ok(grown));
        for bad in [&[later(4, 5)][..], &[later(5, 5), later(6, 8)]] {
            assert!(grown.with_groups(bad).unwrap_err().contains("other groups"));
        }
        for bad in [&[later(5, 3)][..], &[later(5, 5), later(6, 6)], &[later(5, 5), later(5, 7)]] {
            assert!(made.with_groups(bad).unwrap_err().contains("one behind the other"));
        }
        let many: Vec<_> = (0..9).map(|i| later(5 + u64::from(i), 5 + 2 * i)).collect();
        assert!(made.with_groups(&many).unwrap_err().contains("8 groups"));
    }

    #[test]
    fn blocks_are_whole_unless_a_history_says_how_many_sectors_they_have() {
        let of = |more: &str| {
            let text = r#"{"redundancy":"mirror","data":1,"groups":1,"unit":1,"block_size":4096,"stripes":"#;
            serde_json::from_str::<Layout>(&format!("{text}{more}}}")).map(|layout| layout.sectors)
        };
        assert_eq!(of("7").unwrap(), 1);
        assert_eq!(of(r#"7,"sectors":8"#).unwrap(), 8);
        assert!(of(r#"7,"sectors":0"#).is_err());
        assert!(of(&format!(r#"{},"sectors":8"#, u64::MAX / 8)).is_err());
        assert!(of(&format!(r#"{},"sectors":{}"#, u64::MAX, u32::MAX)).is_err());
    }
}
