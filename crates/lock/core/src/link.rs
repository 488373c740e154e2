//! Exactly-once, in-order delivery between two nodes across broken connections.
//!
//! A [`Link`] is one node's end towards one peer. Its promises hold between one life (incarnation)
//! of the node and one life of the peer: every payload arrives once and in order, even over broken
//! connections. A new life of either side starts both directions afresh: payloads from and to the
//! dead one are dropped.
//!
//! Like the lock manager it does no I/O. Its host carries [`Frame`]s, tells the two [`Hello`]s of a
//! new connection to each other, and sends again what [`Link::resend`] lists.

use alloc::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// A payload with its place in the stream and what its sender has received.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Frame<P> {
    /// The sender's life.
    pub from: u64,
    /// The life of the receiver that it is meant for.
    pub to: u64,
    /// The payload's number, from 1; of a frame without payload, that of the last one sent.
    pub seq: u64,
    /// The sender has received every payload up to this number.
    pub ack: u64,
    /// The payload; `None` only acknowledges.
    pub payload: Option<P>,
}

/// The first message of both ends on a new connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The sender's life.
    pub from: u64,
    /// The life of the receiver that the sender's `received` counts for, if it knows one.
    pub to: Option<u64>,
    /// The sender has received every payload of that life up to this number.
    pub received: u64,
}

/// The effect of a new connection on the peer's state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Resumed {
    /// The same life of the peer: nothing was lost; send [`Link::resend`].
    Same,
    /// The first life of the peer that this link sees.
    First,
    /// The peer's former life has ended, and with it everything that was on the way.
    NewLife,
}

/// The connection cannot go on: close it. The link is as before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum LinkError {
    /// A payload is missing before this one.
    #[error(
        "message {got} came where {expected} was expected: connect again, the peer then resends"
    )]
    Gap {
        /// Its number.
        got: u64,
        /// The number that should have come.
        expected: u64,
    },
    /// The frame is from, or for, another life of one of the ends.
    #[error("a message between other lives of the two nodes ({from} to {to})")]
    WrongLife {
        /// The sender's life, as it says.
        from: u64,
        /// The receiver's life, as the sender says.
        to: u64,
    },
    /// A peer of an older life than one seen before.
    #[error("incarnation {got} of the peer ended when incarnation {known} began: restart the peer")]
    OldLife {
        /// The life that it claims.
        got: u64,
        /// The newest life known.
        known: u64,
    },
    /// The peer acknowledges payloads that were never sent, or asks again for acknowledged ones.
    #[error(
        "the peer has received {received}, but only {first} to {last} can be right: restart the peer"
    )]
    Nonsense {
        /// The received number, as the peer reports it.
        received: u64,
        /// The smallest value that can be right.
        first: u64,
        /// The largest value that can be right.
        last: u64,
    },
}

/// The memory of a payload while it waits to be acknowledged, in bytes, about.
pub trait Weigh {
    /// Always the same for the same payload.
    fn weight(&self) -> usize;
}

/// One node's end of the link to one peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link<P> {
    me: u64,
    peer: Option<u64>,
    connected: bool,
    /// Payloads that the peer has not acknowledged; the last has the number `sent`.
    unacked: VecDeque<P>,
    /// Their weight.
    weight: usize,
    sent: u64,
    received: u64,
    /// The last acknowledgement that the peer was told.
    told: u64,
    /// The weight of the payloads that have come since.
    untold: usize,
    limit: usize,
}

impl<P: Clone + Weigh> Link<P> {
    /// A link of this life of the node; `limit` payloads may be unacknowledged before
    /// [`Link::over_limit`].
    pub fn new(me: u64, limit: usize) -> Link<P> {
        Link {
            me,
            peer: None,
            connected: false,
            unacked: VecDeque::new(),
            weight: 0,
            sent: 0,
            received: 0,
            told: 0,
            untold: 0,
            limit,
        }
    }

    /// The first message to the peer on a new connection.
    pub fn hello(&self) -> Hello {
        Hello { from: self.me, to: self.peer, received: self.received }
    }

    /// A connection is there and the peer has said this. Sent payloads that the peer has not
    /// received are in [`Link::resend`] now.
    pub fn connect(&mut self, hello: Hello) -> Result<Resumed, LinkError> {
        let resumed = match self.peer {
            None => Resumed::First,
            Some(p) if hello.from < p => {
                return Err(LinkError::OldLife { got: hello.from, known: p });
            }
            Some(p) if hello.from > p => Resumed::NewLife,
            Some(_) => Resumed::Same,
        };
        // The number that the peer received from another life of this node says nothing about this
        // one.
        let received = if hello.to == Some(self.me) { hello.received } else { 0 };
        if resumed == Resumed::Same {
            self.acknowledge(received)?;
        } else {
            // Payloads that were sent before the first life was known are for that life; see
            // `send`.
            if received != 0 {
                return Err(LinkError::Nonsense { received, first: 0, last: 0 });
            }
            if resumed == Resumed::NewLife {
                self.unacked.clear();
                self.weight = 0;
                self.sent = 0;
            }
            self.received = 0;
            self.peer = Some(hello.from);
        }
        self.connected = true;
        self.note_told();
        Ok(resumed)
    }

    /// The connection broke.
    pub fn disconnect(&mut self) {
        self.connected = false;
    }

    /// Returns true if frames can be carried now.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// The life of the peer that the link is bound to.
    pub fn peer(&self) -> Option<u64> {
        self.peer
    }

    /// Queues a payload and returns its frame, to be carried at once; `None` while there is no
    /// connection: the payload is then part of [`Link::resend`] after the next
    /// [`Link::connect`], unless that is to another life than the one known now.
    pub fn send(&mut self, payload: P) -> Option<Frame<&P>> {
        self.weight += payload.weight();
        self.unacked.push_back(payload);
        self.sent += 1;
        if !self.connected {
            return None;
        }
        self.note_told();
        let (from, to, seq, ack) = (self.me, self.peer?, self.sent, self.received);
        self.unacked.back().map(|p| Frame { from, to, seq, ack, payload: Some(p) })
    }

    /// The frames to carry first on a new connection, in this order.
    pub fn resend(&self) -> impl Iterator<Item = Frame<&P>> {
        let (from, to, ack) = (self.me, self.peer.unwrap_or(0), self.received);
        let first = self.sent - self.unacked.len() as u64 + 1;
        let frame = move |(i, p)| Frame { from, to, seq: first + i as u64, ack, payload: Some(p) };
        self.unacked.iter().enumerate().map(frame)
    }

    /// A frame came on the connection: its payload, unless it is a duplicate or carries none.
    pub fn receive(&mut self, frame: Frame<P>) -> Result<Option<P>, LinkError> {
        let Frame { from, to, seq, ack, payload } = frame;
        if to != self.me || self.peer != Some(from) {
            return Err(LinkError::WrongLife { from, to });
        }
        let expected = self.received + 1;
        if payload.is_some() && seq > expected {
            return Err(LinkError::Gap { got: seq, expected });
        }
        self.acknowledge_late(ack)?;
        match payload {
            Some(p) if seq == expected => {
                self.received = seq;
                self.untold += p.weight();
                Ok(Some(p))
            }
            _ => Ok(None),
        }
    }

    /// A frame that only acknowledges, to be carried now and then when nothing else is sent.
    pub fn acknowledgement(&mut self) -> Option<Frame<P>> {
        let to = self.peer.filter(|_| self.connected)?;
        self.note_told();
        Some(Frame { from: self.me, to, seq: self.sent, ack: self.received, payload: None })
    }

    /// Payloads received that the peer does not know to have arrived.
    pub fn unacknowledged(&self) -> u64 {
        self.received - self.told
    }

    /// The weight of the unacknowledged payloads.
    pub fn unacknowledged_weight(&self) -> usize {
        self.untold
    }

    fn note_told(&mut self) {
        self.told = self.received;
        self.untold = 0;
    }

    /// Payloads sent that the peer has not acknowledged.
    pub fn backlog(&self) -> usize {
        self.unacked.len()
    }

    /// The weight of the waiting payloads. A sender with much to send waits until this is little.
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// The backlog is over the limit: senders to the peer should wait.
    pub fn over_limit(&self) -> bool {
        self.unacked.len() > self.limit
    }

    /// Drops the payloads that the peer has; the number must lie within the outstanding ones.
    fn acknowledge(&mut self, received: u64) -> Result<(), LinkError> {
        let first = self.sent - self.unacked.len() as u64;
        if received < first || received > self.sent {
            return Err(LinkError::Nonsense { received, first, last: self.sent });
        }
        for payload in self.unacked.drain(..(received - first) as usize) {
            self.weight -= payload.weight();
        }
        Ok(())
    }

    /// As `acknowledge`, for a frame that may be a duplicate, whose news is old.
    fn acknowledge_late(&mut self, ack: u64) -> Result<(), LinkError> {
        let first = self.sent - self.unacked.len() as u64;
        if ack <= first { Ok(()) } else { self.acknowledge(ack) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    impl Weigh for u32 {
        fn weight(&self) -> usize {
            *self as usize
        }
    }

    #[test]
    fn weighs_what_is_not_acknowledged() {
        let mut p = Pair::new();
        p.send(5);
        p.reconnect();
        p.send(7);
        assert_eq!(p.a.weight(), 12);
        p.settle();
        p.send(3);
        assert_eq!(p.a.weight(), 3);
        p.a.connect(Hello { from: 30, to: None, received: 0 }).unwrap();
        assert_eq!(p.a.weight(), 0);
    }

    /// Two ends and the frames on the way between them.
    #[derive(Clone)]
    struct Pair {
        a: Link<u32>,
        b: Link<u32>,
        to_b: VecDeque<Frame<u32>>,
        to_a: VecDeque<Frame<u32>>,
        got: Vec<u32>,
    }

    fn own(f: Frame<&u32>) -> Frame<u32> {
        Frame { from: f.from, to: f.to, seq: f.seq, ack: f.ack, payload: f.payload.copied() }
    }

    impl Pair {
        fn new() -> Pair {
            let (a, b) = (Link::new(10, 4), Link::new(20, 4));
            let (to_b, to_a) = Default::default();
            Pair { a, b, to_b, to_a, got: Vec::new() }
        }
        /// Loses everything on the way and connects both ends anew.
        fn reconnect(&mut self) {
            self.cut();
            let (ha, hb) = (self.a.hello(), self.b.hello());
            self.a.connect(hb).unwrap();
            self.b.connect(ha).unwrap();
            self.to_b.extend(self.a.resend().map(own));
            self.to_a.extend(self.b.resend().map(own));
        }
        fn cut(&mut self) {
            self.a.disconnect();
            self.b.disconnect();
            self.to_b.clear();
            self.to_a.clear();
        }
        fn send(&mut self, p: u32) {
            self.to_b.extend(self.a.send(p).map(own));
        }
        fn ack(&mut self) {
            self.to_a.extend(self.b.acknowledgement());
        }
        fn step_b(&mut self) -> bool {
            let Some(f) = self.to_b.pop_front() else {
                return false;
            };
            self.got.extend(self.b.receive(f).unwrap());
            true
        }
        fn step_a(&mut self) -> bool {
            let Some(f) = self.to_a.pop_front() else {
                return false;
            };
            assert_eq!(self.a.receive(f), Ok(None));
            true
        }
        fn settle(&mut self) {
            while self.step_b() {}
            self.ack();
            while self.step_a() {}
        }
    }

    #[test]
    fn delivers_in_order_and_forgets_what_is_acknowledged() {
        let mut p = Pair::new();
        p.reconnect();
        (0..3).for_each(|i| p.send(i));
        assert_eq!(p.a.backlog(), 3);
        p.settle();
        assert_eq!((p.got.as_slice(), p.a.backlog()), (&[0, 1, 2][..], 0));
        assert_eq!(p.b.unacknowledged(), 0);
    }

    #[test]
    fn loss_of_the_connection_at_every_point_loses_and_doubles_nothing() {
        // A run is a list of steps; the connection is cut before the i-th and j-th of them.
        let steps: [fn(&mut Pair); 9] = [
            |p| p.send(0),
            |p| p.send(1),
            |p| _ = p.step_b(),
            |p| p.ack(),
            |p| p.send(2),
            |p| _ = p.step_a(),
            |p| _ = p.step_b(),
            |p| p.ack(),
            |p| _ = p.step_b(),
        ];
        for i in 0..=steps.len() {
            for j in i..=steps.len() {
                for late in [false, true] {
                    let mut p = Pair::new();
                    p.reconnect();
                    for (n, step) in steps.iter().enumerate() {
                        if n == i || n == j {
                            // Either connected again at once, or only at the next cut or the end.
                            if late { p.cut() } else { p.reconnect() }
                        }
                        step(&mut p);
                    }
                    p.reconnect();
                    p.settle();
                    assert_eq!(p.got, [0, 1, 2], "cut at {i} and {j}, late {late}");
                    assert_eq!(p.a.backlog(), 0);
                }
            }
        }
    }

    #[test]
    fn only_one_side_saw_the_handshake() {
        let mut p = Pair::new();
        // `a` heard `b`, sent, and the connection broke before `b` heard `a`.
        p.a.connect(p.b.hello()).unwrap();
        p.send(7);
        p.reconnect();
        p.settle();
        assert_eq!(p.got, [7]);
    }

    #[test]
    fn duplicates_are_dropped_and_old_acknowledgements_ignored() {
        let mut p = Pair::new();
        p.reconnect();
        p.send(1);
        p.send(2);
        let twice: Vec<_> = p.to_b.iter().chain(p.to_b.iter()).copied().collect();
        let got: Vec<_> = twice.into_iter().filter_map(|f| p.b.receive(f).unwrap()).collect();
        assert_eq!(got, [1, 2]);
        let (old, new) =
            (Frame { ack: 1, ..p.b.acknowledgement().unwrap() }, p.b.acknowledgement());
        assert_eq!(p.a.receive(new.unwrap()), Ok(None));
        assert_eq!(p.a.receive(old), Ok(None));
        assert_eq!(p.a.backlog(), 0);
    }

    #[test]
    fn resends_in_the_order_sent_with_the_same_numbers() {
        let mut p = Pair::new();
        p.reconnect();
        (1..=5).for_each(|i| p.send(i * 10));
        p.step_b();
        p.step_b();
        p.reconnect();
        let again: Vec<_> = p.to_b.iter().map(|f| (f.seq, f.payload)).collect();
        assert_eq!(again, [(3, Some(30)), (4, Some(40)), (5, Some(50))]);
    }

    #[test]
    fn a_gap_is_an_error_and_changes_nothing() {
        let mut p = Pair::new();
        p.reconnect();
        p.send(1);
        p.send(2);
        let (first, second) = (p.to_b[0], p.to_b[1]);
        assert_eq!(p.b.receive(second), Err(LinkError::Gap { got: 2, expected: 1 }));
        assert_eq!(p.b.receive(first), Ok(Some(1)));
        assert_eq!(p.b.receive(second), Ok(Some(2)));
    }

    #[test]
    fn the_backlog_says_when_it_is_over_its_limit() {
        let mut p = Pair::new();
        p.reconnect();
        (0..4).for_each(|i| p.send(i));
        assert!(!p.a.over_limit());
        p.send(4);
        assert!(p.a.over_limit());
        p.settle();
        assert!(!p.a.over_limit());
    }

    #[test]
    fn a_new_life_starts_both_directions_afresh() {
        let mut p = Pair::new();
        p.reconnect();
        p.send(1);
        p.send(2);
        let stale = p.to_b[1];
        p.step_b();
        p.b = Link::new(21, 4);
        let (ha, hb) = (p.a.hello(), p.b.hello());
        assert_eq!(p.a.connect(hb), Ok(Resumed::NewLife));
        assert_eq!(p.b.connect(ha), Ok(Resumed::First));
        assert_eq!((p.a.resend().count(), p.a.backlog()), (0, 0));
        assert_eq!(p.b.receive(stale), Err(LinkError::WrongLife { from: 10, to: 20 }));
        p.to_b.clear();
        p.send(3);
        p.got.clear();
        p.settle();
        assert_eq!(p.got, [3]);
    }

    #[test]
    fn wrong_lives_are_refused() {
        let mut p = Pair::new();
        p.reconnect();
        let old = Hello { from: 19, to: Some(10), received: 0 };
        assert_eq!(p.a.connect(old), Err(LinkError::OldLife { got: 19, known: 20 }));
        let frame = Frame { from: 19, to: 10, seq: 1, ack: 0, payload: Some(1) };
        assert_eq!(p.a.receive(frame), Err(LinkError::WrongLife { from: 19, to: 10 }));
        assert!(p.a.is_connected());
    }

    #[test]
    fn impossible_acknowledgements_are_refused() {
        let mut p = Pair::new();
        p.reconnect();
        p.send(1);
        p.settle();
        let nonsense = |received, last| Err(LinkError::Nonsense { received, first: 1, last });
        let hello = |received| Hello { from: 20, to: Some(10), received };
        assert_eq!(p.a.connect(hello(9)), nonsense(9, 1).map(|()| Resumed::Same));
        assert_eq!(p.a.connect(hello(0)), nonsense(0, 1).map(|()| Resumed::Same));
        let frame = Frame { from: 20, to: 10, seq: 1, ack: 2, payload: None };
        assert_eq!(p.a.receive(frame), nonsense(2, 1).map(|()| None));
        let first = Hello { from: 20, to: Some(10), received: 3 };
        assert!(Link::<u32>::new(10, 1).connect(first).is_err());
    }

    #[test]
    fn what_is_sent_before_the_peer_is_known_goes_to_its_first_life() {
        let mut p = Pair::new();
        assert_eq!(p.a.send(5), None);
        p.reconnect();
        p.settle();
        assert_eq!(p.got, [5]);
    }
}
