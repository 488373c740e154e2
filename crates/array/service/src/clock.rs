//! The clocks of a process.

use std::time::{Duration, SystemTime};

use lockify_array::Time;
use rustix::time::{ClockId, clock_gettime};

/// The wall clock, as timestamps need it. It follows the system's clock (set by NTP), never goes back, and does not leap.
/// After a step of the system's clock, it runs at half its speed, or at half as much again, until it agrees. So no wait
/// lasts for the whole step. Others also find out that the clock is wrong before it is far from theirs. A host at half
/// its speed still renews in time at a device that is too fast. It renews after 2/3 of a lease, before 2/3 and 1/8.
pub(crate) struct Clock {
    last: Time,
    at: u64,
}

impl Clock {
    pub fn new() -> Clock {
        Clock { last: wall(), at: monotonic() }
    }

    pub fn now(&mut self) -> Time {
        self.advance(wall(), monotonic())
    }

    /// How far the system's clock is ahead of this one.
    pub fn to_go(&self) -> i64 {
        wall().wrapping_sub(self.last).cast_signed()
    }

    fn advance(&mut self, wall: Time, monotonic: u64) -> Time {
        let passed = monotonic.saturating_sub(self.at);
        let ahead = |by: u64| self.last.saturating_add(by);
        self.last = wall.clamp(ahead(passed / 2), ahead(passed + passed / 2));
        self.at = monotonic;
        self.last
    }
}

/// A clock for others' leases: while this process stands still, it does so, too. A process that was stopped must not find
/// that everybody was silent before it has read their messages.
pub(crate) struct PatientClock {
    now: Time,
    last: u64,
    step: Time,
}

impl PatientClock {
    /// For leases of this length. It is to be asked twice in each [`PatientClock::step`].
    pub fn new(lease: Duration) -> PatientClock {
        PatientClock { now: 0, last: monotonic(), step: lease.as_nanos() as u64 / 8 }
    }

    /// The longest time that it goes on at once.
    pub fn step(&self) -> Duration {
        Duration::from_nanos(self.step)
    }

    pub fn now(&mut self) -> Time {
        self.advance(monotonic())
    }

    fn advance(&mut self, monotonic: u64) -> Time {
        self.now += monotonic.saturating_sub(self.last).min(self.step);
        self.last = monotonic;
        self.now
    }
}

/// Nanoseconds since 1970.
fn wall() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds since the system started, those that it slept included: for leases.
pub(crate) fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// From `now` until a timer.
pub(crate) fn until(timer: Option<Time>, now: Time) -> Duration {
    timer.map_or(Duration::from_secs(3600), |timer| Duration::from_nanos(timer.saturating_sub(now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_for_leases_stands_still_with_its_process() {
        let mut clock = PatientClock { now: 0, last: 1000, step: 80 };
        assert_eq!(clock.advance(1050), 50);
        assert_eq!(clock.advance(9_000_000), 130);
        assert_eq!(clock.advance(9_000_010), 140);
    }

    #[test]
    fn a_clock_that_is_stepped_is_come_near_to_and_not_followed() {
        const S: u64 = 1_000_000_000;
        let mut clock = Clock { last: 100, at: 0 };
        assert_eq!(clock.advance(100 + S, S), 100 + S);
        // Set back by ten seconds.
        assert_eq!(clock.advance(S, 3 * S), 100 + 2 * S);
        assert_eq!(clock.advance(0, 5 * S), 100 + 3 * S);
        // Set ahead.
        assert_eq!(clock.advance(50 * S, 7 * S), 100 + 6 * S);
        assert_eq!(clock.advance(50 * S, 7 * S), 100 + 6 * S);
        assert_eq!(clock.advance(56 * S, 60 * S), 56 * S);
    }
}
