//! How often something may happen that others cause.

use lockify_core::Time;

const MS: Time = 1_000_000;

/// Lets so much through in a second, evenly or at once.
#[derive(Debug)]
pub struct Pace {
    interval: Time,
    burst: Time,
    next: Time,
}

impl Pace {
    /// So many in a second, and as many at once after a rest.
    pub fn per_second(n: u64) -> Pace {
        let interval = 1000 * MS / n.max(1);
        Pace { interval, burst: 1000 * MS - interval, next: 0 }
    }

    /// Returns true if one more may pass at this time, in nanoseconds of any clock that does not go
    /// back.
    pub fn admits(&mut self, now: Time) -> bool {
        let next = self.next.max(now);
        let passes = next - now <= self.burst;
        if passes {
            self.next = next + self.interval;
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_lets_through_what_it_says_and_no_more() {
        let mut pace = Pace::per_second(10);
        let start = 5_000 * MS;
        let burst = (0..100).filter(|_| pace.admits(start)).count();
        assert_eq!(burst, 10);
        // Then one in a tenth of a second, however often it is asked.
        let later = (1..=1000).filter(|ms| pace.admits(start + ms * MS)).count();
        assert_eq!(later, 10);
        // After a rest, as at the start.
        let rested = (0..100).filter(|_| pace.admits(start + 9_000 * MS)).count();
        assert_eq!(rested, 10);
    }
}
