//! The common part of an array's doors: clients' requests for bytes become operations on blocks.
//!
//! A door is a way by which programs use an array as a block device, as [`nbd`](crate::nbd).

pub(crate) mod budget;
mod stopper;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod transfer;

use std::sync::Arc;

use lockify_array::{Span, Work};

use crate::host::{Array, Done};
use crate::{ArrayFile, Durability};

pub use stopper::Stopper;

/// The longest read or write, bytes: what clients assume that are told nothing.
pub const MAX_REQUEST: u32 = 32 * 1024 * 1024;
/// Requests longer than this are split, bytes; unless a stripe is longer.
pub const SPLIT: u32 = 1024 * 1024;

/// A client's command for the export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    Cache,
    WriteZeroes,
    BlockStatus,
    Other(u16),
}

impl Command {
    pub fn writes(self) -> bool {
        matches!(self, Command::Write | Command::WriteZeroes)
    }
}

/// A client's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    /// [`FUA`], and whatever else a door knows.
    pub flags: u16,
    pub command: Command,
    /// Whatever the client names it by in the reply.
    pub cookie: u64,
    /// In bytes.
    pub offset: u64,
    /// In bytes.
    pub length: u32,
}

/// A request's flag: the write is durable when it is answered. NBD's number.
pub(crate) const FUA: u16 = 1 << 0;

/// An error as clients understand it. NBD and Linux have the same numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Errno {
    /// The export is read-only.
    NotPermitted = 1,
    /// Reading or writing failed, and may do so again.
    Io = 5,
    /// The request makes no sense.
    Invalid = 22,
    /// A write beyond the end.
    NoSpace = 28,
    /// A fast way was asked for, and there is none.
    NotSupported = 95,
    /// The server is about to end.
    ShuttingDown = 108,
}

/// The executor of requests.
pub trait Backend: Send + Sync + 'static {
    /// Does a read, write or flush. `done` may be called on any thread, also before this returns, and does not wait.
    fn submit(&self, work: Work, done: Done);

    /// How many blocks there are now, if that may change. A client that connects gets this size.
    fn blocks(&self) -> Option<u64> {
        None
    }
}

impl Backend for Array {
    fn submit(&self, work: Work, done: Done) {
        Array::submit(self, work, done);
    }

    fn blocks(&self) -> Option<u64> {
        Some(Array::blocks(self))
    }
}

/// The exported array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// Its name; clients may also ask for the export without a name.
    pub name: String,
    /// A description for people.
    pub description: String,
    /// Bytes; whole blocks.
    pub size: u64,
    /// Bytes per block: requests in whole blocks serve best. At most [`SPLIT`].
    pub block_size: u32,
    /// Bytes of data per stripe.
    pub stripe: u64,
    /// Refuse writes.
    pub read_only: bool,
    /// Writes are durable only after a flush, so that a write with FUA needs one.
    pub volatile: bool,
}

impl Export {
    /// An array, under this name.
    pub fn of(array: &ArrayFile, name: String, description: String, read_only: bool) -> Export {
        let layout = &array.layout;
        let block = u64::from(layout.block_size);
        Export {
            name,
            description,
            size: layout.blocks() * block,
            block_size: layout.block_size,
            stripe: u64::from(layout.data) * u64::from(layout.unit) * block,
            read_only,
            volatile: array.durability == Durability::Flush,
        }
    }

    /// The export as a new client gets it: the array may have grown.
    pub(crate) fn now(self: Arc<Export>, backend: &dyn Backend) -> Arc<Export> {
        let size = backend.blocks().map_or(self.size, |blocks| blocks * u64::from(self.block_size));
        if size == self.size { self } else { Arc::new(Export { size, ..(*self).clone() }) }
    }

    pub(crate) fn is_named(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// The blocks that have these bytes.
    pub(crate) fn blocks(&self, offset: u64, length: u64) -> Span {
        let block = u64::from(self.block_size);
        let start = offset / block;
        Span { start, count: offset.saturating_add(length).div_ceil(block) - start }
    }

    /// The length of the pieces that long requests are split into, bytes: whole stripes, if one fits.
    pub(crate) fn piece(&self) -> u64 {
        let whole = u64::from(SPLIT) / self.stripe.max(1) * self.stripe;
        if whole > 0 { whole } else { self.stripe.min(MAX_REQUEST.into()) }
    }
}
