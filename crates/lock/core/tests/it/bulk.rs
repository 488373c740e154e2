//! A recovery of many locks is done in pieces: each call does a bounded part, messages are made
//! only when they can be sent, and the result is that of one big step.

use std::collections::BTreeMap;

use crate::common::Cluster;
use lockify_core::link::Weigh;
use lockify_core::{
    ClientId, Config, Input, LockArgs, Lockspace, Member, Message, Mode, Name, NodeId, Output,
    Policy, View,
};

const LOCKS: u32 = 100_000;
/// A link's limit before it is full, in bytes.
const WINDOW: usize = 256 * 1024;

/// Three nodes with a link of that window between each two.
struct Links {
    spaces: BTreeMap<NodeId, Lockspace>,
    wires: BTreeMap<(NodeId, NodeId), Vec<Message>>,
    /// The most messages that one call has sent.
    most_sent: usize,
    /// The most bytes that one link has had to carry.
    most_carried: usize,
}

impl Links {
    fn feed(&mut self, node: NodeId, input: Input) {
        let space = self.spaces.get_mut(&node).unwrap();
        space.handle(0, input).unwrap();
        let mut sent = 0;
        while let Some(output) = space.poll() {
            if let Output::Send { to, message } = output {
                sent += 1;
                self.wires.entry((node, to)).or_default().push(*message);
            }
        }
        self.most_sent = self.most_sent.max(sent);
        let carried = |wire: &Vec<Message>| wire.iter().map(Weigh::weight).sum();
        self.most_carried = self.wires.values().map(carried).fold(self.most_carried, usize::max);
    }

    fn full(&self, node: NodeId) -> Vec<NodeId> {
        let full = |wire: &Vec<Message>| wire.iter().map(Weigh::weight).sum::<usize>() > WINDOW;
        let wires = self.wires.iter().filter(|((from, _), wire)| *from == node && full(wire));
        wires.map(|((_, to), _)| *to).collect()
    }

    /// Every node works as long as its links take something; then everything arrives.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            let nodes: Vec<NodeId> = self.spaces.keys().copied().collect();
            let mut rest = true;
            for &node in &nodes {
                let full = self.full(node);
                if self.spaces[&node].has_work(&full) {
                    rest = false;
                    self.feed(node, Input::Work { full });
                }
            }
            let stuck = nodes.iter().all(|n| !self.spaces[n].has_work(&self.full(*n)));
            if stuck {
                let wires = std::mem::take(&mut self.wires);
                for ((from, to), wire) in wires {
                    for message in wire {
                        rest = false;
                        if self.spaces.contains_key(&to) {
                            self.feed(to, Input::Receive { from, message });
                        }
                    }
                }
            }
            if rest {
                return;
            }
        }
        panic!("never comes to rest");
    }

    fn view(&mut self, seq: u64) {
        let member = |&node| Member { node, incarnation: 1, weight: 1 };
        let view = View { seq, members: self.spaces.keys().map(member).collect() };
        for node in self.spaces.keys().copied().collect::<Vec<_>>() {
            self.feed(node, Input::View(view.clone()));
        }
        self.settle();
    }
}

fn name(i: u32) -> Name {
    Name::new(i.to_be_bytes()).unwrap()
}

/// A call for a name, in a mode that excludes everybody else.
fn exclusive(client: u32, i: u32) -> Input {
    let client = ClientId(u64::from(client));
    Input::Lock { client, args: LockArgs::new(name(i), Mode::EX) }
}

/// Three nodes in their first view.
fn three(policy: Policy) -> Links {
    let space = |n| (NodeId(n), Lockspace::new(Config::new(NodeId(n), 1, policy)));
    let spaces = (1..=3).map(space).collect();
    let mut links = Links { spaces, wires: BTreeMap::new(), most_sent: 0, most_carried: 0 };
    links.view(1);
    links
}

/// Node 1's client has all locks; with `Home` each third of them has another master.
fn many_locks(policy: Policy) -> Links {
    let mut links = three(policy);
    for i in 0..LOCKS {
        links.feed(NodeId(1), exclusive(1, i));
        if i % 512 == 0 {
            links.settle();
        }
    }
    links.settle();
    (links.most_sent, links.most_carried) = (0, 0);
    links
}

#[test]
fn a_recovery_of_many_locks_is_done_in_pieces() {
    for policy in [Policy::Directory, Policy::Home] {
        let mut links = many_locks(policy);
        links.spaces.remove(&NodeId(3));
        links.view(2);
        assert!(links.spaces.values().all(Lockspace::is_running), "{}", policy.name());
        // Two members: a piece is of 1024 resources, so that few messages are full.
        assert!(links.most_sent <= 64, "{}: {} messages", policy.name(), links.most_sent);
        let most = WINDOW + 64 * 1024;
        assert!(links.most_carried <= 2 * most, "{}: {}", policy.name(), links.most_carried);
        held(&links, policy);
    }
}

/// Locks of one name that move to a new master: each message looks through the queue once, not each lock.
#[test]
fn many_waiters_of_one_name_move_to_another_master() {
    const NAMES: u32 = 16;
    const WAITERS: u32 = 1500;
    let mut links = three(Policy::Home);
    // Of these names some get another master when the number of nodes changes.
    for client in 0..WAITERS {
        for i in 0..NAMES {
            links.feed(NodeId(1), exclusive(client, i));
        }
        if client % 64 == 0 {
            links.settle();
        }
    }
    links.settle();
    let master = |links: &Links, i| links.spaces[&NodeId(1)].resource(&name(i)).unwrap().master;
    let masters: Vec<Option<NodeId>> = (0..NAMES).map(|i| master(&links, i)).collect();
    let before = links.spaces[&NodeId(2)].queue_visits();
    links.spaces.remove(&NodeId(3));
    links.view(2);
    let moves = |i: &u32| {
        let now = master(&links, *i);
        now == Some(NodeId(2)) && now != masters[*i as usize]
    };
    let moved = (0..NAMES).filter(moves).count() as u64;
    assert!(moved > 0, "no name has moved to node 2");
    let visits = links.spaces[&NodeId(2)].queue_visits() - before;
    let (n, messages) = (u64::from(WAITERS), u64::from(WAITERS.div_ceil(64)));
    // On average half of them are there when a message comes; granting looks at each a few times.
    let (looks, names) = (n * (messages / 2), u64::from(NAMES));
    assert!(visits <= moved * looks + 8 * names * n, "{visits} visits, {moved} names moved");
    for space in links.spaces.values() {
        assert!(space.defects().is_empty());
    }
}

/// Every lock is still held, and known where it must be.
fn held(links: &Links, policy: Policy) {
    let owner = &links.spaces[&NodeId(1)];
    assert_eq!(owner.held().filter(|(_, mode, _)| *mode == Mode::EX).count(), LOCKS as usize);
    for i in (0..LOCKS).step_by(997) {
        let master = owner.resource(&name(i)).unwrap().master.unwrap();
        let there = links.spaces[&master].resource(&name(i)).unwrap();
        assert_eq!(there.locks.len(), 1, "{}: name {i}", policy.name());
    }
    for space in links.spaces.values() {
        assert!(space.defects().is_empty());
    }
}

#[test]
fn a_view_in_the_midst_of_a_recovery_begins_it_again() {
    for policy in [Policy::Directory, Policy::Home] {
        let mut links = many_locks(policy);
        links.spaces.remove(&NodeId(3));
        let member = |&node| Member { node, incarnation: 1, weight: 1 };
        let members: Vec<Member> = links.spaces.keys().map(member).collect();
        for seq in 2..40 {
            for node in [NodeId(1), NodeId(2)] {
                let view = View { seq, members: members.clone() };
                links.feed(node, Input::View(view));
                // As far as it comes until the next view.
                for _ in 0..3 * seq {
                    let full = links.full(node);
                    links.feed(node, Input::Work { full });
                }
            }
            if seq % 3 == 0 {
                links.settle();
            }
        }
        links.settle();
        held(&links, policy);
    }
}

#[test]
fn nothing_is_sent_to_a_link_that_is_full() {
    let mut links = many_locks(Policy::Directory);
    links.spaces.remove(&NodeId(3));
    links.view_unsettled(2);
    let before = links.spaces[&NodeId(1)].stats().messages_sent;
    let full = vec![NodeId(2)];
    for _ in 0..10_000 {
        if !links.spaces[&NodeId(1)].has_work(&full) {
            break;
        }
        links.feed(NodeId(1), Input::Work { full: full.clone() });
    }
    assert!(!links.spaces[&NodeId(1)].has_work(&full));
    let sent = links.spaces[&NodeId(1)].stats().messages_sent - before;
    assert!(sent <= 2, "{sent} messages");
    links.settle();
    held(&links, Policy::Directory);
}

impl Links {
    fn view_unsettled(&mut self, seq: u64) {
        let member = |&node| Member { node, incarnation: 1, weight: 1 };
        let view = View { seq, members: self.spaces.keys().map(member).collect() };
        for node in self.spaces.keys().copied().collect::<Vec<_>>() {
            self.feed(node, Input::View(view.clone()));
        }
    }
}

#[test]
fn the_locks_of_a_client_that_is_gone_are_released_in_pieces() {
    let mut links = many_locks(Policy::Home);
    links.feed(NodeId(1), Input::ClientGone(ClientId(1)));
    links.settle();
    assert!(links.most_sent <= 2048, "{} messages", links.most_sent);
    assert_eq!(links.spaces[&NodeId(1)].own_lock_count(), 0);
    assert!(links.spaces.values().all(|s| s.lock_count() == 0 && s.defects().is_empty()));
}

/// Operations that have waited for the gate are served in pieces, in the order in which they came.
#[test]
fn what_waited_for_the_gate_is_served_in_pieces() {
    let mut c = Cluster::new(2, Policy::Directory);
    c.nodes.values_mut().for_each(|s| assert!(s.is_running()));
    let view = View { seq: 50, members: c.nodes[&NodeId(1)].view().members.clone() };
    c.input(NodeId(1), Input::View(view.clone())).unwrap();
    for i in 0..10_000_u32 {
        let args = LockArgs { tag: u64::from(i), ..LockArgs::new(name(i % 5_000), Mode::EX) };
        c.input(NodeId(1), Input::Lock { client: ClientId(7), args }).unwrap();
    }
    c.input(NodeId(2), Input::View(view)).unwrap();
    c.run();
    let mut pieces = 0;
    while c.nodes.values().any(|s| s.has_work(&[])) {
        pieces += 1;
        for node in [NodeId(1), NodeId(2)] {
            c.input(node, Input::Work { full: Vec::new() }).unwrap();
        }
        c.run();
    }
    assert!(pieces >= 3, "{pieces}");
    let granted: Vec<u64> = c
        .told
        .iter()
        .filter_map(|(_, o)| match o {
            Output::Complete(done) => Some(done.tag),
            _ => None,
        })
        .collect();
    // The first of each name, not the one that came 5000 calls later.
    assert_eq!(granted.len(), 5_000);
    assert!(granted.iter().all(|tag| *tag < 5_000));
}
