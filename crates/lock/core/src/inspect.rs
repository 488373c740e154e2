//! A node's knowledge of its resources, for "who holds what".

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::flags::LockFlags;
use crate::ids::{ClientId, LockId, NodeId, Time};
use crate::mode::Mode;
use crate::name::Name;
use crate::queue::Queue;
use crate::recovery::step::Step;
use crate::store::Store;

/// A resource as one node sees it. The master's view is complete; other nodes know their own locks.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ResourceInfo {
    /// Its name.
    pub name: Name,
    /// Its master, if known here.
    pub master: Option<NodeId>,
    /// A claim of this node for it is not settled.
    pub claim_pending: bool,
    /// Its locks known here: granted, then converting, then waiting, then those whose master is
    /// still being looked up; each queue in order.
    pub locks: Vec<LockInfo>,
    /// The lock value block and its version, if it has one here.
    pub lvb: Option<(Vec<u8>, u32)>,
    /// The lock value block is not to be trusted.
    pub lvb_invalid: bool,
}

impl ResourceInfo {
    /// Returns true if a lock is known to wait for it.
    pub fn is_waited_for(&self) -> bool {
        self.locks.iter().any(|l| l.queue != Queue::Granted)
    }
}

/// A resource with locks that [`crate::Lockspace::survey`] has come by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Its name.
    pub name: Name,
    /// Its master, if known here.
    pub master: Option<NodeId>,
    /// Somebody waits for it.
    pub waited: bool,
}

/// A lock as one node sees it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LockInfo {
    /// The owner's node.
    pub node: NodeId,
    /// The owner's client; `None` for an orphan.
    pub client: Option<ClientId>,
    /// The owner's id of the lock.
    pub lock: LockId,
    /// The queue it is in.
    pub queue: Queue,
    /// Granted mode; `None` for a new request.
    pub granted: Option<Mode>,
    /// Mode asked for, if it waits or converts.
    pub requested: Option<Mode>,
    /// Fencing token of the grant, 0 if it has none.
    pub token: u64,
    /// When the present grant or wait began, on this node's clock.
    pub since: Time,
    /// The reason for the wait of its operation. Only the owner knows of waits that come before the
    /// queue.
    pub wait: Wait,
    /// Which of its operations is, or was, the last one; the owner's and the master's counts differ
    /// for an operation that has not reached the master.
    pub op: u32,
    /// The flags of that operation. NOORDER also marks a conversion whose order a recovery has
    /// lost.
    pub flags: LockFlags,
    /// The transaction it belongs to; 0: its client.
    pub transaction: u64,
}

/// The reason for an operation's wait.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Wait {
    /// It does not wait.
    Nothing,
    /// For other locks, in the master's queue.
    Queue,
    /// Behind the claim barrier, until this node's claims are settled.
    Claims,
    /// For the end of a recovery.
    Recovery,
    /// For the lock to be merged into those of the resource's real master.
    Merge,
    /// For the resource's master to be found.
    Master,
    /// For this node, the master, to answer.
    Answer(NodeId),
}

impl Wait {
    /// Its name in what commands and libraries print (docs/observing.md).
    pub fn word(self) -> &'static str {
        match self {
            Wait::Nothing => "nothing",
            Wait::Queue => "queue",
            Wait::Claims => "claims",
            Wait::Recovery => "recovery",
            Wait::Merge => "merge",
            Wait::Master => "master",
            Wait::Answer(_) => "answer",
        }
    }
}

/// Where a recovery is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RecoveryInfo {
    /// The barrier that is to be passed next.
    pub step: Step,
    /// The members that have not reached it; known to the lowest member only.
    pub missing: Vec<NodeId>,
}

/// A structural invariant that does not hold on this node: a defect of the lock manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Defect {
    /// The resource it was found at.
    pub name: Name,
    /// The defect.
    pub what: &'static str,
}

/// The lock manager's memory for one lock and for one resource, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footprint {
    /// A lock: its slot. A lock value block in use adds its own bytes.
    pub lock: usize,
    /// A resource: its slot, its name included, and its entry in the index by name.
    pub resource: usize,
}

/// The size of a lock and of a resource in memory, where slots and index are full: as they grow
/// by doubling, the memory taken from the allocator can be up to twice as much for a time.
pub fn footprint() -> Footprint {
    Footprint { lock: Store::BYTES_PER_LOCK, resource: Store::BYTES_PER_RESOURCE }
}
