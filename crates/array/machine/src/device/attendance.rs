//! How long nobody has served as the array's lock server (docs/design/array.md 3.6). Devices tell those that stand by. This
//! decides only when one of them asks to serve. The array's state decides whether it does.

use serde::{Deserialize, Serialize};

use super::Device;
use crate::{ArrayState, Time};

/// When the lock server that serves was heard of last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attendance {
    term: u64,
    heard: Time,
}

impl Attendance {
    pub(super) fn at_start(now: Time, state: &ArrayState) -> Self {
        Attendance { term: state.locks.term, heard: now }
    }
}

/// A device's answer to a lock server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attended {
    /// The array's state, as the device has it.
    pub state: ArrayState,
    /// For how long it has not heard the lock server that serves in this state, in nanoseconds.
    pub silent: Time,
}

impl Device {
    /// A lock server calls, which serves in this term, if it does.
    pub fn attended(&mut self, now: Time, serving: Option<u64>) -> Attended {
        let state = self.state().clone();
        let term = state.locks.term;
        if self.attendance.term != term || serving == Some(term) {
            self.attendance = Attendance { term, heard: now };
        }
        Attended { state, silent: now.saturating_sub(self.attendance.heard) }
    }
}
