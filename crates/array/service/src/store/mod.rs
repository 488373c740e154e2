//! A device's file, or block device (docs/design/array.md 6).
//!
//! ```text
//! 0       superblock, 4 KiB      which device of which array, its layout
//! 4096    superblock, the copy
//! 8192      record, 704 KiB      what the protocol keeps (epoch, fenced lives, ...), in turn here and 1 MiB further on
//! + 704 KiB array's file, 64 KiB the file with which the device is served, in turn here and 1 MiB further on
//! + 768 KiB membership, 256 KiB  what devices have agreed on, lives and views, in turn here and 1 MiB further on
//! 8192 + 2 MiB blocks, each 4096 bytes of content, then a sector with linkage record, CRC32C of both, and of it
//! ```
//! Earlier releases had records of 1 MiB in the place of all three, and of 768 KiB. Such a record is read. The rest of its
//! place is empty, because an earlier release does not write it for shorter records.
//!
//! A sector has 512 bytes, or 4096 where the medium writes no smaller pieces. Blocks are written in multiples of a sector at
//! multiples of it. All else is written in multiples of 4096, with O_DIRECT. A write is durable after an fdatasync(2) that
//! began after it. Several writes share one ([`Disk`]).

mod block;
mod buffer;
mod disk;
mod error;
mod examine;
mod slots;
mod superblock;

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use lockify_array::{BadBlock, Block, BlockError, DeviceId, Extent, Layout};
use lockify_trust::LockedFile;
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;

use crate::{ArrayFile, BLOCK, SECTOR};
use block::Owner;
use buffer::{Buffer, Pool};
pub use disk::{Answered, Disk};
pub use error::{StoreError, Why};
pub use examine::{Blocks, Examined, Stored, examine, examine_blocks};
use slots::Place;
use superblock::{Bad, Superblock};

/// Superblocks and records are read and written in multiples of it, which all common media take.
const PIECE: usize = 4096;
/// Where the copies of the superblock are.
const SUPERBLOCKS: [u64; 2] = [0, 4096];
/// The distance in bytes between the two slots of a place. The protocol's record and the
/// membership's state share it.
const SLOT: u64 = 1 << 20;
/// The size of a slot of the membership's state, bytes.
const KEPT_SLOT: u64 = 256 << 10;
/// The size of a slot of the array's file, bytes.
const FILE_SLOT: u64 = 64 << 10;
/// Where the blocks begin.
const BLOCKS: u64 = 8192 + 2 * SLOT;
/// The protocol's record.
const RECORD: Place = Place {
    at: [8192, 8192 + SLOT],
    size: (SLOT - KEPT_SLOT - FILE_SLOT) as usize,
    magic: *b"LkRecord",
};
/// The record of an earlier release.
const OLD_RECORD: Place = Place { size: SLOT as usize, ..RECORD };
/// The membership's state.
const KEPT: Place = Place {
    at: [8192 + SLOT - KEPT_SLOT, 8192 + 2 * SLOT - KEPT_SLOT],
    size: KEPT_SLOT as usize,
    magic: *b"LkMember",
};
/// The array's file.
const FILE: Place = Place {
    at: [8192 + SLOT - KEPT_SLOT - FILE_SLOT, 8192 + 2 * SLOT - KEPT_SLOT - FILE_SLOT],
    size: FILE_SLOT as usize,
    magic: *b"LkArrayF",
};
/// The longest record, bytes.
pub const LONGEST_RECORD: usize = RECORD.longest();
/// The longest state of the membership, bytes.
pub const LONGEST_KEPT: usize = KEPT.longest();
/// The piece that is zeroed at once where the system cannot do it, in bytes.
const ZEROS: usize = 1 << 20;
/// The size of the area that must be zeros on a block device to be taken for empty. File systems, partition tables, swap and
/// volume managers all have a signature in it.
const SIGNATURES: usize = 128 * 1024;

/// How a device's file is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Access {
    /// Past the system's cache (O_DIRECT).
    #[default]
    Direct,
    /// Through it: slower to sync, and read errors may be found late.
    Buffered,
}

/// A new device's file gets its space at once, or as it is written.
#[derive(Clone, Copy, Debug)]
pub enum Space {
    /// All of it. The file system is not full then when hosts write. Where it cannot reserve space, zeros are written, and this
    /// is told that it takes long.
    Allocated {
        /// Is told what an operator should know.
        log: fn(&str),
    },
    /// Space is taken as blocks are written. Block devices have theirs.
    Sparse,
}

/// Returns true if all bytes are zero. It compares memory in pieces. A comparison byte by byte takes longer than reading them.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(512).all(|piece| *piece == [0; 512][..piece.len()])
}

/// Bytes of a block with its sector.
fn record_size(sector: u32) -> u64 {
    u64::from(BLOCK + sector)
}

/// Bytes that a device's file needs whose sectors have so many.
pub fn file_size(device_blocks: u64, sector: u32) -> u64 {
    BLOCKS + device_blocks * record_size(sector)
}

/// How many blocks fit a file of so many bytes.
pub fn blocks_in(bytes: u64, sector: u32) -> u64 {
    bytes.saturating_sub(BLOCKS) / record_size(sector)
}

/// A device's file that this process alone uses.
pub struct Store {
    path: PathBuf,
    file: LockedFile,
    owner: Owner,
    /// Grows with the array ([`Store::grow`]).
    blocks: AtomicU64,
    sector: u32,
    superblock: Mutex<Superblock>,
    /// The sequence number of the record saved last.
    record_seq: AtomicU64,
    record: Option<Bytes>,
    /// The same of the membership's state.
    kept_seq: AtomicU64,
    kept: Option<Bytes>,
    kept_damaged: bool,
    pool: Pool,
    /// Where the medium fails, for tests.
    #[cfg(test)]
    bad: Mutex<Vec<BadRange>>,
}

/// A range of a file that fails, for tests.
#[cfg(test)]
#[derive(Clone, Debug)]
struct BadRange {
    bytes: std::ops::Range<u64>,
    reads: bool,
    writes: bool,
    /// A write ends it: the medium has put the range elsewhere.
    mends: bool,
}

/// Returns true if a path has no device's store: a new or empty file, or a block device without one.
fn is_blank(path: &Path) -> bool {
    match std::fs::metadata(path) {
        Ok(kind) if kind.is_file() => kind.len() == 0,
        Ok(_) => {
            File::open(path).is_ok_and(|file| matches!(read_superblock(&file), Err(Why::Foreign)))
        }
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

impl Store {
    /// Makes a new device of the array: its blocks read as never written. Then opens it.
    ///
    /// # Errors
    /// [`StoreError`]; the former content is not lost then.
    pub fn create(
        path: &Path,
        array: &ArrayFile,
        device: u16,
        access: Access,
        space: Space,
    ) -> Result<Store, StoreError> {
        let at = StoreError::at(path);
        let system = |what| move |error| Why::System { what, error };
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let is_new = !path.exists();
        let opened = match is_block_device(path) {
            true => claim(&options, OFlags::CLOEXEC, path),
            false => {
                options.create(true).truncate(false).mode(0o600);
                options.custom_flags(OFlags::CLOEXEC.bits() as i32).open(path)
            }
        };
        let file = opened.map_err(refusal("make")).map_err(&at)?;
        let file = lock(file).map_err(&at)?;
        let kind = file.metadata().map_err(system("look at")).map_err(&at)?;
        let blocks = blocks_of(array, &array.layout, device);
        let needed = file_size(blocks, array.sector);
        if kind.file_type().is_block_device() {
            let found = length(&file).map_err(system("measure")).map_err(&at)?;
            if found < needed {
                return Err(at(Why::TooSmall { found, needed }));
            }
            if let Ok(found) = read_superblock(&file) {
                return Err(at(Why::IsDevice(found.array)));
            }
            let mut first = Buffer::new(SIGNATURES);
            file.read_exact_at(&mut first, 0).map_err(system("read")).map_err(&at)?;
            if !is_zero(&first) {
                return Err(at(Why::InUse));
            }
            try_access(path, access, array.sector).map_err(&at)?;
            let whole = 0..needed.next_multiple_of(SECTOR.into());
            zero(&file, whole).map_err(system("zero")).map_err(&at)?;
        } else if kind.is_file() {
            if kind.len() > 0 {
                let found = read_superblock(&file);
                return Err(at(found.map_or(Why::NotEmpty, |found| Why::IsDevice(found.array))));
            }
            if let Err(why) = prepare(&file, path, needed, access, array.sector, space) {
                // As it was, for the next attempt.
                file.set_len(0).map_err(system("empty")).map_err(&at)?;
                if is_new {
                    // Of a link, that which it leads to.
                    let made = std::fs::canonicalize(path).and_then(std::fs::remove_file);
                    made.map_err(system("remove")).map_err(&at)?;
                }
                return Err(at(why));
            }
        } else {
            return Err(at(Why::Kind));
        }
        let first = Superblock {
            seq: 1,
            array: array.id,
            device,
            in_service: false,
            layout: array.layout,
            blocks,
            sector: array.sector,
        };
        write_superblock(&file, &first).map_err(system("write")).map_err(&at)?;
        // Its name, too.
        file.sync_all().map_err(system("sync")).map_err(&at)?;
        if kind.is_file() {
            sync_folder_of(path).map_err(system("sync the folder of")).map_err(&at)?;
        }
        drop(file);
        Store::open(path, array, device, access)
    }

    /// Makes a medium ready that is to take a device's place if its own fails: makes a device of an empty one. Returns true if
    /// it has taken the place already.
    ///
    /// # Errors
    /// [`StoreError`]; the medium has something else, or cannot be used.
    pub fn make_spare(
        path: &Path,
        array: &ArrayFile,
        device: u16,
        access: Access,
        space: Space,
    ) -> Result<bool, StoreError> {
        let store = match is_blank(path) {
            true => Store::create(path, array, device, access, space)?,
            false => Store::open(path, array, device, access)?,
        };
        Ok(store.is_in_service())
    }

    /// Opens a device of the array.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(
        path: &Path,
        array: &ArrayFile,
        device: u16,
        access: Access,
    ) -> Result<Store, StoreError> {
        let at = StoreError::at(path);
        let system = |what| move |error| Why::System { what, error };
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let opened = match is_block_device(path) {
            true => claim(&options, flags(access), path),
            false => options.custom_flags(flags(access).bits() as i32).open(path),
        };
        let file = opened.map_err(|error| match (access, error.kind()) {
            (Access::Direct, ErrorKind::InvalidInput) => at(Why::Direct(error)),
            _ => at(refusal("open")(error)),
        })?;
        let file = lock(file).map_err(&at)?;
        let found = read_superblock(&file).map_err(&at)?;
        // The array may have grown since its file was made.
        let layout =
            Layout { stripes: found.layout.stripes.max(array.layout.stripes), ..array.layout };
        let blocks = blocks_of(array, &layout, device);
        if found.array != array.id {
            return Err(at(Why::OtherArray { found: found.array, wanted: array.id }));
        }
        if found.device != device {
            return Err(at(Why::OtherDevice { found: found.device, wanted: device }));
        }
        if (found.layout, found.blocks, found.sector) != (layout, blocks, array.sector) {
            return Err(at(Why::OtherLayout));
        }
        let length = length(&file).map_err(system("measure")).map_err(&at)?;
        let needed = file_size(blocks, array.sector);
        if length < needed {
            return Err(at(Why::TooSmall { found: length, needed }));
        }
        match try_sector(&file, array.sector) {
            // A medium that fails there is no reason: one copy of the superblock is enough.
            Ok(()) | Err(Why::System { .. }) => {}
            Err(why) => return Err(at(why)),
        }
        let (seq, record, zeroed) = read_record(&file).map_err(&at)?;
        // Both slots are written in turn. Zeros in one of them are no write that was cut short: the newer record may have been
        // there.
        if found.in_service && zeroed && seq > 1 {
            return Err(at(Why::Record));
        }
        let kept = KEPT.read(&file).map_err(system("read")).map_err(&at)?;
        keep_file(&file, array);
        Ok(Store {
            path: path.to_owned(),
            file,
            owner: Owner { array: array.id, device },
            blocks: AtomicU64::new(blocks),
            sector: array.sector,
            superblock: Mutex::new(found),
            record_seq: AtomicU64::new(seq),
            record,
            kept_seq: AtomicU64::new(kept.seq),
            kept_damaged: kept.held.is_none() && kept.damaged > 1,
            kept: kept.held,
            pool: Pool::default(),
            #[cfg(test)]
            bad: Mutex::default(),
        })
    }

    /// Reads from the medium.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        #[cfg(test)]
        self.fail_at(offset, buffer.len(), false)?;
        self.file.read_exact_at(buffer, offset)
    }

    /// Writes to the medium.
    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        #[cfg(test)]
        self.fail_at(offset, buffer.len(), true)?;
        self.file.write_all_at(buffer, offset)
    }

    #[cfg(test)]
    fn fail_at(&self, offset: u64, count: usize, writes: bool) -> io::Result<()> {
        let end = offset + count as u64;
        let mut bad = self.bad.lock().unwrap_or_else(|e| e.into_inner());
        let here = |bad: &BadRange| bad.bytes.start < end && offset < bad.bytes.end;
        if bad.iter().any(|bad| here(bad) && if writes { bad.writes } else { bad.reads }) {
            return Err(io::Error::from_raw_os_error(5));
        }
        bad.retain(|bad| !(writes && bad.mends && here(bad)));
        Ok(())
    }

    /// Which file it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many blocks it has.
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Relaxed)
    }

    /// Makes room for an array of so many stripes: more blocks, which read as never written. The room is durable when this
    /// returns. It takes long where zeros have to be written. Two threads must not call it at once.
    ///
    /// # Errors
    /// There is not enough space, or the medium is too short. The store is as before then.
    pub fn grow(&self, stripes: u64) -> Result<(), StoreError> {
        let at = StoreError::at(&self.path);
        let system = |what| move |error| Why::System { what, error };
        let made = *self.superblock.lock().unwrap_or_else(|e| e.into_inner());
        let layout = Layout { stripes, ..made.layout };
        if layout.check().is_err() {
            return Err(at(Why::TooManyStripes(stripes)));
        }
        let had = self.blocks();
        // A witness has none.
        let blocks = if made.blocks == 0 { 0 } else { layout.device_blocks() };
        // A file's length is a signed number.
        if blocks > (i64::MAX as u64 - BLOCKS) / record_size(self.sector) {
            return Err(at(Why::TooManyStripes(stripes)));
        }
        if blocks <= had {
            return Ok(());
        }
        let new = file_size(had, self.sector)..file_size(blocks, self.sector);
        let kind = self.file.metadata().map_err(system("look at")).map_err(&at)?;
        if kind.is_file() {
            lengthen(&self.file, &self.path, &kind, &new).map_err(&at)?;
        } else {
            let found = length(&self.file).map_err(system("measure")).map_err(&at)?;
            if found < new.end {
                return Err(at(Why::TooSmall { found, needed: new.end }));
            }
            zero(&self.file, new).map_err(system("zero")).map_err(&at)?;
        }
        self.file.sync_all().map_err(system("sync")).map_err(&at)?;
        let mut superblock = self.superblock.lock().unwrap_or_else(|e| e.into_inner());
        let next = Superblock { seq: superblock.seq + 1, layout, blocks, ..*superblock };
        write_superblock(&self.file, &next).map_err(system("write")).map_err(&at)?;
        *superblock = next;
        self.blocks.store(blocks, Relaxed);
        Ok(())
    }

    /// The record that was there when it was opened.
    pub fn record(&self) -> Option<Bytes> {
        self.record.clone()
    }

    /// The membership's state when the store was opened. A new medium, one of an earlier release, and a damaged state have
    /// none.
    pub fn kept(&self) -> Option<Bytes> {
        self.kept.clone()
    }

    /// Returns true if the medium has a state of the membership, and no copy of it is whole.
    pub fn is_kept_damaged(&self) -> bool {
        self.kept_damaged
    }

    /// Returns true if the device has ever served. Until then its blocks are not the array's.
    pub fn is_in_service(&self) -> bool {
        self.superblock.lock().unwrap_or_else(|e| e.into_inner()).in_service
    }

    /// From now on its blocks are the array's. Durable when this returns.
    ///
    /// # Errors
    /// The system's.
    pub fn put_in_service(&self) -> io::Result<()> {
        self.set_in_service(true)
    }

    /// From now on its blocks are not the array's any more. Durable when this returns.
    ///
    /// # Errors
    /// The system's.
    pub fn put_out_of_service(&self) -> io::Result<()> {
        self.set_in_service(false)
    }

    fn set_in_service(&self, in_service: bool) -> io::Result<()> {
        let mut superblock = self.superblock.lock().unwrap_or_else(|e| e.into_inner());
        let next = Superblock { seq: superblock.seq + 1, in_service, ..*superblock };
        write_superblock(&self.file, &next)?;
        *superblock = next;
        Ok(())
    }

    fn offset(&self, start: u64, count: u64) -> io::Result<u64> {
        let end = start.checked_add(count).filter(|&end| end <= self.blocks());
        end.map(|_| file_size(start, self.sector)).ok_or_else(|| {
            io::Error::new(ErrorKind::InvalidInput, "blocks behind the device's end")
        })
    }

    /// Bytes of a block with its sector.
    fn record_size(&self) -> usize {
        record_size(self.sector) as usize
    }

    /// Reads blocks.
    ///
    /// # Errors
    /// The system's, if the medium does not work at all. A single block that cannot be read is one that is
    /// [unreadable](BlockError::Unreadable).
    pub fn read(&self, extent: Extent) -> io::Result<Vec<Result<Block, BadBlock>>> {
        let (offset, size) = (self.offset(extent.start, extent.count.into())?, self.record_size());
        let mut buffer = self.pool.take(extent.count as usize * size);
        if self.read_at(&mut buffer, offset).is_err() {
            return self.read_singly(extent);
        }
        let all = self.pool.freeze(buffer);
        let blocks = (0..extent.count as usize).map(|i| {
            let record = all.slice(i * size..(i + 1) * size);
            self.owner.decode(extent.start + i as u64, &record)
        });
        Ok(blocks.collect())
    }

    /// Somewhere in the extent the medium fails: which blocks are affected?
    fn read_singly(&self, extent: Extent) -> io::Result<Vec<Result<Block, BadBlock>>> {
        // If no superblock can be read either, it is not a matter of some blocks.
        let mut superblock = Buffer::new(PIECE);
        let mut read = |offset| self.read_at(&mut superblock, offset);
        read(SUPERBLOCKS[0]).or_else(|_| read(SUPERBLOCKS[1]))?;
        let blocks = (extent.start..extent.start + u64::from(extent.count)).map(|number| {
            let mut buffer = Buffer::new(self.record_size());
            let read = self.read_at(&mut buffer, file_size(number, self.sector));
            read.map_err(|_| BlockError::Unreadable.into())
                .and_then(|()| self.owner.decode(number, &buffer.freeze()))
        });
        Ok(blocks.collect())
    }

    /// Writes blocks, each with its header. They are durable after the next [`sync`](Store::sync).
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, start: u64, blocks: &[Block]) -> io::Result<()> {
        let offset = self.offset(start, blocks.len() as u64)?;
        if blocks.iter().any(|block| block.data.len() != BLOCK as usize) {
            return Err(io::Error::new(ErrorKind::InvalidInput, "a block of another size"));
        }
        let size = self.record_size();
        // Each byte is written below.
        let mut buffer = self.pool.take(blocks.len() * size);
        let records = buffer.chunks_exact_mut(size);
        for ((number, block), record) in (start..).zip(blocks).zip(records) {
            self.owner.encode(number, block, record);
        }
        let written = self.write_at(&buffer, offset);
        drop(self.pool.freeze(buffer));
        written
    }

    /// Makes earlier writes durable.
    ///
    /// # Errors
    /// The system's. Earlier writes may be lost then, even if a later call succeeds.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Replaces the record, durably. A process that opens the file finds the old or the new one. Two threads must not
    /// call it at once.
    ///
    /// # Errors
    /// The system's, or the record is too long.
    pub fn save(&self, record: &[u8]) -> io::Result<()> {
        RECORD.write(&self.file, &self.record_seq, record)
    }

    /// Replaces the membership's state, durably. After a crash, the file has the old or the new one. Two threads must not
    /// call it at once.
    ///
    /// # Errors
    /// The system's, or the state is longer than [`LONGEST_KEPT`].
    pub fn keep(&self, image: &[u8]) -> io::Result<()> {
        KEPT.write(&self.file, &self.kept_seq, image)
    }
}

/// Puts the array's file on the medium, unless it is there. It is for people who have lost theirs (`lockify array examine`),
/// so an error does no harm: a medium that fails shows it elsewhere.
fn keep_file(file: &File, array: &ArrayFile) {
    let (Ok(text), Ok(found)) = (array.to_toml(), FILE.read(file)) else { return };
    if found.held.as_deref() != Some(text.as_bytes()) {
        let _ = FILE.write(file, &AtomicU64::new(found.seq), text.as_bytes());
    }
}

/// A device of a group that comes later is as long, at first, as those that the array was made with. Its superblock tells its length by
/// the number of stripes with which these have it ([`Layout::room`]).
fn blocks_of(array: &ArrayFile, layout: &Layout, device: u16) -> u64 {
    // Witnesses have none.
    if array.is_witness(DeviceId(device)) { 0 } else { layout.device_blocks() }
}

fn flags(access: Access) -> OFlags {
    match access {
        Access::Direct => OFlags::CLOEXEC | OFlags::DIRECT,
        Access::Buffered => OFlags::CLOEXEC,
    }
}

fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// Opens a block device that nobody has claimed, and claims it. O_EXCL without O_CREAT does that (open(2)). A mount, swap, or
/// use as a part of another device is a claim as well. A file lock does not show these claims.
fn claim(options: &OpenOptions, flags: OFlags, path: &Path) -> io::Result<File> {
    options.clone().custom_flags((flags | OFlags::EXCL).bits() as i32).open(path)
}

fn refusal(what: &'static str) -> impl FnOnce(io::Error) -> Why {
    move |error| match error.kind() {
        ErrorKind::ResourceBusy => Why::Claimed,
        _ => Why::System { what, error },
    }
}

/// Makes a new file as long as it has to be, and gives it its space.
fn prepare(
    file: &File,
    path: &Path,
    needed: u64,
    access: Access,
    sector: u32,
    space: Space,
) -> Result<(), Why> {
    let lengthen = |error| match is_full(&error) {
        true => Why::Full { needed, free: free_beside(file).unwrap_or(0), error },
        false => Why::System { what: "lengthen", error },
    };
    file.set_len(needed).map_err(lengthen)?;
    try_access(path, access, sector)?;
    match space {
        Space::Allocated { log } => allocate(file, path, &(0..needed), log),
        Space::Sparse => Ok(()),
    }
}

/// Makes a file longer by these bytes, which become zeros. It gets its space at once, unless the file has holes already.
fn lengthen(file: &File, path: &Path, kind: &Metadata, new: &Range<u64>) -> Result<(), Why> {
    let refused = |error| match is_full(&error) {
        true => Why::Full { needed: new.end, free: free_beside(file).unwrap_or(0), error },
        false => Why::System { what: "lengthen", error },
    };
    // An attempt that was cut short may have left something behind the end.
    file.set_len(new.start).and_then(|()| file.set_len(new.end)).map_err(refused)?;
    // In units of 512 bytes, whatever the file system's blocks are (stat(2)).
    if kind.blocks().saturating_mul(512) < new.start {
        return Ok(());
    }
    let allocated = allocate(file, path, new, |_| {});
    if allocated.is_err() {
        // As it was, for the next attempt.
        file.set_len(new.start).map_err(refused)?;
    }
    allocated
}

/// Has the space of a part of a file reserved.
fn allocate(file: &File, path: &Path, part: &Range<u64>, log: fn(&str)) -> Result<(), Why> {
    let (free, needed) = (free_beside(file), part.end);
    let refused = |error| match is_full(&error) {
        true => Why::Full { needed, free: free.unwrap_or(0), error },
        false => Why::System { what: "allocate", error },
    };
    // A vain attempt would take all that is left for a moment. Others would find the file system full.
    if free.is_some_and(|free| free < part.end - part.start) {
        return Err(refused(ErrorKind::StorageFull.into()));
    }
    loop {
        match fallocate(file, FallocateFlags::empty(), part.start, part.end - part.start) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV) => break,
            Err(error) => return Err(refused(error.into())),
        }
    }
    log(&format!(
        "{}: its file system cannot reserve space, so that {needed} bytes of zeros are written: --sparse leaves that out",
        path.display()
    ));
    write_zeros(file, part.clone()).and_then(|()| file.sync_data()).map_err(refused)
}

/// How many bytes a file's file system has free, if it says so.
fn free_beside(file: &File) -> Option<u64> {
    // Some that count nothing say that they have no blocks at all.
    let stat = rustix::fs::fstatvfs(file).ok().filter(|stat| stat.f_blocks > 0)?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Returns true if there is no room: on the file system, by a quota, or by a limit of the process.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    )
}

/// Checks, before anything is written to a file, that it will be readable in this way.
fn try_access(path: &Path, access: Access, sector: u32) -> Result<(), Why> {
    if access == Access::Buffered {
        return Ok(());
    }
    let opened = OpenOptions::new().read(true).custom_flags(flags(access).bits() as i32).open(path);
    try_sector(&opened.map_err(unreadable)?, sector)
}

/// Checks that single sectors can be read. File systems and media may refuse that without the cache.
fn try_sector(file: &File, sector: u32) -> Result<(), Why> {
    let read = file.read_exact_at(&mut Buffer::new(sector as usize), sector.into());
    read.map_err(|error| match error.kind() {
        ErrorKind::InvalidInput if sector == SECTOR => Why::DirectSectors(error),
        _ => unreadable(error),
    })
}

fn unreadable(error: io::Error) -> Why {
    match error.kind() {
        ErrorKind::InvalidInput => Why::Direct(error),
        _ => Why::System { what: "read", error },
    }
}

fn lock(file: File) -> Result<LockedFile, Why> {
    let locked = LockedFile::try_lock(file);
    locked.map_err(|error| Why::System { what: "lock", error })?.ok_or(Why::Locked)
}

/// Makes a file's name durable.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all())
}

/// The length of a file or block device.
fn length(file: &File) -> io::Result<u64> {
    use std::io::{Seek as _, SeekFrom};
    let mut file = file;
    file.seek(SeekFrom::End(0))
}

/// Makes bytes of a block device read as zeros.
fn zero(file: &File, part: Range<u64>) -> io::Result<()> {
    if fallocate(file, FallocateFlags::ZERO_RANGE, part.start, part.end - part.start).is_ok() {
        return Ok(());
    }
    write_zeros(file, part)
}

fn write_zeros(file: &File, part: Range<u64>) -> io::Result<()> {
    let zeros = Buffer::new(ZEROS);
    for offset in part.clone().step_by(ZEROS) {
        let count = (part.end - offset).min(ZEROS as u64) as usize;
        file.write_all_at(&zeros[..count], offset)?;
    }
    Ok(())
}

fn write_superblock(file: &File, superblock: &Superblock) -> io::Result<()> {
    let mut buffer = Buffer::new(PIECE);
    buffer[..superblock::SIZE].copy_from_slice(&superblock.encode());
    // One after the other, so that one of both is whole at any time.
    for offset in SUPERBLOCKS {
        file.write_all_at(&buffer, offset)?;
        file.sync_data()?;
    }
    Ok(())
}

fn read_superblock(file: &File) -> Result<Superblock, Why> {
    let (mut best, mut bad) = (None::<Superblock>, Bad::Foreign);
    for offset in SUPERBLOCKS {
        let mut buffer = Buffer::new(PIECE);
        match file.read_exact_at(&mut buffer, offset) {
            Ok(()) => {}
            // Shorter than a device's file.
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => continue,
            Err(e) if e.kind() == ErrorKind::InvalidInput => return Err(Why::Direct(e)),
            // The other copy may be readable.
            Err(_) => {
                bad = Bad::Torn;
                continue;
            }
        }
        match Superblock::decode(&buffer) {
            Ok(found) => best = best.filter(|best| best.seq >= found.seq).or(Some(found)),
            Err(Bad::Foreign) => {}
            Err(worse) => bad = worse,
        }
    }
    best.ok_or(match bad {
        Bad::Foreign => Why::Foreign,
        Bad::Torn => Why::Torn,
        Bad::Version(version) => Why::Version(version),
    })
}

/// The newer record that is whole, and its sequence number; and if a slot is empty.
fn read_record(file: &File) -> Result<(u64, Option<Bytes>, bool), Why> {
    // It reads records of the present length, too.
    let read = OLD_RECORD.read(file);
    let found = read.map_err(|error| Why::System { what: "read", error })?;
    match found.held {
        Some(record) if record.len() > LONGEST_RECORD => Err(Why::LongRecord(record.len())),
        // One slot may be a write that was cut short. Then the former one counts. The very first write had none before.
        None if found.damaged == 2 => Err(Why::Record),
        record => Ok((found.seq, record, found.zeroed)),
    }
}

#[cfg(test)]
mod tests;
