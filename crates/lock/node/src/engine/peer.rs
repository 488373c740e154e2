//! The engine's knowledge of another node.

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
    /// Where its shard 0 listens, each `HOST:PORT`: as the cluster has it, on its other links, and as
    /// this node's own list says, which may be newer.
    places: Vec<String>,
    /// Where this node's configuration says that it listens.
    listed: Vec<String>,
    /// Which of them is tried, counted without end.
    trying: usize,
    /// All addresses are on this host: a refused connection proves that no process is there.
    pub(super) same_host: bool,
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
    /// When the certificate ends that it has shown last, seconds since 1970.
    pub(super) certificate_ends: Option<i64>,
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
            let first = name.unwrap_or_else(|| n.address.to_string());
            let others = config.others_of(n.node).iter().map(ToString::to_string);
            let places = std::iter::once(first).chain(others).collect();
            Peer::new(n.node, places, me, life, config.backlog.max(1), now)
        })
        .collect();
    peers.sort_unstable_by_key(|p| p.node);
    peers
}

impl Peer {
    /// A node that listens at these places, each `HOST:PORT`.
    pub(super) fn new(
        node: NodeId,
        places: Vec<String>,
        me: &Identity,
        life: u64,
        backlog: usize,
        now: Time,
    ) -> Peer {
        let mut peer = Peer {
            node,
            places: Vec::new(),
            listed: places.clone(),
            trying: 0,
            same_host: false,
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
            certificate_ends: None,
            congested: false,
            version: me.versions.oldest,
        };
        peer.listens_at(places, me);
        peer
    }

    /// It listens there from now on, as the cluster has agreed; places that only this node's
    /// configuration names are tried, too.
    pub(super) fn moved_to(&mut self, place: &str, me: &Identity) {
        if self.places.first().is_none_or(|p| p != place) {
            let others = self.listed.iter().filter(|p| *p != place).cloned();
            self.listens_at(std::iter::once(place.to_owned()).chain(others).collect(), me);
        }
    }

    fn listens_at(&mut self, places: Vec<String>, me: &Identity) {
        let here = |place: &String| {
            let address = place.parse::<SocketAddr>();
            address.is_ok_and(|a| a.ip().is_loopback() || a.ip() == me.address.ip())
        };
        self.same_host = places.iter().all(here);
        (self.places, self.trying) = (places, 0);
    }

    /// The place that is tried now.
    pub(super) fn place(&self) -> &str {
        &self.places[self.trying % self.places.len()]
    }

    /// Where its shard of this number is dialled; `None`: the place is a name, to be looked up.
    pub(super) fn address(&self, shard: u32) -> Option<SocketAddr> {
        let address = self.place().parse().ok()?;
        // A port out of range was refused for this node's own address already, or never answers:
        // then the address itself is as good as any.
        Some(shard_address(address, shard).unwrap_or(address))
    }

    /// The host in its first address.
    pub(super) fn host(&self) -> &str {
        let first = &self.places[0];
        let host = first.rsplit_once(':').map_or(&**first, |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// It has other addresses to try, so many in all.
    pub(super) fn links(&self) -> usize {
        self.places.len()
    }

    /// The next attempt goes to its next address: this one did not answer, or fell silent.
    pub(super) fn try_next(&mut self) {
        self.trying = self.trying.wrapping_add(1);
    }

    /// Returns true if this node has a reason to dial it at all. Without one, it only checks if a
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
