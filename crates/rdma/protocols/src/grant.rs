//! The result of a protocol for a lock that it has taken.

use crate::fabric::Nanos;
use crate::protocol::Hold;
use crate::session::Spot;

/// The result of a protocol for a lock that it has taken.
pub(crate) struct Grant {
    pub spot: Spot,
    /// When its lease starts.
    pub since: Nanos,
    /// A number that grows within the generation.
    pub order: u64,
    pub hold: Hold,
}
