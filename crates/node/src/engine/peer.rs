//! What the engine knows of another node.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use lockify_core::link::Link;
use lockify_core::{NodeId, Time};

use super::{Identity, MS, shard_address};
use crate::config::NodeConfig;
use crate::event::SpaceId;
use crate::wire::Payload;

/// The first pause before dialling again; it doubles up to [`LONGEST_PAUSE`].
const PAUSE: Time = 10 * MS;
const LONGEST_PAUSE: Time = 250 * MS;

/// Another node of the list.
pub(super) struct Peer {
    pub(super) node: NodeId,
    /// Where its shard 0 listens: `HOST:PORT`.
    pub(super) place: String,
    /// Where its shard of this number listens; `None`: its name is looked up at each connection.
    pub(super) address: Option<SocketAddr>,
    /// The address is on this host: a refused connection proves that no process is there.
    pub(super) same_host: bool,
    /// Where this node's own list says that it listens, which may be newer than what the log has.
    pub(super) listed: String,
    /// The list's turn, at every second attempt.
    pub(super) by_list: bool,
    /// A thread looks its name up.
    pub(super) looking_up: bool,
    /// It does not belong to the cluster any more.
    pub(super) removed: bool,
    /// This node is the one that dials: of each pair, the one with the lower id.
    pub(super) dials: bool,
    pub(super) link: Link<Payload>,
    /// Its connection, once both have introduced themselves.
    pub(super) conn: Option<usize>,
    /// A connection to it that is being made.
    pub(super) dialing: Option<usize>,
    pub(super) next_dial: Time,
    pub(super) pause: Time,
    /// The membership service has been told that no process is there.
    pub(super) dead: bool,
    /// This node's lockspaces whose numbers it has been told.
    pub(super) opened: HashSet<SpaceId>,
    /// Its numbers of lockspaces.
    pub(super) channels: HashMap<u32, String>,
    /// Why the last attempt to connect failed.
    pub(super) error: Option<String>,
    pub(super) congested: bool,
    /// The version of the protocol that its connection has.
    pub(super) version: u16,
}

/// The peers of a node, by id.
pub(super) fn list(config: &NodeConfig, me: &Identity, life: u64, now: Time) -> Vec<Peer> {
    let mut peers: Vec<Peer> = config
        .nodes
        .iter()
        .filter(|n| n.node != config.node)
        .map(|n| {
            let name = config.hosts.get(&n.node).cloned();
            let address = name.unwrap_or_else(|| n.address.to_string());
            Peer::new(n.node, &address, me, life, config.backlog.max(1), now)
        })
        .collect();
    peers.sort_unstable_by_key(|p| p.node);
    peers
}

impl Peer {
    /// A node that listens at `HOST:PORT`.
    pub(super) fn new(
        node: NodeId,
        place: &str,
        me: &Identity,
        life: u64,
        backlog: usize,
        now: Time,
    ) -> Peer {
        let mut peer = Peer {
            node,
            place: String::new(),
            address: None,
            same_host: false,
            listed: place.to_owned(),
            by_list: false,
            looking_up: false,
            removed: false,
            dials: me.node < node,
            link: Link::new(life, backlog),
            conn: None,
            dialing: None,
            next_dial: now,
            pause: PAUSE,
            dead: false,
            opened: HashSet::new(),
            channels: HashMap::new(),
            error: None,
            congested: false,
            version: me.versions.oldest,
        };
        peer.moved_to(place, me);
        peer
    }

    /// It listens there from now on.
    pub(super) fn moved_to(&mut self, place: &str, me: &Identity) {
        if self.place == place {
            return;
        }
        place.clone_into(&mut self.place);
        let address = place.parse::<SocketAddr>().ok();
        // A port out of range was refused for this node's own address already, or never answers:
        // then the address itself is as good as any.
        self.address = address.map(|a| shard_address(a, me.shard).unwrap_or(a));
        self.same_host =
            address.is_some_and(|a| a.ip().is_loopback() || a.ip() == me.address.ip());
    }

    /// The host in its address.
    pub(super) fn host(&self) -> &str {
        let host = self.place.rsplit_once(':').map_or(&*self.place, |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Where its shard listens, for messages.
    pub(super) fn address(&self) -> String {
        self.address.map_or_else(|| self.place.clone(), |a| a.to_string())
    }

    /// Whether this node has a reason to dial it at all. Whoever does not dial looks whether a
    /// process is there: only on this host does that prove anything.
    pub(super) fn wants_dial(&self) -> bool {
        let idle = self.conn.is_none() && self.dialing.is_none();
        idle && !self.looking_up && !self.removed && (self.dials || self.same_host && !self.dead)
    }

    /// When to dial.
    pub(super) fn due(&self) -> Time {
        if self.wants_dial() { self.next_dial } else { Time::MAX }
    }

    /// Dial later: that failed.
    pub(super) fn back_off(&mut self, now: Time) {
        self.next_dial = now + self.pause;
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
    }

    /// Dial at once when it is needed again.
    pub(super) fn dial_soon(&mut self, now: Time) {
        self.pause = PAUSE;
        self.next_dial = now;
    }

    /// Begins a new life of this node, or ends all that the peer's last life was told.
    pub(super) fn forget(&mut self, life: u64, backlog: usize) {
        self.link = Link::new(life, backlog);
        self.opened.clear();
        self.channels.clear();
    }
}
