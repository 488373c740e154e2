//! A lock server that stands by (docs/design/array.md 3.6). It keeps a copy of the log, and asks to serve when it may.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::copies::CopyMessage;
use super::journal::{Entry, decode, encode};
use super::service::{LockChange, LockService};
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::{ServerId, Time};

/// A request to serve. Until it is known what comes of it, the copy takes nothing of the term before: the lock server of that
/// term may not grant what the copy lacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    after: u64,
    /// The key by which the log counts as complete; none if an operator has said that no log is left.
    log: Option<u64>,
    pub holder: u64,
    /// The log has the key `holder` durably. A process that starts again knows its log by it.
    pub logged: bool,
    /// When the change was asked for last.
    pub asked: Option<Time>,
}

impl Claim {
    pub fn change(&self, by: ServerId) -> LockChange {
        let Claim { after, log, holder, .. } = *self;
        match log {
            Some(log) => LockChange::Serve { after, by, log, holder },
            None => LockChange::Begin { after, by, holder },
        }
    }
}

/// The outcome of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Open,
    Serves,
    Void,
}

/// A record for the log.
pub(super) enum Record {
    Append(Bytes),
    Replace(Bytes),
}

#[derive(Debug)]
pub(super) struct Standby {
    me: ServerId,
    /// The log, as it is or will be when the writes under way are done.
    records: Vec<Bytes>,
    /// Of the log, in its order.
    keys: Vec<u64>,
    /// Of the log. A lock server of an older term does not know yet that it serves no longer.
    term: u64,
    /// The sender of the last message that the copy has, and the message's number.
    source: Option<(ServerId, u64)>,
    pub claim: Option<Claim>,
    #[cfg(feature = "mutations")]
    pub mutation: Option<Mutation>,
}

/// The record with these keys and no others.
fn with_keys(mut entries: Vec<Entry>, server: ServerId, keys: &[u64]) -> Bytes {
    entries.retain(|entry| !matches!(entry, Entry::Key { .. }));
    entries.extend(keys.iter().map(|&key| Entry::Key { server, key }));
    encode(&entries)
}

impl Standby {
    pub fn new(me: ServerId, records: Vec<Bytes>) -> Standby {
        let entries = records.iter().flat_map(|record| decode(record).unwrap_or_default());
        let entries: Vec<Entry> = entries.collect();
        let term = entries.iter().rev().find_map(|entry| match entry {
            Entry::Started { incarnation } => Some(*incarnation),
            _ => None,
        });
        let mut standby = Standby {
            me,
            records,
            keys: Vec::new(),
            term: term.unwrap_or_default(),
            source: None,
            claim: None,
            #[cfg(feature = "mutations")]
            mutation: None,
        };
        standby.note_keys(&entries);
        standby
    }

    fn note_keys(&mut self, entries: &[Entry]) {
        for entry in entries {
            if let Entry::Key { server, key } = entry
                && *server == self.me
                && !self.keys.contains(key)
            {
                self.keys.push(*key);
            }
        }
    }

    pub fn records(&self) -> &[Bytes] {
        &self.records
    }

    /// The key by which the log counts as complete.
    fn key(&self, service: &LockService) -> Option<u64> {
        #[cfg(feature = "mutations")]
        if self.mutation == Some(Mutation::TrustsOldLogs) && !self.keys.is_empty() {
            return service.complete.get(&self.me).copied();
        }
        // A log of an earlier release has none.
        let none = (service.term == 0).then_some(0);
        self.keys.iter().copied().chain(none).find(|key| service.may_serve(self.me, *key))
    }

    /// Returns true if the log has every lock that was granted.
    pub fn is_complete(&self, service: &LockService) -> bool {
        self.key(service).is_some()
    }

    /// Returns true if the process was the one that served, or nobody was.
    pub fn served_last(&self, service: &LockService) -> bool {
        service.term == 0 || service.serving == self.me
    }

    /// Begins with a claim, if the log has every lock or an operator says that none is left. The record is to be written first.
    pub fn claim(&mut self, service: &LockService, holder: u64, anew: bool) -> Option<Record> {
        let log = self.key(service);
        if log.is_none() && !anew {
            return None;
        }
        let after = service.term;
        self.claim = Some(Claim { after, log, holder, logged: false, asked: None });
        self.keys.push(holder);
        let record = encode(&[Entry::Key { server: self.me, key: holder }]);
        self.records.push(record.clone());
        Some(Record::Append(record))
    }

    /// The array's state has changed.
    pub fn verdict(&self, service: &LockService) -> Verdict {
        let Some(claim) = self.claim else { return Verdict::Open };
        let is_mine = (service.serving, service.holder) == (self.me, claim.holder);
        match service.term.checked_sub(claim.after) {
            Some(1) if is_mine => Verdict::Serves,
            // The key that it named is never listed again.
            Some(0) if claim.log.is_none_or(|log| service.may_serve(self.me, log)) => Verdict::Open,
            _ => Verdict::Void,
        }
    }

    /// A message of a lock server that serves. Returns the record to write, and which message is to be confirmed then.
    pub fn copy(
        &mut self,
        from: ServerId,
        message: CopyMessage,
        service: &LockService,
    ) -> Option<(Record, u64, u64)> {
        let (CopyMessage::Whole { term, .. } | CopyMessage::More { term, .. }) = message else {
            return None;
        };
        let newest = self.term.max(service.term);
        let claimed = self.claim.map(|claim| claim.after);
        if term < newest || claimed.is_some_and(|after| term <= after) {
            return None;
        }
        match message {
            CopyMessage::Whole { number, key, record, .. } => {
                let entries = decode(&record).ok()?;
                // As long as the key is listed, an earlier process of this lock server may be found to serve. Keys from before that
                // one are never listed again.
                match self.keys.iter().position(|known| *known == key) {
                    Some(first) => drop(self.keys.drain(..first)),
                    None => self.keys = vec![key],
                }
                self.note_keys(&entries);
                let record = with_keys(entries, self.me, &self.keys);
                self.records = vec![record.clone()];
                (self.term, self.source) = (term, Some((from, number)));
                Some((Record::Replace(record), term, number))
            }
            CopyMessage::More { number, record, .. } => {
                let follows = self.source == Some((from, number.checked_sub(1)?));
                if !follows || term != self.term {
                    return None;
                }
                self.note_keys(&decode(&record).ok()?);
                self.records.push(record.clone());
                self.source = Some((from, number));
                Some((Record::Append(record), term, number))
            }
            CopyMessage::Copied { .. } => None,
        }
    }
}

/// The devices' reports of the lock server that serves.
#[derive(Debug, Default)]
pub(super) struct Silence(BTreeMap<crate::DeviceId, (Time, u64, Time)>);

impl Silence {
    pub fn heard(&mut self, now: Time, from: crate::DeviceId, term: u64, silent: Time) {
        self.0.insert(from, (now, term, silent));
    }

    /// Returns true if more than half of the voters have said lately that nobody has served for so long.
    pub fn lasts(&self, now: Time, lately: Time, term: u64, voters: u16, least: Time) -> bool {
        let agree = self.0.values().filter(|(at, of, silent)| {
            now.saturating_sub(*at) <= lately && *of == term && *silent >= least
        });
        agree.count() > usize::from(voters) / 2
    }
}
