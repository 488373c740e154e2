//! Files that one process at a time uses.

use std::fs::File;
use std::io;
use std::ops::Deref;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// A file that is locked (flock(2)) until this is dropped.
#[derive(Debug)]
pub struct LockedFile(File);

impl LockedFile {
    /// Locks a file; `None`: somebody else has.
    ///
    /// # Errors
    /// It cannot be locked.
    pub fn try_lock(file: File) -> io::Result<Option<LockedFile>> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(LockedFile(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// A file that the program before this one has locked, and left to it.
    pub fn inherited(file: File) -> LockedFile {
        LockedFile(file)
    }
}

impl Deref for LockedFile {
    type Target = File;
    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // Closing it would not do while a process that another thread is just starting has it, too.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child has all descriptors until it starts its program; that may take a while.
    #[test]
    fn a_file_that_was_given_up_is_free_beside_a_process_that_is_just_starting() {
        let dir = tempfile::tempdir().unwrap();
        let open = || File::create(dir.path().join("lock")).unwrap();
        let first = LockedFile::try_lock(open()).unwrap().unwrap();
        assert!(LockedFile::try_lock(open()).unwrap().is_none());
        let child = first.try_clone().unwrap();
        drop(first);
        assert!(LockedFile::try_lock(open()).unwrap().is_some());
        drop(child);
    }
}
