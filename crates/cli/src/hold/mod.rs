//! Holds a lock while a command runs, so that nothing of the command outlives the lock.
//!
//! Three processes do it, forked before there are any threads:
//!
//! ```text
//! front      the process that the caller started: it passes signals on and gives the exit code
//!   guardian   holds the lock, adopts the command's orphans, ends all of it
//!     command    stays in the caller's session and process group
//! ```
//!
//! The guardian is the subreaper of the command's processes, so none of them leaves its tree, and it
//! has a session of its own, so no signal to the caller's group or terminal reaches it. If the front
//! is killed, the guardian ends the tree and then gives the lock back. If the guardian is killed, the
//! kernel makes the front the new parent of the tree, and the front ends it. The command inherits the
//! session with the daemon, so the lock stays even if both are killed, as with flock(1).

mod caller;
mod command;
mod ending;
mod front;
mod guardian;
mod link;
mod tree;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::BorrowedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use nix::unistd::ForkResult;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Pid, getpid};

use crate::exit::{Code, Ended, Failure, OrFail as _};
use caller::Caller;
use link::Link;

/// The action on a command whose lock is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum OnLost {
    /// SIGKILL to all of it.
    Kill,
    /// SIGTERM, and SIGKILL later.
    Signal,
    /// Only a message.
    Ignore,
}

/// The command, and the way in which it ends.
pub struct Plan<'a> {
    /// The command's words.
    pub command: &'a [OsString],
    /// The action if the lock is lost.
    pub on_lost: OnLost,
    /// How long it may take to end after SIGTERM.
    pub kill_after: Duration,
    /// The lock ends with the command, whatever the command leaves behind.
    pub close: bool,
    /// How long the lock may take.
    pub patience: Option<Patience>,
}

/// The time limit for everything before the lock is held, whichever side does not answer.
pub struct Patience {
    /// The end of it.
    pub until: Instant,
    /// The message for that case, and the exit code.
    pub late: NotHeld,
}

/// Why a lock is not held, and the exit code for it.
#[derive(Debug)]
pub struct NotHeld {
    /// The exit code.
    pub code: u8,
    /// The event, and the remedy.
    pub what: String,
}

impl From<Failure> for NotHeld {
    fn from(failure: Failure) -> NotHeld {
        NotHeld { code: failure.code() as u8, what: failure.to_string() }
    }
}

impl NotHeld {
    fn say(&self) -> ExitCode {
        say(format_args!("{}", self.what));
        ExitCode::from(self.code)
    }
}

/// A lock that is held.
pub trait Held {
    /// The environment of the command.
    fn environment(&self) -> Vec<(String, String)>;

    /// The descriptor that keeps the lock as long as a process has it open: the session, if it is a
    /// socket.
    fn keeps(&self) -> Vec<BorrowedFd<'_>>;

    /// An error if the lock has been lost already.
    fn check(&self) -> Result<(), Failure>;

    /// Gives the lock back within a bounded time; true if it turns out to have been lost.
    fn release(self: Box<Self>) -> Result<bool, Failure>;
}

/// That the lock is lost.
pub struct Lost {
    /// The reason of the loss.
    pub why: String,
    /// The remedy for the user.
    pub then: &'static str,
}

/// Tells the guardian of a loss, from any thread.
#[derive(Clone)]
pub struct Alarm {
    losses: Sender<Lost>,
    bell: Arc<std::os::fd::OwnedFd>,
}

impl Alarm {
    fn new() -> Result<(Alarm, Receiver<Lost>), Failure> {
        let (losses, heard) = channel();
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok((Alarm { losses, bell: Arc::new(bell.or_fail(Code::NotLocked)?) }, heard))
    }

    /// Tells it.
    pub fn lost(&self, lost: Lost) {
        // Both fail only when the guardian is about to end.
        let _ = self.losses.send(lost);
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

/// Runs a command while the lock that `lock` takes is held.
///
/// `lock` runs in the guardian. It is killed there if the front ends before the lock is held.
pub fn hold(plan: &Plan<'_>, lock: impl FnOnce(&Alarm) -> Result<Box<dyn Held>, NotHeld>) -> Ended {
    let callers = Callers {
        signals: Caller::take().or_fail(Code::NotLocked)?,
        descriptors: descriptors(),
        children: tree::children_of_this_process(),
    };
    let (ours, theirs) = Link::pair().or_fail(Code::NotLocked)?;
    let front = getpid();
    match fork()? {
        None => {
            drop(ours);
            guardian::run(plan, &callers, theirs, front, lock)
        }
        Some(guardian) => {
            drop(theirs);
            front::watch(plan, &callers, ours, guardian)
        }
    }
}

/// The inheritance from this process's caller.
struct Callers {
    signals: Caller,
    /// Beside standard input, output and error.
    descriptors: Vec<i32>,
    /// Children from before this program: a shell that has called exec may have some.
    children: Vec<Pid>,
}

/// Forks; the child's number in the parent, `None` in the child.
#[allow(unsafe_code)]
fn fork() -> Result<Option<Pid>, Failure> {
    // SAFETY: the process has one thread here, so the child may do what any process may.
    match unsafe { nix::unistd::fork() } {
        Ok(ForkResult::Child) => Ok(None),
        Ok(ForkResult::Parent { child }) => Ok(Pid::from_raw(child.as_raw())),
        Err(e) => Err(Failure::new(
            Code::NotLocked,
            format!("cannot start a process ({e}): end some, or raise the limit (ulimit -u)"),
        )),
    }
}

fn descriptors() -> Vec<i32> {
    let Ok(all) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let numbers = all.flatten().filter_map(|fd| fd.file_name().to_str()?.parse().ok());
    let mut numbers: Vec<i32> = numbers.collect();
    // The directory itself was among them, and is closed again.
    numbers.retain(|fd| *fd > 2 && is_open(*fd));
    numbers
}

fn is_open(fd: i32) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok()
}

/// A message on standard error. A terminal that is gone is no reason to end.
fn say(what: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "lockify: {what}");
}
