//! The clients' claims to hold locks, and the check of these claims.

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
    /// The waiting clients, by the order of the verbs by which they queued.
    queue: Vec<Peer>,
    /// The clients that called for an exclusive lock, and have not queued.
    called: Vec<Peer>,
    /// How many writers may be granted while a reader waits, where that is promised.
    limit: Option<u32>,
    /// The clients that called for a shared lock, with the number of writers that were granted since each
    /// queued; `None` if it has not queued.
    readers: Vec<(Peer, Option<u32>)>,
    last_token: Option<u64>,
    /// Whom nothing is promised: it was stopped.
    pub stopped: Option<Peer>,
}

impl Monitor {
    /// `limit`: see [`Options::most_writers_before_a_reader`](crate::Options::most_writers_before_a_reader).
    pub fn new(limit: Option<u32>) -> Monitor {
        Monitor { limit, ..Monitor::default() }
    }

    pub fn calls(&mut self, who: Peer, mode: Mode) {
        match mode {
            Mode::Exclusive => self.called.push(who),
            Mode::Shared if self.limit.is_some() => self.readers.push((who, None)),
            Mode::Shared => {}
        }
    }

    /// This client has added to the lock's word, by which readers queue.
    pub fn adds(&mut self, who: Peer) {
        if let Some(reader) = self.readers.iter_mut().find(|(other, _)| *other == who) {
            reader.1 = Some(0);
        }
    }

    /// A writer is granted: those that wait have been overtaken once more.
    fn overtakes(&mut self, writer: Peer) {
        let mut starving = None;
        for (reader, count) in &mut self.readers {
            let Some(count) = count else { continue };
            *count += 1;
            if self.limit.is_some_and(|limit| *count > limit) {
                starving = Some((*reader, *count));
            }
        }
        if let Some((reader, count)) = starving {
            self.violate(format!(
                "{writer:?} is writer {count} that is granted while {reader:?} waits to read"
            ));
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
        self.readers.retain(|(other, _)| *other != who);
        if mode == Mode::Exclusive {
            self.overtakes(who);
        }
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
        let waiting = (self.queue.clone(), self.called.clone(), self.readers.clone());
        (self.holders.clone(), waiting, self.last_token)
    }
}
