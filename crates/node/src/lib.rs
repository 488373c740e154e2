//! One running lock-manager node: the state machines of `lockify-core` with sockets, timers and
//! membership around them, in one single-threaded event loop ([`Engine`]).
#![forbid(unsafe_code)]

mod clock;
mod config;
mod conn;
mod engine;
mod error;
mod event;
mod history;
pub mod membership;
mod notice;
mod query;
mod shard;
pub mod wire;

pub use config::{NodeAddress, NodeConfig, SpaceConfig, list_digest};
pub use engine::{Engine, HOST_TOKENS};
pub use error::{CallError, NodeError};
pub use event::{HostEvent, SpaceId};
pub use membership::{NodeView, SpaceView};
pub use notice::{Level, Notice};
pub use query::{Answer, EngineStats, NodeStatus, PeerStatus, Query, QueryId, SpaceStatus, merge};
pub use shard::{ShardGroup, shard_of};
