//! One run of a scenario. Hosts work, things break and are repaired. When all is quiet, everything is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;
use lockify_array::{
    ArrayState, Change, Condition, DeviceId, HostAnswer, Layout, Life, LockChange, OpError,
    Replica, ServerId, Span, Ticket, Work,
};
use lockify_history::array::{Kind, Tag};
use lockify_sim::{
    DiskCopy, Fault, FaultPlan, MILLISECOND, Nanos, NodeId, NodeStatus, Random, ReportEvent,
    SECOND, Sim,
};
use rand::{RngExt as _, SeedableRng as _};

use crate::caretaker::{Caretaker, Repair};
use crate::content::{self, SECTOR_SIZE, SECTORS};
use crate::host::{LEASE, MESSAGE_LIFE, Node, Note, cluster};
use crate::medium::DISKS;
use crate::places::{Places, Role};
use crate::recorder::{Recorder, by};
use crate::scenario::{Faults, Growth, Scenario};

/// By then, after the end of all faults, everything must be done.
const PATIENCE: Nanos = 60 * SECOND;
/// How often the caretaker looks for repairs.
const ROUND: Nanos = 2 * MILLISECOND;
/// How long a machine may keep state after the end. The lock server remembers ended locks for a message's life, and hosts
/// keep unused locks for a lease.
const REST: Nanos = MESSAGE_LIFE + 2 * LEASE;
/// Before this time hosts do nothing: all have found each other.
const BEGIN: Nanos = 2 * MILLISECOND;
/// The host that sees to everything in the end.
const LAST: u32 = 0;

/// The events of one run, counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Host operations answered.
    pub operations: u64,
    /// Those that failed.
    pub failed: u64,
    /// Flushes that failed because a write before them was lost, or may be.
    pub unflushed: u64,
    /// Tries beyond the first.
    pub restarts: u64,
    /// Blocks of which the content was lost, and reported as lost.
    pub lost: u64,
    /// Repairs: hosts fenced, devices taken out, stripes rebuilt.
    pub repairs: u64,
    /// How often a lock server has begun to serve in the place of another one.
    pub successions: u64,
    /// Faults injected.
    pub faults: u64,
    /// Events that the engine handled.
    pub events: u64,
    /// The longest time that an operation took after the end of all faults.
    pub longest: Nanos,
    /// All that happened, in a number.
    pub digest: u64,
}

impl Outcome {
    /// Adds what happened in another run.
    pub fn add(&mut self, other: &Outcome) {
        self.operations += other.operations;
        self.failed += other.failed;
        self.unflushed += other.unflushed;
        self.restarts += other.restarts;
        self.lost += other.lost;
        self.repairs += other.repairs;
        self.successions += other.successions;
        self.faults += other.faults;
        self.events += other.events;
        self.longest = self.longest.max(other.longest);
        self.digest ^= other.digest;
    }
}

/// The reason for a request, which decides about its answer.
#[derive(Clone, Debug)]
enum Asked {
    /// A host's own work.
    Client,
    /// A repair.
    Repair(Repair),
    /// A test that the host for the final checks is not fenced.
    Probe,
    /// A stripe is looked at, in the end.
    Scrub(u64),
    /// A block is read, in the end.
    Look(u64),
    /// A lost block is written anew, in the end.
    Mend(u64),
    /// A stripe of which a medium has lost a block is repaired, in the end.
    Recover(u64),
}

/// An event at a given time.
#[derive(Clone, Copy, Debug)]
enum Timed {
    Issue(NodeId, u32),
    Round,
    Rested,
    Copy,
    PutBack,
}

/// The remaining steps at the end.
#[derive(Debug)]
enum End {
    /// Work and repairs are still under way.
    NotYet,
    /// These stripes, then these blocks.
    Sweep(Vec<u64>, Vec<u64>),
    /// Media lose these blocks, one per stripe: so many are not lost yet.
    Lose(usize),
    /// These stripes are repaired.
    Recover(Vec<u64>),
    /// The lost block of a stripe that nobody could repair is there again; then these stripes are repaired.
    GiveBack(Vec<u64>),
    /// The devices' content is requested from these nodes.
    Dump(BTreeSet<NodeId>),
    /// Nothing happens, until nobody needs to remember anything.
    Rest,
    /// Nothing remains to be done.
    Over,
}

/// A copy of a device's medium.
struct OldCopy {
    device: DeviceId,
    disks: Vec<DiskCopy>,
    /// The number that the array had of the medium, as it was seen last.
    key: u64,
    /// How often that has changed since.
    changes: u32,
    /// The start of the device's process that it was made in.
    start: u32,
    /// The device has served in a later start. Or it has got two numbers, so that one is newer than whatever the copy asks for.
    older: bool,
}

/// A copy of a lock server's log.
struct OldLog {
    log: Vec<Bytes>,
    /// The key of the log that was listed last.
    key: u64,
    /// How often that has changed since. The copy may have one key that is listed later.
    changes: u32,
}

/// One run.
pub struct Trial<'a> {
    scenario: &'a Scenario,
    places: Places,
    /// The simulated array.
    pub sim: Sim<Node>,
    recorder: Recorder,
    caretaker: Caretaker,
    random: Random,
    /// Decides which writes are not of whole blocks. Its stream is its own, so that all else stays as it was.
    patching: Random,
    next_ticket: u64,
    next_tag: Tag,
    next_wake: u64,
    asked: BTreeMap<(NodeId, Ticket), (Life, Nanos, Asked)>,
    /// The life of each host that has begun to work.
    working: BTreeMap<NodeId, u32>,
    /// Operations given to each host, in all its lives.
    issued: BTreeMap<NodeId, u32>,
    timed: BTreeMap<u64, Timed>,
    /// How the array is laid out, as far as the history tells.
    layout: Layout,
    /// A device's medium as it was once.
    old_copy: Option<OldCopy>,
    /// The log that is to be put back, from when on, and the copy if there is one.
    old_log: Option<(ServerId, Nanos, Option<OldLog>)>,
    /// From this term and round on, nothing that lock servers have asked for can be agreed on any more.
    lock_changes_over: (u64, u64),
    /// A device that is copied, and ends, as soon as it has asked for another number.
    copied_when_it_asks: Option<DeviceId>,
    /// The life of the last host that could read when all was quiet.
    probed: Option<Life>,
    /// Devices that have given up their media, and since when.
    given_up: BTreeMap<NodeId, Nanos>,
    /// By stripe: the block that a medium has lost. None before media lose any.
    lost: Option<BTreeMap<u64, (NodeId, u64)>>,
    end: End,
    outcome: Outcome,
}

impl<'a> Trial<'a> {
    /// A run that has not begun.
    pub fn new(scenario: &'a Scenario, trace_lines: usize) -> Trial<'a> {
        let setting = scenario.setting(trace_lines);
        let places = setting.places;
        let sim = cluster(scenario.seed, setting);
        let state = ArrayState::new(scenario.layout.devices());
        Trial {
            scenario,
            places,
            sim,
            recorder: Recorder::new(&scenario.layout, scenario.scheme, scenario.flushes.is_some()),
            caretaker: Caretaker::new(scenario.layout, places.voters, state, scenario.detection),
            random: Random::seed_from_u64(scenario.seed ^ 0x0a11_0c8e),
            patching: Random::seed_from_u64(scenario.seed ^ 0x0512_b17e),
            next_ticket: 1,
            next_tag: 1,
            next_wake: 1,
            asked: BTreeMap::new(),
            working: BTreeMap::new(),
            issued: BTreeMap::new(),
            timed: BTreeMap::new(),
            layout: scenario.layout,
            old_copy: None,
            old_log: scenario
                .succession
                .as_ref()
                .and_then(|s| s.old_log)
                .map(|(s, at)| (s, at, None)),
            lock_changes_over: (0, 0),
            copied_when_it_asks: None,
            probed: None,
            given_up: BTreeMap::new(),
            lost: None,
            end: End::NotYet,
            outcome: Outcome::default(),
        }
    }

    /// Which node is what.
    pub fn places(&self) -> Places {
        self.places
    }

    /// Runs it to its end, with the faults that the seed decides.
    ///
    /// # Errors
    /// Which rule was broken, or what did not end.
    pub fn run(&mut self) -> Result<Outcome, String> {
        let plan = self.scenario.plan(&self.places, self.sim.fault_random());
        self.run_with(&plan)
    }

    /// Runs it to its end, with these faults.
    ///
    /// # Errors
    /// As for [`Trial::run`].
    pub fn run_with(&mut self, plan: &FaultPlan) -> Result<Outcome, String> {
        self.sim.apply_plan(plan);
        let hosts: Vec<NodeId> = self.places.all_hosts().collect();
        for node in hosts {
            self.begin(node, BEGIN);
        }
        self.wake(self.scenario.quiet_at.min(ROUND), Timed::Round);
        if let Some((copied, put_back)) = self.scenario.old_copy {
            self.wake(copied, Timed::Copy);
            self.wake(put_back.max(self.end_of_device_faults(plan)), Timed::PutBack);
        }
        let last = self.scenario.quiet_at + PATIENCE;
        let mut verdict = Ok(());
        while !matches!(self.end, End::Over) && verdict.is_ok() {
            let Ok(report) = self.sim.next_report(last) else { break };
            verdict = self.report(report.at, report.event);
        }
        let at = self.sim.now();
        let over = matches!(self.end, End::Over);
        let recorder = std::mem::replace(
            &mut self.recorder,
            Recorder::new(&self.scenario.layout, self.scenario.scheme, false),
        );
        let (report, events) = recorder.finish(at);
        for event in &events {
            self.sim.trace_line(|| serde_json::to_string(event).unwrap_or_default());
        }
        let rest = || format!("at {} ms it is not over: {}", at / MILLISECOND, self.rest());
        if !report.is_clean() {
            // The reason why it was ended early comes before its consequences.
            let rest = match &verdict {
                Err(why) => why.clone(),
                Ok(()) if over => String::new(),
                Ok(()) => rest(),
            };
            return Err(format!("{report}\n{rest}"));
        }
        verdict?;
        if !over {
            return Err(rest());
        }
        self.outcome.restarts = report.counts.restarts;
        self.outcome.repairs = self.caretaker.done;
        self.outcome.successions = self.caretaker.successions;
        let faults = self.sim.fault_counts();
        self.outcome.faults = faults.iter().map(|(_, count)| count).sum();
        self.outcome.events = self.sim.stats().events;
        self.outcome.digest = self.sim.digest();
        Ok(self.outcome)
    }

    /// When devices have come back from all faults of a plan, as a rule.
    fn end_of_device_faults(&self, plan: &FaultPlan) -> Nanos {
        let of_device = |fault: &Fault| match fault {
            Fault::Crash { node, .. }
            | Fault::Restart(node)
            | Fault::Pause(node)
            | Fault::Resume(node) => matches!(self.places.role(*node), Role::Device(_)),
            _ => false,
        };
        let times = plan.entries().iter().filter(|(_, fault)| of_device(fault)).map(|(at, _)| *at);
        times.max().unwrap_or(0) + 100 * MILLISECOND
    }

    fn rest(&self) -> String {
        let asked = self
            .asked
            .iter()
            .map(|((node, _), (life, _, what))| format!("{node} {life:?} {what:?}"));
        let asked: Vec<String> = asked.collect();
        let (end, caretaker) = (&self.end, self.caretaker.rest());
        let waits = self.under_way().join("\n  ");
        format!("{end:?}; unanswered: {}; {caretaker}\n  {waits}", asked.join(", "))
    }

    /// The operations under way at each node, and the nodes that do not run.
    fn under_way(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for node in (0..self.places.nodes()).map(NodeId) {
            let name = match self.places.role(node) {
                Role::Device(device) => device.to_string(),
                Role::Server(server) => server.to_string(),
                Role::Host(host) => host.to_string(),
            };
            let status = self.sim.status(node);
            if status != Some(NodeStatus::Running) {
                lines.push(format!("{name}: {status:?}"));
            }
            let Some(machine) = self.sim.machine(node) else { continue };
            let host = machine.host().map(lockify_array::ArrayHost::under_way);
            let device = machine.device().map(lockify_array::Device::under_way);
            let all = host.into_iter().chain(device).flatten();
            lines.extend(all.map(|line| format!("{name}: {line}")));
        }
        lines
    }

    fn report(&mut self, at: Nanos, event: ReportEvent<Note>) -> Result<(), String> {
        match event {
            ReportEvent::Note { node, note, .. } => return self.note(at, node, note),
            ReportEvent::Node { node, status, .. } => self.status(at, node, status),
            ReportEvent::Fault(fault) => {
                self.recorder.note(at, Kind::Fault { note: Some(format!("{fault:?}")) });
            }
            ReportEvent::Wake(token) => match self.timed.remove(&token) {
                Some(Timed::Issue(node, incarnation)) => self.issue(at, node, incarnation),
                Some(Timed::Round) => {
                    self.round(at)?;
                    if !matches!(self.end, End::Rest) {
                        self.wake(at + ROUND, Timed::Round);
                    }
                }
                Some(Timed::Rested) => self.rested(at),
                Some(Timed::Copy) => self.begin_copy(),
                Some(Timed::PutBack) => self.put_back(at),
                None => {}
            },
        }
        Ok(())
    }

    fn note(&mut self, at: Nanos, node: NodeId, note: Note) -> Result<(), String> {
        match (self.places.role(node), note) {
            (_, Note::Begun { ticket, op, stamp }) => self.recorder.tries(at, ticket, op, stamp),
            (_, Note::Done { ticket, op, result }) => {
                if let Some((op, stamp)) = op {
                    self.recorder.tries(at, ticket, op, stamp);
                }
                return self.answered(at, node, ticket, result);
            }
            (Role::Device(device), Note::Event(event)) => self.recorder.device(at, device, event),
            (Role::Device(device), Note::Dump(blocks)) => {
                self.recorder.lies(at, device, &blocks);
                if let End::Dump(missing) = &mut self.end {
                    missing.remove(&node);
                    if missing.is_empty() {
                        self.end = End::Rest;
                        self.wake(at + REST, Timed::Rested);
                    }
                }
            }
            (_, Note::State(state)) => {
                self.caretaker.learn(&state);
                let layout = *self.caretaker.layout();
                if std::mem::replace(&mut self.layout, layout) != layout {
                    self.recorder.grown(at, &layout);
                }
            }
            (_, Note::Suspect(life) | Note::Silent(life)) => self.taken_for_dead(at, life),
            (_, Note::Locks(change)) => self.ask_for_locks(at, change),
            // Its process ends.
            (Role::Device(_), Note::Broken(_)) => {
                self.given_up.insert(node, at);
                self.sim.inject_at(at, Fault::Crash { node, power_loss: false });
            }
            (_, Note::Replaced) => return self.replaced(at),
            (_, Note::Broken(_) | Note::Dump(_) | Note::Event(_)) => {}
            (_, Note::Failed(why)) => return Err(format!("{node} could not start: {why}")),
        }
        Ok(())
    }

    /// A lock server wants a change of the array's state. On real arrays its own process asks for it, as a host.
    fn ask_for_locks(&mut self, at: Nanos, change: LockChange) {
        let over = match change {
            LockChange::Copies { term, round, .. } => (term, round + 1),
            LockChange::Serve { after, .. } | LockChange::Begin { after, .. } => (after + 1, 0),
        };
        self.lock_changes_over = self.lock_changes_over.max(over);
        let repair = Repair::Locks(change);
        let hosts = self.places.all_hosts();
        let is_there = |node: &NodeId| self.sim.running(*node).is_some_and(|n| n.host().is_some());
        let running: Vec<NodeId> = hosts.filter(is_there).collect();
        if running.is_empty() || !self.caretaker.begins(at, repair) {
            return;
        }
        let node = running[self.random.random_range(0..running.len())];
        let work = repair.work(self.scenario.layout.group_size());
        self.repair(at, node, work, Asked::Repair(repair));
    }

    /// A host was silent for too long: it is fenced, and has to start again when it notices.
    fn taken_for_dead(&mut self, at: Nanos, life: Life) {
        if self.repairs() {
            self.caretaker.host_died(at, life);
        }
    }

    fn status(&mut self, at: Nanos, node: NodeId, status: NodeStatus) {
        match (self.places.role(node), status) {
            (Role::Host(_), NodeStatus::Crashed | NodeStatus::Left) => {
                let life = self.life(node);
                self.recorder.note(at, Kind::Crash { by: by(life) });
                self.caretaker.host_died(at, life);
                let gone: Vec<_> = self.asked.keys().filter(|(n, _)| *n == node).copied().collect();
                for key in gone {
                    if let Some((.., Asked::Repair(repair))) = self.asked.remove(&key) {
                        self.caretaker.ended(at, repair, None);
                    }
                }
            }
            // Else it is resumed, and its work goes on.
            (Role::Host(_), NodeStatus::Running)
                if self.working.get(&node) != Some(&self.sim.incarnation(node)) =>
            {
                self.begin(node, at + BEGIN);
            }
            (Role::Device(device), NodeStatus::Running) => {
                let late = self.caretaker.device_runs(at, device) && self.repairs();
                // It has stood still for longer than its lease.
                if late && self.sim.machine(node).is_some_and(|node| node.device().is_some()) {
                    self.sim.with(node, |device, _| device.halt());
                    self.start_again(at, node);
                }
            }
            (Role::Device(device), stopped) => {
                if stopped != NodeStatus::Paused {
                    self.recorder.note(at, Kind::Down { device: device.0 });
                }
                self.caretaker.device_stopped(at, device);
            }
            _ => {}
        }
    }

    /// Records the state that is kept for hosts without operations.
    fn rested(&mut self, at: Nanos) {
        for node in (0..self.places.nodes()).map(NodeId) {
            // An event drops entries that are too old.
            self.sim.with(node, |machine, cx| machine.tick(cx));
            let Some(machine) = self.sim.machine(node) else { continue };
            let server =
                machine.server().map(|server| ("the lock server".to_owned(), server.kept()));
            let device = machine.device().map(|device| (device.id().to_string(), device.kept()));
            if let Some((whom, kept)) = server.or(device) {
                self.recorder.keeps(at, &whom, kept);
            }
        }
        self.end = End::Over;
    }

    fn life(&self, node: NodeId) -> Life {
        let Role::Host(host) = self.places.role(node) else { unreachable!("{node} is no host") };
        Life { host, incarnation: self.sim.incarnation(node).into() }
    }

    fn wake(&mut self, at: Nanos, what: Timed) {
        self.timed.insert(self.next_wake, what);
        self.sim.wake_at(at, self.next_wake);
        self.next_wake += 1;
    }

    /// A life of a host begins to work.
    fn begin(&mut self, node: NodeId, at: Nanos) {
        let incarnation = self.sim.incarnation(node);
        self.working.insert(node, incarnation);
        for _ in 0..self.scenario.depth {
            let at = at + self.random.random_range(0..=self.scenario.think);
            self.wake(at, Timed::Issue(node, incarnation));
        }
    }

    /// The next operation of a host.
    fn issue(&mut self, at: Nanos, node: NodeId, incarnation: u32) {
        if at >= self.scenario.quiet_at || self.sim.incarnation(node) != incarnation {
            return;
        }
        match self.sim.status(node) {
            Some(NodeStatus::Running) => {}
            Some(NodeStatus::Paused) => {
                return self.wake(at + ROUND, Timed::Issue(node, incarnation));
            }
            _ => return,
        }
        let issued = self.issued.entry(node).or_default();
        if self.scenario.operations.is_some_and(|most| *issued >= most) {
            return;
        }
        *issued += 1;
        if let Some(flushes) = self.scenario.flushes
            && self.random.random_bool(flushes)
        {
            return self.flush(at, node);
        }
        let span = self.span(node);
        if self.random.random_bool(self.scenario.reads) {
            self.read(at, node, span, Asked::Client);
        } else {
            let sectors = self.sectors(span);
            self.write(at, node, sectors, Asked::Client);
        }
    }

    /// The sectors that a host writes. In some runs not all of them are whole blocks.
    fn sectors(&mut self, span: Span) -> Range<u64> {
        let sectors = content::sectors(span);
        if !self.patching.random_bool(self.scenario.patches) {
            return sectors;
        }
        let start = sectors.start + self.patching.random_range(0..u64::from(SECTORS));
        if self.patching.random_bool(0.5) {
            return start..start + 1;
        }
        let end = sectors.end - self.patching.random_range(0..u64::from(SECTORS));
        start..end.max(start + 1)
    }

    /// A host's clients use as much of the array as the host knows.
    fn span(&mut self, node: NodeId) -> Span {
        let host = self.sim.machine(node).and_then(Node::host);
        let layout = host.map_or(self.scenario.layout, |host| *host.layout());
        let hot = self.random.random_bool(self.scenario.hot);
        let stripe = u64::from(layout.data) * u64::from(layout.unit);
        let start = self.random.random_range(0..if hot { stripe } else { layout.blocks() });
        let most = self.scenario.longest.min(layout.blocks() - start);
        Span { start, count: self.random.random_range(1..=most) }
    }

    fn ticket(&mut self, at: Nanos, node: NodeId, asked: Asked) -> (Life, Ticket) {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let life = self.life(node);
        self.asked.insert((node, ticket), (life, at, asked));
        (life, ticket)
    }

    fn read(&mut self, at: Nanos, node: NodeId, span: Span, asked: Asked) {
        let (life, ticket) = self.ticket(at, node, asked);
        self.recorder.reads(at, life, ticket, span);
        self.submit(node, ticket, Work::Read { span });
    }

    fn write(&mut self, at: Nanos, node: NodeId, sectors: Range<u64>, asked: Asked) {
        let (life, ticket) = self.ticket(at, node, asked);
        let tags = vec![self.next_tag; (sectors.end - sectors.start) as usize];
        self.next_tag += 1;
        self.recorder.writes(at, life, ticket, sectors.start, &tags);
        let data = content::write(sectors.start, &tags);
        let start = sectors.start / u64::from(SECTORS);
        let span = Span { start, count: sectors.end.div_ceil(u64::from(SECTORS)) - start };
        let work = if content::sectors(span) == sectors {
            Work::Write { span, data }
        } else {
            Work::Patch { start: sectors.start * u64::from(SECTOR_SIZE), data }
        };
        self.submit(node, ticket, work);
    }

    fn flush(&mut self, at: Nanos, node: NodeId) {
        let (life, ticket) = self.ticket(at, node, Asked::Client);
        self.recorder.flushes(at, life, ticket);
        self.submit(node, ticket, Work::Flush);
    }

    fn repair(&mut self, at: Nanos, node: NodeId, work: Work, asked: Asked) {
        let (life, ticket) = self.ticket(at, node, asked);
        self.recorder.repairs(at, life, ticket, format!("{work:?}"));
        self.submit(node, ticket, work);
    }

    fn submit(&mut self, node: NodeId, ticket: Ticket, work: Work) {
        self.sim.with(node, |host, cx| host.submit(ticket, work, cx));
    }

    fn answered(
        &mut self,
        at: Nanos,
        node: NodeId,
        ticket: Ticket,
        result: Result<HostAnswer, OpError>,
    ) -> Result<(), String> {
        let Some((life, since, asked)) = self.asked.remove(&(node, ticket)) else {
            return Err(format!("{node} answers what it was not asked: {ticket:?}"));
        };
        self.recorder.answers(at, life, ticket, &result);
        self.took(at.saturating_sub(since.max(self.scenario.quiet_at)), life, &asked)?;
        self.in_time(at.saturating_sub(since), life, &asked)?;
        if matches!(result, Err(OpError::Unreachable(_))) && self.asks_again(at, node, &asked) {
            return Ok(());
        }
        match asked {
            Asked::Client => self.client(at, node, life, result),
            Asked::Repair(repair) => {
                self.caretaker.ended(at, repair, Some(&result));
                if matches!(result, Err(OpError::Fenced)) {
                    self.start_again(at, node);
                }
                Ok(())
            }
            // A host that was taken for dead while it had nothing to do learns it now.
            Asked::Probe => {
                match result {
                    Ok(_) | Err(OpError::Lost { .. }) => self.probed = Some(life),
                    Err(OpError::Fenced) => self.start_again(at, node),
                    // Devices that are back may not serve yet: it is asked again.
                    Err(OpError::Unreachable(_)) if self.scenario.outage.is_some() => {}
                    Err(error) => {
                        return Err(format!("block 0 cannot be read in the end: {error}"));
                    }
                }
                Ok(())
            }
            Asked::Recover(stripe) => self.recovered(at, stripe, result),
            Asked::Scrub(stripe) => match result {
                Ok(HostAnswer::Scrubbed { mismatches: 0, .. }) => self.sweep(at),
                other => Err(format!("a scrub of stripe {stripe} in the end: {other:?}")),
            },
            Asked::Look(block) => match result {
                Ok(_) => self.sweep(at),
                Err(OpError::Lost { .. }) if self.may_lose() => {
                    self.outcome.lost += 1;
                    let sectors = content::sectors(Span { start: block, count: 1 });
                    self.write(at, node, sectors, Asked::Mend(block));
                    Ok(())
                }
                Err(error) => Err(format!("block {block} cannot be read in the end: {error}")),
            },
            Asked::Mend(block) => match result {
                Ok(_) => {
                    let span = Span { start: block, count: 1 };
                    self.read(at, node, span, Asked::Look(block));
                    Ok(())
                }
                Err(error) => Err(format!("lost block {block} cannot be written anew: {error}")),
            },
        }
    }

    /// An operation was answered this long after it was asked for, or after the end of all faults. Repairs are not judged: they
    /// are many, and some wait for others.
    fn took(&mut self, time: Nanos, life: Life, asked: &Asked) -> Result<(), String> {
        if matches!(asked, Asked::Repair(_)) {
            return Ok(());
        }
        self.outcome.longest = self.outcome.longest.max(time);
        let most = self.scenario.longest_wait();
        if time <= most {
            return Ok(());
        }
        let [time, most] = [time, most].map(|time| time / MILLISECOND);
        Err(format!(
            "{life:?}: {asked:?} took {time} ms after the end of all faults, and {most} ms are the most"
        ))
    }

    /// Returns true if more may be lost than redundancy replaces.
    fn may_lose(&self) -> bool {
        self.repairs() && self.scenario.faults != Faults::Nodes || self.scenario.flushes.is_some()
    }

    /// Returns true if a device is good, serves, and knows what hosts have written. It has to know that it is good: one that still takes
    /// itself for being rebuilt does not count its suspect stripes yet.
    fn is_whole(&self, device: DeviceId) -> bool {
        let machine = self.sim.running(self.places.device(device)).and_then(Node::device);
        let knows = |machine: &lockify_array::Device| machine.state().is_good(device);
        let serves = machine.filter(|machine| machine.is_let_in() && !machine.is_unsettled());
        self.caretaker.state().is_good(device) && serves.is_some_and(knows)
    }

    /// The next node ends when the one before is whole again: a host other than the first, and a device. Each medium has a number
    /// before that.
    fn end_a_node(&mut self, at: Nanos) {
        let state = self.caretaker.state();
        if self.scenario.faults != Faults::Nodes || at > self.scenario.quiet_at {
            return;
        }
        let unnumbered = state.ids().find(|device| state.key(*device) == 0);
        if let Some(device) = unnumbered {
            return self.change_key(device);
        }
        if !state.ids().all(|device| self.is_whole(device)) || !self.caretaker.is_idle() {
            return;
        }
        let hosts: Vec<NodeId> = self.places.all_hosts().skip(1).collect();
        let host = hosts[self.random.random_range(0..hosts.len())];
        let device = DeviceId(self.random.random_range(0..self.scenario.layout.devices()));
        if self.sim.running(host).is_none() || self.random.random_bool(0.9) {
            return;
        }
        for node in [host, self.places.device(device)] {
            let power_loss = self.random.random_bool(0.5);
            let back = at + self.random.random_range(1..150) * MILLISECOND;
            self.sim.inject(Fault::Crash { node, power_loss });
            self.sim.inject_at(back, Fault::Restart(node));
        }
    }

    /// After an outage, devices that are back may not serve yet when everything is looked at.
    fn asks_again(&mut self, at: Nanos, node: NodeId, asked: &Asked) -> bool {
        let span = |block: u64| Span { start: block, count: 1 };
        match *asked {
            _ if self.scenario.outage.is_none() => return false,
            Asked::Scrub(stripe) => {
                let work = Work::Scrub { stripe, repair: false };
                self.repair(at, node, work, Asked::Scrub(stripe));
            }
            Asked::Recover(stripe) => {
                let work = Work::Scrub { stripe, repair: true };
                self.repair(at, node, work, Asked::Recover(stripe));
            }
            Asked::Look(block) => self.read(at, node, span(block), Asked::Look(block)),
            Asked::Mend(block) => {
                self.write(at, node, content::sectors(span(block)), Asked::Mend(block));
            }
            Asked::Client | Asked::Repair(_) | Asked::Probe => return false,
        }
        true
    }

    /// Clients have an answer in time, whatever is gone.
    fn in_time(&self, time: Nanos, life: Life, asked: &Asked) -> Result<(), String> {
        let most = self.scenario.outage.map_or(Nanos::MAX, |outage| outage.longest());
        if time <= most || !matches!(asked, Asked::Client) {
            return Ok(());
        }
        let [time, most] = [time, most].map(|time| time / MILLISECOND);
        Err(format!("{life:?}: {asked:?} took {time} ms, and {most} ms are the most"))
    }

    /// Returns true if a repair remains to be done.
    fn repairs(&self) -> bool {
        self.scenario.faults.has_repairs()
    }

    fn client(
        &mut self,
        at: Nanos,
        node: NodeId,
        life: Life,
        result: Result<HostAnswer, OpError>,
    ) -> Result<(), String> {
        self.outcome.operations += 1;
        self.outcome.failed += u64::from(result.is_err());
        self.outcome.unflushed += u64::from(matches!(result, Err(OpError::Unflushed(_))));
        if let Err(error) = &result {
            let expected = match error {
                OpError::Fenced => true,
                OpError::Unflushed(_) => self.scenario.flushes.is_some(),
                OpError::Unreachable(_) => self.scenario.outage.is_some(),
                // Until the device is back that has it.
                OpError::Lost { .. } => self.may_lose() || self.repairs(),
                OpError::Medium { .. } | OpError::Unavailable(_) | OpError::Clock { .. } => {
                    self.repairs()
                }
                OpError::Range | OpError::State(_) => false,
            };
            if !expected {
                return Err(format!("an operation of {life:?} failed: {error}"));
            }
        }
        if matches!(result, Err(OpError::Fenced)) {
            self.start_again(at, node);
            return Ok(());
        }
        let pause = self.random.random_range(0..=self.scenario.think);
        self.wake(at + pause, Timed::Issue(node, self.sim.incarnation(node)));
        Ok(())
    }

    /// A host that was fenced starts again, as it is told to; or a device that has lost its lease.
    fn start_again(&mut self, at: Nanos, node: NodeId) {
        let crash = Fault::Crash { node, power_loss: false };
        self.sim.inject_at(at, crash);
        self.sim.inject_at(at + MILLISECOND, Fault::Restart(node));
    }

    /// Looks for repairs, and checks if all is quiet.
    fn round(&mut self, at: Nanos) -> Result<(), String> {
        if !matches!(self.end, End::NotYet) {
            return Ok(());
        }
        let hosts: Vec<NodeId> = self.places.all_hosts().collect();
        let running: Vec<NodeId> = hosts
            .iter()
            .copied()
            // A node that starts at this very time takes no work yet.
            .filter(|n| self.sim.running(*n).is_some_and(|node| node.host().is_some()))
            .collect();
        if running.is_empty() {
            return Ok(());
        }
        let settled = |device| {
            let machine = self.sim.running(self.places.device(device)).and_then(Node::device);
            machine.is_some_and(|device| !device.is_unsettled())
        };
        let old = |device| {
            let machine = self.sim.machine(self.places.device(device));
            machine.and_then(Node::device).is_some_and(lockify_array::Device::is_out_of_date)
        };
        let mut due = match self.repairs() {
            true => self.caretaker.due(at, settled, old),
            false => Vec::new(),
        };
        self.copy_what_asks(at);
        self.age_copy();
        self.age_log(at);
        self.replace_media(at);
        self.end_a_node(at);
        let away = self.away();
        let mut suspects = self.suspects(at);
        suspects.extend(self.failing(at));
        let growth = self.growth(at);
        let wanted = away.iter().chain(&suspects).chain(&growth).copied();
        due.extend(wanted.filter(|repair| self.caretaker.begins(at, *repair)));
        for repair in due {
            let node = running[self.random.random_range(0..running.len())];
            let work = repair.work(self.scenario.layout.group_size());
            self.repair(at, node, work, Asked::Repair(repair));
        }
        let quiet = at > self.scenario.quiet_at
            && self.old_copy.is_none()
            && self.old_log.is_none()
            && running.len() == hosts.len()
            && self.asked.is_empty()
            && away.is_empty()
            && suspects.is_empty()
            && growth.is_none()
            && self.given_up.is_empty()
            && !self.takes_for_dead()
            && self.caretaker.is_idle();
        let last = self.places.host(lockify_array::HostId(LAST));
        if quiet {
            // The host that had the newest state chosen may have died before anybody else heard of it.
            let state = self.caretaker.state().clone();
            self.sim.with(last, |host, cx| host.learn(state, cx));
        }
        if quiet && self.probed != Some(self.life(last)) {
            self.read(at, last, Span { start: 0, count: 1 }, Asked::Probe);
            return Ok(());
        }
        if quiet {
            let layout = self.caretaker.layout();
            // The checker judges all parity; a scrub shows that hosts find the same.
            let scrubs = if self.repairs() || self.scenario.losses { layout.stripes } else { 0 };
            self.end = End::Sweep((0..scrubs).collect(), (0..layout.blocks()).collect());
            return self.sweep(at);
        }
        Ok(())
    }

    /// That the array is to grow, until it has.
    fn growth(&self, at: Nanos) -> Option<Repair> {
        let (_, steps) = self.scenario.growth.as_ref().filter(|(from, _)| *from <= at)?;
        let (now, layout) = (self.caretaker.state().stripes, self.caretaker.layout());
        let mut groups = 0;
        let next = steps.iter().find(|step| match **step {
            Growth::Stripes(stripes) => layout.stripes < stripes,
            Growth::Group => {
                groups += 1;
                layout.added.iter().count() < groups
            }
        })?;
        Some(match *next {
            Growth::Stripes(stripes) => Repair::Grow(now, layout.added.iter().count(), stripes),
            Growth::Group => Repair::Add(now, self.scenario.next_group(layout)),
        })
    }

    /// A backup copies a device's medium, whether its process runs or not. Every other time the copy has asked for a number that
    /// the medium gets later, and the device starts again: then a newer number than that is what the copy is known by.
    fn begin_copy(&mut self) {
        let devices = u64::from(self.scenario.layout.devices());
        let device = DeviceId((self.scenario.seed % devices) as u16);
        if (self.scenario.seed / devices).is_multiple_of(2) {
            return self.copy(device);
        }
        self.copied_when_it_asks = Some(device);
        self.change_key(device);
    }

    fn change_key(&mut self, device: DeviceId) {
        let node = self.places.device(device);
        self.sim.with(node, |device, cx| device.change_key(cx));
    }

    fn copy_what_asks(&mut self, at: Nanos) {
        let Some(device) = self.copied_when_it_asks else { return };
        let node = self.places.device(device);
        let machine = self.sim.running(node).and_then(Node::device);
        if !machine.is_some_and(|device| device.is_let_in() && device.wants_in().is_some()) {
            return self.change_key(device);
        }
        self.copied_when_it_asks = None;
        self.copy(device);
        self.sim.inject(Fault::Crash { node, power_loss: false });
        self.sim.inject_at(at + MILLISECOND, Fault::Restart(node));
    }

    fn copy(&mut self, device: DeviceId) {
        let node = self.places.device(device);
        let disks = DISKS.iter().filter_map(|disk| self.sim.copy_disk(node, *disk)).collect();
        let key = self.caretaker.state().key(device);
        let start = self.sim.incarnation(node);
        self.old_copy = Some(OldCopy { device, disks, key, changes: 0, start, older: false });
    }

    /// The medium gets other numbers in the course of time, until the copy is older.
    fn age_copy(&mut self) {
        let Some(copy) = &mut self.old_copy else { return };
        let key = self.caretaker.state().key(copy.device);
        copy.changes += u32::from(std::mem::replace(&mut copy.key, key) != key);
        let node = self.places.device(copy.device);
        let machine = self.sim.running(node).and_then(Node::device);
        let serves = machine.is_some_and(lockify_array::Device::is_let_in);
        copy.older |= serves && self.sim.incarnation(node) > copy.start || copy.changes >= 2;
        if !copy.older {
            let device = copy.device;
            self.change_key(device);
        }
    }

    /// The device comes back with the copy. That is a failure of a device: the others of its group are whole.
    fn put_back(&mut self, at: Nanos) {
        self.copied_when_it_asks = None;
        let Some(copy) = self.old_copy.take().filter(|copy| copy.older) else { return };
        let mut group = self.scenario.layout.beside(copy.device).chain([copy.device]);
        if !group.all(|device| self.is_whole(device)) || self.caretaker.gives_up() {
            return;
        }
        let node = self.places.device(copy.device);
        self.sim.inject(Fault::Crash { node, power_loss: true });
        for (disk, copy) in DISKS.into_iter().zip(copy.disks) {
            self.sim.replace_disk(node, disk, copy);
        }
        self.sim.inject_at(at + MILLISECOND, Fault::Restart(node));
    }

    /// A lock server's log is copied when it has every lock, and put back when it has had two other keys since. Another one has to have
    /// every lock then: without a log, the array waits for an operator.
    fn age_log(&mut self, at: Nanos) {
        let Some((server, put_back, old)) = &mut self.old_log else { return };
        let (server, locks) = (*server, self.caretaker.state().locks.clone());
        let listed = locks.complete;
        let node = self.places.server(server);
        let Some(old) = old else {
            let log = self.sim.running(node).map(Node::copy_log);
            *old = log.zip(listed.get(&server)).map(|(log, &key)| OldLog { log, key, changes: 0 });
            return;
        };
        if let Some(&key) = listed.get(&server) {
            old.changes += u32::from(std::mem::replace(&mut old.key, key) != key);
        }
        if old.changes < 2 && at < self.scenario.quiet_at {
            for node in self.places.all_servers().collect::<Vec<_>>() {
                self.sim.with(node, |server, cx| server.change_key(cx));
            }
            return;
        }
        let is_there = |other: &ServerId| {
            let replica = self.sim.running(self.places.server(*other)).and_then(Node::replica);
            *other != server && replica.is_some_and(Replica::is_complete)
        };
        let may = old.changes >= 2
            && listed.keys().any(is_there)
            && (locks.term, locks.round) >= self.lock_changes_over;
        if at >= *put_back && may {
            let log = std::mem::take(&mut old.log);
            if self.sim.with(node, |server, _| server.put_log_back(log)).is_some() {
                self.sim.inject(Fault::Crash { node, power_loss: false });
                self.sim.inject_at(at + MILLISECOND, Fault::Restart(node));
                self.old_log = None;
            }
        } else if at >= self.scenario.quiet_at {
            self.old_log = None;
        }
    }

    /// Devices that gave up their media get others when the array goes on without them. If another device was gone at the
    /// time, it cannot: then they come back with their blocks.
    fn replace_media(&mut self, at: Nanos) {
        let is_out = |node: NodeId| match self.places.role(node) {
            Role::Device(device) => {
                let condition = self.caretaker.state().condition(device);
                condition.is_none_or(|condition| condition != Condition::Good)
            }
            _ => true,
        };
        let late = 20 * self.scenario.detection;
        let back =
            self.given_up.iter().filter(|(node, since)| is_out(**node) || **since + late <= at);
        for node in back.map(|(node, _)| *node).collect::<Vec<_>>() {
            self.given_up.remove(&node);
            if self.sim.status(node) == Some(NodeStatus::Crashed) {
                self.sim.inject_at(at, Fault::Restart(node));
            }
        }
    }

    /// Stripes with blocks that have failed and still do. When all else is quiet somebody has to see to them.
    fn failing(&self, at: Nanos) -> Vec<Repair> {
        if at <= self.scenario.quiet_at {
            return Vec::new();
        }
        let layout = self.caretaker.layout();
        let running = layout
            .all_devices()
            .filter_map(|device| Some((device, self.sim.running(self.places.device(device))?)));
        let failing = running.flat_map(|(device, machine)| {
            let stripes = machine.failing().into_iter();
            stripes.filter_map(move |block| layout.stripe_of(device, block)).collect::<Vec<_>>()
        });
        failing.map(Repair::Settle).collect()
    }

    /// Media lose a block of each stripe, or of most.
    fn lose(&mut self, at: Nanos) -> Result<(), String> {
        let layout = *self.caretaker.layout();
        let mut random = Random::seed_from_u64(self.scenario.seed ^ 0x1057_b10c);
        let mut all = BTreeMap::new();
        for stripe in 0..layout.stripes {
            if random.random_bool(0.2) {
                continue;
            }
            let unit = random.random_range(0..layout.group_size());
            let Some(device) = layout.units(stripe).nth(unit.into()) else { continue };
            let block = layout.unit_start(stripe) + u64::from(random.random_range(0..layout.unit));
            let node = self.places.device(device);
            let zeros = random.random_bool(0.5);
            all.insert(stripe, (node, block));
            let note = Some(format!("{device} loses block {block}, zeros: {zeros}"));
            self.recorder.note(at, Kind::Fault { note });
            self.sim.with(node, |device, cx| device.lose(block, zeros, cx));
        }
        self.end = End::Lose(all.len());
        let none = all.is_empty();
        self.lost = Some(all);
        if none { self.replaced(at) } else { Ok(()) }
    }

    /// A medium has lost a block, or has it again.
    fn replaced(&mut self, at: Nanos) -> Result<(), String> {
        match &mut self.end {
            End::Lose(left) if *left > 1 => {
                *left -= 1;
                return Ok(());
            }
            End::Lose(_) => {
                let stripes = self.lost.iter().flat_map(BTreeMap::keys);
                self.end = End::Recover(stripes.copied().collect());
            }
            End::GiveBack(stripes) => self.end = End::Recover(std::mem::take(stripes)),
            _ => return Ok(()),
        }
        self.recover_next(at)
    }

    fn recover_next(&mut self, at: Nanos) -> Result<(), String> {
        let End::Recover(stripes) = &mut self.end else { return Ok(()) };
        let node = self.places.host(lockify_array::HostId(LAST));
        match stripes.pop() {
            Some(stripe) => {
                let work = Work::Scrub { stripe, repair: true };
                self.repair(at, node, work, Asked::Recover(stripe));
                Ok(())
            }
            None => {
                let layout = self.caretaker.layout();
                self.end =
                    End::Sweep((0..layout.stripes).collect(), (0..layout.blocks()).collect());
                self.sweep(at)
            }
        }
    }

    /// A stripe was repaired. If nobody knows which block is right, nothing may have been overwritten. Then the lost block is put
    /// back, and all has to be as before.
    fn recovered(
        &mut self,
        at: Nanos,
        stripe: u64,
        result: Result<HostAnswer, OpError>,
    ) -> Result<(), String> {
        match result {
            Ok(HostAnswer::Scrubbed { lost: 0, .. }) => self.recover_next(at),
            // The older state of the block may be its mark of a loss, which a write has taken away since.
            Ok(HostAnswer::Undecided { .. }) => {
                let End::Recover(stripes) = &mut self.end else { return Ok(()) };
                self.end = End::GiveBack(std::mem::take(stripes));
                let lost = self.lost.as_mut().and_then(|lost| lost.remove(&stripe));
                if let Some((node, block)) = lost {
                    self.sim.with(node, |device, cx| device.give_back(block, cx));
                }
                Ok(())
            }
            other => Err(format!("a repair of stripe {stripe} in the end: {other:?}")),
        }
    }

    /// Returns true if one of several lock servers has found a host dead and has not said so yet: it waits until devices say that it
    /// serves.
    fn takes_for_dead(&self) -> bool {
        let servers = self.places.all_servers().filter(|_| self.scenario.succession.is_some());
        let mut machines = servers.filter_map(|node| self.sim.running(node)?.server());
        machines.any(|server| server.has_suspects())
    }

    /// Devices that run and want to be let in. On real arrays each asks by itself.
    fn away(&self) -> Vec<Repair> {
        let devices = self.places.all_devices();
        let wanted = devices.filter_map(|node| self.sim.running(node)?.device()?.wants_in());
        let repair = |change| match change {
            Change::LetIn(device, term) => Some(Repair::LetIn(device, term)),
            _ => None,
        };
        wanted.filter_map(repair).collect()
    }

    /// Checks stripes for the devices in the background, from time to time while there is work. Hosts should have to
    /// repair some of them in use. On real arrays each device checks its own.
    fn suspects(&mut self, at: Nanos) -> Vec<Repair> {
        let devices = self.places.all_devices();
        let devices = devices.filter_map(|node| self.sim.running(node)?.device());
        let in_use = devices.filter(|device| device.is_let_in());
        let stripes = in_use.filter_map(|device| device.next_suspects().first().copied());
        let stripes: Vec<u64> = stripes.collect();
        let quiet = at > self.scenario.quiet_at;
        let mut now = || quiet || self.scenario.checks && self.random.random_bool(0.1);
        stripes.into_iter().filter(|_| now()).map(Repair::Check).collect()
    }

    /// The next step of the end: each stripe's parity, then each block, then what lies on the devices.
    fn sweep(&mut self, at: Nanos) -> Result<(), String> {
        let End::Sweep(stripes, blocks) = &mut self.end else { return Ok(()) };
        let node = self.places.host(lockify_array::HostId(LAST));
        if let Some(stripe) = stripes.pop() {
            let work = Work::Scrub { stripe, repair: false };
            self.repair(at, node, work, Asked::Scrub(stripe));
        } else if let Some(block) = blocks.pop() {
            self.read(at, node, Span { start: block, count: 1 }, Asked::Look(block));
        } else if self.scenario.losses && self.lost.is_none() {
            return self.lose(at);
        } else {
            let devices = self.caretaker.layout().all_devices();
            let nodes = devices.map(|device| self.places.device(device)).collect();
            self.end = End::Dump(nodes);
            if let End::Dump(nodes) = &self.end {
                for node in nodes.clone() {
                    self.sim.with(node, |device, cx| device.dump(cx));
                }
            }
        }
        Ok(())
    }
}
