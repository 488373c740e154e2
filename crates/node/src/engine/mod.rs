//! The event loop of one shard of one node.

mod connections;
mod greetings;
mod packets;
mod peer;
mod queries;
mod recording;
mod shards;
mod spaces;
mod views;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockify_core::{NodeId, Time};
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

use crate::clock::{Timer, boottime, monotonic, wall};
use crate::config::{NodeConfig, list_digest};
use crate::conn::Conn;
use crate::error::NodeError;
use crate::event::HostEvent;
use crate::history::History;
use crate::membership::{Event, Membership, StaticConfig, StaticMembership};
use crate::notice::{Level, Notice};
use crate::query::EngineStats;
use crate::shard::ShardGroup;
use peer::Peer;
use queries::Running;
use shards::Held;
use spaces::Space;

/// Tokens from this one on are the host's, for sources that it registers at
/// [`Engine::registry`].
pub const HOST_TOKENS: usize = 1 << 16;

const WAKER: Token = Token(0);
const TIMER: Token = Token(1);
const LISTENER: Token = Token(2);
const FIRST_CONN: usize = 16;
const MS: Time = 1_000_000;

/// One shard of one node: lockspaces, peers, timers, membership. Single-threaded: whoever owns it
/// calls [`Engine::run_once`] in a loop, and the other methods between its turns.
pub struct Engine {
    poll: Poll,
    /// Absent only while a turn looks at what came.
    events: Option<Events>,
    waker: Arc<mio::Waker>,
    timer: Timer,
    listener: Option<TcpListener>,
    /// When to accept again after that failed; the event queue would not say so.
    accept_again: Time,
    identity: Identity,
    incarnation: u64,
    lease: Time,
    delay: Time,
    backlog: usize,
    /// `CLOCK_BOOTTIME` minus `CLOCK_MONOTONIC` when the loop last looked.
    skew: Time,
    peers: Vec<Peer>,
    conns: Slab<Conn>,
    /// Connections with something to write.
    dirty: Vec<usize>,
    /// Connections that may have more to read than one turn took.
    unread: Vec<usize>,
    members: Box<dyn Membership + Send>,
    /// What `members` last said, on `CLOCK_BOOTTIME`: asked for at every call and turn.
    lease_end: Option<Time>,
    members_due: Time,
    spaces: Vec<Option<Space>>,
    last_life: u64,
    queries: Vec<Running>,
    next_query: u64,
    held: Vec<Held>,
    next_fence: u64,
    /// Events for the host.
    pending: Vec<HostEvent>,
    /// The last complaint about a stranger, so that a persistent one is not repeated.
    complaint: String,
    stats: EngineStats,
    /// Where histories go.
    history: Option<PathBuf>,
    /// Histories by lockspace, kept while it is not joined, to be continued; `None`: ended.
    histories: BTreeMap<String, Option<History>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// What does not change while the engine runs.
#[derive(Debug)]
struct Identity {
    node: NodeId,
    cluster: String,
    address: SocketAddr,
    /// Hash of the list of nodes, which must be the same everywhere.
    list: u64,
    shard: u32,
    shards: u32,
    group: Option<Arc<ShardGroup>>,
}

impl Engine {
    /// Binds the node's address and starts to look for its peers.
    ///
    /// # Errors
    /// The configuration is contradictory, the address cannot be bound, the history cannot be
    /// written, or the system is out of a resource.
    pub fn new(mut config: NodeConfig) -> Result<Engine, NodeError> {
        let identity = identity(&config)?;
        let poll = Poll::new().map_err(system("cannot make an event queue"))?;
        let waker =
            mio::Waker::new(poll.registry(), WAKER).map_err(system("cannot make a waker"))?;
        let waker = Arc::new(waker);
        let timer = Timer::new(poll.registry(), TIMER).map_err(system("cannot make a timer"))?;
        let listener = listen(&mut config, &identity, &poll)?;
        let now = monotonic();
        let incarnation = config.incarnation.unwrap_or_else(wall);
        let lease = nanos(config.lease).max(MS);
        let members = StaticMembership::new(
            StaticConfig {
                node: config.node,
                life: incarnation,
                weight: config.weight,
                nodes: config.nodes.iter().map(|n| n.node).collect(),
                lease,
            },
            boottime(),
        );
        if let Some(group) = &identity.group {
            group.attach(identity.shard, waker.clone());
        }
        let mut engine = Engine {
            poll,
            events: Some(Events::with_capacity(1024)),
            waker,
            timer,
            listener,
            accept_again: Time::MAX,
            incarnation,
            lease,
            delay: nanos(config.delay),
            backlog: config.backlog.max(1),
            skew: boottime().saturating_sub(now),
            peers: peer::list(&config, &identity, incarnation, now),
            identity,
            conns: Slab::new(),
            dirty: Vec::new(),
            unread: Vec::new(),
            lease_end: None,
            members_due: members.next_timer(),
            members: Box::new(members),
            spaces: Vec::new(),
            last_life: 0,
            queries: Vec::new(),
            next_query: 1,
            held: Vec::new(),
            next_fence: 1,
            pending: Vec::new(),
            complaint: String::new(),
            stats: EngineStats::default(),
            history: config.history,
            histories: BTreeMap::new(),
        };
        engine.tell(now, Event::Tick);
        engine.dial(now);
        engine.arm(now);
        Ok(engine)
    }

    /// Where the host registers sources of its own, with tokens from [`HOST_TOKENS`] on.
    pub fn registry(&self) -> &mio::Registry {
        self.poll.registry()
    }

    /// Ends a wait in [`Engine::run_once`] from another thread ([`HostEvent::Woken`]).
    pub fn waker(&self) -> Arc<mio::Waker> {
        self.waker.clone()
    }

    /// Where this node listens for its peers; `None` if it has none.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.listener.as_ref().and_then(|l| l.local_addr().ok())
    }

    /// This life of the node; a halt begins a new one.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The time that inputs are stamped with: `CLOCK_MONOTONIC`, nanoseconds.
    pub fn now(&self) -> Time {
        monotonic()
    }

    /// Counters of this engine.
    pub fn stats(&self) -> EngineStats {
        self.stats
    }

    /// Moves out the events that are there already, without looking at sockets and timers.
    pub fn take_events(&mut self, events: &mut Vec<HostEvent>) {
        events.append(&mut self.pending);
    }

    /// One turn: waits (at most `timeout`; not at all if events are there already) for peers,
    /// timers and the host's sources, handles what came, and appends to `events`.
    ///
    /// # Errors
    /// The event queue or the timer failed; the engine is of no more use.
    pub fn run_once(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<HostEvent>,
    ) -> Result<(), NodeError> {
        let busy = !self.pending.is_empty() || !self.unread.is_empty();
        let timeout = if busy { Some(Duration::ZERO) } else { timeout };
        let mut came = self.events.take().unwrap_or_else(|| Events::with_capacity(1024));
        let polled = self.poll.poll(&mut came, timeout);
        let now = self.wake();
        let result = match polled {
            Ok(()) => self.look(&came, now),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(NodeError::System { what: "cannot wait for events", error }),
        };
        self.events = Some(came);
        result?;
        self.fire(now);
        self.flush(now);
        self.arm(now);
        events.append(&mut self.pending);
        Ok(())
    }

    /// Looks at the clocks after a wait, and at the lease before anything else is done.
    fn wake(&mut self) -> Time {
        let now = monotonic();
        let boot = boottime();
        self.skew = boot.saturating_sub(now);
        self.stats.turns += 1;
        if self.lease_end.is_some_and(|end| boot >= end) {
            self.tell(now, Event::Tick);
        }
        now
    }

    fn look(&mut self, came: &Events, now: Time) -> Result<(), NodeError> {
        for conn in std::mem::take(&mut self.unread) {
            self.readable(conn, true, now);
        }
        let mut accept = false;
        for event in came {
            match event.token() {
                WAKER => {
                    self.open_letters(now);
                    self.pending.push(HostEvent::Woken);
                }
                TIMER => self.timer.fired(),
                // Last: a restarted peer's connection is accepted after its old one was closed.
                LISTENER => accept = true,
                token if token.0 >= HOST_TOKENS => self.pending.push(HostEvent::Ready {
                    token,
                    readable: event.is_readable() || event.is_read_closed() || event.is_error(),
                    writable: event.is_writable() || event.is_write_closed() || event.is_error(),
                }),
                token => self.connection_event(token.0 - FIRST_CONN, event, now),
            }
        }
        if accept {
            self.accept(now);
        }
        Ok(())
    }

    /// Does what is due.
    fn fire(&mut self, now: Time) {
        if self.members_due <= now + self.skew {
            self.tell(now, Event::Tick);
        }
        self.tick_spaces(now);
        if self.accept_again <= now {
            self.accept(now);
        }
        self.dial(now);
        self.expire(now);
        self.expire_queries(now);
        self.release_delayed(now);
        self.flush_histories(now);
    }

    /// Sets the timer to the next thing that is due.
    fn arm(&mut self, now: Time) {
        let mut next = self.members_due.saturating_sub(self.skew).max(now);
        next = next.min(self.accept_again);
        for space in self.spaces.iter().flatten() {
            next = next.min(space.core.next_timer().unwrap_or(Time::MAX));
        }
        for peer in &self.peers {
            next = next.min(peer.due());
        }
        for (_, conn) in &self.conns {
            next = next.min(self.due(conn));
        }
        for query in &self.queries {
            next = next.min(query.deadline);
        }
        self.set_timer(next);
    }

    fn set_timer(&mut self, at: Time) {
        if at == Time::MAX {
            return;
        }
        if let Err(error) = self.timer.arm(at) {
            self.notice(Level::Error, format!("cannot set the timer: {error}; restart this node"));
        }
    }

    fn notice(&mut self, level: Level, text: String) {
        self.pending.push(HostEvent::Notice(Notice { level, text }));
    }

    /// As `notice`, unless the last one said the same.
    fn complain(&mut self, text: String) {
        if self.complaint != text {
            self.complaint.clone_from(&text);
            self.notice(Level::Warning, text);
        }
    }
}

fn nanos(d: Duration) -> Time {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX / 8).min(u64::MAX / 8)
}

fn system(what: &'static str) -> impl Fn(std::io::Error) -> NodeError {
    move |error| NodeError::System { what, error }
}

fn identity(config: &NodeConfig) -> Result<Identity, NodeError> {
    let bad = |text: String| Err(NodeError::Config(text));
    if config.cluster.is_empty() || config.cluster.len() > 64 {
        return bad(format!("a cluster's name has 1 to 64 bytes, not {}", config.cluster.len()));
    }
    let mut nodes = config.nodes.clone();
    nodes.sort_unstable_by_key(|n| n.node);
    if let Some(two) = nodes.windows(2).find(|n| n[0].node == n[1].node) {
        return bad(format!(
            "two nodes of the list have the id {}: give each its own",
            two[0].node
        ));
    }
    let Some(me) = nodes.iter().find(|n| n.node == config.node) else {
        return bad(format!("node {} is not in the list of nodes: add it", config.node));
    };
    if nodes.len() > 1024 {
        return bad(format!("{} nodes, where at most 1024 are supported", nodes.len()));
    }
    let shards = config.shard.as_ref().map_or(1, |g| g.len());
    if config.shard_index >= shards {
        return bad(format!("shard {} of {shards}: count from 0", config.shard_index));
    }
    Ok(Identity {
        node: config.node,
        cluster: config.cluster.clone(),
        address: me.address,
        list: list_digest(&nodes),
        shard: config.shard_index,
        shards,
        group: config.shard.clone(),
    })
}

fn listen(
    config: &mut NodeConfig,
    identity: &Identity,
    poll: &Poll,
) -> Result<Option<TcpListener>, NodeError> {
    if config.nodes.len() == 1 {
        return Ok(None);
    }
    let address = shard_address(identity.address, identity.shard)?;
    let failed = |error| NodeError::Listen { node: config.node, address, error };
    let mut listener = match config.listener.take() {
        Some(l) => {
            l.set_nonblocking(true).map_err(failed)?;
            TcpListener::from_std(l)
        }
        None => TcpListener::bind(address).map_err(failed)?,
    };
    poll.registry()
        .register(&mut listener, LISTENER, Interest::READABLE)
        .map_err(system("cannot wait for peers"))?;
    Ok(Some(listener))
}

/// Where a node's shard listens.
fn shard_address(address: SocketAddr, shard: u32) -> Result<SocketAddr, NodeError> {
    let port = u32::from(address.port()) + shard;
    match u16::try_from(port) {
        Ok(port) => Ok(SocketAddr::new(address.ip(), port)),
        Err(_) => Err(NodeError::Config(format!(
            "shard {shard} would listen at port {port} of {}: choose a lower port",
            address.ip()
        ))),
    }
}
