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
//! A medium may also be put back to an older copy of itself, by a backup. With each term it gets a random number, which the array's
//! state remembers ([`crate::ArrayState::keys`]). A device that serves for long gets others. A device whose medium has neither the array's
//! number nor asks for it has old blocks: it is given up and rebuilt.
//!
//! A device that ends with its question open asks again when it starts, since the array may have taken that number. A copy of the
//! medium from before asks for it as well. So it does not serve by that number: it asks for one of this start, and waits for that.
//!
//! Letting a device in changes no device's condition, so operations under way continue ([`crate::ArrayState::since`]).

use super::Device;
use super::record::Record;
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::{Change, DeviceId, Term, Time};

impl Record {
    /// A term that nobody has asked for. Durable before it is asked for, so that the next one is another.
    pub(super) fn begin_term(&mut self, device: DeviceId, random: u64) {
        self.learn_key(device);
        self.term = self.term.max(self.state().term(device)) + 1;
        self.ask_for_key(random);
    }

    /// Asks for a random number that the medium did not have before; never 0. The array may have taken the one that was asked
    /// for last: that one is asked for until it is known.
    pub(super) fn ask_for_key(&mut self, random: u64) {
        if self.asked == 0 {
            self.asked = (random ^ self.key.rotate_left(32) ^ self.term).max(1);
        }
    }

    /// The array's state is a newer one.
    pub(super) fn learn_key(&mut self, device: DeviceId) {
        let key = self.state().key(device);
        if key == self.asked {
            (self.key, self.asked) = (key, 0);
        }
    }
}

impl Device {
    /// Returns true if the device has been let in for its term. Devices without blocks need not be. An older copy of the medium
    /// may ask for a term that the medium has had since.
    pub fn is_let_in(&self) -> bool {
        let term = self.record.state().term(self.config.id);
        !self.has_blocks()
            || term == self.record.term && !self.is_out_of_date() && !self.has_inherited_key()
    }

    /// Returns true if copies from before this start may ask for the number that the array has of this medium.
    fn has_inherited_key(&self) -> bool {
        #[cfg(feature = "mutations")]
        if self.config.mutation == Some(Mutation::ServesByInheritedKey) {
            return false;
        }
        self.inherited != 0 && self.record.state().key(self.config.id) == self.inherited
    }

    fn has_blocks(&self) -> bool {
        self.record.state().condition(self.config.id).is_some()
    }

    /// Returns true if the array has had another medium of this device since, or a newer copy of it. Then its blocks may be
    /// old. It serves when it has been given up, and is rebuilt.
    pub fn is_out_of_date(&self) -> bool {
        #[cfg(feature = "mutations")]
        if self.config.mutation == Some(Mutation::TrustsOldCopies) {
            return false;
        }
        let (Record { key, asked, .. }, device) = (&self.record, self.config.id);
        let state = self.record.state();
        let is_it = state.takes_any_medium(device) || [*key, *asked].contains(&state.key(device));
        self.has_blocks() && !is_it
    }

    /// The medium gets another random number, by which a copy of it that was taken before is known to be older.
    pub fn change_key(&mut self, now: Time) {
        if self.has_blocks() && self.is_let_in() && self.record.asked == 0 && !self.is_saving() {
            self.record.ask_for_key(self.random.wrapping_add(now));
            self.save(None);
            self.use_disk(now);
        }
    }

    /// The change of the array's state by which it would serve, or get another number; none if it has both, or cannot ask yet.
    /// A device that is out of date is refused, and learns the array's state from that.
    pub fn wants_in(&self) -> Option<Change> {
        #[cfg(feature = "mutations")]
        if self.config.mutation == Some(Mutation::ServesBeforeLetIn) {
            return None;
        }
        let Record { term: number, key: follows, asked: key, .. } = self.record;
        #[cfg(feature = "mutations")]
        let follows = match self.config.mutation {
            Some(Mutation::TrustsOldCopies) => self.record.state().key(self.config.id),
            _ => follows,
        };
        let asks_for_key = key != 0 && !self.record.state().is_unnumbered(self.config.id);
        let lacks = self.has_blocks() && (!self.is_let_in() || asks_for_key);
        let asks = self.started && lacks && !self.is_saving();
        asks.then_some(Change::LetIn(self.config.id, Term { number, follows, key }))
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
