use std::os::unix::fs::FileExt as _;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use lockify_array::{
    DiskAnswer, DiskAsk, DiskError, DiskToken, Header, Layout, Redundancy, Scheme, Stamp,
};

use super::*;
use crate::{ArrayId, DeviceEntry, Durability, SECTORS, Timing};

fn array() -> ArrayFile {
    ArrayFile {
        spoken: crate::SPOKEN,
        id: ArrayId([7; 16]),
        scheme: Scheme::TimestampOrdering,
        durability: Durability::Write,
        layout: Layout {
            redundancy: Redundancy::Mirror,
            data: 1,
            groups: 1,
            unit: 4,
            block_size: BLOCK,
            stripes: 25,
            added: Default::default(),
        },
        sector: SECTOR,
        timing: Timing::default(),
        devices: (0..2).map(DeviceEntry::local).collect(),
        witnesses: vec![DeviceEntry::local(2)],
        lock_server: None,
        standbys: Vec::new(),
        added: Vec::new(),
    }
}

fn block(byte: u8) -> Block {
    let stamp = Stamp { time: byte.into(), host: 1 };
    let header = Header { stamp, first: 3, last: 4, ..Header::default() };
    Block { header, data: vec![byte; BLOCK as usize].into() }
}

struct Folder(tempfile::TempDir);

impl Folder {
    /// On a disk: files in memory may refuse direct I/O.
    fn new() -> Folder {
        Folder(tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("device")
    }

    fn create(&self) -> Store {
        self.create_for(&array())
    }

    fn create_for(&self, array: &ArrayFile) -> Store {
        Store::create(&self.path(), array, 1, Access::Direct, Space::Sparse).unwrap()
    }

    fn open(&self, array: &ArrayFile, device: u16) -> Result<Store, Why> {
        Store::open(&self.path(), array, device, Access::Direct).map_err(|e| e.why)
    }

    /// Changes a byte behind the store's back.
    fn spoil(&self, offset: u64) {
        let file = OpenOptions::new().read(true).write(true).open(self.path()).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
    }
}

#[test]
fn blocks_come_back_after_the_device_was_opened_again() {
    for sector in SECTORS {
        blocks_come_back_with(&ArrayFile { sector, ..array() });
    }
}

fn blocks_come_back_with(array: &ArrayFile) {
    let folder = Folder::new();
    let store = folder.create_for(array);
    assert!(store.read(Extent { start: 0, count: 100 }).unwrap().iter().all(|block| {
        block.as_ref().is_ok_and(|b| b.header == Header::default() && b.data[..] == [0; 4096])
    }));
    store.write(5, &[block(1), block(2)]).unwrap();
    store.write(99, &[block(3)]).unwrap();
    store.sync().unwrap();
    drop(store);
    let store = folder.open(array, 1).unwrap();
    assert_eq!(store.read(Extent { start: 5, count: 2 }).unwrap(), [Ok(block(1)), Ok(block(2))]);
    assert_eq!(store.read(Extent { start: 99, count: 1 }).unwrap(), [Ok(block(3))]);
    assert!(store.read(Extent { start: 99, count: 2 }).is_err());
    assert!(store.write(u64::MAX, &[block(1)]).is_err());
    let size = file_size(100, array.sector);
    assert_eq!(std::fs::metadata(folder.path()).unwrap().len(), size);
    assert_eq!((blocks_in(size, array.sector), blocks_in(size - 1, array.sector)), (100, 99));
    // One of these two misses a block's content, the other one its sector.
    for into in [700, u64::from(BLOCK) + 7] {
        folder.spoil(file_size(6, array.sector) + into);
        let found = store.read(Extent { start: 5, count: 3 }).unwrap();
        assert_eq!((&found[0], found[1].is_err(), found[2].is_ok()), (&Ok(block(1)), true, true));
    }
}

#[test]
fn a_torn_block_is_found_and_its_neighbours_are_not_affected() {
    let folder = Folder::new();
    let store = folder.create();
    store.write(0, &[block(1), block(2), block(3)]).unwrap();
    folder.spoil(file_size(1, SECTOR) + 700);
    let found = store.read(Extent { start: 0, count: 3 }).unwrap();
    let bad = BadBlock { error: BlockError::Torn, stamp: Some(block(2).header.stamp) };
    assert_eq!(found, [Ok(block(1)), Err(bad), Ok(block(3))]);
}

#[test]
fn what_is_not_this_device_is_refused() {
    let folder = Folder::new();
    let store = folder.create();
    assert!(matches!(folder.open(&array(), 1), Err(Why::Locked)));
    drop(store);
    let again = Store::create(&folder.path(), &array(), 1, Access::Direct, Space::Sparse);
    assert!(matches!(again.map_err(|e| e.why), Err(Why::IsDevice(id)) if id == array().id));
    let other = ArrayFile { id: ArrayId([8; 16]), ..array() };
    assert!(matches!(folder.open(&other, 1), Err(Why::OtherArray { .. })));
    assert!(matches!(folder.open(&array(), 0), Err(Why::OtherDevice { found: 1, wanted: 0 })));
    let mut other = array();
    other.layout.stripes = 26;
    assert!(matches!(folder.open(&other, 1), Err(Why::OtherLayout)));
    let other = ArrayFile { sector: 4096, ..array() };
    assert!(matches!(folder.open(&other, 1), Err(Why::OtherLayout)));
    let file = OpenOptions::new().write(true).open(folder.path()).unwrap();
    file.set_len(file_size(99, SECTOR)).unwrap();
    assert!(matches!(folder.open(&array(), 1), Err(Why::TooSmall { .. })));
    file.set_len(0).unwrap();
    assert!(matches!(folder.open(&array(), 1), Err(Why::Foreign)));
    file.write_all_at(b"something else", 0).unwrap();
    let create = Store::create(&folder.path(), &array(), 1, Access::Direct, Space::Sparse);
    assert!(matches!(create.map_err(|e| e.why), Err(Why::NotEmpty)));
    let folder = Store::create(Path::new("/dev/null"), &array(), 1, Access::Direct, Space::Sparse);
    assert!(matches!(folder.map_err(|e| e.why), Err(Why::Kind)));
}

#[test]
fn one_copy_of_the_superblock_is_enough() {
    for spoilt in SUPERBLOCKS {
        let folder = Folder::new();
        folder.create().put_in_service().unwrap();
        folder.spoil(spoilt + 30);
        assert!(folder.open(&array(), 1).unwrap().is_in_service());
    }
    let folder = Folder::new();
    drop(folder.create());
    SUPERBLOCKS.into_iter().for_each(|copy| folder.spoil(copy + 30));
    assert!(matches!(folder.open(&array(), 1), Err(Why::Torn)));
    // The version's place.
    let folder = Folder::new();
    drop(folder.create());
    SUPERBLOCKS.into_iter().for_each(|copy| folder.spoil(copy + 8));
    assert!(matches!(folder.open(&array(), 1), Err(Why::Version(18))));
}

/// A process that died between the two copies has written one of them only.
#[test]
fn the_newer_superblock_counts() {
    let folder = Folder::new();
    drop(folder.create());
    let file = OpenOptions::new().read(true).write(true).open(folder.path()).unwrap();
    let old = read_superblock(&file).unwrap();
    let new = Superblock { seq: old.seq + 1, in_service: true, ..old };
    file.write_all_at(&new.encode(), SUPERBLOCKS[0]).unwrap();
    assert!(folder.open(&array(), 1).unwrap().is_in_service());
}

#[test]
fn the_last_whole_record_counts() {
    let folder = Folder::new();
    let store = folder.create();
    assert_eq!(store.record(), None);
    let long = vec![9; 5000];
    for record in [b"first".as_slice(), b"second", &long] {
        store.save(record).unwrap();
    }
    assert!(store.save(&vec![0; LONGEST_RECORD + 1]).is_err());
    drop(store);
    assert_eq!(folder.open(&array(), 1).unwrap().record().unwrap(), long);
    // The third was written to the slot of the first: cut short, the second counts.
    folder.spoil(RECORD.at[1] + 4000);
    let store = folder.open(&array(), 1).unwrap();
    assert_eq!(store.record().unwrap(), "second");
    store.save(b"third, again").unwrap();
    drop(store);
    assert_eq!(folder.open(&array(), 1).unwrap().record().unwrap(), "third, again");
    RECORD.at.into_iter().for_each(|slot| folder.spoil(slot + 25));
    assert!(matches!(folder.open(&array(), 1), Err(Why::Record)));
}

#[test]
fn what_the_membership_keeps_is_apart_from_the_record() {
    let folder = Folder::new();
    let store = folder.create();
    assert_eq!(store.kept(), None);
    // Both as long as they may be.
    let (record, image) = (vec![9; LONGEST_RECORD], vec![8; LONGEST_KEPT]);
    for _ in 0..2 {
        store.save(&record).unwrap();
        store.keep(&image).unwrap();
    }
    store.write(0, &[block(1)]).unwrap();
    assert!(store.keep(&vec![0; LONGEST_KEPT + 1]).is_err());
    drop(store);
    let store = folder.open(&array(), 1).unwrap();
    assert!(store.record().unwrap() == record && store.kept().unwrap() == image);
    assert_eq!(store.read(Extent { start: 0, count: 1 }).unwrap(), [Ok(block(1))]);
    drop(store);
    // If the last write was cut short, the one before counts. If both are damaged, the store reports
    // a loss.
    folder.spoil(KEPT.at[0] + 5000);
    let store = folder.open(&array(), 1).unwrap();
    assert!(store.kept().unwrap() == image && !store.is_kept_damaged());
    drop(store);
    folder.spoil(KEPT.at[1] + 5000);
    let store = folder.open(&array(), 1).unwrap();
    assert!(store.kept().is_none() && store.is_kept_damaged() && store.record().is_some());
}

/// Records of earlier releases had all of the place.
#[test]
fn a_device_of_an_earlier_release_is_taken_over() {
    let folder = Folder::new();
    drop(folder.create());
    let file = OpenOptions::new().read(true).write(true).open(folder.path()).unwrap();
    let seq = AtomicU64::new(4);
    OLD_RECORD.write(&file, &seq, b"of before").unwrap();
    let store = folder.open(&array(), 1).unwrap();
    assert_eq!((store.record().unwrap(), store.kept()), (Bytes::from_static(b"of before"), None));
    store.keep(b"agreed").unwrap();
    store.save(b"of now").unwrap();
    drop(store);
    let store = folder.open(&array(), 1).unwrap();
    assert_eq!(
        (store.record().unwrap(), store.kept().unwrap()),
        ("of now".into(), "agreed".into())
    );
    drop(store);
    // A record that is longer than its present place is not cut.
    OLD_RECORD.write(&file, &AtomicU64::new(9), &vec![1; LONGEST_RECORD + 1]).unwrap();
    assert!(matches!(folder.open(&array(), 1), Err(Why::LongRecord(n)) if n == LONGEST_RECORD + 1));
}

#[test]
fn a_witness_has_no_blocks() {
    let folder = Folder::new();
    let store = Store::create(&folder.path(), &array(), 2, Access::Direct, Space::Sparse).unwrap();
    assert!(store.read(Extent { start: 0, count: 1 }).is_err());
    assert_eq!(std::fs::metadata(folder.path()).unwrap().len(), file_size(0, SECTOR));
}

type Answers = Receiver<(DiskToken, Result<DiskAnswer, DiskError>)>;

fn disk(folder: &Folder) -> (Disk, Answers) {
    let (to, answers) = channel();
    let answered = Box::new(move |token, result| drop(to.send((token, result))));
    (Disk::start(folder.create(), answered).unwrap(), answers)
}

#[test]
fn every_ask_of_a_disk_is_answered_once() {
    let folder = Folder::new();
    let (disk, answers) = disk(&folder);
    let mut expected = Vec::new();
    for i in 0..40 {
        let token = DiskToken(i);
        let durable = i % 2 == 0;
        disk.ask(match i {
            38 => DiskAsk::Flush { token },
            39 => DiskAsk::Save { token, record: Bytes::from_static(b"kept") },
            _ => DiskAsk::Write { token, start: i, blocks: vec![block(i as u8)], durable },
        });
        expected.push(token);
    }
    let next = || answers.recv_timeout(Duration::from_secs(60)).unwrap();
    let mut done: Vec<_> = (0..40).map(|_| next()).collect();
    done.sort_by_key(|(token, _)| *token);
    assert!(done.iter().all(|(_, result)| *result == Ok(DiskAnswer::Done)));
    assert_eq!(done.iter().map(|(token, _)| *token).collect::<Vec<_>>(), expected);
    disk.ask(DiskAsk::Read { token: DiskToken(50), extent: Extent { start: 7, count: 1 } });
    assert_eq!(next(), (DiskToken(50), Ok(DiskAnswer::Read(vec![Ok(block(7))]))));
    disk.ask(DiskAsk::Read { token: DiskToken(51), extent: Extent { start: 100, count: 1 } });
    assert!(matches!(next(), (DiskToken(51), Err(_))));
    // Earlier requests are done before it ends.
    disk.ask(DiskAsk::Write {
        token: DiskToken(52),
        start: 0,
        blocks: vec![block(9)],
        durable: true,
    });
    drop(disk);
    assert_eq!(answers.try_recv(), Ok((DiskToken(52), Ok(DiskAnswer::Done))));
    assert!(answers.try_recv().is_err());
    assert_eq!(folder.open(&array(), 1).unwrap().record().unwrap(), "kept");
}

/// The bytes of a block on the medium.
fn bytes_of(block: u64) -> std::ops::Range<u64> {
    file_size(block, SECTOR)..file_size(block + 1, SECTOR)
}

fn fails(store: &Store, bytes: std::ops::Range<u64>, reads: bool, writes: bool, mends: bool) {
    store.bad.lock().unwrap().push(BadRange { bytes, reads, writes, mends });
}

const UNREADABLE: Result<Block, BadBlock> =
    Err(BadBlock { error: BlockError::Unreadable, stamp: None });

#[test]
fn a_bad_sector_costs_its_block_and_no_neighbour() {
    let folder = Folder::new();
    let store = folder.create();
    store.write(0, &[block(1), block(2), block(3)]).unwrap();
    let all = Extent { start: 0, count: 3 };
    // One sector of the block's content, and the one behind it.
    for at in [512, u64::from(BLOCK)] {
        let start = bytes_of(1).start + at;
        fails(&store, start..start + 512, true, false, true);
        assert_eq!(store.read(all).unwrap(), [Ok(block(1)), UNREADABLE, Ok(block(3))]);
        // The medium puts it elsewhere when it is written.
        store.write(1, &[block(2)]).unwrap();
        assert_eq!(store.read(all).unwrap(), [Ok(block(1)), Ok(block(2)), Ok(block(3))]);
    }
    // A superblock beside it does not matter, and a medium that returns none of them does.
    fails(&store, bytes_of(1), true, true, false);
    fails(&store, SUPERBLOCKS[0]..SUPERBLOCKS[0] + 512, true, false, false);
    assert_eq!(store.read(all).unwrap(), [Ok(block(1)), UNREADABLE, Ok(block(3))]);
    assert!(store.write(0, &[block(1), block(2)]).is_err());
    fails(&store, SUPERBLOCKS[1]..SUPERBLOCKS[1] + 512, true, false, false);
    assert!(store.read(all).is_err());
}

/// The hole may be of any size.
#[test]
fn a_hole_in_the_file_is_blocks_without_records_or_torn_ones() {
    let folder = Folder::new();
    let store = folder.create();
    store.write(0, &[block(1), block(2), block(3)]).unwrap();
    let file = OpenOptions::new().write(true).open(folder.path()).unwrap();
    let punch = |bytes: std::ops::Range<u64>| {
        let zeros = vec![0; (bytes.end - bytes.start) as usize];
        file.write_all_at(&zeros, bytes.start).unwrap();
    };
    let all = Extent { start: 0, count: 3 };
    punch(bytes_of(1));
    let found = store.read(all).unwrap();
    let never = |found: &Result<Block, BadBlock>| {
        found.as_ref().is_ok_and(|block| block.header == Header::default())
    };
    assert!(found[0] == Ok(block(1)) && never(&found[1]) && found[2] == Ok(block(3)));
    // Parts of two blocks.
    store.write(1, &[block(2)]).unwrap();
    punch(bytes_of(1).start + 512..bytes_of(2).start + 512);
    let found = store.read(all).unwrap();
    assert!(found[0].is_ok() && found[1].is_err() && found[2].is_err());
}

/// A device that has served has had a record, and both slots have been written.
#[test]
fn a_record_that_has_become_zeros_is_no_new_device() {
    let folder = Folder::new();
    let store = folder.create();
    for record in ["first", "second", "third"] {
        store.save(record.as_bytes()).unwrap();
    }
    store.put_in_service().unwrap();
    drop(store);
    let file = OpenOptions::new().read(true).write(true).open(folder.path()).unwrap();
    for slot in RECORD.at {
        let mut held = vec![0; 4096];
        file.read_exact_at(&mut held, slot).unwrap();
        file.write_all_at(&[0; 4096], slot).unwrap();
        assert!(matches!(folder.open(&array(), 1), Err(Why::Record)), "{slot}");
        file.write_all_at(&held, slot).unwrap();
        assert_eq!(folder.open(&array(), 1).unwrap().record().unwrap(), "third");
    }
}

/// Asks of a disk whose medium fails at a block are answered, with the reason.
#[test]
fn a_disk_says_which_block_fails_and_goes_on() {
    let folder = Folder::new();
    let (disk, answers) = disk(&folder);
    fails(disk.store(), bytes_of(4), true, true, false);
    let next = || answers.recv_timeout(Duration::from_secs(60)).unwrap();
    let read = |token, start| DiskAsk::Read {
        token: DiskToken(token),
        extent: Extent { start, count: 1 },
    };
    disk.ask(read(1, 4));
    assert_eq!(next(), (DiskToken(1), Ok(DiskAnswer::Read(vec![UNREADABLE]))));
    let write = |token, start| DiskAsk::Write {
        token: DiskToken(token),
        start,
        blocks: vec![block(7)],
        durable: true,
    };
    disk.ask(write(2, 4));
    let (token, result) = next();
    assert!(token == DiskToken(2) && result.is_err_and(|e| e.0.starts_with("writing failed")));
    disk.ask(write(3, 5));
    assert_eq!(next(), (DiskToken(3), Ok(DiskAnswer::Done)));
    disk.ask(read(4, 5));
    assert_eq!(next(), (DiskToken(4), Ok(DiskAnswer::Read(vec![Ok(block(7))]))));
}

/// Blocks of a file of the system (512 bytes) that have space.
fn has_space(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn a_new_file_gets_its_space_at_once_unless_it_is_sparse() {
    let needed = |array: &ArrayFile| file_size(blocks_of(array, &array.layout, 1), array.sector);
    let said = |what: &str| panic!("this file system reserves space: {what}");
    for (space, all) in [(Space::Allocated { log: said }, true), (Space::Sparse, false)] {
        let folder = Folder::new();
        let store = Store::create(&folder.path(), &array(), 1, Access::Direct, space).unwrap();
        let has = has_space(&folder.path());
        assert_eq!(has >= needed(&array()), all, "{space:?}: {has} of {}", needed(&array()));
        store.write(0, &[]).unwrap();
        assert!(store.read(Extent { start: 0, count: 2 }).unwrap().iter().all(Result::is_ok));
    }
}

/// More than any file system has.
#[test]
fn a_file_that_does_not_fit_is_refused_with_the_sizes_and_leaves_nothing() {
    let mut huge = array();
    huge.layout.stripes = 1 << 28;
    let folder = Folder::new();
    let space = Space::Allocated { log: |_| {} };
    for exists in [false, true] {
        if exists {
            File::create(folder.path()).unwrap();
        }
        let why = Store::create(&folder.path(), &huge, 1, Access::Direct, space).err().unwrap();
        let why = why.to_string();
        assert!(why.contains("it needs ") && why.contains(" free ("), "{why}");
        assert!(why.contains("--sparse"), "{why}");
        assert_eq!(folder.path().exists(), exists);
        assert!(!exists || std::fs::metadata(folder.path()).unwrap().len() == 0);
    }
}

#[test]
fn zeros_are_written_where_space_cannot_be_reserved() {
    let folder = Folder::new();
    let file = File::create_new(folder.path()).unwrap();
    file.set_len(3 << 20).unwrap();
    write_zeros(&file, 0..3 << 20).unwrap();
    assert!(has_space(&folder.path()) >= 3 << 20);
}

#[test]
fn a_device_that_has_grown_keeps_its_blocks_and_has_empty_ones_behind_them() {
    for sector in SECTORS {
        let (folder, array) = (Folder::new(), ArrayFile { sector, ..array() });
        let store = folder.create_for(&array);
        store.write(98, &[block(1), block(2)]).unwrap();
        assert!(store.write(99, &[block(1), block(2)]).is_err());
        store.grow(30).unwrap();
        assert_eq!(store.blocks(), 120);
        store.write(119, &[block(3)]).unwrap();
        // It cannot shrink.
        store.grow(10).unwrap();
        assert_eq!(store.blocks(), 120);
        store.sync().unwrap();
        drop(store);
        let store = folder.open(&array, 1).unwrap();
        let read = store.read(Extent { start: 98, count: 22 }).unwrap();
        let good = |read: &Result<Block, BadBlock>| read.as_ref().unwrap().clone();
        assert_eq!([good(&read[0]), good(&read[1])], [block(1), block(2)]);
        assert_eq!(good(&read[21]), block(3));
        assert!(read[2..21].iter().all(|read| good(read).header == Header::default()));
        // An attempt that was cut short has left something behind the end.
        let junk = OpenOptions::new().write(true).open(folder.path()).unwrap();
        junk.write_all_at(&[7; 4096], file_size(120, sector)).unwrap();
        store.grow(31).unwrap();
        let read = store.read(Extent { start: 120, count: 4 }).unwrap();
        assert!(read.iter().all(|read| good(read).header == Header::default()));
    }
}

#[test]
fn a_device_without_room_stays_as_it_is() {
    let folder = Folder::new();
    let space = Space::Allocated { log: |_| {} };
    let store = Store::create(&folder.path(), &array(), 1, Access::Direct, space).unwrap();
    let length = std::fs::metadata(folder.path()).unwrap().len();
    for stripes in [u64::MAX, 1 << 60, 1 << 50] {
        let why = store.grow(stripes).unwrap_err().why;
        assert!(matches!(why, Why::TooManyStripes(n) if n == stripes), "{why}");
    }
    // 64 PiB.
    let why = store.grow(1 << 42).unwrap_err().why;
    assert!(matches!(why, Why::Full { .. }), "{why}");
    assert_eq!((store.blocks(), std::fs::metadata(folder.path()).unwrap().len()), (100, length));
}
