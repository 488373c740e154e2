//! The check of stripes with writes under way when the device stopped (docs/design/array.md 3.1.3 and 3.1.4). It visits one
//! stripe after the other, even unused ones. Until then, a dead device of the group could cost these writes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lockify_array::{Device, HostAnswer};

use crate::host::Scrubbed;
use crate::upkeep::Found;

/// How long after a stripe could not be checked the next one is tried.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// The longest such time.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

pub(super) struct Checks {
    next: VecDeque<u64>,
    /// The stripe that is being checked, and since when.
    under_way: Option<(u64, Instant)>,
    rests_until: Instant,
    /// The findings since the start of the check was reported.
    found: Option<Found>,
    /// It has been said that it does not work.
    failed: bool,
    /// Failures without a success between them.
    failures: u32,
    log: fn(&str),
}

impl Checks {
    pub fn new(log: fn(&str)) -> Checks {
        Checks {
            next: VecDeque::new(),
            under_way: None,
            rests_until: Instant::now(),
            found: None,
            failed: false,
            failures: 0,
            log,
        }
    }

    /// The stripe to be checked now, if any. It is under way until [`Checks::ended`].
    pub fn due(&mut self, device: &Device) -> Option<u64> {
        let now = Instant::now();
        if self.under_way.is_some() || now < self.rests_until {
            return None;
        }
        if self.next.is_empty() {
            self.next = device.next_suspects().into();
            match (&self.found, self.next.is_empty()) {
                (Some(_), true) => self.all_checked(),
                (None, false) => {
                    let count = device.suspects().count();
                    (self.log)(&format!(
                        "{count} stripes may have been written in when this device stopped: they are checked in the background"
                    ));
                    self.found = Some(Found::default());
                }
                _ => {}
            }
        }
        while let Some(stripe) = self.next.pop_front() {
            // Somebody else may have seen to it.
            if device.suspects_stripe(stripe) {
                self.under_way = Some((stripe, now));
                return Some(stripe);
            }
        }
        None
    }

    /// A stripe has been checked. There is a rest for as long as it took: hosts come first.
    pub fn ended(&mut self, stripe: u64, result: Result<HostAnswer, String>) {
        let Some((_, since)) = self.under_way.take_if(|(under_way, _)| *under_way == stripe) else {
            return;
        };
        let mut rest = since.elapsed();
        match result {
            Ok(answer) => {
                self.failed = false;
                if let (Some(found), Some(scrubbed)) = (&mut self.found, Scrubbed::of(&answer)) {
                    found.add(scrubbed);
                }
                self.failures = 0;
            }
            Err(why) => {
                // Each further failure doubles the pause: the reason may last.
                let doubled = AFTER_FAILURE.saturating_mul(1 << self.failures.min(6));
                rest = doubled.min(LONGEST_PAUSE);
                self.failures += 1;
                if !std::mem::replace(&mut self.failed, true) {
                    (self.log)(&format!("cannot check stripe {stripe}: {why}; it is tried again"));
                }
            }
        }
        self.rests_until = Instant::now() + rest;
    }

    /// For how long it rests yet.
    pub fn rests(&self) -> Option<Duration> {
        let left = self.rests_until.checked_duration_since(Instant::now());
        left.filter(|left| !left.is_zero())
    }

    fn all_checked(&mut self) {
        let Some(found) = self.found.take() else { return };
        let Found { stripes, unfit, undecided, .. } = found;
        let (fitted, lost, left) = (unfit - undecided, found.of_lost(), found.of_undecided());
        (self.log)(&format!(
            "all these stripes have been checked, {stripes} of them by this device: {fitted} did not fit, and do now{left}{lost}"
        ));
    }
}
