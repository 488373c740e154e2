//! The objects behind handles.

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use lockify_client::{Client, Guard, Lockspace};

use crate::code::Failure;

/// The object behind a `lockify_t`.
pub struct Session(pub(crate) Client);

/// The object behind a `lockify_space_t`.
pub struct Space(pub(crate) Lockspace);

/// The object behind a `lockify_lock_t`.
pub struct Lock {
    guard: Mutex<Guard>,
    lvb_len: usize,
    gate: Arc<Gate>,
}

impl Lock {
    pub(crate) fn new(guard: Guard, lvb_len: usize, gate: Arc<Gate>) -> Lock {
        Lock { guard: Mutex::new(guard), lvb_len, gate }
    }

    pub(crate) fn guard(&self) -> MutexGuard<'_, Guard> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle is gone: no callback runs any more.
    pub(crate) fn into_guard(self) -> Guard {
        self.gate.shut();
        self.guard.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program's value block.
    ///
    /// # Safety
    /// `lvb` is null or as long as the lockspace's value blocks.
    pub(crate) unsafe fn block<'a>(&self, lvb: *const c_void) -> Result<&'a [u8], Failure> {
        if lvb.is_null() {
            return Err(Failure::invalid("LOCKIFY_VALBLK needs a value block".into()));
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { std::slice::from_raw_parts(lvb.cast(), self.lvb_len) })
    }
}

/// When a lock's callback may run: while the program has the handle. The callback is told of the
/// lock through `arg` only, so it must not run before `lockify_lock` has stored the handle, nor while
/// or after `lockify_unlock` frees it.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default, PartialEq, Eq, Clone, Copy)]
enum GateState {
    /// The handle has not been given yet.
    #[default]
    New,
    Open,
    /// The callback runs on this thread.
    Running(ThreadId),
    Shut,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, mut state: MutexGuard<'_, GateState>, to: GateState) {
        *state = to;
        self.changed.notify_all();
    }

    /// The program has the handle.
    pub(crate) fn open(&self) {
        self.set(self.state(), GateState::Open);
    }

    /// The program gives the handle up, or has not got one: waits for a running callback, unless
    /// that callback itself gives it up.
    pub(crate) fn shut(&self) {
        let mut state = self.state();
        let me = std::thread::current().id();
        while matches!(*state, GateState::Running(thread) if thread != me) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.set(state, GateState::Shut);
    }

    /// Runs the callback, if it may.
    pub(crate) fn run(&self, callback: impl FnOnce()) {
        let mut state = self.state();
        // A lock can block somebody from its grant on, which is before the handle is stored.
        while *state == GateState::New {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if *state == GateState::Shut {
            return;
        }
        self.set(state, GateState::Running(std::thread::current().id()));
        callback();
        let state = self.state();
        if *state != GateState::Shut {
            self.set(state, GateState::Open);
        }
    }
}

/// A callback's argument.
pub(crate) struct Argument(pub(crate) *mut c_void);

impl Argument {
    pub(crate) fn get(&self) -> *mut c_void {
        self.0
    }
}

// SAFETY: only carried here. A program that gives a callback has agreed to its use on other
// threads.
unsafe impl Send for Argument {}
// SAFETY: as above.
unsafe impl Sync for Argument {}
