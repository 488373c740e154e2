//! The lock server's log: its table on stable storage (docs/design/array.md 3).
//!
//! ```text
//! 0   magic (8) | version (u32) | the array's id (16) | CRC32C of these (u32)
//! 32  records, one behind the other: mark (4) | number (u32) | length (u32) | CRC32C of number, length, content (u32) | content
//! ```
//! Integers are little-endian. Records are written and synced one at a time, so a crash can cut short only the last one. That
//! one was never confirmed, and is removed. If a good record follows a bad one, the file is damaged.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use lockify_array::LogAsk;
use lockify_trust::LockedFile;

use crate::ArrayId;
use crate::store::sync_folder_of;

const MAGIC: [u8; 8] = *b"LkLocks\0";
/// With keys, which an earlier release cannot read.
const VERSION: u32 = 2;
/// Without keys.
const FIRST: u32 = 1;
/// Bytes in front of the records.
const HEAD: usize = 32;
/// How a record begins.
const MARK: [u8; 4] = *b"LkRc";
/// Bytes of a record in front of its content.
const PREFIX: usize = 16;
/// The longest log that is read, bytes: far more than a table that is in memory needs.
const LONGEST: u64 = 1 << 30;

/// Why the lock server's log cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct LogError {
    path: PathBuf,
    why: Why,
}

#[derive(Debug, thiserror::Error)]
enum Why {
    #[error("cannot {0} it: {1}")]
    System(&'static str, io::Error),
    #[error(
        "there is no such log; --create makes one, which gets its content from the lock server that serves. If no log of this \
         array is left, end all its hosts first, give --accept-loss as well, and scrub it afterwards: only the log knows what was \
         being written"
    )]
    Missing,
    #[error("it exists; name a new file, or leave --create away to go on with it")]
    Exists,
    #[error("another process uses it: does the lock server run already?")]
    Locked,
    #[error("this is no lock server's log")]
    Foreign,
    #[error(
        "its format has version {0}, and this release knows {VERSION}: use the release that made it"
    )]
    Version(u32),
    #[error("it belongs to array {0}: one of both is the wrong file")]
    OtherArray(ArrayId),
    #[error(
        "it is damaged at byte {0}: what was locked is not known. Move it away. If another lock server serves, begin anew with \
         --create. Otherwise end all hosts, begin anew with --create --accept-loss, and scrub the whole array (`lockify array scrub \
         --repair`)"
    )]
    Damaged(u64),
}

/// The log that this process alone uses.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    array: ArrayId,
    file: LockedFile,
    /// Where the next record goes.
    end: u64,
    /// The number of the next record.
    number: u32,
}

impl Log {
    /// Makes a new one.
    pub fn create(path: &Path, array: ArrayId) -> Result<Log, LogError> {
        let at = |why| LogError { path: path.to_owned(), why };
        let file = match new_file(path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => return Err(at(Why::Exists)),
            made => made.map_err(|e| at(Why::System("make", e)))?,
        };
        let file = lock(file).map_err(at)?;
        let head = head(array);
        let written = file.write_all_at(&head, 0).and_then(|()| file.sync_all());
        written.and_then(|()| sync_folder_of(path)).map_err(|e| at(Why::System("write", e)))?;
        Ok(Log { path: path.to_owned(), array, file, end: HEAD as u64, number: 0 })
    }

    /// Opens it, and gives its records. `log` is told if the last one was cut short.
    pub fn open(path: &Path, array: ArrayId, log: fn(&str)) -> Result<(Log, Vec<Bytes>), LogError> {
        let at = |why| LogError { path: path.to_owned(), why };
        let system = |what| move |e| at(Why::System(what, e));
        let file = match OpenOptions::new().read(true).write(true).open(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(at(Why::Missing)),
            opened => opened.map_err(system("open"))?,
        };
        let file = lock(file).map_err(at)?;
        // A log is replaced by another file of its name: this one may have been, between the two calls.
        let (mine, there) = (file.metadata(), std::fs::metadata(path));
        let (mine, there) = (mine.map_err(system("look at"))?, there.map_err(system("look at"))?);
        if (mine.dev(), mine.ino()) != (there.dev(), there.ino()) {
            return Err(at(Why::Locked));
        }
        if !mine.is_file() || mine.len() > LONGEST {
            return Err(at(Why::Foreign));
        }
        let mut bytes = Vec::new();
        (&*file).read_to_end(&mut bytes).map_err(system("read"))?;
        let version = check_head(&bytes, array).map_err(at)?;
        let Records { records, end } = records(&bytes).map_err(|byte| at(Why::Damaged(byte)))?;
        if end < bytes.len() {
            log(
                "the last record of the lock server's log was cut short, and is left out: nobody was told of it",
            );
            let cut = file.set_len(end as u64).and_then(|()| file.sync_all());
            cut.map_err(system("write"))?;
        }
        if version != VERSION {
            // Within a sector, so that it is there as a whole or not at all.
            let written = file.write_all_at(&head(array), 0).and_then(|()| file.sync_all());
            written.map_err(system("write"))?;
        }
        let number = records.len() as u32;
        let records = records.into_iter().map(Bytes::copy_from_slice).collect();
        Ok((Log { path: path.to_owned(), array, file, end: end as u64, number }, records))
    }

    /// Executes the state machine's output; it is durable when this returns. After an error nothing more must be written.
    pub fn write(&mut self, ask: &LogAsk) -> io::Result<()> {
        match ask {
            LogAsk::Append { record, .. } => {
                let bytes = record_of(self.number, record)?;
                self.file.write_all_at(&bytes, self.end)?;
                self.file.sync_data()?;
                self.end += bytes.len() as u64;
                self.number = self.number.wrapping_add(1);
                Ok(())
            }
            LogAsk::Replace { record, .. } => self.replace(record),
        }
    }

    fn replace(&mut self, record: &[u8]) -> io::Result<()> {
        let mut name = self.path.as_os_str().to_owned();
        name.push(".new");
        let path = PathBuf::from(name);
        // Of an earlier attempt that a crash has ended.
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let file = new_file(&path)?;
        // Before it has the log's name, so that nobody else can have it.
        let file = lock(file).map_err(|why| io::Error::other(why.to_string()))?;
        let bytes = [head(self.array).to_vec(), record_of(0, record)?].concat();
        file.write_all_at(&bytes, 0)?;
        file.sync_all()?;
        std::fs::rename(&path, &self.path)?;
        sync_folder_of(&self.path)?;
        (self.file, self.end, self.number) = (file, bytes.len() as u64, 1);
        Ok(())
    }
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

fn lock(file: File) -> Result<LockedFile, Why> {
    LockedFile::try_lock(file).map_err(|e| Why::System("lock", e))?.ok_or(Why::Locked)
}

fn head(array: ArrayId) -> [u8; HEAD] {
    head_of(VERSION, array)
}

fn head_of(version: u32, array: ArrayId) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&version.to_le_bytes());
    head[12..28].copy_from_slice(&array.0);
    let sum = crc32c::crc32c(&head[..28]);
    head[28..].copy_from_slice(&sum.to_le_bytes());
    head
}

/// The version of its format.
fn check_head(bytes: &[u8], array: ArrayId) -> Result<u32, Why> {
    let Some(found) = bytes.first_chunk::<HEAD>() else { return Err(Why::Foreign) };
    if found[..8] != MAGIC {
        return Err(Why::Foreign);
    }
    let version = number(&found[8..]).unwrap_or(0);
    if ![FIRST, VERSION].contains(&version) {
        return Err(Why::Version(version));
    }
    if number(&found[28..]) != Some(crc32c::crc32c(&found[..28])) {
        return Err(Why::Damaged(0));
    }
    if found[12..28] != array.0 {
        let mut other = [0; 16];
        other.copy_from_slice(&found[12..28]);
        return Err(Why::OtherArray(ArrayId(other)));
    }
    Ok(version)
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn sum(number: u32, length: u32, content: &[u8]) -> u32 {
    let head = [number.to_le_bytes(), length.to_le_bytes()].concat();
    crc32c::crc32c_append(crc32c::crc32c(&head), content)
}

fn record_of(number: u32, content: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(content.len()).map_err(|_| ErrorKind::FileTooLarge)?;
    let mut bytes = MARK.to_vec();
    bytes.extend(number.to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes.extend(sum(number, length, content).to_le_bytes());
    bytes.extend(content);
    Ok(bytes)
}

/// The content of the record at the start of `bytes`, if it is good and has at least this number.
fn record(bytes: &[u8], least: u32) -> Option<&[u8]> {
    let rest = bytes.strip_prefix(&MARK)?;
    let (found, length, wanted) = (number(rest)?, number(rest.get(4..)?)?, number(rest.get(8..)?)?);
    let content = bytes.get(PREFIX..)?.get(..length as usize)?;
    (found >= least && sum(found, length, content) == wanted).then_some(content)
}

struct Records<'a> {
    records: Vec<&'a [u8]>,
    /// Where the last one ends.
    end: usize,
}

/// All records; or where the file is damaged.
fn records(bytes: &[u8]) -> Result<Records<'_>, u64> {
    let (mut records, mut end) = (Vec::new(), HEAD);
    loop {
        let rest = bytes.get(end..).unwrap_or_default();
        let next = records.len() as u32;
        match record(rest, next).filter(|_| number(&rest[4..]) == Some(next)) {
            Some(content) => {
                records.push(content);
                end += PREFIX + content.len();
            }
            None => {
                let later = (1..rest.len()).any(|at| record(&rest[at..], next + 1).is_some());
                return if later { Err(end as u64) } else { Ok(Records { records, end }) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lockify_array::LogToken;

    use super::*;

    const ARRAY: ArrayId = ArrayId([7; 16]);

    fn append(log: &mut Log, record: &'static [u8]) {
        let record = Bytes::from_static(record);
        log.write(&LogAsk::Append { token: LogToken(0), record }).unwrap();
    }

    fn open(path: &Path) -> Result<Vec<Bytes>, String> {
        Log::open(path, ARRAY, |_| {}).map(|(_, records)| records).map_err(|e| e.to_string())
    }

    /// A child of another test that starts at this moment inherits the open file and its lock, until it executes its program.
    fn open_again(path: &Path) -> Result<(Log, Vec<Bytes>), String> {
        let begin = std::time::Instant::now();
        loop {
            match Log::open(path, ARRAY, |_| {}).map_err(|e| e.to_string()) {
                Err(e) if e.contains("another process") && begin.elapsed().as_secs() < 10 => {}
                opened => return opened,
            }
        }
    }

    fn records(path: &Path) -> Result<Vec<Bytes>, String> {
        open_again(path).map(|(_, records)| records)
    }

    /// A log with these records.
    fn made(path: &Path, records: &[&'static [u8]]) {
        let mut log = Log::create(path, ARRAY).unwrap();
        records.iter().for_each(|record| append(&mut log, record));
    }

    #[test]
    fn records_come_back_and_a_replacement_takes_their_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        made(&path, &[b"one", b"", b"three"]);
        assert_eq!(records(&path).unwrap(), [&b"one"[..], b"", b"three"]);
        let (mut log, _) = open_again(&path).unwrap();
        assert!(open(&path).unwrap_err().contains("another process uses it"));
        let record = Bytes::from_static(b"all");
        log.write(&LogAsk::Replace { token: LogToken(0), record }).unwrap();
        assert!(open(&path).unwrap_err().contains("another process uses it"));
        append(&mut log, b"more");
        drop(log);
        assert_eq!(records(&path).unwrap(), [&b"all"[..], b"more"]);
        assert!(Log::create(&path, ARRAY).unwrap_err().to_string().contains("it exists"));
        let missing = open(&dir.path().join("other")).unwrap_err();
        assert!(missing.contains("--create"), "{missing}");
    }

    /// Every cut, and every wrong bit of the last record: earlier records stay. In an earlier record it is damage.
    #[test]
    fn a_last_record_that_was_cut_short_is_taken_off_and_anything_else_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        made(&path, &[b"first", b"second"]);
        let whole = std::fs::read(&path).unwrap();
        let second = HEAD + PREFIX + 5;
        for cut in HEAD..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let kept = if cut < second { vec![] } else { vec![Bytes::from_static(b"first")] };
            assert_eq!(records(&path).unwrap(), kept, "{cut}");
            let (mut log, _) = open_again(&path).unwrap();
            append(&mut log, b"new");
            drop(log);
            assert_eq!(records(&path).unwrap().len(), kept.len() + 1, "{cut}");
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut noise = whole.clone();
                noise[at] ^= 1 << bit;
                std::fs::write(&path, &noise).unwrap();
                match at {
                    at if at < HEAD => assert!(records(&path).is_err(), "{at}"),
                    at if at < second => {
                        assert!(records(&path).unwrap_err().contains("damaged"), "{at}");
                    }
                    _ => assert_eq!(records(&path).unwrap(), [&b"first"[..]], "{at}"),
                }
            }
        }
        let longer = [&whole[..], &[0; 100]].concat();
        std::fs::write(&path, longer).unwrap();
        assert_eq!(records(&path).unwrap().len(), 2);
    }

    #[test]
    fn a_log_of_an_earlier_release_is_read_and_is_one_of_this_release_then() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        made(&path, &[b"first"]);
        let now = std::fs::read(&path).unwrap();
        let mut earlier = now.clone();
        earlier[..HEAD].copy_from_slice(&head_of(FIRST, ARRAY));
        std::fs::write(&path, &earlier).unwrap();
        assert_eq!(records(&path).unwrap(), [&b"first"[..]]);
        assert_eq!(std::fs::read(&path).unwrap(), now);
        earlier[..HEAD].copy_from_slice(&head_of(VERSION + 1, ARRAY));
        std::fs::write(&path, &earlier).unwrap();
        assert!(records(&path).unwrap_err().contains("use the release that made it"));
    }

    #[test]
    fn another_arrays_log_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        drop(Log::create(&path, ArrayId([9; 16])).unwrap());
        assert!(records(&path).unwrap_err().contains("it belongs to array 0909"));
        std::fs::write(&path, b"a letter").unwrap();
        assert!(records(&path).unwrap_err().contains("no lock server's log"));
    }
}
