//! Which locks the benchmarks' transactions take (experiment 4), from the benchmarks' definitions.
//!
//! Not published with the experiment, and chosen here: 1 M subscribers (TATP) and 48 warehouses (TPC-C), uniform; items of
//! TPC-C are read without locks, as they never change; at most 16 locks.

use lockify_onesided::{LockId, Mode, Table};
use lockify_sim::{Nanos, Random};
use rand::RngExt as _;

/// A transaction's kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trace {
    /// TATP: get subscriber data.
    GetSubscriber,
    /// TATP: update location.
    UpdateLocation,
    /// TPC-C: delivery, of one district.
    Delivery,
    /// TPC-C: new order.
    NewOrder,
}

impl Trace {
    /// All of them.
    pub const ALL: [Trace; 4] =
        [Trace::GetSubscriber, Trace::UpdateLocation, Trace::Delivery, Trace::NewOrder];

    /// As the paper calls it.
    pub fn name(self) -> &'static str {
        match self {
            Trace::GetSubscriber => "TATP-GSD",
            Trace::UpdateLocation => "TATP-UL",
            Trace::Delivery => "TPC-C-DLY",
            Trace::NewOrder => "TPC-C-NEW",
        }
    }

    /// How long a transaction computes between its reads and its writes.
    pub fn think(self) -> Nanos {
        match self {
            Trace::GetSubscriber | Trace::UpdateLocation => 2_800,
            Trace::Delivery | Trace::NewOrder => 7_000,
        }
    }

    /// The locks of one transaction, in the order in which they are taken.
    pub fn draw(self, table: &Table, random: &mut Random) -> Vec<(LockId, Mode)> {
        let mut locks = Vec::new();
        let mut want = |kind: u64, row: u64, mode: Mode| {
            // Any hash that spreads: keys of all kinds share the table.
            let hash = (row << 8 | kind).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            locks.push((table.lock_of(hash), mode));
        };
        let (shared, exclusive) = (Mode::Shared, Mode::Exclusive);
        match self {
            Trace::GetSubscriber => want(0, random.random_range(0..SUBSCRIBERS), shared),
            Trace::UpdateLocation => {
                let subscriber = random.random_range(0..SUBSCRIBERS);
                // Found by its number, then changed.
                want(1, subscriber, shared);
                want(0, subscriber, exclusive);
            }
            Trace::NewOrder => {
                let warehouse = random.random_range(0..WAREHOUSES);
                let district = warehouse * 10 + random.random_range(0..10);
                want(2, warehouse, shared);
                want(3, district, exclusive);
                want(4, district * 3_000 + random.random_range(0..3_000), shared);
                for _ in 0..random.random_range(5..=13) {
                    // One line in a hundred is supplied by another warehouse.
                    let remote = random.random_bool(0.01);
                    let from = if remote { random.random_range(0..WAREHOUSES) } else { warehouse };
                    want(5, from * 100_000 + random.random_range(0..100_000), exclusive);
                }
            }
            Trace::Delivery => {
                let district = random.random_range(0..WAREHOUSES * 10);
                // The oldest order of the district, its lines and its customer.
                let order = district * 3_000 + random.random_range(0..900);
                want(6, district, exclusive);
                want(7, order, exclusive);
                want(4, district * 3_000 + random.random_range(0..3_000), exclusive);
                for line in 0..random.random_range(5..=13) {
                    want(8, order * 16 + line, exclusive);
                }
            }
        }
        // Ascending, each once, and exclusively if both are wanted.
        locks.sort_by_key(|(lock, mode)| (*lock, std::cmp::Reverse(*mode)));
        locks.dedup_by_key(|(lock, _)| *lock);
        locks
    }
}

const SUBSCRIBERS: u64 = 1_000_000;
const WAREHOUSES: u64 = 48;

#[cfg(test)]
mod tests {
    use super::*;
    use lockify_onesided::{Key, Peer, Region};
    use rand::SeedableRng as _;

    #[test]
    fn transactions_take_up_to_sixteen_locks_in_order() {
        let region = Region { home: Peer(1), key: Key(1), len: 1 << 40 };
        let table = Table::new(region, 10_000_000, 1).unwrap();
        let mut random = Random::seed_from_u64(1);
        for trace in Trace::ALL {
            for _ in 0..1_000 {
                let locks = trace.draw(&table, &mut random);
                assert!((1..=16).contains(&locks.len()), "{trace:?}");
                assert!(locks.windows(2).all(|two| two[0].0 < two[1].0), "{trace:?}");
            }
        }
    }
}
