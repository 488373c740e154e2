//! A shared array: hosts read and write the same stripes of several devices, and none of them is in charge.
//!
//! Each host does for its own applications what a RAID controller does: it breaks a *host operation* down into requests to
//! devices, in two phases ([`plan`]), and makes sure by one of five [`Scheme`]s that operations are serializable and that
//! stripes stay consistent. [`Host`], [`Device`] and `LockServer` are state machines: no sockets, no clock, no disk and no
//! threads. One function in (`handle`), one out (`poll`), and `next_timer` says when to call with a tick.
//!
//! The design is in docs/design/array.md; its source is Amiri, Gibson, Golding, *Highly concurrent shared storage*.
#![forbid(unsafe_code)]

mod agreement;
mod device;
mod host;
mod ids;
mod io;
mod layout;
pub mod message;
#[cfg(feature = "mutations")]
pub mod mutation;
mod options;
pub mod plan;
mod recovery;
mod server;
mod state;

pub use agreement::{Agree, Agreed, Ballot};
pub use device::{BootError, Device, DeviceBoot, DeviceConfig, DeviceInput, DeviceOutput};
pub use host::{Host, HostConfig, HostCounts, HostInput, HostOutput};
pub use ids::{DeviceId, Epoch, HostId, Life, OpId, Stamp, Ticket, Time};
pub use io::{
    BadBlock, Block, BlockError, DeviceEvent, DiskAnswer, DiskAsk, DiskError, DiskToken, Extent,
    Header, HostAnswer, OpError, Peer, Work,
};
pub use layout::{Layout, LayoutError, Place, Redundancy, Span};
pub use options::{Scheme, UnknownScheme};
pub use server::{
    Held, LockMode, LockRange, LockServer, LogAsk, LogToken, PartId, ServerConfig, ServerError,
    ServerInput, ServerOutput, ServerReply, ServerRequest,
};
pub use state::{ArrayState, Change, Condition};
