//! The return codes of calls, and their messages.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use lockify_client::Error;
use lockify_client::protocol::Refusal;

/// `enum lockify_code`, without 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub(crate) enum Code {
    Invalid = 1,
    NoDaemon = 2,
    Disconnected = 3,
    WouldBlock = 4,
    TimedOut = 5,
    Canceled = 6,
    Deadlock = 7,
    Lost = 8,
    NoSpace = 9,
    Exists = 10,
    Busy = 11,
    NotPermitted = 12,
    Limit = 13,
    Failed = 14,
    NotMember = 15,
}

/// Why a call fails.
#[derive(Debug)]
pub(crate) struct Failure {
    code: Code,
    text: String,
}

impl Failure {
    pub(crate) fn new(code: Code, text: String) -> Failure {
        Failure { code, text }
    }

    /// Of a call for a lock that was held.
    pub(crate) fn of_held(e: Error) -> Failure {
        use lockify_client::CallRefusal as Core;
        let halted = matches!(e, Error::Refused(Refusal::Core(Core::NotMember)));
        let mut failure = Failure::from(e);
        if halted {
            // A node that is no member has lost what its clients held; they may be told later.
            failure.code = Code::Lost;
        }
        failure
    }

    pub(crate) fn invalid(text: String) -> Failure {
        Failure::new(Code::Invalid, text)
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        let code = match &e {
            Error::NoDaemon { .. }
            | Error::NotServed(_)
            | Error::NoAnswer { .. }
            | Error::NotOurs { .. }
            | Error::NotYours { .. }
            | Error::NoDomain(_)
            | Error::NotStarted(_)
            | Error::NotADaemon(_)
            | Error::Version(_) => Code::NoDaemon,
            Error::Disconnected(_) => Code::Disconnected,
            Error::Name(_) => Code::Invalid,
            Error::Refused(why) => of_refusal(why),
            Error::WouldBlock => Code::WouldBlock,
            Error::TimedOut => Code::TimedOut,
            Error::Canceled => Code::Canceled,
            Error::Deadlock => Code::Deadlock,
            Error::Lost(_) => Code::Lost,
            _ => Code::Failed,
        };
        Failure::new(code, e.to_string())
    }
}

fn of_refusal(why: &Refusal) -> Code {
    use lockify_client::CallRefusal as Core;
    match why {
        Refusal::Core(Core::Invalid(_)) | Refusal::UnknownFlags(_) => Code::Invalid,
        Refusal::Core(Core::Busy) => Code::Busy,
        Refusal::Core(Core::OtherMode) => Code::WouldBlock,
        Refusal::Core(Core::Lost) => Code::Lost,
        Refusal::Core(Core::NotMember | Core::Leaving) => Code::NotMember,
        Refusal::NotOpen | Refusal::NoSuchSpace { .. } => Code::NoSpace,
        Refusal::TooManyLocks(_) | Refusal::TooManyLocksOfUser(_) | Refusal::TooManySpaces(_) => {
            Code::Limit
        }
        Refusal::NotPermitted
        | Refusal::MayNotLock(_)
        | Refusal::MayNotLook(_)
        | Refusal::MayNotReload => Code::NotPermitted,
        Refusal::SpaceExists(_) => Code::Exists,
        Refusal::SpaceLeaving(_) | Refusal::SpaceBusy(..) => Code::Busy,
        Refusal::Core(Core::NoEntry) | Refusal::Failed(_) | Refusal::NotReloaded(_) => Code::Failed,
    }
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// The message of the thread's last failed call; valid until its next one.
pub(crate) fn message() -> *const c_char {
    MESSAGE.with_borrow(|text| text.as_ptr())
}

/// A text for C; what follows a zero byte is lost, of which there is none in messages.
pub(crate) fn c_text(text: &str) -> CString {
    let text = text.split('\0').next().unwrap_or_default();
    CString::new(text).unwrap_or_default()
}

/// Makes a call: its failure becomes a code and a message, and so does a panic.
pub(crate) fn call(call: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(
            Code::Failed,
            "the library panicked: report it with what it wrote to standard error".into(),
        ),
    };
    MESSAGE.with_borrow_mut(|text| *text = c_text(&failure.text));
    failure.code as c_int
}

#[cfg(test)]
mod tests {
    use lockify_client::CallRefusal as Core;

    use super::*;

    #[test]
    fn a_node_that_is_no_member_has_lost_only_what_was_held() {
        let refused = |why| Error::Refused(Refusal::Core(why));
        assert_eq!(Failure::from(refused(Core::NotMember)).code, Code::NotMember);
        assert_eq!(Failure::from(refused(Core::Leaving)).code, Code::NotMember);
        assert_eq!(Failure::of_held(refused(Core::NotMember)).code, Code::Lost);
        // Until it has left, its clients' locks are in force.
        assert_eq!(Failure::of_held(refused(Core::Leaving)).code, Code::NotMember);
        assert_eq!(Failure::of_held(refused(Core::Lost)).code, Code::Lost);
    }
}
