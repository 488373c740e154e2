//! The members' messages to the group, in the one order.

use lockify_core::{NodeId, Time};
use serde::{Deserialize, Serialize};

use super::super::{NodeView, SpaceJoin};

/// The version of these messages; those of another one are not read.
pub(super) const VERSION: u8 = 1;

/// A message and whose it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Envelope {
    pub(super) version: u8,
    /// The sender's life.
    pub(super) life: u64,
    /// The first life of its process: the process itself says that all between are over.
    pub(super) born: u64,
    /// Which boot of its machine that is.
    pub(super) boot: u64,
    pub(super) word: Word,
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// The sender's state, which the others need to propose a view.
    Report(Report),
    /// A view is proposed.
    Propose {
        /// The view.
        view: NodeView,
        /// The view that holds, of which the proposer is a member; 0: none holds.
        base: u64,
        /// [`digest`](super::CorosyncMembership::digest) of the group that the proposer sees: a proposal
        /// that arrives in another one is void, for everybody alike.
        group: u64,
    },
    /// The sender accepts the view of this number and none below from now on.
    Accept {
        /// The number.
        seq: u64,
        /// The newest stamps of the members' beats that the sender has: echoes (see `leases`).
        stamps: Vec<(NodeId, Time)>,
    },
    /// The sender does not accept it.
    Refuse {
        /// The number.
        seq: u64,
        /// The reason of the refusal.
        why: Veto,
    },
    /// A fencing agent succeeded: all lives of the node below this one are over.
    Fenced {
        /// The node.
        node: NodeId,
        /// The first life that may not be over.
        below: u64,
    },
    /// The sender's process becomes another program, which comes back as the same life; whatever it
    /// says next takes that back.
    Restarts {
        /// Counts these words of the sender.
        number: u64,
    },
}

impl Word {
    /// Returns true if its numbers of views are plausible: fencing tokens have 32 bits for them.
    pub(super) fn is_sane(&self) -> bool {
        let highest = match self {
            Word::Report(r) => r.seen.max(r.installed),
            Word::Propose { view, base, .. } => view.seq.max(*base),
            Word::Accept { seq, .. } => *seq,
            Word::Refuse { seq, why: Veto::Promised(n) | Veto::Base(n) } => *seq.max(n),
            Word::Refuse { seq, .. } => *seq,
            Word::Fenced { .. } | Word::Restarts { .. } => 0,
        };
        highest < 1 << 32
    }
}

/// A member's state, which the others need to propose a view.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    /// Its share of directories.
    pub(super) weight: u32,
    /// The lockspaces that it has joined.
    pub(super) spaces: Vec<SpaceJoin>,
    /// The nodes that it is connected to, and their lives.
    pub(super) reach: Vec<(NodeId, u64)>,
    /// The highest number of a view that it knows of.
    pub(super) seen: u64,
    /// The view that it is in, or 0.
    pub(super) installed: u64,
}

/// Why a view is not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Veto {
    /// A view of at least this number has been accepted before.
    Promised(u64),
    /// The sender is in this view, which is newer than the one that the proposer started from.
    Base(u64),
    /// The sender has no connection to this node, or has not heard it yet.
    Unreachable(NodeId),
    /// This node's lease may still run.
    Leased(NodeId),
    /// Corosync says that the cluster has no quorum.
    NoQuorum,
    /// The view does not fit what the sender knows.
    Misfit,
}

/// Encodes a message.
pub(super) fn encode(envelope: &Envelope) -> Vec<u8> {
    // Only a serializer of unknown lengths could fail, and these types have none.
    postcard::to_allocvec(envelope).unwrap_or_default()
}

/// Decodes a message; `None` if it is none of this version.
pub(super) fn decode(bytes: &[u8]) -> Option<Envelope> {
    if bytes.first() != Some(&VERSION) {
        return None;
    }
    match postcard::take_from_bytes(bytes) {
        Ok((envelope, [])) => Some(envelope),
        _ => None,
    }
}
