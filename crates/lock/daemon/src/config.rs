//! The daemon's configuration file.
//!
//! TOML; `docs/configuration.md` is its manual. Only `node` and `nodes` (or `nodes_file`) are
//! needed, and keys (docs/security.md) unless all addresses are loopback:
//!
//! ```toml
//! node = 1
//! socket = "/run/lockify/lockify.sock"
//!
//! [security]
//! ca = "ca.pem"
//! identity = "node.pem"
//!
//! [[nodes]]
//! id = 1
//! address = "192.0.2.1:7430"
//!
//! [[nodes]]
//! id = 2
//! address = "192.0.2.2:7430"
//!
//! [[lockspace]]
//! name = "default"
//! policy = "claim"
//! ```

mod access;
mod changes;
mod forms;
mod log;
mod membership;
mod metrics;
mod place;
mod remote;
mod security;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockify_core::{NodeId, Policy};
use lockify_node::wire::{SPOKEN, Versions};
use lockify_node::{Given, NodeAddress, NodeConfig, SpaceConfig, StateDir};
use serde::{Deserialize, Deserializer};

pub use access::Access;
pub use changes::Changes;
pub use forms::{FORMS, Form};
pub use lockify_trust::Address;
pub use log::{Format as LogFormat, Logging};
pub use membership::{Fence, Fencing, MembershipKind, QuorumLost, QuorumLostAction};
pub use metrics::Metrics;
use place::{Source, Wrong};
pub use remote::Fabric;
pub(crate) use remote::RemoteTable;
pub(crate) use security::Protection;
pub use security::SecurityEntry;

/// An error in a configuration, with its place and remedy.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}; {}", read_remedy(error))]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The file is no configuration, or something in it does not fit; the text names line and column,
    /// unless that is missing.
    #[error("{path}: {what}")]
    Meaning {
        /// The file.
        path: PathBuf,
        /// The mismatch, and its remedy.
        what: String,
    },
}

/// Where a machine's configuration is, and its state: what systemd makes for the service.
const SYSTEM: &str = "/etc/lockify";
const STATE: &str = "/var/lib/lockify";

/// In the place of an address that is looked up at each connection.
const UNKNOWN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);
fn read_remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "run this as root or as the daemon's user, or name a file that this user may read"
        }
        _ => "name a readable configuration file",
    }
}

/// A daemon's configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The cluster's name, 1 to 64 bytes: nodes of different clusters refuse each other.
    #[serde(default = "default_cluster")]
    pub cluster: String,
    /// This node's id: one of `nodes`. With corosync it need not be given: it is corosync's.
    #[serde(default)]
    pub node: u32,
    /// The source of membership: `static` or `corosync`.
    #[serde(default)]
    pub membership: MembershipKind,
    /// With corosync: where every node listens for the others, at the addresses of all its links;
    /// shard N at `port + N`.
    #[serde(default = "default_port")]
    pub port: u16,
    /// The proof that recovery of a dead node's locks waits for: `lease`, `command` or `none`.
    #[serde(default)]
    pub fence: Fence,
    /// The agent of `fence = "command"`.
    #[serde(default)]
    pub fencing: Fencing,
    /// The action when this node has lost its quorum.
    #[serde(default)]
    pub quorum_lost: QuorumLost,
    /// Every node of the cluster, the same on all of them; not with corosync, which has the list.
    #[serde(default)]
    pub nodes: Vec<NodeEntry>,
    /// The directory for the state that the cluster has agreed on: one of its own, on a disk that
    /// survives restarts. By default one for the cluster and node: in `/var/lib/lockify` if the
    /// configuration is in `/etc/lockify`, else beside the configuration.
    pub state_dir: Option<PathBuf>,
    /// Where this node listens for others, `IP:PORT`, if not at its address.
    pub listen: Option<SocketAddr>,
    /// A file with `[[nodes]]` instead; relative to the configuration file.
    pub nodes_file: Option<PathBuf>,
    /// How nodes prove to each other who they are.
    #[serde(default)]
    pub security: SecurityEntry,
    /// The lockspaces that this node joins; by default one, `default`, with policy `claim`.
    #[serde(default, rename = "lockspace")]
    pub lockspaces: Vec<SpaceEntry>,
    /// The Unix socket for local clients: a path, or `@NAME` in the abstract namespace.
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    /// The permissions to connect to it: permission bits, octal, in quotes.
    #[serde(default = "default_mode", deserialize_with = "octal")]
    pub socket_mode: u32,
    /// Event loops, each with a share of the names; the same on all nodes.
    #[serde(default = "one")]
    pub shards: u16,
    /// This node's share of the directory.
    #[serde(default = "one_weight")]
    pub weight: u32,
    /// How long the node goes on without a majority.
    #[serde(default = "default_lease", deserialize_with = "duration")]
    pub lease: Duration,
    /// Speak versions of the node protocol up to this one with other nodes, to hold a cluster at an
    /// old version until all nodes are upgraded; by default, up to the newest.
    pub wire_version: Option<u16>,
    /// Added to every message to a peer, for experiments.
    #[serde(default, deserialize_with = "duration")]
    pub delay: Duration,
    /// How long an event loop polls before it sleeps: answers come sooner by the time that a
    /// processor takes to wake, for processor time. 0 by default.
    #[serde(default, deserialize_with = "duration")]
    pub busy_poll: Duration,
    /// Record what happens to locks in this file (`.N` is appended for shard N > 0).
    pub history: Option<PathBuf>,
    /// The limits of clients.
    #[serde(default)]
    pub limits: Limits,
    /// The content and format of the log.
    #[serde(default)]
    pub log: Logging,
    /// Where metrics are served.
    #[serde(default)]
    pub metrics: Metrics,
    /// How long clients that hold locks may take to end their sessions when the daemon is
    /// shutting down.
    #[serde(default = "default_grace", deserialize_with = "duration")]
    pub shutdown_grace: Duration,
    /// End after this long without clients; without it, never. Locks that outlive their clients
    /// (PERSISTENT) do not keep the daemon.
    #[serde(default, deserialize_with = "some_duration")]
    pub idle_exit: Option<Duration>,
    /// The file that it was read from, if there was one.
    #[serde(skip)]
    source: Option<Source>,
}

/// A node of the cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeEntry {
    /// Its id.
    pub id: u32,
    /// Where others reach it, `HOST:PORT`: an IP address, or a name that is looked up again at each
    /// connection; shard N listens at `PORT + N`.
    pub address: Address,
    /// True if it votes on the cluster's memory; the first seven voters count.
    #[serde(default = "yes")]
    pub voter: bool,
}

/// A lockspace.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpaceEntry {
    /// Its name, 1 to 64 bytes.
    pub name: String,
    /// How masters are found: `claim`, `claim-strict`, `directory`, `broadcast` or `home`. The
    /// same on all nodes.
    #[serde(default = "default_policy", deserialize_with = "policy")]
    pub policy: Policy,
    /// Length of lock value blocks in bytes, 1 to 4096. The same on all nodes.
    #[serde(default = "default_lvb_len")]
    pub lvb_len: usize,
    /// The local user that owns it (name or number); by default the daemon's.
    pub owner: Option<String>,
    /// Its group (name or number); by default the daemon's.
    pub group: Option<String>,
    /// The permissions of owner, group and others: permission bits, octal, in quotes. Reading is
    /// seeing locks, reading and writing is taking them; by default `666`, all who may connect.
    /// Root and the daemon's user may always.
    #[serde(default, deserialize_with = "some_octal")]
    pub mode: Option<u32>,
    /// Search for deadlocks when somebody has waited this long; without it, never. The same on all
    /// nodes.
    #[serde(default, deserialize_with = "some_duration")]
    pub deadlock_after: Option<Duration>,
    /// Its locks are words in remote memory, reached by this fabric: `shm`, shared memory. Goes with the
    /// policy `home`.
    pub fabric: Option<Fabric>,
    /// Where the table of these locks is: what `lockify memory-server` has printed. As all files here,
    /// relative to the configuration file.
    pub table: Option<PathBuf>,
    /// How many of the table's locks each shard of this daemon holds or waits for at a time, 1 to 256: each is a client
    /// of the table.
    #[serde(default = "default_hands")]
    pub hands: usize,
}

/// Limits of local clients, for each shard.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// All sessions of a shard.
    pub max_sessions: u32,
    /// Sessions of one user. Root's and the daemon's own are not counted, and a sixteenth of
    /// `max_sessions` is kept for them.
    pub max_sessions_per_user: u32,
    /// Locks, and requests for locks, of a session. Names (64 bytes), value blocks (`lvb_len`) and
    /// queries (32) of a session are limited, too.
    pub max_locks: u32,
    /// Locks, and requests for locks, of all sessions of one user, and the orphans that ended ones
    /// have left. Root and the daemon's user are not limited.
    pub max_locks_per_user: u32,
    /// Bytes of events that a session may leave unread before it is disconnected.
    pub max_unread: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_sessions: 16_384,
            max_sessions_per_user: 4096,
            max_locks: 1_000_000,
            max_locks_per_user: 2_000_000,
            max_unread: 16 << 20,
        }
    }
}

fn default_cluster() -> String {
    "lockify".into()
}
fn default_port() -> u16 {
    7430
}
fn default_socket() -> PathBuf {
    "/run/lockify/lockify.sock".into()
}
fn yes() -> bool {
    true
}
fn default_mode() -> u32 {
    0o600
}
fn default_lease() -> Duration {
    Duration::from_secs(2)
}
fn default_grace() -> Duration {
    Duration::from_secs(2)
}
fn default_lvb_len() -> usize {
    32
}
fn default_hands() -> usize {
    16
}
fn default_policy() -> Policy {
    Policy::Claim(lockify_core::ClaimMode::Optimistic)
}
fn one() -> u16 {
    1
}
fn one_weight() -> u32 {
    1
}

fn octal<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    let text = String::deserialize(d)?;
    match u32::from_str_radix(&text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err(serde::de::Error::custom(
            "write permission bits as three octal digits in quotes, as \"600\" or \"660\"",
        )),
    }
}

fn some_octal<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u32>, D::Error> {
    octal(d).map(Some)
}

fn duration<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(d)?;
    humantime::parse_duration(&text).map_err(|e| {
        serde::de::Error::custom(format!("{e}: write a time as \"2s\", \"150ms\" or \"10us\""))
    })
}

fn some_duration<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
    duration(d).map(Some)
}

fn policy<'de, D: Deserializer<'de>>(d: D) -> Result<Policy, D::Error> {
    String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
}

/// The file that `nodes_file` names.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodesFile {
    nodes: Vec<NodeEntry>,
}

impl Config {
    /// Reads and checks a configuration file.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let text = read(path)?;
        Config::parse(&text, path)
    }

    /// Checks a configuration's text; `path` is for messages and for `nodes_file`.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        let source = Source::new(path, text);
        let mut config: Config = parse(&source)?;
        let mut nodes_source = source.clone();
        if let Some(nodes_file) = &config.nodes_file {
            if !config.nodes.is_empty() {
                let what = "both nodes and nodes_file are given: remove one";
                return Err(source.refuse(Wrong::new("nodes_file", what)));
            }
            let nodes_file = path.parent().unwrap_or(Path::new("")).join(nodes_file);
            nodes_source = Source::new(&nodes_file, &read(&nodes_file)?);
            config.nodes = parse::<NodesFile>(&nodes_source)?.nodes;
        }
        if config.lockspaces.is_empty() {
            config.lockspaces.push(SpaceEntry::default_space());
        }
        let base = path.parent().unwrap_or(Path::new(""));
        config.security.resolve(base);
        for table in config.lockspaces.iter_mut().filter_map(|space| space.table.as_mut()) {
            *table = base.join(&*table);
        }
        config.state_dir = config.state_dir.map(|dir| base.join(dir));
        config.source = Some(source.clone());
        config.check(&source, &nodes_source).map_err(|wrong| {
            if wrong.is_within("nodes") { nodes_source.refuse(wrong) } else { source.refuse(wrong) }
        })?;
        Ok(config)
    }

    /// One node that has no others, with the lockspace `default`: for one user's processes on one
    /// machine.
    pub fn alone(socket: PathBuf) -> Config {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        Config {
            cluster: default_cluster(),
            node: 1,
            membership: MembershipKind::Static,
            port: default_port(),
            fence: Fence::Lease,
            fencing: Fencing::default(),
            quorum_lost: QuorumLost::default(),
            nodes: vec![NodeEntry { id: 1, address: address.into(), voter: true }],
            state_dir: None,
            listen: None,
            nodes_file: None,
            security: SecurityEntry::default(),
            lockspaces: vec![SpaceEntry::default_space()],
            socket,
            socket_mode: default_mode(),
            shards: one(),
            weight: one_weight(),
            lease: default_lease(),
            wire_version: None,
            delay: Duration::ZERO,
            busy_poll: Duration::ZERO,
            history: None,
            limits: Limits::default(),
            log: Logging::default(),
            metrics: Metrics::default(),
            shutdown_grace: default_grace(),
            idle_exit: None,
            source: None,
        }
    }

    /// The checks beyond the types. The sources tell in which lines other keys are.
    fn check(&self, file: &Source, nodes_file: &Source) -> Result<(), Wrong> {
        if self.cluster.is_empty() || self.cluster.len() > 64 {
            return Err(Wrong::new("cluster", "cluster: a cluster's name has 1 to 64 bytes"));
        }
        if self.shards == 0 || self.shards > 64 {
            return Err(Wrong::new("shards", format!("shards = {}: use 1 to 64", self.shards)));
        }
        let Versions { oldest, newest } = SPOKEN;
        if self.wire_version.is_some_and(|v| !(oldest..=newest).contains(&v)) {
            let what = format!("wire_version: this release speaks versions {oldest} to {newest}");
            return Err(Wrong::new("wire_version", what));
        }
        self.check_times()?;
        self.check_socket()?;
        self.limits.check()?;
        self.check_membership()?;
        let listed = self.membership == MembershipKind::Static;
        if listed && !self.nodes.iter().any(|n| n.id == self.node) {
            return Err(Wrong::new(
                "node",
                match (file.line("node"), self.nodes.len()) {
                    (_, 0) => {
                        "the list of nodes is missing: add [[nodes]] with id and address for \
                           each node, this one included"
                            .into()
                    }
                    (None, _) => "node is missing: write which of nodes this one is".into(),
                    _ => format!("node = {0}: add node {0} to nodes, with its address", self.node),
                },
            ));
        }
        for i in 0..self.nodes.len() {
            self.check_node(i, nodes_file)?;
        }
        self.metrics.check().map_err(|wrong| wrong.within("metrics"))?;
        self.check_metrics_port()?;
        self.log.check().map_err(|e| Wrong::new("log.level", e))?;
        for (i, space) in self.lockspaces.iter().enumerate() {
            let wrong = |w: Wrong| w.within(&i.to_string()).within("lockspace");
            space.check(&self.lockspaces[..i]).map_err(wrong)?;
        }
        self.security.check()?;
        match self.security.protection()? {
            Protection::Loopback => self.check_loopback(),
            Protection::PlainText | Protection::Tls(_) => Ok(()),
        }
    }

    /// Without keys, nobody else may reach the nodes.
    fn check_loopback(&self) -> Result<(), Wrong> {
        let reachable = |n: &NodeEntry| !n.address.is_loopback();
        match self.nodes.iter().position(reachable).filter(|_| self.nodes.len() > 1) {
            None => Ok(()),
            Some(i) => {
                let what = format!(
                    "node {} is at {}, which others can reach, and nothing says how nodes prove \
                     who they are: make keys with `lockify cluster`, and name them in [security] \
                     (docs/security.md)",
                    self.nodes[i].id, self.nodes[i].address
                );
                Err(Wrong::new(format!("nodes.{i}.address"), what))
            }
        }
    }

    fn check_times(&self) -> Result<(), Wrong> {
        let day = Duration::from_secs(86400);
        let within = |key: &str, value: Duration, least: Duration, most: Duration| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            let [value, least, most] = [value, least, most].map(humantime::format_duration);
            Err(Wrong::new(key, format!("{key} = \"{value}\": use {least} to {most}")))
        };
        let (zero, some) = (Duration::ZERO, Duration::from_millis(10));
        within("lease", self.lease, some, Duration::from_secs(3600))?;
        within("busy_poll", self.busy_poll, zero, Duration::from_secs(1))?;
        within("shutdown_grace", self.shutdown_grace, zero, day)?;
        within("fencing.time_limit", self.fencing.time_limit, some, day)?;
        within("fencing.startup_wait", self.fencing.startup_wait, zero, day)?;
        within("quorum_lost.time_limit", self.quorum_lost.time_limit, some, day)?;
        if self.delay >= self.lease {
            let what =
                "delay: it must be shorter than the lease, or no node hears of others in time";
            return Err(Wrong::new("delay", what));
        }
        Ok(())
    }

    fn check_socket(&self) -> Result<(), Wrong> {
        let last = lockify_session::shard_path(&self.socket, self.shards - 1);
        match last.as_os_str().len() {
            0 => Err(Wrong::new("socket", "socket: name a path")),
            // Sessions have names below it, which must fit, too.
            n if lockify_session::is_abstract(&last) && n > 64 => {
                let what = format!(
                    "socket: {} has {n} bytes, where a name in the abstract namespace has at most 64: \
                     use a shorter one",
                    last.display()
                );
                Err(Wrong::new("socket", what))
            }
            // unix(7): sun_path, with its final zero.
            n if n > 107 => {
                let what = format!(
                    "socket: {} has {n} bytes, where a Unix socket's path has at \
                                    most 107: use a shorter one",
                    last.display()
                );
                Err(Wrong::new("socket", what))
            }
            _ => Ok(()),
        }
    }

    fn check_node(&self, i: usize, file: &Source) -> Result<(), Wrong> {
        let (NodeEntry { id, address, .. }, before) = (&self.nodes[i], &self.nodes[..i]);
        let at = |key: &str, what: String| Err(Wrong::new(format!("nodes.{i}.{key}"), what));
        let there = |other: usize, key: &str| match file.line(&format!("nodes.{other}.{key}")) {
            Some(line) => format!(" (the other is in line {line})"),
            None => String::new(),
        };
        if let Some(other) = before.iter().position(|n| n.id == *id) {
            let there = there(other, "id");
            return at("id", format!("two nodes have the id {id}{there}: give each its own"));
        }
        if self.nodes.len() > 1 && (address.port() == 0 || address.is_unspecified()) {
            return at(
                "address",
                format!("node {id}: {address} is no address that others can reach"),
            );
        }
        if address.port().checked_add(self.shards - 1).is_none() {
            return at("address", format!("node {id}: no {} ports from {address} on", self.shards));
        }
        let meets = |n: &NodeEntry| {
            n.address.host() == address.host()
                && n.address.port().abs_diff(address.port()) < self.shards
        };
        if let Some(other) = before.iter().position(meets) {
            let (there, other) = (there(other, "address"), before[other].id);
            let what = match self.shards {
                1 => format!(
                    "nodes {other} and {id} have the address {address}{there}: give each its own"
                ),
                shards => format!(
                    "nodes {other} and {id} share ports at {}{there}: each uses {shards}, from its \
                     own on, one for each shard",
                    address.host()
                ),
            };
            return at("address", what);
        }
        Ok(())
    }

    /// Metrics are not served where this node's peers come.
    fn check_metrics_port(&self) -> Result<(), Wrong> {
        let Some(metrics) = self.metrics.address else { return Ok(()) };
        let Some(first) = self.listens() else { return Ok(()) };
        let ports = first.port()..=first.port().saturating_add(self.shards - 1);
        if first.ip() == metrics.ip() && ports.contains(&metrics.port()) {
            let what = format!(
                "metrics: {metrics} is where this node listens for others: use \
                                another port"
            );
            return Err(Wrong::new("metrics.address", what));
        }
        Ok(())
    }

    /// The engine's configuration, without what differs between shards.
    pub(crate) fn node_config(&self) -> NodeConfig {
        let nodes = self.nodes.iter().map(|n| NodeAddress {
            node: NodeId(n.id),
            address: n.address.socket().unwrap_or(UNKNOWN),
        });
        let named = self.nodes.iter().filter(|n| n.address.socket().is_none());
        let learners = self.nodes.iter().filter(|n| !n.voter).map(|n| NodeId(n.id));
        NodeConfig {
            state_dir: StateDir::At(self.state_dir()),
            hosts: named.map(|n| (NodeId(n.id), n.address.to_string())).collect(),
            learners: learners.collect(),
            listen: self.listens(),
            given: self.given(),
            weight: self.weight,
            lease: self.lease,
            delay: self.delay,
            busy_poll: self.busy_poll,
            fence: self.fence_config(),
            versions: Versions { newest: self.newest_version(), ..SPOKEN },
            ..NodeConfig::new(self.cluster.clone(), NodeId(self.node), nodes.collect())
        }
    }

    /// The directory for the state that the cluster has agreed on.
    pub fn state_dir(&self) -> PathBuf {
        self.state_dir.clone().unwrap_or_else(|| {
            // A cluster's name is any text; a file's is not.
            let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
            let cluster: String = self.cluster.chars().map(plain).collect();
            let file = self.source.as_ref().map_or(&*self.socket, |source| source.path());
            let dir = file.parent().unwrap_or(Path::new(""));
            let dir = if dir == Path::new(SYSTEM) { Path::new(STATE) } else { dir };
            dir.join(format!("state.{cluster}.{}", self.node))
        })
    }

    /// Where this node listens for others; `None`: nowhere.
    fn listens(&self) -> Option<SocketAddr> {
        let own = self.nodes.iter().find(|n| n.id == self.node)?;
        // In a list of one nobody could come, unless the file says where.
        let reachable = self.nodes.len() > 1;
        self.listen.or_else(|| reachable.then(|| own.address.listens()))
    }

    /// Which keys of the cluster the file names.
    fn given(&self) -> Given {
        let names = |key| self.source.as_ref().is_none_or(|s| s.line(key).is_some());
        Given { lease: names("lease"), fence: names("fence") }
    }

    /// The newest version of the node protocol that it speaks.
    pub(crate) fn newest_version(&self) -> u16 {
        self.wire_version.unwrap_or(SPOKEN.newest)
    }

    /// The permissions of each lockspace.
    ///
    /// # Errors
    /// A user or group that is not known.
    pub(crate) fn access(&self) -> Result<Vec<Access>, Wrong> {
        let access = |(i, space): (usize, &SpaceEntry)| {
            space.access().map_err(|w| w.within(&i.to_string()).within("lockspace"))
        };
        self.lockspaces.iter().enumerate().map(access).collect()
    }

    /// The lockspaces whose locks the engine has.
    pub(crate) fn space_configs(&self) -> Vec<(String, SpaceConfig)> {
        let here = self.lockspaces.iter().filter(|space| space.fabric.is_none());
        let spaces = here.map(|space| {
            let mut config = SpaceConfig::new(space.policy);
            config.core.lvb_len = space.lvb_len;
            config.core.deadlock_after = space.deadlock_after.map(|d| d.as_nanos() as u64);
            (space.name.clone(), config)
        });
        spaces.collect()
    }
}

impl SpaceEntry {
    fn default_space() -> SpaceEntry {
        let (name, policy) = ("default".into(), default_policy());
        let (owner, group, mode) = (None, None, None);
        let (lvb_len, deadlock_after) = (default_lvb_len(), None);
        let (fabric, table, hands) = (None, None, default_hands());
        SpaceEntry {
            name,
            policy,
            lvb_len,
            owner,
            group,
            mode,
            deadlock_after,
            fabric,
            table,
            hands,
        }
    }

    fn check(&self, before: &[SpaceEntry]) -> Result<(), Wrong> {
        let name = &self.name;
        if name.is_empty() || name.len() > lockify_session::protocol::MAX_SPACE_NAME {
            let what = format!("lockspace {name:?}: a name has 1 to 64 bytes");
            return Err(Wrong::new("name", what));
        }
        if before.iter().any(|s| s.name == *name) {
            return Err(Wrong::new(
                "name",
                format!("lockspace {name:?} is there twice: remove one"),
            ));
        }
        if self.lvb_len == 0 || self.lvb_len > 4096 {
            let what = format!("lockspace {name:?}: lvb_len is 1 to 4096 bytes");
            return Err(Wrong::new("lvb_len", what));
        }
        let bounds = Duration::from_millis(10)..=Duration::from_secs(86400);
        if self.deadlock_after.is_some_and(|after| !bounds.contains(&after)) {
            let what = format!("lockspace {name:?}: deadlock_after is 10ms to 1day");
            return Err(Wrong::new("deadlock_after", what));
        }
        self.remote()?;
        self.access().map(drop)
    }
}

impl Limits {
    fn check(&self) -> Result<(), Wrong> {
        let Limits { max_sessions, max_sessions_per_user, .. } = *self;
        let Limits { max_locks, max_locks_per_user, max_unread, .. } = *self;
        for (key, value) in [
            ("max_sessions", u64::from(max_sessions)),
            ("max_sessions_per_user", max_sessions_per_user.into()),
            ("max_locks", max_locks.into()),
            ("max_locks_per_user", max_locks_per_user.into()),
            ("max_unread", max_unread as u64),
        ] {
            if value == 0 {
                let what = format!("limits: {key} = 0 lets nobody in: use 1 or more");
                return Err(Wrong::new(key, what).within("limits"));
            }
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path)
        .map_err(|error| ConfigError::Read { path: path.to_owned(), error })
}

fn parse<T: for<'a> Deserialize<'a>>(source: &Source) -> Result<T, ConfigError> {
    toml::from_str(source.text()).map_err(|error| source.misread(&error))
}
