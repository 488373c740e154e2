//! Cluster-wide locks for Rust programs.
//!
//! ```no_run
//! use lockify_client::{Client, Mode};
//!
//! let client = Client::open()?;
//! let space = client.lockspace("default")?;
//! let guard = space.lock("the one database", Mode::EX)?;
//! println!("writing with fencing token {}", guard.token());
//! guard.unlock()?;
//! # Ok::<(), lockify_client::Error>(())
//! ```
//!
//! The same calls work blocking and async (futures of no particular runtime), and against a daemon
//! ([`Client::open`], [`Client::connect`]) or with the node inside the process ([`Client::embedded`]).
//!
//! # Threads
//! A blocking call does its work on the calling thread. One background thread per session and
//! shard serves what comes while no blocking call waits: blocking notices, losses, async
//! operations and, with an embedded node, peers' messages and timers. Callbacks run on a further
//! thread, one after the other; they may make blocking calls.
#![forbid(unsafe_code)]

mod callbacks;
mod channel;
mod client;
mod dialing;
pub mod domain;
mod embedded;
mod error;
mod guard;
mod interrupt;
pub mod raw;
mod sleeper;
mod slot;
mod socket;
mod space;
mod table;
mod transport;

pub use client::{Client, ClusterStatus};
pub use dialing::dialing;
pub use embedded::EmbeddedConfig;
pub use error::Error;
pub use guard::{Conversion, ConvertBuilder, Converted, Guard, UnlockBuilder};
pub use interrupt::{Interrupt, interruptible};
pub use lockify_core::{
    ClientId, Clients, Error as CallRefusal, LockArgs, LockFlags, LockId, LostReason, Lvb, Mode,
    Name, NodeId, ResourceInfo, SbFlags, Stats, Status, UnlockFlags,
};
pub use lockify_node::{
    FenceKind, NodeAddress, NodeConfig, NodeStatus, SpaceConfig, SpaceStatus, Standing, StateDir,
    shard_of,
};
/// The words of [`raw`] sessions, and of some errors.
pub use lockify_session::protocol;
pub use space::{ClusterView, LockBuilder, Lockspace, Page, Which};
pub use table::LostLock;

fn nanoseconds(d: std::time::Duration) -> u64 {
    d.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// Compiles and runs the example of `docs/fencing-tokens.md`.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/fencing-tokens.md")]
struct FencingTokens;
