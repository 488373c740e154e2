//! The locks of one handle, and the daemon's events for them.
//!
//! A lock's id, as the program knows it, is also its tag in the session protocol.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};

use lockify_client::protocol::{Answer, Done, Event, LockRef, Request, Space, UnlockRequest};
use lockify_client::{LockId, Lvb, Mode, Status, UnlockFlags};

use crate::abi::{Ast, EUNLOCK, LVB_LEN, Lksb};
use crate::errno;
use crate::sleepers::Concern;

/// Where an operation's result goes.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) lksb: *mut Lksb,
    pub(crate) cast: Option<Ast>,
    pub(crate) arg: *mut c_void,
}

// SAFETY: pointers of the program, which are only carried here. A program that gives them to a lock
// manager that calls back from another thread has agreed to their use there.
unsafe impl Send for Target {}

/// A blocking routine and its argument.
#[derive(Clone, Copy)]
pub(crate) struct Blocking {
    pub(crate) bast: Ast,
    pub(crate) arg: *mut c_void,
}

// SAFETY: as for `Target`.
unsafe impl Send for Blocking {}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    None,
    Request,
    Convert,
    Unlock,
}

/// One lock.
pub(crate) struct Lock {
    pub(crate) shard: usize,
    /// The daemon's reference of it, once it is known.
    pub(crate) reference: Option<LockRef>,
    pub(crate) granted: Option<Mode>,
    pub(crate) op: Op,
    /// The operation, or the last one, has been cancelled.
    pub(crate) cancelled: bool,
    /// The operation's value block goes both ways.
    pub(crate) valblk: bool,
    pub(crate) target: Target,
    /// The operation's end is told to waiters only.
    pub(crate) silent: bool,
    /// The threads that wait for the operation's end.
    pub(crate) waiters: Vec<u64>,
    pub(crate) blocking: Option<Blocking>,
    /// Only unlocking it is possible.
    pub(crate) lost: bool,
    /// The program does not know of it (any more): unlocked as soon as that is possible.
    pub(crate) unwanted: bool,
}

/// How an operation ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) lkid: u32,
    pub(crate) status: c_int,
    pub(crate) flags: u8,
    pub(crate) lvb: Option<Lvb>,
    /// How many callbacks were due before it.
    pub(crate) after: u64,
}

/// The callback that a dispatch makes to the program.
pub(crate) enum Due {
    Cast(Target, Ended),
    Bast(Blocking),
}

/// The known state of a request that waits for its acceptance.
pub(crate) enum Admission {
    Accepted,
    Refused(c_int),
}

/// The locks of a handle, and what waits to be told.
#[derive(Default)]
pub(crate) struct Locks {
    locks: HashMap<u32, Lock>,
    last: u32,
    due: VecDeque<Due>,
    /// How many callbacks have been made, or dropped.
    made: u64,
    /// Ends that somebody waits for.
    ended: HashMap<u64, Ended>,
    pub(crate) admitted: HashMap<u32, Admission>,
    pub(crate) answers: HashMap<u64, Result<(), c_int>>,
    /// By shard: the number of the lockspace and its present life.
    pub(crate) spaces: Vec<(Space, u32)>,
    /// Locks above NL that were lost, to be reported.
    pub(crate) losses: usize,
    /// The news for which a thread may sleep.
    pub(crate) news: Vec<Concern>,
}

impl Locks {
    pub(crate) fn get(&mut self, lkid: u32) -> Option<&mut Lock> {
        self.locks.get_mut(&lkid).filter(|l| !l.unwanted)
    }

    /// Enters a lock under a new id, which is positive as a C int too.
    pub(crate) fn add(&mut self, lock: Lock) -> u32 {
        loop {
            self.last = self.last % i32::MAX as u32 + 1;
            if !self.locks.contains_key(&self.last) {
                self.locks.insert(self.last, lock);
                return self.last;
            }
        }
    }

    pub(crate) fn remove(&mut self, lkid: u32) {
        self.locks.remove(&lkid);
        self.admitted.remove(&lkid);
    }

    /// The next callback.
    pub(crate) fn next_due(&mut self) -> Option<Due> {
        let due = self.due.pop_front()?;
        self.made += 1;
        Some(due)
    }

    /// Returns true if callbacks are due.
    pub(crate) fn any_due(&self) -> bool {
        !self.due.is_empty()
    }

    pub(crate) fn drop_due(&mut self) {
        self.made += self.due.len() as u64;
        self.due.clear();
    }

    /// The end that somebody waits for; `in_turn` if callbacks that were due before it are made.
    pub(crate) fn take_end(&mut self, waiter: u64, in_turn: bool) -> Option<Ended> {
        let after = self.ended.get(&waiter)?.after;
        if in_turn && self.made < after {
            return None;
        }
        self.ended.remove(&waiter)
    }

    pub(crate) fn len(&self) -> usize {
        self.locks.len()
    }

    /// The program wants none of its locks any more, and no word of them: appends what must be
    /// sent.
    pub(crate) fn drop_all(&mut self, requests: &mut Vec<(usize, Request)>) {
        self.drop_due();
        for (&lkid, lock) in &mut self.locks {
            if !std::mem::replace(&mut lock.unwanted, true) {
                requests.extend(lock.force_unlock(lkid));
            }
        }
    }

    /// Handles an event of a shard's daemon; appends the resulting requests.
    pub(crate) fn event(
        &mut self,
        shard: usize,
        event: Event,
        requests: &mut Vec<(usize, Request)>,
    ) {
        match event {
            Event::Accepted { tag, lock } => self.accepted(tag, lock, requests),
            Event::Refused { tag, why } => self.refused(tag, errno::of_refusal(&why)),
            Event::Completed(done) => self.completed(shard, done, requests),
            Event::Bast { tag, .. } => {
                if let Some(blocking) = self.get(tag as u32).and_then(|l| l.blocking) {
                    self.due.push_back(Due::Bast(blocking));
                }
            }
            Event::Lost { tag, .. } => self.lost(tag as u32),
            Event::Answer { id, answer, more: false } => {
                let answer = match answer {
                    Answer::Refused(why) => Err(errno::of_refusal(&why)),
                    _ => Ok(()),
                };
                self.answers.insert(id, answer);
                self.news.push(Concern::Answer(id));
            }
            Event::Halted { space, life } => self.halted(shard, space, life),
            // Of no interest: the whole session's end is dealt with by the handle.
            Event::Answer { .. }
            | Event::Settled { .. }
            | Event::Running { .. }
            | Event::Goodbye(_) => {}
        }
    }

    fn reference(&self, shard: usize, lock: LockId) -> LockRef {
        let (space, life) = self.spaces[shard];
        LockRef { space, life, lock }
    }

    fn accepted(&mut self, tag: u64, id: LockId, requests: &mut Vec<(usize, Request)>) {
        let lkid = tag as u32;
        let Some(shard) = self.locks.get(&lkid).map(|l| l.shard) else { return };
        let reference = self.reference(shard, id);
        let Some(lock) = self.locks.get_mut(&lkid) else { return };
        lock.reference = Some(reference);
        if lock.unwanted {
            requests.extend(lock.force_unlock(lkid));
        } else {
            self.admitted(lkid, Admission::Accepted);
        }
    }

    fn admitted(&mut self, lkid: u32, admission: Admission) {
        self.admitted.insert(lkid, admission);
        self.news.push(Concern::Admission(lkid));
    }

    /// An operation was refused after this library had let it pass.
    fn refused(&mut self, tag: u64, why: c_int) {
        let lkid = tag as u32;
        let Some(lock) = self.locks.get(&lkid) else { return };
        let (op, request) = (lock.op, lock.op == Op::Request && !lock.unwanted);
        if request {
            self.admitted(lkid, Admission::Refused(why));
        }
        // An unlock is refused if the lock has gone meanwhile.
        let gone = op != Op::Convert;
        let status = if op == Op::Unlock { EUNLOCK } else { why };
        self.end(lkid, Ended { lkid, status, flags: 0, lvb: None, after: 0 }, gone);
    }

    fn completed(&mut self, shard: usize, done: Done, requests: &mut Vec<(usize, Request)>) {
        let lkid = done.tag as u32;
        let reference = self.reference(shard, done.lock);
        let Some(lock) = self.locks.get_mut(&lkid) else {
            // Asked for before a halt, and granted after it: nobody knows of it.
            if done.mode.is_some() {
                requests.push((shard, unlock(reference, lkid)));
            }
            return;
        };
        if let Status::Refused(why) = done.status
            && lock.op == Op::Request
            && lock.reference.is_none()
        {
            return self.refused(done.tag, Status::Refused(why).errno());
        }
        lock.reference = Some(reference);
        lock.granted = done.mode;
        let gone = done.mode.is_none();
        if lock.op == Op::Unlock && !gone {
            // The operation that the unlock overtook has ended; the unlock has not.
            return;
        }
        if lock.unwanted && !gone {
            requests.extend(lock.force_unlock(lkid));
            return;
        }
        let status = if lock.op == Op::Unlock { EUNLOCK } else { done.status.errno() };
        let flags = done.status_flags.bits();
        let mut lvb = done.ended.lvb;
        // The kernel's answer to a first request that read no value.
        if lvb.is_none()
            && lock.valblk
            && lock.op == Op::Request
            && done.ended.status == Status::Granted
        {
            lvb = Some(vec![0; LVB_LEN].into());
        }
        self.end(lkid, Ended { lkid, status, flags, lvb, after: 0 }, gone);
    }

    /// An operation has ended: its waiter learns of it, or the program by a dispatch.
    fn end(&mut self, lkid: u32, mut ended: Ended, gone: bool) {
        ended.after = self.made + self.due.len() as u64;
        let Some(lock) = self.locks.get_mut(&lkid) else { return };
        let request = lock.op == Op::Request;
        lock.op = Op::None;
        for waiter in lock.waiters.drain(..) {
            self.ended.insert(waiter, ended.clone());
            self.news.push(Concern::End(waiter));
        }
        let (silent, target, unwanted) = (lock.silent, lock.target, lock.unwanted);
        let refused = matches!(self.admitted.get(&lkid), Some(Admission::Refused(_)));
        if request && !refused && !unwanted {
            self.admitted(lkid, Admission::Accepted);
        }
        if !silent && !unwanted && !refused {
            self.due.push_back(Due::Cast(target, ended));
        }
        if gone {
            self.locks.remove(&lkid);
        }
        // Somebody may wait until all are gone.
        self.news.push(Concern::Any);
    }

    fn lost(&mut self, lkid: u32) {
        let Some(lock) = self.get(lkid) else { return };
        if std::mem::replace(&mut lock.lost, true) {
            return;
        }
        let held = lock.op != Op::Unlock && lock.granted.is_some_and(|mode| mode > Mode::NL);
        let blocking = lock.blocking;
        if held {
            self.losses += 1;
            self.due.extend(blocking.map(Due::Bast));
        }
    }

    /// Every lock of the shard is lost and its id void; nothing outstanding will be answered.
    fn halted(&mut self, shard: usize, space: Space, life: u32) {
        if self.spaces[shard].0 != space {
            return;
        }
        self.spaces[shard].1 = life;
        let all: Vec<u32> =
            self.locks.iter().filter(|(_, l)| l.shard == shard).map(|(&lkid, _)| lkid).collect();
        for lkid in all {
            self.lost(lkid);
            let Some(lock) = self.locks.get(&lkid) else { continue };
            let status = if lock.op == Op::Unlock { EUNLOCK } else { libc::EIO };
            match lock.op {
                Op::None => self.remove(lkid),
                _ => self.end(lkid, Ended { lkid, status, flags: 0, lvb: None, after: 0 }, true),
            }
        }
        self.news.push(Concern::Any);
    }

    /// The session has ended: as if every lockspace had been halted.
    pub(crate) fn over(&mut self) {
        for shard in 0..self.spaces.len() {
            let (space, life) = self.spaces[shard];
            self.halted(shard, space, life);
        }
    }
}

impl Lock {
    /// The request that ends the lock in whatever state, if the daemon knows it yet.
    fn force_unlock(&mut self, lkid: u32) -> Option<(usize, Request)> {
        let reference = self.reference?;
        if self.op == Op::Unlock {
            return None;
        }
        self.op = Op::Unlock;
        Some((self.shard, unlock(reference, lkid)))
    }
}

fn unlock(lock: LockRef, lkid: u32) -> Request {
    let (tag, flags, lvb) = (lkid.into(), UnlockFlags::FORCE, None);
    Request::Unlock(UnlockRequest { lock, tag, flags, lvb })
}
