//! Block devices as devices of an array, by loop devices, which only root can attach.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::common::array::Array;
use crate::common::traffic::{SHARED, content, device, judge, pile};
use crate::common::{PATIENCE, code, stderr, wait_for};
use rustix::fs::OFlags;

/// Loop devices, until this is dropped; the files behind them are where everything is that cargo makes.
struct Loops {
    folder: tempfile::TempDir,
    paths: Vec<PathBuf>,
}

impl Loops {
    /// None without root; `LOCKIFY_TEST_AS_ROOT` insists.
    fn new() -> Option<Loops> {
        if !rustix::process::geteuid().is_root() {
            let must = std::env::var_os("LOCKIFY_TEST_AS_ROOT").is_some();
            assert!(!must, "LOCKIFY_TEST_AS_ROOT is set: run this as root");
            eprintln!("not run: only root can attach loop devices; LOCKIFY_TEST_AS_ROOT=1 insists");
            return None;
        }
        let here = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(here.parent().unwrap()).unwrap();
        Some(Loops { folder, paths: Vec::new() })
    }

    fn file(&self, index: usize) -> PathBuf {
        self.folder.path().join(index.to_string())
    }

    /// One more, of so many bytes in sectors of this size.
    fn attach(&mut self, bytes: u64, sector: u32) -> PathBuf {
        let file = self.file(self.paths.len());
        File::create(&file).unwrap().set_len(bytes).unwrap();
        let sector = sector.to_string();
        let output = losetup(&["--find", "--show", "--sector-size", &sector], &file);
        let path = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
        self.paths.push(path.clone());
        path
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for path in &self.paths {
            losetup(&["--detach"], path);
        }
    }
}

fn losetup(args: &[&str], path: &Path) -> Output {
    let paths = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap());
    let mut command = Command::new("losetup");
    command.args(args).arg(path).env("PATH", paths);
    let end = Instant::now() + PATIENCE;
    loop {
        let output = command.output().unwrap();
        // A process that another test starts may hold our claim for a moment.
        if !stderr(&output).contains("Device or resource busy") || Instant::now() > end {
            assert!(output.status.success(), "losetup {args:?} {path:?}: {}", stderr(&output));
            return output;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// As `--device-size` of the arrays of these tests, and as its sectors mostly are.
const BYTES: u64 = 4 << 20;
const SECTOR: u32 = 512;

#[test]
fn an_array_lives_on_block_devices() {
    let Some(mut loops) = Loops::new() else { return };
    let mut array = Array::create(3, &[]);
    array.recorded = true;
    for id in 0..3 {
        symlink(loops.attach(BYTES, SECTOR), array.disk(&format!("disk{id}"))).unwrap();
    }
    array.start_all();
    let host = array.export(1);
    let mut blocks = host.connect();
    let written = content(SHARED);
    blocks.write(0, &written);
    // While one is served, nobody can mount it.
    let claimed = claim(&array.disk("disk0")).map_err(|e| e.kind());
    assert_eq!(claimed.err(), Some(ErrorKind::ResourceBusy));
    // One goes while writes are under way, and then all.
    for killed in [&[1][..], &[0, 1, 2]] {
        pile(&mut blocks, killed.len() as u64, 24);
        for &id in killed {
            array.devices[id].take().unwrap().kill();
        }
        for &id in killed {
            array.start(id, &format!("disk{id}"), &[]);
        }
        for _ in 0..24 {
            assert_eq!(blocks.0.reply().0, 0);
        }
        array.wait_until_back();
    }
    wait_for(|| (0..3).all(|id| device(&array, id)["unchecked"] == 0));
    let written = content(SHARED);
    blocks.write(0, &written);
    for id in 0..3 {
        array.devices[id].take().unwrap().kill();
        array.start(id, &format!("disk{id}"), &[]);
        array.wait_until_back();
    }
    assert!(blocks.read(0, SHARED) == written);
    judge(array, vec![host]);
}

/// Claims a block device as mount(2) does, as long as the file is open.
fn claim(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::EXCL.bits() as i32).open(path)
}

/// Nothing is written to a block device that is not taken.
#[test]
fn block_devices_that_will_not_do_are_refused_with_a_reason() {
    let Some(mut loops) = Loops::new() else { return };
    let array = Array::create(3, &[]);
    let try_on = |path: &Path, more: &[&str]| {
        let args = [&[path.to_str().unwrap(), "--id", "0"], more].concat();
        array.lockify("device", &args)
    };
    let refused = |path: &Path, more: &[&str], words: &str| {
        let output = try_on(path, more);
        assert_eq!(code(&output), 3, "{}", stderr(&output));
        assert!(stderr(&output).contains(words), "{words:?} is not in {}", stderr(&output));
    };
    let is_zero = |file: &Path| std::fs::read(file).unwrap().iter().all(|byte| *byte == 0);

    let small = loops.attach(BYTES / 2, SECTOR);
    refused(&small, &["--create"], "it has 2097152 bytes, and the array needs");
    assert!(is_zero(&loops.file(0)));

    let coarse = loops.attach(BYTES, 4096);
    refused(&coarse, &["--create"], "direct I/O in pieces of 512 bytes is refused");
    refused(&coarse, &["--create"], "--sector-size 4KiB");
    assert!(is_zero(&loops.file(1)));

    let good = loops.attach(BYTES, SECTOR);
    let mounted = claim(&good).unwrap();
    refused(&good, &["--create"], "it is in use: mounted");
    drop(mounted);
    // Where ext4 has the number by which it is known.
    let file = OpenOptions::new().read(true).write(true).open(&good).unwrap();
    file.write_all_at(&[0x53, 0xef], 1080).unwrap();
    file.sync_all().unwrap();
    let before = std::fs::read(loops.file(2)).unwrap();
    refused(&good, &["--create"], "may hold a file system");
    refused(&good, &[], "this is no device of an array");
    assert!(std::fs::read(loops.file(2)).unwrap() == before);
    file.write_all_at(&[0; 2], 1080).unwrap();
    file.sync_all().unwrap();
    drop(file);
}

/// The message when a device differs from the one that was made.
#[test]
fn a_block_device_that_changed_is_refused_with_a_reason() {
    let Some(mut loops) = Loops::new() else { return };
    let mut array = Array::create(3, &[]);
    symlink(loops.attach(BYTES, SECTOR), array.disk("disk0")).unwrap();
    array.start(0, "disk0", &["--create"]);
    let disk = array.disk("disk0").to_str().unwrap().to_owned();
    let refused = |array: &Array, more: &[&str], words: &str| {
        let output = array.lockify("device", &[&[&disk, "--id", "0"], more].concat());
        assert_eq!(code(&output), 3, "{}", stderr(&output));
        assert!(stderr(&output).contains(words), "{words:?} is not in {}", stderr(&output));
    };
    refused(&array, &[], "a device of an array that is served already");
    refused(&array, &["--create"], "a device of an array that is served already");
    array.devices[0].take().unwrap().kill();
    refused(&array, &["--create"], "it is a device of array");
    let mounted = claim(Path::new(&disk)).unwrap();
    refused(&array, &[], "it is in use: mounted");
    drop(mounted);
    losetup(&["--sector-size", "4096"], &loops.paths[0]);
    refused(&array, &[], "direct I/O in pieces of 512 bytes is refused");
    losetup(&["--sector-size", "512"], &loops.paths[0]);
    OpenOptions::new().write(true).open(loops.file(0)).unwrap().set_len(BYTES / 2).unwrap();
    losetup(&["--set-capacity"], &loops.paths[0]);
    refused(&array, &[], "was it cut");
    OpenOptions::new().write(true).open(loops.file(0)).unwrap().set_len(BYTES).unwrap();
    losetup(&["--set-capacity"], &loops.paths[0]);
    array.start(0, "disk0", &[]);
}

/// Sectors of 4 KiB, in the two ways that the refusal says: in an array for them, or by the system's cache.
#[test]
fn block_devices_with_large_sectors_are_served() {
    let ways = [(&["--sector-size", "4KiB"][..], &[][..]), (&[], &["--buffered"])];
    for (of_array, access) in ways {
        let Some(mut loops) = Loops::new() else { return };
        let mut array = Array::create(3, of_array);
        for id in 0..3 {
            let disk = format!("disk{id}");
            symlink(loops.attach(BYTES, 4096), array.disk(&disk)).unwrap();
            array.start(id, &disk, &[&["--create"], access].concat());
        }
        array.wait_until_healthy();
        let host = array.export(1);
        let mut blocks = host.connect();
        let written = content(SHARED);
        blocks.write(0, &written);
        pile(&mut blocks, 1, 24);
        array.devices[1].take().unwrap().kill();
        array.start(1, "disk1", access);
        for _ in 0..24 {
            assert_eq!(blocks.0.reply().0, 0);
        }
        array.wait_until_back();
        blocks.write(0, &written);
        assert!(host.connect().read(0, SHARED) == written);
        array.assert_clean();
    }
}
