//! Tables of locks in remote memory, as users run them.
//!
//! A [`Server`] registers a table and publishes what clients have to know (`notice.rs`); a [`Remote`] is a client of
//! it. Both are on the fabric of shared memory: processes of one machine. A [`NetworkServer`] does the same with RDMA:
//! clients find it at a rendezvous. The protocols are in `lockify-onesided`, the
//! fabric in `lockify-fabric`; nothing here touches a lock word.
//!
//! On other fabrics, whose clients are elsewhere, a [`rendezvous`] tells them how to reach the table, and each other.
#![forbid(unsafe_code)]

mod client;
mod courier;
mod network;
mod notice;
pub mod rendezvous;
mod server;

pub use client::{ConnectError, Joining, Remote, lock_of};
pub use courier::CourierError;
pub use network::{Listening, NetworkServer};
pub use server::{ServeError, Server, Settings};
