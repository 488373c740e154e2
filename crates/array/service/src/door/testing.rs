//! The common parts of the doors' tests: an array in memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use lockify_array::{HostAnswer, OpError, Span, Work};

use super::{Backend, Export};
use crate::host::Done;

/// Bytes per block.
pub const BLOCK: u32 = 4096;

/// An export of so many bytes, with stripes of four units of 64 KiB.
pub fn export(size: u64) -> Export {
    Export {
        name: "array".into(),
        description: "a test".into(),
        size,
        block_size: BLOCK,
        stripe: 256 * 1024,
        read_only: false,
        volatile: false,
    }
}

/// An array in memory.
#[derive(Default)]
pub struct Memory {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    flushes: usize,
    /// Work that waits to be let go, if it is held.
    held: Option<Vec<(Work, Done)>>,
    /// The block whose operations fail, and their error.
    broken: Option<(u64, OpError)>,
}

impl Memory {
    pub fn new(size: u64) -> Arc<Memory> {
        let state = State { bytes: vec![0; size as usize], ..State::default() };
        Arc::new(Memory { state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        self.state().bytes[offset..offset + length].to_vec()
    }

    pub fn flushes(&self) -> usize {
        self.state().flushes
    }

    /// From now on, work waits.
    pub fn hold(&self) {
        self.state().held = Some(Vec::new());
    }

    /// Waits until so many pieces of work wait, and takes them.
    pub fn held(&self, count: usize) -> Vec<(Work, Done)> {
        loop {
            let mut state = self.state();
            let held = state.held.as_mut().unwrap();
            if held.len() >= count {
                return std::mem::take(held);
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Does what waits, and from now on everything at once.
    pub fn resume(&self) {
        let held = self.state().held.take().unwrap();
        held.into_iter().for_each(|(work, done)| done(self.perform(&work)));
    }

    /// How many pieces of work wait.
    pub fn waiting(&self) -> usize {
        self.state().held.as_ref().map_or(0, Vec::len)
    }

    pub fn break_block(&self, block: u64, error: OpError) {
        self.state().broken = Some((block, error));
    }

    /// Does a piece of work at once.
    pub fn perform(&self, work: &Work) -> Result<HostAnswer, OpError> {
        let mut state = self.state();
        let range = |span: &Span| {
            let block = u64::from(BLOCK);
            (span.start * block) as usize..(span.end() * block) as usize
        };
        let touched = match work {
            Work::Read { span } | Work::Write { span, .. } => range(span),
            Work::Patch { start, data } => *start as usize..*start as usize + data.len(),
            _ => 0..0,
        };
        if let Some((block, error)) = &state.broken {
            let broken = range(&Span { start: *block, count: 1 });
            if touched.start < broken.end && broken.start < touched.end {
                return Err(error.clone());
            }
        }
        match work {
            Work::Read { span } => {
                Ok(HostAnswer::Read { data: Bytes::copy_from_slice(&state.bytes[range(span)]) })
            }
            Work::Write { span, data } => {
                state.bytes[range(span)].copy_from_slice(data);
                Ok(HostAnswer::Done)
            }
            Work::Patch { data, .. } => {
                state.bytes[touched].copy_from_slice(data);
                Ok(HostAnswer::Done)
            }
            _ => {
                assert_eq!(*work, Work::Flush);
                state.flushes += 1;
                Ok(HostAnswer::Done)
            }
        }
    }
}

impl Backend for Memory {
    fn submit(&self, work: Work, done: Done) {
        if let Some(held) = &mut self.state().held {
            return held.push((work, done));
        }
        done(self.perform(&work));
    }
}
