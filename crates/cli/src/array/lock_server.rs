//! `lockify array lock-server`: the lock server of an array.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use lockify_array::ServerId;
use lockify_volume::lock_server::{ServeError, Server, Serving};
use signal_hook::consts::SIGXFSZ;

use super::{Which, announce, say, stop};
use crate::exit::{Code, Ended, Failure, OrFail as _};

/// Run a lock server of an array with scheme server-locking or callback-locking
///
/// Hosts lock the blocks of their operations here. The locks are in a log, so the server can be killed and started again:
/// hosts wait for it. If the array's file names several, one serves, and the others stand by with copies of the log. The devices
/// agree on which one serves. A log that is lost cannot be made anew while hosts run, unless another lock server has a copy.
/// SIGTERM or SIGINT ends it.
#[derive(clap::Args)]
pub struct Args {
    /// The log
    #[arg(value_name = "LOG")]
    log: PathBuf,
    #[command(flatten)]
    which: Which,
    /// Which of the array's lock servers: 0 is the one in lock_server, and each standby is one more
    #[arg(long, value_name = "N", default_value_t = 0)]
    id: u16,
    /// Make a new log: for a new array, or for a lock server that gets its copy of the log from another one
    #[arg(long)]
    create: bool,
    /// With --create: no log with the array's locks is left. All hosts have ended, and the array is to be scrubbed afterwards
    #[arg(long, requires = "create")]
    accept_loss: bool,
    /// Listen at this address instead of the one in the array's file. A server whose address there is a name listens at all
    /// addresses of its machine otherwise
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let file = args.which.file()?;
    let stop = stop()?;
    // A limit of file sizes (RLIMIT_FSIZE) is an error of a write then, and not the end of the process.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).or_fail(Code::Failed)?;
    let serving = Serving {
        id: ServerId(args.id),
        accept_loss: args.accept_loss,
        log_file: args.log.clone(),
        create: args.create,
        listen: args.listen,
        identity: args.which.secure.renewed_identity(say)?,
        log: say,
    };
    let server = Server::start(&file, &serving).map_err(|e| {
        let code = match e {
            ServeError::NoServer(_)
            | ServeError::NoSuch { .. }
            | ServeError::Exposed(_)
            | ServeError::OtherNode { .. } => Code::Unreadable,
            _ => Code::Failed,
        };
        Failure::new(code, e)
    })?;
    let entry = file.lock_servers().nth(args.id.into());
    let address = entry.map(|entry| entry.address.to_string()).unwrap_or_default();
    announce(&format!("lock server of array {}, number {}, at {address}\n", file.id, args.id))?;
    server.run(&stop).or_fail(Code::Failed)?;
    Ok(ExitCode::SUCCESS)
}
