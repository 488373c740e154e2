//! Connections with other ends: their waiting requests, those under way on them, and their ends.
//!
//! **Messages survive their connection.** A connection ends as one end sees fit: a completion in error, or the other
//! end's word that it has a new pair or has gone. By then the card may have taken messages that this end has not seen,
//! and acknowledged them; so a pair is stopped, and its taken messages are read, before it is given up. And its peer does
//! not know which of those under way were taken; so each end counts those that it takes, tells the count with the next
//! pair or when it ends, and what was not taken goes out again. Verbs are not repeated, since who repeats an atomic may
//! execute it twice.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;

use lockify_onesided::{Nanos, Peer, Received, Verb, VerbError};

use super::api::status;
use super::card::{Card, CardPair, Completion, MESSAGE_BYTES, Target};
use super::endpoint::{Endpoint, Word};
use super::exchange::{Exchange, Heard};
use super::handshake::{Handshake, Step};
use super::work::{Fetch, Outcome, Posted, Waiting, Work};
use super::{RECEIVES, SENDS, VerbsError};
use crate::clock::now;

/// How long a verb waits for its connection: homes let their fabric go on all the time. Messages wait for as long as their
/// receiver is there, since it may be about something else until it releases a lock.
const PATIENCE: Nanos = 5_000_000_000;

/// How many connections may break under a message before it is given up: the way of packets to its receiver is broken,
/// though that of the exchange is not.
const MOST_BROKEN: u8 = 3;

/// Messages that nobody has looked at; beyond them, the device takes no more.
const MOST_ARRIVED: usize = 1 << 16;

/// The state with one other end, or with this one itself.
struct Link<P> {
    handshake: Handshake,
    pair: Option<P>,
    psn: u32,
    /// Messages that the card has been given for that peer, and those that this end has taken from it, by all pairs so
    /// far. With each new pair `sent` becomes what the peer has taken.
    sent: u64,
    taken: u64,
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

impl<P> Default for Link<P> {
    fn default() -> Link<P> {
        Link {
            handshake: Handshake::Closed,
            pair: None,
            psn: 0,
            sent: 0,
            taken: 0,
            waiting: VecDeque::new(),
            fetches: (0, None),
            places: Vec::new(),
            held_back: Vec::new(),
            gone: false,
        }
    }
}

/// All of one end's connections.
pub(super) struct Links<C: Card> {
    me: Peer,
    card: C,
    /// Without one, this end reaches itself, and whom it is connected with.
    exchange: Option<Box<dyn Exchange>>,
    most: u16,
    links: HashMap<Peer, Link<C::Pair>>,
    /// Under way, by number. Missing numbers belonged to a connection that was given up.
    posted: HashMap<u64, (Peer, Posted)>,
    next: u64,
    /// The card's completions, in order, that nobody has looked at yet.
    completed: VecDeque<Completion>,
    arrived: VecDeque<Received>,
    psn: u64,
}

impl<C: Card> Links<C> {
    pub fn new(me: Peer, card: C, most: u16, psn: u64) -> Links<C> {
        Links {
            me,
            card,
            exchange: None,
            most,
            links: HashMap::new(),
            posted: HashMap::new(),
            next: 0,
            completed: VecDeque::new(),
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
        link.waiting.push_back(Waiting { work, outcome, give_up, number: None, broken: 0 });
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

    /// A descriptor to wait for together with completions.
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.exchange.as_ref().map(|exchange| exchange.bell())
    }

    /// Handles input from the device and from the exchange; false if there was none.
    pub fn go_on(&mut self) -> bool {
        let mut any = false;
        while let Some(heard) = self.exchange.as_mut().and_then(|exchange| exchange.next()) {
            any = true;
            self.hear(heard);
        }
        any |= self.look();
        while let Some(completion) = self.completed.pop_front() {
            self.complete(completion);
        }
        any
    }

    /// Asks the card for completions; false if there were none.
    fn look(&mut self) -> bool {
        let completed = &mut self.completed;
        match self.card.completions(|completion| completed.push_back(completion)) {
            Ok(some) => some,
            Err(_) => {
                // Then nothing on this card ever ends.
                let peers: Vec<Peer> = self.links.keys().copied().collect();
                for peer in peers {
                    self.forget(peer);
                    self.refuse(peer);
                }
                false
            }
        }
    }

    fn leave_all(&mut self, which: impl Fn(&Link<C::Pair>) -> bool) {
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
                // A peer with another protocol cannot be connected; its own end says so when it gives up.
                if let Ok(word) = Word::decode(&bytes) {
                    self.hear_word(from, word);
                }
            }
            Heard::Told { .. } => {}
            Heard::Gone(peer) => {
                self.leave(peer);
                // The next peer with this number counts anew.
                self.links.insert(peer, Link { gone: true, ..Link::default() });
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
        match link.handshake.hear(self.me, from, word) {
            Step::Ignore => {}
            Step::Answer(theirs) => {
                self.close(from);
                let answer = self.answer(from, &theirs);
                self.go_on_or_refuse(from, theirs.pair, answer);
            }
            Step::Connect(theirs) => {
                link.agree(theirs.taken);
                link.handshake = Handshake::Up;
                let ready = link.connect(&theirs).map(|()| Word::Ready { to: theirs.pair });
                self.go_on_or_refuse(from, theirs.pair, ready);
            }
            Step::Start => {
                link.handshake = Handshake::Up;
                self.go_on_with(from);
            }
            Step::GiveUp => self.leave(from),
            Step::End { taken } => {
                self.close(from);
                self.links.entry(from).or_default().agree(taken);
                self.refuse(from);
            }
        }
    }

    /// Connects a new pair to theirs; returns the answer.
    fn answer(&mut self, from: Peer, theirs: &Endpoint) -> Result<Word, VerbsError> {
        let mine = self.make(from)?;
        let link = self.links.entry(from).or_default();
        link.agree(theirs.taken);
        link.connect(theirs)?;
        link.handshake = Handshake::Answered { mine: mine.pair };
        Ok(Word::Answer { to: theirs.pair, endpoint: mine })
    }

    fn go_on_or_refuse(&mut self, peer: Peer, to: u32, word: Result<Word, VerbsError>) {
        match word {
            Ok(word) => {
                self.send_word(peer, word);
                self.go_on_with(peer);
            }
            // Why is told by `Verbs::open` where it can be foreseen; the device has run out of something else.
            Err(_) => {
                self.leave(peer);
                self.send_word(peer, Word::Refuse { to });
            }
        }
    }

    /// Ends this end: each sender learns how many of its messages it has taken. A card may have had no time to
    /// acknowledge the last one before its queue pair is gone.
    pub fn end(&mut self) {
        let peers: Vec<Peer> = self.links.keys().copied().filter(|peer| *peer != self.me).collect();
        for peer in peers {
            self.close(peer);
            if let Some(taken) = self.links.get(&peer).filter(|l| !l.gone).map(|l| l.taken) {
                self.send_word(peer, Word::Leave { taken });
            }
            self.refuse(peer);
        }
    }

    /// Returns true if a verb or message is under way, or waits to be.
    pub fn is_busy(&self) -> bool {
        let works = |(_, posted): &(Peer, Posted)| matches!(posted, Posted::Work { .. });
        self.posted.values().any(works) || self.links.values().any(|link| !link.waiting.is_empty())
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
                    let Waiting { work, outcome, broken, .. } = next;
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
                        Work::Message(message) => {
                            link.sent = link.sent.saturating_add(1);
                            pair.send(id, message)
                        }
                    };
                    let number = link.sent;
                    let work = Posted::Work { work, outcome, place, number, broken };
                    self.posted.insert(id, (peer, work));
                    if posted.is_err() {
                        // Messages that were not posted get no report either.
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
            link.agree(mine.taken);
            link.connect(&mine)?;
            link.handshake = Handshake::Up;
            return Ok(());
        }
        link.handshake = Handshake::Opening { mine: mine.pair };
        self.send_word(peer, Word::Open(mine));
        Ok(())
    }

    /// Makes a pair that takes messages.
    fn make(&mut self, peer: Peer) -> Result<Endpoint, VerbsError> {
        let used = self.links.values().filter(|link| link.pair.is_some()).count();
        if used >= usize::from(self.most) {
            return Err(VerbsError::Unfit {
                device: self.card.name().to_owned(),
                what: format!("has connections with {used} peers already: allow more"),
            });
        }
        let pair = self.card.pair()?;
        for place in 0..RECEIVES as usize {
            pair.receive(self.next, place)?;
            self.posted.insert(self.next, (peer, Posted::Receive { place }));
            self.next += 1;
        }
        // Packets of an earlier pair with this number are told by theirs.
        self.psn = self.psn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let psn = (self.psn >> 40) as u32;
        let link = self.links.entry(peer).or_default();
        let mine = self.card.endpoint(&pair, psn, link.taken);
        link.pair = Some(pair);
        link.psn = psn;
        link.places = (0..SENDS as usize).collect();
        link.held_back.clear();
        link.fetches = (0, None);
        Ok(mine)
    }

    fn send_word(&mut self, to: Peer, word: Word) {
        if let Some(exchange) = &mut self.exchange {
            // It says by `next` that it has ended.
            let _ = exchange.send(to, &word.encode());
        }
    }

    /// Gives a connection up. Verbs that were under way on it have an unknown end; waiting requests, and messages that
    /// were under way, may find a new one.
    fn close(&mut self, peer: Peer) {
        let Some(link) = self.links.get(&peer) else { return };
        if let Some(pair) = &link.pair {
            pair.stop();
            self.look();
            let (its, others) = core::mem::take(&mut self.completed)
                .into_iter()
                .partition(|c| self.posted.get(&c.id).is_some_and(|(of, _)| *of == peer));
            self.completed = others;
            let its: VecDeque<Completion> = its;
            for completion in its {
                self.settle(&completion);
            }
        }
        self.forget(peer);
    }

    /// As [`Self::close`], whatever the card has still to tell.
    fn forget(&mut self, peer: Peer) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        link.pair = None;
        link.handshake = Handshake::Closed;
        let ended: Vec<(u64, (Peer, Posted))> =
            self.posted.extract_if(|_, (of, _)| *of == peer).collect();
        let mut messages = Vec::new();
        for (_, (_, posted)) in ended {
            let Posted::Work { work, outcome, number, broken, .. } = posted else { continue };
            if outcome.get().is_some() {
                continue;
            }
            if matches!(work, Work::Message(_)) && broken + 1 < MOST_BROKEN {
                let (give_up, broken, n) = (Nanos::MAX, broken + 1, Some(number));
                messages.push((number, Waiting { work, outcome, give_up, number: n, broken }));
            } else {
                outcome.set(Some(Err(VerbError::Unknown(peer))));
            }
        }
        // Before what waits already, in the order of sending.
        messages.sort_by_key(|(number, _)| *number);
        for (_, waiting) in messages.into_iter().rev() {
            link.waiting.push_front(waiting);
        }
    }

    /// Gives a connection up, with all that waits for it.
    fn leave(&mut self, peer: Peer) {
        self.close(peer);
        self.refuse(peer);
    }

    fn refuse(&mut self, peer: Peer) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        for waiting in link.waiting.drain(..) {
            let error = match waiting.number {
                Some(_) => VerbError::Unknown(peer),
                None => waiting.work.unreachable(peer),
            };
            waiting.outcome.set(Some(Err(error)));
        }
    }

    fn complete(&mut self, completion: Completion) {
        let Some((peer, _)) = self.posted.get(&completion.id) else { return };
        let peer = *peer;
        if completion.status == status::SUCCESS {
            self.settle(&completion);
            self.post_held_back_of(peer);
        } else {
            self.settle(&completion);
            self.close(peer);
        }
        self.go_on_with(peer);
    }

    /// Notes how something that was posted has ended.
    fn settle(&mut self, completion: &Completion) {
        let Some((peer, posted)) = self.posted.remove(&completion.id) else { return };
        let Some(link) = self.links.get_mut(&peer) else { return };
        let Some(pair) = &link.pair else { return };
        let failed = completion.status != status::SUCCESS;
        match posted {
            Posted::Work { work: Work::Message(_), .. }
                if failed && completion.status != status::RNR_RETRY_EXC_ERR =>
            {
                // Taken or not: that is found out with the next pair.
                self.posted.insert(completion.id, (peer, posted));
            }
            Posted::Work { work, outcome, .. } if failed => {
                outcome.set(Some(Err(work.failed(peer, completion.status))));
            }
            Posted::Work { work, outcome, place, .. } => {
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
            Posted::Receive { .. } if failed => {}
            Posted::Receive { place } => {
                link.taken += 1;
                if completion.bytes as usize == MESSAGE_BYTES {
                    let message = pair.message(place);
                    self.arrived.push_back(Received { from: peer, message });
                }
                link.held_back.push(place);
            }
        }
    }

    fn post_held_back(&mut self) {
        let peers: Vec<Peer> = self.links.keys().copied().collect();
        peers.into_iter().for_each(|peer| self.post_held_back_of(peer));
    }

    fn post_held_back_of(&mut self, peer: Peer) {
        if self.arrived.len() >= MOST_ARRIVED {
            return;
        }
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
            self.go_on_with(peer);
        }
    }
}

impl<P: CardPair> Link<P> {
    fn connect(&self, theirs: &Endpoint) -> Result<(), VerbsError> {
        match &self.pair {
            Some(pair) => pair.connect(theirs, self.psn),
            None => Ok(()),
        }
    }

    /// So many messages have been taken there by earlier pairs: those need not go out again, and numbers go on from there.
    fn agree(&mut self, taken: u64) {
        self.sent = taken;
        self.waiting.retain_mut(|waiting| match waiting.number {
            Some(number) if number <= taken => {
                waiting.outcome.set(Some(Ok(0)));
                false
            }
            _ => {
                waiting.number = None;
                true
            }
        });
    }
}
