//! The service in a small world of its own: clocks, links, disks and processes that fail.

use super::*;
use crate::SpaceKeys;
use lockify_core::Policy;
use std::collections::HashMap;

const LEASE: Time = 100 * MS;

/// One node: what outlives its process, and the process.
struct Place {
    service: Option<LogMembership>,
    disk: Option<Vec<u8>>,
    writing: Option<(Time, u64, Vec<u8>)>,
    /// Local time is `offset + rate * t / 1000`.
    rate: u64,
    offset: u64,
    paused: bool,
    disk_full: bool,
    halting: bool,
    file: LogConfig,
    /// The answers to operators.
    answers: Vec<Result<String, String>>,
    halts: Vec<Halt>,
}

/// The world.
struct World {
    now: Time,
    places: BTreeMap<NodeId, Place>,
    /// Connections: which pairs, lower first.
    conns: BTreeSet<(NodeId, NodeId)>,
    /// Directions that carry nothing.
    cut: BTreeSet<(NodeId, NodeId)>,
    wire: VecDeque<(Time, NodeId, NodeId, Vote)>,
    random: Random,
    /// The lives of each view, by number.
    views: HashMap<u64, BTreeMap<NodeId, u64>>,
    lives: BTreeSet<u64>,
    fenced: Vec<NodeId>,
    /// The agents wait for [`World::agents_act`].
    slow_agents: bool,
    /// Whose agents have been started, and for whom.
    agents: Vec<(NodeId, NodeId)>,
}

fn file(node: u32, nodes: u32, voters: u32) -> LogConfig {
    let entry = |n| (NodeId(n), NodeEntry { address: format!("host{n}:1"), voter: n <= voters });
    LogConfig {
        cluster: "c".into(),
        node: NodeId(node),
        weight: 1,
        nodes: (1..=nodes).map(entry).collect(),
        lease: Some(LEASE),
        fence: None,
        shards: 1,
        heartbeat: Some(10 * MS),
        floor: 0,
        seed: 0,
    }
}

impl World {
    fn new(nodes: u32, voters: u32, seed: u64) -> World {
        let mut world = World {
            now: 0,
            places: BTreeMap::new(),
            conns: BTreeSet::new(),
            cut: BTreeSet::new(),
            wire: VecDeque::new(),
            random: Random(seed),
            views: HashMap::new(),
            lives: BTreeSet::new(),
            fenced: Vec::new(),
            slow_agents: false,
            agents: Vec::new(),
        };
        for n in 1..=nodes {
            world.add(file(n, nodes, voters));
            world.start(n);
        }
        world
    }

    fn add(&mut self, file: LogConfig) {
        let place = Place {
            service: None,
            disk: None,
            writing: None,
            rate: 700 + self.random.next() % 600,
            offset: self.random.next() % (1000 * LEASE),
            paused: false,
            disk_full: false,
            halting: false,
            file,
            answers: Vec::new(),
            halts: Vec::new(),
        };
        self.places.insert(place.file.node, place);
    }

    fn place(&mut self, node: u32) -> &mut Place {
        self.places.get_mut(&NodeId(node)).unwrap()
    }

    fn service(&self, node: u32) -> &LogMembership {
        self.places[&NodeId(node)].service.as_ref().unwrap()
    }

    fn local(&self, node: NodeId) -> Time {
        let p = &self.places[&node];
        p.offset + self.now / 1000 * p.rate
    }

    fn start(&mut self, node: u32) {
        let (seed, now) = (self.random.next(), self.local(NodeId(node)));
        let place = self.place(node);
        let config = LogConfig { seed, ..place.file.clone() };
        place.service = Some(LogMembership::new(config, place.disk.as_deref(), now).unwrap());
        (place.paused, place.halting) = (false, false);
    }

    fn joins(&mut self, node: u32, keys: SpaceKeys, life: u64) {
        let join = SpaceJoin { name: "s".into(), life, keys };
        self.event(NodeId(node), Event::Spaces(vec![join]));
    }

    /// The members of the lockspace, and its keys, in the newest view.
    fn sharing(&self) -> (Vec<u32>, SpaceKeys) {
        let views = self.places.values().filter_map(|p| p.service.as_ref()?.view());
        let newest = views.max_by_key(|v| v.seq).unwrap();
        let space = newest.space_view("s").unwrap();
        (space.view.members.iter().map(|m| m.node.0).collect(), space.keys)
    }

    fn kill(&mut self, node: u32) {
        let place = self.place(node);
        (place.service, place.writing) = (None, None);
        self.break_all(NodeId(node));
    }

    fn break_all(&mut self, node: NodeId) {
        let broken: Vec<_> =
            self.conns.iter().copied().filter(|(a, b)| *a == node || *b == node).collect();
        broken.into_iter().for_each(|(a, b)| self.disconnect(a, b));
    }

    fn disconnect(&mut self, a: NodeId, b: NodeId) {
        if self.conns.remove(&(a.min(b), a.max(b))) {
            self.wire.retain(|(_, f, t, _)| (*f, *t) != (a, b) && (*f, *t) != (b, a));
            self.event(a, Event::Disconnected { node: b });
            self.event(b, Event::Disconnected { node: a });
        }
    }

    fn link(&mut self, a: u32, b: u32, up: bool) {
        for way in [(NodeId(a), NodeId(b)), (NodeId(b), NodeId(a))] {
            if up {
                self.cut.remove(&way)
            } else {
                self.cut.insert(way)
            };
        }
    }

    fn event(&mut self, node: NodeId, event: Event) {
        let now = self.local(node);
        let place = self.places.get_mut(&node).unwrap();
        if let Some(service) = place.service.as_mut().filter(|_| !place.paused) {
            service.handle(now, 0, event);
            self.act(node);
        }
    }

    fn act(&mut self, node: NodeId) {
        while let Some(action) =
            self.places.get_mut(&node).and_then(|p| p.service.as_mut()).and_then(Membership::poll)
        {
            match action {
                Action::Send { to, vote } => {
                    if self.conns.contains(&(node.min(to), node.max(to))) {
                        let late = 200_000 + self.random.next() % (3 * MS);
                        let last = self
                            .wire
                            .iter()
                            .filter(|w| (w.1, w.2) == (node, to))
                            .map(|w| w.0)
                            .max();
                        let at = (self.now + late).max(last.unwrap_or(0));
                        self.wire.push_back((at, node, to, vote));
                    }
                }
                Action::Install(view) => self.install(view),
                Action::Halt(why) => {
                    let place = self.places.get_mut(&node).unwrap();
                    place.halting = true;
                    place.halts.push(why);
                }
                Action::Disconnect { node: peer } => self.disconnect(node, peer),
                Action::Reconnect => {
                    let life = self.places[&node].service.as_ref().unwrap().life.unwrap();
                    assert!(self.lives.insert(life), "life {life} was handed out twice");
                    self.break_all(node);
                }
                Action::Persist { number, image } => {
                    let at = self.now + 1 + self.random.next() % (4 * MS);
                    self.places.get_mut(&node).unwrap().writing = Some((at, number, image));
                }
                Action::Answer { result, .. } => {
                    self.places.get_mut(&node).unwrap().answers.push(result);
                }
                Action::Fence { node: whom, .. } if self.slow_agents => {
                    self.agents.push((node, whom));
                }
                Action::Fence { node: whom, .. } => {
                    self.fenced.push(whom);
                    self.kill(whom.0);
                    self.event(node, Event::Fenced { node: whom, success: true });
                }
                Action::Nodes(_) | Action::Cast(_) => {}
            }
        }
    }

    /// The agents switch machines off and on again.
    fn agents_act(&mut self) {
        for (by, whom) in std::mem::take(&mut self.agents) {
            self.fenced.push(whom);
            self.kill(whom.0);
            self.start(whom.0);
            self.event(by, Event::Fenced { node: whom, success: true });
        }
    }

    fn install(&mut self, view: NodeView) {
        let lives: BTreeMap<NodeId, u64> =
            view.members.iter().map(|m| (m.node, m.incarnation)).collect();
        let known = self.views.entry(view.seq).or_insert_with(|| lives.clone());
        assert_eq!(*known, lives, "two views have the number {}", view.seq);
    }

    /// A millisecond passes.
    fn step(&mut self) {
        self.now += MS;
        let all: Vec<NodeId> = self.places.keys().copied().collect();
        for node in &all {
            let place = self.places.get_mut(node).unwrap();
            if std::mem::take(&mut place.halting) {
                let now = self.local(*node);
                let peers: Vec<NodeId> = all.iter().copied().filter(|p| p != node).collect();
                for peer in peers {
                    if self.conns.contains(&(peer.min(*node), peer.max(*node)))
                        && !self.cut.contains(&(*node, peer))
                    {
                        self.event(peer, Event::Vote { from: *node, vote: Vote::Goodbye });
                    }
                }
                self.break_all(*node);
                let place = self.places.get_mut(node).unwrap();
                if let Some(service) = &mut place.service {
                    service.handle(now, 0, Event::Reborn { life: 0 });
                    self.act(*node);
                }
            }
            self.end_write(*node);
        }
        self.connect(&all);
        // Messages that a broken link holds back arrive when it works again, unless the connection
        // is gone.
        let arrives = |w: &World| {
            let held = |f: &NodeId, t: &NodeId| w.cut.contains(&(*f, *t)) || w.places[t].paused;
            w.wire.iter().position(|(at, f, t, _)| *at <= w.now && !held(f, t))
        };
        while let Some(at) = arrives(self) {
            let (_, from, to, vote) = self.wire.remove(at).unwrap();
            self.event(to, Event::Vote { from, vote });
        }
        for node in &all {
            let due = self.places[node]
                .service
                .as_ref()
                .is_some_and(|s| s.next_timer() <= self.local(*node));
            if due {
                self.event(*node, Event::Tick);
            }
        }
        self.check();
    }

    fn end_write(&mut self, node: NodeId) {
        let now = self.now;
        let place = self.places.get_mut(&node).unwrap();
        if !place.paused && place.writing.as_ref().is_some_and(|(at, ..)| *at <= now) {
            let (_, number, image) = place.writing.take().unwrap();
            let success = !place.disk_full;
            if success {
                place.disk = Some(image);
            }
            self.event(node, Event::Persisted { number, success });
        }
    }

    fn connect(&mut self, all: &[NodeId]) {
        for (i, a) in all.iter().enumerate() {
            for b in &all[i + 1..] {
                let both = !self.cut.contains(&(*a, *b)) && !self.cut.contains(&(*b, *a));
                let id = |n: &NodeId| {
                    let p = &self.places[n];
                    p.service.as_ref().filter(|_| !p.paused && !p.halting).map(Membership::identity)
                };
                if let (true, false, Some(x), Some(y)) =
                    (both, self.conns.contains(&(*a, *b)), id(a), id(b))
                {
                    self.conns.insert((*a, *b));
                    self.event(*a, Event::Connected { node: *b, life: y, sole: false });
                    // The first may have begun a new life just now.
                    if self.conns.contains(&(*a, *b)) {
                        self.event(*b, Event::Connected { node: *a, life: x, sole: false });
                    }
                }
            }
        }
    }

    /// The acting nodes, with their views and lives.
    fn acting(&self) -> Vec<(NodeId, u64, u64)> {
        let acts = |(node, p): (&NodeId, &Place)| {
            let service = p.service.as_ref()?;
            let view = service.view()?;
            let holds = service.lease_end().is_none_or(|end| self.local(*node) < end);
            holds.then_some((*node, service.life?, view.seq))
        };
        self.places.iter().filter_map(acts).collect()
    }

    /// No life acts that a newer view, in which somebody acts, is without.
    fn check(&self) {
        let acting = self.acting();
        for (node, life, seq) in &acting {
            for (other, _, newer) in acting.iter().filter(|(_, _, s)| s > seq) {
                let member = self.views[newer].get(node) == Some(life);
                assert!(
                    member,
                    "at {}: node {node} (life {life}) acts in view {seq} beside node {other} in {newer}",
                    self.now
                );
            }
        }
    }

    fn run(&mut self, time: Time) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    /// Runs until these nodes act in one view of exactly them.
    fn settle(&mut self, nodes: &[u32], most: Time) {
        let end = self.now + most;
        let wanted: Vec<u32> = nodes.to_vec();
        loop {
            let acting = self.acting();
            let same = acting.windows(2).all(|w| w[0].2 == w[1].2);
            let who: Vec<u32> = acting.iter().map(|a| a.0.0).collect();
            let members = acting.first().map_or(0, |a| self.views[&a.2].len());
            if same && who == wanted && members == wanted.len() {
                return;
            }
            assert!(self.now < end, "{who:?} act, not {wanted:?}: {:#?}", self.told());
            self.step();
        }
    }

    fn told(&self) -> Vec<(NodeId, Vec<String>, String)> {
        let told = |(n, p): (&NodeId, &Place)| {
            let s = p.service.as_ref()?;
            Some((
                *n,
                s.standing().waits,
                format!(
                    "{s:?} {:?} life {:?} disk {:x} voters {:x?} leads {:?}",
                    s.installed.as_ref().map(|v| v.seq),
                    s.life,
                    s.disk,
                    s.state.voters,
                    s.agreement.as_ref().map(|a| {
                        let r = a.records();
                        (
                            a.leads(),
                            a.leader(),
                            r.promise,
                            r.accepted_round,
                            s.state.voters.keys().map(|n| s.is_trusted(*n)).collect::<Vec<_>>(),
                            r.log.len(),
                            r.decided,
                            r.stopsign.is_some(),
                            a.taken(),
                        )
                    })
                ),
            ))
        };
        self.places.iter().filter_map(told).collect()
    }

    fn seq(&self) -> u64 {
        self.acting().iter().map(|a| a.2).max().unwrap_or(0)
    }

    fn ask(&mut self, node: u32, request: Request) -> Result<String, String> {
        self.event(NodeId(node), Event::Request { id: 1, request });
        let end = self.now + 100 * LEASE;
        while self.place(node).answers.is_empty() {
            assert!(self.now < end, "no answer: {:#?}", self.told());
            self.step();
        }
        let answer = self.place(node).answers.pop().unwrap();
        if answer.is_err() {
            eprintln!("{:#?}", self.told());
        }
        answer
    }
}

#[test]
fn three_nodes_begin_together_and_not_before_all_are_there() {
    let mut w = World::new(3, 3, 1);
    w.kill(3);
    w.place(3).disk = None;
    w.run(10 * LEASE);
    assert_eq!(w.acting(), []);
    assert!(w.service(1).standing().waits.iter().any(|t| t.contains("node 3")), "{:?}", w.told());
    w.start(3);
    w.settle(&[1, 2, 3], 10 * LEASE);
}

#[test]
fn a_lone_node_acts_at_once_and_its_views_grow_with_each_start() {
    let mut w = World::new(1, 1, 1);
    let mut last = 0;
    for _ in 0..5 {
        w.settle(&[1], 10 * LEASE);
        assert!(w.seq() > last);
        last = w.seq();
        w.kill(1);
        w.start(1);
    }
}

#[test]
fn a_dead_node_is_left_behind_and_comes_back_as_another_life() {
    let mut w = World::new(3, 3, 2);
    w.settle(&[1, 2, 3], 10 * LEASE);
    let before = w.seq();
    w.kill(2);
    w.settle(&[1, 3], 8 * LEASE);
    assert!(w.seq() > before);
    w.start(2);
    w.settle(&[1, 2, 3], 10 * LEASE);
}

#[test]
fn a_restart_of_all_in_any_order_goes_on_above() {
    let mut w = World::new(3, 3, 3);
    w.settle(&[1, 2, 3], 10 * LEASE);
    let before = w.seq();
    (1..=3).for_each(|n| w.kill(n));
    w.run(3 * LEASE);
    for n in [3, 1, 2] {
        w.start(n);
        w.run(LEASE);
    }
    w.settle(&[1, 2, 3], 20 * LEASE);
    assert!(w.seq() > before);
}

#[test]
fn one_broken_link_leaves_one_out_within_four_leases_and_then_nothing_changes() {
    for seed in 0..8 {
        for (a, b) in [(1, 2), (1, 3), (2, 3)] {
            let mut w = World::new(3, 3, seed);
            w.settle(&[1, 2, 3], 10 * LEASE);
            w.link(a, b, false);
            let left: Vec<u32> = (1..=3).filter(|n| *n != a.max(b)).collect();
            w.settle(&left, 6 * LEASE);
            let seq = w.seq();
            w.run(40 * LEASE);
            assert_eq!(w.seq(), seq, "the view stays");
            assert_eq!(w.acting().len(), 2);
            w.link(a, b, true);
            w.settle(&[1, 2, 3], 12 * LEASE);
        }
    }
}

#[test]
fn a_link_broken_one_way_is_as_one_that_is_broken() {
    let mut w = World::new(3, 3, 5);
    w.settle(&[1, 2, 3], 10 * LEASE);
    w.cut.insert((NodeId(2), NodeId(3)));
    w.settle(&[1, 2], 6 * LEASE);
    let seq = w.seq();
    w.run(30 * LEASE);
    assert_eq!(w.seq(), seq);
}

#[test]
fn a_flapping_link_costs_a_few_views_not_one_each_time() {
    // For how long it is broken and works, in tenths of a lease; the leader is one of its ends or neither.
    for (broken, works) in [(15, 10), (11, 18), (25, 15), (60, 12)] {
        for seed in 0..12 {
            let mut w = World::new(3, 3, seed);
            w.settle(&[1, 2, 3], 10 * LEASE);
            let before = w.seq();
            for _ in 0..40 {
                w.link(1, 2, false);
                w.run(broken * LEASE / 10);
                w.link(1, 2, true);
                w.run(works * LEASE / 10);
            }
            let views = w.seq() - before;
            assert!(views < 16, "{views} views with seed {seed}, broken {broken}, works {works}");
        }
    }
}

#[test]
fn a_bridge_and_a_ring_of_five_have_one_view_each_that_stays() {
    for (broken, left) in [
        (vec![(1, 4), (1, 5), (2, 4), (2, 5)], vec![1, 2, 3]),
        (vec![(1, 3), (1, 4), (2, 4), (2, 5), (3, 5)], vec![1, 2]),
    ] {
        let mut w = World::new(5, 5, 7);
        w.settle(&[1, 2, 3, 4, 5], 10 * LEASE);
        let lives: Vec<_> = left.iter().map(|n| w.service(*n).life).collect();
        broken.iter().for_each(|(a, b)| w.link(*a, *b, false));
        w.settle(&left, 8 * LEASE);
        assert_eq!(
            left.iter().map(|n| w.service(*n).life).collect::<Vec<_>>(),
            lives,
            "they lose nothing"
        );
        let seq = w.seq();
        w.run(30 * LEASE);
        assert_eq!(w.seq(), seq);
        broken.iter().for_each(|(a, b)| w.link(*a, *b, true));
        w.settle(&[1, 2, 3, 4, 5], 80 * LEASE);
    }
}

#[test]
fn a_minority_that_lost_its_disk_votes_again_and_a_majority_waits_for_the_operator() {
    let mut w = World::new(3, 3, 8);
    w.settle(&[1, 2, 3], 10 * LEASE);
    w.kill(3);
    w.place(3).disk = None;
    w.start(3);
    w.settle(&[1, 2, 3], 20 * LEASE);
    w.run(5 * LEASE);
    let before = w.seq();
    // Its new disk counts: with it, either of the others may go.
    w.kill(1);
    w.settle(&[2, 3], 20 * LEASE);
    w.start(1);
    w.settle(&[1, 2, 3], 20 * LEASE);
    (1..=3).for_each(|n| w.kill(n));
    for n in [1, 2] {
        w.place(n).disk = None;
    }
    (1..=3).for_each(|n| w.start(n));
    w.run(50 * LEASE);
    assert_eq!(w.acting(), [], "{:#?}", w.told());
    w.ask(3, Request::Recover).unwrap();
    w.settle(&[1, 2, 3], 60 * LEASE);
    assert!(w.seq() >> state::ERA_SHIFT > before >> state::ERA_SHIFT, "a new era");
    w.run(10 * LEASE);
    w.kill(3);
    w.settle(&[1, 2], 20 * LEASE);
}

#[test]
fn a_disk_put_back_to_an_older_copy_is_noticed() {
    let mut led = 0;
    for seed in 0..12 {
        let mut w = World::new(3, 3, seed);
        w.settle(&[1, 2, 3], 10 * LEASE);
        let old = w.place(3).disk.clone();
        for _ in 0..3 {
            w.kill(2);
            w.settle(&[1, 3], 10 * LEASE);
            w.start(2);
            w.settle(&[1, 2, 3], 20 * LEASE);
        }
        led += u32::from(w.service(3).agreement.as_ref().is_some_and(Agreement::leads));
        let (disk, before) = (w.service(3).disk, w.seq());
        w.kill(3);
        w.place(3).disk = old;
        w.start(3);
        w.settle(&[1, 2, 3], 20 * LEASE);
        assert_ne!(w.service(3).disk, disk, "it votes under another number, seed {seed}");
        assert!(w.seq() > before);
    }
    // The others learn in different ways of a leader's records and of a follower's.
    assert!((1..12).contains(&led), "{led}");
}

#[test]
fn a_full_disk_keeps_the_lease_and_loses_nothing() {
    let mut w = World::new(3, 3, 10);
    w.settle(&[1, 2, 3], 10 * LEASE);
    w.place(2).disk_full = true;
    w.kill(3);
    w.run(20 * LEASE);
    // Two voters are a majority only if both can write.
    w.place(2).disk_full = false;
    w.settle(&[1, 2], 30 * LEASE);
}

#[test]
fn a_node_with_another_lease_in_its_file_does_not_join_and_says_so() {
    let mut w = World::new(3, 3, 11);
    w.settle(&[1, 2, 3], 10 * LEASE);
    w.kill(3);
    w.place(3).file.lease = Some(4 * LEASE);
    w.start(3);
    w.settle(&[1, 2], 10 * LEASE);
    w.run(10 * LEASE);
    let waits = w.service(3).standing().waits;
    assert!(
        waits.iter().any(|t| t.contains("lease = 400 ms") && t.contains("100 ms")),
        "{waits:?}"
    );
    let changed = w.ask(1, Request::Lease(4 * LEASE)).unwrap();
    assert!(changed.contains("400 ms"), "{changed}");
    w.settle(&[1, 2, 3], 40 * LEASE);
    assert_eq!(w.service(1).state.lease_to_hold(), 4 * LEASE);
}

#[test]
fn a_lockspace_keeps_its_keys_while_it_has_a_member() {
    let keys = |lvb_len| SpaceKeys { policy: Policy::Home, lvb_len };
    let mut world = World::new(3, 3, 21);
    world.settle(&[1, 2, 3], 8 * LEASE);
    // The first one counts, however low the others' numbers are.
    world.joins(3, keys(32), 1);
    world.run(LEASE);
    world.joins(1, keys(64), 1);
    world.joins(2, keys(32), 1);
    world.run(LEASE);
    assert_eq!(world.sharing(), (vec![2, 3], keys(32)));
    // Its going leaves the keys to those who stay.
    world.kill(3);
    world.run(8 * LEASE);
    assert_eq!(world.sharing(), (vec![2], keys(32)));
    // Everybody else has left.
    world.event(NodeId(2), Event::Spaces(Vec::new()));
    world.run(LEASE);
    assert_eq!(world.sharing(), (vec![1], keys(64)));
}

#[test]
fn a_view_that_gives_a_lockspace_other_keys_is_not_taken() {
    let mut world = World::new(1, 1, 22);
    world.joins(1, SpaceKeys { policy: Policy::Home, lvb_len: 32 }, 1);
    world.settle(&[1], LEASE);
    let mut state = world.service(1).state.clone();
    let mut next = state.view.clone();
    let (base, members) = (next.seq, next.members.clone());
    next.spaces[0].keys.lvb_len = 64;
    let command = Command::View {
        base,
        seq: base + 1,
        members: members.clone(),
        spaces: next.spaces.clone(),
    };
    assert!(!state.apply(&command));
    next.spaces[0].view.members[0].incarnation += 1;
    assert!(state.apply(&Command::View { base, seq: base + 1, members, spaces: next.spaces }));
}

#[test]
fn a_state_with_numbers_that_no_cluster_has_is_not_taken() {
    let mut world = World::new(2, 2, 24);
    world.settle(&[1, 2], 8 * LEASE);
    let known = world.service(1).state.clone();
    let spoil: [fn(&mut ClusterState); 8] = [
        |s| s.keys.as_mut().unwrap().lease = Time::MAX,
        |s| s.next_lease = Some(0),
        |s| s.last_life = u64::MAX,
        |s| s.lives.values_mut().for_each(|l| l.number = u64::MAX),
        |s| s.over = BTreeMap::from([(NodeId(1), u64::MAX)]),
        |s| s.config.era = u64::MAX,
        |s| s.view.seq = u64::MAX,
        |s| s.voters = (0..100).map(|n| (NodeId(n), 1)).collect(),
    ];
    for (at, spoil) in spoil.into_iter().enumerate() {
        let mut state =
            ClusterState { config: ConfigId { number: 9, ..known.config }, ..known.clone() };
        spoil(&mut state);
        let word = LogWord::Truth { state: Box::new(state), index: 0 };
        world.event(NodeId(1), Event::Vote { from: NodeId(2), vote: Vote::Log(word) });
        assert_eq!(world.service(1).state, known, "spoilt in way {at}");
        world.run(LEASE);
    }
    let word = LogWord::Propose(Box::new(Command::ChangeLease { lease: Time::MAX }));
    world.event(NodeId(1), Event::Vote { from: NodeId(2), vote: Vote::Log(word) });
    world.run(4 * LEASE);
    assert_eq!(world.service(1).state.next_lease, None);
    world.settle(&[1, 2], 8 * LEASE);
}

#[test]
fn views_are_numbered_above_those_of_other_shards() {
    let mut world = World::new(1, 1, 23);
    world.settle(&[1], LEASE);
    let (floor, disk) = (world.seq() + 100, world.places[&NodeId(1)].disk.clone());
    assert_eq!(highest_view(disk.as_deref().unwrap()), Ok(world.seq()));
    world.kill(1);
    world.place(1).file.floor = floor;
    world.start(1);
    world.settle(&[1], LEASE);
    assert!(world.seq() > floor, "{} after {floor}", world.seq());
}

#[test]
fn nodes_with_different_first_files_do_not_begin_and_say_why() {
    let mut w = World::new(2, 2, 12);
    w.kill(2);
    w.place(2).disk = None;
    w.place(2).file.fence = Some(FenceKind::Command);
    w.start(2);
    w.run(10 * LEASE);
    assert_eq!(w.acting(), []);
    let waits = w.service(1).standing().waits;
    assert!(waits.iter().any(|t| t.contains("fence = \"command\"")), "{waits:?}");
}

#[test]
fn a_cluster_grows_and_shrinks_while_it_runs() {
    let mut w = World::new(1, 1, 13);
    w.settle(&[1], 10 * LEASE);
    for n in 2..=5 {
        let entry = NodeEntry { address: format!("host{n}:1"), voter: true };
        w.ask(1, Request::Join { node: NodeId(n), entry }).unwrap();
        w.add(file(n, n, n));
        w.start(n);
        let all: Vec<u32> = (1..=n).collect();
        w.settle(&all, 20 * LEASE);
    }
    w.run(20 * LEASE);
    assert_eq!(w.service(1).state.voters.len(), 5);
    // The first three go; the last two are all that is left.
    for n in 1..=3 {
        w.ask(5, Request::Leave { node: NodeId(n) }).unwrap();
        w.kill(n);
        w.run(20 * LEASE);
    }
    w.settle(&[4, 5], 20 * LEASE);
    assert_eq!(w.service(5).state.voters.len(), 2);
}

#[test]
fn learners_are_members_and_do_not_vote() {
    let mut w = World::new(9, 7, 14);
    w.settle(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 20 * LEASE);
    assert_eq!(w.service(9).state.voters.len(), 7);
    w.kill(8);
    w.settle(&[1, 2, 3, 4, 5, 6, 7, 9], 10 * LEASE);
    w.start(8);
    w.settle(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 20 * LEASE);
}

/// The configuration that a node's disk knows; `None`: it knows of no cluster.
fn written(w: &World, node: u32) -> Option<ConfigId> {
    let image = Image::decode(w.places[&NodeId(node)].disk.as_deref()?).unwrap();
    image.base.map(|state| state.config)
}

/// The power fails while the cluster begins, and only disks of nodes without a vote have got so far.
#[test]
fn voters_learn_of_the_beginning_from_nodes_that_do_not_vote() {
    for seed in 0..8 {
        let mut w = World::new(5, 3, seed);
        while written(&w, 5).is_none() {
            w.step();
            // Their disks take their numbers, and nothing after that.
            for n in 1..=4 {
                w.place(n).disk_full = w.place(n).disk.is_some();
            }
        }
        (1..=5).for_each(|n| w.kill(n));
        assert!((1..=4).all(|n| w.place(n).disk.is_some() && written(&w, n).is_none()));
        for n in 1..=5 {
            w.place(n).disk_full = false;
            w.start(n);
        }
        w.settle(&[1, 2, 3, 4, 5], 20 * LEASE);
    }
}

#[test]
fn the_power_may_fail_at_any_time_while_a_cluster_begins() {
    for seed in 0..200 {
        let voters = 1 + (seed % 5) as u32;
        let mut w = World::new(5, voters, seed);
        for _ in 0..3 {
            let time = w.random.next() % (20 * MS);
            w.run(time);
            (1..=5).for_each(|n| w.kill(n));
            (1..=5).for_each(|n| w.start(n));
        }
        w.settle(&[1, 2, 3, 4, 5], 20 * LEASE);
    }
}

/// One of two voters is removed. It knows that this is decided, and stops before the other hears it.
#[test]
fn the_last_voter_learns_from_the_removed_one_that_it_is_the_last() {
    let mut stopped = 0;
    for seed in 0..16 {
        let mut w = World::new(2, 2, seed);
        w.settle(&[1, 2], 10 * LEASE);
        let before = w.service(1).state.config;
        let request = Request::Leave { node: NodeId(1) };
        w.event(NodeId(1), Event::Request { id: 1, request });
        while [1, 2].iter().all(|n| w.service(*n).state.config == before) {
            w.step();
        }
        // In some seeds the one that stays leads, and is the first to know.
        if w.service(2).state.config > before {
            continue;
        }
        w.link(1, 2, false);
        while written(&w, 1) == Some(before) {
            w.step();
        }
        w.kill(1);
        assert_eq!(written(&w, 2), Some(before));
        w.link(1, 2, true);
        w.start(1);
        w.settle(&[2], 20 * LEASE);
        stopped += 1;
    }
    assert!(stopped > 0);
}

#[test]
fn an_agent_has_to_succeed_where_the_cluster_asks_for_one() {
    let mut w = World::new(3, 3, 15);
    for n in 1..=3 {
        w.kill(n);
        w.place(n).disk = None;
        w.place(n).file.fence = Some(FenceKind::Command);
        w.start(n);
    }
    w.settle(&[1, 2, 3], 10 * LEASE);
    w.place(3).paused = true;
    w.settle(&[1, 2], 12 * LEASE);
    assert_eq!(w.fenced, [NodeId(3)]);
}

#[test]
fn a_long_log_begins_another_configuration() {
    let mut w = World::new(3, 3, 16);
    w.settle(&[1, 2, 3], 10 * LEASE);
    let config = w.service(1).state.config;
    for i in 0..agree::LONG {
        let fence = if i % 2 == 0 { FenceKind::None } else { FenceKind::Lease };
        w.ask(1, Request::Fence(fence)).unwrap();
    }
    w.run(20 * LEASE);
    assert!(w.service(1).state.config > config);
    w.settle(&[1, 2, 3], 10 * LEASE);
}

/// Everything at random.
fn soak(seed: u64) {
    let nodes = 3 + (seed % 3) as u32;
    let mut w = World::new(nodes, nodes, seed);
    let mut copies: HashMap<u32, Vec<u8>> = HashMap::new();
    for _ in 0..60 {
        let pick = |w: &mut World| 1 + (w.random.next() % u64::from(nodes)) as u32;
        let (a, b) = (pick(&mut w), pick(&mut w));
        match w.random.next() % 16 {
            0 | 1 => w.kill(a),
            2..=4 if w.place(a).service.is_none() => w.start(a),
            5 if a != b => w.link(a, b, false),
            6 if a != b => {
                w.cut.insert((NodeId(a), NodeId(b)));
            }
            7..=9 => w.cut.clear(),
            10 => w.place(a).paused = true,
            11 => (1..=nodes).for_each(|n| w.place(n).paused = false),
            12 => {
                let full = w.place(a).disk_full;
                w.place(a).disk_full = !full;
            }
            13 if w.place(a).disk.is_some() => {
                let copy = w.place(a).disk.clone().unwrap();
                copies.insert(a, copy);
            }
            14 => {
                (1..=nodes).for_each(|n| w.kill(n));
                (1..=nodes).for_each(|n| w.start(n));
            }
            // One disk at a time, as the guarantee says.
            15 if w.acting().len() == nodes as usize => {
                w.kill(a);
                w.place(a).disk = copies.remove(&a);
                w.start(a);
                w.run(10 * LEASE);
            }
            _ => {}
        }
        let time = w.random.next() % (4 * LEASE);
        w.run(time);
    }
    w.cut.clear();
    for n in 1..=nodes {
        (w.place(n).paused, w.place(n).disk_full) = (false, false);
        if w.place(n).service.is_none() {
            w.start(n);
        }
    }
    let all: Vec<u32> = (1..=nodes).collect();
    w.settle(&all, 100 * LEASE);
}

#[test]
fn random_faults_leave_one_view_and_no_two_lives_beside_each_other() {
    let seeds = std::env::var("SOAK").ok().and_then(|s| s.parse().ok()).unwrap_or(40);
    let from = std::env::var("FROM").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    for seed in from..seeds {
        eprintln!("seed {seed}");
        soak(seed);
    }
}

/// A report of a life of node 3, which says that it reaches nobody.
fn report_of_3(visit: u64, life: Option<u64>, number: u64) -> Report {
    Report {
        node: NodeId(3),
        visit,
        number,
        life,
        asks: life.is_none(),
        weight: 1,
        spaces: Vec::new(),
        reach: BTreeMap::new(),
        proofs: BTreeMap::new(),
        config: ConfigId::default(),
        keys: 0,
    }
}

#[test]
fn a_report_of_an_ended_life_that_another_node_repeats_replaces_no_newer_one() {
    let mut service = LogMembership::new(file(1, 3, 3), None, 0).unwrap();
    let life = |s: &LogMembership| s.reports[&NodeId(3)].report.life;
    service.told(NodeId(2), report_of_3(20, Some(13), 44));
    // Its sender has not heard of the life 13 yet, and this node began after the life 4.
    service.told(NodeId(2), report_of_3(10, Some(4), 32));
    assert_eq!(life(&service), Some(13));
    service.told(NodeId(2), report_of_3(20, Some(13), 45));
    assert_eq!(service.reports[&NodeId(3)].report.number, 45);
    // Node 3 speaks for itself.
    service.told(NodeId(3), report_of_3(30, None, 1));
    service.told(NodeId(2), report_of_3(20, Some(13), 46));
    assert_eq!(life(&service), None);
}

#[test]
fn a_node_repeats_its_report_to_those_who_took_an_older_one_for_it() {
    let mut w = World::new(3, 3, 1);
    w.settle(&[1, 2, 3], 100 * LEASE);
    let newest = w.service(3).reports[&NodeId(3)].report.clone();
    let stale = Report { visit: newest.visit ^ 1, ..newest.clone() };
    let other = w.place(1).service.as_mut().unwrap();
    other
        .reports
        .insert(NodeId(3), Known { report: stale, former: VecDeque::from([newest.visit]) });
    w.run(4 * LEASE);
    assert_eq!(w.service(1).reports[&NodeId(3)].report, newest);
}

#[test]
fn messages_of_the_consensus_end_with_the_connection_that_brought_them() {
    let mut w = World::new(3, 3, 1);
    w.settle(&[1, 2, 3], 100 * LEASE);
    let now = w.local(NodeId(1));
    let service = w.place(1).service.as_mut().unwrap();
    let id = service.peers[&NodeId(2)].connected.unwrap();
    let message = Paxos::BLE(omnipaxos::messages::ballot_leader_election::BLEMessage {
        from: agree::pid(NodeId(2)),
        to: agree::pid(NodeId(1)),
        msg: omnipaxos::messages::ballot_leader_election::HeartbeatMsg::Request(
            omnipaxos::messages::ballot_leader_election::HeartbeatRequest { round: 1 },
        ),
    });
    service.disk_writes.inbox.push_back((NodeId(2), message.clone()));
    service.disk_writes.inbox.push_back((NodeId(3), message));
    service.on_connected(now, NodeId(2), id, true);
    let left: Vec<NodeId> = service.disk_writes.inbox.iter().map(|(from, _)| *from).collect();
    assert_eq!(left, [NodeId(3)]);
}

#[test]
fn a_message_of_the_consensus_that_no_log_can_hold_is_dropped() {
    use omnipaxos::messages::sequence_paxos::{
        AcceptDecide, AcceptSync, Accepted, Decide, PaxosMessage, PaxosMsg, Promise,
    };
    use omnipaxos::util::LogSync;

    let mut w = World::new(3, 3, 1);
    w.settle(&[1, 2, 3], 100 * LEASE);
    for node in [1, 2, 3] {
        let other = if node == 1 { 2 } else { 1 };
        let service = w.place(node).service.as_mut().unwrap();
        let mut n = service.witness().promise;
        let agreement = service.agreement.as_mut().unwrap();
        let decided = agreement.records().decided;
        let far = usize::MAX;
        for term in 0..2 {
            n.n += term;
            let sync = |sync_idx| LogSync {
                decided_snapshot: None,
                suffix: Vec::new(),
                sync_idx,
                stopsign: None,
            };
            let messages = [
                PaxosMsg::Accepted(Accepted { n, accepted_idx: far }),
                PaxosMsg::Decide(Decide { n, seq_num: Default::default(), decided_idx: far }),
                PaxosMsg::AcceptDecide(AcceptDecide {
                    n,
                    seq_num: Default::default(),
                    decided_idx: far,
                    entries: Vec::new(),
                }),
                PaxosMsg::AcceptSync(AcceptSync {
                    n,
                    seq_num: Default::default(),
                    decided_idx: 0,
                    log_sync: sync(0),
                }),
                PaxosMsg::AcceptSync(AcceptSync {
                    n,
                    seq_num: Default::default(),
                    decided_idx: far,
                    log_sync: sync(far),
                }),
                PaxosMsg::Promise(Promise {
                    n,
                    n_accepted: n,
                    decided_idx: far,
                    accepted_idx: far,
                    log_sync: Some(sync(far)),
                }),
            ];
            for msg in messages {
                let (from, to) = (agree::pid(NodeId(other)), agree::pid(NodeId(node)));
                agreement.handle(Paxos::SequencePaxos(PaxosMessage { from, to, msg }));
            }
        }
        assert!(agreement.records().decided >= decided);
        assert!(agreement.take_decided().is_empty());
    }
    w.settle(&[1, 2, 3], 100 * LEASE);
}

/// Three nodes with agents that wait, of which the third was cut off and is back.
fn cut_off_where_agents_are_slow(seed: u64) -> World {
    let mut w = World::new(3, 3, seed);
    for n in 1..=3 {
        w.kill(n);
        (w.place(n).file.fence, w.place(n).disk) = (Some(FenceKind::Command), None);
    }
    (1..=3).for_each(|n| w.start(n));
    w.slow_agents = true;
    w.settle(&[1, 2, 3], 20 * LEASE);
    for up in [false, true] {
        w.link(1, 3, up);
        w.link(2, 3, up);
        w.run(8 * LEASE);
    }
    // A leader that has come since starts another one.
    assert!((1..=2).contains(&w.agents.len()), "seed {seed}");
    w
}

#[test]
fn a_node_gets_no_life_while_an_agent_is_about_to_end_it() {
    for seed in 0..8 {
        let mut w = cut_off_where_agents_are_slow(seed);
        assert_eq!(w.service(3).life, None, "seed {seed}");
        // Who leads after that may start another one.
        for _ in 0..8 {
            w.agents_act();
            w.run(LEASE);
        }
        w.settle(&[1, 2, 3], 20 * LEASE);
        w.run(20 * LEASE);
        assert!(w.agents.is_empty() && w.service(3).standing().waits.is_empty(), "seed {seed}");
    }
}

#[test]
fn an_agent_that_succeeds_late_has_ended_the_lives_that_came_before_it_was_started() {
    let node = NodeId(3);
    let mut fences = Fences::default();
    fences.set(&BTreeMap::from([(node, 4)]), 0);
    assert_eq!(fences.start(0, |_| 3), [node]);
    fences.ended(node, false, 1);
    let again = fences.next(1);
    assert_eq!(fences.start(again, |_| 7), [node]);
    // A life that came after the start may have begun when the agent was done.
    fences.set(&BTreeMap::from([(node, 4)]), again + 1);
    fences.ended(node, true, again + 2);
    assert_eq!(fences.reports_due(again + 2, 1), [(node, 8)]);
}
