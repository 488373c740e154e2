//! The master's decisions: who is granted when (semantics sections 4 and 5).

use crate::flags::{LockFlags, SbFlags};
use crate::ids::LockId;
use crate::inspect::Queue;
use crate::mode::Mode;
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

/// When a lock is considered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum When {
    /// On arrival.
    Now,
    /// From its queue.
    Pending,
    /// From its queue, after a recovery that has lost the queues' order.
    Recovering,
}

/// What a master's first look at a request or conversion leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Granted,
    Queued,
    Again,
    Deadlock,
}

/// What the effects of a request or conversion depend on, besides its outcome; taken down before
/// the lock is answered, as it may be gone after that.
#[derive(Clone, Copy)]
pub(crate) struct Effects {
    /// A request, not a conversion.
    pub new: bool,
    pub flags: LockFlags,
    pub rq: Mode,
}

impl Store {
    /// Whether `id` can be granted `rq`: the ten rules of semantics section 4, in their order.
    fn grantable(&self, id: LockId, rq: Mode, when: When) -> bool {
        let lock = &self[id];
        let key = lock.resource;
        if lock.flags.contains(LockFlags::EXPEDITE) {
            return true; // 1
        }
        let blocks = |other: &crate::lock::Lock| {
            other.id != id && other.granted.is_some_and(|gr| !gr.compatible(rq))
        };
        if self.queue(key, Queue::Granted).any(blocks)
            || self.queue(key, Queue::Converting).any(blocks)
        {
            return false; // 2
        }
        let converts = lock.granted.is_some();
        let none_converting = self.first(key, Queue::Converting).is_none();
        match when {
            When::Recovering if converts => return true, // 3
            When::Pending if converts && lock.disordered => return true, // 3, as long as it waits
            When::Now if converts && !lock.flags.contains(LockFlags::QUECVT) => return true, // 4
            When::Now if converts => return none_converting, // 5
            _ => {}
        }
        if lock.flags.contains(LockFlags::NOORDER) {
            return true; // 6
        }
        match (when == When::Now, converts) {
            (false, true) => self.first(key, Queue::Converting) == Some(id), // 7
            (true, false) => none_converting && self.first(key, Queue::Waiting).is_none(), // 8
            (false, false) => none_converting && self.first(key, Queue::Waiting) == Some(id), // 9
            (true, true) => false,                                           // 10
        }
    }

    /// Whether a converter's granted mode is in the way of `id`: put ahead of it, `id` would wait
    /// for one that waits behind it, which semantics section 5 does not see when `id` arrives.
    fn waits_for_converters(&self, id: LockId) -> bool {
        let lock = &self[id];
        self.queue(lock.resource, Queue::Converting).any(|other| {
            other.id != id
                && other.granted.zip(lock.requested).is_some_and(|(gr, rq)| !gr.compatible(rq))
        })
    }

    /// Whether converter `id` and another one wait for each other (semantics section 5).
    fn conversion_deadlock(&self, id: LockId) -> bool {
        let two = &self[id];
        let blocks = |holder: &crate::lock::Lock, asker: &crate::lock::Lock| match (
            holder.granted,
            asker.requested,
        ) {
            (Some(gr), Some(rq)) => !gr.compatible(rq),
            _ => false,
        };
        let mut behind_two = false;
        for one in self.queue(two.resource, Queue::Converting) {
            if one.id == id {
                behind_two = true;
            } else if blocks(two, one) && (!behind_two || blocks(one, two)) {
                return true;
            }
        }
        false
    }
}

impl Lockspace {
    /// `try(L)` of semantics section 4, without granting. A success in the alternative mode
    /// leaves that mode in `requested`.
    pub(crate) fn try_grant(&mut self, id: LockId, when: When) -> Try {
        let Some(rq) = self.store[id].requested else { return Try::NotNow };
        if self.store.grantable(id, rq, when) {
            return Try::Granted;
        }
        let lock = &self.store[id];
        let flags = lock.flags;
        if lock.granted.is_some()
            && !flags.contains(LockFlags::NOQUEUE)
            && self.store.conversion_deadlock(id)
        {
            if !flags.contains(LockFlags::CONVDEADLK) {
                return Try::Deadlock;
            }
            let lock = &mut self.store[id];
            let news = !lock.sb.contains(SbFlags::DEMOTED);
            lock.granted = Some(Mode::NL);
            lock.sb |= SbFlags::DEMOTED;
            if lock.queue == Queue::Granted {
                self.store.enqueue_granted(id, Mode::NL);
            }
            return if news { Try::Demoted } else { Try::NotNow };
        }
        let alternative = if flags.contains(LockFlags::ALTPR) && rq != Mode::PR {
            Mode::PR
        } else if flags.contains(LockFlags::ALTCW) && rq != Mode::CW {
            Mode::CW
        } else {
            return Try::NotNow;
        };
        let when = if when == When::Recovering { When::Pending } else { when };
        if !self.store.grantable(id, alternative, when) {
            return Try::NotNow;
        }
        let lock = &mut self.store[id];
        lock.requested = Some(alternative);
        lock.sb |= SbFlags::ALTMODE;
        Try::Granted
    }

    /// Grants what the lock asks for: value block, mode, queue, fencing token.
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
        if self.try_grant(id, When::Now) == Try::Granted {
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
        match self.try_grant(id, When::Now) {
            Try::Granted => {
                self.grant(id);
                return Outcome::Granted;
            }
            Try::Deadlock if !self.store[id].flags.contains(LockFlags::NODLCKWT) => {
                self.store[id].requested = None;
                return Outcome::Deadlock;
            }
            Try::Demoted => {
                // What the lock gave up may let others through, and then itself.
                self.run_conversions(key, When::Pending);
                let rq = self.store[id].requested;
                if rq.is_some_and(|rq| self.store.grantable(id, rq, When::Now)) {
                    self.grant(id);
                    return Outcome::Granted;
                }
            }
            _ => {}
        }
        if self.store[id].flags.contains(LockFlags::NOQUEUE) {
            self.store[id].requested = None;
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

    /// What others notice of a request or conversion, after its own answer is out.
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
            Outcome::Granted if new => {} // Nobody who waits gets closer to a grant by it.
            Outcome::Granted => self.run_pending(key),
            Outcome::Queued => self.notify_blockers(id, key, rq, false),
            Outcome::Again if flags.contains(LockFlags::NOQUEUEBAST) => {
                self.notify_blockers(id, key, rq, true)
            }
            Outcome::Again | Outcome::Deadlock => {}
        }
    }

    /// `run pending`: grants what has become grantable, then tells who blocks the rest.
    pub(crate) fn run_pending(&mut self, key: ResourceKey) {
        self.run_queues(key, When::Pending);
    }

    /// The same after a recovery: conversions may go out of order (rule 3).
    pub(crate) fn run_recovered(&mut self, key: ResourceKey) {
        self.run_queues(key, When::Recovering);
    }

    fn run_queues(&mut self, key: ResourceKey, when: When) {
        if self.store.first(key, Queue::Converting).is_none()
            && self.store.first(key, Queue::Waiting).is_none()
        {
            return;
        }
        let converting = self.run_conversions(key, when);
        if !self.store.contains_resource(key) {
            return;
        }
        let waiting = self.run_waiting(key);
        if !self.store.contains_resource(key) {
            return;
        }
        let strongest = converting.max(waiting);
        let cw_waits = self
            .store
            .queue(key, Queue::Converting)
            .chain(self.store.queue(key, Queue::Waiting))
            .any(|l| l.requested == Some(Mode::CW));
        if let Some(strongest) = strongest {
            self.notify_granted(key, strongest, cw_waits);
        }
    }

    /// Grants conversions; returns the strongest mode still waited for.
    fn run_conversions(&mut self, key: ResourceKey, when: When) -> Option<Mode> {
        let mut demotion_seen = false;
        loop {
            let (mut granted, mut demoted, mut strongest) = (false, false, None);
            let mut next = self.store.first(key, Queue::Converting);
            while let Some(id) = next {
                next = self.store.next(id);
                match self.try_grant(id, when) {
                    Try::Granted => {
                        self.grant(id);
                        self.tell_granted(id);
                        granted = true;
                        match self.still_next(key, Queue::Converting, next) {
                            Ok(still) => next = still,
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
                strongest = strongest.max(self.store[id].requested);
            }
            if granted || (demoted && !demotion_seen) {
                demotion_seen |= demoted;
                continue;
            }
            return strongest;
        }
    }

    /// A forced unlock that waited for the grant may have run the queues again and taken the next
    /// lock, or the whole resource, along: where to go on.
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

    fn run_waiting(&mut self, key: ResourceKey) -> Option<Mode> {
        let mut strongest = None;
        let mut next = self.store.first(key, Queue::Waiting);
        while let Some(id) = next {
            next = self.store.next(id);
            if self.try_grant(id, When::Pending) == Try::Granted {
                self.grant(id);
                self.tell_granted(id);
                match self.still_next(key, Queue::Waiting, next) {
                    Ok(still) => next = still,
                    Err(Gone) => return None,
                }
            } else {
                strongest = strongest.max(self.store[id].requested);
            }
        }
        strongest
    }

    /// Blocking notices for one newly queued (or refused) lock that wants `rq`.
    pub(crate) fn notify_blockers(
        &mut self,
        id: LockId,
        key: ResourceKey,
        rq: Mode,
        converting_too: bool,
    ) {
        self.notify_queue(key, Queue::Granted, id, rq);
        if converting_too {
            self.notify_queue(key, Queue::Converting, id, rq);
        }
    }

    fn notify_queue(&mut self, key: ResourceKey, queue: Queue, asker: LockId, rq: Mode) {
        let mut next = self.store.first(key, queue);
        while let Some(id) = next {
            next = self.store.next(id);
            let holder = &self.store[id];
            let conflicts = holder.granted.is_some_and(|gr| !gr.compatible(rq));
            let middle = holder.granted.is_some_and(|gr| gr.is_middle(rq));
            let news = if middle {
                holder.high_bast < Some(Mode::EX)
            } else {
                holder.high_bast < Some(rq)
            };
            if id != asker && conflicts && news {
                self.tell_blocking(id, rq);
                self.store[id].high_bast = Some(rq);
            }
        }
    }

    /// Blocking notices for the strongest mode waited for, after a run of the queues.
    fn notify_granted(&mut self, key: ResourceKey, strongest: Mode, cw_waits: bool) {
        let mut next = self.store.first(key, Queue::Granted);
        while let Some(id) = next {
            next = self.store.next(id);
            let holder = &self.store[id];
            let Some(gr) = holder.granted else { continue };
            let for_cw = gr == Mode::PR && cw_waits;
            let wanted = if for_cw && strongest == Mode::PR { Mode::CW } else { strongest };
            let news = if for_cw {
                holder.high_bast < Some(Mode::EX)
            } else {
                holder.high_bast < Some(strongest) && !gr.compatible(strongest)
            };
            if news {
                self.tell_blocking(id, wanted);
                self.store[id].high_bast = Some(strongest);
            }
        }
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
