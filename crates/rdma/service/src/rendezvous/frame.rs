//! The messages between a host and a participant.

use lockify_trust::Versions;
use lockify_trust::speech::{Framed, printable};
use serde::{Deserialize, Serialize};

/// The longest offer or message, bytes.
pub const MAX_BYTES: usize = 16 * 1024;

/// A participant: its rank and its life. Ranks come again, lives do not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Who {
    pub rank: u16,
    pub life: u64,
}

/// A frame.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Frame {
    /// From a host: no, because.
    Refused(String),
    /// A participant's first: its cluster and node, and the node that it believes to talk to.
    Hello { cluster: String, node: u32, to: u32 },
    /// A host's answer.
    Welcome { rank: u16, offer: Vec<u8> },
    /// From a participant: for somebody else.
    Tell { to: Who, bytes: Vec<u8> },
    /// From a host: what somebody has told.
    Told { from: u16, bytes: Vec<u8> },
    /// From a host: somebody takes part.
    Joined(Who),
    /// From a host: no more.
    Gone { rank: u16 },
    /// From a host: it ends.
    Ended,
}

impl Framed for Frame {
    const MAGIC: [u8; 8] = *b"LOCKIFYR";
    const SPOKEN: Versions = Versions::only(1);
    const SPEAKER: &'static str = "memory server's set-up, nor a client of one";
    const SUBJECT: &'static str = "the set-up";
    /// A host's first frame has an offer.
    const MAX_GREETING: usize = Frame::MAX_FRAME;
    /// Besides a message, a cluster's name and some numbers.
    const MAX_FRAME: usize = MAX_BYTES + 256;
    const READ: usize = 16 * 1024;

    fn refusal(why: String) -> Frame {
        Frame::Refused(why)
    }

    fn refused(&self) -> Option<&str> {
        if let Frame::Refused(why) = self { Some(why) } else { None }
    }

    fn received(self) -> Result<Frame, &'static str> {
        let fits = match &self {
            Frame::Welcome { offer: bytes, .. }
            | Frame::Tell { bytes, .. }
            | Frame::Told { bytes, .. } => bytes.len() <= MAX_BYTES,
            Frame::Hello { cluster, .. } => cluster.len() <= lockify_trust::LONGEST_CLUSTER,
            Frame::Refused(_) | Frame::Joined(_) | Frame::Gone { .. } | Frame::Ended => true,
        };
        match self {
            _ if !fits => Err("a message that is too long"),
            Frame::Refused(text) => Ok(Frame::Refused(printable(&text))),
            frame => Ok(frame),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use lockify_trust::frame::BadFrame;
    use lockify_trust::speech::{
        HEAD, MAX_TEXT, SpeechError, decode, decode_head, encode, encode_head,
    };
    use rand::{Rng as _, RngExt as _, SeedableRng as _};
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    fn frames() -> Vec<Frame> {
        vec![
            Frame::Refused("no room".into()),
            Frame::Hello { cluster: "lockify".into(), node: 3, to: 1 },
            Frame::Welcome { rank: 7, offer: vec![1; 40] },
            Frame::Tell { to: Who { rank: 300, life: 1 << 40 }, bytes: vec![2; MAX_BYTES] },
            Frame::Told { from: 5, bytes: vec![] },
            Frame::Joined(Who { rank: 65_534, life: u64::MAX }),
            Frame::Gone { rank: 1 },
            Frame::Ended,
        ]
    }

    fn bytes(frame: &Frame) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&mut bytes, frame);
        bytes
    }

    #[test]
    fn frames_come_back_as_they_were() {
        for frame in frames() {
            let bytes = bytes(&frame);
            assert_eq!(decode(&bytes, false), Ok(Some((frame, bytes.len()))));
            (0..bytes.len().min(100))
                .for_each(|cut| assert_eq!(decode::<Frame>(&bytes[..cut], false), Ok(None)));
        }
    }

    /// Every version understands these bytes.
    #[test]
    fn heads_and_refusals_keep_their_bytes() {
        let mut all = Vec::new();
        encode_head::<Frame>(&mut all, Frame::SPOKEN.newest);
        encode(&mut all, &Frame::Refused("no".into()));
        assert_eq!(all, b"LOCKIFYR\x01\0\x04\0\0\0\0\x02no");
        (0..HEAD).for_each(|cut| assert_eq!(decode_head::<Frame>(&all[..cut]), Ok(None)));
        assert_eq!(decode_head::<Frame>(&all), Ok(Some(Frame::SPOKEN.newest)));
    }

    #[test]
    fn what_does_not_fit_is_refused_before_it_is_read() {
        let long = Frame::Told { from: 0, bytes: vec![0; MAX_BYTES + 1] };
        let refused = |bytes: &[u8], why| assert_eq!(decode::<Frame>(bytes, true), Err(why));
        refused(&bytes(&long), SpeechError::Malformed("a message that is too long"));
        let (longest, length) = (Frame::MAX_FRAME, Frame::MAX_FRAME + 1);
        let too_long = BadFrame::TooLong { length, longest };
        refused(&(length as u32).to_le_bytes(), too_long.into());
        let Ok(Some((Frame::Refused(text), _))) =
            decode(&bytes(&Frame::Refused("ä\n".repeat(9999))), false)
        else {
            panic!("refusals are cut")
        };
        assert!(text.starts_with("ä\\nä\\n") && text.len() <= MAX_TEXT, "{text}");
        assert_eq!(decode_head::<Frame>(b"\x16\x03\x01"), Err(SpeechError::Tls));
        let other = decode_head::<Frame>(b"SSH-2.0-OpenSSH").unwrap_err();
        assert_eq!(
            other.to_string(),
            "this is no memory server's set-up, nor a client of one: is the address right?"
        );
    }

    /// Seeded noise and mutations of valid frames, for `LOCKIFY_FUZZ_SECONDS` (1); a failure prints the seed, which
    /// `LOCKIFY_FUZZ_SEED` replays.
    #[test]
    fn noise_is_refused_or_means_the_same_when_it_is_said_again() {
        let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse().ok());
        let time = Duration::from_secs(number("LOCKIFY_FUZZ_SECONDS").unwrap_or(1));
        let start = Instant::now();
        let seed = number("LOCKIFY_FUZZ_SEED").unwrap_or(start.elapsed().as_nanos() as u64);
        println!("LOCKIFY_FUZZ_SEED={seed}");
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut corpus: Vec<_> = frames().iter().map(bytes).filter(|b| b.len() < 100).collect();
        corpus.push([0; 64].to_vec());
        let mut understood = 0;
        for round in 0_u64.. {
            if round > 5000 && start.elapsed() > time {
                break;
            }
            let mut bytes = corpus[random.random_range(0..corpus.len())].clone();
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.next_u64() as u8;
            }
            bytes.truncate(random.random_range(0..=2 * bytes.len()));
            if let Ok(Some((frame, used))) = decode::<Frame>(&bytes, false) {
                assert!(used <= bytes.len());
                understood += 1;
                let again = self::bytes(&frame);
                assert_eq!(decode(&again, false), Ok(Some((frame, again.len()))));
            }
            // Never panics, and wants no more than a head.
            assert!(decode_head::<Frame>(&bytes) != Ok(None) || bytes.len() < HEAD);
        }
        assert!(understood > 100, "{understood}: the mutations miss what is valid");
    }
}
