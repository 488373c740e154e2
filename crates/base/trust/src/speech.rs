//! The messages of the two ends of a [`Line`](crate::Line), as bytes. Encoding and decoding are pure functions.
//!
//! Each side begins with a head: `magic (8 bytes) | newest version (u16)`, little-endian. [Frames](crate::frame) follow, of the
//! newest version that both know. The head and a refusal are the same in every version, so that two sides without a common
//! version can report the error to each other. So is what a side says before it has the other's head.

use serde::{Serialize, de::DeserializeOwned};

use crate::Versions;
use crate::frame::{self, BadFrame};
use crate::text::cut;

/// Bytes of a head.
pub const HEAD: usize = 10;
/// The longest text that is shown to somebody, bytes.
pub const MAX_TEXT: usize = 1024;

/// Bytes of the longest refusal: its text, with the kind of the frame and the length of the text before it.
const LONGEST_REFUSAL: usize = MAX_TEXT + 16;

/// How a TLS record of a handshake begins, and that of an alert (RFC 8446, 5.1).
const TLS: [[u8; 2]; 2] = [[22, 3], [21, 3]];

/// Frames of one kind of processes.
pub trait Framed: Serialize + DeserializeOwned {
    /// How each side begins.
    const MAGIC: [u8; 8];
    /// The versions that this release speaks. Both sides speak the newest that both know.
    const SPOKEN: Versions;
    /// The kind of speaker, in an error: "this is no SPEAKER".
    const SPEAKER: &'static str;
    /// The subject of the version, in an error: "version 2 of SUBJECT".
    const SUBJECT: &'static str;
    /// The longest frame of somebody who has not introduced himself, in bytes without its length: strangers are not given
    /// memory. A refusal of [`MAX_TEXT`] bytes is heard in any case.
    const MAX_GREETING: usize;
    /// The longest frame.
    const MAX_FRAME: usize;
    /// The bytes that are read at once.
    const READ: usize;

    /// No, because. In every version the first kind of frame.
    fn refusal(why: String) -> Self;

    /// Why not, if it is a refusal.
    fn refused(&self) -> Option<&str>;

    /// Checks a received frame, and makes its texts [`printable`].
    ///
    /// # Errors
    /// The error of a frame that can be decoded, but that no peer of this version sends.
    fn received(self) -> Result<Self, &'static str>;
}

/// Bytes that nobody of this version says.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpeechError {
    /// The head is another one.
    #[error("this is no {0}: is the address right?")]
    Magic(&'static str),
    /// TLS, where plain text is spoken.
    #[error("it speaks TLS and this side does not: give both the same keys")]
    Tls,
    /// Another version.
    #[error("it speaks version {theirs} of {subject} and this side {ours}: upgrade the older side")]
    Version {
        /// Of what.
        subject: &'static str,
        /// The other side's newest.
        theirs: u16,
        /// This side's.
        ours: Versions,
    },
    /// No frame.
    #[error("it sent what makes no sense ({0}): use the same release on both sides")]
    Frame(#[from] BadFrame),
    /// A frame that no peer of this version sends.
    #[error("it sent what makes no sense ({0}): use the same release on both sides")]
    Malformed(&'static str),
}

/// Appends the head of a side that speaks this version at best.
pub fn encode_head<F: Framed>(out: &mut Vec<u8>, newest: u16) {
    out.extend_from_slice(&F::MAGIC);
    out.extend_from_slice(&newest.to_le_bytes());
}

/// The version in the head at the start of `bytes`; `None` if it is not complete yet.
///
/// # Errors
/// It is no head.
pub fn decode_head<F: Framed>(bytes: &[u8]) -> Result<Option<u16>, SpeechError> {
    let magic = bytes.len().min(F::MAGIC.len());
    if bytes[..magic] != F::MAGIC[..magic] {
        let tls = TLS.iter().any(|start| bytes.starts_with(start));
        return Err(if tls { SpeechError::Tls } else { SpeechError::Magic(F::SPEAKER) });
    }
    let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    Ok(Some(u16::from_le_bytes([head[8], head[9]])))
}

/// Appends a frame. A refusal's text is cut; whoever says anything else has measured it.
pub fn encode<F: Framed>(out: &mut Vec<u8>, frame: &F) {
    let cut;
    let frame = match frame.refused() {
        Some(why) if why.len() > MAX_TEXT => {
            cut = F::refusal(printable(why));
            &cut
        }
        _ => frame,
    };
    // A frame that is too long would be a defect here, which the other side's error shows.
    let written = frame::encode(out, frame, u32::MAX as usize);
    debug_assert!(written.is_ok());
}

/// The longest frame of the other side, in bytes without its length. `greeted`: it has introduced itself.
pub(crate) fn longest<F: Framed>(greeted: bool) -> usize {
    if greeted { F::MAX_FRAME } else { F::MAX_GREETING.max(LONGEST_REFUSAL) }
}

/// The frame at the start of `bytes` and its length with its prefix; `None` if it is not complete yet. `greeted`: the other
/// side has introduced itself.
///
/// # Errors
/// It is no frame of this version.
pub fn decode<F: Framed>(bytes: &[u8], greeted: bool) -> Result<Option<(F, usize)>, SpeechError> {
    let Some((frame, used)) = frame::decode::<F>(bytes, longest::<F>(greeted))? else {
        return Ok(None);
    };
    let frame = frame.received().map_err(SpeechError::Malformed)?;
    Ok(Some((frame, used)))
}

/// A stranger's text, fit for a terminal ([`crate::printable`]), and at most [`MAX_TEXT`] bytes.
pub fn printable(text: &str) -> String {
    let mut shown = crate::printable(cut(text, MAX_TEXT));
    shown.truncate(cut(&shown, MAX_TEXT).len());
    shown
}
