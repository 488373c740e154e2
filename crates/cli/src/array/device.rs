//! `lockify array device`: serves a device of an array.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use lockify_array::DeviceId;
use lockify_volume::device::{ServeError, Server, Serving};
use lockify_volume::store::Access;
use signal_hook::consts::SIGXFSZ;

use super::{Which, announce, say, stop};
use crate::exit::{Code, Ended, Failure, OrFail as _};

/// Serve a device, or a witness, of an array
///
/// Its file or block device is written past the system's cache, with a checksum for every 4 KiB, and belongs to this process
/// alone. SIGTERM or SIGINT ends it; the array waits for it for the length of a lease, and then goes on without it.
#[derive(clap::Args)]
pub struct Args {
    /// The device's file, or a block device
    file: PathBuf,
    #[command(flatten)]
    which: Which,
    /// Its number in the array's file
    #[arg(long, value_name = "N")]
    id: u16,
    /// Make a new device. Where it takes the place of one with content, go on with `lockify array replace`
    #[arg(long)]
    create: bool,
    /// With --create: take space as blocks are written. Otherwise a file gets all of it at once
    #[arg(long, requires = "create")]
    sparse: bool,
    /// Listen at this address instead of the one in the array's file. A device whose address there is a name listens at all
    /// addresses of its machine otherwise
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Use the system's cache, where direct I/O is refused
    #[arg(long)]
    buffered: bool,
    /// Record all accesses to blocks in a new file for `lockify check`: from the first start of the array on, and for all
    /// its processes. At the end all blocks are read; end hosts before devices
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let file = args.which.file()?;
    let stop = stop()?;
    // A limit of file sizes (RLIMIT_FSIZE) is an error of a write then, and not the end of the process.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).or_fail(Code::Failed)?;
    let serving = Serving {
        device: DeviceId(args.id),
        path: args.file.clone(),
        create: args.create,
        sparse: args.sparse,
        access: if args.buffered { Access::Buffered } else { Access::Direct },
        listen: args.listen,
        identity: args.which.secure.renewed_identity(say)?,
        log: say,
    };
    let mut server = Server::start(&file, &serving).map_err(|e| {
        let code = match e {
            ServeError::NoDevice { .. } | ServeError::Exposed(_) | ServeError::OtherNode { .. } => {
                Code::Unreadable
            }
            _ => Code::Failed,
        };
        Failure::new(code, e)
    })?;
    if let Some(history) = &args.history {
        server.record(history).or_fail(Code::Failed)?;
    }
    let address = file.voter(serving.device).map(|entry| entry.address.to_string());
    announce(&format!(
        "device {} of array {} at {}\n",
        args.id,
        file.id,
        address.unwrap_or_default()
    ))?;
    server.run(&stop).or_fail(Code::Failed)?;
    Ok(ExitCode::SUCCESS)
}
