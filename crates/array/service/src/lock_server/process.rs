//! The event loop of a lock server.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockify_array::{
    Attended, DeviceId, Life, LogAsk, LogToken, Replica, ReplicaConfig, ReplicaInput,
    ReplicaOutput, ServerConfig, ServerId, ServerReply,
};
use lockify_trust::{Identity, Mailbox};

use super::log::Log;
use super::{ServeError, Serving};
use crate::clock::{PatientClock, until};
use crate::device::{Job, Repairs};
use crate::versions::RENEWS_KEYS;
use crate::wire::{Event, Frame, Me, Net, Report, Role, Target, Whom};
use crate::{ArrayFile, random};

/// How often signals are looked at.
const TICK: Duration = Duration::from_millis(100);
/// How often the logs of lock servers get other keys, if they were used ([`Replica::change_keys`]).
const KEY_AGE: Duration = Duration::from_secs(60);

type Written = (LogToken, io::Result<()>);

pub(super) struct Process {
    file: ArrayFile,
    identity: Identity,
    me: ServerId,
    net: Net,
    replica: Replica,
    log: LogThread,
    written: Mailbox<Written>,
    repairs: Repairs,
    clock: PatientClock,
    /// The connection of each host that is there.
    hosts: BTreeMap<Life, usize>,
    /// The connection of each lock server that has connected to this one. They are those with higher ids.
    callers: BTreeMap<ServerId, usize>,
    servers: u16,
    voters: Vec<DeviceId>,
    /// The term that devices were told last.
    attends: Option<u64>,
    requests: u64,
    keys_due: Instant,
    failed: Option<ServeError>,
    say: fn(&str),
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
        let mut clock = PatientClock::new(Duration::from_millis(file.timing.lease_ms));
        let replica = Replica::new(config(file, serving)?, records, clock.now())
            .map_err(|error| ServeError::Table { path: path.clone(), error })?;
        let me = Me::new(file, serving.identity.clone(), Role::Server(serving.id));
        let mut net = Net::new(me, &targets(file, serving.id), serving.log)?;
        net.listen(address).map_err(|error| ServeError::Listen { address, error })?;
        let written = Mailbox::new(net.waker());
        let log = LogThread::start(log, written.clone())?;
        let identity = serving.identity.clone();
        let repairs = Repairs::start(file, identity.clone(), net.waker(), serving.log)?;
        Ok(Process {
            file: file.clone(),
            identity,
            me: serving.id,
            net,
            replica,
            log,
            written,
            repairs,
            clock,
            hosts: BTreeMap::new(),
            callers: BTreeMap::new(),
            servers: file.lock_servers().count() as u16,
            voters: file.voters().map(|entry| DeviceId(entry.id)).collect(),
            attends: None,
            requests: 0,
            keys_due: Instant::now() + KEY_AGE,
            failed: None,
            say: serving.log,
        })
    }

    pub fn run(mut self, stop: &AtomicBool) -> Result<(), ServeError> {
        let mut events = mio::Events::with_capacity(256);
        self.act();
        while !stop.load(Relaxed) {
            let now = self.clock.now();
            let wait = until(self.replica.next_timer(), now).min(TICK).min(self.clock.step() / 2);
            self.net.turn(wait, &mut events)?;
            while let Some(event) = self.net.event() {
                self.handle_net_event(event);
            }
            for (token, result) in self.written.take() {
                match result {
                    Ok(()) => self.handle(ReplicaInput::Logged { token }),
                    Err(error) => self.failed = Some(ServeError::Full(error)),
                }
            }
            self.put_fenced_hosts_out();
            self.handle(ReplicaInput::Tick);
            self.change_keys();
            self.look_at_repairs();
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
        }
        Ok(())
    }

    /// A host that could not be fenced is suspected again after a lease. What was agreed on is heard from the devices.
    fn look_at_repairs(&mut self) {
        let ended = self.repairs.look();
        if ended.iter().any(|(job, result)| matches!(job, Job::Locks(_)) && result.is_ok()) {
            self.attend();
        }
    }

    fn handle(&mut self, input: ReplicaInput) {
        let now = self.clock.now();
        self.replica.handle(now, input);
        self.act();
    }

    fn act(&mut self) {
        while let Some(output) = self.replica.poll() {
            match output {
                ReplicaOutput::Send { to, reply } => {
                    if let Some(&key) = self.hosts.get(&to) {
                        self.net.say(key, &Frame::Answer(reply));
                    }
                }
                ReplicaOutput::Log(ask) => self.log.ask(ask),
                ReplicaOutput::Suspect(life) => self.repairs.ask(Job::Fence(life)),
                ReplicaOutput::Attend { serving } => {
                    self.attends = serving;
                    self.attend();
                }
                ReplicaOutput::Inform { to, state } => {
                    self.net.send_to(Whom::Device(to), &Frame::State(*state));
                }
                ReplicaOutput::Tell { to, message } => self.tell(to, &Frame::Copy(message)),
                ReplicaOutput::Propose(change) => self.repairs.ask(Job::Locks(change)),
                ReplicaOutput::Serves { term } => {
                    (self.say)(&format!("{} serves now, in term {term}", self.me));
                }
                ReplicaOutput::Retired => self.retire(),
            }
        }
    }

    /// Hosts that were to be fenced may be in touch with the lock server that serves now.
    fn retire(&mut self) {
        (self.say)(&format!("another lock server serves: {} stands by now", self.me));
        let begun = Repairs::start(&self.file, self.identity.clone(), self.net.waker(), self.say);
        match begun {
            Ok(repairs) => self.repairs = repairs,
            Err(error) => self.failed = Some(error.into()),
        }
    }

    /// Tells the devices that this lock server is there.
    fn attend(&mut self) {
        for device in &self.voters {
            self.net.send_to(Whom::Device(*device), &Frame::Attend(self.attends));
        }
    }

    fn tell(&mut self, to: ServerId, frame: &Frame) {
        match self.callers.get(&to) {
            Some(&key) => self.net.say(key, frame),
            None => drop(self.net.send_to(Whom::Server(to), frame)),
        }
    }

    fn handle_net_event(&mut self, event: Event) {
        match event {
            Event::Came { key, role } => self.came(key, role),
            Event::Heard { key, role, frame } => self.heard(key, role, frame),
            Event::Left { key, role } => self.left(key, role),
            Event::Up { whom: Whom::Device(device), .. } => {
                self.net.send_to(Whom::Device(device), &Frame::Attend(self.attends));
            }
            Event::Up { whom: Whom::Server(server), key, .. } => self.peer_up(server, key),
            Event::Down { whom: Whom::Server(server), .. } => {
                self.handle(ReplicaInput::PeerDown { server });
            }
            Event::Down { whom: Whom::Device(_), .. } => {}
            Event::Answered { whom: Whom::Device(from), frame: Frame::Attended(attended) } => {
                let Attended { state, silent } = attended;
                self.handle(ReplicaInput::Attended { from, state, silent });
            }
            Event::Answered { whom: Whom::Server(from), frame: Frame::Copy(message) } => {
                self.handle(ReplicaInput::Heard { from, message });
            }
            Event::Answered { whom, .. } => self.net.hang_up(whom, "it says what makes no sense"),
        }
    }

    fn came(&mut self, key: usize, role: Role) {
        match role {
            Role::Host(life) => {
                if let Some(old) = self.hosts.insert(life, key) {
                    self.net.refuse(old, "this host has connected again".into());
                }
                self.handle(ReplicaInput::Connected { life });
            }
            Role::Server(server) if server <= self.me || server.0 >= self.servers => {
                self.net.refuse(key, format!("{server} does not connect here"));
            }
            Role::Server(server) => {
                if let Some(old) = self.callers.insert(server, key) {
                    self.net.refuse(old, "this lock server has connected again".into());
                }
                self.peer_up(server, key);
            }
            Role::Device { id, .. } => {
                self.net
                    .refuse(key, format!("device {} does not connect to the lock server", id.0));
            }
            Role::Watcher => {}
        }
    }

    fn peer_up(&mut self, server: ServerId, key: usize) {
        let renews = self.net.speaks(key, RENEWS_KEYS);
        self.handle(ReplicaInput::PeerUp { server, renews });
    }

    /// The bytes of an older connection must not count as part of the newer one.
    fn heard(&mut self, key: usize, role: Role, frame: Frame) {
        match (role, frame) {
            (Role::Host(from), Frame::Ask(request)) => {
                if self.hosts.get(&from) == Some(&key) {
                    self.requests += 1;
                    self.handle(ReplicaInput::Request { from, request });
                }
            }
            (Role::Server(from), Frame::Copy(message)) => {
                if self.callers.get(&from) == Some(&key) {
                    self.handle(ReplicaInput::Heard { from, message });
                }
            }
            (_, Frame::Query) => {
                let report = self.report();
                self.net.report(key, report);
            }
            _ => self.net.refuse(key, "this is not said to a lock server".into()),
        }
    }

    fn left(&mut self, key: usize, role: Role) {
        match role {
            Role::Host(life) if self.hosts.get(&life) == Some(&key) => {
                self.hosts.remove(&life);
                self.handle(ReplicaInput::Gone { life });
            }
            Role::Server(server) if self.callers.get(&server) == Some(&key) => {
                self.callers.remove(&server);
                self.handle(ReplicaInput::PeerDown { server });
            }
            _ => {}
        }
    }

    /// A copy of a log that is made now is known to be older a minute later, if the log has changed since.
    fn change_keys(&mut self) {
        let now = Instant::now();
        if now >= self.keys_due {
            self.keys_due = now + KEY_AGE;
            self.replica.change_keys(self.clock.now());
            self.act();
        }
    }

    /// A fenced host hears that, and its connection ends.
    fn put_fenced_hosts_out(&mut self) {
        let Some(server) = self.replica.server() else { return };
        let is_fenced = |life: &Life| server.is_fenced(*life);
        let fenced: Vec<Life> = self.hosts.keys().copied().filter(is_fenced).collect();
        for life in fenced {
            if let Some(key) = self.hosts.remove(&life) {
                let ranges = Vec::new();
                self.net.dismiss(key, &Frame::Answer(ServerReply::Fenced { life, ranges }));
                self.handle(ReplicaInput::Gone { life });
            }
        }
    }

    fn report(&self) -> Report {
        Report {
            serving: self.replica.server().is_some(),
            in_service: self.replica.is_complete(),
            waits: self.replica.waits(),
            hosts: self.hosts.keys().map(|life| (life.host.0, life.incarnation)).collect(),
            requests: self.requests,
            ..Report::default()
        }
    }
}

fn config(file: &ArrayFile, serving: &Serving) -> io::Result<ReplicaConfig> {
    let server = ServerConfig {
        scheme: file.scheme,
        lease: file.timing.lease_ms * 1_000_000,
        // As long as devices remember finished operations.
        message_life: file.timing.forget_ms * 1_000_000,
    };
    let voters = file.voters().count() as u16;
    let config = ReplicaConfig::new(serving.id, voters, server, random()?);
    Ok(ReplicaConfig { anew: serving.accept_loss, ..config })
}

/// All devices and witnesses, and the lock servers below this one.
fn targets(file: &ArrayFile, me: ServerId) -> Vec<Target> {
    let is_wanted = |target: &Target| match target.whom {
        Whom::Device(_) => true,
        Whom::Server(server) => server < me,
    };
    Target::all(file).into_iter().filter(is_wanted).collect()
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
