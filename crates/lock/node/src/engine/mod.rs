//! The event loop of one shard of one node.

mod admission;
mod connections;
mod greetings;
mod handover;
mod packets;
mod pages;
mod peer;
mod queries;
mod recording;
mod requests;
mod settings;
mod shards;
mod spaces;
mod views;
mod work;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockify_core::{NodeId, Time};
use lockify_trust::{Mailbox, Security};
use mio::net::TcpListener;
use mio::{Events, Interest, Token};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use slab::Slab;

use crate::clock::{Timer, boot, boottime, monotonic};
use crate::cluster::Cluster;
use crate::config::NodeConfig;
use crate::conn::Conn;
use crate::disk::Disk;
use crate::error::NodeError;
use crate::event::HostEvent;
use crate::fence::Fencer;
use crate::history::History;
use crate::membership::{
    CorosyncMembership, Event, GroupConfig, LogConfig, LogMembership, Membership, NodeEntry,
};
use crate::news::News;
use crate::notice::{Level, Notice};
use crate::poller::Poller;
use crate::query::EngineStats;
use crate::shard::ShardGroup;
use crate::wire::{COROSYNC, LOG, Versions};
use admission::AdmissionLimits;
use pages::Look;
use peer::Peer;
use queries::Running;
pub use requests::{REQUESTS, lock_label, requests_are_logged};
use shards::Held;
use spaces::Space;

pub use handover::EngineImage;

/// Tokens from this one on are the host's, for sources that it registers at
/// [`NodeEngine::registry`].
pub const HOST_TOKENS: usize = 1 << 16;

const WAKER: Token = Token(0);
const TIMER: Token = Token(1);
const LISTENER: Token = Token(2);
const FIRST_CONN: usize = 16;
const MS: Time = 1_000_000;
/// A lone node's log needs a few steps until it has a view: a configuration, a life, and the view.
const TICKS_TO_BEGIN: usize = 16;
/// Peers that may wait to be accepted on one of the other links.
const BACKLOG: i32 = 128;

/// One shard of one node: lockspaces, peers, timers, membership. Single-threaded: its owner calls
/// [`NodeEngine::run_once`] in a loop, and the other methods between its turns.
pub struct NodeEngine {
    poll: Poller,
    /// Absent only while a turn looks at what came.
    events: Option<Events>,
    waker: Arc<mio::Waker>,
    timer: Timer,
    listener: Option<TcpListener>,
    /// On the node's other links.
    other_listeners: Vec<TcpListener>,
    /// When to accept again after that failed; the event queue would not say so.
    accept_again: Time,
    admission: AdmissionLimits,
    identity: Identity,
    security: Security,
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
    /// The messages of this process's threads.
    mailbox: Mailbox<News>,
    /// The way to the cluster manager, if there is one.
    cluster: Option<Cluster>,
    fencer: Arc<Fencer>,
    /// Where the membership service's state is kept; `None`: nowhere.
    disk: Option<Disk>,
    next_request: u64,
    /// The node's life is a new one, in which its lockspaces must be told to the others.
    announce_soon: bool,
    /// The loop does not run yet, and the node has nobody to wait for: its state is written at once.
    starts_alone: bool,
    /// Names of nodes, for agents.
    names: BTreeMap<NodeId, String>,
    /// Halted: when the host has told its clients, the peers are told, and a new life begins.
    parting: bool,
    /// The last value of `members`, on `CLOCK_BOOTTIME`: asked for at every call and turn.
    lease_end: Option<Time>,
    members_due: Time,
    spaces: Vec<Option<Space>>,
    last_life: u64,
    queries: Vec<Running>,
    next_query: u64,
    /// Looks through lockspaces for pages, the next one first.
    looks: VecDeque<Look>,
    held: Vec<Held>,
    next_claim_wait: u64,
    /// Events for the host.
    pending: Vec<HostEvent>,
    /// The last complaint about a stranger, so that a persistent one is not repeated.
    complaint: String,
    /// Views that have begun since the program did.
    view_changes: u64,
    stats: EngineStats,
    /// When the loop last woke, and when its turn should end.
    woke: Time,
    turn_end: Time,
    /// Where histories go.
    history: Option<PathBuf>,
    /// Histories by lockspace, kept while it is not joined, to be continued; `None`: ended.
    histories: BTreeMap<String, Option<History>>,
}

impl std::fmt::Debug for NodeEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeEngine").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// The settings that do not change while the engine runs, except for the newest version.
#[derive(Debug)]
struct Identity {
    node: NodeId,
    cluster: String,
    address: SocketAddr,
    /// Which membership service it has: the same on all nodes.
    kind: u64,
    shard: u32,
    shards: u32,
    group: Option<Arc<ShardGroup>>,
    versions: Versions,
}

impl NodeEngine {
    /// Binds the node's address and starts to look for its peers.
    ///
    /// # Errors
    /// The configuration is contradictory, the address cannot be bound, the history cannot be
    /// written, or the system is out of a resource.
    pub fn new(config: NodeConfig) -> Result<NodeEngine, NodeError> {
        let mut engine = NodeEngine::build(config, None)?;
        engine.begin(Event::Tick);
        // A node that has no others is a member when it is there.
        for _ in 0..TICKS_TO_BEGIN {
            if engine.starts_alone && engine.members.view().is_none() {
                engine.begin(Event::Tick);
            }
        }
        Ok(engine)
    }

    /// Makes everything that belongs to this program. `resumed`: goes on with this membership
    /// service, in this life.
    fn build(
        mut config: NodeConfig,
        resumed: Option<(Box<dyn Membership + Send>, u64)>,
    ) -> Result<NodeEngine, NodeError> {
        let identity = identity(&config)?;
        let dir = config.state_path()?.map(Path::to_owned);
        let poll = Poller::new(config.busy_poll).map_err(system("cannot make an event queue"))?;
        let waker =
            mio::Waker::new(poll.registry(), WAKER).map_err(system("cannot make a waker"))?;
        let waker = Arc::new(waker);
        let timer = Timer::new(poll.registry(), TIMER).map_err(system("cannot make a timer"))?;
        let listener = listen(&mut config, &identity, &poll)?;
        let other_listeners = listen_elsewhere(&config, &identity, &poll)?;
        let now = monotonic();
        let lease = nanos(config.lease).max(MS);
        let disk = dir.map(|d| Disk::open(&d, identity.shard)).transpose()?;
        let (members, incarnation) = match resumed {
            Some(resumed) => resumed,
            None => membership(&config, lease, disk.as_ref())?,
        };
        let mailbox = Mailbox::new(waker.clone());
        let cluster = match &config.corosync {
            Some(_) => {
                let group = format!("lockify:{}:{}", identity.cluster, identity.shard);
                Some(Cluster::start(group, mailbox.clone())?)
            }
            None => None,
        };
        let fencer = match &identity.group {
            Some(group) => group.fencer(&config.fence),
            None => Fencer::new(config.fence.clone()),
        };
        let all_addresses = config.addresses();
        let peers = peer::list(&config, &identity, incarnation, now);
        let names = config.corosync.take().map(|c| c.names).unwrap_or_default();
        if let Some(group) = &identity.group {
            group.attach(identity.shard, waker.clone());
        }
        Ok(NodeEngine {
            poll,
            events: Some(Events::with_capacity(1024)),
            waker,
            timer,
            listener,
            other_listeners,
            accept_again: Time::MAX,
            admission: AdmissionLimits::new(&all_addresses),
            security: config.security.clone(),
            incarnation,
            lease,
            delay: nanos(config.delay),
            backlog: config.backlog.max(1),
            skew: boottime().saturating_sub(now),
            peers,
            identity,
            conns: Slab::new(),
            dirty: Vec::new(),
            unread: Vec::new(),
            lease_end: None,
            members_due: members.next_timer(),
            members,
            mailbox,
            cluster,
            fencer,
            disk,
            next_request: 1,
            announce_soon: false,
            starts_alone: config.nodes.len() == 1 && config.corosync.is_none(),
            names,
            parting: false,
            spaces: Vec::new(),
            last_life: 0,
            queries: Vec::new(),
            looks: VecDeque::new(),
            next_query: 1,
            held: Vec::new(),
            next_claim_wait: 1,
            pending: Vec::new(),
            complaint: String::new(),
            view_changes: 0,
            stats: EngineStats::default(),
            woke: now,
            turn_end: now,
            history: config.history,
            histories: BTreeMap::new(),
        })
    }

    /// Begins to look for peers.
    fn begin(&mut self, event: Event) {
        let now = monotonic();
        self.membership_event(now, event);
        self.dial(now);
        self.arm(now);
    }

    /// Where the host registers sources of its own, with tokens from [`HOST_TOKENS`] on.
    pub fn registry(&self) -> &mio::Registry {
        self.poll.registry()
    }

    /// Ends a wait in [`NodeEngine::run_once`] from another thread ([`HostEvent::Woken`]).
    pub fn waker(&self) -> Arc<mio::Waker> {
        self.waker.clone()
    }

    /// Which node this is.
    pub fn node(&self) -> NodeId {
        self.identity.node
    }

    /// Which of the node's shards this is.
    pub fn shard(&self) -> u32 {
        self.identity.shard
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
        self.note_turn();
        self.starts_alone = false;
        let busy = !self.pending.is_empty() || self.parting || self.is_busy();
        let timeout = if busy { Some(Duration::ZERO) } else { timeout };
        let mut came = self.events.take().unwrap_or_else(|| Events::with_capacity(1024));
        let polled = self.poll.wait(&mut came, timeout);
        let now = self.wake();
        let result = match polled {
            Ok(()) => self.look(&came, now),
            Err(error) => Err(NodeError::System { what: "cannot wait for events", error }),
        };
        self.events = Some(came);
        result?;
        self.fire(now);
        self.work(now);
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
        self.begin_turn(now);
        if self.lease_end.is_some_and(|end| boot >= end) {
            self.membership_event(now, Event::Tick);
        } else if self.parting {
            // Not in the turn that halted: since then, the host has told its clients.
            self.part(now);
        }
        now
    }

    /// Reads what threads of this process say.
    fn open_mailbox(&mut self, now: Time) {
        for news in self.mailbox.take() {
            match news {
                News::Cluster(event) => self.membership_event(now, Event::Cluster(event)),
                News::Fenced { node, success } => {
                    self.membership_event(now, Event::Fenced { node, success })
                }
                News::Persisted { number, success } => {
                    self.membership_event(now, Event::Persisted { number, success });
                }
                News::Resolved { node, addresses } => self.resolved(node, addresses, now),
                News::Notice(notice) => self.pending.push(HostEvent::Notice(notice)),
            }
        }
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
                    self.open_mailbox(now);
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

    /// Does the work that is due.
    fn fire(&mut self, now: Time) {
        if self.members_due <= now + self.skew {
            self.membership_event(now, Event::Tick);
        }
        self.tick_spaces(now);
        if self.accept_again <= now {
            self.accept(now);
        }
        self.dial(now);
        self.expire(now);
        self.expire_queries(now);
        self.release_delayed(now);
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
            next = next.min(query.deadline());
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

    /// As `notice`, unless the last one said the same, or there are too many: strangers must not
    /// be able to fill the log.
    fn complain(&mut self, text: String) {
        if self.complaint == text {
            return;
        }
        self.complaint.clone_from(&text);
        if !self.admission.complaints.admits(monotonic()) {
            self.admission.left_out += 1;
            return;
        }
        let left_out = std::mem::take(&mut self.admission.left_out);
        self.notice(Level::Warning, text);
        if left_out > 0 {
            let text = format!("{left_out} earlier complaints about peers were left out");
            self.notice(Level::Warning, text);
        }
    }
}

/// The membership service that the configuration names, and the number by which peers know it.
fn membership(
    config: &NodeConfig,
    lease: Time,
    disk: Option<&Disk>,
) -> Result<(Box<dyn Membership + Send>, u64), NodeError> {
    let (node, weight, now) = (config.node, config.weight, boottime());
    let image = disk.map(Disk::read).transpose()?.flatten();
    let unusable = |e| NodeError::Config(format!("state_dir: {e}"));
    if let Some(corosync) = &config.corosync {
        let group = GroupConfig {
            cluster: config.cluster.clone(),
            node,
            seed: seed()?,
            floor: disk.map_or(Ok(0), Disk::floor)?,
            boot: boot(),
            weight,
            votes: corosync.votes.clone(),
            lease,
            fence: config.fence.kind,
            startup: nanos(config.fence.startup_wait),
        };
        let service = CorosyncMembership::new(group, image.as_deref(), now).map_err(unusable)?;
        let visit = service.identity();
        return Ok((Box::new(service), visit));
    }
    let service = LogMembership::new(log_config(config, lease, disk)?, image.as_deref(), now)
        .map_err(unusable)?;
    let visit = service.identity();
    Ok((Box::new(service), visit))
}

/// A random number, different for every process.
fn seed() -> Result<u64, NodeError> {
    let mut seed = [0; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| system("cannot draw a random number")(e.into()))?;
    Ok(u64::from_ne_bytes(seed))
}

fn log_config(
    config: &NodeConfig,
    lease: Time,
    disk: Option<&Disk>,
) -> Result<LogConfig, NodeError> {
    let entry = |n: &crate::config::NodeAddress| {
        let address = config.hosts.get(&n.node).cloned().unwrap_or_else(|| n.address.to_string());
        (n.node, NodeEntry { address, voter: !config.learners.contains(&n.node) })
    };
    Ok(LogConfig {
        cluster: config.cluster.clone(),
        node: config.node,
        weight: config.weight,
        nodes: config.nodes.iter().map(entry).collect(),
        lease: config.given.lease.then_some(lease),
        fence: config.given.fence.then_some(config.fence.kind),
        shards: config.shard.as_ref().map_or(1, |g| g.len()),
        // An answer takes twice the delay.
        heartbeat: (!config.delay.is_zero()).then(|| (4 * nanos(config.delay)).max(100 * MS)),
        floor: disk.map_or(Ok(0), Disk::floor)?,
        seed: seed()?,
    })
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
    let far = nodes.iter().find(|n| {
        !n.address.ip().to_canonical().is_loopback() || config.hosts.contains_key(&n.node)
    });
    if let (Security::Loopback, Some(far), 2..) = (&config.security, far, nodes.len()) {
        return bad(format!(
            "node {} is at {}, which others can reach, and nothing says how nodes prove who they \
             are: make keys with `lockify cluster`, and name them in [security] (docs/security.md)",
            far.node, far.address
        ));
    }
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
        kind: if config.corosync.is_some() { COROSYNC } else { LOG },
        shard: config.shard_index,
        shards,
        group: config.shard.clone(),
        versions: config.versions,
    })
}

fn listen(
    config: &mut NodeConfig,
    identity: &Identity,
    poll: &Poller,
) -> Result<Option<TcpListener>, NodeError> {
    if config.nodes.len() == 1 && config.listen.is_none() && config.listener.is_none() {
        return Ok(None);
    }
    let address = shard_address(config.listen.unwrap_or(identity.address), identity.shard)?;
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

/// Listens on the node's other links, also before the network is up there.
fn listen_elsewhere(
    config: &NodeConfig,
    identity: &Identity,
    poll: &Poller,
) -> Result<Vec<TcpListener>, NodeError> {
    if config.nodes.len() == 1 {
        return Ok(Vec::new());
    }
    let listen = |address: &SocketAddr| {
        let address = shard_address(*address, identity.shard)?;
        let failed = |error| NodeError::Listen { node: config.node, address, error };
        let mut listener = bind_ahead(address).map_err(failed)?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)
            .map_err(system("cannot wait for peers"))?;
        Ok(listener)
    };
    config.others_of(config.node).iter().map(listen).collect()
}

/// Listens at an address that this machine need not have yet.
fn bind_ahead(address: SocketAddr) -> std::io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv4() {
        sockopt::set_ip_freebind(&socket, true)?;
    } else {
        sockopt::set_ipv6_freebind(&socket, true)?;
    }
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from_std(socket.into()))
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
