//! What a node knows of its resources, for "who holds what".

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::ids::{ClientId, LockId, NodeId, Time};
use crate::mode::Mode;
use crate::name::Name;
use crate::store::Store;

/// A resource as one node sees it. The master's view is complete; other nodes know their own locks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
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

/// A lock as one node sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
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
}

/// The queues of a resource.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Queue {
    /// Holds its granted mode.
    Granted,
    /// Holds its granted mode and waits for another.
    Converting,
    /// Waits for its first grant.
    Waiting,
    /// Its master has not answered yet.
    Parked,
}

/// A structural invariant that does not hold on this node: a defect of the lock manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Defect {
    /// The resource it was found at.
    pub name: Name,
    /// What is wrong.
    pub what: &'static str,
}

/// What the lock manager keeps in memory for one lock and for one resource, in bytes.
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
