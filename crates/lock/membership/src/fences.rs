//! Which nodes an agent has to fence, and how far that is.

use std::collections::BTreeMap;

use lockify_core::{NodeId, Time};

const SECOND: Time = 1_000_000_000;

/// The nodes that are to be fenced.
#[derive(Clone, Debug, Default)]
pub(super) struct Fences {
    all: BTreeMap<NodeId, Fence>,
}

#[derive(Clone, Copy, Debug)]
struct Fence {
    /// Lives below have to end; the highest number: none is known.
    below: u64,
    /// Lives below have ended if the agent that was started last has succeeded. It ends whatever runs on the node then, the
    /// lives that came after those that have to end included.
    proves: u64,
    since: Time,
    running: bool,
    failures: u32,
    /// When to run the agent, or to tell the others again that it has succeeded.
    next: Time,
    succeeded: bool,
}

impl Fences {
    /// From now on exactly these nodes are to be fenced, each up to this life.
    pub(super) fn set(&mut self, wanted: &BTreeMap<NodeId, u64>, now: Time) {
        self.all.retain(|node, f| wanted.get(node) == Some(&f.below));
        for (node, below) in wanted {
            self.all.entry(*node).or_insert(Fence {
                below: *below,
                proves: *below,
                since: now,
                running: false,
                failures: 0,
                next: now,
                succeeded: false,
            });
        }
    }

    /// The nodes whose agents have to run now. `newest` is the newest life of a node that is known.
    pub(super) fn start(&mut self, now: Time, newest: impl Fn(NodeId) -> u64) -> Vec<NodeId> {
        let mut due = Vec::new();
        for (node, f) in &mut self.all {
            if !f.running && !f.succeeded && f.next <= now {
                f.running = true;
                f.proves = f.below.max(newest(*node).saturating_add(1));
                due.push(*node);
            }
        }
        due
    }

    /// An agent has ended.
    pub(super) fn ended(&mut self, node: NodeId, success: bool, now: Time) {
        let Some(f) = self.all.get_mut(&node) else { return };
        f.running = false;
        f.succeeded = success;
        f.next = now;
        if !success {
            f.failures += 1;
            // After a second, then at ever longer intervals up to half a minute.
            f.next += ((SECOND / 2) << f.failures.min(6)).min(30 * SECOND);
        }
    }

    /// The fences to report to the others, for the first time, or again after `pause`: the fenced
    /// nodes, and up to which life.
    pub(super) fn reports_due(&mut self, now: Time, pause: Time) -> Vec<(NodeId, u64)> {
        let due = self.all.iter_mut().filter(|(_, f)| f.succeeded && f.next <= now);
        due.map(|(node, f)| {
            f.next = now + pause;
            (*node, f.proves)
        })
        .collect()
    }

    /// The lives of a node below this one are known to be over.
    pub(super) fn over(&mut self, node: NodeId, below: u64) {
        self.all.retain(|n, f| *n != node || f.below > below);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// When something is to be done, after `now`.
    pub(super) fn next(&self, now: Time) -> Time {
        let waits = self.all.values().filter(|f| !f.running && f.next > now);
        waits.map(|f| f.next).min().unwrap_or(Time::MAX)
    }

    /// For the status.
    pub(super) fn waits(&self, now: Time) -> Vec<String> {
        let wait = |(node, f): (&NodeId, &Fence)| {
            let seconds = now.saturating_sub(f.since) / SECOND;
            let failed = match f.failures {
                0 => String::new(),
                n => format!(", {n} attempts failed"),
            };
            format!("the fencing of node {node} (for {seconds} s{failed})")
        };
        self.all.iter().map(wait).collect()
    }

    #[cfg(test)]
    pub(super) fn runs(&self, node: NodeId) -> bool {
        self.all.get(&node).is_some_and(|f| f.running)
    }
}
