//! A worker's history, for `lockify check`.
//!
//! A hold lasts from the return of `lock` to the call of `unlock`, but no longer than its lease: what a holder does after
//! that is its own fault, and the fabric's fencing tokens are for it. Every event is in the file before anything follows
//! from it, so that the history of a worker that is killed is whole.

use std::fs::File;
use std::path::Path;

use lockify_history::{EUNLOCK, Event, Kind, Mode as Recorded, Resource, WriteError, Writer};
use lockify_onesided::{Guard, LockId, Mode, Nanos, Peer, Protocol};

/// Status of a request whose grant came when its lease was over: ETIMEDOUT.
const TOO_LATE: i64 = 110;

/// How the note of a grant begins that says when its lease is over.
const UNTIL: &str = "lease until ";

pub(crate) struct History {
    writer: Writer<File>,
    node: u32,
    protocol: Protocol,
    lock: u64,
}

impl History {
    /// A history of a peer, whose number nobody else has had.
    pub fn create(path: &Path, me: Peer, protocol: Protocol) -> Result<History, WriteError> {
        let mut writer = Writer::create(path)?;
        let writes = ["request", "grant", "token"].map(str::to_owned).to_vec();
        writer.write(&Event { writes: Some(writes), ..Event::anywhere(0, Kind::Begin) })?;
        Ok(History { writer, node: me.0.into(), protocol, lock: 0 })
    }

    pub fn requested(&mut self, t: Nanos, lock: LockId, mode: Mode) -> Result<(), WriteError> {
        self.lock += 1;
        let shared = mode == Mode::Shared && self.protocol.shares();
        let event = Event {
            client: Some(client(self.node)),
            resource: Some(Resource::new(format!("lock-{}", lock.0).as_bytes())),
            mode: Some(if shared { Recorded::PR } else { Recorded::EX }),
            op: Some(1),
            ..self.event(t, Kind::Request)
        };
        self.record(&event)
    }

    pub fn granted(&mut self, t: Nanos, guard: &Guard) -> Result<(), WriteError> {
        if t >= guard.valid_until() {
            let event =
                Event { op: Some(1), status: Some(TOO_LATE), ..self.event(t, Kind::Complete) };
            return self.record(&event);
        }
        let shared = guard.mode() == Mode::Shared && self.protocol.shares();
        let event = Event {
            mode: Some(if shared { Recorded::PR } else { Recorded::EX }),
            status: Some(0),
            op: Some(1),
            token: guard.token().filter(|_| !shared),
            note: Some(format!("{UNTIL}{}", guard.valid_until())),
            ..self.event(t, Kind::Grant)
        };
        self.record(&event)
    }

    /// Before the release; `since` is when the grant was recorded.
    pub fn releases(&mut self, since: Nanos, t: Nanos, guard: &Guard) -> Result<(), WriteError> {
        let until = guard.valid_until();
        if since >= until {
            return Ok(());
        }
        let event = match t < until {
            true => Event { op: Some(2), ..self.event(t, Kind::Unlock) },
            false => self.event(until, Kind::Lost),
        };
        self.record(&event)?;
        if t < until {
            // The call's return tells a checker nothing more.
            let done =
                Event { op: Some(2), status: Some(EUNLOCK), ..self.event(t, Kind::Complete) };
            self.record(&done)?;
        }
        Ok(())
    }

    /// At the end of a worker that ends by itself.
    pub fn end(mut self, t: Nanos) -> Result<(), WriteError> {
        self.writer.end(t)
    }

    fn event(&self, t: Nanos, kind: Kind) -> Event {
        Event { lock: Some(self.lock), ..Event::new(t, self.node, kind) }
    }

    fn record(&mut self, event: &Event) -> Result<(), WriteError> {
        self.writer.write(event)?;
        self.writer.flush()
    }
}

fn client(node: u32) -> String {
    format!("peer-{node}")
}

/// The event that a parent adds for a worker that was dead at this time, if its last event is a grant whose lease was
/// over before.
pub(crate) fn lease_over(last: &Event, dead: Nanos) -> Option<Event> {
    let until: Nanos = last.note.as_ref()?.strip_prefix(UNTIL)?.parse().ok()?;
    let event = Event { lock: last.lock, ..Event::new(until, last.node?, Kind::Lost) };
    (last.kind == Kind::Grant && until < dead).then_some(event)
}

/// The event that a parent adds for a worker that it has killed: at this time it was gone.
pub(crate) fn gone(t: Nanos, node: u32) -> Event {
    Event { client: Some(client(node)), ..Event::new(t, node, Kind::Gone) }
}
