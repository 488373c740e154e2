//! What hosts and the lock server say to each other (docs/design/array.md 2.1, 2.2 and 3.6).

use serde::{Deserialize, Serialize};

use crate::message::Past;
use crate::{DeviceId, Extent, Life, OpId, Time};

/// How a range is locked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LockMode {
    /// To read: others may, too.
    Shared,
    /// To write.
    Exclusive,
}

impl LockMode {
    /// Whether two locks of different owners on one block keep each other out.
    pub fn conflicts(self, other: LockMode) -> bool {
        self == LockMode::Exclusive || other == LockMode::Exclusive
    }
}

/// Blocks of one device, and how they are locked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LockRange {
    /// The device.
    pub device: DeviceId,
    /// Its blocks.
    pub extent: Extent,
    /// How.
    pub mode: LockMode,
}

/// One range of a lock set that was granted: what is called back, and given back, on its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PartId {
    /// Whose `Lock` it was part of.
    pub op: OpId,
    /// Its place in that message, from 0.
    pub index: u16,
}

/// A part, and how it is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Held {
    /// The part.
    pub part: PartId,
    /// How.
    pub mode: LockMode,
}

/// What hosts ask of the lock server. All of it may arrive more than once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ServerRequest {
    /// What this life of the host holds, in answer to [`ServerReply::Welcome`]; what it does not name is free. `Lock`s that
    /// were not answered are to be sent again behind it.
    Register {
        /// The server's incarnation, from its `Welcome`.
        incarnation: u64,
        /// Parts that it holds.
        held: Vec<Held>,
        /// No timestamp that it has given to a write is newer.
        newest: Time,
    },
    /// Lock all of these ranges together. Renews the host's lease.
    Lock {
        /// For which try of an operation.
        op: OpId,
        /// The operation's whole lock set, parity included.
        ranges: Vec<LockRange>,
        /// Whose locks do not count: those of a fenced life, under which what it had in flight is repaired
        /// (docs/design/array.md 3.2), or of earlier tries that have written a part (docs/design/array.md 3.4).
        past: Past,
        /// It is a pass of a repair, which works past what was yielded.
        repair: bool,
    },
    /// The operation needs its locks no longer, or will not wait for them.
    Unlock {
        /// Which.
        op: OpId,
        /// No timestamp that its host has given to a write is newer.
        newest: Time,
    },
    /// Parts that a host gives back, called or not (callback locking).
    Relinquish {
        /// Parts that become free.
        free: Vec<PartId>,
        /// Exclusive parts that it goes on holding to read.
        shared: Vec<PartId>,
        /// No timestamp that the host has given to a write is newer.
        newest: Time,
    },
    /// Parts that this host writes nothing under any more, and keeps only so that nobody reads or writes what its operations
    /// have written in part before they are done: repairs may go past them, and to read whoever goes on from another such operation.
    /// What goes on with the operation has locks of its own.
    Yield {
        /// Which.
        parts: Vec<PartId>,
    },
    /// Renew the host's lease, of all that is not called back.
    Renew,
    /// Grant nothing more to this life, and say what it may have been writing.
    Fence {
        /// Whose.
        life: Life,
    },
    /// What the fenced life had in flight has been repaired: free its locks.
    Clear {
        /// Whose.
        life: Life,
    },
}

/// What the lock server says to hosts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ServerReply {
    /// The server does not know this life of the host yet, or has restarted: `Register`, within a lease.
    Welcome {
        /// Grows with every start of the server.
        incarnation: u64,
        /// How long a lease lasts from the sending of what renews it, in nanoseconds.
        lease: Time,
    },
    /// All ranges of the operation are locked.
    Granted {
        /// Which.
        op: OpId,
        /// It waited for others.
        waited: bool,
        /// Nothing that was written under locks that are free now has a newer timestamp: what is written under these is to have
        /// one.
        newest: Time,
    },
    /// The operation holds and waits for nothing more.
    Unlocked {
        /// Which.
        op: OpId,
    },
    /// Others wait: give these parts back when those who use them have finished; no renewal counts for them any more.
    Callback {
        /// Which.
        parts: Vec<PartId>,
        /// The others only want to read: what was exclusive may be kept shared.
        shared: bool,
    },
    /// The lease was renewed.
    Renewed,
    /// This life is fenced.
    Fenced {
        /// Which.
        life: Life,
        /// What it may have been writing: its exclusive ranges. Empty for that life itself.
        ranges: Vec<LockRange>,
    },
    /// The fenced life's locks are free.
    Cleared {
        /// Whose.
        life: Life,
    },
    /// The request makes no sense.
    Refused {
        /// Why.
        reason: String,
    },
}
