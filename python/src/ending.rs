//! The end of the interpreter.
//!
//! From its finalisation on, a thread other than the main one that wants the interpreter is ended by
//! it in the middle of a call, which Rust's frames do not bear: the process would abort. So an
//! `atexit` handler, which runs before that, shuts the ways in: callbacks are not made any more, and
//! calls of other threads (daemons, as Python has waited for all others) do not come back.
//!
//! Atomics and no mutexes, so that a child of a fork cannot find them locked.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

static ENDING: AtomicBool = AtomicBool::new(false);
/// Callbacks under way.
static CALLBACKS: AtomicUsize = AtomicUsize::new(0);

/// How long the end of the program waits for callbacks under way.
const PATIENCE: Duration = Duration::from_secs(1);

/// The interpreter is about to be finalised.
#[pyfunction]
pub fn ending(py: Python<'_>) {
    ENDING.store(true, Ordering::SeqCst);
    py.detach(|| {
        let end = Instant::now() + PATIENCE;
        while CALLBACKS.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// In a child of a fork, which has one thread.
pub fn forked() {
    CALLBACKS.store(0, Ordering::SeqCst);
}

/// Makes a callback with the interpreter, unless that is ending.
pub fn callback(call: impl FnOnce(Python<'_>)) {
    CALLBACKS.fetch_add(1, Ordering::SeqCst);
    if !ENDING.load(Ordering::SeqCst) {
        Python::try_attach(call);
    }
    CALLBACKS.fetch_sub(1, Ordering::SeqCst);
}

/// Called by a thread that is about to come back to the interpreter from waiting: does not return
/// if that is ending, and the process with it.
pub fn come_back(main: bool) {
    while !main && ENDING.load(Ordering::SeqCst) {
        std::thread::park();
    }
}
