//! Frames of the session protocol: four bytes of length, little-endian, then as many bytes of
//! postcard.

use lockify_node::wire::Append;
use serde::{Deserialize, Serialize};

/// The longest frame in bytes, without its length. Longer answers come in parts.
pub const MAX_FRAME: usize = 256 * 1024;

const PREFIX: usize = 4;

/// Bytes that are no frame of this protocol. The session cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodecError {
    /// The length is zero or over [`MAX_FRAME`].
    #[error("a frame of {0} bytes: 1 to {MAX_FRAME} are allowed")]
    Length(u32),
    /// The content does not fit this version.
    #[error("a frame that is not understood")]
    Content,
    /// The content ends before the frame does.
    #[error("a frame with {0} bytes too many")]
    Trailing(usize),
}

/// Appends `value` as one frame to `out`.
///
/// # Errors
/// [`CodecError::Length`] if the value is too large for a frame; `out` is then as before.
pub fn encode<T: Serialize>(value: &T, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX]);
    let written = postcard::serialize_with_flavor(value, Append(out));
    let len = out.len() - start - PREFIX;
    if written.is_err() || len > MAX_FRAME {
        out.truncate(start);
        return Err(CodecError::Length(len.try_into().unwrap_or(u32::MAX)));
    }
    out[start..start + PREFIX].copy_from_slice(&(len as u32).to_le_bytes());
    Ok(())
}

/// The first frame in `bytes` and how many bytes it takes; `None` if it is not complete.
///
/// # Errors
/// [`CodecError`] if these bytes cannot become a frame, whatever follows.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<Option<(T, usize)>, CodecError> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else {
        return Ok(None);
    };
    let len = u32::from_le_bytes(*prefix);
    if len == 0 || len as usize > MAX_FRAME {
        return Err(CodecError::Length(len));
    }
    let Some(content) = rest.get(..len as usize) else {
        return Ok(None);
    };
    let (value, left) = postcard::take_from_bytes(content).map_err(|_| CodecError::Content)?;
    match left.len() {
        0 => Ok(Some((value, PREFIX + len as usize))),
        n => Err(CodecError::Trailing(n)),
    }
}

/// Bytes received and not yet decoded: `bytes[start..end]`. The rest is room.
pub struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// How much to read at once: little where little comes, so that thousands of clients that wait
    /// need little memory.
    room: usize,
}

/// The least and the most to read at once.
const ROOM: (usize, usize) = (1024, 16 * 1024);

impl Default for Inbox {
    fn default() -> Inbox {
        Inbox::resume(Vec::new())
    }
}

impl Inbox {
    /// Reads once from `source`; returns the number of bytes, 0 at its end.
    ///
    /// # Errors
    /// Those of `source`.
    pub fn fill(&mut self, source: &mut impl std::io::Read) -> std::io::Result<usize> {
        self.make_room();
        let got = source.read(&mut self.bytes[self.end..])?;
        if self.end + got == self.bytes.len() {
            // There may be more: its reader need not come as often.
            self.room = (2 * self.room).min(ROOM.1);
        }
        self.end += got;
        Ok(got)
    }

    /// The next frame; `None` until more bytes come.
    ///
    /// # Errors
    /// As [`decode`].
    pub fn next_frame<T: for<'a> Deserialize<'a>>(&mut self) -> Result<Option<T>, CodecError> {
        let Some((value, used)) = decode(&self.bytes[self.start..self.end])? else {
            return Ok(None);
        };
        self.start += used;
        Ok(Some(value))
    }

    /// Takes `N` raw bytes, for the greeting; `None` until they are there.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let taken = *self.bytes[self.start..self.end].first_chunk::<N>()?;
        self.start += N;
        Some(taken)
    }

    /// Bytes not yet decoded.
    pub fn pending(&self) -> usize {
        self.end - self.start
    }

    /// The bytes that have not been decoded yet.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Goes on with what another inbox had not decoded.
    pub fn resume(rest: Vec<u8>) -> Inbox {
        Inbox { start: 0, end: rest.len(), bytes: rest, room: ROOM.0 }
    }

    fn make_room(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > ROOM.1 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.bytes.len() < self.end + self.room {
            self.bytes.resize(self.end + self.room, 0);
        }
    }
}
