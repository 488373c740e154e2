//! A device's file describes itself, twice: the device, its array, and the layout that it was made for.

use lockify_array::{Layout, Redundancy};

use crate::{ArrayId, SECTOR};

/// The version of the format of a device's file.
pub(super) const VERSION: u32 = 2;
/// That of one whose sectors are not the usual ones: a release that knows only these must not open it.
pub(super) const VERSION_OF_OTHER_SECTORS: u32 = 3;
/// That of one with two parities, whatever its sectors: earlier releases take any unknown redundancy for a mirror.
pub(super) const VERSION_OF_RAID6: u32 = 4;
/// Bytes of a superblock.
pub(super) const SIZE: usize = 512;
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
    /// It has served: blocks that it lacks were never written, or are lost.
    pub in_service: bool,
    pub layout: Layout,
    /// Blocks of this device: none for a witness.
    pub blocks: u64,
    /// Bytes of the sector behind each.
    pub sector: u32,
}

/// The state of an invalid copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bad {
    Foreign,
    Torn,
    Version(u32),
}

impl Superblock {
    /// The version of the format.
    pub fn version(&self) -> u32 {
        match self.layout.redundancy {
            Redundancy::Raid6 => VERSION_OF_RAID6,
            _ if self.sector == SECTOR => VERSION,
            _ => VERSION_OF_OTHER_SECTORS,
        }
    }

    pub fn encode(&self) -> [u8; SIZE] {
        let Layout { redundancy, data, groups, unit, block_size, stripes, added: _ } = self.layout;
        let version = self.version();
        let mut all = Vec::with_capacity(SIZE);
        all.extend(MAGIC);
        all.extend(version.to_le_bytes());
        all.extend(self.seq.to_le_bytes());
        all.extend(self.array.0);
        all.extend(self.device.to_le_bytes());
        all.push(self.in_service.into());
        all.push(match redundancy {
            Redundancy::Raid5 => 0,
            Redundancy::Mirror => 1,
            Redundancy::Raid6 => 2,
        });
        all.extend(data.to_le_bytes());
        all.extend(groups.to_le_bytes());
        all.extend(unit.to_le_bytes());
        all.extend(block_size.to_le_bytes());
        all.extend(stripes.to_le_bytes());
        all.extend(self.blocks.to_le_bytes());
        if version != VERSION {
            all.extend(self.sector.to_le_bytes());
        }
        all.resize(BODY, 0);
        all.extend(crc32c::crc32c(&all).to_le_bytes());
        let mut bytes = [0; SIZE];
        bytes[..all.len()].copy_from_slice(&all);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Superblock, Bad> {
        let mut fields = Fields(bytes);
        if fields.take() != MAGIC {
            return Err(Bad::Foreign);
        }
        let version = u32::from_le_bytes(fields.take());
        if ![VERSION, VERSION_OF_OTHER_SECTORS, VERSION_OF_RAID6].contains(&version) {
            return Err(Bad::Version(version));
        }
        let crc = bytes.get(BODY..BODY + 4);
        if crc != Some(&crc32c::crc32c(&bytes[..BODY.min(bytes.len())]).to_le_bytes()) {
            return Err(Bad::Torn);
        }
        let seq = u64::from_le_bytes(fields.take());
        let array = ArrayId(fields.take());
        let device = u16::from_le_bytes(fields.take());
        let [in_service, redundancy] = fields.take();
        let layout = Layout {
            redundancy: match redundancy {
                0 => Redundancy::Raid5,
                2 => Redundancy::Raid6,
                _ => Redundancy::Mirror,
            },
            data: u16::from_le_bytes(fields.take()),
            groups: u16::from_le_bytes(fields.take()),
            unit: u32::from_le_bytes(fields.take()),
            block_size: u32::from_le_bytes(fields.take()),
            stripes: u64::from_le_bytes(fields.take()),
            added: Default::default(),
        };
        let blocks = u64::from_le_bytes(fields.take());
        let sector = if version == VERSION { SECTOR } else { u32::from_le_bytes(fields.take()) };
        Ok(Superblock { seq, array, device, in_service: in_service != 0, layout, blocks, sector })
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
        let mirror = Layout {
            redundancy: Redundancy::Mirror,
            data: 1,
            groups: 3,
            unit: 16,
            block_size: 4096,
            stripes: 1 << 40,
            added: Default::default(),
        };
        let (array, device) = (ArrayId([9; 16]), 5);
        let raid5 = Layout { redundancy: Redundancy::Raid5, data: 4, ..mirror };
        let raid6 = Layout { redundancy: Redundancy::Raid6, data: 4, ..mirror };
        let versions = [(mirror, [2, 3]), (raid5, [2, 3]), (raid6, [4, 4])];
        for (layout, sector, version) in versions.into_iter().flat_map(|(layout, versions)| {
            crate::SECTORS.into_iter().zip(versions).map(move |(s, v)| (layout, s, v))
        }) {
            let (in_service, blocks) = (true, 1 << 41);
            let one = Superblock { seq: 7, array, device, in_service, layout, blocks, sector };
            assert_eq!(one.version(), version);
            let bytes = one.encode();
            assert_eq!(Superblock::decode(&bytes), Ok(one));
            for at in 0..BODY + 4 {
                let mut bad = bytes;
                bad[at] ^= 0x40;
                assert!(Superblock::decode(&bad).is_err(), "byte {at}");
            }
            assert_eq!(Superblock::decode(&[]), Err(Bad::Foreign));
            assert_eq!(Superblock::decode(&bytes[..40]), Err(Bad::Torn));
        }
    }
}
