//! Locks that live in another node's memory and are taken with one-sided verbs.
//!
//! A [`Fabric`] carries verbs and messages: RDMA hardware, shared memory, the simulator, or the [explorer](explore). The
//! protocols are written once over it, as sequential async code. That code has no clock, no thread, no randomness and no
//! runtime of its own: a fabric supplies all of these.
//!
//! A [`Table`] of locks lies in memory that its home has registered. Each [`Client`] takes locks of it by the
//! [`Protocol`] that all have agreed on ([`Options`]):
//!
//! ```
//! use lockify_onesided::{Client, Fabric, LockError, LockId, Mode, Options, Protocol, Released, Table};
//!
//! async fn work<F: Fabric>(fabric: F, table: Table) -> Result<(), LockError> {
//!     let options = Options::new(Protocol::ShiftLockS).with_lease(10_000_000);
//!     let mut client = Client::new(fabric, table, options)?;
//!     let guard = client.lock(LockId(7), Mode::Exclusive).await?;
//!     if client.holds(&guard) { /* touch what it protects, with guard.token() where the storage can check it */ }
//!     if client.unlock(guard).await? == Released::Revoked { /* somebody else may have been there */ }
//!     Ok(())
//! }
//! ```
//!
//! The protocols, their holes and how these are closed: docs/design/onesided.md.
#![forbid(unsafe_code)]

/// True if clients have to show one of these holes; constantly false without the feature.
macro_rules! mutated {
    ($options:expr, $($hole:ident)|+) => {{
        #[cfg(feature = "mutations")]
        let on = $options.mutation.is_some_and(|m| matches!(m, $(crate::mutation::Mutation::$hole)|+));
        #[cfg(not(feature = "mutations"))]
        let on = {
            let _ = &$options;
            false
        };
        on
    }};
}

mod client;
mod error;
pub mod explore;
pub mod fabric;
mod grant;
mod home;
mod letter;
mod memory;
#[cfg(feature = "mutations")]
pub mod mutation;
mod options;
pub mod port;
mod protocol;
mod session;
mod table;

pub use client::{Client, Guard, Released};
pub use error::LockError;
pub use fabric::{
    Address, Capabilities, Fabric, Key, MESSAGE_WORDS, Message, Nanos, Peer, Received, Region,
    RegionError, Verb, VerbError,
};
pub use home::{serve, serve_after};
pub use memory::Memory;
pub use options::{MAX_TURNOVER, Mode, Options, Protocol, UnknownProtocol};
pub use session::Counts;
pub use table::{Generation, LockId, Table, TableError};
