//! Errors as C programs see them.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lockify_client::protocol::Refusal;
use lockify_client::{Error, Status};

/// Sets the calling thread's `errno`.
pub fn set(errno: c_int) {
    // SAFETY: the C library's own place for it, valid as long as the thread lives.
    unsafe { *libc::__errno_location() = errno };
}

/// Executes a C function. An error becomes -1 and `errno`; a panic becomes EIO: it must not cross
/// into C.
pub fn answer(call: impl FnOnce() -> Result<c_int, c_int>) -> c_int {
    let errno = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => return value,
        Ok(Err(errno)) => errno,
        Err(_) => libc::EIO,
    };
    set(errno);
    -1
}

/// The errno of a call that a daemon could not be asked, or refused.
pub(crate) fn of(error: &Error) -> c_int {
    match error {
        Error::NoDaemon { .. }
        | Error::NotServed(_)
        | Error::NoDomain(_)
        | Error::NotStarted(_) => libc::ECONNREFUSED,
        Error::NoAnswer { .. } => libc::ETIMEDOUT,
        Error::NotOurs { .. } | Error::NotYours { .. } => libc::EACCES,
        Error::NotADaemon(_) | Error::Version(_) => libc::EPROTO,
        Error::Disconnected(_) => libc::ENOTCONN,
        Error::Refused(why) => of_refusal(why),
        _ => libc::EIO,
    }
}

pub(crate) fn of_refusal(why: &Refusal) -> c_int {
    match why {
        Refusal::Core(e) => Status::Refused(*e).errno(),
        Refusal::UnknownFlags(_) => libc::EINVAL,
        Refusal::NotOpen | Refusal::NoSuchSpace { .. } => libc::ENOENT,
        Refusal::TooManyLocks(_) | Refusal::TooManyLocksOfUser(_) => libc::ENOLCK,
        Refusal::NotPermitted | Refusal::MayNotReload => libc::EPERM,
        // As opening the kernel's device for the lockspace.
        Refusal::MayNotLock(_) | Refusal::MayNotLook(_) => libc::EACCES,
        Refusal::SpaceExists(_) => libc::EEXIST,
        Refusal::SpaceLeaving(_) | Refusal::SpaceBusy(..) => libc::EBUSY,
        Refusal::TooManySpaces(_) => libc::ENOSPC,
        Refusal::Failed(_) | Refusal::NotReloaded(_) => libc::EIO,
    }
}
