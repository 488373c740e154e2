//! Identities and time.

use serde::{Deserialize, Serialize};

/// Nanoseconds on the caller's monotonic clock. The state machine never reads a clock itself.
pub type Time = u64;

/// A node of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct NodeId(pub u32);

impl core::fmt::Display for NodeId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

/// A local client (a session; libdlm's "process"). Chosen by the caller, unique on its node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// The clients of one node with ids from `first` to `last`. A host that numbers the sessions of a
/// process next to each other can name all of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Clients {
    /// The first.
    pub first: ClientId,
    /// The last; before `first`, there are none.
    pub last: ClientId,
}

impl Clients {
    /// Every client.
    pub const ALL: Clients = Clients { first: ClientId(0), last: ClientId(u64::MAX) };

    /// One of them.
    pub fn one(client: ClientId) -> Clients {
        Clients { first: client, last: client }
    }

    /// Returns true if the client is one of them.
    pub fn contains(self, client: ClientId) -> bool {
        (self.first..=self.last).contains(&client)
    }
}

/// A lock on one node: slot and generation, so that an id is not reused while a reply to its
/// former owner can still be on the way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LockId(pub u64);

impl LockId {
    pub(crate) fn new(slot: usize, generation: u32) -> LockId {
        LockId((generation as u64) << 32 | slot as u64)
    }
    pub(crate) fn slot(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }
}

/// A member of a view.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// Counts the node's lives: a restart comes back with a larger one and an empty state.
    pub incarnation: u64,
    /// Share of the directory that the node keeps; 0 keeps none of it.
    pub weight: u32,
}

/// One membership of the lockspace, as the membership service agreed on it.
///
/// `seq` grows with every view and is the floor of fencing tokens and Lamport clocks
/// (`seq << 32`). A service whose `seq` also grows over a restart of the whole cluster keeps tokens growing over it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct View {
    /// The view's number.
    pub seq: u64,
    /// The members. Those that left the previous view were fenced before this view is announced.
    pub members: alloc::vec::Vec<Member>,
}

impl View {
    /// The member with this id.
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        self.members.iter().find(|m| m.node == node)
    }
}
