//! Everything except the machines: the world on which a machine acts while it handles an input.

use crate::clock::Clock;
use crate::disk::{Disk, DiskDone, DiskError, DiskId, DiskRequest};
use crate::filter::{Filter, FilterId};
use crate::hook::{Hook, Inject, Observed, Step};
use crate::link::{LinkId, Links};
use crate::machine::{Input, Machine, TimerId};
use crate::network::NetworkConfig;
use crate::partition::Partitions;
use crate::queue::Queue;
use crate::random::Streams;
use crate::trace::Trace;
use crate::{Config, Fault, FaultCounts, FaultKind, Nanos, NodeId};
use std::collections::VecDeque;

/// An event in the queue.
pub(crate) enum Event<M: Machine> {
    Input {
        node: NodeId,
        incarnation: u32,
        input: Input<M>,
    },
    Timer {
        node: NodeId,
        incarnation: u32,
        number: u64,
        local: Nanos,
        timer: M::Timer,
    },
    Message {
        link: LinkId,
        side: usize,
        epoch: u32,
        msg: M::Msg,
    },
    Datagram {
        from: NodeId,
        to: NodeId,
        msg: M::Msg,
    },
    Connect(LinkId),
    StallTimeout {
        link: LinkId,
        epoch: u32,
    },
    Unstall {
        link: LinkId,
        side: usize,
    },
    DiskEnds {
        node: NodeId,
        disk: DiskId,
        generation: u32,
        slot: usize,
    },
    /// A node that was paused handles the next of what waited.
    Drain {
        node: NodeId,
        incarnation: u32,
    },
    Fault(Box<Fault>),
    Wake(u64),
}

/// The status of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeStatus {
    /// It handles inputs.
    Running,
    /// Arrivals wait.
    Paused,
    /// Its state is lost.
    Crashed,
    /// It left in order.
    Left,
}

/// The inputs that wait for a paused node; timers keep their number, so that they can still be
/// cancelled.
pub(crate) struct Waiting<M: Machine> {
    pub timer: Option<u64>,
    pub input: Input<M>,
}

pub(crate) struct NodeState<M: Machine> {
    pub status: NodeStatus,
    pub incarnation: u32,
    pub clock: Clock,
    pub backlog: VecDeque<Waiting<M>>,
    pub disks: Vec<Disk>,
    pub links: Vec<LinkId>,
}

/// Something that the host gets to know.
#[derive(Clone, Debug, PartialEq)]
pub struct Report<N> {
    /// Virtual time.
    pub at: Nanos,
    /// The event.
    pub event: ReportEvent<N>,
}

/// The kind of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum ReportEvent<N> {
    /// A machine called [`Context::note`](crate::Context::note).
    Note {
        /// Its node.
        node: NodeId,
        /// Its incarnation.
        incarnation: u32,
        /// Its report.
        note: N,
    },
    /// A node was started, paused, resumed, crashed or left; its status is the new one.
    Node {
        /// Which node.
        node: NodeId,
        /// Its incarnation.
        incarnation: u32,
        /// Its new status.
        status: NodeStatus,
    },
    /// A fault was injected or ended, with effect.
    Fault(Fault),
    /// The time of [`Sim::wake_at`](crate::Sim::wake_at) has come.
    Wake(u64),
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events taken from the queue.
    pub events: u64,
    /// Inputs handled by machines.
    pub inputs: u64,
    /// Messages sent.
    pub sent: u64,
    /// Messages that reached their receiver, duplicates included; those of a node to itself excluded.
    pub delivered: u64,
    /// Messages lost for any reason that was noticed at sending or arrival.
    pub lost: u64,
    /// Copies made by the network.
    pub duplicated: u64,
    /// Most events that ever waited.
    pub queue_peak: usize,
}

pub(crate) struct World<M: Machine> {
    pub now: Nanos,
    pub queue: Queue<Event<M>>,
    pub nodes: Vec<NodeState<M>>,
    pub links: Links<M::Msg>,
    pub partitions: Partitions,
    pub net: NetworkConfig,
    pub streams: Streams,
    pub trace: Trace,
    pub reports: VecDeque<Report<M::Note>>,
    pub filters: Vec<(FilterId, Filter<M::Msg>)>,
    pub hooks: Vec<Hook<M>>,
    /// Faults to inject as soon as the running machine returns.
    pub pending_faults: VecDeque<Fault>,
    pub counts: FaultCounts,
    /// When each kind of fault was last injected.
    pub last_faults: [Option<Nanos>; FaultKind::ALL.len()],
    pub stats: Stats,
    next_timer: u64,
}

impl<M: Machine> World<M> {
    pub fn new(seed: u64, config: &Config) -> Self {
        Self {
            now: 0,
            queue: Queue::new(),
            nodes: Vec::new(),
            links: Links::new(),
            partitions: Partitions::default(),
            net: config.network.clone(),
            streams: Streams::new(seed),
            trace: Trace::new(config.trace_lines),
            reports: VecDeque::new(),
            filters: Vec::new(),
            hooks: Vec::new(),
            pending_faults: VecDeque::new(),
            counts: FaultCounts::default(),
            last_faults: [None; FaultKind::ALL.len()],
            stats: Stats::default(),
            next_timer: 0,
        }
    }

    /// The node exists and runs, perhaps paused: its kernel answers.
    pub fn is_alive(&self, node: NodeId) -> bool {
        let status = self.nodes.get(node.index()).map(|state| state.status);
        matches!(status, Some(NodeStatus::Running | NodeStatus::Paused))
    }

    pub fn push_input(&mut self, at: Nanos, node: NodeId, input: Input<M>) {
        if let Some(state) = self.nodes.get(node.index()) {
            self.queue.push(at, Event::Input { node, incarnation: state.incarnation, input });
        }
    }

    pub fn set_timer(&mut self, node: NodeId, local: Nanos, timer: M::Timer) -> TimerId {
        let number = self.next_timer;
        self.next_timer += 1;
        let state = &self.nodes[node.index()];
        let at = state.clock.when(local).max(self.now);
        let incarnation = state.incarnation;
        let slot = self.queue.push(at, Event::Timer { node, incarnation, number, local, timer });
        TimerId { slot, number }
    }

    pub fn cancel_timer(&mut self, node: NodeId, id: TimerId) -> bool {
        let is_it =
            |event: &Event<M>| matches!(event, Event::Timer { number, .. } if *number == id.number);
        if self.queue.remove_if(id.slot, is_it) {
            return true;
        }
        let backlog = &mut self.nodes[node.index()].backlog;
        let waiting = backlog.len();
        backlog.retain(|item| item.timer != Some(id.number));
        backlog.len() < waiting
    }

    /// Changes a node's clock; its timers follow.
    pub fn change_clock(&mut self, node: NodeId, change: impl FnOnce(&mut Clock, Nanos)) {
        let now = self.now;
        let clock = &mut self.nodes[node.index()].clock;
        change(clock, now);
        let clock = clock.clone();
        self.queue.reschedule(|event| match event {
            Event::Timer { node: owner, local, .. } if *owner == node => {
                Some(clock.when(*local).max(now))
            }
            _ => None,
        });
    }

    pub fn submit(&mut self, node: NodeId, disk: DiskId, request: DiskRequest) {
        match self.nodes[node.index()].disks.get_mut(disk.0 as usize) {
            Some(found) => {
                found.submit(request);
                self.start_disk(node, disk);
            }
            None => {
                let done = DiskDone { disk, tag: request.tag, result: Err(DiskError::NoDisk) };
                self.push_input(self.now, node, Input::Disk(done));
            }
        }
    }

    fn start_disk(&mut self, node: NodeId, id: DiskId) {
        let Some(disk) = self.nodes[node.index()].disks.get_mut(id.0 as usize) else {
            return;
        };
        while let Some((slot, ends)) = disk.start_next(self.now, &mut self.streams.disk) {
            let generation = disk.generation;
            self.queue.push(ends, Event::DiskEnds { node, disk: id, generation, slot });
        }
    }

    pub fn disk_ends(
        &mut self,
        node: NodeId,
        id: DiskId,
        generation: u32,
        slot: usize,
    ) -> Option<Input<M>> {
        let disk = self.nodes[node.index()].disks.get_mut(id.0 as usize)?;
        if disk.generation != generation {
            return None;
        }
        let done = disk.finish(slot)?;
        self.start_disk(node, id);
        Some(Input::Disk(done))
    }

    pub fn note(&mut self, node: NodeId, note: M::Note) {
        self.trace_node(node, || format!("note {note:?}"));
        self.look_at(node, Step::Note(&note));
        let incarnation = self.nodes[node.index()].incarnation;
        self.report(ReportEvent::Note { node, incarnation, note });
    }

    pub fn report(&mut self, event: ReportEvent<M::Note>) {
        self.reports.push_back(Report { at: self.now, event });
    }

    pub fn report_status(&mut self, node: NodeId) {
        let state = &self.nodes[node.index()];
        let (incarnation, status) = (state.incarnation, state.status);
        self.trace_node(node, || format!("is {status:?}, incarnation {incarnation}"));
        self.report(ReportEvent::Node { node, incarnation, status });
    }

    pub fn count_fault(&mut self, kind: FaultKind) {
        self.counts.add(kind);
        self.last_faults[kind as usize] = Some(self.now);
    }

    pub fn look_at_send(&mut self, node: NodeId, to: NodeId, msg: &M::Msg) {
        self.look_at(node, Step::Send { to, msg });
    }

    fn look_at(&mut self, node: NodeId, step: Step<'_, M>) {
        let observed = Observed { at: self.now, node, step };
        for hook in &mut self.hooks {
            if let Some(Inject::Before(fault) | Inject::After(fault)) = hook(&observed) {
                self.pending_faults.push_back(fault);
            }
        }
    }

    /// Asks the hooks about an input; returns what to inject before it.
    pub fn look_at_input(&mut self, node: NodeId, input: &Input<M>) -> Vec<Fault> {
        let observed = Observed { at: self.now, node, step: Step::Input(input) };
        let mut before = Vec::new();
        for hook in &mut self.hooks {
            match hook(&observed) {
                Some(Inject::Before(fault)) => before.push(fault),
                Some(Inject::After(fault)) => self.pending_faults.push_back(fault),
                None => {}
            }
        }
        before
    }

    pub fn trace_node(&mut self, node: NodeId, text: impl FnOnce() -> String) {
        if self.trace.is_on() {
            let incarnation = self.nodes.get(node.index()).map_or(0, |state| state.incarnation);
            self.trace.line(self.now, format_args!("{node}.{incarnation}"), text);
        }
    }

    pub fn trace_line(&mut self, text: impl FnOnce() -> String) {
        self.trace.line(self.now, "-", text);
    }
}
