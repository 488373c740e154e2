//! Corosync, as far as processes see it: rings, one group, and who has the quorum.
//!
//! What is modelled are its guarantees. All of a ring are told messages and changes of the group in one order. Those who go
//! from one ring to the next together have been told the same before they hear of it; others may have been told less or more. What was said and not
//! told is said in the next ring by whoever is in it. Rings have numbers that grow. Each machine's word comes when it comes, and the quorum's on a way of its
//! own. A machine that starts again comes as a ring of its own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lockify_core::NodeId;
use lockify_corosync::{Event as Said, Process, Reason, RingId};
use lockify_membership::ClusterEvent;
use lockify_sim::{MICROSECOND, Nanos, Random};
use rand::RngExt as _;

/// How long what was said takes to a place in the order, and from there to a process, at most.
const LATENCY: Nanos = 150 * MICROSECOND;

/// One ring.
#[derive(Debug, Default)]
struct Ring {
    machines: BTreeSet<NodeId>,
    /// The group's processes: what its members were told last.
    group: BTreeMap<NodeId, u32>,
    /// What has a place in the order.
    order: Vec<(Process, Vec<u8>)>,
    /// Changes of the group come after so many of them: nobody is told less.
    told: usize,
}

/// Something that a process is to be told.
#[derive(Debug)]
struct TotemLetter {
    at: Nanos,
    /// The ring's place in the order.
    place: Option<(u64, usize)>,
    event: ClusterEvent,
}

/// A process, and what corosync has for it.
#[derive(Debug)]
struct Client {
    pid: u32,
    /// It has said this, which has no place in an order yet.
    says: VecDeque<Vec<u8>>,
    letters: VecDeque<TotemLetter>,
    /// The latest time of a letter.
    last: Nanos,
    /// The last message of its ring that it was told.
    told: usize,
}

/// Corosync on all machines.
#[derive(Debug, Default)]
pub(super) struct Totem {
    size: usize,
    rings: BTreeMap<u64, Ring>,
    /// Which ring each machine is in; none: it, or its corosync, is down.
    places: BTreeMap<NodeId, u64>,
    clients: BTreeMap<NodeId, Client>,
    last_ring: u64,
}

/// When a process is to be told something.
pub(super) type Due = Vec<(NodeId, Nanos)>;

impl Totem {
    pub(super) fn new(size: usize) -> Totem {
        Totem { size, last_ring: 4, ..Totem::default() }
    }

    pub(super) fn is_up(&self, node: NodeId) -> bool {
        self.places.contains_key(&node)
    }

    /// The process that is connected there.
    pub(super) fn pid(&self, node: NodeId) -> Option<u32> {
        self.clients.get(&node).map(|c| c.pid)
    }

    pub(super) fn is_connected(&self, node: NodeId, pid: u32) -> bool {
        self.pid(node) == Some(pid)
    }

    fn new_ring(&mut self, machines: BTreeSet<NodeId>) -> u64 {
        self.last_ring += 4;
        machines.iter().for_each(|n| {
            self.places.insert(*n, self.last_ring);
        });
        self.rings.insert(self.last_ring, Ring { machines, ..Ring::default() });
        self.last_ring
    }

    fn id(&self, ring: u64) -> RingId {
        let lowest = self.rings.get(&ring).and_then(|r| r.machines.first());
        RingId { seq: ring, node: lowest.map_or(0, |n| n.0 + 1) }
    }

    fn quorum(&self, ring: u64) -> Said {
        let machines = self.rings.get(&ring).map(|r| &r.machines);
        let nodes: Vec<u32> = machines.into_iter().flatten().map(|n| n.0).collect();
        Said::Quorum { quorate: 2 * nodes.len() > self.size, ring: self.id(ring), nodes }
    }

    fn members(&self, ring: u64) -> Vec<Process> {
        let group = self.rings.get(&ring).map(|r| &r.group);
        group.into_iter().flatten().map(|(n, pid)| Process { node: n.0, pid: *pid }).collect()
    }

    fn post(
        &mut self,
        to: NodeId,
        at: Nanos,
        place: Option<(u64, usize)>,
        event: ClusterEvent,
        due: &mut Due,
    ) {
        let Some(client) = self.clients.get_mut(&to) else { return };
        client.last = client.last.max(at);
        client.letters.push_back(TotemLetter { at: client.last, place, event });
        due.push((to, client.last));
    }

    fn post_all(&mut self, ring: u64, now: Nanos, random: &mut Random, said: &Said, due: &mut Due) {
        let to: Vec<NodeId> = self.members(ring).iter().map(|p| NodeId(p.node)).collect();
        for node in to {
            let at = now + random.random_range(0..=LATENCY);
            self.post(node, at, None, ClusterEvent::Said(said.clone()), due);
        }
    }

    /// The group of a ring has changed: whatever has a place in the order comes before that.
    fn regrouped(
        &mut self,
        ring: u64,
        now: Nanos,
        random: &mut Random,
        left: Vec<(Process, Reason)>,
        joined: Vec<Process>,
        due: &mut Due,
    ) {
        let members = self.members(ring);
        if let Some(r) = self.rings.get_mut(&ring) {
            r.told = r.order.len();
        }
        self.post_all(ring, now, random, &Said::Members { members, left, joined }, due);
    }

    /// A machine's corosync starts.
    pub(super) fn boot(&mut self, node: NodeId) {
        if !self.is_up(node) {
            self.new_ring([node].into());
        }
    }

    /// A machine, or its corosync, ends: the others notice when their ring is formed anew.
    pub(super) fn down(&mut self, node: NodeId, now: Nanos) -> Due {
        let mut due = Due::new();
        if let Some(ring) = self.places.remove(&node).and_then(|r| self.rings.get_mut(&r)) {
            ring.machines.remove(&node);
        }
        if let Some(client) = self.clients.get_mut(&node) {
            client.letters.clear();
            client.says.clear();
            self.post(node, now, None, ClusterEvent::Parted, &mut due);
        }
        due
    }

    /// A process has ended, with or without its machine.
    pub(super) fn ended(
        &mut self,
        node: NodeId,
        now: Nanos,
        random: &mut Random,
        reason: Reason,
    ) -> Due {
        let mut due = Due::new();
        let Some(client) = self.clients.remove(&node) else { return due };
        let Some(&ring) = self.places.get(&node) else { return due };
        let gone = self.rings.get_mut(&ring).and_then(|r| r.group.remove(&node));
        if gone == Some(client.pid) {
            let process = Process { node: node.0, pid: client.pid };
            self.regrouped(ring, now, random, vec![(process, reason)], Vec::new(), &mut due);
        }
        due
    }

    /// A process connects to its machine's corosync and joins the group.
    pub(super) fn connect(
        &mut self,
        node: NodeId,
        pid: u32,
        now: Nanos,
        random: &mut Random,
    ) -> Due {
        let mut due = Due::new();
        let Some(&ring) = self.places.get(&node) else { return due };
        let (says, letters) = Default::default();
        let before = self.clients.remove(&node);
        let last = before.map_or(0, |c| c.last);
        self.clients.insert(node, Client { pid, says, letters, last, told: 0 });
        if let Some(r) = self.rings.get_mut(&ring) {
            r.group.insert(node, pid);
            if let Some(client) = self.clients.get_mut(&node) {
                client.told = r.order.len();
            }
        }
        let (id, quorum) = (self.id(ring), self.quorum(ring));
        for event in [ClusterEvent::Joined, ClusterEvent::Said(Said::Ring(id))] {
            self.post(node, now, None, event, &mut due);
        }
        self.post(node, now, None, ClusterEvent::Said(quorum), &mut due);
        let process = Process { node: node.0, pid };
        self.regrouped(ring, now, random, Vec::new(), vec![process], &mut due);
        due
    }

    /// A process says something; when it may have a place in the order.
    pub(super) fn cast(&mut self, node: NodeId, bytes: Vec<u8>, random: &mut Random) -> Nanos {
        if let Some(client) = self.clients.get_mut(&node) {
            client.says.push_back(bytes);
        }
        random.random_range(0..=LATENCY)
    }

    /// What a process has said gets its place.
    pub(super) fn order(&mut self, node: NodeId, now: Nanos, random: &mut Random) -> Due {
        let mut due = Due::new();
        let Some(&ring) = self.places.get(&node) else { return due };
        let Some(client) = self.clients.get_mut(&node) else { return due };
        let (pid, said) = (client.pid, client.says.pop_front());
        let Some(bytes) = said else { return due };
        let from = Process { node: node.0, pid };
        let Some(r) = self.rings.get_mut(&ring) else { return due };
        r.order.push((from, bytes.clone()));
        let place = Some((ring, r.order.len()));
        for to in r.group.keys().copied().collect::<Vec<_>>() {
            let at = now + random.random_range(0..=LATENCY);
            let said = Said::Message { from, bytes: bytes.clone() };
            self.post(to, at, place, ClusterEvent::Said(said), &mut due);
        }
        due
    }

    /// What a process is told now, if anything is due.
    pub(super) fn next(&mut self, node: NodeId, now: Nanos) -> Option<ClusterEvent> {
        let client = self.clients.get_mut(&node)?;
        let letter = client.letters.front().filter(|l| l.at <= now)?.place;
        if let Some((ring, place)) = letter
            && self.places.get(&node) == Some(&ring)
        {
            client.told = place;
        }
        client.letters.pop_front().map(|l| l.event)
    }

    /// Rings are formed anew, where these machines do not reach each other; who has to say something again then.
    pub(super) fn reform(
        &mut self,
        now: Nanos,
        random: &mut Random,
        separated: &BTreeSet<(NodeId, NodeId)>,
    ) -> Due {
        let mut due = Due::new();
        for machines in components(self.places.keys().copied().collect(), separated) {
            let rings: BTreeSet<u64> = machines.iter().map(|n| self.places[n]).collect();
            let same =
                |r: &Ring| r.machines == machines && r.group.keys().all(|n| machines.contains(n));
            if rings.len() == 1 && rings.first().and_then(|r| self.rings.get(r)).is_some_and(same) {
                continue;
            }
            self.form(machines, &rings, now, random, &mut due);
        }
        let used: BTreeSet<u64> = self.places.values().copied().collect();
        self.rings.retain(|ring, _| used.contains(ring));
        due
    }

    fn form(
        &mut self,
        machines: BTreeSet<NodeId>,
        old: &BTreeSet<u64>,
        now: Nanos,
        random: &mut Random,
        due: &mut Due,
    ) {
        let mut group = BTreeMap::new();
        let mut lost = BTreeMap::new();
        for ring in old {
            let all = self.rings.get(ring).map(|r| r.group.clone()).unwrap_or_default();
            let (stay, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
                all.into_iter().partition(|(n, _)| machines.contains(n) && self.places[n] == *ring);
            self.cut(*ring, &stay, random);
            lost.insert(*ring, (stay.clone(), gone));
            group.extend(stay);
        }
        let before: BTreeMap<NodeId, u64> = machines.iter().map(|n| (*n, self.places[n])).collect();
        let new = self.new_ring(machines);
        if let Some(r) = self.rings.get_mut(&new) {
            r.group.clone_from(&group);
        }
        let process = |(n, pid): (&NodeId, &u32)| Process { node: n.0, pid: *pid };
        let members: Vec<Process> = group.iter().map(process).collect();
        for node in group.keys() {
            let (stay, gone) = &lost[&before[node]];
            let left: Vec<_> = gone.iter().map(|p| (process(p), Reason::NodeDown)).collect();
            let staying = stay.iter().map(process).collect();
            let joined: Vec<Process> =
                group.iter().filter(|(n, _)| !stay.contains_key(n)).map(process).collect();
            let mut said = Vec::new();
            if !left.is_empty() {
                said.push(Said::Members { members: staying, left, joined: Vec::new() });
            }
            said.push(Said::Ring(self.id(new)));
            if !joined.is_empty() {
                let (members, left) = (members.clone(), Vec::new());
                said.push(Said::Members { members, left, joined });
            }
            // On a way of its own.
            said.insert(random.random_range(0..=said.len()), self.quorum(new));
            let at = now + random.random_range(0..=LATENCY);
            for said in said {
                self.post(*node, at, None, ClusterEvent::Said(said), due);
            }
            if let Some(client) = self.clients.get_mut(node) {
                client.told = 0;
                // What it says again has to be given a place again.
                due.extend(client.says.iter().map(|_| (*node, Nanos::MAX)));
            }
        }
    }

    /// Those who leave a ring together have been told the same: at least what one of them was.
    fn cut(&mut self, ring: u64, stay: &BTreeMap<NodeId, u32>, random: &mut Random) {
        let Some(r) = self.rings.get(&ring) else { return };
        let told = stay.keys().filter_map(|n| self.clients.get(n)).map(|c| c.told).max();
        let last = random.random_range(told.unwrap_or(0).max(r.told)..=r.order.len());
        let again: Vec<(Process, Vec<u8>)> = r.order[last..].to_vec();
        for node in stay.keys() {
            let Some(client) = self.clients.get_mut(node) else { continue };
            client
                .letters
                .retain(|l| l.place.is_none_or(|(of, place)| of != ring || place <= last));
            for (from, bytes) in again.iter().rev() {
                if (from.node, from.pid) == (node.0, client.pid) {
                    client.says.push_front(bytes.clone());
                }
            }
        }
    }
}

/// Machines that reach each other, perhaps over others.
fn components(
    mut left: BTreeSet<NodeId>,
    separated: &BTreeSet<(NodeId, NodeId)>,
) -> Vec<BTreeSet<NodeId>> {
    let mut found = Vec::new();
    while let Some(first) = left.pop_first() {
        let (mut all, mut next) = (BTreeSet::from([first]), vec![first]);
        while let Some(node) = next.pop() {
            let reaches = |n: &NodeId| !separated.contains(&(node.min(*n), node.max(*n)));
            let near: Vec<NodeId> = left.iter().copied().filter(reaches).collect();
            near.iter().for_each(|n| {
                left.remove(n);
            });
            all.extend(&near);
            next.extend(near);
        }
        found.push(all);
    }
    found
}
