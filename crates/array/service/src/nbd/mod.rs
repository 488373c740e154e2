//! An array as a network block device, for the existing clients: Linux, QEMU, libnbd, fio.
//!
//! A [`Server`] listens on a Unix socket or by TCP and serves one [`Export`]. It speaks the fixed newstyle handshake and
//! structured replies (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>). The published crates `nbd` and
//! `tokio-nbd` have neither structured replies nor several requests under way.
//!
//! - **A request is one host operation**, isolated from those of all other clients of all hosts. Requests that are longer than
//!   [`SPLIT`] are split at stripes, and each piece is isolated by itself.
//! - **Requests have any length and begin anywhere.** A write of a part of a block is one transaction that reads the block and
//!   writes it ([`Work::Patch`]). So hosts that write different parts of one block lose nothing.
//! - **Replies come in the order in which operations end.** Nothing is cached, so a flush on any connection is one for all.
//! - **Bounded**: there are limits of connections ([`CONNECTIONS`]; further clients are told why), and of requests and bytes for each ([`REQUESTS`],
//!   [`BYTES`]). A client that sends more, or does not read its replies, waits and delays nobody else.
//! - **TLS, if the server has keys.** Clients begin it first (`NBD_OPT_STARTTLS`), and prove that they are nodes of the cluster.
//! - **Half a request has no effect.** Work that was begun when a client disappears is finished.

mod budget;
mod channel;
mod error;
mod handshake;
mod server;
mod session;
mod stream;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod transfer;
mod wire;

use std::sync::Arc;

use lockify_array::{Span, Work};

use crate::host::{Array, Done};
use crate::{ArrayFile, Durability};

pub use error::ListenError;
pub use server::{Ended, Server, Stopper};
pub use stream::{Listen, OPEN_TO_NETWORK};

/// The longest read or write, bytes: what clients assume that are told nothing.
pub const MAX_REQUEST: u32 = 32 * 1024 * 1024;
/// Requests longer than this are split, bytes; unless a stripe is longer.
pub const SPLIT: u32 = 1024 * 1024;
/// Connections at a time; further clients are told so, and served nothing.
pub const CONNECTIONS: usize = 64;
/// Requests of a connection that are under way, at most.
pub const REQUESTS: usize = 128;
/// Bytes of data that a connection's requests have, at most.
pub const BYTES: usize = MAX_REQUEST as usize;

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
    fn now(self: Arc<Export>, backend: &dyn Backend) -> Arc<Export> {
        let size = backend.blocks().map_or(self.size, |blocks| blocks * u64::from(self.block_size));
        if size == self.size { self } else { Arc::new(Export { size, ..(*self).clone() }) }
    }

    fn is_named(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// The blocks that have these bytes.
    fn blocks(&self, offset: u64, length: u64) -> Span {
        let block = u64::from(self.block_size);
        let start = offset / block;
        Span { start, count: offset.saturating_add(length).div_ceil(block) - start }
    }

    /// The length of the pieces that long requests are split into, bytes: whole stripes, if one fits.
    fn piece(&self) -> u64 {
        let whole = u64::from(SPLIT) / self.stripe.max(1) * self.stripe;
        if whole > 0 { whole } else { self.stripe.min(MAX_REQUEST.into()) }
    }
}
