//! A device serves blocks only in a term that it was let in for.
//!
//! A device that was away or has restarted must not serve by its own memory. The others may have gone on without it, and hosts
//! have written blocks that it lacks. A host that knows no more than the device does would read old content, and neither would
//! notice.
//!
//! It is not enough to look at the newest state that a majority knows. A minority may have accepted the device's exclusion, or
//! a host may still be proposing it. If that is chosen afterwards, the device would serve by the former state. So letting the
//! device in is a change of the array's state itself. [`Change::LetIn`] is agreed on as every change (`agreement`). Its number
//! is the *term*, which no earlier life of the device has requested. Two facts follow:
//!
//! - It follows all chosen states. The proposer has completed every state that a majority's voters had accepted and not
//!   installed. A device that finds itself let in therefore knows every state by which others may have gone on.
//! - A state that is chosen later cannot exclude the device for an older absence. [`Change::Fail`] names the term in which the
//!   device was found to be gone, and is invalid in another term.
//!
//! This rests on leases: a term ends before others find the device gone in it. The device's process asks for a term only while
//! it is a present member. It begins anew, as after a crash, when it has lost touch for a lease. Others find it gone when they
//! have known of the term and have not heard the device for as long. Only reads and writes of blocks wait for a term. The
//! device may vote, learn states and fences, and give up what hosts give up at any time.
//!
//! Letting a device in changes no device's condition, so operations under way continue ([`crate::ArrayState::since`]).

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
    /// Returns true if the device has been let in for its term. Devices without blocks need not be.
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
