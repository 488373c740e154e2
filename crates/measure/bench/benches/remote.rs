//! A lock and unlock at a remote master, embedded on both sides, against bare TCP ping-pongs of
//! the same number of round trips, on loopback. Prints result rows.
//!
//! Both sides are threads of this process, as the two sides of the ping-pong are. A lock is one
//! round trip, and an unlock is one; rounds alternate, and the medians are compared.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockify_core::{
    ClientId, Input, LockArgs, Mode, Name, NodeId, Policy, UnlockArgs, UnlockFlags,
};
use lockify_node::{
    HostEvent, NodeAddress, NodeConfig, NodeEngine, SpaceConfig, SpaceId, StateDir,
};

const ROUNDS: usize = 9;
const PAIRS: u32 = 5_000;

fn node(id: u32, list: &[NodeAddress], listener: TcpListener) -> (NodeEngine, SpaceId) {
    let mut config = NodeConfig::new("bench", NodeId(id), list.to_vec());
    config.state_dir = StateDir::Memory;
    config.listener = Some(listener);
    let mut engine = NodeEngine::new(config).expect("a node");
    let space = engine.join("s", SpaceConfig::new(Policy::Home)).expect("a lockspace");
    (engine, space)
}

fn done(engine: &mut NodeEngine, events: &mut Vec<HostEvent>) {
    loop {
        let completed = events.iter().any(|e| matches!(e, HostEvent::Completed { .. }));
        events.clear();
        if completed {
            return;
        }
        engine.run_once(None, events).expect("a turn");
    }
}

fn pair(engine: &mut NodeEngine, space: SpaceId, name: Name, events: &mut Vec<HostEvent>) {
    let client = ClientId(1);
    let lock = engine
        .handle(space, Input::Lock { client, args: LockArgs::new(name, Mode::EX) })
        .expect("a lock")
        .expect("its id");
    done(engine, events);
    let flags = UnlockFlags::empty();
    let unlock = UnlockArgs { client, lock, tag: 0, flags, lvb: None };
    engine.handle(space, Input::Unlock(unlock)).expect("an unlock");
    done(engine, events);
}

/// A stream to a thread that echoes its input.
fn echo() -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("a stream");
    stream.set_nodelay(true).expect("no delay");
    std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().expect("a peer");
        peer.set_nodelay(true).expect("no delay");
        let mut buffer = [0; 256];
        while let Ok(n @ 1..) = peer.read(&mut buffer) {
            if peer.write_all(&buffer[..n]).is_err() {
                return;
            }
        }
    });
    stream
}

/// Nanoseconds of one round of `PAIRS`.
fn time(mut once: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..PAIRS).for_each(|_| once());
    start.elapsed().as_nanos() as f64 / f64::from(PAIRS)
}

fn main() {
    let listeners: Vec<_> =
        (0..2).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    let list: Vec<_> = (1..)
        .zip(&listeners)
        .map(|(i, l)| NodeAddress { node: NodeId(i), address: l.local_addr().expect("an address") })
        .collect();
    let mut listeners = listeners.into_iter();
    let (mut engine, space) = node(1, &list, listeners.next().expect("two"));
    let (mut other, _) = node(2, &list, listeners.next().expect("two"));
    let stop = Arc::new(AtomicBool::new(false));
    let peer = std::thread::spawn({
        let stop = stop.clone();
        move || {
            let mut events = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                other.run_once(Some(Duration::from_secs(1)), &mut events).expect("a turn");
                events.clear();
            }
        }
    });
    let mut events = Vec::new();
    while !engine.is_running(space) {
        engine.run_once(Some(Duration::from_millis(10)), &mut events).expect("a turn");
    }
    events.clear();
    // A name whose home is the other node: locking it costs messages.
    let sent = |e: &NodeEngine| e.space_stats(space).expect("joined").messages_sent;
    let name = (0..)
        .map(|i| Name::new(format!("bench {i}")).expect("a name"))
        .find(|&name| {
            let before = sent(&engine);
            pair(&mut engine, space, name, &mut events);
            sent(&engine) > before
        })
        .expect("half of all names");
    let mut stream = echo();
    let mut buffer = [7; 64];
    let (mut locks, mut pings) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        pings.push(time(|| {
            for _ in 0..2 {
                stream.write_all(&buffer).expect("written");
                stream.read_exact(&mut buffer).expect("read");
            }
        }));
        locks.push(time(|| pair(&mut engine, space, name, &mut events)));
    }
    let ratios: Vec<f64> = locks.iter().zip(&pings).map(|(l, p)| l / p).collect();
    let us = |values: &[f64]| values.iter().map(|v| v / 1000.0).collect::<Vec<_>>();
    let row = |what: &str, metric: &str, unit: &str, rounds: &[f64]| {
        println!(
            "{{\"bench\":\"remote\",\"case\":{{\"what\":\"{what}\"}},\"metric\":\"{metric}\",\
             \"unit\":\"{unit}\",\"value\":{:.3},\"rounds\":{rounds:.3?},\"published\":null}}",
            lockify_report::median(rounds.iter().copied())
        );
    };
    row("two TCP ping-pongs", "latency_us", "us", &us(&pings));
    row("remote lock and unlock", "latency_us", "us", &us(&locks));
    row("lock over ping-pong", "ratio", "1", &ratios);
    eprintln!("{:?}", engine.stats());
    stop.store(true, Ordering::Relaxed);
    engine.goodbye();
    peer.join().expect("the peer");
}
