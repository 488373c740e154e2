//! The reads and writes of hosts of an array of real processes in tests, and their judge.

use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::array::{Array, BLOCK, Blocks, Export};
use super::nbd::head;
use super::relay::Place;
use super::{code, stderr, stdout, wait_for};

/// Blocks that hosts meet on: two stripes and a half.
pub const SHARED: usize = 20;

/// Numbers, the same in every run except for the order of arrivals.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    pub fn below(&mut self, end: usize) -> usize {
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
pub fn content(count: usize) -> Vec<u8> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let block = |_| {
        let number = NEXT.fetch_add(1, Relaxed).to_le_bytes();
        number.into_iter().cycle().take(BLOCK).collect::<Vec<_>>()
    };
    (0..count).flat_map(block).collect()
}

/// Reads and writes, one after the other.
pub fn work(export: &Export, seed: u64, operations: usize) {
    attempt(&mut export.connect(), &mut Numbers(seed), operations).unwrap();
}

/// The same on a connection, until something is not answered, or by an error.
pub fn attempt(blocks: &mut Blocks, numbers: &mut Numbers, operations: usize) -> io::Result<()> {
    for _ in 0..operations {
        let (start, count) = numbers.place();
        let reads = numbers.below(3) == 0;
        if reads {
            let request = head((0, 0), 7, (start * BLOCK) as u64, (count * BLOCK) as u32);
            blocks.0.0.write_all(&request)?;
        } else {
            blocks.try_begin_write(7, start, &content(count))?;
        }
        let (error, cookie) = blocks.0.reply_unless_over()?;
        assert_eq!(cookie, 7);
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error as i32));
        }
        if reads {
            blocks.0.0.read_exact(&mut vec![0; count * BLOCK])?;
        }
    }
    Ok(())
}

/// Ends what hosts do when it is dropped.
pub struct Busy<'scope>(pub &'scope AtomicBool);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Flips a byte of blocks in the file of a device that does not run.
pub fn tear(disk: &Path, blocks: impl IntoIterator<Item = usize>) {
    let mut bytes = std::fs::read(disk).unwrap();
    for block in blocks {
        // They are in front of all others behind two superblocks and two records.
        bytes[8192 + (2 << 20) + block * (BLOCK + 512) + 100] ^= 1;
    }
    std::fs::write(disk, bytes).unwrap();
}

/// Has so many writes under way, of which no answer is waited for.
pub fn pile(blocks: &mut Blocks, seed: u64, writes: u64) {
    let mut numbers = Numbers(seed);
    for cookie in 0..writes {
        let (start, count) = numbers.place();
        blocks.begin_write(cookie, start, &content(count));
    }
}

/// The same, until the host is gone.
pub fn pile_while_it_lives(blocks: &mut Blocks, seed: u64, writes: u64) {
    let mut numbers = Numbers(seed);
    for cookie in 0..writes {
        let (start, count) = numbers.place();
        if blocks.try_begin_write(cookie, start, &content(count)).is_err() {
            return;
        }
    }
}

/// Three devices, and a lock server if the scheme has one, that write histories.
pub fn array(scheme: &str) -> Array {
    start(scheme, |_| {})
}

/// The same, after something was prepared.
pub fn start(scheme: &str, prepare: impl FnOnce(&mut Array)) -> Array {
    let mut array = Array::create(3, &["--scheme", scheme]);
    array.recorded = true;
    prepare(&mut array);
    array.start_all();
    array
}

/// A host goes away for longer than a lease, in the middle of writes, and comes back: it is fenced, and nothing of what it has
/// sent lands any more.
pub fn a_host_is_fenced(
    mut array: Array,
    away: impl Fn(&Array, &Export),
    back: impl Fn(&Array, &Export),
) {
    let host = array.export(1);
    let mut blocks = host.connect();
    blocks.write(0, &content(SHARED));
    let mut fenced = 0;
    for round in 0..20 {
        let mut lost = array.export(2);
        let mut theirs = lost.connect();
        // It has got going, and has more under way than can be done at once.
        pile(&mut theirs, round, 48);
        for _ in 0..8 {
            assert_eq!(theirs.0.reply().0, 0);
        }
        away(&array, &lost);
        // Waits for the lease of holders there, and for the repair.
        blocks.write(0, &content(SHARED));
        let before = blocks.read(0, SHARED);
        back(&array, &lost);
        // If it held nothing when it went away, it goes on; else it ends by itself.
        let mut answered = 8;
        while answered < 48 && theirs.0.reply_unless_over().is_ok_and(|(error, _)| error == 0) {
            answered += 1;
        }
        if answered == 48 {
            assert_eq!(lost.process.end(), Some(0));
            continue;
        }
        assert_eq!(lost.process.ended().code(), Some(3));
        let log = array.log(Place::Host(2));
        assert!(log.contains("taken for dead and fenced; start it again"), "{log}");
        assert!(blocks.read(0, SHARED) == before, "what is fenced has written");
        fenced += 1;
        if fenced == 2 {
            break;
        }
    }
    assert!(fenced > 0, "it was never lost in the middle");
    judge(array, vec![host]);
}

/// The report of `lockify array status`.
pub fn status(array: &Array) -> serde_json::Value {
    serde_json::from_str(&stdout(&array.lockify("status", &["--json"]))).unwrap()
}

/// The part about a device.
pub fn device(array: &Array, id: usize) -> serde_json::Value {
    status(array)["devices"][id].take()
}

/// A device that the array has gone on without, and that is there again, is rebuilt; then it is relied on.
pub fn a_device_comes_back(array: &mut Array, blocks: &mut Blocks, id: usize) {
    let before = blocks.read(0, SHARED);
    let rebuild = |id: usize| code(&array.lockify("rebuild", &["--id", &id.to_string()])) == 0;
    wait_for(|| rebuild(id));
    array.wait_until_healthy();
    let other = usize::from(id == 0);
    array.devices[other].take().unwrap().kill();
    assert!(blocks.read(0, SHARED) == before);
    array.start(other, &format!("disk{other}"), &[]);
    wait_for(|| {
        let rebuild = || code(&array.lockify("rebuild", &["--id", &other.to_string()])) == 0;
        device(array, other)["condition"] != "failed" || rebuild()
    });
    array.wait_until_healthy();
}

/// Everything ends in order, and the rules are kept.
pub fn judge(mut array: Array, hosts: Vec<Export>) {
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

/// Changes a host's read, and leaves out a device's write. The rules must find either.
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
