//! The messages between hosts and the lock server (docs/design/array.md 2.1, 2.2 and 3.6).

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
    /// Returns true if two locks of different owners on one block exclude each other.
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
    /// The mode of the lock.
    pub mode: LockMode,
}

/// One range of a granted lock set. It is called back, and returned, on its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PartId {
    /// The operation whose `Lock` the part belonged to.
    pub op: OpId,
    /// Its place in that message, from 0.
    pub index: u16,
}

/// A part, and how it is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Held {
    /// The part.
    pub part: PartId,
    /// The mode of the part.
    pub mode: LockMode,
}

/// A host's request to the lock server. Each may arrive more than once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ServerRequest {
    /// The locks of this life of the host, in answer to [`ServerReply::Welcome`]. Locks that it does not name are free.
    /// Unanswered `Lock`s have to be sent again behind it.
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
        /// The owners whose locks do not count. They are a fenced life, for a repair of its unfinished writes
        /// (docs/design/array.md 3.2), or earlier tries that have written a part (docs/design/array.md 3.4).
        past: Past,
        /// It is a pass of a repair, which passes yielded locks.
        repair: bool,
    },
    /// The operation needs its locks no longer, or will not wait for them.
    Unlock {
        /// The operation that locks.
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
    /// Parts under which this host writes nothing any more. It keeps them only to hide its partial writes until they are done.
    /// Repairs may pass them, and so may reads by a try that continues another refused write. The try that continues the
    /// operation has locks of its own.
    Yield {
        /// The yielded parts.
        parts: Vec<PartId>,
    },
    /// Renew the host's lease, of all that is not called back.
    Renew,
    /// Grant nothing more to this life, and report its possible unfinished writes.
    Fence {
        /// The life to fence.
        life: Life,
    },
    /// Free a fenced life's locks: its unfinished writes have been repaired.
    Clear {
        /// The repaired life.
        life: Life,
    },
}

/// The lock server's reply to a host.
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
        /// The operation that is granted its locks.
        op: OpId,
        /// It waited for others.
        waited: bool,
        /// No write under a lock that is free now has a newer timestamp. Writes under these locks must have one.
        newest: Time,
    },
    /// The operation holds and waits for nothing more.
    Unlocked {
        /// The operation.
        op: OpId,
    },
    /// Others wait: give these parts back when those who use them have finished; no renewal counts for them any more.
    Callback {
        /// The parts that are called back.
        parts: Vec<PartId>,
        /// The others only want to read: exclusive locks may be kept as shared ones.
        shared: bool,
    },
    /// The lease was renewed.
    Renewed,
    /// This life is fenced.
    Fenced {
        /// The life that is suspect.
        life: Life,
        /// Its possible unfinished writes: its exclusive ranges. Empty for that life itself.
        ranges: Vec<LockRange>,
    },
    /// The fenced life's locks are free.
    Cleared {
        /// The life whose locks are free.
        life: Life,
    },
    /// The request makes no sense.
    Refused {
        /// The reason, for people.
        reason: String,
    },
}
