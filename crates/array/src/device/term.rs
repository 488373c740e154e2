//! When a device serves blocks: only in a term that it was let in for.
//!
//! A device that was away, or has restarted, must not serve by what it remembers: the others may have gone on without it, and
//! hosts have written what it does not have. A host that knows no more than the device does would read old content from it,
//! and nothing else would tell the two.
//!
//! To look at the newest state that a majority knows is not enough. That the device is left out may be accepted by a minority,
//! or still be with a host that proposes it, and be chosen afterwards: the device would serve on by the state before. So that
//! it serves again is a change of the array's state itself. [`Change::LetIn`] is agreed on as every change (`agreement`), with a
//! number that no earlier life of the device has asked for, its *term*. By this
//!
//! - it follows all that was chosen before, and the proposer has completed what a majority's voters had accepted and not
//!   installed: who finds itself let in knows everything that others may have gone on by;
//! - what is chosen later cannot leave the device out by what was seen before: [`Change::Fail`] names the term in which the device
//!   was found to be gone, and makes no sense in another.
//!
//! It rests on leases that a term ends before others find the device gone in it: its process asks for a term only while it is
//! one of those who are there, begins anew (as after a crash) when it has lost touch for a lease, and others find it gone when they
//! have known of the term and not seen the device for as long. Nothing but reads and writes of blocks waits for it: that the device
//! votes, is told of states and fences, and gives up what hosts give up, is right at any time.
//!
//! Conditions of devices are as they were when one is let in, so that what is under way goes on ([`crate::ArrayState::since`]).

use super::Device;
use super::epoch::Record;
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::{Change, DeviceId};

impl Record {
    /// A term that nobody has asked for. Durable before it is asked for, so that the next one is another.
    pub(super) fn begin_term(&mut self, device: DeviceId) {
        self.term = self.term.max(self.state().term(device)) + 1;
    }
}

impl Device {
    /// Whether it has been let in for its term. Those without blocks need not be.
    pub fn is_let_in(&self) -> bool {
        let state = self.record.state();
        let has_blocks = usize::from(self.config.id.0) < state.terms.len();
        !has_blocks || state.term(self.config.id) == self.record.term
    }

    /// The change of the array's state by which it would serve; none if it does, or cannot ask yet.
    pub fn wants_in(&self) -> Option<Change> {
        #[cfg(feature = "mutations")]
        if self.config.mutation == Some(Mutation::ServesBeforeLetIn) {
            return None;
        }
        let asks = self.started && !self.is_let_in() && !self.is_saving();
        asks.then_some(Change::LetIn(self.config.id, self.record.term))
    }

    pub(super) fn may_serve(&self) -> bool {
        #[cfg(feature = "mutations")]
        if matches!(
            self.config.mutation,
            Some(Mutation::ServesBeforeLetIn | Mutation::ServesBeforeSettled)
        ) {
            return true;
        }
        self.is_let_in()
    }
}
