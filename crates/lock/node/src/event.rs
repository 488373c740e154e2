//! The engine's events for its host.

use lockify_core::{ClientId, Completion, LockId, LostReason, Mode, NodeId, WithdrawReason};
use serde::{Deserialize, Serialize};

use crate::membership::NodeView;
use crate::notice::Notice;
use crate::query::{Answer, QueryId};

/// A lockspace that this node has joined; never reused within a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SpaceId(pub u32);

/// An event of the engine for its host; see [`crate::NodeEngine::run_once`].
#[derive(Clone, PartialEq, Debug)]
pub enum HostEvent {
    /// An operation ended (completion AST).
    Completed {
        /// The lockspace.
        space: SpaceId,
        /// How it ended.
        completion: Completion,
    },
    /// A lock blocks somebody (blocking AST).
    Bast {
        /// The lockspace.
        space: SpaceId,
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
        /// The lockspace.
        space: SpaceId,
        /// The client that owns the lock.
        client: ClientId,
        /// The lock.
        lock: LockId,
        /// Its tag.
        tag: u64,
        /// The reason of the loss.
        reason: LostReason,
    },
    /// A provisional grant has become final.
    Settled {
        /// The lockspace.
        space: SpaceId,
        /// The client that owns the lock.
        client: ClientId,
        /// The lock.
        lock: LockId,
        /// Its tag.
        tag: u64,
        /// The fencing token from now on.
        token: u64,
    },
    /// A client is gone from the lockspace, as [`Input::ClientGone`](lockify_core::Input::ClientGone)
    /// asked for.
    Departed {
        /// The lockspace.
        space: SpaceId,
        /// The client.
        client: ClientId,
        /// How many orphans it has left; a [`HostEvent::OrphanGone`] will come for each, unless the
        /// lockspace is halted or left.
        orphans: u32,
    },
    /// An orphan is one no more: it was adopted or purged, or has gone.
    OrphanGone {
        /// The lockspace.
        space: SpaceId,
        /// The client that left it.
        client: ClientId,
    },
    /// The lockspace stopped for a recovery: calls are accepted and wait.
    Recovering {
        /// The lockspace.
        space: SpaceId,
        /// The view being recovered.
        view: u64,
    },
    /// The lockspace runs: the first of these ends a join.
    Running {
        /// The lockspace.
        space: SpaceId,
        /// The view.
        view: u64,
    },
    /// The lockspace was left as [`crate::NodeEngine::leave`] asked; its id is void.
    Left {
        /// The lockspace.
        space: SpaceId,
    },
    /// The node lost its quorum (or withdrew) and every lock of the lockspace is lost; a
    /// [`HostEvent::Lost`] for each came before. Every [`LockId`] of the lockspace is void from
    /// now on, no completion of an earlier call will come, and the engine joins again by itself:
    /// [`HostEvent::Running`] says when calls are possible.
    Halted {
        /// The lockspace.
        space: SpaceId,
    },
    /// This node had to leave the lockspace by itself; [`HostEvent::Halted`] precedes it. After
    /// a configuration mismatch it does not join again and the id is void.
    Withdrawn {
        /// The lockspace.
        space: SpaceId,
        /// The reason of the withdrawal.
        reason: WithdrawReason,
    },
    /// A new node view; not to be confused with the views of lockspaces.
    View(NodeView),
    /// No majority of the configured nodes answers any more.
    QuorumLost,
    /// A peer's backlog is over the limit (true) or has drained again (false).
    Congested {
        /// The peer.
        peer: NodeId,
        /// Over the limit.
        congested: bool,
    },
    /// A source that the host registered is ready.
    Ready {
        /// Its token, at least [`crate::HOST_TOKENS`].
        token: mio::Token,
        /// It can be read (or was closed).
        readable: bool,
        /// It can be written (or was closed).
        writable: bool,
    },
    /// [`crate::NodeEngine::waker`] was used.
    Woken,
    /// A cluster query ended.
    Answered {
        /// The query that is answered.
        query: QueryId,
        /// The answer.
        answer: Box<Answer>,
    },
    /// The result of an operator's request ([`crate::NodeEngine::request`]).
    Requested {
        /// The number of the request.
        id: u64,
        /// The change, or the reason why there is none.
        result: Result<String, String>,
    },
    /// Something that an operator should see.
    Notice(Notice),
}
