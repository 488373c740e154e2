//! The common state of a home and its relay.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use mio::Waker;

use super::PATIENCE;
use super::frame::Who;
use super::queue::Incoming;

/// The common state of the home and its relay.
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    waker: Waker,
}

#[derive(Default)]
pub(super) struct State {
    pub incoming: Incoming,
    /// The home's outgoing messages, and their bytes.
    pub outgoing: VecDeque<(Who, Vec<u8>)>,
    pub unsent: usize,
    pub stop: bool,
    /// Why the relay has ended by itself.
    pub over: Option<String>,
}

impl Shared {
    pub fn new(waker: Waker) -> Shared {
        Shared { state: Mutex::default(), changed: Condvar::new(), waker }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the home that there is something for it.
    pub fn ring(&self) {
        self.changed.notify_all();
    }

    /// Waits for that; `None` if it is time.
    pub fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        end: Option<Instant>,
    ) -> Option<MutexGuard<'a, State>> {
        let left = end.map_or(PATIENCE, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return None;
        }
        let (state, _) =
            self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        Some(state)
    }

    /// Tells the relay that there is something for it.
    pub fn wake(&self) {
        // Fails only if the event queue is gone, and its reader with it.
        let _ = self.waker.wake();
    }
}
