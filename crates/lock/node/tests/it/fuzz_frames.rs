//! One fuzz target for each decoder, run on the stable toolchain: seeded random bytes and
//! mutations of valid ones for `LOCKIFY_FUZZ_SECONDS` (default 2) each. A failure prints the seed
//! of the run; `LOCKIFY_FUZZ_SEED` replays it.

use std::time::{Duration, Instant};

use lockify_core::link::Hello;
use lockify_core::message::{Ask, Body, Features, MovedLock, NewLock, Sight, Step};
use lockify_core::waits::Edge;
use lockify_core::{
    ClientId, LockFlags, LockId, LockInfo, Member, Message, Mode, Name, NodeId, Policy, Queue,
    ResourceInfo, View, Wait,
};
use lockify_node::membership::{
    Action, Event, LogConfig, LogMembership, LogWord, Membership, NodeEntry, SpaceJoin, SpaceKeys,
    Vote,
};
use lockify_node::wire::{
    Greeting, GreetingError, Introduction, MAX_FRAME, Packet, Part, Payload, SPOKEN,
    decode_greeting, decode_packet, encode_greeting, encode_packet,
};
use lockify_node::{FenceKind, NodeView, PageOf, Query, Rest, Software, SpaceView};
use lockify_trust::frame::{BadFrame, PREFIX};

/// Pseudo-random numbers (xorshift64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let n = self.below(most + 1);
        (0..n).map(|_| self.next() as u8).collect()
    }
    /// A valid input with some bytes changed, inserted, removed or repeated; or noise.
    fn mutate(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        if self.below(8) == 0 {
            return self.bytes(300);
        }
        let mut b = corpus[self.below(corpus.len())].clone();
        for _ in 0..1 + self.below(4) {
            let at = self.below(b.len());
            match self.below(6) {
                0 | 1 if !b.is_empty() => b[at] = self.next() as u8,
                2 if !b.is_empty() => b[at] ^= 1 << self.below(8),
                3 => b.insert(at, [0, 0x7f, 0x80, 0xff][self.below(4)]),
                4 => b.truncate(at),
                _ => b.extend_from_within(at.min(b.len())..),
            }
        }
        b
    }
}

/// Runs a target until its time is over; at least some thousand inputs.
fn fuzz(corpus: &[Vec<u8>], mut target: impl FnMut(&[u8])) {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse().ok());
    let time = Duration::from_secs(number("LOCKIFY_FUZZ_SECONDS").unwrap_or(2));
    let start = Instant::now();
    let seed = number("LOCKIFY_FUZZ_SEED").unwrap_or(start.elapsed().as_nanos() as u64 ^ 0x5eed);
    for round in 0.. {
        if round >= 5 && start.elapsed() > time {
            return;
        }
        let seed = seed.wrapping_add(round);
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let run = std::panic::AssertUnwindSafe(|| {
            for _ in 0..1000 {
                target(&random.mutate(corpus));
            }
        });
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("replay with LOCKIFY_FUZZ_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

fn name() -> Name {
    Name::new("a resource").unwrap()
}

fn keys() -> SpaceKeys {
    SpaceKeys { policy: Policy::Home, lvb_len: 32 }
}

fn view() -> NodeView {
    let member = |n| Member { node: NodeId(n), incarnation: 77, weight: 1 };
    let view = View { seq: 1_700_000_000, members: vec![member(1), member(2)] };
    let spaces = vec![SpaceView { name: "s".into(), keys: keys(), view: view.clone() }];
    NodeView { seq: 1_700_000_001, members: view.members, spaces }
}

fn resource() -> ResourceInfo {
    let lock = LockInfo {
        node: NodeId(2),
        client: Some(ClientId(3)),
        lock: LockId(4),
        queue: Queue::Waiting,
        granted: None,
        requested: Some(Mode::PR),
        token: 0,
        since: 1 << 50,
        wait: Wait::Answer(NodeId(1)),
        op: 5,
        flags: LockFlags::NODLCKBLK,
        transaction: 6,
    };
    ResourceInfo {
        name: name(),
        master: Some(NodeId(1)),
        claim_pending: false,
        locks: vec![lock; 2],
        lvb: None,
        lvb_invalid: false,
    }
}

fn edge() -> Edge {
    let (waiter, blocker) = ((NodeId(2), LockId(3)), (NodeId(4), LockId(5)));
    Edge { name: name(), master: NodeId(1), waiter, blocker }
}

fn packets() -> Vec<Packet> {
    let ask = Ask {
        lkid: LockId(1 << 40),
        op: 3,
        mode: Mode::EX,
        flags: LockFlags::VALBLK,
        lvb: Some(vec![1; 32].into()),
    };
    let new = NewLock { name: name(), ask, bast: true, client: Some(ClientId(1)), transaction: 7 };
    let moved = MovedLock {
        name: name(),
        lkid: LockId(5),
        client: Some(ClientId(6)),
        op: 4,
        granted: Some(Mode::PR),
        granted_unknown: false,
        requested: None,
        flags: LockFlags::empty(),
        bast: false,
        lvb: None,
        lvb_seq: 0,
        lvb_current: true,
        since: 1 << 50,
        transaction: 0,
    };
    let features = Features { claims: true, family: 1, lvb_len: 32, established: true };
    let bodies = [
        Body::Lookup { new: new.clone(), id: 9 },
        Body::Request(new),
        Body::Claims(vec![(name(), 1); 20]),
        Body::Moved(vec![moved; 3]),
        Body::Reached { step: Step::Locks, features },
        Body::Adopted(vec![(name(), NodeId(3))]),
        Body::Waits { round: 1, now: 9, resources: vec![resource()], last: true },
        Body::Witness { round: 2, edges: vec![edge(); 2] },
        Body::Witnessed { round: 3, sights: vec![None, Some(Sight::default())] },
        Body::Victim { lkid: LockId(5), op: 6 },
    ];
    let data = |payload| Packet::Data { seq: 300, ack: 299, payload };
    let lock =
        |body| data(Payload::Lock { space: 1, message: Message { view: 8, clock: 7, body } });
    let mut all: Vec<Packet> = bodies.into_iter().map(lock).collect();
    all.push(data(Payload::Open { space: 1, name: "s".into() }));
    all.push(Packet::Ack { ack: 5 });
    all.push(Packet::Ask { id: 1, query: Query::Who { space: "s".into(), name: name() } });
    all.push(Packet::Vote(Vote::Install { view: view(), stamps: vec![1, 2] }));
    all.push(Packet::Vote(Vote::Propose { view: view(), base: 3 }));
    let software = Software {
        release: "1.2.3".into(),
        oldest: 3,
        newest: 4,
        spoken: vec![(NodeId(2), 3), (NodeId(300), 4)],
    };
    all.push(Packet::Tell { id: 1, part: Part::Resources(vec![resource()]), last: false });
    all.push(Packet::Tell { id: 1, part: Part::Software(software), last: true });
    all.push(Packet::Ask {
        id: 1,
        query: Query::Page(PageOf {
            space: "s".into(),
            after: Some(name()),
            limit: 7,
            waited: true,
        }),
    });
    all.push(Packet::Tell {
        id: 1,
        part: Part::Rest(Rest { goes_on: true, more: 3, locks: 1 }),
        last: true,
    });
    all
}

fn frames() -> Vec<Vec<u8>> {
    let frame = |p: &Packet| {
        let mut bytes = Vec::new();
        encode_packet(&mut bytes, p).unwrap();
        bytes
    };
    packets().iter().map(frame).collect()
}

/// A frame with these contents.
fn framed(content: &[u8]) -> Vec<u8> {
    [&(content.len() as u32).to_le_bytes(), content].concat()
}

#[test]
fn packets_come_back_as_they_were() {
    for (packet, bytes) in packets().into_iter().zip(frames()) {
        assert_eq!(decode_packet(&bytes), Ok(Some((packet, bytes.len()))));
        for cut in 0..bytes.len() {
            assert_eq!(decode_packet(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
        let content = &bytes[PREFIX..];
        for cut in 0..content.len() {
            let decoded = decode_packet(&framed(&content[..cut]));
            assert!(matches!(decoded, Err(BadFrame::NoValue { .. })));
        }
    }
}

/// Nodes of other releases read these bytes: a change of them needs a new version, in which the old
/// ones stay (docs/compatibility.md). For packets that are added on purpose, run this with
/// `LOCKIFY_GOLDEN` set.
#[test]
fn packets_keep_their_bytes() {
    let hex = |bytes: &Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>() + "\n";
    let text: String = frames().iter().map(hex).collect();
    if std::env::var_os("LOCKIFY_GOLDEN").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/packets.txt");
        std::fs::write(path, &text).unwrap();
        return;
    }
    for (i, (now, then)) in
        text.lines().zip(include_str!("../golden/packets.txt").lines()).enumerate()
    {
        assert_eq!(now, then, "{:?}", packets()[i]);
    }
    assert_eq!(text, include_str!("../golden/packets.txt"));
}

#[test]
fn a_packet_that_is_too_long_is_not_written() {
    let mut bytes = vec![1, 2, 3];
    let payload = Payload::Open { space: 1, name: "x".repeat(MAX_FRAME) };
    assert!(encode_packet(&mut bytes, &Packet::Data { seq: 1, ack: 0, payload }).is_err());
    assert_eq!(bytes, [1, 2, 3]);
}

#[test]
fn target_frames() {
    fuzz(&frames(), |bytes| {
        let length = bytes.first_chunk().map(|p| u32::from_le_bytes(*p) as usize);
        match decode_packet(bytes) {
            Ok(Some((_, used))) => assert!(length == Some(used - PREFIX) && used <= bytes.len()),
            Ok(None) => assert!(length.is_none_or(|n| n <= MAX_FRAME && n + PREFIX > bytes.len())),
            Err(BadFrame::TooLong { length: n, .. }) => {
                assert!(n > MAX_FRAME && length == Some(n));
            }
            Err(_) => {}
        }
    });
}

#[test]
fn target_packets() {
    let bodies: Vec<Vec<u8>> = frames().iter().map(|f| f[PREFIX..].to_vec()).collect();
    fuzz(&bodies, |bytes| {
        // Whatever is accepted means the same when it is said again.
        if let Ok(Some((packet, _))) = decode_packet(&framed(bytes)) {
            let mut again = Vec::new();
            encode_packet(&mut again, &packet).unwrap();
            assert_eq!(decode_packet(&again), Ok(Some((packet, again.len()))));
        }
    });
}

#[test]
fn target_greetings() {
    let introduction = Introduction {
        cluster: "cluster".into(),
        node: NodeId(1),
        to: NodeId(2),
        shard: 0,
        shards: 1,
        membership: 1 << 60,
        newest: 4,
        link: Hello { from: 1 << 60, to: Some(2), received: 3 },
        oldest: 3,
    };
    let corpus: Vec<Vec<u8>> =
        [Greeting::Introduction(introduction), Greeting::Refusal("no, because".into())]
            .iter()
            .map(|g| {
                let mut bytes = Vec::new();
                encode_greeting(&mut bytes, g);
                assert_eq!(decode_greeting(&bytes), Ok(Some((g.clone(), bytes.len()))));
                (0..bytes.len()).for_each(|n| assert_eq!(decode_greeting(&bytes[..n]), Ok(None)));
                bytes
            })
            .collect();
    fuzz(&corpus, |bytes| match decode_greeting(bytes) {
        Ok(Some((Greeting::Refusal(text), used))) => {
            assert!(used <= bytes.len() && !text.contains(|c: char| c.is_control()));
        }
        Ok(Some((_, used))) => assert!(used <= bytes.len()),
        Ok(None) => assert!(bytes.len() < 15 + 4096),
        Err(GreetingError::Version(v)) => {
            assert!(!(SPOKEN.oldest..=SPOKEN.newest).contains(&v));
        }
        Err(_) => {}
    });
}

const MS: u64 = 1_000_000;

/// Node `node` of three, as its file has them.
fn log_config(node: u32) -> LogConfig {
    let entry = |n| (NodeId(n), NodeEntry { address: format!("host{n}:1"), voter: true });
    LogConfig {
        cluster: "cluster".into(),
        node: NodeId(node),
        weight: 1,
        nodes: (1..=3).map(entry).collect(),
        lease: Some(1000 * MS),
        fence: Some(FenceKind::Lease),
        shards: 1,
        heartbeat: None,
        floor: 0,
        seed: u64::from(node),
    }
}

/// The messages of three nodes until they have a view. Then, a node's state on disk, and its peers' first messages.
#[derive(Default)]
struct Talk {
    said: Vec<(NodeId, NodeId, Vote)>,
    image: Vec<u8>,
}

impl Talk {
    fn new() -> Talk {
        let mut talk = Talk::default();
        let mut nodes: Vec<LogMembership> =
            (1..=3).map(|n| LogMembership::new(log_config(n), None, 0).unwrap()).collect();
        (1..=3).for_each(|node| talk.meet(&mut nodes, node, 0));
        let mut heard = 0;
        for now in (1..).map(|step| step * 10 * MS) {
            nodes.iter_mut().for_each(|n| n.handle(now, 1, Event::Tick));
            (1..=3).for_each(|node| talk.act(&mut nodes, node, now));
            // Answers come behind, and are heard in their turn.
            while let Some((from, to, vote)) = talk.said.get(heard).cloned() {
                heard += 1;
                assert!(heard < 100_000, "the nodes answer each other for ever");
                nodes[to.0 as usize - 1].handle(now, 1, Event::Vote { from, vote });
                talk.act(&mut nodes, to.0, now);
            }
            if nodes.iter().all(|n| n.view().is_some_and(|v| v.members.len() == 3)) {
                return talk;
            }
            assert!(now < 60_000 * MS, "three nodes never had a view");
        }
        unreachable!("the loop above ends")
    }

    fn act(&mut self, nodes: &mut [LogMembership], node: u32, now: u64) {
        while let Some(action) = nodes[node as usize - 1].poll() {
            match action {
                Action::Send { to, vote } => self.said.push((NodeId(node), to, vote)),
                Action::Persist { number, image } => {
                    if node == 1 {
                        self.image = image;
                    }
                    let success = true;
                    nodes[node as usize - 1].handle(now, 1, Event::Persisted { number, success });
                }
                Action::Reconnect => self.meet(nodes, node, now),
                _ => {}
            }
        }
    }

    /// A node connects to the others, under what it is now.
    fn meet(&mut self, nodes: &mut [LogMembership], node: u32, now: u64) {
        for other in (1..=3).filter(|other| *other != node) {
            for (of, to) in [(node, other), (other, node)] {
                let life = nodes[to as usize - 1].identity();
                let service = &mut nodes[of as usize - 1];
                service.handle(now, 1, Event::Disconnected { node: NodeId(to) });
                service.handle(now, 1, Event::Connected { node: NodeId(to), life, sole: false });
            }
        }
    }

    /// The words by which a peer introduced itself to node 1 last.
    fn hello(&self, peer: NodeId) -> Vote {
        let is = |(from, to, vote): &&(NodeId, NodeId, Vote)| {
            *from == peer && *to == NodeId(1) && matches!(vote, Vote::Log(LogWord::Hello(_)))
        };
        self.said.iter().rev().find(is).unwrap().2.clone()
    }

    /// Messages of nodes about themselves, and their requests. Decisions (the consensus's messages, and states of the
    /// log) come from voters with the cluster's keys. They are not made up here.
    fn bodies(&self) -> Vec<Vec<u8>> {
        let own = |vote: &Vote| {
            let Vote::Log(word) = vote else { return true };
            !matches!(word, LogWord::Paxos { .. } | LogWord::Truth { .. } | LogWord::Begin(_))
        };
        let body = |vote: &Vote| {
            let mut bytes = Vec::new();
            encode_packet(&mut bytes, &Packet::<Payload>::Vote(vote.clone())).unwrap();
            bytes[PREFIX..].to_vec()
        };
        self.said.iter().map(|(_, _, vote)| vote).filter(|v| own(v)).map(body).collect()
    }
}

/// Not a decoder, but what decoded votes meet: whatever a peer votes, the service goes on.
#[test]
fn target_votes() {
    let talk = Talk::new();
    let mut bodies = talk.bodies();
    bodies.extend(frames().iter().map(|f| f[PREFIX..].to_vec()));
    let mut now = 0;
    let mut seed = 0;
    let mut fresh = |now| {
        seed += 1;
        let begun = seed % 4 > 0;
        let config = LogConfig { seed, ..log_config(1) };
        let image = begun.then_some(talk.image.as_slice());
        let mut service = LogMembership::new(config, image, now).unwrap();
        for node in [2, 3].map(NodeId) {
            service.handle(now, 1, Event::Connected { node, life: 77, sole: true });
            service.handle(now, 1, Event::Vote { from: node, vote: talk.hello(node) });
        }
        let spaces = vec![SpaceJoin { name: "s".into(), life: 1, keys: keys() }];
        service.handle(now, 1, Event::Spaces(spaces));
        service
    };
    let mut service = fresh(now);
    fuzz(&bodies, |bytes| {
        now += MS;
        if now % (200 * MS) == 0 {
            service = fresh(now);
        }
        if let Ok(Some((Packet::Vote(vote), _))) = decode_packet(&framed(bytes)) {
            let from = NodeId(2 + (now / MS % 2) as u32);
            service.handle(now, 1, Event::Vote { from, vote });
        }
        service.handle(now, 1, Event::Tick);
        while let Some(action) = service.poll() {
            match action {
                Action::Persist { number, .. } => {
                    service.handle(now, 1, Event::Persisted { number, success: true });
                }
                Action::Halt(_) => service.handle(now, 1, Event::Reborn { life: 0 }),
                _ => {}
            }
        }
        assert!(service.next_timer() > 0);
    });
}
