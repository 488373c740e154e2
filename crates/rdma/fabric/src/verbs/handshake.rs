//! The handshake of two ends for one connection: the message of each, and the choice between two queue pairs.
//!
//! ```text
//! Closed --begin--> Opening ------------Answer------------> Up     says Ready
//!   \----Open----------------------> Answered ----Ready---> Up     says Answer
//! ```
//! The answering end does not send before it hears `Ready`: the other would drop it, and a connection ends with what is
//! dropped often enough. Where both begin at once, the one with the lower number is answered. An `Open` at any other time
//! says that the other's pair is gone, and this one's is given up. An end that cannot continue says `Refuse`, so that
//! nobody waits for it.

use lockify_onesided::Peer;

use super::endpoint::{Endpoint, Word};

/// How far this end is with one other. Pairs are known by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Handshake {
    /// There is no pair.
    #[default]
    Closed,
    /// This end has told of its pair.
    Opening { mine: u32 },
    /// The pair is connected, the other's perhaps not yet.
    Answered { mine: u32 },
    /// Both are.
    Up,
}

/// The next step after a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Nothing: it is old, or the other will give way.
    Ignore,
    /// Give up the pair, if there is one; connect a new one to this; say `Answer`.
    Answer(Endpoint),
    /// Connect the pair to this; say `Ready`.
    Connect(Endpoint),
    /// Begin to send.
    Start,
    /// There will be no connection.
    GiveUp,
    /// The other ends. So many messages were taken; there will be no connection.
    End { taken: u64 },
}

impl Handshake {
    /// The reaction of `me` to a message of `from`.
    pub fn hear(self, me: Peer, from: Peer, word: Word) -> Step {
        match (word, self) {
            (Word::Open(_), Handshake::Opening { .. }) if me < from => Step::Ignore,
            (Word::Open(endpoint), _) => Step::Answer(endpoint),
            (Word::Answer { to, endpoint }, Handshake::Opening { mine }) if to == mine => {
                Step::Connect(endpoint)
            }
            (Word::Ready { to }, Handshake::Answered { mine }) if to == mine => Step::Start,
            (Word::Refuse { to }, Handshake::Opening { mine } | Handshake::Answered { mine })
                if to == mine =>
            {
                Step::GiveUp
            }
            (Word::Leave { taken }, _) => Step::End { taken },
            (Word::Answer { .. } | Word::Ready { .. } | Word::Refuse { .. }, _) => Step::Ignore,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use super::*;

    const A: Peer = Peer(1);
    const B: Peer = Peer(2);

    fn endpoint(pair: u32) -> Endpoint {
        Endpoint {
            ethernet: true,
            lid: 0,
            gid: [[0; 8]; 2],
            pair,
            psn: 0,
            mtu: 3,
            reads: 1,
            taken: 0,
        }
    }

    /// One end, as `mod.rs` carries steps out; a pair is known by its number, and by which it is connected to.
    #[derive(Clone, PartialEq, Eq, Hash, Default)]
    struct End {
        state: u8,
        mine: u32,
        connected_to: Option<u32>,
        begins: u8,
        breaks: u8,
    }

    #[derive(Clone, PartialEq, Eq, Hash)]
    struct World {
        ends: [End; 2],
        /// The messages of each end to the other, in order.
        said: [VecDeque<(u8, u32, u32)>; 2],
        pairs: u32,
    }

    impl World {
        fn state(&self, who: usize) -> Handshake {
            let end = &self.ends[who];
            match end.state {
                0 => Handshake::Closed,
                1 => Handshake::Opening { mine: end.mine },
                2 => Handshake::Answered { mine: end.mine },
                _ => Handshake::Up,
            }
        }

        fn new_pair(&mut self, who: usize) -> u32 {
            self.pairs += 1;
            self.ends[who].mine = self.pairs;
            self.ends[who].connected_to = None;
            self.pairs
        }

        /// The possible next steps, each as the world after it.
        fn next(&self) -> Vec<World> {
            let mut after = Vec::new();
            for who in 0..2 {
                if self.ends[who].begins > 0 && self.ends[who].state == 0 {
                    let mut w = self.clone();
                    w.ends[who].begins -= 1;
                    let mine = w.new_pair(who);
                    w.ends[who].state = 1;
                    w.said[who].push_back((0, 0, mine));
                    after.push(w);
                }
                if self.ends[who].breaks > 0 && self.ends[who].state != 0 {
                    let mut w = self.clone();
                    // Its pair fails, and there is more to send.
                    w.ends[who] = End {
                        begins: self.ends[who].begins + 1,
                        breaks: self.ends[who].breaks - 1,
                        ..End::default()
                    };
                    after.push(w);
                }
                if let Some((kind, to, pair)) = self.said[1 - who].front().copied() {
                    let mut w = self.clone();
                    w.said[1 - who].pop_front();
                    w.hear(who, kind, to, pair);
                    after.push(w);
                }
            }
            after
        }

        fn hear(&mut self, who: usize, kind: u8, to: u32, pair: u32) {
            let word = match kind {
                0 => Word::Open(endpoint(pair)),
                1 => Word::Answer { to, endpoint: endpoint(pair) },
                _ => Word::Ready { to },
            };
            let (me, from) = if who == 0 { (A, B) } else { (B, A) };
            match self.state(who).hear(me, from, word) {
                Step::Ignore => {}
                Step::Answer(endpoint) => {
                    let mine = self.new_pair(who);
                    self.ends[who].connected_to = Some(endpoint.pair);
                    self.ends[who].state = 2;
                    self.said[who].push_back((1, endpoint.pair, mine));
                }
                Step::Connect(endpoint) => {
                    self.ends[who].connected_to = Some(endpoint.pair);
                    self.ends[who].state = 3;
                    self.said[who].push_back((2, endpoint.pair, 0));
                }
                Step::Start => self.ends[who].state = 3,
                Step::GiveUp | Step::End { .. } => unreachable!("nobody refuses or ends here"),
            }
        }
    }

    /// However words cross and pairs break, with nothing under way any more both ends send to each other's pair.
    #[test]
    fn all_interleavings_end_with_two_pairs_connected_to_each_other() {
        for begins in [[1, 0], [0, 1], [1, 1]] {
            let end = |n: usize| End { begins: begins[n], breaks: 1, ..End::default() };
            let world = World { ends: [end(0), end(1)], said: Default::default(), pairs: 0 };
            let mut seen = HashSet::new();
            let mut open = vec![world];
            let mut ends = 0;
            while let Some(world) = open.pop() {
                if !seen.insert(world.clone()) {
                    continue;
                }
                let quiet = world.said.iter().all(VecDeque::is_empty)
                    && world.ends.iter().all(|end| end.begins == 0);
                if quiet {
                    ends += 1;
                    let [a, b] = &world.ends;
                    assert_eq!((a.state, b.state), (3, 3));
                    assert_eq!((a.connected_to, b.connected_to), (Some(b.mine), Some(a.mine)));
                }
                open.extend(world.next());
            }
            assert!(ends > 3, "{begins:?}: {ends} ends of {} worlds", seen.len());
        }
    }

    /// A sender posts to a pair that accepts it.
    #[test]
    fn nobody_is_up_before_the_other_is_connected() {
        let end = || End { begins: 1, ..End::default() };
        let world = World { ends: [end(), end()], said: Default::default(), pairs: 0 };
        let mut seen = HashSet::new();
        let mut open = vec![world];
        while let Some(world) = open.pop() {
            if !seen.insert(world.clone()) {
                continue;
            }
            for who in 0..2 {
                if world.ends[who].state == 3 {
                    assert_eq!(world.ends[1 - who].connected_to, Some(world.ends[who].mine));
                }
            }
            open.extend(world.next());
        }
        assert!(seen.len() > 10, "{} worlds", seen.len());
    }
}
