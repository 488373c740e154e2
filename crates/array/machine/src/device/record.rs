//! The device's durable record, and the formats that it has had.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::DeviceBoot;
use super::epoch::BootError;
use super::fence::Fences;
use crate::agreement::{Acceptor, Ballot};
use crate::{ArrayState, Condition, DeviceId, Epoch, Life, Nodes};

/// Begins a record of this format. No record of the first format begins so: it began with a number in the varint encoding,
/// which has ten bytes at most, and one in the last.
const SECOND: [u8; 11] = [0xff; 11];

/// The state that a device keeps durably beside its blocks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    /// The array's state, and this device's votes on the next.
    pub acceptor: Acceptor,
    /// The fenced lives.
    pub fenced: Fences,
    /// Regions in which a write may be under way (docs/design/array.md 3.1.3).
    pub dirty: BTreeSet<u64>,
    /// Lives that may have locks or pre-writes here.
    pub holders: BTreeSet<Life>,
    /// The device's own term (`term.rs`).
    pub term: u64,
    /// The random number that the array last had of this medium, as far as the device knows.
    pub key: u64,
    /// The one that it asks the array to take next; 0: none.
    pub asked: u64,
}

impl Record {
    pub(super) fn state(&self) -> &ArrayState {
        self.acceptor.state()
    }

    /// The record that a device starts with, and whether it has run before.
    pub(super) fn at_start(device: DeviceId, boot: &DeviceBoot) -> Result<(Self, bool), BootError> {
        match &boot.record {
            None => {
                let record = Record {
                    acceptor: Acceptor::new(boot.state.clone()),
                    fenced: Fences::default(),
                    dirty: BTreeSet::new(),
                    holders: BTreeSet::new(),
                    term: boot.state.term(device),
                    key: boot.state.key(device),
                    asked: 0,
                };
                Ok((record, false))
            }
            Some(record) => {
                let mut record = Record::decode(record).ok_or(BootError)?;
                record.begin_term(device, boot.random);
                Ok((record, true))
            }
        }
    }

    pub(super) fn encode(&self) -> Bytes {
        // Serialization to memory fails only for types that have no length; a record has.
        Bytes::from(postcard::to_extend(self, SECOND.to_vec()).unwrap_or_default())
    }

    fn decode(bytes: &[u8]) -> Option<Record> {
        match bytes.strip_prefix(&SECOND) {
            Some(second) => postcard::from_bytes(second).ok(),
            None => postcard::from_bytes::<FirstRecord>(bytes).ok().map(Record::from),
        }
    }
}

/// A record as releases before the numbers of media wrote it.
#[derive(Deserialize)]
#[cfg_attr(test, derive(Serialize))]
struct FirstRecord {
    acceptor: (FirstState, Ballot, Option<(Ballot, FirstState)>),
    fenced: Fences,
    dirty: BTreeSet<u64>,
    holders: BTreeSet<Life>,
    term: u64,
}

#[derive(Deserialize)]
#[cfg_attr(test, derive(Serialize))]
struct FirstState {
    epoch: Epoch,
    since: Epoch,
    devices: Vec<Condition>,
    terms: Vec<u64>,
}

impl From<FirstState> for ArrayState {
    fn from(first: FirstState) -> ArrayState {
        let FirstState { epoch, since, devices, terms } = first;
        let keys = vec![0; terms.len()];
        let nodes = Nodes::default();
        ArrayState { epoch, since, devices, terms, keys, hosts: 0, newest_host: 0, nodes }
    }
}

impl From<FirstRecord> for Record {
    fn from(first: FirstRecord) -> Record {
        let FirstRecord { acceptor: (state, promised, accepted), fenced, dirty, holders, term } =
            first;
        let accepted = accepted.map(|(ballot, state)| (ballot, state.into()));
        let acceptor = Acceptor::resume(state.into(), promised, accepted);
        Record { acceptor, fenced, dirty, holders, term, key: 0, asked: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostId;

    #[test]
    fn a_record_of_an_earlier_release_is_read() {
        let state = |epoch| FirstState {
            epoch: Epoch(epoch),
            since: Epoch(1),
            devices: vec![Condition::Good, Condition::Rebuilding { done: 7 }],
            terms: vec![3, 4],
        };
        let life = Life { host: HostId(9), incarnation: u64::MAX };
        let ballot = Ballot { round: 4, by: Some(life), change: 2 };
        let mut fenced = Fences::default();
        fenced.add(life);
        // The largest number of an epoch has the longest encoding.
        for epoch in [5, u64::MAX] {
            let first = FirstRecord {
                acceptor: (state(epoch), ballot, Some((ballot, state(epoch)))),
                fenced: fenced.clone(),
                dirty: BTreeSet::from([1, 2]),
                holders: BTreeSet::from([life]),
                term: 5,
            };
            let record = Record::decode(&postcard::to_allocvec(&first).unwrap()).unwrap();
            assert_eq!(record, Record::from(first));
            assert_eq!((record.term, record.state().keys.clone()), (5, vec![0, 0]));
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
        assert_eq!(Record::decode(&SECOND), None);
    }
}
