//! Faults beside the engine's: single links, all nodes at once, disks, wall clocks, operators.

use lockify_core::NodeId;
use lockify_membership::Request;
use lockify_sim::{Cut, DiskCopy, Fault, MILLISECOND, Nanos, NodeStatus};
use rand::RngExt as _;
use rand::seq::SliceRandom as _;

use super::{Action, Cluster};
use crate::coverage::Trouble;
use crate::group::{partial_cuts, separated};
use crate::host::{DISK, core_id, sim_id};

/// Numbers of partitions of single links; those of plans stay below.
const LINKS: u32 = 1 << 16;

/// Most hours that a wall clock is wrong.
const HOURS: i64 = 12;

impl Cluster {
    pub(super) fn random_up_to(&mut self, most: Nanos) -> Nanos {
        self.random.random_range(0..=most)
    }

    pub(super) fn random_node(&mut self) -> NodeId {
        NodeId(self.random.random_range(0..self.scenario.nodes as u32))
    }

    /// When something happens, before all is quiet.
    fn some_time(&mut self) -> Nanos {
        self.random.random_range(self.sim.now()..self.quiet_at)
    }

    /// Plans everything.
    pub(super) fn plan_troubles(&mut self) {
        let group = self.scenario.group.clone();
        for number in 0..group.links {
            self.plan_links(LINKS + 64 * number as u32);
        }
        let all = [
            (group.restarts, Action::RestartAll),
            (if group.corosync { group.ends } else { 0 }, Action::CorosyncEnds),
            (group.leases, Action::SetLease),
            (group.lost_disks, Action::LoseDisk),
            (3 * group.restored_disks, Action::CopyDisk),
            (2 * group.restored_disks, Action::RestoreDisk),
        ];
        for (times, action) in all {
            for _ in 0..times {
                let at = self.some_time();
                self.at(at, action.clone());
            }
        }
    }

    /// Links that break and heal, once or again and again.
    fn plan_links(&mut self, first: u32) {
        let nodes: Vec<_> = self.sim.nodes().collect();
        let cuts = partial_cuts(&mut self.random, &nodes);
        let lease = self.scenario.group.lease;
        let times = if self.random.random_bool(0.3) { self.random.random_range(2..=6) } else { 1 };
        let mut at = self.some_time();
        for _ in 0..times {
            let end = at + self.random.random_range(lease / 4..8 * lease);
            for (id, cut) in (first..).zip(&cuts) {
                self.at(at, Action::Begin(Fault::Partition { id, cut: cut.clone() }));
                self.at(end, Action::Begin(Fault::Heal(id)));
            }
            at = end + self.random.random_range(lease / 4..3 * lease);
        }
    }

    /// A partition begins; in some cases its connections break at once, as when routers say that there is no way.
    pub(super) fn partition(&mut self, id: u32, cut: Cut) {
        self.cuts.insert(id);
        let at_once = self.random.random_bool(0.4);
        let pairs = if at_once { separated(&cut) } else { Vec::new() };
        self.note_partition(id, cut.clone());
        self.sim.inject(Fault::Partition { id, cut });
        for (a, b) in pairs {
            self.sim.inject(Fault::BreakConnection(a, b));
        }
    }

    /// All nodes stop, and start again in any order.
    pub(super) fn restart_all(&mut self) {
        if self.sheltered || self.controls.quiet.get() {
            return;
        }
        let power_loss = self.random.random_bool(0.7);
        let mut nodes: Vec<_> = self.sim.nodes().collect();
        nodes.shuffle(&mut self.random);
        for node in nodes {
            self.sim.inject(Fault::Crash { node, power_loss });
            self.down.remove(&core_id(node));
            self.soon(20 * MILLISECOND, Action::Revive(core_id(node)));
        }
    }

    /// A wall clock is wrong from now on, by hours or by decades: nothing but defects goes by it.
    pub(super) fn step_wall(&mut self, node: NodeId) {
        let hours = self.random.random_range(-HOURS * 3600..=HOURS * 3600);
        let reset = self.random.random_bool(0.1);
        self.walls[node.0 as usize].set(if reset { -1_780_000_000 } else { hours });
        let now = self.sim.now();
        self.log.trouble(Trouble::Clock, now, now);
    }

    /// An operator changes the lease.
    pub(super) fn set_lease(&mut self) {
        let most = if self.random.random_bool(0.6) { 14 } else { 80 };
        let lease = self.random.random_range(10..=most) * MILLISECOND;
        let node = self.random_node();
        self.sim.with(sim_id(node), |machine, cx| machine.request(cx, Request::Lease(lease)));
    }

    /// Returns true if one more disk may be lost: no others are missing, and every node knows all.
    fn may_lose_disk(&self) -> bool {
        !self.sheltered && !self.controls.quiet.get() && self.is_whole() && self.is_disk_replaced()
    }

    fn note_lost_disk(&mut self, node: NodeId) {
        let voters = self.nodes().first().and_then(|m| m.cluster()).map(|c| c.voters.clone());
        self.lost_disk =
            voters.and_then(|v| v.get(&node).map(|disk| (node, *disk))).or(self.lost_disk);
    }

    fn put_disk(&mut self, node: NodeId, copy: DiskCopy) {
        self.note_lost_disk(node);
        self.sim.inject(Fault::Crash { node: sim_id(node), power_loss: true });
        self.sim.replace_disk(sim_id(node), DISK, copy);
    }

    /// A node dies with its disk, and comes back with an empty one.
    pub(super) fn lose_disk(&mut self) {
        if self.may_lose_disk() {
            let node = self.random_node();
            self.put_disk(node, DiskCopy::default());
            self.soon(60 * MILLISECOND, Action::Revive(node));
        }
    }

    pub(super) fn copy_disk(&mut self) {
        let node = self.random_node();
        let copy = self.sim.copy_disk(sim_id(node), DISK);
        self.copies.extend(copy.map(|copy| (node, copy)));
    }

    /// A node comes back with an older copy of its disk. Nobody else may be missing then: only those who have heard it
    /// can tell that it has forgotten something.
    pub(super) fn restore_disk(&mut self) {
        let still = self.cuts.is_empty() && self.paused.is_empty();
        if !still || !self.may_lose_disk() {
            return;
        }
        if let Some((node, copy)) = self.copies.pop_first() {
            self.sheltered = true;
            self.controls.quiet.set(true);
            self.put_disk(node, copy);
            self.soon(5 * MILLISECOND, Action::Revive(node));
            self.at(self.sim.now() + 6 * MILLISECOND, Action::EndShelter);
        }
    }

    pub(super) fn end_shelter(&mut self) {
        if self.sheltered && !self.is_whole() {
            self.at(self.sim.now() + MILLISECOND, Action::EndShelter);
        } else if std::mem::take(&mut self.sheltered) {
            self.controls.quiet.set(false);
        }
    }

    /// The others find out that a process has died, where that can be seen.
    pub(super) fn dead(&mut self, node: NodeId, incarnation: u32) {
        let id = sim_id(node);
        let gone = self.sim.machine(id).is_none();
        if !gone || self.sim.incarnation(id) != incarnation {
            return;
        }
        for other in self.sim.nodes().filter(|n| *n != id) {
            self.sim.with(other, |machine, cx| machine.dead(cx, node));
        }
    }

    /// The agent that a node has started switches another one off, or fails.
    pub(super) fn agent(&mut self, by: NodeId, process: u32, node: NodeId) {
        // One that stands still is told when it goes on.
        if self.sim.status(sim_id(by)) == Some(NodeStatus::Paused) {
            return self.at(self.sim.now() + MILLISECOND, Action::Agent(by, process, node));
        }
        let success = self.agent_succeeds();
        if success {
            self.sim.inject(Fault::Crash { node: sim_id(node), power_loss: true });
        }
        if self.sim.incarnation(sim_id(by)) == process {
            self.sim.with(sim_id(by), |machine, cx| machine.fenced(cx, node, success));
        }
    }

    /// An agent may fail as long as faults happen. After that every agent succeeds. The membership service waits longer
    /// after each failure, and a trial does not wait for ever.
    pub(super) fn agent_succeeds(&mut self) -> bool {
        self.random.random_bool(0.8) || self.sim.now() >= self.quiet_at
    }
}
