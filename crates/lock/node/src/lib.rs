//! One running lock-manager node: the state machines of `lockify-core` with sockets, timers and
//! membership around them, in one single-threaded event loop ([`NodeEngine`]).
#![forbid(unsafe_code)]

mod clock;
mod cluster;
mod config;
mod conn;
mod disk;
mod engine;
mod error;
mod event;
mod fence;
mod history;
mod lines;
pub use lockify_membership as membership;
mod news;
mod notice;
mod outbox;
mod pace;
mod page;
mod poller;
mod query;
mod shard;
pub mod wire;

pub use cluster::{ClusterList, ClusterNode};
pub use config::{CorosyncConfig, Given, NodeAddress, NodeConfig, SpaceConfig, StateDir};
pub use engine::{EngineImage, HOST_TOKENS, NodeEngine, REQUESTS, lock_label, requests_are_logged};
pub use error::{CallError, NodeError};
pub use event::{HostEvent, SpaceId};
pub use fence::{FenceConfig, run_agent};
pub use history::{History, file_of as history_file};
pub use lines::{Apology, Lines, Weight};
pub use lockify_trust::Security;
pub use membership::{FenceKind, Halt, NodeView, SpaceView, Standing};
pub use notice::{Level, Notice};
pub use pace::Pace;
pub use page::{MOST_PER_PAGE, PageOf, Rest};
pub use poller::Poller;
pub use query::{
    Answer, Certificate, EngineStats, NodeStatus, PeerStatus, Query, QueryId, Software,
    SpaceStatus, merge,
};
pub use shard::{ShardGroup, shard_of};
