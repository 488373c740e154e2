//! A thread that sleeps until it is woken.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread::Thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::interrupt::{Interrupt, readable};

/// How often an interruptible thread looks for itself when the system has no descriptor left for it
/// to be woken by.
const LOOK: Duration = Duration::from_millis(50);

/// A thread that sleeps, as those see it who wake it. To be woken before it sleeps is as good.
#[derive(Clone)]
pub(crate) enum Sleeper {
    /// It sleeps until it is unparked.
    Parked(Thread),
    /// It waits for its interrupt's bell as well.
    Event(Arc<OwnedFd>),
}

impl Sleeper {
    /// The calling thread, whose sleep this can interrupt.
    pub(crate) fn here(interrupt: Option<&Interrupt>) -> Sleeper {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        match interrupt.and_then(|_| event()) {
            Some(event) => Sleeper::Event(Arc::new(event)),
            None => Sleeper::Parked(std::thread::current()),
        }
    }

    pub(crate) fn wake(&self) {
        match self {
            Sleeper::Parked(thread) => thread.unpark(),
            Sleeper::Event(event) => {
                // Fails only if the counter is full, which wakes as well.
                let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
            }
        }
    }

    /// Sleeps until somebody wakes this thread, or the interrupt is due. May wake without cause.
    pub(crate) fn sleep(&self, interrupt: Option<&Interrupt>) {
        match (self, interrupt) {
            (Sleeper::Parked(_), None) => std::thread::park(),
            (Sleeper::Parked(_), Some(interrupt)) => {
                std::thread::park_timeout(interrupt.left().map_or(LOOK, |left| left.min(LOOK)));
            }
            (Sleeper::Event(event), interrupt) => {
                let bell = interrupt.and_then(|i| i.bell.as_ref());
                let both = [Some(event), bell].into_iter().flatten();
                let descriptors: Vec<_> = both.map(|fd| fd.as_fd()).collect();
                readable(&descriptors, interrupt.and_then(Interrupt::left));
                // Fails if nobody has written: then there is nothing to take back.
                let _ = rustix::io::read(event, &mut [0_u8; 8]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn interrupt(until: Option<Instant>) -> Interrupt {
        Interrupt { bell: None, until, check: Box::new(|| true) }
    }

    #[test]
    fn a_wake_that_comes_before_the_sleep_is_not_lost() {
        let parked = Sleeper::here(None);
        parked.wake();
        parked.sleep(None);
        let never = interrupt(None);
        let event = Sleeper::here(Some(&never));
        event.wake();
        event.sleep(Some(&never));
    }

    #[test]
    fn the_time_and_the_bell_end_a_sleep() {
        let past = interrupt(Some(Instant::now()));
        Sleeper::here(Some(&past)).sleep(Some(&past));
        let bell = Arc::new(eventfd(1, EventfdFlags::CLOEXEC).unwrap());
        let rings = Interrupt { bell: Some(bell), ..interrupt(None) };
        Sleeper::here(Some(&rings)).sleep(Some(&rings));
        assert!(rings.is_due());
    }
}
