//! The copies of the lock server's log that others keep (docs/design/array.md 3.6).
//!
//! Whoever serves sends each record of its log to the other lock servers. A lock server whose copy has everything *joins*: the
//! array's state lists it, and it may serve next. From the request for that on, nothing is granted that its copy lacks. So
//! none of those that may serve next misses a lock. If one does not confirm in time, the array's state has to leave it out
//! before anything more is granted.
//!
//! A listed log may be put back to an older copy of itself, which has its key as well. So listed logs get other keys from time to
//! time. One record of the log has them all. When every listed log has that record, the array's state lists the new keys, one
//! at a time. A log has both keys in between, so that it counts whichever is listed.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::journal::{LogAsk, LogToken};
use super::service::{LockChange, LockService};
use crate::{ServerId, Time};

/// A message between lock servers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CopyMessage {
    /// All of the log: it takes the place of what the copy has.
    Whole {
        /// The term in which the sender serves.
        term: u64,
        /// Grows with each message to this lock server in this term.
        number: u64,
        /// The key of the copy, as long as nothing is missing.
        key: u64,
        /// The log, as one record.
        record: Bytes,
    },
    /// The next record.
    More {
        /// The term.
        term: u64,
        /// The number after that of the message before.
        number: u64,
        /// The record.
        record: Bytes,
    },
    /// The copy has everything up to this message durably.
    Copied {
        /// The term.
        term: u64,
        /// The message's number.
        number: u64,
    },
}

/// Another lock server's copy of the log, as far as it is known.
#[derive(Debug, Default)]
struct Copy {
    /// The key that the whole log was sent with on the present connection; none without a connection.
    key: Option<u64>,
    sent: u64,
    confirmed: u64,
    /// It was to join in this round, and it is not known what came of it.
    joining: Option<u64>,
}

/// A record on its way to stable storage.
#[derive(Debug)]
struct Write {
    token: LogToken,
    since: Time,
    /// This lock server's own log has it.
    here: bool,
    /// The message to each other one that has it.
    numbers: BTreeMap<ServerId, u64>,
}

/// The next keys of listed logs.
#[derive(Debug)]
struct Renewal {
    /// Those that are not listed yet.
    keys: BTreeMap<ServerId, u64>,
    record: Noted,
}

/// The record with the next keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Noted {
    /// It is the next one.
    Next,
    /// It is being written.
    Written(LogToken),
    /// Every listed log has it durably.
    Durable,
}

/// The copies, at the lock server that serves.
#[derive(Debug)]
pub(super) struct Copies {
    term: u64,
    /// How long a copy may take, and when a change of the array's state is asked for again.
    patience: Time,
    others: BTreeMap<ServerId, Copy>,
    write: Option<Write>,
    /// The change that was asked for last, and when.
    asked: Option<(LockChange, Time)>,
    renewal: Option<Renewal>,
    /// The log has had records, or copies have begun, since keys were renewed.
    has_changed: bool,
    random: u64,
}

impl Copies {
    pub fn new(term: u64, patience: Time, random: u64) -> Copies {
        Copies {
            term,
            patience,
            others: BTreeMap::new(),
            write: None,
            asked: None,
            renewal: None,
            has_changed: true,
            random,
        }
    }

    /// The next keys of listed logs, which the log's next record has to have. None if nothing has changed since the last time, or if
    /// that time is not over.
    pub fn renew(
        &mut self,
        service: &LockService,
        renews: impl Fn(ServerId) -> bool,
    ) -> Vec<(ServerId, u64)> {
        if self.renewal.is_some() || !std::mem::take(&mut self.has_changed) {
            return Vec::new();
        }
        let listed = service.complete.keys().copied().filter(|server| renews(*server));
        let keys: BTreeMap<_, _> = listed.map(|server| (server, self.fresh_key())).collect();
        self.renewal = Some(Renewal { keys: keys.clone(), record: Noted::Next });
        keys.into_iter().collect()
    }

    /// Returns true if listed logs have keys that may be listed soon.
    pub fn is_renewing(&self) -> bool {
        self.renewal.is_some()
    }

    /// A key that no log has had; never 0.
    fn fresh_key(&mut self) -> u64 {
        self.random = mixed(self.random);
        self.random
    }

    /// There is a connection to another lock server, or its copy is to begin anew: it gets the whole log. A copy that is listed
    /// keeps its key. All others get new ones. A copy that was left out may have asked to serve by its old key.
    pub fn begin(&mut self, server: ServerId, service: &LockService, record: Bytes) -> CopyMessage {
        let fresh = self.fresh_key();
        self.has_changed = true;
        let copy = self.others.entry(server).or_default();
        let kept = copy.joining.and(copy.key).or(service.complete.get(&server).copied());
        let key = kept.unwrap_or(fresh);
        copy.key = Some(key);
        copy.sent += 1;
        if let Some(write) = &mut self.write {
            write.numbers.insert(server, copy.sent);
        }
        CopyMessage::Whole { term: self.term, number: copy.sent, key, record }
    }

    /// A connection is gone. What was sent may not have arrived.
    pub fn lost(&mut self, server: ServerId) {
        if let Some(copy) = self.others.get_mut(&server).filter(|copy| copy.joining.is_none()) {
            copy.key = None;
        }
    }

    /// A record is to be written, here and in all copies.
    pub fn write(
        &mut self,
        now: Time,
        ask: &LogAsk,
        connected: impl Fn(ServerId) -> bool,
    ) -> Vec<(ServerId, CopyMessage)> {
        let (LogAsk::Append { token, record } | LogAsk::Replace { token, record }) = ask;
        let (term, mut numbers, mut messages) = (self.term, BTreeMap::new(), Vec::new());
        for (&server, copy) in &mut self.others {
            let Some(key) = copy.key.filter(|_| connected(server)) else { continue };
            copy.sent += 1;
            let (number, record) = (copy.sent, record.clone());
            numbers.insert(server, number);
            messages.push((
                server,
                match ask {
                    LogAsk::Append { .. } => CopyMessage::More { term, number, record },
                    LogAsk::Replace { .. } => CopyMessage::Whole { term, number, key, record },
                },
            ));
        }
        match &mut self.renewal {
            Some(Renewal { record: record @ Noted::Next, .. }) => *record = Noted::Written(*token),
            _ => self.has_changed = true,
        }
        self.write = Some(Write { token: *token, since: now, here: false, numbers });
        messages
    }

    /// This lock server's own log has the record.
    pub fn written_here(&mut self) {
        self.write.iter_mut().for_each(|write| write.here = true);
    }

    /// A copy has everything up to this message.
    pub fn confirmed(&mut self, server: ServerId, number: u64) {
        if let Some(copy) = self.others.get_mut(&server) {
            copy.confirmed = copy.confirmed.max(number.min(copy.sent));
        }
    }

    /// Returns true if nothing may be granted that this copy lacks.
    fn is_required(&self, server: ServerId, service: &LockService) -> bool {
        let joins = self.others.get(&server).is_some_and(|copy| copy.joining.is_some());
        joins || service.complete.contains_key(&server) && server != service.serving
    }

    fn required(&self, service: &LockService) -> Vec<ServerId> {
        let known = service.complete.keys().chain(self.others.keys());
        let mut all: Vec<ServerId> =
            known.copied().filter(|server| self.is_required(*server, service)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// A required copy that the present write waits for.
    fn awaited(&self, service: &LockService) -> Option<ServerId> {
        let write = self.write.as_ref()?;
        let has = |server: &ServerId| {
            let copy = self.others.get(server);
            let number = write.numbers.get(server);
            copy.zip(number).is_some_and(|(copy, number)| copy.confirmed >= *number)
        };
        self.required(service).into_iter().find(|server| !has(server))
    }

    /// The present write waits for no copy.
    #[cfg(feature = "mutations")]
    pub fn need_nobody(&mut self) {
        let sent: BTreeMap<ServerId, u64> = self.others.keys().map(|server| (*server, 0)).collect();
        self.write.iter_mut().for_each(|write| write.numbers.clone_from(&sent));
    }

    /// The write that everybody has who must.
    pub fn done(&mut self, service: &LockService) -> Option<LogToken> {
        let here = self.write.as_ref().is_some_and(|write| write.here);
        if !here || self.awaited(service).is_some() {
            return None;
        }
        let token = self.write.take().map(|write| write.token);
        if let Some(renewal) = &mut self.renewal
            && token.is_some_and(|token| renewal.record == Noted::Written(token))
        {
            renewal.record = Noted::Durable;
        }
        token
    }

    /// The array's state has changed. Returns the copies that were left out, and begin anew.
    pub fn agreed(&mut self, before: &LockService, service: &LockService) -> Vec<ServerId> {
        if let Some(renewal) = &mut self.renewal {
            // A log that is not listed any more gets another key when it is again.
            renewal
                .keys
                .retain(|server, next| service.complete.get(server).is_some_and(|key| key != next));
        }
        drop(self.renewal.take_if(|renewal| renewal.keys.is_empty()));
        let mut out = Vec::new();
        for (&server, copy) in &mut self.others {
            if let (Some(key), Some(listed)) = (&mut copy.key, service.complete.get(&server)) {
                *key = *listed;
            }
            let was = before.complete.contains_key(&server) || copy.joining.is_some();
            if copy.joining.is_some_and(|round| service.round > round) {
                copy.joining = None;
            }
            let is = service.complete.contains_key(&server) || copy.joining.is_some();
            if was && !is {
                out.push(server);
            }
        }
        out
    }

    /// The change of the array's state to ask for now.
    pub fn wanted(
        &mut self,
        now: Time,
        service: &LockService,
        connected: impl Fn(ServerId) -> bool,
    ) -> Option<LockChange> {
        let (term, round) = (self.term, service.round);
        let late = self
            .write
            .as_ref()
            .is_some_and(|write| write.here && now.saturating_sub(write.since) >= self.patience);
        let change = match self.awaited(service).filter(|_| late) {
            Some(server) => LockChange::Copies { term, round, server, key: None },
            None => {
                let up_to_date = |(server, copy): &(&ServerId, &mut Copy)| {
                    connected(**server)
                        && copy.joining.is_none()
                        && !service.complete.contains_key(server)
                        && copy.sent == copy.confirmed
                        && copy.key.is_some()
                };
                // One at a time: each takes a round.
                if self.others.values().any(|copy| copy.joining.is_some()) {
                    return self.again(now, service);
                }
                match self.renewed() {
                    Some((server, key)) => {
                        LockChange::Copies { term, round, server, key: Some(key) }
                    }
                    None => {
                        let (&server, copy) = self.others.iter_mut().find(up_to_date)?;
                        copy.joining = Some(round);
                        LockChange::Copies { term, round, server, key: copy.key }
                    }
                }
            }
        };
        self.ask(now, change)
    }

    /// A log's next key that is to be listed.
    fn renewed(&self) -> Option<(ServerId, u64)> {
        let renewal = self.renewal.as_ref().filter(|r| r.record == Noted::Durable)?;
        renewal.keys.first_key_value().map(|(server, key)| (*server, *key))
    }

    /// The change that was asked for in this round, if nothing has come of it.
    fn again(&mut self, now: Time, service: &LockService) -> Option<LockChange> {
        let (change, _) = self.asked?;
        let is_open = matches!(change, LockChange::Copies { round, .. } if round == service.round);
        if is_open { self.ask(now, change) } else { None }
    }

    fn ask(&mut self, now: Time, change: LockChange) -> Option<LockChange> {
        let waits = self
            .asked
            .is_some_and(|(asked, at)| asked == change && now.saturating_sub(at) < self.patience);
        if waits {
            return None;
        }
        self.asked = Some((change, now));
        Some(change)
    }

    /// When [`Copies::wanted`] has something to do.
    pub fn next_timer(&self) -> Option<Time> {
        let late = self.write.as_ref().filter(|write| write.here).map(|write| write.since);
        let joins = self.others.values().any(|copy| copy.joining.is_some());
        let waits = joins || late.is_some() || self.renewed().is_some();
        let asked = self.asked.map(|(_, at)| at).filter(|_| waits);
        late.into_iter().chain(asked).max().map(|at| at.saturating_add(self.patience))
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood, *Fast splittable pseudorandom number generators*, 2014); never 0.
pub(super) fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).max(1)
}
