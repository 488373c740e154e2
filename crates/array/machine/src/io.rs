//! Inputs and outputs of the state machines, apart from messages: work, its results, and a device's disk.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Change, DeviceId, Life, OpId, Skipped, Span, Stamp, Time, Units};

/// Whom a host talks to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Peer {
    /// A device.
    Device(DeviceId),
    /// The lock server.
    Server,
}

/// A piece of work for a host. Each piece but [`Work::Flush`] and [`Work::Fence`] is one storage transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// Read blocks of the array.
    Read {
        /// The blocks to read.
        span: Span,
    },
    /// Write blocks of the array. Answered when all of it is as durable as the devices make it.
    Write {
        /// The blocks to write.
        span: Span,
        /// `span.count` blocks.
        data: Bytes,
    },
    /// Write bytes of the array, from any byte on. A block that they cover in part keeps its other bytes: the same transaction
    /// reads and writes it. Fails if such a block is lost or cannot be read.
    Patch {
        /// The first byte of the array to write.
        start: u64,
        /// The bytes, at least one.
        data: Bytes,
    },
    /// Make earlier answered writes durable, on all devices. Fails if one of this host's is lost.
    Flush,
    /// Check a stripe, and repair it if `repair`, as far as headers tell which block is right; the answer has the findings.
    Scrub {
        /// The stripe.
        stripe: u64,
        /// True if wrong blocks are to be written.
        repair: bool,
    },
    /// As a scrub that repairs. Where nobody knows which block is right, parity is made to fit the data: a good block may be
    /// lost by that.
    AcceptLoss {
        /// The stripe.
        stripe: u64,
    },
    /// Write a stripe's unit on a device in rebuilding, from the others. The answer has the losses. Scrub such a stripe
    /// when the device is in use again.
    Rebuild {
        /// The device.
        device: DeviceId,
        /// The stripe.
        stripe: u64,
    },
    /// Look what would be left of a stripe if a device that is out came back with the medium that it left with, and another one
    /// of its group were lost (docs/design/array.md 3.9). Nothing is written.
    Survey {
        /// The device that is out.
        device: DeviceId,
        /// Its medium has every write up to this timestamp.
        whole_to: Time,
        /// The other one.
        without: DeviceId,
        /// The stripe.
        stripe: u64,
    },
    /// Fence a life of another host, repair its unfinished writes, and free its locks (docs/design/array.md 3.2). It may
    /// be repeated, and several hosts may do it at once.
    Fence {
        /// The life to fence.
        life: Life,
    },
    /// Change the array's state.
    Change {
        /// The change of the array's state.
        change: Change,
    },
}

/// The result of a piece of work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostAnswer {
    /// The blocks read.
    Read {
        /// `span.count` blocks.
        data: Bytes,
    },
    /// The work is done.
    Done,
    /// The findings of a scrub.
    Scrubbed {
        /// Blocks of the stripe's units at which parity did not fit.
        mismatches: u32,
        /// Blocks of the stripe whose content is lost.
        lost: u32,
    },
    /// A stripe's unit is rebuilt.
    Rebuilt {
        /// Blocks of the stripe whose content is lost.
        lost: u32,
        /// Those of them that this rebuild has marked.
        marked: u32,
    },
    /// What a survey of a stripe has found.
    Surveyed(Outlook),
    /// The findings of a scrub that could not decide everything.
    Undecided {
        /// As in [`HostAnswer::Scrubbed`].
        mismatches: u32,
        /// As in [`HostAnswer::Scrubbed`].
        lost: u32,
        /// Columns that do not fit, and of which nobody knows which block is right. They are as they were.
        undecided: u32,
    },
}

/// The data blocks of two devices of a group: one is out and has its medium, and the other one is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outlook {
    /// Blocks of the first one that are the newest.
    pub current: u64,
    /// Those that are the newest, unless they were written since: only the lost device could tell.
    pub may_be_old: u64,
    /// Those that were written since, as far as anybody knows. Their newest content is lost.
    pub outdated: u64,
    /// Those that the medium does not have, or that were lost before.
    pub gone: u64,
    /// Blocks of the lost device that the others yield.
    pub other_current: u64,
    /// Those that the others yield, unless they were written since.
    pub other_may_be_old: u64,
    /// Those that are lost.
    pub other_lost: u64,
}

impl std::ops::AddAssign for Outlook {
    fn add_assign(&mut self, other: Outlook) {
        self.current += other.current;
        self.may_be_old += other.may_be_old;
        self.outdated += other.outdated;
        self.gone += other.gone;
        self.other_current += other.other_current;
        self.other_may_be_old += other.other_may_be_old;
        self.other_lost += other.other_lost;
    }
}

/// Why a piece of work failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpError {
    /// The span is not all in the array, or the data has another length.
    #[error("the request is not within the array")]
    Range,
    /// Content is lost: a device failed while a write was in progress, or two have failed (docs/design/array.md 3.5).
    #[error(
        "block {block} of the array is lost; write all of it anew, or restore it from a backup"
    )]
    Lost {
        /// The first such block.
        block: u64,
    },
    /// The medium of a device fails at a block, or does not have the newest content, and the redundancy does not replace it.
    #[error(
        "block {block} of the array cannot be had: a medium fails there or has lost a write, and the other devices do not tell \
         what was there; `lockify array scrub` shows such stripes"
    )]
    Medium {
        /// The first such block.
        block: u64,
    },
    /// A write that was answered is lost, or may be: devices have lost their caches before the flush.
    #[error(
        "the flush fails: {0}; every flush fails until these blocks are written anew, or this host is started again"
    )]
    Unflushed(String),
    /// More devices are gone than the redundancy allows for.
    #[error("too many devices are gone: {0}")]
    Unavailable(String),
    /// Devices do not answer, and the array does not go on without them. A write may or may not take effect.
    #[error("the array does not answer: {0}")]
    Unreachable(String),
    /// This life of the host was fenced: it was taken for dead. No unanswered operation can be relied on.
    #[error("this host was taken for dead and fenced; start it again")]
    Fenced,
    /// The clocks of host and devices are too far apart (docs/design/array.md 2.4).
    #[error(
        "this host's clock is {ahead_ms} ms ahead of a device's: find out which is wrong (NTP), set it right, and start this \
         host again"
    )]
    Clock {
        /// How far.
        ahead_ms: u64,
    },
    /// It does not make sense in the array's present state.
    #[error("{0}")]
    State(String),
}

/// Blocks of one device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Extent {
    /// The first block.
    pub start: u64,
    /// How many; at least 1.
    pub count: u32,
}

impl Extent {
    /// The block behind the last.
    pub fn end(self) -> u64 {
        self.start.saturating_add(u64::from(self.count))
    }

    /// Returns true if the two have a block in common.
    pub fn overlaps(self, other: Extent) -> bool {
        self.start < other.end() && other.start < self.end()
    }
}

/// The linkage record that is stored with every block (docs/design/array.md 3.1). It names the host operation that wrote the
/// block, and the operation's other writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Header {
    /// The operation's timestamp; zero if the block was never written.
    pub stamp: Stamp,
    /// The operation's first block of the array.
    pub first: u64,
    /// The operation's last block of the array.
    pub last: u64,
    /// The devices that a degraded write left out. In a repair's record of parity: what it knows of a missing device's medium
    /// (docs/design/array.md 3.11).
    pub skipped: Skipped,
    /// The content is lost: reading it is an error until it is written anew (docs/design/array.md 3.5).
    pub lost: bool,
    /// Of parity: the data units whose blocks of this column are lost. A lost block says so itself. Parity says it for the time
    /// after the loss of that block's device.
    pub lost_data: Units,
}

/// A repair's record names no blocks. In their place it says how new the content is: the host, and the time and this. So it is
/// never a range of blocks.
const OF_REPAIR: u64 = 1 << 32;

impl Header {
    /// The record of a repair's write. It names nothing, so that it accuses nobody. The block has the effect of all writes
    /// up to `content`, and may lack later ones.
    pub(crate) fn of_repair(stamp: Stamp, content: Stamp) -> Header {
        let first = content.time.saturating_add(OF_REPAIR);
        Header { stamp, first, last: content.host.into(), ..Header::default() }
    }

    /// Returns true if it is of a repair's write.
    pub(crate) fn is_of_repair(&self) -> bool {
        self.first > self.last
    }

    /// Of parity: no write of a missing device's block has come to parity and not to the device. `parity` is the device of the record.
    pub(crate) fn has_everything(&self, parity: DeviceId, device: DeviceId) -> bool {
        match self.is_of_repair() {
            _ if self.lost => self.vouches_for(device),
            true => self.skipped.has(device) || self.skipped.has(parity),
            false => !self.skipped.has(device),
        }
    }

    /// Of marked parity: a device's own medium has the block that it cannot yield (docs/design/array.md 3.11).
    pub(crate) fn vouches_for(&self, device: DeviceId) -> bool {
        self.lost && self.is_of_repair() && self.skipped.has(device)
    }

    /// The newest write whose effect the block is known to have (docs/design/array.md 3.8).
    pub(crate) fn content(&self) -> Stamp {
        let time = self.first.checked_sub(OF_REPAIR).filter(|_| self.is_of_repair());
        let host = u32::try_from(self.last).ok();
        match time.zip(host) {
            Some((time, host)) => Stamp { time, host }.min(self.stamp),
            // Earlier releases did not say it.
            None => self.stamp,
        }
    }
}

/// A block of a device as its disk keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// Its linkage record.
    pub header: Header,
    /// Its content, of the layout's block size.
    pub data: Bytes,
}

/// Why a block cannot be read although its disk works.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum BlockError {
    /// Its checksum is wrong: a write of it was cut short, or the medium is damaged.
    #[error("the checksum is wrong")]
    Torn,
    /// The medium does not return it.
    #[error("the medium does not return it")]
    Unreadable,
}

/// A block that cannot be read, as its disk finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadBlock {
    /// The cause.
    pub error: BlockError,
    /// The timestamp of its linkage record, if that is readable by itself. It is that of the interrupted write, or of the
    /// former content.
    pub stamp: Option<Stamp>,
}

impl From<BlockError> for BadBlock {
    fn from(error: BlockError) -> Self {
        BadBlock { error, stamp: None }
    }
}

/// Names a disk operation until it is answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiskToken(pub u64);

/// A device's request to its disk. Nothing that overlaps a write is under way at the same time as the write; reads may overlap
/// reads. Concurrent requests may be done in any order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskAsk {
    /// Read blocks with their headers.
    Read {
        /// Names the operation.
        token: DiskToken,
        /// The blocks to read.
        extent: Extent,
    },
    /// Write blocks, each together with its header; answered when they are durable if `durable`.
    Write {
        /// Names the operation.
        token: DiskToken,
        /// The first block.
        start: u64,
        /// The content to write.
        blocks: Vec<Block>,
        /// True if the write must survive a power loss when it is answered.
        durable: bool,
    },
    /// Make durable everything answered before.
    Flush {
        /// Names the operation.
        token: DiskToken,
    },
    /// Replace the device's record (epoch, fenced lives, ...) durably and atomically. The last one is given back when the
    /// device starts.
    Save {
        /// Names the operation.
        token: DiskToken,
        /// The record.
        record: Bytes,
    },
}

/// A disk's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskAnswer {
    /// The blocks read.
    Read(Vec<Result<Block, BadBlock>>),
    /// Written, flushed or saved.
    Done,
}

/// The disk failed. The device takes itself out of the array.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct DiskError(pub String);

/// A step of a device, for histories. The device reports it when it asks the disk. Nothing that overlaps a write is under way
/// at the same time. So this is the order in which steps take effect at each block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceEvent {
    /// Blocks were read for an operation.
    Read {
        /// The operation.
        op: OpId,
        /// Which blocks.
        extent: Extent,
    },
    /// Blocks were written by an operation, or its write was dropped because a newer one is there already.
    Write {
        /// The operation.
        op: OpId,
        /// Which blocks.
        extent: Extent,
        /// Its timestamp.
        stamp: Stamp,
        /// Nothing was written.
        dropped: bool,
    },
    /// A life is fenced for good. Its unfinished writes have been repaired, or were not for this device, and no late one is
    /// written any more.
    Fenced {
        /// The fenced life.
        life: Life,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repairs_record_says_how_new_its_content_is() {
        let stamp = Stamp { time: 9, host: u32::MAX };
        for time in [0, 1, 8, 9] {
            for host in [0, 7, u32::MAX] {
                let content = Stamp { time, host };
                let header = Header::of_repair(stamp, content);
                assert!(header.is_of_repair());
                assert_eq!(header.content(), content);
            }
        }
        // Nothing is newer than its record.
        let newer = Header::of_repair(stamp, Stamp { time: u64::MAX, host: 1 });
        assert_eq!(newer.content(), stamp);
        let of_a_host = Header { stamp, first: 5, last: 5, ..Header::default() };
        let of_an_earlier_release = Header { stamp, first: 1, last: 0, ..Header::default() };
        for header in [of_a_host, of_an_earlier_release] {
            assert_eq!(header.content(), stamp);
        }
    }
}
