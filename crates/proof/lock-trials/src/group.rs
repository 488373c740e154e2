//! The configuration of a simulated cluster's membership, and its additional faults.

use lockify_membership::FenceKind;
use lockify_sim::{Cut, MILLISECOND, Nanos, NodeId, Random};
use rand::RngExt as _;
use rand::seq::SliceRandom as _;

/// The membership of one run.
#[derive(Clone, Debug)]
pub struct Group {
    /// The lease that the cluster begins with.
    pub lease: Nanos,
    /// Between two heartbeats of the consensus.
    pub heartbeat: Nanos,
    /// Nodes that vote; the rest learns.
    pub voters: usize,
    /// The proof that recovery waits for.
    pub fence: FenceKind,
    /// A process that starts can tell that none of an earlier life runs, and others that one has died.
    pub sole: bool,
    /// Faults begin before the cluster has.
    pub early: bool,
    /// Faults last for several leases.
    pub lasting: bool,
    /// How often an operator changes the lease.
    pub leases: usize,
    /// Times at which connections between single nodes break.
    pub links: usize,
    /// Times at which all nodes stop and start again.
    pub restarts: usize,
    /// At which installation of a view all nodes lose their power.
    pub outage: Option<u64>,
    /// Times at which a node loses its disk.
    pub lost_disks: usize,
    /// Times at which a node's disk is put back to an older copy.
    pub restored_disks: usize,
    /// Corosync says who is there; else a log of the nodes' own.
    pub corosync: bool,
    /// With corosync: times at which it ends on a node.
    pub ends: usize,
    /// A defect of the membership service.
    #[cfg(feature = "mutations")]
    pub mutation: Option<lockify_membership::mutation::Mutation>,
}

impl Group {
    /// Draws one.
    pub fn draw(random: &mut Random, nodes: usize, faulty: bool) -> Group {
        let usual = random.random_range(10..=40) * MILLISECOND;
        let learners = nodes.saturating_sub(3).min(2);
        let mut often = |p: f64, most: usize| {
            if faulty && random.random_bool(p) { random.random_range(1..=most) } else { 0 }
        };
        let (leases, links, restarts) = (often(0.4, 2), often(0.5, 3), often(0.3, 2));
        let (lost_disks, restored_disks) = (often(0.3, 2), often(0.3, 2));
        let outage = often(0.3, 12);
        // Long at first, so that who goes by its own file is seen to.
        let lease = if leases > 0 { usual + 40 * MILLISECOND } else { usual };
        let early = faulty && leases == 0 && random.random_bool(0.25);
        let lasting = random.random_bool(0.5);
        let agents = random.random_bool(0.25);
        let voters =
            nodes - if random.random_bool(0.3) { random.random_range(0..=learners) } else { 0 };
        let sole = random.random_bool(0.4);
        let ends = if faulty && random.random_bool(0.4) { random.random_range(1..=3) } else { 0 };
        Group {
            lease,
            heartbeat: lease / 3,
            voters,
            fence: if agents { FenceKind::Command } else { FenceKind::Lease },
            sole,
            early,
            lasting,
            leases,
            links,
            restarts,
            outage: (outage > 0).then_some(outage as u64),
            lost_disks,
            restored_disks,
            corosync: false,
            ends,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }
}

impl Group {
    /// With corosync instead of a log: its keys are in files, which nobody changes.
    #[must_use]
    pub fn with_corosync(mut self) -> Group {
        (self.corosync, self.leases) = (true, 0);
        self
    }
}

/// The pairs of nodes that a cut separates.
pub fn separated(cut: &Cut) -> Vec<(NodeId, NodeId)> {
    let across = |a: &[NodeId], b: &[NodeId]| {
        let pairs = a.iter().flat_map(|a| b.iter().map(|b| (*a, *b)));
        pairs.collect::<Vec<_>>()
    };
    match cut {
        Cut::OneWay { from, to } => across(from, to),
        Cut::Groups(groups) => {
            let rest = |i: usize| groups[i + 1..].concat();
            groups.iter().enumerate().flat_map(|(i, group)| across(group, &rest(i))).collect()
        }
    }
}

/// Connections that break while others work, as it happens to switches and routes.
pub fn partial_cuts(random: &mut Random, nodes: &[NodeId]) -> Vec<Cut> {
    let mut nodes = nodes.to_vec();
    nodes.shuffle(random);
    let [a, b, rest @ ..] = nodes.as_slice() else { return Vec::new() };
    let pair = |a: NodeId, b: NodeId| Cut::Groups(vec![vec![a], vec![b]]);
    match random.random_range(0..4) {
        0 => vec![Cut::OneWay { from: vec![*a], to: vec![*b] }],
        // A bridge: both sides reach one node, and not each other.
        1 if rest.len() >= 3 => {
            let (left, right) = nodes[1..].split_at(nodes.len() / 2);
            vec![Cut::Groups(vec![left.to_vec(), right.to_vec()])]
        }
        // A ring: everybody reaches its two neighbours.
        2 if rest.len() >= 2 => {
            let far = |i: usize, j: usize| j > i + 1 && (i, j) != (0, nodes.len() - 1);
            let all = (0..nodes.len()).flat_map(|i| (0..nodes.len()).map(move |j| (i, j)));
            all.filter(|(i, j)| far(*i, *j)).map(|(i, j)| pair(nodes[i], nodes[j])).collect()
        }
        _ => vec![pair(*a, *b)],
    }
}
