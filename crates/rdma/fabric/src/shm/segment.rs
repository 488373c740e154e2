//! The file: making, opening, checking it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::collections::hash_map::RandomState;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use lockify_onesided::Peer;
use rustix::fs::{
    CWD, FallocateFlags, Mode, OFlags, RenameFlags, fallocate, fchmod, renameat_with,
};
use rustix::process::geteuid;

use super::error::ShmError;
use super::layout::{HEADER, Layout, MAGIC, Shape, VERSION, header};
use super::map::Map;
use super::slots;

/// Most bytes of a notice.
pub const NOTICE_BYTES: usize = (HEADER - header::NOTICE) as usize;

/// The owners whose segments are trusted. A process that can write to a segment can mark a lock as free. So a segment in
/// a shared folder is not taken from just any user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// This user's, and root's.
    Me,
    /// This user's, root's, and those of the user with this number.
    Also(u32),
}

/// A mapped segment.
#[derive(Debug)]
pub struct Segment {
    path: PathBuf,
    file: File,
    map: Map,
    layout: Layout,
    salt: u64,
}

impl Segment {
    /// Makes a segment. It appears under its path when it is complete.
    ///
    /// # Errors
    /// The shape is impossible, there is something at the path, or the system refuses (memory is reserved at once).
    pub fn create(path: &Path, shape: Shape, mode: u32) -> Result<Segment, ShmError> {
        let impossible = ShmError::Shape { peers: shape.peers, memory: shape.memory };
        let layout = Layout::of(shape).ok_or(impossible)?;
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".new-{}", std::process::id()));
        let draft = Draft(PathBuf::from(name));
        let system =
            |what, error: io::Error| ShmError::System { what, path: path.to_owned(), error };
        let options = || -> io::Result<File> {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits() as i32)
                .open(&draft.0)
        };
        let file = options().map_err(|e| system("create", e))?;
        // Reserved, because a missing page would later kill a process that touches it.
        fallocate(&file, FallocateFlags::empty(), 0, layout.bytes)
            .map_err(|e| system("reserve memory for", e.into()))?;
        let salt = RandomState::new().build_hasher().finish();
        let fields = [
            (header::VERSION, VERSION),
            (header::BYTES, layout.bytes),
            (header::PEERS, layout.peers),
            (header::MEMORY, layout.memory_bytes),
            (header::SALT, salt),
            (header::MAGIC, MAGIC),
        ];
        for (at, value) in fields {
            file.write_all_at(&value.to_le_bytes(), at).map_err(|e| system("write", e))?;
        }
        fchmod(&file, Mode::from_raw_mode(mode & 0o777))
            .map_err(|e| system("set the mode of", e.into()))?;
        renameat_with(CWD, &draft.0, CWD, path, RenameFlags::NOREPLACE).map_err(|e| match e {
            rustix::io::Errno::EXIST => ShmError::Exists { path: path.to_owned() },
            e => system("create", e.into()),
        })?;
        Segment::mapped(path, file, layout, salt)
    }

    /// Opens a segment. All sizes are checked here, and believed from then on.
    ///
    /// # Errors
    /// It is not there, not ours, no segment, of another version, or damaged.
    pub fn open(path: &Path, owner: Owner) -> Result<Segment, ShmError> {
        let system =
            |what, error: io::Error| ShmError::System { what, path: path.to_owned(), error };
        let damaged = |what| ShmError::Damaged { path: path.to_owned(), what };
        let foreign = || ShmError::Foreign { path: path.to_owned() };
        let open = OpenOptions::new()
            .read(true)
            .write(true)
            // A pipe or device in its place must not make us wait.
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
            .open(path);
        let file = open.map_err(|e| system("open", e))?;
        let about = file.metadata().map_err(|e| system("read", e))?;
        if !about.is_file() || about.len() < HEADER {
            return Err(foreign());
        }
        let found = about.uid();
        if ![0, geteuid().as_raw()].contains(&found) && owner != Owner::Also(found) {
            return Err(ShmError::Owner { path: path.to_owned(), found });
        }
        let field = |at| -> Result<u64, ShmError> {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, at).map_err(|e| system("read", e))?;
            Ok(u64::from_le_bytes(bytes))
        };
        if field(header::MAGIC)? != MAGIC {
            return Err(foreign());
        }
        let found = field(header::VERSION)?;
        if found != VERSION {
            return Err(ShmError::Version { path: path.to_owned(), found });
        }
        let shape = Shape { peers: field(header::PEERS)?, memory: field(header::MEMORY)? };
        let layout = Layout::of(shape).ok_or_else(|| damaged("its sizes are impossible"))?;
        if layout.bytes != field(header::BYTES)? {
            return Err(damaged("its sizes contradict each other"));
        }
        if about.len() < layout.bytes {
            return Err(damaged("the file is shorter than it says"));
        }
        let salt = field(header::SALT)?;
        Segment::mapped(path, file, layout, salt)
    }

    fn mapped(path: &Path, file: File, layout: Layout, salt: u64) -> Result<Segment, ShmError> {
        let path = path.to_owned();
        let map = usize::try_from(layout.bytes)
            .map_err(|_| rustix::io::Errno::NOMEM)
            .and_then(|bytes| Map::new(file.as_fd(), bytes));
        match map {
            Ok(map) => Ok(Segment { path, file, map, layout, salt }),
            Err(e) => Err(ShmError::System { what: "map", path, error: e.into() }),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Processes that can take part.
    pub fn places(&self) -> u64 {
        self.layout.peers
    }

    /// Lets nobody join any more. Present participants learn of it by revoked keys.
    pub fn close(&self) {
        self.header(header::CLOSED).store(1, SeqCst);
    }

    /// Takes a [`Segment::close`] back.
    pub fn reopen(&self) {
        self.header(header::CLOSED).store(0, SeqCst);
    }

    /// The living peers, as seen from outside.
    pub fn peers(&self) -> Vec<Peer> {
        slots::living(self, Peer(0))
    }

    /// Removes the file, unless another is under its path by now.
    ///
    /// # Errors
    /// Another process removes it just now ([`ShmError::Exists`]), or the system refuses.
    pub fn remove(&self) -> Result<(), ShmError> {
        let system = |error| ShmError::System { what: "remove", path: self.path.clone(), error };
        if !slots::lock_for_removal(self)? {
            return Err(ShmError::Exists { path: self.path.clone() });
        }
        let mine = self.file.metadata().map_err(system)?;
        match std::fs::symlink_metadata(&self.path) {
            Ok(there) if (there.dev(), there.ino()) == (mine.dev(), mine.ino()) => {
                std::fs::remove_file(&self.path).map_err(system)
            }
            _ => Ok(()),
        }
    }

    /// Returns true if it was closed.
    pub fn is_closed(&self) -> bool {
        self.header(header::CLOSED).load(SeqCst) != 0
    }

    /// Publishes what clients need to know before they can ask anything. Written once, before others come.
    ///
    /// # Errors
    /// It is longer than [`NOTICE_BYTES`], or cannot be written.
    pub fn publish(&self, notice: &[u8]) -> Result<(), ShmError> {
        if notice.len() > NOTICE_BYTES {
            return Err(ShmError::Notice { most: NOTICE_BYTES, len: notice.len() });
        }
        let written = self.file.write_all_at(notice, header::NOTICE);
        written.map_err(|error| ShmError::System {
            what: "write",
            path: self.path.clone(),
            error,
        })?;
        self.header(header::NOTICE_LEN).store(notice.len() as u64, SeqCst);
        Ok(())
    }

    /// The published notice; empty before the publication.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn notice(&self) -> Result<Vec<u8>, ShmError> {
        let len =
            usize::try_from(self.header(header::NOTICE_LEN).load(SeqCst)).unwrap_or(usize::MAX);
        if len > NOTICE_BYTES {
            let what = "its notice is too long";
            return Err(ShmError::Damaged { path: self.path.clone(), what });
        }
        let mut notice = vec![0; len];
        let read = self.file.read_exact_at(&mut notice, header::NOTICE);
        read.map_err(|error| ShmError::System { what: "read", path: self.path.clone(), error })?;
        Ok(notice)
    }

    pub(super) fn salt(&self) -> u64 {
        self.salt
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// A word whose place comes from the layout, hence is inside.
    pub(super) fn header(&self, at: u64) -> &AtomicU64 {
        self.map.word(at).expect("what the layout names is inside")
    }

    /// As [`Segment::header`], half a word.
    pub(super) fn half(&self, at: u64) -> &AtomicU32 {
        self.map.half(at).expect("what the layout names is inside")
    }

    /// A word of the memory that is registered; `None` if it is not inside.
    pub(super) fn memory(&self, offset: u64) -> Option<&AtomicU64> {
        if offset >= self.layout.memory_bytes {
            return None;
        }
        self.map.word(self.layout.memory(offset))
    }
}

/// A file that is not complete yet, or whose name somebody else has.
struct Draft(PathBuf);

impl Drop for Draft {
    fn drop(&mut self) {
        // Gone if it was given its name.
        let _ = std::fs::remove_file(&self.0);
    }
}
