//! A refused claim's lock becomes one of the master that the directory knows.

use super::State;
use crate::flags::LockFlags;
use crate::grant::Outcome;
use crate::ids::{LockId, NodeId, Time};
use crate::io::Trace;
use crate::lock::{Lock, Owner};
use crate::message::{Answer, Body, NewLock};
use crate::mode::Mode;
use crate::queue::Queue;
use crate::resource::ResourceKey;
use crate::space::Lockspace;
use crate::timers::Timer;

impl Lockspace {
    /// Marks an operation number as that of a merge.
    const MERGE: u32 = !Lock::OP_MASK;

    pub(super) fn merge(&mut self, ordinal: u64, master: NodeId) {
        let Some(claim) = self.claims.open.get_mut(ordinal) else { return };
        claim.state = State::Merging(master);
        claim.tries = (claim.tries + 1) & Lock::OP_MASK;
        let (key, lock, op) = (claim.resource, claim.lock, claim.tries | Self::MERGE);
        let mut new = self.new_lock_of(lock);
        new.ask.op = op;
        new.ask.mode = self.store[lock].granted.unwrap_or(Mode::NL);
        // It stays here, too: the other node may be master no more.
        let resource = &self.store[key];
        let lvb_seq = resource.lvb_seq;
        new.ask.lvb = resource.lvb.clone();
        new.ask.flags.set(LockFlags::IVVALBLK, resource.lvb_invalid);
        if resource.lvb.is_some() {
            // The answer says which block the master has then.
            new.ask.flags |= LockFlags::VALBLK;
        }
        let patience = self.config.merge_patience;
        self.send(master, Body::Merge { new, patience, lvb_seq });
    }

    /// At the master: a lock that was granted under a refused claim, as an ordinary request that
    /// goes first: its holder holds already.
    pub(crate) fn merge_for(
        &mut self,
        from: NodeId,
        key: ResourceKey,
        new: NewLock,
        patience: Time,
        lvb_seq: u32,
    ) {
        let NewLock { ask, bast, client, transaction, .. } = new;
        let resource = &mut self.store[key];
        resource.idle_since = None;
        if resource.lvb.is_none() && ask.lvb.is_some() {
            resource.lvb = ask.lvb;
            resource.lvb_seq = lvb_seq;
            resource.lvb_invalid = ask.flags.contains(LockFlags::IVVALBLK);
        }
        let mut lock =
            Lock::new(key, Owner::Remote { node: from, lkid: ask.lkid, client }, self.now);
        lock.requested = Some(ask.mode);
        lock.flags = (ask.flags & LockFlags::VALBLK) | LockFlags::HEADQUE | LockFlags::NOORDER;
        lock.op_no = ask.op;
        lock.bast = bast;
        lock.merging = true;
        let id = self.store.insert(lock, Queue::Unanswered);
        self.store.set_transaction(id, transaction);
        match self.do_request(id) {
            Outcome::Granted => self.tell_granted(id),
            _ => {
                self.set_timer(patience, Timer::Merge(id));
                self.notify_blockers(id, key, ask.mode, false);
            }
        }
    }

    /// The conflicting locks have not gone in time.
    pub(crate) fn give_up_merge(&mut self, id: LockId) {
        let Some(lock) = self.store.get(id).filter(|l| l.merging && l.queue == Queue::Waiting)
        else {
            return;
        };
        let (Owner::Remote { node, lkid, .. }, op) = (lock.owner, lock.op_no) else { return };
        let key = self.store.remove(id).resource;
        self.reply(node, lkid, op, id, Answer::Conflict);
        self.run_pending_if_exists(key);
        self.drop_if_unused(key);
    }

    pub(crate) fn receive_merge_reply(
        &mut self,
        from: NodeId,
        lkid: LockId,
        op: u32,
        remid: LockId,
        answer: Answer,
    ) {
        let claim = self.store.get(lkid).and_then(|l| self.store[l.resource].claim);
        let open = claim.and_then(|c| self.claims.open.get(c).map(|claim| (c, *claim)));
        let matching = open.filter(|(_, c)| {
            c.state == State::Merging(from) && c.lock == lkid && c.tries | Self::MERGE == op
        });
        let Some((ordinal, claim)) = matching else {
            self.stats.dropped += 1;
            return;
        };
        match answer {
            Answer::Granted(granted) => {
                self.stats.merges += 1;
                self.trace_of(claim.resource, |name| Trace::Merge {
                    name,
                    claim: ordinal,
                    master: from,
                });
                let lock = &mut self.store[lkid];
                lock.remid = Some(remid);
                lock.token = granted.token;
                lock.lvb_merged(granted);
                self.store[claim.resource].forget_block();
                self.settle(ordinal, claim);
            }
            Answer::Conflict => self.conflict(ordinal, claim, from),
            // M had left already, its REMOVE was on the way: the name is free again.
            _ => self.back_to_pending(ordinal),
        }
    }
    pub(super) fn back_to_pending(&mut self, ordinal: u64) {
        let Some(claim) = self.claims.open.get_mut(ordinal) else { return };
        claim.state = State::Pending;
        let (key, lock) = (claim.resource, claim.lock);
        self.become_master(key);
        self.claim_again(ordinal);
        self.flush_batches();
        self.thaw(lock);
    }
}
