//! The decisions of one seed: an array, the hosts' work, and the faults.

use std::rc::Rc;

use lockify_array::{AddedGroup, DeviceId, Layout, Redundancy, Scheme, ServerId, Time};
use lockify_sim::{
    Delay, DiskConfig, Fault, FaultKind, FaultMix, FaultPlan, LinkProfile, MICROSECOND,
    MILLISECOND, Nanos, NetworkConfig, NodeId, Random,
};
use rand::{RngExt as _, SeedableRng as _};

use crate::content::BLOCK_SIZE;
use crate::host::LEASE as SERVER_LEASE;
use crate::medium::{BadSector, Failing};
use crate::places::Places;
use crate::setting::{Setting, Variants};
use crate::succession::Succession;

/// Before this time nothing fails: all have found each other.
const START: Nanos = 5 * MILLISECOND;
/// Leases of hosts and devices.
const LEASE: Time = 40 * MILLISECOND;
/// How long devices remember finished operations.
const REMEMBER: Time = 400 * MILLISECOND;
/// Hosts' clocks differ by no more than this, unless a clock is stepped.
const AHEAD: Time = 20 * MILLISECOND;

/// Which faults happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Faults {
    /// No faults.
    None,
    /// Nodes stand still, connections break, clocks are wrong: nobody forgets anything.
    Interruptions,
    /// Devices crash or lose their power, too, and start again. Nothing is left for others to repair.
    Restarts,
    /// Hosts and the lock server crash, too, and devices stay away until the array goes on without them. Sectors fail.
    All,
    /// All of these, in an array with several lock servers. They crash, stand still, and are cut off.
    LockServers,
    /// As `All`, in an array that grows meanwhile.
    Growth,
    /// A host and a device end together, as those of one node do, and start again with what they had. One node at a time. Nothing may be
    /// lost.
    Nodes,
}

impl Faults {
    /// All, the mildest first.
    pub const ALL: [Faults; 7] = [
        Faults::None,
        Faults::Interruptions,
        Faults::Restarts,
        Faults::All,
        Faults::LockServers,
        Faults::Growth,
        Faults::Nodes,
    ];

    /// Its name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Faults::None => "none",
            Faults::Interruptions => "interruptions",
            Faults::Restarts => "restarts",
            Faults::All => "all",
            Faults::LockServers => "lock-servers",
            Faults::Growth => "growth",
            Faults::Nodes => "nodes",
        }
    }

    /// Returns true if hosts crash and devices stay away, so that something is left for others to repair.
    pub fn has_repairs(self) -> bool {
        self.has_failures() || self == Faults::Nodes
    }

    /// Returns true if more may fail at a time than redundancy replaces.
    fn has_failures(self) -> bool {
        matches!(self, Faults::All | Faults::LockServers | Faults::Growth)
    }
}

/// Two devices of a group are gone at the same time. The array cannot go on without them, and operations that need them fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outage {
    /// Which devices.
    pub devices: [DeviceId; 2],
    /// They lose their power; otherwise only their processes end.
    pub power_loss: bool,
    /// When they stop.
    pub from: Nanos,
    /// When they are back.
    pub until: Nanos,
}

impl Outage {
    /// How long hosts wait for a device.
    pub const PATIENCE: Time = 8 * LEASE;

    /// The longest that an operation may take, with the time for which its host may stand still.
    pub fn longest(self) -> Nanos {
        3 * Outage::PATIENCE + 500 * MILLISECOND
    }
}

/// One way in which an array grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// By larger media, to so many stripes.
    Stripes(u64),
    /// By another group of devices, which has no stripes at first.
    Group,
}

/// Everything about one run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// How operations are kept apart.
    pub scheme: Scheme,
    /// The array.
    pub layout: Layout,
    /// Devices, with those that only vote.
    pub devices: u16,
    /// The number of hosts.
    pub hosts: u32,
    /// Operations that each host has under way at once.
    pub depth: u32,
    /// Operations that each host is given in all its life; unlimited if absent.
    pub operations: Option<u32>,
    /// Share of reads.
    pub reads: f64,
    /// Share of writes that may leave sectors of their first and last block as they are.
    pub patches: f64,
    /// Share of operations that begin in the first stripe.
    pub hot: f64,
    /// The longest operation, in blocks.
    pub longest: u64,
    /// The longest pause between two operations.
    pub think: Nanos,
    /// Latency of each message; connections do not keep order among each other.
    pub latency: Delay,
    /// Sectors per block: from 2 on a crash tears blocks.
    pub sectors_per_block: usize,
    /// From a failure until somebody acts on it.
    pub detection: Nanos,
    /// Hosts begin nothing new from this time on, and nothing fails any more.
    pub quiet_at: Nanos,
    /// The faults of the run.
    pub faults: Faults,
    /// When a copy of a device's medium is taken, and when it is put back, if it is.
    pub old_copy: Option<(Nanos, Nanos)>,
    /// Devices check their suspect stripes in the background; otherwise the users of these stripes
    /// check them.
    pub checks: bool,
    /// Sectors that fail.
    pub bad_sectors: Vec<BadSector>,
    /// When two devices of a group are gone, if they are.
    pub outage: Option<Outage>,
    /// In the end, media lose what they have acknowledged, and a scrub repairs it.
    pub losses: bool,
    /// If writes are durable only when they are flushed: the share of flushes among hosts' operations.
    pub flushes: Option<f64>,
    /// When all devices lose their power at once, if they do.
    pub blackout: Option<Nanos>,
    /// When the array is to grow, and how, if it is.
    pub growth: Option<(Nanos, Vec<Growth>)>,
    /// The faults of several lock servers, if there are several.
    pub succession: Option<Succession>,
    /// The choices that the schemes leave open.
    pub variants: Variants,
    /// A run that has more events than this does not end: somebody tries again and again.
    pub most_events: u64,
    /// A rule to leave out.
    #[cfg(feature = "mutations")]
    pub mutation: Option<lockify_array::mutation::Mutation>,
}

impl Scenario {
    /// Draws a scenario. Without a redundancy it is RAID-5 or a mirror.
    pub fn draw(
        seed: u64,
        scheme: Scheme,
        faults: Faults,
        redundancy: Option<Redundancy>,
    ) -> Scenario {
        // A stream of its own: the engine's streams begin at the seed itself.
        let mut random = Random::seed_from_u64(seed ^ 0xa22a_7000);
        let mirror = random.random_bool(0.2);
        let drawn = if mirror { Redundancy::Mirror } else { Redundancy::Raid5 };
        let data = if mirror { 1 } else { random.random_range(2..=4) };
        let redundancy = redundancy.unwrap_or(drawn);
        let layout = Layout {
            redundancy,
            data: match redundancy {
                Redundancy::Mirror => 1,
                Redundancy::Raid5 | Redundancy::Raid6 => data.max(2),
            },
            groups: if random.random_bool(0.2) { 2 } else { 1 },
            unit: random.random_range(1..=3),
            block_size: BLOCK_SIZE,
            stripes: random.random_range(1..=5),
            added: Default::default(),
        };
        let per_stripe = u64::from(layout.data) * u64::from(layout.unit);
        let latency = random.random_range(20..200) * MICROSECOND;
        let mut scenario = Scenario {
            seed,
            scheme,
            layout,
            devices: layout.devices().max(3),
            hosts: random.random_range(2..=4),
            depth: random.random_range(1..=3),
            operations: None,
            reads: random.random_range(0.1..0.8),
            patches: 0.0,
            hot: random.random_range(0.0..0.9),
            longest: (per_stripe * random.random_range(1..=3)).min(layout.blocks()),
            think: random.random_range(1..10) * MILLISECOND,
            latency: Delay::Exponential { base: latency / 4, mean: latency },
            sectors_per_block: random.random_range(1..=2),
            detection: random.random_range(10..60) * MILLISECOND,
            quiet_at: random.random_range(150..400) * MILLISECOND,
            faults,
            old_copy: None,
            checks: random.random_bool(0.5),
            bad_sectors: Vec::new(),
            outage: None,
            losses: false,
            flushes: None,
            blackout: None,
            growth: None,
            succession: None,
            variants: Variants::default(),
            most_events: u64::MAX,
            #[cfg(feature = "mutations")]
            mutation: None,
        };
        scenario.draw_media();
        scenario.draw_caches();
        scenario.old_copy = scenario.draw_old_copy();
        scenario.draw_patches();
        scenario.draw_outage();
        scenario.draw_succession();
        scenario.draw_growth();
        if faults == Faults::Nodes {
            scenario.quiet_at += 10 * LEASE;
        }
        scenario
    }

    /// One run in three has a device that is put back to an older copy, unless it has another bad medium.
    fn draw_old_copy(&self) -> Option<(Nanos, Nanos)> {
        let mut random = Random::seed_from_u64(self.seed ^ 0x01dc_0b1e);
        let sound = self.bad_sectors.is_empty();
        if !self.faults.has_failures() || !sound || !random.random_ratio(1, 3) {
            return None;
        }
        let copied = random.random_range(START..self.quiet_at / 2);
        Some((copied, random.random_range(copied..self.quiet_at)))
    }

    /// One run in three has two devices of a group that are gone for long. No other device fails in it.
    fn draw_outage(&mut self) {
        let mut random = Random::seed_from_u64(self.seed ^ 0x2006_0e00);
        let sound = self.bad_sectors.is_empty() && self.old_copy.is_none();
        if !self.faults.has_failures() || !sound || !random.random_ratio(1, 3) {
            return;
        }
        let size = self.layout.group_size();
        let first = random.random_range(0..self.layout.groups) * size;
        let one = random.random_range(0..size);
        let other = (one + random.random_range(1..size)) % size;
        let from = random.random_range(START..self.quiet_at);
        let until = from + random.random_range(Outage::PATIENCE..4 * Outage::PATIENCE);
        let devices = [one, other].map(|index| DeviceId(first + index));
        let power_loss = random.random_bool(0.5);
        self.outage = Some(Outage { devices, power_loss, from, until });
        // Hosts go on for a while when they are back.
        self.quiet_at = self.quiet_at.max(until + random.random_range(1..100) * MILLISECOND);
    }

    /// Several lock servers, of which each may serve. The run is longer: another one serves a lease after the first has gone.
    fn draw_succession(&mut self) {
        if self.faults != Faults::LockServers || !self.scheme.has_server() {
            return;
        }
        let mut random = Random::seed_from_u64(self.seed ^ 0x5ecc_e551);
        self.quiet_at += 10 * LEASE;
        self.succession = Some(Succession::draw(LEASE, self.quiet_at, &mut random));
    }

    /// The array grows while hosts work. It does so later than that if a device is not good then.
    fn draw_growth(&mut self) {
        if self.faults != Faults::Growth {
            return;
        }
        let mut random = Random::seed_from_u64(self.seed ^ 0x06f0_3714);
        let at = random.random_range(START..self.quiet_at);
        let mut stripes = self.layout.stripes;
        let mut more = |random: &mut Random| {
            stripes += random.random_range(1..=5);
            Growth::Stripes(stripes)
        };
        let first = more(&mut random);
        // Half of the runs have only that. In the others a group comes, before that or behind; and maybe another one, or more of it.
        let steps = match random.random_range(0..6) {
            0..3 => vec![first],
            3 => vec![Growth::Group, first],
            4 => vec![first, Growth::Group, more(&mut random), Growth::Group, more(&mut random)],
            _ => vec![Growth::Group, first, more(&mut random)],
        };
        self.growth = Some((at, steps));
    }

    /// The array when it has grown.
    pub fn grown(&self) -> Layout {
        let steps = self.growth.iter().flat_map(|(_, steps)| steps);
        steps.fold(self.layout, |layout, step| match *step {
            Growth::Stripes(stripes) => Layout { stripes, ..layout },
            Growth::Group => {
                let added = layout.added.iter().chain([self.next_group(&layout)]).collect();
                Layout { added, ..layout }
            }
        })
    }

    /// The group that comes next.
    pub fn next_group(&self, layout: &Layout) -> AddedGroup {
        let behind = layout.added.last().map(|last| last.first.0 + layout.group_size());
        AddedGroup { from: layout.stripes, first: DeviceId(behind.unwrap_or(self.devices)) }
    }

    /// Two runs in three have writes of less than a block, but for those with caches or an older copy: there they show known
    /// problems (docs/array-checks.md). Its stream is its own, as that of the media is.
    fn draw_patches(&mut self) {
        let mut random = Random::seed_from_u64(self.seed ^ 0x0000_b17e);
        let plain = self.flushes.is_none() && self.old_copy.is_none();
        if random.random_ratio(2, 3) && plain {
            self.patches = random.random_range(0.2..1.0);
        }
    }

    /// Draws what is wrong with the media. Its stream is its own, so that all else stays as it was.
    fn draw_media(&mut self) {
        let mut random = Random::seed_from_u64(self.seed ^ 0x0bad_5ec7);
        if matches!(self.faults, Faults::None | Faults::Interruptions) {
            return;
        }
        self.losses = random.random_bool(0.5);
        // A bad sector beside a write that a restart has cut short may cost a block. Only with all faults may any be lost.
        if random.random_bool(0.4) && self.faults.has_failures() {
            // One per run, which costs a block at most.
            self.bad_sectors.push(BadSector {
                device: DeviceId(random.random_range(0..self.layout.devices())),
                block: random.random_range(0..self.layout.device_blocks()),
                failing: Failing::ALL[random.random_range(0..Failing::ALL.len())],
                from: random.random_range(START..self.quiet_at),
                until: self.quiet_at,
            });
        }
    }

    /// Draws if writes stay in the devices' caches until they are flushed. Its stream is its own, too.
    fn draw_caches(&mut self) {
        let mut random = Random::seed_from_u64(self.seed ^ 0x000c_ac4e);
        // What only a node's cache had is gone with the node.
        let volatile = random.random_bool(0.4) && self.faults != Faults::Nodes;
        self.flushes = Some(random.random_range(0.02..0.3)).filter(|_| volatile);
        let at = random.random_range(START..self.quiet_at);
        let blackout = volatile && random.random_bool(0.3);
        let restarts = self.faults == Faults::Restarts || self.faults.has_failures();
        self.blackout = Some(at).filter(|_| blackout && restarts);
    }

    /// The array that it is about.
    pub fn setting(&self, trace_lines: usize) -> Setting {
        let mut setting = Setting::new(self.layout, self.scheme, self.hosts);
        setting.room = self.grown();
        let added = setting.room.all_devices().count() as u16 - self.layout.devices();
        let (voters, devices) = (self.devices, self.devices + added);
        setting.places = Places { devices, voters, ..setting.places };
        if let Some(succession) = &self.succession {
            setting.places.servers = succession.servers;
            setting.server = Rc::new(|server| server.lease = LEASE);
            setting.log = Delay::Uniform(20 * MICROSECOND, 400 * MICROSECOND);
        }
        #[cfg(feature = "mutations")]
        {
            setting.server_mutation = self.mutation;
        }
        setting.network = NetworkConfig {
            link: LinkProfile { latency: self.latency.clone(), bandwidth: None },
            ..NetworkConfig::default()
        };
        let disk = Delay::Uniform(20 * MICROSECOND, 400 * MICROSECOND);
        setting.disk = DiskConfig {
            read: disk.clone(),
            write: disk.clone(),
            flush: disk,
            bandwidth: None,
            ..DiskConfig::default()
        };
        setting.sectors_per_block = self.sectors_per_block;
        setting.bad_sectors = self.bad_sectors.clone().into();
        setting.trace_lines = trace_lines;
        setting.most_events = self.most_events;
        let Variants { basic, delta_at_half } = self.variants;
        let (durable, outage) = (self.flushes.is_none(), self.outage.is_some());
        #[cfg(feature = "mutations")]
        let mutation = self.mutation;
        setting.host = Rc::new(move |host| {
            host.lease = LEASE;
            if outage {
                host.patience_with_devices = Outage::PATIENCE;
            }
            host.backoff = MILLISECOND;
            host.first_patience = 5 * MILLISECOND;
            host.patience = MILLISECOND..=30 * MILLISECOND;
            host.delta_at_half = delta_at_half;
            host.durable = durable;
            #[cfg(feature = "mutations")]
            {
                host.mutation = mutation;
            }
        });
        setting.device = Rc::new(move |device| {
            device.lease = LEASE;
            device.remember = REMEMBER;
            device.ahead = AHEAD;
            device.basic = basic;
            device.durable = durable;
            #[cfg(feature = "mutations")]
            {
                device.mutation = mutation;
            }
        });
        setting
    }

    /// The longest permitted time for an operation of a live host after the last fault. Several operations may wait for
    /// each other's repairs. Each repair waits for leases and for devices' memory, and begins anew after a random time
    /// when it meets another. With a lock server, it also waits for hosts that have not registered by the end of their
    /// lease. Of 8000 runs with all faults, one had an operation of 4.1 s, and no other had more than 3 s.
    pub fn longest_wait(&self) -> Nanos {
        let server = if self.scheme.has_server() { SERVER_LEASE } else { 0 };
        server + 20 * REMEMBER
    }

    /// The faults over time. Host 0 is spared, so that one host can repair.
    pub fn plan(&self, places: &Places, random: &mut Random) -> FaultPlan {
        if self.faults == Faults::None {
            return FaultPlan::new(Vec::new());
        }
        let gap = random.random_range(15..80) * MILLISECOND;
        let duration = random.random_range(5..60) * MILLISECOND;
        let mix = |weights, gap, max_down| FaultMix {
            weights,
            gap: Delay::Exponential { base: MILLISECOND, mean: gap },
            duration: Delay::Exponential { base: MILLISECOND, mean: duration },
            max_down,
            max_clock_step: AHEAD / 2,
            max_clock_ppm: 1_000,
            max_slow_link: 5 * MILLISECOND,
            ..FaultMix::all(START, self.quiet_at)
        };
        let hosts: Vec<NodeId> = places.all_hosts().skip(1).collect();
        let devices: Vec<NodeId> = places.all_devices().collect();
        let everyone: Vec<NodeId> = (0..places.nodes()).map(NodeId).collect();
        use FaultKind::*;
        let crashes = if self.faults.has_failures() { 2 } else { 0 };
        // One that stands still for longer than a lease is a second failure beside that of a node.
        let pauses = u32::from(self.faults != Faults::Nodes);
        let of_hosts = mix(
            vec![(Crash, crashes), (Pause, 2 * pauses), (ClockStep, 1), (ClockRate, 1)],
            gap,
            1,
        );
        let none = matches!(self.faults, Faults::Interruptions | Faults::Nodes);
        let restarts = if none { 0 } else { 2 };
        let of_devices = mix(
            vec![(Crash, restarts), (PowerLoss, restarts), (Pause, pauses)],
            gap * 2,
            self.layout.parities().into(),
        );
        let of_links = mix(vec![(BreakConnection, 3), (SlowLink, 1)], gap / 2, 0);
        let mut entries = Vec::new();
        for (mix, nodes) in [(of_hosts, hosts), (of_devices, devices), (of_links, everyone)] {
            let plan = FaultPlan::generate(&mix, &nodes, 0, random);
            entries.extend(plan.entries().iter().cloned());
        }
        if let Some(Outage { devices, power_loss, from, until }) = self.outage {
            let device = |node: &NodeId| places.all_devices().any(|device| device == *node);
            entries.retain(|(_, fault)| !concerns(fault, device));
            for node in devices.map(|device| places.device(device)) {
                entries.push((from, Fault::Crash { node, power_loss }));
                entries.push((until, Fault::Restart(node)));
            }
        }
        if matches!(self.faults, Faults::All | Faults::Growth)
            && places.servers > 0
            && random.random_bool(0.5)
        {
            let at = random.random_range(START..self.quiet_at);
            let server = places.server(ServerId(0));
            entries.push((at, Fault::Crash { node: server, power_loss: false }));
            entries.push((at + duration, Fault::Restart(server)));
        }
        if let Some(at) = self.blackout {
            for node in places.all_devices() {
                entries.push((at, Fault::Crash { node, power_loss: true }));
                let back = at + random.random_range(1..8) * MILLISECOND;
                entries.push((back, Fault::Restart(node)));
            }
        }
        if let Some(succession) = &self.succession {
            entries.extend(succession.faults(places, START..self.quiet_at));
        }
        FaultPlan::new(entries)
    }
}

/// Returns true if a fault stops a node of these, or starts it.
fn concerns(fault: &Fault, is_one: impl Fn(&NodeId) -> bool) -> bool {
    match fault {
        Fault::Crash { node, .. }
        | Fault::Restart(node)
        | Fault::Pause(node)
        | Fault::Resume(node) => is_one(node),
        _ => false,
    }
}
