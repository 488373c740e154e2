//! The unwritten output of a connection, in chunks of whole frames.
//!
//! The frames that prove a node alive must not wait behind others: urgent frames go between two
//! chunks. So there is never more than one chunk ahead of them, however much is queued, and written
//! output is freed chunk by chunk, without moving the rest.

use std::collections::VecDeque;

/// A chunk that has as many bytes takes no further frame.
const CHUNK: usize = 64 * 1024;

/// Frames to be written.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// The chunk that is being written; `current[..written]` is gone.
    current: Vec<u8>,
    written: usize,
    urgent: Vec<u8>,
    later: VecDeque<Vec<u8>>,
    /// Bytes in `later`.
    waiting: usize,
}

impl Outbox {
    /// Has a frame appended to the output in its turn.
    pub(crate) fn append<R>(&mut self, frame: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        if self.later.is_empty() && self.current.len() < CHUNK {
            return frame(&mut self.current);
        }
        if self.later.back().is_none_or(|chunk| chunk.len() >= CHUNK) {
            self.later.push_back(Vec::with_capacity(CHUNK));
        }
        // There is one now.
        let chunk = self.later.back_mut().unwrap_or(&mut self.current);
        let before = chunk.len();
        let result = frame(chunk);
        self.waiting += chunk.len() - before;
        result
    }

    /// Has a frame appended to the output before everything else.
    pub(crate) fn append_urgent<R>(&mut self, frame: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        frame(&mut self.urgent)
    }

    /// The next bytes to write; empty only if nothing is left.
    pub(crate) fn next(&mut self) -> &[u8] {
        if self.written == self.current.len() {
            self.turn_over();
        }
        &self.current[self.written..]
    }

    fn turn_over(&mut self) {
        self.written = 0;
        self.current.clear();
        if !self.urgent.is_empty() {
            std::mem::swap(&mut self.current, &mut self.urgent);
        } else if let Some(chunk) = self.later.pop_front() {
            self.waiting -= chunk.len();
            self.current = chunk;
        }
    }

    /// That many bytes of [`Outbox::next`] have been written.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.written += bytes;
    }

    /// Bytes that have not been written.
    pub(crate) fn len(&self) -> usize {
        self.current.len() - self.written + self.urgent.len() + self.waiting
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(byte: u8, length: usize) -> impl FnOnce(&mut Vec<u8>) {
        move |out| out.extend(std::iter::repeat_n(byte, length))
    }

    fn written(outbox: &mut Outbox, most: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while !outbox.next().is_empty() {
            let n = outbox.next().len().min(most);
            all.extend_from_slice(&outbox.next()[..n]);
            outbox.advance(n);
        }
        all
    }

    #[test]
    fn frames_are_written_in_their_order_and_whole() {
        for most in [1, 7, 1000, usize::MAX] {
            let mut outbox = Outbox::default();
            let mut expected = Vec::new();
            for i in 0..200_u8 {
                let length = 1 + usize::from(i) * 50;
                outbox.append(frame(i, length));
                frame(i, length)(&mut expected);
            }
            assert_eq!(outbox.len(), expected.len());
            assert_eq!(written(&mut outbox, most), expected);
            assert!(outbox.is_empty());
        }
    }

    #[test]
    fn what_is_urgent_waits_for_one_chunk_however_much_is_queued() {
        let mut outbox = Outbox::default();
        (0..1000).for_each(|_| outbox.append(frame(b'b', 40_000)));
        // The first frame is on its way.
        let n = outbox.next().len().min(10);
        outbox.advance(n);
        outbox.append_urgent(frame(b'V', 100));
        let all = written(&mut outbox, 4096);
        let ahead = all.iter().position(|&b| b == b'V').unwrap();
        assert!(ahead <= CHUNK + 40_000, "{ahead} bytes ahead");
        // It is between two frames.
        assert_eq!((ahead + 10) % 40_000, 0);
        assert_eq!(all.len() + 10, 1000 * 40_000 + 100);
    }

    #[test]
    fn what_is_urgent_is_first_where_nothing_is_on_its_way() {
        let mut outbox = Outbox::default();
        outbox.append_urgent(frame(b'V', 3));
        assert_eq!((outbox.len(), outbox.next()), (3, &b"VVV"[..]));
    }
}
