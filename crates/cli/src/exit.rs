//! Exit codes, and errors that say what to do next.

use std::fmt::{self, Display};
use std::process::ExitCode;

/// How `lockify` ends. `lockify run` otherwise ends as its command does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Code {
    /// All is well.
    Success = 0,
    /// The checked object violates a rule.
    Violated = 1,
    /// The command line or an input file cannot be understood (clap uses it, too).
    Unreadable = 2,
    /// The daemon, the cluster or the system fails.
    Failed = 3,
    /// `run`: something of the command could not be ended, and the lock stays held until it has.
    Survived = 122,
    /// `run`: the lock was lost while the command ran.
    Lost = 123,
    /// `run`: the lock was not granted in time.
    TimedOut = 124,
    /// `run`: the lock could not be had for another reason; the command was not started.
    NotLocked = 125,
    /// `run`: the command cannot be executed.
    NotExecutable = 126,
    /// `run`: there is no such command.
    NotFound = 127,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> ExitCode {
        ExitCode::from(code as u8)
    }
}

/// The table for `--help`.
pub const HELP: &str = "\
Exit codes:
  0    success
  1    check, sim, demo: a rule was violated; status: something is wrong with the cluster, the array or the kernel
  2    the command line or an input file cannot be understood
  3    the daemon, the cluster or the system failed
  run ends as its command does (128 + N if signal N ended it), or with
  122  the command was to be ended, and a part of it could not be: the lock stays held until it has
  123  the lock was lost while the command ran
  124  the lock was not granted within --timeout (or the code that --conflict-exit-code gives)
  125  the lock could not be had; the command was not started
  126  the command cannot be executed
  127  there is no such command";

/// An error, and the exit code for scripts.
#[derive(Debug)]
pub struct Failure {
    code: Code,
    what: String,
}

impl Failure {
    /// A failure; `what` says what happened and what to do next.
    pub fn new(code: Code, what: impl Display) -> Failure {
        Failure { code, what: what.to_string() }
    }

    /// The exit code.
    pub fn code(&self) -> Code {
        self.code
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// The result of a subcommand: the exit code of a run that came to an end.
pub type Ended = Result<ExitCode, Failure>;

/// Gives errors an exit code.
pub trait OrFail<T> {
    /// The value, or a failure with this code and the error's text.
    fn or_fail(self, code: Code) -> Result<T, Failure>;
}

impl<T, E: Display> OrFail<T> for Result<T, E> {
    fn or_fail(self, code: Code) -> Result<T, Failure> {
        self.map_err(|e| Failure::new(code, e))
    }
}
