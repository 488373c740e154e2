//! Partitions: who cannot reach whom at the moment.

use crate::{Cut, NodeId};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The partitions in force, by number.
#[derive(Debug, Default)]
pub(crate) struct Partitions(BTreeMap<u32, Rule>);

#[derive(Debug)]
enum Rule {
    Groups(HashMap<NodeId, usize>),
    OneWay { from: HashSet<NodeId>, to: HashSet<NodeId> },
}

impl Rule {
    fn new(cut: &Cut) -> Self {
        match cut {
            Cut::Groups(groups) => {
                let members = groups.iter().enumerate();
                Rule::Groups(
                    members
                        .flat_map(|(group, nodes)| nodes.iter().map(move |node| (*node, group)))
                        .collect(),
                )
            }
            Cut::OneWay { from, to } => Rule::OneWay {
                from: from.iter().copied().collect(),
                to: to.iter().copied().collect(),
            },
        }
    }

    fn blocks(&self, from: NodeId, to: NodeId) -> bool {
        match self {
            Rule::Groups(group) => match (group.get(&from), group.get(&to)) {
                (Some(a), Some(b)) => a != b,
                _ => false,
            },
            Rule::OneWay { from: senders, to: receivers } => {
                senders.contains(&from) && receivers.contains(&to)
            }
        }
    }
}

impl Partitions {
    pub fn add(&mut self, id: u32, cut: &Cut) {
        self.0.insert(id, Rule::new(cut));
    }

    pub fn heal(&mut self, id: u32) -> bool {
        self.0.remove(&id).is_some()
    }

    pub fn heal_all(&mut self) {
        self.0.clear();
    }

    /// Returns true if messages from one node cannot reach the other.
    pub fn blocks(&self, from: NodeId, to: NodeId) -> bool {
        self.0.values().any(|rule| rule.blocks(from, to))
    }

    /// Returns true if a connection between the two cannot work: it needs both directions.
    pub fn separates(&self, [a, b]: [NodeId; 2]) -> bool {
        !self.0.is_empty() && (self.blocks(a, b) || self.blocks(b, a))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_block_across_one_way_blocks_one_way() {
        let [a, b, c, d] = [0, 1, 2, 3].map(NodeId);
        let mut partitions = Partitions::default();
        partitions.add(1, &Cut::Groups(vec![vec![a], vec![b, c]]));
        assert!(partitions.blocks(a, b) && partitions.blocks(b, a));
        assert!(!partitions.blocks(b, c) && !partitions.blocks(d, a) && !partitions.blocks(a, d));
        partitions.add(2, &Cut::OneWay { from: vec![d], to: vec![a] });
        assert!(
            partitions.blocks(d, a) && !partitions.blocks(a, d) && partitions.separates([a, d])
        );
        assert!(partitions.heal(1) && !partitions.heal(1));
        assert!(!partitions.blocks(a, b) && partitions.blocks(d, a));
    }
}
