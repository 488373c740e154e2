//! Who is in the cluster: views, quorum and leases behind one trait.
//!
//! A [`Membership`] does no I/O: its host tells it what happens to connections and what peers
//! say, and carries out its [`Action`]s. The only implementation so far is [`StaticMembership`],
//! a fixed list of nodes; read there what it guarantees.

mod messages;
mod static_list;

use lockify_core::{Member, NodeId, Time, View};
use serde::{Deserialize, Serialize};

pub use messages::{Refusal, SpaceJoin, Vote};
pub use static_list::{StaticConfig, StaticMembership};

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
    /// Its view: `seq` is that of the node view in which its members changed last, and the
    /// members' incarnations are those of their joining it.
    pub view: View,
}

impl NodeView {
    /// The view of a lockspace.
    pub fn space(&self, name: &str) -> Option<&View> {
        self.spaces.iter().find(|s| s.name == name).map(|s| &s.view)
    }

    /// The life of a node that is in it.
    pub fn life(&self, node: NodeId) -> Option<u64> {
        self.members.iter().find(|m| m.node == node).map(|m| m.incarnation)
    }
}

/// What happens to a node, as far as membership is concerned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A connection to this life of a peer is usable. `sole`: it is certain that no process of an
    /// earlier life runs (the new one listens where the earlier one did, on this host).
    Connected {
        /// The peer.
        node: NodeId,
        /// Its life.
        life: u64,
        /// No earlier life runs.
        sole: bool,
    },
    /// The connection broke.
    Disconnected {
        /// The peer.
        node: NodeId,
    },
    /// No process of the peer runs.
    Dead {
        /// The peer.
        node: NodeId,
    },
    /// A peer says something.
    Vote {
        /// The peer.
        from: NodeId,
        /// What it says.
        vote: Vote,
    },
    /// The lockspaces that this node has joined are now these.
    Spaces(Vec<SpaceJoin>),
    /// This node begins a new life: it halted, and all its connections are closed.
    Reborn {
        /// Its incarnation from now on.
        life: u64,
    },
    /// Time has passed.
    Tick,
}

/// What a membership service wants done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Tell a peer, if it is connected.
    Send {
        /// The peer.
        to: NodeId,
        /// What.
        vote: Vote,
    },
    /// From now on this view holds.
    Install(NodeView),
    /// This node may not act in its view any longer: halt every lockspace, close every
    /// connection, and come back with [`Event::Reborn`].
    Halt,
    /// The peer has been silent for too long: close the connection.
    Disconnect {
        /// The peer.
        node: NodeId,
    },
}

/// A membership service.
pub trait Membership {
    /// Something happened at `now` (nanoseconds, monotonic, counting suspended time); `wall` is
    /// the time in seconds since 1970, used only to number views.
    fn handle(&mut self, now: Time, wall: u64, event: Event);
    /// The next thing to do; call until `None` after each event.
    fn poll(&mut self) -> Option<Action>;
    /// When to call with [`Event::Tick`] at the latest.
    fn next_timer(&self) -> Time;
    /// Until when this node may act in its view. A host that finds this passed calls with
    /// [`Event::Tick`] before it does anything else.
    fn lease_end(&self) -> Option<Time>;
    /// The view that holds, if any.
    fn view(&self) -> Option<&NodeView>;
}
