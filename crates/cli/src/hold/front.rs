//! The process that the caller started: it connects, passes signals on, and gives the exit code.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid,
};

use super::ending::{Ending, report};
use super::link::{Link, ToFront, ToGuardian};
use super::tree::Tree;
use super::{Callers, Plan, caller, say};
use crate::exit::{Code, Ended, Failure, OrFail as _};

/// Between two attempts to connect to a daemon whose queue is full.
const RETRY: Duration = Duration::from_millis(20);

/// Between two looks at processes that are being killed.
const LOOK: Duration = Duration::from_millis(20);

/// Stays until the guardian says the exit code.
pub fn watch(plan: &Plan<'_>, callers: &Callers, link: Link, guardian: Pid) -> Ended {
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let signals = SignalFd::with_flags(&caller::read(), flags).or_fail(Code::NotLocked)?;
    let waits = Waits::ForLock { dials: None };
    let mut front = Front { plan, callers, link, guardian, signals, waits };
    loop {
        let guardian_speaks = front.wait();
        if let Some(ended) = front.signals().or_else(|| front.late()) {
            return ended;
        }
        front.redial();
        if guardian_speaks && let Some(ended) = front.hear() {
            return ended;
        }
    }
}

/// The events that the front waits for.
enum Waits {
    /// The lock is not held yet. A daemon that is dialed may have no room for one more.
    ForLock { dials: Option<PathBuf> },
    /// The command runs. Our copy of what keeps the lock counts if the guardian is killed.
    ForCommand { _keeps: Vec<OwnedFd> },
}

struct Front<'p> {
    plan: &'p Plan<'p>,
    callers: &'p Callers,
    link: Link,
    guardian: Pid,
    signals: SignalFd,
    waits: Waits,
}

impl Front<'_> {
    /// Waits for news; whether they are the guardian's.
    fn wait(&self) -> bool {
        let timeout = self.timeout().and_then(|timeout| Timespec::try_from(timeout).ok());
        let source = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut sources = [source(self.signals.as_fd()), source(self.link.as_fd())];
        poll(&mut sources, timeout.as_ref()).is_ok() && !sources[1].revents().is_empty()
    }

    fn timeout(&self) -> Option<Duration> {
        let Waits::ForLock { dials } = &self.waits else { return None };
        let now = Instant::now();
        let late = self.plan.patience.as_ref().map(|p| p.until.saturating_duration_since(now));
        let retry = dials.as_ref().map(|_| RETRY);
        late.into_iter().chain(retry).min()
    }

    /// Reads signals; the end, if one of them ends the wait for the lock.
    fn signals(&mut self) -> Option<Ended> {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let number = info.ssi_signo.cast_signed();
            // Zero and less are processes; the terminal's signals are the kernel's.
            let from_process = info.ssi_code <= 0;
            let ended = match self.waits {
                Waits::ForLock { .. } => self.give_up_by(number),
                Waits::ForCommand { .. } => {
                    // Fails if the guardian is gone, which is found next.
                    let _ = self.link.send(&ToGuardian::Signal { number, from_process }, &[]);
                    None
                }
            };
            if ended.is_some() {
                return ended;
            }
        }
        None
    }

    /// Without the lock, signals end this program as any other one.
    fn give_up_by(&mut self, number: i32) -> Option<Ended> {
        use nix::sys::signal::Signal::{self, SIGCONT, SIGWINCH};
        match Signal::try_from(number) {
            Ok(SIGCONT | SIGWINCH) | Err(_) => None,
            Ok(signal) => {
                self.stop_waiting();
                Some(Ok(caller::die_of(signal)))
            }
        }
    }

    /// The end, if the lock was not granted in time.
    fn late(&mut self) -> Option<Ended> {
        let patience = self.plan.patience.as_ref()?;
        let waits = matches!(self.waits, Waits::ForLock { .. });
        if !waits || Instant::now() < patience.until {
            return None;
        }
        self.stop_waiting();
        Some(Ok(patience.late.say()))
    }

    /// Ends the guardian, and with its session the request, whether or not the daemon answers.
    fn stop_waiting(&self) {
        // Fails if it has just ended; waiting fails only if this process may not have children.
        let _ = kill_process(self.guardian, Signal::KILL);
        let _ = waitpid(Some(self.guardian), WaitOptions::empty());
    }

    /// Handles the guardian's messages; returns the end, if it is one.
    fn hear(&mut self) -> Option<Ended> {
        match self.link.receive() {
            Ok(Some((ToFront::Dial(path), _))) => {
                let dials = Some(PathBuf::from(OsStr::from_bytes(&path)));
                self.waits = Waits::ForLock { dials };
                self.redial();
            }
            Ok(Some((ToFront::Locked, keeps))) => return self.start(keeps).err().map(Err),
            Ok(Some((ToFront::Over(code), _))) => return Some(Ok(ExitCode::from(code))),
            Ok(None) | Err(_) => return Some(self.bereft()),
        }
        None
    }

    /// Tries to connect for the guardian.
    fn redial(&mut self) {
        let Waits::ForLock { dials: Some(path) } = &self.waits else { return };
        let (answer, socket) = match dial(path) {
            Err(Errno::AGAIN) => return,
            Err(e) => (Some(e.raw_os_error()), None),
            Ok(socket) => (None, Some(socket)),
        };
        self.waits = Waits::ForLock { dials: None };
        // Fails if the guardian is gone, which is found next.
        let socket = socket.as_ref().map(|socket| socket.as_fd());
        let _ = self.link.send(&ToGuardian::Dialed(answer), socket.as_slice());
    }

    /// The lock is held: from now on signals are the command's.
    fn start(&mut self, keeps: Vec<OwnedFd>) -> Result<(), Failure> {
        // If the guardian is killed, the command's processes come here.
        set_child_subreaper(Some(getpid())).or_fail(Code::NotLocked)?;
        self.waits = Waits::ForCommand { _keeps: keeps };
        // Fails if the guardian is gone, which is found next.
        let _ = self.link.send(&ToGuardian::Start, &[]);
        Ok(())
    }

    /// The guardian was killed: nobody watches the lock.
    fn bereft(&self) -> Ended {
        if matches!(self.waits, Waits::ForLock { .. }) {
            let what = "the process that waits for the lock was killed: repeat";
            return Err(Failure::new(Code::NotLocked, what));
        }
        say(format_args!(
            "the process that holds the lock was killed: the command is being killed, with all \
             that it has started"
        ));
        let mut tree = Tree::new(None, self.callers.children.clone());
        let mut ending = Ending::kill();
        while !tree.living().is_empty() {
            if let Some(survivors) = ending.turn(&mut tree) {
                report(&survivors, "this may still run when the lock is free");
                break;
            }
            std::thread::sleep(LOOK);
        }
        Ok(Code::Lost.into())
    }
}

/// Connects without waiting; the connection then waits as any other.
fn dial(path: &Path) -> Result<OwnedFd, Errno> {
    let address = match path.as_os_str().as_bytes() {
        // The abstract namespace of unix(7).
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        path => SocketAddrUnix::new(path)?,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &address)?;
    ioctl_fionbio(&socket, false)?;
    Ok(socket)
}
