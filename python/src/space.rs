//! Lockspaces and requests for locks.

use std::time::Duration;

use lockify_client::{LockBuilder, LockFlags, Mode};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::calls::{blocking, call_back, limit};
use crate::lock::Lock;
use crate::operation::Operation;
use crate::owned::{Home, Owned};
use crate::view::{View, view};

/// A lockspace.
#[pyclass(frozen, module = "lockify._lockify")]
pub struct Lockspace(Owned<lockify_client::Lockspace>);

/// A mode by its number.
pub fn mode(number: usize) -> PyResult<Mode> {
    let mode = Mode::ALL.get(number).copied();
    mode.ok_or_else(|| PyValueError::new_err(format!("{number} is no mode: 0 to 5")))
}

/// The arguments of a request (`_lock.Wish`).
#[derive(FromPyObject)]
pub struct Wish {
    mode: usize,
    wait: bool,
    timeout: Option<f64>,
    notify: bool,
    read_lvb: bool,
    transaction: u64,
    relay: Option<Py<PyAny>>,
}

impl Lockspace {
    pub fn new(space: lockify_client::Lockspace, home: &Home) -> Lockspace {
        Lockspace(Owned::new(space, home))
    }

    fn request(&self, name: &[u8], wish: Wish) -> PyResult<(LockBuilder, Option<Duration>)> {
        let limit = limit(wish.timeout)?;
        let mut request = self.0.get()?.request(name, mode(wish.mode)?);
        request = request.transaction(wish.transaction);
        if !wish.wait {
            request = request.flags(LockFlags::NOQUEUE);
        }
        if wish.notify {
            request = request.notify();
        }
        if wish.read_lvb {
            request = request.read_lvb();
        }
        if let Some(limit) = limit {
            request = request.timeout(limit);
        }
        if let Some(relay) = wish.relay {
            request = request.on_block(move |mode| call_back(&relay, (mode as u8,)));
        }
        Ok((request, limit))
    }
}

#[pymethods]
impl Lockspace {
    #[getter]
    fn lvb_len(&self) -> PyResult<usize> {
        Ok(self.0.get()?.lvb_len())
    }

    fn lock(&self, py: Python<'_>, name: &[u8], wish: Wish) -> PyResult<Lock> {
        let (request, limit) = self.request(name, wish)?;
        let guard = blocking(py, limit, || request.lock())?;
        Ok(Lock::new(guard, self.0.home()))
    }

    fn begin_lock(&self, py: Python<'_>, name: &[u8], wish: Wish) -> PyResult<Operation> {
        let (request, _) = self.request(name, wish)?;
        // Sends, which can wait for a daemon that does not read.
        let future = py.detach(|| request.lock_async());
        Ok(Operation::new(async { future.await.map(Some) }, self.0.home()))
    }

    fn on_lost(&self, callback: Py<PyAny>) -> PyResult<()> {
        self.0.get()?.on_lost(move |lost| {
            call_back(
                &callback,
                (lost.name.as_bytes().to_vec(), lost.mode as u8, lost.why.clone()),
            );
        });
        Ok(())
    }

    fn locks(&self, py: Python<'_>) -> PyResult<View> {
        let space = self.0.get()?;
        Ok(view(&blocking(py, None, || space.locks())?))
    }

    fn who(&self, py: Python<'_>, name: &[u8]) -> PyResult<View> {
        let space = self.0.get()?;
        Ok(view(&blocking(py, None, || space.who(name))?))
    }
}
