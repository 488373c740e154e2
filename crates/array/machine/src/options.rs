//! The five ways of concurrency control between host operations.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How concurrent host operations are kept apart (docs/design/array.md 2). All hosts of an array use the same.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// Not at all: a baseline for measuring. Concurrent writes break parity.
    ZeroOverhead,
    /// A lock server grants all ranges of an operation at once.
    ServerLocking,
    /// The same, and hosts keep locks as leases until they are called back.
    CallbackLocking,
    /// Each device locks its own blocks; an operation that waits too long starts again.
    DeviceLocking,
    /// Timestamp ordering at the devices: no locks, no server.
    #[default]
    TimestampOrdering,
}

impl Scheme {
    /// All, in the order of the paper's Figure 6, the baseline first.
    pub const ALL: [Scheme; 5] = [
        Scheme::ZeroOverhead,
        Scheme::ServerLocking,
        Scheme::CallbackLocking,
        Scheme::DeviceLocking,
        Scheme::TimestampOrdering,
    ];

    /// Its name on command lines, in files and in results.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::ZeroOverhead => "zero-overhead",
            Scheme::ServerLocking => "server-locking",
            Scheme::CallbackLocking => "callback-locking",
            Scheme::DeviceLocking => "device-locking",
            Scheme::TimestampOrdering => "timestamp-ordering",
        }
    }

    /// Returns true if the scheme needs a lock server.
    pub fn has_server(self) -> bool {
        matches!(self, Scheme::ServerLocking | Scheme::CallbackLocking)
    }

    /// Returns true if locks keep operations apart, at devices or at a server.
    pub(crate) fn locks(self) -> bool {
        self == Scheme::DeviceLocking || self.has_server()
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no such scheme.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "there is no scheme \"{0}\"; there are zero-overhead, server-locking, callback-locking, device-locking and \
     timestamp-ordering"
)]
pub struct UnknownScheme(pub String);

impl FromStr for Scheme {
    type Err = UnknownScheme;

    fn from_str(name: &str) -> Result<Self, UnknownScheme> {
        Scheme::ALL
            .into_iter()
            .find(|scheme| scheme.name() == name)
            .ok_or_else(|| UnknownScheme(name.to_owned()))
    }
}
