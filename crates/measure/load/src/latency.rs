//! Latencies of operations, sampled so that reading the clock does not become the load.

use std::time::Instant;

use hdrhistogram::Histogram;
use serde::Serialize;

/// In user-mode Linux reading the clock is a system call of several microseconds, a good part of
/// a cheap creation: only one operation of so many is timed. Throughput comes from the phase's
/// beginning and end alone.
const SAMPLE: u64 = 16;

/// Times one operation of [`SAMPLE`].
pub struct Sampler {
    operations: u64,
    nanoseconds: Histogram<u64>,
}

/// The samples, in microseconds.
#[derive(Serialize, Clone, Copy, Debug)]
pub struct Latency {
    samples: u64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

impl Sampler {
    /// Nothing sampled yet.
    pub fn new() -> Sampler {
        // One nanosecond to a minute in three digits is a range that a histogram always has.
        let nanoseconds = Histogram::new_with_bounds(1, 60_000_000_000, 3)
            .unwrap_or_else(|_| unreachable!("the bounds are constants"));
        Sampler { operations: 0, nanoseconds }
    }

    /// Does one operation.
    pub fn time<T, E>(&mut self, operation: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.operations += 1;
        if !self.operations.is_multiple_of(SAMPLE) {
            return operation();
        }
        let begin = Instant::now();
        let result = operation();
        let nanoseconds = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.saturating_record(nanoseconds.max(1));
        result
    }

    /// How many operations were done, sampled or not.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Adds what another thread did.
    pub fn add(&mut self, other: &Sampler) {
        self.operations += other.operations;
        self.nanoseconds += &other.nanoseconds;
    }

    /// The samples; `None` without any.
    pub fn latency(&self) -> Option<Latency> {
        let at = |quantile| self.nanoseconds.value_at_quantile(quantile) as f64 / 1000.0;
        (!self.nanoseconds.is_empty()).then(|| Latency {
            samples: self.nanoseconds.len(),
            mean: self.nanoseconds.mean() / 1000.0,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: self.nanoseconds.max() as f64 / 1000.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_sixteen_is_timed_and_all_are_counted() {
        let mut sampler = Sampler::new();
        for _ in 0..100 {
            let _: Result<(), ()> = sampler.time(|| Ok(()));
        }
        assert_eq!(sampler.operations(), 100);
        assert_eq!(sampler.latency().map(|l| l.samples), Some(6));
        let mut sum = Sampler::new();
        assert!(sum.latency().is_none());
        sum.add(&sampler);
        assert_eq!((sum.operations(), sum.latency().map(|l| l.samples)), (100, Some(6)));
    }
}
