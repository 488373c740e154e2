//! The engine: takes events in order and lets the machines handle them.

use crate::disk::{Disk, DiskConfig, DiskId};
use crate::fault::{Fault, FaultCounts, FaultKind};
use crate::filter::{Filter, FilterId};
use crate::hook::Hook;
use crate::link::LinkProfile;
use crate::machine::{Context, Input, Machine};
use crate::network::NetworkConfig;
use crate::world::{Event, NodeState, NodeStatus, Report, ReportEvent, Stats, Waiting, World};
use crate::{Clock, FaultPlan, Nanos, NodeId, Random, Trace};
use std::collections::VecDeque;

/// Settings of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The network.
    pub network: NetworkConfig,
    /// Disks of every node that joins.
    pub disks: Vec<DiskConfig>,
    /// Lines of trace to keep; 0 switches the trace off.
    pub trace_lines: usize,
    /// Stop after so many events: a machine that sends for ever must not hang a test.
    pub event_limit: u64,
}

impl Default for Config {
    /// A data centre's network, no disks, no trace, no limit.
    fn default() -> Self {
        Self {
            network: NetworkConfig::default(),
            disks: Vec::new(),
            trace_lines: 0,
            event_limit: u64::MAX,
        }
    }
}

/// The initial parts of a machine.
#[derive(Debug)]
pub struct Boot<M> {
    /// Its node.
    pub node: NodeId,
    /// How often the node was started, from 1.
    pub incarnation: u32,
    /// The machine of the incarnation before, for the host to salvage what is durable (a disk's content, a counter that
    /// never goes back). A crash loses the rest.
    pub previous: Option<M>,
}

/// Why [`Sim::next_report`] returned nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The time that was asked for has come.
    Time,
    /// Nothing will ever happen again.
    Idle,
    /// [`Config::event_limit`] is reached.
    EventLimit,
}

type BootFn<M> = Box<dyn FnMut(Boot<M>) -> M>;

/// A simulated cluster.
pub struct Sim<M: Machine> {
    pub(crate) world: World<M>,
    /// By node; empty only while its machine is being replaced.
    machines: Vec<Option<M>>,
    boot: BootFn<M>,
    config: Config,
    next_filter: u64,
    digest: u64,
}

impl<M: Machine> Sim<M> {
    /// A cluster without nodes. `boot` makes a node's machine whenever it starts.
    pub fn new(seed: u64, config: Config, boot: impl FnMut(Boot<M>) -> M + 'static) -> Self {
        Self {
            world: World::new(seed, &config),
            machines: Vec::new(),
            boot: Box::new(boot),
            config,
            next_filter: 0,
            digest: seed,
        }
    }

    /// Adds a node and starts it: its first input is due now.
    pub fn join(&mut self) -> NodeId {
        let node = NodeId(u32::try_from(self.machines.len()).expect("fewer than 2^32 nodes"));
        let disks = self.config.disks.iter().cloned().enumerate();
        let links = self
            .world
            .links
            .iter()
            .filter(|(_, link)| link.nodes.contains(&node))
            .map(|(id, _)| id)
            .collect();
        self.world.nodes.push(NodeState {
            status: NodeStatus::Left,
            incarnation: 0,
            clock: Clock::default(),
            backlog: VecDeque::new(),
            disks: disks.map(|(id, config)| Disk::new(DiskId(id as u32), config)).collect(),
            links,
        });
        self.machines.push(None);
        self.start(node);
        node
    }

    /// Adds `count` nodes.
    pub fn join_many(&mut self, count: usize) -> Vec<NodeId> {
        (0..count).map(|_| self.join()).collect()
    }

    /// Gives a node one more disk; none if there is no such node.
    pub fn add_disk(&mut self, node: NodeId, config: DiskConfig) -> Option<DiskId> {
        let disks = &mut self.world.nodes.get_mut(node.index())?.disks;
        let id = DiskId(u32::try_from(disks.len()).ok()?);
        disks.push(Disk::new(id, config));
        Some(id)
    }

    /// Sets latency and bandwidth from one node to another (one direction).
    pub fn set_link(&mut self, from: NodeId, to: NodeId, profile: LinkProfile) {
        let id = self.world.link_between(from, to);
        let link = self.world.links.get(id);
        let side = link.side(from);
        link.lanes[side].profile = Some(Box::new(profile));
    }

    /// Virtual time.
    pub fn now(&self) -> Nanos {
        self.world.now
    }

    /// All nodes that ever joined.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<M> {
        (0..self.machines.len() as u32).map(NodeId)
    }

    /// The status of a node; none if it never joined.
    pub fn status(&self, node: NodeId) -> Option<NodeStatus> {
        Some(self.world.nodes.get(node.index())?.status)
    }

    /// How often a node was started; 0 if it never joined.
    pub fn incarnation(&self, node: NodeId) -> u32 {
        self.world.nodes.get(node.index()).map_or(0, |state| state.incarnation)
    }

    /// A node's clock.
    pub fn clock(&self, node: NodeId) -> Option<&Clock> {
        Some(&self.world.nodes.get(node.index())?.clock)
    }

    /// A node's machine, unless it has crashed or left.
    pub fn machine(&self, node: NodeId) -> Option<&M> {
        let machine = self.machines.get(node.index())?.as_ref();
        machine.filter(|_| self.world.is_alive(node))
    }

    /// A node's machine, if the node is running.
    pub fn running(&self, node: NodeId) -> Option<&M> {
        self.machine(node).filter(|_| self.status(node) == Some(NodeStatus::Running))
    }

    /// Calls a node's machine from outside, as a client on it would; none unless the node is running.
    pub fn with<R>(
        &mut self,
        node: NodeId,
        call: impl FnOnce(&mut M, &mut Context<'_, M>) -> R,
    ) -> Option<R> {
        if self.status(node) != Some(NodeStatus::Running) {
            return None;
        }
        let machine = self.machines.get_mut(node.index())?.as_mut()?;
        let result = call(machine, &mut Context { world: &mut self.world, node });
        self.inject_pending();
        Some(result)
    }

    /// Random numbers for the host's workload, from a stream of their own.
    pub fn workload_random(&mut self) -> &mut Random {
        &mut self.world.streams.workload
    }

    /// Random numbers for making fault plans, from a stream of their own.
    pub fn fault_random(&mut self) -> &mut Random {
        &mut self.world.streams.faults
    }

    /// Reports [`ReportEvent::Wake`] with `token` at virtual time `at`.
    pub fn wake_at(&mut self, at: Nanos, token: u64) {
        self.world.queue.push(at.max(self.world.now), Event::Wake(token));
    }

    /// Installs a filter, which sees every message at the moment of sending, after those installed before.
    pub fn add_filter(&mut self, filter: Filter<M::Msg>) -> FilterId {
        let id = FilterId(self.next_filter);
        self.next_filter += 1;
        self.world.filters.push((id, filter));
        id
    }

    /// Removes a filter.
    pub fn remove_filter(&mut self, id: FilterId) {
        self.world.filters.retain(|(other, _)| *other != id);
    }

    /// Installs a hook, which sees every step of every node; see [`at_nth`](crate::at_nth).
    pub fn add_hook(&mut self, hook: Hook<M>) {
        self.world.hooks.push(hook);
    }

    /// Schedules all faults of a plan.
    pub fn apply_plan(&mut self, plan: &FaultPlan) {
        for (at, fault) in plan.entries() {
            self.inject_at(*at, fault.clone());
        }
    }

    /// Injects a fault at virtual time `at`.
    pub fn inject_at(&mut self, at: Nanos, fault: Fault) {
        self.world.queue.push(at.max(self.world.now), Event::Fault(Box::new(fault)));
    }

    /// How often each kind of fault was injected with effect.
    pub fn fault_counts(&self) -> &FaultCounts {
        &self.world.counts
    }

    /// When a kind of fault was last injected with effect: tells which faults a protocol's step has just met.
    pub fn last_fault(&self, kind: FaultKind) -> Option<Nanos> {
        self.world.last_faults[kind as usize]
    }

    /// Counts of the run.
    pub fn stats(&self) -> Stats {
        self.world.stats
    }

    /// Number of pairs of nodes that have talked to each other.
    pub fn links(&self) -> usize {
        self.world.links.len()
    }

    /// The trace, empty unless [`Config::trace_lines`] is set.
    pub fn trace(&self) -> &Trace {
        &self.world.trace
    }

    /// Writes a line of the host's to the trace, for a violation found.
    pub fn trace_line(&mut self, text: impl FnOnce() -> String) {
        self.world.trace_line(text);
    }

    /// A hash of all that has happened (order, times, kinds of inputs): equal for two runs of one seed.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Handles one event; false if there is none. Reports that it makes wait for [`next_report`](Self::next_report).
    pub fn step(&mut self) -> bool {
        let Some((at, event)) = self.world.queue.pop() else {
            return false;
        };
        self.world.now = at;
        self.world.stats.events += 1;
        self.world.stats.queue_peak = self.world.stats.queue_peak.max(self.world.queue.len() + 1);
        self.process(event);
        true
    }

    /// Runs until something is reported, at most until virtual time `until` (included); `Nanos::MAX` is for ever.
    ///
    /// # Errors
    /// Why nothing is reported. Unless that is [`Stop::EventLimit`], virtual time is `until` then; if `until` is for
    /// ever, it is the time of the last event.
    pub fn next_report(&mut self, until: Nanos) -> Result<Report<M::Note>, Stop> {
        loop {
            if let Some(report) = self.world.reports.pop_front() {
                return Ok(report);
            }
            if self.world.stats.events >= self.config.event_limit {
                return Err(Stop::EventLimit);
            }
            match self.world.queue.next_time() {
                None => {
                    self.pass_time(until);
                    return Err(Stop::Idle);
                }
                Some(next) if next > until => {
                    self.pass_time(until);
                    return Err(Stop::Time);
                }
                Some(_) => self.step(),
            };
        }
    }

    /// Forgets the reports that wait for [`next_report`](Self::next_report): for hosts that drive the engine by
    /// [`step`](Self::step) and want none.
    pub fn discard_reports(&mut self) {
        self.world.reports.clear();
    }

    fn pass_time(&mut self, until: Nanos) {
        if until < Nanos::MAX {
            self.world.now = self.world.now.max(until);
        }
    }

    /// Runs until virtual time `until` (included), and returns all reports.
    pub fn run_until(&mut self, until: Nanos) -> (Vec<Report<M::Note>>, Stop) {
        let mut reports = Vec::new();
        loop {
            match self.next_report(until) {
                Ok(report) => reports.push(report),
                Err(stop) => return (reports, stop),
            }
        }
    }

    fn process(&mut self, event: Event<M>) {
        match event {
            Event::Input { node, incarnation, input } => {
                self.deliver_to(node, incarnation, None, input)
            }
            Event::Timer { node, incarnation, number, timer, .. } => {
                self.deliver_to(node, incarnation, Some(number), Input::Timer(timer));
            }
            Event::Message { link, side, epoch, msg } => {
                let arrived = self.world.arrive(link, side, epoch, msg);
                self.deliver_if(arrived);
            }
            Event::Datagram { from, to, msg } => {
                let arrived = self.world.datagram_arrives(from, to, msg);
                self.deliver_if(arrived);
            }
            Event::Unstall { link, side } => {
                let arrived = self.world.unstall(link, side);
                self.deliver_if(arrived);
            }
            Event::DiskEnds { node, disk, generation, slot } => {
                let ended = self.world.disk_ends(node, disk, generation, slot);
                self.deliver_if(ended.map(|input| (node, input)));
            }
            Event::Connect(link) => self.world.attempt(link),
            Event::StallTimeout { link, epoch } => self.world.stall_timeout(link, epoch),
            Event::Drain { node, incarnation } => self.drain(node, incarnation),
            Event::Fault(fault) => {
                self.inject(*fault);
            }
            Event::Wake(token) => self.world.report(ReportEvent::Wake(token)),
        }
    }

    fn deliver_if(&mut self, arrived: Option<(NodeId, Input<M>)>) {
        if let Some((node, input)) = arrived {
            self.deliver(node, None, input);
        }
    }

    /// Delivers unless the node was restarted since.
    fn deliver_to(&mut self, node: NodeId, incarnation: u32, timer: Option<u64>, input: Input<M>) {
        if self.incarnation(node) == incarnation {
            self.deliver(node, timer, input);
        }
    }

    fn deliver(&mut self, node: NodeId, timer: Option<u64>, input: Input<M>) {
        let Some(state) = self.world.nodes.get_mut(node.index()) else {
            return;
        };
        match state.status {
            NodeStatus::Running if state.backlog.is_empty() => {
                self.handle(node, Waiting { timer, input })
            }
            NodeStatus::Running | NodeStatus::Paused => {
                state.backlog.push_back(Waiting { timer, input })
            }
            NodeStatus::Crashed | NodeStatus::Left => {}
        }
    }

    /// Lets a running node handle an input, with the faults that hooks put around it.
    fn handle(&mut self, node: NodeId, item: Waiting<M>) {
        if !self.world.hooks.is_empty() {
            for fault in self.world.look_at_input(node, &item.input) {
                self.inject(fault);
            }
        }
        let state = &mut self.world.nodes[node.index()];
        match state.status {
            NodeStatus::Running => self.dispatch(node, item.input),
            NodeStatus::Paused => state.backlog.push_front(item),
            NodeStatus::Crashed | NodeStatus::Left => {}
        }
        self.inject_pending();
    }

    fn dispatch(&mut self, node: NodeId, input: Input<M>) {
        self.world.stats.inputs += 1;
        self.mix(node, &input);
        self.world.trace_node(node, || format!("{input:?}"));
        if let Some(machine) = &mut self.machines[node.index()] {
            machine.handle(input, &mut Context { world: &mut self.world, node });
        }
    }

    fn mix(&mut self, node: NodeId, input: &Input<M>) {
        let kind = match input {
            Input::Start => 0,
            Input::Message { from, .. } => 8 + u64::from(from.0),
            Input::Timer(_) => 1,
            Input::Link { .. } => 2,
            Input::Disk(_) => 3,
        };
        for word in [self.world.now, u64::from(node.0), kind] {
            // FNV-1a by words; the rotation spreads the high bits.
            self.digest = (self.digest ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
    }

    fn inject_pending(&mut self) {
        while let Some(fault) = self.world.pending_faults.pop_front() {
            self.inject(fault);
        }
    }

    fn drain(&mut self, node: NodeId, incarnation: u32) {
        let state = &mut self.world.nodes[node.index()];
        if state.incarnation != incarnation || state.status != NodeStatus::Running {
            return;
        }
        let Some(item) = state.backlog.pop_front() else {
            return;
        };
        self.handle(node, item);
        self.drain_later(node);
    }

    pub(crate) fn drain_later(&mut self, node: NodeId) {
        let state = &self.world.nodes[node.index()];
        if !state.backlog.is_empty() {
            let incarnation = state.incarnation;
            self.world.queue.push(self.world.now, Event::Drain { node, incarnation });
        }
    }

    pub(crate) fn start(&mut self, node: NodeId) {
        let state = &mut self.world.nodes[node.index()];
        state.incarnation += 1;
        state.status = NodeStatus::Running;
        let incarnation = state.incarnation;
        let links = state.links.clone();
        let previous = self.machines[node.index()].take();
        self.machines[node.index()] = Some((self.boot)(Boot { node, incarnation, previous }));
        self.world.report_status(node);
        self.world.push_input(self.world.now, node, Input::Start);
        self.world.revive_links(links);
    }
}
