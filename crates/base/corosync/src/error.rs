//! The errors of corosync's libraries.

use std::ffi::c_int;

/// `CS_OK` of `corotypes.h`.
pub(crate) const OK: c_int = 1;
const LIBRARY: c_int = 2;
const TRY_AGAIN: c_int = 6;
const EXIST: c_int = 14;
const ACCESS: c_int = 11;
const NOT_EXIST: c_int = 12;
const SECURITY: c_int = 100;

/// Corosync cannot be used, or not any more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// A library is not there.
    #[error("{library} cannot be loaded ({why}): install corosync 3")]
    Library {
        /// Its name.
        library: &'static str,
        /// The reason.
        why: String,
    },
    /// A call failed.
    #[error("{call}: {}", meaning(*.code))]
    Call {
        /// The function.
        call: &'static str,
        /// A `cs_error_t`.
        code: i32,
    },
    /// The cluster is not configured for this.
    #[error("{0}")]
    Setup(String),
}

impl Error {
    /// Corosync is busy (a ring is being formed, or its queue is full), or has not noticed yet that
    /// the program that this process was before has gone: the same call will do later.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Error::Call { code: TRY_AGAIN | EXIST, .. })
    }

    pub(crate) fn is_absence(&self) -> bool {
        matches!(self, Error::Call { code: NOT_EXIST, .. })
    }
}

fn meaning(code: i32) -> String {
    match code {
        LIBRARY => "corosync does not answer: is it running on this node?".into(),
        TRY_AGAIN => "corosync is busy: it forms a new ring, or its queue is full".into(),
        EXIST => "this process is a member of the group already".into(),
        ACCESS | SECURITY => "corosync does not let this user in: allow it in a uidgid section \
                              of corosync.conf"
            .into(),
        code => format!("corosync refuses with error {code} (cs_error_t)"),
    }
}

/// Turns a `cs_error_t` into a result.
pub(crate) fn check(call: &'static str, code: c_int) -> Result<(), Error> {
    if code == OK { Ok(()) } else { Err(Error::Call { call, code }) }
}
