//! The reasons why a node is not in the view, and the nodes that a view waits for. Hosts can put them into their own
//! words.

use lockify_core::NodeId;

use super::LogMembership;

/// The reason why a node is not in the view, as far as another one knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Absence {
    /// Nothing was heard of it.
    Unheard,
    /// No member hears it.
    Unreached,
    /// It and these members do not reach each other.
    Apart(Vec<NodeId>),
    /// It waits for its life's number.
    Asks,
    /// It does not want to join, and says why.
    Withheld,
    /// It is being let in.
    Entering,
}

impl Absence {
    /// In words, for a host whose nodes are called `node`.
    pub fn text(&self, node: &str) -> String {
        match self {
            Absence::Unheard => "nothing was heard of it".into(),
            Absence::Unreached => "no member hears it".into(),
            Absence::Apart(members) => {
                let members: Vec<String> = members.iter().map(ToString::to_string).collect();
                format!("it and {node} {} do not reach each other", members.join(", "))
            }
            Absence::Asks => "it waits for its life's number".into(),
            Absence::Withheld => "its own status says why it does not join".into(),
            Absence::Entering => "it is being let in".into(),
        }
    }
}

/// The reason why a node does not help to begin, or to continue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lack {
    /// There is no connection to it, or nothing was heard of it on that.
    Unreached,
    /// Its disk has no state of this cluster any more, or an older one.
    Forgot,
    /// Its disk has a state, and this node's has none.
    Knows,
    /// Its file would begin another cluster.
    Differs,
}

impl LogMembership {
    /// Nodes of the cluster that are not in the view, with the reasons.
    pub fn absent(&self) -> Vec<(NodeId, Absence)> {
        let out = self.state.nodes.keys().filter(|n| self.state.view.life(**n).is_none());
        out.map(|n| (*n, self.absence(*n))).collect()
    }

    /// The nodes that this node waits for. Before there is a cluster it waits for all listed ones, then for voters until
    /// a majority is there.
    pub fn lacking(&self) -> Vec<(NodeId, Lack)> {
        if self.has_begun() {
            return match self.sees_majority(self.last) {
                true => Vec::new(),
                false => self.lacking_voters(),
            };
        }
        let first = self.config.first();
        let others = first.nodes.keys().filter(|n| **n != self.me());
        let lack = |node: &NodeId| {
            let hello = self.peers.get(node).and_then(|p| p.hello.as_ref());
            let lack = match hello {
                None => Lack::Unreached,
                Some(h) if h.cluster != 0 => Lack::Knows,
                Some(h) if h.first != first => Lack::Differs,
                Some(_) => return None,
            };
            Some((*node, lack))
        };
        others.filter_map(lack).collect()
    }

    /// Voters who do not help to a majority.
    pub(super) fn lacking_voters(&self) -> Vec<(NodeId, Lack)> {
        let reach = self.reach(self.last);
        let lack = |node: &NodeId| {
            let lack = match *node == self.me() {
                // Its disk is a new one, and the voters have not let that vote yet.
                true => (!self.is_voter()).then_some(Lack::Forgot),
                false if !reach.contains_key(node) => Some(Lack::Unreached),
                false => (!self.is_trusted(*node)).then_some(Lack::Forgot),
            };
            lack.map(|lack| (*node, lack))
        };
        self.state.voters.keys().filter_map(lack).collect()
    }

    /// The reason why a node is not in the view.
    pub(super) fn absence(&self, node: NodeId) -> Absence {
        let Some(known) = self.reports.get(&node) else { return Absence::Unheard };
        let heard = |n: &NodeId| {
            let r = self.reports.get(n).map(|k| &k.report);
            r.is_some_and(|r| r.reach.get(&node) == Some(&known.report.id()))
        };
        let members: Vec<NodeId> = self.state.view.members.iter().map(|m| m.node).collect();
        if !members.iter().any(heard) {
            return Absence::Unreached;
        }
        let deaf = |n: &NodeId| !heard(n) || !known.report.reach.contains_key(n);
        let deaf: Vec<NodeId> = members.into_iter().filter(deaf).collect();
        match (deaf.is_empty(), known.report.life, known.report.asks) {
            (false, ..) => Absence::Apart(deaf),
            (_, None, true) => Absence::Asks,
            (_, None, false) => Absence::Withheld,
            (_, Some(_), _) => Absence::Entering,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_called_as_their_host_calls_them() {
        let apart = Absence::Apart(vec![NodeId(1), NodeId(4)]);
        assert_eq!(apart.text("device"), "it and device 1, 4 do not reach each other");
        assert_eq!(Absence::Unheard.text("device"), "nothing was heard of it");
    }
}
