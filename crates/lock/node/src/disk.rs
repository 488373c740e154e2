//! The membership service's state on disk: one file for each shard, replaced whole.
//!
//! A thread of its own writes, so that a slow or full disk delays only messages that depend on
//! durable state. A lock on the directory keeps a second process of the node out.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};

use lockify_membership::log::highest_view;
use lockify_trust::{LockedFile, Mailbox};

use crate::error::NodeError;
use crate::news::News;
use crate::notice::{Level, Notice};

/// A state is small; a file longer than this is none.
const LONGEST: u64 = 64 << 20;

/// Where a shard keeps its membership's state.
#[derive(Debug)]
pub(crate) struct Disk {
    file: PathBuf,
    /// Held while the process runs.
    _lock: LockedFile,
    work: Option<Sender<(u64, Vec<u8>)>>,
}

fn failed(path: &Path, what: &str, error: &std::io::Error) -> NodeError {
    NodeError::Config(format!(
        "state_dir: cannot {what} {}: {error}; make it a directory of the daemon's user alone, on a \
         disk that survives restarts",
        path.display()
    ))
}

impl Disk {
    /// Opens a shard's place in this directory, which is made if it is not there.
    ///
    /// # Errors
    /// The directory cannot be used, or another process uses it.
    pub(crate) fn open(dir: &Path, shard: u32) -> Result<Disk, NodeError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(|e| failed(dir, "make", &e))?;
        let path = dir.join(format!("lock.{shard}"));
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let lock = lock.map_err(|e| failed(&path, "open", &e))?;
        let lock = LockedFile::try_lock(lock).map_err(|e| failed(&path, "lock", &e))?;
        let lock = lock.ok_or_else(|| {
            NodeError::Config(format!(
                "state_dir {}: another process of this node uses it: stop that one, or give each \
                 node a directory of its own",
                dir.display()
            ))
        })?;
        Ok(Disk { file: dir.join(format!("membership.{shard}")), _lock: lock, work: None })
    }

    /// The state that was written last; `None`: none ever was.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read(&self) -> Result<Option<Vec<u8>>, NodeError> {
        read(&self.file)
    }

    /// The highest number of a view that any shard has written here: with another number of shards, names that
    /// were one's are another's, and their tokens go on.
    ///
    /// # Errors
    /// A state cannot be read.
    pub(crate) fn floor(&self) -> Result<u64, NodeError> {
        let dir = self.file.parent().unwrap_or(Path::new("/"));
        let mut highest = 0;
        for entry in dir.read_dir().map_err(|e| failed(dir, "list", &e))? {
            let path = entry.map_err(|e| failed(dir, "list", &e))?.path();
            let image = if is_state(&path) { read(&path)? } else { None };
            let Some(image) = image else { continue };
            let bad = |e| NodeError::Config(format!("state_dir: {}: {e}", path.display()));
            highest = highest_view(&image).map_err(bad)?.max(highest);
        }
        Ok(highest)
    }

    /// Writes, and returns when the disk has it: for a node that has not begun to serve.
    pub(crate) fn write_now(&self, image: &[u8]) -> std::io::Result<()> {
        replace(&self.file, image)
    }

    /// Writes, on a thread; its end comes to the mailbox as [`News::Persisted`].
    pub(crate) fn write(&mut self, number: u64, image: Vec<u8>, mailbox: &Mailbox<News>) {
        if self.work.is_none() {
            self.work = writer(self.file.clone(), mailbox.clone());
        }
        let sent = self.work.as_ref().is_some_and(|w| w.send((number, image)).is_ok());
        if !sent {
            self.work = None;
            mailbox.post(News::Persisted { number, success: false });
        }
    }
}

/// Starts the thread that writes; `None`: there can be none now.
fn writer(file: PathBuf, mailbox: Mailbox<News>) -> Option<Sender<(u64, Vec<u8>)>> {
    let (send, receive) = channel::<(u64, Vec<u8>)>();
    let write = move || {
        let mut complaint = String::new();
        for (number, image) in receive {
            let result = replace(&file, &image);
            let success = result.is_ok();
            let text = result.err().map_or_else(String::new, |e| {
                format!(
                    "cannot write {}: {e}; nothing is agreed on with this node until it can; trying again",
                    file.display()
                )
            });
            if !success && complaint != text {
                mailbox.post(News::Notice(Notice { level: Level::Error, text: text.clone() }));
            }
            complaint = text;
            mailbox.post(News::Persisted { number, success });
        }
    };
    std::thread::Builder::new().name("lockify-state".into()).spawn(write).ok().map(|_| send)
}

/// Returns true if this is a shard's state, and not one that is being written.
fn is_state(path: &Path) -> bool {
    let number = |e: &std::ffi::OsStr| e.to_str().is_some_and(|e| e.parse::<u32>().is_ok());
    path.file_stem().is_some_and(|s| s == "membership") && path.extension().is_some_and(number)
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, NodeError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(path, "open", &e)),
    };
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).map_err(|e| failed(path, "read", &e))?;
    Ok(Some(bytes))
}

/// Puts `bytes` in the file's place: whole, and on the disk when this returns.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension(format!(
        "{}.new",
        path.extension().and_then(|e| e.to_str()).unwrap_or_default()
    ));
    let mut file =
        OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    // The name is durable, too.
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_replaced_whole_and_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/state");
        let disk = Disk::open(&path, 0).unwrap();
        assert_eq!(disk.read().unwrap(), None);
        replace(&disk.file, b"one").unwrap();
        replace(&disk.file, b"two").unwrap();
        assert_eq!(disk.read().unwrap().as_deref(), Some(b"two".as_slice()));
    }

    #[test]
    fn a_second_process_of_the_node_is_refused_and_another_shard_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let _first = Disk::open(dir.path(), 0).unwrap();
        let second = Disk::open(dir.path(), 0).unwrap_err().to_string();
        assert!(second.contains("another process"), "{second}");
        Disk::open(dir.path(), 1).unwrap();
    }

    /// A child has all descriptors until it starts its program; that may take a while.
    #[test]
    fn a_node_that_has_ended_can_start_again_beside_a_process_that_is_just_starting() {
        let dir = tempfile::tempdir().unwrap();
        let first = Disk::open(dir.path(), 0).unwrap();
        let child = first._lock.try_clone().unwrap();
        drop(first);
        Disk::open(dir.path(), 0).unwrap();
        drop(child);
    }
}
