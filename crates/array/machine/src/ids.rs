//! Identities and timestamps.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Nanoseconds since 1970, by the clock of the sender. It never goes back within a process.
pub type Time = u64;

/// A host: a process that issues host operations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct HostId(pub u32);

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "h{}", self.0)
    }
}

/// A device, numbered from 0 in the array's file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct DeviceId(pub u16);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "d{}", self.0)
    }
}

/// A lock server, numbered from 0 in the array's file.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct ServerId(pub u16);

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock server {}", self.0)
    }
}

/// One life of a host. A fence concerns a life, not a host, so that a host can come back at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Life {
    /// The host.
    pub host: HostId,
    /// Larger than that of every earlier life of the host.
    pub incarnation: u64,
}

/// One try of a host operation. A try that is started again has another one, so that devices may be idempotent on it
/// (docs/design/array.md 2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct OpId {
    /// The life of the operation's host.
    pub life: Life,
    /// Grows by one with every try.
    pub seq: u64,
}

impl OpId {
    /// Not larger than any other.
    pub(crate) fn least() -> Self {
        OpId { life: Life { host: HostId(0), incarnation: 0 }, seq: 0 }
    }
}

/// A timestamp: unique, and growing with every operation of a host (docs/design/array.md 2.4).
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Stamp {
    /// The host's clock.
    pub time: Time,
    /// Decides between equal times: host id.
    pub host: u32,
}

/// Numbers the array's states ([`crate::ArrayState`]); requests of an older one are refused (docs/design/array.md 3.3).
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

/// Names a piece of work that a host was given, until it is answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Ticket(pub u64);
