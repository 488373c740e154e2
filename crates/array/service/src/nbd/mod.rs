//! An array as a network block device, for the existing clients: Linux, QEMU, libnbd, fio.
//!
//! A [`Server`] listens on a Unix socket or by TCP and serves one [`Export`](crate::door::Export). It speaks the fixed
//! newstyle handshake and structured replies
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>). The published crates `nbd` and `tokio-nbd` have
//! neither structured replies nor several requests under way.
//!
//! - **A request is one host operation**, isolated from those of all other clients of all hosts. Requests that are longer than
//!   [`SPLIT`](crate::door::SPLIT) are split at stripes, and each piece is isolated by itself.
//! - **Requests have any length and begin anywhere.** A write of a part of a block is one transaction that reads the block and
//!   writes it ([`Work::Patch`](lockify_array::Work::Patch)). So hosts that write different parts of one block lose nothing.
//! - **Replies come in the order in which operations end.** Nothing is cached, so a flush on any connection is one for all.
//! - **Bounded**: there are limits of connections ([`CONNECTIONS`]; further clients are told why), and of requests and bytes
//!   for each ([`REQUESTS`], [`BYTES`]). A client that sends more, or does not read its replies, waits and delays nobody else.
//! - **TLS, if the server has keys.** Clients begin it first (`NBD_OPT_STARTTLS`), and prove that they are nodes of the cluster.
//! - **Half a request has no effect.** Work that was begun when a client disappears is finished.

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
mod wire;

use crate::door::MAX_REQUEST;

pub use error::ListenError;
pub use server::{Ended, Server};
pub use stream::{Listen, OPEN_TO_NETWORK};

/// Connections at a time; further clients are told so, and served nothing.
pub const CONNECTIONS: usize = 64;
/// Requests of a connection that are under way, at most.
pub const REQUESTS: usize = 128;
/// Bytes of data that a connection's requests have, at most.
pub const BYTES: usize = MAX_REQUEST as usize;
