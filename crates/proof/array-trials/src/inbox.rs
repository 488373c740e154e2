//! A processor that handles one message after the other.

use std::collections::VecDeque;

use lockify_sim::Nanos;

/// Arrivals that wait for a processor, in order, each with the time when it is handled.
#[derive(Debug)]
pub struct Inbox<T> {
    waiting: VecDeque<(Nanos, T)>,
    /// When the last of them is handled.
    free: Nanos,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Inbox { waiting: VecDeque::new(), free: 0 }
    }
}

impl<T> Inbox<T> {
    /// Something arrives that takes so long. Returns it if nothing is before it and it takes no time.
    pub fn arrive(&mut self, now: Nanos, takes: Nanos, item: T) -> Option<T> {
        self.free = self.free.max(now) + takes;
        if self.waiting.is_empty() && self.free <= now {
            return Some(item);
        }
        self.waiting.push_back((self.free, item));
        None
    }

    /// When the next is handled.
    pub fn next(&self) -> Option<Nanos> {
        self.waiting.front().map(|(at, _)| *at)
    }

    /// The next, if its time has come.
    pub fn take(&mut self, now: Nanos) -> Option<T> {
        self.next().filter(|at| *at <= now)?;
        self.waiting.pop_front().map(|(_, item)| item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_waits_for_the_other_and_nothing_is_overtaken() {
        let mut inbox = Inbox::default();
        assert_eq!(inbox.arrive(5, 0, "at once"), Some("at once"));
        assert_eq!(inbox.arrive(10, 750, "first"), None);
        assert_eq!(inbox.arrive(20, 750, "second"), None);
        assert_eq!(inbox.arrive(30, 0, "third"), None);
        assert_eq!((inbox.next(), inbox.take(759)), (Some(760), None));
        assert_eq!(inbox.take(760), Some("first"));
        assert_eq!(inbox.next(), Some(1510));
        assert_eq!((inbox.take(1510), inbox.take(1510)), (Some("second"), Some("third")));
        assert_eq!(inbox.arrive(1600, 750, "after a pause"), None);
        assert_eq!(inbox.next(), Some(2350));
    }
}
