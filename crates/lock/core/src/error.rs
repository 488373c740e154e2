//! The immediate refusals of a call, and the ends of an accepted operation.

use serde::{Deserialize, Serialize};

/// A call was refused: nothing was started, no completion will come, the state is as before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Error {
    /// EINVAL: the flags or the mode do not fit the call.
    #[error("invalid argument: {0}")]
    Invalid(Invalid),
    /// EBUSY: the lock has an operation outstanding, or is not granted.
    #[error("busy: the lock has an operation outstanding, or is not granted")]
    Busy,
    /// ENOENT: no such lock of this client, or no orphan to adopt.
    #[error("no such lock (or orphan) of this client")]
    NoEntry,
    /// EAGAIN on adoption: orphans of that name exist, but in other modes.
    #[error("orphans of that name exist only in other modes: adopt in that mode, then convert")]
    OtherMode,
    /// The lock was lost (a refused claim, or the node left): only unlocking it is possible.
    #[error("the lock was lost: unlock it")]
    Lost,
    /// The node is no member of the lockspace (never joined, lost quorum, left or was removed).
    #[error("this node is not a member of the lockspace: wait until it has joined")]
    NotMember,
    /// The node is leaving the lockspace.
    #[error("this node is leaving the lockspace")]
    Leaving,
}

/// Why arguments are invalid (docs/design/semantics.md 3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Invalid {
    /// QUECVT, CONVDEADLK, IVVALBLK or FREED on a call that is not a conversion.
    #[error("QUECVT, CONVDEADLK, IVVALBLK and FREED go with conversions only")]
    ConvertOnly,
    /// EXPEDITE, ORPHAN or NOTIFY on a conversion.
    #[error("EXPEDITE, ORPHAN and NOTIFY go with new locks only")]
    RequestOnly,
    /// CONVDEADLK with NOQUEUE.
    #[error("CONVDEADLK and NOQUEUE exclude each other")]
    DeadlkNoqueue,
    /// EXPEDITE with another mode than NL, or with NOQUEUE.
    #[error("EXPEDITE goes with mode NL and without NOQUEUE")]
    Expedite,
    /// QUECVT for a pair of modes that it is not allowed for.
    #[error("QUECVT is not allowed for this pair of modes")]
    Quecvt,
    /// VALBLK without a lock value block.
    #[error("VALBLK needs a lock value block")]
    NoLvb,
    /// A lock value block whose length is not the lockspace's.
    #[error("the lock value block's length is not the lockspace's")]
    LvbLength,
}

impl From<Invalid> for Error {
    fn from(i: Invalid) -> Error {
        Error::Invalid(i)
    }
}

/// How an operation ended: the completion AST's status.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Status {
    /// 0: granted or converted.
    Granted,
    /// EUNLOCK: unlocked, the lock is gone.
    Unlocked,
    /// EAGAIN: NOQUEUE and not grantable; a new lock is gone, a conversion kept its mode.
    Again,
    /// ECANCEL: cancelled; a new lock is gone, a conversion kept its mode.
    Canceled,
    /// EDEADLK: a deadlock, of conversions or found by a search; as for [`Status::Canceled`].
    Deadlock,
    /// ETIMEDOUT: waited longer than its time-out; as for [`Status::Canceled`].
    TimedOut,
    /// A call that had waited (at the recovery gate or behind the barrier) is no longer possible.
    Refused(Error),
}

impl Status {
    /// The errno of libdlm's `sb_status` (positive; EUNLOCK is 0x10002, ECANCEL 0x10001).
    pub const fn errno(self) -> i32 {
        match self {
            Status::Granted => 0,
            Status::Unlocked => 0x10002,
            Status::Again => 11,
            Status::Canceled => 0x10001,
            Status::Deadlock => 35,
            Status::TimedOut => 110,
            Status::Refused(Error::Invalid(_)) => 22,
            Status::Refused(Error::Busy) => 16,
            Status::Refused(Error::NoEntry) => 2,
            Status::Refused(Error::OtherMode) => 11,
            Status::Refused(Error::Lost) => 5,
            Status::Refused(Error::NotMember | Error::Leaving) => 107,
        }
    }
}
