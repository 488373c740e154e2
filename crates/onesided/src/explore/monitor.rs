//! What clients say that they hold, and whether that is right.

use crate::fabric::{Nanos, Peer};
use crate::options::Mode;

#[derive(Clone, Copy, Hash)]
struct Holder {
    who: Peer,
    mode: Mode,
    until: Nanos,
}

/// Judges grants.
#[derive(Default)]
pub(super) struct Monitor {
    pub violation: Option<String>,
    holders: Vec<Holder>,
    /// Who waits, by the order of the verbs by which they queued.
    queue: Vec<Peer>,
    /// Who called, and has not queued.
    called: Vec<Peer>,
    last_token: Option<u64>,
    /// Whom nothing is promised: it was stopped.
    pub stopped: Option<Peer>,
}

impl Monitor {
    pub fn calls(&mut self, who: Peer, mode: Mode) {
        if mode == Mode::Exclusive {
            self.called.push(who);
        }
    }

    /// This client's verb has changed the lock's word.
    pub fn changes(&mut self, who: Peer) {
        if let Some(at) = self.called.iter().position(|other| *other == who) {
            self.called.remove(at);
            self.queue.push(who);
        }
    }

    pub fn enters(
        &mut self,
        who: Peer,
        mode: Mode,
        now: Nanos,
        until: Nanos,
        token: Option<u64>,
        fifo: bool,
    ) {
        self.called.retain(|other| *other != who);
        if fifo && mode == Mode::Exclusive && self.queue.first().is_some_and(|first| *first != who)
        {
            self.violate(format!(
                "{who:?} is granted before {:?}, which queued first",
                self.queue[0]
            ));
        }
        self.queue.retain(|other| *other != who);
        let clash = |other: &&Holder| {
            other.until > now && (mode, other.mode) != (Mode::Shared, Mode::Shared)
        };
        if let Some(other) = self.holders.iter().find(clash).filter(|_| until > now) {
            self.violate(format!(
                "{who:?} holds {mode:?} while {:?} holds {:?}",
                other.who, other.mode
            ));
        }
        if let Some(token) = token.filter(|_| mode == Mode::Exclusive) {
            if self.last_token.is_some_and(|last| last >= token) {
                self.violate(format!("{who:?} has token {token}, not above {:?}", self.last_token));
            }
            self.last_token = Some(token);
        }
        self.holders.push(Holder { who, mode, until });
    }

    pub fn leaves(&mut self, who: Peer) {
        self.holders.retain(|holder| holder.who != who);
    }

    pub fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    pub fn state(&self) -> impl core::hash::Hash + use<> {
        (self.holders.clone(), self.queue.clone(), self.called.clone(), self.last_token)
    }
}
