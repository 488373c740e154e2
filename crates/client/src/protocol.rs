//! The session protocol: what a local client and its daemon say to each other.
//!
//! A session is one Unix stream socket to one shard of the daemon. Each side first sends a
//! [`Greeting`], whose layout never changes, so that two versions can at least name each other.
//! Then the client sends [`Request`]s and the daemon [`Event`]s, as frames ([`crate::codec`]).
//!
//! Operations on a lock carry the lock's `tag`, chosen by the client and unique among its locks of
//! a session: a lock has at most one operation outstanding besides a cancel, so the tag says which
//! operation an event ends. Queries carry an `id` that their answer returns.

use lockify_core::{
    ClientId, Completion, LockFlags, LockId, LostReason, Lvb, Mode, Name, NodeId, ResourceInfo,
    SbFlags, Status, UnlockFlags,
};
use lockify_node::NodeStatus;
use serde::{Deserialize, Serialize};

/// The version of this protocol; two sides must have the same.
pub const VERSION: u16 = 1;

/// Longest name of a lockspace in bytes (Linux `DLM_LOCKSPACE_LEN`).
pub const MAX_SPACE_NAME: usize = 64;

/// What each side sends first: eight bytes of magic, then the version, the shard and the process
/// id, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// The sender's [`VERSION`].
    pub version: u16,
    /// From a client: the shard it wants. From a daemon: how many shards there are.
    pub shard: u16,
    /// The sender's process id, for "who holds it"; nothing else depends on it.
    pub pid: u32,
}

impl Greeting {
    /// Length in bytes.
    pub const LEN: usize = 16;
    const MAGIC: [u8; 8] = *b"lockify\0";

    /// The greeting's bytes.
    pub fn encode(self) -> [u8; Greeting::LEN] {
        let mut bytes = [0; Greeting::LEN];
        bytes[..8].copy_from_slice(&Greeting::MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.shard.to_le_bytes());
        bytes[12..].copy_from_slice(&self.pid.to_le_bytes());
        bytes
    }

    /// Reads a greeting; `None` if the other side speaks something else.
    pub fn decode(bytes: &[u8; Greeting::LEN]) -> Option<Greeting> {
        (bytes[..8] == Greeting::MAGIC).then(|| Greeting {
            version: u16::from_le_bytes([bytes[8], bytes[9]]),
            shard: u16::from_le_bytes([bytes[10], bytes[11]]),
            pid: u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]),
        })
    }
}

/// A lockspace as a session knows it; [`Answer::Opened`] says which.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Space(pub u32);

/// Names a lock of the session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LockRef {
    /// The lockspace.
    pub space: Space,
    /// How often the lockspace had been halted when the lock was made ([`Event::Halted`]): a
    /// halt voids all ids, and the same may come again.
    pub life: u32,
    /// The lock's id in this life.
    pub lock: LockId,
}

/// What a client asks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Make a lock.
    Lock(LockRequest),
    /// Convert a lock.
    Convert(ConvertRequest),
    /// Unlock.
    Unlock(UnlockRequest),
    /// Take the outstanding request or conversion back. Has no answer of its own.
    Cancel(LockRef),
    /// Anything that is answered once, by [`Event::Answer`].
    Query {
        /// Returned in the answer.
        id: u64,
        /// What.
        query: Query,
    },
}

/// A new lock (see [`lockify_core::LockArgs`]).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockRequest {
    /// The lockspace.
    pub space: Space,
    /// The lock's tag.
    pub tag: u64,
    /// The resource.
    pub name: Name,
    /// The mode asked for.
    pub mode: Mode,
    /// Flags.
    pub flags: LockFlags,
    /// The lock value block; required by VALBLK.
    pub lvb: Option<Lvb>,
    /// Whether blocking notices are wanted.
    pub bast: bool,
    /// Give up after waiting this long, nanoseconds.
    pub timeout: Option<u64>,
}

/// A conversion (see [`lockify_core::ConvertArgs`]).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConvertRequest {
    /// The lock.
    pub lock: LockRef,
    /// The lock's tag from now on.
    pub tag: u64,
    /// The mode asked for.
    pub mode: Mode,
    /// Flags.
    pub flags: LockFlags,
    /// The lock value block; required by VALBLK.
    pub lvb: Option<Lvb>,
    /// Give up after waiting this long, nanoseconds.
    pub timeout: Option<u64>,
}

/// An unlock (see [`lockify_core::UnlockArgs`]).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnlockRequest {
    /// The lock.
    pub lock: LockRef,
    /// The lock's tag from now on.
    pub tag: u64,
    /// Flags.
    pub flags: UnlockFlags,
    /// The lock value block; required by VALBLK.
    pub lvb: Option<Lvb>,
}

/// Questions, and what else is answered once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Query {
    /// Use a lockspace that the node is configured to be a member of.
    Open(String),
    /// Drop the orphans that `client` left on `node` (every client's if `None`).
    Purge {
        /// The lockspace.
        space: Space,
        /// Whose node.
        node: NodeId,
        /// Whose orphans.
        client: Option<ClientId>,
    },
    /// Every node of the cluster: lockspaces, views, counters.
    Status,
    /// Every resource of a lockspace that has locks.
    Locks(Space),
    /// One resource: who holds it, who waits for it.
    Who(Space, Name),
}

/// What a daemon tells.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Event {
    /// A new lock waits; this is its id, for a cancel. A lock that is granted at once has no such
    /// event: its completion tells the id.
    Accepted {
        /// The lock's tag.
        tag: u64,
        /// Its id.
        lock: LockId,
    },
    /// An operation was refused: nothing was started.
    Refused {
        /// The lock's tag.
        tag: u64,
        /// Why.
        why: Refusal,
    },
    /// An operation ended.
    Completed(Done),
    /// A lock blocks somebody who wants `mode`.
    Bast {
        /// The lock's tag.
        tag: u64,
        /// The mode wanted.
        mode: Mode,
    },
    /// A lock is no longer held; unlock it when its protected work has been abandoned.
    Lost {
        /// The lock's tag.
        tag: u64,
        /// Why.
        reason: LostReason,
    },
    /// A provisional grant became final.
    Settled {
        /// The lock's tag.
        tag: u64,
        /// The fencing token from now on.
        token: u64,
    },
    /// The answer to a query; a long one comes in parts.
    Answer {
        /// The query's id.
        id: u64,
        /// This part.
        answer: Answer,
        /// Another part follows.
        more: bool,
    },
    /// The node lost its quorum (or withdrew): every lock of the lockspace is lost, and no
    /// operation that is outstanding will be answered. Calls are possible again at once and wait
    /// until the lockspace runs again.
    Halted {
        /// The lockspace.
        space: Space,
        /// For [`LockRef`]s from now on.
        life: u32,
    },
    /// The lockspace stopped for a recovery (false) or runs (again, true).
    Running {
        /// The lockspace.
        space: Space,
        /// Whether it runs.
        running: bool,
    },
    /// The daemon ends the session; every lock of it is released or lost.
    Goodbye(Goodbye),
}

/// How an operation ended (see [`lockify_core::Completion`]).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Done {
    /// The lockspace.
    pub space: Space,
    /// The lock's tag.
    pub tag: u64,
    /// The lock.
    pub lock: LockId,
    /// How.
    pub status: Status,
    /// The mode now granted; `None` if the lock is gone.
    pub mode: Option<Mode>,
    /// Flags.
    pub sb: SbFlags,
    /// The lock value block, if asked for and read by this transition.
    pub lvb: Option<Lvb>,
    /// Fencing token of a grant of PW or EX, else 0.
    pub token: u64,
    /// Granted on a claim that is not settled yet.
    pub provisional: bool,
}

impl Done {
    /// What a client is told of a completion.
    pub fn new(space: Space, c: Completion) -> Done {
        Done {
            space,
            tag: c.tag,
            lock: c.lock,
            status: c.status,
            mode: c.mode,
            sb: c.sb,
            lvb: c.lvb,
            token: c.token,
            provisional: c.provisional,
        }
    }
}

/// Why a request was refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The lock manager refused the call.
    #[error(transparent)]
    Core(lockify_core::Error),
    /// A flag that this version does not know.
    #[error("unknown flags {0:#x}: the daemon is older than the client, upgrade the daemon")]
    UnknownFlags(u32),
    /// A lockspace's number that no [`Answer::Opened`] gave.
    #[error("the session has not opened this lockspace: open it first")]
    NotOpen,
    /// The session has as many locks as one session may have.
    #[error(
        "the session holds {0} locks, as many as a session may: unlock some, use several \
             sessions, or raise max_locks in the daemon's configuration"
    )]
    TooManyLocks(u32),
    /// The node is not configured to be a member of this lockspace.
    #[error(
        "this node has no lockspace {wanted:?} (it has: {known}): add it to the configuration \
             of every node"
    )]
    NoSuchSpace {
        /// The name asked for.
        wanted: String,
        /// The names that exist, separated by commas.
        known: String,
    },
    /// A query could not be answered.
    #[error("{0}")]
    Failed(String),
}

/// Why the daemon ends a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Goodbye {
    /// The daemon is shutting down.
    #[error("the daemon is shutting down")]
    Shutdown,
    /// The client does not read what it is sent.
    #[error("the client did not read {0} bytes of events")]
    SlowReader(u64),
    /// The client sent something that is no request.
    #[error("the daemon could not read a request ({0})")]
    BadRequest(String),
    /// As many sessions as the daemon serves are open already.
    #[error(
        "the daemon serves {0} sessions already: close some, or raise max_sessions in its \
             configuration"
    )]
    TooManySessions(u32),
    /// The client greeted the wrong shard.
    #[error("wrong shard: this socket serves shard {0}")]
    WrongShard(u16),
}

/// Answers to queries.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// [`Query::Open`]: use this lockspace.
    Opened {
        /// Names it in requests.
        space: Space,
        /// For [`LockRef`]s.
        life: u32,
        /// Length of lock value blocks in bytes.
        lvb_len: u32,
    },
    /// Done, or no further part.
    Done,
    /// [`Query::Status`]: one node.
    Status(NodeStatus),
    /// [`Query::Locks`] and [`Query::Who`]: resources, by name. A resource with many locks comes
    /// in several pieces, one after the other.
    Resources(Vec<ResourceInfo>),
    /// This many locks were left out of a [`Query::Locks`] answer: ask for single names.
    Omitted(u64),
    /// These members did not answer in time.
    Silent(Vec<NodeId>),
    /// The query was refused.
    Refused(Refusal),
}

/// The id of a local client, which tells "who holds it" its process: the upper half is the process
/// id, the lower one tells sessions apart.
pub fn client_id(pid: u32, session: u32) -> ClientId {
    ClientId(u64::from(pid) << 32 | u64::from(session))
}

/// The process behind a client of this session protocol.
pub fn pid_of(client: ClientId) -> u32 {
    (client.0 >> 32) as u32
}
