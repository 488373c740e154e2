//! One running lock-manager node: the state machines of `lockify-core` with sockets, timers and
//! membership around them, in one single-threaded event loop ([`Engine`]).
#![forbid(unsafe_code)]

mod config;
mod engine;
mod error;
mod event;
pub mod membership;
mod notice;
mod query;
mod shard;

pub use config::{NodeAddress, NodeConfig, SpaceConfig};
pub use engine::{Engine, HOST_TOKENS};
pub use error::{CallError, NodeError};
pub use event::{HostEvent, SpaceId};
pub use membership::{NodeView, SpaceView};
pub use notice::{Level, Notice};
pub use query::{Answer, NodeStatus, PeerStatus, Query, QueryId, SpaceStatus};
pub use shard::{ShardGroup, shard_of};
