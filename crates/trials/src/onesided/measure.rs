//! Loads on the simulated fabric, and what they cost.

use std::cell::RefCell;
use std::rc::Rc;

use lockify_onesided::port::{Port, SharedMemory};
use lockify_onesided::{
    Capabilities, Client, Counts, Fabric as _, LockError, LockId, Mode, Options, Peer, Region,
    RegionError, Table, TableError, serve,
};
use lockify_sim::{Nanos, NodeId, Random, SECOND};
use rand::SeedableRng as _;
use rand::{RngExt as _, distr::Distribution as _};
use rand_distr::Zipf;

use crate::onesided::host::{Notes, Setting, Task, fabric};
use crate::onesided::profile::{CLOCK_ERROR, Profile};
use crate::onesided::traces::Trace;

/// Which locks clients want.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Load {
    /// One lock at a time of so many, by a Zipf distribution with theta 0.99 or uniformly; this share is shared.
    Micro {
        /// Locks.
        locks: u64,
        /// Zipf or uniform.
        skewed: bool,
        /// Share of shared locks.
        shared: f64,
    },
    /// Transactions of a benchmark.
    Trace(Trace),
}

/// A measurement.
#[derive(Clone, Debug)]
pub struct Case {
    /// What things cost.
    pub profile: Profile,
    /// The protocol and its settings.
    pub options: Options,
    /// Clients.
    pub clients: usize,
    /// What they want.
    pub load: Load,
    /// Nothing is counted before.
    pub warm_up: Nanos,
    /// How long is counted.
    pub length: Nanos,
    /// Probability that a holder forgets its lock.
    pub dies: f64,
    /// Whether the fabric has masked operations.
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
            warm_up: SECOND / 2_000,
            length: SECOND / 250,
            dies: 0.0,
            masked: true,
        }
    }
}

/// What was counted.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Locks taken and released, or transactions, per second.
    pub per_s: f64,
    /// Time from each call for a lock to its grant, or of each transaction, sorted.
    pub latencies: Vec<Nanos>,
    /// What the clients posted.
    pub counts: Counts,
    /// Locks taken and released.
    pub pairs: u64,
}

impl Measured {
    /// A quantile of the latencies in microseconds.
    pub fn latency_us(&self, quantile: f64) -> f64 {
        let sorted: Vec<f64> = self.latencies.iter().map(|nanos| *nanos as f64 / 1e3).collect();
        lockify_report::quantile(&sorted, quantile).unwrap_or(0.0)
    }

    /// A count for each lock taken and released.
    pub fn each(&self, count: u64) -> f64 {
        count as f64 / self.pairs.max(1) as f64
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
    pairs: u64,
    latencies: Vec<Nanos>,
    counts: Counts,
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
    };
    let shared = (Rc::new(case.clone()), tally.clone());
    let make = move |node: NodeId, port: Port, _: Notes| -> Task {
        let (case, tally) = shared.clone();
        if node == NodeId(0) {
            return Box::pin(async move {
                // The home's own verbs are local, and cannot fail.
                let _ = serve(port, table, case.options).await;
            });
        }
        let seed = seed.wrapping_add(u64::from(node.0) << 40);
        Box::pin(async move {
            if let Err(error) = client(port, (table, items), &case, &tally, seed).await {
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
    Ok(Measured { per_s, latencies, counts: tally.counts, pairs: tally.pairs })
}

async fn client(
    port: Port,
    (table, items): (Table, Region),
    case: &Case,
    tally: &RefCell<Tally>,
    seed: u64,
) -> Result<(), LockError> {
    let mut random = Random::seed_from_u64(seed);
    let mut client = Client::new(port.clone(), table, case.options)?;
    let zipf = match case.load {
        Load::Micro { locks, skewed: true, .. } => Zipf::new(locks as f64, 0.99).ok(),
        _ => None,
    };
    // Clients do not begin all at once.
    port.sleep_until(random.random_range(0..case.warm_up.max(1))).await;
    loop {
        let before = client.counts();
        let counts_now = port.now() >= case.warm_up;
        let (pairs, latency) = match case.load {
            Load::Micro { locks, shared, .. } => {
                let lock = match &zipf {
                    // Drawn from 1; ranks are spread over the table.
                    Some(zipf) => (zipf.sample(&mut random) as u64 - 1) % locks,
                    None => random.random_range(0..locks),
                };
                let mode = if random.random_bool(shared) { Mode::Shared } else { Mode::Exclusive };
                let called = port.now();
                let guard = client.lock(LockId(lock), mode).await?;
                let latency = port.now() - called;
                if case.dies > 0.0 && random.random_bool(case.dies) {
                    client.abandon(guard);
                    continue;
                }
                client.unlock(guard).await?;
                (1, latency)
            }
            Load::Trace(trace) => {
                let called = port.now();
                let pairs =
                    transaction(&port, &mut client, (table, items), trace, &mut random).await?;
                (pairs, port.now() - called)
            }
        };
        if counts_now {
            let mut tally = tally.borrow_mut();
            tally.done += 1;
            tally.pairs += pairs;
            tally.latencies.push(latency);
            tally.counts += client.counts().since(&before);
        }
    }
}

/// Locks, reads each item, thinks, writes what is locked exclusively, and releases.
async fn transaction(
    port: &Port,
    client: &mut Client<Port>,
    (table, items): (Table, Region),
    trace: Trace,
    random: &mut Random,
) -> Result<u64, LockError> {
    let locks = trace.draw(&table, random);
    // Where an item is does not matter, as reads and writes wait for the NIC only.
    let item = |n: usize| items.word(8 * n as u64);
    let mut guards = Vec::new();
    for (lock, mode) in &locks {
        guards.push(client.lock(*lock, *mode).await?);
    }
    let reads: Vec<_> = (0..locks.len()).map(|n| port.read(item(n))).collect();
    for read in reads {
        read.await?;
    }
    port.sleep_until(port.now() + trace.think()).await;
    let writers = locks.iter().filter(|(_, mode)| *mode == Mode::Exclusive).count();
    let writes: Vec<_> = (0..writers).map(|n| port.write(item(n), 1)).collect();
    for write in writes {
        write.await?;
    }
    for guard in guards {
        client.unlock(guard).await?;
    }
    Ok(locks.len() as u64)
}
