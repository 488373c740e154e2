//! Beginning together, and taking time.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::failure::Failure;

/// A phase's times.
pub struct Span {
    /// Seconds since 1970.
    pub begin: f64,
    /// Until the last operation ended.
    pub done: Duration,
    /// Until the final barrier was passed.
    pub settled: Duration,
}

/// A phase that runs.
pub struct Clock {
    begin: f64,
    at: Instant,
}

impl Clock {
    /// Begins now.
    pub fn start() -> Clock {
        Clock { begin: now(), at: Instant::now() }
    }

    /// How long it has run.
    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }

    /// Ends now, after the final barrier; the operations were done after `done`.
    pub fn stop(self, done: Duration) -> Span {
        Span { begin: self.begin, done, settled: self.at.elapsed() }
    }
}

/// Waits until this time of day, in seconds since 1970, so that several nodes begin together.
///
/// # Errors
/// It is over already: nodes would begin one after the other and measure something else.
pub fn wait_until(time: Option<f64>) -> Result<(), Failure> {
    let Some(time) = time else { return Ok(()) };
    let left = time - now();
    if left <= 0.0 {
        let told = format!("the time to begin was {:.3} s ago: give a later --start-at", -left);
        return Err(Failure::Other(told));
    }
    if left > 600.0 {
        return Err(Failure::Other(format!("--start-at is {left:.0} s away: at most 600 s")));
    }
    thread::sleep(Duration::from_secs_f64(left));
    Ok(())
}

fn now() -> f64 {
    // A clock before 1970 reads as 1970; times are only compared.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_over_or_far_away_is_refused() {
        assert!(wait_until(None).is_ok());
        assert!(wait_until(Some(now() - 1.0)).is_err());
        assert!(wait_until(Some(now() + 1e6)).is_err());
        let soon = now() + 0.05;
        assert!(wait_until(Some(soon)).is_ok());
        assert!(now() >= soon);
    }
}
