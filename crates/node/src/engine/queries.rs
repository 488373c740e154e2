//! Questions to the whole cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use lockify_core::{NodeId, Queue, ResourceInfo, Time};
use lockify_trust::Security;

use super::peer::Peer;
use super::{Engine, nanos};
use crate::clock::{monotonic, wall};
use crate::event::HostEvent;
use crate::query::{
    Answer, Certificate, NodeStatus, PeerStatus, Query, QueryId, Software, SpaceStatus, merge,
};
use crate::wire::{Packet, Part, Payload, TELLS_SOFTWARE};

/// Locks of one resource that an answer tells of; more would not fit into a frame.
const MOST_LOCKS: usize = 8192;

/// A query of this node's host.
pub(super) struct Running {
    id: u64,
    query: Query,
    pub(super) deadline: Time,
    waiting: BTreeSet<NodeId>,
    status: Vec<NodeStatus>,
    parts: Vec<(NodeId, Vec<ResourceInfo>)>,
    silent: Vec<NodeId>,
}

impl Engine {
    /// Asks all nodes; [`HostEvent::Answered`] follows within `timeout` and names those that did
    /// not answer.
    pub fn query(&mut self, query: Query, timeout: Duration) -> QueryId {
        let (id, now) = (self.next_query, monotonic());
        self.next_query += 1;
        let me = self.identity.node;
        let mut running = Running {
            id,
            deadline: now.saturating_add(nanos(timeout)),
            waiting: BTreeSet::new(),
            status: Vec::new(),
            parts: Vec::new(),
            silent: Vec::new(),
            query: query.clone(),
        };
        match &query {
            Query::Status => running.status.push(self.status()),
            _ => running.parts.push((me, self.resources(&query, now))),
        }
        for i in 0..self.peers.len() {
            let (node, conn) = (self.peers[i].node, self.peers[i].conn);
            match conn {
                None => running.silent.push(node),
                Some(at) => {
                    running.waiting.insert(node);
                    let due = self.delayed_until(now);
                    let ask = Packet::<Payload>::Ask { id, query: query.clone() };
                    self.put(at, &ask, due);
                }
            }
        }
        self.set_timer(running.deadline);
        self.queries.push(running);
        self.finish_queries(now);
        self.flush(now);
        QueryId(id)
    }

    /// This node's own state.
    pub fn status(&self) -> NodeStatus {
        let view = self.members.view();
        NodeStatus {
            node: self.identity.node,
            incarnation: self.incarnation,
            shard: self.identity.shard,
            view: view.map_or(0, |v| v.seq),
            members: view.map(|v| v.members.iter().map(|m| m.node).collect()).unwrap_or_default(),
            standing: self.members.standing(),
            spaces: self
                .spaces
                .iter()
                .flatten()
                .map(|s| SpaceStatus {
                    name: s.name.clone(),
                    policy: s.core.config().policy.name().to_owned(),
                    view: s.core.view().seq,
                    members: s.core.view().members.iter().map(|m| m.node).collect(),
                    running: s.core.is_running(),
                    recovery: s.core.recovery(),
                    unsettled_claims: s.core.unsettled_claims() as u64,
                    locks: s.core.lock_count() as u64,
                    waiting: (s.core.count_in(Queue::Converting)
                        + s.core.count_in(Queue::Waiting)
                        + s.core.count_in(Queue::Parked)) as u64,
                    resources: s.core.resource_count() as u64,
                    deadlock_after: s.core.config().deadlock_after,
                    stats: s.core.stats(),
                })
                .collect(),
            peers: self
                .peers
                .iter()
                .map(|p| PeerStatus {
                    node: p.node,
                    connected: p.conn.is_some(),
                    incarnation: p.link.peer(),
                    backlog: p.link.backlog() as u64,
                    error: p.error.clone(),
                })
                .collect(),
            unfenced: self.members.unfenced(),
            engine: self.stats,
            software: Some(self.software()),
            certificates: self.certificates(),
        }
    }

    /// Those that this node has seen.
    fn certificates(&self) -> Vec<Certificate> {
        let Security::Tls(keyring) = &self.security else { return Vec::new() };
        let own = keyring.current();
        let certificate = |node, ends| Certificate { node, ends, warn_days: own.warn_days() };
        let shown = |p: &Peer| Some(certificate(p.node, p.certificate_ends?));
        let peers = self.peers.iter().filter(|p| p.conn.is_some()).filter_map(shown);
        std::iter::once(certificate(self.identity.node, own.expires())).chain(peers).collect()
    }

    /// How often another view has begun since the program did.
    pub fn view_changes(&self) -> u64 {
        self.view_changes
    }

    fn software(&self) -> Software {
        let connected = self.peers.iter().filter(|p| p.conn.is_some());
        Software {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            oldest: self.identity.versions.oldest,
            newest: self.identity.versions.newest,
            spoken: connected.map(|p| (p.node, p.version)).collect(),
        }
    }

    /// What this node knows of the resources that are asked for; times since 1970.
    fn resources(&self, query: &Query, now: Time) -> Vec<ResourceInfo> {
        let (space, name) = match query {
            Query::Status => return Vec::new(),
            Query::Locks { space } => (space, None),
            Query::Who { space, name } => (space, Some(name)),
        };
        let Some(s) = self.spaces.iter().flatten().find(|s| s.name == *space) else {
            return Vec::new();
        };
        let mut found = match name {
            Some(name) => s.core.resource(name).into_iter().collect(),
            None => s.core.resources(),
        };
        let epoch = wall().saturating_sub(now);
        for lock in found.iter_mut().flat_map(|r| {
            r.locks.truncate(MOST_LOCKS);
            r.locks.iter_mut()
        }) {
            lock.since = lock.since.saturating_add(epoch);
        }
        found
    }

    /// A peer asks.
    pub(super) fn answer(&mut self, at: usize, peer: usize, id: u64, query: Query, now: Time) {
        let more = self.peers[peer].version >= TELLS_SOFTWARE;
        if query == Query::Status {
            let due = self.delayed_until(now);
            let part = Part::Status(Box::new(self.status()));
            let last = !more;
            self.put(at, &Packet::<Payload>::Tell { id, part, last }, due);
            if more {
                let part = Part::Software(self.software());
                self.put(at, &Packet::<Payload>::Tell { id, part, last: true }, due);
            }
            return;
        }
        let resources = self.resources(&query, now);
        if let Some(conn) = self.conns.get_mut(at) {
            conn.answers.push_back((id, resources));
            self.mark(at);
        }
    }

    /// A peer answers.
    pub(super) fn collect(&mut self, node: NodeId, id: u64, part: Part, last: bool) {
        let Some(q) = self.queries.iter_mut().find(|q| q.id == id && q.waiting.contains(&node))
        else {
            return;
        };
        match part {
            Part::Status(s) => q.status.push(*s),
            Part::Resources(r) => q.parts.push((node, r)),
            Part::Software(s) => {
                let of = q.status.iter_mut().find(|status| status.node == node);
                of.into_iter().for_each(|status| status.software = Some(s.clone()));
            }
        }
        if last {
            q.waiting.remove(&node);
        }
        self.finish_queries(monotonic());
    }

    /// A peer's connection is gone, and its answers with it.
    pub(super) fn silence(&mut self, node: NodeId) {
        for q in &mut self.queries {
            if q.waiting.remove(&node) {
                q.silent.push(node);
            }
        }
        self.finish_queries(monotonic());
    }

    pub(super) fn expire_queries(&mut self, now: Time) {
        if !self.queries.is_empty() {
            self.finish_queries(now);
        }
    }

    fn finish_queries(&mut self, now: Time) {
        let ended = |q: &mut Running| q.waiting.is_empty() || q.deadline <= now;
        for mut q in self.queries.extract_if(.., ended) {
            q.silent.extend(&q.waiting);
            q.silent.sort_unstable();
            q.status.sort_by_key(|s| s.node);
            let answer = Answer {
                query: q.query,
                status: q.status,
                resources: merge(q.parts),
                silent: q.silent,
            };
            self.pending
                .push(HostEvent::Answered { query: QueryId(q.id), answer: Box::new(answer) });
        }
    }
}
