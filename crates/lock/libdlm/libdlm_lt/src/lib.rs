//! `libdlm_lt.so.3`: libdlm's interface on Lockify for programs without threads.
//!
//! The functions are documented in libdlm's manual pages; `docs/c-api.md` says what differs.

#[path = "../../exports/common.rs"]
mod common;

/// How a synchronous call reports the operation's status.
const WAITING: lockify_dlm::Waiting = lockify_dlm::Waiting::StatusInErrno;
