//! The lock daemon: what `lockify serve` runs.
//!
//! One process per node. Each shard is one thread with one event loop, in which the engine of the
//! shard ([`lockify_node::NodeEngine`]) and the sessions of local clients
//! ([`lockify_session::protocol`]) take turns, so that an uncontended lock costs one round trip on
//! the socket and no hop between threads.
//!
//! No client can hurt the others: the number of sessions and of locks of a session and of a user is
//! limited, each lockspace says which users may use it, a client that does not read its events is
//! disconnected, requests are not read while a peer node does not keep up, and no session has more
//! than a fixed number of requests handled in a row.
#![deny(unsafe_code)]

mod config;
mod daemon;
mod handover;
mod keys;
mod listener;
mod log;
mod manager;
mod metrics;
mod predecessor;
mod preflight;
mod reload;
mod remote;
mod session;
mod shard;
mod user;

pub use config::{
    Access, Address, Changes, Config, ConfigError, FORMS, Fabric, Fence, Fencing, Form, Limits,
    LogFormat, Logging, MembershipKind, Metrics, NodeEntry, QuorumLost, QuorumLostAction,
    SecurityEntry, SpaceEntry,
};
pub use daemon::{Daemon, Error, Handle, run};
pub use listener::SocketError;
pub use log::Log;
pub use preflight::{become_daemons_user, obstacles};
