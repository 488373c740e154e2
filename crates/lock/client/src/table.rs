//! The locks and queries of one session, and the threads that wait for them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use lockify_core::{LockId, LostReason, Mode, Name, Status, UnlockFlags};
use lockify_session::protocol::{
    Answer, Done, Event, LockRef, Refusal, Request, Space, UnlockRequest,
};
use slab::Slab;

use crate::callbacks::Callbacks;
use crate::error::Error;
use crate::slot::Slot;

pub(crate) type OpSlot = Slot<Result<Done, Error>>;
pub(crate) type QuerySlot = Slot<Result<Vec<Answer>, Error>>;
pub(crate) type OnBlock = Box<dyn Fn(Mode) + Send + Sync>;
type OnLost = Arc<dyn Fn(&LostLock) + Send + Sync>;

/// A lock that is no longer held.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostLock {
    /// The resource.
    pub name: Name,
    /// The mode in which it was held.
    pub mode: Mode,
    /// Why, and what to do.
    pub why: String,
}

/// The known state of a lock, which its guard reads without a lock of the table.
pub(crate) struct LockState {
    pub(crate) name: Name,
    mode: AtomicU8,
    token: AtomicU64,
    provisional: AtomicBool,
    /// Mode wanted by somebody since the last grant, plus one; 0 if nobody.
    blocked: AtomicU8,
    /// 0 held; 1 conflict; 2 halted; 3 session ended.
    lost: AtomicU8,
    on_block: Option<OnBlock>,
    /// A blocking notice is queued for the callback thread and has not been taken from it.
    notice_queued: AtomicBool,
}

impl LockState {
    pub(crate) fn new(name: Name, mode: Mode, on_block: Option<OnBlock>) -> LockState {
        LockState {
            name,
            mode: AtomicU8::new(mode as u8),
            token: AtomicU64::new(0),
            provisional: AtomicBool::new(false),
            blocked: AtomicU8::new(0),
            lost: AtomicU8::new(0),
            on_block,
            notice_queued: AtomicBool::new(false),
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        Mode::ALL[self.mode.load(Ordering::Acquire) as usize]
    }

    pub(crate) fn token(&self) -> u64 {
        self.token.load(Ordering::Acquire)
    }

    pub(crate) fn provisional(&self) -> bool {
        self.provisional.load(Ordering::Acquire)
    }

    pub(crate) fn blocked(&self) -> Option<Mode> {
        let mode = self.blocked.load(Ordering::Acquire).checked_sub(1)?;
        Some(Mode::ALL[mode as usize])
    }

    /// Why the lock is lost, if it is.
    pub(crate) fn lost(&self) -> Option<Error> {
        Some(match self.lost.load(Ordering::Acquire) {
            0 => return None,
            1 => Error::Lost(LostReason::Conflict),
            2 => Error::Lost(LostReason::Halted),
            _ => Error::Disconnected("it ended while the lock was held".into()),
        })
    }

    fn granted(&self, done: &Done, mode: Mode) {
        self.mode.store(mode as u8, Ordering::Release);
        self.token.store(done.token, Ordering::Release);
        self.provisional.store(done.provisional, Ordering::Release);
        self.blocked.store(0, Ordering::Release);
    }
}

/// An unlock that is about to be sent.
pub(crate) type Unlocking = (LockRef, UnlockFlags, Arc<OpSlot>);

/// One lock of the session.
struct Entry {
    space: Space,
    lock: Option<LockRef>,
    /// It has been granted.
    granted: bool,
    state: Arc<LockState>,
    /// The operation that is outstanding.
    op: Option<Arc<OpSlot>>,
    /// The operation is an unlock.
    unlocking: bool,
    /// Nobody wants the lock any more: unlock it when it is granted.
    abandoned: bool,
    /// Cancel the operation as soon as the lock's id is known.
    cancel: bool,
    generation: u32,
}

/// The locks and queries of a session.
pub(crate) struct Table {
    locks: Slab<Entry>,
    generation: u32,
    queries: HashMap<u64, (Arc<QuerySlot>, Vec<Answer>)>,
    next_query: u64,
    on_lost: Vec<(Space, OnLost)>,
    lives: HashMap<Space, u32>,
    down: Option<Error>,
    callbacks: Arc<Callbacks>,
}

impl Table {
    pub(crate) fn new(callbacks: Arc<Callbacks>) -> Table {
        Table {
            locks: Slab::new(),
            generation: 0,
            queries: HashMap::new(),
            next_query: 0,
            on_lost: Vec::new(),
            lives: HashMap::new(),
            down: None,
            callbacks,
        }
    }

    /// Why the session has ended, if it has.
    pub(crate) fn down(&self) -> Option<&Error> {
        self.down.as_ref()
    }

    pub(crate) fn on_lost(&mut self, space: Space, callback: OnLost) {
        self.on_lost.push((space, callback));
    }

    /// Enters a new lock whose request is about to be sent; returns its tag.
    pub(crate) fn add(
        &mut self,
        space: Space,
        state: Arc<LockState>,
    ) -> Result<(u64, Arc<OpSlot>), Error> {
        if let Some(e) = &self.down {
            return Err(e.clone());
        }
        self.generation = self.generation.wrapping_add(1);
        let op = Arc::new(Slot::new());
        let slot = self.locks.insert(Entry {
            space,
            lock: None,
            granted: false,
            state,
            op: Some(op.clone()),
            unlocking: false,
            abandoned: false,
            cancel: false,
            generation: self.generation,
        });
        Ok((u64::from(self.generation) << 32 | slot as u64, op))
    }

    fn get(&mut self, tag: u64) -> Option<&mut Entry> {
        let entry = self.locks.get_mut((tag & 0xffff_ffff) as usize)?;
        (u64::from(entry.generation) == tag >> 32).then_some(entry)
    }

    fn remove(&mut self, tag: u64) {
        if self.get(tag).is_some() {
            self.locks.remove((tag & 0xffff_ffff) as usize);
        }
    }

    /// Begins an operation on a granted lock.
    pub(crate) fn begin(&mut self, tag: u64) -> Result<(LockRef, Arc<OpSlot>), Error> {
        if let Some(e) = &self.down {
            return Err(e.clone());
        }
        let busy = || Error::Refused(Refusal::Core(lockify_core::Error::Busy));
        let gone = || Error::Refused(Refusal::Core(lockify_core::Error::NoEntry));
        let entry = self.get(tag).ok_or_else(gone)?;
        if entry.op.is_some() {
            return Err(busy());
        }
        let lock = entry.lock.ok_or_else(busy)?;
        let op = Arc::new(Slot::new());
        entry.op = Some(op.clone());
        Ok((lock, op))
    }

    /// Begins to unlock, in spite of outstanding operations; `None` if there is nothing to unlock.
    pub(crate) fn begin_unlock(
        &mut self,
        tag: u64,
        mut flags: UnlockFlags,
    ) -> Result<Option<Unlocking>, Error> {
        if let Some(e) = self.down.clone() {
            self.remove(tag);
            return Err(e);
        }
        let Some(entry) = self.get(tag) else {
            return Ok(None);
        };
        let Some(lock) = entry.lock else {
            return Ok(None);
        };
        if let Some(overlapped) = entry.op.take() {
            // Its end is not reported separately.
            overlapped.fill(Err(Error::Canceled));
            flags |= UnlockFlags::FORCE;
        }
        let op = Arc::new(Slot::new());
        entry.op = Some(op.clone());
        entry.unlocking = true;
        Ok(Some((lock, flags, op)))
    }

    /// Withdraws outstanding operations; `abandon` if a lock that is granted all the same is
    /// unwanted. Returns the messages to send.
    pub(crate) fn cancel(&mut self, tag: u64, abandon: bool) -> Option<Request> {
        let entry = self.get(tag)?;
        entry.abandoned |= abandon;
        if entry.op.is_none() {
            let lock = entry.lock.filter(|_| abandon)?;
            let flags = UnlockFlags::empty();
            return Some(Request::Unlock(UnlockRequest { lock, tag, flags, lvb: None }));
        }
        let Some(lock) = entry.lock else {
            entry.cancel = true;
            return None;
        };
        Some(Request::Cancel(lock))
    }

    pub(crate) fn query(&mut self) -> Result<(u64, Arc<QuerySlot>), Error> {
        if let Some(e) = &self.down {
            return Err(e.clone());
        }
        self.next_query += 1;
        let slot = Arc::new(Slot::new());
        self.queries.insert(self.next_query, (slot.clone(), Vec::new()));
        Ok((self.next_query, slot))
    }

    /// Takes note of an event; appends what must be sent because of it to `replies`.
    pub(crate) fn event(&mut self, event: Event, replies: &mut Vec<Request>) {
        match event {
            Event::Accepted { tag, lock } => self.accepted(tag, lock, replies),
            Event::Refused { tag, why } => self.refused(tag, why),
            Event::Completed(done) => self.completed(done, replies),
            Event::Bast { tag, mode } => self.blocked(tag, mode),
            Event::Lost { tag, reason } => {
                let code = if reason == LostReason::Conflict { 1 } else { 2 };
                self.lost(tag, code, &Error::Lost(reason));
            }
            Event::Settled { tag, token } => {
                if let Some(entry) = self.get(tag) {
                    entry.state.token.store(token, Ordering::Release);
                    entry.state.provisional.store(false, Ordering::Release);
                }
            }
            Event::Answer { id, answer, more } => self.answered(id, answer, more),
            Event::Halted { space, life } => self.halted(space, life),
            Event::Running { .. } => {}
            Event::Goodbye(goodbye) => self.fail(goodbye.into()),
        }
    }

    fn accepted(&mut self, tag: u64, lock: LockId, replies: &mut Vec<Request>) {
        let Some((lock, entry)) = self.reference(tag, lock) else {
            return;
        };
        entry.lock = Some(lock);
        if std::mem::take(&mut entry.cancel) {
            replies.push(Request::Cancel(lock));
        }
    }

    /// A lock's id with the life of its lockspace that it belongs to: the present one, because
    /// events come in order.
    fn reference(&mut self, tag: u64, lock: LockId) -> Option<(LockRef, &mut Entry)> {
        let space = self.get(tag)?.space;
        let life = self.lives.get(&space).copied().unwrap_or(0);
        Some((LockRef { space, life, lock }, self.get(tag)?))
    }

    fn refused(&mut self, tag: u64, why: Refusal) {
        let Some(entry) = self.get(tag) else { return };
        let is_new = entry.lock.is_none();
        let op = entry.op.take();
        entry.unlocking = false;
        if is_new {
            self.remove(tag);
        }
        if let Some(op) = op {
            op.fill(Err(why.into()));
        }
    }

    fn completed(&mut self, done: Done, replies: &mut Vec<Request>) {
        let tag = done.tag;
        let Some((lock, entry)) = self.reference(tag, done.lock) else {
            return self.unwanted(&done, replies);
        };
        entry.lock = Some(lock);
        entry.cancel = false;
        // A conversion that ended before the unlock overtook it does not end the unlock.
        let overtaken =
            entry.unlocking && done.mode.is_some() && !matches!(done.status, Status::Refused(_));
        let op = if overtaken { None } else { entry.op.take() };
        match done.mode {
            None => self.remove(tag),
            Some(mode) => {
                entry.granted = true;
                entry.state.granted(&done, mode);
                if entry.abandoned {
                    // The completion of this unlock removes the entry.
                    let flags = UnlockFlags::empty();
                    let lvb = None;
                    replies.push(Request::Unlock(UnlockRequest { lock, tag, flags, lvb }));
                }
            }
        }
        if let Some(op) = op {
            op.fill(match Error::of_status(done.status) {
                Some(e) => Err(e),
                None => Ok(done),
            });
        }
    }

    /// A lock that was asked for before a halt, which failed the call, and came after it.
    fn unwanted(&self, done: &Done, replies: &mut Vec<Request>) {
        if done.mode.is_some() && done.status == Status::Granted {
            let life = self.lives.get(&done.space).copied().unwrap_or(0);
            let lock = LockRef { space: done.space, life, lock: done.lock };
            let (tag, flags, lvb) = (done.tag, UnlockFlags::empty(), None);
            replies.push(Request::Unlock(UnlockRequest { lock, tag, flags, lvb }));
        }
    }

    fn blocked(&mut self, tag: u64, mode: Mode) {
        let Some(entry) = self.get(tag) else { return };
        let state = entry.state.clone();
        state.blocked.store(mode as u8 + 1, Ordering::Release);
        if state.on_block.is_none() || state.notice_queued.swap(true, Ordering::AcqRel) {
            return;
        }
        self.callbacks.run(Box::new(move || {
            state.notice_queued.store(false, Ordering::Release);
            if let (Some(callback), Some(mode)) = (&state.on_block, state.blocked()) {
                callback(mode);
            }
        }));
    }

    fn lost(&mut self, tag: u64, code: u8, why: &Error) {
        let Some(entry) = self.get(tag) else { return };
        // Calls that still wait end with an error of their own.
        let held = entry.granted && entry.state.lost.swap(code, Ordering::AcqRel) == 0;
        if !held || entry.abandoned || entry.unlocking {
            return;
        }
        let lost =
            LostLock { name: entry.state.name, mode: entry.state.mode(), why: why.to_string() };
        let space = entry.space;
        for (_, callback) in self.on_lost.iter().filter(|(s, _)| *s == space) {
            let (callback, lost) = (callback.clone(), lost.clone());
            self.callbacks.run(Box::new(move || callback(&lost)));
        }
    }

    fn answered(&mut self, id: u64, answer: Answer, more: bool) {
        let Some((slot, parts)) = self.queries.get_mut(&id) else {
            return;
        };
        parts.push(answer);
        if !more {
            slot.fill(Ok(std::mem::take(parts)));
            self.queries.remove(&id);
        }
    }

    fn tags(&self, which: impl Fn(&Entry) -> bool) -> Vec<u64> {
        let chosen = self.locks.iter().filter(|(_, e)| which(e));
        chosen.map(|(slot, e)| u64::from(e.generation) << 32 | slot as u64).collect()
    }

    /// Every lock of a lockspace is lost and its id void, every operation on them fails.
    fn halted(&mut self, space: Space, life: u32) {
        self.lives.insert(space, life);
        let why = Error::Lost(LostReason::Halted);
        for tag in self.tags(|e| e.space == space) {
            self.lost(tag, 2, &why);
            let op = self.get(tag).and_then(|entry| entry.op.take());
            self.remove(tag);
            if let Some(op) = op {
                op.fill(Err(why.clone()));
            }
        }
    }

    /// Takes note of the life in which a lockspace was opened.
    pub(crate) fn opened(&mut self, space: Space, life: u32) {
        let known = self.lives.entry(space).or_insert(life);
        *known = life.max(*known);
    }

    /// The session has ended: every lock is lost, every operation fails.
    pub(crate) fn fail(&mut self, why: Error) {
        if self.down.is_some() {
            return;
        }
        self.down = Some(why.clone());
        for tag in self.tags(|_| true) {
            self.lost(tag, 3, &why);
            let Some(entry) = self.get(tag) else { continue };
            if let Some(op) = entry.op.take() {
                op.fill(Err(why.clone()));
            }
        }
        for (_, (slot, _)) in self.queries.drain() {
            slot.fill(Err(why.clone()));
        }
    }
}
