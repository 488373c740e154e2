//! Connections between ends whose cards, exchange and turns are moved by chosen steps: messages between two ends arrive
//! whole, once and in order, even if connections break and receivers are slow.

use core::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io::PipeReader;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::rc::Rc;

use lockify_onesided::{Message, Peer, Verb, VerbError};
use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::VerbsError;
use super::api::status;
use super::card::{Card, CardPair, Completion, MESSAGE_BYTES, Target};
use super::endpoint::Endpoint;
use super::exchange::{Exchange, Heard};
use super::link::Links;
use super::work::{Outcome, Work};

/// A queue pair in the network.
#[derive(Default)]
struct Wire {
    owner: usize,
    connected_to: Option<u32>,
    /// Sends nothing any more; a card may go on to take messages after it has told of an error.
    failed: bool,
    stopped: bool,
    /// Posted, and whether it has been taken at the other end: then only its acknowledgement is missing.
    sends: VecDeque<(u64, Message, bool)>,
    receives: VecDeque<(u64, usize)>,
    places: BTreeMap<usize, Message>,
}

/// The cards, the network between them, and the exchange.
#[derive(Default)]
struct Net {
    wires: BTreeMap<u32, Wire>,
    pairs: u32,
    completions: [VecDeque<Completion>; 2],
    /// Told and not heard yet, by who told it; `None` is the news that it has gone.
    words: [VecDeque<Option<Vec<u8>>>; 2],
    heard: [VecDeque<Heard>; 2],
}

type Shared = Rc<RefCell<Net>>;

/// The retries are exhausted, `IBV_WC_RETRY_EXC_ERR`.
const RETRY_EXCEEDED: u32 = 12;

fn peer(end: usize) -> Peer {
    Peer(end as u16 + 1)
}

impl Net {
    /// The receiver of this pair's messages; `None` if there is none.
    fn target(&self, number: u32) -> Option<u32> {
        let to = self.wires[&number].connected_to?;
        let other = self.wires.get(&to)?;
        (!other.stopped && other.connected_to == Some(number)).then_some(to)
    }

    fn done(&mut self, owner: usize, id: u64, status: u32) {
        self.completions[owner].push_back(Completion { id, status, bytes: MESSAGE_BYTES as u32 });
    }
}

struct FakeCard {
    owner: usize,
    net: Shared,
}

struct FakePair {
    number: u32,
    net: Shared,
}

impl Card for FakeCard {
    type Pair = FakePair;

    fn name(&self) -> &str {
        "fake"
    }

    fn pair(&self) -> Result<FakePair, VerbsError> {
        let mut net = self.net.borrow_mut();
        net.pairs += 1;
        let number = net.pairs;
        net.wires.insert(number, Wire { owner: self.owner, ..Wire::default() });
        Ok(FakePair { number, net: Rc::clone(&self.net) })
    }

    fn endpoint(&self, pair: &FakePair, psn: u32, taken: u64) -> Endpoint {
        let pair = pair.number;
        Endpoint { ethernet: true, lid: 0, gid: [[0; 8]; 2], pair, psn, mtu: 3, reads: 1, taken }
    }

    fn completions(&self, mut each: impl FnMut(Completion)) -> Result<bool, VerbsError> {
        let found = core::mem::take(&mut self.net.borrow_mut().completions[self.owner]);
        let any = !found.is_empty();
        found.into_iter().for_each(&mut each);
        Ok(any)
    }
}

impl FakePair {
    fn wire<T>(&self, with: impl FnOnce(&mut Wire) -> T) -> T {
        with(self.net.borrow_mut().wires.get_mut(&self.number).unwrap())
    }
}

impl CardPair for FakePair {
    fn connect(&self, to: &Endpoint, _: u32) -> Result<(), VerbsError> {
        self.wire(|wire| wire.connected_to = Some(to.pair));
        Ok(())
    }

    fn post(&self, _: u64, _: &Target, _: Verb, _: usize) -> Result<(), VerbsError> {
        unreachable!("these ends only tell each other something")
    }

    fn send(&self, id: u64, message: &Message) -> Result<(), VerbsError> {
        self.wire(|wire| wire.sends.push_back((id, *message, false)));
        Ok(())
    }

    fn receive(&self, id: u64, place: usize) -> Result<(), VerbsError> {
        self.wire(|wire| wire.receives.push_back((id, place)));
        Ok(())
    }

    fn result(&self, _: usize) -> u64 {
        0
    }

    fn message(&self, place: usize) -> Message {
        self.wire(|wire| wire.places[&place])
    }

    fn stop(&self) {
        self.wire(|wire| wire.stopped = true);
    }
}

impl Drop for FakePair {
    fn drop(&mut self) {
        let mut net = self.net.borrow_mut();
        let Some(wire) = net.wires.remove(&self.number) else { return };
        if wire.stopped {
            return;
        }
        // A card that was not told to stop takes what comes until the end.
        let other = wire.connected_to.and_then(|to| net.wires.get_mut(&to));
        if let Some(other) = other.filter(|other| other.connected_to == Some(self.number)) {
            for (_, _, taken) in &mut other.sends {
                *taken = true;
            }
        }
    }
}

struct FakeExchange {
    owner: usize,
    net: Shared,
    bell: PipeReader,
}

impl Exchange for FakeExchange {
    fn send(&mut self, to: Peer, bytes: &[u8]) -> std::io::Result<()> {
        assert_eq!(to, peer(1 - self.owner));
        self.net.borrow_mut().words[self.owner].push_back(Some(bytes.to_vec()));
        Ok(())
    }

    fn next(&mut self) -> Option<Heard> {
        self.net.borrow_mut().heard[self.owner].pop_front()
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// A possible next step.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A pair's first message that was not taken is.
    Take(u32),
    /// Its first message is acknowledged.
    Acknowledge(u32),
    /// Its first message is given up: always if nobody takes it; else packets are lost, which is limited.
    Fail(u32),
    /// The first message of an end is with the other's exchange.
    Hear(usize),
    /// An end looks.
    Run(usize),
    /// An end has something to say.
    Say(usize),
    /// An end whose messages have all been taken ends.
    Leave(usize),
}

struct World {
    net: Shared,
    ends: [Option<Links<FakeCard>>; 2],
    said: [Vec<Outcome>; 2],
    to_say: [u64; 2],
    got: [Vec<u64>; 2],
    losses: u32,
    leaves: bool,
}

impl World {
    fn new(to_say: [u64; 2], losses: u32, leaves: bool) -> World {
        World::limited(to_say, losses, leaves, [8, 8])
    }

    /// Ends that can have so many connections.
    fn limited(to_say: [u64; 2], losses: u32, leaves: bool, most: [u16; 2]) -> World {
        let net = Shared::default();
        let end = |owner: usize| {
            let card = FakeCard { owner, net: Rc::clone(&net) };
            let mut links = Links::new(peer(owner), card, most[owner], 7);
            let (bell, _) = std::io::pipe().unwrap();
            links.meet(Box::new(FakeExchange { owner, net: Rc::clone(&net), bell }));
            Some(links)
        };
        let ends = [end(0), end(1)];
        let (said, got) = (Default::default(), Default::default());
        World { net, ends, said, to_say, got, losses, leaves }
    }

    fn steps(&self) -> Vec<Step> {
        let net = self.net.borrow();
        let mut steps = Vec::new();
        for (number, wire) in &net.wires {
            let untaken = wire.sends.iter().any(|(_, _, taken)| !taken);
            let target = net.target(*number);
            let room = target.is_some_and(|to| !net.wires[&to].receives.is_empty());
            if untaken && room && !wire.failed {
                steps.push(Step::Take(*number));
            }
            if let Some((_, _, taken)) = wire.sends.front().filter(|_| !wire.failed) {
                if *taken {
                    steps.push(Step::Acknowledge(*number));
                }
                if self.losses > 0 || (!taken && target.is_none()) {
                    steps.push(Step::Fail(*number));
                }
            }
        }
        for end in 0..2 {
            if !net.words[end].is_empty() {
                steps.push(Step::Hear(end));
            }
            if self.ends[end].is_none() {
                continue;
            }
            if !net.heard[end].is_empty() || !net.completions[end].is_empty() {
                steps.push(Step::Run(end));
            }
            if self.to_say[end] > 0 {
                steps.push(Step::Say(end));
            }
            let all_taken = self.said[end].iter().all(|outcome| outcome.get() == Some(Ok(0)));
            if end == 0 && self.leaves && self.to_say[end] == 0 && all_taken {
                steps.push(Step::Leave(end));
            }
        }
        steps
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Take(number) => {
                let mut net = self.net.borrow_mut();
                let to = net.target(number).unwrap();
                let sends = &mut net.wires.get_mut(&number).unwrap().sends;
                let (_, message, taken) = sends.iter_mut().find(|(_, _, taken)| !taken).unwrap();
                *taken = true;
                let message = *message;
                let other = net.wires.get_mut(&to).unwrap();
                let (id, place) = other.receives.pop_front().unwrap();
                other.places.insert(place, message);
                let owner = other.owner;
                net.done(owner, id, status::SUCCESS);
            }
            Step::Acknowledge(number) => {
                let mut net = self.net.borrow_mut();
                let wire = net.wires.get_mut(&number).unwrap();
                let ((id, _, _), owner) = (wire.sends.pop_front().unwrap(), wire.owner);
                net.done(owner, id, status::SUCCESS);
            }
            Step::Fail(number) => {
                let mut net = self.net.borrow_mut();
                let was_lost = net.target(number).is_some();
                let wire = net.wires.get_mut(&number).unwrap();
                wire.failed = true;
                let ((id, _, _), owner) = (wire.sends.pop_front().unwrap(), wire.owner);
                net.done(owner, id, RETRY_EXCEEDED);
                self.losses = self.losses.saturating_sub(u32::from(was_lost));
            }
            Step::Hear(end) => {
                let mut net = self.net.borrow_mut();
                let heard = match net.words[end].pop_front().unwrap() {
                    Some(bytes) => Heard::Told { from: peer(end), bytes },
                    None => Heard::Gone(peer(end)),
                };
                net.heard[1 - end].push_back(heard);
            }
            Step::Run(end) => {
                let links = self.ends[end].as_mut().unwrap();
                links.go_on();
                while let Some(received) = links.receive() {
                    assert_eq!(received.from, peer(1 - end));
                    self.got[end].push(received.message[0]);
                }
            }
            Step::Say(end) => {
                self.to_say[end] -= 1;
                let outcome: Outcome = Rc::new(Cell::new(None));
                let number = self.said[end].len() as u64 + 1;
                self.said[end].push(Rc::clone(&outcome));
                let links = self.ends[end].as_mut().unwrap();
                links.take(peer(1 - end), Work::Message([number, 0, 0, 0]), outcome);
            }
            Step::Leave(end) => {
                let mut links = self.ends[end].take().unwrap();
                links.end();
                while let Some(received) = links.receive() {
                    self.got[end].push(received.message[0]);
                }
                self.net.borrow_mut().words[end].push_back(None);
            }
        }
    }

    /// Goes on by chance until nothing more can happen.
    fn finish(&mut self, seed: u64) {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        // Some seeds have ends that look rarely, others networks that are slow.
        let lazy = random.random_range(0..4);
        for _ in 0..100_000 {
            let mut steps = self.steps();
            if steps.is_empty() {
                return;
            }
            let busy: Vec<Step> =
                steps.iter().copied().filter(|step| !matches!(step, Step::Run(_))).collect();
            if !busy.is_empty() && random.random_range(0..4) < lazy {
                steps = busy;
            }
            self.step(steps[random.random_range(0..steps.len())]);
        }
        panic!("it never ends");
    }
}

const SEEDS: u64 = 3000;

/// Both ends stay: connections break, and are begun by both at once.
#[test]
fn messages_arrive_once_and_in_order_whatever_breaks() {
    for seed in 0..SEEDS {
        // No message meets more broken connections than it is carried over.
        let mut world = World::new([4, 3], 2, false);
        world.finish(seed);
        assert_eq!(world.got, [vec![1, 2, 3], vec![1, 2, 3, 4]], "seed {seed}");
        let outcomes = world.said.iter().flatten().map(|outcome| outcome.get());
        assert!(outcomes.into_iter().all(|outcome| outcome == Some(Ok(0))), "seed {seed}");
    }
}

/// If an end leaves after all its messages were taken, they arrive. This holds even if the receiver first hears of the
/// departure, and only then looks at its card's completions.
#[test]
fn the_last_words_of_one_who_leaves_are_heard() {
    for seed in 0..SEEDS {
        let mut world = World::new([3, 0], 1, true);
        world.finish(seed);
        assert!(world.ends[0].is_none(), "seed {seed}");
        assert_eq!(world.got[1], [1, 2, 3], "seed {seed}");
    }
}

/// An end that leaves reports the number of messages that it has taken. So the fate of each message
/// to it is known.
#[test]
fn what_is_said_to_one_who_leaves_ends() {
    let mut ends = [0, 0];
    for seed in 0..SEEDS {
        let mut world = World::new([1, 4], 1, true);
        world.finish(seed);
        assert_eq!(world.got[1], [1], "seed {seed}");
        for (n, outcome) in world.said[1].iter().enumerate() {
            let was_got = world.got[0].contains(&(n as u64 + 1));
            match outcome.get() {
                Some(Ok(_)) => {
                    assert!(was_got, "seed {seed}: {n} was not taken");
                    ends[0] += 1;
                }
                Some(Err(VerbError::NotTaken(_))) => {
                    assert!(!was_got, "seed {seed}: {n} was taken");
                    ends[1] += 1;
                }
                other => panic!("seed {seed}: message {n} ended in {other:?}"),
            }
        }
    }
    assert!(ends[0] > 100 && ends[1] > 10, "{ends:?}");
}

/// A way that always breaks is given up, though the exchange works.
#[test]
fn a_way_that_is_broken_is_given_up() {
    let mut world = World::new([2, 0], u32::MAX, false);
    for _ in 0..10_000 {
        let steps = world.steps();
        let chosen = steps.iter().find(|step| matches!(step, Step::Fail(_)));
        let Some(step) = chosen.or(steps.iter().find(|step| !matches!(step, Step::Take(_)))) else {
            break;
        };
        world.step(*step);
    }
    let outcomes: Vec<_> = world.said[0].iter().map(|outcome| outcome.get()).collect();
    assert_eq!(outcomes, [Some(Err(VerbError::Unknown(peer(1)))); 2]);
    assert!(world.got[1].is_empty());
}

/// Nobody waits for a connection that the other end cannot make.
#[test]
fn who_has_no_pair_left_says_so() {
    for seed in 0..100 {
        let mut world = World::limited([2, 0], 0, false, [8, 0]);
        world.finish(seed);
        let outcomes: Vec<_> = world.said[0].iter().map(|outcome| outcome.get()).collect();
        assert_eq!(outcomes, [Some(Err(VerbError::NotTaken(peer(1)))); 2], "seed {seed}");
    }
}
