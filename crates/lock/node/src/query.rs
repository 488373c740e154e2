//! Questions to the whole cluster: status, locks, who.

use std::collections::{BTreeMap, HashMap};

use lockify_core::{Name, NodeId, RecoveryInfo, ResourceInfo, Stats, Wait};
use serde::{Deserialize, Serialize};

use crate::membership::Standing;
use crate::page::PageOf;

/// A question.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Query {
    /// The state of every node.
    Status,
    /// Every resource of a lockspace that has locks.
    Locks {
        /// The lockspace's name.
        space: String,
    },
    /// One resource: its holders and waiters.
    Who {
        /// The lockspace's name.
        space: String,
        /// The resource.
        name: Name,
    },
    /// Resources of a lockspace that have locks, a page of them. From version
    /// [`KNOWS_PAGES`](crate::wire::KNOWS_PAGES) on.
    Page(PageOf),
}

/// Names a running query.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct QueryId(pub u64);

/// The nodes' answers.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// The question.
    pub query: Query,
    /// [`Query::Status`]: one per node that answered, by node.
    pub status: Vec<NodeStatus>,
    /// [`Query::Locks`], [`Query::Who`] and [`Query::Page`]: resources, by name, merged from what all nodes know
    /// (see [`merge`]); times in nanoseconds since 1970.
    pub resources: Vec<ResourceInfo>,
    /// How many resources come after these, as their masters count them.
    pub more: u64,
    /// After which name to go on; `None` if nothing is left.
    pub next: Option<Name>,
    /// Locks of these resources that are left out, as one has too many.
    pub locks_left_out: u64,
    /// Nodes that were not connected or did not answer in time.
    pub silent: Vec<NodeId>,
}

/// One node's state.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Which node.
    pub node: NodeId,
    /// This life of it.
    pub incarnation: u64,
    /// Which of its shards answers.
    pub shard: u32,
    /// The node view, 0 if it has none (no quorum).
    pub view: u64,
    /// The view's members.
    pub members: Vec<NodeId>,
    /// How its membership service stands.
    pub standing: Standing,
    /// Its lockspaces.
    pub spaces: Vec<SpaceStatus>,
    /// Its connections.
    pub peers: Vec<PeerStatus>,
    /// Nodes that are gone, as far as this one sees, and may still act: until it is certain that
    /// they do not, there is no view without them.
    pub unfenced: Vec<NodeId>,
    /// Counters of this shard.
    pub engine: EngineStats,
    /// Its release, if it reports one. It is a separate part, because older releases do not know
    /// it.
    #[serde(skip)]
    pub software: Option<Software>,
    /// The certificates that this node knows of: its own, and those that connected nodes have shown
    /// it. No node tells another one; each sees for itself.
    #[serde(skip)]
    pub certificates: Vec<Certificate>,
}

/// A node's certificate, as another one or the node itself sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Certificate {
    /// The node of the certificate.
    pub node: NodeId,
    /// When it ends, or the authority that has signed it: seconds since 1970.
    pub ends: i64,
    /// From so many days before on it is warned of.
    pub warn_days: u32,
}

impl Certificate {
    /// How many whole days are left of it at this time, in seconds since 1970; less than 0 afterwards.
    pub fn days_left(&self, now: i64) -> i64 {
        self.ends.saturating_sub(now).div_euclid(24 * 3600)
    }

    /// Returns true if a warning is due at this time.
    pub fn ends_soon(&self, now: i64) -> bool {
        self.days_left(now) < i64::from(self.warn_days)
    }
}

/// Which release a node runs, and which versions of the node protocol it speaks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Software {
    /// The release.
    pub release: String,
    /// The oldest version that it speaks.
    pub oldest: u16,
    /// The newest that it speaks, as its configuration lets it.
    pub newest: u16,
    /// The one that it speaks with each node that it is connected to.
    pub spoken: Vec<(NodeId, u16)>,
}

/// One node's part of a lockspace.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SpaceStatus {
    /// Its name.
    pub name: String,
    /// Its policy's name.
    pub policy: String,
    /// The lockspace's view, 0 if it is not a member.
    pub view: u64,
    /// The nodes that have joined it.
    pub members: Vec<NodeId>,
    /// A member, and no recovery is going on.
    pub running: bool,
    /// The recovery that goes on.
    pub recovery: Option<RecoveryInfo>,
    /// Claims not settled.
    pub unsettled_claims: u64,
    /// Locks in memory, other nodes' copies at this master included.
    pub locks: u64,
    /// Of these, waiting or converting.
    pub waiting: u64,
    /// Resources in memory.
    pub resources: u64,
    /// After how long a wait deadlocks are searched for, nanoseconds.
    pub deadlock_after: Option<u64>,
    /// The counters of the lockspace.
    pub stats: Stats,
}

/// A connection to a peer, as one node sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerStatus {
    /// The peer.
    pub node: NodeId,
    /// Connected, and the handshake is done.
    pub connected: bool,
    /// The peer's life, once it has been seen.
    pub incarnation: Option<u64>,
    /// Messages to it that it has not acknowledged.
    pub backlog: u64,
    /// Why the last attempt to connect failed.
    pub error: Option<String>,
}

/// Counters of an engine since it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EngineStats {
    /// Turns of the event loop.
    pub turns: u64,
    /// Read calls on peers' connections.
    pub reads: u64,
    /// Write calls on peers' connections.
    pub writes: u64,
    /// Bytes read from peers.
    pub bytes_received: u64,
    /// Bytes written to peers.
    pub bytes_sent: u64,
    /// Frames received.
    pub frames_received: u64,
    /// Frames sent.
    pub frames_sent: u64,
    /// Messages sent again after a connection was made anew.
    pub resent: u64,
    /// Connections made or accepted.
    pub connections: u64,
    /// Peers refused at their introduction.
    pub refused: u64,
    /// Connections dropped because there were too many.
    pub turned_away: u64,
    /// Connections closed because of a peer's messages.
    pub rejected: u64,
    /// Messages dropped because their lockspace, or that life of their sender, is over.
    pub strays: u64,
    /// Times that this node lost its quorum.
    pub halts: u64,
    /// Nanoseconds that the longest turn took, from one wait to the next, with what the host did
    /// between: heartbeats wait for no more than that. Known only on the node itself.
    #[serde(skip)]
    pub longest_turn: u64,
}

/// One picture of a lockspace's resources from what every node knows: the locks as their master
/// sees them, then those that only their own node knows (their master is still looked up).
pub fn merge(parts: Vec<(NodeId, Vec<ResourceInfo>)>) -> Vec<ResourceInfo> {
    let mut all = BTreeMap::<Name, Vec<(NodeId, ResourceInfo)>>::new();
    for (node, resources) in parts {
        for r in resources {
            all.entry(r.name).or_default().push((node, r));
        }
    }
    all.into_values().filter_map(merge_one).collect()
}

fn merge_one(mut seen: Vec<(NodeId, ResourceInfo)>) -> Option<ResourceInfo> {
    let master = seen.iter().position(|(node, r)| r.master == Some(*node)).unwrap_or(0);
    if seen.is_empty() {
        return None;
    }
    let (_, mut base) = seen.swap_remove(master);
    for (node, r) in seen {
        base.claim_pending |= r.claim_pending;
        let known: HashMap<_, _> = (base.locks.iter().enumerate())
            .filter(|(_, l)| l.node == node)
            .map(|(i, l)| (l.lock, i))
            .collect();
        for lock in r.locks.into_iter().filter(|l| l.node == node) {
            match known.get(&lock.lock) {
                // Only the owner knows the reason of its wait before it asks the master.
                Some(&i) if base.locks[i].wait == Wait::Nothing => base.locks[i].wait = lock.wait,
                Some(_) => {}
                None => base.locks.push(lock),
            }
        }
    }
    Some(base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockify_core::{LockFlags, LockId, LockInfo, Mode, Queue};

    fn lock(node: u32, id: u64, queue: Queue) -> LockInfo {
        LockInfo {
            node: NodeId(node),
            client: None,
            lock: LockId(id),
            queue,
            granted: (queue == Queue::Granted).then_some(Mode::EX),
            requested: None,
            token: 0,
            since: 0,
            wait: if queue == Queue::Waiting { Wait::Queue } else { Wait::Nothing },
            op: 1,
            flags: LockFlags::empty(),
            transaction: 0,
        }
    }

    fn resource(master: Option<u32>, locks: Vec<LockInfo>) -> ResourceInfo {
        ResourceInfo {
            name: Name::new("r").unwrap(),
            master: master.map(NodeId),
            claim_pending: false,
            locks,
            lvb: None,
            lvb_invalid: false,
        }
    }

    #[test]
    fn the_master_knows_best_and_the_others_add_what_it_has_not_heard_of() {
        let copy = resource(Some(2), vec![lock(1, 5, Queue::Waiting)]);
        let master =
            resource(Some(2), vec![lock(2, 9, Queue::Granted), lock(1, 5, Queue::Waiting)]);
        let unanswered = resource(None, vec![lock(3, 7, Queue::Unanswered)]);
        let parts =
            vec![(NodeId(1), vec![copy]), (NodeId(2), vec![master]), (NodeId(3), vec![unanswered])];
        let merged = merge(parts);
        let locks: Vec<_> = merged[0].locks.iter().map(|l| (l.node.0, l.lock.0)).collect();
        assert_eq!((merged.len(), merged[0].master), (1, Some(NodeId(2))));
        assert_eq!(locks, [(2, 9), (1, 5), (3, 7)]);
    }

    #[test]
    fn the_owner_knows_what_its_lock_waits_for_before_it_asks() {
        let mut leaving = lock(1, 5, Queue::Granted);
        let there = resource(Some(2), vec![leaving.clone()]);
        leaving.wait = Wait::Claims;
        let here = resource(Some(2), vec![leaving]);
        let merged = merge(vec![(NodeId(1), vec![here]), (NodeId(2), vec![there])]);
        assert_eq!(merged[0].locks[0].wait, Wait::Claims);
    }
}
