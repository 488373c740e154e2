//! Questions to the whole cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use lockify_core::{NodeId, Queue, ResourceInfo, Time};
use lockify_trust::Security;

use super::pages::{Asker, Look};
use super::peer::Peer;
use super::{NodeEngine, nanos};
use crate::clock::monotonic;
use crate::event::HostEvent;
use crate::page::{MOST_PER_PAGE, Pages, Rest};
use crate::query::{
    Answer, Certificate, NodeStatus, PeerStatus, Query, QueryId, Software, SpaceStatus,
};
use crate::wire::{KNOWS_PAGES, Packet, Part, Payload, TELLS_SOFTWARE};

/// Queries for pages that are under way at a time; more wait for these.
pub(super) const AT_ONCE: usize = 8;

/// A query of this node's host.
pub(super) struct Running {
    id: u64,
    query: Query,
    patience: Time,
    /// When it ends at the latest; `None`: it waits for its turn.
    deadline: Option<Time>,
    /// This node's own look is not done.
    looking: bool,
    waiting: BTreeSet<NodeId>,
    status: Vec<NodeStatus>,
    pages: Pages,
    silent: Vec<NodeId>,
}

impl Running {
    pub(super) fn deadline(&self) -> Time {
        self.deadline.unwrap_or(Time::MAX)
    }

    /// It goes through whole lockspaces.
    fn is_large(&self) -> bool {
        matches!(self.query, Query::Page(_) | Query::Locks { .. })
    }

    fn is_over(&self, now: Time) -> bool {
        self.deadline
            .is_some_and(|deadline| deadline <= now || self.waiting.is_empty() && !self.looking)
    }
}

impl NodeEngine {
    /// Asks all nodes; [`HostEvent::Answered`] follows within `timeout` and names those that did
    /// not answer. Only a few queries for pages are under way at once, and the time of another one
    /// begins when it is its turn.
    pub fn query(&mut self, query: Query, timeout: Duration) -> QueryId {
        let (id, now) = (self.next_query, monotonic());
        self.next_query += 1;
        self.queries.push(Running {
            id,
            query,
            patience: nanos(timeout),
            deadline: None,
            looking: false,
            waiting: BTreeSet::new(),
            status: Vec::new(),
            pages: Pages::default(),
            silent: Vec::new(),
        });
        self.begin_queries(now);
        self.finish_queries(now);
        self.flush(now);
        QueryId(id)
    }

    fn begin_queries(&mut self, now: Time) {
        let under_way = |q: &&Running| q.is_large() && q.deadline.is_some();
        let mut large = self.queries.iter().filter(under_way).count();
        for i in 0..self.queries.len() {
            let q = &self.queries[i];
            if q.deadline.is_some() || q.is_large() && large >= AT_ONCE {
                continue;
            }
            large += usize::from(q.is_large());
            self.begin_query(i, now);
        }
    }

    fn begin_query(&mut self, i: usize, now: Time) {
        let deadline = now.saturating_add(self.queries[i].patience);
        let (id, query) = (self.queries[i].id, self.queries[i].query.clone());
        self.queries[i].deadline = Some(deadline);
        let me = self.identity.node;
        match &query {
            Query::Status => {
                let status = self.status();
                self.queries[i].status.push(status);
            }
            Query::Who { space, name } => {
                let (found, locks) = self.resource(space, name, now);
                self.queries[i].pages.add(me, found);
                self.queries[i].pages.end(me, Rest { locks, ..Rest::default() });
            }
            Query::Page(of) => self.looks.push_back(Look::page(Asker::Own(id), of)),
            Query::Locks { space } => self.looks.push_back(Look::whole(Asker::Own(id), space)),
        }
        self.queries[i].looking = self.queries[i].is_large();
        for p in 0..self.peers.len() {
            let Peer { node, conn, version, .. } = self.peers[p];
            let Some(at) = conn else {
                self.queries[i].silent.push(node);
                continue;
            };
            self.queries[i].waiting.insert(node);
            let query = match &query {
                Query::Page(of) if version < KNOWS_PAGES => {
                    Query::Locks { space: of.space.clone() }
                }
                query => query.clone(),
            };
            let due = self.delayed_until(now);
            self.put(at, &Packet::<Payload>::Ask { id, query }, due);
        }
        self.set_timer(deadline);
    }

    /// This node's own look is done.
    pub(super) fn collect_own(&mut self, id: u64, resources: Vec<ResourceInfo>, rest: Rest) {
        let me = self.identity.node;
        if let Some(q) = self.queries.iter_mut().find(|q| q.id == id) {
            q.pages.add(me, resources);
            q.pages.end(me, rest);
            q.looking = false;
        }
        self.finish_queries(monotonic());
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
                        + s.core.count_in(Queue::Unanswered)) as u64,
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
        let node = self.peers[peer].node;
        let asker = Asker::Peer { node, id, whole: false };
        match query {
            Query::Status => {}
            Query::Who { space, name } => {
                let (found, _) = self.resource(&space, &name, now);
                self.answer_in_parts(at, id, found, None);
            }
            Query::Page(of) => self.look_for_peer(node, id, Look::page(asker, &of), now),
            Query::Locks { space } => {
                let asker = Asker::Peer { node, id, whole: true };
                self.look_for_peer(node, id, Look::whole(asker, &space), now);
            }
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
            Part::Resources(r) => {
                q.pages.add(node, r);
                let old = self.peers.binary_search_by_key(&node, |p| p.node);
                let old = old.is_ok_and(|p| self.peers[p].version < KNOWS_PAGES);
                if let (true, Query::Page(of)) = (old, &q.query) {
                    q.pages.cut(node, of);
                }
            }
            Part::Rest(rest) => q.pages.end(node, rest),
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
        self.stop_looks_of(node);
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

    /// Answers all queries with the parts so far.
    pub(super) fn end_queries(&mut self, now: Time) {
        for q in &mut self.queries {
            q.looking |= q.deadline.is_none();
            q.deadline = Some(now);
        }
        self.finish_queries(now);
        self.looks.clear();
    }

    fn finish_queries(&mut self, now: Time) {
        let mut ended = false;
        for q in self.queries.extract_if(.., |q| q.is_over(now)) {
            ended = true;
            // Of an answer that nobody waits for any more.
            self.looks.retain(|look| !look.is_for(Asker::Own(q.id)));
            let answer = q.answer(self.identity.node);
            self.pending.push(answer);
        }
        if ended {
            self.begin_queries(now);
        }
    }
}

impl Running {
    fn answer(mut self, me: NodeId) -> HostEvent {
        self.silent.extend(&self.waiting);
        self.silent.extend(self.looking.then_some(me));
        self.silent.sort_unstable();
        self.status.sort_by_key(|s| s.node);
        let limit = match &self.query {
            Query::Page(of) => of.limit.clamp(1, MOST_PER_PAGE),
            _ => u32::MAX,
        };
        let (resources, rest, next) = self.pages.merged(limit);
        let answer = Answer {
            query: self.query,
            status: self.status,
            resources,
            more: rest.more,
            next,
            locks_left_out: rest.locks,
            silent: self.silent,
        };
        HostEvent::Answered { query: QueryId(self.id), answer: Box::new(answer) }
    }
}
