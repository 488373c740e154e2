//! Records the events of one creator's locks cheaply, and writes it as a history after the clock
//! has stopped.
//!
//! The history is the client's view: a hold lasts from the delivery of its grant to the call of its
//! release. Every policy pays the same for it: a few stores into memory that is there already.

use std::path::Path;

use lockify_core::{LockId, Mode, Status};
use lockify_history::{Event, Kind, Mode as HistoryMode, Resource, WriteError, Writer};

use crate::glock::Glock;

/// One event; resources are kept as numbers, names are made when it is written.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// When, `CLOCK_MONOTONIC` in nanoseconds.
    pub t: u64,
    /// The kind of event.
    pub what: What,
    /// Which lock.
    pub lock: LockId,
    /// Of which resource, if the event tells.
    pub glock: Option<Glock>,
    /// Which operation of the client.
    pub op: u64,
}

/// The kind of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A new lock was asked for.
    Request(Mode),
    /// A conversion was asked for.
    Convert(Mode),
    /// An unlock was asked for.
    Unlock,
    /// A request or conversion was granted.
    Grant {
        /// The mode.
        mode: Mode,
        /// The fencing token; 0 if the mode has none.
        token: u64,
        /// On a claim that was not settled.
        provisional: bool,
    },
    /// A provisional grant became final, with this fencing token.
    Settled {
        /// The token.
        token: u64,
    },
    /// An operation ended in another way, or an unlock was done.
    Complete(Status),
    /// Somebody wants this mode.
    Bast(Mode),
}

/// The events of one run of one creator.
#[derive(Debug, Default)]
pub struct Recorder {
    records: Vec<Record>,
}

impl Recorder {
    /// Makes room for `events`, so that recording them allocates nothing.
    pub fn reserve(&mut self, events: usize) {
        self.records.reserve(events);
    }

    /// Adds an event.
    pub fn add(&mut self, record: Record) {
        self.records.push(record);
    }

    /// Writes the events in the order of time and forgets them; says how many there were.
    ///
    /// # Errors
    /// [`WriteError`]: the disk is full, or the file cannot be written.
    pub fn write(&mut self, node: u32, path: &Path) -> Result<u64, WriteError> {
        // A call's event is recorded after the call, when the lock's id is known, with the time
        // from before it.
        self.records.sort_by_key(|r| r.t);
        let mut writer = Writer::create(path)?;
        for record in &self.records {
            writer.write(&event(node, record))?;
        }
        writer.flush()?;
        let written = self.records.len() as u64;
        self.records.clear();
        Ok(written)
    }
}

fn event(node: u32, r: &Record) -> Event {
    let kind = match r.what {
        What::Request(_) => Kind::Request,
        What::Convert(_) => Kind::Convert,
        What::Unlock => Kind::Unlock,
        What::Grant { .. } => Kind::Grant,
        What::Settled { .. } => Kind::Settled,
        What::Complete(_) => Kind::Complete,
        What::Bast(_) => Kind::Bast,
    };
    let mut e = Event::new(r.t, node, kind);
    e.lock = Some(r.lock.0);
    e.resource = r.glock.map(|g| Resource::new(g.name().as_bytes()));
    // Notices belong to no operation.
    e.op = (!matches!(r.what, What::Bast(_) | What::Settled { .. })).then_some(r.op);
    match r.what {
        What::Request(mode) | What::Convert(mode) | What::Bast(mode) => {
            e.mode = history_mode(mode);
        }
        What::Grant { mode, token, provisional } => {
            e.mode = history_mode(mode);
            e.status = Some(0);
            e.token = (token != 0).then_some(token);
            e.provisional = provisional;
        }
        What::Settled { token } => e.token = (token != 0).then_some(token),
        What::Complete(status) => e.status = Some(status.errno().into()),
        What::Unlock => {}
    }
    e
}

/// Both number their modes as the kernel does.
fn history_mode(mode: Mode) -> Option<HistoryMode> {
    HistoryMode::from_number(mode as u8)
}
