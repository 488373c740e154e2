//! The number of writers that are granted while a reader waits, where a protocol promises a limit
//! ([`Options::most_writers_before_a_reader`]).
//!
//! A reader queues by a fetch-and-add, so the count starts when the home executes that. Only writers of the reader's own
//! generation count. Those of the next one are granted after a repair, which evicts the reader. Nothing is promised for
//! the time until the reader notices.

use std::collections::HashMap;

use lockify_onesided::{Generation, Mode, Options};

struct Waiting {
    lock: u64,
    /// How many writers had been granted the lock when it queued; none if it has not.
    since: Option<usize>,
}

/// Judges a run.
pub struct Overtaking {
    limit: Option<u32>,
    /// Of each lock: the generation of every exclusive grant.
    writers: HashMap<u64, Vec<Generation>>,
    /// Readers, by their node.
    waiting: HashMap<u32, Waiting>,
}

impl Overtaking {
    /// Nobody waits.
    pub fn new(options: &Options) -> Overtaking {
        let limit = options.most_writers_before_a_reader();
        Overtaking { limit, writers: HashMap::new(), waiting: HashMap::new() }
    }

    /// A client calls for a lock.
    pub fn calls(&mut self, node: u32, lock: u64, mode: Mode) {
        self.gone(node);
        if self.limit.is_some() && mode == Mode::Shared {
            self.waiting.insert(node, Waiting { lock, since: None });
        }
    }

    /// The home has executed a fetch-and-add of a client.
    pub fn adds(&mut self, node: u32) {
        if let Some(Waiting { lock, since }) = self.waiting.get_mut(&node) {
            *since = Some(self.writers.get(lock).map_or(0, Vec::len));
        }
    }

    /// A client is granted a lock.
    ///
    /// # Errors
    /// It has waited for more writers than are allowed.
    pub fn granted(
        &mut self,
        node: u32,
        lock: u64,
        mode: Mode,
        generation: Generation,
    ) -> Result<(), String> {
        let Some(limit) = self.limit else { return Ok(()) };
        let writers = self.writers.entry(lock).or_default();
        if mode == Mode::Exclusive {
            writers.push(generation);
            return Ok(());
        }
        let since = self.waiting.remove(&node).and_then(|waiting| waiting.since);
        let since = since.unwrap_or(writers.len());
        let before = writers[since..].iter().filter(|g| **g == generation).count();
        if before > limit as usize {
            return Err(format!(
                "client {node} waited to read lock {lock} while {before} writers were granted, of which there may be {limit}"
            ));
        }
        Ok(())
    }

    /// A client waits no more.
    pub fn gone(&mut self, node: u32) {
        self.waiting.remove(&node);
    }
}
