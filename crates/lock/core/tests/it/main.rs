//! The lock manager, by its inputs and outputs alone. `allocation.rs` is beside it.

mod broadcast;
mod bulk;
mod common;
mod crowd;
mod deadlock;
mod differential;
mod directory;
mod expiry;
mod golden;
mod image;
mod oracle;
mod semantics;
mod smoke;
mod value_block;
