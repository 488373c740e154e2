//! The event loop of one shard of one node.

use std::sync::Arc;
use std::time::Duration;

use lockify_core::{Input, LockId, Stats, Time};

use crate::config::{NodeConfig, SpaceConfig};
use crate::error::{CallError, NodeError};
use crate::event::{HostEvent, SpaceId};
use crate::query::{NodeStatus, Query, QueryId};

/// Tokens from this one on are the host's, for sources that it registers at
/// [`Engine::registry`].
pub const HOST_TOKENS: usize = 1 << 16;

/// One shard of one node: lockspaces, peers, timers, membership. Single-threaded: whoever owns it
/// calls [`Engine::run_once`] in a loop, and the other methods between its turns.
#[derive(Debug)]
pub struct Engine {
    poll: mio::Poll,
    waker: Arc<mio::Waker>,
}

impl Engine {
    /// Binds the node's address and starts to look for its peers.
    pub fn new(_config: NodeConfig) -> Result<Engine, NodeError> {
        let system = |what| move |error| NodeError::System { what, error };
        let poll = mio::Poll::new().map_err(system("cannot make an event queue"))?;
        let waker = mio::Waker::new(poll.registry(), mio::Token(0))
            .map_err(system("cannot make a waker"))?;
        Ok(Engine {
            poll,
            waker: Arc::new(waker),
        })
    }

    /// Where the host registers sources of its own, with tokens from [`HOST_TOKENS`] on.
    pub fn registry(&self) -> &mio::Registry {
        self.poll.registry()
    }

    /// Ends a wait in [`Engine::run_once`] from another thread ([`HostEvent::Woken`]).
    pub fn waker(&self) -> Arc<mio::Waker> {
        self.waker.clone()
    }

    /// Joins a lockspace (1 to 64 bytes); calls are possible at once and wait until
    /// [`HostEvent::Running`]. Joining again with the same configuration returns the same id.
    pub fn join(&mut self, _name: &str, _config: SpaceConfig) -> Result<SpaceId, CallError> {
        Err(CallError::NoSpace)
    }

    /// Leaves a lockspace in order; [`HostEvent::Left`] follows. Locks still held are unlocked.
    pub fn leave(&mut self, _space: SpaceId) -> Result<(), CallError> {
        Err(CallError::NoSpace)
    }

    /// Feeds a client's call (`Lock`, `Convert`, `Unlock`, `Cancel`, `ClientGone`, `Purge`) to a
    /// lockspace and sends what it leads to. What completes at once is in `events` of the next
    /// [`Engine::run_once`], or at once in [`Engine::take_events`].
    pub fn handle(&mut self, _space: SpaceId, _input: Input) -> Result<Option<LockId>, CallError> {
        Err(CallError::NoSpace)
    }

    /// Moves out the events that are there already, without looking at sockets and timers.
    pub fn take_events(&mut self, _events: &mut Vec<HostEvent>) {}

    /// One turn: waits (at most `timeout`; not at all if events are there already) for peers,
    /// timers and the host's sources, handles what came, and appends to `events`.
    pub fn run_once(
        &mut self,
        _timeout: Option<Duration>,
        _events: &mut Vec<HostEvent>,
    ) -> Result<(), NodeError> {
        Ok(())
    }

    /// Whether some peer's backlog is over its limit: hosts stop reading from their clients, and
    /// [`Engine::handle`] refuses new locks with [`CallError::WouldBlock`].
    pub fn congested(&self) -> bool {
        false
    }

    /// Asks all nodes; [`HostEvent::Answered`] follows within `timeout`.
    pub fn query(&mut self, _query: Query, _timeout: Duration) -> QueryId {
        QueryId(0)
    }

    /// This node's own state.
    pub fn status(&self) -> NodeStatus {
        NodeStatus {
            node: lockify_core::NodeId(0),
            incarnation: 0,
            shard: 0,
            view: 0,
            members: Vec::new(),
            spaces: Vec::new(),
            peers: Vec::new(),
        }
    }

    /// A lockspace's counters.
    pub fn space_stats(&self, _space: SpaceId) -> Option<Stats> {
        None
    }

    /// The time that inputs are stamped with: `CLOCK_MONOTONIC`, nanoseconds.
    pub fn now(&self) -> Time {
        0
    }

    /// Tells the peers that this process ends, so that they need not wait for its lease, and
    /// closes the connections. Locks still held are recovered as after a crash: leave first.
    pub fn goodbye(&mut self) {}
}
