//! A device's record, for people who look at its medium.

use super::record::Record;
use crate::{ArrayState, Epoch, Life, Time};

/// The content of a device's record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordView {
    /// The version of the record's format: 1 to 6.
    pub format: u32,
    /// The newest state of the array that the device knows.
    pub state: ArrayState,
    /// The epoch for which it has accepted a state that it does not know to be chosen, if it has.
    pub accepted: Option<Epoch>,
    /// The last life of each host that is fenced.
    pub fenced: Vec<Life>,
    /// Lives that may have locks or pre-writes there.
    pub holders: Vec<Life>,
    /// Regions in which a write may have been under way.
    pub dirty: u64,
    /// The device's own term.
    pub term: u64,
    /// The random number of the medium.
    pub key: u64,
    /// The one that it asked for; 0: none.
    pub asked: u64,
    /// Writes up to this timestamp are durable by flushes, but for some that were under way. It counts where only flushes make
    /// writes durable.
    pub flushed_to: Time,
}

impl RecordView {
    /// Reads a device's record; none if it makes no sense.
    pub fn of(bytes: &[u8]) -> Option<RecordView> {
        let record = Record::decode(bytes)?;
        Some(RecordView {
            format: Record::format(bytes),
            state: record.state().clone(),
            accepted: record.acceptor.accepted(),
            fenced: record.fenced.lives().collect(),
            holders: record.holders.iter().copied().collect(),
            dirty: record.dirty.len() as u64,
            term: record.term,
            key: record.key,
            asked: record.asked,
            flushed_to: record.durable.to,
        })
    }
}
