//! The service's behaviour with a known defect ([`crate::mutation`]); not in releases.

use super::*;
use crate::mutation::Mutation;

/// So many refused proposals use up all numbers.
const NUMBERS: u64 = 1 << 27;

/// Lives that are times of day keep clear of visits.
const TIMES: u64 = VISITS - 1;

impl LogMembership {
    /// Makes it behave with this defect from here on.
    #[must_use]
    pub fn mutated(mut self, mutation: Option<Mutation>) -> LogMembership {
        self.mutation = mutation;
        self
    }

    /// The time of day, for defects that go by it.
    pub(super) fn note_wall(&mut self, wall: u64) {
        let first = self.wall == 0;
        self.wall = wall;
        if first && self.mutation == Some(Mutation::LifeFromClock) && self.life.is_none() {
            self.visit = VISITS | wall;
        }
    }

    /// Applies a command as a defective service does.
    pub(super) fn apply_mutated(&mut self, command: &Command) -> bool {
        match (self.mutation, command) {
            (Some(Mutation::LifeFromClock), Command::Live { node, visit }) => {
                let applied = self.state.apply(command);
                if let Some(life) = self.state.lives.get_mut(node).filter(|_| applied) {
                    life.number = visit & TIMES;
                    self.state.last_life = self.state.last_life.max(life.number);
                }
                applied
            }
            (Some(Mutation::ViewFromClock), Command::View { base, members, spaces, .. }) => {
                let (base, members, spaces) = (*base, members.clone(), spaces.clone());
                let (clock, base) = (base, self.state.view.seq);
                self.number_by_clock(clock, Command::View { base, seq: base + 1, members, spaces })
            }
            (Some(Mutation::RefusedUsesNumbers), _) => {
                let applied = self.state.apply(command);
                if !applied {
                    self.state.view.seq = (self.state.view.seq + NUMBERS).min(u64::from(u32::MAX));
                }
                applied
            }
            _ => self.state.apply(command),
        }
    }

    /// Gives the next view the number that its proposer's clock says.
    fn number_by_clock(&mut self, clock: u64, view: Command) -> bool {
        let before = self.state.view.seq;
        if clock == before || !self.state.apply(&view) {
            return false;
        }
        for space in &mut self.state.view.spaces {
            if space.view.seq == before + 1 {
                space.view.seq = clock;
            }
        }
        self.state.view.seq = clock;
        true
    }

    /// The view from which a proposal of the next view claims to start.
    pub(super) fn mutated_base(&self, base: u64) -> u64 {
        if self.mutation == Some(Mutation::ViewFromClock) { self.wall } else { base }
    }
}
