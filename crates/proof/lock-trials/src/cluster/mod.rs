//! One run: a simulated cluster with its membership service, faults, clients and observers.

mod corosync;
#[cfg(test)]
mod tests;
mod totem;
mod troubles;
mod views;
mod weather;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use lockify_core::{Config, Input, NodeId, Output};
use lockify_membership::{GroupConfig, LogConfig, NodeEntry, NodeView};
use lockify_sim::{
    Boot, Cut, DiskConfig, DiskCopy, Fault, FaultPlan, LinkProfile, MICROSECOND, MILLISECOND,
    Nanos, NetworkConfig, NodeStatus, Report, ReportEvent, SECOND, Sim, Stop,
};
use rand::{RngExt, SeedableRng};

use crate::coverage::{Log, Trouble};
use crate::host::{File, HostContext, Life, LockNode, Member, Setting, core_id, sim_id};
use crate::note::Note;
use crate::observer::Observer;
use crate::port::Phase;
use crate::quiescence;
use crate::scenario::Scenario;
use crate::workload::disk::Disk;
use totem::Totem;
use weather::{Controls, claim_filter, target_hook};
pub use weather::{KINDS, kind_of};

/// Virtual time in which everything must come to rest after faults have stopped.
const PATIENCE: Nanos = 20 * SECOND;

/// Hand-overs to a new process in one run with faults.
const MOST_RELOADS: usize = 20;

/// Something that the driver does at a point in time.
#[derive(Clone, Debug)]
enum Action {
    Begin(Fault),
    /// Starts a node that is down and not meant to be.
    Revive(NodeId),
    Leave(NodeId, u32),
    /// A node that has left the lockspace in order ends.
    TakeAway(NodeId, u32),
    /// A process that has halted is ended, and another one started.
    Replace(NodeId, u32),
    /// The others find out that this process has died.
    Dead(NodeId, u32),
    /// The agent that a process of the first node has started for the second one has ended.
    Agent(NodeId, u32, NodeId),
    RestartAll,
    SetLease,
    LoseDisk,
    CopyDisk,
    RestoreDisk,
    EndShelter,
    /// Ask a node to tell when its claims are settled.
    AwaitClaims,
    /// A node goes on as a new process.
    Reload,
    /// This process of a node has told the others of that.
    ReloadNow(NodeId, u32),
    Filter(Trouble, bool),
    /// What a node has said gets its place in corosync's order.
    Order(NodeId),
    /// Corosync tells a node what is due.
    DeliverDue(NodeId),
    /// Corosync forms its rings anew.
    Reform,
    CorosyncEnds,
    CorosyncStarts(NodeId),
}

/// The number of times that the cluster may have to become whole again after the last fault. It is one for each
/// process that is still to be replaced, and some more.
const MOST_REPLACED: usize = 50;

/// In one of so many runs membership services go on when nothing goes wrong any more.
const GO_ON: u64 = 8;

/// A run under way.
pub struct Cluster {
    sim: Sim<LockNode>,
    scenario: Scenario,
    disk: Rc<RefCell<Disk>>,
    controls: Rc<Controls>,
    actions: Vec<Option<Action>>,
    /// Nodes that the plan keeps down.
    down: BTreeSet<NodeId>,
    paused: BTreeSet<NodeId>,
    /// Partitions in force.
    cuts: BTreeSet<u32>,
    partitions: BTreeMap<u32, Cut>,
    /// Corosync, if the nodes have that.
    totem: Option<Totem>,
    /// By how many seconds each node's wall clock is wrong.
    walls: Vec<Rc<Cell<i64>>>,
    /// The life of each node's process.
    lives: BTreeMap<NodeId, u64>,
    all_lives: BTreeSet<u64>,
    /// The largest life of each node.
    largest: BTreeMap<NodeId, u64>,
    /// Every view that was installed anywhere.
    views: BTreeMap<u64, NodeView>,
    /// Lives in the newest view's lockspace.
    inside: BTreeMap<NodeId, u64>,
    /// The lives that have entered a view with them.
    began: BTreeSet<(NodeId, u64)>,
    installs: u64,
    /// The last voter whose disk was lost, and the number of that.
    lost_disk: Option<(NodeId, u64)>,
    copies: BTreeMap<NodeId, DiskCopy>,
    /// Nothing else may go wrong now.
    sheltered: bool,
    /// When faults stop.
    quiet_at: Nanos,
    open: BTreeMap<String, (Trouble, Nanos)>,
    recovering: BTreeSet<NodeId>,
    /// The observer of the run.
    pub observer: Observer,
    log: Log,
    random: lockify_sim::Random,
}

/// The results of a successful run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Steps of the claim protocol by kinds of trouble.
    pub coverage: crate::coverage::Coverage,
    /// Events that the engine handled.
    pub events: u64,
    /// Calls that clients made.
    pub calls: u64,
    /// Recoveries that nodes completed.
    pub recoveries: u64,
    /// Requests that were ended as deadlocks.
    pub deadlocks: u64,
}

impl Cluster {
    /// A cluster that has not begun.
    pub fn new(scenario: Scenario, trace_lines: usize) -> Cluster {
        let disk = Rc::new(RefCell::new(scenario.disk()));
        let controls = Rc::new(Controls::default());
        let config = lockify_sim::Config {
            network: network(&scenario),
            disks: vec![DiskConfig::default()],
            trace_lines,
            event_limit: 20_000_000,
        };
        let walls: Vec<Rc<Cell<i64>>> = (0..scenario.nodes).map(|_| Rc::default()).collect();
        let boot = boot(scenario.clone(), Rc::clone(&disk), walls.clone());
        let mut sim = Sim::new(scenario.seed, config, boot);
        for target in &scenario.targets {
            sim.add_hook(target_hook(*target, Rc::clone(&controls)));
        }
        sim.add_filter(claim_filter(Rc::clone(&controls), scenario.seed));
        let totem = scenario.group.corosync.then(|| Totem::new(scenario.nodes));
        Cluster {
            totem,
            partitions: BTreeMap::new(),
            largest: BTreeMap::new(),
            observer: Observer::new(trace_lines > 0, scenario.config.deadlock_after.is_some()),
            random: lockify_sim::Random::seed_from_u64(scenario.seed ^ 0xd21_7e2),
            scenario,
            sim,
            disk,
            controls,
            actions: Vec::new(),
            down: BTreeSet::new(),
            paused: BTreeSet::new(),
            cuts: BTreeSet::new(),
            walls,
            lives: BTreeMap::new(),
            all_lives: BTreeSet::new(),
            views: BTreeMap::new(),
            inside: BTreeMap::new(),
            began: BTreeSet::new(),
            installs: 0,
            lost_disk: None,
            copies: BTreeMap::new(),
            sheltered: false,
            quiet_at: 0,
            open: BTreeMap::new(),
            recovering: BTreeSet::new(),
            log: Log::default(),
        }
    }

    /// The engine's trace, for a failure.
    pub fn trace(&self) -> String {
        self.sim.trace().to_string()
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// The violation.
    pub fn run(&mut self) -> Result<Outcome, String> {
        self.sim.join_many(self.scenario.nodes);
        if !self.scenario.group.early {
            self.controls.quiet.set(true);
            self.until_whole()?;
            self.controls.quiet.set(false);
        }
        if self.scenario.mix.is_none() {
            self.let_members_rest();
        }
        self.quiet_at = self.sim.now() + self.scenario.quiet_at;
        self.set_up();
        self.run_until(self.quiet_at)?;
        self.calm()?;
        self.check_settled()?;
        self.check_drained()?;
        self.observer.end(self.sim.now())?;
        self.close_windows();
        Ok(Outcome {
            coverage: self.log.table(),
            events: self.sim.stats().events,
            calls: self.observer.calls(),
            recoveries: self.observer.recoveries(),
            deadlocks: self.observer.deadlocks(),
        })
    }

    /// Plans what goes wrong.
    fn set_up(&mut self) {
        let now = self.sim.now();
        if let Some(mix) = &self.scenario.mix {
            let mut mix = mix.clone();
            mix.start += now;
            mix.quiet_at = self.quiet_at;
            let nodes: Vec<_> = self.sim.nodes().collect();
            let plan = FaultPlan::generate(&mix, &nodes, 1, self.sim.fault_random());
            for (at, fault) in plan.entries() {
                if *fault != Fault::HealAll {
                    self.at(*at, Action::Begin(fault.clone()));
                }
            }
            self.plan_weather();
            self.plan_troubles();
            (0..self.scenario.nodes as u32).for_each(|n| self.step_wall(NodeId(n)));
        }
        for _ in 0..self.random.random_range(0..6) {
            let at = self.random.random_range(now..self.quiet_at);
            self.at(at, Action::AwaitClaims);
        }
        if self.scenario.mix.is_some() {
            for _ in 0..self.random.random_range(0..=MOST_RELOADS) {
                let at = self.random.random_range(now..self.quiet_at);
                self.at(at, Action::Reload);
            }
        }
    }

    /// Times at which claim messages get lost, doubled, or overtaken.
    fn plan_weather(&mut self) {
        if self.scenario.config.claim_resend.is_none() {
            return;
        }
        for kind in [Trouble::Drop, Trouble::Duplicate, Trouble::Delay] {
            let mut at = self.sim.now() + self.random.random_range(0..100 * MILLISECOND);
            while at < self.quiet_at {
                let end = at + self.random.random_range(5..60) * MILLISECOND;
                self.at(at, Action::Filter(kind, true));
                self.at(end.min(self.quiet_at - 1), Action::Filter(kind, false));
                at = end + self.random.random_range(5..100) * MILLISECOND;
            }
        }
    }

    fn at(&mut self, at: Nanos, action: Action) {
        let token = self.actions.len() as u64;
        self.actions.push(Some(action));
        self.sim.wake_at(at, token);
    }

    fn soon(&mut self, most: Nanos, action: Action) {
        let after = self.random.random_range(0..=most);
        self.at(self.sim.now() + after, action);
    }

    fn run_until(&mut self, until: Nanos) -> Result<(), String> {
        loop {
            match self.sim.next_report(until) {
                Ok(report) => self.handle(report)?,
                Err(Stop::EventLimit) => return Err("the run does not end: too many events".into()),
                Err(Stop::Time | Stop::Idle) => return Ok(()),
            }
        }
    }

    fn handle(&mut self, report: Report<Note>) -> Result<(), String> {
        let at = report.at;
        match report.event {
            ReportEvent::Note { node, incarnation, note } => {
                self.note(at, core_id(node), incarnation, note)
            }
            ReportEvent::Node { node, incarnation, status } => {
                self.node_changed(at, core_id(node), incarnation, status)
            }
            ReportEvent::Fault(fault) => {
                self.fault_seen(at, &fault);
                Ok(())
            }
            ReportEvent::Wake(token) => {
                match self.actions.get_mut(token as usize).and_then(Option::take) {
                    Some(action) => self.act(action),
                    None => Ok(()),
                }
            }
        }
    }

    fn note(
        &mut self,
        at: Nanos,
        node: NodeId,
        incarnation: u32,
        note: Note,
    ) -> Result<(), String> {
        match &note {
            Note::Step(step) => self.log.step(at, *step),
            Note::Said(Output::RecoveryBegun(_)) => {
                self.recovering.insert(node);
            }
            Note::Said(Output::RecoveryDone(_)) => {
                self.recovering.remove(&node);
            }
            Note::Said(Output::Left) => {
                self.soon(20 * MILLISECOND, Action::TakeAway(node, incarnation));
            }
            Note::Called { input: Input::Halt, .. } => self.halted(at, node, incarnation),
            Note::Lives(life) => self.lives(node, *life)?,
            Note::Installed(view) => self.installed(at, node, view.clone())?,
            Note::Cast(bytes) => self.cast(node, bytes.clone()),
            Note::Agent(victim) => {
                self.soon(10 * MILLISECOND, Action::Agent(node, incarnation, *victim));
            }
            Note::Broken(what) => return Err(format!("node {node}: {what}")),
            _ => {}
        }
        self.observer.note(at, node, self.life(node), &note)
    }

    /// The life of a node's process, 0 if it has none.
    fn life(&self, node: NodeId) -> u64 {
        self.lives.get(&node).copied().unwrap_or(0)
    }

    fn node_changed(
        &mut self,
        at: Nanos,
        node: NodeId,
        incarnation: u32,
        status: NodeStatus,
    ) -> Result<(), String> {
        self.paused.remove(&node);
        match status {
            NodeStatus::Running => {
                self.process_started(node, incarnation);
                if incarnation > 1 {
                    self.log.trouble(Trouble::Join, at, at);
                    // Clocks are wrong at boot until something sets them.
                    if self.scenario.mix.is_some() && self.random.random_bool(0.5) {
                        self.step_wall(node);
                    }
                }
                Ok(())
            }
            NodeStatus::Paused => {
                self.paused.insert(node);
                let pause = self.random_up_to(6 * self.scenario.group.lease);
                self.at(at + pause, Action::Begin(Fault::Resume(sim_id(node))));
                Ok(())
            }
            NodeStatus::Crashed => {
                self.fails(at, node);
                self.at(at + self.scenario.respawn, Action::Revive(node));
                self.process_ended(node, false);
                if self.scenario.group.sole && self.random.random_bool(0.5) {
                    self.soon(5 * MILLISECOND, Action::Dead(node, incarnation));
                }
                self.ended(node, |observer, life| observer.crashed(at, node, life))
            }
            NodeStatus::Left => {
                self.process_ended(node, true);
                self.ended(node, |observer, life| observer.left(at, node, life))
            }
        }
    }

    /// A node fails, perhaps while others recover.
    fn fails(&mut self, at: Nanos, node: NodeId) {
        if self.recovering.iter().any(|other| *other != node) {
            self.log.trouble(Trouble::Recovery, at, at);
        }
    }

    /// A node's process, and its life with it, has ended.
    fn ended(
        &mut self,
        node: NodeId,
        tell: impl FnOnce(&mut Observer, u64) -> Result<(), String>,
    ) -> Result<(), String> {
        self.recovering.remove(&node);
        match self.lives.remove(&node) {
            Some(life) => tell(&mut self.observer, life),
            None => Ok(()),
        }
    }

    /// Keeps the windows of faults for the table.
    fn fault_seen(&mut self, at: Nanos, fault: &Fault) {
        let key = match fault {
            Fault::Pause(node) | Fault::Resume(node) => format!("pause {node}"),
            Fault::Partition { id, .. } | Fault::Heal(id) => format!("cut {id}"),
            Fault::ClockRate { node, .. } => format!("rate {node}"),
            Fault::SlowLink { ends, .. } => format!("slow {ends:?}"),
            Fault::Leave(_) => return, // the leave itself began earlier
            _ => String::new(),
        };
        match fault.kind().and_then(Trouble::of) {
            Some(kind) if key.is_empty() => self.log.trouble(kind, at, at),
            Some(kind) => {
                self.open.entry(key).or_insert((kind, at));
            }
            None => self.close_window(&key, at),
        }
    }

    fn close_window(&mut self, key: &str, at: Nanos) {
        if let Some((kind, from)) = self.open.remove(key) {
            self.log.trouble(kind, from, at);
        }
    }

    fn close_windows(&mut self) {
        let now = self.sim.now();
        for (_, (kind, from)) in std::mem::take(&mut self.open) {
            self.log.trouble(kind, from, now);
        }
    }

    fn act(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Begin(fault) => self.begin(fault),
            Action::Revive(node) => self.revive(node),
            Action::Leave(node, incarnation) => self.leave(node, incarnation),
            Action::TakeAway(node, incarnation) => self.take_away(node, incarnation),
            Action::Replace(node, incarnation) => self.replace(node, incarnation),
            Action::Dead(node, incarnation) => self.dead(node, incarnation),
            Action::Agent(by, process, node) => self.agent(by, process, node),
            Action::RestartAll => self.restart_all(),
            Action::SetLease => self.set_lease(),
            Action::LoseDisk => self.lose_disk(),
            Action::CopyDisk => self.copy_disk(),
            Action::RestoreDisk => self.restore_disk(),
            Action::EndShelter => self.end_shelter(),
            Action::AwaitClaims => {
                let node = NodeId(self.random.random_range(0..self.scenario.nodes as u32));
                self.with_member(node, |machine, cx| machine.await_claims(cx));
            }
            Action::Reload => self.reload(),
            Action::ReloadNow(node, incarnation) => self.reload_now(node, incarnation),
            Action::Order(node) => self.order(node),
            Action::DeliverDue(node) => self.deliver_due(node),
            Action::Reform => self.reform(),
            Action::CorosyncEnds => self.corosync_ends(),
            Action::CorosyncStarts(node) => self.corosync_starts(node),
            Action::Filter(kind, on) => self.filter(kind, on),
        }
        Ok(())
    }

    /// Replaces all state of a node by its image, as a daemon does that hands itself over to a new
    /// program.
    fn reload(&mut self) {
        let node = NodeId(self.random.random_range(0..self.scenario.nodes as u32));
        let incarnation = self.sim.incarnation(sim_id(node));
        if self.totem.is_some() {
            self.sim.with(sim_id(node), |machine, cx| machine.announce_reload(cx));
            let after = self.random.random_range(1..=3) * MILLISECOND / 2;
            self.at(self.sim.now() + after, Action::ReloadNow(node, incarnation));
        } else {
            self.reload_now(node, incarnation);
        }
    }

    fn reload_now(&mut self, node: NodeId, incarnation: u32) {
        let id = sim_id(node);
        // One that stands still hands nothing over.
        if self.sim.incarnation(id) == incarnation
            && self.sim.with(id, |machine, cx| machine.reload(cx)) == Some(true)
        {
            let now = self.sim.now();
            self.log.trouble(Trouble::Reload, now, now);
            self.reloaded(node);
        }
    }

    fn begin(&mut self, fault: Fault) {
        if self.sheltered && fault.kind().is_some() {
            return;
        }
        match &fault {
            Fault::Crash { node, .. } => {
                self.down.insert(core_id(*node));
            }
            Fault::Restart(node) => {
                self.down.remove(&core_id(*node));
                return self.revive(core_id(*node));
            }
            Fault::Leave(node) => return self.begin_leave(core_id(*node)),
            // Leases need a clock that does not jump, which every system has; the time of day is another one.
            Fault::ClockStep { node, .. } => return self.step_wall(core_id(*node)),
            Fault::Partition { id, cut } => return self.partition(*id, cut.clone()),
            Fault::Heal(id) => {
                self.cuts.remove(id);
                self.note_healed(*id);
            }
            _ => {}
        }
        self.sim.inject(fault);
    }

    fn begin_leave(&mut self, node: NodeId) {
        self.down.insert(node);
        let incarnation = self.sim.incarnation(sim_id(node));
        let now = self.sim.now();
        self.log.trouble(Trouble::Leave, now, now + 20 * MILLISECOND);
        // An orderly unmount first, or a leave in the middle of everything.
        if self.random.random_bool(0.5) {
            self.with_member(node, |machine, cx| machine.drain(cx));
            self.soon(20 * MILLISECOND, Action::Leave(node, incarnation));
        } else {
            self.leave(node, incarnation);
        }
    }

    fn leave(&mut self, node: NodeId, incarnation: u32) {
        if self.sim.incarnation(sim_id(node)) == incarnation {
            self.with_member(node, |machine, cx| machine.leave(cx));
        }
    }

    /// A node has halted. Its process continues as another life, or its watchdog ends it. One whose file still has the
    /// first lease may stay out, until an operator has corrected the file and started it again.
    fn halted(&mut self, at: Nanos, node: NodeId, incarnation: u32) {
        self.fails(at, node);
        let outdated = self.scenario.group.leases > 0 && incarnation == 1;
        if outdated || (!self.controls.quiet.get() && self.random.random_bool(0.3)) {
            self.soon(40 * MILLISECOND, Action::Replace(node, incarnation));
        }
    }

    fn replace(&mut self, node: NodeId, incarnation: u32) {
        if self.sim.incarnation(sim_id(node)) == incarnation {
            self.sim.inject(Fault::Crash { node: sim_id(node), power_loss: false });
        }
    }

    /// A process that has left the lockspace in order ends.
    fn take_away(&mut self, node: NodeId, incarnation: u32) {
        let id = sim_id(node);
        let left = self.sim.machine(id).map(LockNode::life) == Some(Life::Left);
        if left && self.sim.incarnation(id) == incarnation {
            self.sim.with(id, |machine, cx| machine.goodbye(cx));
            self.sim.inject(Fault::Leave(id));
            self.soon(10 * MILLISECOND, Action::Revive(node));
        }
    }

    /// Starts a node that is down and not meant to be.
    fn revive(&mut self, node: NodeId) {
        let id = sim_id(node);
        let is_down = matches!(self.sim.status(id), Some(NodeStatus::Crashed | NodeStatus::Left));
        if is_down && !self.down.contains(&node) {
            self.sim.inject(Fault::Restart(id));
        }
    }

    /// Calls a node that runs and is a member.
    fn with_member(
        &mut self,
        node: NodeId,
        call: impl FnOnce(&mut LockNode, &mut HostContext<'_>),
    ) {
        self.sim.with(sim_id(node), |machine, cx| {
            if machine.life() == Life::Member {
                call(machine, cx);
            }
        });
    }

    fn filter(&mut self, kind: Trouble, on: bool) {
        let p = if on {
            self.random.random_range(0.02..=self.scenario.datagram.max(0.03))
        } else {
            0.0
        };
        let weather = &self.controls.weather;
        match kind {
            Trouble::Drop if on && self.random.random_bool(0.4) => {
                weather.replies_only.set(true);
                weather.drop.set(self.random.random_range(0.3..0.95));
            }
            Trouble::Drop => {
                weather.replies_only.set(false);
                weather.drop.set(p);
            }
            Trouble::Duplicate => weather.duplicate.set(p),
            _ => weather.delay.set(p),
        }
        let now = self.sim.now();
        if on {
            self.open.insert(kind.name().to_owned(), (kind, now));
        } else {
            self.close_window(kind.name(), now);
        }
    }

    /// Faults stop; the cluster becomes whole again.
    fn calm(&mut self) -> Result<(), String> {
        self.controls.quiet.set(true);
        self.sheltered = false;
        for kind in [Trouble::Drop, Trouble::Duplicate, Trouble::Delay] {
            self.filter(kind, false);
        }
        self.actions.iter_mut().for_each(|action| {
            let stays = matches!(
                action,
                Some(
                    Action::TakeAway(..)
                        | Action::Replace(..)
                        | Action::Dead(..)
                        | Action::Agent(..)
                        | Action::Order(_)
                        | Action::DeliverDue(_)
                        | Action::Reform
                )
            );
            if !stays {
                *action = None;
            }
        });
        self.cuts.clear();
        self.down.clear();
        self.close_windows();
        self.sim.inject(Fault::HealAll);
        self.calm_corosync();
        for _ in 0..MOST_REPLACED {
            self.until_whole()?;
            let more = self.random.random_range(1..100) * MILLISECOND;
            self.run_until(self.sim.now() + more)?;
            if self.is_whole() && !self.is_more_planned() {
                self.let_members_rest();
                return Ok(());
            }
        }
        Err(format!("no progress: nodes halt again and again: {}", self.who_is_not_whole()))
    }

    /// Returns true if processes are still to be ended, because of events before all was quiet. A node that leaves acts
    /// until it has left. Then its process ends.
    fn is_more_planned(&self) -> bool {
        let ends = |action: &Option<Action>| {
            matches!(action, Some(Action::TakeAway(..) | Action::Replace(..) | Action::Agent(..)))
        };
        let leaves = |node: &&LockNode| node.life() == Life::Leaving;
        self.actions.iter().any(ends) || self.nodes().iter().any(leaves)
    }

    /// Once nothing goes wrong, membership services have nothing to do: but some go on, to show that views stay.
    fn let_members_rest(&mut self) {
        if self.scenario.seed.is_multiple_of(GO_ON) {
            return;
        }
        for node in self.sim.nodes() {
            self.sim.with(node, |machine, _| machine.rest());
        }
    }

    /// Runs until every node is a member again.
    fn until_whole(&mut self) -> Result<(), String> {
        let deadline = self.sim.now() + PATIENCE;
        while !self.is_whole() {
            if self.sim.now() >= deadline {
                return Err(format!("no progress: {}", self.who_is_not_whole()));
            }
            for node in 0..self.scenario.nodes as u32 {
                self.revive(NodeId(node));
            }
            self.run_until(self.sim.now() + 5 * MILLISECOND)?;
        }
        Ok(())
    }

    fn who_is_not_whole(&self) -> String {
        let state = |node| match self.sim.machine(node) {
            Some(machine) => format!(
                "{node} is {:?}, view {}, {}, waits for: {}",
                machine.life(),
                machine.space().view().seq,
                if machine.space().is_running() { "runs" } else { "recovers" },
                machine.waits()
            ),
            None => format!("{node} is down"),
        };
        let states: Vec<_> = self.sim.nodes().map(state).collect();
        states.join("; ")
    }

    fn enter(&mut self, phase: Phase) {
        for node in 0..self.scenario.nodes as u32 {
            self.sim.with(sim_id(NodeId(node)), |machine, cx| machine.enter(cx, phase));
        }
    }

    fn rest(&mut self, what: &str) -> Result<(), String> {
        let deadline = self.sim.now() + PATIENCE;
        let unfinished = |node: &lockify_sim::NodeId, sim: &Sim<LockNode>| {
            sim.machine(*node).is_none_or(|m| {
                let space = m.space();
                let claims = space.unsettled_claims() > 0;
                !m.is_idle() || m.open_claim_waits() > 0 || claims || space.has_work(&[])
            })
        };
        while self.sim.nodes().any(|node| unfinished(&node, &self.sim)) {
            if self.sim.now() >= deadline {
                let who: Vec<_> =
                    self.sim.nodes().filter(|node| unfinished(node, &self.sim)).collect();
                return Err(format!("no progress: {who:?} cannot {what}: {}", self.stuck()));
            }
            self.run_until(self.sim.now() + 5 * MILLISECOND)?;
        }
        Ok(())
    }

    /// The waiting operations, for the message of a run without progress.
    fn stuck(&self) -> String {
        quiescence::waiting(&self.nodes())
    }

    fn nodes(&self) -> Vec<&LockNode> {
        self.sim.nodes().filter_map(|node| self.sim.machine(node)).collect()
    }

    /// Nothing new is begun, locks are kept: every node must tell the same story.
    fn check_settled(&mut self) -> Result<(), String> {
        self.enter(Phase::Settle);
        self.rest("come to rest")?;
        self.run_until(self.sim.now() + 300 * MILLISECOND)?;
        self.rest("come to rest")?;
        quiescence::check(&self.nodes())
    }

    /// Everything is released: nothing may be left.
    fn check_drained(&mut self) -> Result<(), String> {
        self.enter(Phase::Drain);
        for node in 0..self.scenario.nodes as u32 {
            self.with_member(NodeId(node), |machine, cx| machine.purge(cx));
        }
        self.rest("release everything")?;
        let toss = self.scenario.config.toss_after;
        // Dropping a cached resource takes one toss time at its master, and the record one more.
        self.run_until(self.sim.now() + 4 * toss + 500 * MILLISECOND)?;
        quiescence::check(&self.nodes())?;
        quiescence::check_empty(&self.nodes(), self.scenario.config.claim_resend.is_none())
    }
}

fn network(scenario: &Scenario) -> NetworkConfig {
    NetworkConfig {
        link: LinkProfile { latency: scenario.latency.clone(), bandwidth: Some(1_250_000_000) },
        stall_timeout: 200 * MILLISECOND,
        reconnect: lockify_sim::Delay::Uniform(100 * MICROSECOND, 5 * MILLISECOND),
        ..NetworkConfig::default()
    }
}

fn boot(
    scenario: Scenario,
    disk: Rc<RefCell<Disk>>,
    walls: Vec<Rc<Cell<i64>>>,
) -> impl FnMut(Boot<LockNode>) -> LockNode + 'static {
    move |boot| {
        let node = core_id(boot.node);
        let config = Config { node, incarnation: 0, ..scenario.config.clone() };
        let setting = Setting {
            file: if scenario.group.corosync {
                File::Corosync(group_file(&scenario, node, boot.incarnation))
            } else {
                File::Log(file(&scenario, node, boot.incarnation))
            },
            wall: Rc::clone(&walls[node.0 as usize]),
            sole: scenario.group.sole,
            #[cfg(feature = "mutations")]
            mutation: scenario.group.mutation,
        };
        let (scenario, disk) = (scenario.clone(), Rc::clone(&disk));
        let make = Rc::new(move || scenario.clients(&disk));
        LockNode::new(config, make, Some(Member::new(setting)))
    }
}

/// The configuration that a node's process starts with.
fn file(scenario: &Scenario, node: NodeId, incarnation: u32) -> LogConfig {
    let group = &scenario.group;
    let entry = |n: usize| {
        let entry = NodeEntry { address: format!("host{n}:1"), voter: n < group.voters };
        (NodeId(n as u32), entry)
    };
    // A file that still had the first lease would keep its node out once another one is agreed on.
    let names_lease = incarnation == 1 || group.leases == 0;
    LogConfig {
        cluster: "trial".into(),
        node,
        weight: scenario.weights[node.0 as usize],
        nodes: (0..scenario.nodes).map(entry).collect(),
        lease: names_lease.then_some(group.lease),
        fence: Some(group.fence),
        shards: 1,
        heartbeat: Some(group.heartbeat),
        floor: 0,
        seed: process_seed(scenario, node, incarnation),
    }
}

/// From which a process draws its random numbers.
fn process_seed(scenario: &Scenario, node: NodeId, incarnation: u32) -> u64 {
    let process = u64::from(node.0) << 32 | u64::from(incarnation);
    scenario.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ process
}

/// The same with corosync.
fn group_file(scenario: &Scenario, node: NodeId, incarnation: u32) -> GroupConfig {
    let group = &scenario.group;
    GroupConfig {
        cluster: "trial".into(),
        node,
        seed: process_seed(scenario, node, incarnation),
        floor: 0,
        boot: u64::from(incarnation),
        weight: scenario.weights[node.0 as usize],
        votes: (0..scenario.nodes as u32).map(|n| (NodeId(n), 1)).collect(),
        lease: group.lease,
        fence: group.fence,
        startup: 8 * group.lease,
    }
}
