//! Letters to an event loop from other threads of its process.

use std::sync::{Arc, Mutex, PoisonError};

/// Where threads put what an event loop reads in its next turn.
#[derive(Debug)]
pub struct Mailbox<T> {
    letters: Arc<Mutex<Vec<T>>>,
    waker: Arc<mio::Waker>,
}

impl<T> Mailbox<T> {
    /// A mailbox of the event loop that this wakes.
    pub fn new(waker: Arc<mio::Waker>) -> Mailbox<T> {
        Mailbox { letters: Arc::default(), waker }
    }

    /// Puts a letter in, and wakes the event loop.
    pub fn post(&self, letter: T) {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        letters.push(letter);
        // The sender of the first letter wakes the loop for those behind it, too.
        let first = letters.len() == 1;
        drop(letters);
        if first {
            // Fails only if the event queue is gone, and its reader with it.
            let _ = self.waker.wake();
        }
    }

    /// Takes all letters out.
    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.letters.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Mailbox<T> {
        Mailbox { letters: self.letters.clone(), waker: self.waker.clone() }
    }
}
