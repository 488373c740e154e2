//! One load on one simulated array, and its cost.

use std::collections::HashMap;
use std::rc::Rc;

use lockify_array::{GiveBack, HostId, Layout, OpError, Scheme, Ticket};
use lockify_report::{Row, metric};
use lockify_sim::{Fault, MILLISECOND, Nanos, NodeId, Report, ReportEvent, SECOND, Sim};
use rand::RngExt as _;

use crate::host::{Node, Note, cluster};
use crate::places::Places;
use crate::profile::Profile;
use crate::setting::{Setting, Turns, Variants};
use crate::workload::{self, Arrivals, Mix, PER_HOST, SOURCES};

/// The benchmark's name in rows.
pub const BENCH: &str = "sim-array";

/// The schemes that can be measured.
pub const SCHEMES: [Scheme; 5] = Scheme::ALL;

/// A measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// How operations are kept apart.
    pub scheme: Scheme,
    /// The number of hosts.
    pub hosts: u32,
    /// Sources of operations on all hosts together.
    pub sources: u32,
    /// When the sources of a host begin operations.
    pub arrivals: Arrivals,
    /// Devices: a multiple of five.
    pub devices: u16,
    /// The load of hosts.
    pub mix: Mix,
    /// The costs of disks, messages and processors.
    pub profile: Profile,
    /// Device-served locking: how long requests wait for locks; by default what hosts derive from their operations.
    pub lock_wait: Option<Nanos>,
    /// When devices handle requests. Without control that changes nothing.
    pub turns: Turns,
    /// The choices that the schemes leave open.
    pub variants: Variants,
    /// Callback locking: what goes back when some locks are called back.
    pub give_back: GiveBack,
    /// The largest difference between two clocks.
    pub clock_error: Nanos,
    /// Nothing is counted before.
    pub warm_up: Nanos,
    /// How long is counted.
    pub length: Nanos,
}

impl Case {
    /// Table 1's array of 20 devices, and so many hosts.
    pub fn table_1(scheme: Scheme, hosts: u32, mix: Mix, profile: Profile) -> Case {
        Case {
            scheme,
            hosts,
            sources: hosts * SOURCES,
            arrivals: Arrivals::Apart,
            devices: 20,
            mix,
            profile,
            lock_wait: None,
            turns: Turns::AtOnce,
            variants: Variants { delta_at_half: mix.alignment.delta_at_half(), basic: false },
            give_back: GiveBack::Called,
            clock_error: 4 * MILLISECOND,
            warm_up: 4 * SECOND,
            length: 40 * SECOND,
        }
    }

    /// How many clocks begin operations.
    fn wakes(&self) -> u32 {
        match self.arrivals {
            Arrivals::Apart => self.sources,
            Arrivals::Together => self.hosts,
        }
    }

    /// Operations that are asked for per second.
    pub fn offered(&self) -> f64 {
        f64::from(self.sources) / f64::from(SOURCES) * PER_HOST
    }
}

/// The counts and times of a measurement.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Operations done per second.
    pub per_s: f64,
    /// Time of each operation, sorted.
    pub latencies: Vec<Nanos>,
    /// Messages per operation, replies included.
    pub messages: f64,
    /// Share of operations that waited for others or were started again.
    pub delayed: f64,
    /// Share of tries that were given up and started again.
    pub restarted: f64,
    /// Share of the time that disks were busy, by the means of their work.
    pub busy: f64,
    /// So many operations waited that the array was not going to keep up.
    pub swamped: bool,
}

impl Measured {
    /// Mean time of an operation in milliseconds.
    pub fn mean_ms(&self) -> f64 {
        let sum: f64 = self.latencies.iter().map(|nanos| *nanos as f64).sum();
        sum / self.latencies.len().max(1) as f64 / 1e6
    }

    /// As result rows, without properties. A latency that only says for how long was measured is left out.
    pub fn rows(&self) -> Vec<Row> {
        let row = |metric, value: f64| Row::of(BENCH, metric, &[value]);
        let mut rows = vec![row(&metric::OPS_PER_S, self.per_s)];
        if !self.swamped {
            rows.push(row(&metric::MEAN_LATENCY_MS, self.mean_ms()));
        }
        rows.push(row(&metric::MESSAGES_PER_OP, self.messages));
        rows.push(row(&metric::DELAYED_SHARE, self.delayed));
        rows.push(row(&metric::RETRY_SHARE, self.restarted));
        rows.push(row(&metric::BUSY_SHARE, self.busy));
        rows
    }
}

/// Why a measurement came to nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MeasureError {
    /// The devices are not so many groups.
    #[error("devices are in groups of five: {0} are too few, too many or not a multiple")]
    Devices(u16),
    /// An operation failed, although nothing was broken.
    #[error("an operation failed: {0}")]
    Operation(#[from] OpError),
    /// A run that is checked broke a rule.
    #[error("a rule is broken: {0}")]
    Check(String),
}

/// More operations than come in a second wait: the array will not catch up.
const SWAMPED: f64 = 1.0;

/// The counts since the start of a run.
#[derive(Clone, Copy, Default)]
struct Counts {
    at: Nanos,
    messages: u64,
    delayed: u64,
    restarts: u64,
    reads: u64,
    writes: u64,
    blocks: u64,
}

/// Runs a load.
///
/// # Errors
/// There is no such array, or an operation failed.
pub fn measure(case: &Case, seed: u64) -> Result<Measured, MeasureError> {
    let layout = workload::layout(case.devices).ok_or(MeasureError::Devices(case.devices))?;
    let Variants { basic, delta_at_half } = case.variants;
    let (lock_wait, give_back) = (case.lock_wait, case.give_back);
    let setting = Setting {
        network: case.profile.network(),
        disk: case.profile.disk(),
        handling: case.profile.handling.clone(),
        serving: case.profile.serving.clone(),
        turns: case.turns,
        events: false,
        host: Rc::new(move |config| {
            config.delta_at_half = delta_at_half;
            config.give_back = give_back;
            if let Some(wait) = lock_wait {
                config.first_patience = wait;
                config.patience = wait..=wait;
            }
        }),
        device: Rc::new(move |config| config.basic = basic),
        ..Setting::new(layout, case.scheme, case.hosts)
    };
    let places = setting.places;
    let mut sim = cluster(seed, setting);
    let clocked = places.all_devices().chain(places.all_hosts());
    for node in clocked {
        let by = sim.fault_random().random_range(0..=case.clock_error) as i64;
        sim.inject_at(0, Fault::ClockStep { node, by });
    }
    for source in 0..case.wakes() {
        // Connections are made before.
        let first = SECOND + workload::first(sim.workload_random());
        sim.wake_at(first, source.into());
    }
    let begin = case.warm_up;
    let mut run =
        Run { case, layout, places, sim, under_way: HashMap::new(), next: 0, done: Vec::new() };
    // An array that is overloaded before the counting starts has done its possible work by then, beginning with the
    // first operations.
    let early = run.until(begin)?;
    let before = if early {
        Counts { at: SECOND, ..Counts::default() }
    } else {
        run.done.clear();
        run.counts()
    };
    let swamped = early || run.until(begin + case.length)?;
    let after = run.counts();
    Ok(run.measured(before, after, swamped))
}

struct Run<'a> {
    case: &'a Case,
    layout: Layout,
    places: Places,
    sim: Sim<Node>,
    /// When each operation began.
    under_way: HashMap<(NodeId, Ticket), Nanos>,
    next: u64,
    /// How long operations took that have ended.
    done: Vec<Nanos>,
}

impl Run<'_> {
    /// Runs until then; whether it ended before, since the array does not keep up.
    fn until(&mut self, end: Nanos) -> Result<bool, MeasureError> {
        let most = (self.case.offered() * SWAMPED) as usize;
        while let Ok(Report { at, event }) = self.sim.next_report(end) {
            match event {
                ReportEvent::Wake(source) => self.wake(at, source),
                ReportEvent::Note { node, note: Note::Done { ticket, result, .. }, .. } => {
                    result?;
                    if let Some(begun) = self.under_way.remove(&(node, ticket)) {
                        self.done.push(at - begun);
                    }
                }
                _ => {}
            }
            if self.under_way.len() > most {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The next operation of a source, or of all of a host's; those after it come whether or not this one has ended.
    fn wake(&mut self, at: Nanos, source: u64) {
        let again = workload::think().sample(self.sim.workload_random());
        for _ in 0..self.case.sources / self.case.wakes() {
            self.submit(at, source);
        }
        self.sim.wake_at(at + again, source);
    }

    fn submit(&mut self, at: Nanos, source: u64) {
        let work = self.case.mix.draw(&self.layout, self.sim.workload_random());
        let host = HostId((source % u64::from(self.case.hosts)) as u32);
        let node = self.places.host(host);
        let ticket = Ticket(self.next);
        self.next += 1;
        self.under_way.insert((node, ticket), at);
        self.sim.with(node, |node, cx| node.submit(ticket, work, cx));
    }

    fn counts(&self) -> Counts {
        let mut counts =
            Counts { at: self.sim.now(), messages: self.sim.stats().sent, ..Counts::default() };
        for node in self.places.all_hosts() {
            if let Some(host) = self.sim.machine(node).and_then(Node::host) {
                counts.delayed += host.counts().delayed;
                counts.restarts += host.counts().restarts;
            }
        }
        for node in self.places.all_devices() {
            if let Some(device) = self.sim.machine(node) {
                counts.reads += device.disk_counts().reads;
                counts.writes += device.disk_counts().writes;
                counts.blocks += device.disk_counts().blocks;
            }
        }
        counts
    }

    fn measured(self, before: Counts, after: Counts, swamped: bool) -> Measured {
        let mut latencies = self.done;
        latencies.sort_unstable();
        let done = latencies.len().max(1) as f64;
        let grown = |of: fn(&Counts) -> u64| (of(&after) - of(&before)) as f64;
        let length = grown(|counts| counts.at).max(1.0);
        let restarts = grown(|counts| counts.restarts);
        let busy = self.case.profile.disk_time(
            grown(|counts| counts.reads),
            grown(|counts| counts.writes),
            grown(|counts| counts.blocks),
        );
        Measured {
            per_s: latencies.len() as f64 * SECOND as f64 / length,
            latencies,
            messages: grown(|counts| counts.messages) / done,
            delayed: grown(|counts| counts.delayed) / done,
            restarted: restarts / (restarts + done),
            busy: busy / length / f64::from(self.case.devices),
            swamped,
        }
    }
}
