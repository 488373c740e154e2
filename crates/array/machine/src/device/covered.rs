//! The writes that a device's record counts as durable (`durable.rs`).

use serde::{Deserialize, Serialize};

use crate::{Extent, Time};

/// So many extents may be left out.
const MOST_LEFT_OUT: usize = 256;

/// Writes that are durable.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Covered {
    /// Those with timestamps up to this,
    pub to: Time,
    /// but for writes of these blocks.
    pub left_out: Vec<Extent>,
}

impl Covered {
    /// None if too many blocks would be left out.
    pub(super) fn new(to: Time, left_out: Vec<Extent>) -> Option<Covered> {
        (left_out.len() <= MOST_LEFT_OUT).then_some(Covered { to, left_out })
    }

    /// A write will come that is not durable.
    pub(super) fn leave_out(&mut self, time: Time, extent: Extent) {
        if time > self.to || self.left_out.contains(&extent) {
            return;
        }
        if self.left_out.len() < MOST_LEFT_OUT {
            self.left_out.push(extent);
        } else {
            self.to = time.saturating_sub(1);
        }
    }

    /// Up to which timestamp the writes of some blocks are durable.
    pub(super) fn up_to(&self, extent: Extent) -> Time {
        if self.left_out.iter().any(|other| other.overlaps(extent)) { 0 } else { self.to }
    }
}
