//! The Lockify lock manager as a state machine.
//!
//! One [`Lockspace`] is one node's part of one lockspace. It has no sockets, no clock, no threads
//! and no randomness: its host calls [`Lockspace::handle`] with the time and an [`Input`], then
//! pulls every [`Output`] with [`Lockspace::poll`], and calls again when [`Lockspace::next_timer`]
//! says so. The same function runs under the daemon, the simulator and the model checker.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

/// True if the lockspace has to show one of these defects; constantly false without the feature.
macro_rules! mutated {
    ($space:expr, $($defect:ident)|+) => {{
        #[cfg(feature = "mutations")]
        let on = $space.config.mutation.is_some_and(|m| matches!(m, $(crate::mutation::Mutation::$defect)|+));
        #[cfg(not(feature = "mutations"))]
        let on = false;
        on
    }};
}

mod barrier;
mod config;
mod crowd;
mod deadlock;
mod error;
mod flags;
mod grant;
mod ids;
mod inspect;
mod io;
pub mod link;
mod lock;
mod lvb;
mod mastery;
pub mod message;
mod mode;
#[cfg(feature = "mutations")]
pub mod mutation;
mod name;
mod ops;
mod owned;
mod queue;
mod recovery;
mod remote;
mod resource;
mod space;
mod store;
mod timers;
pub mod waits;

pub use config::{ClaimMode, Config, Policy, UnknownPolicy};
pub use error::{Error, Invalid, Status};
pub use flags::{LockFlags, SbFlags, UnlockFlags};
pub use ids::{ClientId, Clients, LockId, Member, NodeId, Time, View};
pub use inspect::{Defect, Footprint, LockInfo, RecoveryInfo, ResourceInfo, Seen, Wait, footprint};
pub use io::{
    Completion, ConvertArgs, Ended, Input, LockArgs, LostReason, Lvb, Output, Stats, Trace,
    UnlockArgs, WithdrawReason,
};
pub use message::Message;
pub use mode::{Mode, UnknownMode};
pub use name::{BadName, Name};
pub use queue::Queue;
pub use space::Lockspace;
