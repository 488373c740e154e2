//! The received bytes of a connection.

use serde::de::DeserializeOwned;

use crate::frame::{BadFrame, PREFIX, decode, length};

/// A buffer that has become larger than this is given back when it is empty.
pub(crate) const KEPT: usize = 4 << 20;

/// Bytes that came and were not understood yet: `bytes[start..end]`. The rest is room.
#[derive(Default, Debug)]
pub struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// Goes on with the [rest](Inbox::rest) of another inbox.
    pub fn resume(rest: Vec<u8>) -> Inbox {
        Inbox { start: 0, end: rest.len(), bytes: rest }
    }

    /// The bytes that were not understood yet.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// How many there are.
    pub fn pending(&self) -> usize {
        self.end - self.start
    }

    /// The first bytes of the rest were understood.
    pub fn skip(&mut self, bytes: usize) {
        self.start = self.end.min(self.start + bytes);
    }

    /// Forgets the rest.
    pub fn clear(&mut self) {
        self.start = self.end;
    }

    /// Takes `N` bytes that are no frame; `None` until they are there.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let taken = *self.rest().first_chunk::<N>()?;
        self.skip(N);
        Some(taken)
    }

    /// Takes the next frame's value; `None` until it is complete.
    ///
    /// # Errors
    /// As [`decode`].
    pub fn next<T: DeserializeOwned>(&mut self, longest: usize) -> Result<Option<T>, BadFrame> {
        let Some((value, used)) = decode(self.rest(), longest)? else { return Ok(None) };
        self.skip(used);
        Ok(Some(value))
    }

    /// Room for at least this many bytes, and for the whole of a frame that has begun. A peer that is not trusted with memory
    /// gets none for a frame's length: its `longest` frame is 0.
    pub fn room(&mut self, least: usize, longest: usize) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > KEPT {
                self.bytes = Vec::new();
            }
        } else if self.end + least > self.bytes.len() && self.start >= self.pending() {
            // No more is moved than was understood.
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let frame = length(self.rest()).filter(|frame| *frame <= longest);
        let needed = frame.map_or(0, |frame| self.start + PREFIX + frame).max(self.end + least);
        if self.bytes.len() < needed {
            self.bytes.resize(needed, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// So many bytes have been put into the [room](Inbox::room).
    pub fn came(&mut self, bytes: usize) {
        self.end = self.bytes.len().min(self.end + bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::encode;

    fn put(inbox: &mut Inbox, bytes: &[u8]) {
        inbox.room(bytes.len(), 0)[..bytes.len()].copy_from_slice(bytes);
        inbox.came(bytes.len());
    }

    #[test]
    fn frames_come_out_in_their_order_however_they_came_in() {
        let values: Vec<String> = (0..300).map(|i| "x".repeat(i * i % 97)).collect();
        let mut bytes = b"head".to_vec();
        values.iter().for_each(|value| encode(&mut bytes, value, 97).unwrap());
        for piece in [1, 7, 100, 1000] {
            let (mut inbox, mut head, mut found) = (Inbox::default(), None, Vec::new());
            for piece in bytes.chunks(piece) {
                put(&mut inbox, piece);
                head = head.or_else(|| inbox.take::<4>());
                while head.is_some()
                    && let Some(value) = inbox.next::<String>(97).unwrap()
                {
                    found.push(value);
                }
            }
            assert_eq!((head, inbox.pending()), (Some(*b"head"), 0));
            assert_eq!(found, values);
            assert!(inbox.bytes.len() < 2 * (piece + 101), "{} bytes", inbox.bytes.len());
        }
    }

    #[test]
    fn a_length_gets_memory_only_from_who_is_trusted_with_it() {
        let mut inbox = Inbox::default();
        put(&mut inbox, &1000_u32.to_le_bytes());
        assert_eq!(inbox.room(16, 999).len(), 16);
        assert_eq!(inbox.room(16, 1000).len(), 1000);
    }

    #[test]
    fn much_room_is_given_back() {
        let mut inbox = Inbox::default();
        put(&mut inbox, &vec![0; KEPT + 1]);
        assert_eq!(inbox.rest().len(), KEPT + 1);
        inbox.clear();
        assert_eq!(inbox.room(16, 0).len(), 16);
        assert_eq!(inbox.bytes.len(), 16);
    }
}
