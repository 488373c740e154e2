//! A cluster of membership services in virtual time, with connections that break, nodes that
//! pause, crash and come back, and a check of what views promise after every step.

use std::collections::{BTreeMap, VecDeque};

use super::*;

const MS: Time = 1_000_000;
const LEASE: Time = 100 * MS;

/// A node: its process, what it does in which view, and its clock's reading relative to others.
struct Host {
    service: Option<StaticMembership>,
    life: u64,
    view: Option<NodeView>,
    spaces: Vec<SpaceJoin>,
    paused: bool,
    /// The events during its pause.
    missed: Vec<Event>,
}

struct Cluster {
    now: Time,
    hosts: BTreeMap<NodeId, Host>,
    /// Connected pairs, and whether a connection is allowed at all.
    up: BTreeMap<(NodeId, NodeId), bool>,
    open: BTreeMap<(NodeId, NodeId), bool>,
    /// Messages by ordered pair, with the time of arrival.
    wires: BTreeMap<(NodeId, NodeId), VecDeque<(Time, Vote)>>,
    halts: usize,
    random: u64,
    lives: u64,
    highest: u64,
    same_host: bool,
    fence: FenceKind,
    /// The nodes to fence, one for each run of the agent.
    agents: Vec<NodeId>,
}

fn pair(a: NodeId, b: NodeId) -> (NodeId, NodeId) {
    (a.min(b), a.max(b))
}

impl Cluster {
    fn new(n: u32, seed: u64, same_host: bool) -> Cluster {
        Cluster::fencing(n, seed, same_host, FenceKind::Lease)
    }

    fn fencing(n: u32, seed: u64, same_host: bool, fence: FenceKind) -> Cluster {
        let ids: Vec<NodeId> = (1..=n).map(NodeId).collect();
        let pairs: Vec<_> = ids
            .iter()
            .flat_map(|&a| ids.iter().map(move |&b| (a, b)))
            .filter(|(a, b)| a < b)
            .collect();
        let mut c = Cluster {
            now: 1_000_000 * MS,
            hosts: BTreeMap::new(),
            up: pairs.iter().map(|&p| (p, true)).collect(),
            open: pairs.iter().map(|&p| (p, false)).collect(),
            wires: BTreeMap::new(),
            halts: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            lives: 0,
            highest: 0,
            same_host,
            fence,
            agents: Vec::new(),
        };
        ids.iter().for_each(|&id| {
            let h = Host {
                service: None,
                life: 0,
                view: None,
                spaces: Vec::new(),
                paused: false,
                missed: Vec::new(),
            };
            c.hosts.insert(id, h);
        });
        ids.iter().for_each(|&id| c.start(id));
        c
    }

    fn rand(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % n
    }

    fn start(&mut self, id: NodeId) {
        self.lives += 1;
        let nodes = self.hosts.keys().copied().collect();
        let (life, fence) = (self.lives, self.fence);
        let config = StaticConfig { node: id, life, weight: 1, nodes, lease: LEASE, fence };
        let (now, life) = (self.now, self.lives);
        let host = self.hosts.get_mut(&id).unwrap();
        host.life = life;
        host.paused = false;
        host.missed.clear();
        host.spaces.clear();
        host.service = Some(StaticMembership::new(config, now));
    }

    fn crash(&mut self, id: NodeId) {
        self.cut(id);
        let host = self.hosts.get_mut(&id).unwrap();
        (host.service, host.view, host.paused) = (None, None, false);
        if self.same_host {
            self.tell_all(id, |node| Event::Dead { node });
        }
    }

    fn tell_all(&mut self, about: NodeId, event: impl Fn(NodeId) -> Event) {
        let ids: Vec<_> = self.hosts.keys().copied().filter(|&i| i != about).collect();
        ids.into_iter().for_each(|i| self.feed(i, event(about)));
    }

    /// Breaks the connections of a node.
    fn cut(&mut self, id: NodeId) {
        let with: Vec<_> = self.open.keys().copied().filter(|&(a, b)| a == id || b == id).collect();
        with.into_iter().for_each(|(a, b)| self.close(a, b));
    }

    fn close(&mut self, a: NodeId, b: NodeId) {
        if std::mem::replace(self.open.get_mut(&pair(a, b)).unwrap(), false) {
            self.wires.remove(&(a, b));
            self.wires.remove(&(b, a));
            self.feed(a, Event::Disconnected { node: b });
            self.feed(b, Event::Disconnected { node: a });
        }
    }

    /// Makes the connections that can be made.
    fn dial(&mut self) {
        for (a, b) in self.up.iter().filter(|(_, up)| **up).map(|(p, _)| *p).collect::<Vec<_>>() {
            let runs = |h: &Host| h.service.is_some() && !h.paused;
            if self.open[&(a, b)] || !runs(&self.hosts[&a]) || !runs(&self.hosts[&b]) {
                continue;
            }
            self.open.insert((a, b), true);
            let (la, lb, sole) = (self.hosts[&a].life, self.hosts[&b].life, self.same_host);
            self.feed(a, Event::Connected { node: b, life: lb, sole });
            self.feed(b, Event::Connected { node: a, life: la, sole });
        }
    }

    fn feed(&mut self, id: NodeId, event: Event) {
        let (now, wall) = (self.now, 1_700_000_000 + self.now / 1_000_000_000);
        let host = self.hosts.get_mut(&id).unwrap();
        let Some(service) = host.service.as_mut() else {
            return;
        };
        if host.paused {
            host.missed.push(event);
            return;
        }
        service.handle(now, wall, event);
        while let Some(action) = self.hosts.get_mut(&id).and_then(|h| h.service.as_mut()?.poll()) {
            self.act(id, action);
        }
        self.check();
    }

    fn act(&mut self, id: NodeId, action: Action) {
        match action {
            Action::Send { to, vote } => {
                if self.open[&pair(id, to)] {
                    let at = self.now + self.rand(2 * MS);
                    let wire = self.wires.entry((id, to)).or_default();
                    let at = wire.back().map_or(at, |(t, _)| at.max(*t));
                    wire.push_back((at, vote));
                }
            }
            Action::Install(view) => {
                let host = self.hosts.get_mut(&id).unwrap();
                assert!(host.view.as_ref().is_none_or(|v| v.seq < view.seq));
                for s in &view.spaces {
                    let old = host.view.as_ref().and_then(|v| v.space(&s.name));
                    let same = old.is_some_and(|o| o.members == s.view.members);
                    let grows = old.is_none_or(|o| o.seq < s.view.seq);
                    assert!(grows || same && old.unwrap().seq == s.view.seq, "{s:?} after {old:?}");
                }
                self.highest = self.highest.max(view.seq);
                host.view = Some(view);
            }
            Action::Halt(_) => {
                self.halts += 1;
                self.hosts.get_mut(&id).unwrap().view = None;
                self.cut(id);
                self.lives += 1;
                let life = self.lives;
                self.hosts.get_mut(&id).unwrap().life = life;
                self.feed(id, Event::Reborn { life });
                for name in
                    self.hosts[&id].spaces.iter().map(|s| s.name.clone()).collect::<Vec<_>>()
                {
                    self.join(id, &name);
                }
            }
            Action::Disconnect { node } => self.close(id, node),
            Action::Fence { node, .. } => self.agents.push(node),
            other => unreachable!("a list has no cluster manager and no log: {other:?}"),
        }
    }

    /// Whoever acts in a view (it has one and its lease runs) is in every later one that holds.
    fn check(&self) {
        let acting: Vec<_> = self
            .hosts
            .iter()
            .filter_map(|(id, h)| {
                let end = h.service.as_ref()?.lease_end();
                Some((id, h.life, h.view.as_ref().filter(|_| end.is_none_or(|e| self.now < e))?))
            })
            .collect();
        for (a, life, old) in &acting {
            for (b, _, new) in acting.iter().filter(|(_, _, v)| v.seq > old.seq) {
                assert_eq!(new.life(**a), Some(*life), "{a} acts in {old:?}, {b} in {new:?}");
            }
            for (_, _, same) in acting.iter().filter(|(_, _, v)| v.seq == old.seq) {
                assert_eq!(same, old);
            }
        }
    }

    fn resume(&mut self, id: NodeId) {
        let host = self.hosts.get_mut(&id).unwrap();
        if std::mem::replace(&mut host.paused, false) {
            let missed = std::mem::take(&mut host.missed);
            self.feed(id, Event::Tick);
            missed.into_iter().for_each(|event| self.feed(id, event));
        }
    }

    /// The next message that has arrived.
    fn arrived(&mut self, pair: (NodeId, NodeId)) -> Option<Vote> {
        let wire = self.wires.get_mut(&pair)?;
        if self.hosts[&pair.1].paused || wire.front()?.0 > self.now {
            return None;
        }
        wire.pop_front().map(|(_, vote)| vote)
    }

    fn run(&mut self, time: Time) {
        let end = self.now + time;
        while self.now < end {
            self.now += MS;
            self.dial();
            for pair in self.wires.keys().copied().collect::<Vec<_>>() {
                while let Some(vote) = self.arrived(pair) {
                    self.feed(pair.1, Event::Vote { from: pair.0, vote });
                }
            }
            for id in self.hosts.keys().copied().collect::<Vec<_>>() {
                let due = |h: &Host| {
                    !h.paused && h.service.as_ref().is_some_and(|s| s.next_timer() <= self.now)
                };
                if due(&self.hosts[&id]) {
                    self.feed(id, Event::Tick);
                }
            }
        }
    }

    fn join(&mut self, id: NodeId, name: &str) {
        self.lives += 1;
        let life = self.lives;
        let host = self.hosts.get_mut(&id).unwrap();
        host.spaces.retain(|s| s.name != name);
        host.spaces.push(SpaceJoin { name: name.into(), life });
        let spaces = host.spaces.clone();
        self.feed(id, Event::Spaces(spaces));
    }

    fn members(&self, id: u32) -> Vec<u32> {
        let view = self.hosts[&NodeId(id)].view.as_ref();
        view.map(|v| v.members.iter().map(|m| m.node.0).collect()).unwrap_or_default()
    }

    fn settled_on(&self, ids: &[u32]) {
        ids.iter().for_each(|&i| assert_eq!(self.members(i), ids, "node {i}"));
    }
}

#[test]
fn one_node_has_a_view_at_once() {
    let mut c = Cluster::new(1, 1, false);
    c.feed(NodeId(1), Event::Tick);
    assert_eq!(c.members(1), [1]);
    c.run(10 * LEASE);
    assert_eq!((c.members(1), c.halts), (vec![1], 0));
}

#[test]
fn two_nodes_need_each_other() {
    let mut c = Cluster::new(2, 1, true);
    c.run(20 * MS);
    c.settled_on(&[1, 2]);
    c.crash(NodeId(2));
    c.run(2 * LEASE);
    assert_eq!((c.members(1), c.halts), (vec![], 1));
    c.start(NodeId(2));
    c.run(LEASE);
    c.settled_on(&[1, 2]);
}

#[test]
fn numbers_start_at_the_seconds_since_1970_and_grow() {
    let mut c = Cluster::new(3, 1, true);
    c.run(LEASE);
    let first = c.highest;
    assert!(first >= 1_700_000_000);
    c.join(NodeId(2), "x");
    c.run(LEASE);
    assert!(c.highest > first);
    let view = c.hosts[&NodeId(3)].view.as_ref().unwrap();
    let members = &view.space("x").unwrap().members;
    assert_eq!(members.iter().map(|m| m.node.0).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_lockspace_keeps_its_number_while_others_are_joined() {
    let mut c = Cluster::new(3, 1, true);
    c.join(NodeId(1), "x");
    c.join(NodeId(2), "x");
    c.run(LEASE);
    let seq = |c: &Cluster| c.hosts[&NodeId(2)].view.as_ref().unwrap().space("x").unwrap().seq;
    let before = seq(&c);
    c.join(NodeId(3), "y");
    c.run(LEASE);
    assert_eq!(seq(&c), before);
    c.join(NodeId(3), "x");
    c.run(LEASE);
    assert!(seq(&c) > before);
}

#[test]
fn a_dead_process_is_taken_out_at_once_and_a_silent_one_after_its_lease() {
    let mut c = Cluster::new(3, 1, true);
    c.run(LEASE);
    c.crash(NodeId(1));
    c.run(20 * MS);
    c.settled_on(&[2, 3]);
    let mut c = Cluster::new(3, 1, false);
    c.run(3 * LEASE);
    c.crash(NodeId(1));
    c.run(LEASE);
    assert_eq!(c.members(2), [1, 2, 3]);
    c.run(3 * LEASE);
    c.settled_on(&[2, 3]);
}

#[test]
fn a_minority_halts_and_comes_back() {
    let mut c = Cluster::new(5, 1, false);
    c.run(3 * LEASE);
    c.settled_on(&[1, 2, 3, 4, 5]);
    for a in [1, 2] {
        for b in [3, 4, 5] {
            c.up.insert((NodeId(a), NodeId(b)), false);
            c.close(NodeId(a), NodeId(b));
        }
    }
    c.run(LEASE + LEASE / 2);
    assert_eq!((c.halts, c.members(1), c.members(3)), (2, vec![], vec![1, 2, 3, 4, 5]));
    c.run(2 * LEASE);
    c.settled_on(&[3, 4, 5]);
    c.up.values_mut().for_each(|up| *up = true);
    c.run(3 * LEASE);
    c.settled_on(&[1, 2, 3, 4, 5]);
}

#[test]
fn a_paused_node_halts_before_it_does_anything_else() {
    let mut c = Cluster::new(3, 1, false);
    c.run(3 * LEASE);
    c.hosts.get_mut(&NodeId(1)).unwrap().paused = true;
    c.run(4 * LEASE);
    c.settled_on(&[2, 3]);
    let service = c.hosts[&NodeId(1)].service.as_ref().unwrap();
    assert!(service.lease_end().unwrap() < c.now);
    c.resume(NodeId(1));
    assert_eq!((c.halts, c.members(1)), (1, vec![]));
    c.run(4 * LEASE);
    assert_eq!(c.halts, 1);
    c.settled_on(&[1, 2, 3]);
}

#[test]
fn a_broken_connection_that_comes_back_changes_nothing() {
    let mut c = Cluster::new(3, 1, false);
    c.run(3 * LEASE);
    let before = c.highest;
    for (a, b) in [(1, 2), (2, 3), (1, 3)] {
        c.close(NodeId(a), NodeId(b));
        c.run(LEASE / 2);
    }
    c.settled_on(&[1, 2, 3]);
    assert_eq!((c.highest, c.halts), (before, 0));
}

#[test]
fn a_member_that_missed_the_installation_hears_it_again() {
    let mut c = Cluster::new(3, 1, true);
    c.run(LEASE);
    let before = c.highest;
    c.join(NodeId(1), "x");
    let lost =
        |w: &VecDeque<(Time, Vote)>| w.iter().any(|(_, v)| matches!(v, Vote::Install { .. }));
    while !c.wires.get(&(NodeId(1), NodeId(3))).is_some_and(lost) {
        c.run(MS);
    }
    c.close(NodeId(1), NodeId(3));
    c.run(LEASE);
    let seen: Vec<u64> = c.hosts.values().map(|h| h.view.as_ref().unwrap().seq).collect();
    assert!(seen.iter().all(|&s| s == c.highest && s > before), "{seen:?}");
    assert_eq!(c.highest, before + 3, "one view more, not two");
}

#[test]
fn goodbye_needs_no_waiting() {
    let mut c = Cluster::new(3, 1, false);
    c.run(3 * LEASE);
    for to in [1, 2] {
        c.feed(NodeId(to), Event::Vote { from: NodeId(3), vote: Vote::Goodbye });
    }
    c.crash(NodeId(3));
    c.run(20 * MS);
    c.settled_on(&[1, 2]);
}

#[test]
fn members_that_cannot_reach_each_other_are_parted() {
    let mut c = Cluster::new(3, 1, false);
    c.run(3 * LEASE);
    c.up.insert((NodeId(2), NodeId(3)), false);
    c.close(NodeId(2), NodeId(3));
    c.run(40 * LEASE);
    // One of the two stays with the coordinator.
    assert_eq!(c.members(1).len(), 2, "{:?}", c.members(1));
}

#[test]
fn malformed_proposals_are_refused() {
    let mut c = Cluster::new(3, 1, true);
    c.run(LEASE);
    let good = c.hosts[&NodeId(2)].view.clone().unwrap();
    let mut bad = vec![NodeView { seq: u64::MAX, ..good.clone() }];
    bad.push(NodeView { seq: good.seq + 9, members: Vec::new(), spaces: Vec::new() });
    let mut unsorted = good.clone();
    unsorted.members.reverse();
    bad.push(NodeView { seq: good.seq + 9, ..unsorted });
    for view in bad {
        let seq = view.seq;
        let base = good.seq;
        let vote = Vote::Propose { view, base };
        let service = c.hosts.get_mut(&NodeId(2)).unwrap().service.as_mut().unwrap();
        service.handle(c.now, 0, Event::Vote { from: NodeId(1), vote });
        let refuse = Vote::Refuse { seq, why: Refusal::Misfit };
        assert_eq!(service.poll(), Some(Action::Send { to: NodeId(1), vote: refuse }));
    }
}

/// Random faults; `Cluster::check` runs after every event, and when the faults stop all agree.
#[test]
fn whoever_acts_is_in_every_later_view_whatever_breaks() {
    for seed in 0..120 {
        let n = 2 + (seed % 4) as u32;
        let mut c = Cluster::new(n, seed, seed % 3 == 0);
        for _ in 0..60 {
            let id = NodeId(1 + c.rand(u64::from(n)) as u32);
            let other = NodeId(1 + c.rand(u64::from(n)) as u32);
            match c.rand(8) {
                0 => c.crash(id),
                1 if c.hosts[&id].service.is_none() => c.start(id),
                2 => c.hosts.get_mut(&id).unwrap().paused = true,
                3 | 4 => c.resume(id),
                5 if id != other => {
                    c.up.insert(pair(id, other), false);
                    c.close(id, other);
                }
                6 => c.up.values_mut().for_each(|up| *up = true),
                7 if c.hosts[&id].service.is_some() && !c.hosts[&id].paused => c.join(id, "x"),
                _ => {}
            }
            let time = c.rand(LEASE);
            c.run(time);
        }
        c.up.values_mut().for_each(|up| *up = true);
        let ids: Vec<u32> = (1..=n).collect();
        for &i in &ids {
            c.resume(NodeId(i));
            if c.hosts[&NodeId(i)].service.is_none() {
                c.start(NodeId(i));
            }
        }
        c.run(20 * LEASE);
        ids.iter().for_each(|&i| assert_eq!(c.members(i), ids, "seed {seed} node {i}"));
    }
}

#[test]
fn an_agent_is_waited_for_beside_the_lease() {
    let mut c = Cluster::fencing(3, 1, false, FenceKind::Command);
    c.run(4 * LEASE);
    c.settled_on(&[1, 2, 3]);
    c.crash(NodeId(3));
    c.run(LEASE);
    assert!(c.agents.is_empty(), "its lease may still run");
    c.run(9 * LEASE);
    assert_eq!((c.agents.as_slice(), c.members(1)), (&[NodeId(3)][..], vec![1, 2, 3]));
    let waits = c.hosts[&NodeId(1)].service.as_ref().unwrap().standing().waits;
    assert!(waits[0].contains("node 3"), "{waits:?}");
    c.feed(NodeId(1), Event::Fenced { node: NodeId(3), success: false });
    c.run(9 * LEASE);
    assert_eq!((c.agents.len(), c.members(1)), (1, vec![1, 2, 3]));
    c.run(2 * LEASE);
    assert_eq!(c.agents.len(), 2, "again, after a second");
    c.feed(NodeId(1), Event::Fenced { node: NodeId(3), success: true });
    c.run(LEASE);
    assert_eq!((c.members(1), c.members(2)), (vec![1, 2], vec![1, 2]));
    c.start(NodeId(3));
    c.run(4 * LEASE);
    c.settled_on(&[1, 2, 3]);
    assert_eq!(c.agents.len(), 2);
}

#[test]
fn without_fencing_no_lease_is_waited_for() {
    let mut c = Cluster::fencing(3, 1, false, FenceKind::None);
    c.run(LEASE);
    c.settled_on(&[1, 2, 3]);
    c.crash(NodeId(3));
    c.run(LEASE / 2);
    c.settled_on(&[1, 2]);
}
