//! The messages by which two ends connect their queue pairs.

use serde::{Deserialize, Serialize};

/// Grows with every change of the format below.
const VERSION: u8 = 2;

/// The place of a queue pair, and its limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Endpoint {
    /// True if its port is on Ethernet (RoCE): then the GID is its address, else the LID.
    pub ethernet: bool,
    pub lid: u16,
    pub gid: [[u8; 8]; 2],
    /// The pair's number on its device.
    pub pair: u32,
    /// Number of the first packet that it sends.
    pub psn: u32,
    /// The port's MTU, as a code (1 is 256 bytes, 5 is 4096).
    pub mtu: u8,
    /// READs and atomics that it takes at a time.
    pub reads: u8,
    /// Messages that its end has taken from the other one so far, by earlier pairs.
    pub taken: u64,
}

/// A word of the handshake (`handshake.rs`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// Connect to this pair of mine, and tell me yours.
    Open(Endpoint),
    /// I have connected this pair to yours with the number `to`.
    Answer { to: u32, endpoint: Endpoint },
    /// I have connected mine to yours with the number `to`, and take what you send.
    Ready { to: u32 },
    /// There is no pair for yours with the number `to`: this end has run out of something, or its network is another.
    Refuse { to: u32 },
    /// I end, and have taken so many of your messages in all.
    Leave { taken: u64 },
}

/// Why bytes are no word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadWord {
    /// Of another version.
    #[error(
        "a peer's fabric has version {0}, this program knows {VERSION}: use the same release everywhere"
    )]
    Version(u8),
    /// Too few, too many, or no sense.
    #[error("a peer said {0} bytes that make no sense: use the same release everywhere")]
    Rubbish(usize),
}

impl Word {
    pub fn encode(&self) -> Vec<u8> {
        // A vector takes everything.
        postcard::to_extend(self, vec![VERSION]).unwrap_or_default()
    }

    pub fn decode(bytes: &[u8]) -> Result<Word, BadWord> {
        match bytes.split_first() {
            Some((&VERSION, rest)) => match postcard::take_from_bytes(rest) {
                Ok((word, [])) => Ok(word),
                _ => Err(BadWord::Rubbish(bytes.len())),
            },
            Some((&version, _)) => Err(BadWord::Version(version)),
            None => Err(BadWord::Rubbish(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> [Word; 5] {
        let endpoint = Endpoint {
            ethernet: true,
            lid: 0xffff,
            gid: [[0xfe, 0x80, 0, 0, 0, 0, 0, 1], [0xff; 8]],
            pair: 17,
            psn: 0xff_ffff,
            mtu: 5,
            reads: 16,
            taken: u64::MAX,
        };
        [
            Word::Open(endpoint),
            Word::Answer { to: u32::MAX, endpoint },
            Word::Ready { to: 0 },
            Word::Refuse { to: 7 },
            Word::Leave { taken: 300 },
        ]
    }

    #[test]
    fn words_survive_the_way() {
        for word in words() {
            assert_eq!(Word::decode(&word.encode()), Ok(word));
        }
    }

    #[test]
    fn other_versions_other_lengths_and_rubbish_are_refused() {
        assert_eq!(Word::decode(&[]), Err(BadWord::Rubbish(0)));
        for word in words() {
            let whole = word.encode();
            for short in 1..whole.len() {
                assert_eq!(Word::decode(&whole[..short]), Err(BadWord::Rubbish(short)));
            }
            let long = [&whole[..], &[0]].concat();
            assert_eq!(Word::decode(&long), Err(BadWord::Rubbish(long.len())));
            let newer = [&[VERSION + 1], &whole[1..]].concat();
            let refused = Word::decode(&newer).unwrap_err();
            assert_eq!(refused, BadWord::Version(VERSION + 1));
            assert!(refused.to_string().contains("same release"));
        }
        for kind in 5..=u8::MAX {
            assert!(Word::decode(&[VERSION, kind, 0, 0, 0, 0]).is_err(), "{kind}");
        }
    }
}
