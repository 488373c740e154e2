//! The members' messages to the group, in the one order.

use lockify_core::{NodeId, Time};
use serde::{Deserialize, Serialize};

use super::super::log::LAST_VIEW;
use super::super::{NodeView, SpaceJoin};
use super::memory::Memory;

/// The version of these messages; those of another one are not read.
pub(super) const VERSION: u8 = 2;

/// Lives stay below: a lockspace's lives are made of them.
pub(super) const MOST_LIVES: u64 = 1 << 38;

/// A message and whose it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Envelope {
    pub(super) version: u8,
    /// The sender's life; 0: it has none yet.
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
    Propose(Box<Offer>),
    /// The sender accepts a proposal, and no number up to its own from now on.
    Accept {
        /// The proposal's [`Offer::of`].
        of: u64,
        /// The newest stamps of the members' beats that the sender has: echoes (see `leases`).
        stamps: Vec<(NodeId, Time)>,
        /// The sender's disk has it.
        durable: bool,
    },
    /// The sender does not accept it, and never will: nobody can have agreed on it.
    Refuse {
        /// The proposal's [`Offer::of`].
        of: u64,
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
    /// The sender's process becomes another program, which comes back as the same life; its next
    /// message withdraws that.
    Restarts {
        /// Counts these words of the sender.
        number: u64,
    },
}

impl Word {
    /// Returns true if its numbers are plausible.
    pub(super) fn is_sane(&self) -> bool {
        let highest = match self {
            Word::Report(r) if !r.memory.is_sane() => return false,
            Word::Report(r) => r.installed,
            Word::Propose(offer) => offer.view.seq.max(offer.base),
            Word::Refuse { why: Veto::Promised(n) | Veto::Base(n), .. } => *n,
            _ => 0,
        };
        highest < LAST_VIEW
    }
}

/// A view that is proposed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Offer {
    /// The view.
    pub(super) view: NodeView,
    /// The view that holds, of which the proposer is a member; 0: none holds.
    pub(super) base: u64,
    /// [`digest`](super::CorosyncMembership::digest) of the group that the proposer sees: a proposal
    /// that arrives in another one is void, for everybody alike.
    pub(super) group: u64,
    /// A view after this one may have fewer than half of all votes.
    pub(super) loose: bool,
    /// A random number.
    pub(super) mark: u64,
}

impl Offer {
    /// Tells it from every other one.
    pub(super) fn of(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&postcard::to_allocvec(self).unwrap_or_default())
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
    /// The view that it is in, or 0.
    pub(super) installed: u64,
    /// Its memory.
    pub(super) memory: Memory,
    /// As corosync's rules are on its node, fewer nodes may go on than have half of all votes.
    pub(super) minorities: bool,
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
    /// The view does not fit the sender's state.
    Misfit,
    /// Too few are there that remember which views there were.
    Forgotten,
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
