//! Types and constants of `libdlm.h`.

use std::ffi::{c_char, c_int, c_void};

/// `struct dlm_lksb`: the lock status block.
#[repr(C)]
#[derive(Debug)]
pub struct Lksb {
    /// The status of the operation, `sb_status`.
    pub status: c_int,
    /// The id of the lock, `sb_lkid`.
    pub lkid: u32,
    /// The flags of the completion, `sb_flags`.
    pub flags: c_char,
    /// `sb_lvbptr`: 32 bytes (`DLM_LVB_LEN`).
    pub lvb: *mut c_char,
}

/// A completion or blocking routine.
pub type Ast = unsafe extern "C" fn(*mut c_void);

/// The length of a value block, `DLM_LVB_LEN`.
pub(crate) const LVB_LEN: usize = 32;

/// `sb_status` while an operation is outstanding.
pub(crate) const EINPROG: c_int = 0x10003;
/// `sb_status` after an unlock.
pub const EUNLOCK: c_int = 0x10002;

/// Flags that mean something to the library; the others are the lock manager's.
pub(crate) const LKF_CANCEL: u32 = 0x2;
pub(crate) const LKF_CONVERT: u32 = 0x4;
pub(crate) const LKF_VALBLK: u32 = 0x8;
pub(crate) const LKF_IVVALBLK: u32 = 0x20;
pub(crate) const LKF_ORPHAN: u32 = 0x4000;
pub(crate) const LKF_FORCEUNLOCK: u32 = 0x2_0000;
pub(crate) const LKF_TIMEOUT: u32 = 0x4_0000;
/// Wait for the operation's end.
pub const LKF_WAIT: u32 = 0x8000_0000;
