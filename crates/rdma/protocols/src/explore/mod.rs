//! Every interleaving of a few clients on one lock.
//!
//! A state is left by one step: the next verb of some client executes and completes (or does so later, where that is
//! wanted), the next message from one peer to
//! another is delivered, a client that sleeps wakes, and where faults are wanted, one client freezes at any step, for ever
//! or until it thaws; what it had posted executes at any later time. [`search`] visits all states depth first. A run is
//! replayed from the start for each branch, so clients need not be cloned; states are told apart by the memory, what is
//! under way, and what each client has seen, from which all else follows. Clients that do the same are not told apart: they
//! begin, or stop, in their order.

mod monitor;
#[cfg(test)]
mod narrow;
mod search;
mod world;

pub use search::{Counterexample, Report, search};

use crate::fabric::Nanos;
use crate::options::{Mode, Options};

/// The scenario of a search.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// For people.
    pub name: String,
    /// The clients' settings.
    pub options: Options,
    /// The locks that each client takes and releases, one after the other.
    pub clients: Vec<Vec<Mode>>,
    /// True if the fabric has masked operations.
    pub masked: bool,
    /// True if completions are steps of their own. Others then see the effect of a verb before its client knows its
    /// result.
    pub late: bool,
    /// The fault.
    pub fault: Fault,
    /// The lock's word at the beginning; it has to be that of a free lock.
    pub word: u64,
    /// True if writers must be granted in the order of the verbs by which they queued.
    pub fifo: bool,
    /// How long a client holds, where there are faults. Without, time means nothing.
    pub hold: Nanos,
    /// Nobody may wait longer than this for a lock, counted from its call.
    pub longest_wait: Nanos,
    /// No more states than this.
    pub states: usize,
}

/// A fault of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// No fault.
    None,
    /// One client stops for ever, at any step.
    Crash,
    /// One client stops at any step and goes on after so many leases.
    Freeze(u64),
}

impl Scenario {
    /// Clients without faults.
    pub fn new(name: &str, options: Options, clients: &[&[Mode]]) -> Scenario {
        Scenario {
            name: name.to_owned(),
            options,
            clients: clients.iter().map(|modes| modes.to_vec()).collect(),
            masked: false,
            late: false,
            fault: Fault::None,
            word: 0,
            fifo: false,
            hold: 0,
            longest_wait: Nanos::MAX,
            states: 3_000_000,
        }
    }

    /// With this fault; the settings must have leases.
    pub fn fault(self, fault: Fault) -> Scenario {
        Scenario { fault, ..self }
    }

    /// Leases, or as good as none.
    fn lease(&self) -> Nanos {
        self.options.lease.unwrap_or(1)
    }
}
