//! One run: a simulated cluster with its membership service, faults, clients and observers.

mod views;
mod weather;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use lockify_core::{Config, NodeId, Output, View};
use lockify_sim::{
    Boot, Cut, Fault, FaultPlan, LinkProfile, MICROSECOND, MILLISECOND, Nanos, NetworkConfig,
    NodeStatus, Report, ReportEvent, SECOND, Sim, Stop,
};
use rand::{RngExt, SeedableRng};

use crate::coverage::{Log, Trouble};
use crate::host::{HostContext, Life, LockNode, core_id, sim_id};
use crate::membership::Service;
use crate::note::Note;
use crate::observer::Observer;
use crate::port::Phase;
use crate::quiescence;
use crate::scenario::Scenario;
use crate::workload::disk::Disk;
use weather::{Controls, claim_filter, target_hook};
pub use weather::{KINDS, kind_of};

/// Virtual time in which everything must come to rest after faults have stopped.
const PATIENCE: Nanos = 60 * SECOND;

/// Hand-overs to a new process in one run with faults.
const MOST_RELOADS: usize = 20;

/// Something that the driver does at a point in time.
#[derive(Clone, Debug)]
enum Action {
    Begin(Fault),
    /// The membership service looks at the cluster again.
    Decide,
    Deliver(NodeId, u64, View),
    /// Starts a node that is down and not meant to be.
    Revive(NodeId),
    Leave(NodeId, u64),
    /// Ask a node to tell when its claims are settled.
    Fence,
    /// A node goes on as a new process.
    Reload,
    Filter(Trouble, bool),
}

/// A run under way.
pub struct Cluster {
    sim: Sim<LockNode>,
    scenario: Scenario,
    service: Service,
    disk: Rc<RefCell<Disk>>,
    controls: Rc<Controls>,
    actions: Vec<Option<Action>>,
    /// Nodes that the plan keeps down.
    down: BTreeSet<NodeId>,
    paused: BTreeMap<NodeId, Nanos>,
    cuts: BTreeMap<u32, Cut>,
    open: BTreeMap<String, (Trouble, Nanos)>,
    /// Views on their way: the delivery times, so that a node gets them in order.
    last_delivery: BTreeMap<NodeId, Nanos>,
    /// Views that wait for a paused node, by its incarnation and their number.
    held_views: BTreeMap<NodeId, BTreeSet<(u64, u64)>>,
    recovering: BTreeSet<NodeId>,
    /// What was observed.
    pub observer: Observer,
    log: Log,
    random: lockify_sim::Random,
}

/// What a run that went well leaves behind.
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
            trace_lines,
            event_limit: 20_000_000,
            ..lockify_sim::Config::default()
        };
        let boot = boot(scenario.clone(), Rc::clone(&disk));
        let mut sim = Sim::new(scenario.seed, config, boot);
        for target in &scenario.targets {
            sim.add_hook(target_hook(*target, Rc::clone(&controls)));
        }
        sim.add_filter(claim_filter(Rc::clone(&controls), scenario.seed));
        Cluster {
            service: Service::new(scenario.weights.clone()),
            observer: Observer::new(trace_lines > 0, scenario.config.deadlock_after.is_some()),
            random: lockify_sim::Random::seed_from_u64(scenario.seed ^ 0xd21_7e2),
            scenario,
            sim,
            disk,
            controls,
            actions: Vec::new(),
            down: BTreeSet::new(),
            paused: BTreeMap::new(),
            cuts: BTreeMap::new(),
            open: BTreeMap::new(),
            last_delivery: BTreeMap::new(),
            held_views: BTreeMap::new(),
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
    /// What was violated.
    pub fn run(&mut self) -> Result<Outcome, String> {
        self.set_up();
        self.run_until(self.scenario.quiet_at)?;
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

    fn set_up(&mut self) {
        self.sim.join_many(self.scenario.nodes);
        self.at(0, Action::Decide);
        if let Some(mix) = &self.scenario.mix {
            let mut mix = mix.clone();
            mix.quiet_at = self.scenario.quiet_at;
            let nodes: Vec<_> = self.sim.nodes().collect();
            let plan = FaultPlan::generate(&mix, &nodes, 0, self.sim.fault_random());
            for (at, fault) in plan.entries() {
                if *fault != Fault::HealAll {
                    self.at(*at, Action::Begin(fault.clone()));
                }
            }
            self.plan_weather();
        }
        for _ in 0..self.random.random_range(0..6) {
            let at = self.random.random_range(0..self.scenario.quiet_at);
            self.at(at, Action::Fence);
        }
        if self.scenario.mix.is_some() {
            for _ in 0..self.random.random_range(0..=MOST_RELOADS) {
                let at = self.random.random_range(0..self.scenario.quiet_at);
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
            let mut at = self.random.random_range(0..100 * MILLISECOND);
            while at < self.scenario.quiet_at {
                let end = at + self.random.random_range(5..60) * MILLISECOND;
                self.at(at, Action::Filter(kind, true));
                self.at(end.min(self.scenario.quiet_at - 1), Action::Filter(kind, false));
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
                self.note(at, core_id(node), u64::from(incarnation), note)
            }
            ReportEvent::Node { node, incarnation, status } => {
                self.node_changed(at, core_id(node), u64::from(incarnation), status)
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
        incarnation: u64,
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
                self.service.left(node, incarnation);
                self.soon(2 * MILLISECOND, Action::Decide);
            }
            Note::Broken(what) => return Err(format!("node {node}: {what}")),
            _ => {}
        }
        self.observer.note(at, node, incarnation, &note)
    }

    fn node_changed(
        &mut self,
        at: Nanos,
        node: NodeId,
        incarnation: u64,
        status: NodeStatus,
    ) -> Result<(), String> {
        let detection = self.scenario.detection;
        self.paused.remove(&node);
        match status {
            NodeStatus::Running => {
                self.soon(5 * MILLISECOND, Action::Decide);
                if incarnation > 1 {
                    self.log.trouble(Trouble::Join, at, at);
                }
                Ok(())
            }
            NodeStatus::Paused => {
                self.paused.insert(node, at);
                self.at(at + detection, Action::Decide);
                Ok(())
            }
            NodeStatus::Crashed => {
                if !self.recovering.is_empty() && self.recovering.iter().any(|other| *other != node)
                {
                    self.log.trouble(Trouble::Recovery, at, at);
                }
                self.recovering.remove(&node);
                self.at(at + detection, Action::Decide);
                self.at(at + detection + 5 * MILLISECOND, Action::Revive(node));
                self.observer.crashed(at, node, incarnation)
            }
            NodeStatus::Left => {
                self.recovering.remove(&node);
                self.observer.left(at, node, incarnation)
            }
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
            Action::Decide => self.decide(),
            Action::Deliver(node, incarnation, view) => self.deliver(node, incarnation, view),
            Action::Revive(node) => self.revive(node),
            Action::Leave(node, incarnation) => self.leave(node, incarnation),
            Action::Fence => {
                let node = NodeId(self.random.random_range(0..self.scenario.nodes as u32));
                self.with_member(node, |machine, cx| machine.fence(cx));
            }
            Action::Reload => self.reload(),
            Action::Filter(kind, on) => self.filter(kind, on),
        }
        Ok(())
    }

    /// Replaces all state of a node by what its image says, as a daemon does that hands itself over
    /// to a new program; connections do not outlive that.
    fn reload(&mut self) {
        let node = sim_id(NodeId(self.random.random_range(0..self.scenario.nodes as u32)));
        let cut = self.random.random_bool(0.8);
        // One that stands still hands nothing over.
        if self.sim.status(node) != Some(NodeStatus::Running)
            || self.sim.with(node, |machine, cx| machine.reload(cx)).is_none()
        {
            return;
        }
        let now = self.sim.now();
        self.log.trouble(Trouble::Reload, now, now);
        if cut {
            for peer in self.sim.nodes().filter(|peer| *peer != node).collect::<Vec<_>>() {
                self.sim.inject(Fault::BreakConnection(node, peer));
            }
        }
    }

    fn begin(&mut self, fault: Fault) {
        match &fault {
            Fault::Crash { node, .. } => {
                self.down.insert(core_id(*node));
            }
            Fault::Restart(node) => {
                self.down.remove(&core_id(*node));
                return self.revive(core_id(*node));
            }
            Fault::Leave(node) => return self.begin_leave(core_id(*node)),
            Fault::Partition { id, cut } => {
                self.cuts.insert(*id, cut.clone());
                let at = self.sim.now() + self.scenario.detection;
                self.at(at, Action::Decide);
            }
            Fault::Heal(id) => {
                self.cuts.remove(id);
                for node in 0..self.scenario.nodes as u32 {
                    self.soon(10 * MILLISECOND, Action::Revive(NodeId(node)));
                }
            }
            _ => {}
        }
        self.sim.inject(fault);
    }

    fn begin_leave(&mut self, node: NodeId) {
        self.down.insert(node);
        let incarnation = u64::from(self.sim.incarnation(sim_id(node)));
        let now = self.sim.now();
        self.log.trouble(Trouble::Leave, now, now + 20 * MILLISECOND);
        // An orderly unmount first, or a leave in the middle of everything.
        if self.random.random_bool(0.5) {
            self.with_member(node, |machine, cx| machine.enter(cx, Phase::Drain));
            self.soon(20 * MILLISECOND, Action::Leave(node, incarnation));
        } else {
            self.leave(node, incarnation);
        }
    }

    fn leave(&mut self, node: NodeId, incarnation: u64) {
        if u64::from(self.sim.incarnation(sim_id(node))) == incarnation {
            self.with_member(node, |machine, cx| machine.leave(cx));
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
        for kind in [Trouble::Drop, Trouble::Duplicate, Trouble::Delay] {
            self.filter(kind, false);
        }
        self.actions.iter_mut().for_each(|action| {
            if matches!(action, Some(Action::Begin(_) | Action::Filter(..) | Action::Leave(..))) {
                *action = None;
            }
        });
        self.cuts.clear();
        self.down.clear();
        self.close_windows();
        self.sim.inject(Fault::HealAll);
        let deadline = self.sim.now() + PATIENCE;
        while !self.is_whole() {
            if self.sim.now() >= deadline {
                return Err(format!("no progress: {}", self.who_is_not_whole()));
            }
            for node in 0..self.scenario.nodes as u32 {
                self.revive(NodeId(node));
            }
            self.decide();
            self.run_until(self.sim.now() + 5 * MILLISECOND)?;
        }
        let more = self.random.random_range(1..100) * MILLISECOND;
        self.run_until(self.sim.now() + more)
    }

    fn is_whole(&self) -> bool {
        self.sim.nodes().all(|node| {
            self.sim.machine(node).is_some_and(|machine| {
                machine.life() == Life::Member
                    && machine.space().is_running()
                    && !machine.space().has_work(&[])
                    && machine.space().view().seq == self.service.seq()
                    && machine.space().view().members.len() == self.scenario.nodes
            })
        })
    }

    fn who_is_not_whole(&self) -> String {
        let state = |node| match self.sim.machine(node) {
            Some(machine) if machine.life() == Life::Outside => format!("{node} has no view"),
            Some(machine) => format!(
                "{node} is {:?}, view {}, {}",
                machine.life(),
                machine.space().view().seq,
                if machine.space().is_running() { "runs" } else { "recovers" }
            ),
            None => format!("{node} is down"),
        };
        let states: Vec<_> = self.sim.nodes().map(state).collect();
        states.join("; ")
    }

    fn enter(&mut self, phase: Phase) {
        for node in 0..self.scenario.nodes as u32 {
            self.with_member(NodeId(node), |machine, cx| machine.enter(cx, phase));
        }
    }

    fn rest(&mut self, what: &str) -> Result<(), String> {
        let deadline = self.sim.now() + PATIENCE;
        let unfinished = |node: &lockify_sim::NodeId, sim: &Sim<LockNode>| {
            sim.machine(*node).is_none_or(|m| {
                let space = m.space();
                let claims = space.unsettled_claims() > 0;
                !m.is_idle() || m.open_fences() > 0 || claims || space.has_work(&[])
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

    /// What waits, for the message of a run without progress.
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
) -> impl FnMut(Boot<LockNode>) -> LockNode + 'static {
    move |boot| {
        let config = Config {
            node: core_id(boot.node),
            incarnation: u64::from(boot.incarnation),
            ..scenario.config.clone()
        };
        LockNode::new(config, scenario.clients(&disk))
    }
}
