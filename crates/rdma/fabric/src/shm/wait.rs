//! Waiting: for time, and for a bell that senders ring.

use core::future::Future;
use core::pin::pin;
use core::sync::atomic::Ordering::SeqCst;
use core::task::{Context, Poll, Waker};
use std::sync::OnceLock;

use lockify_onesided::Nanos;
use rustix::thread::futex;

use super::End;
use super::segment::Segment;
use super::slots::word;
use crate::clock::now;
use crate::patience::{LONGEST, SLACK, timespec};

/// How long a waiter spins before it sleeps: about the cost of a sleep and a wake-up, so that the loss is at most as
/// large as the possible gain.
const SPIN: Nanos = 20_000;
/// How long it does so without letting others run; over several waits, because a polling client waits for less at a
/// time.
const ALONE: Nanos = 2_000;

/// Tells the peer in this place that there is something for it.
pub(super) fn ring(segment: &Segment, index: u64) {
    let at = segment.layout().slot(index);
    let bell = segment.half(at + word::BELL);
    bell.fetch_add(1, SeqCst);
    // Either the sleeper has announced its sleep before this looks, or it looks at the bell after it has rung.
    if segment.half(at + word::SLEEPS).load(SeqCst) != 0 {
        // It fails for bad addresses only.
        let _ = futex::wake(bell, futex::Flags::empty(), 1);
    }
}

/// Runs a future, waiting as this fabric does.
pub(super) fn block_on<T>(end: &End, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let at = end.segment.layout().slot(end.slot.index());
    let bell = end.segment.half(at + word::BELL);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        end.wake.set(Nanos::MAX);
        // Before the future looks, so that what arrives while it does is not missed.
        let heard = bell.load(SeqCst);
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        let start = now();
        let wake = end.wake.get().min(start + LONGEST);
        let mut time = start;
        while time < wake
            && bell.load(SeqCst) == heard
            && (time < start + spin() || wake < time + SLACK)
        {
            let alone = end.alone.get() < ALONE;
            if alone {
                core::hint::spin_loop()
            } else {
                std::thread::yield_now()
            }
            let since = core::mem::replace(&mut time, now());
            end.alone.set(if alone { end.alone.get() + (time - since) } else { 0 });
        }
        if time < wake && bell.load(SeqCst) == heard {
            sleep(end, heard, wake - time);
        }
    }
}

/// With one processor, nobody can make progress while this spins.
fn spin() -> Nanos {
    static SPINS: OnceLock<Nanos> = OnceLock::new();
    *SPINS.get_or_init(|| match std::thread::available_parallelism() {
        Ok(n) if n.get() > 1 => SPIN,
        _ => 0,
    })
}

fn sleep(end: &End, heard: u32, nanos: Nanos) {
    let at = end.segment.layout().slot(end.slot.index());
    let (bell, sleeps) = (end.segment.half(at + word::BELL), end.segment.half(at + word::SLEEPS));
    let most = timespec(nanos);
    sleeps.store(1, SeqCst);
    // Ends at once if the bell has rung; otherwise by the bell, by time or by a signal, and the caller looks anyway.
    let _ = futex::wait(bell, futex::Flags::empty(), heard, Some(&most));
    sleeps.store(0, SeqCst);
}
