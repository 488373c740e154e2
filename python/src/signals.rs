//! How a signal ends a wait of the main thread.
//!
//! Python's own handler only takes note of a signal, on whatever thread it comes, and writes its
//! number to the interpreter's *wakeup descriptor*. While the main thread waits for a lock, that is
//! a descriptor of this package, which ends the wait: the thread sleeps until there is something to
//! do. Numbers are passed on to the descriptor that was set before (an event loop's, mostly).

use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::IntoPyDict as _;

/// Where the interpreter rings, and what a wait of the main thread listens to.
struct Bell {
    /// A child of a fork needs one of its own.
    process: u32,
    rings: UnixStream,
    heard: Arc<OwnedFd>,
}

static BELL: Mutex<Option<Arc<Bell>>> = Mutex::new(None);

impl Bell {
    fn of_this_process() -> std::io::Result<Arc<Bell>> {
        let mut bell = BELL.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if let Some(bell) = bell.as_ref().filter(|bell| bell.process == process) {
            return Ok(bell.clone());
        }
        let (rings, heard) = UnixStream::pair()?;
        rings.set_nonblocking(true)?;
        heard.set_nonblocking(true)?;
        let made = Arc::new(Bell { process, rings, heard: Arc::new(heard.into()) });
        *bell = Some(made.clone());
        Ok(made)
    }
}

/// For as long as a wait of the main thread lasts, signals ring.
#[derive(Clone)]
pub struct Listening {
    bell: Arc<Bell>,
    /// The wakeup descriptor before; `None` within another wait, whose handler waits itself.
    outer: Option<RawFd>,
}

impl Listening {
    /// From now on; call on the main thread. `None` where no handler will ever run (a
    /// subinterpreter).
    ///
    /// # Errors
    /// Those of the system, if it has no descriptors left.
    pub fn begin(py: Python<'_>) -> PyResult<Option<Listening>> {
        let bell = Bell::of_this_process()?;
        let rings = bell.rings.as_raw_fd();
        let Ok(before) = set_wakeup_fd(py, rings) else { return Ok(None) };
        Ok(Some(Listening { bell, outer: Some(before).filter(|&before| before != rings) }))
    }

    /// Readable when a signal has come.
    pub fn descriptor(&self) -> Arc<OwnedFd> {
        self.bell.heard.clone()
    }

    /// Passes on which signals have come; the descriptor is no longer readable.
    pub fn empty(&self) {
        pass_on(&self.bell.heard, self.outer);
    }

    /// The end of the wait.
    pub fn end(&self, py: Python<'_>) {
        let Some(outer) = self.outer else { return };
        // Refused if that descriptor has been closed meanwhile: nobody listens there.
        let _ = set_wakeup_fd(py, outer);
        // After that: what has come until then.
        self.empty();
    }
}

/// Reads signals' numbers, and writes them to `outer`.
fn pass_on(heard: &OwnedFd, outer: Option<RawFd>) {
    let mut numbers = [0; 64];
    while let Ok(count @ 1..) = rustix::io::read(heard, &mut numbers) {
        if let Some(outer) = outer.filter(|&outer| outer >= 0) {
            // SAFETY: the program has given the interpreter this descriptor for signals' numbers,
            // and keeps it open as long as it is set.
            let outer = unsafe { BorrowedFd::borrow_raw(outer) };
            // Full: then its reader is about to look anyway.
            let _ = rustix::io::write(outer, &numbers[..count]);
        }
    }
}

fn set_wakeup_fd(py: Python<'_>, descriptor: RawFd) -> PyResult<RawFd> {
    static SET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let set = SET.import(py, "signal", "set_wakeup_fd")?;
    // A full pipe rings as well as one that is not.
    let quiet = [("warn_on_full_buffer", false)].into_py_dict(py)?;
    set.call((descriptor,), Some(&quiet))?.extract()
}
