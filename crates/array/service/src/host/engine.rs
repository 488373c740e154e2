//! A host's thread: the state machine, its connections and its clock.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockify_array::{
    ArrayHost, DeviceId, HostAnswer, HostInput, HostOutput, OpError, Peer, Ticket, Work,
};

use super::calls::{Call, Calls, Done};
use super::{Connection, OpenError, Status, closed};
use crate::ArrayFile;
use crate::clock::{Clock, until};
use crate::history::HostHistory;
use crate::wire::{Event, Frame, Net, Target, Whom, Why};

/// How long a device may be out of reach before somebody is told.
const COMPLAIN: Duration = Duration::from_secs(3);
/// Bytes of calls' data that are worked on until what came of it is sent. Callers may ask for hundreds of mebibytes at once: parity and
/// checksums of all that take longer than a lease where the processor is busy, and devices would take this host for dead.
const AT_ONCE: usize = 1024 * 1024;
/// How long the last frames of a host that ends may take.
const FAREWELL: Duration = Duration::from_millis(200);

/// Everything that a host's thread has.
pub(super) struct HostEngine {
    host: ArrayHost,
    file: ArrayFile,
    net: Net,
    clock: Clock,
    calls: Arc<Calls>,
    done: BTreeMap<Ticket, Done>,
    next: u64,
    status: Status,
    /// Since when a peer is out of reach, and whether that was told.
    down: BTreeMap<Whom, (Instant, bool)>,
    /// Devices that say that their disks have failed, on this connection.
    broken: BTreeSet<DeviceId>,
    /// How many groups the array has got, as far as this thread has connected to them.
    groups: usize,
    /// The callers know that this host is fenced.
    told_fenced: bool,
    history: Option<HostHistory>,
    log: fn(&str),
}

impl HostEngine {
    pub fn new(
        host: ArrayHost,
        file: &ArrayFile,
        net: Net,
        calls: Arc<Calls>,
        history: Option<HostHistory>,
        log: fn(&str),
        peers: &[Whom],
    ) -> HostEngine {
        let now = Instant::now();
        let connections = peers.iter().map(|&whom| Connection {
            whom,
            down: Some("there is no connection yet".into()),
            refused: false,
        });
        let status = Status { state: host.state().clone(), connections: connections.collect() };
        calls.publish_status(status.clone());
        HostEngine {
            host,
            file: file.clone(),
            net,
            clock: Clock::new(),
            calls,
            done: BTreeMap::new(),
            next: 0,
            status,
            down: peers.iter().map(|&whom| (whom, (now, false))).collect(),
            broken: BTreeSet::new(),
            groups: 0,
            told_fenced: false,
            history,
            log,
        }
    }

    /// Until the host is closed.
    pub fn run(mut self) {
        let mut events = mio::Events::with_capacity(256);
        for whom in self.down.keys().copied().collect::<Vec<_>>() {
            self.handle(gone(whom));
        }
        while !self.calls.is_over() {
            let now = self.clock.now();
            let wait = if self.calls.are_waiting() {
                Duration::ZERO
            } else {
                until(self.host.next_timer(), now).min(COMPLAIN)
            };
            // The messages are sent in there.
            if let Some(history) = &mut self.history {
                history.flush();
            }
            if let Err(e) = self.net.turn(wait, &mut events) {
                (self.log)(&format!("waiting for events failed, so this host ends: {e}"));
                break;
            }
            while let Some(event) = self.net.event() {
                self.handle_net_event(event);
            }
            for Call { work, done } in self.calls.take(AT_ONCE) {
                self.submit(work, done);
            }
            self.handle(HostInput::Tick);
            self.report_unreachable();
        }
        self.end();
    }

    fn handle(&mut self, input: HostInput) {
        let now = self.clock.now();
        self.host.handle(now, input);
        self.act();
        self.connect_to_added();
    }

    /// The array has got devices that its file need not have. They are found by the state that is agreed on.
    fn connect_to_added(&mut self) {
        let known = self.status.state.added.len();
        if std::mem::replace(&mut self.groups, known) == known {
            return;
        }
        for target in Target::added(&self.file, &self.status.state) {
            let whom = target.whom;
            if self.status.connections.iter().any(|connection| connection.whom == whom) {
                continue;
            }
            let mut down = "there is no connection yet".to_owned();
            if self.net.allows_at(&target.address) {
                self.net.add_target(target);
            } else {
                down = OpenError::Exposed(target.address).to_string();
                (self.log)(&format!("cannot connect to {whom}: {down}"));
            }
            self.status.connections.push(Connection { whom, down: Some(down), refused: false });
            self.calls.publish_status(self.status.clone());
            self.down.insert(whom, (Instant::now(), false));
            let now = self.clock.now();
            self.host.handle(now, gone(whom));
        }
        self.act();
    }

    fn handle_net_event(&mut self, event: Event) {
        match event {
            Event::Up { whom, welcome, .. } => {
                let mut down = None;
                if let Whom::Device(device) = whom {
                    self.broken.remove(&device);
                    down = Some("it has not told the array's state yet".into());
                }
                self.connection(whom, down, false);
                if let Some((_, true)) = self.down.remove(&whom) {
                    (self.log)(&format!("{whom} is back"));
                }
                self.handle(match whom {
                    Whom::Device(device) => {
                        HostInput::Connected { peer: Peer::Device(device), boot: welcome.life }
                    }
                    Whom::Server(server) => HostInput::ServerLink { server },
                });
            }
            Event::Down { whom, why, .. } => {
                let refused = matches!(why, Why::Refused(_));
                self.connection(whom, Some(why.text()), refused);
                if let Entry::Vacant(vacant) = self.down.entry(whom) {
                    vacant.insert((Instant::now(), false));
                    self.handle(gone(whom));
                }
            }
            Event::Answered { whom: Whom::Device(from), frame: Frame::Reply(reply) } => {
                self.handle(HostInput::Reply { from: Peer::Device(from), reply });
            }
            Event::Answered { whom, frame: Frame::State(state) }
                if matches!(whom, Whom::Device(_))
                    && (state.epoch <= self.host.state().epoch
                        || state.fits(self.host.state())) =>
            {
                self.handle(HostInput::State(state));
                // Not before: who opens the array is told its length as devices know it, and not as the file had it.
                self.connection(whom, None, false);
            }
            Event::Answered { whom: Whom::Server(from), frame: Frame::Answer(reply) } => {
                self.handle(HostInput::Server { from, reply });
            }
            Event::Answered { whom, .. } => {
                self.net.hang_up(whom, "it says what a host is not told: is it of this release?");
            }
            // Nobody connects to a host.
            Event::Came { .. } | Event::Heard { .. } | Event::Left { .. } => {}
        }
    }

    fn connection(&mut self, whom: Whom, down: Option<String>, refused: bool) {
        if let Some(connection) = self.status.connections.iter_mut().find(|c| c.whom == whom)
            && connection.down != down
        {
            (connection.down, connection.refused) = (down, refused);
            self.calls.publish_status(self.status.clone());
        }
    }

    fn submit(&mut self, work: Work, done: Done) {
        let ticket = Ticket(self.next);
        self.next += 1;
        if let Some(history) = &mut self.history {
            history.asked(ticket, &work);
        }
        self.done.insert(ticket, done);
        self.handle(HostInput::Submit { ticket, work });
    }

    /// Executes the state machine's outputs.
    fn act(&mut self) {
        while let Some(output) = self.host.poll() {
            match output {
                HostOutput::Send { to, request } => {
                    if let Some(history) = &mut self.history
                        && let Some(ticket) = self.host.ticket(request.call.op)
                    {
                        history.tried(ticket, request.call.op, request.stamp);
                    }
                    // If there is no connection, it is sent when there is one.
                    if let Peer::Device(device) = to {
                        self.net.send_to(Whom::Device(device), &Frame::Request(request));
                    }
                }
                HostOutput::SendServer { to, request } => {
                    self.net.send_to(Whom::Server(to), &Frame::Ask(request));
                }
                HostOutput::Done { ticket, op, result } => {
                    if let Some(history) = &mut self.history {
                        history.answered(ticket, op, &result);
                    }
                    self.answered(ticket, result);
                }
                HostOutput::State(state) => {
                    if let Some(history) = &mut self.history {
                        history.grown(self.host.layout());
                    }
                    self.status.state = state;
                    self.calls.publish_status(self.status.clone());
                }
                HostOutput::Broken(device) => self.broken(device),
            }
        }
        if self.host.is_fenced() && !std::mem::replace(&mut self.told_fenced, true) {
            self.calls.fenced();
        }
    }

    fn answered(&mut self, ticket: Ticket, result: Result<HostAnswer, OpError>) {
        if let Some(done) = self.done.remove(&ticket) {
            self.calls.answered(self.host.counts());
            done(result);
        }
    }

    /// A device says that its disk has failed. It ends, and the other devices find it gone.
    fn broken(&mut self, device: DeviceId) {
        if !self.broken.insert(device) {
            return;
        }
        (self.log)(&format!(
            "device {} says that its disk has failed: what needs it waits until the array goes on without it",
            device.0
        ));
    }

    /// Reports peers that have been out of reach for long.
    fn report_unreachable(&mut self) {
        for (&whom, (since, told)) in &mut self.down {
            if since.elapsed() < COMPLAIN || std::mem::replace(told, true) {
                continue;
            }
            let connection = self.status.connections.iter().find(|c| c.whom == whom);
            let why = connection.and_then(|c| c.down.as_deref()).unwrap_or("no answer");
            (self.log)(&format!("cannot reach {whom}: {why}"));
        }
    }

    fn end(mut self) {
        self.handle(HostInput::Leave);
        let writes = self.host.has_unanswered_writes();
        if let Some(history) = self.history.take().filter(|_| self.calls.is_over()) {
            history.end();
        }
        self.net.flush();
        let mut events = mio::Events::with_capacity(64);
        let begin = Instant::now();
        while begin.elapsed() < FAREWELL && self.net.has_unsent() {
            if self.net.turn(FAREWELL / 10, &mut events).is_err() {
                break;
            }
            while self.net.event().is_some() {}
        }
        for done in std::mem::take(&mut self.done).into_values() {
            self.calls.answered(self.host.counts());
            done(Err(closed()));
        }
        self.calls.end(!writes);
    }
}

fn gone(whom: Whom) -> HostInput {
    match whom {
        Whom::Device(device) => HostInput::Disconnected { peer: Peer::Device(device) },
        Whom::Server(server) => HostInput::ServerLink { server },
    }
}
