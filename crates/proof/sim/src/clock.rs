//! A node's own clock: virtual time with a rate error and steps.

use crate::Nanos;

const MILLION: i128 = 1_000_000;

/// A clock that runs `rate` parts per million too fast (or, negative, too slow) and can be stepped.
///
/// Local time never goes below 0. Between two changes it is a line through (`since`, `local`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clock {
    since: Nanos,
    local: Nanos,
    rate: i32,
}

impl Default for Clock {
    /// A perfect clock: local time is virtual time.
    fn default() -> Self {
        Self { since: 0, local: 0, rate: 0 }
    }
}

impl Clock {
    /// Local time at virtual time `at`, which must not be before the last change (earlier counts as that change).
    pub fn local(&self, at: Nanos) -> Nanos {
        let elapsed = at.saturating_sub(self.since);
        if self.rate == 0 {
            return self.local.saturating_add(elapsed);
        }
        let scaled = i128::from(elapsed) * self.speed() / MILLION;
        clamp(i128::from(self.local) + scaled)
    }

    /// First virtual time at which this clock shows `local` or more, if nothing changes it before.
    pub fn when(&self, local: Nanos) -> Nanos {
        let wait = local.saturating_sub(self.local);
        if self.rate == 0 {
            return self.since.saturating_add(wait);
        }
        let speed = self.speed();
        let scaled = (i128::from(wait) * MILLION + speed - 1) / speed;
        clamp(i128::from(self.since) + scaled)
    }

    /// Rate error in parts per million.
    pub fn rate(&self) -> i32 {
        self.rate
    }

    /// From virtual time `at` on, run `ppm` parts per million too fast; local time itself does not jump.
    /// A clock cannot stand still or run backwards: -999,999 is the lowest rate.
    pub fn set_rate(&mut self, at: Nanos, ppm: i32) {
        *self = Self { since: at, local: self.local(at), rate: ppm.max(-999_999) };
    }

    /// At virtual time `at`, jump by `by` nanoseconds, forwards or backwards.
    pub fn step(&mut self, at: Nanos, by: i64) {
        let local = self.local(at).saturating_add_signed(by);
        *self = Self { since: at, local, rate: self.rate };
    }

    fn speed(&self) -> i128 {
        MILLION + i128::from(self.rate)
    }
}

fn clamp(value: i128) -> Nanos {
    Nanos::try_from(value.max(0)).unwrap_or(Nanos::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MILLISECOND, SECOND};

    #[test]
    fn rate_error_accumulates_and_survives_a_change() {
        let mut clock = Clock::default();
        clock.set_rate(SECOND, 200);
        assert_eq!(clock.local(SECOND), SECOND);
        assert_eq!(clock.local(11 * SECOND), 11 * SECOND + 2 * MILLISECOND);
        clock.set_rate(11 * SECOND, -200);
        assert_eq!(clock.local(21 * SECOND), 21 * SECOND);
    }

    #[test]
    fn steps_go_both_ways_but_not_below_zero() {
        let mut clock = Clock::default();
        clock.step(SECOND, 500);
        assert_eq!(clock.local(SECOND), SECOND + 500);
        clock.step(SECOND, -(2 * SECOND as i64));
        assert_eq!(clock.local(SECOND), 0);
        assert_eq!(clock.local(SECOND + 3), 3);
    }

    #[test]
    fn when_is_the_first_instant_that_shows_the_time() {
        for rate in [-999_999, -300, 0, 1, 77, 5_000_000] {
            let mut clock = Clock::default();
            clock.set_rate(1_000, rate);
            for local in [1_000, 1_001, 1_999, 123_456, SECOND + 7] {
                let at = clock.when(local);
                assert!(clock.local(at) >= local, "rate {rate}, local {local}");
                assert!(
                    at == 1_000 || clock.local(at - 1) < local,
                    "rate {rate}, local {local}: not the first"
                );
            }
        }
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut clock = Clock::default();
        clock.set_rate(0, i32::MAX);
        assert_eq!(clock.local(Nanos::MAX), Nanos::MAX);
        clock.set_rate(0, i32::MIN);
        assert!(clock.when(Nanos::MAX) == Nanos::MAX);
    }
}
