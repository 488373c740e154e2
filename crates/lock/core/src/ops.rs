//! Calls of local clients: arguments are checked, the operation begins, and goes through the claim
//! barrier and the recovery gate to the master, which may be this node or another.
//!
//! ```text
//! lock / convert / unlock        arguments, EBUSY, EINVAL
//!   start                        the claim barrier, for operations that weaken EX or PW
//!     issue                      the recovery gate
//!       place / ask / do_...     the master: here (grant.rs), or a message (remote.rs)
//!         complete               the completion
//! ```

use crate::error::{Error, Invalid, Status};
use crate::flags::{LockFlags, UnlockFlags};
use crate::grant::{Effects, Outcome};
use crate::ids::{ClientId, Clients, LockId, NodeId};
use crate::io::{Completion, ConvertArgs, Ended, LockArgs, Lvb, Output, UnlockArgs};
use crate::lock::{CancelCause, Lock, Op, OpStage, Owner};
use crate::message::Body;
use crate::mode::Mode;
use crate::queue::Queue;
use crate::resource::{Finding, Master};
use crate::space::Lockspace;
use crate::timers::Timer;

impl Lockspace {
    pub(crate) fn lock(&mut self, client: ClientId, args: LockArgs) -> Result<LockId, Error> {
        self.check_open()?;
        let convert_only =
            LockFlags::QUECVT | LockFlags::CONVDEADLK | LockFlags::IVVALBLK | LockFlags::FREED;
        if args.flags.intersects(convert_only) {
            return Err(Invalid::ConvertOnly.into());
        }
        let expedite = args.flags.contains(LockFlags::EXPEDITE);
        if expedite && (args.mode != Mode::NL || args.flags.contains(LockFlags::NOQUEUE)) {
            return Err(Invalid::Expedite.into());
        }
        self.check_lvb(args.flags.contains(LockFlags::VALBLK), args.lvb.as_ref())?;
        if args.flags.contains(LockFlags::ORPHAN) {
            return self.adopt(client, &args);
        }
        let key = self.store.find_or_insert(&args.name, args.name.hash64());
        self.store[key].idle_since = None;
        let mut lock = Lock::new(key, Owner::Local(client), self.now);
        lock.begin(Op::Request, Some(args.mode), args.flags, args.lvb);
        lock.tag = args.tag;
        lock.bast = args.bast;
        let id = self.store.insert(lock, Queue::Unanswered);
        self.store.set_transaction(id, args.transaction);
        self.set_operation_timer(id, args.timeout);
        self.issue_in_turn(id);
        Ok(id)
    }

    pub(crate) fn convert(&mut self, args: ConvertArgs) -> Result<(), Error> {
        self.check_open()?;
        let lock = self.own(args.client, args.lock)?;
        let (gr, idle) = (lock.granted, lock.op == Op::None && lock.queue == Queue::Granted);
        if lock.lost {
            return Err(Error::Lost);
        }
        let gr = gr.filter(|_| idle).ok_or(Error::Busy)?;
        self.check_convert(gr, &args)?;
        let lvb = args.lvb.filter(|_| args.flags.contains(LockFlags::VALBLK));
        let lock = &mut self.store[args.lock];
        lock.begin(Op::Convert, Some(args.mode), args.flags, lvb);
        lock.tag = args.tag;
        self.set_operation_timer(args.lock, args.timeout);
        self.start(args.lock);
        Ok(())
    }

    fn check_convert(&self, gr: Mode, args: &ConvertArgs) -> Result<(), Error> {
        let flags = args.flags;
        flags.check_conversion(gr, args.mode)?;
        self.check_lvb(flags.contains(LockFlags::VALBLK), args.lvb.as_ref())
    }

    pub(crate) fn unlock(&mut self, mut args: UnlockArgs) -> Result<(), Error> {
        if !self.member {
            return Err(Error::NotMember);
        }
        let lock = self.own(args.client, args.lock)?;
        let (busy, lost) = (lock.op != Op::None, lock.lost);
        let force = args.flags.contains(UnlockFlags::FORCE);
        let unlocking =
            lock.op == Op::Unlock || lock.overlap.as_ref().is_some_and(|o| o.unlock.is_some());
        let told = lock.mode_reported;
        self.check_lvb(args.flags.contains(UnlockFlags::VALBLK), args.lvb.as_ref())?;
        if lost {
            self.store[args.lock].tag = args.tag;
            self.abandon(args.lock);
            return Ok(());
        }
        if unlocking || (busy && !force && told.is_none()) {
            return Err(Error::Busy);
        }
        if told.is_some_and(|mode| !mode.writes()) {
            // Granted late, it may be in a mode that would write.
            args.flags.remove(UnlockFlags::VALBLK | UnlockFlags::IVVALBLK);
        }
        self.unlock_lock(args);
        Ok(())
    }

    pub(crate) fn cancel(
        &mut self,
        client: ClientId,
        id: LockId,
        cause: CancelCause,
    ) -> Result<(), Error> {
        if !self.member {
            return Err(Error::NotMember);
        }
        let lock = self.own(client, id)?;
        let twice = lock.op == Op::Unlock
            || lock.overlap.as_ref().is_some_and(|o| o.cancel.is_some() || o.unlock.is_some());
        if twice {
            return Err(Error::Busy);
        }
        self.cancel_lock(id, cause);
        Ok(())
    }

    /// A client's process is gone (docs/design/semantics.md 8.1). Its locks stay in force until the claims
    /// made so far are settled: exit weakens EX and PW as any unlock does.
    pub(crate) fn client_gone(&mut self, client: ClientId) {
        self.deferred_callbacks.retain(|output| output.client() != Some(client));
        for id in self.store.locks_of_client(client) {
            if self.store.get(id).is_some_and(|l| l.lost) {
                self.abandon(id);
            }
        }
        let weakens = |id: LockId| self.store[id].granted.is_some_and(Mode::writes);
        let waits = self.claims.unsettled() > 0 && !mutated!(self, BarrierNotAtExit);
        if waits && self.store.locks_of_client(client).into_iter().any(weakens) {
            self.wait_for_client(client);
        } else {
            self.release_client(client);
        }
    }

    pub(crate) fn release_client(&mut self, client: ClientId) {
        let locks = self.store.locks_of_client(client);
        let mut orphans = 0;
        // First all of them: the end of one may grant another, which nobody is to be told.
        for &id in &locks {
            let lock = &self.store[id];
            if lock.flags.contains(LockFlags::PERSISTENT) && lock.op != Op::Unlock {
                self.store.set_owner(id, Owner::Orphan(client));
                orphans += 1;
            } else {
                self.store.disown(id);
            }
        }
        self.store.forget_client(client);
        self.out.push_back(Output::Departed { client, orphans });
        let (first, rest) = locks.split_at(locks.len().min(self.config.bulk.max(1)));
        first.iter().for_each(|&id| self.release_departed(id));
        self.departed.extend(rest);
    }

    /// The next ones of clients that have left more locks than are released at once.
    pub(crate) fn release_more(&mut self) {
        for _ in 0..self.config.bulk.max(1) {
            let Some(id) = self.departed.pop_front() else { return };
            self.release_departed(id);
        }
    }

    fn release_departed(&mut self, id: LockId) {
        // An earlier one's end may have taken this one along.
        match self.store.get(id).map(|lock| lock.owner) {
            Some(Owner::Orphan(_)) => self.cancel_lock(id, CancelCause::Asked),
            Some(Owner::Gone) => self.release(id),
            // Or somebody has adopted it.
            _ => {}
        }
    }

    /// Unlocks in any state, invalidating the value block that the lock could have written, and
    /// tells nobody.
    pub(crate) fn release(&mut self, id: LockId) {
        self.tell_orphan_gone(self.store[id].owner);
        self.store.disown(id);
        let lock = &self.store[id];
        if lock.lost {
            return self.abandon(id);
        }
        if lock.op == Op::Unlock {
            return;
        }
        // The client can have been about to write only under a held mode.
        let mut flags = UnlockFlags::FORCE;
        flags.set(
            UnlockFlags::IVVALBLK,
            lock.mode_reported.or(lock.granted).is_some_and(Mode::writes),
        );
        flags.set(UnlockFlags::FREED, mutated!(self, BarrierNotAtExit));
        self.unlock_lock(UnlockArgs { client: ClientId(0), lock: id, tag: 0, flags, lvb: None });
    }

    /// Drops orphans, here or on another node.
    pub(crate) fn purge(&mut self, node: NodeId, clients: Clients) -> Result<(), Error> {
        self.check_open()?;
        if node != self.me() {
            self.view.member(node).ok_or(Error::NoEntry)?;
            self.send(node, Body::Purge(clients));
            return Ok(());
        }
        self.purge_here(clients);
        Ok(())
    }

    pub(crate) fn purge_here(&mut self, clients: Clients) {
        let matches = |l: &Lock| match l.owner {
            Owner::Orphan(client) => clients.contains(client),
            _ => false,
        };
        for id in self.locks_where(matches) {
            if self.store.get(id).is_some() {
                self.release(id);
            }
        }
    }

    fn adopt(&mut self, client: ClientId, args: &LockArgs) -> Result<LockId, Error> {
        let key = self.store.find(&args.name, args.name.hash64()).ok_or(Error::NoEntry)?;
        let mut others = Error::NoEntry;
        let mut found = None;
        for lock in self.store.locks_of(key) {
            let idle = lock.op == Op::None && lock.granted.is_some();
            match lock.owner {
                Owner::Orphan(_) if idle && lock.granted == Some(args.mode) => {
                    found = Some(lock.id)
                }
                Owner::Orphan(_) => others = Error::OtherMode,
                _ => {}
            }
        }
        let id = found.ok_or(others)?;
        self.tell_orphan_gone(self.store[id].owner);
        self.store.set_owner(id, Owner::Local(client));
        let lock = &mut self.store[id];
        lock.tag = args.tag;
        lock.bast = args.bast;
        self.complete(id, Status::Granted);
        Ok(id)
    }

    /// Sends an operation on its way, through the claim barrier if it weakens EX or PW.
    pub(crate) fn start(&mut self, id: LockId) {
        if self.must_wait_at_barrier(&self.store[id]) {
            self.wait_at_barrier(id);
        } else {
            self.issue_in_turn(id);
        }
    }

    /// Handles messages and issues operations that have waited for the gate. Where many have, the
    /// rest waits for [`crate::Input::Work`], and what comes meanwhile waits behind it.
    pub(crate) fn serve_gated(&mut self) {
        for _ in 0..self.config.bulk.max(1) {
            if !self.running {
                return;
            }
            if let Some((from, message)) = self.queued.pop_front() {
                self.dispatch(from, message);
                continue;
            }
            let Some(id) = self.gated.pop_front() else { break };
            if self.store.get(id).is_some_and(|l| l.stage == OpStage::Gate) {
                self.pass_gate(id);
            }
        }
        self.backlog = !self.queued.is_empty() || !self.gated.is_empty();
    }

    /// Through the recovery gate, to the master.
    pub(crate) fn issue(&mut self, id: LockId) {
        if !self.running {
            return self.gate(id);
        }
        self.pass_gate(id);
    }

    /// As `issue`, for a new operation: it stays behind those that still wait after the gate.
    pub(crate) fn issue_in_turn(&mut self, id: LockId) {
        if self.backlog { self.gate(id) } else { self.issue(id) }
    }

    fn pass_gate(&mut self, id: LockId) {
        self.store[id].stage = OpStage::Idle;
        if self.take_overlap(id) {
            return;
        }
        let key = self.store[id].resource;
        if self.store[id].op != Op::Request && self.claims.is_merging(self.store[key].claim) {
            self.store[id].stage = OpStage::Frozen;
            return;
        }
        match self.store[id].op {
            Op::None => {}
            Op::Request => self.place(id),
            Op::Convert => self.issue_convert(id),
            Op::Unlock => self.issue_unlock(id),
        }
    }

    /// A new lock goes to its resource's master, or waits until that is known.
    pub(crate) fn place(&mut self, id: LockId) {
        let key = self.store[id].resource;
        let resource = &self.store[key];
        // One local lock on a resource whose claim is pending: further ones wait for the verdict,
        // or a second client would see an object that may have to be undone.
        if resource.claim.is_some() || resource.finding != Finding::Nothing {
            self.store[id].stage = OpStage::AwaitsMaster;
            return;
        }
        match self.master_by_record(key) {
            Master::Unknown => self.find_master(key, id),
            Master::Here => self.request_here(id),
            Master::At(master) => self.request_at(id, master),
        }
    }

    pub(crate) fn request_here(&mut self, id: LockId) {
        let lock = &self.store[id];
        let (key, flags, Some(rq)) = (lock.resource, lock.flags, lock.requested) else { return };
        let outcome = self.do_request(id);
        self.settle_here(id, outcome);
        self.effects(id, key, outcome, Effects { new: true, flags, rq });
    }

    fn issue_convert(&mut self, id: LockId) {
        let lock = &self.store[id];
        let (key, flags) = (lock.resource, lock.flags);
        let (Some(gr), Some(rq)) = (lock.granted, lock.requested) else { return };
        match self.store[key].master {
            Master::Here => {
                let outcome = self.do_convert(id);
                self.settle_here(id, outcome);
                self.effects(id, key, outcome, Effects { new: false, flags, rq });
                if mutated!(self, PendingConvertLosesMode) && self.store[key].claim.is_some() {
                    self.store[id].granted = Some(Mode::NL);
                    self.store.mode_changed(id);
                }
            }
            Master::At(master) if gr.is_down(rq) => self.convert_down(id, master, rq),
            Master::At(master) => self.convert_at(id, master),
            Master::Unknown => self.store[id].stage = OpStage::AwaitsMaster,
        }
    }

    /// Tells the local client the decision of the master here.
    fn settle_here(&mut self, id: LockId, outcome: Outcome) {
        match outcome {
            Outcome::Granted => self.complete(id, Status::Granted),
            Outcome::Queued => self.store[id].stage = OpStage::Queued,
            Outcome::Again => self.finish(id, Status::Again),
            Outcome::Deadlock => self.finish(id, Status::Deadlock),
        }
    }

    fn issue_unlock(&mut self, id: LockId) {
        let key = self.store[id].resource;
        match self.store[key].master {
            Master::At(master) if self.store[id].remid.is_some() => self.unlock_at(id, master),
            Master::Here => {
                self.store.move_lvb_at_unlock(id);
                self.complete(id, Status::Unlocked);
                self.drop_lock(id);
                self.run_pending_if_exists(key);
            }
            Master::At(_) | Master::Unknown => self.finish(id, Status::Unlocked),
        }
    }

    /// Unlocks; with FORCE in any state. An outstanding operation ends without a completion of its
    /// own.
    pub(crate) fn unlock_lock(&mut self, args: UnlockArgs) {
        let id = args.lock;
        let lock = &mut self.store[id];
        match (lock.op, lock.stage) {
            (Op::Request | Op::Convert, OpStage::LookUp | OpStage::Asked(_) | OpStage::Gate) => {
                lock.overlap().unlock = Some(args);
            }
            (Op::Request | Op::Convert, OpStage::Queued) if !self.running => {
                self.store[id].overlap().unlock = Some(args);
            }
            _ => self.begin_unlock(args),
        }
    }

    fn begin_unlock(&mut self, args: UnlockArgs) {
        let UnlockArgs { lock: id, tag, flags, lvb, .. } = args;
        let lock = &self.store[id];
        let (mut queued, gr) = (lock.stage == OpStage::Queued, lock.granted);
        if queued && self.store[lock.resource].master == Master::Here {
            // The wait is over at once; the mode that was granted before stays in force until the
            // unlock.
            queued = false;
            if let Some(gr) = gr {
                self.store.enqueue_granted(id, gr);
            }
        }
        self.become_unlock(id, tag, flags, lvb);
        if gr.is_none() && !queued {
            // Nobody but this node knows of it.
            self.finish(id, Status::Unlocked);
        } else {
            self.start(id);
        }
    }

    /// The same for a lock that has just been granted, from within its resource's queues: the
    /// unlock goes on its way when they are done.
    pub(crate) fn unlock_later(&mut self, args: UnlockArgs) {
        let UnlockArgs { lock: id, tag, flags, lvb, .. } = args;
        self.become_unlock(id, tag, flags, lvb);
        if self.must_wait_at_barrier(&self.store[id]) {
            self.wait_at_barrier(id);
        } else {
            self.gate(id);
        }
    }

    /// A conversion has been granted whose client was told that it holds `mode`: back to that. Goes
    /// on its way when the resource's queues are done.
    pub(crate) fn convert_back_later(&mut self, id: LockId, mode: Mode) {
        let lock = &mut self.store[id];
        if lock.granted == Some(mode) {
            return self.complete(id, Status::TimedOut);
        }
        let kept = LockFlags::PERSISTENT | LockFlags::NODLCKBLK;
        lock.begin(Op::Convert, Some(mode), lock.flags & kept, None);
        lock.mode_reported = Some(mode);
        if self.must_wait_at_barrier(&self.store[id]) {
            self.wait_at_barrier(id);
        } else {
            self.gate(id);
        }
    }

    fn become_unlock(&mut self, id: LockId, tag: u64, flags: UnlockFlags, lvb: Option<Lvb>) {
        let lvb = lvb.filter(|_| flags.contains(UnlockFlags::VALBLK));
        let lock = &mut self.store[id];
        lock.begin(Op::Unlock, None, LockFlags::from_bits_truncate(flags.bits()), lvb);
        lock.tag = tag;
        self.store.recount(id);
    }

    /// Takes the outstanding request or conversion back (docs/design/semantics.md 7.3).
    pub(crate) fn cancel_lock(&mut self, id: LockId, cause: CancelCause) {
        let running = self.running;
        let lock = &mut self.store[id];
        let key = lock.resource;
        match (lock.op, lock.stage) {
            (Op::None | Op::Unlock, _) => {}
            (_, OpStage::Idle | OpStage::Barrier | OpStage::Frozen | OpStage::AwaitsMaster) => {
                self.end_cancelled(id, cause)
            }
            (_, OpStage::LookUp | OpStage::Asked(_) | OpStage::Gate) => {
                lock.overlap().cancel = Some(cause)
            }
            (_, OpStage::Queued) => {
                lock.overlap().cancel = Some(cause);
                match self.store[key].master {
                    Master::Here if running => {
                        self.end_cancelled(id, cause);
                        self.run_pending_if_exists(key);
                    }
                    Master::At(master) if running => self.cancel_at(id, master),
                    _ => {}
                }
            }
        }
    }

    /// Back to the granted mode, or gone.
    pub(crate) fn end_cancelled(&mut self, id: LockId, cause: CancelCause) {
        let status = match cause {
            CancelCause::Asked => Status::Canceled,
            CancelCause::TimedOut => Status::TimedOut,
            CancelCause::Deadlock => Status::Deadlock,
        };
        self.finish(id, status);
    }

    /// Cancel or force unlock that came while a message was out or the gate closed. True if they
    /// end the operation or replace it.
    pub(crate) fn take_overlap(&mut self, id: LockId) -> bool {
        let lock = &mut self.store[id];
        let Some(overlap) = lock.overlap.take() else { return false };
        if let Some(unlock) = overlap.unlock {
            self.begin_unlock(unlock);
            return true;
        }
        if let Some(cause) = overlap.cancel {
            self.cancel_lock(id, cause);
            return self.store.get(id).is_none_or(|l| l.op == Op::None);
        }
        false
    }

    /// An operation ends without the lock having got (or, for unlock, kept) a new mode: it is
    /// completed, and the lock goes if nothing is granted.
    pub(crate) fn finish(&mut self, id: LockId, status: Status) {
        let lock = &mut self.store[id];
        if let Some(args) = lock.overlap.as_mut().and_then(|o| o.unlock.take()) {
            lock.overlap = None;
            lock.stage = OpStage::Idle;
            return self.begin_unlock(args);
        }
        let key = lock.resource;
        lock.requested = None;
        if let (Queue::Converting, Some(gr)) = (lock.queue, lock.granted) {
            self.store.enqueue_granted(id, gr);
        }
        self.complete(id, status);
        if status == Status::Unlocked || self.store[id].granted.is_none() {
            self.drop_lock(id);
            // A request refused by NOQUEUE was never in anybody's way.
            if status != Status::Again {
                self.run_pending_if_exists(key);
            }
        }
    }

    /// Tells the client how its operation ended; the lock is idle again.
    pub(crate) fn complete(&mut self, id: LockId, status: Status) {
        let running = self.running;
        let lock = &mut self.store[id];
        let told = lock.mode_reported.is_some();
        lock.rest();
        // Only of use while the completion is held back.
        lock.mode_at_call = lock.mode_at_call.filter(|_| !running);
        if told {
            return;
        }
        lock.cast_mode = lock.granted;
        lock.last_bast = None;
        let key = lock.resource;
        let failed = !matches!(status, Status::Granted | Status::Unlocked);
        if failed && lock.queue == Queue::Granted {
            // Its client hears again of the mode from before its call.
            self.store.forget_made(key);
        }
        let lock = &self.store[id];
        let Owner::Local(client) = lock.owner else { return };
        let granted = status == Status::Granted;
        let ended = Ended {
            status,
            mode: lock.granted.filter(|_| status != Status::Unlocked),
            status_flags: lock.status_flags,
            lvb: lock.lvb.clone().filter(|_| granted && lock.lvb_read),
            token: if granted { lock.token } else { 0 },
            provisional: lock.provisional,
        };
        let completion = Completion { client, lock: id, tag: lock.tag, ended };
        self.callback(Output::Complete(completion));
    }

    /// A blocking notice for a lock whose master is here.
    pub(crate) fn tell_blocking(&mut self, id: LockId, mode: Mode) {
        let lock = &self.store[id];
        match lock.owner {
            Owner::Remote { node, lkid, .. } if lock.bast => {
                self.send(node, Body::Bast { lkid, mode })
            }
            Owner::Remote { .. } => {}
            _ => self.deliver_bast(id, mode),
        }
    }

    /// Delivers a blocking notice unless it says nothing new (docs/design/semantics.md 7.2).
    pub(crate) fn deliver_bast(&mut self, id: LockId, mode: Mode) {
        let lock = &mut self.store[id];
        let harmless = lock.cast_mode.is_some_and(|cast| cast.compatible(mode));
        let repeated =
            lock.last_bast.is_some_and(|last| last == mode || (last > mode && last > Mode::PR));
        let Owner::Local(client) = lock.owner else { return };
        if !lock.bast || harmless || repeated {
            return;
        }
        lock.last_bast = Some(mode);
        let tag = lock.tag;
        self.callback(Output::Bast { client, lock: id, tag, mode });
    }

    /// Forgets a lock; its resource may go too.
    pub(crate) fn drop_lock(&mut self, id: LockId) {
        let lock = self.store.remove(id);
        let key = lock.resource;
        self.tell_orphan_gone(lock.owner);
        #[cfg(feature = "mutations")]
        if mutated!(self, RemoveWhilePending) {
            self.remove_while_pending(key);
        }
        self.drop_if_unused(key);
    }

    /// If a lock of this owner was an orphan: it is to be one no more. A host that limits a user's locks
    /// counts orphans.
    pub(crate) fn tell_orphan_gone(&mut self, owner: Owner) {
        if let Owner::Orphan(client) = owner {
            self.out.push_back(Output::OrphanGone { client });
        }
    }

    pub(crate) fn run_pending_if_exists(&mut self, key: u32) {
        if self.store.contains_resource(key) && self.store[key].master == Master::Here {
            self.run_pending(key);
        }
    }

    pub(crate) fn locks_where(&self, wanted: impl Fn(&Lock) -> bool) -> alloc::vec::Vec<LockId> {
        self.store.lock_ids().filter(|&id| wanted(&self.store[id])).collect()
    }

    fn set_operation_timer(&mut self, id: LockId, timeout: Option<crate::Time>) {
        if let Some(after) = timeout {
            let start = self.store[id].op_start;
            self.set_timer(after, Timer::Operation(id, start));
        }
    }

    fn check_open(&self) -> Result<(), Error> {
        match (self.member, self.leaving) {
            (false, _) => Err(Error::NotMember),
            (true, true) => Err(Error::Leaving),
            (true, false) => Ok(()),
        }
    }

    fn check_lvb(&self, valblk: bool, lvb: Option<&Lvb>) -> Result<(), Error> {
        match lvb {
            None if valblk => Err(Invalid::NoLvb.into()),
            Some(lvb) if lvb.len() != self.config.lvb_len => Err(Invalid::LvbLength.into()),
            _ => Ok(()),
        }
    }

    fn own(&self, client: ClientId, id: LockId) -> Result<&Lock, Error> {
        self.store.get(id).filter(|l| l.owner == Owner::Local(client)).ok_or(Error::NoEntry)
    }
}
