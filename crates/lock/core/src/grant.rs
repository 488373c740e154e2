//! The master's decisions: the order of grants (docs/design/semantics.md 4 and 5).

use crate::crowd::{Modes, Notices};
use crate::flags::{LockFlags, SbFlags};
use crate::ids::LockId;
use crate::mode::Mode;
use crate::queue::Queue;
use crate::resource::ResourceKey;
use crate::space::Lockspace;
use crate::store::Store;

/// The result of trying to grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Try {
    Granted,
    NotNow,
    /// Conversion deadlock, and the converter did not ask for a demotion.
    Deadlock,
    /// Conversion deadlock, resolved by taking the converter's granted mode.
    Demoted,
}

/// The context in which a lock is considered for a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GrantContext {
    /// On arrival.
    Now,
    /// From its queue.
    Pending,
    /// From its queue, after a recovery that has lost the queues' order.
    Recovering,
}

/// The result of a master's first look at a request or conversion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Granted,
    Queued,
    Again,
    Deadlock,
}

/// The causes of the effects of a request or conversion, besides its outcome. They are recorded
/// before the answer, because the lock may be gone after that.
#[derive(Clone, Copy)]
pub(crate) struct Effects {
    /// A request, not a conversion.
    pub new: bool,
    pub flags: LockFlags,
    pub rq: Mode,
}

impl Store {
    /// Returns true if `id` can be granted `rq`: the ten rules of docs/design/semantics.md 4.1, in their
    /// order.
    fn grantable(&self, id: LockId, rq: Mode, context: GrantContext) -> bool {
        let lock = &self[id];
        let key = lock.resource;
        if lock.flags.contains(LockFlags::EXPEDITE) {
            return true; // 1
        }
        if self.conflict(id, rq) {
            return false; // 2
        }
        let converts = lock.granted.is_some();
        let none_converting = self.first(key, Queue::Converting).is_none();
        match context {
            GrantContext::Recovering if converts => return true, // 3
            GrantContext::Pending if converts && lock.disordered => return true, // 3, as long as it waits
            GrantContext::Now if converts => {
                return !lock.flags.contains(LockFlags::QUECVT) // 4
                    || none_converting; // 5
            }
            _ => {}
        }
        if lock.flags.contains(LockFlags::NOORDER) {
            return true; // 6
        }
        match (context == GrantContext::Now, converts) {
            (false, true) => self.first(key, Queue::Converting) == Some(id), // 7
            (true, false) => none_converting && self.first(key, Queue::Waiting).is_none(), // 8
            (false, false) => none_converting && self.first(key, Queue::Waiting) == Some(id), // 9
            (true, true) => false,                                           // 10
        }
    }

    /// Returns true if a converter's granted mode blocks `id`: put ahead of it, `id` would wait for one
    /// that waits behind it, which docs/design/semantics.md 5 does not see when `id` arrives.
    fn waits_for_converters(&self, id: LockId) -> bool {
        let lock = &self[id];
        let held = self.tally(lock.resource).held_by_converters();
        lock.requested.is_some_and(|rq| held.conflict_with(rq))
    }

    /// Returns true if converter `id` and another one wait for each other (docs/design/semantics.md 5);
    /// those ahead of it want these modes. All converters are ahead of one that is not in the queue yet.
    fn conversion_deadlock(&self, id: LockId, ahead: Modes) -> bool {
        let lock = &self[id];
        let queued = lock.queue == Queue::Converting;
        let Some((held, wanted)) = lock.granted.zip(lock.requested) else { return false };
        let tally = self.tally(lock.resource);
        let ahead = if queued { ahead } else { tally.wanted_by_converters() };
        tally.deadlock(held, wanted, ahead, queued)
    }
}

impl Lockspace {
    /// Tries a lock (docs/design/semantics.md 4.2), without granting. A success in the alternative mode
    /// leaves that mode in `requested`. Those ahead of it in the conversion queue want the modes `ahead`.
    fn try_grant(&mut self, id: LockId, context: GrantContext, ahead: Modes) -> Try {
        let Some(rq) = self.store[id].requested else { return Try::NotNow };
        if self.store.grantable(id, rq, context) {
            return Try::Granted;
        }
        let lock = &self.store[id];
        let flags = lock.flags;
        if lock.granted.is_some()
            && !flags.contains(LockFlags::NOQUEUE)
            && self.store.conversion_deadlock(id, ahead)
        {
            if !flags.contains(LockFlags::CONVDEADLK) {
                return Try::Deadlock;
            }
            let lock = &mut self.store[id];
            let news = !lock.status_flags.contains(SbFlags::DEMOTED);
            lock.granted = Some(Mode::NL);
            lock.status_flags |= SbFlags::DEMOTED;
            self.store.mode_changed(id);
            return if news { Try::Demoted } else { Try::NotNow };
        }
        let Some(alternative) = flags.alternative(rq) else { return Try::NotNow };
        let context =
            if context == GrantContext::Recovering { GrantContext::Pending } else { context };
        if !self.store.grantable(id, alternative, context) {
            return Try::NotNow;
        }
        let lock = &mut self.store[id];
        lock.requested = Some(alternative);
        lock.status_flags |= SbFlags::ALTMODE;
        Try::Granted
    }

    /// Grants the lock's request: value block, mode, queue, fencing token.
    pub(crate) fn grant(&mut self, id: LockId) {
        let Some(rq) = self.store[id].requested.take() else { return };
        self.store.move_lvb_at_grant(id, rq);
        let token = if rq.writes() { self.next_token() } else { 0 };
        self.stats.grants += 1;
        let now = self.now;
        let lock = &mut self.store[id];
        lock.granted = Some(rq);
        lock.granted_unknown = false;
        lock.token = token;
        lock.high_bast = None;
        lock.since = now;
        self.store.enqueue_granted(id, rq);
    }

    /// A new lock at its master.
    pub(crate) fn do_request(&mut self, id: LockId) -> Outcome {
        if self.try_grant(id, GrantContext::Now, Modes::default()) == Try::Granted {
            self.grant(id);
            return Outcome::Granted;
        }
        let flags = self.store[id].flags;
        if flags.contains(LockFlags::NOQUEUE) {
            return Outcome::Again;
        }
        self.wait_in(id, Queue::Waiting);
        Outcome::Queued
    }

    /// A conversion at its master; `requested` and `flags` are set.
    pub(crate) fn do_convert(&mut self, id: LockId) -> Outcome {
        let key = self.store[id].resource;
        match self.try_grant(id, GrantContext::Now, Modes::default()) {
            Try::Granted => {
                self.grant(id);
                return Outcome::Granted;
            }
            Try::Deadlock if !self.store[id].flags.contains(LockFlags::NODLCKWT) => {
                self.store[id].requested = None;
                self.store.forget_made(key);
                return Outcome::Deadlock;
            }
            Try::Demoted => {
                // The released mode may let other locks through, and then this one.
                self.run_conversions(key, GrantContext::Pending);
                let rq = self.store[id].requested;
                if rq.is_some_and(|rq| self.store.grantable(id, rq, GrantContext::Now)) {
                    self.grant(id);
                    return Outcome::Granted;
                }
            }
            _ => {}
        }
        if self.store[id].flags.contains(LockFlags::NOQUEUE) {
            self.store[id].requested = None;
            // The lock stays as it was, and is told again of what its client has been told before.
            self.store.forget_made(key);
            return Outcome::Again;
        }
        self.wait_in(id, Queue::Converting);
        Outcome::Queued
    }

    fn wait_in(&mut self, id: LockId, queue: Queue) {
        let headque = self.store[id].flags.contains(LockFlags::HEADQUE);
        let at_head =
            headque && !(queue == Queue::Converting && self.store.waits_for_converters(id));
        self.store[id].since = self.now;
        self.store.enqueue(id, queue, at_head);
        self.note_queued(self.store[id].resource);
    }

    /// The effects of a request or conversion on others, after its own answer is out.
    pub(crate) fn effects(
        &mut self,
        id: LockId,
        key: ResourceKey,
        outcome: Outcome,
        Effects { new, flags, rq }: Effects,
    ) {
        if !self.store.contains_resource(key) {
            return;
        }
        match outcome {
            Outcome::Granted if new => {} // No waiter gets closer to a grant by it.
            Outcome::Granted => self.run_pending(key),
            Outcome::Queued => self.notify_blockers(id, key, rq, false),
            Outcome::Again if flags.contains(LockFlags::NOQUEUEBAST) => {
                self.notify_blockers(id, key, rq, true)
            }
            Outcome::Again | Outcome::Deadlock => {}
        }
    }

    /// `run pending`: grants the locks that have become grantable, then tells those that block the
    /// rest.
    pub(crate) fn run_pending(&mut self, key: ResourceKey) {
        self.run_queues(key, GrantContext::Pending);
    }

    /// The same after a recovery: conversions may go out of order (rule 3).
    pub(crate) fn run_recovered(&mut self, key: ResourceKey) {
        self.run_queues(key, GrantContext::Recovering);
    }

    fn run_queues(&mut self, key: ResourceKey, context: GrantContext) {
        if self.store.first(key, Queue::Converting).is_none()
            && self.store.first(key, Queue::Waiting).is_none()
        {
            return;
        }
        let converting = self.run_conversions(key, context);
        if !self.store.contains_resource(key) {
            return;
        }
        let waiting = self.run_waiting(key);
        if !self.store.contains_resource(key) {
            return;
        }
        if let Some(strongest) = converting.max(waiting) {
            let cw_waits = self.store.tally(key).awaited(Mode::CW);
            self.notify_granted(key, strongest, cw_waits);
        }
    }

    /// Grants conversions; returns the strongest mode still waited for. Behind the first one, it
    /// looks only at those that may go out of turn, or on which a look has effects.
    fn run_conversions(&mut self, key: ResourceKey, context: GrantContext) -> Option<Mode> {
        let mut demotion_seen = false;
        loop {
            let all = context == GrantContext::Recovering || self.store.tally(key).any_watched();
            let (mut granted, mut demoted, mut ahead) = (false, false, Modes::default());
            let mut next = self.store.first(key, Queue::Converting);
            while let Some(id) = next {
                self.store.visit();
                next = self.store.next(id);
                match self.try_grant(id, context, ahead) {
                    Try::Granted => {
                        self.grant(id);
                        self.tell_granted(id);
                        granted = true;
                        match self.still_next(key, Queue::Converting, next) {
                            Ok(still) if still == next => {}
                            // From the head again.
                            Ok(still) => (next, ahead) = (still, Modes::default()),
                            Err(Gone) => return None,
                        }
                        continue;
                    }
                    Try::Demoted => {
                        self.tell_demoted(id);
                        demoted = true;
                    }
                    Try::Deadlock if self.store[id].flags.contains(LockFlags::NODLCKWT) => {
                        self.notify_converter(id);
                    }
                    Try::Deadlock | Try::NotNow => {}
                }
                if !all {
                    break;
                }
                self.store[id].requested.into_iter().for_each(|mode| ahead.add(mode));
            }
            if granted || (demoted && !demotion_seen) {
                demotion_seen |= demoted;
                continue;
            }
            return self.store.tally(key).strongest_converting();
        }
    }

    /// The next lock of the walk. A forced unlock that waited for the grant may have run the queues
    /// again. It may have removed the next lock, or the whole resource.
    fn still_next(
        &self,
        key: ResourceKey,
        queue: Queue,
        next: Option<LockId>,
    ) -> Result<Option<LockId>, Gone> {
        if !self.store.contains_resource(key) {
            return Err(Gone);
        }
        let Some(id) = next else { return Ok(None) };
        let waits = self.store.get(id).is_some_and(|l| l.resource == key && l.queue == queue);
        Ok(if waits { next } else { self.store.first(key, queue) })
    }

    /// Grants requests; returns the strongest mode still waited for. Behind the first one, only those
    /// can be granted that need not wait for their turn.
    fn run_waiting(&mut self, key: ResourceKey) -> Option<Mode> {
        let mut next = self.store.first(key, Queue::Waiting);
        while let Some(id) = next {
            self.store.visit();
            next = self.store.next(id);
            if self.try_grant(id, GrantContext::Pending, Modes::default()) == Try::Granted {
                self.grant(id);
                self.tell_granted(id);
                match self.still_next(key, Queue::Waiting, next) {
                    Ok(still) => next = still,
                    Err(Gone) => return None,
                }
            } else if !self.store.tally(key).unordered_may_go() {
                break;
            }
        }
        self.store.tally(key).strongest_waiting()
    }

    /// Blocking notices for one newly queued (or refused) lock that wants `rq`.
    pub(crate) fn notify_blockers(
        &mut self,
        id: LockId,
        key: ResourceKey,
        rq: Mode,
        converting_too: bool,
    ) {
        let notices = Notices::Wanted(rq);
        if !self.store.has_made(key, notices) {
            let blockers = self.store.tally(key).granted_against(rq);
            self.notify_queue(key, Queue::Granted, id, rq, blockers);
            // One that is granted itself was left out: the next one has news for it.
            if self.store.get(id).is_none_or(|asker| asker.queue != Queue::Granted) {
                self.store.note_made(key, notices);
            }
        }
        if converting_too {
            self.notify_queue(key, Queue::Converting, id, rq, u32::MAX);
        }
    }

    /// Tells those in a queue that are in the way of `rq`, of which there are at most so many.
    fn notify_queue(
        &mut self,
        key: ResourceKey,
        queue: Queue,
        asker: LockId,
        rq: Mode,
        mut blockers: u32,
    ) {
        let mut next = self.store.first(key, queue);
        while let Some(id) = next.filter(|_| blockers > 0) {
            self.store.visit();
            next = self.store.next(id);
            let holder = &self.store[id];
            let conflicts = holder.granted.is_some_and(|gr| !gr.compatible(rq));
            let middle = holder.granted.is_some_and(|gr| gr.is_middle(rq));
            let news = if middle {
                holder.high_bast < Some(Mode::EX)
            } else {
                holder.high_bast < Some(rq)
            };
            blockers -= u32::from(conflicts);
            if id != asker && conflicts && news {
                self.tell_blocking(id, rq);
                self.store[id].high_bast = Some(rq);
            }
        }
    }

    /// Blocking notices for the strongest mode waited for, after a run of the queues.
    fn notify_granted(&mut self, key: ResourceKey, strongest: Mode, cw_waits: bool) {
        let notices = Notices::Strongest(strongest, cw_waits);
        if self.store.has_made(key, notices) {
            return;
        }
        let in_the_way = |gr: Mode| (gr == Mode::PR && cw_waits) || !gr.compatible(strongest);
        let mut left = self.store.tally(key).granted_where(in_the_way);
        let mut next = self.store.first(key, Queue::Granted);
        while let Some(id) = next.filter(|_| left > 0) {
            self.store.visit();
            next = self.store.next(id);
            let holder = &self.store[id];
            let Some(gr) = holder.granted.filter(|&gr| in_the_way(gr)) else { continue };
            left -= 1;
            let for_cw = gr == Mode::PR && cw_waits;
            let wanted = if for_cw && strongest == Mode::PR { Mode::CW } else { strongest };
            let highest = if for_cw { Mode::EX } else { strongest };
            if holder.high_bast < Some(highest) {
                self.tell_blocking(id, wanted);
                self.store[id].high_bast = Some(strongest);
            }
        }
        self.store.note_made(key, notices);
    }

    /// A converter in deadlock that must not fail (NODLCKWT) is asked to give way instead.
    fn notify_converter(&mut self, id: LockId) {
        let lock = &self.store[id];
        if let Some(rq) = lock.requested.filter(|&rq| lock.high_bast < Some(rq)) {
            self.tell_blocking(id, rq);
            self.store[id].high_bast = Some(rq);
        }
    }
}

/// The resource has gone.
struct Gone;
