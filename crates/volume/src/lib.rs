//! Shared arrays as users run them.
//!
//! An [`ArrayFile`] describes an array: its layout, its devices and where they listen. [`host::Array`] is a host of it, as a
//! library: it reads and writes blocks from many threads; [`device::Server`] serves a device, and [`lock_server::Server`] is the
//! lock server of schemes that need one. The protocols are in `lockify-array`; nothing here knows what
//! they say.
#![forbid(unsafe_code)]

pub mod bench;
mod clock;
pub mod device;
mod file;
mod history;
pub mod host;
pub mod lock_server;
pub mod nbd;
pub mod status;
pub mod store;
pub mod upkeep;
mod wire;

pub use file::{
    ArrayFile, ArrayId, BLOCK, DeviceEntry, Durability, FileError, LockServerEntry, SECTOR,
    SECTORS, Timing, WitnessEntry,
};
pub use history::HistoryError;
pub use wire::Report;
