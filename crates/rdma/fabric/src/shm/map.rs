//! The mapped file, as words.
#![allow(
    unsafe_code,
    reason = "memory that other processes change has to be mapped and looked at by hand"
)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::os::fd::BorrowedFd;

use rustix::io;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapping. All of it is looked at as atomics, since others change it at any time.
#[derive(Debug)]
pub(super) struct Map {
    start: NonNull<u8>,
    bytes: usize,
}

impl Map {
    pub fn new(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Map> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses a place that nothing else uses.
        let start =
            unsafe { mmap(core::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) }?;
        NonNull::new(start.cast()).map(|start| Map { start, bytes }).ok_or(io::Errno::NOMEM)
    }

    /// The word at this offset; `None` if it is not inside or not aligned.
    pub fn word(&self, offset: u64) -> Option<&AtomicU64> {
        let at = self.place::<AtomicU64>(offset)?;
        // SAFETY: `place` has checked bounds and alignment; the mapping lives as long as `self`, and all processes
        // that share it use atomics for these accesses.
        Some(unsafe { at.as_ref() })
    }

    /// The half word at this offset; `None` if it is not inside or not aligned.
    pub fn half(&self, offset: u64) -> Option<&AtomicU32> {
        let at = self.place::<AtomicU32>(offset)?;
        // SAFETY: as in `word`.
        Some(unsafe { at.as_ref() })
    }

    fn place<T>(&self, offset: u64) -> Option<NonNull<T>> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(size_of::<T>())?;
        if end > self.bytes || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: it is inside the mapping.
        Some(unsafe { self.start.byte_add(offset) }.cast())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new`, and no reference outlives `self`.
        // It cannot fail for a mapping that is there.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
