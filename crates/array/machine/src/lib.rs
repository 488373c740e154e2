//! A shared array: hosts read and write the same stripes of several devices, without a coordinator.
//!
//! Each host does the work of a RAID controller for its own applications. It breaks a *host operation* down into requests
//! to devices, in two phases ([`plan`]). One of five [`Scheme`]s makes operations serializable and keeps stripes
//! consistent. [`ArrayHost`], [`Device`] and `LockServer` are state machines without sockets, clock, disk or threads. `handle`
//! takes inputs, `poll` gives outputs, and `next_timer` says when to call with a tick.
//!
//! The design is in docs/design/array.md. Its source is Amiri, Gibson, Golding, *Highly concurrent shared storage*.
#![forbid(unsafe_code)]

mod agreement;
mod code;
mod device;
mod galois;
mod host;
mod ids;
mod io;
mod layout;
pub mod message;
#[cfg(feature = "mutations")]
pub mod mutation;
mod node;
mod options;
pub mod plan;
mod recovery;
mod server;
mod state;
mod units;

pub use agreement::{Agree, Agreed, Ballot};
pub use device::{
    Attended, BootError, Device, DeviceBoot, DeviceConfig, DeviceInput, DeviceOutput, MediumCounts,
    RecordView,
};
pub use host::{ArrayHost, GiveBack, HostConfig, HostCounts, HostInput, HostOutput};
pub use ids::{DeviceId, Epoch, HostId, Life, OpId, ServerId, Stamp, Ticket, Time};
pub use io::{
    BadBlock, Block, BlockError, DeviceEvent, DiskAnswer, DiskAsk, DiskError, DiskToken, Extent,
    Header, HostAnswer, OpError, Outlook, Peer, Work,
};
pub use layout::{Added, AddedGroup, Layout, LayoutError, MOST_ADDED, Place, Redundancy, Span};
pub use node::{Node, NodeName, Nodes, Usage};
pub use options::{Scheme, UnknownScheme};
pub use server::{
    CopyMessage, Held, LockChange, LockMode, LockRange, LockServer, LockService, LogAsk, LogToken,
    PartId, Replica, ReplicaConfig, ReplicaInput, ReplicaOutput, ServerConfig, ServerError,
    ServerInput, ServerOutput, ServerReply, ServerRequest,
};
pub use state::{ArrayState, Change, Condition, Group, LONGEST_ADDRESS, Member, Term};
pub use units::{Skipped, Units};
