//! Memory that direct I/O takes: it has to begin at a multiple of the medium's block.

use std::ops::{Deref, DerefMut};

use bytes::Bytes;

/// The alignment of memory for direct I/O: the largest block of common media.
const ALIGN: usize = 4096;

/// Zeroed bytes that begin at a multiple of [`ALIGN`].
pub(super) struct Buffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    pub fn new(length: usize) -> Buffer {
        let memory = vec![0; length + ALIGN];
        // May be usize::MAX by its contract, though never for bytes: an unaligned buffer would be refused by the system.
        let start = memory.as_ptr().align_offset(ALIGN).min(ALIGN);
        Buffer { memory, start, length }
    }

    /// The same bytes, shared.
    pub fn freeze(self) -> Bytes {
        Bytes::from(self.memory).slice(self.start..self.start + self.length)
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
