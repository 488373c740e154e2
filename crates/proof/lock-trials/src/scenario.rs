//! The decisions of one seed: the cluster, the workload, and the faults.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::rc::Rc;

use lockify_core::{Config, Policy, Time};
use lockify_sim::{Delay, FaultKind, FaultMix, MICROSECOND, MILLISECOND, Nanos, Random};
use rand::RngExt;
use rand::SeedableRng;

use crate::group::Group;
use crate::port::Client;
use crate::workload::disk::Disk;
use crate::workload::files::{FileSystem, Files};
use crate::workload::general::{General, GeneralClient};
use crate::workload::transactions::{TransactionClient, Transactions};

/// Which faults happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Faults {
    /// No faults.
    None,
    /// Every kind.
    All,
}

/// The load of a run's clients.
#[derive(Clone, Debug)]
pub enum Work {
    /// Everything at random, on a few names.
    General(General),
    /// A file system.
    Files(Files),
    /// Transactions that deadlock.
    Transactions(Transactions),
}

/// Everything about one run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// The number of nodes.
    pub nodes: usize,
    /// Clients of each node.
    pub clients: usize,
    /// Directories of the file system.
    pub directories: usize,
    /// The load of clients.
    pub work: Work,
    /// The lockspace's configuration; node and incarnation are filled in later.
    pub config: Config,
    /// Directory weights by node.
    pub weights: Vec<u32>,
    /// Kinds and numbers of faults.
    pub mix: Option<FaultMix>,
    /// Probability of loss, duplication and delay of a claim message while such a fault is in effect.
    pub datagram: f64,
    /// Steps of the protocol at which a node is hit.
    pub targets: Vec<Target>,
    /// When faults stop.
    pub quiet_at: Nanos,
    /// From a crash until the node is started again, if it is not meant to be down.
    pub respawn: Nanos,
    /// The membership, and what goes wrong with it.
    pub group: Group,
    /// Latency of the network.
    pub latency: Delay,
}

/// A fault at a step of the protocol.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Which kind of message, by its number in [`crate::cluster::KINDS`].
    pub kind: usize,
    /// At which of them.
    pub nth: u64,
    /// True if the receiver is hit (before it gets the message), false if the sender is (after
    /// sending).
    pub receiver: bool,
    /// True if the node pauses for a while, false if it crashes.
    pub pause: bool,
}

impl Scenario {
    /// Draws a scenario.
    pub fn draw(
        seed: u64,
        policy: Policy,
        nodes: &RangeInclusive<usize>,
        faults: Faults,
    ) -> Scenario {
        // A stream of its own: the engine's streams begin at the seed itself.
        let mut random = Random::seed_from_u64(seed ^ 0x5ce0_a210);
        let nodes = random.random_range(nodes.clone());
        let quiet_at = random.random_range(200..400) * MILLISECOND;
        let claims = matches!(policy, Policy::Claim(_));
        let mut config = draw_config(&mut random, policy, claims);
        let pause = random.random_range(1_000..4_000) * MICROSECOND;
        let work = draw_work(&mut random, policy, nodes, pause, &config);
        let faulty = faults == Faults::All;
        if matches!(&work, Work::Files(how) if !how.hostile) {
            // A client that opens a removed name gives up, but a slow network may take its time. A
            // refused claim may end in a conflict only where callers break their promise.
            config.merge_patience = 60_000 * MILLISECOND;
        }
        Scenario {
            seed,
            nodes,
            clients: if matches!(work, Work::General(_)) { random.random_range(1..=3) } else { 1 },
            directories: random.random_range(1..=2),
            work,
            config,
            weights: (0..nodes).map(|_| random.random_range(0..8).min(1)).collect::<Vec<u32>>(),
            mix: faulty.then(|| mix(&mut random, quiet_at)),
            datagram: if faulty { random.random_range(0.05..=0.5) } else { 0.0 },
            targets: if faulty { draw_targets(&mut random) } else { Vec::new() },
            quiet_at,
            respawn: random.random_range(7..65) * MILLISECOND,
            latency: draw_latency(&mut random),
            // A stream of its own, as below.
            group: Group::draw(&mut Random::seed_from_u64(seed ^ 0x9_600b), nodes, faulty),
        }
        .with_time_to_detect()
        .with_a_directory()
        .with_deadlocks()
    }

    /// The longer a lease, the longer faults go on: every one of them costs a few leases.
    fn with_time_to_detect(mut self) -> Scenario {
        self.quiet_at += 8 * self.group.lease;
        // In some runs faults last for so long that the others go on without who still runs.
        if let Some(mix) = &mut self.mix
            && self.group.lasting
        {
            mix.duration = Delay::Exponential { base: MILLISECOND, mean: 4 * self.group.lease };
        }
        self
    }

    /// Searches for deadlocks in some runs. Their clients are not a file system's, whose caches
    /// would count as waits. Some of these runs become transactions. The choice has a random stream
    /// of its own, so that seeds keep their meaning.
    fn with_deadlocks(mut self) -> Scenario {
        let mut random = Random::seed_from_u64(self.seed ^ 0xdead_10c4);
        if !matches!(self.work, Work::General(_)) || random.random_bool(0.4) {
            return self;
        }
        if random.random_bool(0.4) {
            return self.deadlocking();
        }
        self.config.deadlock_after = Some(random.random_range(1..=20) * MILLISECOND);
        self
    }

    /// Makes all clients run transactions.
    pub fn deadlocking(mut self) -> Scenario {
        let mut random = Random::seed_from_u64(self.seed ^ 0x7a45_ac71);
        self.config.deadlock_after = Some(random.random_range(1..=20) * MILLISECOND);
        self.clients = random.random_range(1..=3);
        self.work = Work::Transactions(Transactions {
            names: random.random_range(2..=8),
            locks: random.random_range(2..=4),
            pause: random.random_range(100..3_000) * MICROSECOND,
        });
        self
    }

    /// At least one node must keep the directory, whichever fails: weights of 0 are for some only.
    fn with_a_directory(mut self) -> Scenario {
        if self.weights.iter().filter(|weight| **weight > 0).count() * 2 <= self.nodes {
            self.weights.fill(1);
        }
        self
    }

    /// The clients of one node.
    pub fn clients(&self, disk: &Rc<RefCell<Disk>>) -> Vec<Box<dyn Client>> {
        let make = |_| -> Box<dyn Client> {
            match &self.work {
                Work::General(how) => Box::new(GeneralClient::new(how.clone())),
                Work::Files(how) => Box::new(FileSystem::new(how.clone(), Rc::clone(disk))),
                Work::Transactions(how) => Box::new(TransactionClient::new(how.clone())),
            }
        };
        (0..self.clients).map(make).collect()
    }

    /// The file system's disk.
    pub fn disk(&self) -> Disk {
        match &self.work {
            Work::General(_) | Work::Transactions(_) => Disk::default(),
            Work::Files(how) => {
                let each = how.blocks / self.directories as u32;
                Disk::new(self.directories, each.max(1))
            }
        }
    }

    /// The name of the kind of work.
    pub fn work_name(&self) -> &'static str {
        match &self.work {
            Work::General(_) => "general",
            Work::Files(how) if how.hostile => "hostile",
            Work::Files(_) => "files",
            Work::Transactions(_) => "transactions",
        }
    }
}

fn draw_config(random: &mut Random, policy: Policy, claims: bool) -> Config {
    let mut config = Config::new(lockify_core::NodeId(0), 1, policy);
    config.lvb_len = 8;
    config.trace = true;
    // Short enough, now and then, for a late duplicate of a claim to find the resource gone.
    let most = if random.random_bool(0.5) { 1_000 } else { 40_000 };
    config.toss_after = random.random_range(100..=most) * MICROSECOND;
    config.batch_entries = random.random_range(1..=8);
    config.batch_age = random.random_range(50..=1_500) * MICROSECOND;
    config.claim_resend =
        (claims && random.random_bool(0.5)).then(|| random.random_range(1..=5) * MILLISECOND);
    config.claim_cap = if random.random_bool(0.3) { random.random_range(1..=4) } else { 1_000 };
    let most = if random.random_bool(0.5) { 5 } else { 100 };
    config.merge_patience = random.random_range(1..=most) * MILLISECOND;
    config.conflict_patience = 1_000 * MILLISECOND;
    // Mostly less than there is to do, so that a recovery is done in pieces.
    config.bulk = [1, 1, 2, 3, 5, 1_024][random.random_range(0..6)];
    config
}

fn draw_work(
    random: &mut Random,
    policy: Policy,
    nodes: usize,
    pause: Time,
    config: &Config,
) -> Work {
    let strict = matches!(policy, Policy::Claim(lockify_core::ClaimMode::Strict));
    let claims = matches!(policy, Policy::Claim(_));
    let general = if claims { 30 } else { 60 };
    match random.random_range(0..100) {
        drawn if drawn < general => Work::General(General {
            names: random.random_range(1..=5),
            locks: random.random_range(1..=3),
            // Strict claims need no guarantee.
            notify: strict,
            nodes: nodes as u32,
            lvb_len: config.lvb_len,
            value_blocks: true,
            pause,
        }),
        drawn => Work::Files(Files {
            hostile: claims && drawn >= 70,
            blocks: random.random_range(4..=24),
            pause,
            burst: random.random_range(1..=6),
            cache: random.random_range(0..=12),
        }),
    }
}

fn mix(random: &mut Random, quiet_at: Nanos) -> FaultMix {
    let mean = random.random_range(10..60) * MILLISECOND;
    let mut mix = FaultMix::all(10 * MILLISECOND, quiet_at);
    let disk = [FaultKind::DiskError, FaultKind::DiskFull, FaultKind::DiskSlow];
    mix.weights.extend(disk.map(|kind| (kind, 1)));
    mix.gap = Delay::Exponential { base: 0, mean };
    let mean = random.random_range(2..60) * MILLISECOND;
    mix.duration = Delay::Exponential { base: MILLISECOND / 2, mean };
    mix.max_down = 2;
    mix.max_clock_step = 50 * MILLISECOND;
    mix.max_clock_ppm = 200_000;
    mix.max_slow_link = 10 * MILLISECOND;
    mix
}

fn draw_targets(random: &mut Random) -> Vec<Target> {
    let count = [0, 1, 1, 2, 3][random.random_range(0..5)];
    let target = |random: &mut Random| Target {
        kind: random.random_range(0..crate::cluster::KINDS.len()),
        nth: random.random_range(1..=12),
        receiver: random.random_bool(0.5),
        pause: random.random_bool(0.2),
    };
    (0..count).map(|_| target(random)).collect()
}

fn draw_latency(random: &mut Random) -> Delay {
    let base = random.random_range(5..100) * MICROSECOND;
    if random.random_bool(0.5) {
        return Delay::LogNormal { base, median: base, sigma: 1.0 };
    }
    Delay::Mixed {
        usual: Box::new(Delay::Constant(base)),
        rare: Box::new(Delay::Uniform(base, 20 * base)),
        share: 0.1,
    }
}
