//! The daemon's configuration file.
//!
//! TOML; `docs` of each field below are its manual. Only `node` and `nodes` (or `nodes_file`) are
//! needed:
//!
//! ```toml
//! node = 1
//! socket = "/run/lockify/lockify.sock"
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

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockify_core::{NodeId, Policy};
use lockify_node::{NodeAddress, NodeConfig, SpaceConfig};
use serde::{Deserialize, Deserializer};

/// What is wrong with a configuration, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}; name a readable configuration file")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file is no configuration; the text names line and column.
    #[error("{path}: {error}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and what.
        error: Box<toml::de::Error>,
    },
    /// The fields do not fit together.
    #[error("{path}: {what}")]
    Meaning {
        /// The file.
        path: PathBuf,
        /// What does not fit, and what to do.
        what: String,
    },
}

/// A daemon's configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The cluster's name, 1 to 64 bytes: nodes of different clusters refuse each other.
    #[serde(default = "default_cluster")]
    pub cluster: String,
    /// This node's id: one of `nodes`.
    pub node: u32,
    /// Every node of the cluster, the same on all of them.
    #[serde(default)]
    pub nodes: Vec<NodeEntry>,
    /// A file with `[[nodes]]` instead; relative to the configuration file.
    pub nodes_file: Option<PathBuf>,
    /// The lockspaces that this node joins; by default one, `default`, with policy `claim`.
    #[serde(default, rename = "lockspace")]
    pub lockspaces: Vec<SpaceEntry>,
    /// The Unix socket for local clients.
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    /// Who may connect to it: permission bits, octal, in quotes.
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
    /// Added to every message to a peer, for experiments.
    #[serde(default, deserialize_with = "duration")]
    pub delay: Duration,
    /// Record what happens to locks in this file (`.N` is appended for shard N > 0).
    pub history: Option<PathBuf>,
    /// Limits.
    #[serde(default)]
    pub limits: Limits,
    /// How long clients that hold locks may take to end their sessions when the daemon is
    /// shutting down.
    #[serde(default = "default_grace", deserialize_with = "duration")]
    pub shutdown_grace: Duration,
    /// End after this long without clients; without it, never. Locks that outlive their clients
    /// (PERSISTENT) do not keep the daemon.
    #[serde(default, deserialize_with = "some_duration")]
    pub idle_exit: Option<Duration>,
}

/// A node of the cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeEntry {
    /// Its id.
    pub id: u32,
    /// Where it listens, `IP:PORT`; shard N listens at `PORT + N`.
    pub address: SocketAddr,
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
}

/// Limits of local clients, for each shard.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Sessions.
    pub max_sessions: u32,
    /// Locks of a session.
    pub max_locks: u32,
    /// Bytes of events that a session may leave unread before it is disconnected.
    pub max_unread: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { max_sessions: 1024, max_locks: 1_000_000, max_unread: 16 << 20 }
    }
}

fn default_cluster() -> String {
    "lockify".into()
}
fn default_socket() -> PathBuf {
    "/run/lockify/lockify.sock".into()
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
        let mut config: Config = parse(text, path)?;
        let wrong = |what| ConfigError::Meaning { path: path.to_owned(), what };
        if let Some(nodes_file) = &config.nodes_file {
            if !config.nodes.is_empty() {
                return Err(wrong("both nodes and nodes_file are given: remove one".into()));
            }
            let nodes_file = path.parent().unwrap_or(Path::new("")).join(nodes_file);
            config.nodes = parse::<NodesFile>(&read(&nodes_file)?, &nodes_file)?.nodes;
        }
        if config.lockspaces.is_empty() {
            config.lockspaces.push(SpaceEntry::default_space());
        }
        config.check().map_err(wrong)?;
        Ok(config)
    }

    /// One node that has no others, with the lockspace `default`: for one user's processes on one
    /// machine.
    pub fn alone(socket: PathBuf) -> Config {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        Config {
            cluster: default_cluster(),
            node: 1,
            nodes: vec![NodeEntry { id: 1, address }],
            nodes_file: None,
            lockspaces: vec![SpaceEntry::default_space()],
            socket,
            socket_mode: default_mode(),
            shards: one(),
            weight: one_weight(),
            lease: default_lease(),
            delay: Duration::ZERO,
            history: None,
            limits: Limits::default(),
            shutdown_grace: default_grace(),
            idle_exit: None,
        }
    }

    /// What the types do not say.
    fn check(&self) -> Result<(), String> {
        if self.cluster.is_empty() || self.cluster.len() > 64 {
            return Err("cluster: a cluster's name has 1 to 64 bytes".into());
        }
        if self.shards == 0 || self.shards > 64 {
            return Err(format!("shards = {}: use 1 to 64", self.shards));
        }
        if !self.nodes.iter().any(|n| n.id == self.node) {
            return Err(format!("node = {0}: add node {0} to nodes, with its address", self.node));
        }
        for (i, node) in self.nodes.iter().enumerate() {
            self.check_node(node, &self.nodes[..i])?;
        }
        for (i, space) in self.lockspaces.iter().enumerate() {
            space.check(&self.lockspaces[..i])?;
        }
        Ok(())
    }

    fn check_node(&self, node: &NodeEntry, before: &[NodeEntry]) -> Result<(), String> {
        let NodeEntry { id, address } = node;
        if before.iter().any(|n| n.id == *id) {
            return Err(format!("two nodes have the id {id}: give each its own"));
        }
        if let Some(other) = before.iter().find(|n| n.address == *address) {
            return Err(format!(
                "nodes {} and {id} have the address {address}: give each its own",
                other.id
            ));
        }
        if self.nodes.len() > 1 && (address.port() == 0 || address.ip().is_unspecified()) {
            return Err(format!("node {id}: {address} is no address that others can reach"));
        }
        if address.port().checked_add(self.shards - 1).is_none() {
            return Err(format!("node {id}: no {} ports from {address} on", self.shards));
        }
        Ok(())
    }

    /// The engine's configuration, without what differs between shards.
    pub(crate) fn node_config(&self) -> NodeConfig {
        let nodes =
            self.nodes.iter().map(|n| NodeAddress { node: NodeId(n.id), address: n.address });
        NodeConfig {
            weight: self.weight,
            lease: self.lease,
            delay: self.delay,
            ..NodeConfig::new(self.cluster.clone(), NodeId(self.node), nodes.collect())
        }
    }

    pub(crate) fn space_configs(&self) -> Vec<(String, SpaceConfig)> {
        let spaces = self.lockspaces.iter().map(|space| {
            let mut config = SpaceConfig::new(space.policy);
            config.core.lvb_len = space.lvb_len;
            (space.name.clone(), config)
        });
        spaces.collect()
    }
}

impl SpaceEntry {
    fn default_space() -> SpaceEntry {
        let (name, policy) = ("default".into(), default_policy());
        SpaceEntry { name, policy, lvb_len: default_lvb_len() }
    }

    fn check(&self, before: &[SpaceEntry]) -> Result<(), String> {
        let name = &self.name;
        if name.is_empty() || name.len() > lockify_client::protocol::MAX_SPACE_NAME {
            return Err(format!("lockspace {name:?}: a name has 1 to 64 bytes"));
        }
        if before.iter().any(|s| s.name == *name) {
            return Err(format!("lockspace {name:?} is there twice: remove one"));
        }
        if self.lvb_len == 0 || self.lvb_len > 4096 {
            return Err(format!("lockspace {name:?}: lvb_len is 1 to 4096 bytes"));
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path)
        .map_err(|error| ConfigError::Read { path: path.to_owned(), error })
}

fn parse<T: for<'a> Deserialize<'a>>(text: &str, path: &Path) -> Result<T, ConfigError> {
    toml::from_str(text)
        .map_err(|error| ConfigError::Parse { path: path.to_owned(), error: Box::new(error) })
}
