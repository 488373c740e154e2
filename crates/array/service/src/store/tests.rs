use std::os::unix::fs::FileExt as _;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use lockify_array::{
    DiskAnswer, DiskAsk, DiskError, DiskToken, Header, Layout, Redundancy, Scheme, Stamp,
};

use super::*;
use crate::{ArrayId, DeviceEntry, Durability, SECTORS, Timing};

fn array() -> ArrayFile {
    let entry = |id: u16| DeviceEntry { id, address: ([127, 0, 0, 1], 7000 + id).into(), node: 0 };
    ArrayFile {
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
        },
        sector: SECTOR,
        timing: Timing::default(),
        devices: (0..2).map(entry).collect(),
        witnesses: vec![entry(2)],
        lock_server: None,
    }
}

fn block(byte: u8) -> Block {
    let stamp = Stamp { time: byte.into(), host: 1 };
    let header = Header { stamp, first: 3, last: 4, skipped: None, lost: false };
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
        Store::create(&self.path(), array, 1, Access::Direct).unwrap()
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
    let again = Store::create(&folder.path(), &array(), 1, Access::Direct);
    assert!(matches!(again.map_err(|e| e.why), Err(Why::IsDevice(id)) if id == array().id));
    let other = ArrayFile { id: ArrayId([8; 16]), ..array() };
    assert!(matches!(folder.open(&other, 1), Err(Why::OtherArray { .. })));
    assert!(matches!(folder.open(&array(), 0), Err(Why::OtherDevice { found: 1, wanted: 0 })));
    let mut other = array();
    other.layout.stripes = 24;
    assert!(matches!(folder.open(&other, 1), Err(Why::OtherLayout)));
    let other = ArrayFile { sector: 4096, ..array() };
    assert!(matches!(folder.open(&other, 1), Err(Why::OtherLayout)));
    let file = OpenOptions::new().write(true).open(folder.path()).unwrap();
    file.set_len(file_size(99, SECTOR)).unwrap();
    assert!(matches!(folder.open(&array(), 1), Err(Why::TooSmall { .. })));
    file.set_len(0).unwrap();
    assert!(matches!(folder.open(&array(), 1), Err(Why::Foreign)));
    file.write_all_at(b"something else", 0).unwrap();
    let create = Store::create(&folder.path(), &array(), 1, Access::Direct);
    assert!(matches!(create.map_err(|e| e.why), Err(Why::NotEmpty)));
    let folder = Store::create(Path::new("/dev/null"), &array(), 1, Access::Direct);
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
    let store = Store::create(&folder.path(), &array(), 2, Access::Direct).unwrap();
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
