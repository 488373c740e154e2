//! Hosts and devices in memory: messages are delivered and disks are done in an order that a seed gives. At the end, stripes
//! are consistent, and there is a serial order that explains what every host has read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use lockify_array::message::{Action, Reply, Request};
use lockify_array::{
    ArrayHost, ArrayState, BadBlock, Block, BlockError, Change, Device, DeviceBoot, DeviceConfig,
    DeviceEvent, DeviceId, DeviceInput, DeviceOutput, DiskAnswer, DiskAsk, DiskError, Header,
    HostAnswer, HostConfig, HostId, HostInput, HostOutput, Layout, Life, LockServer, LogAsk,
    OpError, OpId, Peer, Redundancy, Scheme, ServerConfig, ServerId, ServerInput, ServerOutput,
    ServerReply, ServerRequest, Span, Stamp, Ticket, Time, Work,
};
use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;

pub const MS: Time = 1_000_000;
/// The lock server's.
pub const LEASE: Time = 4_000 * MS;
pub const START: Time = 1_000_000_000_000;

pub fn raid5() -> Layout {
    Layout {
        redundancy: Redundancy::Raid5,
        data: 4,
        groups: 1,
        unit: 2,
        block_size: 16,
        stripes: 6,
        added: Default::default(),
    }
}

pub fn raid6() -> Layout {
    Layout { redundancy: Redundancy::Raid6, data: 3, ..raid5() }
}

/// A byte times a power of two, in the field of the second parity.
fn weighted(byte: u8, power: u16) -> u8 {
    let twice = |x: u8| if x < 0x80 { x << 1 } else { (x << 1) ^ 0x1d };
    (0..power).fold(byte, |x, _| twice(x))
}

/// The sums that the parities of these data units' bytes have.
fn sums(data: &[u8]) -> [u8; 2] {
    let units = (0..).zip(data);
    units.fold([0; 2], |[p, q], (unit, byte)| [p ^ byte, q ^ weighted(*byte, unit)])
}

pub fn life(host: u32) -> Life {
    Life { host: HostId(host), incarnation: 1 }
}

/// How a sector fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bad {
    /// It cannot be read until it is written: the disk puts it elsewhere then.
    UntilWritten,
    /// Its checksum is wrong until it is written.
    Torn,
    /// It takes writes, and cannot be read.
    Unreadable,
    /// It can neither be read nor written.
    Dead,
    /// It takes writes and loses them.
    LosesWrites,
}

/// A device's disk.
#[derive(Clone)]
pub struct DiskInMemory {
    pub blocks: Vec<Block>,
    /// A power loss leaves these: blocks of durable writes, and all that a flush has followed.
    pub durable: Vec<Block>,
    pub record: Option<Bytes>,
    /// Its bad blocks.
    pub bad: BTreeMap<u64, Bad>,
}

impl DiskInMemory {
    fn new(layout: &Layout) -> Self {
        let empty =
            Block { header: Header::default(), data: vec![0; layout.block_size as usize].into() };
        let blocks = vec![empty; layout.device_blocks() as usize];
        DiskInMemory { durable: blocks.clone(), blocks, record: None, bad: BTreeMap::new() }
    }

    fn read(&self, number: u64) -> Result<Block, BadBlock> {
        match self.bad.get(&number) {
            None | Some(Bad::LosesWrites) => Ok(self.blocks[number as usize].clone()),
            Some(Bad::Torn) => Err(BlockError::Torn.into()),
            Some(_) => Err(BlockError::Unreadable.into()),
        }
    }

    fn apply(&mut self, ask: DiskAsk) -> Result<DiskAnswer, DiskError> {
        match ask {
            DiskAsk::Read { extent, .. } => {
                let blocks = extent.start..extent.end();
                Ok(DiskAnswer::Read(blocks.map(|number| self.read(number)).collect()))
            }
            DiskAsk::Write { start, blocks, durable, .. } => {
                for (number, block) in (start..).zip(blocks) {
                    match self.bad.get(&number) {
                        Some(Bad::Dead) => return Err(DiskError("the sector is dead".to_owned())),
                        Some(Bad::LosesWrites) => continue,
                        Some(Bad::UntilWritten | Bad::Torn) => drop(self.bad.remove(&number)),
                        Some(Bad::Unreadable) | None => {}
                    }
                    if durable {
                        self.durable[number as usize] = block.clone();
                    }
                    self.blocks[number as usize] = block;
                }
                Ok(DiskAnswer::Done)
            }
            DiskAsk::Flush { .. } => {
                self.durable.clone_from(&self.blocks);
                Ok(DiskAnswer::Done)
            }
            DiskAsk::Save { record, .. } => {
                self.record = Some(record);
                Ok(DiskAnswer::Done)
            }
        }
    }
}

fn token(ask: &DiskAsk) -> lockify_array::DiskToken {
    match ask {
        DiskAsk::Read { token, .. }
        | DiskAsk::Write { token, .. }
        | DiskAsk::Flush { token }
        | DiskAsk::Save { token, .. } => *token,
    }
}

/// The first byte that a work writes, and what it writes.
pub fn written<'a>(layout: &Layout, work: &'a Work) -> Option<(u64, &'a Bytes)> {
    match work {
        Work::Write { span, data } => Some((span.start * u64::from(layout.block_size), data)),
        Work::Patch { start, data } => Some((*start, data)),
        _ => None,
    }
}

/// Something under way.
pub enum Flight {
    Request(usize, DeviceId, Request),
    Reply(DeviceId, Life, Reply),
    Disk(DeviceId, DiskAsk),
    /// The next on a host's connection to the lock server.
    ToServer(usize),
    /// The next on the lock server's connection to a host.
    FromServer(usize),
    /// The lock server's log.
    Log(LogAsk),
}

/// A host's connection with the lock server, which delivers in order.
#[derive(Default)]
pub struct Connection {
    pub to: VecDeque<ServerRequest>,
    pub from: VecDeque<ServerReply>,
}

/// A piece of work that is done.
pub struct Done {
    pub host: usize,
    pub work: Work,
    pub op: Option<(OpId, Stamp)>,
    pub result: Result<HostAnswer, OpError>,
}

pub struct World {
    pub layout: Layout,
    pub scheme: Scheme,
    pub now: Time,
    pub hosts: Vec<ArrayHost>,
    pub skew: Vec<Time>,
    pub devices: Vec<Device>,
    pub configs: Vec<DeviceConfig>,
    pub disks: Vec<DiskInMemory>,
    pub server: Option<LockServer>,
    pub log: Vec<Bytes>,
    pub connections: Vec<Connection>,
    /// Lives that the lock server has taken for dead.
    pub suspects: BTreeSet<Life>,
    /// Hosts that are no more.
    pub dead_hosts: BTreeSet<usize>,
    /// Devices that are no more.
    pub dead: BTreeSet<DeviceId>,
    /// Devices whose wish to be let in nobody hears.
    pub unheard: BTreeSet<DeviceId>,
    /// Devices that have given up their disks. Their processes have ended.
    pub broken: BTreeSet<DeviceId>,
    pub flights: Vec<Flight>,
    pub random: Xoshiro256PlusPlus,
    /// Deliver messages twice now and then.
    pub doubles: bool,
    /// Hosts tell each other of the array's states.
    pub gossip: bool,
    pub submitted: BTreeMap<(usize, Ticket), Work>,
    pub done: Vec<Done>,
    pub events: Vec<(DeviceId, DeviceEvent)>,
    next_ticket: u64,
    next_tag: u64,
    /// How often devices were started.
    boots: u64,
    /// The last request to let each device in, with its term.
    asked_in: BTreeMap<DeviceId, Change>,
    /// The requests to let devices in that are not answered.
    letting_in: BTreeSet<Ticket>,
}

impl World {
    pub fn new(layout: Layout, scheme: Scheme, hosts: u32, seed: u64) -> Self {
        let state = ArrayState::new(layout.devices());
        World::with_state(layout, scheme, hosts, seed, state)
    }

    pub fn with_state(
        layout: Layout,
        scheme: Scheme,
        hosts: u32,
        seed: u64,
        state: ArrayState,
    ) -> Self {
        let device = |id| DeviceConfig::new(DeviceId(id), scheme, layout);
        let configs: Vec<_> = (0..layout.devices()).map(device).collect();
        let host = |id| HostConfig::new(life(id), scheme, layout, state.clone());
        World::of((0..hosts).map(host).collect(), configs, seed)
    }

    pub fn of(mut hosts: Vec<HostConfig>, configs: Vec<DeviceConfig>, seed: u64) -> Self {
        // Time passes here whenever nothing else can happen.
        hosts.iter_mut().for_each(|host| host.patience_with_devices = Time::MAX);
        let (layout, state) = (hosts[0].layout, hosts[0].state.clone());
        let boot = || DeviceBoot { now: START, record: None, state: state.clone(), random: 1 };
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut world = World {
            layout,
            scheme: hosts[0].scheme,
            now: START,
            skew: hosts.iter().map(|_| random.random_range(0..20 * MS)).collect(),
            hosts: hosts.into_iter().map(ArrayHost::new).collect(),
            devices: configs.iter().map(|c| Device::new(c.clone(), boot()).unwrap()).collect(),
            disks: configs.iter().map(|_| DiskInMemory::new(&layout)).collect(),
            configs,
            server: None,
            log: Vec::new(),
            connections: Vec::new(),
            suspects: BTreeSet::new(),
            dead_hosts: BTreeSet::new(),
            dead: BTreeSet::new(),
            unheard: BTreeSet::new(),
            broken: BTreeSet::new(),
            flights: Vec::new(),
            random,
            doubles: false,
            gossip: false,
            submitted: BTreeMap::new(),
            done: Vec::new(),
            events: Vec::new(),
            next_ticket: 0,
            next_tag: 0,
            boots: 0,
            asked_in: BTreeMap::new(),
            letting_in: BTreeSet::new(),
        };
        world.connections.resize_with(world.hosts.len(), Connection::default);
        for host in 0..world.hosts.len() {
            for device in 0..world.devices.len() {
                let peer = Peer::Device(DeviceId(device as u16));
                let now = world.host_now(host);
                world.hosts[host].handle(now, HostInput::Connected { peer, boot: 0 });
            }
        }
        if world.scheme.has_server() {
            world.start_server();
        }
        world.collect();
        world
    }

    /// Starts the lock server with what its log holds: for the first time, or again after it has died.
    pub fn start_server(&mut self) {
        let gone =
            |f: &Flight| matches!(f, Flight::ToServer(_) | Flight::FromServer(_) | Flight::Log(_));
        self.flights.retain(|flight| !gone(flight));
        let config = ServerConfig { scheme: self.scheme, lease: LEASE, message_life: LEASE };
        self.server = Some(LockServer::new(config, &self.log, self.now).unwrap());
        for host in 0..self.hosts.len() {
            self.connect_to_server(host);
        }
        self.collect();
    }

    /// A new connection between a host and the lock server: messages on the old one are lost.
    pub fn connect_to_server(&mut self, host: usize) {
        self.connections[host] = Connection::default();
        let of_host =
            |f: &Flight| matches!(f, Flight::ToServer(h) | Flight::FromServer(h) if *h == host);
        self.flights.retain(|flight| !of_host(flight));
        let now = self.host_now(host);
        let life = self.hosts[host].life();
        if let (Some(server), false) = (&mut self.server, self.dead_hosts.contains(&host)) {
            self.hosts[host].handle(now, HostInput::ServerLink { server: ServerId(0) });
            server.handle(self.now, ServerInput::Connected { life });
        }
    }

    /// A host is no more.
    pub fn kill_host(&mut self, host: usize) {
        self.dead_hosts.insert(host);
        self.submitted.retain(|(of, _), _| *of != host);
        self.connections[host] = Connection::default();
        let of_host = |f: &Flight| match f {
            Flight::ToServer(h) | Flight::FromServer(h) => *h == host,
            Flight::Reply(_, life, _) => life.host.0 as usize == host,
            _ => false,
        };
        self.flights.retain(|flight| !of_host(flight));
    }

    fn host_now(&self, host: usize) -> Time {
        self.now + self.skew[host]
    }

    pub fn submit(&mut self, host: usize, work: Work) -> Ticket {
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        self.submitted.insert((host, ticket), work.clone());
        let now = self.host_now(host);
        self.hosts[host].handle(now, HostInput::Submit { ticket, work });
        self.collect();
        ticket
    }

    /// A write in which no block is like any other that is ever written.
    pub fn write(&mut self, span: Span) -> Work {
        let mut data = Vec::new();
        for _ in 0..span.count {
            self.next_tag += 1;
            let mut block = vec![0; self.layout.block_size as usize];
            block[..8].copy_from_slice(&self.next_tag.to_le_bytes());
            data.extend(block);
        }
        Work::Write { span, data: data.into() }
    }

    /// A write of so many bytes, which begin anywhere.
    pub fn patch(&mut self, start: u64, length: usize) -> Work {
        let mut data = vec![0; length];
        self.random.fill(&mut data[..]);
        Work::Patch { start, data: data.into() }
    }

    /// A write of whole blocks, or one that leaves a part of the first or last block as it is.
    pub fn random_write(&mut self, longest: u64) -> Work {
        let span = self.random_span(longest);
        if self.random.random_bool(0.6) {
            return self.write(span);
        }
        let size = u64::from(self.layout.block_size);
        let start = span.start * size + self.random.random_range(0..size);
        let length = span.end() * size - start;
        let kept = self.random.random_range(0..size.min(length));
        self.patch(start, (length - kept) as usize)
    }

    pub fn random_span(&mut self, longest: u64) -> Span {
        let count = self.random.random_range(1..=longest);
        Span { start: self.random.random_range(0..=self.layout.blocks() - count), count }
    }

    /// Takes the machines' outputs.
    pub fn collect(&mut self) {
        let mut news = Vec::new();
        for index in (0..self.hosts.len()).filter(|h| !self.dead_hosts.contains(h)) {
            while let Some(output) = self.hosts[index].poll() {
                match output {
                    HostOutput::Send { to: Peer::Device(device), request } => {
                        self.flights.push(Flight::Request(index, device, request));
                    }
                    HostOutput::Send { to: Peer::Server, .. } => panic!("it has other messages"),
                    HostOutput::SendServer { request, .. } => {
                        assert!(self.server.is_some(), "there is no server");
                        self.connections[index].to.push_back(request);
                        self.flights.push(Flight::ToServer(index));
                    }
                    HostOutput::Done { ticket, .. } if self.letting_in.remove(&ticket) => {}
                    HostOutput::Done { ticket, op, result } => {
                        let work = self.submitted.remove(&(index, ticket)).expect("answered twice");
                        self.done.push(Done { host: index, work, op, result });
                    }
                    HostOutput::State(state) => news.push(state),
                    HostOutput::Broken(_) => {}
                }
            }
        }
        while let Some(output) = self.server.as_mut().and_then(LockServer::poll) {
            match output {
                ServerOutput::Send { to, reply } => {
                    let host = to.host.0 as usize;
                    if self.hosts[host].life() == to && !self.dead_hosts.contains(&host) {
                        self.connections[host].from.push_back(reply);
                        self.flights.push(Flight::FromServer(host));
                    }
                }
                ServerOutput::Log(ask) => self.flights.push(Flight::Log(ask)),
                ServerOutput::Suspect(life) => {
                    self.suspects.insert(life);
                }
            }
        }
        for index in 0..self.devices.len() {
            let id = DeviceId(index as u16);
            while let Some(output) = self.devices[index].poll() {
                match output {
                    DeviceOutput::Send { to, reply } => {
                        self.flights.push(Flight::Reply(id, to, reply));
                    }
                    DeviceOutput::Disk(ask) => self.flights.push(Flight::Disk(id, ask)),
                    DeviceOutput::Event(event) => self.events.push((id, event)),
                    DeviceOutput::Silent { .. } | DeviceOutput::State(_) => {}
                    DeviceOutput::Broken(error) => {
                        assert!(!self.disks[index].bad.is_empty(), "{error}");
                        self.broken.insert(id);
                        self.dead.insert(id);
                    }
                }
            }
        }
        if self.gossip && !news.is_empty() {
            for host in (0..self.hosts.len()).filter(|h| !self.dead_hosts.contains(h)) {
                for state in &news {
                    let now = self.skew[host] + self.now;
                    self.hosts[host].handle(now, HostInput::State(state.clone()));
                }
            }
            self.collect();
        }
        self.let_in();
    }

    /// Has devices let in again that have restarted, by the last host that lives.
    fn let_in(&mut self) {
        let Some(host) = (0..self.hosts.len()).rfind(|host| !self.dead_hosts.contains(host)) else {
            return;
        };
        for index in 0..self.devices.len() {
            let id = DeviceId(index as u16);
            let Some(change) = self.devices[index].wants_in() else { continue };
            let unheard = self.dead.contains(&id) || self.unheard.contains(&id);
            if self.asked_in.get(&id) != Some(&change) && !unheard {
                self.next_ticket += 1;
                let ticket = Ticket(self.next_ticket);
                self.asked_in.insert(id, change.clone());
                self.letting_in.insert(ticket);
                let now = self.host_now(host);
                let work = Work::Change { change };
                self.hosts[host].handle(now, HostInput::Submit { ticket, work });
                self.collect();
            }
        }
    }

    /// Lets one thing happen; false if there is nothing.
    pub fn step(&mut self) -> bool {
        if self.flights.is_empty() {
            return self.tick();
        }
        self.now += self.random.random_range(0..MS / 2);
        let index = self.random.random_range(0..self.flights.len());
        let flight = self.flights.swap_remove(index);
        self.deliver(flight);
        true
    }

    fn deliver(&mut self, flight: Flight) {
        match flight {
            Flight::Request(_, device, _) | Flight::Disk(device, _)
                if self.dead.contains(&device) => {}
            Flight::Request(host, device, request) => {
                // A plain read that comes late is for nobody, and has no place in the order of operations.
                let plain = matches!(request.action, Action::Read { .. });
                if self.doubles && !plain && self.random.random_bool(0.1) {
                    self.flights.push(Flight::Request(host, device, request.clone()));
                }
                let input = DeviceInput::Request { from: life(host as u32), request };
                self.devices[usize::from(device.0)].handle(self.now, input);
            }
            Flight::Reply(device, to, reply) => {
                let host = to.host.0 as usize;
                let now = self.host_now(host);
                let input = HostInput::Reply { from: Peer::Device(device), reply };
                self.hosts[host].handle(now, input);
            }
            Flight::ToServer(host) => {
                let request = self.connections[host].to.pop_front();
                let from = self.hosts[host].life();
                if let (Some(server), Some(request)) = (&mut self.server, request) {
                    server.handle(self.now, ServerInput::Request { from, request });
                }
            }
            Flight::FromServer(host) => {
                let now = self.host_now(host);
                if let Some(reply) = self.connections[host].from.pop_front() {
                    self.hosts[host].handle(now, HostInput::Server { from: ServerId(0), reply });
                }
            }
            Flight::Log(ask) => {
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
                if let Some(server) = &mut self.server {
                    server.handle(self.now, ServerInput::Logged { token });
                }
            }
            Flight::Disk(device, ask) => {
                let index = usize::from(device.0);
                let token = token(&ask);
                let result = self.disks[index].apply(ask);
                self.devices[index].handle(self.now, DeviceInput::Disk { token, result });
            }
        }
        self.collect();
    }

    /// Goes on to the next timer.
    fn tick(&mut self) -> bool {
        let alive = (0..self.hosts.len()).filter(|host| !self.dead_hosts.contains(host));
        let hosts = alive.map(|host| (&self.hosts[host], &self.skew[host]));
        let hosts = hosts.filter_map(|(h, skew)| Some(h.next_timer()?.saturating_sub(*skew)));
        let alive = self.devices.iter().filter(|device| !self.dead.contains(&device.id()));
        let devices = alive.filter_map(Device::next_timer);
        let server = self.server.as_ref().and_then(LockServer::next_timer);
        let Some(time) = hosts.chain(devices).chain(server).min() else { return false };
        self.now = self.now.max(time);
        for host in (0..self.hosts.len()).filter(|h| !self.dead_hosts.contains(h)) {
            let now = self.skew[host] + self.now;
            self.hosts[host].handle(now, HostInput::Tick);
        }
        if let Some(server) = &mut self.server {
            server.handle(self.now, ServerInput::Tick);
        }
        for device in self.devices.iter_mut().filter(|d| !self.dead.contains(&d.id())) {
            device.handle(self.now, DeviceInput::Tick);
        }
        self.collect();
        true
    }

    /// Until all work is done, and nothing of it is left.
    pub fn run(&mut self) {
        assert!(self.ends(), "it goes on for ever: {}", self.left());
        assert!(self.submitted.is_empty(), "not answered: {:?}", self.submitted);
    }

    /// Tells a host that the array has another state.
    pub fn announce_state(&mut self, host: usize, state: &ArrayState) {
        let now = self.host_now(host);
        self.hosts[host].handle(now, HostInput::State(state.clone()));
        self.collect();
    }

    /// The machines that are not idle, and the unanswered requests.
    pub fn left(&self) -> String {
        let hosts = self.hosts.iter().filter(|h| !h.is_idle()).map(|h| h.life().host.to_string());
        let devices = self.devices.iter().filter(|d| !d.is_idle()).map(|d| d.id().to_string());
        let who: Vec<_> = hosts.chain(devices).collect();
        let (dead, suspects, left) = (&self.dead, &self.suspects, &self.submitted);
        let hosts = self.hosts.iter().flat_map(ArrayHost::under_way);
        let devices = self.devices.iter().flat_map(|device| {
            device.under_way().into_iter().map(move |line| format!("{}: {line}", device.id()))
        });
        let lines = hosts.chain(devices).collect::<Vec<_>>().join("\n  ");
        format!(
            "{who:?} are not idle, {dead:?} are gone, suspects {suspects:?}, not done: {left:?}\n  {lines}"
        )
    }

    /// Returns true if the world comes to rest after a bounded number of steps.
    pub fn ends(&mut self) -> bool {
        (0..100_000).any(|_| !self.step())
    }

    /// Kills a device's process and starts it again. Requests and answers of its disk are lost, maybe after a write took
    /// effect.
    pub fn restart_device(&mut self, device: DeviceId) {
        let index = usize::from(device.0);
        let mut flights = Vec::new();
        for flight in std::mem::take(&mut self.flights) {
            match flight {
                Flight::Disk(d, ask) if d == device => {
                    if self.random.random_bool(0.5) {
                        drop(self.disks[index].apply(ask));
                    }
                }
                Flight::Reply(d, ..) if d == device => {}
                Flight::Request(_, d, _) if d == device => {}
                other => flights.push(other),
            }
        }
        self.flights = flights;
        let state = self.devices[index].state().clone();
        self.boot_device(index, state);
    }

    /// A device loses its power. Of what no flush has followed, blocks are left at random, or none.
    pub fn lose_cache(&mut self, device: DeviceId, all: bool) {
        let of = |flight: &Flight| matches!(flight, Flight::Disk(d, _) if *d == device);
        self.flights.retain(|flight| !of(flight));
        let DiskInMemory { blocks, durable, .. } = &mut self.disks[usize::from(device.0)];
        for (block, durable) in blocks.iter_mut().zip(durable.iter()) {
            if all || self.random.random_bool(0.5) {
                block.clone_from(durable);
            }
        }
        durable.clone_from(blocks);
        self.restart_device(device);
    }

    /// A device that was refused asks once more.
    #[cfg(feature = "mutations")]
    pub fn let_in_again(&mut self, device: DeviceId) {
        self.asked_in.remove(&device);
        self.let_in();
    }

    /// A new device in the place of another: it has nothing.
    pub fn replace(&mut self, device: DeviceId) {
        let index = usize::from(device.0);
        self.disks[index] = DiskInMemory::new(&self.layout);
        let alive = (0..self.hosts.len()).find(|host| !self.dead_hosts.contains(host)).unwrap_or(0);
        let state = self.hosts[alive].state().clone();
        self.boot_device(index, state);
    }

    /// Starts a device with what its disk has.
    fn boot_device(&mut self, index: usize, state: ArrayState) {
        self.boots += 1;
        self.asked_in.remove(&DeviceId(index as u16));
        let (record, random) = (self.disks[index].record.clone(), self.boots << 32);
        let boot = DeviceBoot { now: self.now, record, state, random };
        self.devices[index] = Device::new(self.configs[index].clone(), boot).unwrap();
        let peer = Peer::Device(DeviceId(index as u16));
        for host in (0..self.hosts.len()).filter(|h| !self.dead_hosts.contains(h)) {
            let now = self.skew[host] + self.now;
            self.hosts[host].handle(now, HostInput::Connected { peer, boot: self.boots });
        }
        self.collect();
    }

    fn block(&self, device: DeviceId, block: u64) -> &[u8] {
        &self.disks[usize::from(device.0)].blocks[block as usize].data
    }

    /// Stripes in which parity does not fit; those that miss a unit have none to compare.
    pub fn inconsistent_stripes(&self, state: &ArrayState) -> Vec<u64> {
        let bad = |stripe: &u64| {
            let layout = &self.layout;
            let units: Vec<_> = layout.units(*stripe).collect();
            let all = units.iter().all(|device| state.has(*device, *stripe));
            all && (0..u64::from(layout.unit)).any(|column| {
                let blocks = units
                    .iter()
                    .map(|device| self.block(*device, layout.unit_start(*stripe) + column));
                let blocks: Vec<_> = blocks.collect();
                let bytes = |at: usize| blocks.iter().map(|block| block[at]).collect::<Vec<_>>();
                (0..layout.block_size as usize).map(bytes).any(|bytes| {
                    let (data, parities) = bytes.split_at(layout.data.into());
                    parities != &sums(data)[..parities.len()]
                })
            })
        };
        (0..self.layout.stripes).filter(bad).collect()
    }

    /// A block of the array as it is on disks, the missing ones from the others.
    pub fn content(&self, state: &ArrayState, block: u64) -> Vec<u8> {
        let place = self.layout.place(block);
        if state.has(place.device, place.stripe) {
            return self.block(place.device, place.block).to_vec();
        }
        if self.layout.redundancy == Redundancy::Raid6 {
            return self.tried_out(state, place);
        }
        let units = (0..self.layout.data).filter(|unit| *unit != place.data_unit);
        let others = units.map(|unit| self.layout.data(place.stripe, unit));
        let mut sum = vec![0; self.layout.block_size as usize];
        for device in others.chain([self.layout.parity(place.stripe)]) {
            let block = self.block(device, place.block);
            sum.iter_mut().zip(block).for_each(|(a, b)| *a ^= b);
        }
        sum
    }

    /// A missing block of an array with two parities: each byte is the one that fits, whatever the other missing unit has.
    fn tried_out(&self, state: &ArrayState, place: lockify_array::Place) -> Vec<u8> {
        let units: Vec<_> = self.layout.units(place.stripe).collect();
        let is_there = |unit: usize| state.has(units[unit], place.stripe);
        let (data, wanted) = (usize::from(self.layout.data), usize::from(place.data_unit));
        let other = (0..data).find(|unit| *unit != wanted && !is_there(*unit));
        let byte = |at: usize| {
            let known = units.iter().map(|device| self.block(*device, place.block)[at]);
            let known: Vec<u8> = known.collect();
            let fits = |x: u8, y: Option<u8>| {
                let mut tried = known[..data].to_vec();
                tried[wanted] = x;
                other.zip(y).into_iter().for_each(|(other, y)| tried[other] = y);
                let parities = (data..units.len()).filter(|parity| is_there(*parity));
                parities.into_iter().all(|parity| sums(&tried)[parity - data] == known[parity])
            };
            let fitting = (0..=255).filter(|x| match other {
                None => fits(*x, None),
                Some(_) => (0..=255).any(|y| fits(*x, Some(y))),
            });
            let [byte] = fitting.collect::<Vec<u8>>()[..] else { panic!("{place:?} is not known") };
            byte
        };
        (0..self.layout.block_size as usize).map(byte).collect()
    }

    /// Judges the run: stripes are consistent, machines are idle, and the order of steps at the devices explains every read.
    /// Returns the violations.
    pub fn verdict(&self, state: &ArrayState) -> Result<(), String> {
        if let Some(stripe) = self.inconsistent_stripes(state).first() {
            return Err(format!("parity of stripe {stripe} does not fit"));
        }
        for (index, host) in self.hosts.iter().enumerate() {
            if !host.is_idle() && !self.dead_hosts.contains(&index) {
                return Err(format!("{:?} is not idle", host.life()));
            }
        }
        for device in self.devices.iter().filter(|d| !self.dead.contains(&d.id())) {
            if !device.is_idle() {
                return Err(format!("{} is not idle", device.id()));
            }
        }
        if self.server.as_ref().is_some_and(|server| !server.is_empty()) {
            return Err("the lock server is not idle".to_owned());
        }
        let order = self.serial_order()?;
        let by_op: BTreeMap<OpId, &Done> =
            self.done.iter().filter_map(|done| Some((done.op?.0, done))).collect();
        let size = self.layout.block_size as usize;
        let mut model = vec![0; self.layout.blocks() as usize * size];
        for op in order {
            let Some(done) = by_op.get(&op) else { continue };
            match (&done.work, &done.result) {
                (Work::Write { .. } | Work::Patch { .. }, Ok(_)) => {
                    let (start, data) = written(&self.layout, &done.work).unwrap();
                    model[start as usize..start as usize + data.len()].copy_from_slice(data);
                }
                (Work::Read { span }, Ok(HostAnswer::Read { data })) => {
                    let expected = &model[span.start as usize * size..span.end() as usize * size];
                    if data[..] != expected[..] {
                        return Err(format!("{op:?} has read {span:?} as nobody left it"));
                    }
                }
                _ => {}
            }
        }
        for block in 0..self.layout.blocks() {
            let place = block as usize * size;
            if self.content(state, block) != model[place..place + size] {
                return Err(format!("block {block} is not what was written last"));
            }
        }
        Ok(())
    }

    /// An order of operations that fits that of their steps at every block of every device.
    fn serial_order(&self) -> Result<Vec<OpId>, String> {
        struct Step {
            op: OpId,
            stamp: Stamp,
            writes: bool,
            /// It was left out, the device being gone.
            left_out: bool,
        }
        let mut blocks: BTreeMap<(DeviceId, u64), Vec<Step>> = BTreeMap::new();
        for (device, event) in &self.events {
            let (op, extent, stamp, writes, dropped) = match *event {
                DeviceEvent::Read { op, extent } => (op, extent, Stamp::default(), false, false),
                DeviceEvent::Write { op, extent, stamp, dropped } => {
                    (op, extent, stamp, true, dropped)
                }
                DeviceEvent::Fenced { .. } => continue,
            };
            for block in extent.start..extent.end() {
                let steps = blocks.entry((*device, block)).or_default();
                let newer = |step: &Step| step.writes && step.stamp > stamp;
                // A write that was dropped counts as before that which replaced it.
                let at = if dropped { steps.iter().position(newer) } else { None };
                steps
                    .insert(at.unwrap_or(steps.len()), Step { op, stamp, writes, left_out: false });
            }
        }
        // A device's steps before its absence come before the writes without it.
        for done in &self.done {
            let (Some((op, stamp)), Some((start, data))) =
                (done.op, written(&self.layout, &done.work))
            else {
                continue;
            };
            let size = u64::from(self.layout.block_size);
            for block in start / size..(start + data.len() as u64).div_ceil(size) {
                let place = self.layout.place(block);
                let steps = blocks.entry((place.device, place.block)).or_default();
                if self.dead.contains(&place.device)
                    && !steps.iter().any(|s| s.writes && s.op == op)
                {
                    let ordered = self.scheme == Scheme::TimestampOrdering;
                    let newer = |s: &Step| ordered && s.writes && !s.left_out && s.stamp > stamp;
                    let at = steps.iter().position(newer);
                    let step = Step { op, stamp, writes: true, left_out: true };
                    steps.insert(at.unwrap_or(steps.len()), step);
                }
            }
        }
        // Tries that were given up have read, but nobody has seen what.
        let counted: BTreeSet<OpId> = self.done.iter().filter_map(|d| Some(d.op?.0)).collect();
        let mut after: BTreeMap<OpId, BTreeSet<OpId>> = BTreeMap::new();
        for steps in blocks.values_mut() {
            steps.retain(|step| step.writes || counted.contains(&step.op));
            for (index, later) in steps.iter().enumerate() {
                for earlier in &steps[..index] {
                    // Parity knows the order of the omitted writes.
                    let both_left_out = earlier.left_out && later.left_out;
                    let conflict = (earlier.writes || later.writes) && !both_left_out;
                    if conflict && earlier.op != later.op {
                        after.entry(later.op).or_default().insert(earlier.op);
                    }
                }
            }
        }
        let mut left: BTreeSet<OpId> = counted.clone();
        left.extend(after.keys().copied());
        left.extend(after.values().flatten().copied());
        let mut order = Vec::new();
        while !left.is_empty() {
            let free = |op: &OpId| after.get(op).is_none_or(|all| all.is_disjoint(&left));
            let Some(next) = left.iter().copied().find(free) else {
                return Err(format!("operations depend on each other in a circle: {left:?}"));
            };
            left.remove(&next);
            order.push(next);
        }
        Ok(order)
    }
}
