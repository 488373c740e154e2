//! What a device's file says of itself, twice: which device of which array it is, and the layout that it was made for.

use lockify_array::{Layout, Redundancy};

use super::SECTOR;
use crate::ArrayId;

/// The version of the format of a device's file.
pub(super) const VERSION: u32 = 2;
const MAGIC: [u8; 8] = *b"LOCKIFYD";
/// Bytes that the checksum is of.
const BODY: usize = 80;

/// A superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Superblock {
    /// Grows with every change; the copy with the larger one counts.
    pub seq: u64,
    pub array: ArrayId,
    pub device: u16,
    /// It has served: what it does not have was never written, or is lost.
    pub in_service: bool,
    pub layout: Layout,
    /// Blocks of this device: none for a witness.
    pub blocks: u64,
}

/// What a copy is, if it is no superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bad {
    Foreign,
    Torn,
    Version(u32),
}

impl Superblock {
    pub fn encode(&self) -> [u8; SECTOR] {
        let Layout { redundancy, data, groups, unit, block_size, stripes } = self.layout;
        let mut all = Vec::with_capacity(SECTOR);
        all.extend(MAGIC);
        all.extend(VERSION.to_le_bytes());
        all.extend(self.seq.to_le_bytes());
        all.extend(self.array.0);
        all.extend(self.device.to_le_bytes());
        all.push(self.in_service.into());
        all.push(match redundancy {
            Redundancy::Raid5 => 0,
            Redundancy::Mirror => 1,
        });
        all.extend(data.to_le_bytes());
        all.extend(groups.to_le_bytes());
        all.extend(unit.to_le_bytes());
        all.extend(block_size.to_le_bytes());
        all.extend(stripes.to_le_bytes());
        all.extend(self.blocks.to_le_bytes());
        all.resize(BODY, 0);
        all.extend(crc32c::crc32c(&all).to_le_bytes());
        let mut sector = [0; SECTOR];
        sector[..all.len()].copy_from_slice(&all);
        sector
    }

    pub fn decode(sector: &[u8]) -> Result<Superblock, Bad> {
        let mut fields = Fields(sector);
        if fields.take() != MAGIC {
            return Err(Bad::Foreign);
        }
        let version = u32::from_le_bytes(fields.take());
        if version != VERSION {
            return Err(Bad::Version(version));
        }
        let crc = sector.get(BODY..BODY + 4);
        if crc != Some(&crc32c::crc32c(&sector[..BODY.min(sector.len())]).to_le_bytes()) {
            return Err(Bad::Torn);
        }
        let seq = u64::from_le_bytes(fields.take());
        let array = ArrayId(fields.take());
        let device = u16::from_le_bytes(fields.take());
        let [in_service, redundancy] = fields.take();
        let layout = Layout {
            redundancy: if redundancy == 0 { Redundancy::Raid5 } else { Redundancy::Mirror },
            data: u16::from_le_bytes(fields.take()),
            groups: u16::from_le_bytes(fields.take()),
            unit: u32::from_le_bytes(fields.take()),
            block_size: u32::from_le_bytes(fields.take()),
            stripes: u64::from_le_bytes(fields.take()),
        };
        let blocks = u64::from_le_bytes(fields.take());
        Ok(Superblock { seq, array, device, in_service: in_service != 0, layout, blocks })
    }
}

/// Takes fields off the front of bytes; zeros behind their end.
pub(super) struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    pub fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk::<N>().unwrap_or((&[0; N], &[]));
        self.0 = rest;
        *field
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_comes_back_and_every_wrong_byte_is_found() {
        let layout = Layout {
            redundancy: Redundancy::Mirror,
            data: 1,
            groups: 3,
            unit: 16,
            block_size: 4096,
            stripes: 1 << 40,
        };
        let (array, device) = (ArrayId([9; 16]), 5);
        let one = Superblock { seq: 7, array, device, in_service: true, layout, blocks: 1 << 41 };
        let sector = one.encode();
        assert_eq!(Superblock::decode(&sector), Ok(one));
        for at in 0..BODY + 4 {
            let mut bad = sector;
            bad[at] ^= 0x40;
            assert!(Superblock::decode(&bad).is_err(), "byte {at}");
        }
        assert_eq!(Superblock::decode(&[]), Err(Bad::Foreign));
        assert_eq!(Superblock::decode(&sector[..40]), Err(Bad::Torn));
    }
}
