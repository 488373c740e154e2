//! Questions to the whole cluster: status, locks, who.

use lockify_core::{Name, NodeId, ResourceInfo, Stats};
use serde::{Deserialize, Serialize};

/// A question.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Query {
    /// The state of every node.
    Status,
    /// Every resource of a lockspace that has locks.
    Locks {
        /// The lockspace's name.
        space: String,
    },
    /// One resource: who holds it, who waits for it.
    Who {
        /// The lockspace's name.
        space: String,
        /// The resource.
        name: Name,
    },
}

/// Names a running query.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct QueryId(pub u64);

/// What the nodes said.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// The question.
    pub query: Query,
    /// [`Query::Status`]: one per node that answered, by node.
    pub status: Vec<NodeStatus>,
    /// [`Query::Locks`] and [`Query::Who`]: resources, by name, merged from what all nodes know
    /// .
    pub resources: Vec<ResourceInfo>,
    /// Nodes that were not connected or did not answer in time.
    pub silent: Vec<NodeId>,
}

/// One node's state.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Which node.
    pub node: NodeId,
    /// This life of it.
    pub incarnation: u64,
    /// Which of its shards answers.
    pub shard: u32,
    /// The node view, 0 if it has none (no quorum).
    pub view: u64,
    /// The view's members.
    pub members: Vec<NodeId>,
    /// Its lockspaces.
    pub spaces: Vec<SpaceStatus>,
    /// Its connections.
    pub peers: Vec<PeerStatus>,
}

/// One node's part of a lockspace.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SpaceStatus {
    /// Its name.
    pub name: String,
    /// Its policy's name.
    pub policy: String,
    /// The lockspace's view, 0 if it is not a member.
    pub view: u64,
    /// Who has joined it.
    pub members: Vec<NodeId>,
    /// A member, and no recovery is going on.
    pub running: bool,
    /// Claims not settled.
    pub unsettled_claims: u64,
    /// Counters.
    pub stats: Stats,
}

/// A connection to a peer, as one node sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerStatus {
    /// The peer.
    pub node: NodeId,
    /// Connected, and the handshake is done.
    pub connected: bool,
    /// The peer's life, once it has been seen.
    pub incarnation: Option<u64>,
    /// Messages to it that it has not acknowledged.
    pub backlog: u64,
    /// Why the last attempt to connect failed.
    pub error: Option<String>,
}
