//! The extension module of the Python package `lockify`: the Rust client's calls, as little as the
//! package's Python needs of them (`lockify/_lockify.pyi` describes it). The interface for
//! programs, waiting in asyncio and the hierarchy of errors are Python.
//!
//! # Locks and the interpreter's lock
//! The client's threads hold the client's mutexes while they hand out events, and whoever has the
//! interpreter may want those mutexes. So nothing that these threads run may want the interpreter:
//! a finished operation wakes its task through an eventfd (`wakeups`), callbacks have a thread of
//! their own, and calls that can wait do so detached (`calls`).

mod calls;
mod ending;
mod errors;
mod lock;
mod operation;
mod owned;
mod session;
mod signals;
mod space;
mod view;
mod wakeups;

use pyo3::prelude::*;

/// See `lockify/_lockify.pyi`.
#[pymodule]
mod _lockify {
    #[pymodule_export]
    use crate::ending::ending;
    #[pymodule_export]
    use crate::lock::Lock;
    #[pymodule_export]
    use crate::operation::Operation;
    #[pymodule_export]
    use crate::session::{Session, connect};
    #[pymodule_export]
    use crate::space::Lockspace;
    #[pymodule_export]
    use crate::wakeups::Wakeups;
}
