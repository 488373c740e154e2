//! Seeds of clients with faults: `lockify sim onesided`.
//!
//! Clients take random locks of a small table and hold them for up to more than a lease. They crash, pause and lose
//! connections, while their verbs are delayed by up to ten leases. Each client is a node of the history that
//! [`lockify_check`] judges. In the end, client 1, which has no faults, takes every lock once. So everything that the
//! others left is repaired.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use lockify_check::Checker;
use lockify_history::{EUNLOCK, Event, Kind, Mode as Checked};
use lockify_onesided::port::{Port, SharedMemory};
use lockify_onesided::{
    Capabilities, Client, Fabric as _, Generation, LockError, LockId, MAX_TURNOVER, Mode, Options,
    Protocol, Released, Table, serve,
};
use lockify_sim::{
    Failure, FaultKind, FaultMix, FaultPlan, MILLISECOND, Nanos, NodeId, NodeStatus, Random,
    ReportEvent, Seeds, Sim,
};
use rand::RngExt as _;
use rand::SeedableRng as _;

use crate::host::{Node, Note, Notes, Setting, Stalls, Step, Task, fabric};
use crate::overtaking::Overtaking;
use crate::profile::{CLOCK_ERROR, hundred_gigabit};

/// A short lease: much happens in little time.
const LEASE: Nanos = MILLISECOND;
/// Clients begin nothing new after this time, and nothing fails any more.
const QUIET: Nanos = 60 * MILLISECOND;
/// By then everybody must be done.
const END: Nanos = 160 * MILLISECOND;

/// Nothing happens to this client, so that it can sweep.
const SPARED: u32 = 1;

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The protocol.
    pub protocol: Protocol,
    /// The seeds.
    pub seeds: Range<u64>,
    /// True if there are faults.
    pub faults: bool,
    /// Keep the trace of a failing seed.
    pub trace: bool,
    /// Threads; 0 for as many as there are cores.
    pub threads: usize,
    /// A hole to open.
    #[cfg(feature = "mutations")]
    pub mutation: Option<lockify_onesided::mutation::Mutation>,
}

impl Run {
    /// These seeds, with faults.
    pub fn new(protocol: Protocol, seeds: Range<u64>) -> Run {
        Run {
            protocol,
            seeds,
            faults: true,
            trace: false,
            threads: 0,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }

    fn replay(&self) -> String {
        let faults = if self.faults { "all" } else { "none" };
        format!(
            "lockify sim onesided --protocol {} --faults {faults} --seed {{seed}} --trace",
            self.protocol.name()
        )
    }
}

/// The events of one run, counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Locks taken.
    pub grants: u64,
    /// Releases that came after the lock had been taken away.
    pub revoked: u64,
    /// Faults injected.
    pub faults: u64,
    /// Events that the engine handled.
    pub events: u64,
    /// All that happened, in a number.
    pub digest: u64,
}

/// The results of all seeds.
pub type Summary = lockify_sim::summary::Summary<Outcome>;

impl lockify_sim::summary::Outcome for Outcome {
    fn add(&mut self, other: &Outcome) {
        self.grants += other.grants;
        self.revoked += other.revoked;
        self.faults += other.faults;
        self.events += other.events;
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Outcome { grants, revoked, faults, events, .. } = self;
        write!(
            f,
            "{grants} locks taken, {revoked} releases too late, {faults} faults, {events} events"
        )
    }
}

/// Runs all seeds; `progress` is told how many are done.
pub fn run(run: &Run, progress: impl Fn(u64) + Sync) -> Summary {
    let seeds = Seeds { threads: run.threads, ..Seeds::new(run.seeds.clone(), run.replay()) };
    let name = format!("{:<11}", run.protocol.name());
    lockify_sim::summary::run(
        name,
        &seeds,
        run.trace,
        |seed, trace| run_one(run, seed, trace),
        progress,
    )
}

/// Runs one seed.
///
/// # Errors
/// The violation, with the trace if it was kept.
pub fn run_one(run: &Run, seed: u64, trace: bool) -> Result<Outcome, Failure> {
    let mut random = Random::seed_from_u64(seed);
    let clients = random.random_range(2..=7usize);
    let locks = random.random_range(1..=3u64);
    let mut options = Options::new(run.protocol);
    // Where nothing is repaired, nobody may fail; verbs are held up all the same.
    let crashes = run.faults && run.protocol.repairs();
    if run.protocol.repairs() {
        options = options.with_lease(LEASE);
    }
    options.net = LEASE / 2;
    options.batch = random.random_range(1..=4);
    // Counters run out from time to time. They must not run out so fast that a word's place is used again within ten
    // leases, the longest delay of a verb. A table assumes that no verb is under way for that long.
    let short = if run.faults { 256 } else { 8 };
    options.turnover = if random.random_bool(0.5) { short } else { MAX_TURNOVER };
    #[cfg(feature = "mutations")]
    {
        options.mutation = run.mutation;
    }
    let memory = SharedMemory::default();
    let table = table(&memory, locks).map_err(|e| Failure::from(e.to_string()))?;
    let setting = Setting {
        profile: Rc::new(hundred_gigabit()),
        memory: memory.clone(),
        stalls: run.faults.then_some(Stalls { share: 0.002, longest: 10 * LEASE }),
        capabilities: Capabilities {
            masked: random.random_bool(0.5),
            clock_error: Some(CLOCK_ERROR),
        },
        notes_adds: options.most_writers_before_a_reader().is_some(),
    };
    let make = move |node: NodeId, port: Port, notes: Notes| -> Task {
        if node == NodeId(0) {
            return Box::pin(async move {
                // The home's own verbs are local, and cannot fail.
                let _ = serve(port, table, options).await;
            });
        }
        let seed = seed.wrapping_add(u64::from(node.0) << 40);
        Box::pin(client(port, table, options, notes, seed, node == NodeId(SPARED)))
    };
    let mut sim = fabric(seed, setting, clients, if trace { 1_000_000 } else { 0 }, Box::new(make));
    if crashes && clients > 1 {
        let victims: Vec<NodeId> = (2..=clients as u32).map(NodeId).collect();
        let plan = plan(&victims, sim.fault_random());
        sim.apply_plan(&plan);
    }
    let outcome = watch(&mut sim, clients, &options);
    let fail = |message| Failure {
        message: format!("{message} ({clients} clients, {locks} locks)"),
        trace: sim.trace().to_string(),
    };
    let outcome = outcome.map_err(fail)?;
    let left = (0..locks)
        .map(LockId)
        .find(|lock| !crashes && !table.is_idle(&memory.borrow(), run.protocol, *lock));
    match left {
        Some(lock) => Err(fail(format!(
            "all have released, but the word of lock {} is not that of a free lock",
            lock.0
        ))),
        None => Ok(outcome),
    }
}

fn table(memory: &SharedMemory, locks: u64) -> Result<Table, Box<dyn std::error::Error>> {
    let slots = 1024;
    let bytes = Table::bytes(locks, slots).ok_or("the table is too large")?;
    let region = memory.borrow_mut().register(lockify_onesided::Peer(1), bytes)?;
    Ok(Table::new(region, locks, slots)?)
}

/// Crashed clients stay away: a process that starts again is another peer.
fn plan(victims: &[NodeId], random: &mut Random) -> FaultPlan {
    let mix = FaultMix {
        weights: vec![(FaultKind::Crash, 1), (FaultKind::Pause, 4)],
        gap: lockify_sim::Delay::Exponential { base: 0, mean: 4 * LEASE },
        duration: lockify_sim::Delay::Exponential { base: LEASE / 4, mean: 2 * LEASE },
        max_down: 2,
        ..FaultMix::all(LEASE, QUIET)
    };
    let plan = FaultPlan::generate(&mix, victims, 0, random);
    let stays_away = |fault: &lockify_sim::Fault| {
        use lockify_sim::Fault;
        !matches!(fault, Fault::Restart(_) | Fault::HealAll)
    };
    let mut entries: Vec<_> =
        plan.entries().iter().filter(|(_, fault)| stays_away(fault)).cloned().collect();
    // Connections to the home and between clients break, too.
    for victim in victims {
        if random.random_bool(0.2) {
            let other = NodeId(random.random_range(0..=victims.len() as u32));
            let at = random.random_range(LEASE..QUIET);
            entries.push((at, lockify_sim::Fault::BreakConnection(*victim, other)));
        }
        entries.push((QUIET, lockify_sim::Fault::Resume(*victim)));
    }
    FaultPlan::new(entries)
}

async fn client(port: Port, table: Table, options: Options, notes: Notes, seed: u64, sweeps: bool) {
    let lock_of = std::cell::Cell::new((0, 0));
    let note =
        |step| notes.borrow_mut().push(Note { lock: lock_of.get().0, hold: lock_of.get().1, step });
    let work = async {
        let mut random = Random::seed_from_u64(seed);
        let mut client = Client::new(port.clone(), table, options)?;
        let mut hold = 0;
        loop {
            let sweeping = port.now() >= QUIET;
            if sweeping && !sweeps {
                break;
            }
            let rounds = if sweeping { 0..table.locks() } else { 0..1 };
            if sweeping {
                // The last verbs that were held up are through, and the last leases over.
                port.sleep_until(QUIET + 20 * LEASE).await;
            }
            for round in rounds {
                hold += 1;
                let lock = if sweeping { round } else { random.random_range(0..table.locks()) };
                let shared = !sweeping && random.random_bool(0.5);
                lock_of.set((lock, hold));
                one(&mut client, &note, LockId(lock), shared, &mut random).await?;
            }
            if sweeping {
                break;
            }
            port.sleep_until(port.now() + random.random_range(0..LEASE / 8)).await;
        }
        Ok::<(), LockError>(())
    };
    match work.await {
        Ok(()) => note(Step::Done),
        Err(error) => note(Step::Failed(error.to_string())),
    }
}

async fn one(
    client: &mut Client<Port>,
    note: &impl Fn(Step),
    lock: LockId,
    shared: bool,
    random: &mut Random,
) -> Result<(), LockError> {
    let mode = if shared { Mode::Shared } else { Mode::Exclusive };
    note(Step::Call(mode));
    let guard = client.lock(lock, mode).await?;
    let (until, token, generation) = (guard.valid_until(), guard.token(), guard.generation());
    note(Step::Grant { until, token, generation });
    // Mostly short; now and then longer than the lease.
    let longest = if random.random_bool(0.1) { LEASE * 3 / 2 } else { LEASE / 20 };
    let until = client.fabric().now() + random.random_range(0..longest);
    client.fabric().sleep_until(until).await;
    note(Step::Release);
    let _: Released = client.unlock(guard).await?;
    note(Step::Released);
    Ok(())
}

/// A hold, as the history has it.
#[derive(Clone, Copy)]
struct Hold {
    node: u32,
    lock: u64,
    number: u64,
    mode: Mode,
}

/// Lets the run go on, and has its history checked.
fn watch(sim: &mut Sim<Node>, clients: usize, options: &Options) -> Result<Outcome, String> {
    let mut watcher = Watcher::new(clients, options);
    // It ends when nothing is left to happen, or the time is over.
    while let Ok(report) = sim.next_report(END) {
        let at = report.at;
        match report.event {
            ReportEvent::Note { node, note, .. } => watcher.note(sim, at, node.0, note)?,
            ReportEvent::Wake(alarm) => watcher.lease_ended(at, alarm)?,
            ReportEvent::Node { node, status: NodeStatus::Crashed, .. } => {
                watcher.crashed(at, node.0)?;
            }
            ReportEvent::Fault(_) => watcher.outcome.faults += 1,
            ReportEvent::Node { .. } => {}
        }
        if watcher.busy.is_empty() {
            break;
        }
    }
    watcher.finish(sim)
}

/// Turns the reports of a run into the history that the checker judges. It has a method for each report.
struct Watcher {
    checker: Checker,
    overtaking: Overtaking,
    outcome: Outcome,
    /// Holds whose lease ends, by the alarm that says so.
    leases: HashMap<u64, Hold>,
    /// The last hold of each client that has one, or calls for one.
    held: HashMap<u32, Hold>,
    /// Clients that are not done.
    busy: Vec<u32>,
    /// Clients whose present hold is reported as lost.
    lost: Vec<u32>,
    alarms: u64,
}

impl Watcher {
    fn new(clients: usize, options: &Options) -> Watcher {
        Watcher {
            checker: Checker::new(lockify_check::Options::whole()),
            overtaking: Overtaking::new(options),
            outcome: Outcome::default(),
            leases: HashMap::new(),
            held: HashMap::new(),
            busy: (1..=clients as u32).collect(),
            lost: Vec::new(),
            alarms: 0,
        }
    }

    fn observe(&mut self, event: &Event) -> Result<(), String> {
        self.checker.observe(event).map_err(|v| format!("{}: {}", v.rule, v.what))
    }

    fn note(
        &mut self,
        sim: &mut Sim<Node>,
        at: Nanos,
        node: u32,
        note: Note,
    ) -> Result<(), String> {
        let of_hold = |kind| event(at, node, kind).lock(note.hold);
        match note.step {
            Step::Added(NodeId(client)) => self.overtaking.adds(client),
            Step::Call(mode) => {
                let hold = Hold { node, lock: note.lock, number: note.hold, mode };
                self.called(at, hold)?;
            }
            Step::Grant { until, token, generation } => {
                self.granted(sim, at, node, (until, token, generation))?;
            }
            Step::Release => self.observe(&of_hold(Kind::Unlock).op(2))?,
            Step::Released => {
                self.held.remove(&node);
                let complete = of_hold(Kind::Complete).op(2);
                self.observe(&Event { status: Some(EUNLOCK), ..complete })?;
            }
            Step::Failed(why) => self.failed(at, node, note.hold, &why)?,
            Step::Done => self.busy.retain(|n| *n != node),
        }
        Ok(())
    }

    fn called(&mut self, at: Nanos, hold: Hold) -> Result<(), String> {
        let Hold { node, lock, number, mode } = hold;
        self.overtaking.calls(node, lock, mode);
        let request = event(at, node, Kind::Request).lock(number).op(1);
        let name = format!("lock{lock}");
        self.observe(&request.resource(name.as_str()).mode(checked(mode)))?;
        // A new acquisition: an earlier loss concerned another hold.
        self.lost.retain(|n| *n != node);
        self.held.insert(node, hold);
        Ok(())
    }

    fn granted(
        &mut self,
        sim: &mut Sim<Node>,
        at: Nanos,
        node: u32,
        (until, token, generation): (Nanos, Option<u64>, Generation),
    ) -> Result<(), String> {
        self.outcome.grants += 1;
        let Some(hold) = self.held.get(&node).copied() else { return Ok(()) };
        self.overtaking.granted(node, hold.lock, hold.mode, generation)?;
        let grant = event(at, node, Kind::Grant).lock(hold.number).op(1);
        self.observe(&Event { token, ..grant.mode(checked(hold.mode)) })?;
        self.alarms += 1;
        self.leases.insert(self.alarms, hold);
        sim.wake_at(until, self.alarms);
        Ok(())
    }

    fn failed(&mut self, at: Nanos, node: u32, hold: u64, why: &str) -> Result<(), String> {
        self.overtaking.gone(node);
        self.busy.retain(|n| *n != node);
        if node == SPARED {
            return Err(format!("client {node}, which nothing happened to, failed: {why}"));
        }
        if self.held.remove(&node).is_some() {
            self.observe(&event(at, node, Kind::Lost).lock(hold))?;
        }
        self.observe(&event(at, node, Kind::Leave))
    }

    /// An alarm rings: the lease of its hold is over.
    fn lease_ended(&mut self, at: Nanos, alarm: u64) -> Result<(), String> {
        let Some(hold) = self.leases.remove(&alarm) else { return Ok(()) };
        // The client may have released this hold, or taken another, before the end of its
        // lease.
        let same = |h: &Hold| (h.number, h.lock) == (hold.number, hold.lock);
        if !self.held.get(&hold.node).is_some_and(same) {
            return Ok(());
        }
        self.outcome.revoked += 1;
        self.lost.push(hold.node);
        self.observe(&event(at, hold.node, Kind::Lost).lock(hold.number))
    }

    fn crashed(&mut self, at: Nanos, node: u32) -> Result<(), String> {
        self.outcome.faults += 1;
        self.overtaking.gone(node);
        self.busy.retain(|n| *n != node);
        // A hold whose lease ended before the crash has been reported as lost already.
        if let Some(hold) = self.held.remove(&node)
            && !self.lost.contains(&node)
        {
            self.observe(&event(at, node, Kind::Lost).lock(hold.number))?;
        }
        self.observe(&event(at, node, Kind::Leave))
    }

    fn finish(mut self, sim: &Sim<Node>) -> Result<Outcome, String> {
        if !self.busy.is_empty() {
            let who: Vec<String> = self.busy.iter().map(ToString::to_string).collect();
            let (who, end) = (who.join(", "), END / MILLISECOND);
            return Err(format!("clients {who} are not done at {end} ms"));
        }
        let report = self.checker.finish();
        if !report.is_clean() {
            return Err(report.to_string());
        }
        self.outcome.events = sim.stats().events;
        self.outcome.digest = sim.digest();
        Ok(self.outcome)
    }
}

fn event(at: Nanos, node: u32, kind: Kind) -> Event {
    Event::new(at, node, kind).incarnation(1)
}

fn checked(mode: Mode) -> Checked {
    match mode {
        Mode::Shared => Checked::PR,
        Mode::Exclusive => Checked::EX,
    }
}
