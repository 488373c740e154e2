//! The measured cases, and the expected cost of each.

use std::fmt;

use lockify_array::Scheme;

/// Data units per stripe, as in the paper's baseline.
pub const DATA: u16 = 4;
/// Groups of the largest array: 20 devices.
pub const MANY_GROUPS: u16 = 4;
/// Operations that a host has under way.
pub const DEPTH: u32 = 4;

/// The load of hosts. An operation reads or writes 1 to 4 stripe units of one stripe, each number equally often.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Workload {
    /// The number of host processes.
    pub hosts: u32,
    /// Groups of five devices.
    pub groups: u16,
    /// The share of the array that they address, evenly: the less, the more they meet.
    pub addressed: f64,
    /// The share of operations that read.
    pub reads: f64,
}

/// The subject of the measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// The same reads and writes of the devices' files, by one process: no network, no protocol.
    Raw,
    /// An array.
    Array(Scheme),
}

impl Subject {
    /// All, with the baseline first.
    pub fn all() -> impl Iterator<Item = Subject> {
        std::iter::once(Subject::Raw).chain(Scheme::ALL.map(Subject::Array))
    }

    /// The scheme, if there is an array.
    pub fn scheme(self) -> Option<Scheme> {
        match self {
            Subject::Raw => None,
            Subject::Array(scheme) => Some(scheme),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Raw => f.pad("raw devices"),
            Subject::Array(scheme) => scheme.fmt(f),
        }
    }
}

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    /// One workload, to see that everything works.
    Smoke,
    /// The most telling ones.
    Quick,
    /// Hosts use the whole array.
    Full,
}

impl Effort {
    /// The workloads: hosts, then contention, then shares of reads.
    pub fn workloads(self) -> Vec<Workload> {
        let base = Workload { hosts: 1, groups: 1, addressed: 1.0, reads: 0.7 };
        let contended = |addressed| Workload { hosts: 4, addressed, ..base };
        let mixed = |reads| Workload { hosts: 2, reads, ..base };
        let hosts = [1, 2, 4].map(|hosts| Workload { hosts, ..base });
        // The paper's array beside one of five devices under the same load.
        let many = [1, MANY_GROUPS].map(|groups| Workload { hosts: 16, groups, ..base });
        match self {
            // Two that meet, in two of three operations with a write: everything that is counted happens.
            Effort::Smoke => vec![Workload { addressed: 0.02, ..mixed(0.4) }],
            Effort::Quick => {
                hosts.into_iter().chain([contended(0.02), mixed(0.1)]).chain(many).collect()
            }
            Effort::Full => {
                let contended = [0.02, 0.1, 0.005].map(contended);
                let mixed = [0.1, 0.4, 0.9, 1.0].map(mixed);
                hosts.into_iter().chain(contended).chain(mixed).chain(many).collect()
            }
        }
    }
}

/// The messages of an undisturbed operation on `touched` units (docs/design/array.md 2.5). A request and its reply are two
/// messages. Locking by a server costs four more. A cached lock of callback locking saves them, so the model is an upper bound
/// there.
pub fn messages(scheme: Scheme, read: bool, touched: u64) -> u64 {
    let data = u64::from(DATA);
    let locks = if scheme.has_server() { 4 } else { 0 };
    // Of a write: units only read, units read and written, units only written. Half of the units is reconstructed.
    let (only_read, both, only_written) = match (read, touched) {
        (true, _) => (touched, 0, 0),
        (false, m) if 2 * m < data => (0, m + 1, 0),
        (false, m) => (data - m, 0, m + 1),
    };
    let zero = 2 * (only_read + 2 * both + only_written);
    locks
        + match scheme {
            Scheme::ZeroOverhead | Scheme::ServerLocking | Scheme::CallbackLocking => zero,
            // Each unit is locked, with the read if there is one, and unlocked, with the write if there is one.
            Scheme::DeviceLocking => 4 * (only_read + both + only_written),
            // Blocks that are only written are announced first.
            Scheme::TimestampOrdering => zero + 2 * only_written,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/design/array.md 5.5: published per read and per write, with operations of 1 to 4 units.
    #[test]
    fn the_model_is_the_specifications() {
        let mean =
            |scheme, read| (1..=4).map(|m| messages(scheme, read, m)).sum::<u64>() as f64 / 4.0;
        let reads = Scheme::ALL.map(|scheme| mean(scheme, true));
        assert_eq!(reads, [5.0, 9.0, 9.0, 10.0, 5.0]);
        // Aligned in a stripe, half reconstructed: 4.75 reads and writes of devices.
        let writes = Scheme::ALL.map(|scheme| mean(scheme, false));
        assert_eq!(writes, [9.5, 13.5, 13.5, 17.0, 15.5]);
    }
}
