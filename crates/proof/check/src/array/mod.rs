//! Histories of shared arrays, and the rules that they have to keep (docs/design/array.md 4).
//!
//! A history has the requests and answers of hosts, and the accesses of each device to its blocks, in order. The checker
//! shares no code with the array's state machines.
//!
//! # Rules
//! One file each, in `rules`:
//!
//! | rule | says |
//! |---|---|
//! | `serializable` | all operations have an order that explains the order of accesses at each block |
//! | `timestamp_order` | with timestamp ordering, the order of timestamps is one; a write is dropped only where a newer one is |
//! | `reads` | a read returns the last write before it in that order, at every block |
//! | `oscillation` | a value that was seen stays, even if its write was never answered |
//! | `durability` | a write that was answered is never followed by an older value |
//! | `parity` | at the end, the units of each stripe make zero by XOR, except lost ones |
//! | `fencing` | a device writes nothing for a life that is fenced there |
//! | `liveness` | at the end, every operation of hosts that live was answered, and devices keep nothing for one |
//!
//! # Events
//! All have `t` (nanoseconds on a clock common to all; lines are in its order) and `event`; `host` and `incarnation` give
//! the owner of the operation. A tag is a number for the content of a block, for example its writer or a hash. An array
//! begins with 0. *Fields in italics* are optional.
//!
//! | event | meaning | fields |
//! |---|---|---|
//! | `begin` | the first line | `array` (`redundancy` `data` `groups` `unit` `block_size` `stripes`) `scheme` |
//! | `read` | a host was asked to read | `op` `start` `count` (blocks of the array) |
//! | `write` | a host was asked to write | `op` `start` `tags` |
//! | `repair` | a host was asked to check, repair, rebuild or fence | `op` *`note`* |
//! | `try` | the operation begins, or begins anew | `op` `seq` (devices know the try by it) *`stamp`* (`[time, host]`) |
//! | `done` | the operation was answered | `op` *`tags`* (read) *`error`* (it failed) |
//! | `devread` | a device read blocks | `device` `seq` `start` `count` (blocks of the device) |
//! | `devwrite` | a device began to write blocks, or dropped the write | `device` `seq` `start` `count` *`stamp` `dropped`* |
//! | `crash` | the host's life ended | |
//! | `down` | the device's process ended or its disk failed: writes under way may be there or not | `device` |
//! | `fenced` | a life is fenced at a device | `device` |
//! | `dump` | the content of a device at the end | `device` `start` `blocks` (hexadecimal: content, or a digest linear in XOR) *`lost`* (which of them) |
//! | `left` | state that a device or lock server still keeps at the end | `at` `what` `count` |
//! | `fault` | something was broken, or repaired | *`note`* |
//! | `end` | everything had come to rest | |

mod checker;
mod event;
mod graph;
mod layout;
mod merge;
mod register;
mod report;
mod rules;
mod run;

use std::io::BufRead;

pub use checker::Checker;
pub use event::{Event, Kind, Life, Stamp, Tag};
pub use layout::{Layout, Redundancy};
pub use merge::{MergeError, check_parts, merge};
pub use report::Counts;

use crate::file::Outcome;
use crate::history::{LineReader, LineWriter};

/// Reads a history of an array.
pub type Reader<R> = LineReader<R, Event>;

/// Writes a history of an array.
pub type Writer<W> = LineWriter<W, Event>;

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
