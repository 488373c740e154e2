//! `lockify array lock-server`: the lock server of an array.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use lockify_volume::lock_server::{ServeError, Server, Serving};
use signal_hook::consts::SIGXFSZ;

use super::{Which, announce, say, stop};
use crate::exit::{Code, Ended, Failure, OrFail as _};

/// Run the lock server of an array with scheme server-locking or callback-locking
///
/// Hosts lock the blocks of their operations here. The locks are in a log, so the server can be killed and started again:
/// hosts wait for it. A log that is lost cannot be made anew while hosts run. SIGTERM or SIGINT ends it.
#[derive(clap::Args)]
pub struct Args {
    /// The log
    #[arg(value_name = "LOG")]
    log: PathBuf,
    #[command(flatten)]
    which: Which,
    /// Make a new log: for a new array, or when all its hosts have ended and it has no stripe that does not fit
    #[arg(long)]
    create: bool,
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
        log_file: args.log.clone(),
        create: args.create,
        listen: args.listen,
        identity: args.which.secure.renewed_identity(say)?,
        log: say,
    };
    let server = Server::start(&file, &serving).map_err(|e| {
        let code = match e {
            ServeError::NoServer(_) | ServeError::Exposed(_) | ServeError::OtherNode { .. } => {
                Code::Unreadable
            }
            _ => Code::Failed,
        };
        Failure::new(code, e)
    })?;
    let address = file.lock_server.as_ref().map(|entry| entry.address.to_string());
    announce(&format!("lock server of array {} at {}\n", file.id, address.unwrap_or_default()))?;
    server.run(&stop).or_fail(Code::Failed)?;
    Ok(ExitCode::SUCCESS)
}
