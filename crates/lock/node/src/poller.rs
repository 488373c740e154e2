//! Waiting for events.
//!
//! A processor that went to sleep takes tens of microseconds to wake, on a fast network the better
//! part of a round trip. So a node that usually has its answer soon looks for it for a while
//! before it sleeps, and one that does not, rarely tries.

use std::io;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Registry};

/// Waits without busy polling after one that came to nothing.
const DISCOURAGED: u32 = 64;

/// An event queue, and how it waits.
#[derive(Debug)]
pub struct Poller {
    poll: Poll,
    /// How long it looks before it sleeps.
    busy: Duration,
    /// Waits left until it looks again.
    discouraged: u32,
}

impl Poller {
    /// One that looks for up to `busy` before it sleeps.
    ///
    /// # Errors
    /// The system is out of descriptors.
    pub fn new(busy: Duration) -> io::Result<Poller> {
        Ok(Poller { poll: Poll::new()?, busy, discouraged: 0 })
    }

    /// Looks for so long from now on.
    pub fn set_busy(&mut self, busy: Duration) {
        (self.busy, self.discouraged) = (busy, 0);
    }

    /// Where sources are registered.
    pub fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// Waits for events, at most `timeout`; a signal ends it without any.
    ///
    /// # Errors
    /// The queue failed; it is of no more use.
    pub fn wait(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        let busy = timeout.map_or(self.busy, |t| t.min(self.busy));
        if busy.is_zero() {
            return self.poll(events, timeout);
        }
        if self.discouraged > 0 {
            self.discouraged -= 1;
            return self.poll(events, timeout);
        }
        let since = Instant::now();
        loop {
            self.poll(events, Some(Duration::ZERO))?;
            if !events.is_empty() {
                return Ok(());
            }
            let left = timeout.map(|t| t.saturating_sub(since.elapsed()));
            if since.elapsed() >= busy {
                self.discouraged = DISCOURAGED;
                return self.poll(events, left);
            }
            // The answering thread may need this processor.
            std::thread::yield_now();
        }
    }

    fn poll(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(events, timeout) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                events.clear();
                Ok(())
            }
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::{Token, Waker};

    const LONG: Duration = Duration::from_secs(60);

    fn poller(busy: Duration) -> (Poller, Waker) {
        let poller = Poller::new(busy).unwrap();
        let waker = Waker::new(poller.registry(), Token(1)).unwrap();
        (poller, waker)
    }

    #[test]
    fn an_event_ends_a_wait_however_it_waits() {
        for busy in [Duration::ZERO, Duration::from_micros(1), LONG] {
            let (mut poller, waker) = poller(busy);
            let mut events = Events::with_capacity(4);
            waker.wake().unwrap();
            poller.wait(&mut events, Some(LONG)).unwrap();
            assert_eq!(events.iter().count(), 1, "{busy:?}");
        }
    }

    #[test]
    fn looking_in_vain_is_not_repeated_at_once() {
        let (mut poller, waker) = poller(Duration::from_micros(1));
        let mut events = Events::with_capacity(4);
        poller.wait(&mut events, Some(Duration::from_millis(2))).unwrap();
        assert!(events.is_empty());
        assert_eq!(poller.discouraged, DISCOURAGED);
        waker.wake().unwrap();
        poller.wait(&mut events, Some(LONG)).unwrap();
        assert_eq!((events.iter().count(), poller.discouraged), (1, DISCOURAGED - 1));
    }

    #[test]
    fn a_wait_for_nothing_does_not_sleep() {
        let (mut poller, _waker) = poller(LONG);
        let mut events = Events::with_capacity(4);
        poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert!(events.is_empty());
        assert_eq!(poller.discouraged, 0);
    }
}
