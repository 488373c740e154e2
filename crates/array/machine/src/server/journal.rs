//! The lock table on stable storage: a log with group commit (docs/design/array.md 3). A grant must hold after a crash, so it
//! is sent when its entry is durable. A release may be forgotten: the owner then says that it does not hold the lock.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::message::Past;
use crate::server::message::{LockRange, PartId, ServerReply};
use crate::{HostId, Life, OpId, ServerId, Time};

/// Names a write of the log until it is answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LogToken(pub u64);

/// The lock server's requests to its stable storage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogAsk {
    /// Append a record durably. One that was cut short by a crash must not be given back when the server starts.
    Append {
        /// Names the write.
        token: LogToken,
        /// The record.
        record: Bytes,
    },
    /// Replace all records by this one, durably and atomically.
    Replace {
        /// Names the write.
        token: LogToken,
        /// The record.
        record: Bytes,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Entry {
    Started {
        incarnation: u64,
    },
    Granted {
        op: OpId,
        ranges: Vec<(u16, LockRange)>,
        past: Past,
    },
    Freed {
        op: OpId,
    },
    PartFreed {
        part: PartId,
    },
    PartShared {
        part: PartId,
    },
    Fenced {
        life: Life,
    },
    Cleared {
        life: Life,
    },
    /// In a snapshot: lives of this host up to this incarnation are fenced, and cleared but for those that follow.
    Floor {
        host: HostId,
        incarnation: u64,
    },
    /// The newest timestamp of a release; it comes before the release's own entry.
    Newest {
        time: Time,
    },
    /// The log of this lock server has this key: see [`crate::LockService::complete`].
    Key {
        server: ServerId,
        key: u64,
    },
}

/// The replies that wait for an entry.
type Replies = Vec<(Life, ServerReply)>;

#[derive(Default)]
pub(super) struct Journal {
    pending: Vec<Entry>,
    /// Sent when the pending entries are durable.
    replies: Replies,
    under_way: Option<(LogToken, Replies)>,
    next_token: u64,
    /// Entries in the log since it was last replaced.
    written: usize,
    /// Entries pending that somebody waits for.
    urgent: bool,
}

/// Entries that nobody waits for are written when there are so many.
const LAZY: usize = 64;

impl Journal {
    /// An entry that may be lost.
    pub fn note(&mut self, entry: Entry) {
        self.pending.push(entry);
    }

    /// An entry that must not; the reply is sent when it is durable.
    pub fn commit(&mut self, entry: Entry, reply: Option<(Life, ServerReply)>) {
        self.pending.push(entry);
        self.after(reply);
    }

    /// A reply that must not be sent before everything noted so far is durable.
    pub fn after(&mut self, reply: Option<(Life, ServerReply)>) {
        self.urgent = true;
        self.replies.extend(reply);
    }

    pub fn idle(&self) -> bool {
        self.under_way.is_none() && !self.urgent
    }

    /// The next write, if one is due and none is under way. `snapshot` gives entries that replace the whole log, of which
    /// there are about `live`.
    pub fn poll(&mut self, live: usize, snapshot: impl FnOnce() -> Vec<Entry>) -> Option<LogAsk> {
        let due = self.urgent || self.pending.len() >= LAZY;
        if self.under_way.is_some() || !due {
            return None;
        }
        let token = LogToken(self.next_token);
        self.next_token += 1;
        self.under_way = Some((token, std::mem::take(&mut self.replies)));
        self.urgent = false;
        let pending = std::mem::take(&mut self.pending);
        if self.written > 4096 + 4 * live {
            let entries = snapshot();
            self.written = entries.len();
            return Some(LogAsk::Replace { token, record: encode(&entries) });
        }
        self.written += pending.len();
        Some(LogAsk::Append { token, record: encode(&pending) })
    }

    /// A write is durable: what may be sent now.
    pub fn written(&mut self, token: LogToken) -> Replies {
        match self.under_way.take() {
            Some((expected, replies)) if expected == token => replies,
            other => {
                self.under_way = other;
                Vec::new()
            }
        }
    }

    pub fn restored(&mut self, entries: usize) {
        self.written = entries;
    }
}

pub(super) fn encode(entries: &[Entry]) -> Bytes {
    // Writing plain data to memory cannot fail.
    Bytes::from(postcard::to_allocvec(entries).unwrap_or_default())
}

pub(super) fn decode(record: &[u8]) -> Result<Vec<Entry>, postcard::Error> {
    postcard::from_bytes(record)
}
