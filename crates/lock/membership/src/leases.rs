//! Leases: how a node proves to itself that it may act, and to the others that it does so no more.
//!
//! Every node sends beats with its clock's stamp; nodes that count it as a member echo them. A node
//! acts only while a majority (itself included) has echoed beats sent less than a lease ago. A node
//! that has echoed a life of another agrees to a view without it two leases later at the earliest,
//! and any majority that echoed shares a node with any majority that agreed: so the life has halted
//! before, as long as its clock runs at more than half the speed of the other's.

use std::collections::BTreeMap;

use lockify_core::{NodeId, Time};
use serde::{Deserialize, Serialize};

/// This node's knowledge of the lives of the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Leases {
    lease: Time,
    /// The start of this process: it does not know the beats that an earlier one echoed.
    started: Time,
    peers: BTreeMap<NodeId, Peer>,
}

/// This node's knowledge of another.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Peer {
    /// The newest stamp of its beats on the present connection.
    stamp: Option<Time>,
    /// The life last echoed, when, and the stamp.
    echoed: Option<(u64, Time, Time)>,
    /// This node's newest stamp that it has echoed.
    renewed: Option<Time>,
    /// Every life below is known to be over; of all lives if `absent`.
    over_below: u64,
    absent: bool,
    /// Not echoed until then: the others want it to halt.
    shunned: Time,
}

impl Leases {
    pub(super) fn new(lease: Time, started: Time) -> Leases {
        Leases { lease: lease.max(1), started, peers: BTreeMap::new() }
    }

    /// The lease is another one from now on, in nanoseconds.
    pub(super) fn set_lease(&mut self, lease: Time) {
        self.lease = lease.max(1);
    }

    fn peer(&mut self, node: NodeId) -> &mut Peer {
        self.peers.entry(node).or_default()
    }

    /// A beat has come.
    pub(super) fn beaten(&mut self, node: NodeId, stamp: Time) {
        self.peer(node).stamp = Some(stamp);
    }

    /// The newest stamp of a node's beats.
    pub(super) fn stamp(&self, node: NodeId) -> Option<Time> {
        self.peers.get(&node).and_then(|p| p.stamp)
    }

    /// The connection broke.
    pub(super) fn disconnected(&mut self, node: NodeId) {
        self.peer(node).stamp = None;
    }

    /// A beat of a member, in this life, is echoed now: the stamp to send back, unless that has
    /// been done or must not be.
    pub(super) fn echo(&mut self, node: NodeId, life: u64, now: Time) -> Option<Time> {
        let peer = self.peer(node);
        let stamp = peer.stamp.filter(|_| peer.shunned <= now)?;
        if peer.echoed.is_some_and(|(l, _, s)| (l, s) == (life, stamp)) {
            return None;
        }
        peer.echoed = Some((life, now, stamp));
        Some(stamp)
    }

    /// A node has echoed a beat of this life, sent at `stamp`.
    pub(super) fn renew(&mut self, node: NodeId, stamp: Time, now: Time) {
        // A stamp from the future is not this node's: it would prolong a lease for ever.
        if stamp <= now {
            let peer = self.peer(node);
            peer.renewed = peer.renewed.max(Some(stamp));
        }
    }

    /// This node begins a new life.
    pub(super) fn reborn(&mut self) {
        for peer in self.peers.values_mut() {
            (peer.stamp, peer.renewed) = (None, None);
        }
    }

    /// Lives of the node below this one are over.
    pub(super) fn over(&mut self, node: NodeId, below: u64) {
        let peer = self.peer(node);
        peer.over_below = peer.over_below.max(below);
    }

    /// No process of the node runs, in any life.
    pub(super) fn absent(&mut self, node: NodeId) {
        self.peer(node).absent = true;
    }

    /// A process of the node runs.
    pub(super) fn present(&mut self, node: NodeId) {
        self.peer(node).absent = false;
    }

    /// Returns true if this life is known to be over.
    pub(super) fn is_over(&self, node: NodeId, life: u64) -> bool {
        self.peers.get(&node).is_some_and(|p| p.absent || life < p.over_below)
    }

    /// Returns true if nothing is known about the ends of the node's lives.
    pub(super) fn is_unknown(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_none_or(|p| p.echoed.is_none() && p.over_below == 0 && !p.absent)
    }

    /// Let the node's lease run out: somebody cannot reach it.
    pub(super) fn shun(&mut self, node: NodeId, now: Time) {
        let until = now + 4 * self.lease;
        self.peer(node).shunned = until;
    }

    /// The node is to be a member.
    pub(super) fn welcome(&mut self, node: NodeId) {
        self.peer(node).shunned = 0;
    }

    /// Returns true if a life other than `included` may still act, because this process echoed it.
    pub(super) fn may_act(&self, node: NodeId, included: Option<u64>, now: Time) -> bool {
        let echoed = self.peers.get(&node).and_then(|p| p.echoed);
        echoed.is_some_and(|(life, at, _)| {
            Some(life) != included && !self.is_over(node, life) && now < at + 2 * self.lease
        })
    }

    /// Returns true if this process has run so long that every life that an earlier process echoed
    /// is over.
    pub(super) fn has_outlived(&self, now: Time) -> bool {
        now >= self.started + 2 * self.lease
    }

    /// When this node's lease ends: a majority of `votes` has echoed nothing newer. `None`: its
    /// own votes are a majority.
    pub(super) fn end(
        &self,
        me: NodeId,
        votes: impl Iterator<Item = (NodeId, u32)>,
    ) -> Option<Time> {
        let (mut all, mut have, mut stamps) = (0, 0, Vec::with_capacity(8));
        for (node, votes) in votes {
            let votes = u64::from(votes);
            all += votes;
            if node == me {
                have = votes;
            } else if let Some(stamp) = self.peers.get(&node).and_then(|p| p.renewed) {
                stamps.push((stamp, votes));
            }
        }
        if 2 * have > all {
            return None;
        }
        stamps.sort_unstable_by(|a, b| b.cmp(a));
        for (stamp, votes) in stamps {
            have += votes;
            if 2 * have > all {
                return Some(stamp.saturating_add(self.lease));
            }
        }
        Some(0)
    }
}
