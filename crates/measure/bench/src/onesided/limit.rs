//! The limits of the machine without any protocol.

use std::io;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::thread::futex;

use super::case::Workload;

/// The limits, by number of clients; one value for each round.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Pairs of atomic additions per second, all on one word: the cost of a lock that is always free for everybody.
    pub pairs_per_s: Vec<(u32, Vec<f64>)>,
    /// Half a round trip between two threads that wake each other, in microseconds: the cost of a hand-over to a
    /// sleeping client.
    pub wake_us: Vec<f64>,
}

impl Limits {
    /// Measures the baseline of a workload of so many clients.
    ///
    /// # Errors
    /// The system refuses to wait or wake.
    pub fn measure(&mut self, workload: Workload, duration: Duration) -> io::Result<()> {
        let value = atomic_pairs(workload.clients, duration / 2);
        match self.pairs_per_s.iter_mut().find(|(clients, _)| *clients == workload.clients) {
            Some((_, values)) => values.push(value),
            None => self.pairs_per_s.push((workload.clients, vec![value])),
        }
        self.wake_us.push(wake_us(duration / 4)?);
        Ok(())
    }

    /// The median for this many clients.
    pub fn pairs(&self, clients: u32) -> Option<f64> {
        let (_, values) = self.pairs_per_s.iter().find(|(n, _)| *n == clients)?;
        Some(lockify_report::Spread::of(values)?.median)
    }
}

/// Additions between two looks at the clock.
const BATCH: u64 = 1000;

fn atomic_pairs(threads: u32, duration: Duration) -> f64 {
    let word = AtomicU64::new(0);
    let barrier = Barrier::new(threads as usize);
    let add = || {
        barrier.wait();
        let start = Instant::now();
        while start.elapsed() < duration {
            for _ in 0..BATCH {
                word.fetch_add(1, SeqCst);
            }
        }
        start.elapsed()
    };
    let elapsed = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(add)).collect();
        all.into_iter().filter_map(|thread| thread.join().ok()).max()
    });
    word.load(SeqCst) as f64 / 2.0 / elapsed.unwrap_or(duration).as_secs_f64()
}

fn wake_us(duration: Duration) -> io::Result<f64> {
    let ball = AtomicU32::new(0);
    // Each waits for the other's parity; the largest number ends the game.
    let play = |mine: u32| -> io::Result<u64> {
        let (start, mut hits) = (Instant::now(), 0);
        loop {
            let seen = ball.load(SeqCst);
            if seen == u32::MAX {
                return Ok(hits);
            }
            if seen % 2 != mine {
                match futex::wait(&ball, futex::Flags::PRIVATE, seen, None) {
                    Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => continue,
                    Err(e) => return Err(e.into()),
                }
            }
            let over = start.elapsed() >= duration;
            ball.store(if over { u32::MAX } else { (seen + 1) % 1_000_000 }, SeqCst);
            futex::wake(&ball, futex::Flags::PRIVATE, 1)?;
            hits += 1;
        }
    };
    let start = Instant::now();
    let hits = std::thread::scope(|scope| -> io::Result<u64> {
        let other = scope.spawn(|| play(1));
        let mine = play(0)?;
        let theirs = other.join().map_err(|_| io::ErrorKind::Other)??;
        Ok(mine + theirs)
    })?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / hits.max(1) as f64)
}
