//! The messages between hosts, devices and lock servers. Every request has one answer. A request that is repeated after a
//! broken connection gets the same answer (docs/design/array.md 2).

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Agree, Agreed, ArrayState, BlockError, Epoch, Extent, Header, Life, OpId, Stamp, Time, Units,
};

/// Names a request, and its reply: one message of one sibling of one try of a host operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Call {
    /// The try.
    pub op: OpId,
    /// Which of its accesses. A device knows a sibling's locks and pre-writes by `op` and `sibling`.
    pub sibling: u32,
    /// Tells the messages of a sibling apart; it grows.
    pub step: u8,
}

/// From a host to a device or a lock server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// The operation and sibling of the request.
    pub call: Call,
    /// The operation's timestamp. Schemes without timestamps have them as well, for headers.
    pub stamp: Stamp,
    /// Since when devices' conditions are as the operation was planned by ([`ArrayState::since`]).
    pub epoch: Epoch,
    /// The requested action.
    pub action: Action,
}

/// The mode of a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Mode {
    /// With others that read.
    Shared,
    /// Exclusive: no other lock on the same block.
    Exclusive,
}

/// The operations whose locks and pre-writes do not delay a request.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Past {
    /// Nobody's but its own.
    #[default]
    Nobody,
    /// Earlier tries of the same host operation. They have written a part, and this try continues them (docs/design/array.md
    /// 3.4).
    Tries(Vec<OpId>),
    /// Those of a fenced life whose writes this operation repairs (docs/design/array.md 3.2).
    Life(Life),
}

impl Past {
    /// Returns true if this operation is among them.
    pub fn covers(&self, op: OpId) -> bool {
        match self {
            Past::Nobody => false,
            Past::Tries(tries) => tries.contains(&op),
            Past::Life(life) => op.life == *life,
        }
    }
}

/// Blocks on their way to a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Blocks {
    /// Where, and how many.
    pub extent: Extent,
    /// Their content, one behind the other.
    pub data: Bytes,
    /// The linkage record of all of them; `lost` and `lost_data` are not set here.
    pub header: Header,
    /// Those of them whose records say more.
    pub marks: Vec<Mark>,
}

/// The part of a record that each block of a write has for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Mark {
    /// Which block of those that are written, from 0.
    pub index: u32,
    /// Its content is lost ([`Header::lost`], docs/design/array.md 3.5). Only repairs mark any.
    pub lost: bool,
    /// The lost data units that it names, as parity ([`Header::lost_data`]).
    pub lost_data: Units,
    /// The newest write whose effect it is known to have, if a repair has made it (docs/design/array.md 3.8).
    pub content: Option<Stamp>,
}

impl Request {
    /// The state of the array that it has, if it has one.
    pub fn state_mut(&mut self) -> Option<&mut ArrayState> {
        match &mut self.action {
            Action::Install(state) | Action::Agree(Agree::Accept { state, .. }) => Some(state),
            _ => None,
        }
    }

    /// As [`Request::state_mut`].
    pub fn state(&self) -> Option<&ArrayState> {
        match &self.action {
            Action::Install(state) | Action::Agree(Agree::Accept { state, .. }) => Some(state),
            _ => None,
        }
    }
}

/// A host's action at a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Action {
    /// Read, with no control by the device.
    Read {
        /// Which blocks.
        extent: Extent,
        /// It is for a repair.
        repairs: bool,
    },
    /// Write, with no control by the device.
    Write {
        /// What to write.
        blocks: Blocks,
        /// It is for a repair. The record does not tell: a repair may keep that of a host's write.
        repairs: bool,
    },
    /// Timestamp ordering, phase 1: R (only `read`), P (only `write`) or RP (both) of docs/design/array.md 2.4. `read` and
    /// `write` need not be the same blocks.
    Prepare {
        /// Blocks to read.
        read: Option<Extent>,
        /// Blocks to pre-write.
        write: Option<Extent>,
        /// It is for a repair.
        repairs: bool,
        /// This read was rejected so often that newer writes have to wait for it.
        starving: bool,
        /// The operations whose pre-writes do not delay it.
        past: Past,
    },
    /// Timestamp ordering, phase 2: W. Not all that was pre-written has to be written; the pre-write ends anyway.
    Commit(Blocks),
    /// Timestamp ordering: C, the try is given up here.
    Cancel,
    /// Device-served locking: L, or LR if there is `read`.
    Lock {
        /// Blocks to lock.
        extent: Extent,
        /// The mode of the lock.
        mode: Mode,
        /// Blocks to read when the lock is there; within `extent`.
        read: Option<Extent>,
        /// It is for a repair.
        repairs: bool,
        /// How long the request may wait for the lock, in nanoseconds; then it is denied.
        patience: Time,
        /// The operations whose locks do not delay it.
        past: Past,
    },
    /// Device-served locking: WU, write and unlock.
    WriteUnlock(Blocks),
    /// Device-served locking: U.
    Unlock,
    /// Make durable everything answered before.
    Flush {
        /// The host's newest timestamp.
        newest: Time,
    },
    /// This life is alive, and keeps its locks. Every other request says so as well.
    Lease,
    /// Here is a newer state of the array.
    Install(Box<ArrayState>),
    /// A vote on the array's next state.
    Agree(Agree),
    /// Refuse this life and all earlier ones of its host from now on. The answer names its possible unfinished writes
    /// (docs/design/array.md 3.2).
    Fence {
        /// The life to fence.
        life: Life,
    },
    /// Drop this fenced life's unfinished writes: they have been repaired.
    Clear {
        /// The repaired life.
        life: Life,
    },
    /// Say which lives are fenced.
    ListFences,
    /// These lives are fenced: for a device that was away when they were.
    LearnFences {
        /// Of each host, the last one that is.
        lives: Vec<Life>,
    },
    /// This stripe has been checked and repaired: serve it again (docs/design/array.md 3.1.4).
    Repaired {
        /// The stripe.
        stripe: u64,
        /// The last pass over it, which found nothing left to mend.
        pass: OpId,
    },
    /// On a new connection: of the writes that this life sent before, none is left without an answer. A device that has
    /// restarted serves others only then.
    Settled,
}

/// From a device or a lock server to a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reply {
    /// The request's.
    pub call: Call,
    /// It waited for a conflicting lock or pre-write.
    pub waited: bool,
    /// A random number of the device's start. After a power loss it is another one, and writes that no flush has followed may be
    /// lost.
    pub boot: u64,
    /// The result of the request.
    pub answer: Answer,
}

impl Reply {
    /// The state of the array that it has, if it has one.
    pub fn state_mut(&mut self) -> Option<&mut ArrayState> {
        match &mut self.answer {
            Answer::Stale(state) => Some(state),
            Answer::Agreed(agreed) => match &mut **agreed {
                Agreed::Promised { accepted, .. } => accepted.as_mut().map(|(_, state)| state),
                Agreed::Chosen(state) => Some(state),
                Agreed::Accepted | Agreed::Outbid { .. } | Agreed::Missing(_) => None,
            },
            _ => None,
        }
    }

    /// As [`Reply::state_mut`].
    pub fn state(&self) -> Option<&ArrayState> {
        match &self.answer {
            Answer::Stale(state) => Some(state),
            Answer::Agreed(agreed) => match &**agreed {
                Agreed::Promised { accepted, .. } => accepted.as_ref().map(|(_, state)| state),
                Agreed::Chosen(state) => Some(state),
                Agreed::Accepted | Agreed::Outbid { .. } | Agreed::Missing(_) => None,
            },
            _ => None,
        }
    }
}

/// A block's content cannot be counted on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Flaw {
    /// It is lost (docs/design/array.md 3.5). The content in its place fits the parity.
    Lost,
    /// It cannot be read; zeros are delivered in its place.
    Unreadable(BlockError),
}

/// Blocks that were read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Content {
    /// One behind the other.
    pub data: Bytes,
    /// Which of them, from 0, are not good.
    pub flaws: Vec<(u32, Flaw)>,
    /// Their headers. That of an unreadable block is empty.
    pub headers: Vec<Header>,
    /// If the device has restarted since the stripe was checked.
    pub doubt: Doubt,
    /// The device may have lost writes with later timestamps, because only flushes make them durable.
    pub durable_to: Time,
    /// Fenced lives whose writes of these blocks may be cut short: they have pre-writes or locks here, or had some before the
    /// device restarted. Headers need not show these writes.
    pub left: Box<[Life]>,
}

/// A restarted device's knowledge of a stripe that is to be checked (docs/design/array.md 3.1.4). A repair decides by it if
/// parity may be made to fit the data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub enum Doubt {
    /// None: it has been checked.
    #[default]
    None,
    /// A write may have been cut short there, and headers tell of it.
    Suspect,
    /// A write may have been cut short without a trace, by a host that died.
    Unsure,
}

/// The result of a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The content that was read. The pre-write, if one was requested, exists.
    Content(Content),
    /// Device-served locking: the lock is there.
    Locked {
        /// The newest timestamp that the device has seen on a write. Later writes get newer ones, so that headers show the
        /// order of writes.
        seen: Time,
        /// The content that was read, if a read was requested.
        content: Option<Content>,
    },
    /// The pre-write exists; or the unlock, the cancellation or the lease is noted; or the state is installed or the disk
    /// flushed.
    Done,
    /// Written, or dropped because something newer is there.
    Written,
    /// Timestamp ordering: too old. Nothing is left of it at the device.
    Rejected {
        /// The newest that the device has seen at these blocks.
        seen: Time,
    },
    /// Timestamp ordering: the request has come twice, and its first read has been overwritten since. Its pre-write is
    /// still there.
    Overtaken {
        /// The newest that the device has seen at these blocks.
        seen: Time,
    },
    /// The timestamp is too far ahead of the device's clock.
    Ahead {
        /// By how much more than is allowed, in nanoseconds.
        excess: Time,
        /// By how much in all.
        ahead: Time,
    },
    /// Device-served locking: the lock was not granted in time. Or a repair has come before that of a fenced life's leftovers. The
    /// device keeps no state of it.
    Denied,
    /// A write without the lock or pre-write that it needs: the device has forgotten it (docs/design/array.md 3.4).
    NotPrepared,
    /// The array has a newer state, this one, with other conditions of devices.
    Stale(Box<ArrayState>),
    /// The device knows only conditions that are as old as this: it needs [`Action::Install`] first.
    Behind(Epoch),
    /// This life was fenced.
    Fenced,
    /// The possible unfinished writes of the fenced life at a device.
    InFlight {
        /// Pre-written and exclusively locked blocks, with the timestamps under which they were asked for.
        in_flight: Vec<(Extent, Stamp)>,
        /// Blocks that it has written recently, with their linkage records. Writes of the same operations on other devices may
        /// be missing. On the disk, others may have overwritten them.
        written: Vec<(Extent, Header)>,
        /// Writes with timestamps up to this may be missing in `written`.
        forgotten: Time,
        /// The device has restarted, and has forgotten the life's unfinished writes here.
        forgot: bool,
    },
    /// Which lives are fenced: of each host, the last one that is.
    Fences(Vec<Life>),
    /// A voter's answer.
    Agreed(Box<Agreed>),
    /// The stripe must be checked before it is used (docs/design/array.md 3.1.4).
    Suspect {
        /// The stripe.
        stripe: u64,
    },
    /// The device has just started and serves nothing yet.
    Starting {
        /// For how long, in nanoseconds.
        wait: Time,
    },
    /// The device's disk has failed.
    Broken,
    /// The medium does not take these blocks, and the array cannot go on without the device. Nothing can be said of their
    /// content.
    Unwritable,
    /// The request makes no sense: blocks that the device does not have, or a length that does not fit.
    Invalid,
}
