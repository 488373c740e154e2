//! What a host and a participant say to each other, as bytes. Encoding and decoding are pure functions.
//!
//! Each side begins with a head: `magic (8 bytes) | version (u16)`. Frames follow: a length (`u32`, at most
//! [`MAX_FRAME`]) and that many bytes, one [`Frame`] in postcard's encoding; integers are little-endian. The head and
//! [`Frame::Refused`] are the same in every version, so that two versions can tell each other what is wrong.

use serde::{Deserialize, Serialize};

/// How each side begins.
pub const MAGIC: [u8; 8] = *b"LOCKIFYR";
/// The version of all this. No other is understood: hosts and participants are of one release.
pub const VERSION: u16 = 1;
/// Bytes of a head.
pub const HEAD: usize = 10;
/// The longest offer or message, bytes.
pub const MAX_BYTES: usize = 16 * 1024;
/// The longest frame, in bytes without its length: besides a message, a cluster's name and some numbers.
pub const MAX_FRAME: usize = MAX_BYTES + 256;
/// Bytes of a frame's length.
pub const PREFIX: usize = 4;
/// The longest text of a refusal, bytes.
const MAX_TEXT: usize = 1024;

/// How a TLS record of a handshake begins, and that of an alert (RFC 8446, 5.1).
const TLS: [[u8; 2]; 2] = [[22, 3], [21, 3]];

/// Who takes part, and which time he does: ranks come again, lives do not.
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

/// Bytes that nobody of this version says.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    #[error("this is no memory server's set-up, nor a client of one: is the address right?")]
    Magic,
    #[error("it speaks TLS and this side does not: give both the same keys")]
    Tls,
    #[error(
        "it speaks version {0} of the set-up and this side {VERSION}: use the same release on both sides"
    )]
    Version(u16),
    #[error("it sent what makes no sense ({0}): use the same release on both sides")]
    Malformed(&'static str),
}

/// Appends a head.
pub fn encode_head(out: &mut Vec<u8>) {
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
}

/// The version in the head at the start of `bytes`; `None` if it is not complete yet.
pub fn decode_head(bytes: &[u8]) -> Result<Option<u16>, FrameError> {
    let magic = bytes.len().min(MAGIC.len());
    if bytes[..magic] != MAGIC[..magic] {
        let tls = TLS.iter().any(|start| bytes.starts_with(start));
        return Err(if tls { FrameError::Tls } else { FrameError::Magic });
    }
    let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    Ok(Some(u16::from_le_bytes([head[8], head[9]])))
}

/// Appends a frame. A refusal's text is cut; everything else was measured before.
pub fn encode(out: &mut Vec<u8>, frame: &Frame) {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX]);
    let cut;
    let frame = match frame {
        Frame::Refused(text) => {
            cut = Frame::Refused(text.chars().take(MAX_TEXT / 4).collect());
            &cut
        }
        frame => frame,
    };
    // Only a serializer of unknown lengths could fail, and a frame has none.
    let body = postcard::to_allocvec(frame).unwrap_or_default();
    debug_assert!(body.len() <= MAX_FRAME);
    out.extend_from_slice(&body);
    out[start..start + PREFIX].copy_from_slice(&(body.len() as u32).to_le_bytes());
}

/// The frame at the start of `bytes` and its length with its prefix; `None` if it is not complete yet.
pub fn decode(bytes: &[u8]) -> Result<Option<(Frame, usize)>, FrameError> {
    let Some(prefix) = bytes.first_chunk::<PREFIX>() else { return Ok(None) };
    let length = u32::from_le_bytes(*prefix) as usize;
    if length > MAX_FRAME {
        return Err(FrameError::Malformed("a frame that is too long"));
    }
    let Some(body) = bytes.get(PREFIX..PREFIX + length) else { return Ok(None) };
    match postcard::take_from_bytes::<Frame>(body) {
        Ok((frame, [])) if frame.fits() => Ok(Some((frame.printable(), PREFIX + length))),
        Ok((_, [])) => Err(FrameError::Malformed("a message that is too long")),
        Ok(_) => Err(FrameError::Malformed("a frame with something after it")),
        Err(_) => Err(FrameError::Malformed("a frame of an unknown kind")),
    }
}

impl Frame {
    fn fits(&self) -> bool {
        match self {
            Frame::Welcome { offer: bytes, .. }
            | Frame::Tell { bytes, .. }
            | Frame::Told { bytes, .. } => bytes.len() <= MAX_BYTES,
            Frame::Refused(text) => text.len() <= MAX_TEXT,
            Frame::Hello { cluster, .. } => cluster.len() <= lockify_trust::LONGEST_CLUSTER,
            Frame::Joined(_) | Frame::Gone { .. } | Frame::Ended => true,
        }
    }

    /// A stranger's text is for a terminal: no control characters.
    fn printable(self) -> Frame {
        let clean = |c: char| if c.is_control() { ' ' } else { c };
        match self {
            Frame::Refused(text) => Frame::Refused(text.chars().map(clean).collect()),
            frame => frame,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

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
            assert_eq!(decode(&bytes), Ok(Some((frame, bytes.len()))));
            (0..bytes.len().min(100)).for_each(|cut| assert_eq!(decode(&bytes[..cut]), Ok(None)));
        }
    }

    /// What every version understands.
    #[test]
    fn heads_and_refusals_keep_their_bytes() {
        let mut all = Vec::new();
        encode_head(&mut all);
        encode(&mut all, &Frame::Refused("no".into()));
        assert_eq!(all, b"LOCKIFYR\x01\0\x04\0\0\0\0\x02no");
        (0..HEAD).for_each(|cut| assert_eq!(decode_head(&all[..cut]), Ok(None)));
        assert_eq!(decode_head(&all), Ok(Some(VERSION)));
    }

    #[test]
    fn what_does_not_fit_is_refused_before_it_is_read() {
        let long = Frame::Told { from: 0, bytes: vec![0; MAX_BYTES + 1] };
        assert_eq!(decode(&bytes(&long)), Err(FrameError::Malformed("a message that is too long")));
        let length = (MAX_FRAME as u32 + 1).to_le_bytes();
        assert_eq!(decode(&length), Err(FrameError::Malformed("a frame that is too long")));
        let Ok(Some((Frame::Refused(text), _))) =
            decode(&bytes(&Frame::Refused("ä\n".repeat(9999))))
        else {
            panic!("refusals are cut")
        };
        assert!(text.starts_with("ä ä ") && text.len() <= MAX_TEXT);
        assert_eq!(decode_head(b"\x16\x03\x01"), Err(FrameError::Tls));
        assert_eq!(decode_head(b"SSH-2.0-OpenSSH"), Err(FrameError::Magic));
    }

    /// Seeded noise and mutations of what is valid, for `LOCKIFY_FUZZ_SECONDS` (1); a failure prints the seed, which
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
            if let Ok(Some((frame, used))) = decode(&bytes) {
                assert!(used <= bytes.len());
                understood += 1;
                let again = self::bytes(&frame);
                assert_eq!(decode(&again), Ok(Some((frame, again.len()))));
            }
            // Never panics, and wants no more than a head.
            assert!(decode_head(&bytes) != Ok(None) || bytes.len() < HEAD);
        }
        assert!(understood > 100, "{understood}: the mutations miss what is valid");
    }
}
