//! `lockify array recover`: an array continues without the media of more than half of its voters.

use std::process::ExitCode;
use std::time::Duration;

use lockify_array::DeviceId;
use lockify_volume::status::recover;

use super::Which;
use crate::exit::{Code, Ended, Failure};
use crate::output::print;

/// Begin a new agreement of the devices, after most voting media were lost
///
/// Devices and witnesses agree on the present ones, and keep that on their media. Up to seven vote. The media of more
/// than half of the voters may be lost for good, or a new array may have to begin without some. Nothing continues then
/// until this device begins alone. The others join it. Run it for one device only, and never while the lost ones may
/// still run. Lost blocks are another question: replace the devices afterwards.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// The device or witness that begins. It has its medium, and runs
    #[arg(long, value_name = "N")]
    id: u16,
    /// The longest time to wait for the answer
    #[arg(long, value_name = "D", default_value = "3s", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let file = args.which.file()?;
    let device = DeviceId(args.id);
    if file.voter(device).is_none() {
        let last = file.voters().last().map_or(0, |entry| entry.id);
        let what = format!("--id {}: the array has devices and witnesses 0 to {last}", args.id);
        return Err(Failure::new(Code::Unreadable, what));
    }
    let identity = args.which.secure.identity()?;
    recover(&file, identity, device, args.timeout)
        .map_err(|why| Failure::new(Code::Failed, format!("device {}: {why}", args.id)))?;
    print(&format!(
        "device {} has begun a new era; see `lockify array status`, start the others, and replace those that are lost\n",
        args.id
    ))?;
    Ok(ExitCode::SUCCESS)
}
