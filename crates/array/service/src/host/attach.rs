//! How a host gets its number. The array counts the hosts that have attached, in its state, on which a majority agrees.
//! So no two processes ever have the same number, whatever their command lines and clocks are.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockify_array::{ArrayState, Change, HostId, Life, OpError, Work};
use lockify_trust::LockedFile;

use super::{Array, Joining, OpenError, Purpose};
use crate::{ArrayFile, ArrayId, random};

/// Numbers of hosts that have attached are below this one; visitors have others.
pub(crate) const VISITORS: u32 = 0x8000_0000;

/// Why a host's memory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The file system refuses.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// Another process has it.
    #[error("{0} is in use by another process: give each host a file of its own (--state)")]
    InUse(PathBuf),
    /// It has something else.
    #[error(
        "{path} has {found:?}, not the number of a host of array {array}: give another file (--state)"
    )]
    Odd {
        /// The file.
        path: PathBuf,
        /// Its beginning.
        found: String,
        /// The array.
        array: ArrayId,
    },
}

/// A host's own memory of the process that it was last.
pub(super) struct Memory {
    path: PathBuf,
    array: ArrayId,
    file: LockedFile,
    /// The number of a process that may not have ended in order.
    former: Option<u32>,
}

impl Memory {
    fn open(path: &Path, array: ArrayId) -> Result<Memory, MemoryError> {
        let failed = |error| MemoryError::File { path: path.to_owned(), error };
        let mut options = OpenOptions::new();
        // A fifo would have nothing to read for ever.
        options
            .read(true)
            .write(true)
            .create(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
        let file = options.open(path).map_err(failed)?;
        let file = LockedFile::try_lock(file).map_err(failed)?;
        let file = file.ok_or_else(|| MemoryError::InUse(path.to_owned()))?;
        let mut text = String::new();
        let mut start: &File = &file;
        start.by_ref().take(Memory::LENGTH as u64).read_to_string(&mut text).map_err(failed)?;
        let former = Memory::parse(&text, array).ok_or_else(|| MemoryError::Odd {
            path: path.to_owned(),
            found: text.trim_end().chars().take(80).collect(),
            array,
        })?;
        Ok(Memory { path: path.to_owned(), array, file, former })
    }

    /// Of the file: a line, and blanks before its end.
    const LENGTH: usize = 128;

    fn parse(text: &str, array: ArrayId) -> Option<Option<u32>> {
        if text.trim().is_empty() {
            return Some(None);
        }
        let rest = text.trim_end().strip_prefix(&format!("array {array}, "))?;
        match rest {
            "ended" => Some(None),
            other => other.strip_prefix("host ")?.parse().ok().map(Some),
        }
    }

    fn write(&self, what: &str) -> Result<(), MemoryError> {
        let line = format!("array {}, {what}", self.array);
        let line = format!("{line:<width$}\n", width = Memory::LENGTH - 1);
        let written =
            self.file.write_all_at(line.as_bytes(), 0).and_then(|()| self.file.sync_data());
        written.map_err(|error| MemoryError::File { path: self.path.clone(), error })
    }

    /// The host has ended in order: nobody has to be fenced.
    pub(super) fn ended(&self) -> Result<(), MemoryError> {
        self.write("ended")
    }
}

/// The life of a visitor: no other process has it.
pub(super) fn visitor() -> io::Result<Life> {
    let number = (random()? >> 32) as u32 | VISITORS;
    Ok(Life { host: HostId(number), incarnation: random()? })
}

/// How a host has attached, for its end.
pub(super) struct Attached {
    file: ArrayFile,
    joining: Joining,
    /// The array's state in which it has.
    pub(super) state: ArrayState,
}

impl Attached {
    /// The host has ended, and no device has a write of it to do. If nobody learns of that, its node has to be fenced for its
    /// sake, too, which does no harm.
    pub(super) fn detach(&self, host: u32, patience: Duration) {
        let Ok(life) = visitor() else { return };
        let end = Instant::now() + patience;
        let joining = Joining { patience, ..self.joining.clone() };
        let opened = Array::open_as(&self.file, &joining, life, None, Purpose::Repair);
        if let Ok(visitor) = opened {
            let _ = visitor.detach(host, end);
            visitor.leave(end.saturating_duration_since(Instant::now()));
        }
    }
}

/// Takes the array's next number for a host, by a visitor, and fences the former process of the host.
pub(super) fn attach(
    file: &ArrayFile,
    joining: &Joining,
) -> Result<(Life, Option<Memory>, Attached), OpenError> {
    let memory = joining.memory.as_deref().map(|path| Memory::open(path, file.id)).transpose()?;
    let visitor = Array::open_as(file, joining, visitor()?, None, Purpose::Repair)?;
    let end = Instant::now() + joining.patience;
    // First, because the former process may have the array for itself.
    if let Some(former) = memory.as_ref().and_then(|memory| memory.former) {
        fence(&visitor, former, end)?;
    }
    let life = next_number(&visitor, joining, end)?;
    // The state that was agreed on is known here before the change counts as done.
    let state = visitor.status().state;
    if let Some(memory) = &memory {
        memory.write(&format!("host {}", life.host.0))?;
    }
    visitor.leave(FAREWELL);
    let attached = Attached { file: file.clone(), joining: joining.clone(), state };
    Ok((life, memory, attached))
}

/// How long a visitor may take to end.
const FAREWELL: Duration = Duration::from_secs(2);

fn next_number(visitor: &Array, joining: &Joining, end: Instant) -> Result<Life, OpenError> {
    let Joining { node, usage, .. } = *joining;
    loop {
        let after = visitor.status().state.hosts;
        let number = u32::try_from(after + 1).ok().filter(|n| *n < VISITORS);
        let number = number.ok_or_else(|| {
            OpenError::Unreachable(format!(
                "{after} hosts have attached, and there are no more numbers"
            ))
        })?;
        let change = Change::Attach { after, by: random()?, node, usage };
        match visitor.perform_until(Work::Change { change }, end) {
            Ok(()) => return Ok(Life { host: HostId(number), incarnation: u64::from(number) }),
            // Somebody was faster, or this host did not know of all that have attached.
            Err(OpError::State(_))
                if Instant::now() < end && visitor.status().state.hosts != after =>
            {
                std::thread::sleep(Duration::from_millis(random()? % 20));
            }
            Err(why) => {
                return Err(OpenError::Unreachable(format!("the array gives no number: {why}")));
            }
        }
    }
}

/// A former process of this host may still be there, after its machine was restored or its command line was copied. It must not
/// serve beside this one, and nobody is to wait for its locks.
fn fence(visitor: &Array, former: u32, end: Instant) -> Result<(), OpenError> {
    visitor.fence(former, end.saturating_duration_since(Instant::now())).map_err(|why| {
        OpenError::Unreachable(format!(
            "its former process, host {former}, cannot be fenced: {why}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hosts_memory_is_one_processs_and_one_arrays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("host");
        let array = ArrayId([7; 16]);
        let memory = Memory::open(&path, array).unwrap();
        assert_eq!(memory.former, None);
        let why = Memory::open(&path, array).err().unwrap().to_string();
        assert!(why.contains("in use by another process"), "{why}");
        memory.write("host 41").unwrap();
        drop(memory);
        let memory = Memory::open(&path, array).unwrap();
        assert_eq!(memory.former, Some(41));
        memory.ended().unwrap();
        drop(memory);
        assert_eq!(Memory::open(&path, array).unwrap().former, None);
        let why = Memory::open(&path, ArrayId([8; 16])).err().unwrap().to_string();
        assert!(why.contains("not the number of a host of array 0808"), "{why}");
        for odd in ["hello", "array , host 4", "\0\0\0"] {
            std::fs::write(&path, odd).unwrap();
            assert!(matches!(Memory::open(&path, array), Err(MemoryError::Odd { .. })), "{odd}");
        }
    }
}
