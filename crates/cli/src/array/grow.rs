//! `lockify array grow`: an array uses more of its devices' media.

use std::process::ExitCode;
use std::time::Duration;

use lockify_array::{Change, DeviceId, Layout};
use lockify_volume::host::Array;
use lockify_volume::status::make_room;
use lockify_volume::store::blocks_in;
use lockify_volume::{ArrayFile, BLOCK};

use super::create::parse_size;
use super::{FAREWELL, Which};
use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::print;

/// Have an array grow while it is in use
///
/// Each device's file becomes as large as --device-size says. A block device must be as large already. All devices have to be
/// good. Hosts use the new space when all devices have room for it and more than half of the voters have agreed. A client of an
/// export gets the new size when it connects again. An array cannot become smaller.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Bytes of each device's file or block device from now on (as 512MiB, 10GiB, 2TiB)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    device_size: u64,
    /// The longest time for a device to make room: zeros may have to be written
    #[arg(long, value_name = "D", default_value = "1h", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let file = args.which.file()?;
    let array = args.which.open(&file)?;
    let grown = grow(args, &file, &array);
    array.leave(FAREWELL);
    print(&grown?)?;
    Ok(ExitCode::SUCCESS)
}

fn grow(args: &Args, file: &ArrayFile, array: &Array) -> Result<String, Failure> {
    let (now, state) = (array.layout(), array.status().state);
    let stripes = stripes(file, args.device_size);
    let bytes = |layout: &Layout| layout.blocks() * u64::from(BLOCK);
    if stripes == now.stripes {
        return Ok(format!("the array has {} bytes already\n", bytes(&now)));
    }
    let wanted = Layout { stripes, ..now };
    if stripes < now.stripes {
        let what = format!(
            "--device-size {}: that is an array of {} bytes, and this one has {}: it cannot become smaller",
            args.device_size,
            bytes(&wanted),
            bytes(&now)
        );
        return Err(Failure::new(Code::Unreadable, what));
    }
    let too_large = |why| format!("--device-size {}: {why}", args.device_size);
    wanted.check().map_err(|why| Failure::new(Code::Unreadable, too_large(why)))?;
    let devices = (0..now.devices()).map(DeviceId);
    if let Some(bad) = devices.clone().find(|device| !state.is_good(*device)) {
        let what = format!(
            "device {0} is not good, and the array grows when all devices are: see `lockify array status`, and `lockify array \
             rebuild --id {0}`",
            bad.0
        );
        return Err(Failure::new(Code::Failed, what));
    }
    make_room_everywhere(args, file, devices, stripes)?;
    let change = Change::Grow { after: state.stripes, stripes };
    array.change(change).or_fail(Code::Failed)?;
    Ok(format!(
        "the array has {} bytes now, {} more; clients of an export get that size when they connect again\n",
        bytes(&wanted),
        bytes(&wanted) - bytes(&now)
    ))
}

/// As many as such devices have room for.
fn stripes(file: &ArrayFile, device_size: u64) -> u64 {
    let rows = blocks_in(device_size, file.sector) / u64::from(file.layout.unit);
    rows.saturating_mul(file.layout.groups.into())
}

/// All at the same time: it may take long. Nothing is lost if some cannot.
fn make_room_everywhere(
    args: &Args,
    file: &ArrayFile,
    devices: impl Iterator<Item = DeviceId>,
    stripes: u64,
) -> Result<(), Failure> {
    let identity = args.which.secure.identity()?;
    let refused: Vec<String> = std::thread::scope(|scope| {
        let ask = |device: DeviceId| {
            let identity = identity.clone();
            let asked =
                scope.spawn(move || make_room(file, identity, device, stripes, args.timeout));
            (device, asked)
        };
        let all: Vec<_> = devices.map(ask).collect();
        let answers = all.into_iter().map(|(device, asked)| {
            let ended = || Err("its thread has ended".to_owned());
            (device, asked.join().unwrap_or_else(|_| ended()))
        });
        let why = |(device, answer): (DeviceId, Result<(), String>)| {
            Some(format!("device {}: {}", device.0, answer.err()?))
        };
        answers.filter_map(why).collect()
    });
    if refused.is_empty() {
        return Ok(());
    }
    let what = format!("the array is as before: {}", refused.join("; "));
    Err(Failure::new(Code::Failed, what))
}
