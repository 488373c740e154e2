//! The place for the outcome of one operation, until its waiter takes it.

use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::sleeper::Sleeper;

enum State<T> {
    Pending(Waiter),
    Done(T),
    Taken,
}

enum Waiter {
    Nobody,
    Thread(Sleeper),
    Task(Waker),
}

/// Filled once, taken once.
pub(crate) struct Slot<T>(Mutex<State<T>>);

impl<T> Slot<T> {
    pub(crate) fn new() -> Slot<T> {
        Slot(Mutex::new(State::Pending(Waiter::Nobody)))
    }

    /// Leaves the outcome and wakes the waiter.
    pub(crate) fn fill(&self, outcome: T) {
        let before = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *state, State::Done(outcome))
        };
        match before {
            State::Pending(Waiter::Thread(sleeper)) => sleeper.wake(),
            State::Pending(Waiter::Task(task)) => task.wake(),
            State::Pending(Waiter::Nobody) | State::Done(_) | State::Taken => {}
        }
    }

    /// Takes the outcome if it is there.
    pub(crate) fn take(&self) -> Option<T> {
        self.take_or(|| Waiter::Nobody)
    }

    /// Takes the outcome; if it is not there, the sleeper is woken when it is.
    pub(crate) fn take_or_wake(&self, sleeper: &Sleeper) -> Option<T> {
        self.take_or(|| Waiter::Thread(sleeper.clone()))
    }

    /// Takes the outcome; if it is not there, the task is woken when it is.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<T> {
        match self.take_or(|| Waiter::Task(cx.waker().clone())) {
            Some(outcome) => Poll::Ready(outcome),
            None => Poll::Pending,
        }
    }

    fn take_or(&self, waiter: impl FnOnce() -> Waiter) -> Option<T> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *state {
            State::Pending(w) => {
                *w = waiter();
                None
            }
            _ => match std::mem::replace(&mut *state, State::Taken) {
                State::Done(outcome) => Some(outcome),
                State::Pending(_) | State::Taken => None,
            },
        }
    }
}
