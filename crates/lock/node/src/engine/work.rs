//! Turns are short: deferrable work is done in pieces, between everything else.
//!
//! Heartbeats and leases are handled once a turn. So no turn may be as long as the present work: it
//! ends some milliseconds after it began, and leaves the rest for the next one.

use lockify_core::{Input, NodeId, Time};

use super::{MS, NodeEngine};
use crate::clock::monotonic;

/// The unacknowledged bytes on a link above which bulk work for it waits.
pub(super) const WINDOW: usize = 1024 * 1024;
/// How long a turn goes on taking up what can wait.
const TURN: Time = 5 * MS;

impl NodeEngine {
    /// The loop has woken.
    pub(super) fn begin_turn(&mut self, now: Time) {
        self.stats.turns += 1;
        (self.woke, self.turn_end) = (now, now + TURN);
    }

    /// The loop is about to wait again: the host has done its part.
    pub(super) fn note_turn(&mut self) {
        // Without a host's work before its first turn.
        if self.stats.turns > 0 {
            let took = monotonic().saturating_sub(self.woke);
            self.stats.longest_turn = self.stats.longest_turn.max(took);
        }
    }

    /// Returns true if the turn is too long already: new work, also the host's, is left for the next
    /// one.
    pub fn is_turn_over(&self) -> bool {
        monotonic() >= self.turn_end
    }

    /// The next turn need not wait for anything.
    pub(super) fn is_busy(&self) -> bool {
        !self.unread.is_empty()
            || !self.dirty.is_empty()
            || !self.looks.is_empty()
            || self.has_work()
    }

    /// Peers whose links take no more bulk work for now.
    fn full_links(&self) -> Vec<NodeId> {
        self.peers.iter().filter(|p| p.link.weight() > WINDOW).map(|p| p.node).collect()
    }

    fn has_work(&self) -> bool {
        let mut working = self.spaces.iter().flatten().filter(|s| s.core.has_work(&[])).peekable();
        working.peek().is_some() && {
            let full = self.full_links();
            working.any(|s| s.core.has_work(&full))
        }
    }

    /// At least one piece of each lockspace's work, and more while there is time; of all looks
    /// together one piece.
    pub(super) fn work(&mut self, now: Time) {
        self.look_on(now);
        for at in 0..self.spaces.len() {
            while self.work_in(at, now) && !self.is_turn_over() {}
        }
    }

    /// One piece; false if there is none.
    fn work_in(&mut self, at: usize, now: Time) -> bool {
        if self.spaces[at].as_ref().is_none_or(|s| !s.core.has_work(&[])) {
            return false;
        }
        let full = self.full_links();
        let Some(s) = self.spaces[at].as_mut().filter(|s| s.core.has_work(&full)) else {
            return false;
        };
        // Only client calls fail.
        let _ = s.core.handle(now, Input::Work { full });
        self.drain(at, now);
        true
    }
}
