//! `libdlm.so.3`: libdlm's interface on Lockify, with a thread for completions for programs that
//! want one.
//!
//! The functions are documented in libdlm's manual pages; `docs/c-api.md` says what differs.

#[path = "../../exports/common.rs"]
mod common;
#[path = "../../exports/threads.rs"]
mod threads;

/// How a synchronous call reports the operation's status.
const WAITING: lockify_dlm::Waiting = lockify_dlm::Waiting::StatusInLksb;
