//! `lockify array device`: serves a device of an array.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use lockify_array::DeviceId;
use lockify_volume::ArrayFile;
use lockify_volume::device::{Rebuilder, ServeError, Server, Serving, make_spare};
use lockify_volume::store::Access;
use signal_hook::consts::SIGXFSZ;

use super::upkeep::{JOBS, pace, parse_rate};
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
    /// A second file or block device of this machine, empty at first: if the medium fails, the device goes on with it, and has
    /// itself rebuilt from the others. From then on it is the device's
    #[arg(long, value_name = "FILE", conflicts_with = "history")]
    spare: Option<PathBuf>,
    /// With --spare: at most so many bytes of all devices together in a second (as 100MiB) for that rebuild
    #[arg(long, value_name = "SIZE", requires = "spare", value_parser = parse_rate)]
    rate: Option<u64>,
    /// Of a new file: take space as blocks are written. Otherwise it gets all of it at once
    #[arg(long)]
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
    let mut serving = Serving {
        device: DeviceId(args.id),
        path: args.file.clone(),
        create: args.create,
        sparse: args.sparse,
        access: if args.buffered { Access::Buffered } else { Access::Direct },
        listen: args.listen,
        identity: args.which.secure.renewed_identity(say)?,
        log: say,
    };
    let spare = Spare::of(args, &file, &serving)?;
    if let Spare::Used(path) = &spare {
        say(&format!(
            "device {} goes on with its spare {}: {} is not used any more",
            args.id,
            path.display(),
            args.file.display()
        ));
        (serving.path, serving.create) = (path.clone(), false);
    }
    // Whoever goes on with the spare has itself rebuilt.
    let begin = |serving: &Serving, spare: &Spare| {
        let server = Server::start(&file, serving).map_err(failure)?;
        if matches!(spare, Spare::Used(_)) {
            let pace = pace(JOBS, args.rate, &file.layout, Arc::clone(&stop));
            Rebuilder::start(&file, serving, pace, Arc::clone(&stop)).or_fail(Code::Failed)?;
        }
        Ok::<_, Failure>(server)
    };
    let mut server = begin(&serving, &spare)?;
    if let Some(history) = &args.history {
        server.record(history).or_fail(Code::Failed)?;
    }
    let address = file.voter(serving.device).map(|entry| entry.address.to_string());
    let address = address.unwrap_or_default();
    announce(&format!("device {} of array {} at {address}\n", args.id, file.id))?;
    match (server.run(&stop), &spare) {
        (Err(ServeError::Disk(why)), Spare::Ready(path)) => {
            let own = args.file.display();
            say(&format!(
                "device {}: {own} has failed: {why}; it goes on with its spare {}. Replace {own}",
                args.id,
                path.display()
            ));
            (serving.path, serving.create) = (path.clone(), false);
            begin(&serving, &Spare::Used(path.clone()))?.run(&stop).or_fail(Code::Failed)?;
        }
        (ended, _) => ended.or_fail(Code::Failed)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The medium that is to take the place of the device's own.
enum Spare {
    None,
    /// It is empty.
    Ready(PathBuf),
    /// It has taken the place.
    Used(PathBuf),
}

impl Spare {
    fn of(args: &Args, file: &ArrayFile, serving: &Serving) -> Result<Spare, Failure> {
        let Some(path) = &args.spare else { return Ok(Spare::None) };
        let unfit = |what: &str| {
            Err(Failure::new(Code::Unreadable, format!("--spare {}: {what}", path.display())))
        };
        let place = |path: &Path| std::fs::canonicalize(path).ok();
        if place(path).is_some_and(|own| Some(own) == place(&args.file)) {
            return unfit("that is the device's own medium; name another one, which is empty");
        }
        match make_spare(file, serving, path).map_err(failure)? {
            true if args.create => unfit(
                "it has taken the device's place before; leave --create out, or name another spare",
            ),
            true => Ok(Spare::Used(path.clone())),
            false => Ok(Spare::Ready(path.clone())),
        }
    }
}

fn failure(e: ServeError) -> Failure {
    use ServeError::{Exposed, NoDevice, OtherNode, SpareOfWitness};
    let code = match e {
        NoDevice { .. } | Exposed(_) | OtherNode { .. } | SpareOfWitness { .. } => Code::Unreadable,
        _ => Code::Failed,
    };
    Failure::new(code, e)
}
