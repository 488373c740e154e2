//! Injecting faults into a running cluster.

use crate::disk::{DiskCopy, DiskFault, DiskId};
use crate::fault::{Cut, Fault};
use crate::machine::Machine;
use crate::world::{NodeStatus, ReportEvent};
use crate::{Clock, Nanos, NodeId, Sim};

impl<M: Machine> Sim<M> {
    /// Injects a fault now; returns whether it had an effect. Faults of unknown nodes have none.
    pub fn inject(&mut self, fault: Fault) -> bool {
        let done = self.try_inject(&fault);
        if done {
            self.world.trace_line(|| format!("FAULT {fault:?}"));
            if let Some(kind) = fault.kind() {
                self.world.count_fault(kind);
            }
            self.world.report(ReportEvent::Fault(fault));
        }
        done
    }

    /// A copy of what is certain to be on a disk's medium, as a backup has it; none if there is no such disk.
    pub fn copy_disk(&self, node: NodeId, disk: DiskId) -> Option<DiskCopy> {
        Some(self.world.nodes.get(node.index())?.disks.get(disk.0 as usize)?.copy())
    }

    /// Gives a node that does not run another medium: an older copy, or with the default an empty one. Returns whether
    /// it did: a node that runs keeps its own.
    pub fn replace_disk(&mut self, node: NodeId, disk: DiskId, copy: DiskCopy) -> bool {
        if self.world.is_alive(node) {
            return false;
        }
        let state = self.world.nodes.get_mut(node.index());
        let Some(disk) = state.and_then(|state| state.disks.get_mut(disk.0 as usize)) else {
            return false;
        };
        disk.replace(copy);
        self.world.trace_line(|| format!("FAULT {node} has another disk"));
        true
    }

    fn try_inject(&mut self, fault: &Fault) -> bool {
        match fault {
            Fault::Crash { node, power_loss } => self.crash(*node, *power_loss),
            Fault::Restart(node) => self.restart(*node),
            Fault::Pause(node) => {
                self.change_status(*node, NodeStatus::Running, NodeStatus::Paused)
            }
            Fault::Resume(node) => self.resume(*node),
            Fault::Leave(node) => self.leave(*node),
            Fault::Partition { id, cut } => self.partition(*id, cut),
            Fault::Heal(id) => {
                let healed = self.world.partitions.heal(*id);
                self.world.revive_all_links();
                healed
            }
            Fault::BreakConnection(a, b) => self.world.break_connection(*a, *b),
            Fault::ClockStep { node, by } => {
                self.change_clock(*node, |clock, now| clock.step(now, *by))
            }
            Fault::ClockRate { node, ppm } => {
                self.change_clock(*node, |clock, now| clock.set_rate(now, *ppm))
            }
            Fault::SlowLink { ends, extra } => self.slow_link(*ends, *extra),
            Fault::Disk { node, disk, fault } => self.disk_fault(*node, *disk, *fault),
            Fault::HealAll => self.heal_all(),
        }
    }

    fn crash(&mut self, node: NodeId, power_loss: bool) -> bool {
        if !self.world.is_alive(node) {
            return false;
        }
        let state = &mut self.world.nodes[node.index()];
        state.status = NodeStatus::Crashed;
        state.backlog.clear();
        state
            .disks
            .iter_mut()
            .for_each(|disk| disk.crash(power_loss, &mut self.world.streams.disk));
        self.world.drop_links_of(node, false, power_loss);
        self.world.report_status(node);
        true
    }

    fn leave(&mut self, node: NodeId) -> bool {
        if !self.world.is_alive(node) {
            return false;
        }
        let state = &mut self.world.nodes[node.index()];
        state.status = NodeStatus::Left;
        state.backlog.clear();
        self.world.drop_links_of(node, true, false);
        self.world.report_status(node);
        true
    }

    fn restart(&mut self, node: NodeId) -> bool {
        if self.world.is_alive(node) || node.index() >= self.world.nodes.len() {
            return false;
        }
        self.start(node);
        true
    }

    fn change_status(&mut self, node: NodeId, from: NodeStatus, to: NodeStatus) -> bool {
        let Some(state) = self.world.nodes.get_mut(node.index()) else {
            return false;
        };
        if state.status != from {
            return false;
        }
        state.status = to;
        self.world.report_status(node);
        true
    }

    fn resume(&mut self, node: NodeId) -> bool {
        let resumed = self.change_status(node, NodeStatus::Paused, NodeStatus::Running);
        if resumed {
            self.drain_later(node);
        }
        resumed
    }

    fn partition(&mut self, id: u32, cut: &Cut) -> bool {
        self.world.partitions.add(id, cut);
        self.world.watch_separated_links();
        // It may have replaced another one.
        self.world.revive_all_links();
        true
    }

    fn change_clock(&mut self, node: NodeId, change: impl FnOnce(&mut Clock, Nanos)) -> bool {
        let known = node.index() < self.world.nodes.len();
        if known {
            self.world.change_clock(node, change);
        }
        known
    }

    fn slow_link(&mut self, (a, b): (NodeId, NodeId), extra: Nanos) -> bool {
        let known = a.index().max(b.index()) < self.world.nodes.len();
        if known {
            let id = self.world.link_between(a, b);
            self.world.links.get(id).lanes.iter_mut().for_each(|lane| lane.extra = extra);
        }
        known
    }

    fn disk_fault(&mut self, node: NodeId, disk: DiskId, fault: DiskFault) -> bool {
        let state = self.world.nodes.get_mut(node.index());
        let disk = state.and_then(|state| state.disks.get_mut(disk.0 as usize));
        disk.is_some_and(|disk| disk.set_fault(fault))
    }

    fn heal_all(&mut self) -> bool {
        self.world.partitions.heal_all();
        for id in 0..self.world.links.len() {
            self.world.links.get(id).lanes.iter_mut().for_each(|lane| lane.extra = 0);
        }
        for node in self.nodes() {
            self.heal_node(node);
        }
        self.world.revive_all_links();
        true
    }

    fn heal_node(&mut self, node: NodeId) {
        self.resume(node);
        self.restart(node);
        let state = &mut self.world.nodes[node.index()];
        state.disks.iter_mut().for_each(|disk| {
            disk.set_fault(DiskFault::None);
        });
        if state.clock.rate() != 0 {
            self.world.change_clock(node, |clock, now| clock.set_rate(now, 0));
        }
    }
}
