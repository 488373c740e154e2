//! Locks that are held.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockify_client::{Guard, LockFlags, UnlockBuilder};
use pyo3::prelude::*;

use crate::calls::{blocking, limit};
use crate::errors::{Released, failure};
use crate::operation::Operation;
use crate::owned::{Held, Home, Owned};
use crate::space::mode;

/// A lock, until it is released.
#[pyclass(frozen, module = "lockify._lockify")]
pub struct Lock(Owned<Held>);

/// The guard, if there is one. Whoever waits for the end of an operation does not hold the mutex.
fn guard(held: &Held) -> MutexGuard<'_, Option<Guard>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

fn released() -> PyErr {
    Released::new_err("the lock was released: lock again")
}

impl Lock {
    pub fn new(guard: Guard, home: &Home) -> Lock {
        Lock(Owned::new(Arc::new(Mutex::new(Some(guard))), home))
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        look: impl FnOnce(&mut Guard) -> T + Send,
    ) -> PyResult<T> {
        let held = self.0.get()?;
        // Whoever has the mutex may be sending to a daemon that does not read.
        py.detach(|| guard(held).as_mut().map(look)).ok_or_else(released)
    }

    /// Sends a conversion.
    fn start(
        &self,
        py: Python<'_>,
        to: usize,
        wait: bool,
        limit: Option<Duration>,
        lvb: Option<&[u8]>,
    ) -> PyResult<lockify_client::Conversion> {
        let (held, mode) = (self.0.get()?, mode(to)?);
        py.detach(|| {
            let mut guard = guard(held);
            let mut conversion = guard.as_mut().ok_or_else(released)?.conversion(mode);
            if !wait {
                conversion = conversion.flags(LockFlags::NOQUEUE);
            }
            if let Some(limit) = limit {
                conversion = conversion.timeout(limit);
            }
            if let Some(lvb) = lvb {
                conversion = conversion.lvb(lvb);
            }
            conversion.start().map_err(failure)
        })
    }

    fn release(
        &self,
        py: Python<'_>,
        lvb: Option<&[u8]>,
        invalidate: bool,
    ) -> PyResult<UnlockBuilder> {
        let held = self.0.get()?;
        let taken = py.detach(|| guard(held).take());
        let mut release = taken.ok_or_else(released)?.release();
        if let Some(lvb) = lvb {
            release = release.lvb(lvb);
        }
        if invalidate {
            release = release.invalidate_lvb();
        }
        Ok(release)
    }
}

#[pymethods]
impl Lock {
    #[getter]
    fn mode(&self, py: Python<'_>) -> PyResult<u8> {
        self.with(py, |guard| guard.mode() as u8)
    }

    #[getter]
    fn token(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |guard| guard.token())
    }

    #[getter]
    fn provisional(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |guard| guard.provisional())
    }

    #[getter]
    fn lvb(&self, py: Python<'_>) -> PyResult<Option<Vec<u8>>> {
        self.with(py, |guard| guard.lvb().map(<[u8]>::to_vec))
    }

    #[getter]
    fn lvb_valid(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |guard| guard.lvb_valid())
    }

    #[getter]
    fn blocked(&self, py: Python<'_>) -> PyResult<Option<u8>> {
        self.with(py, |guard| guard.blocked().map(|mode| mode as u8))
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |guard| guard.check())?.map_err(failure)
    }

    #[pyo3(signature = (mode, wait, timeout, lvb))]
    fn convert(
        &self,
        py: Python<'_>,
        mode: usize,
        wait: bool,
        timeout: Option<f64>,
        lvb: Option<&[u8]>,
    ) -> PyResult<()> {
        let limit = limit(timeout)?;
        let conversion = self.start(py, mode, wait, limit, lvb)?;
        let held = self.0.get()?;
        blocking(py, limit, || {
            let converted = conversion.wait()?;
            // Released meanwhile: nobody wants to know.
            if let Some(guard) = guard(held).as_mut() {
                guard.converted(converted);
            }
            Ok(())
        })
    }

    #[pyo3(signature = (mode, wait, timeout, lvb))]
    fn begin_convert(
        &self,
        py: Python<'_>,
        mode: usize,
        wait: bool,
        timeout: Option<f64>,
        lvb: Option<&[u8]>,
    ) -> PyResult<Operation> {
        let conversion = self.start(py, mode, wait, limit(timeout)?, lvb)?;
        let held = Arc::downgrade(self.0.get()?);
        let end = async move {
            let converted = conversion.finish().await?;
            if let Some(held) = held.upgrade()
                && let Some(guard) = guard(&held).as_mut()
            {
                guard.converted(converted);
            }
            Ok(None)
        };
        Ok(Operation::new(end, self.0.home()))
    }

    #[pyo3(signature = (lvb, invalidate_lvb))]
    fn unlock(&self, py: Python<'_>, lvb: Option<&[u8]>, invalidate_lvb: bool) -> PyResult<()> {
        let release = self.release(py, lvb, invalidate_lvb)?;
        blocking(py, None, || release.unlock())
    }

    #[pyo3(signature = (lvb, invalidate_lvb))]
    fn begin_unlock(
        &self,
        py: Python<'_>,
        lvb: Option<&[u8]>,
        invalidate_lvb: bool,
    ) -> PyResult<Operation> {
        let release = self.release(py, lvb, invalidate_lvb)?;
        let end = py.detach(|| release.unlock_async());
        Ok(Operation::new(async { end.await.map(|()| None) }, self.0.home()))
    }
}
