//! `lockify run`: holds a lock while a command runs.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use clap::ValueEnum;
use lockify_client::{Error, Guard, Lockspace, Mode};
use signal_hook::consts::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;

use crate::child::{Child, exit_code};
use crate::connect::{Connection, Missing};
use crate::exit::{Code, Ended, Failure, OrFail as _};

/// Hold a lock while a command runs
///
/// The command finds the lock's fencing token in LOCKIFY_TOKEN, its name in LOCKIFY_NAME and its
/// mode in LOCKIFY_MODE. Hand the token to what the command writes to: a storage service that
/// refuses smaller tokens than it has seen is safe from holders that were declared dead.
///
/// Without a cluster (no --socket and no system daemon) the lock is among this user's processes on
/// this machine; the daemon for that starts and ends by itself.
#[derive(clap::Args)]
#[command(after_help = crate::exit::HELP)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Lock mode: NL, CR, CW, PR (shared), PW, EX (exclusive)
    #[arg(long, default_value = "EX", value_parser = parse_mode)]
    mode: Mode,
    /// Give up after waiting this long (as 500ms, 10s, 2m); 0s does not wait at all
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// Claim the lock: only for names that nobody else can know yet (LOCKIFY_TOKEN is then
    /// provisional)
    #[arg(long)]
    notify: bool,
    /// What happens to the command if the lock is lost: SIGKILL, SIGTERM, or only a message
    #[arg(long, value_enum, default_value = "kill")]
    on_lost: OnLost,
    /// The lock's name, 1 to 64 bytes
    name: String,
    /// The command, after --
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// What happens to a command whose lock is lost.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnLost {
    /// SIGKILL.
    Kill,
    /// SIGTERM.
    Signal,
    /// Only a message.
    Ignore,
}

fn parse_mode(text: &str) -> Result<Mode, String> {
    let named = Mode::ALL.into_iter().find(|m| format!("{m:?}").eq_ignore_ascii_case(text));
    named.ok_or_else(|| "use NL, CR, CW, PR, PW or EX".to_owned())
}

/// What happens while the command runs.
pub enum Event {
    /// A signal arrived.
    Signal {
        /// Which.
        number: i32,
        /// Whether a process sent it, not the terminal.
        from_process: bool,
    },
    /// The lock is lost.
    Lost {
        /// Why.
        why: String,
        /// What the user can do about it.
        then: &'static str,
    },
}

/// Signals that are passed on, and SIGCHLD.
const SIGNALS: [i32; 9] =
    [SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH];

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let (space, guard) = lock(args).map_err(|e| not_locked(args, &e))?;
    let (events, happened) = channel();
    watch_loss(&space, &guard, events.clone());
    watch_signals(events)?;
    let env = [
        ("LOCKIFY_TOKEN", guard.token().to_string()),
        ("LOCKIFY_NAME", args.name.clone()),
        ("LOCKIFY_MODE", format!("{:?}", args.mode)),
    ];
    // The lock may be lost before the command starts; then it must not start.
    guard.check().or_fail(Code::NotLocked)?;
    let child = Child::start(&args.command, &env)?;
    let ended = supervise(child, &happened, args.on_lost)?;
    // Whether it was lost has been said; the release of a lost lock has nothing to add.
    let _ = guard.unlock();
    Ok(ended)
}

fn lock(args: &Args) -> Result<(Lockspace, Guard), Error> {
    match try_lock(args) {
        // This user's daemon may have ended for lack of use just when we connected.
        Err(Error::Disconnected(_)) => try_lock(args),
        locked => locked,
    }
}

fn try_lock(args: &Args) -> Result<(Lockspace, Guard), Error> {
    let space = args.connection.lockspace(Missing::Start)?;
    let mut request = space.request(&args.name, args.mode);
    if args.notify {
        request = request.notify();
    }
    let guard = match args.timeout {
        Some(timeout) if timeout.is_zero() => {
            request.flags(lockify_client::LockFlags::NOQUEUE).lock()
        }
        Some(timeout) => request.timeout(timeout).lock(),
        None => request.lock(),
    };
    Ok((space, guard?))
}

fn not_locked(args: &Args, e: &Error) -> Failure {
    let name = &args.name;
    match e {
        Error::TimedOut | Error::WouldBlock => Failure::new(
            Code::TimedOut,
            format!("{name:?} was not free in time: `lockify who {name}` says who holds it"),
        ),
        e => Failure::new(Code::NotLocked, format!("{name:?} was not locked: {e}")),
    }
}

fn watch_loss(space: &Lockspace, guard: &Guard, events: Sender<Event>) {
    let name = *guard.name();
    space.on_lost(move |lost| {
        if lost.name == name {
            // Fails only when the command has ended.
            let then = "make sure that the daemon runs (`lockify status`), and repeat";
            let _ = events.send(Event::Lost { why: lost.why.to_string(), then });
        }
    });
}

/// Has signals told as events.
pub fn watch_signals(events: Sender<Event>) -> Result<(), Failure> {
    let signals = SignalsInfo::<WithOrigin>::new(SIGNALS);
    let mut signals = signals.or_fail(Code::NotLocked)?;
    let watch = move || {
        for origin in &mut signals {
            let (number, from_process) = (origin.signal, origin.process.is_some());
            if events.send(Event::Signal { number, from_process }).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("signals".into()).spawn(watch);
    thread.map(drop).or_fail(Code::NotLocked)
}

/// Waits for the command's end and passes signals on.
pub fn supervise(mut child: Child, happened: &Receiver<Event>, on_lost: OnLost) -> Ended {
    let mut lost = false;
    loop {
        if let Some(status) = child.ended().or_fail(Code::Failed)? {
            let code = if lost { Code::Lost as u8 } else { exit_code(status) };
            return Ok(ExitCode::from(code));
        }
        match happened.recv().or_fail(Code::Failed)? {
            // The next turn looks at the command.
            Event::Signal { number: SIGCHLD, .. } => {}
            Event::Signal { number, from_process } => {
                // The terminal sends its own to everybody in the group.
                if from_process || child.own_group() {
                    child.signal(number);
                }
            }
            Event::Lost { why, then } => {
                lost |= on_lost != OnLost::Ignore;
                act_on_loss(&child, &why, then, on_lost);
            }
        }
    }
}

fn act_on_loss(child: &Child, why: &str, then: &str, on_lost: OnLost) {
    let (what, signal) = match on_lost {
        OnLost::Kill => ("the command is killed", Some(SIGKILL)),
        OnLost::Signal => ("the command is told to end (SIGTERM)", Some(SIGTERM)),
        OnLost::Ignore => ("the command goes on without it", None),
    };
    eprintln!("lockify: {why}\nlockify: {what}; check what it was changing, {then}");
    if let Some(signal) = signal {
        child.signal(signal);
    }
}
