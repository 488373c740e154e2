//! Waiting in every fabric here: a task says until when it has nothing to do, and its executor sleeps.

use core::cell::Cell;
use core::task::Poll;

use lockify_onesided::Nanos;
use rustix::time::Timespec;

use crate::clock::now;

/// A sleep takes this much longer than requested, so shorter waits do not sleep.
pub(crate) const SLACK: Nanos = 60_000;
/// The longest sleep: what comes by signals is looked at that often.
pub(crate) const LONGEST: Nanos = 100_000_000;

/// Polls `ready` until it is, or until the clock is there. `wake` is the earliest time that the task waits for.
pub(crate) async fn until<T>(
    wake: &Cell<Nanos>,
    at: Nanos,
    mut ready: impl FnMut() -> Option<T>,
) -> Option<T> {
    core::future::poll_fn(|_| {
        if let Some(found) = ready() {
            return Poll::Ready(Some(found));
        }
        if now() >= at {
            return Poll::Ready(None);
        }
        wake.set(wake.get().min(at));
        Poll::Pending
    })
    .await
}

/// For system calls.
pub(crate) fn timespec(nanos: Nanos) -> Timespec {
    Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 }
}
