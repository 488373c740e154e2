//! The measured cases.

use core::fmt;

use lockify_onesided::Protocol;

/// The load of clients.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Workload {
    /// The number of processes.
    pub clients: u32,
    /// Locks that they choose from.
    pub locks: u64,
    /// How unevenly: the exponent of Zipf's law; 0 is evenly.
    pub skew: f64,
    /// Share of acquisitions that share.
    pub shared: f64,
}

/// A workload by a protocol.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Case {
    /// The protocol.
    pub protocol: Protocol,
    /// The workload.
    pub workload: Workload,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Workload { clients, locks, shared, .. } = self.workload;
        write!(f, "{} with {clients} clients, {locks} locks, {shared} shared", self.protocol.name())
    }
}

/// The exponent of the published experiments (docs/design/onesided.md 3.2).
const SKEW: f64 = 0.99;
/// Locks of which many are rarely used.
const MANY: u64 = 10_000;

/// The workloads. Few: nobody to wait for; one hot lock; many locks, half of them shared (write-intensive in
/// docs/design/onesided.md 3.2). All: also other numbers of clients, shares of readers, and locks.
pub fn workloads(all: bool) -> Vec<Workload> {
    let one = Workload { clients: 1, locks: 1, skew: 0.0, shared: 0.0 };
    let hot = Workload { clients: 4, ..one };
    let many = Workload { clients: 4, locks: MANY, skew: SKEW, shared: 0.5 };
    let mut list = vec![one, hot, many];
    if all {
        list.extend([2, 8].map(|clients| Workload { clients, ..hot }));
        list.extend([0.5, 0.95, 1.0].map(|shared| Workload { shared, ..hot }));
        list.extend([0.0, 0.95, 1.0].map(|shared| Workload { shared, ..many }));
        list.push(Workload { locks: 100, ..many });
    }
    list
}
