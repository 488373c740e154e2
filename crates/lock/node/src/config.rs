//! The configuration of a node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockify_core::{Config, NodeId, Policy};
use lockify_trust::Security;
use serde::{Deserialize, Serialize};

use crate::error::NodeError;
use crate::fence::FenceConfig;
use crate::shard::ShardGroup;
use crate::wire::{SPOKEN, Versions};

/// A node of the static list.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NodeAddress {
    /// Its id, unique in the cluster.
    pub node: NodeId,
    /// Where its shard 0 listens; shard `i` listens at `port + i`.
    pub address: SocketAddr,
}

/// A node whose membership service is corosync; its list of nodes is corosync's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CorosyncConfig {
    /// The votes of every node.
    pub votes: BTreeMap<NodeId, u32>,
    /// The names of nodes, for agents and people.
    pub names: BTreeMap<NodeId, String>,
    /// Where nodes listen besides [`NodeConfig::nodes`], each on its other links. Connections
    /// take whichever link is up.
    pub others: BTreeMap<NodeId, Vec<SocketAddr>>,
}

/// Which keys of the cluster a node's configuration names: the others are the cluster's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Given {
    /// The lease.
    pub lease: bool,
    /// True if recovery waits for the agent.
    pub fence: bool,
}

impl Default for Given {
    fn default() -> Given {
        Given { lease: true, fence: true }
    }
}

/// Configuration of one shard of one node.
#[derive(Debug)]
pub struct NodeConfig {
    /// The cluster's name (1 to 64 bytes): nodes of different clusters refuse each other.
    pub cluster: String,
    /// This node.
    pub node: NodeId,
    /// Every node of the cluster, this one included; the same list on all of them.
    pub nodes: Vec<NodeAddress>,
    /// How they know each other; the same on all of them.
    pub security: Security,
    /// A socket that listens already, instead of binding this node's address (for port 0). Not
    /// needed in a list of one node, which has nobody to listen to.
    pub listener: Option<TcpListener>,
    /// The place of this node's part of the agreed state; with corosync, too.
    pub state_dir: StateDir,
    /// Nodes of the list that do not vote. Of the others, the first seven do.
    pub learners: BTreeSet<NodeId>,
    /// Nodes that are reached by name (`HOST:PORT`), looked up again at each connection.
    pub hosts: BTreeMap<NodeId, String>,
    /// Where this node listens, if not at its address; needed in a list of one node that others
    /// are to join.
    pub listen: Option<SocketAddr>,
    /// Which keys of the cluster were given, and do not just have their default.
    pub given: Given,
    /// Share of the directory that this node keeps (docs/design/claim.md 1.1); 0 keeps none.
    pub weight: u32,
    /// How long a node may go on without hearing from a majority. A node that is silent for twice
    /// this long is taken out of the view (see [`crate::membership`]).
    pub lease: Duration,
    /// Added to every message to a peer: each arrives this much later, in order, and messages do
    /// not wait for each other.
    pub delay: Duration,
    /// How long a wait for peers and clients polls before it sleeps, which saves the time that a
    /// sleeping processor takes to wake and costs processor time. A node that polled in vain
    /// sleeps at once for a while; 0 always does.
    pub busy_poll: Duration,
    /// Messages to one peer that may be unacknowledged before the engine reports congestion.
    pub backlog: usize,
    /// Writes a history for `lockify check` to this file: of the lockspace that is joined first;
    /// those of further ones go to files with `.NAME` added. A full disk ends it (with a notice),
    /// not the locking.
    pub history: Option<PathBuf>,
    /// Corosync is the membership service; `None`: the list itself is.
    pub corosync: Option<CorosyncConfig>,
    /// The proof that recovery of a dead node's locks waits for.
    pub fence: FenceConfig,
    /// Which shard of the node this is, and its siblings; `None` if there is only one.
    pub shard: Option<Arc<ShardGroup>>,
    /// Which of the group's shards; 0 without a group.
    pub shard_index: u32,
    /// The versions of the node protocol that it speaks: less than the release could, to hold a
    /// cluster at an old version until all nodes are upgraded.
    pub versions: Versions,
}

impl NodeConfig {
    /// The defaults for a node of this cluster.
    pub fn new(cluster: impl Into<String>, node: NodeId, nodes: Vec<NodeAddress>) -> NodeConfig {
        NodeConfig {
            cluster: cluster.into(),
            node,
            nodes,
            security: Security::default(),
            listener: None,
            state_dir: StateDir::Missing,
            learners: BTreeSet::new(),
            hosts: BTreeMap::new(),
            listen: None,
            given: Given::default(),
            weight: 1,
            lease: Duration::from_secs(2),
            delay: Duration::ZERO,
            busy_poll: Duration::ZERO,
            backlog: 16 * 1024,
            history: None,
            corosync: None,
            fence: FenceConfig::default(),
            shard: None,
            shard_index: 0,
            versions: SPOKEN,
        }
    }

    /// Where a node listens besides its address in the list.
    pub(crate) fn others_of(&self, node: NodeId) -> &[SocketAddr] {
        let others = self.corosync.as_ref().and_then(|c| c.others.get(&node));
        others.map_or(&[], Vec::as_slice)
    }

    /// All addresses of all nodes.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let of = |n: &NodeAddress| {
            std::iter::once(n.address).chain(self.others_of(n.node).iter().copied())
        };
        self.nodes.iter().flat_map(of).collect()
    }

    /// A cluster of this one process: no sockets, a view at once. Its state is in memory only: give it a
    /// [`StateDir::At`] if its fencing tokens are to be compared with those of the process before.
    pub fn alone() -> NodeConfig {
        let node = NodeId(1);
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = NodeConfig::new("local", node, vec![NodeAddress { node, address }]);
        NodeConfig { state_dir: StateDir::Memory, ..config }
    }

    /// The directory of the state, if there is one.
    ///
    /// # Errors
    /// None is named.
    pub(crate) fn state_path(&self) -> Result<Option<&Path>, NodeError> {
        match &self.state_dir {
            StateDir::At(path) => Ok(Some(path)),
            StateDir::Memory => Ok(None),
            StateDir::Missing => Err(NodeError::Config(
                "state_dir is missing: a node keeps there what the cluster has agreed on, so that fencing \
                 tokens grow over restarts; name a directory of its own, on a disk that survives restarts, for \
                 example `StateDir::At(\"/var/lib/myservice/lockify\".into())`"
                    .into(),
            )),
        }
    }
}

/// Where a node keeps what its cluster has agreed on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum StateDir {
    /// Nothing is said: [`NodeEngine::new`](crate::NodeEngine::new) fails.
    #[default]
    Missing,
    /// In this directory, which is the node's own, on a disk that survives restarts.
    At(PathBuf),
    /// In memory, for tests and measurements: each start is as if the disk were lost. When all nodes have ended, the
    /// cluster begins anew, and its fencing tokens repeat.
    Memory,
}

/// Configuration of a lockspace on this node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpaceConfig {
    /// The state machine's configuration; the engine fills in `node` and `incarnation`.
    pub core: Config,
}

impl SpaceConfig {
    /// The defaults for a policy; it must be the same on every node of the lockspace.
    pub fn new(policy: Policy) -> SpaceConfig {
        SpaceConfig { core: Config::new(NodeId(0), 0, policy) }
    }
}
