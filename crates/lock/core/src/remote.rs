//! Locks whose master is another node, and other nodes' locks whose master is here: the messages
//! of ordinary operation.

use crate::config::Policy;
use crate::error::{Error, Status};
use crate::flags::{LockFlags, SbFlags};
use crate::grant::{Effects, Outcome};
use crate::ids::{LockId, NodeId};
use crate::io::{Output, WithdrawReason};
use crate::lock::{Lock, Op, OpStage, Overlap, Owner};
use crate::lvb::{LvbAction, action};
use crate::message::{Answer, Ask, Body, Granted, Message, NewLock};
use crate::mode::Mode;
use crate::queue::Queue;
use crate::resource::{Finding, Master, ResourceKey};
use crate::space::Lockspace;

/// Messages of views not announced yet that are kept.
const EARLY_LIMIT: usize = 64 * 1024;

/// How a message is treated around a recovery (docs/design/semantics.md 9.1 and 9.8).
pub(crate) enum Class {
    /// Part of a recovery: counts only in its view.
    Recovery,
    /// Part of a search for deadlocks: counts only in its view, and never while a recovery runs.
    Search,
    /// About who masters what: counts only in its view, and waits for the gate.
    Directory,
    /// Asks a master for something: waits for the gate.
    Request,
    /// Ends or continues something already begun: handled at once, so that everything that a
    /// member sent before it stopped has taken effect when the directory is rebuilt.
    Answer,
}

pub(crate) fn class(body: &Body) -> Class {
    match body {
        Body::Reached { .. }
        | Body::Passed { .. }
        | Body::Names { .. }
        | Body::Orphaned(_)
        | Body::Adopted(_)
        | Body::Moved(_)
        | Body::MovedReply(_) => Class::Recovery,
        Body::SuspectDeadlock
        | Body::TellWaits { .. }
        | Body::Waits { .. }
        | Body::Witness { .. }
        | Body::Witnessed { .. }
        | Body::Victim { .. } => Class::Search,
        Body::Lookup { .. }
        | Body::LookupReply { .. }
        | Body::Remove { .. }
        | Body::Claims(_)
        | Body::ClaimReplies(_)
        | Body::WhoMasters { .. }
        | Body::Masters { .. }
        | Body::Assert { .. }
        | Body::AssertAck { .. } => Class::Directory,
        Body::Request(_)
        | Body::Convert { .. }
        | Body::Unlock { .. }
        | Body::Cancel { .. }
        | Body::Merge { .. }
        | Body::Purge(_) => Class::Request,
        Body::Reply { .. } | Body::Grant { .. } | Body::Demoted { .. } | Body::Bast { .. } => {
            Class::Answer
        }
    }
}

impl Lockspace {
    pub(crate) fn receive(&mut self, from: NodeId, message: Message) {
        if message.view > self.view.seq && !self.over {
            if self.early.len() >= EARLY_LIMIT {
                return self.out.push_back(Output::Withdraw(WithdrawReason::LeftBehind));
            }
            return self.early.push_back((from, message));
        }
        if !self.member || self.view.member(from).is_none() || from == self.me() {
            self.stats.dropped += 1;
            return;
        }
        if !mutated!(self, TokensNotCarried) {
            self.clock = self.clock.max(message.clock);
        }
        let current = message.view == self.view.seq;
        match class(&message.body) {
            Class::Recovery | Class::Directory if !current => self.stats.dropped += 1,
            // Waiting locks start another search.
            Class::Search if !current || !self.running => {}
            Class::Directory | Class::Request if !self.running || self.backlog => {
                self.queued.push_back((from, message))
            }
            Class::Recovery => self.receive_recovery(from, message.body),
            _ => self.dispatch(from, message),
        }
    }

    pub(crate) fn dispatch(&mut self, from: NodeId, message: Message) {
        match message.body {
            Body::Lookup { new, id } => self.receive_lookup(from, new, id),
            Body::LookupReply { lkid, op, master } => self.receive_lookup_reply(lkid, op, master),
            Body::Remove { name, id } => self.receive_remove(from, name, id),
            Body::Claims(entries) => self.receive_claims(from, entries),
            Body::ClaimReplies(replies) => self.receive_claim_replies(from, replies),
            Body::Request(_) | Body::Merge { .. } => self.receive_new(from, message),
            Body::Convert { remid, ask } => self.receive_convert(from, remid, ask),
            Body::Unlock { remid, ask } => self.receive_unlock(from, remid, ask),
            Body::Cancel { remid, lkid, op } => self.receive_cancel(from, remid, lkid, op),
            Body::Reply { lkid, op, remid, answer } => {
                self.receive_reply(from, lkid, op, remid, answer)
            }
            Body::Grant { lkid, remid, granted } => self.receive_grant(from, lkid, remid, granted),
            Body::Demoted { lkid, remid } => self.receive_demoted(from, lkid, remid),
            Body::Bast { lkid, mode } => self.receive_bast(from, lkid, mode),
            Body::Purge(clients) => self.purge_here(clients),
            Body::SuspectDeadlock => self.search(),
            Body::TellWaits { round } => self.receive_tell_waits(from, round),
            Body::Waits { round, now, resources, last } => {
                self.receive_waits(from, round, now, resources, last);
            }
            Body::Witness { round, edges } => self.receive_witness(from, round, &edges),
            Body::Witnessed { round, sights } => self.receive_witnessed(from, round, sights),
            Body::Victim { lkid, op } => self.end_deadlocked(lkid, op),
            Body::WhoMasters { name, round } => self.receive_who_masters(from, name, round),
            Body::Masters { name, round, answer } => {
                self.receive_masters(from, name, round, answer)
            }
            Body::Assert { name, round } => self.receive_assert(from, name, round),
            Body::AssertAck { name, round } => self.receive_assert_ack(from, name, round),
            Body::Reached { .. }
            | Body::Passed { .. }
            | Body::Names { .. }
            | Body::Orphaned(_)
            | Body::Adopted(_)
            | Body::Moved(_)
            | Body::MovedReply(_) => self.stats.dropped += 1,
        }
    }

    // ---- the owner's side: asking ----

    pub(crate) fn ask_of(&self, id: LockId) -> Ask {
        let lock = &self.store[id];
        let writes =
            lock.granted.is_some_and(Mode::writes) && lock.flags.contains(LockFlags::VALBLK);
        Ask {
            lkid: id,
            op: lock.op_no,
            mode: lock.requested.unwrap_or(Mode::NL),
            flags: lock.flags,
            lvb: lock.lvb_out.clone().filter(|_| writes),
        }
    }

    pub(crate) fn new_lock_of(&self, id: LockId) -> NewLock {
        let lock = &self.store[id];
        NewLock {
            name: self.name_of(lock.resource),
            ask: self.ask_of(id),
            bast: lock.bast,
            client: lock.client(),
            transaction: self.store.transaction(id),
        }
    }

    pub(crate) fn request_at(&mut self, id: LockId, master: NodeId) {
        let new = self.new_lock_of(id);
        self.store[id].stage = OpStage::Asked(master);
        self.send(master, Body::Request(new));
    }

    pub(crate) fn convert_at(&mut self, id: LockId, master: NodeId) {
        let ask = self.ask_of(id);
        let Some(remid) = self.store[id].remid else { return };
        self.store[id].stage = OpStage::Asked(master);
        self.send(master, Body::Convert { remid, ask });
    }

    /// A down-conversion is granted by every master, so it is done here and now and its message is
    /// not answered (docs/design/semantics.md 4.3).
    pub(crate) fn convert_down(&mut self, id: LockId, master: NodeId, rq: Mode) {
        let Some(remid) = self.store[id].remid else { return };
        let token = if rq.writes() { self.next_token() } else { 0 };
        let ask = self.ask_of(id);
        self.send(master, Body::Convert { remid, ask });
        let now = self.now;
        let lock = &mut self.store[id];
        match lock.lvb_out.take().filter(|_| !lock.flags.contains(LockFlags::IVVALBLK)) {
            Some(written) => lock.lvb_written(written, lock.lvb_seq.wrapping_add(1)),
            None => lock.lvb_current &= !lock.flags.contains(LockFlags::IVVALBLK),
        }
        lock.granted = Some(rq);
        lock.token = token;
        lock.since = now;
        self.store.enqueue_granted(id, rq);
        self.complete(id, Status::Granted);
    }

    pub(crate) fn unlock_at(&mut self, id: LockId, master: NodeId) {
        let ask = self.ask_of(id);
        let Some(remid) = self.store[id].remid else { return };
        self.store[id].stage = OpStage::Asked(master);
        self.send(master, Body::Unlock { remid, ask });
    }

    pub(crate) fn cancel_at(&mut self, id: LockId, master: NodeId) {
        let lock = &mut self.store[id];
        let (Some(remid), op) = (lock.remid, lock.op_no) else { return };
        lock.overlap().cancel_sent = true;
        self.send(master, Body::Cancel { remid, lkid: id, op });
    }

    // ---- the owner's side: answers ----

    fn receive_reply(
        &mut self,
        from: NodeId,
        lkid: LockId,
        op: u32,
        remid: LockId,
        answer: Answer,
    ) {
        if op & !Lock::OP_MASK != 0 {
            return self.receive_merge_reply(from, lkid, op, remid, answer);
        }
        let Some(lock) = self.store.get(lkid).filter(|l| l.is_local()) else {
            // The lock ended while the master was making its copy.
            if matches!(answer, Answer::Granted(_) | Answer::Queued) {
                self.forget_at(from, lkid, remid);
            }
            return;
        };
        let expected = match lock.stage {
            OpStage::Asked(node) => node == from,
            // A directory node that is the master answers a look-up itself, ...
            OpStage::LookUp => true,
            // ... also when recovery had already marked that to be sent again.
            OpStage::Gate => lock.op == Op::Request,
            OpStage::Queued => matches!(answer, Answer::Canceled(_) | Answer::NothingToCancel),
            _ => false,
        };
        if !expected || lock.op_no != op {
            // A copy made for a message that was sent again must not stay behind.
            let made = matches!(answer, Answer::Granted(_) | Answer::Queued);
            if made && lock.remid != Some(remid) {
                self.forget_at(from, lkid, remid);
            }
            self.stats.dropped += 1;
            return;
        }
        self.stats.round_trips += 1;
        match (lock.op, answer) {
            (Op::Unlock, _) => self.finish(lkid, Status::Unlocked),
            (Op::Request, Answer::NotMaster) => self.ask_elsewhere(lkid, from),
            (Op::Request, answer) => {
                self.found_at(lkid, from);
                self.answered(lkid, remid, answer);
            }
            (Op::Convert, Answer::NotMaster) => self.finish(lkid, Status::Refused(Error::NoEntry)),
            (Op::Convert, answer) => self.answered(lkid, remid, answer),
            (Op::None, _) => self.stats.dropped += 1,
        }
    }

    fn answered(&mut self, id: LockId, remid: LockId, answer: Answer) {
        let lock = &mut self.store[id];
        lock.remid = Some(remid);
        match answer {
            Answer::Granted(granted) => self.granted_remotely(id, granted),
            Answer::Queued => self.queued_remotely(id),
            Answer::Again => self.finish(id, Status::Again),
            Answer::Deadlock => self.finish(id, Status::Deadlock),
            Answer::Canceled(granted) => {
                lock.granted = granted;
                lock.granted_unknown = false;
                self.store.mode_changed(id);
                let lock = &self.store[id];
                let cause = lock.overlap.as_ref().and_then(|o| o.cancel);
                self.end_cancelled(id, cause.unwrap_or(crate::lock::CancelCause::Asked));
            }
            Answer::NothingToCancel => lock.overlap = None,
            Answer::Unlocked | Answer::NotMaster | Answer::Conflict => self.stats.dropped += 1,
        }
    }

    fn granted_remotely(&mut self, id: LockId, granted: Granted) {
        self.apply_grant(id, granted);
        self.granted_to_client(id);
    }

    /// Tells the local client of a grant, unless it has unlocked by force meanwhile, or was told of a
    /// time-out. Further effects are left for later, because the resource's queues may be in use.
    fn granted_to_client(&mut self, id: LockId) {
        let lock = &mut self.store[id];
        let unlock = lock.overlap.as_mut().and_then(|o| o.unlock.take());
        match (unlock, lock.mode_reported) {
            (Some(unlock), _) => self.unlock_later(unlock),
            (None, Some(mode)) => self.convert_back_later(id, mode),
            (None, None) => self.complete(id, Status::Granted),
        }
    }

    pub(crate) fn apply_grant(&mut self, id: LockId, granted: Granted) {
        let Granted { mode, mut status_flags, lvb, lvb_seq, token } = granted;
        let now = self.now;
        let lock = &mut self.store[id];
        // A master to which the lock has moved knows nothing of a demotion.
        status_flags |= lock.status_flags & SbFlags::DEMOTED;
        let demoted = status_flags.contains(SbFlags::DEMOTED);
        let from = if demoted { Some(Mode::NL) } else { lock.granted };
        match lvb {
            Some(read) => {
                lock.lvb = Some(read);
                lock.lvb_seq = lvb_seq;
                lock.lvb_current = !status_flags.contains(SbFlags::VALNOTVALID);
                lock.lvb_read = true;
            }
            None if action(from, mode) == LvbAction::Write => lock.lvb_granted_writing(lvb_seq),
            // A conversion that reads may bring a value, too. It is not the block, even if there is none.
            None => lock.lvb_not_read(),
        }
        lock.granted = Some(mode);
        lock.granted_unknown = false;
        lock.requested = None;
        lock.status_flags = status_flags;
        lock.token = token;
        lock.since = now;
        self.store.enqueue_granted(id, mode);
    }

    fn queued_remotely(&mut self, id: LockId) {
        let now = self.now;
        let lock = &mut self.store[id];
        let queue = if lock.op == Op::Convert { Queue::Converting } else { Queue::Waiting };
        lock.stage = OpStage::Queued;
        lock.since = now;
        self.store.enqueue(id, queue, false);
        if self.running {
            self.continue_overlap(id);
        }
    }

    /// Cancel or force unlock that came before the operation had reached the master's queue.
    pub(crate) fn continue_overlap(&mut self, id: LockId) {
        match self.store[id].overlap.take().map(|o| *o) {
            None => {}
            Some(Overlap { cancel_sent: true, cancel, unlock: None }) => {
                *self.store[id].overlap() = Overlap { cancel_sent: true, cancel, unlock: None };
            }
            Some(overlap) => {
                self.store[id].overlap = Some(overlap.into());
                self.take_overlap(id);
            }
        }
    }

    fn receive_grant(&mut self, from: NodeId, lkid: LockId, remid: LockId, granted: Granted) {
        let Some(lock) = self.store.get(lkid).filter(|l| l.is_local()) else { return };
        let from_master = self.is_at(lock, from, remid);
        match (lock.op, lock.stage) {
            (Op::Request | Op::Convert, OpStage::Queued) if from_master => {
                self.granted_remotely(lkid, granted)
            }
            // An unlock is on its way (or at the barrier): this is the mode that it unlocks.
            (Op::Unlock, _) if from_master => {
                let flags = lock.status_flags;
                self.apply_grant(lkid, granted);
                self.store[lkid].status_flags = flags;
            }
            _ => self.stats.dropped += 1,
        }
    }

    /// Returns true if `remid` at `node` is the master's copy of this lock.
    fn is_at(&self, lock: &Lock, node: NodeId, remid: LockId) -> bool {
        self.store[lock.resource].master == Master::At(node) && lock.remid == Some(remid)
    }

    fn receive_demoted(&mut self, from: NodeId, lkid: LockId, remid: LockId) {
        let Some(lock) = self.store.get(lkid).filter(|l| l.is_local()) else { return };
        if self.is_at(lock, from, remid) && lock.op == Op::Convert {
            let lock = &mut self.store[lkid];
            lock.granted = Some(Mode::NL);
            lock.status_flags |= SbFlags::DEMOTED;
            self.store.mode_changed(lkid);
        }
    }

    fn receive_bast(&mut self, from: NodeId, lkid: LockId, mode: Mode) {
        let Some(lock) = self.store.get(lkid).filter(|l| l.is_local()) else { return };
        if self.store[lock.resource].master == Master::At(from) && lock.granted.is_some() {
            self.deliver_bast(lkid, mode);
        }
    }

    /// A look-up or request was answered by this node: it is the master.
    fn found_at(&mut self, id: LockId, master: NodeId) {
        let key = self.store[id].resource;
        let resource = &mut self.store[key];
        if resource.master == Master::Unknown {
            resource.master = Master::At(master);
        }
        if resource.finding == Finding::LookUp {
            resource.finding = Finding::Nothing;
            // The asker itself is being answered.
            self.store[id].stage = OpStage::Asked(master);
            self.place_awaiting_master(key);
        }
    }

    /// EBADR or ENOTBLK: the cached master is wrong; find out again.
    fn ask_elsewhere(&mut self, id: LockId, from: NodeId) {
        let key = self.store[id].resource;
        let known_there = |l: &Lock| l.is_local() && l.remid.is_some();
        if self.store[key].master == Master::At(from) && !self.store.locks_of(key).any(known_there)
        {
            self.store[key].master = Master::Unknown;
        }
        let lock = &mut self.store[id];
        lock.op_no = (lock.op_no + 1) & Lock::OP_MASK;
        self.issue(id);
    }

    /// Undoes a lock that a master made for an operation that has ended here.
    fn forget_at(&mut self, master: NodeId, lkid: LockId, remid: LockId) {
        let ask = Ask { lkid, op: 0, mode: Mode::NL, flags: LockFlags::empty(), lvb: None };
        self.send(master, Body::Unlock { remid, ask });
    }

    /// The master has become known (or the claim is settled): what waited for that goes on.
    pub(crate) fn place_awaiting_master(&mut self, key: ResourceKey) {
        let mut next = self.store.first(key, Queue::Unanswered);
        while let Some(id) = next {
            next = self.store.next(id);
            if self.store[id].stage == OpStage::AwaitsMaster {
                self.issue(id);
            }
            // Issuing may have ended the next one's operation too: start over then.
            if next.is_some_and(|n| self.store.get(n).is_none_or(|l| l.queue != Queue::Unanswered))
            {
                if !self.store.contains_resource(key) {
                    return;
                }
                next = self.store.first(key, Queue::Unanswered);
            }
        }
    }

    /// Other nodes' requests that waited for this node's mastership to be settled.
    pub(crate) fn replay_awaiting_mastership(&mut self, key: ResourceKey) {
        for (from, message) in self.awaiting_mastership.remove(&key).unwrap_or_default() {
            self.dispatch(from, message);
        }
    }

    // ---- the master's side ----

    /// A request (or merge) from another node, if this node is the master.
    fn receive_new(&mut self, from: NodeId, message: Message) {
        let new = match &message.body {
            Body::Request(new) | Body::Merge { new, .. } => new,
            _ => return,
        };
        let (name, lkid, op) = (new.name, new.ask.lkid, new.ask.op);
        let current = message.view == self.view.seq;
        if !current && self.config.policy == Policy::Home {
            // Its sender asks again.
            self.stats.dropped += 1;
            return;
        }
        match self.accepts(from, &name, current) {
            Accepts::Yes(key) => match message.body {
                Body::Request(new) => self.request_for(from, key, new),
                Body::Merge { new, patience, lvb_seq } => {
                    self.merge_for(from, key, new, patience, lvb_seq)
                }
                _ => {}
            },
            Accepts::Later(key) => {
                self.awaiting_mastership.entry(key).or_default().push_back((from, message))
            }
            Accepts::No => {
                self.reply(from, lkid, op, LockId(0), Answer::NotMaster);
                self.repeat_remove(&name);
            }
        }
    }

    /// A new lock of another node at this master.
    pub(crate) fn request_for(&mut self, from: NodeId, key: ResourceKey, new: NewLock) {
        let NewLock { ask, bast, client, transaction, .. } = new;
        let owner = Owner::Remote { node: from, lkid: ask.lkid, client };
        let mut lock = Lock::new(key, owner, self.now);
        lock.requested = Some(ask.mode);
        lock.flags = ask.flags;
        lock.op_no = ask.op;
        lock.bast = bast;
        self.store[key].idle_since = None;
        let id = self.store.insert(lock, Queue::Unanswered);
        self.store.set_transaction(id, transaction);
        let outcome = self.do_request(id);
        self.reply_outcome(from, id, ask.op, outcome);
        if outcome == Outcome::Again {
            self.store.remove(id);
        }
        self.effects(id, key, outcome, Effects { new: true, flags: ask.flags, rq: ask.mode });
        self.drop_if_unused(key);
    }

    fn receive_convert(&mut self, from: NodeId, remid: LockId, ask: Ask) {
        let Some(gr) = self.copy_of(from, remid, ask.lkid).and_then(|l| l.granted) else {
            return self.reply(from, ask.lkid, ask.op, remid, Answer::NotMaster);
        };
        let key = self.store[remid].resource;
        let (mode, flags, op) = (ask.mode, ask.flags, ask.op);
        let lock = &mut self.store[remid];
        lock.requested = Some(mode);
        lock.flags = flags;
        lock.status_flags = SbFlags::empty();
        lock.disordered = false;
        lock.op_no = op;
        lock.lvb_read = false;
        lock.lvb_out = ask.lvb;
        self.store.recount(remid);
        if gr.is_down(mode) {
            self.grant(remid);
            return self.run_pending(key);
        }
        let outcome = self.do_convert(remid);
        self.reply_outcome(from, remid, op, outcome);
        self.effects(remid, key, outcome, Effects { new: false, flags, rq: mode });
    }

    fn receive_unlock(&mut self, from: NodeId, remid: LockId, ask: Ask) {
        if self.copy_of(from, remid, ask.lkid).is_none() {
            return self.reply(from, ask.lkid, ask.op, remid, Answer::NotMaster);
        }
        let lock = &mut self.store[remid];
        let key = lock.resource;
        lock.flags = ask.flags;
        lock.lvb_out = ask.lvb;
        self.store.move_lvb_at_unlock(remid);
        self.store.remove(remid);
        self.reply(from, ask.lkid, ask.op, remid, Answer::Unlocked);
        self.run_pending(key);
        self.drop_if_unused(key);
    }

    fn receive_cancel(&mut self, from: NodeId, remid: LockId, lkid: LockId, op: u32) {
        let copy =
            self.copy_of(from, remid, lkid).filter(|l| l.op_no == op).map(|l| (l.queue, l.granted));
        match copy {
            Some((Queue::Converting, Some(gr))) => {
                let key = self.store[remid].resource;
                self.store[remid].requested = None;
                self.store.enqueue_granted(remid, gr);
                self.reply(from, lkid, op, remid, Answer::Canceled(Some(gr)));
                self.run_pending(key);
            }
            Some((Queue::Waiting, _)) => {
                let key = self.store.remove(remid).resource;
                self.reply(from, lkid, op, remid, Answer::Canceled(None));
                self.run_pending(key);
                self.drop_if_unused(key);
            }
            _ => self.reply(from, lkid, op, remid, Answer::NothingToCancel),
        }
    }

    fn copy_of(&self, from: NodeId, remid: LockId, owner_lkid: LockId) -> Option<&Lock> {
        self.store.get(remid).filter(|l| {
            matches!(l.owner, Owner::Remote { node, lkid, .. } if node == from && lkid == owner_lkid)
        })
    }

    pub(crate) fn reply(
        &mut self,
        to: NodeId,
        lkid: LockId,
        op: u32,
        remid: LockId,
        answer: Answer,
    ) {
        self.send(to, Body::Reply { lkid, op, remid, answer });
    }

    fn reply_outcome(&mut self, to: NodeId, id: LockId, op: u32, outcome: Outcome) {
        let Owner::Remote { lkid, .. } = self.store[id].owner else { return };
        let answer = match outcome {
            Outcome::Granted => Answer::Granted(self.granted_of(id)),
            Outcome::Queued => Answer::Queued,
            Outcome::Again => Answer::Again,
            Outcome::Deadlock => Answer::Deadlock,
        };
        self.reply(to, lkid, op, id, answer);
        if outcome == Outcome::Queued && self.store[id].status_flags.contains(SbFlags::DEMOTED) {
            self.tell_demoted(id);
        }
    }

    pub(crate) fn granted_of(&self, id: LockId) -> Granted {
        let lock = &self.store[id];
        Granted {
            mode: lock.granted.unwrap_or(Mode::NL),
            status_flags: lock.status_flags,
            lvb: lock.lvb.clone().filter(|_| lock.lvb_read),
            lvb_seq: lock.lvb_seq,
            token: lock.token,
        }
    }

    /// Grants a queued operation.
    pub(crate) fn tell_granted(&mut self, id: LockId) {
        let lock = &self.store[id];
        let Owner::Remote { node, lkid, .. } = lock.owner else {
            return self.granted_to_client(id);
        };
        let granted = self.granted_of(id);
        if lock.merging {
            let op = lock.op_no;
            self.store[id].merging = false;
            self.reply(node, lkid, op, id, Answer::Granted(granted));
        } else {
            self.send(node, Body::Grant { lkid, remid: id, granted });
        }
    }

    pub(crate) fn tell_demoted(&mut self, id: LockId) {
        if let Owner::Remote { node, lkid, .. } = self.store[id].owner {
            self.send(node, Body::Demoted { lkid, remid: id });
        }
    }
}

/// Decides if this node accepts a new lock of another node.
pub(crate) enum Accepts {
    Yes(ResourceKey),
    /// When its mastership is settled.
    Later(ResourceKey),
    No,
}

#[cfg(test)]
#[path = "protocol_page.rs"]
mod protocol_page;
