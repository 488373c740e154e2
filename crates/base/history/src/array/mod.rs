//! Histories of shared arrays (docs/design/array.md 4).
//!
//! A history has the requests and answers of hosts, and the accesses of each device to its blocks, in order. It shares no code
//! with the array's state machines.
//!
//! # Events
//! All have `t` (nanoseconds on a clock common to all; lines are in its order) and `event`; `host` and `incarnation` give
//! the owner of the operation. Operations read and write sectors of the array, devices whole blocks. A block has one sector, unless
//! `sectors` says otherwise. A tag is a number for the content of a sector, for example its writer or a hash. An array begins
//! with 0. *Fields in italics* are optional.
//!
//! A write need not begin or end with a block. It then reads the block and writes it, as one transaction. The events of devices show
//! both, and the other sectors have to stay as they are.
//!
//! | event | meaning | fields |
//! |---|---|---|
//! | `begin` | the first line | `array` (`redundancy` `data` `groups` `unit` `block_size` `stripes` *`sectors`* (per block)) `scheme` *`volatile`* (only flushes make writes durable) |
//! | `read` | a host was asked to read | `op` `start` `count` (sectors of the array) |
//! | `write` | a host was asked to write | `op` `start` `tags` *`partial`* (tags of sectors that are not written as a whole) |
//! | `flush` | a host was asked to make durable what it had answered | `op` |
//! | `repair` | a host was asked to check, repair, rebuild or fence | `op` *`note`* |
//! | `try` | the operation begins, or begins anew | `op` `seq` (devices know the try by it) *`stamp`* (`[time, host]`) |
//! | `done` | the operation was answered | `op` *`tags`* (read) *`error`* (it failed) |
//! | `devread` | a device read blocks | `device` `seq` `start` `count` (blocks of the device) |
//! | `devwrite` | a device began to write blocks, or dropped the write | `device` `seq` `start` `count` *`stamp` `dropped`* |
//! | `crash` | the host's life ended | |
//! | `down` | the device's process ended or its disk failed: writes under way may be there or not | `device` |
//! | `fenced` | a life is fenced at a device | `device` |
//! | `grown` | devices and hosts have agreed that the array has more stripes, or more groups of devices | `stripes`, `groups` |
//! | `dump` | the content of a device at the end | `device` `start` `blocks` (hexadecimal: content, or a digest linear in XOR) *`lost`* (which of them) |
//! | `left` | state that a device or lock server still keeps at the end | `at` `what` `count` |
//! | `fault` | something was broken, or repaired | *`note`* |
//! | `end` | everything had come to rest | |

mod event;
mod layout;
mod merge;

pub use event::{Event, Kind, Life, Stamp, Tag};
pub use layout::{LaterGroup, LaterGroups, Layout, Redundancy};
pub use merge::{MergeError, merge};

use crate::history::{LineReader, LineWriter};

/// Reads a history of an array.
pub type Reader<R> = LineReader<R, Event>;

/// Writes a history of an array.
pub type Writer<W> = LineWriter<W, Event>;
