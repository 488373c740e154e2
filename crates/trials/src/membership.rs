//! The membership service of a simulated cluster: it knows what it could find out by time-outs, decides who is in, has
//! the others fenced, and then announces views, to each member at its own time.

use std::collections::{BTreeMap, BTreeSet};

use lockify_core::{Member, NodeId, View};

/// What the service knows of a node when it decides.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: u64,
    /// It stands in for nothing: paused too long to be believed in, or halted, or gone.
    pub usable: bool,
}

/// A decision: the new view, and who has to be fenced before it is announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The new view.
    pub view: View,
    /// Nodes whose incarnation of the old view is no longer in.
    pub fenced: Vec<(NodeId, u64)>,
}

/// The state of the service.
#[derive(Clone, Debug)]
pub struct Service {
    seq: u64,
    members: BTreeMap<NodeId, u64>,
    weights: Vec<u32>,
    /// Nodes that have left in order and not come back.
    left: BTreeSet<(NodeId, u64)>,
}

impl Service {
    /// Nobody is in; directory weights by node.
    pub fn new(weights: Vec<u32>) -> Service {
        Service { seq: 0, members: BTreeMap::new(), weights, left: BTreeSet::new() }
    }

    /// The present members with their incarnations.
    pub fn members(&self) -> &BTreeMap<NodeId, u64> {
        &self.members
    }

    /// The last view's number.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// This incarnation has left in order: the next view is without it, and it need not be fenced.
    pub fn left(&mut self, node: NodeId, incarnation: u64) {
        self.left.insert((node, incarnation));
    }

    /// Looks at the cluster again; `reach` says whether two nodes can talk to each other both ways.
    pub fn decide(
        &mut self,
        candidates: &[Candidate],
        reach: impl Fn(NodeId, NodeId) -> bool,
    ) -> Option<Decision> {
        let usable: Vec<_> = candidates
            .iter()
            .filter(|c| c.usable && !self.left.contains(&(c.node, c.incarnation)))
            .copied()
            .collect();
        let group = self.survivors(&usable, reach);
        let members: BTreeMap<_, _> = group.iter().map(|c| (c.node, c.incarnation)).collect();
        if members == self.members || members.is_empty() {
            return None;
        }
        let gone = |(node, incarnation): &(&NodeId, &u64)| {
            members.get(*node) != Some(*incarnation)
                && !self.left.contains(&(**node, **incarnation))
        };
        let fenced = self.members.iter().filter(gone).map(|(n, i)| (*n, *i)).collect();
        self.seq += 1;
        let member = |c: &Candidate| Member {
            node: c.node,
            incarnation: c.incarnation,
            weight: self.weights[c.node.0 as usize],
        };
        let view = View { seq: self.seq, members: group.iter().map(member).collect() };
        self.members = members;
        Some(Decision { view, fenced })
    }

    /// Of all groups whose nodes reach each other: the one with most present members (then most nodes, then the lowest
    /// number), as a quorum with a tie-breaker would choose.
    fn survivors(
        &self,
        usable: &[Candidate],
        reach: impl Fn(NodeId, NodeId) -> bool,
    ) -> Vec<Candidate> {
        let mut groups: Vec<Vec<Candidate>> = Vec::new();
        for candidate in usable {
            let fits = |group: &&mut Vec<Candidate>| {
                group.iter().all(|other| reach(candidate.node, other.node))
            };
            match groups.iter_mut().find(fits) {
                Some(group) => group.push(*candidate),
                None => groups.push(vec![*candidate]),
            }
        }
        let present = |c: &&Candidate| self.members.get(&c.node) == Some(&c.incarnation);
        let rank = |group: &Vec<Candidate>| (group.iter().filter(present).count(), group.len());
        // The first of equals: max_by_key would take the last.
        groups.into_iter().rev().max_by_key(rank).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(nodes: &[(u32, u64)]) -> Vec<Candidate> {
        let make =
            |&(node, incarnation)| Candidate { node: NodeId(node), incarnation, usable: true };
        nodes.iter().map(make).collect()
    }

    #[test]
    fn a_partition_fences_the_smaller_side_and_a_restart_its_former_life() {
        let mut service = Service::new(vec![1; 3]);
        let all = candidates(&[(0, 1), (1, 1), (2, 1)]);
        let first = service.decide(&all, |_, _| true).expect("a first view");
        assert_eq!((first.view.seq, first.fenced.len()), (1, 0));
        assert_eq!(service.decide(&all, |_, _| true), None);

        let cut = |a: NodeId, b: NodeId| (a.0 == 0) == (b.0 == 0);
        let second = service.decide(&all, cut).expect("node 0 is out");
        assert_eq!(second.fenced, [(NodeId(0), 1)]);
        assert_eq!(second.view.members.len(), 2);

        let restarted = candidates(&[(0, 2), (1, 1), (2, 2)]);
        let third = service.decide(&restarted, |_, _| true).expect("two new lives");
        assert_eq!(third.fenced, [(NodeId(2), 1)]);
        assert_eq!(third.view.seq, 3);
    }

    #[test]
    fn who_left_is_not_fenced_and_not_taken_back_in_the_same_life() {
        let mut service = Service::new(vec![1; 2]);
        let all = candidates(&[(0, 1), (1, 1)]);
        service.decide(&all, |_, _| true).expect("a first view");
        service.left(NodeId(1), 1);
        let second = service.decide(&all, |_, _| true).expect("one left");
        assert_eq!((second.view.members.len(), second.fenced.len()), (1, 0));
        assert_eq!(service.decide(&all, |_, _| true), None);
    }
}
