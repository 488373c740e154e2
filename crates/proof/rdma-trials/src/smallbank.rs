//! SmallBank on a key-value store, with locks beside it (experiment 5).
//!
//! As in ShiftLock's artifact, the store is one Redis, which executes one command after the other. Each of 1 M accounts
//! has a savings and a checking balance under a lock each. The balance transaction takes no lock. The locks are those of
//! a table in remote memory, or RedLock with one instance, the same store. With RedLock, every try and every release is a
//! connection of its own, and a hold lasts at most 10 ms. A try that finds the lock taken, or leaves nothing of this
//! time, is undone. It is repeated after up to 200 ms.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use lockify_onesided::port::Port;
use lockify_onesided::{Client, Fabric as _, LockError, LockId, Mode};
use lockify_sim::{MICROSECOND, MILLISECOND, Nanos, Random};
use rand::RngExt as _;

/// Where the locks are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guards {
    /// In the store, by RedLock.
    RedLock,
    /// In remote memory.
    Table,
}

const ACCOUNTS: u64 = 1_000_000;

/// Locks of all accounts.
pub const LOCKS: u64 = 2 * ACCOUNTS;

/// A round trip by TCP. Assumed.
const TRIP: Nanos = 50 * MICROSECOND;

/// **Calibration**: the store's time for a command, from ShiftLock's published 36.55 K transactions per second of 6.5
/// commands each.
const COMMAND: Nanos = 4_200;

/// **Calibration**: the store's time to accept, set up and close a connection. It follows from RedLock's published 5.56 K
/// transactions per second of 6.5 commands and 1.25 locks each.
const CONNECTION: Nanos = 57 * MICROSECOND;

/// How long a RedLock holds.
const LIFE: Nanos = 10 * MILLISECOND;

/// RedLock's deduction for different clocks: 1 % and 2 ms.
const DRIFT: Nanos = LIFE / 100 + 2 * MILLISECOND;

/// The longest pause after a failed try.
const PAUSE: Nanos = 200 * MILLISECOND;

/// The store.
#[derive(Default)]
pub struct Store {
    /// The time when all sent commands are done. Commands arrive in the order of sending, because all take equally long.
    free: Cell<Nanos>,
    /// The holder of each lock, and the end of its hold.
    held: RefCell<HashMap<LockId, (u64, Nanos)>>,
    /// Tries for a RedLock, and those that failed.
    tries: Cell<(u64, u64)>,
}

impl Store {
    /// Sends something that keeps the store busy for so long, and waits for the reply.
    async fn call<T>(
        &self,
        port: &Port,
        busy: Nanos,
        execute: impl FnOnce(&Store, Nanos) -> T,
    ) -> T {
        let done = self.free.get().max(port.now() + TRIP / 2) + busy;
        self.free.set(done);
        let reply = execute(self, done);
        port.sleep_until(done + TRIP / 2).await;
        reply
    }

    async fn commands(&self, port: &Port, count: u64) {
        for _ in 0..count {
            self.call(port, COMMAND, |_, _| ()).await;
        }
    }

    /// A command over a new connection.
    async fn connected<T>(&self, port: &Port, execute: impl FnOnce(&Store, Nanos) -> T) -> T {
        self.call(port, CONNECTION, |_, _| ()).await;
        self.call(port, COMMAND, execute).await
    }

    async fn lock(&self, port: &Port, lock: LockId, random: &mut Random) -> u64 {
        let me = random.random();
        loop {
            let began = port.now();
            let took = |store: &Store, now| {
                let mut held = store.held.borrow_mut();
                let free = held.get(&lock).is_none_or(|(_, until)| *until <= now);
                if free {
                    held.insert(lock, (me, now + LIFE));
                }
                free
            };
            let is_mine = self.connected(port, took).await;
            let in_time = port.now() - began + DRIFT < LIFE;
            let (tries, failed) = self.tries.get();
            self.tries.set((tries + 1, failed + u64::from(!is_mine || !in_time)));
            if is_mine && in_time {
                return me;
            }
            self.unlock(port, lock, me).await;
            port.sleep_until(port.now() + random.random_range(0..PAUSE)).await;
        }
    }

    async fn unlock(&self, port: &Port, lock: LockId, me: u64) {
        let drop_mine = |store: &Store, now| {
            let mut held = store.held.borrow_mut();
            if held.get(&lock).is_some_and(|(who, until)| *who == me || *until <= now) {
                held.remove(&lock);
            }
        };
        self.connected(port, drop_mine).await;
    }

    /// Share of the tries for a RedLock that failed.
    pub fn failed_share(&self) -> f64 {
        let (tries, failed) = self.tries.get();
        failed as f64 / tries.max(1) as f64
    }
}

/// The steps of a transaction.
struct Plan {
    /// The locks, in ascending order.
    locks: Vec<LockId>,
    /// Commands to find the accounts by name.
    finds: u64,
    /// Commands under the locks.
    works: u64,
}

impl Plan {
    fn draw(random: &mut Random) -> Plan {
        let first = random.random_range(0..ACCOUNTS);
        let second = (first + random.random_range(1..ACCOUNTS)) % ACCOUNTS;
        let savings = LockId;
        let checking = |account| LockId(ACCOUNTS + account);
        // Names are looked up one by one between WATCH and UNWATCH; then two commands for each balance that changes.
        let (mut locks, finds, works) = match random.random_range(0..100) {
            // Amalgamate: all that is on one checking account to another's savings.
            0..15 => (vec![checking(first), savings(second)], 4, 4),
            // Balance: both, between WATCH and UNWATCH.
            15..30 => (vec![], 3, 4),
            // Deposit.
            30..45 => (vec![checking(first)], 3, 2),
            // Payment.
            45..70 => (vec![checking(first), checking(second)], 4, 4),
            // Savings.
            70..85 => (vec![savings(first)], 3, 2),
            // Write check.
            _ => (vec![checking(first)], 3, 2),
        };
        locks.sort_unstable();
        Plan { locks, finds, works }
    }
}

/// Runs a transaction; how many locks it took.
///
/// # Errors
/// Those of the locks in remote memory.
pub async fn transaction(
    port: &Port,
    client: &mut Client<Port>,
    store: &Store,
    guards: Guards,
    random: &mut Random,
) -> Result<u64, LockError> {
    let plan = Plan::draw(random);
    store.commands(port, plan.finds).await;
    match guards {
        Guards::RedLock => {
            let mut held = Vec::new();
            for lock in &plan.locks {
                held.push((*lock, store.lock(port, *lock, random).await));
            }
            store.commands(port, plan.works).await;
            for (lock, me) in held {
                store.unlock(port, lock, me).await;
            }
        }
        Guards::Table => {
            let mut held = Vec::new();
            for lock in &plan.locks {
                held.push(client.lock(*lock, Mode::Exclusive).await?);
            }
            store.commands(port, plan.works).await;
            for guard in held {
                client.unlock(guard).await?;
            }
        }
    }
    Ok(plan.locks.len() as u64)
}
