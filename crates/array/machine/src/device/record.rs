//! The device's durable record, and the formats that it has had.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::DeviceBoot;
use super::covered::Covered;
use super::fence::Fences;
use crate::agreement::{Acceptor, Ballot};
use crate::{
    ArrayState, Condition, DeviceId, Epoch, Group, Life, LockService, Node, NodeName, Nodes,
};

/// A device's record makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the device's record cannot be read; replace the device, so that it is rebuilt")]
pub struct BootError;

/// Begins a record of this format. No record of the first format begins so: it began with a number in the varint encoding,
/// which has ten bytes at most, and one in the last.
const SECOND: [u8; 11] = [0xff; 11];
/// Begins a record of the format with [`Record::durable`].
const THIRD: [u8; 11] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe];
/// Begins a record of the format with [`crate::Usage`], of a device whose parity blocks may name lost data units
/// ([`crate::Header::lost_data`]). An earlier release would take no notice of these names, and must not serve the device.
///
/// [`Condition`] has got variants since, behind the former ones. So this release reads earlier records of this format. An earlier
/// release refuses a record with such a variant.
const FOURTH: [u8; 11] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfd];
/// Begins a record of the format with [`ArrayState::locks`] and [`ArrayState::stripes`]. A record without added groups still has it,
/// so that an earlier release reads it.
const FIFTH: [u8; 11] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfc];
/// Begins a record with added groups: [`ArrayState::added`] of its states stand in front of the rest, which has the former format.
const SIXTH: [u8; 11] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfb];

/// The groups of the states of a record: of the one that was chosen, and of the one that the device has accepted.
type RecordGroups = (Vec<Group>, Vec<Group>);

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
    /// Writes that are durable (`durable.rs`).
    pub durable: Covered,
}

impl Record {
    pub(super) fn state(&self) -> &ArrayState {
        self.acceptor.state()
    }

    /// The record that a device starts with. Of one that has run before also the number that it had asked for, or 0.
    pub(super) fn at_start(
        device: DeviceId,
        boot: &DeviceBoot,
    ) -> Result<(Self, Option<u64>), BootError> {
        match &boot.record {
            None => {
                let (term, key) = (boot.state.term(device), boot.state.key(device));
                let mut record = Record {
                    acceptor: Acceptor::new(boot.state.clone()),
                    fenced: Fences::default(),
                    dirty: BTreeSet::new(),
                    holders: BTreeSet::new(),
                    term,
                    key: 0,
                    asked: 0,
                    durable: Covered::default(),
                };
                // The device was there before with another medium.
                if (term, key) != (0, 0) {
                    record.begin_term(device, boot.random);
                }
                Ok((record, None))
            }
            Some(record) => {
                let mut record = Record::decode(record).ok_or(BootError)?;
                let asked = record.asked;
                record.begin_term(device, boot.random);
                Ok((record, Some(asked)))
            }
        }
    }

    pub(super) fn encode(&self) -> Bytes {
        let groups: RecordGroups = self.acceptor.groups();
        // Serialization to memory fails only for types that have no length; a record has.
        let encoded = match groups.0.is_empty() && groups.1.is_empty() {
            true => postcard::to_extend(self, FIFTH.to_vec()),
            false => postcard::to_extend(&(groups, self), SIXTH.to_vec()),
        };
        Bytes::from(encoded.unwrap_or_default())
    }

    /// The version of a record's format.
    pub(super) fn format(bytes: &[u8]) -> u32 {
        match bytes {
            _ if bytes.starts_with(&SIXTH) => 6,
            _ if bytes.starts_with(&FIFTH) => 5,
            _ if bytes.starts_with(&FOURTH) => 4,
            _ if bytes.starts_with(&THIRD) => 3,
            _ if bytes.starts_with(&SECOND) => 2,
            _ => 1,
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Record> {
        if let Some(latest) = bytes.strip_prefix(&SIXTH) {
            let (groups, record) = postcard::from_bytes::<(RecordGroups, Record)>(latest).ok()?;
            return Some(Record { acceptor: record.acceptor.with_groups(groups), ..record });
        }
        if let Some(fifth) = bytes.strip_prefix(&FIFTH) {
            return postcard::from_bytes(fifth).ok();
        }
        if let Some(fourth) = bytes.strip_prefix(&FOURTH) {
            return postcard::from_bytes::<FourthRecord>(fourth).ok().map(Record::from);
        }
        if let Some(third) = bytes.strip_prefix(&THIRD) {
            return postcard::from_bytes::<ThirdRecord>(third).ok().map(Record::from);
        }
        match bytes.strip_prefix(&SECOND) {
            Some(second) => postcard::from_bytes::<SecondRecord>(second).ok().map(Record::from),
            None => postcard::from_bytes::<FirstRecord>(bytes).ok().map(Record::from),
        }
    }
}

/// An acceptor whose states have an earlier format.
type OldAcceptor<S> = (S, Ballot, Option<(Ballot, S)>);

fn resumed<S: Into<ArrayState>>((state, promised, accepted): OldAcceptor<S>) -> Acceptor {
    let accepted = accepted.map(|(ballot, state)| (ballot, state.into()));
    Acceptor::resume(state.into(), promised, accepted)
}

/// A record whose states have an earlier format.
#[derive(Deserialize)]
#[cfg_attr(test, derive(Serialize))]
struct EarlierRecord<S> {
    acceptor: OldAcceptor<S>,
    fenced: Fences,
    dirty: BTreeSet<u64>,
    holders: BTreeSet<Life>,
    term: u64,
    key: u64,
    asked: u64,
    durable: Covered,
}

impl<S: Into<ArrayState>> From<EarlierRecord<S>> for Record {
    fn from(earlier: EarlierRecord<S>) -> Record {
        let EarlierRecord { acceptor, fenced, dirty, holders, term, key, asked, durable } = earlier;
        Record { acceptor: resumed(acceptor), fenced, dirty, holders, term, key, asked, durable }
    }
}

/// Without [`ArrayState::locks`] and [`ArrayState::stripes`].
type FourthRecord = EarlierRecord<FourthState>;

/// Its hosts have no [`crate::Usage`] either.
type ThirdRecord = EarlierRecord<ThirdState>;

#[derive(Deserialize)]
#[cfg_attr(test, derive(Serialize))]
struct FourthState {
    epoch: Epoch,
    since: Epoch,
    devices: Vec<Condition>,
    terms: Vec<u64>,
    keys: Vec<u64>,
    hosts: u64,
    newest_host: u64,
    nodes: Nodes,
}

impl From<FourthState> for ArrayState {
    fn from(fourth: FourthState) -> ArrayState {
        let FourthState { epoch, since, devices, terms, keys, hosts, newest_host, nodes } = fourth;
        let locks = LockService::default();
        ArrayState {
            epoch,
            since,
            devices,
            terms,
            keys,
            hosts,
            newest_host,
            nodes,
            locks,
            stripes: 0,
            added: Vec::new(),
        }
    }
}

#[derive(Deserialize)]
#[cfg_attr(test, derive(Serialize))]
struct ThirdState {
    epoch: Epoch,
    since: Epoch,
    devices: Vec<Condition>,
    terms: Vec<u64>,
    keys: Vec<u64>,
    hosts: u64,
    newest_host: u64,
    nodes: Vec<(NodeName, Vec<(u32, u64)>)>,
}

impl From<ThirdState> for ArrayState {
    fn from(third: ThirdState) -> ArrayState {
        let ThirdState { epoch, since, devices, terms, keys, hosts, newest_host, nodes } = third;
        let nodes = nodes.into_iter().map(|(name, hosts)| Node::of_earlier(name, hosts)).collect();
        FourthState { epoch, since, devices, terms, keys, hosts, newest_host, nodes }.into()
    }
}

/// A record without [`Record::durable`] and [`ArrayState::nodes`].
#[derive(Deserialize)]
#[cfg_attr(test, derive(Serialize))]
struct SecondRecord {
    acceptor: OldAcceptor<SecondState>,
    fenced: Fences,
    dirty: BTreeSet<u64>,
    holders: BTreeSet<Life>,
    term: u64,
    key: u64,
    asked: u64,
}

impl From<SecondRecord> for Record {
    fn from(second: SecondRecord) -> Record {
        let SecondRecord { acceptor, fenced, dirty, holders, term, key, asked } = second;
        let (acceptor, durable) = (resumed(acceptor), Covered::default());
        Record { acceptor, fenced, dirty, holders, term, key, asked, durable }
    }
}

#[derive(Deserialize)]
#[cfg_attr(test, derive(Serialize))]
struct SecondState {
    epoch: Epoch,
    since: Epoch,
    devices: Vec<Condition>,
    terms: Vec<u64>,
    keys: Vec<u64>,
    hosts: u64,
    newest_host: u64,
}

impl From<SecondState> for ArrayState {
    fn from(second: SecondState) -> ArrayState {
        let SecondState { epoch, since, devices, terms, keys, hosts, newest_host } = second;
        let nodes = Nodes::default();
        FourthState { epoch, since, devices, terms, keys, hosts, newest_host, nodes }.into()
    }
}

/// A record as releases before the numbers of media wrote it.
#[derive(Deserialize)]
#[cfg_attr(test, derive(Serialize))]
struct FirstRecord {
    acceptor: OldAcceptor<FirstState>,
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
        let (keys, hosts, newest_host) = (vec![0; terms.len()], 0, 0);
        SecondState { epoch, since, devices, terms, keys, hosts, newest_host }.into()
    }
}

impl From<FirstRecord> for Record {
    fn from(first: FirstRecord) -> Record {
        let FirstRecord { acceptor, fenced, dirty, holders, term } = first;
        let (acceptor, durable) = (resumed(acceptor), Covered::default());
        Record { acceptor, fenced, dirty, holders, term, key: 0, asked: 0, durable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostId, Member};

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
            assert_eq!(Record::decode(&record.encode()), Some(record.clone()));
            let Record { fenced, dirty, holders, term, .. } = record.clone();
            let (key, asked) = (8, 9);
            let state = || SecondState {
                epoch: Epoch(epoch),
                since: Epoch(1),
                devices: vec![Condition::Good, Condition::Rebuilding { done: 7 }],
                terms: vec![3, 4],
                keys: vec![0, 0],
                hosts: 0,
                newest_host: 0,
            };
            let acceptor = (state(), ballot, Some((ballot, state())));
            let second = SecondRecord { acceptor, fenced, dirty, holders, term, key, asked };
            let bytes = postcard::to_extend(&second, SECOND.to_vec()).unwrap();
            let wanted = Record { key, asked, durable: Covered::default(), ..record };
            assert_eq!(Record::decode(&bytes), Some(wanted.clone()));
            let Record { fenced, dirty, holders, .. } = wanted.clone();
            let name = NodeName::of_machine(b"node");
            let state = || ThirdState {
                epoch: Epoch(epoch),
                since: Epoch(1),
                devices: vec![Condition::Good, Condition::Rebuilding { done: 7 }],
                terms: vec![3, 4],
                keys: vec![0, 0],
                hosts: 2,
                newest_host: 6,
                nodes: vec![(name, vec![(2, 6)])],
            };
            let acceptor = (state(), ballot, Some((ballot, state())));
            let durable = Covered::default();
            let third = ThirdRecord { acceptor, fenced, dirty, holders, term, key, asked, durable };
            let third = postcard::to_extend(&third, THIRD.to_vec()).unwrap();
            let record = Record::decode(&third).unwrap();
            assert!(record.state().nodes.has(2, 6));
            assert_eq!(record.state().nodes.of_host(2).unwrap().name, name);
            assert_eq!(Record::decode(&record.encode()), Some(record.clone()));
            let state = |nodes: Nodes| FourthState {
                epoch: Epoch(epoch),
                since: Epoch(1),
                devices: vec![Condition::Good, Condition::Rebuilding { done: 7 }],
                terms: vec![3, 4],
                keys: vec![0, 0],
                hosts: 2,
                newest_host: 6,
                nodes,
            };
            let state = || state(record.state().nodes.clone());
            let acceptor = (state(), ballot, Some((ballot, state())));
            let Record { fenced, dirty, holders, durable, .. } = record.clone();
            let fourth =
                FourthRecord { acceptor, fenced, dirty, holders, term, key, asked, durable };
            let fourth = postcard::to_extend(&fourth, FOURTH.to_vec()).unwrap();
            assert_eq!(Record::decode(&fourth), Some(record));
            let formats = [&bytes[..], &third, &fourth, &wanted.encode()].map(Record::format);
            assert_eq!(formats, [2, 3, 4, 5]);
        }
        let record = |devices: Vec<Condition>| {
            let state = ArrayState { devices, ..ArrayState::new(2) };
            let boot = DeviceBoot { now: 0, record: None, state, random: 1 };
            Record::at_start(DeviceId(0), &boot).unwrap().0
        };
        let returning = Condition::Returning { done: 3, whole_to: u64::MAX };
        let new = record(vec![returning, Condition::Unfinished]);
        assert_eq!(Record::decode(&new.encode()), Some(new));
        let state = ArrayState { stripes: 1 << 40, ..ArrayState::new(2) };
        let boot = DeviceBoot { now: 0, record: None, state, random: 1 };
        let grown = Record::at_start(DeviceId(0), &boot).unwrap().0;
        assert_eq!(Record::decode(&grown.encode()), Some(grown));
        // As it was written before: by the variants' numbers.
        let old = record(vec![Condition::Failed, Condition::Rebuilding { done: 7 }]);
        let bytes = postcard::to_allocvec(&old.state().devices).unwrap();
        assert_eq!(bytes, [2, 1, 2, 7]);
        assert_eq!(Record::decode(&SECOND), None);
        assert_eq!(Record::decode(&THIRD), None);
        assert_eq!(Record::decode(&FOURTH), None);
        assert_eq!(Record::decode(&FIFTH), None);
        assert_eq!(Record::decode(&SIXTH), None);
    }

    #[test]
    fn a_record_has_the_groups_of_both_states() {
        let group = |from, first| Group {
            from,
            first: DeviceId(first),
            members: vec![Member { address: "disk.example:7100".into(), node: 3 }],
        };
        let with = |added: Vec<Group>| ArrayState { added, stripes: 9, ..ArrayState::new(3) };
        let (one, two) = (with(vec![group(5, 4)]), with(vec![group(5, 4), group(8, 5)]));
        let boot = DeviceBoot { now: 0, record: None, state: one.clone(), random: 1 };
        let plain = Record::at_start(DeviceId(0), &boot).unwrap().0;
        let accepted = |state| Some((Ballot::default(), state));
        for (state, vote) in [
            (one.clone(), None),
            (one.clone(), accepted(two)),
            (with(Vec::new()), accepted(one.clone())),
            (one.clone(), accepted(one)),
        ] {
            let acceptor = Acceptor::resume(state, Ballot::default(), vote);
            let record = Record { acceptor, ..plain.clone() };
            let bytes = record.encode();
            assert_eq!((Record::format(&bytes), Record::decode(&bytes)), (6, Some(record)));
        }
        // Without groups, an earlier release reads it.
        let acceptor = Acceptor::new(with(Vec::new()));
        assert_eq!(Record::format(&Record { acceptor, ..plain }.encode()), 5);
    }
}
