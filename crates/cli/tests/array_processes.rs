//! Arrays under every scheme with a process for each device, host and lock server, some of which are killed or stopped. What
//! happened is judged by the histories that the processes write.

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use common::array::{Array, BLOCK, Blocks, Export};
use common::{code, stderr, stdout, wait_for};
use rustix::process::Signal;

/// Blocks that hosts meet on: two stripes and a half.
const SHARED: usize = 20;

/// Numbers, the same in every run but for who comes when.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        // Knuth's MMIX.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    /// Where a request of blocks begins, and how many there are.
    fn place(&mut self) -> (usize, usize) {
        let count = 1 + self.below(9);
        (self.below(SHARED - count + 1), count)
    }
}

/// Content that nobody else ever writes.
fn content(count: usize) -> Vec<u8> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let block = |_| {
        let number = NEXT.fetch_add(1, Relaxed).to_le_bytes();
        number.into_iter().cycle().take(BLOCK).collect::<Vec<_>>()
    };
    (0..count).flat_map(block).collect()
}

/// Reads and writes, one after the other.
fn work(export: &Export, seed: u64, operations: usize) {
    let (mut blocks, mut numbers) = (export.connect(), Numbers(seed));
    for _ in 0..operations {
        let (start, count) = numbers.place();
        if numbers.below(3) == 0 {
            blocks.read(start, count);
        } else {
            blocks.write(start, &content(count));
        }
    }
}

/// Has so many writes under way, of which no answer is waited for.
fn pile(blocks: &mut Blocks, seed: u64, writes: u64) {
    let mut numbers = Numbers(seed);
    for cookie in 0..writes {
        let (start, count) = numbers.place();
        blocks.begin_write(cookie, start, &content(count));
    }
}

fn array(scheme: &str) -> Array {
    let mut array = Array::create(3, &["--scheme", scheme]);
    array.recorded = true;
    array.start_all();
    array
}

/// Everything ends in order, and the rules are kept.
fn judge(mut array: Array, hosts: Vec<Export>) {
    array.assert_clean();
    for mut host in hosts {
        assert_eq!(host.process.end(), Some(0));
    }
    array.end();
    let merged = array.disk("merged");
    let check = array.check(&merged);
    assert_eq!(code(&check), 0, "{}{}", stdout(&check), stderr(&check));
    for rule in ["serializable", "reads", "durability", "parity", "liveness"] {
        assert!(stdout(&check).contains(rule), "{rule} was not judged: {}", stdout(&check));
    }
    doctored(&array, &merged);
}

/// What a host has read is changed, and a write of a device left out: the rules must find either.
fn doctored(array: &Array, merged: &Path) {
    let lines: Vec<String> =
        std::fs::read_to_string(merged).unwrap().lines().map(str::to_owned).collect();
    let path = array.disk("doctored");
    let refused = |lines: &[String], rule: &str| {
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        let check = array.user.lockify(&["check", path.to_str().unwrap()]);
        assert_eq!(code(&check), 1, "{}", stdout(&check));
        assert!(stdout(&check).contains(rule), "{rule} is not in {}", stdout(&check));
    };
    let read = lines.iter().rposition(|l| l.contains(r#""event":"done""#) && l.contains("tags"));
    let mut wrong = lines.clone();
    let line = &mut wrong[read.unwrap()];
    *line = line.replacen("\"tags\":[", "\"tags\":[12345,", 1);
    let from = line.find("12345,").unwrap() + 6;
    let to = line[from..].find([',', ']']).unwrap() + from;
    line.replace_range(from - 1..to, "");
    refused(&wrong, "reads");
    let dump = lines.iter().rposition(|l| l.contains(r#""event":"dump""#)).unwrap();
    let mut wrong = lines.clone();
    wrong[dump] = wrong[dump].replacen("\"blocks\":[\"", "\"blocks\":[\"1", 1);
    let at = wrong[dump].find("\"blocks\":[\"1").unwrap() + 12;
    wrong[dump].remove(at);
    refused(&wrong, "parity");
}

/// Three hosts on the same stripes, and what becomes of one of them while the others work. What it has held is free then,
/// wherever it was.
fn one_of_three(scheme: &str, becomes: impl FnOnce(&mut Array, &mut Export)) {
    let mut array = array(scheme);
    let mut hosts: Vec<Export> = (1..=3).map(|number| array.export(number)).collect();
    let mut doomed = hosts.pop().unwrap();
    std::thread::scope(|scope| {
        for (seed, host) in (1..).zip(&hosts) {
            scope.spawn(move || work(host, seed, 40));
        }
        becomes(&mut array, &mut doomed);
    });
    hosts[0].connect().write(0, &content(SHARED));
    judge(array, hosts);
}

/// It is killed with writes under way.
fn a_killed_host(scheme: &str) {
    one_of_three(scheme, |_, doomed| {
        work(doomed, 9, 5);
        pile(&mut doomed.connect(), 10, 24);
        doomed.process.kill();
    });
}

#[test]
fn a_killed_host_under_timestamp_ordering() {
    a_killed_host("timestamp-ordering");
}

#[test]
fn a_killed_host_under_device_locking() {
    a_killed_host("device-locking");
}

#[test]
fn a_killed_host_under_server_locking() {
    a_killed_host("server-locking");
}

#[test]
fn a_killed_host_under_callback_locking() {
    a_killed_host("callback-locking");
}

/// Hosts wait for the server; a host that died while it was away is found, by what the log says that it held.
fn a_killed_lock_server(scheme: &str) {
    one_of_three(scheme, |array, doomed| {
        for _ in 0..3 {
            work(doomed, 9, 3);
            array.lock_server.take().unwrap().kill();
            array.start_lock_server(&[]);
        }
        pile(&mut doomed.connect(), 10, 24);
        array.lock_server.take().unwrap().kill();
        doomed.process.kill();
        array.start_lock_server(&[]);
    });
}

#[test]
fn a_killed_lock_server_under_server_locking() {
    a_killed_lock_server("server-locking");
}

#[test]
fn a_killed_lock_server_under_callback_locking() {
    a_killed_lock_server("callback-locking");
}

/// A host that is stopped for longer than a lease, in the middle of writes, is fenced: nothing of it lands when it goes on.
fn a_stopped_host(scheme: &str) {
    let mut array = array(scheme);
    let host = array.export(1);
    let mut blocks = host.connect();
    blocks.write(0, &content(SHARED));
    let mut fenced = 0;
    for round in 0..20 {
        let mut stopped = array.export(2);
        let mut theirs = stopped.connect();
        // It has got going, and has more under way than can be done at once.
        pile(&mut theirs, round, 48);
        for _ in 0..8 {
            assert_eq!(theirs.0.reply().0, 0);
        }
        stopped.process.signal(Signal::STOP);
        // Waits for the lease of whoever holds something there, and for the repair.
        blocks.write(0, &content(SHARED));
        let before = blocks.read(0, SHARED);
        stopped.process.signal(Signal::CONT);
        // If it held nothing when it was stopped, it goes on; else it ends by itself.
        let mut answered = 8;
        while answered < 48 && theirs.0.reply_unless_over().is_ok_and(|(error, _)| error == 0) {
            answered += 1;
        }
        if answered == 48 {
            assert_eq!(stopped.process.end(), Some(0));
            continue;
        }
        assert_eq!(stopped.process.0.wait().unwrap().code(), Some(3));
        assert!(blocks.read(0, SHARED) == before, "what is fenced has written");
        fenced += 1;
        if fenced == 2 {
            break;
        }
    }
    assert!(fenced > 0, "it was never stopped in the middle");
    judge(array, vec![host]);
}

#[test]
fn a_stopped_host_under_timestamp_ordering() {
    a_stopped_host("timestamp-ordering");
}

#[test]
fn a_stopped_host_under_device_locking() {
    a_stopped_host("device-locking");
}

#[test]
fn a_stopped_host_under_server_locking() {
    a_stopped_host("server-locking");
}

#[test]
fn a_stopped_host_under_callback_locking() {
    a_stopped_host("callback-locking");
}

fn condition(array: &Array, id: usize) -> String {
    let status = array.lockify("status", &["--json"]);
    let status: serde_json::Value = serde_json::from_str(&stdout(&status)).unwrap();
    status["devices"][id]["condition"].as_str().unwrap_or_default().to_owned()
}

/// The array goes on without a device that stands still; when it moves again, it is not read before it has been rebuilt.
fn a_stopped_device(scheme: &str) {
    let mut array = array(scheme);
    let host = array.export(1);
    let mut blocks = host.connect();
    blocks.write(0, &content(SHARED));
    array.devices[1].as_ref().unwrap().signal(Signal::STOP);
    blocks.write(3, &content(9));
    let before = blocks.read(0, SHARED);
    assert_eq!(condition(&array, 1), "failed");
    array.devices[1].as_ref().unwrap().signal(Signal::CONT);
    assert!(blocks.read(0, SHARED) == before);
    wait_for(|| code(&array.lockify("rebuild", &["--id", "1"])) == 0);
    array.wait_until_healthy();
    // Now another one may go.
    array.devices[0].take().unwrap().kill();
    assert!(blocks.read(0, SHARED) == before);
    array.start(0, "disk0", &[]);
    wait_for(|| {
        condition(&array, 0) != "failed" || { code(&array.lockify("rebuild", &["--id", "0"])) == 0 }
    });
    array.wait_until_healthy();
    judge(array, vec![host]);
}

#[test]
fn a_stopped_device_under_timestamp_ordering() {
    a_stopped_device("timestamp-ordering");
}

#[test]
fn a_stopped_device_under_callback_locking() {
    a_stopped_device("callback-locking");
}

/// A block whose checksum is wrong is not returned: its content comes from the others, and a scrub writes it anew.
#[test]
fn a_torn_block_is_read_from_the_others() {
    let mut array = array("timestamp-ordering");
    let host = array.export(1);
    let mut blocks = host.connect();
    blocks.write(0, &content(SHARED));
    let before = blocks.read(0, SHARED);
    array.devices[1].take().unwrap().end();
    // Somewhere in the first blocks, which are in front of all others behind two superblocks and two records.
    let disk = array.disk("disk1");
    let mut bytes = std::fs::read(&disk).unwrap();
    let first = 8192 + (2 << 20);
    for block in 0..4 {
        bytes[first + block * (BLOCK + 512) + 100] ^= 1;
    }
    std::fs::write(&disk, bytes).unwrap();
    array.start(1, "disk1", &[]);
    array.wait_until_healthy();
    assert!(blocks.read(0, SHARED) == before);
    let scrub = array.lockify("scrub", &["--repair"]);
    assert!(code(&scrub) <= 1, "{}", stderr(&scrub));
    assert!(blocks.read(0, SHARED) == before);
    judge(array, vec![host]);
}

/// Wrong files for histories, before anything is served.
#[test]
fn a_history_that_cannot_be_written_is_refused_with_a_reason() {
    let mut array = Array::create(3, &[]);
    array.start_all();
    let file = array.file();
    let socket = array.user.dir().join("socket");
    for (path, words) in [
        ("/nowhere/history", "leave --history away"),
        ("/dev/full", "is full"),
        (file.as_str(), "name another file"),
    ] {
        let args = ["array", "export", &file, "--host", "1", "--history", path, "--socket"];
        let refused = array.user.lockify(&[&args[..], &[socket.to_str().unwrap()]].concat());
        assert_eq!(code(&refused), 3);
        assert!(stderr(&refused).contains(words), "{}", stderr(&refused));
    }
}
