//! `lockify array fence`.

use std::process::ExitCode;

use lockify_array::{HostId, Life, Work};

use super::{FAREWELL, Which};
use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::print;

/// Cut a host off from an array, for good
///
/// When this has ended with 0, no write of the host takes effect any more, its unfinished writes are repaired, and its locks
/// are free. Its clients get errors. A process that is started again is another host. `status` and the host's first line have
/// its number. For cluster managers, before others go on with what it did.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// The host's number
    #[arg(long, value_name = "N")]
    host: u32,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let file = args.which.file()?;
    let array = args.which.open(&file)?;
    // This command is the newest host.
    let newest = array.number() - 1;
    if !(1..=newest).contains(&args.host) {
        array.leave(FAREWELL);
        let what = match newest {
            0 => format!("no host {}: none has attached yet", args.host),
            _ => format!("no host {}: the array's hosts so far are 1 to {newest}", args.host),
        };
        return Err(Failure::new(Code::Unreadable, what));
    }
    let life = Life { host: HostId(args.host), incarnation: u64::from(args.host) };
    array.perform(Work::Fence { life }).or_fail(Code::Failed)?;
    array.leave(FAREWELL);
    print(&format!("host {} is cut off, and its writes are settled\n", args.host))?;
    Ok(ExitCode::SUCCESS)
}
