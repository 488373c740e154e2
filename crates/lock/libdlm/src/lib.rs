//! libdlm's interface on Lockify.
//!
//! The libraries `libdlm.so.3` and `libdlm_lt.so.3` export the functions of Debian's libdlm3 by the
//! same names (`exports/`); this crate implements them. Programs written for the kernel's lock
//! manager then talk to a Lockify daemon instead. The behaviour follows Linux 6.12 `fs/dlm/user.c`
//! as seen through libdlm 4.2, and where these leave it open, libdlm's manual pages.
//!
//! ```text
//! exports      C functions: pointers become Rust values, results become errno
//!   registry   handles, the descriptor of each, the default lockspace
//!     handle   one open lockspace: sessions, their reader, callbacks
//!       calls  lock, unlock, cancel, purge
//!       locks  the locks of a handle, and the daemon's events for them
//! ```
//!
//! # Threads
//! One thread at a time reads a handle's sessions: one that waits for something of its own, the
//! thread that the program asked for, or one that dispatches. Callbacks run without any lock of
//! this library, on the thread that dispatches.

mod abi;
mod calls;
mod errno;
mod handle;
mod locks;
mod open;
mod registry;
mod sleepers;

pub use abi::{Ast, EUNLOCK, LKF_WAIT, Lksb};
pub use calls::{LockCall, UnlockCall, Waiting};
pub use errno::{answer, set};
pub use handle::Handle;
pub use open::reach;
pub use registry::{
    add, by_descriptor, by_pointer, close, default_space, has_default, remove_default,
};

/// The version of the kernel's interface to libdlm that is offered: Linux `dlm_device.h`,
/// `DLM_DEVICE_VERSION_*`.
pub const DEVICE_VERSION: [u32; 3] = [6, 0, 2];
