//! The inputs and outputs of the state machine.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::error::Status;
use crate::flags::{LockFlags, SbFlags, UnlockFlags};
use crate::ids::{ClientId, Clients, LockId, NodeId, Time, View};
use crate::message::Message;
use crate::mode::Mode;
use crate::name::Name;

/// A lock value block; its length is the lockspace's.
pub type Lvb = Box<[u8]>;

/// A request for a new lock, in all of its ways from a client to here.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LockArgs {
    /// Returned in the completion and in blocking notices (libdlm's AST argument).
    pub tag: u64,
    /// The resource.
    pub name: Name,
    /// The mode asked for.
    pub mode: Mode,
    /// The flags of the request.
    pub flags: LockFlags,
    /// The lock value block; required by VALBLK.
    pub lvb: Option<Lvb>,
    /// True if the client wants blocking notices for this lock.
    pub bast: bool,
    /// Cancel with ETIMEDOUT after waiting this long, in nanoseconds.
    pub timeout: Option<Time>,
    /// The transaction that the lock belongs to, for the search for deadlocks (libdlm's xid): the
    /// same number is the same transaction on all nodes. 0: its client is one.
    pub transaction: u64,
}

impl LockArgs {
    /// A request that says no more than this.
    pub fn new(name: Name, mode: Mode) -> LockArgs {
        LockArgs {
            tag: 0,
            name,
            mode,
            flags: LockFlags::empty(),
            lvb: None,
            bast: false,
            timeout: None,
            transaction: 0,
        }
    }
}

/// Arguments of a conversion.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ConvertArgs {
    /// The client that asks.
    pub client: ClientId,
    /// The lock.
    pub lock: LockId,
    /// Replaces the lock's tag.
    pub tag: u64,
    /// The mode asked for.
    pub mode: Mode,
    /// The flags of the conversion.
    pub flags: LockFlags,
    /// The lock value block; required by VALBLK.
    pub lvb: Option<Lvb>,
    /// Cancel with ETIMEDOUT after waiting this long, in nanoseconds.
    pub timeout: Option<Time>,
}

/// Arguments of an unlock.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct UnlockArgs {
    /// The client that asks.
    pub client: ClientId,
    /// The lock.
    pub lock: LockId,
    /// Replaces the lock's tag.
    pub tag: u64,
    /// The flags of the unlock.
    pub flags: UnlockFlags,
    /// The lock value block; required by VALBLK.
    pub lvb: Option<Lvb>,
}

/// Everything that can happen to a lockspace.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Input {
    /// A client asks for a new lock; answers with its id.
    Lock {
        /// The client that asks.
        client: ClientId,
        /// The request.
        args: LockArgs,
    },
    /// A client converts a lock.
    Convert(ConvertArgs),
    /// A client unlocks.
    Unlock(UnlockArgs),
    /// A client takes its outstanding request or conversion back. Never completes by itself: the
    /// cancelled operation completes with [`Status::Canceled`], or as it would have.
    Cancel {
        /// The client that asks.
        client: ClientId,
        /// The lock.
        lock: LockId,
    },
    /// A client is gone: its PERSISTENT locks become orphans, the others are force-unlocked, and
    /// value blocks that they could have written become invalid.
    ClientGone(ClientId),
    /// A client withdraws its outstanding request or conversion as the victim of a known deadlock:
    /// as [`Input::Cancel`], but it completes with [`Status::Deadlock`].
    BreakDeadlock {
        /// The client that asks.
        client: ClientId,
        /// The lock.
        lock: LockId,
    },
    /// Drop the orphans that these clients left on `node`.
    Purge {
        /// The node of the orphans.
        node: NodeId,
        /// The clients that left the orphans.
        clients: Clients,
    },
    /// A message came from a member. Per sender, messages come in the order sent, each once
    /// (claims tolerate loss and duplicates if [`crate::Config::claim_resend`] is set).
    Receive {
        /// The sender.
        from: NodeId,
        /// The message.
        message: Message,
    },
    /// The membership service announces a view. Failed nodes have been fenced before. A member may
    /// miss views that others have seen, if it is in the next one.
    View(View),
    /// The node lost quorum, or is to stop at once: every lock is lost. To come back, a new
    /// lockspace with a larger incarnation must be made.
    Halt,
    /// Leave in order: completes with [`Output::Left`] when every claim is settled. Locks that
    /// clients still hold are force-unlocked.
    Leave,
    /// Ask to be told, by [`Output::ClaimsSettled`], when every claim made so far is settled.
    AwaitClaims(u64),
    /// Search for deadlocks after another time ([`crate::Config::deadlock_after`]), or never.
    SearchAfter(Option<Time>),
    /// Time has passed: call when [`crate::Lockspace::next_timer`] says so.
    Tick,
    /// The host has time for a piece of deferred work: call soon after
    /// [`crate::Lockspace::has_work`] says that there is some.
    Work {
        /// Members whose links take no more for now: nothing that can wait is sent to them.
        full: Vec<NodeId>,
    },
}

/// A completion AST. It reads as if [`Ended`]'s fields were its own.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Completion {
    /// The client that owns the lock.
    pub client: ClientId,
    /// The lock.
    pub lock: LockId,
    /// The tag of the operation that ends.
    pub tag: u64,
    /// How it ended.
    pub ended: Ended,
}

impl Deref for Completion {
    type Target = Ended;
    fn deref(&self) -> &Ended {
        &self.ended
    }
}

/// How an operation ended, in all of its ways from here to a client.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Ended {
    /// The status with which it ended.
    pub status: Status,
    /// The mode now granted; `None` if the lock is gone.
    pub mode: Option<Mode>,
    /// The flags of the completion.
    pub status_flags: SbFlags,
    /// The lock value block, if VALBLK asked for it and this transition reads it.
    pub lvb: Option<Lvb>,
    /// Fencing token: for grants of PW and EX a number larger than that of every earlier such
    /// grant of the resource; 0 otherwise.
    pub token: u64,
    /// Granted on a claim that is not settled yet; [`Output::Settled`] follows.
    pub provisional: bool,
}

impl Ended {
    /// An end after which the lock is gone.
    pub fn new(status: Status) -> Ended {
        Ended {
            status,
            mode: None,
            status_flags: SbFlags::empty(),
            lvb: None,
            token: 0,
            provisional: false,
        }
    }
}

/// Why a lock was lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum LostReason {
    /// A claim was refused and conflicting locks did not go in time: undo or abandon the creation,
    /// then unlock.
    Conflict,
    /// The node lost its quorum or was halted.
    Halted,
}

/// Why a node must leave the lockspace by itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum WithdrawReason {
    /// A caller did not abandon a lock lost to a conflict in time.
    ConflictNotAbandoned,
    /// The other members use another policy or another length of lock value blocks.
    ConfigurationMismatch,
    /// The others have gone on to views that the membership service has not announced here, and
    /// have sent more messages since than can be kept.
    LeftBehind,
}

/// An output of the state machine; pull with [`crate::Lockspace::poll`].
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Output {
    /// Send a message to a member.
    Send {
        /// To whom.
        to: NodeId,
        /// The message. It is boxed, as is a trace: most outputs are small, and are moved from
        /// queue to queue.
        message: Box<Message>,
    },
    /// An operation ended.
    Complete(Completion),
    /// A lock blocks somebody who wants `mode` (blocking AST).
    Bast {
        /// The client that owns the lock.
        client: ClientId,
        /// The lock.
        lock: LockId,
        /// Its tag.
        tag: u64,
        /// The mode wanted.
        mode: Mode,
    },
    /// A lock is no longer held.
    Lost {
        /// The client that owns the lock.
        client: ClientId,
        /// The lock.
        lock: LockId,
        /// Its tag.
        tag: u64,
        /// The reason of the loss.
        reason: LostReason,
    },
    /// A provisional grant has become final; `token` replaces the one given before.
    Settled {
        /// The client that owns the lock.
        client: ClientId,
        /// The lock.
        lock: LockId,
        /// Its tag.
        tag: u64,
        /// The fencing token from now on.
        token: u64,
    },
    /// [`Input::ClientGone`] is done: all locks of the client are on their way to be unlocked, but
    /// these, which it has left as orphans.
    Departed {
        /// The client.
        client: ClientId,
        /// How many; an [`Output::OrphanGone`] will come for each.
        orphans: u32,
    },
    /// An orphan is one no more: it was adopted or purged, or its conversion or request has ended
    /// as one that takes the lock along.
    OrphanGone {
        /// The client that left it.
        client: ClientId,
    },
    /// Every claim made before the [`Input::AwaitClaims`] of this number is settled.
    ClaimsSettled(u64),
    /// Recovery of this view began: callbacks stop, calls wait (recover_prep).
    RecoveryBegun(u64),
    /// Recovery of this view is done: the lockspace runs (recover_done).
    RecoveryDone(u64),
    /// This node has left in order.
    Left,
    /// This node must leave the lockspace: halt it, and let the others recover.
    Withdraw(WithdrawReason),
    /// Something that a history wants to know; only with [`crate::Config::trace`].
    Trace(Box<Trace>),
}

impl Output {
    /// The client that a callback is for.
    pub(crate) fn client(&self) -> Option<ClientId> {
        match self {
            Output::Complete(done) => Some(done.client),
            Output::Bast { client, .. }
            | Output::Lost { client, .. }
            | Output::Settled { client, .. } => Some(*client),
            _ => None,
        }
    }

    /// Returns true if it is a callback for this lock.
    pub(crate) fn is_about(&self, id: LockId) -> bool {
        match self {
            Output::Complete(done) => done.lock == id,
            Output::Bast { lock, .. }
            | Output::Lost { lock, .. }
            | Output::Settled { lock, .. } => *lock == id,
            _ => false,
        }
    }
}

/// Protocol events for histories (the events of the project's history format that no client sees).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Trace {
    /// A claim was made; `claim` stays the same until it is settled.
    Claim {
        /// The claimed resource.
        name: Name,
        /// The claim.
        claim: u64,
    },
    /// A claim was confirmed.
    Confirm {
        /// The claimed resource.
        name: Name,
        /// The claim.
        claim: u64,
    },
    /// A claim was refused: `master` has the resource.
    Refuse {
        /// The claimed resource.
        name: Name,
        /// The claim.
        claim: u64,
        /// The resource's master.
        master: NodeId,
    },
    /// A refused claim's locks have been merged into the master's.
    Merge {
        /// The claimed resource.
        name: Name,
        /// The claim.
        claim: u64,
        /// The resource's master.
        master: NodeId,
    },
    /// A refused claim met locks that did not go: its lock was reported lost.
    Conflict {
        /// The claimed resource.
        name: Name,
        /// The claim.
        claim: u64,
    },
    /// A claim ended because its lock is gone or abandoned.
    Drop {
        /// The claimed resource.
        name: Name,
        /// The claim.
        claim: u64,
    },
    /// A claim was sent again.
    Resend {
        /// The claimed resource.
        name: Name,
        /// The claim.
        claim: u64,
    },
    /// This node became (true) or ceased to be (false) the master.
    Master {
        /// The resource.
        name: Name,
        /// Gained or given up.
        gained: bool,
    },
    /// An operation began (true) or ended (false) to wait behind the claim barrier.
    Barrier {
        /// The lock whose operation waits.
        lock: LockId,
        /// Began or ended.
        waits: bool,
    },
}

/// Counters since the lockspace was made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Stats {
    /// Messages sent to other members.
    pub messages_sent: u64,
    /// Round trips that a local caller had to wait for.
    pub round_trips: u64,
    /// Claims made.
    pub claims: u64,
    /// Batches of claims sent.
    pub claim_batches: u64,
    /// Claims confirmed.
    pub confirmed: u64,
    /// Claims sent again.
    pub resends: u64,
    /// Claims refused.
    pub refusals: u64,
    /// Refused claims whose locks were merged at the master.
    pub merges: u64,
    /// Refused claims that ended in a conflict.
    pub conflicts: u64,
    /// Claims made strict because too many were unsettled.
    pub capped: u64,
    /// Operations that waited behind the barrier.
    pub barrier_waits: u64,
    /// Nanoseconds they waited, together.
    pub barrier_wait_ns: u64,
    /// Nanoseconds that the longest of them waited.
    pub barrier_wait_max_ns: u64,
    /// Most claims unsettled at one time.
    pub unsettled_max: u64,
    /// Recoveries completed.
    pub recoveries: u64,
    /// Nanoseconds from a recovery's begin to each of its barriers, from each barrier to the next
    /// and from the last to the end, summed over recoveries; one that was begun anew counts again.
    pub recovery_step_ns: [u64; 4],
    /// Nanoseconds that the longest completed recovery took.
    pub recovery_max_ns: u64,
    /// Grants made by this node as a master.
    pub grants: u64,
    /// Requests and conversions that this node queued as a master.
    pub queued: u64,
    /// Searches for deadlocks that this node has led.
    pub deadlock_searches: u64,
    /// Operations that this node, leading a search, has ended with EDEADLK.
    pub deadlocks: u64,
    /// Messages dropped because they came from no member, from another view, or made no sense.
    pub dropped: u64,
}
