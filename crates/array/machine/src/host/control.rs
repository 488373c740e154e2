//! The interface between the engine of host operations and the five schemes: the messages of a sibling's two phases.
//!
//! A scheme with a lock server asks it before phase 1 ([`super::engine::Phase::Gate`]) and informs it afterwards. Its messages
//! to devices are those of `zero.rs`.

use super::HostConfig;
use super::device_locks::DeviceLocks;
use super::tso::Tso;
use super::zero::Zero;
use crate::message::{Action, Blocks, Past};
use crate::plan::Access;
use crate::{Layout, Scheme, Time};

/// The parameters of a message beside the access itself.
pub(super) struct Context<'a> {
    pub layout: &'a Layout,
    /// The operations whose locks and pre-writes do not count.
    pub past: &'a Past,
    /// The operation is a repair.
    pub repairs: bool,
    /// A read that was rejected so often that writes have to wait for it.
    pub starving: bool,
    /// How long to wait for a lock.
    pub patience: Time,
}

/// A message of phase 2.
pub(super) struct Second {
    pub action: Action,
    /// The caller does not wait for its answer.
    pub hidden: bool,
}

/// The messages of a scheme.
pub(super) trait Control: Send {
    /// Phase 1 of an access; `None` if there is nothing to send.
    fn first(&self, context: &Context<'_>, access: &Access) -> Option<Action>;

    /// Phase 2 of an access; `blocks` are the blocks to write, if there are any. `repairs`: the operation is a repair.
    fn second(&self, access: &Access, blocks: Option<Blocks>, repairs: bool) -> Option<Second>;

    /// The message that cancels phase 1; `None` if phase 1 left no state. `answered` is true if phase 1 succeeded. Otherwise
    /// there is no answer yet, or one that does not exclude leftover state.
    fn give_up(&self, access: &Access, answered: bool) -> Option<Action>;
}

/// The scheme's messages to devices.
pub(super) fn of(config: &HostConfig) -> Box<dyn Control> {
    match config.scheme {
        Scheme::ZeroOverhead | Scheme::ServerLocking | Scheme::CallbackLocking => Box::new(Zero),
        Scheme::DeviceLocking => Box::new(DeviceLocks),
        Scheme::TimestampOrdering => Box::new(Tso),
    }
}
