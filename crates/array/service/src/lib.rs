//! Shared arrays as users run them.
//!
//! An [`ArrayFile`] describes an array: its layout, and its devices with their addresses. [`host::Array`] is a host of it, as a
//! library: many threads can read and write blocks. [`device::Server`] serves a device. [`lock_server::Server`] is the lock
//! server of schemes that need one. The protocols are in `lockify-array`; this crate treats their messages as opaque.
#![forbid(unsafe_code)]

pub mod assembly;
mod clock;
pub mod device;
pub mod door;
mod file;
mod history;
pub mod host;
pub mod lock_server;
pub mod nbd;
mod pace;
pub mod status;
pub mod store;
#[cfg(feature = "ublk")]
pub mod ublk;
pub mod upkeep;
mod versions;
mod wire;

pub use file::{
    ArrayFile, ArrayId, BLOCK, DeviceEntry, Durability, FileError, LockServerEntry, SECTOR,
    SECTORS, Timing, WitnessEntry,
};
pub use history::HistoryError;
pub use versions::{HAS_GROUPS, SPOKEN, TELLS_SOFTWARE};
pub use wire::{Peer, Report, Software};

/// A random number.
fn random() -> std::io::Result<u64> {
    let mut seed = [0; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(seed))
}
