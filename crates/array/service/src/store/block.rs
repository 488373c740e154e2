//! A block on the medium: its content, and behind it a sector. The sector names the block and its writer. It has a checksum of
//! both, and one of itself. So n blocks are one contiguous write. The sector is written as a whole or not at all. After an
//! interrupted write, it names the writer or the one before. Where the medium writes pieces of 4 KiB, so has the sector. A
//! shared sector would have to be written with each of its blocks, and be lost with any.

use bytes::Bytes;
use lockify_array::{BadBlock, Block, BlockError, DeviceId, Header, Skipped, Stamp, Units};

use super::is_zero;
use super::superblock::Fields;
use crate::{ArrayId, BLOCK};

const MAGIC: [u8; 4] = *b"LkBk";
const CONTENT: usize = BLOCK as usize;
/// Bytes of the sector that the checksum is of, besides the content.
const BODY: usize = 64;
/// Behind the body and the two checksums: the lost data units that a parity block names, and their checksum. They are there
/// if the body says so. Releases that do not know them read no such device (`FOURTH` in
/// `crates/array/machine/src/device/record.rs`).
const NAMES: usize = BODY + 8;
/// Their end.
const END: usize = NAMES + Units::BYTES + 4;
/// No device was left out.
const NONE: u16 = u16::MAX;

/// The owner of a block, which must be in its sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owner {
    pub array: ArrayId,
    pub device: u16,
}

impl Owner {
    /// Puts a block into bytes for it and its sector.
    pub fn encode(self, number: u64, block: &Block, record: &mut [u8]) {
        let (content, sector) = record.split_at_mut(CONTENT);
        content.copy_from_slice(&block.data);
        let Header { stamp, first, last, skipped, lost, lost_data } = block.header;
        let mut all = Vec::with_capacity(BODY);
        all.extend(MAGIC);
        all.extend(self.array.0);
        all.extend(self.device.to_le_bytes());
        let mut skipped = skipped.devices();
        all.extend(skipped.next().map_or(NONE, |device| device.0).to_le_bytes());
        all.extend(number.to_le_bytes());
        all.extend(stamp.time.to_le_bytes());
        all.extend(first.to_le_bytes());
        all.extend(last.to_le_bytes());
        all.extend(stamp.host.to_le_bytes());
        all.push(lost.into());
        let names = !lost_data.is_empty();
        all.push(names.into());
        // Counted from 1: records of earlier releases, and those of one parity, have zeros here.
        all.extend(skipped.next().map_or(0, |device| device.0.saturating_add(1)).to_le_bytes());
        all.resize(BODY, 0);
        sector[..BODY].copy_from_slice(&all);
        let crc = crc32c::crc32c_append(crc32c::crc32c(content), &all);
        sector[BODY..BODY + 4].copy_from_slice(&crc.to_le_bytes());
        sector[BODY + 4..BODY + 8].copy_from_slice(&crc32c::crc32c(&all).to_le_bytes());
        sector[NAMES..].fill(0);
        if names {
            let bytes = lost_data.to_bytes();
            sector[NAMES..END - 4].copy_from_slice(&bytes);
            sector[END - 4..END].copy_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        }
    }

    /// The block in such bytes. Zeros are a block that was never written.
    pub fn decode(self, number: u64, record: &Bytes) -> Result<Block, BadBlock> {
        let (content, sector) = record.split_at(CONTENT);
        let crc = crc32c::crc32c_append(crc32c::crc32c(content), &sector[..BODY]);
        let mut fields = Fields(sector);
        if fields.take() != MAGIC {
            let never = is_zero(record);
            let block = || Block { header: Header::default(), data: record.slice(..CONTENT) };
            return never.then(block).ok_or(BlockError::Torn.into());
        }
        let array = ArrayId(fields.take());
        let device = u16::from_le_bytes(fields.take());
        let skipped = u16::from_le_bytes(fields.take());
        let found = u64::from_le_bytes(fields.take());
        let time = u64::from_le_bytes(fields.take());
        let first = u64::from_le_bytes(fields.take());
        let last = u64::from_le_bytes(fields.take());
        let host = u32::from_le_bytes(fields.take());
        let [lost, names] = fields.take();
        let also_skipped = u16::from_le_bytes(fields.take()).checked_sub(1);
        let lost_data = if names == 0 { Some(Units::default()) } else { names_in(sector) };
        // A write that went astray is as bad as one that was cut short.
        let is_here = array == self.array && device == self.device && found == number;
        let stamp = Stamp { time, host };
        let is_whole = is_here && sector.get(BODY..BODY + 4) == Some(&crc.to_le_bytes());
        let Some(lost_data) = lost_data.filter(|_| is_whole) else {
            // Blocks that were written before the sector had a checksum of its own have zeros there.
            let own = crc32c::crc32c(&sector[..BODY]).to_le_bytes();
            let whole = is_here && sector.get(BODY + 4..BODY + 8) == Some(&own);
            return Err(BadBlock { error: BlockError::Torn, stamp: whole.then_some(stamp) });
        };
        let header = Header {
            stamp,
            first,
            last,
            skipped: skipped_of([(skipped != NONE).then_some(skipped), also_skipped]),
            lost: lost != 0,
            lost_data,
        };
        Ok(Block { header, data: record.slice(..CONTENT) })
    }
}

fn skipped_of(devices: [Option<u16>; 2]) -> Skipped {
    devices.into_iter().flatten().map(DeviceId).collect()
}

/// The lost data units that a sector names, if their checksum is right.
fn names_in(sector: &[u8]) -> Option<Units> {
    let (bytes, crc) = sector.get(NAMES..END)?.split_first_chunk()?;
    (crc == crc32c::crc32c(bytes).to_le_bytes()).then(|| Units::from_bytes(*bytes))
}

const _: () = assert!(END <= crate::SECTOR as usize);

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> Block {
        let header = Header {
            stamp: Stamp { time: u64::MAX - 1, host: 77 },
            first: 1 << 50,
            last: (1 << 50) + 3,
            skipped: [DeviceId(3), DeviceId(0)].into_iter().collect(),
            lost: true,
            lost_data: [1, 253].into_iter().collect(),
        };
        Block { header, data: (0..CONTENT).map(|i| i as u8).collect() }
    }

    const OWNER: Owner = Owner { array: ArrayId([5; 16]), device: 2 };
    const SECTOR: usize = crate::SECTOR as usize;
    const RECORD: usize = CONTENT + SECTOR;

    fn record() -> Vec<u8> {
        let mut record = vec![0xff; RECORD];
        OWNER.encode(9, &block(), &mut record);
        record
    }

    #[test]
    fn a_block_comes_back_with_its_header() {
        assert_eq!(OWNER.decode(9, &record().into()), Ok(block()));
        let never = OWNER.decode(9, &vec![0; RECORD].into()).unwrap();
        assert_eq!(never.header, Header::default());
        assert!(never.data.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn torn_damaged_and_stray_blocks_are_found() {
        let torn = Err(BlockError::Torn);
        let decode = |owner: Owner, number, record: Vec<u8>| {
            owner.decode(number, &record.into()).map_err(|bad| bad.error)
        };
        for at in (0..CONTENT + BODY + 4)
            .step_by(7)
            .chain([CONTENT, CONTENT + BODY + 3])
            .chain(CONTENT + NAMES..CONTENT + END)
        {
            let mut bad = record();
            bad[at] ^= 1;
            assert_eq!(decode(OWNER, 9, bad), torn, "byte {at}");
        }
        // A write over an older one that was cut after any sector.
        let mut older = block();
        older.header.stamp.time = 1;
        older.data = vec![1; CONTENT].into();
        for sectors in 1..RECORD / SECTOR {
            let mut mixed = vec![0; RECORD];
            OWNER.encode(9, &older, &mut mixed);
            mixed[..sectors * SECTOR].copy_from_slice(&record()[..sectors * SECTOR]);
            let stamp = Some(older.header.stamp);
            let bad = BadBlock { error: BlockError::Torn, stamp };
            assert_eq!(OWNER.decode(9, &mixed.into()), Err(bad), "{sectors} sectors");
        }
        assert_eq!(decode(OWNER, 8, record()), torn);
        assert_eq!(decode(Owner { device: 1, ..OWNER }, 9, record()), torn);
        assert_eq!(decode(Owner { array: ArrayId([6; 16]), ..OWNER }, 9, record()), torn);
    }

    #[test]
    fn the_sector_alone_says_who_wrote_it() {
        let stamp = |record: Vec<u8>| OWNER.decode(9, &record.into()).unwrap_err().stamp;
        let mut bad = record();
        bad[0] ^= 1;
        assert_eq!(stamp(bad.clone()), Some(block().header.stamp));
        // As blocks were written before.
        bad[CONTENT + BODY + 4..].fill(0);
        assert_eq!(stamp(bad), None);
        for at in CONTENT..CONTENT + BODY {
            let mut bad = record();
            bad[at] ^= 1;
            assert_eq!(stamp(bad), None, "byte {at}");
        }
    }
}
