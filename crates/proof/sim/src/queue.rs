//! The event queue: ordered by time, then by insertion.

use crate::Nanos;
use slab::Slab;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The element that the heap orders. Events stay in place in the slab, because moving them in every sift would
/// cost more than the comparison; `ticket` is the insertion number, and shows if the slot still means this entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at: Nanos,
    ticket: u64,
    slot: usize,
}

#[derive(Debug)]
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Reverse<Entry>>,
    slots: Slab<(u64, E)>,
    next_ticket: u64,
}

impl<E> Queue<E> {
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), slots: Slab::new(), next_ticket: 0 }
    }

    /// Number of events that wait.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Adds an event and returns its slot, which is its own until it is popped or removed.
    pub fn push(&mut self, at: Nanos, event: E) -> usize {
        let ticket = self.take_ticket();
        let slot = self.slots.insert((ticket, event));
        self.heap.push(Reverse(Entry { at, ticket, slot }));
        slot
    }

    /// Time of the next event.
    pub fn next_time(&mut self) -> Option<Nanos> {
        while let Some(Reverse(entry)) = self.heap.peek() {
            if is_current(&self.slots, entry) {
                return Some(entry.at);
            }
            self.heap.pop();
        }
        None
    }

    pub fn pop(&mut self) -> Option<(Nanos, E)> {
        self.next_time()?;
        let Reverse(entry) = self.heap.pop()?;
        let (_, event) = self.slots.try_remove(entry.slot)?;
        Some((entry.at, event))
    }

    /// Removes the event in `slot` if there is one and `is_it` recognises it.
    pub fn remove_if(&mut self, slot: usize, is_it: impl FnOnce(&E) -> bool) -> bool {
        let found = self.slots.get(slot).is_some_and(|(_, event)| is_it(event));
        if found {
            self.slots.remove(slot);
            self.compact();
        }
        found
    }

    /// Drops the entries of removed events once they are most of the heap: a machine that sets and cancels a long
    /// time-out per request would fill it otherwise. The order is total, so this does not change it.
    fn compact(&mut self) {
        if self.heap.len() > 1024 && self.heap.len() > 4 * self.slots.len() {
            let slots = &self.slots;
            self.heap.retain(|Reverse(entry)| is_current(slots, entry));
        }
    }

    /// Moves every event for which `new_time` returns a time; their order among each other stays as inserted.
    ///
    /// Visits all events: meant for rare changes such as a clock step.
    pub fn reschedule(&mut self, new_time: impl Fn(&E) -> Option<Nanos>) {
        let mut moved: Vec<_> = self
            .slots
            .iter()
            .filter_map(|(slot, (ticket, event))| new_time(event).map(|at| (*ticket, slot, at)))
            .collect();
        moved.sort_unstable();
        for (_, slot, at) in moved {
            let ticket = self.take_ticket();
            self.slots[slot].0 = ticket;
            self.heap.push(Reverse(Entry { at, ticket, slot }));
        }
    }

    fn take_ticket(&mut self) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        ticket
    }
}

/// Returns true if the entry's event is still there, at the entry's time.
fn is_current<E>(slots: &Slab<(u64, E)>, entry: &Entry) -> bool {
    slots.get(entry.slot).is_some_and(|(ticket, _)| *ticket == entry.ticket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &mut Queue<u32>) -> Vec<(Nanos, u32)> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn orders_by_time_then_insertion() {
        let mut queue = Queue::new();
        for (at, event) in [(5, 0), (3, 1), (5, 2), (3, 3), (4, 4)] {
            queue.push(at, event);
        }
        assert_eq!(drain(&mut queue), [(3, 1), (3, 3), (4, 4), (5, 0), (5, 2)]);
    }

    #[test]
    fn removed_events_do_not_come_and_slots_are_reused_safely() {
        let mut queue = Queue::new();
        let first = queue.push(5, 1);
        assert!(!queue.remove_if(first, |event| *event == 9));
        assert!(queue.remove_if(first, |event| *event == 1));
        let second = queue.push(7, 2);
        assert_eq!(first, second, "the slab hands the slot out again");
        assert_eq!(queue.next_time(), Some(7));
        assert_eq!(drain(&mut queue), [(7, 2)]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn reschedule_moves_only_what_it_is_told() {
        let mut queue = Queue::new();
        for (at, event) in [(1, 10), (2, 20), (3, 11), (4, 12)] {
            queue.push(at, event);
        }
        queue.reschedule(|event| (*event < 20).then_some(2));
        assert_eq!(drain(&mut queue), [(2, 20), (2, 10), (2, 11), (2, 12)]);
    }
    #[test]
    fn removed_events_do_not_pile_up() {
        let mut queue = Queue::new();
        queue.push(7, 7);
        for i in 0..100_000 {
            let slot = queue.push(1_000_000, i);
            assert!(queue.remove_if(slot, |_| true));
        }
        assert!(queue.heap.len() < 2_000);
        assert_eq!(drain(&mut queue), [(7, 7)]);
    }
}
