//! The rules that histories of shared arrays have to keep (docs/design/array.md 4).
//!
//! [`lockify_history::array`] has their events. The checker shares no code with the array's state machines.
//!
//! # Rules
//! One file each, in `rules`:
//!
//! | rule | says |
//! |---|---|
//! | `serializable` | all operations have an order that explains the order of accesses at each block |
//! | `timestamp_order` | with timestamp ordering, the order of timestamps is one; a write is dropped only where a newer one is |
//! | `reads` | a read returns the last write before it in that order, at every sector |
//! | `oscillation` | a value that was seen stays, even if its write was never answered |
//! | `durability` | a write that was answered is never followed by an older value |
//! | `parity` | at the end, the units of each stripe make zero by XOR, except lost ones |
//! | `fencing` | a device writes nothing for a life that is fenced there |
//! | `liveness` | at the end, every operation of hosts that live was answered, and devices keep nothing for one |

mod checker;
mod graph;
mod register;
mod report;
mod rules;
mod run;

use std::io::BufRead;

use lockify_history::array::{Event, MergeError, Reader, merge};

pub use checker::Checker;
pub use report::Counts;

use crate::outcome::Outcome;

/// The result of a check of an array's history.
pub type Report = crate::report::Report<Counts>;

/// Checks a reader's events.
pub fn check_reader<R: BufRead>(mut reader: Reader<R>) -> Outcome<Counts> {
    let mut checker = Checker::new();
    loop {
        match reader.read() {
            Ok(Some(event)) => checker.observe_line(&event, reader.line()),
            Ok(None) => return Outcome::Checked(checker.finish()),
            Err(error) => return Outcome::Unreadable { error, report: checker.finish() },
        }
    }
}

/// Judges the histories of an array's processes together. `take` gets each event of the whole, in the order in which reports
/// count them as lines.
///
/// # Errors
/// [`MergeError`].
pub fn check_parts<R: BufRead, E>(
    readers: impl IntoIterator<Item = Reader<R>>,
    mut take: impl FnMut(&Event) -> Result<(), E>,
) -> Result<Report, MergeError<E>> {
    let mut checker = Checker::new();
    merge(readers, |event| {
        checker.observe(event);
        take(event)
    })?;
    Ok(checker.finish())
}
