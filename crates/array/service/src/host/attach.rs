//! How a host gets its number. The array counts the hosts that have attached, in its state, on which a majority agrees.
//! So no two processes ever have the same number, whatever their command lines and clocks are.
//!
//! A *reservation* is a number that is listed as a host with the array for itself, and that no process has. It is never silent, so
//! only a fence by name or number, or its owner, ends it. As long as it is listed, nobody else has had the array since
//! (docs/design/array.md 6.1).

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockify_array::{ArrayState, Change, HostId, Life, NodeName, OpError, Usage, Work};
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
    remembered: Remembered,
}

/// What a memory has to tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Remembered {
    /// The number of a process that may not have ended in order.
    former: Option<u32>,
    /// The number of the reservation.
    reservation: Option<u32>,
}

/// A host's hold of the array, which outlives its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// Its number, which no other host of the array ever has.
    pub number: u32,
    /// A former process with the same memory had it already.
    pub continued: bool,
    /// The one that the memory had, and that others have ended: they may have written since.
    pub lost: Option<u32>,
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
        let remembered = Memory::parse(&text, array).ok_or_else(|| MemoryError::Odd {
            path: path.to_owned(),
            found: text.trim_end().chars().take(80).collect(),
            array,
        })?;
        Ok(Memory { path: path.to_owned(), array, file, remembered })
    }

    /// Of the file: a line, and blanks before its end.
    const LENGTH: usize = 128;

    fn parse(text: &str, array: ArrayId) -> Option<Remembered> {
        if text.trim().is_empty() {
            return Some(Remembered::default());
        }
        let rest = text.trim_end().strip_prefix(&format!("array {array}, "))?;
        let (host, reservation) = match rest.split_once(", reserves ") {
            Some((host, number)) => (host, Some(number.parse().ok()?)),
            None => (rest, None),
        };
        let former = match host {
            "ended" => None,
            other => Some(other.strip_prefix("host ")?.parse().ok()?),
        };
        Some(Remembered { former, reservation })
    }

    fn write(&self, what: &str, reservation: Option<u32>) -> Result<(), MemoryError> {
        let reserves = reservation.map(|number| format!(", reserves {number}"));
        let line = format!("array {}, {what}{}", self.array, reserves.unwrap_or_default());
        let line = format!("{line:<width$}\n", width = Memory::LENGTH - 1);
        let written =
            self.file.write_all_at(line.as_bytes(), 0).and_then(|()| self.file.sync_data());
        written.map_err(|error| MemoryError::File { path: self.path.clone(), error })
    }

    /// The host has ended in order: nobody has to be fenced.
    pub(super) fn ended(&self, reservation: Option<u32>) -> Result<(), MemoryError> {
        self.write("ended", reservation)
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
    pub(super) reservation: Option<Reservation>,
}

impl Attached {
    /// The hosts have ended, and no device has a write of them to do. Returns whether the array knows that. If it does not, their
    /// node has to be fenced for their sake, too, which does no harm.
    pub(super) fn detach(&self, hosts: &[u32], patience: Duration) -> bool {
        let Ok(life) = visitor() else { return false };
        let end = Instant::now() + patience;
        let joining = Joining { patience, ..self.joining.clone() };
        let opened = Array::open_as(&self.file, &joining, life, None, Purpose::Repair);
        let Ok(visitor) = opened else { return false };
        let done = hosts.iter().all(|host| visitor.detach(*host, end).is_ok());
        visitor.leave(end.saturating_duration_since(Instant::now()));
        done
    }
}

/// Takes the array's next number for a host, by a visitor, and fences the former process of the host. If the host is to
/// `reserve` the array, it continues the reservation of its memory, or makes one.
pub(super) fn attach(
    file: &ArrayFile,
    joining: &Joining,
    reserve: bool,
) -> Result<(Life, Option<Memory>, Attached), OpenError> {
    let memory = joining.memory.as_deref().map(|path| Memory::open(path, file.id)).transpose()?;
    let visitor = Array::open_as(file, joining, visitor()?, None, Purpose::Repair)?;
    let end = Instant::now() + joining.patience;
    let Remembered { former, reservation } =
        memory.as_ref().map(|memory| memory.remembered).unwrap_or_default();
    // First, because the former process may have the array for itself.
    if let Some(former) = former {
        fence(&visitor, former, end)?;
    }
    if let Some(number) = reservation.filter(|_| !reserve) {
        visitor.detach(number, end).map_err(|why| {
            OpenError::Unreachable(format!(
                "its reservation, host {number}, cannot be ended: {why}"
            ))
        })?;
    }
    let reserve = reserve && memory.is_some();
    // The reservation keeps others out, this host as well.
    let usage = if reserve { Usage::Upkeep } else { joining.usage };
    let life = next_number(&visitor, joining.node, usage, end)?;
    let made = reserve.then(|| continue_or_make(&visitor, joining, reservation, end)).transpose();
    let reservation = made.inspect_err(|_| drop(visitor.detach(life.host.0, end)))?;
    // The state that was agreed on is known here before the change counts as done.
    let state = visitor.status().state;
    if let Some(memory) = &memory {
        let number = reservation.map(|reservation| reservation.number);
        memory.write(&format!("host {}", life.host.0), number)?;
    }
    visitor.leave(FAREWELL);
    let attached = Attached { file: file.clone(), joining: joining.clone(), state, reservation };
    Ok((life, memory, attached))
}

/// The visitor knows the state in which this host has attached. A reservation that is listed there was so all the time, because
/// no number is given twice.
fn continue_or_make(
    visitor: &Array,
    joining: &Joining,
    remembered: Option<u32>,
    end: Instant,
) -> Result<Reservation, OpenError> {
    let listed = |number: &u32| visitor.status().state.nodes.of_host(*number).is_some();
    if let Some(number) = remembered.filter(listed) {
        return Ok(Reservation { number, continued: true, lost: None });
    }
    let life = next_number(visitor, joining.node, Usage::Exclusive, end)?;
    Ok(Reservation { number: life.host.0, continued: false, lost: remembered })
}

/// How long a visitor may take to end.
const FAREWELL: Duration = Duration::from_secs(2);

fn next_number(
    visitor: &Array,
    node: NodeName,
    usage: Usage,
    end: Instant,
) -> Result<Life, OpenError> {
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
    visitor.fence_process(former, end.saturating_duration_since(Instant::now())).map_err(|why| {
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
        assert_eq!(memory.remembered, Remembered::default());
        let why = Memory::open(&path, array).err().unwrap().to_string();
        assert!(why.contains("in use by another process"), "{why}");
        memory.write("host 41", None).unwrap();
        drop(memory);
        let memory = Memory::open(&path, array).unwrap();
        assert_eq!(memory.remembered, Remembered { former: Some(41), reservation: None });
        memory.write("host 4000000042", Some(2_000_000_040)).unwrap();
        drop(memory);
        let memory = Memory::open(&path, array).unwrap();
        let both = Remembered { former: Some(4_000_000_042), reservation: Some(2_000_000_040) };
        assert_eq!(memory.remembered, both);
        memory.ended(Some(7)).unwrap();
        drop(memory);
        let memory = Memory::open(&path, array).unwrap();
        assert_eq!(memory.remembered, Remembered { former: None, reservation: Some(7) });
        memory.ended(None).unwrap();
        drop(memory);
        assert_eq!(Memory::open(&path, array).unwrap().remembered, Remembered::default());
        let why = Memory::open(&path, ArrayId([8; 16])).err().unwrap().to_string();
        assert!(why.contains("not the number of a host of array 0808"), "{why}");
        let cut = format!("array {array}, host 4, reserves");
        for odd in ["hello", "array , host 4", "\0\0\0", &cut] {
            std::fs::write(&path, odd).unwrap();
            assert!(matches!(Memory::open(&path, array), Err(MemoryError::Odd { .. })), "{odd}");
        }
    }
}
