//! Waiting between compare-and-swaps that fail.

use super::Session;
use crate::fabric::{Fabric, Nanos};

/// The back-off of CAS-spin (after SMART, ASPLOS 2024): the longest wait follows the share of retries.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    longest: Nanos,
    tries: u64,
    retries: u64,
    since: Nanos,
}

impl<F: Fabric> Session<F> {
    /// Waits after the `attempt`th failed compare-and-swap.
    pub async fn back_off(&self, attempt: u32) {
        let unit = self.options.unit.max(1);
        let (now, ceiling) = (self.fabric.now(), unit << 10);
        let mut state = self.backoff.get();
        if state.longest == 0 {
            state = Backoff { longest: unit, since: now, ..state };
        }
        state.retries += 1;
        if now.saturating_sub(state.since) >= 1_000_000 {
            let tries = (state.tries + state.retries).max(1);
            if state.retries * 2 > tries {
                state.longest = (state.longest * 2).min(ceiling);
            } else if state.retries * 10 < tries {
                state.longest = (state.longest / 2).max(unit);
            }
            state = Backoff { tries: 0, retries: 0, since: now, ..state };
        }
        self.backoff.set(state);
        let wait = (unit << attempt.min(10)).min(state.longest);
        self.pause(wait + self.fabric.random() % unit).await;
    }

    /// A compare-and-swap worked at once.
    pub fn count_success(&self) {
        let state = self.backoff.get();
        self.backoff.set(Backoff { tries: state.tries + 1, ..state });
    }
}
