//! What threads that may block tell the engine.

use lockify_core::NodeId;

use crate::membership::ClusterEvent;
use crate::notice::Notice;

/// A message from a thread that may block to the engine.
#[derive(Debug)]
pub(crate) enum News {
    /// The cluster manager says something.
    Cluster(ClusterEvent),
    /// A fencing agent has ended.
    Fenced { node: NodeId, success: bool },
    /// A write of the membership's state has ended.
    Persisted { number: u64, success: bool },
    /// A node's name was looked up.
    Resolved { node: NodeId, addresses: Result<Vec<std::net::SocketAddr>, String> },
    /// An operator should see this.
    Notice(Notice),
}
