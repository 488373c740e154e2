//! Slow peers, broken connections, and shards.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::*;
use lockify_core::{ClaimMode, Input, LockArgs, LockFlags, Mode, NodeId, Policy, Status};
use lockify_node::{
    CallError, HostEvent, NodeAddress, NodeConfig, NodeEngine, ShardGroup, SpaceConfig, SpaceId,
    StateDir,
};

#[test]
fn a_peer_that_does_not_keep_up_stops_new_locks_until_it_does() {
    const BACKLOG: usize = 64;
    let (mut c, listeners) = Cluster::empty(2);
    (c.policy, c.lease) = (Policy::Home, LONG);
    for (i, listener) in listeners.into_iter().enumerate() {
        let mut config = c.config(i);
        (config.listener, config.backlog) = (Some(listener), BACKLOG);
        c.start_with(i, config);
    }
    c.wait("the lockspace", |c| c.runs_with(&[0, 1]));
    let slow = c.nodes[1].engine.take();
    let space = c.nodes[0].space;
    let mut ids = Vec::new();
    let refused = loop {
        assert!(ids.len() < 100 * BACKLOG, "the backlog has no limit");
        match c.engine(0).handle(space, lock(&format!("r{}", ids.len()), Mode::EX)) {
            Ok(id) => ids.push(id.unwrap()),
            Err(e) => break e,
        }
    };
    assert_eq!(refused, CallError::WouldBlock(NodeId(2)));
    assert!(c.engine(0).congested());
    // Requests that return locks are still accepted.
    let granted = |c: &Cluster| ids.iter().copied().find(|&id| c.completion(0, id).is_some());
    c.turn();
    let local = granted(&c).expect("half of the names have their home here");
    c.call(0, unlock(local));
    c.nodes[1].engine = slow;
    c.wait("the backlog to drain", |c| {
        c.saw(0, |e| *e == HostEvent::Congested { peer: NodeId(2), congested: false })
    });
    assert!(!c.engine(0).congested());
    c.wait("every grant", |c| ids.iter().all(|&id| c.completion(0, id).is_some()));
    c.lock(0, "one more", Mode::EX);
}

/// Forwards connections, and can break them all.
struct Proxy {
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn start(from: TcpListener, to: SocketAddr) -> Proxy {
        let streams = Arc::new(Mutex::new(Vec::new()));
        let all = streams.clone();
        std::thread::spawn(move || {
            while let Ok((a, _)) = from.accept() {
                let Ok(b) = TcpStream::connect(to) else { continue };
                for (from, to) in [(&a, &b), (&b, &a)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    all.lock().unwrap().push(from.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let mut buffer = [0; 777];
                        while let Ok(n @ 1..) = from.read(&mut buffer) {
                            if to.write_all(&buffer[..n]).is_err() {
                                return;
                            }
                        }
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        Proxy { streams }
    }

    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

#[test]
fn broken_connections_lose_and_double_nothing() {
    let (mut c, mut listeners) = Cluster::empty(2);
    (c.policy, c.lease) = (Policy::Home, LONG);
    // Node 1 dials node 2; between them is a proxy at the address of the list.
    let behind = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(listeners.pop().unwrap(), behind.local_addr().unwrap());
    c.start(0, listeners.pop());
    c.start(1, Some(behind));
    c.wait("the lockspace", |c| c.runs_with(&[0, 1]));
    let before = c.engine(0).status();
    for round in 0..20 {
        let call = |c: &mut Cluster, i: usize| -> Vec<_> {
            let name = |k: usize| format!("r{round}-{i}-{k}");
            (0..40).map(|k| c.call(i, lock(&name(k), Mode::EX)).unwrap()).collect()
        };
        let ids = [call(&mut c, 0), call(&mut c, 1)];
        (0..round % 4).for_each(|_| c.turn());
        proxy.cut();
        c.wait("every grant", |c| {
            (0..2).all(|i| ids[i].iter().all(|&id| c.completion(i, id).is_some()))
        });
        for (i, ids) in ids.into_iter().enumerate() {
            for id in ids {
                let done = |e: &&HostEvent| matches!(e, HostEvent::Completed { completion, .. } if completion.lock == id);
                assert_eq!(c.nodes[i].events.iter().filter(done).count(), 1);
                assert_eq!(c.completion(i, id).unwrap().0, Status::Granted);
                c.call(i, unlock(id));
            }
        }
        c.turn();
        c.nodes.iter_mut().for_each(|n| n.events.clear());
    }
    let after = c.engine(0).status();
    assert_eq!((before.view, before.incarnation), (after.view, after.incarnation));
    assert!(c.engine(0).stats().connections > 2, "nothing was broken");
    assert!(c.engine(0).stats().resent + c.engine(1).stats().resent > 0, "nothing was on the way");
}

/// Listeners at ports that follow each other, as shards use them.
fn shard_listeners(shards: usize) -> Vec<TcpListener> {
    for _ in 0..1000 {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        let rest =
            (1..shards as u16).map(|i| TcpListener::bind(("127.0.0.1", port.checked_add(i)?)).ok());
        if let Some(rest) = rest.collect::<Option<Vec<_>>>() {
            return std::iter::once(first).chain(rest).collect();
        }
    }
    panic!("no two free ports side by side");
}

#[test]
fn an_unlock_waits_for_the_claims_of_the_other_shards() {
    let all: Vec<_> = (0..2).map(|_| shard_listeners(2)).collect();
    let list: Vec<NodeAddress> = (1..)
        .zip(&all)
        .map(|(i, l)| NodeAddress { node: NodeId(i), address: l[0].local_addr().unwrap() })
        .collect();
    // engines[node][shard]
    let mut engines: Vec<Vec<(NodeEngine, SpaceId)>> = Vec::new();
    for (i, listeners) in all.into_iter().enumerate() {
        let group = ShardGroup::new(2);
        let start = |(shard, listener)| {
            let mut config = NodeConfig::new("test", list[i].node, list.clone());
            config.state_dir = StateDir::Memory;
            (config.listener, config.lease) = (Some(listener), LONG);
            (config.shard, config.shard_index) = (Some(group.clone()), shard);
            let mut engine = NodeEngine::new(config).unwrap();
            let policy = Policy::Claim(ClaimMode::Optimistic);
            let space = engine.join("s", SpaceConfig::new(policy)).unwrap();
            (engine, space)
        };
        engines.push((0..).zip(listeners).map(start).collect());
    }
    let mut events = Vec::new();
    let turn = |e: &mut (NodeEngine, SpaceId), events: &mut Vec<HostEvent>| {
        e.0.run_once(Some(Duration::from_micros(200)), events).unwrap();
    };
    let start = Instant::now();
    while !engines.iter().flatten().all(|(e, s)| e.is_running(*s)) {
        assert!(start.elapsed() < LONG, "the shards do not find each other");
        engines.iter_mut().flatten().for_each(|e| turn(e, &mut events));
    }
    // A lock in shard 1 of node 1.
    let (engine, space) = &mut engines[0][1];
    let space = *space;
    let parent = engine.handle(space, lock("parent", Mode::EX)).unwrap().unwrap();
    let completed = |events: &[HostEvent], wanted: Status| {
        events.iter().any(|e| {
            matches!(e, HostEvent::Completed { completion: c, .. }
                if c.lock == parent && c.tag < 3 && c.status == wanted)
        })
    };
    events.clear();
    while !completed(&events, Status::Granted) {
        assert!(start.elapsed() < LONG, "no grant");
        engines.iter_mut().for_each(|shards| turn(&mut shards[1], &mut events));
    }
    // Claims in shard 0 of node 1, whose directory does not answer: shard 0 of node 2 stands still.
    let (engine, other) = &mut engines[0][0];
    for k in 0..16 {
        let Input::Lock { client, args } = lock(&format!("new{k}"), Mode::EX) else {
            unreachable!()
        };
        let args = LockArgs { tag: 9, flags: LockFlags::NOTIFY, ..args };
        engine.handle(*other, Input::Lock { client, args }).unwrap();
    }
    assert!(engine.status().spaces[0].unsettled_claims > 0);
    engines[0][1].0.handle(space, unlock(parent)).unwrap();
    assert_eq!(
        engines[0][1].0.handle(space, convert(parent, Mode::NL)),
        Err(CallError::Lock(lockify_core::Error::Busy))
    );
    for _ in 0..200 {
        turn(&mut engines[0][0], &mut events);
        turn(&mut engines[0][1], &mut events);
        turn(&mut engines[1][1], &mut events);
    }
    assert!(!completed(&events, Status::Unlocked), "unlocked with a claim unsettled");
    while !completed(&events, Status::Unlocked) {
        assert!(start.elapsed() < LONG, "never unlocked");
        engines.iter_mut().flatten().for_each(|e| turn(e, &mut events));
    }
    assert_eq!(engines[0][0].0.status().spaces[0].unsettled_claims, 0);
}

/// Strangers that connect and say nothing do not hold anybody up.
#[test]
fn a_stranger_that_says_nothing_is_dropped() {
    let mut c = Cluster::new(2);
    let mut strangers = Vec::new();
    for _ in 0..100 {
        strangers.push(TcpStream::connect(c.address(0)).unwrap());
        // Or the queue of connections that wait to be accepted overflows.
        c.turn();
    }
    c.lock(1, "still", Mode::EX);
    let mut gone = |c: &mut Cluster| {
        c.turn();
        strangers.retain_mut(|s| {
            s.set_nonblocking(true).unwrap();
            !matches!(s.read(&mut [0]), Ok(0))
                && !matches!(s.read(&mut [0]), Err(e) if e.kind() != ErrorKind::WouldBlock)
        });
        strangers.is_empty()
    };
    let start = Instant::now();
    while !gone(&mut c) {
        assert!(start.elapsed() < LONG, "strangers stay");
    }
    assert!(c.noticed(0, &["too many connections"]));
}
