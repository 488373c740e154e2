//! Frames of the session protocol ([`lockify_trust::frame`]), and their buffer.

use lockify_trust::frame::{self, BadFrame};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The longest frame in bytes, without its length. Longer answers come in parts.
pub const MAX_FRAME: usize = 256 * 1024;

/// Appends `value` as one frame to `out`.
///
/// # Errors
/// As [`frame::encode`].
pub fn encode<T: Serialize>(value: &T, out: &mut Vec<u8>) -> Result<(), BadFrame> {
    frame::encode(out, value, MAX_FRAME)
}

/// The first frame in `bytes` and how many bytes it takes; `None` if it is not complete.
///
/// # Errors
/// As [`frame::decode`].
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<Option<(T, usize)>, BadFrame> {
    frame::decode(bytes, MAX_FRAME)
}

/// Bytes received and not yet decoded.
pub struct Inbox {
    bytes: lockify_trust::Inbox,
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
        // A client gets no memory for a length: its bytes have to come.
        let room = self.bytes.room(self.room, 0);
        let got = source.read(room)?;
        if got == room.len() {
            // There may be more: its reader need not come as often.
            self.room = (2 * self.room).min(ROOM.1);
        }
        self.bytes.came(got);
        Ok(got)
    }

    /// The next frame; `None` until more bytes come.
    ///
    /// # Errors
    /// As [`decode`].
    pub fn next_frame<T: DeserializeOwned>(&mut self) -> Result<Option<T>, BadFrame> {
        self.bytes.next(MAX_FRAME)
    }

    /// Takes `N` raw bytes, for the greeting; `None` until they are there.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes.take()
    }

    /// How many bytes have not been decoded yet.
    pub fn pending(&self) -> usize {
        self.bytes.pending()
    }

    /// The bytes that have not been decoded yet.
    pub fn rest(&self) -> &[u8] {
        self.bytes.rest()
    }

    /// Goes on with what another inbox had not decoded.
    pub fn resume(rest: Vec<u8>) -> Inbox {
        Inbox { bytes: lockify_trust::Inbox::resume(rest), room: ROOM.0 }
    }
}
