//! Shared arrays as users run them.
//!
//! An [`ArrayFile`] describes an array: its layout, its devices and where they listen. [`host::Array`] is a host of it, as a
//! library: it reads and writes blocks from many threads. The protocols are in `lockify-array`; nothing here knows what
//! they say.
#![forbid(unsafe_code)]

mod file;
pub mod host;
pub mod nbd;

pub use file::{
    ArrayFile, ArrayId, BLOCK, DeviceEntry, Durability, FileError, LockServerEntry, Timing,
    WitnessEntry,
};
