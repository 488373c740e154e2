//! The nodes of the next view: the choice from the matrix of links.
//!
//! All members of a view must reach each other, since a lock's messages go directly. Of all such sets
//! the one with most present members is chosen, so that a view stays until its links change; then the
//! largest; then the one with the lowest numbers.

use std::collections::{BTreeMap, BTreeSet};

use lockify_core::NodeId;

/// Sets that are looked at, at most; beyond, the best so far is taken. Only a network with
/// dozens of broken links comes near.
const MOST: usize = 20_000;

/// The nodes that may be members, and which of them reach which, both ways.
#[derive(Clone, Debug, Default)]
pub(super) struct Matrix {
    links: BTreeMap<NodeId, BTreeSet<NodeId>>,
}

impl Matrix {
    /// From what each node says that it reaches.
    pub(super) fn new(reach: &BTreeMap<NodeId, BTreeSet<NodeId>>) -> Matrix {
        let both = |a: NodeId, b: &NodeId| reach.get(b).is_some_and(|r| r.contains(&a));
        let links = reach.iter().map(|(node, to)| {
            (*node, to.iter().filter(|b| *b != node && both(*node, b)).copied().collect())
        });
        Matrix { links: links.collect() }
    }

    /// Returns true if two different nodes reach each other.
    pub(super) fn linked(&self, a: NodeId, b: NodeId) -> bool {
        self.links.get(&a).is_some_and(|l| l.contains(&b))
    }

    /// The nodes that a node reaches, and that reach it.
    pub(super) fn neighbours(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        self.links.get(&node).into_iter().flatten().copied()
    }

    /// The best set of these nodes, sorted; `present` are the members of the view that holds.
    pub(super) fn choose(
        &self,
        candidates: &BTreeSet<NodeId>,
        present: &BTreeSet<NodeId>,
    ) -> Vec<NodeId> {
        // A node that reaches every other candidate is in, for any choice of the rest.
        let full = |n: &NodeId| candidates.iter().all(|m| m == n || self.linked(*n, *m));
        let (sure, unsure): (Vec<NodeId>, Vec<NodeId>) =
            candidates.iter().copied().partition(|n| full(n));
        let mut search = Search { matrix: self, present, best: Vec::new(), left: MOST };
        search.extend(&mut Vec::new(), &unsure);
        let mut chosen: Vec<NodeId> = search.best.into_iter().chain(sure).collect();
        chosen.sort_unstable();
        chosen
    }
}

/// A search through all sets of nodes that reach each other.
struct Search<'a> {
    matrix: &'a Matrix,
    present: &'a BTreeSet<NodeId>,
    best: Vec<NodeId>,
    left: usize,
}

impl Search<'_> {
    /// Goes through all sets that have `set` and further ones of `rest`, which all reach all of it.
    fn extend(&mut self, set: &mut Vec<NodeId>, rest: &[NodeId]) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        if self.rank(set) > self.rank(&self.best) {
            self.best.clone_from(set);
        }
        // Lower numbers first: of equal sets the first one found stays.
        for (i, node) in rest.iter().enumerate() {
            // Sets without the former nodes have fewer than the rest.
            let (best_present, best_size) = self.rank(&self.best);
            let (all_present, all_size) = self.rank(&rest[i..]);
            let (now_present, now_size) = self.rank(set);
            let most = (now_present + all_present, now_size + all_size);
            if most <= (best_present, best_size) {
                return;
            }
            let fits: Vec<NodeId> =
                rest[i + 1..].iter().copied().filter(|n| self.matrix.linked(*node, *n)).collect();
            set.push(*node);
            self.extend(set, &fits);
            set.pop();
        }
    }

    fn rank(&self, set: &[NodeId]) -> (usize, usize) {
        (set.iter().filter(|n| self.present.contains(n)).count(), set.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(nodes: u32, broken: &[(u32, u32)]) -> (Matrix, BTreeSet<NodeId>) {
        let cut = |a, b| broken.contains(&(a, b)) || broken.contains(&(b, a));
        let reach = (1..=nodes).map(|a| {
            (NodeId(a), (1..=nodes).filter(|b| a != *b && !cut(a, *b)).map(NodeId).collect())
        });
        (Matrix::new(&reach.collect()), (1..=nodes).map(NodeId).collect())
    }

    fn chosen(nodes: u32, broken: &[(u32, u32)], present: &[u32]) -> Vec<u32> {
        let (matrix, all) = matrix(nodes, broken);
        let present = present.iter().copied().map(NodeId).collect();
        matrix.choose(&all, &present).into_iter().map(|n| n.0).collect()
    }

    #[test]
    fn everybody_is_in_where_all_links_work() {
        assert_eq!(chosen(5, &[], &[]), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn one_broken_link_leaves_one_node_out_and_the_choice_stays() {
        assert_eq!(chosen(3, &[(1, 2)], &[1, 2, 3]), [1, 3]);
        assert_eq!(chosen(3, &[(1, 2)], &[2, 3]), [2, 3]);
    }

    #[test]
    fn a_bridge_keeps_the_side_with_more_present_members() {
        let broken = [(1, 4), (1, 5), (2, 4), (2, 5)];
        assert_eq!(chosen(5, &broken, &[1, 2, 3, 4, 5]), [1, 2, 3]);
        assert_eq!(chosen(5, &broken, &[3, 4, 5]), [3, 4, 5]);
    }

    #[test]
    fn of_a_ring_two_neighbours_are_left() {
        let ring = [(1, 3), (1, 4), (2, 4), (2, 5), (3, 5)];
        assert_eq!(chosen(5, &ring, &[1, 2, 3, 4, 5]), [1, 2]);
    }

    #[test]
    fn a_link_that_works_one_way_is_none() {
        let reach = BTreeMap::from([
            (NodeId(1), BTreeSet::from([NodeId(2)])),
            (NodeId(2), BTreeSet::new()),
        ]);
        assert!(!Matrix::new(&reach).linked(NodeId(1), NodeId(2)));
    }

    #[test]
    fn a_large_network_with_many_broken_links_is_decided_in_bounded_time() {
        let broken: Vec<(u32, u32)> = (1..=60)
            .flat_map(|a| (a + 1..=60).map(move |b| (a, b)))
            .filter(|(a, b)| (a * b) % 3 == 0)
            .collect();
        let set = chosen(60, &broken, &[]);
        assert!(set.len() >= 40, "{set:?}");
    }
}
