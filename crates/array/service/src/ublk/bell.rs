//! Wakes the thread of a queue, which waits for the kernel.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// An event that the queue's ring waits for. Rings between two looks are one.
pub(super) struct Bell {
    fd: OwnedFd,
    rung: AtomicBool,
}

impl Bell {
    pub fn new() -> io::Result<Bell> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Bell { fd, rung: AtomicBool::new(false) })
    }

    /// After something was made ready for the queue.
    pub fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // The counter is far from its end, so nothing is refused.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    /// Before the queue looks for what is ready: whatever comes later rings again.
    pub fn quiet(&self) {
        let mut count = [0; 8];
        // Nothing to read is as good.
        let _ = rustix::io::read(&self.fd, &mut count);
        self.rung.store(false, Ordering::Release);
    }
}

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn a_ring_is_heard_until_the_queue_looks() {
        let bell = Bell::new().unwrap();
        let is_heard = || {
            let mut fds = [PollFd::new(&bell.fd, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
        };
        assert!(!is_heard());
        for _ in 0..2 {
            bell.ring();
            bell.ring();
            assert!(is_heard());
            bell.quiet();
            assert!(!is_heard());
        }
    }
}
