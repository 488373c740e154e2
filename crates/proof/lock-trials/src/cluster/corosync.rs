//! Corosync beside the nodes of a run: when it tells what, and what happens to it.

use std::collections::BTreeSet;

use lockify_core::NodeId;
use lockify_corosync::Reason;
use lockify_sim::{Cut, MICROSECOND, MILLISECOND};
use rand::RngExt as _;

use super::totem::Due;
use super::{Action, Cluster};
use crate::group::separated;
use crate::host::{core_id, sim_id};

impl Cluster {
    fn post(&mut self, due: Due) {
        for (node, at) in due {
            match at {
                u64::MAX => self.soon(100 * MICROSECOND, Action::Order(node)),
                at => self.at(at, Action::DeliverDue(node)),
            }
        }
    }

    /// A process says something to its group.
    pub(super) fn cast(&mut self, node: NodeId, bytes: Vec<u8>) {
        let Some(totem) = &mut self.totem else { return };
        let after = totem.cast(node, bytes, &mut self.random);
        self.at(self.sim.now() + after, Action::Order(node));
    }

    pub(super) fn order(&mut self, node: NodeId) {
        let now = self.sim.now();
        let Some(totem) = &mut self.totem else { return };
        let due = totem.order(node, now, &mut self.random);
        self.post(due);
    }

    /// A process is told what is due, when it runs and has read its disk.
    pub(super) fn deliver_due(&mut self, node: NodeId) {
        let (now, id) = (self.sim.now(), sim_id(node));
        let up = self.sim.machine(id).is_some();
        let ready = self.sim.running(id).is_some_and(|m| m.has_service());
        if up && !ready {
            return self.at(now + MILLISECOND / 2, Action::DeliverDue(node));
        }
        while up && let Some(event) = self.totem.as_mut().and_then(|t| t.next(node, now)) {
            self.sim.with(id, |machine, cx| machine.told(cx, event));
        }
    }

    /// A process has started: its machine runs corosync, or does so now.
    pub(super) fn process_started(&mut self, node: NodeId, pid: u32) {
        let now = self.sim.now();
        let Some(totem) = &mut self.totem else { return };
        if totem.is_connected(node, pid) {
            return;
        }
        totem.boot(node);
        let due = totem.connect(node, pid, now, &mut self.random);
        self.post(due);
        self.reform_soon();
    }

    /// A process has ended, and in some cases its machine with it.
    pub(super) fn process_ended(&mut self, node: NodeId, in_order: bool) {
        let now = self.sim.now();
        let Some(totem) = &mut self.totem else { return };
        if !in_order && self.random.random_bool(0.5) {
            let _ = totem.down(node, now);
        }
        let reason = if in_order { Reason::Left } else { Reason::ProcessDown };
        let due = totem.ended(node, now, &mut self.random, reason);
        self.post(due);
        self.reform_soon();
    }

    /// Corosync of a machine ends, and comes back.
    pub(super) fn corosync_ends(&mut self) {
        let (node, now) = (self.random_node(), self.sim.now());
        let Some(totem) = self.totem.as_mut().filter(|_| !self.sheltered) else { return };
        let due = totem.down(node, now);
        self.post(due);
        self.reform_soon();
        let after = self.random_up_to(4 * self.scenario.group.lease);
        self.at(now + after, Action::CorosyncStarts(node));
    }

    pub(super) fn corosync_starts(&mut self, node: NodeId) {
        let now = self.sim.now();
        let Some(totem) = &mut self.totem else { return };
        if totem.is_up(node) {
            return;
        }
        totem.boot(node);
        if let Some(pid) = totem.pid(node) {
            let due = totem.connect(node, pid, now, &mut self.random);
            self.post(due);
        }
        self.reform_soon();
    }

    /// Something has changed: corosync notices after its token's time-out.
    pub(super) fn reform_soon(&mut self) {
        if self.totem.is_some() {
            let lease = self.scenario.group.lease;
            let after = self.random.random_range(lease / 8..=lease);
            self.at(self.sim.now() + after, Action::Reform);
        }
    }

    pub(super) fn reform(&mut self) {
        let now = self.sim.now();
        let pairs = self.partitions.values().flat_map(separated);
        let apart: BTreeSet<(NodeId, NodeId)> = pairs
            .map(|(a, b)| (core_id(a), core_id(b)))
            .map(|(a, b)| (a.min(b), a.max(b)))
            .collect();
        let Some(totem) = &mut self.totem else { return };
        let due = totem.reform(now, &mut self.random, &apart);
        self.post(due);
    }

    /// Corosync has its own network: one way that is broken counts as both.
    pub(super) fn note_partition(&mut self, id: u32, cut: Cut) {
        self.partitions.insert(id, cut);
        self.reform_soon();
    }

    pub(super) fn note_healed(&mut self, id: u32) {
        if self.partitions.remove(&id).is_some() {
            self.reform_soon();
        }
    }

    /// Nothing goes wrong any more.
    pub(super) fn calm_corosync(&mut self) {
        self.partitions.clear();
        for node in 0..self.scenario.nodes as u32 {
            let node = NodeId(node);
            if self.sim.machine(sim_id(node)).is_some() {
                self.corosync_starts(node);
            }
        }
        self.reform_soon();
    }

    /// A node that has said that it restarts goes on as a new program, which comes to the group as the same process.
    pub(super) fn reloaded(&mut self, node: NodeId) {
        let now = self.sim.now();
        let Some(totem) = &mut self.totem else { return };
        let Some(pid) = totem.pid(node).filter(|_| totem.is_up(node)) else { return };
        let mut due = totem.ended(node, now, &mut self.random, Reason::ProcessDown);
        due.extend(totem.connect(node, pid, now, &mut self.random));
        self.post(due);
    }
}
