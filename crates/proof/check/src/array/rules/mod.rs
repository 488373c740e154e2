//! The rules for arrays, one file each.

mod durability;
mod fencing;
mod liveness;
mod oscillation;
mod parity;
mod reads;
mod serializable;
mod timestamp_order;

use crate::array::graph::Graph;
use crate::array::register::Finding;
use crate::array::report::Counts;
use crate::array::run::Run;
use crate::invariant::Violation;

/// A history, and the results that all rules share.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The history.
    pub run: &'a Run,
    /// Which transaction comes before which.
    pub graph: &'a Graph,
    /// Blocks of the array that do not behave as registers.
    pub registers: &'a [Finding],
}

/// The violations that a rule found, or the reason why it cannot judge.
pub type Found = Result<Vec<Violation>, &'static str>;

/// A rule that every history of an array has to keep.
pub trait Rule: std::fmt::Debug {
    /// Its name, as reports print it.
    fn name(&self) -> &'static str;

    /// Judges a history.
    ///
    /// # Errors
    /// The part that the history lacks for it.
    fn judge(&self, seen: &Seen<'_>, counts: &mut Counts) -> Found;
}

/// All rules.
pub fn all() -> [&'static dyn Rule; 8] {
    [
        &serializable::Serializable,
        &timestamp_order::TimestampOrder,
        &reads::Reads,
        &oscillation::Oscillation,
        &durability::Durability,
        &parity::Parity,
        &fencing::Fencing,
        &liveness::Liveness,
    ]
}

impl Seen<'_> {
    /// A violation that these lines show.
    fn violation(&self, rule: &'static str, mut lines: Vec<u64>, what: String) -> Violation {
        lines.sort_unstable();
        lines.dedup();
        Violation { rule, t: self.run.t, lines, what }
    }
}
