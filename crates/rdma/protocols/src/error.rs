//! Why a lock was not taken, or not released.

use crate::fabric::VerbError;
use crate::options::MAX_TURNOVER;
use crate::table::LockId;

/// Why a lock was not taken, or not released.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LockError {
    /// The table has no such lock.
    #[error("lock {} is not in a table of {locks} locks: use Table::lock_of to map keys to locks", .lock.0)]
    NoSuchLock {
        /// The lock.
        lock: LockId,
        /// How many there are.
        locks: u64,
    },
    /// This client has it already, and would wait for itself.
    #[error("this client holds lock {} already (two keys may share a lock): ask for each lock once", .0.0)]
    Held(LockId),
    /// The settings are impossible.
    #[error(
        "a generation has 1 to {MAX_TURNOVER} tickets and a batch at least one writer: correct turnover and batch"
    )]
    Settings,
    /// The protocol cannot repair a dead client's locks, so leases would be an empty promise.
    #[error(
        "{0} cannot repair what a dead client leaves: choose another protocol, or no lease (a lease of 0s)"
    )]
    NoLeases(&'static str),
    /// Clocks of clients do not agree, and the protocol needs that.
    #[error(
        "{0} needs clocks that agree, and this fabric does not promise that: choose another protocol"
    )]
    NoCommonClock(&'static str),
    /// A verb failed. The lock may have been taken; with leases others repair it.
    #[error(transparent)]
    Verb(#[from] VerbError),
}
