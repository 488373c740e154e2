//! Hosts an array's machines in the simulator.
//!
//! A node starts with the content of its disks, and with a larger incarnation than the last. [`Node::submit`] hands work
//! to a host (through `Sim::with`). Results of work and devices' accesses to blocks come back as [`Note`]s.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use lockify_array::message::{Action, Answer, Reply, Request};
use lockify_array::{
    ArrayHost, ArrayState, Attended, BadBlock, Block, CopyMessage, Device, DeviceBoot,
    DeviceConfig, DeviceEvent, DeviceId, DeviceInput, DeviceOutput, DiskAsk, HostAnswer,
    HostConfig, HostInput, HostOutput, Life, LockChange, LockServer, LogAsk, OpError, OpId,
    Replica, ReplicaConfig, ReplicaInput, ReplicaOutput, ServerConfig, ServerId, ServerInput,
    ServerOutput, ServerReply, ServerRequest, Stamp, Ticket, Time, Work,
};
use lockify_sim::{
    Boot, Config, Context, DiskDone, Input, LinkState, Machine, Nanos, NodeId, Sim, TimerId,
};

use crate::inbox::Inbox;
use crate::medium::{BadSectors, Ended, Medium};
use crate::places::Role;
use crate::profile::message_bytes;
use crate::setting::{Setting, Turns};

/// The time that the machines' clocks show when a run begins. Real ones do not begin at zero
/// either.
const BEGINNING: Time = 1_000_000_000_000_000;

/// How long the lock server's leases last, as in the paper.
pub(super) const LEASE: Time = 4_000_000_000;

/// How long the lock server takes a message to be under way at most.
pub(super) const MESSAGE_LIFE: Time = 5_000_000_000;

/// A packet on the network. Each names the host's life that it concerns, so that a new life is not taken for the old.
#[derive(Clone, Debug)]
pub enum Packet {
    /// To a device.
    Request(Life, Request),
    /// From a device.
    Reply(Life, Reply),
    /// From a device, on a new connection and when it has a newer one: the array's state.
    State(Life, ArrayState),
    /// To the lock server.
    ServerRequest(Life, ServerRequest),
    /// From the lock server.
    ServerReply(Life, ServerReply),
    /// From a lock server to a device: it is there, and serves in this term, if it does.
    Attend(Option<u64>),
    /// The answer.
    Attended(Attended),
    /// From a lock server to a device: the array's state is this one.
    Inform(ArrayState),
    /// Between lock servers.
    Copy(CopyMessage),
}

/// An alarm that a node has set for itself.
#[derive(Debug)]
pub enum Alarm {
    /// The machine's own time has come.
    Tick,
    /// The next in the inbox is handled.
    Handle,
    /// The lock server's log is written.
    Logged(LogAsk),
}

/// A node's report to the run.
#[derive(Clone, PartialEq, Debug)]
pub enum Note {
    /// A host begins a try of a piece of work.
    Begun {
        /// Which work.
        ticket: Ticket,
        /// The try.
        op: OpId,
        /// Its timestamp.
        stamp: Stamp,
    },
    /// A host has answered a piece of work.
    Done {
        /// Which; counted by who submits.
        ticket: Ticket,
        /// The try that did it; none if it failed before there was one.
        op: Option<(OpId, Stamp)>,
        /// The result of the work.
        result: Result<HostAnswer, OpError>,
    },
    /// A host or device has learned of a newer state of the array.
    State(ArrayState),
    /// A device's disk has failed, as it says itself or a host was told.
    Broken(DeviceId),
    /// A device has not heard of this host for the length of a lease, and it holds something there.
    Silent(Life),
    /// A device's step.
    Event(DeviceEvent),
    /// The lock server takes a host for dead.
    Suspect(Life),
    /// A lock server wants this change of the array's state.
    Locks(LockChange),
    /// The whole content of a device, as [`Node::dump`] requests it.
    Dump(Vec<Result<Block, BadBlock>>),
    /// A block was replaced past its device, as [`Node::lose`] and [`Node::give_back`] request it.
    Replaced,
    /// A machine could not start.
    Failed(String),
}

/// An arrival at a node; a node handles them in order.
enum Arrival {
    Packet(NodeId, Box<Packet>),
    Link(NodeId, LinkState),
}

/// The machine on a node.
enum Hosted {
    /// Not running yet, with the inputs that it will have to handle then.
    Starting(Vec<Arrival>),
    Host(Box<ArrayHost>),
    Device(Box<Device>),
    /// The only lock server: nobody else may serve.
    Server(Box<LockServer>),
    /// One of several.
    Replica(Box<Replica>),
}

/// How much a device's disk has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskCounts {
    /// The number of reads.
    pub reads: u64,
    /// The number of writes.
    pub writes: u64,
    /// Blocks in both.
    pub blocks: u64,
}

/// A node of the array.
pub struct Node {
    setting: Setting,
    hosted: Hosted,
    medium: Option<Medium>,
    /// A device's bad sectors: they survive a crash. None before its first start.
    bad: Option<BadSectors>,
    /// The device has given up its medium: there is another one at its next start, without bad sectors.
    useless: bool,
    disk_counts: DiskCounts,
    /// The lock server's log: survives a crash.
    log: Vec<Bytes>,
    /// When its last write so far is done.
    logged_at: Nanos,
    inbox: Inbox<Arrival>,
    /// Arrivals that wait for a device's disk ([`Setting::turns`]).
    turns: VecDeque<Arrival>,
    tick: Option<(Nanos, TimerId)>,
    /// Tries of the host that were noted. Those that wait for the lock server begin in any order.
    noted: BTreeSet<u64>,
    /// The highest time that the clock has shown. Within a process it does not go back, even if the machine's clock does.
    latest: Time,
    /// The life of each host that is connected.
    lives: BTreeMap<NodeId, Life>,
}

impl Node {
    /// The host, if one runs here.
    pub fn host(&self) -> Option<&ArrayHost> {
        match &self.hosted {
            Hosted::Host(host) => Some(host),
            _ => None,
        }
    }

    /// The device, if one runs here and has read its record.
    pub fn device(&self) -> Option<&Device> {
        match &self.hosted {
            Hosted::Device(device) => Some(device),
            _ => None,
        }
    }

    /// One of several lock servers, if it runs here.
    pub fn replica(&self) -> Option<&Replica> {
        match &self.hosted {
            Hosted::Replica(replica) => Some(replica),
            _ => None,
        }
    }

    /// The lock server, if it runs here.
    pub fn server(&self) -> Option<&LockServer> {
        match &self.hosted {
            Hosted::Server(server) => Some(server),
            Hosted::Replica(replica) => replica.server(),
            _ => None,
        }
    }

    /// The work of a device's disk since its start.
    pub fn disk_counts(&self) -> DiskCounts {
        self.disk_counts
    }

    /// Gives a host a piece of work, which [`Note::Done`] answers; nobody but hosts takes any.
    pub fn submit(&mut self, ticket: Ticket, work: Work, cx: &mut Context<'_, Node>) {
        let now = self.now(cx);
        if let Hosted::Host(host) = &mut self.hosted {
            host.handle(now, HostInput::Submit { ticket, work });
            self.run(cx);
        }
    }

    /// Tells a host of a state of the array that was learned elsewhere.
    pub fn learn(&mut self, state: ArrayState, cx: &mut Context<'_, Node>) {
        let now = self.now(cx);
        if let Hosted::Host(host) = &mut self.hosted {
            host.handle(now, HostInput::State(state));
            self.run(cx);
        }
    }

    /// A device has lost touch for so long that it begins anew: whatever has come meanwhile is for nobody.
    pub fn halt(&mut self) {
        self.hosted = Hosted::Starting(Vec::new());
    }

    /// A device's medium gets another number, or the logs of lock servers get other keys.
    pub fn change_key(&mut self, cx: &mut Context<'_, Node>) {
        let now = self.now(cx);
        match &mut self.hosted {
            Hosted::Device(device) => device.change_key(now),
            Hosted::Replica(replica) => replica.change_keys(now),
            _ => {}
        }
        self.run(cx);
    }

    /// A copy of a lock server's log.
    pub fn copy_log(&self) -> Vec<Bytes> {
        self.log.clone()
    }

    /// The log is an older copy when the lock server starts next.
    pub fn put_log_back(&mut self, copy: Vec<Bytes>) {
        self.log = copy;
    }

    /// Reads all that is on a device's disk, past the device; [`Note::Dump`] answers.
    pub fn dump(&mut self, cx: &mut Context<'_, Node>) {
        if let Some(medium) = &mut self.medium {
            medium.dump(cx);
        }
    }

    /// The blocks of a device's medium that have failed and still do.
    pub fn failing(&self) -> Vec<u64> {
        self.medium.as_ref().map_or_else(Vec::new, |medium| medium.bad().failing().collect())
    }

    /// A device's medium loses a block: it returns zeros, or what was there before. [`Note::Replaced`] answers.
    pub fn lose(&mut self, block: u64, zeros: bool, cx: &mut Context<'_, Node>) {
        if let Some(medium) = &mut self.medium {
            medium.lose(block, zeros, cx);
        }
    }

    /// A block that a medium has lost is there again. [`Note::Replaced`] answers.
    pub fn give_back(&mut self, block: u64, cx: &mut Context<'_, Node>) {
        if let Some(medium) = &mut self.medium {
            medium.give_back(block, cx);
        }
    }

    fn start(&mut self, cx: &mut Context<'_, Node>) {
        let setting = &self.setting;
        let places = setting.places;
        match places.role(cx.id()) {
            Role::Device(device) => {
                let shape = setting.shape(device);
                let first = || BadSectors::of(device, &setting.bad_sectors);
                let bad = self.bad.take().unwrap_or_else(first);
                self.medium = Some(Medium::boot(shape, bad, cx));
            }
            Role::Server(id) => {
                let mut config = ServerConfig {
                    scheme: setting.scheme,
                    lease: LEASE,
                    message_life: MESSAGE_LIFE,
                };
                (setting.server)(&mut config);
                let now = self.now(cx);
                if places.servers > 1 {
                    return self.start_replica(id, config, cx);
                }
                match LockServer::new(config, &self.log, now) {
                    Ok(server) => self.started(Hosted::Server(Box::new(server)), cx),
                    Err(error) => cx.note(Note::Failed(error.to_string())),
                }
            }
            Role::Host(host) => {
                let life = Life { host, incarnation: cx.incarnation().into() };
                let state = ArrayState::new(setting.layout.devices());
                let mut config = HostConfig::new(life, setting.scheme, setting.layout, state);
                config.witnesses = places.voters - setting.layout.devices();
                (setting.host)(&mut config);
                self.started(Hosted::Host(Box::new(ArrayHost::new(config))), cx);
                for peer in places.all_devices().chain(places.all_servers()) {
                    cx.connect(peer);
                }
            }
        }
    }

    fn start_replica(&mut self, id: ServerId, server: ServerConfig, cx: &mut Context<'_, Node>) {
        let (now, places) = (self.now(cx), self.setting.places);
        // Unique among its starts.
        let random = now.rotate_left(20) ^ u64::from(id.0);
        #[cfg_attr(not(feature = "mutations"), allow(unused_mut))]
        let mut config = ReplicaConfig::new(id, places.voters, server, random);
        #[cfg(feature = "mutations")]
        {
            config.mutation = self.setting.server_mutation;
        }
        match Replica::new(config, self.log.clone(), now) {
            Ok(replica) => self.started(Hosted::Replica(Box::new(replica)), cx),
            Err(error) => return cx.note(Note::Failed(error.to_string())),
        }
        let below = places.all_servers().take(usize::from(id.0));
        places.all_voters().chain(below).for_each(|peer| cx.connect(peer));
    }

    /// A device has read its record.
    fn booted(&mut self, record: Option<Bytes>, cx: &mut Context<'_, Node>) {
        let setting = &self.setting;
        let Role::Device(id) = setting.places.role(cx.id()) else { return };
        let mut config = DeviceConfig::new(id, setting.scheme, setting.layout);
        config.voters = setting.places.voters;
        (setting.device)(&mut config);
        let state = ArrayState::new(setting.layout.devices());
        // Unique among its starts; a drawn one would change every seed's run.
        let random = self.now(cx).rotate_left(20);
        match Device::new(config, DeviceBoot { now: self.now(cx), record, state, random }) {
            Ok(device) => self.started(Hosted::Device(Box::new(device)), cx),
            Err(error) => cx.note(Note::Failed(error.to_string())),
        }
    }

    fn started(&mut self, hosted: Hosted, cx: &mut Context<'_, Node>) {
        if let Hosted::Starting(early) = std::mem::replace(&mut self.hosted, hosted) {
            self.run(cx);
            early.into_iter().for_each(|arrival| self.handle_arrival(arrival, cx));
        }
    }

    fn arrive(&mut self, arrival: Arrival, cx: &mut Context<'_, Node>) {
        // Table 1 has a time for hosts and the lock server only.
        let takes = match (&arrival, &self.hosted) {
            (Arrival::Packet(..), Hosted::Host(_)) => self.setting.handling.sample(cx.random()),
            (Arrival::Packet(..), Hosted::Server(_) | Hosted::Replica(_)) => {
                self.setting.serving.sample(cx.random())
            }
            _ => 0,
        };
        if self.setting.turns != Turns::AtOnce && self.medium.is_some() {
            self.turns.push_back(arrival);
            return self.take_turns(cx);
        }
        let idle = self.inbox.next().is_none();
        match self.inbox.arrive(cx.now(), takes, arrival) {
            Some(arrival) => self.handle_arrival(arrival, cx),
            None if idle => self.set_handle(cx),
            None => {}
        }
    }

    /// Handles a device's arrivals until its disk has work.
    fn take_turns(&mut self, cx: &mut Context<'_, Node>) {
        while !self.medium.as_ref().is_some_and(Medium::is_busy) && !self.is_held_up() {
            let Some(arrival) = self.turns.pop_front() else { break };
            self.handle_arrival(arrival, cx);
        }
    }

    /// Returns true if the device handles nothing until a lock is free, or its wait has timed out.
    fn is_held_up(&self) -> bool {
        self.setting.turns == Turns::Strict && self.device().is_some_and(Device::awaits_lock)
    }

    fn set_handle(&mut self, cx: &mut Context<'_, Node>) {
        if let Some(at) = self.inbox.next() {
            cx.set_timer_at(at, Alarm::Handle);
        }
    }

    fn handle_arrival(&mut self, arrival: Arrival, cx: &mut Context<'_, Node>) {
        if let Hosted::Starting(early) = &mut self.hosted {
            return early.push(arrival);
        }
        match arrival {
            Arrival::Packet(from, packet) => self.packet(from, *packet, cx),
            Arrival::Link(peer, state) => self.link(peer, state, cx),
        }
        self.run(cx);
    }

    fn packet(&mut self, from: NodeId, packet: Packet, cx: &mut Context<'_, Node>) {
        let now = self.now(cx);
        let places = self.setting.places;
        let peer = places.peer(from);
        match (&mut self.hosted, packet) {
            (Hosted::Device(device), Packet::Request(from, request)) => {
                device.handle(now, DeviceInput::Request { from, request });
            }
            (Hosted::Host(host), Packet::Reply(to, reply)) if to == host.life() => {
                if let Some(from) = peer {
                    host.handle(now, HostInput::Reply { from, reply });
                }
            }
            (Hosted::Host(host), Packet::State(to, state)) if to == host.life() => {
                host.handle(now, HostInput::State(state));
            }
            (Hosted::Server(server), Packet::ServerRequest(from, request)) => {
                server.handle(now, ServerInput::Request { from, request });
            }
            (Hosted::Replica(replica), Packet::ServerRequest(from, request)) => {
                replica.handle(now, ReplicaInput::Request { from, request });
            }
            (Hosted::Host(host), Packet::ServerReply(to, reply)) if to == host.life() => {
                if let Role::Server(from) = places.role(from) {
                    host.handle(now, HostInput::Server { from, reply });
                }
            }
            (Hosted::Device(device), Packet::Attend(serving)) => {
                let answer = device.attended(now, serving);
                cx.send(from, Packet::Attended(answer));
            }
            (Hosted::Device(device), Packet::Inform(state)) => device.learn(now, state),
            (Hosted::Replica(replica), Packet::Attended(Attended { state, silent })) => {
                if let Role::Device(from) = places.role(from) {
                    replica.handle(now, ReplicaInput::Attended { from, state, silent });
                }
            }
            (Hosted::Replica(replica), Packet::Copy(message)) => {
                if let Role::Server(from) = places.role(from) {
                    replica.handle(now, ReplicaInput::Heard { from, message });
                }
            }
            // For an earlier life.
            _ => {}
        }
    }

    fn link(&mut self, node: NodeId, state: LinkState, cx: &mut Context<'_, Node>) {
        let now = self.now(cx);
        let places = self.setting.places;
        match (&mut self.hosted, places.role(node)) {
            (Hosted::Host(host), Role::Server(server)) => {
                host.handle(now, HostInput::ServerLink { server });
            }
            (Hosted::Replica(replica), Role::Server(server)) => {
                let input = match state {
                    LinkState::Up { .. } => ReplicaInput::PeerUp { server, renews: true },
                    LinkState::Down => ReplicaInput::PeerDown { server },
                };
                replica.handle(now, input);
            }
            (Hosted::Host(host), _) => {
                let Some(peer) = places.peer(node) else { return };
                host.handle(
                    now,
                    match state {
                        LinkState::Up { incarnation } => {
                            HostInput::Connected { peer, boot: incarnation.into() }
                        }
                        LinkState::Down => HostInput::Disconnected { peer },
                    },
                );
            }
            (hosted, Role::Host(host)) => {
                let gone = self.lives.remove(&node);
                let come = match state {
                    LinkState::Up { incarnation } => {
                        Some(Life { host, incarnation: incarnation.into() })
                    }
                    LinkState::Down => None,
                };
                self.lives.extend(come.map(|life| (node, life)));
                match hosted {
                    Hosted::Device(device) => {
                        if let Some(life) = come {
                            cx.send(node, Packet::State(life, device.state().clone()));
                        } else if let Some(life) = gone {
                            device.handle(now, DeviceInput::Gone { life });
                        }
                    }
                    Hosted::Server(server) => {
                        if let Some(life) = come {
                            server.handle(now, ServerInput::Connected { life });
                        }
                    }
                    Hosted::Replica(replica) => {
                        if let Some(life) = gone {
                            replica.handle(now, ReplicaInput::Gone { life });
                        }
                        if let Some(life) = come {
                            replica.handle(now, ReplicaInput::Connected { life });
                        }
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }

    /// Executes the machine's outputs, and sets its timer.
    fn run(&mut self, cx: &mut Context<'_, Node>) {
        let now = self.now(cx);
        let next = match &self.hosted {
            Hosted::Starting(_) => None,
            Hosted::Host(_) => self.run_host(cx),
            Hosted::Device(_) => self.run_device(now, cx),
            Hosted::Server(_) => self.run_server(cx),
            Hosted::Replica(_) => self.run_replica(cx),
        };
        self.set_tick(next, cx);
    }

    /// Executes a host's outputs; returns its next timer.
    fn run_host(&mut self, cx: &mut Context<'_, Node>) -> Option<Time> {
        let places = self.setting.places;
        let Hosted::Host(host) = &mut self.hosted else { return None };
        let life = host.life();
        while let Some(output) = host.poll() {
            match output {
                HostOutput::Send { to, request } => {
                    let op = request.call.op;
                    let ticket = host.ticket(op).filter(|_| self.setting.events);
                    if let Some(ticket) = ticket.filter(|_| self.noted.insert(op.seq)) {
                        cx.note(Note::Begun { ticket, op, stamp: request.stamp });
                    }
                    if let Some(node) = places.node(to) {
                        cx.send(node, Packet::Request(life, request));
                    }
                }
                HostOutput::SendServer { to, request } => {
                    cx.send(places.server(to), Packet::ServerRequest(life, request));
                }
                HostOutput::Done { ticket, op, result } => {
                    cx.note(Note::Done { ticket, op, result });
                }
                HostOutput::State(state) => cx.note(Note::State(state)),
                HostOutput::Broken(device) => cx.note(Note::Broken(device)),
            }
        }
        host.next_timer()
    }

    /// Executes a device's outputs; returns its next timer.
    fn run_device(&mut self, now: Time, cx: &mut Context<'_, Node>) -> Option<Time> {
        let places = self.setting.places;
        let Hosted::Device(device) = &mut self.hosted else { return None };
        while let Some(output) = device.poll() {
            match output {
                DeviceOutput::Send { to, reply } => {
                    cx.send(places.host(to.host), Packet::Reply(to, reply));
                }
                DeviceOutput::Disk(ask) => {
                    self.disk_counts.add(&ask);
                    let medium = self.medium.as_mut();
                    // An operation that a disk cannot begin has ended already.
                    if let Some(Ended::Answer(token, result)) =
                        medium.and_then(|medium| medium.ask(ask, cx))
                    {
                        device.handle(now, DeviceInput::Disk { token, result });
                    }
                }
                DeviceOutput::Event(event) if self.setting.events => cx.note(Note::Event(event)),
                DeviceOutput::Event(_) => {}
                DeviceOutput::Silent { life } => cx.note(Note::Silent(life)),
                DeviceOutput::State(state) => {
                    for (node, life) in &self.lives {
                        cx.send(*node, Packet::State(*life, state.clone()));
                    }
                    cx.note(Note::State(state));
                }
                DeviceOutput::Broken(_) => {
                    self.useless = true;
                    if let Role::Device(device) = places.role(cx.id()) {
                        cx.note(Note::Broken(device));
                    }
                }
            }
        }
        device.next_timer()
    }

    /// Executes the lock server's outputs; returns its next timer.
    fn run_server(&mut self, cx: &mut Context<'_, Node>) -> Option<Time> {
        let places = self.setting.places;
        let Hosted::Server(server) = &mut self.hosted else { return None };
        while let Some(output) = server.poll() {
            match output {
                ServerOutput::Send { to, reply } => {
                    cx.send(places.host(to.host), Packet::ServerReply(to, reply));
                }
                ServerOutput::Log(ask) => {
                    let takes = self.setting.log.sample(cx.random());
                    cx.set_timer(takes, Alarm::Logged(ask));
                }
                ServerOutput::Suspect(life) => cx.note(Note::Suspect(life)),
            }
        }
        server.next_timer()
    }

    /// Executes the outputs of one of several lock servers; returns its next timer.
    fn run_replica(&mut self, cx: &mut Context<'_, Node>) -> Option<Time> {
        let places = self.setting.places;
        let Hosted::Replica(replica) = &mut self.hosted else { return None };
        while let Some(output) = replica.poll() {
            match output {
                ReplicaOutput::Send { to, reply } => {
                    cx.send(places.host(to.host), Packet::ServerReply(to, reply));
                }
                ReplicaOutput::Log(ask) => {
                    // In order: those that stand by have several under way.
                    let takes = self.setting.log.sample(cx.random());
                    self.logged_at = (cx.now() + takes).max(self.logged_at + 1);
                    cx.set_timer_at(self.logged_at, Alarm::Logged(ask));
                }
                ReplicaOutput::Suspect(life) => cx.note(Note::Suspect(life)),
                ReplicaOutput::Attend { serving } => {
                    places.all_devices().for_each(|node| cx.send(node, Packet::Attend(serving)));
                }
                ReplicaOutput::Inform { to, state } => {
                    cx.send(places.device(to), Packet::Inform(*state));
                }
                ReplicaOutput::Tell { to, message } => {
                    cx.send(places.server(to), Packet::Copy(message));
                }
                ReplicaOutput::Propose(change) => cx.note(Note::Locks(change)),
                ReplicaOutput::Serves { .. } | ReplicaOutput::Retired => {}
            }
        }
        replica.next_timer()
    }

    fn now(&mut self, cx: &Context<'_, Node>) -> Time {
        self.latest = self.latest.max(BEGINNING + cx.now());
        self.latest
    }

    fn set_tick(&mut self, next: Option<Time>, cx: &mut Context<'_, Node>) {
        let at = next.map(|at| at.saturating_sub(BEGINNING).max(cx.now()));
        if self.tick.map(|(at, _)| at) == at {
            return;
        }
        if let Some((_, timer)) = self.tick.take() {
            cx.cancel_timer(timer);
        }
        self.tick = at.map(|at| (at, cx.set_timer_at(at, Alarm::Tick)));
    }

    /// Has it look at its clock.
    pub fn tick(&mut self, cx: &mut Context<'_, Node>) {
        self.tick = None;
        let now = self.now(cx);
        match &mut self.hosted {
            Hosted::Host(host) => host.handle(now, HostInput::Tick),
            Hosted::Device(device) => device.handle(now, DeviceInput::Tick),
            Hosted::Server(server) => server.handle(now, ServerInput::Tick),
            Hosted::Replica(replica) => replica.handle(now, ReplicaInput::Tick),
            Hosted::Starting(_) => {}
        }
        self.run(cx);
        self.take_turns(cx);
    }

    fn disk(&mut self, done: DiskDone, cx: &mut Context<'_, Node>) {
        let ended = self.medium.as_mut().and_then(|medium| medium.done(done, cx));
        let now = self.now(cx);
        match (ended, &mut self.hosted) {
            (Some(Ended::Booted(record)), _) => self.booted(record, cx),
            (Some(Ended::Dumped(blocks)), _) => cx.note(Note::Dump(blocks)),
            (Some(Ended::Replaced), _) => cx.note(Note::Replaced),
            (Some(Ended::Answer(token, result)), Hosted::Device(device)) => {
                device.handle(now, DeviceInput::Disk { token, result });
                self.run(cx);
                self.take_turns(cx);
            }
            _ => {}
        }
    }

    fn logged(&mut self, ask: LogAsk, cx: &mut Context<'_, Node>) {
        let token = match ask {
            LogAsk::Append { token, record } => {
                self.log.push(record);
                token
            }
            LogAsk::Replace { token, record } => {
                self.log = vec![record];
                token
            }
        };
        let now = self.now(cx);
        match &mut self.hosted {
            Hosted::Server(server) => server.handle(now, ServerInput::Logged { token }),
            Hosted::Replica(replica) => replica.handle(now, ReplicaInput::Logged { token }),
            _ => {}
        }
        self.run(cx);
    }
}

impl DiskCounts {
    fn add(&mut self, ask: &DiskAsk) {
        match ask {
            DiskAsk::Read { extent, .. } => {
                self.reads += 1;
                self.blocks += u64::from(extent.count);
            }
            DiskAsk::Write { blocks, .. } => {
                self.writes += 1;
                self.blocks += blocks.len() as u64;
            }
            DiskAsk::Flush { .. } | DiskAsk::Save { .. } => {}
        }
    }
}

impl Machine for Node {
    type Msg = Packet;
    type Timer = Alarm;
    type Note = Note;

    fn handle(&mut self, input: Input<Self>, cx: &mut Context<'_, Self>) {
        match input {
            Input::Start => self.start(cx),
            Input::Message { from, msg } => self.arrive(Arrival::Packet(from, Box::new(msg)), cx),
            Input::Link { peer, state } => self.arrive(Arrival::Link(peer, state), cx),
            Input::Disk(done) => self.disk(done, cx),
            Input::Timer(Alarm::Tick) => self.tick(cx),
            Input::Timer(Alarm::Handle) => {
                while let Some(arrival) = self.inbox.take(cx.now()) {
                    self.handle_arrival(arrival, cx);
                }
                self.set_handle(cx);
            }
            Input::Timer(Alarm::Logged(ask)) => self.logged(ask, cx),
        }
    }

    fn size_of(packet: &Packet) -> usize {
        message_bytes(match packet {
            Packet::Request(
                _,
                Request {
                    action:
                        Action::Write { blocks, .. }
                        | Action::Commit(blocks)
                        | Action::WriteUnlock(blocks),
                    ..
                },
            ) => blocks.data.len(),
            Packet::Reply(
                _,
                Reply {
                    answer: Answer::Content(content) | Answer::Locked { content: Some(content), .. },
                    ..
                },
            ) => content.data.len(),
            _ => 0,
        })
    }
}

/// A simulated array: all nodes have joined, and nothing has run yet.
pub fn cluster(seed: u64, setting: Setting) -> Sim<Node> {
    let places = setting.places;
    let devices = (0..places.devices).map(DeviceId);
    let disks: Vec<_> = devices.map(|device| setting.shape(device).disks(&setting.disk)).collect();
    let config = Config {
        network: setting.network.clone(),
        trace_lines: setting.trace_lines,
        event_limit: setting.most_events,
        ..Config::default()
    };
    let mut sim = Sim::new(seed, config, move |boot: Boot<Node>| Node {
        setting: setting.clone(),
        hosted: Hosted::Starting(Vec::new()),
        medium: None,
        bad: boot.previous.as_ref().and_then(|previous| match previous.useless {
            true => Some(BadSectors::default()),
            false => Some(previous.medium.as_ref()?.bad().clone()),
        }),
        useless: false,
        disk_counts: DiskCounts::default(),
        log: boot.previous.map_or_else(Vec::new, |previous| previous.log),
        logged_at: 0,
        inbox: Inbox::default(),
        turns: VecDeque::new(),
        tick: None,
        noted: BTreeSet::new(),
        latest: 0,
        lives: BTreeMap::new(),
    });
    for of_device in disks {
        let node = sim.join();
        for disk in of_device {
            sim.add_disk(node, disk);
        }
    }
    sim.join_many((u32::from(places.servers) + places.hosts) as usize);
    sim
}
