//! The check of stripes with writes under way when the device stopped (docs/design/array.md 3.1.3 and 3.1.4). It visits all
//! of them, even unused ones. Until then, a dead device of the group could cost these writes.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use lockify_array::{Device, HostAnswer};

use crate::host::Scrubbed;
use crate::upkeep::Found;

/// So many stripes are checked at once. A check mostly waits for the other devices.
const AT_ONCE: usize = 4;
/// How long after a stripe could not be checked the next one is tried.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// The longest such time.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

pub(super) struct Checks {
    next: VecDeque<u64>,
    /// The stripes that are being checked, and since when.
    under_way: BTreeMap<u64, Instant>,
    /// The ends of the rests of ended checks. Nobody takes the place of a check that rests.
    resting: Vec<Instant>,
    /// Nothing begins before, as a check failed.
    paused_until: Option<Instant>,
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
            under_way: BTreeMap::new(),
            resting: Vec::new(),
            paused_until: None,
            found: None,
            failed: false,
            failures: 0,
            log,
        }
    }

    /// A stripe to be checked now, if any. It is under way until [`Checks::ended`].
    pub fn due(&mut self, device: &Device) -> Option<u64> {
        let now = Instant::now();
        self.resting.retain(|until| *until > now);
        self.paused_until.take_if(|until| *until <= now);
        let places = self.under_way.len() + self.resting.len();
        if self.paused_until.is_some() || places >= AT_ONCE {
            return None;
        }
        if self.next.is_empty() {
            self.next = device.next_suspects().into();
            match (&self.found, self.next.is_empty()) {
                (Some(_), true) if self.under_way.is_empty() => self.all_checked(),
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
            if device.suspects_stripe(stripe) && !self.under_way.contains_key(&stripe) {
                self.under_way.insert(stripe, now);
                return Some(stripe);
            }
        }
        None
    }

    /// A stripe has been checked. Its place rests for as long as that took: hosts come first.
    pub fn ended(&mut self, stripe: u64, result: Result<HostAnswer, String>) {
        let Some(since) = self.under_way.remove(&stripe) else { return };
        let now = Instant::now();
        match result {
            Ok(answer) => {
                self.failed = false;
                if let (Some(found), Some(scrubbed)) = (&mut self.found, Scrubbed::of(&answer)) {
                    found.add(scrubbed);
                }
                self.failures = 0;
                self.resting.push(now + now.duration_since(since));
            }
            // The failures of one time are one.
            Err(_) if self.paused_until.is_some_and(|until| until > now) => {}
            Err(why) => {
                // Each further failure doubles the pause: the reason may last.
                let doubled = AFTER_FAILURE.saturating_mul(1 << self.failures.min(6));
                self.paused_until = Some(now + doubled.min(LONGEST_PAUSE));
                self.failures += 1;
                if !std::mem::replace(&mut self.failed, true) {
                    (self.log)(&format!("cannot check stripe {stripe}: {why}; it is tried again"));
                }
            }
        }
    }

    /// For how long it rests yet, if it could check more stripes then.
    pub fn rests(&self) -> Option<Duration> {
        let resting = self.resting.iter().min().copied();
        let until = self.paused_until.or(resting)?;
        let left = until.saturating_duration_since(Instant::now());
        Some(left).filter(|left| !left.is_zero())
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
