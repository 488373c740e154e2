//! The counts and the result of a check of an array's history.

use std::fmt;

use serde::Serialize;

/// The events and operations of a checked history, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Counts {
    /// The number of events.
    pub events: u64,
    /// Operations that read.
    pub reads: u64,
    /// Operations that write.
    pub writes: u64,
    /// Operations that make writes durable.
    pub flushes: u64,
    /// Operations that check, repair or rebuild.
    pub repairs: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Operations of hosts that crashed, and were never answered.
    pub unanswered: u64,
    /// Tries beyond the first of their operations.
    pub restarts: u64,
    /// Writes of devices that were dropped, because something newer was there, in blocks.
    pub dropped: u64,
    /// Pairs of transactions of which one has to come before the other.
    pub conflicts: u64,
    /// Sectors read that were compared with the last write before.
    pub sectors_read: u64,
    /// Values of sectors that were judged as registers.
    pub values: u64,
    /// Lives fenced, times devices.
    pub fenced: u64,
    /// Columns of stripes of which the parity was judged.
    pub columns: u64,
    /// Columns of stripes with lost content.
    pub columns_lost: u64,
    /// Columns of stripes of which a unit is missing in the dump.
    pub columns_not_judged: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events: {} reads, {} writes", self.events, self.reads, self.writes)?;
        let named = [
            (self.flushes, "flushes"),
            (self.repairs, "repairs"),
            (self.failed, "operations failed"),
            (self.unanswered, "operations of crashed hosts never answered"),
            (self.restarts, "restarts"),
            (self.dropped, "blocks of writes dropped"),
            (self.conflicts, "conflicts"),
            (self.sectors_read, "sectors read compared with the last write"),
            (self.values, "values of sectors judged"),
            (self.fenced, "lives fenced at devices"),
            (self.columns, "columns' parity judged"),
            (self.columns_lost, "columns with lost content"),
            (self.columns_not_judged, "columns with a unit missing"),
        ];
        named
            .into_iter()
            .filter(|(n, _)| *n > 0)
            .try_for_each(|(n, name)| write!(f, ", {n} {name}"))
    }
}
