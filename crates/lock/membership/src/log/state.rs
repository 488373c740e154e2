//! The cluster's memory: the state that the replicated log leads to.
//!
//! Every node applies the same [`Command`]s in the same order, so the rules below are the same everywhere.
//! A command that does not fit the state is skipped: its proposer had an older state.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use lockify_core::{Member, NodeId, Time};
use serde::{Deserialize, Serialize};

use super::super::{FenceKind, NodeView, SpaceView, numbered};
use super::VISITS;

/// The views of an era are numbered in so many bits; a view's number is a token's upper half.
pub(crate) const ERA_SHIFT: u32 = 22;

/// The first era: its views are above the seconds since 1970 up to the year 2029, by which earlier
/// releases numbered views.
pub const FIRST_ERA: u64 = 448;

/// Views have lower numbers, so that tokens are positive where they are kept as signed numbers.
pub(crate) const LAST_VIEW: u64 = 1 << 31;

/// The possible leases, in nanoseconds.
const LEASES: RangeInclusive<Time> = 1..=3_600_000_000_000;

/// The largest number of nodes in a cluster.
pub(super) const MAX_NODES: usize = 1024;

/// The longest address of a node, in bytes. A name of DNS has 255, and a port follows.
const LONGEST_ADDRESS: usize = 264;

/// The largest number of voting nodes; further ones learn the decisions.
pub const MAX_VOTERS: usize = 7;

/// A configuration of the log: who votes is fixed in it. Ordered by age.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct ConfigId {
    /// The era of tokens. Only an operator begins another one.
    pub era: u64,
    /// Counts the configurations of the era.
    pub number: u32,
}

/// How much of the log a node has applied.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Position {
    /// The configuration.
    pub config: ConfigId,
    /// Commands of it that were applied.
    pub index: u64,
}

/// A node of the cluster, as the log knows it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct NodeEntry {
    /// Where other nodes reach its shard 0: `HOST:PORT`.
    pub address: String,
    /// It votes, or will as soon as it can.
    pub voter: bool,
}

/// The keys of the configuration on which safety rests. One value for the whole cluster.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Keys {
    /// The lease, in nanoseconds.
    pub lease: Time,
    /// The proof that a view without a member waits for.
    pub fence: FenceKind,
    /// Shards of each node.
    pub shards: u32,
}

/// A life of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Life {
    /// Its number: larger than that of every life handed out before, of any node.
    pub number: u64,
    /// The random number by which its process asked for it.
    pub visit: u64,
}

/// Why a member is excluded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Why {
    /// No member hears it.
    Silent,
    /// It and this member do not reach each other.
    Link(NodeId),
    /// Its process has come back as another life, or asks for one.
    Reborn,
    /// An operator removed it.
    Removed,
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Why::Silent => f.write_str("no member heard it for the length of a lease"),
            Why::Link(node) => write!(f, "it and node {node} do not reach each other"),
            Why::Reborn => f.write_str("its process started again"),
            Why::Removed => f.write_str("an operator removed it from the cluster"),
        }
    }
}

/// A member that must not go on: nobody prolongs its lease any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Exclusion {
    /// The life.
    pub life: u64,
    /// The reason why it is over.
    pub why: Why,
}

/// An entry of the log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// A process of a node asks for a life.
    Live {
        /// The node.
        node: NodeId,
        /// The process's random number.
        visit: u64,
    },
    /// A member's lease is to run out.
    Exclude {
        /// The member.
        node: NodeId,
        /// Its life.
        life: u64,
        /// The reason why it is over.
        why: Why,
    },
    /// Lives of a node below this one cannot act any more: a lease is over, an agent succeeded, or
    /// the process is gone.
    Over {
        /// The node.
        node: NodeId,
        /// The first life that may still act.
        below: u64,
        /// The version of the keys by which that was judged.
        keys: u64,
    },
    /// The next view.
    View {
        /// The number of the view before.
        base: u64,
        /// Its own number, above `base`.
        seq: u64,
        /// Its members, by id.
        members: Vec<Member>,
        /// Its lockspaces, by name, not numbered.
        spaces: Vec<SpaceView>,
    },
    /// A node is added, changed, or removed (`None`).
    Node {
        /// The node.
        node: NodeId,
        /// The new entry of the node.
        entry: Option<NodeEntry>,
    },
    /// The lease is to be changed: until every member knows, holders use the shorter of both, and
    /// waiting nodes the longer.
    ChangeLease {
        /// The new lease, in nanoseconds.
        lease: Time,
    },
    /// Every member knows the new lease.
    SettleLease {
        /// The version of the keys that every member has.
        keys: u64,
    },
    /// Recovery waits for something else from now on.
    ChangeFence {
        /// For what.
        fence: FenceKind,
    },
    /// A new configuration begins: whatever stands behind this in the log is void.
    Seal(Seal),
}

/// The next configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Seal {
    /// The voters in it, and their disks.
    pub voters: BTreeMap<NodeId, u64>,
}

/// The state that the log leads to.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClusterState {
    /// A random number of this cluster: states of different ones do not mix.
    pub cluster: u64,
    /// The configuration.
    pub config: ConfigId,
    /// The voters, and the random number of each voter's disk.
    pub voters: BTreeMap<NodeId, u64>,
    /// All nodes.
    pub nodes: BTreeMap<NodeId, NodeEntry>,
    /// The keys; `None` only in a state that has not begun.
    pub keys: Option<Keys>,
    /// A lease that not every member knows yet.
    pub next_lease: Option<Time>,
    /// Counts the changes of the keys.
    pub keys_version: u64,
    /// The newest life of each node.
    pub lives: BTreeMap<NodeId, Life>,
    /// The last life handed out.
    pub last_life: u64,
    /// Members that must not go on.
    pub excluded: BTreeMap<NodeId, Exclusion>,
    /// Lives below these cannot act any more.
    pub over: BTreeMap<NodeId, u64>,
    /// The view that holds; without members before the first.
    pub view: NodeView,
}

impl ClusterState {
    /// The first state of a new cluster.
    pub fn first(
        cluster: u64,
        nodes: BTreeMap<NodeId, NodeEntry>,
        voters: BTreeMap<NodeId, u64>,
        keys: Keys,
    ) -> ClusterState {
        ClusterState {
            cluster,
            config: ConfigId { era: FIRST_ERA, number: 1 },
            voters,
            nodes,
            keys: Some(keys),
            keys_version: 1,
            view: NodeView { seq: FIRST_ERA << ERA_SHIFT, ..NodeView::default() },
            ..ClusterState::default()
        }
    }

    /// The first state of a new era, in which only this node votes: an operator says that a
    /// majority of the voters is lost for good. `None`: there are no further eras.
    pub fn recovered(&self, cluster: u64, me: NodeId, disk: u64) -> Option<ClusterState> {
        let era = self.config.era.max(self.view.seq >> ERA_SHIFT) + 1;
        (era << ERA_SHIFT < LAST_VIEW).then(|| {
            let mut state = self.clone();
            state.cluster = cluster;
            state.config = ConfigId { era, number: 1 };
            state.voters = BTreeMap::from([(me, disk)]);
            state.view.seq = state.view.seq.max(era << ERA_SHIFT);
            state
        })
    }

    /// Returns true if a cluster can reach all its numbers. The state comes from another node, and sums must not
    /// overflow.
    pub(super) fn is_sane(&self) -> bool {
        let lives = self.lives.values().map(|l| l.number);
        let lives = lives.chain(self.excluded.values().map(|e| e.life));
        let lives = lives.chain(self.view.members.iter().map(|m| m.incarnation));
        let fits = |n: &NodeEntry| n.address.len() <= LONGEST_ADDRESS;
        self.keys.as_ref().is_some_and(|k| LEASES.contains(&k.lease))
            && self.next_lease.is_none_or(|lease| LEASES.contains(&lease))
            && (1..=MAX_VOTERS).contains(&self.voters.len())
            && self.nodes.len() <= MAX_NODES
            && self.nodes.values().all(fits)
            && self.config.era.max(self.view.seq >> ERA_SHIFT) <= LAST_VIEW >> ERA_SHIFT << 1
            && self.config.number < u32::MAX
            && self.keys_version < VISITS
            && self.last_life < VISITS
            && lives.max().is_none_or(|life| life <= self.last_life)
            && self.over.values().all(|below| *below <= self.last_life + 1)
            && self.view.is_well_formed()
    }

    /// The lease that a holder goes by.
    pub fn lease_to_hold(&self) -> Time {
        let lease = self.keys.as_ref().map_or(1, |k| k.lease);
        self.next_lease.map_or(lease, |next| next.min(lease)).max(1)
    }

    /// The lease for those that wait for its end.
    pub fn lease_to_wait(&self) -> Time {
        let lease = self.keys.as_ref().map_or(1, |k| k.lease);
        self.next_lease.map_or(lease, |next| next.max(lease)).max(1)
    }

    /// How recovery is fenced.
    pub fn fence(&self) -> FenceKind {
        self.keys.as_ref().map_or(FenceKind::Lease, |k| k.fence)
    }

    /// Returns true if this number of voters is a majority.
    pub fn is_majority(&self, voters: usize) -> bool {
        2 * voters > self.voters.len()
    }

    /// The newest life of a node.
    pub fn life(&self, node: NodeId) -> Option<u64> {
        self.lives.get(&node).map(|l| l.number)
    }

    /// Returns true if this life cannot act any more.
    pub fn is_over(&self, node: NodeId, life: u64) -> bool {
        self.over.get(&node).is_some_and(|below| life < *below)
    }

    /// Returns true if this life must not continue.
    pub fn is_excluded(&self, node: NodeId, life: u64) -> bool {
        self.excluded.get(&node).is_some_and(|e| e.life == life)
    }

    /// Returns true if this life may be a member.
    pub fn may_join(&self, node: NodeId, life: u64) -> bool {
        self.nodes.contains_key(&node)
            && self.life(node) == Some(life)
            && !self.is_over(node, life)
            && !self.is_excluded(node, life)
    }

    /// Applies a command; false if it does not fit the state, which then stays as it is.
    pub fn apply(&mut self, command: &Command) -> bool {
        match command {
            Command::Live { node, visit } => self.live(*node, *visit),
            Command::Exclude { node, life, why } => self.exclude(*node, *life, *why),
            Command::Over { node, below, keys } => self.end(*node, *below, *keys),
            Command::View { base, seq, members, spaces } => {
                self.enter(*base, *seq, members, spaces)
            }
            Command::Node { node, entry } => self.change_node(*node, entry.clone()),
            Command::ChangeLease { lease } => self.change_lease(*lease),
            Command::SettleLease { keys } => self.settle_lease(*keys),
            Command::ChangeFence { fence } => self.change_fence(*fence),
            Command::Seal(seal) => self.seal(seal),
        }
    }

    fn live(&mut self, node: NodeId, visit: u64) -> bool {
        if !self.nodes.contains_key(&node)
            || self.lives.get(&node).is_some_and(|l| l.visit == visit)
        {
            return false;
        }
        self.last_life += 1;
        self.lives.insert(node, Life { number: self.last_life, visit });
        true
    }

    fn exclude(&mut self, node: NodeId, life: u64, why: Why) -> bool {
        let fits = self.view.life(node) == Some(life) && !self.is_excluded(node, life);
        if fits {
            self.excluded.insert(node, Exclusion { life, why });
        }
        fits
    }

    fn end(&mut self, node: NodeId, below: u64, keys: u64) -> bool {
        let known = below <= self.last_life + 1;
        // A lease may have become longer since it was waited for.
        if !known || keys != self.keys_version || self.is_over(node, below.saturating_sub(1)) {
            return false;
        }
        self.over.insert(node, below);
        true
    }

    fn enter(&mut self, base: u64, seq: u64, members: &[Member], spaces: &[SpaceView]) -> bool {
        let fits = base == self.view.seq
            && seq > base
            && seq < LAST_VIEW
            && members.iter().all(|m| self.may_join(m.node, m.incarnation));
        let stays =
            |m: &Member| members.iter().any(|n| (n.node, n.incarnation) == (m.node, m.incarnation));
        // No life of the old view may act beside the new one.
        let proven = |m: &Member| stays(m) || self.is_over(m.node, m.incarnation);
        if !fits || !self.view.members.iter().all(proven) {
            return false;
        }
        let spaces = numbered(spaces.to_vec(), seq, Some(&self.view));
        let view = NodeView { seq, members: members.to_vec(), spaces };
        let follows = |s: &SpaceView| s.may_follow(self.view.space_view(&s.name));
        if !view.is_well_formed() || !view.spaces.iter().all(follows) {
            return false;
        }
        self.view = view;
        self.excluded.clear();
        true
    }

    fn change_node(&mut self, node: NodeId, entry: Option<NodeEntry>) -> bool {
        if self.nodes.get(&node) == entry.as_ref() {
            return false;
        }
        match entry {
            Some(entry) if entry.address.len() > LONGEST_ADDRESS => return false,
            Some(_) if !self.nodes.contains_key(&node) && self.nodes.len() >= MAX_NODES => {
                return false;
            }
            Some(entry) => {
                let voters = self.nodes.iter().filter(|(n, e)| **n != node && e.voter).count();
                let voter = entry.voter && voters < MAX_VOTERS;
                self.nodes.insert(node, NodeEntry { voter, ..entry });
            }
            // The acts of its lives are not forgotten: the number may be given to another machine.
            None => {
                self.nodes.remove(&node);
            }
        }
        true
    }

    fn change_lease(&mut self, lease: Time) -> bool {
        let fits = self.next_lease.is_none()
            && LEASES.contains(&lease)
            && self.keys.as_ref().is_some_and(|k| k.lease != lease);
        if fits {
            self.next_lease = Some(lease);
            self.keys_version += 1;
        }
        fits
    }

    fn settle_lease(&mut self, keys: u64) -> bool {
        if keys != self.keys_version {
            return false;
        }
        let Some((keys, lease)) = self.keys.as_mut().zip(self.next_lease.take()) else {
            return false;
        };
        keys.lease = lease;
        self.keys_version += 1;
        true
    }

    fn change_fence(&mut self, fence: FenceKind) -> bool {
        let Some(keys) = self.keys.as_mut().filter(|k| k.fence != fence) else { return false };
        keys.fence = fence;
        self.keys_version += 1;
        true
    }

    fn seal(&mut self, seal: &Seal) -> bool {
        if seal.voters.is_empty() || seal.voters.len() > MAX_VOTERS {
            return false;
        }
        self.config.number += 1;
        self.voters = seal.voters.clone();
        true
    }
}
