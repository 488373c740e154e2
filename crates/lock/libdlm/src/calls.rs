//! The program's requests to a lockspace.
//!
//! Arguments are checked here as far as Linux `set_lock_args`, `validate_lock_args` and
//! `validate_unlock_args` do, so that the call refuses an error, not a callback.

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use lockify_client::protocol::{
    ConvertRequest, LockRequest, Query, Request, UnlockRequest, sessions_of,
};
use lockify_client::{LockArgs, LockFlags, Lvb, Mode, Name, NodeId, Status, UnlockFlags};

use crate::abi::{
    Ast, EINPROG, LKF_CANCEL, LKF_CONVERT, LKF_FORCEUNLOCK, LKF_IVVALBLK, LKF_ORPHAN, LKF_TIMEOUT,
    LKF_VALBLK, LKF_WAIT, LVB_LEN, Lksb,
};
use crate::handle::{Handle, PATIENCE, State};
use crate::locks::{Admission, Blocking, Ended, Lock, Op, Target};
use crate::sleepers::Concern;

/// How synchronous calls report how the operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// `libdlm.so.3`: the call returns 0, the status is in the lock status block.
    StatusInLksb,
    /// `libdlm_lt.so.3`: the call fails with the status as errno, unless it is 0 or EUNLOCK. As
    /// there are no threads, callbacks run while it waits.
    StatusInErrno,
}

/// Arguments of `dlm_ls_lockx`, of which all calls that lock are forms.
#[derive(Debug)]
pub struct LockCall<'a> {
    /// The mode asked for.
    pub mode: u32,
    /// The status block.
    pub lksb: *mut Lksb,
    /// The flags of the request, `LKF_*`.
    pub flags: u32,
    /// The resource; ignored by conversions.
    pub name: &'a [u8],
    /// The completion routine.
    pub cast: Option<Ast>,
    /// The blocking routine.
    pub bast: Option<Ast>,
    /// The argument of both.
    pub arg: *mut c_void,
    /// The transaction of a new lock; 0: its client is one.
    pub xid: u64,
    /// With LKF_TIMEOUT: hundredths of a second.
    pub timeout: Option<u64>,
}

/// Arguments of `dlm_ls_unlock`.
#[derive(Debug)]
pub struct UnlockCall {
    /// The lock.
    pub lkid: u32,
    /// The flags of the unlock, `LKF_*`.
    pub flags: u32,
    /// The status block.
    pub lksb: *mut Lksb,
    /// Replaces the argument of the completion routine, unless it is null.
    pub arg: *mut c_void,
}

type Requests = Vec<(usize, Request)>;

impl Ended {
    /// # Safety
    /// `lksb` is null or a status block, and its value block null or [`LVB_LEN`] bytes.
    pub(crate) unsafe fn write(&self, lksb: *mut Lksb) {
        // SAFETY: the caller's promise.
        let Some(lksb) = (unsafe { lksb.as_mut() }) else { return };
        lksb.status = self.status;
        lksb.lkid = self.lkid;
        lksb.flags = self.flags as c_char;
        if let Some(lvb) = self.lvb.as_ref().filter(|l| !lksb.lvb.is_null() && l.len() == LVB_LEN) {
            // SAFETY: the caller's promise about the length.
            unsafe { std::ptr::copy_nonoverlapping(lvb.as_ptr(), lksb.lvb.cast(), LVB_LEN) };
        }
    }
}

/// The value block to send.
///
/// # Safety
/// The status block's value block is null or [`LVB_LEN`] bytes.
unsafe fn value_block(lksb: &Lksb, flags: u32) -> Result<Option<Lvb>, c_int> {
    if flags & LKF_VALBLK == 0 {
        return Ok(None);
    }
    if lksb.lvb.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(lksb.lvb.cast::<u8>(), LVB_LEN) };
    Ok(Some(bytes.into()))
}

impl Handle {
    /// Asks for a lock or converts one.
    ///
    /// # Errors
    /// EINVAL, EBUSY, ENOENT, ... as Linux; nothing was started then. With [`LKF_WAIT`] and
    /// [`Waiting::StatusInErrno`], the status as well.
    ///
    /// # Safety
    /// `lksb` is null or valid, as is its value block, until the operation has ended; so is what
    /// the routines need.
    pub unsafe fn lock(&self, call: &LockCall<'_>, waiting: Waiting) -> Result<(), c_int> {
        // SAFETY: the caller's promise.
        let lksb = unsafe { call.lksb.as_mut() }.ok_or(libc::EINVAL)?;
        // SAFETY: the caller's promise.
        let lvb = unsafe { value_block(lksb, call.flags) }?;
        lksb.status = EINPROG;
        let waits = call.flags & LKF_WAIT != 0;
        let mode = *Mode::ALL.get(call.mode as usize).ok_or(libc::EINVAL)?;
        if call.flags & LKF_CANCEL != 0 || (!waits && call.cast.is_none()) {
            return Err(libc::EINVAL);
        }
        let waiter = match call.flags & LKF_CONVERT {
            0 => self.request(call, lksb, mode, lvb)?,
            _ => self.convert(call, lksb.lkid, mode, lvb)?,
        };
        match waiter {
            // SAFETY: the caller's promise.
            Some(waiter) => unsafe { self.finish(waiter, call.lksb, waiting) },
            None => Ok(()),
        }
    }

    /// A new lock: waits until the daemon has accepted it.
    fn request(
        &self,
        call: &LockCall<'_>,
        lksb: &mut Lksb,
        mode: Mode,
        lvb: Option<Lvb>,
    ) -> Result<Option<u64>, c_int> {
        let name = Name::new(call.name).map_err(|_| libc::EINVAL)?;
        let shard = self.shard_of(&name);
        let adopts = call.flags & LKF_ORPHAN != 0;
        // Without a meaning for a new lock, where the kernel does not mind them.
        let flags = LockFlags::from_bits_truncate(call.flags & !LKF_IVVALBLK) - LockFlags::FREED;
        let valblk = call.flags & LKF_VALBLK != 0;
        let timeout = call.timeout();
        let (lkid, waiter, request) = {
            let mut state = self.state();
            // The kernel completes an adoption without a callback: the call says all.
            let waiter = (call.flags & LKF_WAIT != 0 || adopts).then(|| state.waiter());
            let lkid = state.locks.add(Lock {
                shard,
                reference: None,
                granted: None,
                op: Op::Request,
                cancelled: false,
                valblk: valblk && !adopts,
                target: call.target(),
                silent: waiter.is_some(),
                waiters: waiter.into_iter().collect(),
                blocking: call.blocking(),
                lost: false,
                unwanted: false,
            });
            let (space, _) = state.locks.spaces[shard];
            let (tag, bast) = (lkid.into(), call.bast.is_some());
            let transaction = call.xid;
            let args = LockArgs { tag, name, mode, flags, lvb, bast, timeout, transaction };
            let request = LockRequest { space, args };
            (lkid, waiter, request)
        };
        self.submit(shard, Request::Lock(request));
        let admitted = self.wait(Some(PATIENCE), Concern::Admission(lkid), |state| {
            state.locks.admitted.remove(&lkid)
        });
        let refused = match admitted {
            Ok(Admission::Accepted) => None,
            Ok(Admission::Refused(why)) => Some(why),
            Err(why) => {
                if let Some(lock) = self.state().locks.get(lkid) {
                    lock.unwanted = true;
                }
                Some(why)
            }
        };
        let ends = |state: &mut State, w: u64| state.locks.take_end(w, false);
        if let Some(why) = refused {
            waiter.map(|w| ends(&mut self.state(), w));
            return Err(why);
        }
        lksb.lkid = lkid;
        if adopts && call.flags & LKF_WAIT == 0 {
            waiter.map(|w| ends(&mut self.state(), w));
            return Ok(None);
        }
        Ok(waiter)
    }

    fn convert(
        &self,
        call: &LockCall<'_>,
        lkid: u32,
        mode: Mode,
        lvb: Option<Lvb>,
    ) -> Result<Option<u64>, c_int> {
        let ours = LockFlags::ORPHAN | LockFlags::FREED;
        let flags = LockFlags::from_bits_truncate(call.flags) - ours;
        self.catch_up_with(lkid);
        let (shard, waiter, request) = {
            let mut state = self.state();
            let waiter = (call.flags & LKF_WAIT != 0).then(|| state.waiter());
            let lock = state.locks.get(lkid).ok_or(libc::ENOENT)?;
            if lock.lost {
                return Err(libc::EIO);
            }
            let granted = lock.granted.filter(|_| lock.op == Op::None).ok_or(libc::EBUSY)?;
            let reference = lock.reference.ok_or(libc::EBUSY)?;
            flags.check_conversion(granted, mode).map_err(|_| libc::EINVAL)?;
            lock.op = Op::Convert;
            lock.cancelled = false;
            lock.valblk = lvb.is_some();
            lock.target = call.target();
            lock.silent = waiter.is_some();
            lock.waiters.extend(waiter);
            lock.blocking = call.blocking();
            let (tag, timeout) = (lkid.into(), call.timeout());
            let request = ConvertRequest { lock: reference, tag, mode, flags, lvb, timeout };
            (lock.shard, waiter, request)
        };
        self.submit(shard, Request::Convert(request));
        Ok(waiter)
    }

    /// Unlocks, or with LKF_CANCEL takes an operation back.
    ///
    /// # Errors
    /// As [`Handle::lock`].
    ///
    /// # Safety
    /// As [`Handle::lock`].
    pub unsafe fn unlock(&self, call: &UnlockCall, waiting: Waiting) -> Result<(), c_int> {
        if call.lkid == 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's promise.
        let lksb = unsafe { call.lksb.as_mut() }.ok_or(libc::EINVAL)?;
        // SAFETY: the caller's promise.
        let lvb = unsafe { value_block(lksb, call.flags) }?;
        lksb.status = EINPROG;
        let known = LKF_CANCEL | LKF_VALBLK | LKF_IVVALBLK | LKF_FORCEUNLOCK | LKF_WAIT;
        let both = LKF_CANCEL | LKF_FORCEUNLOCK;
        if call.flags & !known != 0 || call.flags & both == both {
            return Err(libc::EINVAL);
        }
        let waits = call.flags & LKF_WAIT != 0;
        self.catch_up_with(call.lkid);
        let mut requests = Requests::new();
        let waiter = match call.flags & LKF_CANCEL {
            0 => self.begin_unlock(call, lvb, &mut requests)?,
            _ => self.begin_cancel(call, &mut requests)?,
        };
        for (shard, request) in requests {
            self.submit(shard, request);
        }
        match waiter {
            // SAFETY: the caller's promise.
            Some(waiter) => unsafe { self.finish(waiter, call.lksb, waiting) },
            // Nothing was to be done: nothing will end.
            None if waits => {
                lksb.status = 0;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn begin_unlock(
        &self,
        call: &UnlockCall,
        lvb: Option<Lvb>,
        requests: &mut Requests,
    ) -> Result<Option<u64>, c_int> {
        let mut state = self.state();
        let waiter = (call.flags & LKF_WAIT != 0).then(|| state.waiter());
        let lock = state.locks.get(call.lkid).ok_or(libc::ENOENT)?;
        let force = call.flags & LKF_FORCEUNLOCK != 0;
        if lock.op == Op::Unlock && force {
            lock.waiters.extend(waiter);
            return Ok(waiter);
        }
        if lock.op == Op::Unlock {
            return Err(libc::EBUSY);
        }
        let reference = lock.reference.ok_or(libc::EBUSY)?;
        // The kernel lets a plain unlock end a request in a queue. This library cannot distinguish
        // a request that is still on its way there, where the kernel says EBUSY: it ends, too.
        let mut flags = UnlockFlags::from_bits_truncate(call.flags);
        flags.set(UnlockFlags::FORCE, force || lock.op != Op::None);
        lock.redirect(call, waiter);
        lock.op = Op::Unlock;
        lock.silent = waiter.is_some();
        let tag = call.lkid.into();
        let request = UnlockRequest { lock: reference, tag, flags, lvb };
        requests.push((lock.shard, Request::Unlock(request)));
        Ok(waiter)
    }

    /// Takes the operation back that is outstanding; that there is none is no error.
    fn begin_cancel(
        &self,
        call: &UnlockCall,
        requests: &mut Requests,
    ) -> Result<Option<u64>, c_int> {
        let mut state = self.state();
        let waiter = (call.flags & LKF_WAIT != 0).then(|| state.waiter());
        let lock = state.locks.get(call.lkid).ok_or(libc::ENOENT)?;
        // The kernel remembers it beyond the operation's end.
        if lock.cancelled {
            return Err(libc::EINVAL);
        }
        let (Op::Request | Op::Convert, Some(reference)) = (lock.op, lock.reference) else {
            return Ok(None);
        };
        lock.redirect(call, waiter);
        lock.cancelled = true;
        requests.push((lock.shard, Request::Cancel(reference)));
        Ok(waiter)
    }

    /// Ends a lock's outstanding operation with EDEADLK.
    ///
    /// # Errors
    /// EINVAL, ENOENT.
    pub fn break_deadlock(&self, lkid: u32) -> Result<(), c_int> {
        if lkid == 0 {
            return Err(libc::EINVAL);
        }
        self.catch_up_with(lkid);
        let mut state = self.state();
        let lock = state.locks.get(lkid).ok_or(libc::ENOENT)?;
        let (Op::Request | Op::Convert, Some(reference)) = (lock.op, lock.reference) else {
            return Ok(());
        };
        let shard = lock.shard;
        drop(state);
        self.submit(shard, Request::BreakDeadlock(reference));
        Ok(())
    }

    /// Drops the orphans that process `pid` (0: any) has left on node `node` (0: this one). Of
    /// this process itself, on this node: the locks of this handle, without callbacks.
    ///
    /// # Errors
    /// EINVAL; ENOENT if the node is no member; ETIMEDOUT.
    pub fn purge(&self, node: c_int, pid: c_int) -> Result<(), c_int> {
        let node = u32::try_from(node).map_err(|_| libc::EINVAL)?;
        let pid = u32::try_from(pid).map_err(|_| libc::EINVAL)?;
        let here = node == 0 || NodeId(node) == self.node;
        if here && pid == std::process::id() {
            return self.purge_own();
        }
        let node = (!here).then_some(NodeId(node));
        let clients = match pid {
            0 => lockify_client::Clients::ALL,
            pid => sessions_of(pid),
        };
        for shard in 0..self.shards() {
            let space = self.state().locks.spaces[shard].0;
            self.ask(shard, Query::Purge { space, node, clients })?;
        }
        Ok(())
    }

    fn purge_own(&self) -> Result<(), c_int> {
        let mut requests = Requests::new();
        self.state().locks.drop_all(&mut requests);
        for (shard, request) in requests {
            self.submit(shard, request);
        }
        self.wait(Some(PATIENCE), Concern::Any, |state| (state.locks.len() == 0).then_some(()))
    }

    /// # Safety
    /// As [`Handle::lock`].
    unsafe fn finish(&self, waiter: u64, lksb: *mut Lksb, waiting: Waiting) -> Result<(), c_int> {
        let ended = self.wait_for_end(waiter, waiting == Waiting::StatusInErrno)?;
        // SAFETY: the caller's promise.
        unsafe { ended.write(lksb) };
        match ended.status {
            0 => Ok(()),
            status if status == Status::Unlocked.errno() => Ok(()),
            status if waiting == Waiting::StatusInErrno => Err(status),
            _ => Ok(()),
        }
    }
}

impl Lock {
    /// Results go where this call wants them.
    fn redirect(&mut self, call: &UnlockCall, waiter: Option<u64>) {
        match waiter {
            // Each waiting thread has a status block of its own.
            Some(waiter) => self.waiters.push(waiter),
            None => {
                self.target.lksb = call.lksb;
                if !call.arg.is_null() {
                    self.target.arg = call.arg;
                }
            }
        }
    }
}

impl LockCall<'_> {
    /// A synchronous call has nobody to call back for its end, now or at an unlock.
    fn target(&self) -> Target {
        let cast = self.cast.filter(|_| self.flags & LKF_WAIT == 0);
        Target { lksb: self.lksb, cast, arg: self.arg }
    }

    fn blocking(&self) -> Option<Blocking> {
        self.bast.map(|bast| Blocking { bast, arg: self.arg })
    }

    /// The time-out in nanoseconds; none without a limit.
    fn timeout(&self) -> Option<u64> {
        let hundredths = self.timeout.filter(|_| self.flags & LKF_TIMEOUT != 0)?;
        let timeout = Duration::from_millis(hundredths.saturating_mul(10));
        (hundredths > 0).then(|| timeout.as_nanos().try_into().unwrap_or(u64::MAX))
    }
}
