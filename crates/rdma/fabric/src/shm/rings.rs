//! Messages: a ring for each sender and receiver.
//!
//! One writes a ring and one reads it, so neither ever waits for the other's next instruction. A message is there when
//! its sender has counted it (`tails`), in one store: a sender that is killed before that has sent nothing, and the
//! next peer in its place overwrites the rest. One that is killed after has sent it. A message names the incarnation
//! that it is for, so that the next peer in a dead receiver's place does not get it.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use lockify_onesided::{MESSAGE_WORDS, Message, Nanos, Peer, Received, VerbError};

use super::layout::DEPTH;
use super::segment::Segment;
use super::slots::{self, Slot};
use super::wait;
use crate::clock::now;

/// How often a sender looks whether a full ring has room again.
pub(super) const RETRY: Nanos = 100_000;

/// How long a ring may be full before its living receiver is said to take nothing: it is stopped, or stuck.
const PATIENCE: Nanos = 2_000_000_000;

/// How long a receiver that lived is not checked again. If it dies within this time, its last messages go into a buffer
/// that nobody reads, as with a NIC.
const LIVED: Nanos = 1_000_000;

/// Messages taken off the rings that nobody has looked at; beyond them, senders wait.
const MOST_TAKEN: usize = 1 << 16;

/// How a message fared that had to wait for room; `None` while it waits.
pub(super) type Outcome = Rc<Cell<Option<Result<(), VerbError>>>>;

#[derive(Debug)]
struct Waiting {
    outcome: Outcome,
    to: Peer,
    message: Message,
    give_up: Nanos,
}

/// One end's messages.
#[derive(Debug)]
pub(super) struct Rings {
    /// How many messages were taken from each sender's ring.
    heads: Vec<u32>,
    /// Which sender is looked at first, so that none is always last.
    first: u64,
    taken: VecDeque<Received>,
    /// Messages for which there was no room, in their order.
    waiting: VecDeque<Waiting>,
    /// Which peer was last known to live in each place, and when.
    lived: Vec<(Peer, Nanos)>,
}

impl Rings {
    pub fn new(segment: &Segment, me: &Slot) -> Rings {
        let places = segment.places();
        // Entries from the time of the former one name its incarnation, and are passed over.
        let head = |sender| segment.half(segment.layout().head(me.index(), sender)).load(SeqCst);
        let heads = (0..places).map(head);
        Rings {
            heads: heads.collect(),
            first: 0,
            taken: VecDeque::new(),
            waiting: VecDeque::new(),
            lived: vec![(Peer(0), 0); places as usize],
        }
    }

    /// Sends a message. If it has to wait for room, its outcome comes later.
    pub fn send(
        &mut self,
        segment: &Segment,
        me: &Slot,
        to: Peer,
        message: Message,
    ) -> Result<Option<Outcome>, VerbError> {
        self.go_on(segment, me);
        // Those before it go first.
        let behind = self.waiting.iter().any(|waiting| waiting.to == to);
        if !behind && self.put(segment, me, to, message)? {
            return Ok(None);
        }
        let outcome = Outcome::default();
        let give_up = now() + PATIENCE;
        self.waiting.push_back(Waiting { outcome: Rc::clone(&outcome), to, message, give_up });
        Ok(Some(outcome))
    }

    /// The next message.
    pub fn receive(&mut self, segment: &Segment, me: &Slot) -> Option<Received> {
        self.go_on(segment, me);
        self.taken.pop_front()
    }

    /// Takes arrived messages, and sends those that there is room for: two that send to each other's full rings both go
    /// on.
    pub fn go_on(&mut self, segment: &Segment, me: &Slot) {
        self.take(segment, me);
        if self.waiting.is_empty() {
            return;
        }
        let mut full: Vec<Peer> = Vec::new();
        for waiting in core::mem::take(&mut self.waiting) {
            if full.contains(&waiting.to) {
                self.waiting.push_back(waiting);
                continue;
            }
            let outcome = match self.put(segment, me, waiting.to, waiting.message) {
                Ok(true) => Ok(()),
                Ok(false) if now() < waiting.give_up => {
                    full.push(waiting.to);
                    self.waiting.push_back(waiting);
                    continue;
                }
                Ok(false) => Err(VerbError::NotTaken(waiting.to)),
                Err(gone) => Err(gone),
            };
            waiting.outcome.set(Some(outcome));
        }
    }

    /// Puts a message into its ring; false if that is full.
    fn put(
        &mut self,
        segment: &Segment,
        me: &Slot,
        to: Peer,
        message: Message,
    ) -> Result<bool, VerbError> {
        let (receiver, incarnation) =
            slots::incarnation_of(segment, to).ok_or(VerbError::NotTaken(to))?;
        let time = now();
        let lived = self.lived.get(receiver as usize).copied();
        if lived.is_none_or(|(peer, at)| peer != to || at + LIVED < time) {
            if !slots::lives(segment, me.peer(), to) {
                return Err(VerbError::NotTaken(to));
            }
            if let Some(lived) = self.lived.get_mut(receiver as usize) {
                *lived = (to, time);
            }
        }
        let layout = segment.layout();
        let tail = segment.half(layout.tail(receiver, me.index()));
        let head = segment.half(layout.head(receiver, me.index())).load(SeqCst);
        let number = tail.load(SeqCst);
        if u64::from(number.wrapping_sub(head)) >= DEPTH {
            return Ok(false);
        }
        let entry = layout.entry(receiver, me.index(), number);
        let content = [incarnation, me.peer().0.into()].into_iter().chain(message);
        for (n, word) in (0_u64..).zip(content) {
            segment.header(entry + 8 * n).store(word, Relaxed);
        }
        tail.store(number.wrapping_add(1), SeqCst);
        wait::ring(segment, receiver);
        Ok(true)
    }

    fn take(&mut self, segment: &Segment, me: &Slot) {
        let places = segment.places();
        for n in 0..places {
            self.take_from(segment, me, (self.first + n) % places);
        }
        self.first = (self.first + 1) % places;
    }

    fn take_from(&mut self, segment: &Segment, me: &Slot, sender: u64) {
        let layout = segment.layout();
        let tail = segment.half(layout.tail(me.index(), sender)).load(SeqCst);
        let Some(mut head) = self.heads.get(sender as usize).copied() else { return };
        if head == tail {
            return;
        }
        // More than there is room for: the counter is corrupt. Its messages are lost.
        if u64::from(tail.wrapping_sub(head)) > DEPTH {
            head = tail;
        }
        while head != tail && self.taken.len() < MOST_TAKEN {
            let entry = layout.entry(me.index(), sender, head);
            let word = |n: u64| segment.header(entry + 8 * n).load(Relaxed);
            let from = u16::try_from(word(1)).map(Peer).ok();
            let genuine = from.filter(|peer| slots::index_of(segment, *peer) == Some(sender));
            if let Some(from) = genuine.filter(|_| word(0) == me.incarnation()) {
                let mut message = [0; MESSAGE_WORDS];
                (2_u64..).zip(&mut message).for_each(|(n, place)| *place = word(n));
                self.taken.push_back(Received { from, message });
            }
            head = head.wrapping_add(1);
        }
        if let Some(known) = self.heads.get_mut(sender as usize) {
            *known = head;
        }
        segment.half(layout.head(me.index(), sender)).store(head, SeqCst);
    }
}

/// A message's words and its two names fill an entry at most.
const _: () = assert!(MESSAGE_WORDS + 2 <= 8, "an entry is a cache line");
