//! The members of the cluster: views, quorum and leases behind one trait.
//!
//! A [`Membership`] does no I/O: its host passes on events of connections and messages of peers and the cluster, and
//! carries out its [`Action`]s. There are [`LogMembership`], a replicated log of its own, and [`CorosyncMembership`];
//! read there what they guarantee.
#![forbid(unsafe_code)]

/// True if the service has to show this defect; constantly false without the feature.
macro_rules! mutated {
    ($service:expr, $defect:ident) => {{
        #[cfg(feature = "mutations")]
        let on = $service.mutation == Some(crate::mutation::Mutation::$defect);
        #[cfg(not(feature = "mutations"))]
        let on = false;
        on
    }};
}

mod corosync;
mod fences;
mod leases;
pub mod log;
mod messages;
#[cfg(feature = "mutations")]
pub mod mutation;
mod writes;

use std::collections::BTreeMap;

use lockify_core::{Member, Time, View};
use serde::{Deserialize, Serialize};

pub use corosync::{CorosyncMembership, GroupConfig};
/// A node: of the cluster whose members these are.
pub use lockify_core::NodeId;
pub use log::{
    Absence, ClusterState, Lack, LogConfig, LogMembership, LogWord, NodeEntry, Request, Why,
};
pub use messages::{Refusal, SpaceJoin, SpaceKeys, Vote};

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
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpaceView {
    /// The lockspace's name.
    pub name: String,
    /// The configuration of its members; it is that of its first member while it has any.
    pub keys: SpaceKeys,
    /// Its view: `seq` is that of the node view in which its members changed last, and the
    /// members' incarnations are those of their joining it.
    pub view: View,
}

impl NodeView {
    /// The view of a lockspace.
    pub fn space(&self, name: &str) -> Option<&View> {
        self.space_view(name).map(|s| &s.view)
    }

    /// The view of a lockspace, and its keys.
    pub fn space_view(&self, name: &str) -> Option<&SpaceView> {
        self.spaces.iter().find(|s| s.name == name)
    }

    /// The life of a node that is in it.
    pub fn life(&self, node: NodeId) -> Option<u64> {
        self.members.iter().find(|m| m.node == node).map(|m| m.incarnation)
    }
}

/// An event of a node that concerns membership.
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
        /// The message.
        vote: Vote,
    },
    /// The lockspaces that this node has joined are now these.
    Spaces(Vec<SpaceJoin>),
    /// This node begins a new life: it halted, and all its connections are closed.
    Reborn {
        /// Its incarnation from now on; a service that hands out lives itself ignores it.
        life: u64,
    },
    /// A write of the service's state has ended ([`Action::Persist`]).
    Persisted {
        /// The number of the write.
        number: u64,
        /// The disk has it.
        success: bool,
    },
    /// An operator wants something.
    Request {
        /// Comes back with [`Action::Answer`].
        id: u64,
        /// The request.
        request: Request,
    },
    /// The cluster manager says something.
    Cluster(ClusterEvent),
    /// A fencing agent has ended.
    Fenced {
        /// Whom it was to fence.
        node: NodeId,
        /// It did.
        success: bool,
    },
    /// Time has passed.
    Tick,
}

/// An event of the cluster manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClusterEvent {
    /// This node is connected to it and has asked to join the group.
    Joined,
    /// The connection is gone.
    Parted,
    /// The nodes of its list and their votes are now these.
    Votes(BTreeMap<NodeId, u32>),
    /// True if its rules may let nodes continue that have no more than half of all votes.
    Minorities(bool),
    /// It says this.
    Said(lockify_corosync::Event),
}

/// An action that a membership service requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Tell a peer, if it is connected.
    Send {
        /// The peer.
        to: NodeId,
        /// The message.
        vote: Vote,
    },
    /// From now on this view holds.
    Install(NodeView),
    /// This node may not act in its view any longer: halt every lockspace, tell the peers, close
    /// every connection, and come back with [`Event::Reborn`].
    Halt(Halt),
    /// Say this to the whole group.
    Cast(Vec<u8>),
    /// Have the agent fence a node, and come back with [`Event::Fenced`].
    Fence {
        /// The node to fence.
        node: NodeId,
        /// The first life of the process that must not go on; 0 if it is not known.
        born: u64,
    },
    /// The peer has been silent for too long: close the connection.
    Disconnect {
        /// The peer.
        node: NodeId,
    },
    /// Put this in the place of the state on the disk, whole or not at all, and come back with
    /// [`Event::Persisted`]. There is one write at a time.
    Persist {
        /// The number of the write.
        number: u64,
        /// All of it.
        image: Vec<u8>,
    },
    /// This node has another [`identity`](Membership::identity): close every connection, and make
    /// all anew under it.
    Reconnect,
    /// These are the nodes of the cluster from now on.
    Nodes(BTreeMap<NodeId, NodeEntry>),
    /// The result of an operator's request.
    Answer {
        /// The request's.
        id: u64,
        /// The change, or the reason why there is none.
        result: Result<String, String>,
    },
}

/// Why a node may not act any longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Halt {
    /// No majority has answered for the length of a lease.
    Lease,
    /// The cluster manager says that this part of the cluster has no quorum.
    NoQuorum,
    /// The cluster manager on this node is gone.
    NoCorosync,
    /// The others have gone on without this node.
    LeftBehind,
    /// The others have agreed to go on without this node.
    Excluded(Why),
}

impl std::fmt::Display for Halt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Halt::Excluded(why) => {
                return write!(
                    f,
                    "the other nodes go on without this one, because {why}: every lock is lost"
                );
            }
            Halt::Lease => {
                "no majority of the nodes answers: every lock is lost; see which nodes are down"
            }
            Halt::NoQuorum => {
                "corosync has lost its quorum: every lock is lost; see `corosync-quorumtool` for \
                 which nodes are missing"
            }
            Halt::NoCorosync => {
                "corosync on this node has ended: every lock is lost; start it again, and see its \
                 log for why"
            }
            Halt::LeftBehind => {
                "the other nodes went on without this one, which had not answered: every lock is \
                 lost; was this process stopped, or its network down?"
            }
        })
    }
}

/// The proof that recovery of a dead node's locks waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum FenceKind {
    /// The end of the node's lease.
    #[default]
    Lease,
    /// The success of an agent.
    Command,
    /// Nothing: recovery does not wait.
    None,
}

impl FenceKind {
    /// Its name in configurations and the status.
    pub fn name(self) -> &'static str {
        match self {
            FenceKind::Lease => "lease",
            FenceKind::Command => "command",
            FenceKind::None => "none",
        }
    }
}

/// A membership service's report for operators.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Standing {
    /// The kind of membership: `log` or `corosync`.
    pub service: String,
    /// The cluster manager's word on the quorum; `None` if there is none, or it does not answer.
    pub quorate: Option<bool>,
    /// The proof that recoveries wait for.
    pub fence: FenceKind,
    /// The present reasons to wait.
    pub waits: Vec<String>,
}

/// A membership service.
pub trait Membership {
    /// Something happened at `now` (nanoseconds, monotonic, counting suspended time). `wall` is the time in seconds
    /// since 1970: only known defects, which tests switch on, use it.
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
    /// How it stands.
    fn standing(&self) -> Standing;
    /// By what number peers know this node's connections: its life, or a random number before it has one.
    fn identity(&self) -> u64 {
        0
    }
    /// The agreed state of the cluster, if the service keeps one.
    fn cluster(&self) -> Option<&ClusterState> {
        None
    }
    /// Nodes that are gone, as far as this one sees, but may still act: views without them wait
    /// for proof (a lease, a fencing agent).
    fn unfenced(&self) -> Vec<NodeId> {
        Vec::new()
    }
    /// Another program is to go on in this one's place: does what must be done before there can be
    /// an [`image`](Membership::image). May be called again and again.
    fn prepare_image(&mut self, _now: Time) {}
    /// All that it knows, for that program, between two calls.
    ///
    /// # Errors
    /// Why it cannot go on there, or not yet.
    fn image(&self) -> Result<MembershipImage, String>;
}

/// A membership service that another program is to go on with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MembershipImage(Service);

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Service {
    Group(Box<corosync::GroupImage>),
    Log(Box<log::Kept>),
}

impl MembershipImage {
    /// The service.
    ///
    /// # Errors
    /// The image is another release's.
    pub fn into_service(self) -> Result<Box<dyn Membership + Send>, log::ImageError> {
        Ok(match self.0 {
            Service::Group(image) => Box::new(image.into_service()),
            Service::Log(kept) => Box::new(LogMembership::go_on(*kept)?),
        })
    }
}

/// The answer of a service that has no log to what an operator wants changed in it.
fn no_log(id: u64) -> Action {
    let why = "this cluster's membership keeps no log that could be changed: with corosync, change \
               corosync.conf and the nodes' files";
    Action::Answer { id, result: Err(why.into()) }
}

/// The lockspaces that these nodes have joined, by name, not numbered yet; `old` is the view before. A node that has
/// joined one with other keys than its members is not in it.
fn joined_spaces<'a>(
    all: impl Iterator<Item = (Member, &'a [SpaceJoin])>,
    old: Option<&NodeView>,
) -> Vec<SpaceView> {
    let mut found = BTreeMap::<&str, Vec<(Member, SpaceKeys)>>::new();
    for (m, joins) in all {
        for join in joins {
            let member = Member { incarnation: join.life, ..m };
            found.entry(&join.name).or_default().push((member, join.keys));
        }
    }
    let view = |(name, joined): (&str, Vec<(Member, SpaceKeys)>)| {
        let kept =
            old.and_then(|v| v.space_view(name)).filter(|s| s.keeps(joined.iter().map(|(m, _)| m)));
        let keys = kept.map_or(joined[0].1, |s| s.keys);
        let members = joined.into_iter().filter(|(_, k)| k.fits(&keys)).map(|(m, _)| m).collect();
        SpaceView { name: name.to_owned(), keys, view: View { seq: 0, members } }
    };
    found.into_iter().map(view).collect()
}

impl SpaceView {
    /// Returns true if one of these joins is in it already.
    fn keeps<'a>(&self, mut joins: impl Iterator<Item = &'a Member>) -> bool {
        joins.any(|m| self.view.member(m.node).is_some_and(|o| o.incarnation == m.incarnation))
    }

    /// Returns true if this may follow `old`: the keys stay as long as a member does.
    fn may_follow(&self, old: Option<&SpaceView>) -> bool {
        old.is_none_or(|old| old.keys == self.keys || !old.keeps(self.view.members.iter()))
    }
}

/// The numbers of a new view's lockspaces: one whose members stay keeps that of the view before (`old`), since nothing is
/// to be recovered there.
fn numbered(spaces: Vec<SpaceView>, seq: u64, old: Option<&NodeView>) -> Vec<SpaceView> {
    let number = |s: SpaceView| {
        let same = old.and_then(|v| v.space(&s.name)).filter(|v| v.members == s.view.members);
        let seq = same.map_or(seq, |v| v.seq);
        SpaceView { view: View { seq, members: s.view.members }, ..s }
    };
    spaces.into_iter().map(number).collect()
}

impl NodeView {
    /// The same members, and the same lockspaces with the same members, whatever their numbers.
    fn says(&self, members: &[Member], spaces: &[SpaceView]) -> bool {
        let same = |(a, b): (&SpaceView, &SpaceView)| {
            (&a.name, &a.keys, &a.view.members) == (&b.name, &b.keys, &b.view.members)
        };
        self.members == members
            && self.spaces.len() == spaces.len()
            && self.spaces.iter().zip(spaces).all(same)
    }

    /// Nodes and lockspaces are in order and none twice, and every lockspace has members, of this view only, and a number that
    /// is not above the view's.
    fn is_well_formed(&self) -> bool {
        let sorted = |members: &[Member]| members.windows(2).all(|m| m[0].node < m[1].node);
        let fits = |s: &SpaceView| {
            s.view.seq <= self.seq
                && !s.view.members.is_empty()
                && sorted(&s.view.members)
                && s.view.members.iter().all(|m| self.life(m.node).is_some())
        };
        sorted(&self.members)
            && self.spaces.windows(2).all(|s| s[0].name < s[1].name)
            && self.spaces.iter().all(fits)
    }
}
