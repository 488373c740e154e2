//! `lockify remote-lock`: holds a lock of a table in remote memory while a command runs.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use lockify_fabric::FabricExecutor;
use lockify_fabric::shm::Owner;
use lockify_onesided::{Guard, Mode, Released};
use lockify_remote::{Joining, Remote};

use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::fabric::{Device, FabricName};
use crate::hold::{Alarm, Held, Lost, NotHeld, OnLost, Plan, hold};
use crate::run::parse_patience;
use crate::secure::Secure;

/// Hold a lock of a table in remote memory while a command runs
///
/// The table is that of a `lockify memory-server`: on this machine, or on another one that is reached by RDMA. Names are hashed to its locks: two names may share a
/// lock, and then exclude each other. So never take a second name while the command of the first one runs: it may wait
/// for itself. The command finds the lock's fencing token in LOCKIFY_TOKEN and its name in LOCKIFY_NAME. It is killed,
/// with all that it has started, when the table's lease ends, since others are given the lock then.
#[derive(clap::Args)]
#[command(after_help = crate::exit::HELP)]
pub struct Args {
    /// Share the lock with others that share it
    #[arg(short, long)]
    shared: bool,
    /// The lock ends with the command, even if its processes run on
    #[arg(short = 'o', long)]
    close: bool,
    /// The action on the command, with all that it has started, when the lease ends: SIGKILL,
    /// SIGTERM (and SIGKILL later), or only a message
    #[arg(long, value_enum, default_value = "kill")]
    on_lost: OnLost,
    /// How long after a signal to end (SIGTERM, SIGINT, SIGQUIT) the rest gets SIGKILL: seconds, or with a unit
    #[arg(short, long, value_name = "D", default_value = "10s", value_parser = parse_patience)]
    kill_after: Duration,
    /// Also use a table of the user with this number, besides one's own and root's
    #[arg(long, value_name = "UID")]
    owner: Option<u32>,
    /// By shared memory of this machine, or by RDMA (verbs)
    #[arg(long, value_name = "FABRIC", default_value = "shm")]
    fabric: FabricName,
    /// With verbs, where the memory server listens
    #[arg(long, value_name = "ADDR:PORT", required_if_eq("fabric", "verbs"))]
    server: Option<SocketAddr>,
    /// With verbs and keys, the number of the memory server's node
    #[arg(long, value_name = "N", default_value_t = 0)]
    server_node: u32,
    #[command(flatten)]
    device: Device,
    #[command(flatten)]
    secure: Secure,
    /// With shm, the table, as `lockify memory-server` has printed it; then the lock's name, any bytes
    #[arg(value_names = ["TABLE", "NAME"], num_args = 1..=2, required = true)]
    lock: Vec<OsString>,
    /// The command, after --
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Which table, and the name of the lock in it.
enum Place<'a> {
    Shared(&'a Path, &'a OsStr),
    Verbs(SocketAddr, &'a OsStr),
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let place = args.place()?;
    let plan = Plan {
        command: &args.command,
        on_lost: args.on_lost,
        kill_after: args.kill_after,
        close: args.close,
        patience: None,
    };
    hold(&plan, |alarm| match place {
        Place::Shared(table, name) => {
            let owner = args.owner.map_or(Owner::Me, Owner::Also);
            let remote = Remote::connect(table, owner).or_fail(Code::NotLocked)?;
            if remote.options().protocol.needs_home() && !remote.is_served() {
                eprintln!("lockify: waits for the memory server of {}", table.display());
            }
            hold_one(args, remote, name, alarm)
        }
        Place::Verbs(address, name) => {
            let (identity, verbs) = (args.secure.identity()?, args.device.settings());
            let joining = Joining { address, identity, server: args.server_node, verbs };
            hold_one(args, Remote::join(&joining).or_fail(Code::NotLocked)?, name, alarm)
        }
    })
}

impl Args {
    fn place(&self) -> Result<Place<'_>, Failure> {
        let unreadable = |what: &str| Err(Failure::new(Code::Unreadable, what));
        match (self.fabric, self.server, &self.lock[..]) {
            (FabricName::Shm, None, [table, name]) => Ok(Place::Shared(Path::new(table), name)),
            (FabricName::Verbs, Some(address), [name]) => Ok(Place::Verbs(address, name)),
            (FabricName::Shm, Some(_), _) => unreadable("--server is for --fabric verbs"),
            (FabricName::Shm, None, _) => {
                unreadable("give the table, as `lockify memory-server` printed it, and a name")
            }
            (FabricName::Verbs, ..) => {
                unreadable("--fabric verbs needs --server ADDR:PORT, and one name")
            }
        }
    }
}

/// A lock of the table. The command inherits nothing of it: a killed holder's lock is repaired after
/// the lease.
struct Holding<F: FabricExecutor> {
    remote: Remote<F>,
    guard: Guard,
    name: String,
}

impl<F: FabricExecutor> Held for Holding<F> {
    fn environment(&self) -> Vec<(String, String)> {
        let mut all = vec![("LOCKIFY_NAME".to_owned(), self.name.clone())];
        all.extend(self.guard.token().map(|token| ("LOCKIFY_TOKEN".into(), token.to_string())));
        all
    }

    fn keeps(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn check(&self) -> Result<(), Failure> {
        match self.remote.time_left(&self.guard) {
            Some(0) => Err(Failure::new(Code::NotLocked, "the lease of the lock has ended")),
            _ => Ok(()),
        }
    }

    fn release(mut self: Box<Self>) -> Result<bool, Failure> {
        match self.remote.unlock(self.guard) {
            Ok(released) => Ok(released == Released::Revoked),
            Err(e) => {
                let what = format!("the lock was lost while the command ran: {e}");
                Err(Failure::new(Code::Lost, what))
            }
        }
    }
}

fn hold_one<F: FabricExecutor + 'static>(
    args: &Args,
    mut remote: Remote<F>,
    name: &OsStr,
    alarm: &Alarm,
) -> Result<Box<dyn Held>, NotHeld> {
    let lock = remote.lock_of(name.as_encoded_bytes());
    let mode = if args.shared { Mode::Shared } else { Mode::Exclusive };
    let guard = remote.lock(lock, mode).or_fail(Code::NotLocked)?;
    if let Some(left) = remote.time_left(&guard) {
        let alarm = alarm.clone();
        let over = move || {
            std::thread::sleep(Duration::from_nanos(left));
            let why = "the lease of the lock has ended".to_owned();
            let then = "hold it for less, or serve the table with a longer --lease";
            alarm.lost(Lost { why, then });
        };
        std::thread::Builder::new().name("lease".into()).spawn(over).or_fail(Code::NotLocked)?;
    }
    Ok(Box::new(Holding { remote, guard, name: name.to_string_lossy().into_owned() }))
}
