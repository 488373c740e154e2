//! The session protocol: the messages between a local client and its daemon.
//!
//! A session is one Unix stream socket to one shard of the daemon. Each side first sends a
//! [`Greeting`], whose layout never changes, so that two versions can at least name each other.
//! Then the client sends [`Request`]s and the daemon [`Event`]s, as frames ([`crate::codec`]).
//!
//! Operations on a lock carry the lock's `tag`, chosen by the client and unique among its locks of
//! a session: a lock has at most one operation outstanding besides a cancel, so the tag says which
//! operation an event ends. Queries carry an `id` that their answer returns.

use std::ops::Deref;

use lockify_core::{
    ClientId, Clients, Completion, Ended, LockArgs, LockFlags, LockId, LostReason, Lvb, Mode, Name,
    NodeId, ResourceInfo, UnlockFlags,
};
use lockify_node::{Certificate, NodeStatus, Software};
use serde::{Deserialize, Serialize};

/// The newest version of this protocol that this release speaks, and the one that it would.
pub const VERSION: u16 = 5;

/// The oldest version that it speaks. A session is of the version that its client has offered: a
/// daemon that speaks it answers with the same one; else with the nearest that it does, and closes,
/// for the client to come back with that.
pub const OLDEST: u16 = 3;

/// From this version on, there are [`Query::CreateWithMode`], [`Query::Reload`] and
/// [`Answer::Software`].
pub const KNOWS_RELOAD: u16 = 4;

/// From this version on, there is [`Answer::Certificates`].
pub const TELLS_CERTIFICATES: u16 = 5;

/// From this version on, there are [`Query::Cluster`] and [`Query::Change`].
pub const CHANGES_CLUSTERS: u16 = 5;

/// From this version on, there are [`Query::Page`] and [`Answer::Rest`].
pub const KNOWS_PAGES: u16 = 5;

/// Longest name of a lockspace in bytes (Linux `DLM_LOCKSPACE_LEN`).
pub const MAX_SPACE_NAME: usize = 64;

/// The first bytes of each side: eight bytes of magic, then the version, the shard and the process
/// id, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// From a client: the version it offers. From a daemon: the same, or the nearest that it speaks.
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

/// A client's request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Make a lock.
    Lock(LockRequest),
    /// Convert a lock.
    Convert(ConvertRequest),
    /// Unlocks a lock.
    Unlock(UnlockRequest),
    /// Take the outstanding request or conversion back. Has no answer of its own.
    Cancel(LockRef),
    /// As `Cancel`, for the victim of a deadlock: the operation ends with
    /// [`lockify_core::Status::Deadlock`].
    BreakDeadlock(LockRef),
    /// Anything that is answered once, by [`Event::Answer`].
    Query {
        /// Returned in the answer.
        id: u64,
        /// The query.
        query: Query,
    },
}

/// A new lock. Its encoding has its fields as they stand here: one that is added to the arguments needs a new version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockRequest {
    /// The lockspace.
    pub space: Space,
    /// The rest of the request. Its transaction 0 means the session's.
    pub args: LockArgs,
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
    /// The flags of the conversion, as in libdlm.
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
    /// The flags of the unlock, as in libdlm.
    pub flags: UnlockFlags,
    /// The lock value block; required by VALBLK.
    pub lvb: Option<Lvb>,
}

/// Questions, and other requests with one answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Query {
    /// Use a lockspace that the node is a member of: configured, or made at run time.
    Open(String),
    /// Make a lockspace, or use the one of that name that exists; answered when it runs. It stays
    /// until it has been released as often as it was made, or the daemon ends. A new one belongs to
    /// its maker's user and group, with mode 0600.
    Create {
        /// Its name.
        name: String,
        /// Refuse if it exists.
        exclusive: bool,
    },
    /// Undo a [`Query::Create`]; the last one leaves the lockspace and is answered then.
    Release {
        /// Its name.
        name: String,
        /// Leave even if this node's clients have locks in it: they are lost.
        force: bool,
    },
    /// Drop the orphans that these clients left on `node`.
    Purge {
        /// The lockspace.
        space: Space,
        /// The node of the orphans; this one if `None`.
        node: Option<NodeId>,
        /// The clients that left the orphans.
        clients: Clients,
    },
    /// Every node of the cluster: lockspaces, views, counters.
    Status,
    /// Every resource of a lockspace that has locks.
    Locks(Space),
    /// One resource: its holders and waiters.
    Who(Space, Name),
    /// As [`Query::Create`], with another mode. From version [`KNOWS_RELOAD`] on: daemons of before
    /// end the session when they are asked.
    CreateWithMode {
        /// Its name.
        name: String,
        /// Refuse if it exists.
        exclusive: bool,
        /// Permission bits, of 0666, of a new lockspace: reading is seeing locks, reading and
        /// writing is taking them.
        mode: u32,
    },
    /// Read the daemon's configuration again.
    Reload,
    /// Hand everything over to the program that is installed now; answered by that program.
    Restart,
    /// Asks if [`Query::Release`] without force would be refused. From version [`KNOWS_RELOAD`] on.
    MayRelease(String),
    /// Resources of a lockspace that have locks, in the order of their names, a page of them. From
    /// version [`KNOWS_PAGES`] on.
    Page {
        /// The lockspace.
        space: Space,
        /// Only names after this one.
        after: Option<Name>,
        /// At most so many resources, and [`lockify_node::MOST_PER_PAGE`].
        limit: u32,
        /// Only resources for which somebody waits.
        waited: bool,
    },
    /// The agreed state of the cluster. From version [`CHANGES_CLUSTERS`] on.
    Cluster,
    /// Change the agreed state of the cluster. From version [`CHANGES_CLUSTERS`] on.
    Change(lockify_node::membership::Request),
}

/// A daemon's event.
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
        /// The reason of the refusal.
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
        /// The reason of the loss.
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
        /// True if it runs, false if it has stopped for a recovery.
        running: bool,
    },
    /// The daemon ends the session; every lock of it is released or lost.
    Goodbye(Goodbye),
}

/// How an operation ended. It reads as if [`Ended`]'s fields were its own, and its encoding has them as they stand here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Done {
    /// The lockspace.
    pub space: Space,
    /// The lock's tag.
    pub tag: u64,
    /// The lock.
    pub lock: LockId,
    /// The rest.
    pub ended: Ended,
}

impl Done {
    /// The event that reports a completion to a client.
    pub fn new(space: Space, completion: Completion) -> Done {
        let Completion { client: _, lock, tag, ended } = completion;
        Done { space, tag, lock, ended }
    }
}

impl Deref for Done {
    type Target = Ended;
    fn deref(&self) -> &Ended {
        &self.ended
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
    /// Making and releasing lockspaces is for the daemon's own user and root.
    #[error(
        "only root and the user that the lock daemon runs as may make and release lockspaces: \
             let one of them do it, or add the lockspace to the configuration"
    )]
    NotPermitted,
    /// A lockspace of this name exists and was to be new.
    #[error("lockspace {0:?} exists: open it, or choose another name")]
    SpaceExists(String),
    /// The lockspace is being released.
    #[error("lockspace {0:?} is being released: try again")]
    SpaceLeaving(String),
    /// Clients of this node have locks in the lockspace that was to be released.
    #[error("{1} locks of this node are in lockspace {0:?}: unlock them, or use force")]
    SpaceBusy(String, u64),
    /// As many lockspaces as a node may have exist.
    #[error("this node has {0} lockspaces, as many as it may: release one")]
    TooManySpaces(u32),
    /// A query could not be answered.
    #[error("{0}")]
    Failed(String),
    /// The sessions of the user have as many locks as those of one user may have.
    #[error(
        "this user holds {0} locks, as many as a user may; PERSISTENT ones that ended sessions have \
             left count, too: unlock or purge some, or raise max_locks_per_user in the daemon's \
             configuration"
    )]
    TooManyLocksOfUser(u32),
    /// The lockspace's permissions do not let this user take locks.
    #[error(
        "this user may not take locks in lockspace {0:?}: owner, group and mode of the lockspace \
             are in the daemon's configuration, or those of who made it"
    )]
    MayNotLock(String),
    /// The lockspace's permissions do not let this user see its locks.
    #[error(
        "this user may not use lockspace {0:?}: owner, group and mode of the lockspace are in the \
             daemon's configuration, or those of who made it"
    )]
    MayNotLook(String),
    /// Having the configuration read again is for the daemon's own user and root.
    #[error(
        "only root and the user that the lock daemon runs as may have it read its configuration"
    )]
    MayNotReload,
    /// The configuration was read again, and nothing was changed: the reason.
    #[error("{0}")]
    NotReloaded(String),
}

/// Why the daemon ends a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Goodbye {
    /// The daemon is shutting down.
    #[error("the daemon is shutting down")]
    Shutdown,
    /// The client does not read its events.
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
    /// As many sessions as one user may have are open already.
    #[error(
        "this user has {0} sessions already: close some, or raise max_sessions_per_user in the \
             daemon's configuration"
    )]
    TooManySessionsOfUser(u32),
}

/// Answers to queries.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// [`Query::Open`], [`Query::Create`], [`Query::CreateWithMode`]: use this lockspace.
    Opened {
        /// Names it in requests.
        space: Space,
        /// For [`LockRef`]s.
        life: u32,
        /// Length of lock value blocks in bytes.
        lvb_len: u32,
        /// The node that the client is on.
        node: NodeId,
    },
    /// Done, or no further part.
    Done,
    /// [`Query::Status`]: one node.
    Status(Box<NodeStatus>),
    /// [`Query::Locks`] and [`Query::Who`]: resources, by name. A resource with many locks comes
    /// in several pieces, one after the other.
    Resources(Vec<ResourceInfo>),
    /// This many locks were left out of a [`Query::Locks`] answer: ask for single names.
    Omitted(u64),
    /// These members did not answer in time.
    Silent(Vec<NodeId>),
    /// The query was refused.
    Refused(Refusal),
    /// [`Query::Reload`]: what has been changed.
    Reloaded(String),
    /// [`Query::Status`]: what a node runs, after its `Status`.
    Software {
        /// The node.
        node: NodeId,
        /// The shard that tells.
        shard: u32,
        /// The release and its versions.
        software: Software,
    },
    /// [`Query::Status`]: the certificates that the asked node has seen, after its `Status`. From
    /// version [`TELLS_CERTIFICATES`] on.
    Certificates {
        /// The node.
        node: NodeId,
        /// The shard that tells.
        shard: u32,
        /// Its own, and those of the nodes that it is connected to.
        certificates: Vec<Certificate>,
    },
    /// [`Query::Page`]: what comes after it.
    Rest {
        /// How many resources.
        more: u64,
        /// After which name to go on; `None`: that was the last page.
        next: Option<Name>,
    },
    /// [`Query::Cluster`]: what the cluster has agreed on.
    Cluster(Box<lockify_node::membership::ClusterState>),
    /// [`Query::Change`]: what was done.
    Changed(String),
}

/// The id of a local client, which names its process for "who holds it": the upper half is the
/// process id, the lower one tells sessions apart.
pub fn client_id(pid: u32, session: u32) -> ClientId {
    ClientId(u64::from(pid) << 32 | u64::from(session))
}

/// Every session of a process.
pub fn sessions_of(pid: u32) -> Clients {
    Clients { first: client_id(pid, 0), last: client_id(pid, u32::MAX) }
}

/// The process behind a client of this session protocol.
pub fn pid_of(client: ClientId) -> u32 {
    (client.0 >> 32) as u32
}
