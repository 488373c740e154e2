//! The messages between members.
//!
//! Every message carries the sender's view and Lamport clock. Directory and recovery messages count
//! only within their view (docs/design/semantics.md 9). The others are queued while a node
//! recovers, and handled afterwards.

use alloc::boxed::Box;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

pub use crate::deadlock::Sight;
use crate::flags::{LockFlags, SbFlags};
use crate::ids::{ClientId, Clients, LockId, NodeId, Time};
use crate::inspect::{LockInfo, ResourceInfo};
use crate::io::Lvb;
use crate::link::Weigh;
use crate::mode::Mode;
use crate::name::Name;
pub use crate::recovery::step::Step;
use crate::waits::Edge;

/// A message between two members of a lockspace.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Message {
    /// The sender's view.
    pub view: u64,
    /// The sender's Lamport clock: fencing tokens are drawn from it.
    pub clock: u64,
    /// The content.
    pub body: Body,
}

impl Weigh for Message {
    fn weight(&self) -> usize {
        let of = |count: usize, size: usize| count * size;
        size_of::<Message>()
            + match &self.body {
                Body::Names { names, .. } | Body::Orphaned(names) => {
                    of(names.len(), size_of::<Name>())
                }
                Body::Adopted(masters) => of(masters.len(), size_of::<(Name, NodeId)>()),
                Body::Moved(locks) => {
                    let blocks = locks.iter().filter_map(|l| l.lvb.as_deref()).map(<[u8]>::len);
                    of(locks.len(), size_of::<MovedLock>()) + blocks.sum::<usize>()
                }
                Body::MovedReply(ids) => of(ids.len(), size_of::<(LockId, LockId)>()),
                Body::Claims(claims) => of(claims.len(), size_of::<(Name, u64)>()),
                Body::ClaimReplies(replies) => of(replies.len(), size_of::<ClaimReply>()),
                Body::Waits { resources, .. } => {
                    let locks = resources.iter().map(|r| r.locks.len()).sum();
                    of(resources.len(), size_of::<ResourceInfo>())
                        + of(locks, size_of::<LockInfo>())
                }
                _ => 0,
            }
    }
}

/// A lock's request to its master.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Ask {
    /// The asker's lock.
    pub lkid: LockId,
    /// Which of that lock's operations this is; the reply carries it back.
    pub op: u32,
    /// The mode asked for.
    pub mode: Mode,
    /// The flags of the operation.
    pub flags: LockFlags,
    /// The lock value block, if this operation may write it.
    pub lvb: Option<Lvb>,
}

/// A new lock at a remote master.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct NewLock {
    /// Which resource.
    pub name: Name,
    /// The request of the lock.
    pub ask: Ask,
    /// True if its client wants blocking notices.
    pub bast: bool,
    /// Its client, for "who holds it"; `None` for an orphan.
    pub client: Option<ClientId>,
    /// The transaction that it belongs to; 0: its client.
    pub transaction: u64,
}

/// The result of a grant.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Granted {
    /// The mode now granted.
    pub mode: Mode,
    /// The flags of the completion.
    pub status_flags: SbFlags,
    /// The resource's lock value block, where this transition reads it.
    pub lvb: Option<Lvb>,
    /// The version of the resource's lock value block.
    pub lvb_seq: u32,
    /// Fencing token (PW and EX), else 0.
    pub token: u64,
}

/// How the master answers an operation.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The operation is granted.
    Granted(Granted),
    /// Queued; a [`Body::Grant`] will follow.
    Queued,
    /// EAGAIN: it cannot be granted at once.
    Again,
    /// EDEADLK: it was ended as a deadlock's victim.
    Deadlock,
    /// The lock is unlocked.
    Unlocked,
    /// Cancelled; with the mode that stays granted, if any.
    Canceled(Option<Mode>),
    /// A cancel that found nothing to cancel.
    NothingToCancel,
    /// EBADR or ENOTBLK: not the master (any more); look the name up again.
    NotMaster,
    /// A merge did not find the conflicting locks gone in time.
    Conflict,
}

/// How a directory node answers a claim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Verdict {
    /// Recorded (or recorded before).
    Ok,
    /// Somebody else is the master.
    Exists(NodeId),
    /// The name's directory is elsewhere.
    WrongDirectory,
}

/// The directory's answer to one claim.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ClaimReply {
    /// The claim's id.
    pub id: u64,
    /// The answer.
    pub verdict: Verdict,
    /// The claimed name, on transports that can lose or duplicate claims: the claimer needs it to
    /// heal a record that a late duplicate left behind (docs/design/claim.md 4.8).
    pub name: Option<Box<Name>>,
}

/// A lock that moves to a new master in recovery (docs/design/semantics.md 9.6).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct MovedLock {
    /// Which resource.
    pub name: Name,
    /// The owner's lock.
    pub lkid: LockId,
    /// Its client; `None` for an orphan.
    pub client: Option<ClientId>,
    /// Granted mode; `None` for a request that waits.
    pub granted: Option<Mode>,
    /// The granted mode is not known: a PR-CW conversion was on its way to the old master.
    pub granted_unknown: bool,
    /// Mode asked for, if it waits or converts.
    pub requested: Option<Mode>,
    /// The flags of the last operation.
    pub flags: LockFlags,
    /// True if its client wants blocking notices.
    pub bast: bool,
    /// Its copy of the lock value block.
    pub lvb: Option<Lvb>,
    /// That copy's version.
    pub lvb_seq: u32,
    /// That copy is the resource's block, if the lock is granted above CR.
    pub lvb_current: bool,
    /// When the wait began, as the owner's clock said then (for "since when").
    pub since: Time,
    /// Which of the lock's operations waits.
    pub op: u32,
    /// The transaction that it belongs to; 0: its client.
    pub transaction: u64,
}

/// The contents of messages.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Body {
    /// To the directory: asks for the master. If there is none, the asker becomes it. If the
    /// directory node itself is the master, it answers the lock at once.
    Lookup {
        /// The lock to place.
        new: NewLock,
        /// From the asker's counter of lookups, claims and removes.
        id: u64,
    },
    /// From the directory: the master.
    LookupReply {
        /// The asking lock.
        lkid: LockId,
        /// Its operation.
        op: u32,
        /// The master.
        master: NodeId,
    },
    /// To the directory: this node's last lock of the name has gone, it masters it no more.
    Remove {
        /// The resource.
        name: Name,
        /// Later than every lookup and claim it undoes.
        id: u64,
    },
    /// To the directory: this node masters these names.
    Claims(Vec<(Name, u64)>),
    /// From the directory, for each claim of a batch.
    ClaimReplies(Vec<ClaimReply>),

    /// To the master: a new lock.
    Request(NewLock),
    /// To the master: convert.
    Convert {
        /// The master's lock.
        remid: LockId,
        /// The request.
        ask: Ask,
    },
    /// To the master: unlock.
    Unlock {
        /// The master's lock.
        remid: LockId,
        /// The request; its mode and flags have no effect, except for VALBLK and IVVALBLK.
        ask: Ask,
    },
    /// To the master: cancel the outstanding request or conversion.
    Cancel {
        /// The master's lock.
        remid: LockId,
        /// The owner's lock.
        lkid: LockId,
        /// Which operation.
        op: u32,
    },
    /// To the master: a lock granted under a refused claim.
    Merge {
        /// The lock; `ask.mode` is its granted mode.
        new: NewLock,
        /// How long it may wait for conflicting locks to go, nanoseconds.
        patience: Time,
        /// The claimer's version of the lock value block.
        lvb_seq: u32,
    },
    /// From the master: the answer to a request, conversion, unlock, cancel or merge.
    Reply {
        /// The owner's lock.
        lkid: LockId,
        /// Which operation.
        op: u32,
        /// The master's lock.
        remid: LockId,
        /// The answer.
        answer: Answer,
    },
    /// From the master: a queued operation is granted.
    Grant {
        /// The owner's lock.
        lkid: LockId,
        /// The master's lock: a copy that the owner has given up must not grant its successor.
        remid: LockId,
        /// The result.
        granted: Granted,
    },
    /// From the master: CONVDEADLK took the waiting conversion's granted mode.
    Demoted {
        /// The owner's lock.
        lkid: LockId,
        /// The master's lock.
        remid: LockId,
    },
    /// From the master: somebody wants `mode`.
    Bast {
        /// The owner's lock.
        lkid: LockId,
        /// The mode wanted.
        mode: Mode,
    },
    /// Drop the orphans of these clients of the receiver; of all of them if [`Clients::ALL`].
    Purge(Clients),

    /// Broadcast mastery: who masters this? (O2CB's MASTER_REQUEST)
    WhoMasters {
        /// The resource.
        name: Name,
        /// The asker's round.
        round: u64,
    },
    /// The answer: `Yes`, `No`, or "I am trying, too".
    Masters {
        /// The resource.
        name: Name,
        /// The asker's round.
        round: u64,
        /// The answer.
        answer: Mastering,
    },
    /// The winner says so (O2CB's ASSERT_MASTER).
    Assert {
        /// The resource.
        name: Name,
        /// The winner's round.
        round: u64,
    },
    /// And everybody has heard it.
    AssertAck {
        /// The resource.
        name: Name,
        /// The winner's round.
        round: u64,
    },

    /// Recovery: the sender has reached a barrier.
    Reached {
        /// The barrier that was reached.
        step: Step,
        /// The sender's capabilities and configuration.
        features: Features,
    },
    /// Recovery, from the coordinator: all members have reached it.
    Passed {
        /// The barrier that all have reached.
        step: Step,
        /// The common capabilities of all members.
        features: Features,
    },
    /// Recovery: names that the sender masters and whose directory the receiver is.
    Names {
        /// Some of these names.
        names: Vec<Name>,
        /// No more will come.
        last: bool,
    },
    /// Recovery: who is the new master of these? The first asker becomes it.
    Orphaned(Vec<Name>),
    /// Recovery: the new masters, in the order asked.
    Adopted(Vec<(Name, NodeId)>),
    /// Recovery: locks for their new master.
    Moved(Vec<MovedLock>),
    /// Recovery: the new master's ids, as (owner's, master's).
    MovedReply(Vec<(LockId, LockId)>),

    /// To the lowest member: locks have waited for long at the sender, search for deadlocks.
    SuspectDeadlock,
    /// Search: what waits at you?
    TellWaits {
        /// The searcher's round.
        round: u64,
    },
    /// Search: this.
    Waits {
        /// The searcher's round.
        round: u64,
        /// The sender's clock, by which the locks' times are to be read.
        now: Time,
        /// Resources that the sender masters.
        resources: Vec<ResourceInfo>,
        /// No more will come.
        last: bool,
    },
    /// Search: which of these waits do you see?
    Witness {
        /// The searcher's round.
        round: u64,
        /// Waits that may be a deadlock.
        edges: Vec<Edge>,
    },
    /// Search: the sender's view of each; `None`: there is certainly no such wait.
    Witnessed {
        /// The searcher's round.
        round: u64,
        /// In the order asked.
        sights: Vec<Option<Sight>>,
    },
    /// Search: end this wait with EDEADLK.
    Victim {
        /// The receiver's lock.
        lkid: LockId,
        /// Which of its operations.
        op: u32,
    },
}

/// Answers of broadcast mastery.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Mastering {
    /// I am the master.
    Yes,
    /// I am not.
    No,
    /// I am trying to become it, too.
    Maybe,
}

/// A member's capabilities, and the settings on which all must agree. Members exchange them at the
/// first barrier of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Features {
    /// Understands claims.
    pub claims: bool,
    /// Family of policies: members of different families cannot share a lockspace.
    pub family: u8,
    /// Length of lock value blocks.
    pub lvb_len: u32,
    /// The sender was a member before this recovery, so that newcomers adapt to it.
    pub established: bool,
}
