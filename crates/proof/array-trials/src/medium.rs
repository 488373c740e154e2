//! The disks of a simulated device: blocks with their headers on one, the device's record on another.
//!
//! A block is stored as three parts: checksums of block and header, header, and data. They take as many sectors as
//! [`Shape`] says. With one sector, a crash leaves the block either old or new. With more, a crash can tear it. The
//! record has a small disk of its own, like a controller's non-volatile memory. So writing it takes no time from the disk
//! that experiments measure. It has two slots that are written in turn.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use lockify_array::{
    BadBlock, Block, BlockError, DeviceId, DiskAnswer, DiskAsk, DiskError, DiskToken, Extent,
    Header, Layout,
};
use lockify_sim::{Context, Delay, DiskConfig, DiskDone, DiskId, Machine, Nanos};
use xxhash_rust::xxh3::xxh3_64;

const DATA: DiskId = DiskId(0);
const RECORD: DiskId = DiskId(1);
/// A device's disks.
pub const DISKS: [DiskId; 2] = [DATA, RECORD];

/// Bytes of a checksum.
const CHECKSUM: usize = 8;
/// The largest size of a header in postcard, in bytes. It has numbers of at most 10, 5, 10, 10, 4 and 4 bytes, a truth value,
/// and the lost data units in four numbers of at most 10.
const HEADER: usize = 84;

/// Bytes of a sector of the record's disk.
const RECORD_SECTOR: usize = 512;
/// Sectors of one of the two slots.
const RECORD_SECTORS: u64 = 512;
/// Sequence and length before, checksum behind.
const RECORD_FRAME: usize = 8 + 8 + CHECKSUM;

/// How blocks lie on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Bytes of a block's data.
    pub block_size: usize,
    /// The number of blocks.
    pub blocks: u64,
    /// Sectors that a block takes; from 2 on a crash can tear it.
    pub sectors_per_block: usize,
}

impl Shape {
    /// That of a device of an array. One that only votes has as many blocks as others, and uses none.
    pub fn new(layout: &Layout, device: DeviceId, sectors_per_block: usize) -> Shape {
        let blocks = match layout.group(device) {
            Some(_) => layout.blocks_on(device),
            None => layout.device_blocks(),
        };
        Shape {
            block_size: layout.block_size as usize,
            blocks,
            sectors_per_block: sectors_per_block.max(1),
        }
    }

    fn sector_size(&self) -> usize {
        (2 * CHECKSUM + HEADER + self.block_size).div_ceil(self.sectors_per_block)
    }

    fn stored(&self) -> usize {
        self.sector_size() * self.sectors_per_block
    }

    /// The disks. That of the blocks behaves as `like`, whose bandwidth is in blocks' *data* per second. This function
    /// sets only the size and number of sectors.
    pub fn disks(&self, like: &DiskConfig) -> [DiskConfig; 2] {
        // A stored block takes as long as its data would.
        let scaled = |bytes_per_s: u64| {
            let scaled = u128::from(bytes_per_s) * self.stored() as u128;
            u64::try_from(scaled / self.block_size.max(1) as u128).unwrap_or(u64::MAX)
        };
        let data = DiskConfig {
            sector_size: self.sector_size(),
            sectors: self.blocks * self.sectors_per_block as u64,
            bandwidth: like.bandwidth.map(scaled),
            ..like.clone()
        };
        let record = DiskConfig {
            sector_size: RECORD_SECTOR,
            sectors: 2 * RECORD_SECTORS,
            queue_depth: 1,
            read: Delay::ZERO,
            write: Delay::ZERO,
            flush: Delay::ZERO,
            bandwidth: None,
        };
        [data, record]
    }

    fn encode(&self, block: &Block) -> Result<Vec<u8>, String> {
        if block.data.len() != self.block_size {
            return Err(format!("a block of {} bytes is to be written", block.data.len()));
        }
        let mut stored = vec![0; self.stored()];
        let (checksums, content) = stored.split_at_mut(2 * CHECKSUM);
        postcard::to_slice(&block.header, &mut content[..HEADER])
            .map_err(|e| format!("a header cannot be stored: {e}"))?;
        content[HEADER..HEADER + self.block_size].copy_from_slice(&block.data);
        checksums[..CHECKSUM].copy_from_slice(&xxh3_64(content).to_le_bytes());
        checksums[CHECKSUM..].copy_from_slice(&xxh3_64(&content[..HEADER]).to_le_bytes());
        Ok(stored)
    }

    fn decode(&self, stored: &[u8]) -> Result<Block, BadBlock> {
        let (checksums, content) = stored.split_at(2 * CHECKSUM);
        let (checksum, of_header) = checksums.split_at(CHECKSUM);
        let header = postcard::from_bytes::<Header>(content);
        let data = || Bytes::copy_from_slice(&content[HEADER..HEADER + self.block_size]);
        if checksum == xxh3_64(content).to_le_bytes() {
            let header = header.map_err(|_| BlockError::Torn)?;
            return Ok(Block { header, data: data() });
        }
        // Never written.
        if stored.iter().all(|byte| *byte == 0) {
            return Ok(Block { header: Header::default(), data: data() });
        }
        let whole = of_header == xxh3_64(&content[..HEADER]).to_le_bytes();
        let stamp = header.ok().filter(|_| whole).map(|header| header.stamp);
        Err(BadBlock { error: BlockError::Torn, stamp })
    }
}

/// How a sector fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failing {
    /// It cannot be read until it is written: the disk puts it elsewhere then.
    UntilWritten,
    /// It takes writes, and cannot be read.
    Unreadable,
    /// It can neither be read nor written.
    Dead,
}

impl Failing {
    /// All kinds, the mildest first.
    pub const ALL: [Failing; 3] = [Failing::UntilWritten, Failing::Unreadable, Failing::Dead];
}

/// A sector that fails when it is used in a time. From its first failure on it stays so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadSector {
    /// On which device.
    pub device: DeviceId,
    /// The block that has it.
    pub block: u64,
    /// How it fails.
    pub failing: Failing,
    /// From then on.
    pub from: Nanos,
    /// It does not begin to fail any more.
    pub until: Nanos,
}

/// The bad sectors of a medium, and which of them have failed.
#[derive(Clone, Debug, Default)]
pub struct BadSectors(Vec<(BadSector, bool)>);

impl BadSectors {
    /// Those of a device.
    pub fn of(device: DeviceId, all: &[BadSector]) -> BadSectors {
        let here = all.iter().filter(|bad| bad.device == device);
        BadSectors(here.map(|bad| (*bad, false)).collect())
    }

    /// Blocks that have failed and still do.
    pub fn failing(&self) -> impl Iterator<Item = u64> {
        self.0.iter().filter(|(_, failed)| *failed).map(|(bad, _)| bad.block)
    }

    fn fails(&mut self, now: Nanos, block: u64) -> Option<Failing> {
        let (bad, failed) = self.0.iter_mut().find(|(bad, _)| bad.block == block)?;
        *failed |= (bad.from..bad.until).contains(&now);
        failed.then_some(bad.failing)
    }

    /// Returns true if blocks can be written, and thereby be read again if the disk puts them elsewhere.
    fn write(&mut self, now: Nanos, start: u64, count: usize) -> bool {
        let blocks = start..start + count as u64;
        let failing: Vec<Option<Failing>> =
            blocks.clone().map(|block| self.fails(now, block)).collect();
        if failing.contains(&Some(Failing::Dead)) {
            return false;
        }
        let over =
            |bad: &BadSector| bad.failing == Failing::UntilWritten && blocks.contains(&bad.block);
        self.0.retain(|(bad, failed)| !(*failed && over(bad)));
        true
    }
}

/// The purpose of a disk operation.
#[derive(Debug)]
enum Purpose {
    /// From this block on.
    Read(u64),
    Change,
    /// A block is read that will be lost.
    Lose {
        block: u64,
        zeros: bool,
    },
    /// Its content is replaced past the device.
    Replace,
    Save,
    /// The slot of the record that is read at the start.
    Boot,
    /// Somebody wants to see everything.
    Dump,
}

#[derive(Debug)]
struct Ask {
    token: DiskToken,
    purpose: Purpose,
    /// Steps that have not ended: a durable write has two.
    steps: u32,
    result: Result<Vec<u8>, String>,
}

/// An operation that has ended.
#[derive(Debug)]
pub enum Ended {
    /// An operation of the device's.
    Answer(DiskToken, Result<DiskAnswer, DiskError>),
    /// The record has been read: the device can start.
    Booted(Option<Bytes>),
    /// All blocks, as [`Medium::dump`] asks for.
    Dumped(Vec<Result<Block, BadBlock>>),
    /// A block has been replaced past the device.
    Replaced,
}

/// A device's disks, as its machine uses them. It is lost in a crash, unlike their content.
#[derive(Debug)]
pub struct Medium {
    shape: Shape,
    asks: BTreeMap<u64, Ask>,
    next: u64,
    /// Of the newest record on the disk or on its way there; the slot follows from it.
    sequence: u64,
    slots: Vec<Option<(u64, Bytes)>>,
    /// One record is written at a time: two at once could tear both slots.
    saves: VecDeque<(DiskToken, Bytes)>,
    saving: bool,
    bad: BadSectors,
    /// The last two contents of each block that was written since the start, the older one first.
    written: BTreeMap<u64, [Vec<u8>; 2]>,
    /// The content of blocks that were lost.
    lost: BTreeMap<u64, Vec<u8>>,
}

impl Medium {
    /// Starts to read the record.
    pub fn boot<M: Machine>(shape: Shape, bad: BadSectors, cx: &mut Context<'_, M>) -> Medium {
        let mut medium = Medium {
            shape,
            asks: BTreeMap::new(),
            next: 0,
            sequence: 0,
            slots: Vec::new(),
            saves: VecDeque::new(),
            saving: false,
            bad,
            written: BTreeMap::new(),
            lost: BTreeMap::new(),
        };
        for slot in 0..2 {
            let tag = medium.begin(DiskToken(0), Purpose::Boot, 1);
            cx.read(RECORD, slot * RECORD_SECTORS, RECORD_SECTORS, tag);
        }
        medium
    }

    /// Its bad sectors.
    pub fn bad(&self) -> &BadSectors {
        &self.bad
    }

    /// The medium loses a block that the device has written: it returns zeros, or the content before.
    pub fn lose<M: Machine>(&mut self, block: u64, zeros: bool, cx: &mut Context<'_, M>) {
        let tag = self.begin(DiskToken(0), Purpose::Lose { block, zeros }, 1);
        let sectors = self.shape.sectors_per_block as u64;
        cx.read(DATA, block * sectors, sectors, tag);
    }

    /// A block that was lost is there again.
    pub fn give_back<M: Machine>(&mut self, block: u64, cx: &mut Context<'_, M>) {
        let stored = self.lost.remove(&block).unwrap_or_default();
        self.replace(block, stored, cx);
    }

    fn replace<M: Machine>(&mut self, block: u64, stored: Vec<u8>, cx: &mut Context<'_, M>) {
        let tag = self.begin(DiskToken(0), Purpose::Replace, 1);
        cx.write(DATA, block * self.shape.sectors_per_block as u64, stored, tag);
    }

    /// Reads everything.
    pub fn dump<M: Machine>(&mut self, cx: &mut Context<'_, M>) {
        let tag = self.begin(DiskToken(0), Purpose::Dump, 1);
        cx.read(DATA, 0, self.shape.blocks * self.shape.sectors_per_block as u64, tag);
    }

    fn begin(&mut self, token: DiskToken, purpose: Purpose, steps: u32) -> u64 {
        self.next += 1;
        self.asks.insert(self.next, Ask { token, purpose, steps, result: Ok(Vec::new()) });
        self.next
    }

    /// Returns true if blocks are being read or written.
    pub fn is_busy(&self) -> bool {
        self.asks.values().any(|ask| matches!(ask.purpose, Purpose::Read(_) | Purpose::Change))
    }

    /// Starts an operation; what cannot be started has ended at once.
    pub fn ask<M: Machine>(&mut self, ask: DiskAsk, cx: &mut Context<'_, M>) -> Option<Ended> {
        let sectors = self.shape.sectors_per_block as u64;
        match ask {
            DiskAsk::Read { token, extent: Extent { start, count } } => {
                let tag = self.begin(token, Purpose::Read(start), 1);
                cx.read(DATA, start.saturating_mul(sectors), u64::from(count) * sectors, tag);
            }
            DiskAsk::Write { token, start, blocks, durable } => {
                let mut stored = Vec::new();
                for (number, block) in (start..).zip(&blocks) {
                    match self.shape.encode(block) {
                        Ok(bytes) => {
                            let [_, last] = self.written.remove(&number).unwrap_or_default();
                            self.written.insert(number, [last, bytes.clone()]);
                            stored.extend(bytes);
                        }
                        Err(why) => return Some(Ended::Answer(token, Err(DiskError(why)))),
                    }
                }
                if !self.bad.write(cx.now(), start, blocks.len()) {
                    let why = "a sector cannot be written".to_owned();
                    return Some(Ended::Answer(token, Err(DiskError(why))));
                }
                let tag = self.begin(token, Purpose::Change, 1 + u32::from(durable));
                cx.write(DATA, start.saturating_mul(sectors), stored, tag);
                if durable {
                    cx.flush(DATA, tag);
                }
            }
            DiskAsk::Flush { token } => {
                let tag = self.begin(token, Purpose::Change, 1);
                cx.flush(DATA, tag);
            }
            DiskAsk::Save { token, record } => {
                if record.len() + RECORD_FRAME > RECORD_SECTOR * RECORD_SECTORS as usize {
                    let why = format!("a record of {} bytes is too long", record.len());
                    return Some(Ended::Answer(token, Err(DiskError(why))));
                }
                self.saves.push_back((token, record));
                if !self.saving {
                    self.save_next(cx);
                }
            }
        }
        None
    }

    fn save_next<M: Machine>(&mut self, cx: &mut Context<'_, M>) {
        let Some((token, record)) = self.saves.pop_front() else {
            self.saving = false;
            return;
        };
        self.saving = true;
        self.sequence += 1;
        let mut bytes = self.sequence.to_le_bytes().to_vec();
        bytes.extend((record.len() as u64).to_le_bytes());
        bytes.extend(&record);
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(RECORD_SECTOR), 0);
        let tag = self.begin(token, Purpose::Save, 2);
        cx.write(RECORD, self.sequence % 2 * RECORD_SECTORS, bytes, tag);
        cx.flush(RECORD, tag);
    }

    /// A disk operation has ended, and with it perhaps something that was asked for.
    pub fn done<M: Machine>(&mut self, done: DiskDone, cx: &mut Context<'_, M>) -> Option<Ended> {
        let ask = self.asks.get_mut(&done.tag)?;
        match done.result {
            Ok(bytes) => {
                if let Ok(read) = &mut ask.result {
                    read.extend(bytes);
                }
            }
            Err(why) => ask.result = Err(why.to_string()),
        }
        ask.steps -= 1;
        if ask.steps > 0 {
            return None;
        }
        let Ask { token, purpose, result, .. } = self.asks.remove(&done.tag)?;
        let answer = match purpose {
            Purpose::Boot => {
                self.slots.push(result.ok().and_then(|bytes| record(&bytes)));
                return self.booted();
            }
            Purpose::Dump => return result.ok().map(|bytes| Ended::Dumped(self.blocks(&bytes))),
            Purpose::Lose { block, zeros } => {
                let Ok(stored) = result else { return Some(Ended::Replaced) };
                let [older, _] = self.written.get(&block).cloned().unwrap_or_default();
                let nothing = || vec![0; stored.len()];
                let instead = if zeros || older.is_empty() { nothing() } else { older };
                self.lost.insert(block, stored);
                self.replace(block, instead, cx);
                return None;
            }
            Purpose::Replace => return Some(Ended::Replaced),
            Purpose::Read(start) => result.map(|bytes| {
                let now = cx.now();
                let mut blocks = self.blocks(&bytes);
                for (number, block) in (start..).zip(&mut blocks) {
                    if self.bad.fails(now, number).is_some() {
                        *block = Err(BlockError::Unreadable.into());
                    }
                }
                DiskAnswer::Read(blocks)
            }),
            Purpose::Change => result.map(|_| DiskAnswer::Done),
            Purpose::Save => {
                if result.is_err() {
                    self.sequence -= 1; // the other slot has the newest record
                }
                self.save_next(cx);
                result.map(|_| DiskAnswer::Done)
            }
        };
        Some(Ended::Answer(token, answer.map_err(DiskError)))
    }

    fn blocks(&self, bytes: &[u8]) -> Vec<Result<Block, BadBlock>> {
        let stored = bytes.chunks_exact(self.shape.stored());
        stored.map(|stored| self.shape.decode(stored)).collect()
    }

    fn booted(&mut self) -> Option<Ended> {
        if self.slots.len() < 2 {
            return None;
        }
        let newest = std::mem::take(&mut self.slots).into_iter().flatten().max_by_key(|(n, _)| *n);
        Some(Ended::Booted(newest.map(|(sequence, record)| {
            self.sequence = sequence;
            record
        })))
    }
}

/// A slot's sequence and record; nothing if it was never written, or torn.
fn record(slot: &[u8]) -> Option<(u64, Bytes)> {
    let number = |at: usize| Some(u64::from_le_bytes(slot.get(at..at + 8)?.try_into().ok()?));
    let (sequence, length) = (number(0)?, usize::try_from(number(8)?).ok()?);
    let end = length.checked_add(16).filter(|_| sequence > 0)?;
    let checked = slot.get(..end)?;
    (number(end)? == xxh3_64(checked)).then(|| (sequence, Bytes::copy_from_slice(&checked[16..])))
}

#[cfg(test)]
mod tests {
    use lockify_array::{DeviceId, Stamp};

    use super::*;

    const SHAPE: Shape = Shape { block_size: 16, blocks: 10, sectors_per_block: 2 };

    fn block() -> Block {
        let header = Header {
            stamp: Stamp { time: u64::MAX, host: u32::MAX },
            first: u64::MAX - 1,
            last: u64::MAX,
            skipped: [DeviceId(u16::MAX), DeviceId(u16::MAX - 1)].into_iter().collect(),
            lost: true,
            lost_data: (0..256).collect(),
        };
        Block { header, data: Bytes::from_static(b"0123456789abcdef") }
    }

    #[test]
    fn the_largest_header_fits_and_comes_back() {
        let stored = SHAPE.encode(&block()).unwrap();
        assert_eq!(stored.len(), 2 * SHAPE.sector_size());
        assert_eq!(SHAPE.decode(&stored), Ok(block()));
        assert!(SHAPE.encode(&Block { data: Bytes::new(), ..block() }).is_err());
    }

    #[test]
    fn half_of_a_block_is_torn_and_one_never_written_is_empty() {
        let stored = SHAPE.encode(&block()).unwrap();
        let (first, second) = stored.split_at(SHAPE.sector_size());
        let zero = vec![0; first.len()];
        let torn = |stamp| Err(BadBlock { error: BlockError::Torn, stamp });
        assert_eq!(SHAPE.decode(&[first, &zero].concat()), torn(None));
        assert_eq!(SHAPE.decode(&[&zero, second].concat()), torn(None));
        let empty = SHAPE.decode(&[&zero[..], &zero].concat()).unwrap();
        assert_eq!((empty.header, &empty.data[..]), (Header::default(), &[0; 16][..]));
    }

    #[test]
    fn a_torn_block_says_by_its_header_who_wrote_that() {
        let older = Block { header: Header::default(), data: Bytes::from_static(&[7; 16]) };
        let stamp = Stamp { time: 5, host: 1 };
        let newer = Block { header: Header { stamp, ..Header::default() }, ..block() };
        let (old, new) = (SHAPE.encode(&older).unwrap(), SHAPE.encode(&newer).unwrap());
        let half = SHAPE.sector_size();
        let torn = |stamp| Err(BadBlock { error: BlockError::Torn, stamp: Some(stamp) });
        assert_eq!(SHAPE.decode(&[&new[..half], &old[half..]].concat()), torn(stamp));
        assert_eq!(SHAPE.decode(&[&old[..half], &new[half..]].concat()), torn(Stamp::default()));
    }

    #[test]
    fn a_stored_block_takes_as_long_as_its_data() {
        let like = DiskConfig { bandwidth: Some(1_600), ..DiskConfig::default() };
        let [data, _] = SHAPE.disks(&like);
        let bytes = (data.sector_size * SHAPE.sectors_per_block) as u64;
        assert_eq!(data.bandwidth, Some(bytes * 100), "a hundred blocks per second");
    }

    #[test]
    fn a_damaged_slot_is_no_record() {
        let mut slot = 7_u64.to_le_bytes().to_vec();
        slot.extend(3_u64.to_le_bytes());
        slot.extend(b"abc");
        slot.extend(xxh3_64(&slot).to_le_bytes());
        slot.resize(512, 0);
        assert_eq!(record(&slot), Some((7, Bytes::from_static(b"abc"))));
        slot[17] ^= 1;
        assert_eq!(record(&slot), None);
        assert_eq!(record(&[0; 512]), None);
        assert_eq!(record(&[]), None);
        let mut endless = vec![1; 16];
        endless[8..].copy_from_slice(&[0xff; 8]);
        assert_eq!(record(&endless), None);
    }
}
