//! The end of a command with all that it has started: a request, then SIGKILL, then the truth.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::say;
use super::tree::{Survivor, Tree};

/// Between two rounds of SIGKILL.
const ROUND: Duration = Duration::from_millis(20);

/// How long a process may take to end after SIGKILL: it may be inside of a system call.
const KILLED: Duration = Duration::from_secs(5);

/// How long to wait for processes that must not be killed.
const REFUSED: Duration = Duration::from_secs(1);

/// An instant so far away that nobody waits for it.
const NEVER: Duration = Duration::from_secs(1 << 30);

/// How far the end has come.
pub struct Ending {
    asked: Vec<Signal>,
    kill_at: Instant,
    killing_since: Option<Instant>,
    given_up: bool,
}

impl Ending {
    /// SIGKILL at once.
    pub fn kill() -> Ending {
        Ending::ask(Duration::ZERO)
    }

    /// SIGKILL to whatever is left after `grace`.
    pub fn ask(grace: Duration) -> Ending {
        let now = Instant::now();
        let kill_at = now.checked_add(grace).unwrap_or(now + NEVER);
        Ending { asked: Vec::new(), kill_at, killing_since: None, given_up: false }
    }

    /// Asks all processes to end by `signal`, unless they have been asked by it before.
    pub fn request(&mut self, tree: &mut Tree, signal: Signal) {
        if self.asked.contains(&signal) || self.killing_since.is_some() {
            return;
        }
        self.asked.push(signal);
        // A refusal is reported when it still matters.
        let _ = tree.signal(signal);
        // A stopped process cannot end by itself.
        let _ = tree.signal(Signal::CONT);
    }

    /// No more patience.
    pub fn hurry(&mut self) {
        self.kill_at = self.kill_at.min(Instant::now());
    }

    /// Does the work that is due; returns the processes that cannot be ended, once there are any.
    pub fn turn(&mut self, tree: &mut Tree) -> Option<Vec<Survivor>> {
        let now = Instant::now();
        if now < self.kill_at {
            return None;
        }
        if self.killing_since.is_none() && !self.asked.is_empty() {
            say(format_args!("the command has not ended in time: it is being killed"));
        }
        let since = now - *self.killing_since.get_or_insert(now);
        let survivors = tree.kill();
        let refused = survivors.iter().all(Survivor::refused);
        let over = since >= if refused { REFUSED } else { KILLED };
        if survivors.is_empty() || !over || std::mem::replace(&mut self.given_up, true) {
            return None;
        }
        Some(survivors)
    }

    /// When there is something to do next, if nothing happens before.
    pub fn timeout(&self) -> Option<Duration> {
        match self.killing_since {
            _ if self.given_up => None,
            Some(_) => Some(ROUND),
            None => Some(self.kill_at.saturating_duration_since(Instant::now())),
        }
    }
}

/// Names the remaining processes; `then` is the consequence.
pub fn report(survivors: &[Survivor], then: &str) {
    for survivor in survivors {
        say(format_args!("{survivor}"));
    }
    say(format_args!("{then}"));
}
