//! How operations that have ended wake their tasks in an event loop.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

/// The operations that have ended of those that one event loop waits for. The loop watches its
/// descriptor. Nothing here needs the interpreter, so that the client's threads may call it.
#[pyclass(frozen, module = "lockify._lockify")]
#[derive(Debug)]
pub struct Wakeups(Arc<Ended>);

#[derive(Debug)]
struct Ended {
    /// Readable when there are ids.
    event: OwnedFd,
    ids: Mutex<Vec<u64>>,
}

struct Waiting {
    ended: Arc<Ended>,
    id: u64,
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        let mut ids = self.ended.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.push(self.id);
        if ids.len() == 1 {
            // Fails only if the counter is full, which wakes as well.
            let _ = rustix::io::write(&self.ended.event, &1u64.to_ne_bytes());
        }
    }
}

impl Wakeups {
    pub fn waker(&self, id: u64) -> Waker {
        Arc::new(Waiting { ended: self.0.clone(), id }).into()
    }
}

#[pymethods]
impl Wakeups {
    #[new]
    fn new() -> PyResult<Wakeups> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(std::io::Error::from)?;
        Ok(Wakeups(Arc::new(Ended { event, ids: Mutex::default() })))
    }

    fn fileno(&self) -> RawFd {
        self.0.event.as_raw_fd()
    }

    fn take(&self) -> Vec<u64> {
        // Before the list: an id that comes in between makes it readable again.
        let _ = rustix::io::read(&self.0.event, &mut [0u8; 8]);
        std::mem::take(&mut *self.0.ids.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
