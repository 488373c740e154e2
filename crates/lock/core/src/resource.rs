//! A resource as one node keeps it.

use serde::{Deserialize, Serialize};

use crate::crowd::CrowdKey;
use crate::ids::{NodeId, Time};
use crate::io::Lvb;
use crate::name::Name;
use crate::queue::{List, NIL};

/// A resource's slot.
pub(crate) type ResourceKey = u32;

/// The master of a resource, as far as this node knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) enum Master {
    Unknown,
    Here,
    At(NodeId),
}

/// The search for the master, or the attempt to become it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) enum Finding {
    Nothing,
    /// A look-up is out to the directory node.
    LookUp,
    /// A broadcast round asks everybody.
    Asking,
    /// Another node will win the round and say so.
    Awaiting,
    /// This node has won the round and tells everybody.
    Asserting,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Resource {
    pub name: Name,
    pub hash: u64,
    pub master: Master,
    pub finding: Finding,
    /// Ordinal of this node's unsettled optimistic claim for it.
    pub claim: Option<u64>,
    /// Queues, indexed by [`crate::Queue`].
    pub queues: [List; 4],
    /// Locks in its queues, those in [`crate::Queue::Unanswered`] not counted.
    #[serde(skip)]
    pub queued: u32,
    #[serde(skip)]
    pub crowd: CrowdKey,
    pub lvb: Option<Lvb>,
    pub lvb_seq: u32,
    /// VALNOTVALID: the block's content is not to be trusted.
    pub lvb_invalid: bool,
    /// A dead node may have been about to write the block (docs/design/semantics.md 9.5).
    pub lvb_lost: bool,
    /// Its master changes in the present recovery: locks must reach the new one.
    pub moved: bool,
    /// Recovery changed its queues: grant what can be granted afterwards.
    pub regrant: bool,
    /// Without locks since then; `None` while it has some.
    pub idle_since: Option<Time>,
    /// When its entry in the list of idle resources was made: it has at most one there.
    pub idle_entry: Option<Time>,
}

impl Resource {
    pub fn new(name: Name, hash: u64) -> Resource {
        Resource {
            name,
            hash,
            master: Master::Unknown,
            finding: Finding::Nothing,
            claim: None,
            queues: [List::EMPTY; 4],
            queued: 0,
            crowd: CrowdKey::default(),
            lvb: None,
            lvb_seq: 0,
            lvb_invalid: false,
            lvb_lost: false,
            moved: false,
            regrant: false,
            idle_since: None,
            idle_entry: None,
        }
    }

    pub fn has_locks(&self) -> bool {
        self.queues.iter().any(|q| q.head != NIL)
    }
}
