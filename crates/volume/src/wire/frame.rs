//! What processes of an array say to each other, as bytes. Encoding and decoding are pure functions.
//!
//! Each side begins with a head: `magic (8 bytes) | version (u16)`. Frames follow: a length (`u32`) and that many bytes, one
//! [`Frame`] in postcard's encoding; integers are little-endian. The head and [`Frame::Refused`] are the same in every
//! version, so that two versions can tell each other what is wrong.

use lockify_array::message::{Reply, Request};
use lockify_array::{ArrayState, DeviceId, Life, ServerReply, ServerRequest};
use lockify_node::membership::Vote;
use serde::{Deserialize, Serialize};

use super::report::Report;
use crate::ArrayId;

/// How each side begins.
const MAGIC: [u8; 8] = *b"LOCKIFYA";
/// The version of all this. No other is understood: the processes of an array are of one release.
pub(crate) const VERSION: u16 = 1;
/// Bytes of a head.
pub(crate) const HEAD: usize = 10;
/// Bytes of a frame's length.
pub(crate) const PREFIX: usize = 4;
/// The longest frame of somebody who has not introduced himself, in bytes without its length.
const MAX_GREETING: usize = 4096;
/// The longest frame: a part of an operation on one device, with linkage records.
pub(crate) const MAX_FRAME: usize = 80 << 20;
/// The longest text of a refusal, bytes.
const MAX_TEXT: usize = 1024;
/// How a TLS record of a handshake begins, and that of an alert (RFC 8446, 5.1).
const TLS: [[u8; 2]; 2] = [[22, 3], [21, 3]];

/// As what a process takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// A life of a host.
    Host(Life),
    /// A device or witness.
    Device {
        id: DeviceId,
        /// Its process's life, larger than those before.
        life: u64,
        /// Its blocks are the array's: it has served before.
        in_service: bool,
    },
    /// Somebody who only asks how it stands.
    Watcher,
}

/// Whom a process talks to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub(crate) enum Whom {
    Device(DeviceId),
    Server,
}

impl std::fmt::Display for Whom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Whom::Device(device) => write!(f, "device {}", device.0),
            Whom::Server => f.write_str("the lock server"),
        }
    }
}

/// The first that who connects says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub cluster: String,
    /// The node whose keys it shows.
    pub node: u32,
    /// Whom it believes to talk to.
    pub to: Whom,
    pub array: ArrayId,
    /// Of the array's file.
    pub digest: u64,
    pub role: Role,
}

/// The answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// The life of who answers.
    pub life: u64,
    /// See [`Role::Device`].
    pub in_service: bool,
}

/// A frame.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Frame {
    /// No, because.
    Refused(String),
    Hello(Hello),
    Welcome(Welcome),
    /// Of a host, to a device.
    Request(Request),
    Reply(Reply),
    /// Of a host, to the lock server.
    Ask(ServerRequest),
    Answer(ServerReply),
    /// Between devices: who is there.
    Vote(Vote),
    /// Of anybody: how does it stand?
    Query,
    Report(Report),
    /// To a host that is welcome, but not now, because.
    Later(String),
    /// To a host: the array's state, as the device knows it. Who waits only for a device that is out hears of it by this.
    State(ArrayState),
}

/// Bytes that nobody of this version says.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("this is no process of an array: is the address right?")]
    Magic,
    #[error("it speaks TLS and this side does not: give both the same keys")]
    Tls,
    #[error(
        "it speaks version {0} of arrays and this side {VERSION}: use the same release on both sides"
    )]
    Version(u16),
    #[error("it sent what makes no sense ({0}): use the same release on both sides")]
    Malformed(&'static str),
}

/// Appends a head.
pub(crate) fn encode_head(out: &mut Vec<u8>) {
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
}

/// The version in the head at the start of `bytes`; `None` if it is not complete yet.
pub(crate) fn decode_head(bytes: &[u8]) -> Result<Option<u16>, FrameError> {
    let magic = bytes.len().min(MAGIC.len());
    if bytes[..magic] != MAGIC[..magic] {
        let tls = TLS.iter().any(|start| bytes.starts_with(start));
        return Err(if tls { FrameError::Tls } else { FrameError::Magic });
    }
    let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    Ok(Some(u16::from_le_bytes([head[8], head[9]])))
}

/// Appends a frame; a refusal's text is cut.
pub(crate) fn encode(out: &mut Vec<u8>, frame: &Frame) {
    let cut;
    let frame = match frame {
        Frame::Refused(text) => {
            cut = Frame::Refused(text.chars().take(MAX_TEXT / 4).collect());
            &cut
        }
        frame => frame,
    };
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX]);
    // Only a serializer of unknown lengths could fail, and a frame has none.
    *out = postcard::to_extend(frame, std::mem::take(out)).unwrap_or_default();
    let length = (out.len() - start - PREFIX) as u32;
    out[start..start + PREFIX].copy_from_slice(&length.to_le_bytes());
}

/// The frame at the start of `bytes` and its length with its prefix; `None` if it is not complete yet. `greeted`: the other
/// side has introduced itself.
pub(crate) fn decode(bytes: &[u8], greeted: bool) -> Result<Option<(Frame, usize)>, FrameError> {
    let Some(length) = length(bytes) else { return Ok(None) };
    if length > if greeted { MAX_FRAME } else { MAX_GREETING } {
        return Err(FrameError::Malformed("a frame that is too long"));
    }
    let Some(body) = bytes.get(PREFIX..PREFIX + length) else { return Ok(None) };
    match postcard::take_from_bytes::<Frame>(body) {
        Ok((frame, [])) => Ok(Some((frame.printable(), PREFIX + length))),
        Ok(_) => Err(FrameError::Malformed("a frame with something after it")),
        Err(_) => Err(FrameError::Malformed("a frame of an unknown kind")),
    }
}

/// The length of the frame at the start of `bytes`, without its prefix.
pub(crate) fn length(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk::<PREFIX>().map(|prefix| u32::from_le_bytes(*prefix) as usize)
}

impl Frame {
    /// A stranger's text is for a terminal: no control characters.
    fn printable(self) -> Frame {
        let clean = |c: char| if c.is_control() { ' ' } else { c };
        match self {
            Frame::Refused(text) => {
                Frame::Refused(text.chars().take(MAX_TEXT).map(clean).collect())
            }
            Frame::Later(text) => Frame::Later(text.chars().map(clean).collect()),
            frame => frame,
        }
    }
}

#[cfg(test)]
mod tests {
    use lockify_array::message::Past;
    use lockify_array::{Extent, Held, HostId, LockMode, LockRange, OpId, PartId};

    use super::*;

    fn frames() -> Vec<Frame> {
        let life = Life { host: HostId(3), incarnation: 1 << 60 };
        let hello = |role| {
            let (to, array) = (Whom::Device(DeviceId(2)), ArrayId([4; 16]));
            Frame::Hello(Hello { cluster: "c".into(), node: 7, to, array, digest: 9, role })
        };
        let others = vec![
            Frame::Refused("no".into()),
            hello(Role::Host(life)),
            hello(Role::Device { id: DeviceId(1), life: 5, in_service: true }),
            hello(Role::Watcher),
            Frame::Welcome(Welcome { life: 6, in_service: false }),
            Frame::Vote(Vote::Goodbye),
            Frame::Query,
        ];
        others.into_iter().chain(of_locks(life)).collect()
    }

    /// All that hosts and the lock server say to each other.
    fn of_locks(life: Life) -> impl Iterator<Item = Frame> {
        let op = OpId { life, seq: 300 };
        let part = PartId { op, index: 2 };
        let extent = Extent { start: 1 << 40, count: 5 };
        let range = LockRange { device: DeviceId(9), extent, mode: LockMode::Exclusive };
        let lock = |past| ServerRequest::Lock { op, ranges: vec![range; 3], past };
        let asks = [
            ServerRequest::Register {
                incarnation: 7,
                held: vec![Held { part, mode: LockMode::Shared }],
            },
            lock(Past::Nobody),
            lock(Past::Tries(vec![op])),
            lock(Past::Life(life)),
            ServerRequest::Unlock { op },
            ServerRequest::Relinquish { free: vec![part], shared: vec![part, part] },
            ServerRequest::Renew,
            ServerRequest::Fence { life },
            ServerRequest::Clear { life },
        ];
        let answers = [
            ServerReply::Welcome { incarnation: 7, lease: 1 << 32 },
            ServerReply::Granted { op, waited: true },
            ServerReply::Unlocked { op },
            ServerReply::Callback { parts: vec![part], shared: true },
            ServerReply::Renewed,
            ServerReply::Fenced { life, ranges: vec![range] },
            ServerReply::Cleared { life },
            ServerReply::Refused { reason: "why".into() },
        ];
        asks.into_iter().map(Frame::Ask).chain(answers.into_iter().map(Frame::Answer))
    }

    #[test]
    fn frames_come_back_as_they_were_and_never_too_early() {
        for frame in frames() {
            let mut bytes = Vec::new();
            encode(&mut bytes, &frame);
            assert_eq!(decode(&bytes, false), Ok(Some((frame, bytes.len()))));
            (0..bytes.len()).for_each(|cut| assert_eq!(decode(&bytes[..cut], false), Ok(None)));
        }
    }

    /// What every version understands.
    #[test]
    fn heads_and_refusals_keep_their_bytes() {
        let mut all = Vec::new();
        encode_head(&mut all);
        encode(&mut all, &Frame::Refused("no".into()));
        assert_eq!(all, b"LOCKIFYA\x01\0\x04\0\0\0\0\x02no");
        assert_eq!(decode_head(&all), Ok(Some(VERSION)));
        assert_eq!(decode_head(b"\x16\x03\x01"), Err(FrameError::Tls));
        assert_eq!(decode_head(b"LOCKIFYR\x01\0"), Err(FrameError::Magic));
    }

    #[test]
    fn strangers_are_not_given_memory() {
        let length = (MAX_GREETING as u32 + 1).to_le_bytes();
        assert!(decode(&length, false).is_err());
        assert_eq!(decode(&length, true), Ok(None));
        assert!(decode(&(MAX_FRAME as u32 + 1).to_le_bytes(), true).is_err());
        let long = Frame::Refused("\u{7}ä".repeat(9999));
        let mut bytes = Vec::new();
        encode(&mut bytes, &long);
        let Ok(Some((Frame::Refused(text), _))) = decode(&bytes, false) else { panic!() };
        assert!(text.starts_with(" ä ä") && text.len() <= MAX_TEXT);
    }

    /// Every single wrong byte, and every cut.
    #[test]
    fn noise_is_refused_without_a_panic() {
        for frame in frames() {
            let mut bytes = Vec::new();
            encode(&mut bytes, &frame);
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut noise = bytes.clone();
                    noise[at] ^= 1 << bit;
                    if let Ok(Some((_, used))) = decode(&noise, false) {
                        assert!(used <= noise.len());
                    }
                }
            }
        }
    }
}
