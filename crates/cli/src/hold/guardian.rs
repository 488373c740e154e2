//! The process that holds the lock, and ends the command with all that it has started.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, Signal, WaitStatus, getpid, getppid, set_child_subreaper, set_parent_process_death_signal,
};

use super::command::become_command;
use super::ending::{Ending, report};
use super::link::{Link, ToCommand, ToFront, ToGuardian};
use super::tree::Tree;
use super::{Alarm, Callers, Held, Lost, NotHeld, OnLost, Plan, caller, fork, say};
use crate::exit::{Code, Failure, OrFail as _};

/// How long processes that the command leaves may take to end before they count as left.
const SETTLE: Duration = Duration::from_millis(100);

/// Holds the lock and runs the command; ends the process.
pub fn run(
    plan: &Plan<'_>,
    callers: &Callers,
    front: Link,
    front_pid: Pid,
    lock: impl FnOnce(&Alarm) -> Result<Box<dyn Held>, NotHeld>,
) -> ! {
    let front = Rc::new(front);
    let ended = guard(plan, callers, &front, front_pid, lock);
    let code = ended.unwrap_or_else(|failure| {
        failure.say();
        failure.code
    });
    // Fails if the front is gone, and has its exit code or needs none.
    let _ = front.send(&ToFront::Over(code), &[]);
    std::process::exit(code.into())
}

fn guard(
    plan: &Plan<'_>,
    callers: &Callers,
    front: &Rc<Link>,
    front_pid: Pid,
    lock: impl FnOnce(&Alarm) -> Result<Box<dyn Held>, NotHeld>,
) -> Result<u8, NotHeld> {
    // Until the lock is held, the end of the front ends the request.
    set_parent_process_death_signal(Some(Signal::KILL)).or_fail(Code::NotLocked)?;
    if getppid() != Some(front_pid) {
        return Err(front_is_gone().into());
    }
    let (starter, waits) = Link::pair().or_fail(Code::NotLocked)?;
    let me = getpid();
    // While there is one thread, and in the caller's session.
    let Some(command) = fork()? else {
        drop(starter);
        become_command(plan.command, &callers.signals, &waits, me)
    };
    drop(waits);
    let signals = seclude(&callers.descriptors).or_fail(Code::NotLocked)?;
    let (alarm, losses) = Alarm::new()?;
    let dials = front.clone();
    let held = lockify_client::dialing(move |path| dial(&dials, path), || lock(&alarm))?;
    begin(plan, front, &*held, &starter)?;
    drop(starter);
    let guardian = Guardian {
        plan,
        front: Some(front.clone()),
        signals,
        alarm,
        losses,
        tree: Tree::new(Some(command), Vec::new()),
        interrupted: Vec::new(),
        lost: false,
        ending: None,
        settled: None,
    };
    Ok(guardian.watch(held)?)
}

/// Leaves the caller's session, and lets go of all that is the caller's.
fn seclude(descriptors: &[i32]) -> io::Result<SignalFd> {
    caller::block_all()?;
    nix::unistd::setsid()?;
    set_child_subreaper(Some(getpid()))?;
    rustix::thread::set_name(c"lockify-guard")?;
    for descriptor in descriptors {
        // An error concerns output to it, and the caller's own copy shows it.
        let _ = nix::unistd::close(*descriptor);
    }
    let null = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    use nix::sys::signal::Signal::{SIGCHLD, SIGINT, SIGQUIT, SIGTERM};
    let heard: SigSet = [SIGCHLD, SIGINT, SIGQUIT, SIGTERM].into_iter().collect();
    Ok(SignalFd::with_flags(&heard, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// Has the front connect: the daemon is to know the lock as the front's.
fn dial(front: &Link, path: &Path) -> io::Result<UnixStream> {
    front.send(&ToFront::Dial(path.as_os_str().as_bytes().to_vec()), &[])?;
    let gone = || io::Error::other("lockify itself was killed");
    match front.receive()?.ok_or_else(gone)? {
        (ToGuardian::Dialed(None), sockets) => {
            sockets.into_iter().next().map(Into::into).ok_or_else(gone)
        }
        (ToGuardian::Dialed(Some(why)), _) => Err(io::Error::from_raw_os_error(why)),
        _ => Err(gone()),
    }
}

/// Lets the command start, if the lock and the front are still there.
fn begin(plan: &Plan<'_>, front: &Link, held: &dyn Held, starter: &Link) -> Result<(), Failure> {
    // From here on it is the guardian that survives.
    set_parent_process_death_signal(None).or_fail(Code::NotLocked)?;
    front.send(&ToFront::Locked, &held.keeps()).or_fail(Code::NotLocked)?;
    let Ok(Some((ToGuardian::Start, _))) = front.receive() else { return Err(front_is_gone()) };
    held.check()?;
    // Relative paths had their meaning until now.
    std::env::set_current_dir("/").or_fail(Code::NotLocked)?;
    let inherited = if plan.close { Vec::new() } else { held.keeps() };
    let start = ToCommand { environment: held.environment() };
    starter.send(&start, &inherited).or_fail(Code::NotLocked)
}

fn front_is_gone() -> Failure {
    Failure::new(Code::NotLocked, "lockify was killed before the command started")
}

/// The fate of the lock.
enum Verdict {
    /// Nothing of the command is left.
    Gone,
    /// The remaining processes do not count.
    Released,
    /// The lock is lost, and something cannot be ended.
    Survived,
}

struct Guardian<'p> {
    plan: &'p Plan<'p>,
    /// Gone once it has the exit code.
    front: Option<Rc<Link>>,
    signals: SignalFd,
    alarm: Alarm,
    losses: Receiver<Lost>,
    tree: Tree,
    /// Signals after which the command may end, and all that it has started has to.
    interrupted: Vec<i32>,
    lost: bool,
    ending: Option<Ending>,
    /// When processes that the ended command leaves count as left.
    settled: Option<Instant>,
}

impl Guardian<'_> {
    fn watch(mut self, held: Box<dyn Held>) -> Result<u8, Failure> {
        let verdict = loop {
            self.tree.reap();
            if let Some(verdict) = self.turn() {
                break verdict;
            }
            self.hear();
        };
        if self.lost_it() && matches!(verdict, Verdict::Gone) {
            say(format_args!("the command is gone, with all that it had started"));
        }
        // The front hears of it after the lock is free, so that the next holder finds it free.
        let lost = held.release()? && self.plan.on_lost != OnLost::Ignore;
        Ok(if lost { Code::Lost as u8 } else { self.code() })
    }

    /// Does the work that is due now.
    fn turn(&mut self) -> Option<Verdict> {
        let status = self.tree.status();
        if status.is_some() && self.tree.living().is_empty() {
            return Some(Verdict::Gone);
        }
        if self.ending.is_some() {
            return self.go_on_ending();
        }
        self.leave(status?)
    }

    fn go_on_ending(&mut self) -> Option<Verdict> {
        let survivors = self.ending.as_mut()?.turn(&mut self.tree)?;
        if self.lost {
            report(
                &survivors,
                "this still runs WITHOUT the lock: end it as the user that it runs as",
            );
            return Some(Verdict::Survived);
        }
        report(&survivors, "the lock stays held until this has ended");
        self.dismiss(Code::Survived as u8);
        None
    }

    /// The command has ended by itself, and has left processes behind.
    fn leave(&mut self, status: WaitStatus) -> Option<Verdict> {
        if self.plan.close || self.lost {
            return Some(Verdict::Released);
        }
        if by_signal(status).is_some_and(|signal| self.interrupted.contains(&signal)) {
            self.end_by(Signal::TERM);
        } else if self.front.is_some() {
            let now = Instant::now();
            if now >= *self.settled.get_or_insert(now + SETTLE) {
                let left = self.tree.living();
                say(format_args!(
                    "the lock stays held: of the command still run {}",
                    listed(&left)
                ));
                self.dismiss(exit_code(status));
            }
        }
        None
    }

    /// Lets the front end; what comes is no longer its matter.
    fn dismiss(&mut self, code: u8) {
        let Some(front) = self.front.take() else { return };
        detach();
        // Fails only if it is gone.
        let _ = front.send(&ToFront::Over(code), &[]);
    }

    fn lost_it(&self) -> bool {
        self.lost && self.plan.on_lost != OnLost::Ignore
    }

    fn code(&self) -> u8 {
        if self.lost_it() {
            return Code::Lost as u8;
        }
        self.tree.status().map_or(Code::Survived as u8, exit_code)
    }

    fn timeout(&self) -> Option<Duration> {
        let settled = self.settled.filter(|_| self.front.is_some());
        let settled = settled.map(|at| at.saturating_duration_since(Instant::now()));
        self.ending.as_ref().map_or(settled, Ending::timeout)
    }

    /// Waits for news and takes note of them.
    fn hear(&mut self) {
        let timeout = self.timeout().and_then(|timeout| Timespec::try_from(timeout).ok());
        let front = self.front.clone();
        let mut sources = vec![readable(self.signals.as_fd()), readable(self.alarm.bell.as_fd())];
        sources.extend(front.as_ref().map(|front| readable(front.as_fd())));
        if poll(&mut sources, timeout.as_ref()).is_err() {
            // Only EINTR; the next turn looks again.
            return;
        }
        let front_speaks = sources.get(2).is_some_and(|front| !front.revents().is_empty());
        self.hear_signals();
        self.hear_losses();
        if let Some(front) = front.filter(|_| front_speaks) {
            self.hear_front(&front);
        }
    }

    /// Signals to this process: its number is known from `ps` only, and means the command.
    fn hear_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            match Signal::from_named_raw(info.ssi_signo.cast_signed()) {
                // The next turn looks at the children.
                Some(Signal::CHILD) | None => {}
                Some(signal) => self.end_by(signal),
            }
        }
    }

    fn hear_losses(&mut self) {
        // The bell rings again for what comes after this.
        let _ = rustix::io::read(&*self.alarm.bell, &mut [0; 8]);
        while let Ok(lost) = self.losses.try_recv() {
            self.lose(&lost);
        }
    }

    fn lose(&mut self, lost: &Lost) {
        self.lost = true;
        let what = match self.plan.on_lost {
            OnLost::Kill => "the command is being killed, with all that it has started",
            OnLost::Signal => "the command is told to end (SIGTERM), with all that it has started",
            OnLost::Ignore => "the command goes on without it",
        };
        say(format_args!("{}", lost.why));
        say(format_args!("{what}; check what it was changing, {}", lost.then));
        match self.plan.on_lost {
            OnLost::Kill => self.kill(),
            OnLost::Signal => self.end_by(Signal::TERM),
            OnLost::Ignore => {}
        }
    }

    fn hear_front(&mut self, front: &Link) {
        match front.receive() {
            Ok(Some((ToGuardian::Signal { number, from_process }, _))) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    self.pass_on(signal, from_process);
                }
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => {
                self.front = None;
                say(format_args!(
                    "lockify was killed: the command is being killed, with all that it has started"
                ));
                self.kill();
            }
        }
    }

    fn pass_on(&mut self, signal: Signal, from_process: bool) {
        match signal {
            Signal::TERM | Signal::INT | Signal::QUIT if from_process => self.end_by(signal),
            // The terminal has sent it to the command as well, which may go on all the same.
            Signal::INT | Signal::QUIT => {
                self.interrupted.push(signal.as_raw());
                if let Some(ending) = &mut self.ending {
                    ending.hurry();
                }
            }
            Signal::HUP => {
                self.interrupted.push(signal.as_raw());
                self.tell_command(signal);
            }
            _ if from_process => self.tell_command(signal),
            _ => {}
        }
    }

    fn tell_command(&self, signal: Signal) {
        if let Err(why) = self.tree.signal_command(signal) {
            say(format_args!("{signal:?} cannot be passed on to the command: {why}"));
        }
    }

    fn end_by(&mut self, signal: Signal) {
        let grace = self.plan.kill_after;
        self.ending.get_or_insert_with(|| Ending::ask(grace)).request(&mut self.tree, signal);
    }

    fn kill(&mut self) {
        self.ending.get_or_insert_with(Ending::kill).hurry();
    }
}

/// Standard error goes if somebody may wait for its end, as who captures it does.
fn detach() {
    use std::os::unix::fs::FileTypeExt as _;
    let kind = File::open("/dev/stderr").and_then(|file| file.metadata());
    let stays = kind.is_ok_and(|m| m.is_file() || m.file_type().is_char_device());
    if !stays && let Ok(null) = File::open("/dev/null") {
        // Later messages are lost then.
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

fn readable(source: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(source, PollFlags::IN)
}

/// The first few, and how many more.
fn listed(processes: &[super::tree::Process]) -> String {
    let named: Vec<String> = processes.iter().take(3).map(ToString::to_string).collect();
    match processes.len().saturating_sub(named.len()) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// The exit code that a shell would give.
fn exit_code(status: WaitStatus) -> u8 {
    let signal = || status.terminating_signal().map(|signal| 128 + signal);
    let code = status.exit_status().or_else(signal);
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// The signal that ended a process, also if the process ended itself for it, as shells do.
fn by_signal(status: WaitStatus) -> Option<i32> {
    let own = || status.exit_status().map(|code| code - 128).filter(|signal| *signal > 0);
    status.terminating_signal().or_else(own)
}
