//! The simulator's speed and memory while it hosts the lock manager.

use std::rc::Rc;
use std::time::{Duration, Instant};

use lockify_core::{Config, Member, NodeId, Policy, View};
use lockify_sim::{Boot, MICROSECOND, Sim};

use crate::host::{LockNode, core_id};
use crate::workload::general::{General, GeneralClient};

/// Names that clients lock, per node.
const NAMES: u32 = 4;
/// Locks that a client has at most.
const LOCKS: usize = 4;

/// The results of [`measure_hosted`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostedSpeed {
    /// Nodes simulated; each has one lockspace and one client.
    pub nodes: usize,
    /// Events of the first recovery, in which every node meets every other.
    pub events_to_start: u64,
    /// Wall-clock time that the first recovery took.
    pub start: Duration,
    /// Events after that.
    pub events: u64,
    /// Wall-clock time that these took.
    pub elapsed: Duration,
    /// Locks that exist at the end, on all nodes.
    pub locks: usize,
}

impl HostedSpeed {
    /// Events per second of wall-clock time while clients lock.
    pub fn events_per_s(&self) -> f64 {
        self.events as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Simulates a cluster whose nodes all lock at random names without faults. The recovery of the first view comes
/// first, then about `events` events. `before_end` is called while everything is still in memory.
pub fn measure_hosted<R>(
    nodes: usize,
    policy: Policy,
    events: u64,
    before_end: impl FnOnce() -> R,
) -> (HostedSpeed, R) {
    let mut sim = Sim::new(1, lockify_sim::Config::default(), boot(nodes, policy));
    let ids = sim.join_many(nodes);
    let members = ids.iter().map(|id| Member { node: core_id(*id), incarnation: 1, weight: 1 });
    let view = View { seq: 1, members: members.collect() };
    let started = Instant::now();
    // Every node has started before one is told of the others.
    pass(&mut sim, |sim| sim.now() > 0);
    for id in &ids {
        sim.with(*id, |machine, cx| machine.view(cx, view.clone()));
    }
    let running = |sim: &Sim<LockNode>, id: &lockify_sim::NodeId| {
        sim.machine(*id).is_some_and(|machine| machine.space().is_running())
    };
    let mut waiting = ids.iter().rev();
    let mut next = waiting.next();
    pass(&mut sim, |sim| {
        while next.is_some_and(|id| running(sim, id)) {
            next = waiting.next();
        }
        next.is_none()
    });
    let (start, events_to_start) = (started.elapsed(), sim.stats().events);
    let started = Instant::now();
    pass(&mut sim, |sim| sim.stats().events >= events_to_start + events);
    let elapsed = started.elapsed();
    let locks = ids.iter().filter_map(|id| sim.machine(*id)).map(|m| m.space().lock_count()).sum();
    let events = sim.stats().events - events_to_start;
    (HostedSpeed { nodes, events_to_start, start, events, elapsed, locks }, before_end())
}

/// Handles events until `done`, or until there are none; nobody wants to know what nodes note.
fn pass(sim: &mut Sim<LockNode>, mut done: impl FnMut(&Sim<LockNode>) -> bool) {
    while !done(sim) && sim.step() {
        sim.discard_reports();
    }
}

fn boot(nodes: usize, policy: Policy) -> impl FnMut(Boot<LockNode>) -> LockNode + 'static {
    move |boot| {
        let mut config = Config::new(NodeId(boot.node.0), u64::from(boot.incarnation), policy);
        config.trace = false;
        let how = General {
            names: NAMES * nodes as u32,
            locks: LOCKS,
            notify: false,
            nodes: nodes as u32,
            value_blocks: false,
            lvb_len: config.lvb_len,
            pause: 1_000 * MICROSECOND,
        };
        LockNode::new(
            config,
            Rc::new(move || vec![Box::new(GeneralClient::new(how.clone()))]),
            None,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_cluster_locks() {
        let (speed, locks) = measure_hosted(12, Policy::Directory, 20_000, || 7);
        assert_eq!((speed.nodes, speed.events, locks), (12, 20_000, 7));
        assert!(speed.events_to_start > 12 * 11, "nodes have not met: {speed:?}");
        assert!(speed.locks > 12, "hardly any locks: {speed:?}");
    }
}
