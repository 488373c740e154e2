//! Memory that direct I/O takes: it has to begin at a multiple of the medium's block.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use bytes::{Bytes, BytesMut};

/// The alignment of memory for direct I/O: the largest block of common media.
const ALIGN: usize = 4096;

/// Bytes that begin at a multiple of [`ALIGN`].
pub(super) struct Buffer {
    memory: BytesMut,
    start: usize,
    length: usize,
}

/// Memory of former reads that nobody uses any more. To zero new memory for each read takes as long as its checksums.
#[derive(Default)]
pub(super) struct Pool(Mutex<VecDeque<Bytes>>);

/// Buffers that a pool keeps in view. A device has few reads under way that nobody has answered.
const KEPT: usize = 32;
/// How many of them are looked at for one that is free: the oldest ones.
const LOOKS: usize = 4;

impl Pool {
    /// A buffer with any content.
    pub fn take(&self, length: usize) -> Buffer {
        match self.free(length + ALIGN) {
            Some(memory) => Buffer::of(memory, length),
            None => Buffer::new(length),
        }
    }

    fn free(&self, length: usize) -> Option<BytesMut> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |memory: &Bytes| memory.len() >= length && memory.is_unique();
        let at = kept.iter().take(LOOKS).position(fits)?;
        kept.remove(at)?.try_into_mut().ok()
    }

    /// The same bytes, shared. Their memory comes back when nobody has them.
    pub fn freeze(&self, buffer: Buffer) -> Bytes {
        let Buffer { memory, start, length } = buffer;
        let memory = memory.freeze();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(memory.clone());
        memory.slice(start..start + length)
    }
}

impl Buffer {
    /// Zeroed bytes.
    pub fn new(length: usize) -> Buffer {
        Buffer::of(BytesMut::zeroed(length + ALIGN), length)
    }

    fn of(memory: BytesMut, length: usize) -> Buffer {
        // May be usize::MAX by its contract, though never for bytes: an unaligned buffer would be refused by the system.
        let start = memory.as_ptr().align_offset(ALIGN).min(ALIGN);
        Buffer { memory, start, length }
    }

    /// The same bytes, shared.
    pub fn freeze(self) -> Bytes {
        self.memory.freeze().slice(self.start..self.start + self.length)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_when_nobody_has_it() {
        let pool = Pool::default();
        let mut first = pool.take(4096);
        first.fill(7);
        let place = first.as_ptr();
        let held = pool.freeze(first);
        assert_ne!(pool.take(4096).as_ptr(), place, "somebody has these bytes");
        assert!(held.iter().all(|byte| *byte == 7));
        drop(held);
        assert_ne!(pool.take(2 * 4096).as_ptr(), place, "it is too short");
        assert_eq!(pool.take(4096).as_ptr(), place);
    }

    #[test]
    fn a_pool_keeps_a_bounded_number_of_buffers_in_view() {
        let pool = Pool::default();
        let all: Vec<Bytes> = (0..2 * KEPT).map(|_| pool.freeze(pool.take(512))).collect();
        assert_eq!(pool.0.lock().unwrap().len(), KEPT);
        drop(all);
    }
}
