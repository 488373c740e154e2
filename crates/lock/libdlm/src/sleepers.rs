//! Threads that sleep until their news has come: each is woken for its own sake only.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar};

/// The event that a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Concern {
    /// The operation's end that this waiter was promised.
    End(u64),
    /// The answer to this query.
    Answer(u64),
    /// That this lock's request is accepted or refused.
    Admission(u32),
    /// Anything that comes.
    Any,
}

/// The threads that sleep.
#[derive(Default)]
pub(crate) struct Sleepers {
    last: u64,
    sleeping: BTreeMap<u64, (Concern, Arc<Condvar>)>,
    by_concern: HashMap<Concern, Vec<u64>>,
}

impl Sleepers {
    /// Enters a thread that is about to sleep on the result.
    pub(crate) fn add(&mut self, concern: Concern) -> (u64, Arc<Condvar>) {
        self.last += 1;
        let bell = Arc::new(Condvar::new());
        self.sleeping.insert(self.last, (concern, bell.clone()));
        self.by_concern.entry(concern).or_default().push(self.last);
        (self.last, bell)
    }

    /// It is awake.
    pub(crate) fn remove(&mut self, number: u64) {
        let Some((concern, _)) = self.sleeping.remove(&number) else { return };
        if let Some(numbers) = self.by_concern.get_mut(&concern) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.by_concern.remove(&concern);
            }
        }
    }

    /// Something has come: wakes those who wait for it.
    pub(crate) fn wake(&self, concern: Concern) {
        let numbers = self.by_concern.get(&concern).into_iter().flatten();
        numbers
            .filter_map(|number| self.sleeping.get(number))
            .for_each(|(_, bell)| bell.notify_one());
    }

    /// Wakes one, for any reason of its wait.
    pub(crate) fn wake_one(&self) {
        if let Some((_, (_, bell))) = self.sleeping.last_key_value() {
            bell.notify_one();
        }
    }

    /// Wakes all.
    pub(crate) fn wake_all(&self) {
        self.sleeping.values().for_each(|(_, bell)| bell.notify_one());
    }
}
