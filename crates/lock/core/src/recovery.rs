//! Recovery after a change of members (docs/design/semantics.md 9), step by step, restartable at any.
//!
//! A view closes the gate. The locks of the departed are removed at once, because that needs nobody
//! else; then come four barriers, which the lowest member counts:
//!
//! ```text
//! NODES      everybody has stopped; who masters what is sent to the new directory nodes
//! DIRECTORY  the directory is complete; resources without a master find a new one there
//! LOCKS      their locks have reached it
//! DONE       everybody is ready: the gate opens
//! ```
//!
//! [Walks](walk) do the work on every resource, in pieces.
//!
//! Every mark that a step leaves (`moved`, `regrant`, `lvb_lost`, [`OpStage::Gate`]) stays on the lock
//! or resource until the recovery is done, so that a newer view starts over from them.
//!
//! Difference to the kernel: names are pushed by their masters rather than pulled, to every member
//! and even if there are none. As connections keep order, their last message also says that
//! everything the sender said in the old view has arrived.

mod masters;
mod settle;
pub(crate) mod step;
mod stop;
mod walk;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::ids::{LockId, NodeId, Time, View};
use crate::inspect::RecoveryInfo;
use crate::io::{LostReason, Output, WithdrawReason};
use crate::lock::{OpStage, Owner};
use crate::message::{Body, Features};
use crate::recovery::step::Step;
use crate::space::Lockspace;
use walk::Task;
pub(crate) use walk::Walk;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Recovery {
    /// The barrier that this node has passed last.
    passed: Option<Step>,
    /// This node was a member before.
    established: bool,
    /// At the coordinator: the barriers that each member has reached.
    reached: BTreeMap<Step, BTreeMap<NodeId, Features>>,
    /// The members whose names have not all come.
    names_missing: BTreeSet<NodeId>,
    /// Resources whose new master has not been named yet.
    adopting: usize,
    /// Locks that a new master has not acknowledged.
    moving: usize,
    clock: Clock,
}

/// When a recovery began and its last step did; only figures depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Clock {
    began: Time,
    step: Time,
}

impl core::hash::Hash for Clock {
    fn hash<H: core::hash::Hasher>(&self, _: &mut H) {}
}

impl Lockspace {
    pub(crate) fn enter_view(&mut self, mut view: View) {
        if self.over || (self.member && view.seq <= self.view.seq) {
            return;
        }
        let me = self.me();
        if view.member(me).is_none_or(|m| m.incarnation != self.config.incarnation) {
            return self.halt();
        }
        view.members.sort_by_key(|m| m.node);
        let old = core::mem::replace(&mut self.view, view);
        if !mutated!(self, TokensNotCarried) {
            self.clock = self.clock.max(self.view.seq << 32);
        }
        self.slots = directory_slots(&self.view);
        self.out.push_back(Output::RecoveryBegun(self.view.seq));
        let established = self.member;
        self.member = true;
        self.running = false;
        self.recovery = Some(Recovery {
            passed: None,
            established,
            reached: BTreeMap::new(),
            names_missing: self.view.members.iter().map(|m| m.node).filter(|&n| n != me).collect(),
            adopting: 0,
            moving: 0,
            clock: Clock { began: self.now, step: self.now },
        });
        self.stop_search();
        let mut departed: BTreeSet<NodeId> = old
            .members
            .iter()
            .filter(|m| self.view.member(m.node).is_none_or(|now| now.incarnation != m.incarnation))
            .map(|m| m.node)
            .collect();
        // Resources that the former view has not stopped still speak of those who departed with it.
        departed.append(&mut self.not_stopped_for());
        self.begin_to_stop(&departed);
        self.begin_walk(Task::Stop(departed));
        for (from, message) in core::mem::take(&mut self.early) {
            self.receive(from, message);
        }
    }

    /// The steps that need nobody else are done.
    fn stopped(&mut self) {
        #[cfg(feature = "mutations")]
        if mutated!(self, BarrierHoldsGate) && !self.barrier.is_empty() {
            return;
        }
        self.reach(Step::Nodes);
    }

    pub(crate) fn gate(&mut self, id: LockId) {
        self.store[id].stage = OpStage::Gate;
        self.gated.push_back(id);
    }

    // ---- barriers ----

    pub(crate) fn coordinator(&self) -> NodeId {
        self.view.members.first().map_or(self.me(), |m| m.node)
    }

    fn reach(&mut self, step: Step) {
        let features = Features {
            claims: true,
            family: self.family(),
            lvb_len: self.config.lvb_len as u32,
            established: self.recovery.as_ref().is_some_and(|r| r.established),
        };
        let coordinator = self.coordinator();
        if coordinator == self.me() {
            self.count_reached(coordinator, step, features);
        } else {
            self.send(coordinator, Body::Reached { step, features });
        }
    }

    fn count_reached(&mut self, from: NodeId, step: Step, features: Features) {
        let members = self.view.members.len();
        let Some(recovery) = self.recovery.as_mut() else { return };
        let reached = recovery.reached.entry(step).or_default();
        reached.insert(from, features);
        if reached.len() < members {
            return;
        }
        let claims = reached.values().all(|f| f.claims);
        // Newcomers adapt to those who were there before them.
        let model = reached.values().find(|f| f.established).or(reached.values().next()).copied();
        let Some(model) = model else { return };
        let features = Features { claims, ..model };
        let me = self.me();
        let others: Vec<NodeId> =
            self.view.members.iter().map(|m| m.node).filter(|&n| n != me).collect();
        for node in others {
            self.send(node, Body::Passed { step, features });
        }
        self.pass_step(step, features);
    }

    fn pass_step(&mut self, step: Step, features: Features) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        recovery.passed = Some(step);
        let spent = self.now.saturating_sub(recovery.clock.step);
        recovery.clock.step = self.now;
        self.stats.recovery_step_ns[step as usize] += spent;
        match step {
            Step::Nodes => {
                self.claims_agreed = features.claims;
                if features.family != self.family()
                    || features.lvb_len != self.config.lvb_len as u32
                {
                    self.out.push_back(Output::Withdraw(WithdrawReason::ConfigurationMismatch));
                    return;
                }
                self.begin_walk(Task::names(&self.view, self.config.node));
            }
            Step::Directory => self.begin_walk(Task::Masters(BTreeMap::new())),
            Step::Locks => self.begin_walk(Task::Settle),
            Step::Done => self.resume(),
        }
    }

    pub(crate) fn receive_recovery(&mut self, from: NodeId, body: Body) {
        if self.recovery.is_none() {
            self.stats.dropped += 1;
            return;
        }
        match body {
            Body::Reached { step, features } => self.count_reached(from, step, features),
            // The coordinator waits for this node: what comes before it is there makes no sense.
            Body::Passed { .. } if self.walk.is_some() => self.stats.dropped += 1,
            Body::Passed { step, features } => self.pass_step(step, features),
            Body::Names { names, last } => self.receive_names(from, names, last),
            Body::Orphaned(names) => self.receive_orphaned(from, names),
            Body::Adopted(masters) => self.receive_adopted(masters),
            Body::Moved(locks) => self.receive_moved(from, locks),
            Body::MovedReply(ids) => self.receive_moved_reply(ids),
            _ => self.stats.dropped += 1,
        }
    }

    // ---- steps 8, 9, 10: on again ----

    fn resume(&mut self) {
        if let Some(recovery) = self.recovery.take() {
            let took = self.now.saturating_sub(recovery.clock.began);
            self.stats.recovery_max_ns = self.stats.recovery_max_ns.max(took);
        }
        self.running = true;
        self.stats.recoveries += 1;
        self.out.push_back(Output::RecoveryDone(self.view.seq));
        self.out.append(&mut self.deferred_callbacks);
        if !self.has_directory() {
            self.directory.clear();
        }
        self.resume_claims();
        self.serve_gated();
        self.begin_walk(Task::Grant);
        self.open_barrier();
        self.resume_search();
    }

    /// Where the recovery that goes on is.
    pub fn recovery(&self) -> Option<RecoveryInfo> {
        let recovery = self.recovery.as_ref()?;
        let step = match recovery.passed {
            None => Step::Nodes,
            Some(Step::Nodes) => Step::Directory,
            Some(Step::Directory) => Step::Locks,
            Some(Step::Locks | Step::Done) => Step::Done,
        };
        let reached = recovery.reached.get(&step);
        let missing = |node: &NodeId| reached.is_none_or(|r| !r.contains_key(node));
        let counts = self.coordinator() == self.me();
        let members = self.view.members.iter().map(|m| m.node).filter(|_| counts);
        Some(RecoveryInfo { step, missing: members.filter(missing).collect() })
    }

    // ---- the end ----

    /// Everything is lost: clients are told at once.
    pub(crate) fn halt(&mut self) {
        let lost: Vec<_> = self
            .store
            .lock_ids()
            .filter_map(|id| {
                let lock = &self.store[id];
                match lock.owner {
                    Owner::Local(client) => Some((client, id, lock.tag)),
                    _ => None,
                }
            })
            .collect();
        for (client, lock, tag) in lost {
            self.out.push_back(Output::Lost { client, lock, tag, reason: LostReason::Halted });
        }
        let ended = Lockspace {
            view: core::mem::take(&mut self.view),
            stats: self.stats,
            now: self.now,
            clock: self.clock,
            out: core::mem::take(&mut self.out),
            over: true,
            ..Lockspace::new(self.config.clone())
        };
        *self = ended;
    }
}

/// Directory nodes by hash: each member as often as its weight says; all equally if nobody has any.
fn directory_slots(view: &View) -> Vec<NodeId> {
    let weighted: Vec<NodeId> =
        view.members.iter().flat_map(|m| core::iter::repeat_n(m.node, m.weight as usize)).collect();
    if weighted.is_empty() { view.members.iter().map(|m| m.node).collect() } else { weighted }
}
