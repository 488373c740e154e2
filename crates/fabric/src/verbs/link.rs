//! Connections with other ends: what waits for them, what is under way on them, and how they end.

use core::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use lockify_onesided::{Address, Message, Nanos, Peer, Received, Verb, VerbError};

use super::api::status;
use super::device::{Completion, Device, MESSAGE_BYTES, Pair, Target};
use super::endpoint::{Endpoint, Word};
use super::exchange::{Exchange, Heard};
use super::handshake::{Handshake, Step};
use super::{RECEIVES, SENDS, VerbsError};
use crate::clock::now;

/// How something that was posted ended; `None` while it is under way.
pub(super) type Outcome = Rc<Cell<Option<Result<u64, VerbError>>>>;

/// How long a verb waits for its connection: homes let their fabric go on all the time. Messages wait for as long as their
/// receiver is there, since it may be about something else until it releases a lock.
const PATIENCE: Nanos = 5_000_000_000;

/// Messages that nobody has looked at; beyond them, the device takes no more.
const MOST_ARRIVED: usize = 1 << 16;

/// Something to post.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Verb(Address, Verb),
    Message(Message),
}

impl Work {
    /// What it ends with where the peer is not there.
    fn unreachable(&self, peer: Peer) -> VerbError {
        match self {
            Work::Verb(..) => VerbError::Unknown(peer),
            Work::Message(_) => VerbError::NotTaken(peer),
        }
    }

    /// What it ends with by this status of its completion.
    fn failed(&self, peer: Peer, code: u32) -> VerbError {
        match (self, code) {
            (Work::Verb(at, _), status::REM_ACCESS_ERR) => VerbError::WrongKey(*at),
            (Work::Verb(at, _), status::REM_INV_REQ_ERR) => VerbError::OutOfBounds(*at),
            (Work::Message(_), status::RETRY_EXC_ERR | status::RNR_RETRY_EXC_ERR) => {
                VerbError::NotTaken(peer)
            }
            _ => VerbError::Unknown(peer),
        }
    }
}

/// What brings something back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fetch {
    Read,
    Atomic,
}

impl Work {
    fn fetch(&self) -> Option<Fetch> {
        match self {
            Work::Message(_) | Work::Verb(_, Verb::Write(_)) => None,
            Work::Verb(_, Verb::Read) => Some(Fetch::Read),
            Work::Verb(..) => Some(Fetch::Atomic),
        }
    }

    /// Whether it may overtake what is under way, which it must not: InfiniBand orders what comes after a READ or an
    /// atomic only if that is of the same kind. (It can be told to, by a fence; but then Soft-RoCE's atomics wait for
    /// themselves when they are sent again.)
    fn overtakes(&self, under_way: Option<Fetch>) -> bool {
        match self {
            Work::Message(_) => false,
            Work::Verb(..) => under_way.is_some() && self.fetch() != under_way,
        }
    }
}

struct Waiting {
    work: Work,
    outcome: Outcome,
    give_up: Nanos,
}

/// What the device was given.
enum Posted {
    Work { work: Work, outcome: Outcome, place: usize },
    Receive { place: usize },
}

/// What there is with one other end, or with this one itself.
#[derive(Default)]
struct Link {
    handshake: Handshake,
    pair: Option<Pair>,
    psn: u32,
    /// In the order of posting.
    waiting: VecDeque<Waiting>,
    /// Verbs under way that fetch something, and what all of them are.
    fetches: (usize, Option<Fetch>),
    /// Places for results that nothing uses.
    places: Vec<usize>,
    /// Places for messages that could not be posted again, since nobody looks at what arrived.
    held_back: Vec<usize>,
    gone: bool,
}

/// All of one end's connections.
pub(super) struct Links {
    me: Peer,
    device: Rc<Device>,
    /// Without one, this end reaches itself, and whom it is connected with.
    exchange: Option<Box<dyn Exchange>>,
    most: u16,
    links: HashMap<Peer, Link>,
    /// Under way, by number. What is not here any more belonged to a connection that was given up.
    posted: HashMap<u64, (Peer, Posted)>,
    next: u64,
    arrived: VecDeque<Received>,
    psn: u64,
}

impl Links {
    pub fn new(me: Peer, device: Rc<Device>, most: u16, psn: u64) -> Links {
        Links {
            me,
            device,
            exchange: None,
            most,
            links: HashMap::new(),
            posted: HashMap::new(),
            next: 0,
            arrived: VecDeque::new(),
            psn,
        }
    }

    /// Others are reached by this from now on.
    pub fn meet(&mut self, exchange: Box<dyn Exchange>) {
        self.exchange = Some(exchange);
    }

    /// Posts something, now or when there is a connection.
    pub fn take(&mut self, to: Peer, work: Work, outcome: Outcome) {
        let link = self.links.entry(to).or_default();
        let alone = self.exchange.is_none() && link.handshake == Handshake::Closed && to != self.me;
        if to == Peer(0) || link.gone || alone {
            outcome.set(Some(Err(work.unreachable(to))));
            return;
        }
        let give_up = now().saturating_add(PATIENCE);
        link.waiting.push_back(Waiting { work, outcome, give_up });
        self.go_on_with(to);
    }

    /// The next message.
    pub fn receive(&mut self) -> Option<Received> {
        let received = self.arrived.pop_front();
        if received.is_some() && self.arrived.len() + 1 == MOST_ARRIVED {
            self.post_held_back();
        }
        received
    }

    /// What one waits for together with completions.
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.exchange.as_ref().map(|exchange| exchange.bell())
    }

    /// Takes what has come from the device and from the exchange; false if nothing has.
    pub fn go_on(&mut self) -> bool {
        let mut any = false;
        while let Some(heard) = self.exchange.as_mut().and_then(|exchange| exchange.next()) {
            any = true;
            self.hear(heard);
        }
        let device = Rc::clone(&self.device);
        match device.completions(|completion| self.complete(completion)) {
            Ok(some) => any |= some,
            // Then nothing on this device ever ends.
            Err(_) => self.leave_all(|_| true),
        }
        any
    }

    fn leave_all(&mut self, which: impl Fn(&Link) -> bool) {
        let chosen: Vec<Peer> =
            self.links.iter().filter(|(_, link)| which(link)).map(|(peer, _)| *peer).collect();
        chosen.into_iter().for_each(|peer| self.leave(peer));
    }

    /// Ends verbs that have waited too long for their connection. Returns when to look again.
    pub fn give_up(&mut self) -> Nanos {
        let time = now();
        let mut next = Nanos::MAX;
        let mut late = Vec::new();
        for (peer, link) in self.links.iter().filter(|(_, l)| l.handshake != Handshake::Up) {
            let verb = link.waiting.iter().find(|waiting| matches!(waiting.work, Work::Verb(..)));
            match verb {
                Some(first) if first.give_up <= time => late.push(*peer),
                Some(first) => next = next.min(first.give_up),
                None => {}
            }
        }
        late.into_iter().for_each(|peer| self.leave(peer));
        next
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Told { from, bytes } if from != self.me && from != Peer(0) => {
                // Who speaks another language cannot be connected; its own end says so when it gives up.
                if let Ok(word) = Word::decode(&bytes) {
                    self.hear_word(from, word);
                }
            }
            Heard::Told { .. } => {}
            Heard::Gone(peer) => {
                self.leave(peer);
                self.links.entry(peer).or_default().gone = true;
            }
            Heard::Ended => {
                self.exchange = None;
                self.leave_all(|link| link.handshake != Handshake::Up);
            }
        }
    }

    fn hear_word(&mut self, from: Peer, word: Word) {
        let link = self.links.entry(from).or_default();
        link.gone = false;
        let done = match link.handshake.hear(self.me, from, word) {
            Step::Ignore => Ok(()),
            Step::Answer(theirs) => {
                self.close(from);
                self.make(from).and_then(|mine| {
                    let link = self.links.entry(from).or_default();
                    link.connect(&theirs)?;
                    link.handshake = Handshake::Answered { mine: mine.pair };
                    self.tell(from, Word::Answer { to: theirs.pair, endpoint: mine });
                    Ok(())
                })
            }
            Step::Connect(theirs) => {
                let connected = link.connect(&theirs);
                link.handshake = Handshake::Up;
                self.tell(from, Word::Ready { to: theirs.pair });
                connected
            }
            Step::Start => {
                link.handshake = Handshake::Up;
                Ok(())
            }
        };
        match done {
            Ok(()) => self.go_on_with(from),
            // Why is told by `Verbs::open` where it can be foreseen; the device has run out of something else.
            Err(_) => self.leave(from),
        }
    }

    /// Posts what waits for a peer, or sees to it that there is a connection.
    fn go_on_with(&mut self, peer: Peer) {
        loop {
            let Some(link) = self.links.get_mut(&peer) else { return };
            if link.waiting.is_empty() {
                return;
            }
            match (link.handshake, &link.pair) {
                (Handshake::Closed, _) => {
                    if self.begin(peer).is_err() {
                        self.leave(peer);
                        return;
                    }
                }
                (Handshake::Up, Some(pair)) => {
                    let overtakes = |next: &Waiting| next.work.overtakes(link.fetches.1);
                    if link.places.is_empty() || link.waiting.front().is_none_or(overtakes) {
                        return;
                    }
                    let (place, next) = (link.places.pop(), link.waiting.pop_front());
                    let (Some(place), Some(next)) = (place, next) else { return };
                    let Waiting { work, outcome, .. } = next;
                    if let Some(fetch) = work.fetch() {
                        link.fetches = (link.fetches.0 + 1, Some(fetch));
                    }
                    let id = self.next;
                    self.next += 1;
                    let posted = match &work {
                        Work::Verb(at, verb) => {
                            let target = Target { offset: at.offset, key: at.key.0 };
                            pair.post(id, &target, *verb, place)
                        }
                        Work::Message(message) => pair.send(id, message),
                    };
                    self.posted.insert(id, (peer, Posted::Work { work, outcome, place }));
                    if posted.is_err() {
                        // Of what was not posted it is not said either whether it was.
                        self.close(peer);
                    }
                }
                _ => return,
            }
        }
    }

    /// Begins a connection.
    fn begin(&mut self, peer: Peer) -> Result<(), VerbsError> {
        let mine = self.make(peer)?;
        let link = self.links.entry(peer).or_default();
        if peer == self.me {
            // A pair's two halves are independent: it can be its own peer.
            link.connect(&mine)?;
            link.handshake = Handshake::Up;
            return Ok(());
        }
        link.handshake = Handshake::Opening { mine: mine.pair };
        self.tell(peer, Word::Open(mine));
        Ok(())
    }

    /// Makes a pair that takes messages.
    fn make(&mut self, peer: Peer) -> Result<Endpoint, VerbsError> {
        let used = self.links.values().filter(|link| link.pair.is_some()).count();
        if used >= usize::from(self.most) {
            return Err(VerbsError::Unfit {
                device: self.device.name().to_owned(),
                what: format!("has connections with {used} peers already: allow more"),
            });
        }
        let pair = Pair::new(&self.device)?;
        for place in 0..RECEIVES as usize {
            pair.receive(self.next, place)?;
            self.posted.insert(self.next, (peer, Posted::Receive { place }));
            self.next += 1;
        }
        // Packets of an earlier pair with this number are told by theirs.
        self.psn = self.psn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let psn = (self.psn >> 40) as u32;
        let mine = self.device.endpoint(&pair, psn);
        let link = self.links.entry(peer).or_default();
        link.pair = Some(pair);
        link.psn = psn;
        link.places = (0..SENDS as usize).collect();
        link.held_back.clear();
        link.fetches = (0, None);
        Ok(mine)
    }

    fn tell(&mut self, to: Peer, word: Word) {
        if let Some(exchange) = &mut self.exchange {
            // It says by `next` that it has ended.
            let _ = exchange.tell(to, &word.encode());
        }
    }

    /// Gives a connection up: all that was under way on it has an unknown end. What waits may find a new one.
    fn close(&mut self, peer: Peer) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        link.pair = None;
        link.handshake = Handshake::Closed;
        self.posted.retain(|_, (of, posted)| {
            if *of == peer
                && let Posted::Work { outcome, .. } = posted
                && outcome.get().is_none()
            {
                outcome.set(Some(Err(VerbError::Unknown(peer))));
            }
            *of != peer
        });
    }

    /// Gives a connection up, with all that waits for it.
    fn leave(&mut self, peer: Peer) {
        self.close(peer);
        let Some(link) = self.links.get_mut(&peer) else { return };
        for waiting in link.waiting.drain(..) {
            waiting.outcome.set(Some(Err(waiting.work.unreachable(peer))));
        }
    }

    fn complete(&mut self, completion: Completion) {
        let Some((peer, posted)) = self.posted.remove(&completion.id) else { return };
        let Some(link) = self.links.get_mut(&peer) else { return };
        let Some(pair) = &link.pair else { return };
        if completion.status != status::SUCCESS {
            if let Posted::Work { work, outcome, .. } = posted {
                outcome.set(Some(Err(work.failed(peer, completion.status))));
            }
            self.close(peer);
        } else {
            match posted {
                Posted::Work { work, outcome, place } => {
                    let result = match work {
                        Work::Verb(_, Verb::Write(_)) | Work::Message(_) => 0,
                        Work::Verb(..) => pair.result(place),
                    };
                    outcome.set(Some(Ok(result)));
                    link.places.push(place);
                    if work.fetch().is_some() {
                        link.fetches.0 = link.fetches.0.saturating_sub(1);
                        link.fetches.1 = link.fetches.1.filter(|_| link.fetches.0 > 0);
                    }
                }
                Posted::Receive { place } => {
                    if completion.bytes as usize == MESSAGE_BYTES {
                        let message = pair.message(place);
                        self.arrived.push_back(Received { from: peer, message });
                    }
                    link.held_back.push(place);
                    if self.arrived.len() < MOST_ARRIVED {
                        self.post_held_back_of(peer);
                    }
                }
            }
        }
        self.go_on_with(peer);
    }

    fn post_held_back(&mut self) {
        let peers: Vec<Peer> = self.links.keys().copied().collect();
        peers.into_iter().for_each(|peer| self.post_held_back_of(peer));
    }

    fn post_held_back_of(&mut self, peer: Peer) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        let Some(pair) = &link.pair else { return };
        let mut all_posted = true;
        for place in core::mem::take(&mut link.held_back) {
            all_posted &= pair.receive(self.next, place).is_ok();
            self.posted.insert(self.next, (peer, Posted::Receive { place }));
            self.next += 1;
        }
        if !all_posted {
            self.close(peer);
        }
    }
}

impl Link {
    fn connect(&self, theirs: &Endpoint) -> Result<(), VerbsError> {
        match &self.pair {
            Some(pair) => pair.connect(theirs, self.psn),
            None => Ok(()),
        }
    }
}
