//! The common parts of all protocols: counted verbs, early letters, generations, and the detection of a stuck
//! lock.

mod backoff;
mod counts;
mod generations;
mod letters;
mod watch;

use core::cell::{Cell, RefCell};
use core::future::Future;

use hashbrown::HashMap;

pub use counts::Counts;
pub(crate) use watch::{Law, Watch};

use crate::fabric::{Address, Fabric, Nanos, Verb, VerbError};
use crate::letter::{Claimant, Kind, LockLetter};
use crate::options::Options;
use crate::protocol;
use crate::table::{Generation, LockId, Table};
use backoff::Backoff;

/// Why an acquisition or a release ends early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The generation is closed: somebody repaired the lock, or its counters have run out.
    Evicted,
    /// A verb failed.
    Failed(VerbError),
}

impl From<VerbError> for Stop {
    fn from(error: VerbError) -> Stop {
        Stop::Failed(error)
    }
}

/// One acquisition of one lock in one generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Spot {
    pub lock: LockId,
    pub generation: Generation,
    pub me: Claimant,
}

impl Spot {
    /// This acquisition's letter to another one of the lock, or to the home (nobody).
    pub fn letter(self, kind: Kind, to: Claimant, value: u64) -> LockLetter {
        LockLetter { kind, lock: self.lock, generation: self.generation, to, from: self.me, value }
    }
}

/// The part of a client that does not depend on its protocol.
pub(crate) struct Session<F> {
    pub fabric: F,
    pub table: Table,
    pub options: Options,
    pub law: Law,
    counts: Cell<Counts>,
    generations: RefCell<HashMap<LockId, Generation>>,
    /// The words of locks when they were last free, for protocols that have to guess them.
    guesses: RefCell<HashMap<LockId, u64>>,
    /// Acquisitions under way or held: letters for others are dropped.
    active: RefCell<Vec<Spot>>,
    inbox: RefCell<Vec<LockLetter>>,
    number: Cell<u8>,
    backoff: Cell<Backoff>,
    /// Locks whose fast path has just failed, and how often it is to be left out.
    pub crowded: RefCell<HashMap<LockId, u8>>,
    /// When this client stopped sharing a lock.
    shared: RefCell<HashMap<LockId, Nanos>>,
}

/// As many locks that were shared a moment ago are kept in mind.
const MOST_SHARED: usize = 4096;

impl<F: Fabric> Session<F> {
    pub fn new(fabric: F, table: Table, options: Options) -> Session<F> {
        Session {
            fabric,
            table,
            law: *protocol::law(options.protocol),
            options,
            counts: Cell::default(),
            generations: RefCell::default(),
            guesses: RefCell::default(),
            active: RefCell::default(),
            inbox: RefCell::default(),
            number: Cell::new(0),
            backoff: Cell::default(),
            crowded: RefCell::default(),
            shared: RefCell::default(),
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    pub fn word(&self, spot: Spot) -> Address {
        self.table.word(spot.lock, spot.generation)
    }

    /// Posts a verb, and counts it.
    pub fn post(&self, at: Address, verb: Verb) -> impl Future<Output = Result<u64, VerbError>> {
        self.count(|counts| match verb {
            Verb::Read => counts.read += 1,
            Verb::Write(_) => counts.write += 1,
            Verb::FetchAndAdd(_) => counts.faa += 1,
            Verb::CompareAndSwap { .. } | Verb::MaskedCompareAndSwap { .. } => counts.cas += 1,
        });
        let posted = self.fabric.post(at, verb);
        async move {
            let before = posted.await?;
            let is_cas =
                matches!(verb, Verb::CompareAndSwap { .. } | Verb::MaskedCompareAndSwap { .. });
            if is_cas && verb.apply(before).is_none() {
                self.count(|counts| counts.cas_failed += 1);
            }
            Ok(before)
        }
    }

    pub async fn read(&self, at: Address) -> Result<u64, Stop> {
        Ok(self.post(at, Verb::Read).await?)
    }

    pub async fn compare_and_swap(
        &self,
        at: Address,
        expected: u64,
        new: u64,
    ) -> Result<u64, Stop> {
        Ok(self.post(at, Verb::CompareAndSwap { expected, new }).await?)
    }

    pub async fn fetch_and_add(&self, at: Address, add: u64) -> Result<u64, Stop> {
        Ok(self.post(at, Verb::FetchAndAdd(add)).await?)
    }

    pub async fn pause(&self, nanos: Nanos) {
        self.fabric.sleep_until(self.fabric.now().saturating_add(nanos)).await;
    }

    /// This client stops sharing the lock. That is kept for `recently`.
    pub fn shares(&self, lock: LockId, recently: Nanos) {
        let now = self.fabric.now();
        let mut shared = self.shared.borrow_mut();
        if shared.len() >= MOST_SHARED {
            shared.retain(|_, at| now.saturating_sub(*at) < recently);
        }
        if shared.len() < MOST_SHARED {
            shared.insert(lock, now);
        }
    }

    /// Returns true if this client shared the lock less than `recently` ago.
    pub fn has_shared(&self, lock: LockId, recently: Nanos) -> bool {
        let now = self.fabric.now();
        self.shared.borrow().get(&lock).is_some_and(|at| now.saturating_sub(*at) < recently)
    }

    /// The expected word of a free lock.
    pub fn guess(&self, lock: LockId) -> u64 {
        self.guesses.borrow().get(&lock).copied().unwrap_or(0)
    }

    pub fn remember(&self, lock: LockId, free: u64) {
        let mut guesses = self.guesses.borrow_mut();
        match free {
            0 => guesses.remove(&lock),
            free => guesses.insert(lock, free),
        };
    }
}
