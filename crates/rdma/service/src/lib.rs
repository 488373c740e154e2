//! Tables of locks in remote memory, as users run them.
//!
//! A [`Server`] registers a table and publishes what clients have to know (`notice.rs`); a [`Remote`] is a client of
//! it. Both are on the fabric of shared memory: processes of one machine. A [`NetworkServer`] does the same with RDMA:
//! clients find it at a rendezvous. The protocols are in `lockify-onesided`, the
//! fabric in `lockify-fabric`; nothing here touches a lock word.
//!
//! On other fabrics, whose clients are elsewhere, a [`rendezvous`] tells them how to reach the table, and each other.
//!
//! [`mod@bench`] measures the protocols with processes of their own ([`Crew`]), and [`proof`] has their histories checked.
#![forbid(unsafe_code)]

pub mod bench;
mod client;
mod courier;
mod crew;
mod history;
mod network;
mod notice;
pub mod proof;
pub mod rendezvous;
mod server;
pub mod worker;

pub use client::{ConnectError, Joining, Remote, lock_of};
pub use courier::CourierError;
pub use crew::Crew;
pub use network::{Listening, NetworkServer};
pub use server::{ServeError, Server, Settings};
