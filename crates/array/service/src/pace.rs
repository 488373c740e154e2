//! How fast work on all stripes goes, and when it is to stop.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long one that waits does not look whether it is to stop.
const NAP: Duration = Duration::from_millis(50);

/// The pace of work on many stripes.
#[derive(Debug)]
pub struct Pace {
    /// Stripes at a time.
    pub(crate) jobs: usize,
    /// Between the begins of two stripes.
    interval: Duration,
    next: Mutex<Instant>,
    stop: Arc<AtomicBool>,
}

impl Pace {
    /// As fast as so many stripes at a time go.
    pub fn of(jobs: usize) -> Pace {
        Pace {
            jobs,
            interval: Duration::ZERO,
            next: Mutex::new(Instant::now()),
            stop: Arc::default(),
        }
    }

    /// At most `rate` bytes per second, with stripes of `stripe` bytes.
    pub fn at_most(mut self, rate: u64, stripe: u64) -> Pace {
        let nanoseconds = u128::from(stripe) * 1_000_000_000 / u128::from(rate.max(1));
        self.interval = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        self
    }

    /// No stripe is begun any more when this is true.
    pub fn until(mut self, stop: Arc<AtomicBool>) -> Pace {
        self.stop = stop;
        self
    }

    /// Waits until a stripe may begin; returns false if none may any more.
    pub(crate) fn wait(&self) -> bool {
        let begin = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let begin = (*next).max(Instant::now());
            *next = begin.checked_add(self.interval).unwrap_or(begin);
            begin
        };
        wait_until(begin, &self.stop)
    }
}

/// Waits until a time; returns false at once if it is to stop.
pub fn wait_until(time: Instant, stop: &AtomicBool) -> bool {
    loop {
        if stop.load(Relaxed) {
            return false;
        }
        let left = time.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(NAP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_begin_one_after_the_other() {
        // 40 stripes of 1 KiB at 100 KiB/s: nothing can do them faster, however many wait.
        let pace = Pace::of(4).at_most(100 << 10, 1 << 10);
        let began = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10).for_each(|_| assert!(pace.wait())));
            }
        });
        assert!(began.elapsed() >= Duration::from_millis(389), "{:?}", began.elapsed());
    }

    #[test]
    fn one_that_waits_long_stops() {
        let stop = Arc::new(AtomicBool::new(false));
        let pace = Pace::of(1).at_most(1, u64::from(u32::MAX)).until(Arc::clone(&stop));
        assert!(pace.wait());
        let waits = std::thread::spawn(move || pace.wait());
        stop.store(true, Relaxed);
        assert!(!waits.join().unwrap());
    }
}
