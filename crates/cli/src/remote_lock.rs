//! `lockify remote-lock`: holds a lock of a table in remote memory while a command runs.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use lockify_fabric::Executes;
use lockify_fabric::shm::Owner;
use lockify_onesided::{Mode, Released};
use lockify_remote::{Joining, Remote};

use crate::child::Child;
use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::fabric::{Device, FabricName};
use crate::run::{Event, OnLost, supervise, watch_signals};
use crate::secure::Secure;

/// Hold a lock of a table in remote memory while a command runs
///
/// The table is that of a `lockify memory-server`: on this machine, or on another one that is reached by RDMA. Names are hashed to its locks: two names may share a
/// lock, and then exclude each other. So never take a second name while the command of the first one runs: it may wait
/// for itself. The command finds the lock's fencing token in LOCKIFY_TOKEN and its name in LOCKIFY_NAME. It is killed
/// when the table's lease ends, since others are given the lock then.
#[derive(clap::Args)]
#[command(after_help = crate::exit::HELP)]
pub struct Args {
    /// Share the lock with others that share it
    #[arg(long)]
    shared: bool,
    /// What happens to the command when the lease ends: SIGKILL, SIGTERM, or only a message
    #[arg(long, value_enum, default_value = "kill")]
    on_lost: OnLost,
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

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let unreadable = |what: &str| Err(Failure::new(Code::Unreadable, what));
    match (args.fabric, args.server, &args.lock[..]) {
        (FabricName::Shm, None, [table, name]) => {
            let owner = args.owner.map_or(Owner::Me, Owner::Also);
            let remote = Remote::connect(Path::new(table), owner).or_fail(Code::NotLocked)?;
            hold(args, remote, name)
        }
        (FabricName::Verbs, Some(address), [name]) => {
            let (identity, verbs) = (args.secure.identity()?, args.device.settings());
            let joining = Joining { address, identity, server: args.server_node, verbs };
            hold(args, Remote::join(&joining).or_fail(Code::NotLocked)?, name)
        }
        (FabricName::Shm, Some(_), _) => unreadable("--server is for --fabric verbs"),
        (FabricName::Shm, None, _) => {
            unreadable("give the table, as `lockify memory-server` printed it, and a name")
        }
        (FabricName::Verbs, ..) => {
            unreadable("--fabric verbs needs --server ADDR:PORT, and one name")
        }
    }
}

fn hold<F: Executes>(args: &Args, mut remote: Remote<F>, name: &OsStr) -> Ended {
    let lock = remote.lock_of(name.as_encoded_bytes());
    let mode = if args.shared { Mode::Shared } else { Mode::Exclusive };
    let guard = remote.lock(lock, mode).or_fail(Code::NotLocked)?;
    let (events, happened) = channel();
    watch_signals(events.clone())?;
    if let Some(left) = remote.time_left(&guard) {
        let over = move || {
            std::thread::sleep(Duration::from_nanos(left));
            let why = "the lease of the lock has ended".to_owned();
            let then = "hold it for less, or serve the table with a longer --lease";
            // Fails only when the command has ended.
            let _ = events.send(Event::Lost { why, then });
        };
        std::thread::Builder::new().name("lease".into()).spawn(over).or_fail(Code::NotLocked)?;
    }
    let mut env = vec![("LOCKIFY_NAME", name.to_string_lossy().into_owned())];
    env.extend(guard.token().map(|token| ("LOCKIFY_TOKEN", token.to_string())));
    let started = Child::start(&args.command, &env);
    let ended = started.and_then(|child| supervise(child, &happened, args.on_lost));
    let released = remote.unlock(guard);
    let ended = ended?;
    match released {
        Ok(Released::Revoked) if args.on_lost != OnLost::Ignore => Ok(Code::Lost.into()),
        Ok(_) => Ok(ended),
        Err(e) => {
            Err(Failure::new(Code::Lost, format!("the lock was lost while the command ran: {e}")))
        }
    }
}
