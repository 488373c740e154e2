//! One event of an array's history.

use serde::{Deserialize, Serialize};

use crate::array::layout::{LaterGroup, Layout};
use crate::event::MissingField;
use crate::history::Line;

/// Names the content of a sector: who wrote it, or a hash of it. Zero is what an array begins with.
pub type Tag = u64;

/// One life of a host.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Life {
    /// The host.
    pub host: u32,
    /// Which of its lives.
    pub incarnation: u64,
}

impl std::fmt::Display for Life {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "host {} (life {})", self.host, self.incarnation)
    }
}

/// A timestamp: the host's clock, and the host between equal ones. In JSON `[time, host]`.
pub type Stamp = (u64, u32);

/// One line of a history.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// When, in nanoseconds on a clock common to all.
    pub t: u64,
    /// The kind of event.
    #[serde(flatten)]
    pub kind: Kind,
}

/// The kind of an event. The module's documentation has the meaning of each.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase", deny_unknown_fields)]
pub enum Kind {
    /// The history begins, with an array that nobody has written to.
    Begin {
        /// How it is laid out.
        array: Layout,
        /// How operations are kept apart, by its name on command lines.
        scheme: String,
        /// Devices answer writes before they are durable: only flushes make them so.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        volatile: bool,
    },
    /// A host was asked to read.
    Read {
        /// By which host.
        #[serde(flatten)]
        by: Life,
        /// Names the operation among those of this life.
        op: u64,
        /// The first sector of the array.
        start: u64,
        /// How many sectors.
        count: u64,
    },
    /// A host was asked to write. It reads blocks that it does not write as a whole, in the same transaction.
    Write {
        /// By which host.
        #[serde(flatten)]
        by: Life,
        /// Names the operation among those of this life.
        op: u64,
        /// The first sector of the array.
        start: u64,
        /// The written content, sector by sector.
        tags: Vec<Tag>,
        /// Which of them, from 0, are written in part. Their tags say nothing: the content depends on what was there.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        partial: Vec<u64>,
    },
    /// A host was asked to make durable all writes that it had answered.
    Flush {
        /// By which host.
        #[serde(flatten)]
        by: Life,
        /// Names the operation among those of this life.
        op: u64,
    },
    /// A host was asked for something else: to check, repair, rebuild or fence.
    Repair {
        /// By which host.
        #[serde(flatten)]
        by: Life,
        /// Names the operation among those of this life.
        op: u64,
        /// A description for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// A host begins an operation, or begins it anew: devices know this try by its number.
    Try {
        /// By which host.
        #[serde(flatten)]
        by: Life,
        /// The operation.
        op: u64,
        /// Names the try among those of this life.
        seq: u64,
        /// Its timestamp.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stamp: Option<Stamp>,
    },
    /// The operation was answered.
    Done {
        /// By which host.
        #[serde(flatten)]
        by: Life,
        /// The operation.
        op: u64,
        /// The content that was read, sector by sector.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tags: Vec<Tag>,
        /// It failed, and why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// A device read blocks for a try.
    DevRead {
        /// The device.
        device: u16,
        /// The life whose try it is.
        #[serde(flatten)]
        by: Life,
        /// The try.
        seq: u64,
        /// The device's first block.
        start: u64,
        /// How many blocks.
        count: u32,
    },
    /// A device wrote blocks for a try, or dropped them.
    DevWrite {
        /// The device.
        device: u16,
        /// The life whose try it is.
        #[serde(flatten)]
        by: Life,
        /// The try.
        seq: u64,
        /// The device's first block.
        start: u64,
        /// How many blocks.
        count: u32,
        /// The write's timestamp.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stamp: Option<Stamp>,
        /// Nothing was written, because something newer is there.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        dropped: bool,
    },
    /// A host's life ended: its operation is never answered.
    Crash {
        /// The life whose operation it is.
        #[serde(flatten)]
        by: Life,
    },
    /// A device's process ended, or its power failed: a write under way may be there or not.
    Down {
        /// The device.
        device: u16,
    },
    /// A life is fenced at a device.
    Fenced {
        /// The device.
        device: u16,
        /// The life whose operation it is.
        #[serde(flatten)]
        by: Life,
    },
    /// The array has more stripes: devices and hosts have agreed on it. Some process says so before it uses them.
    Grown {
        /// How many it has from now on, in all groups together.
        stripes: u64,
        /// The groups of devices that it has got since it began, in their order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        groups: Vec<LaterGroup>,
    },
    /// Something was broken, or repaired.
    Fault {
        /// A description for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// The content of a device at the end.
    Dump {
        /// The device.
        device: u16,
        /// The device's first block.
        start: u64,
        /// Each block in hexadecimal: its content, or anything of it that is linear in XOR (a CRC from zero).
        blocks: Vec<String>,
        /// Which of them, from 0, are marked as lost.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        lost: Vec<u64>,
    },
    /// State that a device or lock server still keeps at the end.
    Left {
        /// Where, for people.
        at: String,
        /// Its kind: `prewrites`, `queued`, `locks`, `tombstones`.
        what: String,
        /// How many.
        count: u64,
    },
    /// Everything had come to rest: an unfinished operation is now a violation.
    End {},
}

impl Event {
    /// An event.
    pub fn new(t: u64, kind: Kind) -> Event {
        Event { t, kind }
    }
}

impl Line for Event {
    fn t(&self) -> u64 {
        self.t
    }

    fn validate(&self) -> Result<(), MissingField> {
        Ok(())
    }
}
