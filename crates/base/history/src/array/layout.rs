//! The place of a block in the array: left-symmetric RAID-5 and mirrors (docs/design/array.md 1.1). It is written anew: the
//! checker shares no code with the checked program.

use serde::{Deserialize, Serialize};

/// The redundancy of a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Redundancy {
    /// A unit of parity in each stripe.
    Raid5,
    /// A copy.
    Mirror,
}

/// How an array is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Layout {
    /// The redundancy of each stripe.
    pub redundancy: Redundancy,
    /// Data units per stripe.
    pub data: u16,
    /// Groups of `data + 1` devices.
    pub groups: u16,
    /// Blocks per unit.
    pub unit: u32,
    /// Bytes per block.
    pub block_size: u32,
    /// The number of stripes.
    pub stripes: u64,
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
}

impl TryFrom<Unchecked> for Layout {
    type Error = String;

    fn try_from(raw: Unchecked) -> Result<Layout, String> {
        let Unchecked { redundancy, data, groups, unit, block_size, stripes } = raw;
        if data == 0 || groups == 0 || unit == 0 || block_size == 0 || stripes == 0 {
            return Err("nothing of an array's layout can be 0".to_owned());
        }
        let devices = u32::from(groups) * (u32::from(data) + 1);
        let blocks = u128::from(stripes) * u128::from(data) * u128::from(unit);
        if devices > u32::from(u16::MAX) || blocks > i64::MAX as u128 {
            return Err("the array's layout is too large".to_owned());
        }
        Ok(Layout { redundancy, data, groups, unit, block_size, stripes })
    }
}

impl Layout {
    /// Devices of a group.
    pub fn members(&self) -> u16 {
        self.data + 1
    }

    /// The number of devices, without witnesses.
    pub fn devices(&self) -> u16 {
        self.groups * self.members()
    }

    /// Blocks of the array.
    pub fn blocks(&self) -> u64 {
        self.stripes * u64::from(self.data) * u64::from(self.unit)
    }

    /// The stripe of a device's block.
    pub fn stripe(&self, device: u16, block: u64) -> u64 {
        block / u64::from(self.unit) * u64::from(self.groups) + u64::from(device / self.members())
    }

    /// The blocks of the array in the same column of the same stripe as this block of a device. Its content depends on them.
    pub fn column(&self, device: u16, block: u64) -> impl Iterator<Item = u64> {
        let (unit, data) = (u64::from(self.unit), u64::from(self.data));
        let (stripe, offset) = (self.stripe(device, block), block % unit);
        (0..data).map(move |j| (stripe * data + j) * unit + offset)
    }

    /// The block of the array that a device's block holds; `None` if it holds parity, or nothing.
    pub fn logical(&self, device: u16, block: u64) -> Option<u64> {
        let stripe = self.stripe(device, block);
        let members = u64::from(self.members());
        let parity =
            (u64::from(self.data) + members - stripe / u64::from(self.groups) % members) % members;
        let behind = (u64::from(device % self.members()) + members - parity) % members;
        (behind > 0 && stripe < self.stripes)
            .then(|| self.column(device, block).nth(behind as usize - 1))
            .flatten()
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
    }
}
