//! Hosts and devices in memory: messages are delivered and disks are done in an order that a seed gives. At the end, stripes
//! are consistent, and there is a serial order that explains what every host has read.

#![allow(dead_code)] // Each test uses a part of it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use lockify_array::message::{Reply, Request};
use lockify_array::{
    ArrayState, Block, Device, DeviceBoot, DeviceConfig, DeviceEvent, DeviceId, DeviceInput,
    DeviceOutput, DiskAnswer, DiskAsk, Header, Host, HostAnswer, HostConfig, HostId, HostInput,
    HostOutput, Layout, Life, OpError, OpId, Peer, Redundancy, Scheme, Span, Stamp, Ticket, Time,
    Work,
};
use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;

pub const MS: Time = 1_000_000;
pub const START: Time = 1_000_000_000_000;

pub fn raid5() -> Layout {
    Layout {
        redundancy: Redundancy::Raid5,
        data: 4,
        groups: 1,
        unit: 2,
        block_size: 16,
        stripes: 6,
    }
}

pub fn life(host: u32) -> Life {
    Life { host: HostId(host), incarnation: 1 }
}

/// A device's disk.
pub struct DiskInMemory {
    pub blocks: Vec<Block>,
    pub record: Option<Bytes>,
}

impl DiskInMemory {
    fn new(layout: &Layout) -> Self {
        let empty =
            Block { header: Header::default(), data: vec![0; layout.block_size as usize].into() };
        DiskInMemory { blocks: vec![empty; layout.device_blocks() as usize], record: None }
    }

    fn apply(&mut self, ask: DiskAsk) -> DiskAnswer {
        match ask {
            DiskAsk::Read { extent, .. } => {
                let blocks = extent.start as usize..extent.end() as usize;
                DiskAnswer::Read(self.blocks[blocks].iter().cloned().map(Ok).collect())
            }
            DiskAsk::Write { start, blocks, .. } => {
                for (index, block) in blocks.into_iter().enumerate() {
                    self.blocks[start as usize + index] = block;
                }
                DiskAnswer::Done
            }
            DiskAsk::Flush { .. } => DiskAnswer::Done,
            DiskAsk::Save { record, .. } => {
                self.record = Some(record);
                DiskAnswer::Done
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

/// Something under way.
pub enum Flight {
    Request(usize, DeviceId, Request),
    Reply(DeviceId, Life, Reply),
    Disk(DeviceId, DiskAsk),
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
    pub hosts: Vec<Host>,
    pub skew: Vec<Time>,
    pub devices: Vec<Device>,
    pub configs: Vec<DeviceConfig>,
    pub disks: Vec<DiskInMemory>,
    pub flights: Vec<Flight>,
    pub random: Xoshiro256PlusPlus,
    /// Deliver messages twice now and then.
    pub doubles: bool,
    pub submitted: BTreeMap<(usize, Ticket), Work>,
    pub done: Vec<Done>,
    /// Hosts that do nothing any more.
    pub dead: BTreeSet<usize>,
    /// Devices that do nothing any more.
    pub gone: BTreeSet<DeviceId>,
    pub events: Vec<(DeviceId, DeviceEvent)>,
    /// Which message to lose: its number, in the order of delivery.
    next_ticket: u64,
    next_tag: u64,
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

    pub fn of(hosts: Vec<HostConfig>, configs: Vec<DeviceConfig>, seed: u64) -> Self {
        let (layout, scheme, state) = (hosts[0].layout, hosts[0].scheme, hosts[0].state.clone());
        let boot = || DeviceBoot { now: START, record: None, state: state.clone() };
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut world = World {
            layout,
            scheme,
            now: START,
            skew: hosts.iter().map(|_| random.random_range(0..20 * MS)).collect(),
            hosts: hosts.into_iter().map(Host::new).collect(),
            devices: configs.iter().map(|c| Device::new(c.clone(), boot()).unwrap()).collect(),
            disks: configs.iter().map(|_| DiskInMemory::new(&layout)).collect(),
            configs,
            flights: Vec::new(),
            random,
            doubles: false,
            submitted: BTreeMap::new(),
            done: Vec::new(),
            dead: BTreeSet::new(),
            gone: BTreeSet::new(),
            events: Vec::new(),
            next_ticket: 0,
            next_tag: 0,
        };
        world.collect();
        world
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

    pub fn random_span(&mut self, longest: u64) -> Span {
        let count = self.random.random_range(1..=longest);
        Span { start: self.random.random_range(0..=self.layout.blocks() - count), count }
    }

    /// Takes what the machines want done.
    pub fn collect(&mut self) {
        let mut news = Vec::new();
        for index in 0..self.hosts.len() {
            while let Some(output) = self.hosts[index].poll() {
                match output {
                    HostOutput::Send { to: Peer::Device(device), request } => {
                        self.flights.push(Flight::Request(index, device, request));
                    }
                    HostOutput::Send { to: Peer::Server, .. } | HostOutput::SendServer { .. } => {
                        panic!("there is no server")
                    }
                    HostOutput::Done { ticket, op, result } => {
                        let work = self.submitted.remove(&(index, ticket)).expect("answered twice");
                        self.done.push(Done { host: index, work, op, result });
                    }
                    HostOutput::State(state) => news.push(state),
                    HostOutput::Broken(_) => {}
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
                    DeviceOutput::Broken(error) => panic!("{error}"),
                }
            }
        }
        // Hosts tell each other.
        if !news.is_empty() {
            for host in (0..self.hosts.len()).filter(|h| !self.dead.contains(h)).collect::<Vec<_>>()
            {
                for state in &news {
                    let now = self.host_now(host);
                    self.hosts[host].handle(now, HostInput::State(state.clone()));
                }
            }
            self.collect();
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

    pub fn deliver(&mut self, flight: Flight) {
        match flight {
            Flight::Request(_, device, _) | Flight::Disk(device, _)
                if self.gone.contains(&device) => {}
            Flight::Reply(_, to, _) if self.dead.contains(&(to.host.0 as usize)) => {}
            Flight::Request(host, device, request) => {
                if self.doubles && self.random.random_bool(0.1) {
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
            Flight::Disk(device, ask) => {
                let index = usize::from(device.0);
                let token = token(&ask);
                let result = Ok(self.disks[index].apply(ask));
                self.devices[index].handle(self.now, DeviceInput::Disk { token, result });
            }
        }
        self.collect();
    }

    /// Goes on to the next timer.
    fn tick(&mut self) -> bool {
        let hosts = self.hosts.iter().zip(&self.skew).enumerate();
        let hosts = hosts.filter(|(index, _)| !self.dead.contains(index));
        let hosts = hosts.filter_map(|(_, (h, skew))| Some(h.next_timer()?.saturating_sub(*skew)));
        let devices = self.devices.iter().filter(|device| !self.gone.contains(&device.id()));
        let devices = devices.filter_map(Device::next_timer);
        let Some(time) = hosts.chain(devices).min() else { return false };
        self.now = self.now.max(time);
        for host in
            (0..self.hosts.len()).filter(|host| !self.dead.contains(host)).collect::<Vec<_>>()
        {
            let now = self.host_now(host);
            self.hosts[host].handle(now, HostInput::Tick);
        }
        for device in &mut self.devices {
            device.handle(self.now, DeviceInput::Tick);
        }
        self.collect();
        true
    }

    /// Until all work is done, and nothing of it is left.
    pub fn run(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                break;
            }
        }
        assert!(self.submitted.is_empty(), "not answered: {:?}", self.submitted);
        assert!(self.flights.is_empty(), "it goes on for ever");
    }

    /// Kills a device's process and starts it again: what was under way to and from its disk is lost, maybe after it was
    /// written.
    pub fn restart_device(&mut self, device: DeviceId) {
        let index = usize::from(device.0);
        let mut flights = Vec::new();
        for flight in std::mem::take(&mut self.flights) {
            match flight {
                Flight::Disk(d, ask) if d == device => {
                    if self.random.random_bool(0.5) {
                        self.disks[index].apply(ask);
                    }
                }
                Flight::Reply(d, ..) if d == device => {}
                Flight::Request(_, d, _) if d == device => {}
                other => flights.push(other),
            }
        }
        self.flights = flights;
        let state = self.devices[index].state().clone();
        let boot = DeviceBoot { now: self.now, record: self.disks[index].record.clone(), state };
        self.devices[index] = Device::new(self.configs[index].clone(), boot).unwrap();
        for host in 0..self.hosts.len() {
            let now = self.host_now(host);
            self.hosts[host].handle(now, HostInput::Connected { peer: Peer::Device(device) });
        }
        self.collect();
    }

    /// A new device in the place of another: it has nothing.
    pub fn replace(&mut self, device: DeviceId) {
        let index = usize::from(device.0);
        self.disks[index] = DiskInMemory::new(&self.layout);
        let alive = (0..self.hosts.len()).find(|host| !self.dead.contains(host)).unwrap_or(0);
        let state = self.hosts[alive].state().clone();
        let boot = DeviceBoot { now: self.now, record: None, state };
        self.devices[index] = Device::new(self.configs[index].clone(), boot).unwrap();
        for host in 0..self.hosts.len() {
            let now = self.host_now(host);
            self.hosts[host].handle(now, HostInput::Connected { peer: Peer::Device(device) });
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
            let units = (0..layout.data).map(|unit| layout.data(*stripe, unit));
            let units: Vec<_> = units.chain([layout.parity(*stripe)]).collect();
            let all = units.iter().all(|device| state.has(*device, *stripe));
            all && (0..u64::from(layout.unit)).any(|column| {
                let mut sum = vec![0; layout.block_size as usize];
                for device in &units {
                    let block = self.block(*device, layout.unit_start(*stripe) + column);
                    sum.iter_mut().zip(block).for_each(|(a, b)| *a ^= b);
                }
                sum.iter().any(|byte| *byte != 0)
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
        let units = (0..self.layout.data).filter(|unit| *unit != place.data_unit);
        let others = units.map(|unit| self.layout.data(place.stripe, unit));
        let mut sum = vec![0; self.layout.block_size as usize];
        for device in others.chain([self.layout.parity(place.stripe)]) {
            let block = self.block(device, place.block);
            sum.iter_mut().zip(block).for_each(|(a, b)| *a ^= b);
        }
        sum
    }

    /// Judges what was done: stripes are consistent, machines are idle, and the order of steps at the devices explains every
    /// read. What is wrong is told.
    pub fn verdict(&self, state: &ArrayState) -> Result<(), String> {
        if let Some(stripe) = self.inconsistent_stripes(state).first() {
            return Err(format!("parity of stripe {stripe} does not fit"));
        }
        for host in &self.hosts {
            if !host.is_idle() {
                return Err(format!("{:?} is not idle", host.life()));
            }
        }
        for device in &self.devices {
            if !device.is_idle() {
                return Err(format!("{} is not idle", device.id()));
            }
        }
        let order = self.serial_order()?;
        let by_op: BTreeMap<OpId, &Done> =
            self.done.iter().filter_map(|done| Some((done.op?.0, done))).collect();
        let mut model =
            vec![vec![0; self.layout.block_size as usize]; self.layout.blocks() as usize];
        for op in order {
            let Some(done) = by_op.get(&op) else { continue };
            match (&done.work, &done.result) {
                (Work::Write { span, data }, Ok(_)) => {
                    let blocks = data.chunks(self.layout.block_size as usize);
                    for (block, data) in (span.start..).zip(blocks) {
                        model[block as usize] = data.to_vec();
                    }
                }
                (Work::Read { span }, Ok(HostAnswer::Read { data })) => {
                    let expected = model[span.start as usize..span.end() as usize].concat();
                    if data[..] != expected[..] {
                        return Err(format!("{op:?} has read {span:?} as nobody left it"));
                    }
                }
                _ => {}
            }
        }
        for block in 0..self.layout.blocks() {
            if self.content(state, block) != model[block as usize] {
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
        }
        let mut blocks: BTreeMap<(DeviceId, u64), Vec<Step>> = BTreeMap::new();
        for (device, event) in &self.events {
            let (op, extent, stamp, writes, dropped) = match *event {
                DeviceEvent::Read { op, extent } => (op, extent, Stamp::default(), false, false),
                DeviceEvent::Write { op, extent, stamp, dropped } => {
                    (op, extent, stamp, true, dropped)
                }
            };
            for block in extent.start..extent.end() {
                let steps = blocks.entry((*device, block)).or_default();
                let newer = |step: &Step| step.writes && step.stamp > stamp;
                // A write that was dropped counts as before that which replaced it.
                let at = if dropped { steps.iter().position(newer) } else { None };
                steps.insert(at.unwrap_or(steps.len()), Step { op, stamp, writes });
            }
        }
        // Tries that were given up have read, but nobody has seen what.
        let counted: BTreeSet<OpId> = self.done.iter().filter_map(|d| Some(d.op?.0)).collect();
        let mut after: BTreeMap<OpId, BTreeSet<OpId>> = BTreeMap::new();
        for steps in blocks.values_mut() {
            steps.retain(|step| step.writes || counted.contains(&step.op));
            for (index, later) in steps.iter().enumerate() {
                for earlier in &steps[..index] {
                    if (earlier.writes || later.writes) && earlier.op != later.op {
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
