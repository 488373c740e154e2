//! The session protocol between a local program and its lock daemon.
//!
//! [`protocol`] has the messages, [`codec`] their frames, and this page the addresses of sockets.
#![forbid(unsafe_code)]

mod address;
pub mod codec;
pub mod protocol;

pub use address::{Named, is_abstract, names_of, shard_path, socket_address};
