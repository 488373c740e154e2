//! Memory that a device uses.
#![allow(unsafe_code, reason = "a library in C is called, and memory is shared with a device")]

use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::io;
use std::rc::Rc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::api::{self, access};
use super::device::Device;
use super::error::VerbsError;

/// Zeroed memory that the device may use.
pub(super) struct Memory {
    device: Rc<Device>,
    start: NonNull<c_void>,
    bytes: usize,
    mr: *mut api::Mr,
}

impl Memory {
    /// Memory of this end; with `shared`, others may use it by its key, at addresses from 0 on.
    pub fn new(device: &Rc<Device>, bytes: usize, shared: bool) -> Result<Memory, VerbsError> {
        let failed =
            |e: rustix::io::Errno| VerbsError::system(&device.name, "allocating memory", &e.into());
        let (protection, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the system chooses a place that nothing else uses. Anonymous memory: a device cannot use every file's.
        let start = unsafe { mmap_anonymous(null_mut(), bytes, protection, private) };
        let start = start.map_err(failed)?;
        let start = NonNull::new(start).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
        let rights = match shared {
            true => access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC,
            false => 0,
        };
        let rights = (access::LOCAL_WRITE | rights) as c_int;
        // SAFETY: the memory is there until the registration ends, see `drop`.
        let mr = unsafe { (device.api.reg_mr_iova)(device.pd, start.as_ptr(), bytes, 0, rights) };
        let error = io::Error::last_os_error();
        let memory = Memory { device: Rc::clone(device), start, bytes, mr };
        if mr.is_null() {
            return Err(VerbsError::system(&device.name, "registering memory", &error));
        }
        Ok(memory)
    }

    pub fn key(&self) -> u32 {
        // SAFETY: it is registered.
        unsafe { (*self.mr).rkey }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The value that the device has put into a word; `None` if there is no such word.
    pub fn word(&self, index: usize) -> Option<u64> {
        let at = index.checked_mul(8).filter(|at| at + 8 <= self.bytes)?;
        // SAFETY: it is inside and aligned. The device has written it before it said so; nothing of this process
        // writes there.
        let word = unsafe { &*self.start.as_ptr().cast::<u8>().add(at).cast::<AtomicU64>() };
        Some(word.load(Relaxed))
    }

    pub fn piece(&self, index: usize, bytes: usize) -> api::Sge {
        // SAFETY: it is registered. Addresses count from 0.
        let lkey = unsafe { (*self.mr).lkey };
        api::Sge { addr: (index * 8) as u64, length: bytes as u32, lkey }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the registration ends before its memory. If it does not, the memory stays.
        unsafe {
            if self.mr.is_null() || (self.device.api.dereg_mr)(self.mr) == 0 {
                let _ = munmap(self.start.as_ptr(), self.bytes);
            }
        }
    }
}
