//! The effect of a new view on each resource here, before any other node is asked: searches end,
//! locks of the departed go, resources whose master is gone have none (steps 0, 1, 3, 4 and 5).
//!
//! It depends on the resource alone, so that it may be done in pieces: a message for a resource
//! before its turn finds it as it was before the view.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::config::Policy;
use crate::error::Status;
use crate::flags::LockFlags;
use crate::ids::{LockId, NodeId};
use crate::io::Trace;
use crate::lock::{CancelCause, Lock, Op, OpStage, Owner};
use crate::message::{Body, Message};
use crate::mode::Mode;
use crate::queue::Queue;
use crate::resource::{Finding, Master, ResourceKey};
use crate::space::Lockspace;

impl Lockspace {
    /// The work before the walk that stops resource by resource.
    pub(super) fn begin_to_stop(&mut self, departed: &BTreeSet<NodeId>) {
        self.directory.clear();
        self.rounds.clear();
        self.idle.clear();
        self.requeue_awaiting_mastership();
        self.queued.retain(|(from, m)| !departed.contains(from) && !is_directory_message(m));
        self.drop_requests_to_old_home();
        self.suspend_claims(departed);
    }

    pub(super) fn stop_resource(&mut self, key: ResourceKey, departed: &BTreeSet<NodeId>) {
        self.store[key].idle_entry = None;
        self.stop_finding(key, departed);
        self.remaster(key, departed);
        // The end of an unlock that the old master cannot answer takes the resource along.
        if !self.store.contains_resource(key) {
            return;
        }
        self.purge_departed(key, departed);
        if !self.store[key].has_locks() && self.store[key].claim.is_none() {
            self.forget(key);
        }
    }

    /// Operations that waited for the outcome of a search or claim are looked at again when the
    /// gate opens: the search begins anew, and the resource may not even survive.
    fn requeue_awaiting_mastership(&mut self) {
        let requests = core::mem::take(&mut self.awaiting_mastership);
        let mut queued: VecDeque<_> = requests.into_values().flatten().collect();
        queued.append(&mut self.queued);
        self.queued = queued;
    }

    /// With home mastery, requests that came before this view: their senders ask again.
    fn drop_requests_to_old_home(&mut self) {
        if self.config.policy == Policy::Home {
            self.queued.retain(|(_, message)| !matches!(message.body, Body::Request(_)));
        }
    }

    /// Look-ups and rounds of the old view will not be answered: begin them again at the gate.
    fn stop_finding(&mut self, key: ResourceKey, departed: &BTreeSet<NodeId>) {
        self.store[key].finding = Finding::Nothing;
        let behind_claim = self.store[key].claim.is_some();
        for id in self.ids_in(key, Queue::Unanswered) {
            match self.store[id].stage {
                OpStage::LookUp => self.gate(id),
                OpStage::Asked(node) if departed.contains(&node) => self.ask_again(id),
                OpStage::AwaitsMaster if !behind_claim => self.gate(id),
                _ => {}
            }
        }
    }

    /// Finds another master for the resource if it needs one, with the effects on its locks here.
    fn remaster(&mut self, key: ResourceKey, departed: &BTreeSet<NodeId>) {
        let (old, hash) = (self.store[key].master, self.store[key].hash);
        if self.store[key].claim.is_some() {
            return;
        }
        let home = self.directory_node(hash);
        let at_home = self.config.policy == Policy::Home;
        // At home all locks are told anew, even if the home stays: a member that was not done with one view when the next
        // one came, or has missed one, does not know that others have been home meanwhile.
        let lost = match old {
            Master::Unknown => return,
            Master::Here => at_home,
            Master::At(node) => at_home || departed.contains(&node) || self.store[key].moved,
        };
        if !lost {
            // A master that holds none of our locks was only remembered; it may be it no more.
            if matches!(old, Master::At(_)) && !at_home && !self.is_known_at_master(key) {
                self.store[key].master = Master::Unknown;
            }
            return;
        }
        if old == Master::Here {
            self.trace_of(key, |name| Trace::Master { name, gained: false });
            self.drop_copies(key);
        }
        for id in self.store.locks_of(key).map(|l| l.id).collect::<Vec<_>>() {
            self.lose_master(id, at_home);
        }
        if !self.store.contains_resource(key) {
            return;
        }
        let known_there = self.is_known_at_master(key);
        let me = self.me();
        let resource = &mut self.store[key];
        resource.forget_block();
        resource.moved = known_there;
        resource.master = match at_home && known_there && home != me {
            true => Master::At(home),
            false => Master::Unknown,
        };
        if at_home && known_there && home == me {
            self.become_master(key);
        }
    }

    /// Returns true if the master holds (or held) any lock of the resource.
    fn is_known_at_master(&self, key: ResourceKey) -> bool {
        [Queue::Granted, Queue::Converting, Queue::Waiting]
            .into_iter()
            .any(|q| self.store.first(key, q).is_some())
    }

    fn drop_copies(&mut self, key: ResourceKey) {
        for id in
            self.store.locks_of(key).filter(|l| !l.is_local()).map(|l| l.id).collect::<Vec<_>>()
        {
            self.store.remove(id);
        }
    }

    /// The lock's master is gone (or is it no longer): step 3 of docs/design/semantics.md 9.4.
    fn lose_master(&mut self, id: LockId, at_home: bool) {
        let lock = &mut self.store[id];
        lock.remid = None;
        let cancelling = lock.overlap.as_ref().filter(|o| o.cancel_sent).and_then(|o| o.cancel);
        match (lock.op, lock.stage) {
            (Op::Unlock, OpStage::Asked(_)) => self.finish(id, Status::Unlocked),
            (_, OpStage::Queued) if cancelling.is_some() => {
                self.end_cancelled(id, cancelling.unwrap_or(CancelCause::Asked));
            }
            // Granted in its alternative mode, it writes. The message that moves locks has no place for that value.
            (Op::Convert, OpStage::Queued) if lock.lvb_out.is_some() && has_alternative(lock) => {
                if let Some(held) = lock.granted {
                    self.store.enqueue_granted(id, held);
                }
                self.ask_again(id);
            }
            (Op::Convert, OpStage::Asked(_)) => {
                let middle =
                    lock.granted.zip(lock.requested).is_some_and(|(gr, rq)| gr.is_middle(rq));
                if middle {
                    // The old master may have granted it: which mode is in force is not known.
                    lock.granted_unknown = true;
                    lock.stage = OpStage::Queued;
                    self.store.enqueue(id, Queue::Converting, false);
                } else {
                    self.ask_again(id);
                }
            }
            // The old home drops the request, as it is home no more.
            (Op::Request, OpStage::Asked(_)) if at_home => self.ask_again(id),
            _ => {}
        }
    }

    fn ask_again(&mut self, id: LockId) {
        let lock = &mut self.store[id];
        lock.op_no = (lock.op_no + 1) & Lock::OP_MASK;
        self.gate(id);
    }

    /// At the master: locks of dead nodes go (step 4).
    fn purge_departed(&mut self, key: ResourceKey, departed: &BTreeSet<NodeId>) {
        let of_departed =
            |l: &&Lock| matches!(l.owner, Owner::Remote { node, .. } if departed.contains(&node));
        let ids: Vec<LockId> = self.store.locks_of(key).filter(of_departed).map(|l| l.id).collect();
        for id in ids {
            let lock = self.store.remove(id);
            let wrote =
                lock.granted.is_some_and(Mode::writes) && lock.flags.contains(LockFlags::VALBLK);
            let resource = &mut self.store[key];
            resource.lvb_lost |= wrote;
            resource.regrant = true;
        }
    }
}

fn has_alternative(lock: &Lock) -> bool {
    lock.flags.intersects(LockFlags::ALTPR | LockFlags::ALTCW)
}

fn is_directory_message(message: &Message) -> bool {
    matches!(crate::remote::class(&message.body), crate::remote::Class::Directory)
}
