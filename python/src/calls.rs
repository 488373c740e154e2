//! Calls that wait: detached from the interpreter, interruptible by Ctrl-C.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lockify_client::{Error, Interrupt, interruptible};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::ending;
use crate::errors::{TimedOut, failure};
use crate::signals::Listening;

/// How much later than its time limit a call gives up by itself: the daemon, which keeps the limit,
/// does not answer then.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes a call that can wait. On the main thread, where Python's signal handlers run, it is
/// interrupted by a handler that raises, as that of Ctrl-C does. It sleeps until then. If a handler has raised, its exception is
/// the outcome, and the call's result is dropped: what has to be noted of it is the call's own business.
pub fn blocking<T: Send>(
    py: Python<'_>,
    limit: Option<Duration>,
    call: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<T> {
    // The interpreter's main thread is the process's.
    let main = rustix::thread::gettid() == rustix::process::getpid();
    let listening = if main { Listening::begin(py)? } else { None };
    // One that came before is not rung for any more.
    let signalled = if main { py.check_signals().err() } else { None };
    let outcome = py.detach(|| {
        let outcome = wait(listening.as_ref(), signalled, limit, call);
        ending::come_back(main);
        outcome
    });
    if let Some(listening) = listening {
        listening.end(py);
    }
    outcome
}

fn wait<T>(
    listening: Option<&Listening>,
    signalled: Option<PyErr>,
    limit: Option<Duration>,
    call: impl FnOnce() -> Result<T, Error>,
) -> PyResult<T> {
    let now = Instant::now();
    // The call is begun even then: a release goes on.
    let until = match &signalled {
        Some(_) => Some(now),
        None => limit.and_then(|limit| now.checked_add(limit.saturating_add(PATIENCE))),
    };
    if listening.is_none() && until.is_none() {
        return call().map_err(failure);
    }
    let raised = Rc::new(Cell::new(signalled));
    let (raise, heard) = (raised.clone(), listening.cloned());
    let bell = listening.map(Listening::descriptor);
    let check = move || {
        let Some(listening) = &heard else { return false };
        // In this order: a signal that comes after the look rings again.
        listening.empty();
        let signal = check_signals().err();
        let raised = signal.is_some();
        // One that came before the call is raised first.
        let first = raise.take().or(signal);
        raise.set(first);
        raised
    };
    let outcome = interruptible(Interrupt { bell, until, check: Box::new(check) }, call);
    match (raised.take(), outcome) {
        // The handler has run, so that nobody raises it again. The call may have ended all the same: then its result is dropped
        // here, and a lock is released by that.
        (Some(signal), _) => Err(signal),
        (None, Err(Error::Interrupted)) => {
            let text = "the lock daemon does not answer, and the time limit is over: see whether \
                        it runs, with `lockify status`";
            Err(TimedOut::new_err(text))
        }
        (None, outcome) => outcome.map_err(failure),
    }
}

fn check_signals() -> PyResult<()> {
    // Without an interpreter to come back to, the process is ending.
    Python::try_attach(|py| py.check_signals()).unwrap_or(Ok(()))
}

/// Calls a Python function from a thread of the client. Its exceptions are reported.
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
