//! Requests under way, between the kernel's queue and the array.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use bytes::Bytes;
use libublk::sys::ublksrv_io_desc;
use lockify_array::OpError;

use super::bell::Bell;
use super::request::decode;
use super::{DEPTH, MAX_BYTES};
use crate::door::budget::{Amount, Budget};
use crate::door::transfer::{self, Finished, Outcome, Sink};
use crate::door::{Backend, Command, Errno, Export};

/// Failed operations that are reported, of each reason.
const REPORTED: usize = 8;
/// Reasons that are counted apart.
const REASONS: usize = 64;

/// The requests of one queue.
pub(super) struct Requests {
    export: Arc<Export>,
    backend: Arc<dyn Backend>,
    budget: Arc<Budget>,
    sink: Sink,
    finished: Receiver<Finished>,
    under_way: usize,
    reports: BTreeMap<String, usize>,
    log: fn(&str),
}

/// An answer to the kernel: the request's tag, and bytes or an error.
pub(super) type Answer = (u16, i32);

impl Requests {
    /// With a bell that rings when some have an answer.
    pub fn new(
        export: Arc<Export>,
        backend: Arc<dyn Backend>,
        bell: Arc<Bell>,
        log: fn(&str),
    ) -> Requests {
        // The queue's thread returns what requests hold, so it must never wait for that: they are as many as there is room for.
        // The rest is for pieces, which the array returns.
        let limit = Amount {
            requests: 2 * usize::from(DEPTH),
            bytes: usize::from(DEPTH) * MAX_BYTES as usize,
        };
        let (to, finished) = channel();
        let sink: Sink = Arc::new(move |one| {
            // Fails only if the queue has ended.
            let _ = to.send(one);
            bell.ring();
        });
        let budget = Budget::new(limit);
        let reports = BTreeMap::new();
        Requests { export, backend, budget, sink, finished, under_way: 0, reports, log }
    }

    /// How many the array has to answer.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Begins a request; the answer if it has one at once. A write's data is at the buffer's start.
    pub fn begin(&mut self, tag: u16, what: &ublksrv_io_desc, buffer: &[u8]) -> Option<Answer> {
        let refused = |errno: Errno| Some((tag, -(errno as i32)));
        let request = match decode(tag, what, &self.export) {
            Ok(request) => request,
            Err(errno) => return refused(errno),
        };
        let payload = match request.command {
            Command::Write => buffer.get(..request.length as usize).map(Bytes::copy_from_slice),
            _ => Some(Bytes::new()),
        };
        let Some(payload) = payload else { return refused(Errno::Invalid) };
        self.under_way += 1;
        let permit = self.budget.take(transfer::bytes(&request, &self.export));
        let with = (&*self.export, &*self.backend);
        // What was begun is finished: the kernel repeats it otherwise.
        transfer::start(request, payload, with, (permit, &self.budget), (&self.sink, &|| false));
        None
    }

    /// The next answer, if there is one. A read's data is put into its tag's buffer.
    pub fn next(&mut self, buffers: &mut impl FnMut(u16, &[Bytes]) -> bool) -> Option<Answer> {
        loop {
            let finished = self.finished.try_recv().ok()?;
            let Some(Finished { request, outcome, .. }) =
                finished.made_durable(&self.export, &*self.backend)
            else {
                continue;
            };
            self.under_way -= 1;
            // It was made of a tag.
            let tag = request.cookie as u16;
            // At most as many bytes as one request has.
            let whole = request.length as i32;
            let result = match outcome {
                Outcome::Data(data) if buffers(tag, &data) => whole,
                Outcome::Data(_) => -(Errno::Io as i32),
                Outcome::Done | Outcome::Allocated => whole,
                Outcome::Refused(errno, _) => -(errno as i32),
                Outcome::Failed(error) => {
                    self.report(&error);
                    -(Errno::Io as i32)
                }
            };
            return Some((tag, result));
        }
    }

    fn report(&mut self, error: &OpError) {
        let error = error.to_string();
        if self.reports.len() >= REASONS && !self.reports.contains_key(&error) {
            return;
        }
        let count = self.reports.entry(error.clone()).or_default();
        *count += 1;
        if *count <= REPORTED {
            let last = if *count == REPORTED { " (not reported any more)" } else { "" };
            (self.log)(&format!("an operation failed: {error}{last}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use libublk::sys;

    use super::*;
    use crate::door::testing::{BLOCK, Memory, export};

    const SIZE: u64 = 64 << 20;

    struct Queue {
        memory: Arc<Memory>,
        requests: Requests,
        buffers: Vec<Vec<u8>>,
    }

    impl Queue {
        fn new(volatile: bool) -> Queue {
            let memory = Memory::new(SIZE);
            let export = Arc::new(Export { volatile, ..export(SIZE) });
            let bell = Arc::new(Bell::new().unwrap());
            let requests = Requests::new(export, memory.clone(), bell, |_| ());
            let buffers = vec![vec![0; MAX_BYTES as usize]; DEPTH.into()];
            Queue { memory, requests, buffers }
        }

        fn begin(&mut self, tag: u16, op_flags: u32, block: u64, blocks: u32) -> Option<Answer> {
            let (start_sector, nr_sectors) = (block * 8, blocks * 8);
            let what = ublksrv_io_desc { op_flags, nr_sectors, start_sector, addr: 0 };
            self.requests.begin(tag, &what, &self.buffers[usize::from(tag)])
        }

        fn answers(&mut self) -> Vec<Answer> {
            let buffers = &mut self.buffers;
            let mut put = |tag: u16, data: &[Bytes]| {
                let all = data.concat();
                buffers[usize::from(tag)][..all.len()].copy_from_slice(&all);
                true
            };
            std::iter::from_fn(|| self.requests.next(&mut put)).collect()
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut queue = Queue::new(false);
        queue.buffers[3][..8192].fill(7);
        assert_eq!(queue.begin(3, sys::UBLK_IO_OP_WRITE, 5, 2), None);
        assert_eq!(queue.answers(), [(3, 8192)]);
        assert_eq!(queue.memory.bytes(5 * BLOCK as usize, 8192), [7; 8192]);
        // Across the end of a stripe, into another buffer.
        assert_eq!(queue.begin(4, sys::UBLK_IO_OP_READ, 4, 128), None);
        assert_eq!(queue.answers(), [(4, 128 * 4096)]);
        assert_eq!(queue.buffers[4][..4096], [0; 4096]);
        assert_eq!(queue.buffers[4][4096..3 * 4096], [7; 8192]);
        assert_eq!(queue.begin(5, sys::UBLK_IO_OP_WRITE_ZEROES, 0, 4096), None);
        assert_eq!(queue.answers(), [(5, 16 << 20)]);
        assert_eq!(queue.memory.bytes(5 * BLOCK as usize, 8192), [0; 8192]);
        assert_eq!(queue.requests.under_way(), 0);
    }

    #[test]
    fn only_a_write_that_asks_for_it_is_flushed_before_its_answer() {
        for (volatile, flags, flushes) in
            [(true, sys::UBLK_IO_F_FUA, 1), (true, 0, 0), (false, sys::UBLK_IO_F_FUA, 0)]
        {
            let mut queue = Queue::new(volatile);
            assert_eq!(queue.begin(0, sys::UBLK_IO_OP_WRITE | flags, 0, 1), None);
            assert_eq!(queue.answers(), [(0, 4096)]);
            assert_eq!(queue.memory.flushes(), flushes, "{volatile} {flags}");
            assert_eq!(queue.begin(0, sys::UBLK_IO_OP_FLUSH, 0, 0), None);
            assert_eq!(queue.answers(), [(0, 0)]);
            assert_eq!(queue.memory.flushes(), flushes + 1);
        }
    }

    #[test]
    fn errors_are_answers() {
        let mut queue = Queue::new(false);
        assert_eq!(queue.begin(1, sys::UBLK_IO_OP_DISCARD, 0, 1), Some((1, -95)));
        assert_eq!(queue.begin(1, sys::UBLK_IO_OP_READ, SIZE / 4096, 1), Some((1, -22)));
        queue.memory.break_block(9, OpError::Fenced);
        for op in [sys::UBLK_IO_OP_READ, sys::UBLK_IO_OP_WRITE] {
            assert_eq!(queue.begin(2, op, 8, 4), None);
            assert_eq!(queue.answers(), [(2, -5)]);
        }
        assert_eq!(queue.requests.under_way(), 0);
    }

    /// The queue's thread alone returns what requests hold.
    #[test]
    fn a_full_queue_of_the_longest_requests_does_not_wait_for_itself() {
        for (op, blocks) in [(sys::UBLK_IO_OP_WRITE, 128), (sys::UBLK_IO_OP_WRITE_ZEROES, 128)] {
            let (sender, began) = channel();
            let thread = std::thread::spawn(move || {
                let mut queue = Queue::new(false);
                queue.memory.hold();
                for tag in 0..DEPTH {
                    assert_eq!(queue.begin(tag, op, u64::from(tag) * 128, blocks), None);
                }
                assert_eq!(queue.requests.under_way(), usize::from(DEPTH));
                assert!(queue.answers().is_empty());
                queue.memory.resume();
                sender.send(queue.answers().len()).unwrap();
            });
            let answers = began.recv_timeout(std::time::Duration::from_secs(60));
            assert_eq!(answers, Ok(usize::from(DEPTH)));
            thread.join().unwrap();
        }
    }
}
