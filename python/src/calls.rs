//! Calls that wait: detached from the interpreter, interruptible by Ctrl-C.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lockify_client::{Error, interruptible};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::ending;
use crate::errors::{TimedOut, failure};

/// How much later than its time limit a call gives up by itself: the daemon, which keeps the limit,
/// does not answer then.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes a call that can wait. On the main thread, where Python's signal handlers run, it is
/// interrupted by a handler that raises, as that of Ctrl-C does.
pub fn blocking<T: Send>(
    py: Python<'_>,
    limit: Option<Duration>,
    call: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<T> {
    // The interpreter's main thread is the process's.
    let main = rustix::thread::gettid() == rustix::process::getpid();
    py.detach(|| {
        let outcome = wait(main, limit, call);
        ending::come_back(main);
        outcome
    })
}

fn wait<T>(
    main: bool,
    limit: Option<Duration>,
    call: impl FnOnce() -> Result<T, Error>,
) -> PyResult<T> {
    if !main && limit.is_none() {
        return call().map_err(failure);
    }
    let end = limit.and_then(|limit| Instant::now().checked_add(limit.saturating_add(PATIENCE)));
    let raised = Rc::new(Cell::new(None));
    let raise = raised.clone();
    let interrupted = move || {
        if let Some(Err(e)) = main.then(check_signals) {
            raise.set(Some(e));
            return true;
        }
        end.is_some_and(|end| Instant::now() >= end)
    };
    match interruptible(interrupted, call) {
        Err(Error::Interrupted) => Err(raised.take().unwrap_or_else(|| {
            let text = "the lock daemon does not answer, and the time limit is over: see whether \
                        it runs, with `lockify status`";
            TimedOut::new_err(text)
        })),
        outcome => outcome.map_err(failure),
    }
}

fn check_signals() -> PyResult<()> {
    // Without an interpreter to come back to, the process is ending.
    Python::try_attach(|py| py.check_signals()).unwrap_or(Ok(()))
}

/// Calls a Python function from a thread of the client. What it raises is reported.
pub fn call_back<A>(callback: &Py<PyAny>, arguments: A)
where
    A: for<'py> IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
{
    ending::callback(|py| {
        let callback = callback.bind(py);
        let called = arguments.into_pyobject(py).and_then(|arguments| callback.call1(arguments));
        if let Err(e) = called {
            e.write_unraisable(py, Some(callback));
        }
    });
}

/// A time limit in seconds.
pub fn limit(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else { return Ok(None) };
    let limit = Duration::try_from_secs_f64(seconds);
    let bad = |e| PyValueError::new_err(format!("a time limit of {seconds} seconds: {e}"));
    limit.map(Some).map_err(bad)
}
