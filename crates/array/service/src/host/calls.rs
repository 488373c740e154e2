//! The requests of threads to a host, until the host's own thread takes them.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockify_array::{HostAnswer, HostCounts, OpError, Work};

use super::{IN_FLIGHT, Status, closed};

/// The function that gets a result.
pub type Done = Box<dyn FnOnce(Result<HostAnswer, OpError>) + Send>;

/// The function that is told of a fence.
pub type OnFence = Box<dyn FnOnce() + Send>;

/// A request to a host.
pub(super) struct Call {
    pub work: Work,
    pub done: Done,
}

/// How many bytes it has to send.
fn data_of(work: &Work) -> usize {
    match work {
        Work::Write { data, .. } | Work::Patch { data, .. } => data.len(),
        _ => 0,
    }
}

/// Between the threads that ask and the one that does.
pub(super) struct Calls {
    state: Mutex<State>,
    /// There is room for more.
    room: Condvar,
    /// The status has changed.
    changed: Condvar,
    waker: Arc<mio::Waker>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Call>,
    /// Calls that are not answered yet.
    under_way: usize,
    closing: bool,
    /// The host's thread has ended.
    ended: bool,
    /// It has ended, and no device has a write of it to do.
    settled: bool,
    /// The host is fenced.
    fenced: bool,
    /// Is to be called when it is.
    on_fence: Option<OnFence>,
    status: Status,
    counts: HostCounts,
}

impl Calls {
    /// For the event loop that this wakes.
    pub fn new(waker: Arc<mio::Waker>) -> Calls {
        Calls { state: Mutex::default(), room: Condvar::new(), changed: Condvar::new(), waker }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn submit(&self, work: Work, done: Done) {
        let mut state = self.state();
        while state.under_way >= IN_FLIGHT && !state.closing && !state.ended {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closing || state.ended {
            drop(state);
            return done(Err(closed()));
        }
        state.under_way += 1;
        state.waiting.push_back(Call { work, done });
        // The first caller wakes the host for those behind it, too.
        let first = state.waiting.len() == 1;
        drop(state);
        if first {
            self.wake();
        }
    }

    /// What was asked for first, until it has so many bytes of data; at least one call, if there is any.
    pub fn take(&self, bytes: usize) -> Vec<Call> {
        let mut state = self.state();
        let (mut taken, mut sum) = (Vec::new(), 0);
        while sum < bytes
            && let Some(call) = state.waiting.pop_front()
        {
            sum += data_of(&call.work);
            taken.push(call);
        }
        taken
    }

    /// Returns true if calls wait to be taken. Nobody wakes the host's thread for them again.
    pub fn are_waiting(&self) -> bool {
        !self.state().waiting.is_empty()
    }

    /// A call was answered, when the host had done so much.
    pub fn answered(&self, counts: HostCounts) {
        let mut state = self.state();
        state.under_way -= 1;
        state.counts = counts;
        drop(state);
        self.room.notify_one();
    }

    pub fn counts(&self) -> HostCounts {
        self.state().counts
    }

    pub fn status(&self) -> Status {
        self.state().status.clone()
    }

    pub fn publish_status(&self, status: Status) {
        self.state().status = status;
        self.changed.notify_all();
    }

    /// The status, when it is another than this, or this time has passed.
    pub fn next_status(&self, last: &Status, wait: Duration) -> Status {
        let same = |state: &mut State| state.status == *last && !state.ended;
        let waited = self.changed.wait_timeout_while(self.state(), wait, same);
        waited.unwrap_or_else(PoisonError::into_inner).0.status.clone()
    }

    pub fn close(&self) {
        self.state().closing = true;
        self.room.notify_all();
        self.wake();
    }

    /// Returns true if the host was closed and nothing is under way.
    pub fn is_over(&self) -> bool {
        let state = self.state();
        state.closing && state.under_way == 0
    }

    /// Waits so long until the host's thread has ended; returns whether it has.
    pub fn wait_for_end(&self, patience: Duration) -> bool {
        let lives = |state: &mut State| !state.ended;
        let waited = self.changed.wait_timeout_while(self.state(), patience, lives);
        waited.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    /// The host's thread has ended: nothing more will be done. `settled`: no device has a write of it to do.
    pub fn end(&self, settled: bool) {
        let mut state = self.state();
        state.ended = true;
        state.settled = settled;
        let left = std::mem::take(&mut state.waiting);
        drop(state);
        self.room.notify_all();
        self.changed.notify_all();
        left.into_iter().for_each(|call| (call.done)(Err(closed())));
    }

    /// Returns true if the host has ended, and none of its writes can take effect later.
    pub fn has_left(&self) -> bool {
        let state = self.state();
        state.ended && state.settled && !state.fenced
    }

    pub fn is_fenced(&self) -> bool {
        self.state().fenced
    }

    /// The host is fenced.
    pub fn fenced(&self) {
        let mut state = self.state();
        state.fenced = true;
        let told = state.on_fence.take();
        drop(state);
        told.into_iter().for_each(|told| told());
    }

    /// Has a function called when the host is fenced; at once if it is.
    pub fn on_fence(&self, told: OnFence) {
        let mut state = self.state();
        if !state.fenced {
            state.on_fence = Some(told);
            return;
        }
        drop(state);
        told();
    }

    fn wake(&self) {
        // Fails only if the event queue is gone, and its reader with it.
        let _ = self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lockify_array::Span;

    use super::*;

    #[test]
    fn calls_with_much_data_are_not_all_taken_at_once() {
        let poll = mio::Poll::new().unwrap();
        let waker = mio::Waker::new(poll.registry(), mio::Token(0)).unwrap();
        let calls = Calls::new(Arc::new(waker));
        for length in [0, 0, 100, 100, 100] {
            let work = match length {
                0 => Work::Read { span: Span { start: 0, count: 1 } },
                length => Work::Patch { start: 0, data: Bytes::from(vec![0; length]) },
            };
            calls.submit(work, Box::new(|_| ()));
        }
        assert_eq!(calls.take(150).len(), 4);
        assert!(calls.are_waiting());
        assert_eq!(calls.take(1).len(), 1);
        assert!(!calls.are_waiting());
        assert!(calls.take(1).is_empty());
    }
}
