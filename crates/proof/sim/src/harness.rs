//! For tests that print tables: `cargo test` shows them, and each has the processors for itself.

use std::fmt::Display;
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Prints a line even if the test passes: the harness keeps to itself only what `println!` prints.
pub fn show(line: impl Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Tests that print tables run one after the other: each uses all processors, and their lines would mix.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
