//! Errors in files, keys, places and sizes are reported, and change nothing.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use lockify_fabric::shm::{NOTICE_BYTES, Owner, Segment, Shape, Shm, ShmError};
use lockify_onesided::{Address, Fabric, Key, Peer, RegionError, Verb, VerbError};

const SHAPE: Shape = Shape { peers: 4, memory: 4096 };

fn folder() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("segment");
    (dir, path)
}

fn segment(path: &Path) -> Segment {
    Segment::create(path, SHAPE, 0o600).unwrap()
}

fn refusal(path: &Path) -> ShmError {
    Segment::open(path, Owner::Me).unwrap_err()
}

/// A segment with one word of its header changed.
fn spoiled(at: u64, value: u64) -> (tempfile::TempDir, ShmError) {
    let (dir, path) = folder();
    drop(segment(&path));
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&value.to_le_bytes(), at).unwrap();
    let refused = refusal(&path);
    (dir, refused)
}

#[test]
fn what_is_no_segment_is_refused() {
    let (dir, path) = folder();
    assert!(
        refusal(&path).to_string().contains("is the memory server running"),
        "{}",
        refusal(&path)
    );
    std::fs::write(&path, b"short").unwrap();
    assert!(matches!(refusal(&path), ShmError::Foreign { .. }));
    std::fs::write(&path, vec![b'x'; 10_000]).unwrap();
    assert!(matches!(refusal(&path), ShmError::Foreign { .. }));
    assert!(matches!(refusal(dir.path()), ShmError::System { .. }));
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(refusal(&link), ShmError::System { .. }));
}

#[test]
fn other_versions_and_damaged_headers_are_refused() {
    let (_dir, refused) = spoiled(8, 99);
    assert!(matches!(refused, ShmError::Version { found: 99, .. }), "{refused}");
    assert!(
        refused.to_string().contains("version 99") && refused.to_string().contains("same release")
    );
    for (at, value) in [(16, 1), (24, 0), (24, 5), (24, u64::MAX), (32, u64::MAX), (32, 8192)] {
        let (_dir, refused) = spoiled(at, value);
        assert!(matches!(refused, ShmError::Damaged { .. }), "{at} {value}: {refused}");
    }
}

#[test]
fn a_truncated_segment_is_refused() {
    let (_dir, path) = folder();
    drop(segment(&path));
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(len - 1).unwrap();
    assert!(matches!(
        refusal(&path),
        ShmError::Damaged { what: "the file is shorter than it says", .. }
    ));
    file.set_len(8).unwrap();
    assert!(matches!(refusal(&path), ShmError::Foreign { .. }));
}

#[test]
fn impossible_shapes_and_taken_paths_are_refused() {
    let (dir, path) = folder();
    for shape in [
        Shape { peers: 1, ..SHAPE },
        Shape { peers: 10_000, ..SHAPE },
        Shape { memory: 0, ..SHAPE },
    ] {
        assert!(matches!(
            Segment::create(&path, shape, 0o600).unwrap_err(),
            ShmError::Shape { .. }
        ));
    }
    let huge = Shape { memory: 1 << 60, ..SHAPE };
    assert!(matches!(Segment::create(&path, huge, 0o600).unwrap_err(), ShmError::System { .. }));
    let first = segment(&path);
    assert!(matches!(Segment::create(&path, SHAPE, 0o600).unwrap_err(), ShmError::Exists { .. }));
    let mode = std::fs::metadata(first.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "drafts are removed: {left:?}");
}

#[test]
fn places_run_out_and_come_back_with_other_numbers() {
    let (_dir, path) = folder();
    let join = || Shm::join(Segment::open(&path, Owner::Me)?);
    let home = Shm::join(segment(&path)).unwrap();
    let mut others: Vec<Shm> = (0..3).map(|_| join().unwrap()).collect();
    assert!(matches!(join().unwrap_err(), ShmError::Full { peers: 4 }));
    let gone = others.pop().unwrap().me();
    assert_eq!(home.block_on(home.send(gone, [0; 4])), Err(VerbError::NotTaken(gone)));
    let next = join().unwrap();
    assert_ne!(next.me(), gone);
    assert_eq!(home.block_on(home.send(gone, [0; 4])), Err(VerbError::NotTaken(gone)));
    assert_eq!(home.block_on(home.send(next.me(), [1; 4])), Ok(()));
    assert_eq!(next.block_on(next.receive(0)).unwrap().message, [1; 4]);
    for nobody in [0, 65_535] {
        let nobody = Peer(nobody);
        assert_eq!(home.block_on(home.send(nobody, [0; 4])), Err(VerbError::NotTaken(nobody)));
    }
    home.segment().close();
    assert!(matches!(join().unwrap_err(), ShmError::Closed { .. }));
}

/// Messages in a ring for a gone peer do not reach the next one in its place.
#[test]
fn messages_are_for_one_incarnation() {
    let (_dir, path) = folder();
    let join = || Shm::join(Segment::open(&path, Owner::Me).unwrap()).unwrap();
    let home = Shm::join(segment(&path)).unwrap();
    let first = join();
    assert_eq!(home.block_on(home.send(first.me(), [1; 4])), Ok(()));
    drop(first);
    let second = join();
    assert_eq!(home.block_on(home.send(second.me(), [2; 4])), Ok(()));
    assert_eq!(second.block_on(second.receive(0)).unwrap().message, [2; 4]);
    assert_eq!(second.block_on(second.receive(0)), None);
}

/// A receiver that does not listen fills its ring, and then takes nothing. Others are not delayed.
#[test]
fn a_full_ring_ends_in_an_error() {
    let (_dir, path) = folder();
    let join = || Shm::join(Segment::open(&path, Owner::Me).unwrap()).unwrap();
    let home = Shm::join(segment(&path)).unwrap();
    let (deaf, other) = (join(), join());
    let taken =
        (0..1000).take_while(|_| home.block_on(home.send(deaf.me(), [0; 4])).is_ok()).count();
    assert_eq!(taken, 32);
    assert_eq!(home.block_on(home.send(other.me(), [0; 4])), Ok(()));
}

#[test]
fn verbs_are_checked() {
    let (_dir, path) = folder();
    let home = Shm::join(segment(&path)).unwrap();
    let region = home.register(64).unwrap();
    let post = |at: Address, verb| home.block_on(home.post(at, verb));
    for offset in [4, 63, 64, 1 << 40, u64::MAX - 7, u64::MAX] {
        let at = region.word(offset);
        assert_eq!(post(at, Verb::FetchAndAdd(1)), Err(VerbError::OutOfBounds(at)));
    }
    let good = region.word(0);
    let wrong = (0..=255).map(Key).chain([
        Key(region.key.0 ^ 1),
        Key(region.key.0 ^ 1 << 31),
        Key(u32::MAX),
    ]);
    for at in wrong.map(|key| Address { key, ..good }).chain([Address { home: Peer(2), ..good }]) {
        assert_eq!(post(at, Verb::Write(1)), Err(VerbError::WrongKey(at)), "{at:?}");
    }
    assert_eq!(post(good, Verb::Read), Ok(0), "nothing was executed");
    let other = home.register(64).unwrap();
    assert_eq!(post(other.word(0), Verb::Write(5)), Ok(0));
    assert_eq!(post(good, Verb::Read), Ok(0), "regions are apart");
    home.revoke(region.key);
    home.revoke(region.key);
    assert_eq!(post(good, Verb::Read), Err(VerbError::WrongKey(good)));
    assert_eq!(post(other.word(0), Verb::Read), Ok(5));
}

#[test]
fn only_the_owner_revokes() {
    let (_dir, path) = folder();
    let home = Shm::join(segment(&path)).unwrap();
    let other = Shm::join(Segment::open(&path, Owner::Me).unwrap()).unwrap();
    let region = home.register(8).unwrap();
    other.revoke(region.key);
    assert_eq!(other.block_on(other.read(region.word(0))), Ok(0));
}

#[test]
fn operations_that_a_fabric_does_not_have_are_refused() {
    let (_dir, path) = folder();
    let plain = Shm::join_plain(segment(&path)).unwrap();
    let word = plain.register(8).unwrap().word(0);
    let masked = Verb::MaskedCompareAndSwap { expected: 0, compare_mask: 0, new: 1, swap_mask: 1 };
    let refused = plain.block_on(plain.post(word, masked)).unwrap_err();
    assert_eq!(refused, VerbError::Unsupported("masked compare-and-swap"));
    assert_eq!(plain.block_on(plain.read(word)), Ok(0));
}

#[test]
fn memory_runs_out_with_an_error() {
    let (_dir, path) = folder();
    let home = Shm::join(segment(&path)).unwrap();
    assert_eq!(home.register(0), Err(RegionError::Length(0)));
    assert_eq!(home.register(12), Err(RegionError::Length(12)));
    for too_much in [4104, u64::MAX - 7] {
        let refused = home.register(too_much).unwrap_err();
        assert!(matches!(refused, RegionError::Refused { .. }), "{refused}");
    }
    // A refused request has no effect.
    home.register(4096).unwrap();
    let refused = home.register(8).unwrap_err().to_string();
    assert!(refused.contains("of the segment's 4096 bytes 4096 are used"), "{refused}");
}

#[test]
fn keys_run_out_with_an_error() {
    let (_dir, path) = folder();
    let home = Shm::join(segment(&path)).unwrap();
    let keys: std::collections::HashSet<Key> =
        (0..255).map(|_| home.register(8).unwrap().key).collect();
    assert_eq!(keys.len(), 255);
    for _ in 0..2 {
        assert!(home.register(8).unwrap_err().to_string().contains("all 255 keys"));
    }
}

#[test]
fn notices_are_read_as_they_were_published() {
    let (_dir, path) = folder();
    let made = segment(&path);
    assert_eq!(made.notice().unwrap(), b"");
    made.publish(b"a table").unwrap();
    assert_eq!(Segment::open(&path, Owner::Me).unwrap().notice().unwrap(), b"a table");
    assert!(matches!(
        made.publish(&vec![0; NOTICE_BYTES + 1]).unwrap_err(),
        ShmError::Notice { .. }
    ));
    OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&[0xff; 8], 120).unwrap();
    assert!(matches!(made.notice().unwrap_err(), ShmError::Damaged { .. }));
}

/// A process that may write to a segment may write anything. Others get errors and lose messages, and
/// continue.
#[test]
fn a_segment_full_of_rubbish_makes_nobody_panic() {
    for rubbish in [0xff_u8, 0x5a, 0x01] {
        let (_dir, path) = folder();
        let home = Shm::join(segment(&path)).unwrap();
        let other = Shm::join(Segment::open(&path, Owner::Me).unwrap()).unwrap();
        let region = home.register(64).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let len = file.metadata().unwrap().len() as usize;
        file.write_all_at(&vec![rubbish; len - 4096], 4096).unwrap();
        for offset in [0, 56, 64] {
            let at = region.word(offset);
            assert!(home.block_on(home.post(at, Verb::FetchAndAdd(1))).is_err());
        }
        assert!(home.block_on(home.send(other.me(), [0; 4])).is_err());
        while home.block_on(home.receive(0)).is_some() {}
        assert!(home.peers().len() <= 4);
        home.revoke(region.key);
    }
}
