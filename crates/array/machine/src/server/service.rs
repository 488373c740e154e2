//! The lock servers in the array's state (docs/design/array.md 3.6): which one serves, and which ones have every lock.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ServerId;

/// The agreed part of the array's state that concerns lock servers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LockService {
    /// Grows whenever a lock server begins to serve. 0: none ever has.
    pub term: u64,
    /// The one that serves in this term.
    pub serving: ServerId,
    /// The random number under which its process asked for that. No other process serves, also if it has the same id.
    pub holder: u64,
    /// Grows with each change of `complete` in this term.
    pub round: u64,
    /// The lock servers that may serve next. The log of each has every lock that was granted, as long as it has this key. The
    /// one that serves grants nothing that one of them lacks.
    pub complete: BTreeMap<ServerId, u64>,
}

/// A change of [`LockService`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum LockChange {
    /// A lock server serves after this term. Its log has the key `log`, and the key `holder` as well.
    Serve {
        /// The term before.
        after: u64,
        /// The lock server.
        by: ServerId,
        /// The key by which its log is known to have every lock.
        log: u64,
        /// A random number of its process, and the key of its log from then on.
        holder: u64,
    },
    /// A lock server has every lock from now on, or need not have it any more. Or its log has got another key.
    Copies {
        /// The present term.
        term: u64,
        /// The present round: of several such changes at the same time, one counts.
        round: u64,
        /// The lock server.
        server: ServerId,
        /// The key of its log; none: it need not have any lock.
        key: Option<u64>,
    },
    /// As `Serve`, by an operator's word that all hosts have ended and that no log is left.
    Begin {
        /// The term before.
        after: u64,
        /// The lock server.
        by: ServerId,
        /// A random number of its process, and the key of its log.
        holder: u64,
    },
}

impl LockService {
    /// The service after a change; `None` if it is already so.
    pub fn changed(&self, change: LockChange) -> Result<Option<LockService>, String> {
        match change {
            LockChange::Serve { after, by, log, holder } => {
                self.served(after, by, holder, self.may_serve(by, log))
            }
            LockChange::Begin { after, by, holder } => self.served(after, by, holder, true),
            LockChange::Copies { term, round, server, key } => {
                self.copied((term, round), server, key)
            }
        }
    }

    /// Returns true if a lock server may serve after this term by a log with this key. Nobody has served a new array: only its
    /// first lock server may, because an array of an earlier release has its locks there.
    pub fn may_serve(&self, server: ServerId, log: u64) -> bool {
        match self.term {
            0 => server == ServerId(0),
            _ => self.complete.get(&server) == Some(&log),
        }
    }

    fn served(
        &self,
        after: u64,
        by: ServerId,
        holder: u64,
        may: bool,
    ) -> Result<Option<LockService>, String> {
        let term = after.saturating_add(1);
        if (self.term, self.serving, self.holder) == (term, by, holder) {
            return Ok(None);
        }
        if self.term != after {
            return Err(format!("{} serves by now", self.serving));
        }
        if !may {
            return Err(format!("{by} does not have every lock"));
        }
        let complete = BTreeMap::from([(by, holder)]);
        Ok(Some(LockService { term, serving: by, holder, round: 0, complete }))
    }

    /// A change that is no news still takes a round. Otherwise an earlier one of the same round could be chosen later.
    fn copied(
        &self,
        (term, round): (u64, u64),
        server: ServerId,
        key: Option<u64>,
    ) -> Result<Option<LockService>, String> {
        let is_so = self.complete.get(&server).copied() == key;
        if self.term == term && self.round > round && is_so {
            return Ok(None);
        }
        if (self.term, self.round) != (term, round) {
            return Err("the lock servers have changed at the same time".into());
        }
        if server == self.serving && key.is_none() {
            return Err(format!("{server} serves, and has every lock"));
        }
        let mut next = LockService { round: round + 1, ..self.clone() };
        match key {
            Some(key) => next.complete.insert(server, key),
            None => next.complete.remove(&server),
        };
        Ok(Some(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: ServerId = ServerId(0);
    const OTHER: ServerId = ServerId(1);

    fn serve(after: u64, by: ServerId, log: u64, holder: u64) -> LockChange {
        LockChange::Serve { after, by, log, holder }
    }

    fn copies(term: u64, round: u64, key: Option<u64>) -> LockChange {
        LockChange::Copies { term, round, server: OTHER, key }
    }

    fn then(service: &LockService, change: LockChange) -> LockService {
        service.changed(change).unwrap().unwrap()
    }

    #[test]
    fn only_a_lock_server_with_every_lock_serves_next() {
        let new = LockService::default();
        assert!(new.changed(serve(0, OTHER, 0, 5)).is_err());
        let first = then(&new, serve(0, FIRST, 0, 5));
        assert_eq!((first.term, first.serving), (1, FIRST));
        assert_eq!(first.changed(serve(0, FIRST, 0, 5)), Ok(None));
        // Another process with the same id, and one with another log.
        assert!(first.changed(serve(0, FIRST, 0, 6)).is_err());
        assert!(first.changed(serve(1, OTHER, 7, 8)).is_err());
        let both = then(&first, copies(1, 0, Some(7)));
        assert!(both.changed(serve(1, OTHER, 6, 8)).is_err());
        let second = then(&both, serve(1, OTHER, 7, 8));
        assert_eq!(second.complete, BTreeMap::from([(OTHER, 8)]));
        // The former one has to get every lock first.
        assert!(second.changed(serve(2, FIRST, 5, 9)).is_err());
        let begun = then(&second, LockChange::Begin { after: 2, by: FIRST, holder: 9 });
        assert_eq!((begun.term, begun.serving), (3, FIRST));
    }

    #[test]
    fn of_two_changes_of_copies_in_a_round_one_counts() {
        let first = then(&LockService::default(), serve(0, FIRST, 0, 5));
        // It was to join, which may have failed; so it is left out, which takes the round.
        let out = then(&first, copies(1, 0, None));
        assert!(out.changed(copies(1, 0, Some(7))).is_err());
        assert_eq!(out.changed(copies(1, 0, None)), Ok(None));
        let joined = then(&out, copies(1, 1, Some(7)));
        assert_eq!(joined.changed(copies(1, 1, Some(7))), Ok(None));
        assert!(joined.changed(copies(1, 1, None)).is_err());
        let itself = LockChange::Copies { term: 1, round: 2, server: FIRST, key: None };
        assert!(joined.changed(itself).is_err());
        let renewed = LockChange::Copies { term: 1, round: 2, server: FIRST, key: Some(6) };
        let renewed = then(&joined, renewed);
        assert_eq!((renewed.may_serve(FIRST, 5), renewed.may_serve(FIRST, 6)), (false, true));
    }
}
