//! Errors of calls, and their remedies.

use std::io;
use std::path::PathBuf;

use lockify_core::{BadName, LostReason, Status};
use lockify_session::protocol::{Answer, Goodbye, OLDEST, Refusal, VERSION};

/// Why a call failed. Each message says what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing listens on the daemon's socket.
    #[error("no lock daemon answers on {socket} ({why}): {then}")]
    NoDaemon {
        /// The socket: a path, or `@NAME`.
        socket: PathBuf,
        /// The system's error.
        why: String,
        /// The remedy.
        then: String,
    },
    /// Something listens there and does not greet in time.
    #[error(
        "the lock daemon on {socket} does not answer ({why}): if it was stopped, have it go on \
             (SIGCONT); if it starts, try again; its log says what it does"
    )]
    NoAnswer {
        /// The socket: a path, or `@NAME`.
        socket: PathBuf,
        /// The system's error.
        why: String,
    },
    /// The daemon is there, and does not serve this program now.
    #[error("the lock daemon does not serve this program: {0}")]
    NotServed(Goodbye),
    /// A user's own daemon serves that user and root, and hangs up on all others.
    #[error(
        "{socket} is the lock daemon of user {owner}, which serves that user and root, and not user {user}"
    )]
    NotYours {
        /// The name of the socket, `@NAME`.
        socket: PathBuf,
        /// The user whose daemon it is.
        owner: u32,
        /// The user that asked.
        user: u32,
    },
    /// Another user's process uses the name of this user's daemon, and gets no requests.
    #[error(
        "{socket} is for the lock daemon of user {expected}, and a process of user {found} (pid \
             {pid}; 0: not visible here) listens there: nothing is locked until that process ends"
    )]
    NotOurs {
        /// The name of the socket, `@NAME`.
        socket: PathBuf,
        /// The user whose daemon it has to be.
        expected: u32,
        /// The user whose process it is.
        found: u32,
        /// That process.
        pid: u32,
    },
    /// Where this program locks cannot be told.
    #[error("{0}")]
    NoDomain(String),
    /// This user's own daemon does not start.
    #[error("this user's own lock daemon cannot be started: {0}")]
    NotStarted(String),
    /// The daemon speaks another version of the session protocol.
    #[error(
        "the daemon speaks session protocol {0}, this program {OLDEST} to {VERSION}: upgrade the \
             older one"
    )]
    Version(u16),
    /// The daemon is too old for this call; all others work.
    #[error(
        "the daemon speaks session protocol {spoken}, and this needs {needed}: upgrade the daemon"
    )]
    TooOld {
        /// The version of the session.
        spoken: u16,
        /// The first version that knows the call.
        needed: u16,
    },
    /// Something else than a lock daemon listens on the socket.
    #[error("{0} is not the socket of a lock daemon: name the right one")]
    NotADaemon(PathBuf),
    /// The session with the daemon has ended: every lock of it is lost. Connect again.
    #[error(
        "the session with the lock daemon has ended ({0}): its locks are lost, abandon what \
             they protect and connect again"
    )]
    Disconnected(String),
    /// The resource's name is not acceptable.
    #[error(transparent)]
    Name(#[from] BadName),
    /// The call was refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The lock is held in a conflicting mode (EAGAIN), and the call was not to wait.
    #[error("the lock is held in a conflicting mode: try later, or wait for it")]
    WouldBlock,
    /// The lock was not granted in the time given (ETIMEDOUT).
    #[error("the lock was not granted in time: see `lockify who` for its holders")]
    TimedOut,
    /// The operation was cancelled (ECANCEL).
    #[error("the operation was cancelled")]
    Canceled,
    /// The lock would wait for one that waits for this session, or for this lock (EDEADLK).
    #[error("deadlock: release what you hold (or convert it down) and start again")]
    Deadlock,
    /// The lock has been lost; the protected data may have changed.
    #[error("the lock was lost ({}): abandon what it protected", lost_because(*.0))]
    Lost(LostReason),
    /// A blocking call was interrupted by its own thread ([`crate::interruptible`]).
    #[error("the call was interrupted: what it asked for is taken back")]
    Interrupted,
    /// The embedded node could not be started or run.
    #[error("the embedded lock manager failed: {0}")]
    Node(String),
}

/// The remedy if a named daemon does not run.
pub(crate) const START: &str = "start one with `lockify serve`, or name its socket";

fn lost_because(reason: LostReason) -> &'static str {
    match reason {
        LostReason::Conflict => "its claim was refused and another node's lock did not go",
        LostReason::Halted => "the node lost its quorum or left the cluster",
    }
}

impl Error {
    pub(crate) fn disconnected(why: &io::Error) -> Error {
        Error::Disconnected(why.to_string())
    }

    /// The error of an operation that ended with `status`; `None` if it succeeded.
    pub(crate) fn of_status(status: Status) -> Option<Error> {
        Some(match status {
            Status::Granted | Status::Unlocked => return None,
            Status::Again => Error::WouldBlock,
            Status::Canceled => Error::Canceled,
            Status::Deadlock => Error::Deadlock,
            Status::TimedOut => Error::TimedOut,
            Status::Refused(e) => Error::Refused(Refusal::Core(e)),
        })
    }
}

impl From<Goodbye> for Error {
    fn from(goodbye: Goodbye) -> Error {
        Error::Disconnected(goodbye.to_string())
    }
}

/// The error for an answer to another question.
pub(crate) fn unexpected(answer: &Answer) -> Error {
    Error::Disconnected(format!("it answered another question: {answer:?}"))
}
