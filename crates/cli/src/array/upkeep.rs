//! `lockify array scrub`, `rebuild` and `replace`.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use lockify_array::{ArrayState, DeviceId, Layout};
use lockify_volume::host::{Array, Repair};
use lockify_volume::status::{Answers, ask};
use lockify_volume::upkeep::{self, Admission, Pace, stripes_of};
use lockify_volume::{ArrayFile, Report};

use super::create::parse_size;
use super::{FAREWELL, Which, patience, say, stop};
use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::{print, print_json};
use crate::progress::bar;

/// Check that all stripes of an array fit together
///
/// Hosts may go on meanwhile. Ends with 1 if blocks did not fit somewhere, content is lost, or a stripe cannot be checked.
#[derive(clap::Args)]
pub struct ScrubArgs {
    #[command(flatten)]
    which: Which,
    /// Write blocks that do not fit, as far as their headers tell which one is older
    ///
    /// Where nobody knows which block is wrong, nothing is written.
    #[arg(long)]
    repair: bool,
    /// Also write parity that fits the data where nobody knows which block is wrong
    ///
    /// That may overwrite the only good copy of a block.
    #[arg(long, requires = "repair")]
    accept_loss: bool,
    /// Begin with this stripe: an earlier scrub was stopped there
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    #[command(flatten)]
    pacing: Pacing,
    /// Print the findings as JSON, with the numbers of the first thousand stripes of each kind
    #[arg(long)]
    json: bool,
}

/// How many stripes at a time, if nobody says it.
pub(super) const JOBS: u16 = 4;

/// How fast all stripes are worked on.
#[derive(clap::Args)]
pub(super) struct Pacing {
    /// How many stripes at a time
    #[arg(long, value_name = "N", default_value_t = JOBS, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// At most so many bytes of all devices together in a second (as 100MiB); otherwise as many as there are
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    rate: Option<u64>,
}

pub(super) fn parse_rate(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("at 0 bytes in a second it would never end".into()),
        rate => Ok(rate),
    }
}

impl Pacing {
    /// SIGTERM and SIGINT stop it between two stripes.
    pub(super) fn pace(&self, layout: &Layout) -> Result<Pace, Failure> {
        Ok(pace(self.jobs, self.rate, layout, stop()?))
    }
}

/// The pace of so many stripes at a time.
pub(super) fn pace(jobs: u16, rate: Option<u64>, layout: &Layout, stop: Arc<AtomicBool>) -> Pace {
    let pace = Pace::of(jobs.into()).until(stop);
    match rate {
        Some(rate) => pace.at_most(rate, layout.stripe_bytes()),
        None => pace,
    }
}

/// Rebuild a device that has failed, or is new, from the others
///
/// For one that failed and is back, or to go on with a rebuild that was interrupted; `replace` is for a new device in the place
/// of one that had content. Hosts may go on meanwhile. Ends with 1 if the others do not yield some blocks: these are lost.
#[derive(clap::Args)]
pub struct RebuildArgs {
    #[command(flatten)]
    which: Which,
    /// The device's number
    #[arg(long, value_name = "N")]
    id: u16,
    #[command(flatten)]
    pacing: Pacing,
}

/// Have a new device take the place of one that had content, and rebuild it from the others
///
/// The new one runs already: `lockify array device NEWFILE --create --id N`. Hosts may go on meanwhile. Ends with 1 if the
/// others do not yield some blocks: these are lost.
#[derive(clap::Args)]
pub struct ReplaceArgs {
    #[command(flatten)]
    rebuild: RebuildArgs,
    /// Continue without the old device, even if only that one may have a host's data
    ///
    /// That may be so where another device of its group has restarted and does not know yet hosts' writes at the time when
    /// it stopped. Blocks may then have the content that they had before. Another device of the group that is not there, or
    /// is empty, is given up as well: in each stripe, the blocks of both are lost, and reading them is an error. Replace
    /// that one afterwards.
    #[arg(long)]
    accept_loss: bool,
}

/// Checks all stripes.
pub fn scrub(args: &ScrubArgs) -> Ended {
    let file = args.which.file()?;
    let pace = args.pacing.pace(&file.layout)?;
    let array = args.which.open(&file)?;
    // It may have grown since its file was made.
    let stripes = array.layout().stripes;
    if args.from >= stripes {
        array.leave(FAREWELL);
        let what = format!("--from {}: the array's stripes are 0 to {}", args.from, stripes - 1);
        return Err(Failure::new(Code::Unreadable, what));
    }
    let bar = bar(stripes - args.from, "stripes checked");
    let repair = match (args.repair, args.accept_loss) {
        (false, _) => Repair::None,
        (true, false) => Repair::Known,
        (true, true) => Repair::AcceptLoss,
    };
    let scrub = upkeep::scrub(&array, args.from..stripes, repair, &pace, &|| bar.inc(1));
    bar.finish_and_clear();
    let scrub = scrub.or_fail(Code::Failed)?;
    array.leave(FAREWELL);
    match args.json {
        true => print_json(&Findings::of(&scrub))?,
        false => print(&in_words(&scrub, args.repair))?,
    }
    if let Some(next) = scrub.next {
        let what = format!("stopped before stripe {next}: go on with --from {next}");
        return Err(Failure::new(Code::Failed, what));
    }
    let upkeep::Found { unfit, lost, failed, .. } = scrub.found;
    let clean = unfit == 0 && lost == 0 && failed == 0;
    Ok(if clean { ExitCode::SUCCESS } else { Code::Violated.into() })
}

/// The findings in a line.
fn in_words(scrub: &upkeep::Scrub, repair: bool) -> String {
    let upkeep::Found { stripes, unfit, undecided, failed, .. } = scrub.found;
    let of = |list: &upkeep::Stripes| match list.count {
        0 => String::new(),
        _ => format!(" ({})", list.text()),
    };
    let fitted = match (unfit - undecided, repair) {
        (0, _) if undecided > 0 => "no others need a repair".to_owned(),
        (0, _) => "all fit".to_owned(),
        (n, true) => format!("{n} did not fit{}, and do now", of(&scrub.unfit)),
        (n, false) => format!("{n} do not fit{}: give --repair", of(&scrub.unfit)),
    };
    let (left, lost) = (scrub.found.of_undecided(), scrub.found.of_lost());
    let (left_in, lost_in) = (of(&scrub.undecided), of(&scrub.lost));
    let failed = scrub.failure.as_ref().map_or_else(String::new, |(stripe, error)| {
        format!("; {failed} more could not be checked, the first of them stripe {stripe}: {error}")
    });
    format!("{stripes} stripes: {fitted}{left}{left_in}{lost}{lost_in}{failed}\n")
}

/// The findings for scripts.
#[derive(serde::Serialize)]
struct Findings {
    /// Stripes that were checked.
    stripes: u64,
    /// Stripes that did not fit; with --repair they do now, but for the undecided ones.
    unfit: Listed,
    /// Those of them that nobody can repair.
    undecided: Listed,
    /// Stripes with lost blocks.
    lost: Listed,
    lost_blocks: u64,
    /// Stripes that could not be checked, and the first reason.
    failed: Listed,
    error: Option<String>,
    /// The stripe to go on with, if the scrub was stopped.
    next: Option<u64>,
}

/// Stripes by number.
#[derive(serde::Serialize)]
struct Listed {
    count: u64,
    first: Vec<u64>,
}

impl Findings {
    fn of(scrub: &upkeep::Scrub) -> Findings {
        let listed = |stripes: &upkeep::Stripes| Listed {
            count: stripes.count,
            first: stripes.first.iter().copied().collect(),
        };
        Findings {
            stripes: scrub.found.stripes,
            unfit: listed(&scrub.unfit),
            undecided: listed(&scrub.undecided),
            lost: listed(&scrub.lost),
            lost_blocks: scrub.found.lost,
            failed: listed(&scrub.failed),
            error: scrub.failure.as_ref().map(|(_, error)| error.to_string()),
            next: scrub.next,
        }
    }
}

/// Rebuilds a device that is out of the array.
pub fn rebuild(args: &RebuildArgs) -> Ended {
    let file = args.which.file()?;
    let array = args.which.open(&file)?;
    let device = existing(args, &array)?;
    await_served(args, &file, device)?;
    rebuild_device(&array, device, false, &args.pacing.pace(&file.layout)?)
}

/// Waits until the others have let a device in that was just started. A rebuild that begins earlier takes it for gone again.
fn await_served(args: &RebuildArgs, file: &ArrayFile, device: DeviceId) -> Result<(), Failure> {
    let end = Instant::now() + patience(file);
    loop {
        let answers = ask(file, args.which.secure.identity()?, Duration::from_secs(3))
            .or_fail(Code::Failed)?;
        let (is, why) = match answers.of(device) {
            Some(Err(why)) => ("is not there", Some(why.clone())),
            Some(Ok(report)) if !report.serving && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            Some(Ok(report)) if !report.serving => ("does not serve", report.waits.clone()),
            _ => return Ok(()),
        };
        let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
        let what = format!(
            "device {0} {is}{why}: start it with `lockify array device FILE --id {0}`, or see its log",
            args.id
        );
        return Err(Failure::new(Code::Failed, what));
    }
}

/// Has the array count a new device as failed, and rebuilds it.
pub fn replace(args: &ReplaceArgs) -> Ended {
    let ReplaceArgs { rebuild: args, accept_loss } = args;
    let file = args.which.file()?;
    let array = args.which.open(&file)?;
    let device = existing(args, &array)?;
    let mut end = Instant::now() + patience(&file);
    let mut begun = false;
    loop {
        let identity = args.which.secure.identity()?;
        let answers = ask(&file, identity, Duration::from_secs(3)).or_fail(Code::Failed)?;
        let mut waits = None;
        match upkeep::admit(&array, &file, &answers, device).or_fail(Code::Failed)? {
            Admission::Ready => break,
            // Once: a device that comes and goes is not waited for without an end.
            Admission::Begun if !begun => {
                (begun, end) = (true, Instant::now() + patience(&file));
            }
            Admission::Absent(why) => {
                let what = format!(
                    "device {0} is not there ({why}): start the new one with `lockify array device FILE --create --id {0}`",
                    args.id
                );
                return Err(Failure::new(Code::Failed, what));
            }
            Admission::Good => {
                let what = format!(
                    "device {0} is good: to replace it, end its process and start one with `lockify array device NEWFILE \
                     --create --id {0}`",
                    args.id
                );
                return Err(Failure::new(Code::Failed, what));
            }
            Admission::Alone(_) if *accept_loss => {
                let Some(state) = answers.newest() else { continue };
                give_up(&array, state, &lost_with(&file, &answers, state, device), device)?;
            }
            Admission::Alone(why) => waits = Some(why),
            Admission::Begun | Admission::Waits => {}
        }
        if Instant::now() > end {
            let waits = waits.unwrap_or_else(|| unready(&answers, device));
            return Err(Failure::new(Code::Failed, waits));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    rebuild_device(&array, device, begun, &args.pacing.pace(&file.layout)?)
}

/// Why a device does not become ready, as far as it says.
fn unready(answers: &Answers, device: DeviceId) -> String {
    let report = answers.of(device).and_then(|answer| answer.as_ref().ok());
    let newest = answers.newest().map_or(0, |state| state.epoch.0);
    let why = match report {
        Some(Report { waits: Some(why), .. }) => why.clone(),
        Some(report) if report.state.epoch.0 < newest => {
            let known = report.state.epoch.0;
            format!("it knows the array's state of epoch {known} and not the newest, {newest}")
        }
        _ => "see its log".into(),
    };
    format!("device {} does not become ready: {why}", device.0)
}

/// The other devices of a device's group that count and are not there, or have nothing.
fn lost_with(
    file: &ArrayFile,
    answers: &Answers,
    state: &ArrayState,
    device: DeviceId,
) -> Vec<DeviceId> {
    let is_lost = |other: &DeviceId| match answers.of(*other) {
        Some(Ok(report)) => !report.in_service,
        _ => true,
    };
    let beside = file.layout.grown(state).beside(device);
    beside.filter(|other| !state.is_failed(*other) && is_lost(other)).collect()
}

/// Has the array go on without a device, and without the others that are lost with it.
fn give_up(
    array: &Array,
    state: &ArrayState,
    others: &[DeviceId],
    device: DeviceId,
) -> Result<(), Failure> {
    for other in others {
        say(&format!(
            "device {0} is given up as well, because it is not there or is empty: in each stripe, the blocks that devices {1} and \
             {0} had are lost; replace device {0} next (`lockify array replace --id {0}`)",
            other.0, device.0
        ));
        array.change(state.without_at_a_loss(*other)).or_fail(Code::Failed)?;
    }
    array.change(state.without_at_a_loss(device)).or_fail(Code::Failed)
}

fn existing(args: &RebuildArgs, array: &Array) -> Result<DeviceId, Failure> {
    let layout = array.layout();
    if layout.group(DeviceId(args.id)).is_some() {
        return Ok(DeviceId(args.id));
    }
    array.leave(FAREWELL);
    let later = |group: lockify_array::AddedGroup| {
        format!(", {} to {}", group.first.0, group.first.0 + layout.group_size() - 1)
    };
    let later: String = layout.added.iter().map(later).collect();
    let last = layout.devices() - 1;
    let what = format!("--id {}: the array has devices 0 to {last}{later}", args.id);
    Err(Failure::new(Code::Unreadable, what))
}

pub(super) fn rebuild_device(array: &Array, device: DeviceId, begun: bool, pace: &Pace) -> Ended {
    let bar = bar(stripes_of(array, device), "stripes rebuilt");
    let rebuilt = upkeep::rebuild(array, device, begun, pace, &|done| bar.set_position(done));
    bar.finish_and_clear();
    let rebuilt = rebuilt.or_fail(Code::Failed)?;
    array.leave(FAREWELL);
    if rebuilt.is_clean() {
        print(&format!("device {} is rebuilt and good\n", device.0))?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&format!("device {} is rebuilt, and in use again{}\n", device.0, rebuilt.of_lost()))?;
    Ok(Code::Violated.into())
}
