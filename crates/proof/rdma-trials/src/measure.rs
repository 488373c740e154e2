//! Loads on the simulated fabric, and their costs.

use std::cell::RefCell;
use std::rc::Rc;

use lockify_onesided::port::{Port, SharedMemory};
use lockify_onesided::{
    Capabilities, Client, Counts, Fabric as _, LockError, LockId, Mode, Options, Peer, Region,
    RegionError, Table, TableError, serve,
};
use lockify_sim::{MILLISECOND, Nanos, NodeId, Random, SECOND};
use rand::SeedableRng as _;
use rand::{RngExt as _, distr::Distribution as _};
use rand_distr::Zipf;

use crate::host::{Notes, Setting, Task, fabric};
use crate::profile::{CLOCK_ERROR, Profile};
use crate::smallbank::{self, Guards, Store};
use crate::traces::Trace;

/// Which locks clients want.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Load {
    /// One lock at a time of this many, by a Zipf distribution with theta 0.99 or uniformly. `shared` is the share of
    /// shared locks.
    Micro {
        /// The number of locks.
        locks: u64,
        /// Zipf or uniform.
        skewed: bool,
        /// Share of shared locks.
        shared: f64,
    },
    /// Transactions of a benchmark.
    Trace(Trace),
    /// SmallBank on a key-value store.
    SmallBank(Guards),
}

/// A client's accesses under a lock of [`Load::Micro`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Section {
    /// Nothing, as published.
    Empty,
    /// READs the protected data; if exclusive, then WRITEs it.
    Touch,
}

/// A measurement.
#[derive(Clone, Debug)]
pub struct Case {
    /// The costs of verbs and messages.
    pub profile: Profile,
    /// The protocol and its settings.
    pub options: Options,
    /// The number of clients.
    pub clients: usize,
    /// The locks that they want.
    pub load: Load,
    /// Their accesses under a lock.
    pub section: Section,
    /// Nothing is counted before.
    pub warm_up: Nanos,
    /// How long is counted.
    pub length: Nanos,
    /// Probability that a holder forgets its lock.
    pub dies: f64,
    /// True if the fabric has masked operations.
    pub masked: bool,
}

/// Locks of a table that is not swept: ShiftLock's 10 M.
pub const LOCKS: u64 = 10_000_000;

impl Case {
    /// 240 clients on 10 M locks.
    pub fn new(profile: Profile, options: Options, load: Load) -> Case {
        Case {
            profile,
            options,
            clients: 240,
            load,
            section: Section::Empty,
            warm_up: 2 * MILLISECOND,
            length: 8 * MILLISECOND,
            dies: 0.0,
            masked: true,
        }
    }
}

/// The counts of a measurement.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Locks taken and released, or transactions, per second.
    pub per_s: f64,
    /// Time from each call for a lock to its grant, or of each transaction up to its releases, sorted.
    pub latencies: Vec<Nanos>,
    /// Of all locks.
    pub all: Verbs,
    /// Of the lock that most want.
    pub hottest: Verbs,
    /// Share of the tries for a RedLock that failed.
    pub failed_tries: f64,
}

/// The cost of locks in verbs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verbs {
    /// The verbs that the clients posted.
    pub counts: Counts,
    /// Locks taken and released.
    pub pairs: u64,
}

impl Verbs {
    /// A count for each lock taken and released.
    pub fn each(&self, count: u64) -> f64 {
        count as f64 / self.pairs.max(1) as f64
    }

    fn add(&mut self, pairs: u64, counts: Counts) {
        self.pairs += pairs;
        self.counts += counts;
    }
}

impl Measured {
    /// A quantile of the latencies in microseconds.
    pub fn latency_us(&self, quantile: f64) -> f64 {
        let sorted: Vec<f64> = self.latencies.iter().map(|nanos| *nanos as f64 / 1e3).collect();
        lockify_report::quantile(&sorted, quantile).unwrap_or(0.0)
    }
}

/// Why a measurement came to nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MeasureError {
    /// The table cannot be made.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Its memory cannot be registered.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A client failed.
    #[error("a client failed: {0}")]
    Lock(#[from] LockError),
}

#[derive(Default)]
struct Tally {
    done: u64,
    latencies: Vec<Nanos>,
    all: Verbs,
    hottest: Verbs,
    failed: Option<LockError>,
}

/// Runs a load.
///
/// # Errors
/// The table is impossible, or a client failed.
pub fn measure(case: &Case, seed: u64) -> Result<Measured, MeasureError> {
    let memory = SharedMemory::default();
    let locks = match case.load {
        Load::Micro { locks, .. } => locks,
        Load::Trace(_) => LOCKS,
        Load::SmallBank(_) => smallbank::LOCKS,
    };
    let slots = 65_536;
    let bytes = Table::bytes(locks, slots).unwrap_or(!7);
    let region = memory.borrow_mut().register(Peer(1), bytes)?;
    let table = Table::new(region, locks, slots)?;
    let items = memory.borrow_mut().register(Peer(1), 8 * 16)?;
    let tally: Rc<RefCell<Tally>> = Rc::default();
    let setting = Setting {
        profile: Rc::new(case.profile.clone()),
        memory,
        stalls: None,
        capabilities: Capabilities { masked: case.masked, clock_error: Some(CLOCK_ERROR) },
        notes_adds: false,
    };
    let store: Rc<Store> = Rc::default();
    let shared = (Rc::new(case.clone()), tally.clone(), store.clone());
    let make = move |node: NodeId, port: Port, _: Notes| -> Task {
        let (case, tally, store) = shared.clone();
        if node == NodeId(0) {
            return Box::pin(async move {
                // The home's own verbs are local, and cannot fail.
                let _ = serve(port, table, case.options).await;
            });
        }
        let seed = seed.wrapping_add(u64::from(node.0) << 40);
        Box::pin(async move {
            let load =
                Loader { port, table, items, store, case, random: Random::seed_from_u64(seed) };
            if let Err(error) = load.run(&tally).await {
                tally.borrow_mut().failed.get_or_insert(error);
            }
        })
    };
    let mut sim = fabric(seed, setting, case.clients, 0, Box::new(make));
    let end = case.warm_up + case.length;
    while sim.next_report(end).is_ok() {}
    let mut tally = tally.borrow_mut();
    if let Some(error) = tally.failed.take() {
        return Err(error.into());
    }
    let mut latencies = std::mem::take(&mut tally.latencies);
    latencies.sort_unstable();
    let per_s = tally.done as f64 * SECOND as f64 / case.length as f64;
    let (all, hottest) = (tally.all, tally.hottest);
    Ok(Measured { per_s, latencies, all, hottest, failed_tries: store.failed_share() })
}

/// A client.
struct Loader {
    port: Port,
    table: Table,
    items: Region,
    store: Rc<Store>,
    case: Rc<Case>,
    random: Random,
}

/// A step that a client has just finished.
struct Done {
    pairs: u64,
    latency: Nanos,
    hottest: bool,
}

impl Loader {
    async fn run(mut self, tally: &RefCell<Tally>) -> Result<(), LockError> {
        let case = self.case.clone();
        let mut client = Client::new(self.port.clone(), self.table, case.options)?;
        let zipf = match case.load {
            Load::Micro { locks, skewed: true, .. } => Zipf::new(locks as f64, 0.99).ok(),
            _ => None,
        };
        // Clients do not begin all at once.
        self.port.sleep_until(self.random.random_range(0..case.warm_up.max(1))).await;
        loop {
            let before = client.counts();
            let done = match case.load {
                Load::Micro { locks, shared, .. } => {
                    let lock = match &zipf {
                        // Drawn from 1, which most want.
                        Some(zipf) => (zipf.sample(&mut self.random) as u64 - 1) % locks,
                        None => self.random.random_range(0..locks),
                    };
                    let shared = self.random.random_bool(shared);
                    let mode = if shared { Mode::Shared } else { Mode::Exclusive };
                    match self.pair(&mut client, LockId(lock), mode).await? {
                        Some(latency) => Done { pairs: 1, latency, hottest: lock == 0 },
                        None => continue,
                    }
                }
                Load::Trace(trace) => self.transaction(&mut client, trace).await?,
                Load::SmallBank(guards) => {
                    let called = self.port.now();
                    let (store, random) = (self.store.clone(), &mut self.random);
                    let pairs =
                        smallbank::transaction(&self.port, &mut client, &store, guards, random)
                            .await?;
                    Done { pairs, latency: self.port.now() - called, hottest: false }
                }
            };
            // A lock that ends now may have begun before the measurement. Otherwise long waits
            // would not count.
            if self.port.now() >= case.warm_up {
                let mut tally = tally.borrow_mut();
                let counts = client.counts().since(&before);
                tally.done += 1;
                tally.latencies.push(done.latency);
                tally.all.add(done.pairs, counts);
                if done.hottest {
                    tally.hottest.add(done.pairs, counts);
                }
            }
        }
    }

    /// Takes one lock and releases it: how long it took to get it; nothing if the client forgot its lock.
    async fn pair(
        &mut self,
        client: &mut Client<Port>,
        lock: LockId,
        mode: Mode,
    ) -> Result<Option<Nanos>, LockError> {
        let called = self.port.now();
        let guard = client.lock(lock, mode).await?;
        let latency = self.port.now() - called;
        if self.case.dies > 0.0 && self.random.random_bool(self.case.dies) {
            client.abandon(guard);
            return Ok(None);
        }
        if self.case.section == Section::Touch {
            self.touch(1, usize::from(mode == Mode::Exclusive)).await?;
        }
        client.unlock(guard).await?;
        Ok(Some(latency))
    }

    /// READs and WRITEs, one after the other, as in ShiftLock's artifact. Where does not matter, as they wait for the NIC
    /// only.
    async fn touch(&self, reads: usize, writes: usize) -> Result<(), LockError> {
        let item = |n: usize| self.items.word(8 * n as u64);
        for n in 0..reads {
            self.port.read(item(n)).await?;
        }
        for n in 0..writes {
            self.port.write(item(n), 1).await?;
        }
        Ok(())
    }

    /// Locks, reads each item, thinks, writes the exclusively locked items, and releases.
    async fn transaction(
        &mut self,
        client: &mut Client<Port>,
        trace: Trace,
    ) -> Result<Done, LockError> {
        let called = self.port.now();
        let locks = trace.draw(&self.table, &mut self.random);
        let mut guards = Vec::new();
        for (lock, mode) in &locks {
            guards.push(client.lock(*lock, *mode).await?);
        }
        self.touch(locks.len(), 0).await?;
        self.port.sleep_until(self.port.now() + trace.think()).await;
        let writers = locks.iter().filter(|(_, mode)| *mode == Mode::Exclusive).count();
        self.touch(0, writers).await?;
        let latency = self.port.now() - called;
        for guard in guards {
            client.unlock(guard).await?;
        }
        Ok(Done { pairs: locks.len() as u64, latency, hottest: false })
    }
}
