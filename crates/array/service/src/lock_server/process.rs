//! The event loop of a lock server.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use lockify_array::{
    ArrayState, Life, LockServer, LogAsk, LogToken, ServerConfig, ServerInput, ServerOutput,
    ServerReply,
};
use lockify_trust::Mailbox;

use super::log::Log;
use super::{ServeError, Serving};
use crate::ArrayFile;
use crate::clock::{PatientClock, until};
use crate::device::{Job, Repairs};
use crate::wire::{Event, Frame, Me, Net, Report, Role};

/// How often signals are looked at.
const TICK: Duration = Duration::from_millis(100);

type Written = (LogToken, io::Result<()>);

pub(super) struct Process {
    net: Net,
    server: LockServer,
    log: LogThread,
    written: Mailbox<Written>,
    repairs: Repairs,
    clock: PatientClock,
    /// The connection of each host that is there.
    hosts: BTreeMap<Life, usize>,
    requests: u64,
    failed: Option<io::Error>,
}

impl Process {
    pub fn new(
        file: &ArrayFile,
        address: SocketAddr,
        serving: &Serving,
    ) -> Result<Process, ServeError> {
        let path = &serving.log_file;
        let (log, records) = if serving.create {
            (Log::create(path, file.id)?, Vec::new())
        } else {
            Log::open(path, file.id, serving.log)?
        };
        let lease = file.timing.lease_ms * 1_000_000;
        let mut clock = PatientClock::new(Duration::from_millis(file.timing.lease_ms));
        let config = ServerConfig {
            scheme: file.scheme,
            lease,
            // As long as devices remember finished operations.
            message_life: file.timing.forget_ms * 1_000_000,
        };
        let server = LockServer::new(config, &records, clock.now())
            .map_err(|error| ServeError::Table { path: path.clone(), error })?;
        let me = Me::lock_server(file, serving.identity.clone());
        let mut net = Net::new(me, &[], serving.log)?;
        net.listen(address).map_err(|error| ServeError::Listen { address, error })?;
        let written = Mailbox::new(net.waker());
        let log = LogThread::start(log, written.clone())?;
        let identity = serving.identity.clone();
        let repairs = Repairs::start(file, identity, net.waker(), serving.log)?;
        Ok(Process {
            net,
            server,
            log,
            written,
            repairs,
            clock,
            hosts: BTreeMap::new(),
            requests: 0,
            failed: None,
        })
    }

    pub fn run(mut self, stop: &AtomicBool) -> Result<(), ServeError> {
        let mut events = mio::Events::with_capacity(256);
        self.act();
        while !stop.load(Relaxed) {
            let now = self.clock.now();
            let wait = until(self.server.next_timer(), now).min(TICK).min(self.clock.step() / 2);
            self.net.turn(wait, &mut events)?;
            while let Some(event) = self.net.event() {
                self.handle_net_event(event);
            }
            for (token, result) in self.written.take() {
                match result {
                    Ok(()) => self.handle(ServerInput::Logged { token }),
                    Err(error) => self.failed = Some(error),
                }
            }
            self.put_fenced_hosts_out();
            self.handle(ServerInput::Tick);
            // A host that could not be fenced is suspected again after a lease.
            drop(self.repairs.look());
            if let Some(error) = self.failed.take() {
                return Err(ServeError::Full(error));
            }
        }
        Ok(())
    }

    fn handle(&mut self, input: ServerInput) {
        let now = self.clock.now();
        self.server.handle(now, input);
        self.act();
    }

    fn act(&mut self) {
        while let Some(output) = self.server.poll() {
            match output {
                ServerOutput::Send { to, reply } => {
                    if let Some(&key) = self.hosts.get(&to) {
                        self.net.say(key, &Frame::Answer(reply));
                    }
                }
                ServerOutput::Log(ask) => self.log.ask(ask),
                ServerOutput::Suspect(life) => self.repairs.ask(Job::Fence(life)),
            }
        }
    }

    fn handle_net_event(&mut self, event: Event) {
        match event {
            Event::Came { key, role: Role::Host(life) } => {
                if let Some(old) = self.hosts.insert(life, key) {
                    self.net.refuse(old, "this host has connected again".into());
                }
                self.handle(ServerInput::Connected { life });
            }
            Event::Came { role: Role::Watcher, .. } => {}
            Event::Came { key, role: Role::Device { id, .. } } => {
                self.net
                    .refuse(key, format!("device {} does not connect to the lock server", id.0));
            }
            // The bytes of an older connection must not count as part of the newer one.
            Event::Heard { key, role: Role::Host(from), frame: Frame::Ask(request) } => {
                if self.hosts.get(&from) == Some(&key) {
                    self.requests += 1;
                    self.handle(ServerInput::Request { from, request });
                }
            }
            Event::Heard { key, frame: Frame::Query, .. } => {
                let report = self.report();
                self.net.say(key, &Frame::Report(report));
            }
            Event::Heard { key, .. } => {
                self.net.refuse(key, "this is not said to a lock server".into());
            }
            Event::Left { key, role: Role::Host(life) } => {
                if self.hosts.get(&life) == Some(&key) {
                    self.hosts.remove(&life);
                }
            }
            Event::Left { .. } => {}
            // It connects to nobody.
            Event::Up { .. } | Event::Down { .. } | Event::Answered { .. } => {}
        }
    }

    /// A fenced host hears that, and its connection ends.
    fn put_fenced_hosts_out(&mut self) {
        let is_fenced = |life: &Life| self.server.is_fenced(*life);
        let fenced: Vec<Life> = self.hosts.keys().copied().filter(is_fenced).collect();
        for life in fenced {
            if let Some(key) = self.hosts.remove(&life) {
                let ranges = Vec::new();
                self.net.dismiss(key, &Frame::Answer(ServerReply::Fenced { life, ranges }));
            }
        }
    }

    fn report(&self) -> Report {
        Report {
            state: ArrayState::default(),
            serving: true,
            in_service: true,
            waits: None,
            members: Vec::new(),
            life: 0,
            view: None,
            out: Vec::new(),
            hosts: self.hosts.keys().map(|life| (life.host.0, life.incarnation)).collect(),
            requests: self.requests,
            unchecked: 0,
            unsettled: false,
            ..Report::default()
        }
    }
}

/// The thread that writes the log. Dropping it waits for work under way. Then nobody holds the file any
/// more.
struct LogThread {
    asks: Option<Sender<LogAsk>>,
    thread: Option<JoinHandle<()>>,
}

impl LogThread {
    fn start(log: Log, written: Mailbox<Written>) -> io::Result<LogThread> {
        let (asks, next) = channel();
        let named = std::thread::Builder::new().name("lock-log".into());
        let thread = named.spawn(move || write(log, &next, &written))?;
        Ok(LogThread { asks: Some(asks), thread: Some(thread) })
    }

    fn ask(&self, ask: LogAsk) {
        // If the thread has ended, it has said why.
        let _ = self.asks.as_ref().map(|asks| asks.send(ask));
    }
}

impl Drop for LogThread {
    fn drop(&mut self) {
        self.asks = None;
        self.thread.take().map(JoinHandle::join);
    }
}

/// Until nobody asks for it or it fails: what comes after a failure must not be written.
fn write(mut log: Log, asks: &Receiver<LogAsk>, written: &Mailbox<Written>) {
    while let Ok(ask) = asks.recv() {
        let (LogAsk::Append { token, .. } | LogAsk::Replace { token, .. }) = ask;
        let result = log.write(&ask);
        let failed = result.is_err();
        written.post((token, result));
        if failed {
            return;
        }
    }
}
