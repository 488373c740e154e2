//! What the engine knows of another node.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use lockify_core::link::Link;
use lockify_core::{NodeId, Time};

use super::{Identity, MS, shard_address};
use crate::config::{NodeAddress, NodeConfig};
use crate::event::SpaceId;
use crate::wire::Payload;

/// The first pause before dialling again; it doubles up to [`LONGEST_PAUSE`].
const PAUSE: Time = 10 * MS;
const LONGEST_PAUSE: Time = 250 * MS;

/// Another node of the list.
pub(super) struct Peer {
    pub(super) node: NodeId,
    /// Where it listens: its address in the list, then those on its other links.
    addresses: Vec<SocketAddr>,
    /// Which of them is tried, counted without end.
    trying: usize,
    /// All addresses are on this host: a refused connection proves that no process is there.
    pub(super) same_host: bool,
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
        .map(|n| Peer {
            node: n.node,
            addresses: addresses(config, me, n),
            trying: 0,
            same_host: addresses(config, me, n)
                .iter()
                .all(|a| a.ip().is_loopback() || a.ip() == me.address.ip()),
            dials: config.node < n.node,
            link: Link::new(life, config.backlog.max(1)),
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
        })
        .collect();
    peers.sort_unstable_by_key(|p| p.node);
    peers
}

fn addresses(config: &NodeConfig, me: &Identity, peer: &NodeAddress) -> Vec<SocketAddr> {
    let others = config.others_of(peer.node).iter().copied();
    // A port out of range was refused for this node's own address already, or never answers: then
    // the address itself is as good as any.
    let of_shard = |a: SocketAddr| shard_address(a, me.shard).unwrap_or(a);
    std::iter::once(peer.address).chain(others).map(of_shard).collect()
}

impl Peer {
    /// Where it is dialled.
    pub(super) fn address(&self) -> SocketAddr {
        self.addresses[self.trying % self.addresses.len()]
    }

    /// Its address in the list of nodes.
    pub(super) fn first_address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// It has other addresses to try, so many in all.
    pub(super) fn links(&self) -> usize {
        self.addresses.len()
    }

    /// The next attempt goes to its next address: this one did not answer, or fell silent.
    pub(super) fn try_next(&mut self) {
        self.trying = self.trying.wrapping_add(1);
    }

    /// Whether this node has a reason to dial it at all. Whoever does not dial looks whether a
    /// process is there: only on this host does that prove anything.
    pub(super) fn wants_dial(&self) -> bool {
        let idle = self.conn.is_none() && self.dialing.is_none();
        idle && (self.dials || self.same_host && !self.dead)
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
