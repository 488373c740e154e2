//! Distributions of latencies and other delays.

use crate::{Nanos, Random};
use rand::RngExt;
use rand_distr::{Distribution, Exp1, StandardNormal};

/// A distribution of delays in [`Nanos`].
///
/// Built without the platform's mathematics library, so that a seed gives the same delays everywhere.
#[derive(Clone, Debug, PartialEq)]
pub enum Delay {
    /// Always the same.
    Constant(Nanos),
    /// Uniform between the two, both included; in either order.
    Uniform(Nanos, Nanos),
    /// Normally distributed, cut off at 0: the seek of an old disk, a person's pause.
    Normal {
        /// Mean, before the cut.
        mean: Nanos,
        /// Standard deviation.
        deviation: Nanos,
    },
    /// `base` plus an exponentially distributed part with the given mean.
    Exponential {
        /// Smallest delay.
        base: Nanos,
        /// Mean of the part above `base`.
        mean: Nanos,
    },
    /// `base` plus a log-normally distributed part: the usual model of network latency, with a heavy tail.
    LogNormal {
        /// Smallest delay.
        base: Nanos,
        /// Median of the part above `base`.
        median: Nanos,
        /// Standard deviation of the logarithm; 0.5 is a quiet network, 2 a very uneven one.
        sigma: f64,
    },
    /// `rare` with probability `share`, else `usual`: an explicit tail (garbage collection, a slow path in a switch).
    Mixed {
        /// The source of nearly every draw.
        usual: Box<Delay>,
        /// The source of the other draws.
        rare: Box<Delay>,
        /// Probability of `rare`, 0 to 1.
        share: f64,
    },
}

impl Delay {
    /// No delay at all.
    pub const ZERO: Delay = Delay::Constant(0);

    /// Draws one delay.
    pub fn sample(&self, random: &mut Random) -> Nanos {
        match self {
            Delay::Constant(delay) => *delay,
            Delay::Uniform(a, b) => random.random_range(*a.min(b)..=*a.max(b)),
            Delay::Normal { mean, deviation } => {
                let part: f64 = StandardNormal.sample(random);
                to_nanos(*mean as f64 + part * *deviation as f64)
            }
            Delay::Exponential { base, mean } => {
                let part: f64 = Exp1.sample(random);
                base.saturating_add(to_nanos(part * *mean as f64))
            }
            Delay::LogNormal { base, median, sigma } => {
                // `f64::exp` differs between platforms; this one does not.
                let part: f64 = StandardNormal.sample(random);
                base.saturating_add(to_nanos(*median as f64 * libm::exp(part * sigma)))
            }
            Delay::Mixed { usual, rare, share } => {
                let tail = chance(random, *share);
                if tail { rare.sample(random) } else { usual.sample(random) }
            }
        }
    }
}

/// True with probability `p`; values outside 0 to 1 (and NaN) are treated as the nearest bound (0).
pub(crate) fn chance(random: &mut Random, p: f64) -> bool {
    if p <= 0.0 || p.is_nan() {
        return false; // without a draw: a feature that is off does not shift the stream
    }
    random.random_bool(p.min(1.0))
}

/// The cast saturates at both ends, and turns NaN into 0.
fn to_nanos(value: f64) -> Nanos {
    value as Nanos
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn mean(delay: &Delay) -> f64 {
        let mut random = Random::seed_from_u64(1);
        let draws = 20_000;
        (0..draws).map(|_| delay.sample(&mut random) as f64).sum::<f64>() / f64::from(draws)
    }

    #[test]
    fn distributions_have_their_means() {
        assert_eq!(mean(&Delay::Constant(7)), 7.0);
        let cases = [
            (Delay::Uniform(3_000, 1_000), 2_000.0),
            (Delay::Normal { mean: 8_000, deviation: 1_000 }, 8_000.0),
            (Delay::Exponential { base: 1_000, mean: 5_000 }, 6_000.0),
            // The mean of a log-normal variable is median * exp(sigma^2 / 2).
            (
                Delay::LogNormal { base: 100, median: 1_000, sigma: 0.5 },
                100.0 + 1_000.0 * 0.125f64.exp(),
            ),
            (
                Delay::Mixed {
                    usual: Box::new(Delay::Constant(1_000)),
                    rare: Box::new(Delay::Constant(101_000)),
                    share: 0.1,
                },
                11_000.0,
            ),
        ];
        for (delay, expected) in cases {
            let mean = mean(&delay);
            assert!(
                (mean / expected - 1.0).abs() < 0.05,
                "{delay:?}: mean {mean}, expected {expected}"
            );
        }
    }

    #[test]
    fn probabilities_out_of_range_are_clamped() {
        let mut random = Random::seed_from_u64(1);
        assert!(!chance(&mut random, f64::NAN) && !chance(&mut random, -1.0));
        assert!(chance(&mut random, 7.0));
    }
}
