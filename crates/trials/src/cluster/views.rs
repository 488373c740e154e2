//! The membership service's side: who can reach whom, which views follow, and how they get to the nodes.

use lockify_core::{NodeId, View};
use lockify_sim::{Cut, Fault, MILLISECOND, NodeStatus};
use rand::RngExt as _;

use super::{Action, Cluster};
use crate::host::{Life, LockNode, core_id, sim_id};
use crate::membership::Candidate;

impl Cluster {
    fn reach(&self, a: NodeId, b: NodeId) -> bool {
        let blocked = |cut: &Cut| match cut {
            Cut::Groups(groups) => {
                let group = |node| groups.iter().position(|group| group.contains(&sim_id(node)));
                matches!((group(a), group(b)), (Some(x), Some(y)) if x != y)
            }
            Cut::OneWay { from, to } => {
                let one_way = |x, y| from.contains(&sim_id(x)) && to.contains(&sim_id(y));
                one_way(a, b) || one_way(b, a)
            }
        };
        !self.cuts.values().any(blocked)
    }

    fn candidates(&self) -> Vec<Candidate> {
        let now = self.sim.now();
        let candidate = |node: lockify_sim::NodeId| {
            let id = core_id(node);
            let life = self.sim.machine(node).map(LockNode::life);
            let asleep =
                self.paused.get(&id).is_some_and(|since| since + self.scenario.detection <= now);
            let usable = matches!(life, Some(Life::Outside | Life::Member | Life::Leaving));
            let incarnation = u64::from(self.sim.incarnation(node));
            Candidate { node: id, incarnation, usable: usable && !asleep }
        };
        self.sim.nodes().map(candidate).collect()
    }

    pub(super) fn decide(&mut self) {
        let candidates = self.candidates();
        let mut service = self.service.clone();
        let decision = service.decide(&candidates, |a, b| self.reach(a, b));
        self.service = service;
        let Some(decision) = decision else { return };
        self.sim.trace_line(|| format!("membership: {:?}", decision.view));
        for (node, incarnation) in &decision.fenced {
            self.fence(*node, *incarnation);
        }
        // Whoever left in order, or is fenced, leaves a journal behind.
        for node in 0..self.scenario.nodes as u32 {
            let now = decision.view.member(NodeId(node)).map(|member| member.incarnation);
            if now.is_none() || decision.fenced.iter().any(|(fenced, _)| fenced.0 == node) {
                self.disk.borrow_mut().replay(NodeId(node));
            }
        }
        self.take_away_who_left();
        self.announce(&decision.view);
    }

    /// Makes sure that an incarnation does nothing any more.
    fn fence(&mut self, node: NodeId, incarnation: u64) {
        let id = sim_id(node);
        if u64::from(self.sim.incarnation(id)) != incarnation {
            return;
        }
        let halted = self.sim.with(id, |machine, cx| machine.halt(cx)).is_some();
        if !halted || self.random.random_bool(0.5) {
            self.sim.inject(Fault::Crash { node: id, power_loss: false });
        } else {
            self.recovering.remove(&node);
            self.soon(40 * MILLISECOND, Action::Revive(node));
        }
    }

    fn take_away_who_left(&mut self) {
        for node in 0..self.scenario.nodes as u32 {
            let id = lockify_sim::NodeId(node);
            if self.sim.machine(id).map(LockNode::life) == Some(Life::Left) {
                self.sim.inject(Fault::Leave(id));
                self.soon(10 * MILLISECOND, Action::Revive(NodeId(node)));
            }
        }
    }

    fn announce(&mut self, view: &View) {
        let now = self.sim.now();
        for member in &view.members {
            let spread = if self.random.random_bool(0.1) { 10 * MILLISECOND } else { MILLISECOND };
            let drawn = now + self.random.random_range(0..=spread);
            let last = self.last_delivery.entry(member.node).or_default();
            let at = drawn.max(*last + 1);
            *last = at;
            self.at(at, Action::Deliver(member.node, member.incarnation, view.clone()));
        }
    }

    pub(super) fn deliver(&mut self, node: NodeId, incarnation: u64, view: View) {
        let id = sim_id(node);
        if u64::from(self.sim.incarnation(id)) != incarnation {
            return;
        }
        let held = self.held_views.entry(node).or_default();
        held.remove(&(incarnation, view.seq));
        // A service whose queue holds a later view may pass over this one. Not with home mastery: there, masters move
        // with every view, and a member that misses one cannot know what the others have dropped.
        let stale = view.seq < self.service.seq();
        let may_skip = self.scenario.config.policy != lockify_core::Policy::Home;
        if stale && may_skip && self.random.random_bool(0.3) {
            return;
        }
        // Views come in order: one that waits for a paused node keeps the next ones waiting.
        let after = held.range((incarnation, 0)..(incarnation, view.seq)).next().is_some();
        if after || self.sim.status(id) == Some(NodeStatus::Paused) {
            held.insert((incarnation, view.seq));
            let at = self.sim.now() + MILLISECOND;
            let last = self.last_delivery.entry(node).or_default();
            *last = (*last).max(at);
            return self.at(at, Action::Deliver(node, incarnation, view));
        }
        self.sim.with(id, |machine, cx| {
            let out_of_date =
                machine.life() != Life::Outside && machine.space().view().seq >= view.seq;
            if !matches!(machine.life(), Life::Halted | Life::Left) && !out_of_date {
                machine.view(cx, view);
            }
        });
    }

    /// Starts a node that is down and not meant to be.
    pub(super) fn revive(&mut self, node: NodeId) {
        if self.down.contains(&node) {
            return;
        }
        let id = sim_id(node);
        match self.sim.status(id) {
            Some(NodeStatus::Crashed | NodeStatus::Left) => {
                self.sim.inject(Fault::Restart(id));
            }
            Some(NodeStatus::Running)
                if self.sim.machine(id).map(LockNode::life) == Some(Life::Halted) =>
            {
                self.sim.inject(Fault::Crash { node: id, power_loss: false });
                self.sim.inject(Fault::Restart(id));
            }
            _ => {}
        }
    }
}
