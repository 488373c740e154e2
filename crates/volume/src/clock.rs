//! The clocks of a process.

use std::time::{Duration, Instant};

use lockify_array::Time;
use rustix::time::{ClockId, clock_gettime};

/// The wall clock, as timestamps need it: it follows the system's (set by NTP), and never goes back. While the system's is
/// behind, because somebody has set it back, it goes on at half its speed, so that what waits for a time does not wait for
/// the whole step.
pub(crate) struct Clock {
    last: Time,
    at: Instant,
}

impl Clock {
    pub fn new() -> Clock {
        Clock { last: wall(), at: Instant::now() }
    }

    pub fn now(&mut self) -> Time {
        self.advance(wall(), Instant::now())
    }

    fn advance(&mut self, wall: Time, at: Instant) -> Time {
        let passed = at.saturating_duration_since(self.at).as_nanos() as u64;
        self.last = wall.max(self.last.saturating_add(passed / 2));
        self.at = at;
        self.last
    }
}

/// A clock for others' leases: while this process stands still, it does so, too. A process that was stopped must not find
/// that everybody has been silent before it has read what they said.
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
    nanoseconds(ClockId::Realtime)
}

/// Nanoseconds since the system started, those that it slept included: for leases.
pub(crate) fn monotonic() -> u64 {
    nanoseconds(ClockId::Boottime)
}

/// A number that is larger in every later life of a process, unless the clock was set back between the two.
pub(crate) fn incarnation() -> u64 {
    wall()
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
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
    fn a_clock_that_is_set_back_is_waited_for_and_not_followed() {
        let start = Instant::now();
        let second = |n| start + Duration::from_secs(n);
        let mut clock = Clock { last: 100, at: start };
        const S: u64 = 1_000_000_000;
        assert_eq!(clock.advance(100 + S, second(1)), 100 + S);
        // Set back by ten seconds.
        assert_eq!(clock.advance(S, second(3)), 100 + 2 * S);
        assert_eq!(clock.advance(0, second(5)), 100 + 3 * S);
        // Set ahead.
        assert_eq!(clock.advance(50 * S, second(6)), 50 * S);
        assert_eq!(clock.advance(51 * S, second(6)), 51 * S);
    }
}
