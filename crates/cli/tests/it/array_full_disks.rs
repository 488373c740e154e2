//! Disks that become full, by small file systems in memory, which only root can mount.

use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::array::{Array, BLOCK};
use crate::common::relay::Place;
use crate::common::traffic::{SHARED, content, device};
use crate::common::{code, stderr, wait_for};

/// A file system of so many bytes, until this is dropped.
struct Small(tempfile::TempDir);

impl Small {
    /// None without root; `LOCKIFY_TEST_AS_ROOT` insists.
    fn new(bytes: usize) -> Option<Small> {
        if !rustix::process::geteuid().is_root() {
            let must = std::env::var_os("LOCKIFY_TEST_AS_ROOT").is_some();
            assert!(!must, "LOCKIFY_TEST_AS_ROOT is set: run this as root");
            eprintln!("not run: only root can mount; LOCKIFY_TEST_AS_ROOT=1 insists");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={bytes}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "none"])
            .arg(folder.path())
            .status();
        assert!(mounted.unwrap().success());
        Some(Small(folder))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Leaves no room.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.path("filler")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

const MIB: usize = 1 << 20;

/// The first device is on a small file system, and has no room for all of its blocks.
fn with_a_small_disk(small: &Small) -> Array {
    let mut array = Array::create(3, &[]);
    symlink(small.path("disk"), array.disk("disk0")).unwrap();
    array.start(0, "disk0", &["--create", "--sparse", "--buffered"]);
    for id in 1..3 {
        array.start(id, &format!("disk{id}"), &["--create"]);
    }
    array.wait_until_healthy();
    array
}

/// Only the device with the full disk ends, and says so. The others go on, and clients see no error.
fn it_ends_alone(array: &mut Array) {
    assert_eq!(array.devices[0].as_mut().unwrap().ended().code(), Some(3));
    let log = array.log(Place::Device(0));
    assert!(log.contains("its file system is full; make space there"), "{log}");
    wait_for(|| {
        device(array, 1)["condition"] == "good" && device(array, 0)["condition"] == "failed"
    });
    assert!((1..3).all(|id| device(array, id)["serving"] == true));
}

#[test]
fn a_sparse_device_whose_disk_becomes_full_is_left_out() {
    let Some(small) = Small::new(3 * MIB / 2) else { return };
    let mut array = with_a_small_disk(&small);
    let host = array.export(1);
    let mut blocks = host.connect();
    // Its part of this does not fit. Each write is answered without an error.
    let all: Vec<Vec<u8>> = (0..20).map(|_| content(40)).collect();
    for (place, data) in all.iter().enumerate() {
        blocks.write(place * 40, data);
    }
    it_ends_alone(&mut array);
    for (place, data) in all.iter().enumerate() {
        assert!(blocks.read(place * 40, 40) == *data, "{place}");
    }
    // With more room it is rebuilt.
    let larger =
        Command::new("mount").args(["-o", "remount,size=16M"]).arg(small.0.path()).status();
    assert!(larger.unwrap().success());
    array.start(0, "disk0", &["--buffered"]);
    wait_for(|| code(&array.lockify("rebuild", &["--id", "0"])) == 0);
    array.wait_until_healthy();
    array.assert_clean();
}

/// Its first new write may be that of its record.
#[test]
fn a_device_that_cannot_keep_its_record_is_left_out() {
    let Some(small) = Small::new(3 * MIB) else { return };
    let mut array = with_a_small_disk(&small);
    let host = array.export(1);
    small.fill();
    let mut blocks = host.connect();
    let data = content(SHARED);
    blocks.write(0, &data);
    it_ends_alone(&mut array);
    assert!(blocks.read(0, SHARED) == data);
}

#[test]
fn a_device_that_does_not_fit_is_not_made() {
    let Some(small) = Small::new(3 * MIB) else { return };
    let array = Array::create(3, &[]);
    let path = small.path("disk");
    let args = [path.to_str().unwrap(), "--id", "0", "--create", "--buffered"];
    let refused = array.lockify("device", &args);
    assert_eq!(code(&refused), 3);
    let (why, free) = (stderr(&refused), 3 * MIB);
    assert!(why.contains(&format!("its file system has {free} free")), "{why}");
    assert!(why.contains("--sparse, with which space is taken"), "{why}");
    assert!(!Path::new(&path).exists());
    assert!(BLOCK < free);
}

/// Nothing is granted that is not in the log. The server ends and says so, and hosts wait for it.
#[test]
fn a_lock_server_whose_disk_is_full_ends_and_says_so() {
    let Some(small) = Small::new(MIB) else { return };
    let mut array = Array::create(3, &["--scheme", "server-locking"]);
    array.lock_log = Some(small.path("locks"));
    array.start_all();
    let host = array.export(1);
    let mut blocks = host.connect();
    let data = content(SHARED);
    blocks.write(0, &data);
    small.fill();
    blocks.0.0.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut answered = 0;
    loop {
        blocks.begin_write(7, 0, &data);
        match blocks.0.reply_unless_over() {
            Ok(reply) => assert_eq!(reply, (0, 7)),
            Err(_) => break,
        }
        answered += 1;
        assert!(answered < 10_000, "it goes on without a log");
    }
    assert_eq!(array.lock_server.take().unwrap().ended().code(), Some(3));
    let log = array.log(Place::Server);
    assert!(log.contains("cannot write the log: No space left on device"), "{log}");
    std::fs::remove_file(small.path("filler")).unwrap();
    array.start_lock_server(&[]);
    blocks.0.0.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(blocks.0.reply(), (0, 7));
    assert!(blocks.read(0, SHARED) == data);
}
