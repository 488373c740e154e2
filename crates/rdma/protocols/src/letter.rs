//! The messages between clients and homes.
//!
//! Every letter names the lock, its generation and the acquisition that it is meant for. Published protocols send none of
//! these (docs/design/onesided.md 2.7, hole 5). There, a letter that arrives after the end of its wait is taken for
//! another.

use crate::fabric::{Message, Peer};
use crate::table::{Generation, LockId};

/// The claimant or holder of a lock, in the 24 bits that lock words have for it: the peer, and the low bits of a number
/// of the acquisition. 0 is nobody.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Claimant(pub u32);

impl Claimant {
    pub const NOBODY: Claimant = Claimant(0);
    pub const BITS: u32 = 24;

    pub fn new(peer: Peer, number: u8) -> Claimant {
        Claimant(u32::from(peer.0) << 8 | u32::from(number))
    }

    pub fn peer(self) -> Peer {
        Peer((self.0 >> 8) as u16)
    }
}

macro_rules! kinds {
    ($($kind:ident = $code:literal $doc:literal,)*) => {
        /// The content of a letter.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub(crate) enum Kind { $(#[doc = $doc] $kind = $code,)* }

        impl Kind {
            fn of(code: u8) -> Option<Kind> {
                match code { $($code => Some(Kind::$kind),)* _ => None }
            }
        }
    };
}

kinds! {
    Successor = 1 "To the one before in a queue: I am behind you.",
    Handover = 2 "The lock is yours; `value` is what the protocol passes along.",
    ModeChanged = 3 "Writers have paused; `value` says when the readers will be gone.",
    Hint = 4 "Your ticket is served.",
    WantShared = 5 "To the holder: I want to share after you.",
    WantExclusive = 6 "To the holder: I am next, and `value` readers are between us.",
    Grant = 7 "The lock is yours, now in answer to a request.",
    Exclusive = 8 "To the home: grant this one when `value` readers have left.",
    SharedDone = 9 "To the home: one reader has left.",
    Request = 10 "To the server: `value` is the mode and how often this was asked.",
    Release = 11 "To the server.",
    Recount = 12 "To the home: no writer counts the readers that have left any more.",
}

/// A letter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LockLetter {
    pub kind: Kind,
    pub lock: LockId,
    pub generation: Generation,
    /// The acquisition that it is meant for; nobody if it goes to a home.
    pub to: Claimant,
    /// The acquisition that it is about.
    pub from: Claimant,
    pub value: u64,
}

impl LockLetter {
    pub fn encode(&self) -> Message {
        let parties = u64::from(self.to.0) << 32 | u64::from(self.from.0);
        [self.lock.0, u64::from(self.generation) << 32 | self.kind as u64, parties, self.value]
    }

    /// The letter in a message; `None` if it is none. Anybody who can connect can send anything.
    pub fn decode(message: Message) -> Option<LockLetter> {
        let [lock, head, parties, value] = message;
        let kind = Kind::of(u8::try_from(head & 0xffff_ffff).ok()?)?;
        let claimant = |bits: u64| (bits < 1 << Claimant::BITS).then_some(Claimant(bits as u32));
        Some(LockLetter {
            kind,
            lock: LockId(lock),
            generation: (head >> 32) as u32,
            to: claimant(parties >> 32)?,
            from: claimant(parties & 0xffff_ffff)?,
            value,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_survive_the_way_and_rubbish_is_none() {
        let letter = LockLetter {
            kind: Kind::Handover,
            lock: LockId(u64::MAX),
            generation: u32::MAX,
            to: Claimant::new(Peer(u16::MAX), 255),
            from: Claimant::new(Peer(7), 1),
            value: 42,
        };
        assert_eq!(LockLetter::decode(letter.encode()), Some(letter));
        for rubbish in [[0; 4], [u64::MAX; 4], [0, 13, 0, 0], [0, 2, 1 << 24, 0], [0, 258, 0, 0]] {
            assert_eq!(LockLetter::decode(rubbish), None, "{rubbish:?}");
        }
    }
}
