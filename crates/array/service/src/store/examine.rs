//! A device's medium as it is, for people: nothing is written, and no array's file is needed.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use bytes::Bytes;
use lockify_array::{BlockError, Layout, RecordView};
use lockify_membership::log::highest_view;
use rustix::fs::OFlags;

use super::block::Owner;
use super::buffer::Buffer;
use super::slots::{Place, Slot};
use super::superblock::{Bad, SIZE, Superblock};
use super::{
    FILE, KEPT, OLD_RECORD, PIECE, SUPERBLOCKS, StoreError, Why, file_size, length, record_size,
};
use crate::{ArrayFile, ArrayId};

/// The most blocks that are read at once.
const AT_ONCE: u64 = 256;
/// The most lost blocks that are named.
const NAMED: usize = 16;

/// A copy of something on the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// It was never written.
    Empty,
    /// Its checksum is wrong, or the medium does not return it.
    Damaged,
    /// It is whole, and has this number.
    Whole(u64),
}

impl std::fmt::Display for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stored::Empty => f.write_str("empty"),
            Stored::Damaged => f.write_str("damaged"),
            Stored::Whole(number) => write!(f, "number {number}"),
        }
    }
}

/// The state of a device's blocks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Blocks {
    /// Those that nobody has written.
    pub never_written: u64,
    /// Those that are whole.
    pub whole: u64,
    /// Those of the whole ones that are marked as lost.
    pub lost: u64,
    /// The first of these.
    pub first_lost: Vec<u64>,
    /// Those with a wrong checksum.
    pub torn: u64,
    /// Those that the medium does not return.
    pub unreadable: u64,
    /// The time of the newest write, nanoseconds since 1970.
    pub newest: u64,
}

/// The content of a device's medium.
#[derive(Clone, Debug)]
pub struct Examined {
    /// It is a block device.
    pub is_block_device: bool,
    /// Its bytes.
    pub length: u64,
    /// The bytes that its blocks need.
    pub needed: u64,
    /// A process has it open as a device.
    pub in_use: bool,
    /// Its array.
    pub array: ArrayId,
    /// Which device or witness of it.
    pub device: u16,
    /// It has served.
    pub in_service: bool,
    /// The array's layout.
    pub layout: Layout,
    /// Blocks of the device.
    pub blocks: u64,
    /// Bytes of the sector behind each.
    pub sector: u32,
    /// The version of the format.
    pub version: u32,
    /// Both copies of the superblock.
    pub superblocks: [Stored; 2],
    /// Both slots of the device's record.
    pub records: [Stored; 2],
    /// The newer record.
    pub record: Option<RecordView>,
    /// Both slots of the membership's state.
    pub members: [Stored; 2],
    /// The number of the newest view that it knows.
    pub view: Option<u64>,
    /// Both slots of the array's file.
    pub files: [Stored; 2],
    /// The array's file, as the device was served with it last.
    pub file: Option<ArrayFile>,
    /// The faults.
    pub problems: Vec<String>,
}

/// Looks at a device's file or block device.
///
/// # Errors
/// It cannot be read, or is no device.
pub fn examine(path: &Path) -> Result<Examined, StoreError> {
    let at = StoreError::at(path);
    let file = open(path).map_err(&at)?;
    let is_block_device = file.metadata().is_ok_and(|kind| kind.file_type().is_block_device());
    let in_use = is_locked(&file).map_err(&at)?;
    let length = length(&file).map_err(|error| at(Why::System { what: "measure", error }))?;
    let (superblock, version, superblocks) = superblock(&file).map_err(&at)?;
    let (record, records) = slots(&file, &OLD_RECORD).map_err(&at)?;
    let (kept, members) = slots(&file, &KEPT).map_err(&at)?;
    let (text, files) = slots(&file, &FILE).map_err(&at)?;
    let view = kept.as_deref().and_then(|image| highest_view(image).ok());
    let text = text.as_deref().map(String::from_utf8_lossy);
    let Superblock { array, device, in_service, layout, blocks, sector, .. } = superblock;
    let mut examined = Examined {
        is_block_device,
        length,
        needed: file_size(blocks, sector),
        in_use,
        array,
        device,
        in_service,
        layout,
        blocks,
        sector,
        version,
        superblocks,
        records,
        record: record.as_deref().and_then(RecordView::of),
        members,
        view,
        files,
        file: text.as_ref().and_then(|text| text.parse().ok()),
        problems: Vec::new(),
    };
    examined.problems = problems(&examined, record.is_some());
    Ok(examined)
}

/// Reads all blocks. `progress` gets the number of those that are read.
///
/// # Errors
/// The file cannot be opened.
pub fn examine_blocks(
    path: &Path,
    examined: &Examined,
    progress: &dyn Fn(u64),
) -> Result<Blocks, StoreError> {
    let file = open(path).map_err(StoreError::at(path))?;
    let owner = Owner { array: examined.array, device: examined.device };
    let mut found = Blocks::default();
    let mut next = 0;
    while next < examined.blocks {
        let count = AT_ONCE.min(examined.blocks - next);
        look(&file, owner, examined.sector, next..next + count, &mut found);
        next += count;
        progress(next);
    }
    Ok(found)
}

fn look(file: &File, owner: Owner, sector: u32, blocks: std::ops::Range<u64>, found: &mut Blocks) {
    let size = record_size(sector) as usize;
    let mut buffer = Buffer::new((blocks.end - blocks.start) as usize * size);
    if file.read_exact_at(&mut buffer, file_size(blocks.start, sector)).is_err() {
        if blocks.end - blocks.start == 1 {
            found.unreadable += 1;
            return;
        }
        return blocks.into_iter().for_each(|one| look(file, owner, sector, one..one + 1, found));
    }
    let all = buffer.freeze();
    for (number, at) in blocks.zip((0..).step_by(size)) {
        found.add(number, owner.decode(number, &all.slice(at..at + size)));
    }
}

impl Blocks {
    fn add(&mut self, number: u64, block: Result<lockify_array::Block, lockify_array::BadBlock>) {
        let header = match block {
            Ok(block) => block.header,
            Err(bad) if bad.error == BlockError::Unreadable => return self.unreadable += 1,
            Err(_) => return self.torn += 1,
        };
        if header == lockify_array::Header::default() {
            return self.never_written += 1;
        }
        self.whole += 1;
        self.newest = self.newest.max(header.stamp.time);
        if header.lost {
            self.lost += 1;
            if self.first_lost.len() < NAMED {
                self.first_lost.push(number);
            }
        }
    }
}

/// Opens it for reading only, and never waits.
fn open(path: &Path) -> Result<File, Why> {
    let system = |error| Why::System { what: "open", error };
    // A fifo would wait for a writer.
    let flags = (OFlags::CLOEXEC | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(system)?;
    let kind = file.metadata().map_err(|error| Why::System { what: "look at", error })?;
    let fits = kind.is_file() || kind.file_type().is_block_device();
    if fits { Ok(file) } else { Err(Why::Kind) }
}

/// Returns true if another process has locked it. The lock that finds this out is gone at once.
fn is_locked(file: &File) -> Result<bool, Why> {
    let system = |error| Why::System { what: "look at the lock of", error };
    let other = file.try_clone().map_err(system)?;
    let locked = lockify_trust::LockedFile::try_lock(other).map_err(system)?;
    if locked.is_some() {
        // It belongs to both descriptors.
        rustix::fs::flock(file, rustix::fs::FlockOperation::Unlock)
            .map_err(|error| system(error.into()))?;
    }
    Ok(locked.is_none())
}

/// The newer copy of the superblock, its version, and how the copies are.
fn superblock(file: &File) -> Result<(Superblock, u32, [Stored; 2]), Why> {
    let best = super::read_superblock(file)?;
    let copies = SUPERBLOCKS.map(|offset| {
        let mut buffer = Buffer::new(PIECE);
        match file.read_exact_at(&mut buffer, offset).map(|()| Superblock::decode(&buffer)) {
            Ok(Ok(found)) => Stored::Whole(found.seq),
            Ok(Err(Bad::Foreign)) if super::is_zero(&buffer[..SIZE]) => Stored::Empty,
            _ => Stored::Damaged,
        }
    });
    Ok((best, best.version(), copies))
}

/// The newer content of two slots, and how both are.
fn slots(file: &File, place: &Place) -> Result<(Option<Bytes>, [Stored; 2]), Why> {
    let both = place.slots(file).map_err(|error| Why::System { what: "read", error })?;
    let stored = both.each_ref().map(|slot| match slot {
        Slot::Empty => Stored::Empty,
        Slot::Damaged => Stored::Damaged,
        Slot::Whole(seq, _) => Stored::Whole(*seq),
    });
    let whole = both.into_iter().filter_map(|slot| match slot {
        Slot::Whole(seq, held) => Some((seq, held)),
        Slot::Empty | Slot::Damaged => None,
    });
    let newest = whole.max_by_key(|(seq, _)| *seq);
    Ok((newest.map(|(_, held)| held), stored))
}

fn problems(examined: &Examined, has_record: bool) -> Vec<String> {
    let Examined { length, needed, superblocks, records, members, files, .. } = examined;
    let mut all = Vec::new();
    if length < needed {
        all.push(format!("it has {length} bytes, and its blocks need {needed}: it was cut"));
    }
    if superblocks[0] != superblocks[1] {
        let [one, other] = superblocks;
        all.push(format!("the copies of the superblock differ: {one}, {other}"));
    }
    let areas = [("record", records), ("state of the members", members), ("array's file", files)];
    for (name, copies) in areas {
        let is_whole = copies.iter().any(|copy| matches!(copy, Stored::Whole(_)));
        match (copies.contains(&Stored::Damaged), is_whole) {
            (true, true) => all.push(format!(
                "a copy of the {name} is damaged, and the other one counts: a write may have been cut short"
            )),
            (true, false) => all.push(format!("no copy of the {name} is whole")),
            (false, _) => {}
        }
    }
    if examined.in_service && *records == [Stored::Empty; 2] {
        all.push("it has served, and has no record: it does not start".to_owned());
    }
    if has_record && examined.record.is_none() {
        all.push("its record is of another release, which wrote it differently".to_owned());
    }
    all
}
