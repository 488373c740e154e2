//! Judges the membership service: its views, its lives, and which lives act at the same time.

use std::collections::BTreeMap;

use lockify_core::NodeId;
use lockify_membership::NodeView;
use lockify_sim::{MILLISECOND, Nanos};

use super::{Action, Cluster};
use crate::host::{LockNode, SPACE, core_id, sim_id};

impl Cluster {
    /// A node has got a life: it is larger than each before, and a log gives no two alike.
    pub(super) fn lives(&mut self, node: NodeId, life: u64) -> Result<(), String> {
        self.lives.insert(node, life);
        let before = self.largest.insert(node, life).unwrap_or(0);
        if before >= life {
            return Err(format!("node {node} begins life {life} after life {before}"));
        }
        if self.totem.is_none() && !self.all_lives.insert(life) {
            return Err(format!(
                "life {life} was handed out twice, the second time to node {node}"
            ));
        }
        Ok(())
    }

    /// A node has installed a view.
    pub(super) fn installed(
        &mut self,
        at: Nanos,
        node: NodeId,
        view: NodeView,
    ) -> Result<(), String> {
        let own = view.space(SPACE).and_then(|v| v.member(node));
        self.began.extend(own.map(|m| (node, m.incarnation)));
        match self.views.get(&view.seq) {
            Some(known) if *known != view => {
                return Err(format!(
                    "two views have the number {}: {known:?} and {view:?}",
                    view.seq
                ));
            }
            Some(_) => {}
            None => {
                let newest = self.views.last_key_value().is_none_or(|(seq, _)| *seq < view.seq);
                self.views.insert(view.seq, view.clone());
                if newest {
                    self.enters(at, &view)?;
                }
                self.outage();
            }
        }
        self.judge(node)
    }

    /// A newer view than all before: every life outside it must have stopped.
    fn enters(&mut self, at: Nanos, view: &NodeView) -> Result<(), String> {
        let lives: BTreeMap<NodeId, u64> = view
            .space(SPACE)
            .map(|v| v.members.iter().map(|m| (m.node, m.incarnation)).collect())
            .unwrap_or_default();
        for (node, life) in std::mem::replace(&mut self.inside, lives.clone()) {
            if lives.get(&node) == Some(&life) {
                continue;
            }
            if let Some((_, seq)) = self.acts(node).filter(|(acting, _)| *acting == life) {
                return Err(format!(
                    "node {node} (life {life}) still acts in view {seq} while view {} is without it",
                    view.seq
                ));
            }
            // One that never entered a view has done nothing, and may come back as it is.
            if self.began.contains(&(node, life)) {
                // To the others it is as if it had crashed; and it leaves a journal behind.
                self.observer.crashed(at, node, life)?;
                self.disk.borrow_mut().replay(node);
            }
        }
        Ok(())
    }

    /// The life in which a node acts now, and its view.
    fn acts(&self, node: NodeId) -> Option<(u64, u64)> {
        let id = sim_id(node);
        let local = self.sim.clock(id)?.local(self.sim.now());
        self.sim.machine(id)?.acting(local)
    }

    /// Nobody acts whom a newer view, in which somebody acts, is without.
    fn judge(&self, node: NodeId) -> Result<(), String> {
        let Some((newest, view)) = self.views.last_key_value() else { return Ok(()) };
        let all: Vec<(NodeId, u64, u64)> = self
            .sim
            .nodes()
            .map(core_id)
            .filter_map(|n| self.acts(n).map(|(life, seq)| (n, life, seq)))
            .collect();
        if !all.iter().any(|(_, _, seq)| seq == newest) {
            return Ok(());
        }
        let outside =
            |(n, life, seq): &&(NodeId, u64, u64)| seq < newest && view.life(*n) != Some(*life);
        match all.iter().find(outside) {
            Some((n, life, seq)) => Err(format!(
                "node {n} (life {life}) acts in view {seq} beside view {newest}, which node {node} has installed"
            )),
            None => Ok(()),
        }
    }

    /// All nodes lose their power just after a view was installed: what no disk has is gone.
    fn outage(&mut self) {
        self.installs += 1;
        let due = self.scenario.group.outage == Some(self.installs);
        if due && !self.controls.quiet.get() {
            let after = self.random_up_to(MILLISECOND);
            self.at(self.sim.now() + after, Action::RestartAll);
        }
    }

    /// Returns true if every node is in the same view of all, and acts in it.
    pub(super) fn is_whole(&self) -> bool {
        let seqs: Vec<Option<u64>> = self
            .sim
            .nodes()
            .map(|node| {
                let machine = self.sim.machine(node)?;
                let (_, seq) = self.acts(core_id(node))?;
                let space = machine.space();
                let whole = space.is_running()
                    && !space.has_work(&[])
                    && space.view().members.len() == self.scenario.nodes;
                whole.then_some(seq)
            })
            .collect();
        seqs.iter().all(|seq| seq.is_some() && *seq == seqs[0])
    }

    /// Returns true if every node has replaced the voters' lost disks. Then another one may be lost.
    pub(super) fn is_disk_replaced(&self) -> bool {
        let Some((node, disk)) = self.lost_disk else { return true };
        let known = |machine: &LockNode| {
            machine.cluster().is_some_and(|c| c.voters.get(&node) != Some(&disk))
        };
        self.nodes().into_iter().all(known)
    }
}
