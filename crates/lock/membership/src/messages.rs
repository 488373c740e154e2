//! The messages by which members agree on views.

use lockify_core::{NodeId, Policy, Time};
use serde::{Deserialize, Serialize};

use super::NodeView;
use super::log::LogWord;

/// A lockspace that a node has joined.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpaceJoin {
    /// The lockspace's name.
    pub name: String,
    /// Counts the node's joins of it: larger than at every earlier one.
    pub life: u64,
    /// The node's configuration of it.
    pub keys: SpaceKeys,
}

/// The keys of a lockspace on which safety rests: its members have the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpaceKeys {
    /// How masters are found.
    pub policy: Policy,
    /// Length of lock value blocks in bytes.
    pub lvb_len: u32,
}

impl SpaceKeys {
    /// Returns true if nodes with these two can share a lockspace.
    pub fn fits(&self, other: &SpaceKeys) -> bool {
        self.policy.mixes_with(other.policy) && self.lvb_len == other.lvb_len
    }
}

impl std::fmt::Display for SpaceKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "policy = {:?} and lvb_len = {}", self.policy.name(), self.lvb_len)
    }
}

/// A message of the membership service. Earlier releases had a fixed list of nodes, with messages that no node sends any
/// more. Those keep their places in the encoding.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Vote {
    /// "I am here."
    Beat {
        /// The sender's clock.
        stamp: Time,
        /// The highest view that it accepted.
        promised: u64,
        /// The view that it is in, or 0.
        installed: u64,
    },
    /// The answer to a beat, while the answerer counts the sender as a member: prolongs its lease.
    Echo {
        /// The beat's stamp.
        stamp: Time,
    },
    /// The lockspaces that the sender had joined. No sender uses it any more.
    Spaces {
        /// Its share of directories.
        weight: u32,
        /// The lockspaces, each with the life of its join.
        spaces: Vec<SpaceJoin>,
    },
    /// The coordinator proposes a view. No sender uses it any more.
    Propose {
        /// The view.
        view: NodeView,
        /// The view that the coordinator started from.
        base: u64,
    },
    /// The sender accepts the view of this number, and no lower one from now on. No sender uses it any more.
    Accept {
        /// The view's number.
        seq: u64,
    },
    /// The sender does not accept it. No sender uses it any more.
    Refuse {
        /// The view's number.
        seq: u64,
        /// The reason of the refusal.
        why: Refusal,
    },
    /// Every member has accepted: the view holds.
    Install {
        /// The view.
        view: NodeView,
        /// For each member, the newest stamp of its beats that the coordinator had received
        /// before it proposed: its lease begins then.
        stamps: Vec<Time>,
    },
    /// A fencing agent has succeeded: the lives of this node below this one are over. No sender uses it any more.
    Fenced {
        /// The node.
        node: NodeId,
        /// The first life that may not be over.
        below: u64,
    },
    /// The sender has stopped and will not come back in this life.
    Goodbye,
    /// A message of the service with a replicated log.
    Log(LogWord),
}

/// Why a view is not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Refusal {
    /// A view of this number, or a higher one, has been accepted before.
    Promised(u64),
    /// The coordinator started from an older view than this one.
    Base(u64),
    /// There is no connection to this member.
    Unreachable(NodeId),
    /// This node is not in the view and its lease may still run.
    Leased(NodeId),
    /// The view does not fit this node's life or its list of nodes.
    Misfit,
}
