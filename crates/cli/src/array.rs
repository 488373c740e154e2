//! `lockify array`: shared arrays of devices, without a controller.

mod assemble;
mod create;
mod device;
mod examine;
mod export;
mod fence;
mod grow;
mod lock_server;
mod metrics;
mod recover;
mod status;
mod upkeep;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lockify_array::{Condition, Usage};
use lockify_trust::Identity;
use lockify_volume::ArrayFile;
use lockify_volume::host::{Array, Joining, this_node};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::print;
use crate::secure::Secure;
pub(crate) use fence::{Whom as FenceWhom, fence, list as list_of};

/// Shared arrays of devices, without a controller
///
/// Several hosts read and write one RAID-5, RAID-6 or mirrored array of network devices at the same time, without a coordinator.
/// `create` describes an array in a file, which every process of it gets; `device` serves a device, `export` is a host.
#[derive(clap::Args)]
#[command(after_help = crate::exit::HELP)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Create(create::Args),
    Device(device::Args),
    LockServer(lock_server::Args),
    Export(export::Args),
    Fence(fence::Args),
    Status(status::Args),
    Watch(watch::Args),
    Scrub(upkeep::ScrubArgs),
    Rebuild(upkeep::RebuildArgs),
    Replace(upkeep::ReplaceArgs),
    Grow(grow::Args),
    Assemble(assemble::Args),
    Recover(recover::Args),
    Examine(examine::Args),
}

/// Says in a line that this process serves, to whoever has started it: on standard output, and to a service manager
/// (sd_notify(3)).
fn announce(line: &str) -> Result<(), Failure> {
    print(line)?;
    sd_notify::notify(false, &[sd_notify::NotifyState::Ready]).or_fail(Code::Failed)
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    match &args.command {
        Command::Create(args) => create::run(args),
        Command::Device(args) => device::run(args),
        Command::LockServer(args) => lock_server::run(args),
        Command::Export(args) => export::run(args),
        Command::Fence(args) => fence::run(args),
        Command::Status(args) => status::run(args),
        Command::Watch(args) => watch::run(args),
        Command::Scrub(args) => upkeep::scrub(args),
        Command::Rebuild(args) => upkeep::rebuild(args),
        Command::Replace(args) => upkeep::replace(args),
        Command::Grow(args) => grow::run(args),
        Command::Assemble(args) => assemble::run(args),
        Command::Recover(args) => recover::run(args),
        Command::Examine(args) => examine::run(args),
    }
}

/// The array, and the identity of the caller.
#[derive(clap::Args)]
struct Which {
    /// The array's file (`lockify array create`)
    #[arg(long, value_name = "ARRAY.toml")]
    array: PathBuf,
    #[command(flatten)]
    secure: Secure,
}

impl Which {
    fn file(&self) -> Result<ArrayFile, Failure> {
        ArrayFile::read(&self.array).or_fail(Code::Unreadable)
    }

    /// Opens the array for a short time.
    fn open(&self, file: &ArrayFile) -> Result<Array, Failure> {
        open_within(file, self.secure.identity()?, patience(file))
    }
}

/// Opens an array for a short time.
pub(crate) fn open_within(
    file: &ArrayFile,
    identity: Identity,
    patience: Duration,
) -> Result<Array, Failure> {
    let joining = Joining {
        memory: None,
        node: this_node(),
        usage: Usage::Upkeep,
        identity,
        patience,
        log: say,
    };
    Array::open(file, &joining).or_fail(Code::Failed)
}

/// How long devices may take to become ready. One that was started in the place of another is there after some leases: first the others
/// have to agree that the former is gone.
fn patience(file: &ArrayFile) -> Duration {
    Duration::from_secs(15).max(8 * Duration::from_millis(file.timing.lease_ms))
}

/// How long a host may take to end.
pub(crate) const FAREWELL: Duration = Duration::from_secs(2);

/// A device's condition, in one word.
fn word(condition: Condition) -> &'static str {
    match condition {
        Condition::Good => "good",
        Condition::Failed => "failed",
        Condition::Unfinished => "unfinished",
        Condition::Returning { .. } if condition.whole_to().is_some() => "returning",
        Condition::Rebuilding { .. } | Condition::Returning { .. } => "rebuilding",
    }
}

/// Tells an operator something.
fn say(what: &str) {
    crate::output::print_message(&lockify_trust::printable(what));
}

/// Set by SIGTERM and SIGINT.
fn stop() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).or_fail(Code::Failed)?;
    }
    Ok(stop)
}
