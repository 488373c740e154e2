//! The queues of a resource, and how locks are linked in them.

use serde::{Deserialize, Serialize};

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
    Unanswered,
}

impl Queue {
    pub(crate) const ALL: [Queue; 4] =
        [Queue::Granted, Queue::Converting, Queue::Waiting, Queue::Unanswered];
}

/// Position in a queue; slots of the neighbours.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Links {
    pub prev: u32,
    pub next: u32,
}

/// No neighbour.
pub(crate) const NIL: u32 = u32::MAX;

impl Links {
    pub const LOOSE: Links = Links { prev: NIL, next: NIL };
}

/// Head and tail of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct List {
    pub head: u32,
    pub tail: u32,
}

impl List {
    pub const EMPTY: List = List { head: NIL, tail: NIL };
}
