//! How much of a client's work is under way at once.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The permitted work under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Amount {
    pub requests: usize,
    pub bytes: usize,
}

/// Bounds the work of one connection. A client that wants more waits until earlier work is done *and answered*, and its next
/// request is not read. So a client that does not read its replies occupies only this amount.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: Amount,
    taken: Mutex<Amount>,
    returned: Condvar,
}

impl Budget {
    pub fn new(limit: Amount) -> Arc<Budget> {
        let taken = Mutex::new(Amount { requests: 0, bytes: 0 });
        Arc::new(Budget { limit, taken, returned: Condvar::new() })
    }

    fn taken(&self) -> MutexGuard<'_, Amount> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for its turn. A request above the whole amount gets its turn when nothing else is under way.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Permit {
        let full = |taken: &mut Amount| {
            let beside_others = bytes > 0 && taken.bytes > 0;
            let too_much = taken.bytes.saturating_add(bytes) > self.limit.bytes;
            taken.requests >= self.limit.requests || beside_others && too_much
        };
        let mut taken =
            self.returned.wait_while(self.taken(), full).unwrap_or_else(PoisonError::into_inner);
        taken.requests += 1;
        taken.bytes += bytes;
        Permit { budget: Arc::clone(self), bytes }
    }
}

/// A part of a budget, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.budget.taken();
        taken.requests -= 1;
        taken.bytes -= self.bytes;
        drop(taken);
        // Only the connection's reader waits.
        self.budget.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_permit_is_given_when_another_is_returned() {
        let budget = Budget::new(Amount { requests: 2, bytes: 100 });
        let first = budget.take(60);
        // Too large beside the first, so it waits for that.
        let other = Arc::clone(&budget);
        let (sender, given) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            sender.send("asks").unwrap();
            let permit = other.take(1000);
            sender.send("has").unwrap();
            permit
        });
        let long = Duration::from_secs(60);
        assert_eq!(given.recv_timeout(long), Ok("asks"));
        assert!(given.try_recv().is_err());
        drop(first);
        assert_eq!(given.recv_timeout(long), Ok("has"));
        let _second = thread.join().unwrap();
        let _none = budget.take(0);
        assert_eq!(*budget.taken(), Amount { requests: 2, bytes: 1000 });
    }
}
