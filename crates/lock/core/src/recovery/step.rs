//! The barriers of a recovery.

use serde::{Deserialize, Serialize};

/// A barrier of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Step {
    /// Everybody has stopped and knows the members.
    Nodes,
    /// The directory is rebuilt.
    Directory,
    /// Locks are at their masters.
    Locks,
    /// The old view's messages are gone.
    Done,
}
