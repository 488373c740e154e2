//! The common parts of the searches.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use lockify_onesided::{Mode, Options, Protocol};

pub const X: Mode = Mode::Exclusive;
pub const S: Mode = Mode::Shared;

/// No leases, and nobody looks by itself where it is to be told: a lost wake-up is for ever.
pub fn options(protocol: Protocol) -> Options {
    Options { net: u64::MAX, ..Options::new(protocol) }
}

/// Leases of four polls, so that a repair is a few steps.
pub fn timed(protocol: Protocol) -> Options {
    Options { unit: 250, net: u64::MAX, ..Options::new(protocol).with_lease(1000) }
}

/// The word of a free lock by tickets of which so many were drawn and served, of each kind.
pub fn tickets(drawn: u16) -> u64 {
    let drawn = u64::from(drawn);
    drawn << 45 | drawn << 31 | drawn << 16 | drawn
}

/// Works on all processors; results come in the order of `items`.
pub fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
    mut each: impl FnMut(R),
) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                while let Some((at, item)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    items.get(at).map(|item| (at, item))
                } {
                    let _ = sender.send((at, work(item)));
                }
            });
        }
        drop(sender);
        let (mut early, mut wanted) = (BTreeMap::new(), 0);
        for (at, result) in results {
            early.insert(at, result);
            while let Some(result) = early.remove(&wanted) {
                each(result);
                wanted += 1;
            }
        }
    });
}
