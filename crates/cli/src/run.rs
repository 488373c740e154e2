//! `lockify run`: holds a lock while a command runs.

use std::ffi::OsString;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use lockify_client::{Error, Guard, LockFlags, Lockspace, Mode, Name};

use crate::connect::{Connection, Missing};
use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::hold::{Alarm, Held, Lost, NotHeld, OnLost, Patience, Plan, hold};
use crate::waits::{Waiting, quoted};

/// How long the daemon may take to say that a lock is not free, for calls that do not wait.
const AT_ONCE: Duration = Duration::from_secs(3);

/// How much later than a time-out this program gives up a daemon that does not tell of it.
const LATE: Duration = Duration::from_millis(200);

/// How long the daemon may take to release the lock. If it does not answer, the lock ends with the
/// session.
const RELEASE: Duration = Duration::from_secs(2);

/// Hold a lock while a command runs
///
/// The command finds the lock's fencing token in LOCKIFY_TOKEN, its name in LOCKIFY_NAME and its mode in
/// LOCKIFY_MODE. Hand the token to the storage that the command writes to: a storage service that
/// refuses smaller tokens than it has seen is safe from holders that were declared dead.
///
/// The lock is held as long as anything runs that the command has started, also in the background (see
/// --close). If the lock is lost, or lockify is told to end or killed, all of it is ended.
///
/// On a machine that belongs to a cluster, the lock is the cluster's, or the command fails (125).
/// Elsewhere, and with --local, it is among this user's processes on this machine; the daemon for that
/// starts and ends by itself.
#[derive(clap::Args)]
#[command(after_help = crate::exit::HELP)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Lock mode: NL, CR, CW, PR (shared), PW, EX (exclusive)
    #[arg(
        long,
        default_value = "EX",
        value_parser = parse_mode,
        conflicts_with_all = ["shared", "exclusive"]
    )]
    mode: Mode,
    /// Share the lock with others that share it, as --mode PR
    #[arg(short, long, overrides_with = "exclusive")]
    shared: bool,
    /// Share the lock with nobody, as --mode EX and by default
    #[arg(short = 'x', visible_short_alias = 'e', long, overrides_with = "shared")]
    exclusive: bool,
    /// Give up after waiting this long: seconds, or with a unit (as 500ms, 10s, 2m); 0 does not
    /// wait at all. It holds whether or not the daemon answers
    #[arg(
        short = 'w',
        long,
        visible_alias = "wait",
        value_name = "D",
        value_parser = parse_patience,
        conflicts_with = "nonblock"
    )]
    timeout: Option<Duration>,
    /// Give up if the lock is not free, as --timeout 0
    #[arg(short, long, visible_alias = "nb")]
    nonblock: bool,
    /// The exit code if the lock is not free in time
    #[arg(short = 'E', long, value_name = "N", default_value_t = Code::TimedOut as u8)]
    conflict_exit_code: u8,
    /// The lock ends with the command, even if its processes run on, and nothing inherits it
    #[arg(short = 'o', long)]
    close: bool,
    /// Claim the lock: only for names that nobody else can know yet (LOCKIFY_TOKEN is then
    /// provisional)
    #[arg(long)]
    notify: bool,
    /// The action on the command, with all that it has started, if the lock is lost: SIGKILL,
    /// SIGTERM (and SIGKILL later), or only a message
    #[arg(long, value_enum, default_value = "kill")]
    on_lost: OnLost,
    /// How long after a signal to end (SIGTERM, SIGINT, SIGQUIT) the rest gets SIGKILL: seconds, or with
    /// a unit
    #[arg(short, long, value_name = "D", default_value = "10s", value_parser = parse_patience)]
    kill_after: Duration,
    /// A command for the shell (SHELL, or /bin/sh), in the place of CMD
    #[arg(short = 'c', long = "command", value_name = "LINE", conflicts_with = "command")]
    line: Option<OsString>,
    /// The lock's name, 1 to 64 bytes
    name: String,
    /// The command and its arguments; -- before it is needed if it begins with a dash
    #[arg(trailing_var_arg = true, required_unless_present = "line", value_name = "CMD")]
    command: Vec<OsString>,
}

fn parse_mode(text: &str) -> Result<Mode, String> {
    let named = Mode::ALL.into_iter().find(|m| format!("{m:?}").eq_ignore_ascii_case(text));
    named.ok_or_else(|| "use NL, CR, CW, PR, PW or EX".to_owned())
}

/// Seconds as flock(1) has them, or a duration with units.
pub fn parse_patience(text: &str) -> Result<Duration, String> {
    let expected = |why: &dyn std::fmt::Display| {
        format!("{why}: give seconds (10 or 0.5) or a duration with units (500ms, 10s, 2m)")
    };
    match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|e| expected(&e)),
        Err(_) => humantime::parse_duration(text).map_err(|e| expected(&e)),
    }
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let deadline = args.timeout().and_then(|timeout| Instant::now().checked_add(timeout));
    let plan = Plan {
        command: &args.words(),
        on_lost: args.on_lost,
        kill_after: args.kill_after,
        close: args.close,
        patience: deadline.map(|deadline| args.patience(deadline)),
    };
    hold(&plan, |alarm| match lock(args, deadline, alarm) {
        Ok(holding) => Ok(Box::new(holding) as Box<dyn Held>),
        Err(e) => Err(not_held(args, &e)),
    })
}

impl Args {
    fn mode(&self) -> Mode {
        match (self.shared, self.exclusive) {
            (true, _) => Mode::PR,
            (_, true) => Mode::EX,
            _ => self.mode,
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if self.nonblock { Some(Duration::ZERO) } else { self.timeout }
    }

    fn words(&self) -> Vec<OsString> {
        let Some(line) = &self.line else { return self.command.clone() };
        let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
        vec![shell.unwrap_or_else(|| "/bin/sh".into()), "-c".into(), line.clone()]
    }

    fn patience(&self, deadline: Instant) -> Patience {
        let at_once = self.timeout() == Some(Duration::ZERO);
        let until = deadline + if at_once { AT_ONCE } else { LATE };
        let name = &self.name;
        let what = format!(
            "{name:?} was not locked in time, and the lock daemon does not answer: `lockify \
             status` and its log say why"
        );
        Patience { until, late: NotHeld { code: self.conflict_exit_code, what } }
    }
}

/// The lock and its session.
struct Holding {
    space: Lockspace,
    guard: Guard,
    /// For the next daemon of the user: it waits as long as the command has this.
    mark: Option<OwnedFd>,
}

impl Held for Holding {
    fn environment(&self) -> Vec<(String, String)> {
        let name = String::from_utf8_lossy(self.guard.name().as_bytes()).into_owned();
        vec![
            ("LOCKIFY_TOKEN".into(), self.guard.token().to_string()),
            ("LOCKIFY_NAME".into(), name),
            ("LOCKIFY_MODE".into(), format!("{:?}", self.guard.mode())),
        ]
    }

    fn keeps(&self) -> Vec<BorrowedFd<'_>> {
        let mark = self.mark.as_ref().map(|mark| mark.as_fd());
        self.guard.descriptor().into_iter().chain(mark).collect()
    }

    fn check(&self) -> Result<(), Failure> {
        self.guard.check().or_fail(Code::NotLocked)
    }

    fn release(self: Box<Self>) -> Result<bool, Failure> {
        let Holding { space, guard, mark: _mark } = *self;
        let (done, released) = channel();
        let release = move || {
            // That it was lost has been said; the release of a lost lock has nothing to add.
            let _ = guard.unlock();
            let _ = done.send(());
            drop(space);
        };
        std::thread::Builder::new().name("release".into()).spawn(release).or_fail(Code::Failed)?;
        // Without an answer, the lock ends with the session.
        let _ = released.recv_timeout(RELEASE);
        Ok(false)
    }
}

fn lock(args: &Args, deadline: Option<Instant>, alarm: &Alarm) -> Result<Holding, Error> {
    match try_lock(args, deadline, alarm) {
        // This user's daemon may have ended for lack of use just when we connected.
        Err(Error::Disconnected(_)) => try_lock(args, deadline, alarm),
        locked => locked,
    }
}

fn try_lock(args: &Args, deadline: Option<Instant>, alarm: &Alarm) -> Result<Holding, Error> {
    let client = args.connection.client(Missing::Start)?;
    let space = client.lockspace(&args.connection.space)?;
    let name = Name::new(&args.name)?;
    let mut request = space.request(&args.name, args.mode());
    if args.notify {
        request = request.notify();
    }
    if args.timeout() == Some(Duration::ZERO) {
        request = request.flags(LockFlags::NOQUEUE);
    } else if let Some(deadline) = deadline {
        request = request.timeout(deadline.saturating_duration_since(Instant::now()));
    }
    let waiting = Waiting::begin(&client, &space, name);
    let guard = request.lock()?;
    drop(waiting);
    watch_loss(&space, &guard, alarm.clone());
    let mark = args.connection.mark_command(&space, &guard)?;
    Ok(Holding { space, guard, mark })
}

fn not_held(args: &Args, e: &Error) -> NotHeld {
    let name = &args.name;
    match e {
        Error::TimedOut | Error::WouldBlock => {
            let shown = Name::new(name).map(|name| quoted(&name)).unwrap_or_default();
            let what = format!(
                "{name:?} was not free in time: `lockify who {shown}` says who holds it, if anybody \
                 does, and `lockify doctor {shown}` what it waited for"
            );
            NotHeld { code: args.conflict_exit_code, what }
        }
        e => Failure::new(Code::NotLocked, format!("{name:?} was not locked: {e}")).into(),
    }
}

fn watch_loss(space: &Lockspace, guard: &Guard, alarm: Alarm) {
    let name = *guard.name();
    space.on_lost(move |lost| {
        if lost.name == name {
            let then = "make sure that the daemon runs (`lockify status`), and repeat";
            alarm.lost(Lost { why: lost.why.to_string(), then });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_seconds_or_a_duration() {
        let ms = |text| parse_patience(text).map(|d| d.as_millis());
        assert_eq!(
            [ms("10"), ms("0.5"), ms("0"), ms("250ms"), ms("2m")],
            [Ok(10_000), Ok(500), Ok(0), Ok(250), Ok(120_000)]
        );
        for bad in ["", "soon", "-1", "nan", "inf", "1e300", "10x"] {
            let error = parse_patience(bad).unwrap_err();
            assert!(error.contains("500ms"), "{bad}: {error}");
        }
    }
}
