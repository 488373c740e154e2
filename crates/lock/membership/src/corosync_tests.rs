//! Nodes over an imitation of corosync: rings, groups with one order, quorum by majority. The real
//! one is in the daemon's tests; here, every step can be looked at.

use super::memory::FLOOR;
use super::*;
use crate::SpaceKeys;
use lockify_core::Policy;

const LEASE: Time = 16_000;

fn join(name: &str, life: u64) -> SpaceJoin {
    SpaceJoin { name: name.into(), life, keys: SpaceKeys { policy: Policy::Home, lvb_len: 32 } }
}

struct Host {
    sm: CorosyncMembership,
    life: u64,
    pid: u32,
    /// It is stopped: nothing reaches it, and it does nothing.
    paused: bool,
    /// It is not in the group: it becomes another program.
    absent: bool,
    inbox: VecDeque<Event>,
    view: Option<NodeView>,
    halts: Vec<Halt>,
    lease_end: Option<Time>,
}

/// How a node's disk takes what is written to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Health {
    #[default]
    Good,
    /// It refuses everything.
    Full,
    /// It answers when it is good again.
    Slow,
}

#[derive(Default)]
struct Disk {
    image: Option<Vec<u8>>,
    health: Health,
    /// A write that it has not done.
    waits: Option<(u64, Vec<u8>)>,
}

struct World {
    now: Time,
    wall: u64,
    /// By how many seconds a node's clock is wrong.
    clocks: BTreeMap<NodeId, i64>,
    disks: BTreeMap<NodeId, Disk>,
    /// The largest life of each node that there was.
    used: BTreeMap<NodeId, u64>,
    /// A ring with fewer than half of the nodes is quorate, too.
    minorities: bool,
    /// Beats that do not arrive, from and to.
    deaf: BTreeSet<(NodeId, NodeId)>,
    refusals: usize,
    /// The numbers that other shards have used.
    floor: u64,
    answers: Vec<Result<String, String>>,
    fence: FenceKind,
    size: u32,
    hosts: BTreeMap<NodeId, Host>,
    /// The groups of connected nodes: rings of corosync, also of connections.
    rings: Vec<BTreeSet<NodeId>>,
    /// Connections, lower node first, and pairs that cannot have any.
    conns: BTreeSet<(NodeId, NodeId)>,
    cut: BTreeSet<(NodeId, NodeId)>,
    ring_seq: u64,
    pids: u32,
    agents: Vec<NodeId>,
    /// Every view that was installed, by number.
    views: BTreeMap<u64, NodeView>,
}

impl World {
    fn new(size: u32, fence: FenceKind) -> World {
        let mut w = World::empty(size, fence);
        (1..=size).for_each(|n| w.start(n));
        w.pass(4 * LEASE);
        w
    }

    /// No process has ever run.
    fn empty(size: u32, fence: FenceKind) -> World {
        World {
            now: 1_000_000,
            wall: 1_790_000_000,
            clocks: BTreeMap::new(),
            disks: BTreeMap::new(),
            used: BTreeMap::new(),
            minorities: false,
            deaf: BTreeSet::new(),
            refusals: 0,
            floor: 0,
            answers: Vec::new(),
            fence,
            size,
            hosts: BTreeMap::new(),
            rings: vec![(1..=size).map(NodeId).collect()],
            conns: BTreeSet::new(),
            cut: BTreeSet::new(),
            ring_seq: 4,
            pids: 1,
            agents: Vec::new(),
            views: BTreeMap::new(),
        }
    }

    fn start(&mut self, node: u32) {
        let node = NodeId(node);
        self.pids += 1;
        let pid = self.pids;
        let votes = (1..=self.size).map(|n| (NodeId(n), 1)).collect();
        let config = GroupConfig {
            cluster: "c".into(),
            node,
            seed: u64::from(pid),
            floor: self.floor,
            boot: 1,
            weight: 1,
            votes,
            lease: LEASE,
            fence: self.fence,
            startup: 8 * LEASE,
        };
        let disk = self.disks.entry(node).or_default();
        // A process that has ended waits for no disk.
        disk.waits = None;
        let sm = CorosyncMembership::new(config, disk.image.as_deref(), self.now).unwrap();
        let host = Host {
            sm,
            life: 0,
            pid,
            paused: false,
            absent: false,
            inbox: VecDeque::new(),
            view: None,
            halts: Vec::new(),
            lease_end: None,
        };
        self.hosts.insert(node, host);
        self.post(node, Event::Cluster(ClusterEvent::Minorities(self.minorities)));
        self.post(node, Event::Cluster(ClusterEvent::Joined));
        self.regroup();
    }

    fn is_quorate(&self, ring: usize) -> bool {
        self.minorities || 2 * ring > self.size as usize
    }

    fn join(&mut self, node: NodeId, name: &str, life: u64) {
        let spaces = vec![join(name, life)];
        self.post(node, Event::Spaces(spaces));
    }

    fn post(&mut self, to: NodeId, event: Event) {
        if let Some(host) = self.hosts.get_mut(&to) {
            host.inbox.push_back(event);
        }
    }

    fn ring_of(&self, node: NodeId) -> Vec<NodeId> {
        let ring = self.rings.iter().find(|r| r.contains(&node));
        ring.into_iter().flatten().copied().filter(|n| self.hosts.contains_key(n)).collect()
    }

    /// Nodes that can dial those that they have no connection to.
    fn dial(&mut self) {
        let awake = |n: &&NodeId| !self.hosts[n].paused;
        let all: Vec<NodeId> = self.hosts.keys().filter(awake).copied().collect();
        for (i, a) in all.iter().enumerate() {
            for b in &all[i + 1..] {
                let pair = (*a, *b);
                if self.ring_of(*a).contains(b)
                    && !self.cut.contains(&pair)
                    && self.conns.insert(pair)
                {
                    for (to, node) in [(*a, *b), (*b, *a)] {
                        let life = self.hosts[&node].sm.identity();
                        self.post(to, Event::Connected { node, life, sole: false });
                    }
                }
            }
        }
    }

    fn disconnect(&mut self, a: NodeId, b: NodeId) {
        if self.conns.remove(&(a.min(b), a.max(b))) {
            self.post(a, Event::Disconnected { node: b });
            self.post(b, Event::Disconnected { node: a });
        }
    }

    fn disconnect_all(&mut self, node: NodeId) {
        for other in (1..=self.size).map(NodeId) {
            self.disconnect(node, other);
        }
    }

    /// Everybody hears of the rings as they are now.
    fn regroup(&mut self) {
        for ring in self.rings.clone() {
            self.ring_seq += 4;
            let id = RingId { seq: self.ring_seq, node: 1 };
            let quorate = self.is_quorate(ring.len());
            let all: Vec<u32> = ring.iter().map(|n| n.0).collect();
            let seated = |n: &NodeId| self.hosts.get(n).is_some_and(|h| !h.absent);
            let nodes: Vec<NodeId> = ring.iter().copied().filter(seated).collect();
            let members: Vec<Process> =
                nodes.iter().map(|n| Process { node: n.0, pid: self.hosts[n].pid }).collect();
            for n in nodes {
                let said = [
                    Said::Ring(id),
                    Said::Members { members: members.clone(), left: vec![], joined: vec![] },
                    Said::Quorum { quorate, ring: id, nodes: all.clone() },
                ];
                for said in said {
                    self.post(n, Event::Cluster(ClusterEvent::Said(said)));
                }
            }
        }
    }

    fn left(&mut self, node: NodeId, pid: u32, reason: Reason) {
        let others: Vec<NodeId> = self.ring_of(node).into_iter().filter(|n| *n != node).collect();
        for &n in &others {
            let members =
                others.iter().map(|n| Process { node: n.0, pid: self.hosts[n].pid }).collect();
            let left = vec![(Process { node: node.0, pid }, reason)];
            let said = Said::Members { members, left, joined: vec![] };
            self.post(n, Event::Cluster(ClusterEvent::Said(said)));
        }
    }

    /// The network falls into these parts.
    fn partition(&mut self, parts: &[&[u32]]) {
        let new: Vec<BTreeSet<NodeId>> =
            parts.iter().map(|p| p.iter().copied().map(NodeId).collect()).collect();
        let all: Vec<NodeId> = self.hosts.keys().copied().collect();
        for part in &new {
            for n in part {
                let gone: Vec<(Process, Reason)> = all
                    .iter()
                    .filter(|m| !part.contains(m))
                    .map(|m| (Process { node: m.0, pid: self.hosts[m].pid }, Reason::NodeDown))
                    .collect();
                let stay = part.iter().filter(|m| self.hosts.contains_key(m));
                let members = stay.map(|m| Process { node: m.0, pid: self.hosts[m].pid }).collect();
                let said = Said::Members { members, left: gone, joined: vec![] };
                self.post(*n, Event::Cluster(ClusterEvent::Said(said)));
            }
        }
        for (a, b) in self.conns.clone() {
            if !new.iter().any(|r| r.contains(&a) && r.contains(&b)) {
                self.disconnect(a, b);
            }
        }
        self.rings = new;
        self.regroup();
    }

    /// A process dies, with or without its machine.
    fn kill(&mut self, node: u32, reason: Reason) {
        let node = NodeId(node);
        let pid = self.hosts.remove(&node).unwrap().pid;
        self.disconnect_all(node);
        for n in self.hosts.keys().copied().collect::<Vec<_>>() {
            let members =
                self.hosts.iter().map(|(n, h)| Process { node: n.0, pid: h.pid }).collect();
            let left = vec![(Process { node: node.0, pid }, reason)];
            let said = Said::Members { members, left, joined: vec![] };
            self.post(n, Event::Cluster(ClusterEvent::Said(said)));
        }
        if reason == Reason::NodeDown {
            self.rings.iter_mut().for_each(|r| r.retain(|n| *n != node));
            self.rings.push([node].into());
            self.regroup();
        }
    }

    /// Has a process say that it restarts; its image when all have heard of it.
    fn announce(&mut self, node: u32) -> Result<GroupImage, String> {
        let (id, end) = (NodeId(node), self.now + LEASE / 4);
        loop {
            let now = self.now;
            let host = self.hosts.get_mut(&id).unwrap();
            host.sm.prepare_image(now);
            while let Some(action) = self.hosts.get_mut(&id).and_then(|h| h.sm.poll()) {
                self.act(id, action);
            }
            let image = self.hosts[&id].sm.group_image();
            if image.is_ok() || self.now >= end {
                return image;
            }
            self.pass(LEASE / 32);
        }
    }

    /// The process becomes another program, which has not connected to corosync yet.
    fn exec(&mut self, node: u32) -> GroupImage {
        let image = self.announce(node).unwrap();
        // As the program that follows reads it.
        let bytes = postcard::to_allocvec(&image).unwrap();
        let id = NodeId(node);
        self.left(id, self.hosts[&id].pid, Reason::ProcessDown);
        let host = self.hosts.get_mut(&id).unwrap();
        (host.paused, host.absent) = (true, true);
        host.inbox.clear();
        self.disconnect_all(id);
        self.hosts.get_mut(&id).unwrap().inbox.clear();
        postcard::from_bytes(&bytes).unwrap()
    }

    /// The program that follows goes on, and joins the group as the same process.
    fn resume(&mut self, node: u32, image: GroupImage) {
        let id = NodeId(node);
        let host = self.hosts.get_mut(&id).unwrap();
        host.sm = image.into_service();
        (host.paused, host.absent) = (false, false);
        host.lease_end = host.sm.lease_end();
        host.inbox.clear();
        for other in (1..=self.size).map(NodeId) {
            self.post(id, Event::Disconnected { node: other });
        }
        self.post(id, Event::Cluster(ClusterEvent::Joined));
        self.regroup();
    }

    /// Time passes, in steps, and everything that can happen does.
    fn pass(&mut self, time: Time) {
        let end = self.now + time;
        while self.now < end {
            self.now += LEASE / 32;
            self.dial();
            for n in self.hosts.keys().copied().collect::<Vec<_>>() {
                self.post(n, Event::Tick);
            }
            while self.step() {}
            self.check();
        }
    }

    /// Every host handles one event.
    fn step(&mut self) -> bool {
        let mut busy = false;
        for id in self.hosts.keys().copied().collect::<Vec<_>>() {
            let now = self.now;
            let wall = self.wall.saturating_add_signed(self.clocks.get(&id).copied().unwrap_or(0));
            let Some(host) = self.hosts.get_mut(&id).filter(|h| !h.paused) else { continue };
            let Some(event) = host.inbox.pop_front() else { continue };
            busy = true;
            host.sm.handle(now, wall, event);
            while let Some(action) = self.hosts.get_mut(&id).and_then(|h| h.sm.poll()) {
                self.act(id, action);
            }
            if let Some(host) = self.hosts.get_mut(&id) {
                host.lease_end = host.sm.lease_end();
            }
        }
        busy
    }

    fn act(&mut self, id: NodeId, action: Action) {
        match action {
            Action::Cast(bytes) => {
                self.check_cast(id, &bytes);
                let from = Process { node: id.0, pid: self.hosts[&id].pid };
                let seated = |n: &NodeId| !self.hosts[n].absent;
                for to in self.ring_of(id).into_iter().filter(seated).collect::<Vec<_>>() {
                    let said = Said::Message { from, bytes: bytes.clone() };
                    self.post(to, Event::Cluster(ClusterEvent::Said(said)));
                }
            }
            Action::Send { to, vote } => {
                let beat = matches!(vote, Vote::Beat { .. });
                if beat && self.deaf.contains(&(id, to)) {
                    return;
                }
                if self.ring_of(id).contains(&to) {
                    self.post(to, Event::Vote { from: id, vote });
                }
            }
            Action::Install(view) => {
                let newest = self.views.last_key_value().map_or(FLOOR, |(seq, _)| *seq);
                assert!(self.views.contains_key(&view.seq) || view.seq > newest, "{view:?} falls");
                let known = self.views.entry(view.seq).or_insert_with(|| view.clone());
                assert_eq!(*known, view, "two views of one number");
                let host = self.hosts.get_mut(&id).unwrap();
                assert!(host.view.as_ref().is_none_or(|v| v.seq < view.seq));
                host.view = Some(view);
            }
            Action::Halt(why) => {
                let host = self.hosts.get_mut(&id).unwrap();
                host.view = None;
                host.halts.push(why);
                host.life = 0;
                for other in self.ring_of(id).into_iter().filter(|o| *o != id) {
                    self.post(other, Event::Vote { from: id, vote: Vote::Goodbye });
                }
                self.disconnect_all(id);
                self.post(id, Event::Reborn { life: 0 });
            }
            Action::Persist { number, image } => {
                self.disks.entry(id).or_default().waits = Some((number, image));
                self.write(id);
            }
            Action::Reconnect => {
                let host = self.hosts.get_mut(&id).unwrap();
                host.life = host.sm.identity();
                let life = host.life;
                let before = self.used.insert(id, life);
                assert!(before.is_none_or(|b| b < life), "{id} has life {life} after {before:?}");
                self.disconnect_all(id);
                self.join(id, "s", life);
            }
            Action::Answer { result, .. } => self.answers.push(result),
            Action::Fence { node, .. } => {
                let quorate = self.is_quorate(self.ring_of(id).len());
                assert!(quorate, "{id} has no quorum and fences {node}");
                self.agents.push(node);
            }
            Action::Disconnect { node } => self.disconnect(id, node),
            other @ Action::Nodes(_) => unreachable!("only a log asks for {other:?}"),
        }
    }

    /// The disk does what it can.
    fn write(&mut self, id: NodeId) {
        let disk = self.disks.get_mut(&id).unwrap();
        if disk.health == Health::Slow {
            return;
        }
        let Some((number, image)) = disk.waits.take() else { return };
        let success = disk.health == Health::Good;
        if success {
            disk.image = Some(image);
        }
        self.post(id, Event::Persisted { number, success });
    }

    fn heal(&mut self, node: u32, health: Health) {
        let disk = self.disks.entry(NodeId(node)).or_default();
        disk.health = health;
        if self.hosts.contains_key(&NodeId(node)) {
            self.write(NodeId(node));
        }
    }

    fn kept(&self, node: NodeId) -> Memory {
        let image = self.disks.get(&node).and_then(|d| d.image.as_deref());
        image.map(|i| Image::decode(i).unwrap().memory).unwrap_or_default()
    }

    /// Nothing is said before the disk has it.
    fn check_cast(&mut self, id: NodeId, bytes: &[u8]) {
        let Envelope { life, word, .. } = decode(bytes).unwrap();
        let kept = self.kept(id);
        assert!(life <= kept.life(id), "{id} says life {life}, and its disk {kept:?}");
        match word {
            Word::Accept { of, durable: true, .. } => {
                let proposal = self.hosts[&id].sm.proposal.as_ref().filter(|p| p.of == of);
                let seq = proposal.map_or(0, |p| p.offer.view.seq);
                assert!(seq > 0 && kept.number >= seq, "{id} accepts {seq}: {kept:?}");
            }
            Word::Refuse { .. } => self.refusals += 1,
            _ => {}
        }
    }

    fn recover(&mut self, node: u32) -> Result<String, String> {
        self.post(NodeId(node), Event::Request { id: 1, request: Request::Recover });
        self.pass(LEASE / 8);
        self.answers.pop().unwrap()
    }

    fn waits(&self, node: u32) -> String {
        self.hosts[&NodeId(node)].sm.standing().waits.join("; ")
    }

    /// Everything dies; the disks stay.
    fn kill_all(&mut self) {
        for node in self.hosts.keys().map(|n| n.0).collect::<Vec<_>>() {
            self.kill(node, Reason::ProcessDown);
        }
    }

    /// No two nodes act in views of which one leaves the other behind.
    fn check(&self) {
        let acting: Vec<(NodeId, &NodeView, u64)> = self
            .hosts
            .iter()
            .filter(|(_, h)| h.lease_end.is_none_or(|end| self.now < end))
            .filter_map(|(n, h)| Some((*n, h.view.as_ref()?, h.life)))
            .collect();
        for (n, view, life) in &acting {
            for (m, newer, _) in &acting {
                let left = newer.seq > view.seq && newer.life(*n) != Some(*life);
                let allowed = self.fence == FenceKind::None || self.agents.contains(n);
                assert!(!left || allowed, "{n} acts in {view:?}, and {m} in {newer:?}");
            }
        }
    }

    fn members(&self, node: u32) -> Vec<u32> {
        let view = self.hosts[&NodeId(node)].view.as_ref();
        view.map(|v| v.members.iter().map(|m| m.node.0).collect()).unwrap_or_default()
    }

    fn seq(&self, node: u32) -> u64 {
        self.hosts[&NodeId(node)].view.as_ref().map_or(0, |v| v.seq)
    }

    fn halts(&self, node: u32) -> &[Halt] {
        &self.hosts[&NodeId(node)].halts
    }

    fn agent(&mut self, node: u32, success: bool) {
        let all: Vec<NodeId> = self.hosts.keys().copied().collect();
        for n in all {
            if self.hosts[&n].sm.fences.runs(NodeId(node)) {
                self.post(n, Event::Fenced { node: NodeId(node), success });
            }
        }
    }
}

#[test]
fn all_agree_on_one_view_and_stay_in_it() {
    let mut w = World::new(5, FenceKind::Lease);
    let seq = w.seq(1);
    assert_eq!(seq, FLOOR + 1, "above those of earlier releases, which came from the clock");
    assert!((1..=5).all(|n| w.members(n) == [1, 2, 3, 4, 5] && w.seq(n) == seq));
    w.pass(20 * LEASE);
    assert!((1..=5).all(|n| w.seq(n) == seq && w.halts(n).is_empty()));
    let views = w.views.len();
    w.join(NodeId(2), "other", 77);
    w.pass(LEASE);
    assert_eq!((w.views.len(), w.members(4)), (views + 1, vec![1, 2, 3, 4, 5]));
}

#[test]
fn a_minority_halts_and_the_others_wait_for_its_lease() {
    let mut w = World::new(5, FenceKind::Lease);
    w.partition(&[&[1, 2], &[3, 4, 5]]);
    w.pass(LEASE / 2);
    assert_eq!((w.halts(1), w.members(1)), (&[Halt::NoQuorum][..], vec![]));
    assert_eq!(w.members(4), [1, 2, 3, 4, 5], "the lease may still run, for all that 4 knows");
    w.pass(3 * LEASE);
    assert_eq!(w.members(4), [3, 4, 5]);
    w.partition(&[&[1, 2, 3, 4, 5]]);
    w.pass(LEASE);
    assert!((1..=5).all(|n| w.members(n) == [1, 2, 3, 4, 5]));
    assert!((3..=5).all(|n| w.halts(n).is_empty()));
}

#[test]
fn nobody_has_a_majority_and_nobody_acts() {
    let mut w = World::new(5, FenceKind::Lease);
    let seq = w.seq(1);
    w.partition(&[&[1, 2], &[3, 4], &[5]]);
    w.pass(6 * LEASE);
    assert!((1..=5).all(|n| w.members(n).is_empty()));
    w.partition(&[&[1, 2, 3, 4, 5]]);
    w.pass(4 * LEASE);
    assert!((1..=5).all(|n| w.members(n) == [1, 2, 3, 4, 5] && w.seq(n) > seq));
}

#[test]
fn a_dead_process_is_not_waited_for_and_comes_back() {
    let mut w = World::new(3, FenceKind::Lease);
    let seq = w.seq(2);
    w.kill(1, Reason::ProcessDown);
    w.pass(LEASE / 8);
    assert_eq!(w.members(2), [2, 3]);
    w.start(1);
    w.pass(LEASE / 2);
    assert!((1..=3).all(|n| w.members(n) == [1, 2, 3] && w.seq(n) > seq));
    assert!(w.halts(2).is_empty());
}

#[test]
fn a_dead_machine_is_waited_for() {
    let mut w = World::new(3, FenceKind::Lease);
    w.kill(3, Reason::NodeDown);
    w.pass(LEASE);
    assert_eq!(w.members(1), [1, 2, 3]);
    w.pass(2 * LEASE);
    assert_eq!(w.members(1), [1, 2]);
}

#[test]
fn a_stopped_process_is_left_behind_and_halts_when_it_goes_on() {
    for fence in [FenceKind::Lease, FenceKind::None] {
        let mut w = World::new(3, fence);
        w.hosts.get_mut(&NodeId(1)).unwrap().paused = true;
        w.pass(6 * LEASE);
        assert_eq!(w.members(2), [2, 3], "{fence:?}");
        w.hosts.get_mut(&NodeId(1)).unwrap().paused = false;
        w.pass(4 * LEASE);
        assert!(!w.halts(1).is_empty());
        assert!((1..=3).all(|n| w.members(n) == [1, 2, 3]), "{fence:?}");
        assert!(w.halts(2).is_empty() && w.halts(3).is_empty());
    }
}

#[test]
fn a_lost_corosync_halts_at_once() {
    let mut w = World::new(3, FenceKind::Lease);
    w.post(NodeId(2), Event::Cluster(ClusterEvent::Parted));
    w.pass(LEASE / 16);
    w.left(NodeId(2), w.hosts[&NodeId(2)].pid, Reason::NodeDown);
    w.rings = vec![[1, 3].map(NodeId).into(), [NodeId(2)].into()];
    w.regroup();
    w.pass(LEASE / 8);
    assert_eq!(w.halts(2), [Halt::NoCorosync]);
    // It said so on its connections: nobody waits.
    assert_eq!(w.members(1), [1, 3]);
    w.post(NodeId(2), Event::Cluster(ClusterEvent::Joined));
    w.rings = vec![[1, 2, 3].map(NodeId).into()];
    w.regroup();
    w.pass(LEASE);
    assert!((1..=3).all(|n| w.members(n) == [1, 2, 3]));
}

#[test]
fn two_that_cannot_talk_are_parted_though_corosync_reaches_both() {
    let mut w = World::new(5, FenceKind::Lease);
    w.cut.insert((NodeId(4), NodeId(5)));
    w.disconnect(NodeId(4), NodeId(5));
    w.pass(LEASE);
    assert_eq!(w.members(1), [1, 2, 3, 4, 5]);
    w.pass(12 * LEASE);
    assert_eq!(w.members(1), [1, 2, 3, 4]);
    assert!(!w.halts(5).is_empty() && w.halts(4).is_empty());
}

#[test]
fn an_agent_is_waited_for_and_run_again() {
    let mut w = World::new(3, FenceKind::Command);
    assert_eq!(w.members(1), [1, 2, 3]);
    // Also when only the process has died: its clients may go on.
    w.kill(3, Reason::ProcessDown);
    w.pass(8 * LEASE);
    assert_eq!((w.agents.as_slice(), w.members(1)), (&[NodeId(3)][..], vec![1, 2, 3]));
    assert!(w.hosts[&NodeId(1)].sm.standing().waits[0].contains("node 3"));
    w.agent(3, false);
    w.pass(LEASE);
    assert_eq!(w.members(1), [1, 2, 3]);
    // The next attempt comes after a pause, which is in seconds.
    w.now += 2_000_000_000;
    w.pass(LEASE);
    assert_eq!(w.agents, [NodeId(3), NodeId(3)]);
    w.agent(3, true);
    w.pass(LEASE / 2);
    assert_eq!((w.members(1), w.members(2)), (vec![1, 2], vec![1, 2]));
    assert!(w.hosts[&NodeId(1)].sm.standing().waits.is_empty());
    w.start(3);
    w.pass(LEASE);
    assert_eq!(w.members(3), [1, 2, 3]);
    // Its death is another one: the former agent's success says nothing of it.
    w.kill(3, Reason::NodeDown);
    w.pass(2 * LEASE);
    assert_eq!((w.agents.len(), w.members(1)), (3, vec![1, 2, 3]));
}

#[test]
fn a_minority_that_has_not_heard_of_its_quorum_fences_nobody() {
    let mut w = World::new(3, FenceKind::Command);
    let process = |n: u32| Process { node: n, pid: w.hosts[&NodeId(n)].pid };
    let (members, left) = (vec![process(3)], [1, 2].map(|n| (process(n), Reason::NodeDown)));
    // The group's word comes first; its ring, and the quorum of that, a moment later.
    let said = Said::Members { members, left: left.into(), joined: vec![] };
    w.post(NodeId(3), Event::Cluster(ClusterEvent::Said(said)));
    w.pass(2 * LEASE);
    assert_eq!(w.agents, []);
    w.partition(&[&[1, 2], &[3]]);
    w.pass(2 * LEASE);
    assert_eq!((w.agents.as_slice(), w.members(3)), (&[NodeId(3)][..], vec![]));
}

#[test]
fn a_node_that_never_came_is_fenced_before_the_first_view() {
    let mut w = World::new(3, FenceKind::Command);
    for n in 1..=3 {
        w.kill(n, Reason::ProcessDown);
    }
    w.rings = vec![[NodeId(1), NodeId(2)].into(), [NodeId(3)].into()];
    w.agents.clear();
    w.start(1);
    w.start(2);
    w.pass(7 * LEASE);
    assert_eq!((w.agents.len(), w.members(1)), (0, vec![]));
    w.pass(2 * LEASE);
    assert_eq!(w.agents, [NodeId(3)]);
    w.agent(3, true);
    w.pass(LEASE);
    assert_eq!(w.members(1), [1, 2]);
}

#[test]
fn a_process_that_becomes_another_program_stays_the_same_member() {
    for fence in [FenceKind::Lease, FenceKind::Command] {
        for node in [1, 3] {
            let mut w = World::new(3, fence);
            let seq = w.seq(1);
            let image = w.exec(node);
            w.pass(LEASE / 2);
            let waits = w.hosts[&NodeId(2)].sm.standing().waits;
            assert_eq!(waits, [format!("the restart of node {node}")]);
            w.resume(node, image);
            w.pass(6 * LEASE);
            assert!((1..=3).all(|n| w.seq(n) == seq && w.halts(n).is_empty()), "{fence:?}");
            assert!((1..=3).all(|n| w.hosts[&NodeId(n)].sm.standing().waits.is_empty()));
            assert_eq!(w.agents, []);
            // From now on its death is one.
            w.kill(node, Reason::ProcessDown);
            w.pass(LEASE / 2);
            match fence {
                FenceKind::Command => assert_eq!(w.agents, [NodeId(node)]),
                _ => assert!(!w.members(2).contains(&node)),
            }
        }
    }
}

#[test]
fn one_that_does_not_come_back_is_as_a_dead_machine() {
    let mut w = World::new(3, FenceKind::Lease);
    let _ = w.exec(3);
    w.pass(LEASE);
    assert_eq!(w.members(1), [1, 2, 3], "its lease may still run, for all that 1 knows");
    w.pass(2 * LEASE);
    assert_eq!(w.members(1), [1, 2]);
    let mut w = World::new(3, FenceKind::Command);
    let _ = w.exec(3);
    w.pass(LEASE);
    assert_eq!(w.agents, []);
    w.pass(4 * LEASE);
    assert_eq!((w.agents.as_slice(), w.members(1)), (&[NodeId(3)][..], vec![1, 2, 3]));
    w.agent(3, true);
    w.pass(LEASE);
    assert_eq!(w.members(1), [1, 2]);
}

#[test]
fn one_that_comes_back_too_late_halts() {
    let mut w = World::new(3, FenceKind::Lease);
    let image = w.exec(3);
    w.pass(4 * LEASE);
    assert_eq!(w.members(1), [1, 2]);
    w.resume(3, image);
    w.pass(4 * LEASE);
    assert_eq!(w.halts(3), [Halt::Lease]);
    assert!((1..=3).all(|n| w.members(n) == [1, 2, 3]));
    // Where no lease ends, the others' word does that.
    let mut w = World::new(3, FenceKind::Command);
    let image = w.exec(3);
    w.pass(4 * LEASE);
    w.agent(3, true);
    w.pass(LEASE);
    w.resume(3, image);
    w.pass(4 * LEASE);
    assert_eq!(w.halts(3), [Halt::LeftBehind]);
    assert!((1..=3).all(|n| w.members(n) == [1, 2, 3]));
}

#[test]
fn one_that_finds_no_corosync_halts() {
    let mut w = World::new(3, FenceKind::Command);
    let image = w.exec(3);
    let host = w.hosts.get_mut(&NodeId(3)).unwrap();
    (host.sm, host.paused) = (image.into_service(), false);
    w.pass(LEASE);
    assert_eq!(w.halts(3), []);
    w.pass(2 * LEASE);
    assert_eq!(w.halts(3), [Halt::NoCorosync]);
}

#[test]
fn a_restart_that_does_not_happen_is_taken_back() {
    let mut w = World::new(3, FenceKind::Lease);
    w.announce(3).unwrap();
    w.pass(LEASE);
    w.kill(3, Reason::ProcessDown);
    w.pass(LEASE / 8);
    assert_eq!(w.members(1), [1, 2], "its death is a proof again");
}

#[test]
fn one_node_restarts_after_the_other() {
    let mut w = World::new(3, FenceKind::Lease);
    let seq = w.seq(1);
    let image = w.exec(3);
    w.pass(LEASE / 8);
    assert!(w.announce(1).unwrap_err().contains("another node restarts"));
    w.resume(3, image);
    w.pass(LEASE);
    let image = w.exec(1);
    w.resume(1, image);
    w.pass(2 * LEASE);
    assert!((1..=3).all(|n| w.seq(n) == seq && w.halts(n).is_empty()));
    // Both at the same time: each hears of the other's, in one order.
    for n in [1, 2] {
        let now = w.now;
        w.hosts.get_mut(&NodeId(n)).unwrap().sm.prepare_image(now);
        while let Some(action) = w.hosts.get_mut(&NodeId(n)).and_then(|h| h.sm.poll()) {
            w.act(NodeId(n), action);
        }
    }
    w.pass(LEASE / 32);
    let images = [1, 2].map(|n| w.hosts[&NodeId(n)].sm.group_image().is_ok());
    assert_eq!(images, [true, false]);
}

#[test]
fn a_member_that_did_not_hear_of_a_restart_does_not_hinder_it() {
    let mut w = World::new(3, FenceKind::Lease);
    w.kill(2, Reason::ProcessDown);
    w.pass(LEASE);
    // Node 2 comes when node 3 has been heard, and before it goes.
    w.announce(3).unwrap();
    w.start(2);
    for _ in 0..3 {
        w.step();
    }
    let report = w.hosts[&NodeId(3)].sm.group_image().unwrap_err();
    assert!(report.contains("agreeing"), "{report}");
    w.pass(2 * LEASE);
    let seq = w.seq(1);
    let image = w.exec(3);
    w.resume(3, image);
    w.pass(2 * LEASE);
    assert!((1..=3).all(|n| w.seq(n) == seq && w.members(n) == [1, 2, 3]));
    assert!(w.halts(3).is_empty());
}

#[test]
fn without_fencing_nothing_is_waited_for() {
    let mut w = World::new(3, FenceKind::None);
    w.kill(3, Reason::NodeDown);
    w.pass(LEASE / 8);
    assert_eq!(w.members(1), [1, 2]);
    assert_eq!(w.hosts[&NodeId(1)].sm.lease_end(), None);
}

#[test]
fn nonsense_in_the_group_changes_nothing() {
    let mut w = World::new(3, FenceKind::Lease);
    let seq = w.seq(1);
    let from = Process { node: 3, pid: w.hosts[&NodeId(3)].pid };
    let life = w.hosts[&NodeId(3)].life;
    let envelope = |word| encode(&Envelope { version: VERSION, life, born: life, boot: 1, word });
    let refuse = envelope(Word::Refuse { of: seq, why: Veto::Promised(u64::MAX) });
    let (weight, spaces, reach, minorities) = (1, Vec::new(), Vec::new(), false);
    let memory = Memory { number: u64::MAX, ..Memory::default() };
    let report = Report { weight, spaces, reach, installed: u64::MAX, memory, minorities };
    let lives = BTreeMap::from([(NodeId(1), u64::MAX)]);
    let memory = Memory { lives, ..Memory::default() };
    let lives = Report { memory, installed: seq, ..report.clone() };
    let view = NodeView { seq: u64::MAX, members: Vec::new(), spaces: Vec::new() };
    let offer = Offer { view, base: 0, group: 0, loose: false, mark: 0 };
    let messages = [
        vec![],
        vec![VERSION],
        vec![9; 100],
        refuse[..refuse.len() - 1].to_vec(),
        refuse,
        envelope(Word::Report(report)),
        envelope(Word::Report(lives)),
        envelope(Word::Propose(Box::new(offer))),
        envelope(Word::Accept { of: 0, stamps: vec![(NodeId(1), u64::MAX)], durable: true }),
        envelope(Word::Fenced { node: NodeId(99), below: u64::MAX }),
    ];
    for bytes in messages {
        let said = Said::Message { from, bytes };
        w.post(NodeId(1), Event::Cluster(ClusterEvent::Said(said)));
    }
    w.pass(LEASE);
    assert_eq!((w.seq(1), w.members(1)), (seq, vec![1, 2, 3]));
}

#[test]
fn no_message_makes_it_panic() {
    let mut w = World::new(3, FenceKind::Command);
    let host = |w: &World, n: u32| (w.hosts[&NodeId(n)].life, w.hosts[&NodeId(n)].pid);
    let (life, pid) = host(&w, 3);
    let view = w.hosts[&NodeId(1)].view.clone().unwrap();
    let (seq, group) = (view.seq, w.hosts[&NodeId(1)].sm.digest());
    let reach = vec![(NodeId(1), host(&w, 1).0), (NodeId(2), host(&w, 2).0)];
    let spaces = vec![join("s", life)];
    let memory = w.kept(NodeId(3));
    let report = Report { weight: 1, spaces, reach, installed: seq, memory, minorities: false };
    let view = NodeView { seq: seq + 1, ..view };
    let offer = Offer { view, base: seq, group, loose: false, mark: 1 };
    let of = offer.of();
    let words = [
        Word::Report(report),
        Word::Propose(Box::new(offer)),
        Word::Accept { of, stamps: vec![(NodeId(1), 5)], durable: true },
        Word::Refuse { of, why: Veto::Leased(NodeId(2)) },
        Word::Fenced { node: NodeId(2), below: life },
        Word::Restarts { number: 1 },
    ];
    let from = Process { node: 3, pid };
    for word in words {
        let envelope = Envelope { version: VERSION, life, born: life, boot: 1, word };
        let bytes = encode(&envelope);
        for at in 1..bytes.len() {
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                let said = Said::Message { from, bytes };
                w.post(NodeId(1), Event::Cluster(ClusterEvent::Said(said)));
            }
            // The views that come of it are nobody's: only that it goes on counts.
            let host = w.hosts.get_mut(&NodeId(1)).unwrap();
            while let Some(event) = host.inbox.pop_front() {
                w.now += 1;
                host.sm.handle(w.now, w.wall, event);
                while host.sm.poll().is_some() {}
            }
        }
    }
}

/// Partitions, deaths and pauses in an order that a seed gives: `World::check` looks on, and in
/// the end all are together again.
#[test]
fn any_order_of_faults_leaves_one_acting_side() {
    for seed in 0..16u64 {
        let fence = [FenceKind::Lease, FenceKind::None][seed as usize % 2];
        let mut w = World::new(5, fence);
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for _ in 0..12 {
            let node = random(5) as u32 + 1;
            match random(10) {
                6 => w.heal(node, Health::Full),
                7 => w.heal(node, Health::Slow),
                8 => (1..=5).for_each(|n| w.heal(n, Health::Good)),
                9 => {
                    let hours = random(24) as i64 - 12;
                    w.clocks.insert(NodeId(node), 3600 * hours);
                }
                5 if w.hosts.get(&NodeId(node)).is_some_and(|h| !h.paused) => {
                    if w.announce(node).is_ok() {
                        let image = w.exec(node);
                        w.pass(random(3 * LEASE));
                        w.resume(node, image);
                    }
                }
                0 if w.hosts.contains_key(&NodeId(node)) && w.hosts.len() > 2 => {
                    w.kill(node, Reason::ProcessDown);
                }
                1 if !w.hosts.contains_key(&NodeId(node)) => w.start(node),
                2 => {
                    if let Some(h) = w.hosts.get_mut(&NodeId(node)) {
                        h.paused = !h.paused;
                    }
                }
                3 => {
                    let cut = random(32);
                    let (a, b): (Vec<u32>, Vec<u32>) =
                        (1..=5).partition(|n| cut >> (n - 1) & 1 == 1);
                    w.partition(&[&a, &b]);
                }
                _ => w.partition(&[&[1, 2, 3, 4, 5]]),
            }
            w.pass(random(5 * LEASE));
        }
        (1..=5).for_each(|n| w.heal(n, Health::Good));
        w.hosts.values_mut().for_each(|h| h.paused = false);
        w.partition(&[&[1, 2, 3, 4, 5]]);
        for n in 1..=5 {
            if !w.hosts.contains_key(&NodeId(n)) {
                w.start(n);
            }
        }
        w.pass(20 * LEASE);
        for n in 1..=5 {
            assert_eq!(w.members(n), [1, 2, 3, 4, 5], "seed {seed}, node {n}");
        }
    }
}

// The disks' memories.

#[test]
fn a_clock_that_was_fast_at_an_earlier_start_changes_nothing() {
    let mut w = World::empty(3, FenceKind::Lease);
    w.clocks.insert(NodeId(1), 3600);
    (1..=3).for_each(|n| w.start(n));
    w.pass(4 * LEASE);
    let first = w.hosts[&NodeId(1)].life;
    w.kill(1, Reason::ProcessDown);
    w.pass(LEASE);
    w.clocks.clear();
    w.start(1);
    w.pass(LEASE);
    assert_eq!(w.members(2), [1, 2, 3]);
    assert!(w.hosts[&NodeId(1)].life > first);
    // Its lease is waited for as any other's.
    w.kill(1, Reason::NodeDown);
    w.pass(LEASE);
    assert_eq!(w.members(2), [1, 2, 3], "node 1 may still act, for all that 2 knows");
    w.pass(2 * LEASE);
    assert_eq!(w.members(2), [2, 3]);
}

#[test]
fn an_agent_is_run_for_a_node_that_was_started_with_a_slow_clock() {
    let mut w = World::empty(3, FenceKind::Command);
    w.clocks.insert(NodeId(3), 7200);
    (1..=3).for_each(|n| w.start(n));
    w.pass(4 * LEASE);
    w.hosts.get_mut(&NodeId(3)).unwrap().sm.halt(Halt::NoQuorum);
    w.pass(2 * LEASE);
    w.kill(3, Reason::ProcessDown);
    w.pass(LEASE);
    w.agent(3, true);
    w.pass(LEASE);
    w.clocks.clear();
    w.start(3);
    w.pass(LEASE);
    assert_eq!(w.members(1), [1, 2, 3]);
    w.agents.clear();
    w.kill(3, Reason::NodeDown);
    w.pass(2 * LEASE);
    assert_eq!((w.agents.as_slice(), w.members(1)), (&[NodeId(3)][..], vec![1, 2, 3]));
}

/// `World` checks that no number and no life falls.
#[test]
fn numbers_grow_over_restarts_of_all_in_any_order_with_any_clocks() {
    let mut w = World::new(3, FenceKind::Lease);
    let mut last = w.seq(1);
    for (order, hours) in [([3, 1, 2], -5), ([2, 3, 1], 0), ([1, 2, 3], 12), ([3, 2, 1], -12)] {
        w.kill_all();
        w.pass(LEASE / 8);
        for node in order {
            w.clocks.insert(NodeId(node), hours * 3600 + i64::from(node));
            w.start(node);
            w.pass(LEASE / 8);
        }
        w.pass(4 * LEASE);
        assert!((1..=3).all(|n| w.members(n) == [1, 2, 3]));
        assert!(w.seq(1) > last);
        last = w.seq(1);
    }
}

#[test]
fn two_of_three_start_without_the_third_and_know_all() {
    for pair in [[1, 2], [2, 3], [3, 1]] {
        let mut w = World::new(3, FenceKind::Lease);
        // The last view is one without node 1.
        w.kill(1, Reason::ProcessDown);
        w.pass(LEASE);
        let seq = w.seq(2);
        w.kill_all();
        pair.into_iter().for_each(|n| w.start(n));
        w.pass(4 * LEASE);
        assert!(w.seq(pair[0]) > seq && w.members(pair[0]).len() == 2, "{pair:?}");
    }
}

#[test]
fn an_old_image_is_found_out() {
    let mut w = World::new(3, FenceKind::Lease);
    let old = w.disks[&NodeId(1)].image.clone();
    for _ in 0..4 {
        w.kill(1, Reason::ProcessDown);
        w.pass(LEASE);
        w.start(1);
        w.pass(LEASE);
    }
    let (life, seq) = (w.hosts[&NodeId(1)].life, w.seq(1));
    // The machine is put back to what it was, while its last life is in the view.
    w.kill(1, Reason::NodeDown);
    w.disks.get_mut(&NodeId(1)).unwrap().image.clone_from(&old);
    w.rings = vec![[1, 2, 3].map(NodeId).into()];
    w.start(1);
    w.pass(6 * LEASE);
    assert!(w.hosts[&NodeId(1)].life > life && w.seq(1) > seq);
    assert!((1..=3).all(|n| w.members(n) == [1, 2, 3]));
    // And with all the others restarted, too.
    let seq = w.seq(1);
    w.kill_all();
    w.disks.get_mut(&NodeId(1)).unwrap().image = old;
    (1..=3).for_each(|n| w.start(n));
    w.pass(4 * LEASE);
    assert!(w.seq(1) > seq && w.members(1) == [1, 2, 3]);
}

#[test]
fn a_lost_disk_does_not_help_the_others_to_forget() {
    let mut w = World::new(3, FenceKind::Lease);
    w.kill(3, Reason::ProcessDown);
    w.pass(LEASE);
    // Node 3 knows nothing of these.
    for _ in 0..3 {
        w.kill(2, Reason::ProcessDown);
        w.pass(LEASE);
        w.start(2);
        w.pass(4 * LEASE);
    }
    let seq = w.seq(1);
    w.kill_all();
    w.disks.remove(&NodeId(2));
    w.start(2);
    w.start(3);
    w.pass(8 * LEASE);
    assert_eq!((w.members(2), w.members(3)), (vec![], vec![]));
    let waits = w.waits(2);
    assert!(waits.contains("node 1 is not there"), "{waits}");
    assert!(waits.contains("node 2 has no state"), "{waits}");
    assert!(waits.contains("lockify cluster recover"), "{waits}");
    w.start(1);
    w.pass(4 * LEASE);
    assert!((1..=3).all(|n| w.members(n) == [1, 2, 3] && w.seq(n) > seq));
    let refusal = w.recover(3).unwrap_err();
    assert!(refusal.contains("nothing is to be recovered"), "{refusal}");
}

#[test]
fn an_operator_begins_an_era_when_most_disks_are_lost() {
    let mut w = World::new(3, FenceKind::Lease);
    w.kill_all();
    w.disks.remove(&NodeId(1));
    w.disks.remove(&NodeId(2));
    (1..=3).for_each(|n| w.start(n));
    w.pass(8 * LEASE);
    assert!((1..=3).all(|n| w.members(n).is_empty()));
    assert!(w.recover(3).unwrap().contains("era 449"));
    w.pass(4 * LEASE);
    assert!((1..=3).all(|n| w.members(n) == [1, 2, 3]));
    let seq = w.seq(1);
    assert_eq!(seq >> 22, 449);
    // It is remembered as any other view.
    w.kill_all();
    w.start(1);
    w.start(2);
    w.pass(4 * LEASE);
    assert!(w.members(1) == [1, 2] && w.seq(1) > seq);
    assert!(w.recover(1).is_err());
}

#[test]
fn a_new_cluster_waits_for_all_of_its_nodes_or_for_the_operator() {
    let mut w = World::empty(3, FenceKind::Lease);
    w.start(1);
    w.start(2);
    w.pass(8 * LEASE);
    assert_eq!(w.members(1), []);
    assert!(w.waits(1).contains("a new cluster begins when all nodes are there"), "{}", w.waits(1));
    assert!(w.recover(2).is_ok());
    w.pass(4 * LEASE);
    assert_eq!(w.members(1), [1, 2]);
}

#[test]
fn a_first_start_that_is_cut_short_anywhere_is_made_again() {
    for steps in 0..40 {
        let mut w = World::empty(3, FenceKind::Lease);
        (1..=3).for_each(|n| w.start(n));
        for step in 0..steps {
            if step % 8 == 0 {
                w.now += LEASE / 32;
                w.dial();
                (1..=3).for_each(|n| w.post(NodeId(n), Event::Tick));
            }
            w.step();
        }
        w.kill_all();
        (1..=3).for_each(|n| w.start(n));
        w.pass(8 * LEASE);
        assert!((1..=3).all(|n| w.members(n) == [1, 2, 3]), "after {steps} steps: {}", w.waits(1));
    }
}

#[test]
fn refused_proposals_use_up_no_numbers() {
    let mut w = World::new(3, FenceKind::Lease);
    let seq = w.seq(1);
    w.deaf = [(NodeId(2), NodeId(3))].into();
    // Node 3 has a connection to node 2, on which it hears nothing.
    for round in 0..20 {
        w.disconnect(NodeId(2), NodeId(3));
        w.join(NodeId(1), "other", 100 + round);
        w.pass(LEASE);
    }
    assert!(w.refusals > 50, "{} refusals", w.refusals);
    w.deaf.clear();
    w.pass(8 * LEASE);
    assert!((1..=3).all(|n| w.members(n) == [1, 2, 3]));
    let installed = w.views.len() as u64;
    assert!(w.seq(1) <= seq + installed, "{} views, and {} after {seq}", installed, w.seq(1));
}

#[test]
fn a_full_disk_hinders_nobody_and_costs_no_lock() {
    for health in [Health::Full, Health::Slow] {
        let mut w = World::new(3, FenceKind::Lease);
        w.heal(3, health);
        w.kill(1, Reason::ProcessDown);
        w.pass(2 * LEASE);
        // Of the votes, only node 2 can remember now.
        assert_eq!(w.members(2), [1, 2, 3], "{health:?}");
        w.start(1);
        w.pass(2 * LEASE);
        assert_eq!((w.members(2), w.members(3)), (vec![1, 2, 3], vec![1, 2, 3]), "{health:?}");
        assert!(w.halts(3).is_empty());
        let seq = w.seq(3);
        assert!(w.kept(NodeId(3)).number < seq);
        w.kill_all();
        w.heal(3, Health::Good);
        w.start(3);
        w.start(2);
        w.pass(4 * LEASE);
        assert!(w.seq(3) > seq);
    }
}

#[test]
fn a_process_whose_disk_is_full_begins_no_life() {
    let mut w = World::new(3, FenceKind::Lease);
    w.kill(3, Reason::ProcessDown);
    w.heal(3, Health::Full);
    w.start(3);
    w.pass(4 * LEASE);
    assert_eq!((w.members(1), w.hosts[&NodeId(3)].life), (vec![1, 2], 0));
    assert!(w.waits(3).contains("state_dir"), "{}", w.waits(3));
    w.heal(3, Health::Good);
    w.pass(4 * LEASE);
    assert_eq!(w.members(3), [1, 2, 3]);
}

#[test]
fn with_two_nodes_the_one_that_stayed_behind_waits_for_the_one_that_went_on() {
    let mut w = World::empty(2, FenceKind::Command);
    w.minorities = true;
    (1..=2).for_each(|n| w.start(n));
    w.pass(4 * LEASE);
    w.kill(2, Reason::NodeDown);
    w.pass(LEASE);
    w.agent(2, true);
    w.pass(LEASE);
    assert_eq!(w.members(1), [1]);
    w.join(NodeId(1), "other", 9);
    w.pass(LEASE);
    let seq = w.seq(1);
    w.kill_all();
    w.rings = vec![[1, 2].map(NodeId).into()];
    w.start(2);
    w.pass(16 * LEASE);
    assert_eq!(w.members(2), []);
    assert!(w.waits(2).contains("node 1 is not there"), "{}", w.waits(2));
    // Alone, the one that knows goes on.
    w.start(1);
    w.pass(4 * LEASE);
    assert!(w.members(2) == [1, 2] && w.seq(2) > seq);
}

#[test]
fn without_such_a_rule_a_minority_goes_on_with_no_agent_either() {
    let mut w = World::new(3, FenceKind::Command);
    for n in [2, 3] {
        w.hosts.get_mut(&NodeId(n)).unwrap().sm.halt(Halt::NoQuorum);
    }
    w.pass(LEASE / 32);
    w.kill(2, Reason::ProcessDown);
    w.kill(3, Reason::ProcessDown);
    w.pass(8 * LEASE);
    assert_eq!(w.members(1), [1, 2, 3]);
    assert!(w.waits(1).contains("half of all votes"), "{}", w.waits(1));
}

#[test]
fn a_state_of_another_node_or_kind_or_a_damaged_one_is_refused() {
    let w = World::new(3, FenceKind::Lease);
    let image = w.disks[&NodeId(1)].image.clone().unwrap();
    let config = |cluster: &str, node| GroupConfig {
        cluster: cluster.into(),
        node: NodeId(node),
        seed: 1,
        floor: 0,
        boot: 1,
        weight: 1,
        votes: BTreeMap::new(),
        lease: LEASE,
        fence: FenceKind::Lease,
        startup: 0,
    };
    let open = |cluster, node, image: &[u8]| {
        CorosyncMembership::new(config(cluster, node), Some(image), 0).map(|_| ()).unwrap_err()
    };
    assert!(CorosyncMembership::new(config("c", 1), Some(&image), 0).is_ok());
    assert!(matches!(open("c", 2, &image), ImageError::Foreign { .. }));
    assert!(matches!(open("d", 1, &image), ImageError::Foreign { .. }));
    for at in 0..image.len() {
        let mut damaged = image.clone();
        damaged[at] ^= 4;
        assert!(matches!(open("c", 1, &damaged), ImageError::Damaged(_)), "byte {at}");
        assert!(matches!(open("c", 1, &image[..at]), ImageError::Damaged(_)), "cut at {at}");
    }
    assert!(matches!(open("c", 1, b"LOCKLOG\x01...."), ImageError::Kind { .. }));
}

#[test]
fn numbers_go_on_above_those_of_another_shard() {
    let mut w = World::empty(3, FenceKind::Lease);
    w.floor = FLOOR + 1000;
    (1..=3).for_each(|n| w.start(n));
    w.pass(4 * LEASE);
    assert!((1..=3).all(|n| w.members(n) == [1, 2, 3] && w.seq(n) > FLOOR + 1000));
}

/// Nodes 1 and 2 have started again, and node 3, which acts in the last view, has been heard and is cut off.
fn heard_and_cut_off(fence: FenceKind) -> World {
    let mut w = World::new(3, fence);
    w.kill(1, Reason::ProcessDown);
    w.kill(2, Reason::ProcessDown);
    w.start(1);
    w.start(2);
    w.pass(LEASE / 16);
    w.hosts.get_mut(&NodeId(3)).unwrap().paused = true;
    w.partition(&[&[1, 2], &[3]]);
    w
}

/// `World` checks that node 3 acts no more when the others go on.
#[test]
fn a_first_view_waits_for_a_node_that_was_heard() {
    let mut w = heard_and_cut_off(FenceKind::Lease);
    assert_eq!(w.members(3), [1, 2, 3]);
    w.pass(LEASE);
    assert_eq!(w.members(1), []);
    w.pass(4 * LEASE);
    assert_eq!(w.members(1), [1, 2]);
}

#[test]
fn a_first_view_has_a_node_fenced_that_was_heard() {
    let mut w = heard_and_cut_off(FenceKind::Command);
    w.agents.clear();
    w.pass(12 * LEASE);
    assert_eq!((w.agents.as_slice(), w.members(1)), (&[NodeId(3)][..], vec![]));
    w.agent(3, true);
    w.pass(2 * LEASE);
    assert_eq!(w.members(1), [1, 2]);
}
