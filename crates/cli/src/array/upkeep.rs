//! `lockify array scrub`, `rebuild` and `replace`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use lockify_array::{Change, Condition, DeviceId};
use lockify_volume::host::Array;
use lockify_volume::status::ask;
use lockify_volume::upkeep::{self, stripes_of};

use super::status::newest;
use super::{FAREWELL, PATIENCE, Which};
use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::print;
use crate::progress::bar;

/// Check that all stripes of an array fit together
///
/// Hosts may go on meanwhile. Ends with 1 if parity did not fit somewhere, or content is lost.
#[derive(clap::Args)]
pub struct ScrubArgs {
    #[command(flatten)]
    which: Which,
    /// Write parity where it does not fit
    #[arg(long)]
    repair: bool,
    /// How many stripes at a time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
}

/// Rebuild a device that has failed, or is new, from the others
///
/// `replace` is for a new device (`lockify array device --create`) in the place of one that had content; `rebuild` is for one
/// that failed and is back, or goes on with a rebuild that was interrupted. Hosts may go on meanwhile.
#[derive(clap::Args)]
pub struct RebuildArgs {
    #[command(flatten)]
    which: Which,
    /// The device's number
    #[arg(long, value_name = "N")]
    id: u16,
    /// How many stripes at a time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
}

/// Checks all stripes.
pub fn scrub(args: &ScrubArgs) -> Ended {
    let file = args.which.file()?;
    let array = args.which.open(&file, None)?;
    let stripes = array.layout().stripes;
    let bar = bar(stripes, "stripes checked");
    let found = upkeep::scrub(&array, 0..stripes, args.repair, args.jobs.into(), &|| bar.inc(1));
    bar.finish_and_clear();
    let found = found.or_fail(Code::Failed)?;
    array.leave(FAREWELL);
    let upkeep::Found { stripes, unfit, lost } = found;
    let fitted = match (unfit, args.repair) {
        (0, _) => "all fit".to_owned(),
        (n, true) => format!("{n} did not fit, and do now"),
        (n, false) => format!("{n} do not fit: give --repair"),
    };
    let lost_text = found.of_lost();
    print(&format!("{stripes} stripes: {fitted}{lost_text}\n"))?;
    let clean = unfit == 0 && lost == 0;
    Ok(if clean { ExitCode::SUCCESS } else { Code::Violated.into() })
}

/// Rebuilds a device that is out of the array.
pub fn rebuild(args: &RebuildArgs) -> Ended {
    let file = args.which.file()?;
    let device = existing(args, file.layout.devices())?;
    let array = args.which.open(&file, None)?;
    rebuild_device(&array, device, args.jobs)
}

/// Has the array count a new device as failed, and rebuilds it.
pub fn replace(args: &RebuildArgs) -> Ended {
    let file = args.which.file()?;
    let device = existing(args, file.layout.devices())?;
    let array = args.which.open(&file, None)?;
    let end = Instant::now() + PATIENCE;
    loop {
        let identity = args.which.secure.identity()?;
        let answers = ask(&file, identity, Duration::from_secs(3)).or_fail(Code::Failed)?;
        let state = newest(&answers.voters);
        let condition = state.and_then(|state| state.devices.get(usize::from(device.0)));
        match (condition, answers.voters.get(usize::from(device.0))) {
            (_, Some(Err(why))) => {
                let what = format!(
                    "device {0} is not there ({why}): start the new one with `lockify array device FILE --create --id {0}`",
                    args.id
                );
                return Err(Failure::new(Code::Failed, what));
            }
            (Some(Condition::Good), Some(Ok(report))) if report.in_service => {
                let what = format!(
                    "device {0} is good: to replace it, end its process and start one with `lockify array device NEWFILE \
                     --create --id {0}`",
                    args.id
                );
                return Err(Failure::new(Code::Failed, what));
            }
            (Some(Condition::Good), _) => {
                let Some(state) = state else { continue };
                array.change(state.without(device)).or_fail(Code::Failed)?;
            }
            (Some(_), Some(Ok(report))) if report.in_service => break,
            // It learns of it as a voter, and its blocks are the array's from then on.
            // Not before it is one of those who are there, or it is taken for gone again.
            (Some(Condition::Failed), Some(Ok(report))) if report.serving => {
                array.change(Change::Rebuild(device)).or_fail(Code::Failed)?;
            }
            _ => {}
        }
        if Instant::now() > end {
            let what = format!("device {} does not become ready: see its log", args.id);
            return Err(Failure::new(Code::Failed, what));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    rebuild_device(&array, device, args.jobs)
}

fn existing(args: &RebuildArgs, devices: u16) -> Result<DeviceId, Failure> {
    if args.id < devices {
        return Ok(DeviceId(args.id));
    }
    let what = format!("--id {}: the array has devices 0 to {}", args.id, devices - 1);
    Err(Failure::new(Code::Unreadable, what))
}

fn rebuild_device(array: &Array, device: DeviceId, jobs: u16) -> Ended {
    let bar = bar(stripes_of(array, device), "stripes rebuilt");
    let rebuilt = upkeep::rebuild(array, device, jobs.into(), &|done| bar.set_position(done));
    bar.finish_and_clear();
    rebuilt.or_fail(Code::Failed)?;
    array.leave(FAREWELL);
    print(&format!("device {} is rebuilt and good\n", device.0))?;
    Ok(ExitCode::SUCCESS)
}
