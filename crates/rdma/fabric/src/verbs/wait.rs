//! Waiting: for time, for completions, and for the exchange's messages.

use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};

use lockify_onesided::Nanos;
use rustix::event::{PollFd, PollFlags, poll};

use super::End;
use crate::clock::now;
use crate::patience::{LONGEST, SLACK, timespec};

/// How long a waiter looks for completions before it sleeps: some round trips of a fast network, and about what it costs
/// to sleep and be woken.
const LOOK: Nanos = 20_000;

/// Runs a future, waiting as this fabric does.
pub(super) fn block_on<T>(end: &End, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        end.wake.set(Nanos::MAX);
        end.links.borrow_mut().go_on();
        let patience = end.links.borrow_mut().give_up();
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        let start = now();
        let wake = end.wake.get().min(patience).min(start + LONGEST);
        let mut time = start;
        let mut any = false;
        while time < wake && !any && (time < start + LOOK || wake < time + SLACK) {
            // A kernel in software, as Soft-RoCE in a virtual machine with one processor, works while others yield.
            std::thread::yield_now();
            any = end.links.borrow_mut().go_on();
            time = now();
        }
        if !any && time < wake {
            sleep(end, wake - time);
        }
    }
}

/// How long a dropped end waits for its posted messages.
const LAST: Nanos = 1_000_000_000;

/// Waits for the end of posted messages without a waiter, for example the last hand-over of a client with leases. Then
/// tells all peers how many messages were taken.
pub(super) fn finish(end: &End) {
    go_on_until_idle(end);
    end.links.borrow_mut().end();
}

fn go_on_until_idle(end: &End) {
    let last = now() + LAST;
    while end.links.borrow().is_busy() {
        let time = now();
        if time >= last {
            return;
        }
        if !end.links.borrow_mut().go_on() {
            sleep(end, (last - time).min(LONGEST));
        }
        end.links.borrow_mut().give_up();
    }
}

fn sleep(end: &End, nanos: Nanos) {
    end.device.arm();
    // An earlier completion rings no bell.
    if end.links.borrow_mut().go_on() {
        return;
    }
    let links = end.links.borrow();
    let bells = [Some(end.device.bell()), links.bell()].into_iter().flatten();
    let mut bells: Vec<_> =
        bells.map(|bell| PollFd::from_borrowed_fd(bell, PollFlags::IN)).collect();
    let most = timespec(nanos);
    // Ends by a bell, by time or by a signal, and the caller looks anyway.
    let _ = poll(&mut bells, Some(&most));
    let rung = bells[0].revents().contains(PollFlags::IN);
    drop(links);
    if rung {
        end.device.silence();
    }
}
