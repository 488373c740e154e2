//! The locks of the benchmarks' transactions (experiment 4), from the benchmarks' definitions.
//!
//! The artifact replays recorded traces, which are not available. The choices here are 1 M subscribers (TATP) and 48
//! warehouses (TPC-C), uniform. Items of TPC-C never change, and are read without locks. A transaction takes at most 16
//! locks.

use lockify_onesided::{LockId, Mode, Table};
use lockify_sim::{Nanos, Random};
use rand::RngExt as _;

/// A load: a benchmark's mix of transactions, or only one kind of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trace {
    /// TATP: short transactions of a mobile network's subscriber data.
    Tatp,
    /// TPC-C: orders of a wholesaler's warehouses.
    TpcC,
    /// TATP: get subscriber data.
    GetSubscriber,
    /// TATP: update location.
    UpdateLocation,
    /// TPC-C: delivery, of one district.
    Delivery,
    /// TPC-C: new order.
    NewOrder,
}

/// A transaction of a benchmark.
#[derive(Clone, Copy)]
enum Kind {
    GetSubscriber,
    GetDestination,
    GetAccess,
    UpdateSubscriber,
    UpdateLocation,
    InsertForwarding,
    DeleteForwarding,
    NewOrder,
    Payment,
    OrderStatus,
    Delivery,
    StockLevel,
}

/// TATP's mix, in per cent.
const TATP: [(Kind, u32); 7] = [
    (Kind::GetSubscriber, 35),
    (Kind::GetDestination, 10),
    (Kind::GetAccess, 35),
    (Kind::UpdateSubscriber, 2),
    (Kind::UpdateLocation, 14),
    (Kind::InsertForwarding, 2),
    (Kind::DeleteForwarding, 2),
];

/// TPC-C's, with the least shares that it asks for.
const TPC_C: [(Kind, u32); 5] = [
    (Kind::NewOrder, 45),
    (Kind::Payment, 43),
    (Kind::OrderStatus, 4),
    (Kind::Delivery, 4),
    (Kind::StockLevel, 4),
];

fn pick(mix: &[(Kind, u32)], random: &mut Random) -> Kind {
    let mut left = random.random_range(0..100);
    for (kind, share) in mix {
        if left < *share {
            return *kind;
        }
        left -= share;
    }
    mix[0].0
}

/// The locks of a transaction while they are drawn.
struct Locks<'a> {
    table: &'a Table,
    locks: Vec<(LockId, Mode)>,
}

/// The tables of both benchmarks.
#[derive(Clone, Copy)]
enum Rows {
    Subscriber,
    SubscriberNumber,
    Warehouse,
    District,
    Customer,
    Stock,
    NewOrder,
    Order,
    OrderLine,
    AccessInfo,
    Facility,
    Forwarding,
}

impl Locks<'_> {
    fn want(&mut self, rows: Rows, row: u64, mode: Mode) {
        // Any hash that spreads: keys of all kinds share the table.
        let hash = (row << 8 | rows as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.locks.push((self.table.lock_of(hash), mode));
    }
}

impl Trace {
    /// All of them.
    pub const ALL: [Trace; 6] = [
        Trace::Tatp,
        Trace::TpcC,
        Trace::GetSubscriber,
        Trace::UpdateLocation,
        Trace::Delivery,
        Trace::NewOrder,
    ];

    /// As the paper calls it.
    pub fn name(self) -> &'static str {
        match self {
            Trace::Tatp => "TATP",
            Trace::TpcC => "TPC-C",
            Trace::GetSubscriber => "TATP-GSD",
            Trace::UpdateLocation => "TATP-UL",
            Trace::Delivery => "TPC-C-DLY",
            Trace::NewOrder => "TPC-C-NEW",
        }
    }

    /// How long a transaction computes between its reads and its writes.
    pub fn think(self) -> Nanos {
        match self {
            Trace::Tatp | Trace::GetSubscriber | Trace::UpdateLocation => 2_800,
            Trace::TpcC | Trace::Delivery | Trace::NewOrder => 7_000,
        }
    }

    /// The locks of one transaction, in the order in which they are taken.
    pub fn draw(self, table: &Table, random: &mut Random) -> Vec<(LockId, Mode)> {
        let kind = match self {
            Trace::Tatp => pick(&TATP, random),
            Trace::TpcC => pick(&TPC_C, random),
            Trace::GetSubscriber => Kind::GetSubscriber,
            Trace::UpdateLocation => Kind::UpdateLocation,
            Trace::Delivery => Kind::Delivery,
            Trace::NewOrder => Kind::NewOrder,
        };
        let mut locks = Locks { table, locks: Vec::new() };
        match self {
            Trace::Tatp | Trace::GetSubscriber | Trace::UpdateLocation => {
                tatp(kind, &mut locks, random);
            }
            Trace::TpcC | Trace::Delivery | Trace::NewOrder => tpc_c(kind, &mut locks, random),
        }
        let mut locks = locks.locks;
        // Ascending, each once, and exclusively if both are wanted.
        locks.sort_by_key(|(lock, mode)| (*lock, std::cmp::Reverse(*mode)));
        locks.dedup_by_key(|(lock, _)| *lock);
        locks
    }
}

fn tatp(kind: Kind, locks: &mut Locks<'_>, random: &mut Random) {
    let (shared, exclusive) = (Mode::Shared, Mode::Exclusive);
    let subscriber = random.random_range(0..SUBSCRIBERS);
    // Each subscriber has up to four rows of access information, of facilities, and of forwarding for each of these.
    let facility = subscriber * 4 + random.random_range(0..4);
    let forwarding = facility * 3 + random.random_range(0..3);
    match kind {
        Kind::GetDestination => {
            locks.want(Rows::Facility, facility, shared);
            locks.want(Rows::Forwarding, forwarding, shared);
        }
        Kind::GetAccess => locks.want(Rows::AccessInfo, facility, shared),
        Kind::UpdateSubscriber => {
            locks.want(Rows::Subscriber, subscriber, exclusive);
            locks.want(Rows::Facility, facility, exclusive);
        }
        Kind::UpdateLocation => {
            // Found by its number, then changed.
            locks.want(Rows::SubscriberNumber, subscriber, shared);
            locks.want(Rows::Subscriber, subscriber, exclusive);
        }
        Kind::InsertForwarding => {
            locks.want(Rows::SubscriberNumber, subscriber, shared);
            locks.want(Rows::Facility, facility, shared);
            locks.want(Rows::Forwarding, forwarding, exclusive);
        }
        Kind::DeleteForwarding => {
            locks.want(Rows::SubscriberNumber, subscriber, shared);
            locks.want(Rows::Forwarding, forwarding, exclusive);
        }
        _ => locks.want(Rows::Subscriber, subscriber, shared),
    }
}

fn tpc_c(kind: Kind, locks: &mut Locks<'_>, random: &mut Random) {
    let (shared, exclusive) = (Mode::Shared, Mode::Exclusive);
    let warehouse = random.random_range(0..WAREHOUSES);
    let district = warehouse * 10 + random.random_range(0..10);
    let customer =
        |district: u64, random: &mut Random| district * 3_000 + random.random_range(0..3_000);
    let stock =
        |warehouse: u64, random: &mut Random| warehouse * 100_000 + random.random_range(0..100_000);
    match kind {
        Kind::Payment => {
            locks.want(Rows::Warehouse, warehouse, exclusive);
            locks.want(Rows::District, district, exclusive);
            // Fifteen customers in a hundred pay at another warehouse.
            let remote = random.random_bool(0.15);
            let theirs = if remote { random.random_range(0..WAREHOUSES * 10) } else { district };
            locks.want(Rows::Customer, customer(theirs, random), exclusive);
        }
        Kind::OrderStatus => {
            locks.want(Rows::Customer, customer(district, random), shared);
            let order = customer(district, random);
            locks.want(Rows::Order, order, shared);
            for line in 0..random.random_range(5..=14) {
                locks.want(Rows::OrderLine, order * 16 + line, shared);
            }
        }
        Kind::StockLevel => {
            // The last orders' items: as many as a transaction may lock.
            locks.want(Rows::District, district, shared);
            for _ in 0..15 {
                locks.want(Rows::Stock, stock(warehouse, random), shared);
            }
        }
        Kind::Delivery => {
            // The oldest order of the district, its lines and its customer.
            let order = district * 3_000 + random.random_range(0..900);
            locks.want(Rows::NewOrder, district, exclusive);
            locks.want(Rows::Order, order, exclusive);
            locks.want(Rows::Customer, customer(district, random), exclusive);
            for line in 0..random.random_range(5..=13) {
                locks.want(Rows::OrderLine, order * 16 + line, exclusive);
            }
        }
        _ => {
            locks.want(Rows::Warehouse, warehouse, shared);
            locks.want(Rows::District, district, exclusive);
            locks.want(Rows::Customer, customer(district, random), shared);
            for _ in 0..random.random_range(5..=13) {
                // One line in a hundred is supplied by another warehouse.
                let remote = random.random_bool(0.01);
                let from = if remote { random.random_range(0..WAREHOUSES) } else { warehouse };
                locks.want(Rows::Stock, stock(from, random), exclusive);
            }
        }
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
