//! The client's errors as those of `lockify/_errors.py`.

use lockify_client::protocol::Refusal;
use lockify_client::{CallRefusal, Error};
use pyo3::PyErr;
use pyo3::exceptions::PyValueError;

mod imported {
    #![allow(missing_docs)]
    use pyo3::import_exception;

    import_exception!(lockify._errors, Busy);
    import_exception!(lockify._errors, Canceled);
    import_exception!(lockify._errors, Deadlock);
    import_exception!(lockify._errors, Disconnected);
    import_exception!(lockify._errors, Forked);
    import_exception!(lockify._errors, LimitReached);
    import_exception!(lockify._errors, LockifyError);
    import_exception!(lockify._errors, LockspaceExists);
    import_exception!(lockify._errors, Lost);
    import_exception!(lockify._errors, NoDaemon);
    import_exception!(lockify._errors, NoSuchLockspace);
    import_exception!(lockify._errors, NotJoined);
    import_exception!(lockify._errors, NotPermitted);
    import_exception!(lockify._errors, Released);
    import_exception!(lockify._errors, TimedOut);
    import_exception!(lockify._errors, WouldBlock);
}

pub use imported::*;

/// The exception for an error of the client.
pub fn failure(e: Error) -> PyErr {
    let text = e.to_string();
    match e {
        Error::NoDaemon { .. }
        | Error::NotServed(_)
        | Error::NoAnswer { .. }
        | Error::NotOurs { .. }
        | Error::NotYours { .. }
        | Error::NoDomain(_)
        | Error::NotStarted(_)
        | Error::NotADaemon(_)
        | Error::Version(_) => NoDaemon::new_err(text),
        Error::Disconnected(_) => Disconnected::new_err(text),
        Error::Name(_) => PyValueError::new_err(text),
        Error::Refused(why) => refused(&why, text),
        Error::WouldBlock => WouldBlock::new_err(text),
        Error::TimedOut => TimedOut::new_err(text),
        Error::Canceled => Canceled::new_err(text),
        Error::Deadlock => Deadlock::new_err(text),
        Error::Lost(_) => Lost::new_err(text),
        _ => LockifyError::new_err(text),
    }
}

fn refused(why: &Refusal, text: String) -> PyErr {
    match why {
        Refusal::Core(CallRefusal::Invalid(_)) | Refusal::UnknownFlags(_) => {
            PyValueError::new_err(text)
        }
        Refusal::Core(CallRefusal::Busy) | Refusal::SpaceLeaving(_) | Refusal::SpaceBusy(..) => {
            Busy::new_err(text)
        }
        Refusal::Core(CallRefusal::OtherMode) => WouldBlock::new_err(text),
        Refusal::Core(CallRefusal::NotMember | CallRefusal::Leaving) => NotJoined::new_err(text),
        Refusal::Core(CallRefusal::Lost | CallRefusal::NoEntry) => Lost::new_err(text),
        Refusal::NotOpen | Refusal::NoSuchSpace { .. } => NoSuchLockspace::new_err(text),
        Refusal::TooManyLocks(_) | Refusal::TooManyLocksOfUser(_) | Refusal::TooManySpaces(_) => {
            LimitReached::new_err(text)
        }
        Refusal::NotPermitted
        | Refusal::MayNotLock(_)
        | Refusal::MayNotLook(_)
        | Refusal::MayNotReload => NotPermitted::new_err(text),
        Refusal::SpaceExists(_) => LockspaceExists::new_err(text),
        Refusal::Failed(_) | Refusal::NotReloaded(_) => LockifyError::new_err(text),
    }
}
