//! Operations that a task waits for.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use lockify_client::{Error, Guard};
use pyo3::prelude::*;

use crate::errors::{LockifyError, failure};
use crate::lock::Lock;
use crate::owned::{Discard, Home, Owned};
use crate::wakeups::Wakeups;

type Future<T> = Pin<Box<dyn std::future::Future<Output = Result<T, Error>> + Send>>;

/// The result of an operation: a guard, if it made a lock.
type Outcome = Result<Option<Guard>, Error>;

enum State {
    Running(Future<Option<Guard>>),
    Ended(Outcome),
    Taken,
}

impl Discard for Mutex<State> {
    fn is_trivial(&self) -> bool {
        self.try_lock()
            .is_ok_and(|state| !matches!(&*state, State::Running(_) | State::Ended(Ok(Some(_)))))
    }
}

/// An operation under way, or its outcome until somebody takes it. Dropped before, it is taken
/// back: a request is cancelled, a lock that has been granted is released.
#[pyclass(frozen, module = "lockify._lockify")]
pub struct Operation(Owned<Mutex<State>>);

impl Operation {
    pub fn new(
        future: impl std::future::Future<Output = Result<Option<Guard>, Error>> + Send + 'static,
        home: &Home,
    ) -> Operation {
        Operation(Owned::new(Mutex::new(State::Running(Box::pin(future))), home))
    }
}

#[pymethods]
impl Operation {
    /// Returns true if it has ended; if not, `wakeups` has `id` when it may have.
    fn poll(&self, wakeups: &Wakeups, id: u64) -> PyResult<bool> {
        let mut state = self.0.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Running(future) = &mut *state {
            let waker = wakeups.waker(id);
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Pending => return Ok(false),
                Poll::Ready(outcome) => *state = State::Ended(outcome),
            }
        }
        Ok(true)
    }

    /// Takes the outcome.
    fn result(&self) -> PyResult<Option<Lock>> {
        let mut state = self.0.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Taken) {
            State::Ended(outcome) => {
                let guard = outcome.map_err(failure)?;
                Ok(guard.map(|guard| Lock::new(guard, self.0.home())))
            }
            other => {
                *state = other;
                Err(LockifyError::new_err(
                    "the operation has no outcome to take: it was awaited twice",
                ))
            }
        }
    }

    /// Takes it back, unless the outcome has been taken.
    fn drop(&self) {
        let Ok(state) = self.0.get() else { return };
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = std::mem::replace(&mut *state, State::Taken);
        drop(Owned::new(Mutex::new(state), self.0.home()));
    }
}
