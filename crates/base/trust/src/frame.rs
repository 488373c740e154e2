//! Values as frames: a length (`u32`, little-endian) and that many bytes, one value in postcard's encoding.
//!
//! Every protocol on a socket has these frames, and each has a longest one. Encoding and decoding are pure functions.

use serde::{Deserialize, Serialize};

/// Bytes of a frame's length.
pub const PREFIX: usize = 4;

/// Bytes that are no frame, or a value that has none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadFrame {
    /// Longer than the protocol's longest frame.
    #[error("a frame of {length} bytes, where at most {longest} are allowed")]
    TooLong {
        /// The frame's length, in bytes without its prefix.
        length: usize,
        /// The longest frame's.
        longest: usize,
    },
    /// The content is no value of the expected type.
    #[error("a frame of {length} bytes that is not understood ({reason})")]
    NoValue {
        /// The frame's length.
        length: usize,
        /// The decoder's error.
        reason: postcard::Error,
    },
    /// The value ends before the frame does.
    #[error("a frame of {length} bytes with {extra} bytes too many")]
    Extra {
        /// The frame's length.
        length: usize,
        /// How many are too many.
        extra: usize,
    },
}

/// Lets postcard append to a buffer that keeps its capacity.
struct Append<'a>(&'a mut Vec<u8>);

impl postcard::ser_flavors::Flavor for Append<'_> {
    type Output = ();
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Appends a value as one frame of at most `longest` bytes, without its prefix.
///
/// # Errors
/// The value is too long, or postcard cannot encode it; `out` is then as before.
pub fn encode<T: Serialize>(out: &mut Vec<u8>, value: &T, longest: usize) -> Result<(), BadFrame> {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX]);
    let written = postcard::serialize_with_flavor(value, Append(out));
    let length = out.len() - start - PREFIX;
    let written = written.map_err(|reason| BadFrame::NoValue { length, reason });
    let result = written.and_then(|()| permit(length, longest));
    match result {
        Ok(()) => out[start..start + PREFIX].copy_from_slice(&(length as u32).to_le_bytes()),
        Err(_) => out.truncate(start),
    }
    result
}

/// The value in the frame at the start of `bytes`, and the frame's length with its prefix. `None` if the frame is not complete.
///
/// # Errors
/// These bytes cannot become such a frame, whatever follows.
pub fn decode<'a, T: Deserialize<'a>>(
    bytes: &'a [u8],
    longest: usize,
) -> Result<Option<(T, usize)>, BadFrame> {
    let Some(length) = length(bytes) else { return Ok(None) };
    permit(length, longest)?;
    let Some(content) = bytes.get(PREFIX..PREFIX + length) else { return Ok(None) };
    match postcard::take_from_bytes(content) {
        Ok((value, [])) => Ok(Some((value, PREFIX + length))),
        Ok((_, rest)) => Err(BadFrame::Extra { length, extra: rest.len() }),
        Err(reason) => Err(BadFrame::NoValue { length, reason }),
    }
}

/// The length of the frame at the start of `bytes`, without its prefix.
pub(crate) fn length(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk::<PREFIX>().map(|prefix| u32::from_le_bytes(*prefix) as usize)
}

fn permit(length: usize, longest: usize) -> Result<(), BadFrame> {
    if length > longest { Err(BadFrame::TooLong { length, longest }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames of at most eight bytes.
    fn value(bytes: &[u8]) -> Result<Option<(String, usize)>, BadFrame> {
        decode(bytes, 8)
    }

    #[test]
    fn a_value_comes_back_when_its_last_byte_has_come() {
        let mut bytes = vec![7];
        encode(&mut bytes, &"frames", 8).unwrap();
        assert_eq!(bytes, b"\x07\x07\0\0\0\x06frames");
        let frame = &bytes[1..];
        (0..frame.len()).for_each(|cut| assert_eq!(value(&frame[..cut]), Ok(None)));
        assert_eq!(value(&[frame, b"more"].concat()), Ok(Some(("frames".into(), frame.len()))));
    }

    #[test]
    fn a_value_that_is_too_long_is_not_written() {
        let mut bytes = vec![7];
        let too_long = BadFrame::TooLong { length: 9, longest: 8 };
        assert_eq!(encode(&mut bytes, &"too long", 8), Err(too_long.clone()));
        assert_eq!(bytes, [7]);
        // It is refused before it has come.
        assert_eq!(value(&[9, 0, 0, 0]), Err(too_long.clone()));
        assert_eq!(too_long.to_string(), "a frame of 9 bytes, where at most 8 are allowed");
    }

    #[test]
    fn a_frame_is_one_value() {
        let extra = BadFrame::Extra { length: 3, extra: 1 };
        assert_eq!(value(b"\x03\0\0\0\x01ab"), Err(extra.clone()));
        assert_eq!(extra.to_string(), "a frame of 3 bytes with 1 bytes too many");
        for bytes in [&b"\0\0\0\0"[..], b"\x02\0\0\0\x05a", b"\x02\0\0\0\x01\xff"] {
            assert!(matches!(value(bytes), Err(BadFrame::NoValue { .. })), "{bytes:?}");
        }
    }
}
