//! Who is in the cluster.

use lockify_core::{Member, NodeId, View};
use serde::{Deserialize, Serialize};

/// An agreed set of nodes, and who of them has joined which lockspace.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeView {
    /// Grows with every view, also over a restart of the whole cluster.
    pub seq: u64,
    /// The nodes, by id.
    pub members: Vec<Member>,
    /// The lockspaces, by name.
    pub spaces: Vec<SpaceView>,
}

/// A lockspace's part of a node view.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SpaceView {
    /// The lockspace's name.
    pub name: String,
    /// Its view: `seq` is that of the node view in which its members changed last.
    pub view: View,
}

impl NodeView {
    /// The view of a lockspace.
    pub fn space(&self, name: &str) -> Option<&View> {
        self.spaces.iter().find(|s| s.name == name).map(|s| &s.view)
    }

    /// Whether the node is in it.
    pub fn contains(&self, node: NodeId) -> bool {
        self.members.iter().any(|m| m.node == node)
    }
}
