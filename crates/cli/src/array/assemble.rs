//! `lockify array assemble`: two devices of a group are gone, and the medium of the one that went first is there.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use lockify_array::{ArrayState, Condition, DeviceId, Outlook, RecordView, Redundancy, Time};
use lockify_volume::ArrayFile;
use lockify_volume::assembly::{Survey, survey, whole_to};
use lockify_volume::host::Array;
use lockify_volume::status::{Answer, Answers, ask};
use lockify_volume::store::{Examined, examine, examine_blocks};
use lockify_volume::upkeep::stripes_of;

use super::upkeep::{Pacing, rebuild_device};
use super::{FAREWELL, Which, patience};
use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::print;
use crate::progress::bar;

/// Bring back a device with the content that it left with, when another device of its group is lost
///
/// Its process runs already, with its old medium: `lockify array device FILE --id N`. Without --force nothing is changed: the
/// command says what would be lost, and ends with 1 if something would be. Run it on the device's machine.
#[derive(clap::Args)]
pub struct Args {
    /// The file or block device of the device that left first
    file: PathBuf,
    #[command(flatten)]
    which: Which,
    /// Give the lost device up, and bring this one back
    ///
    /// Blocks that were written since this device left are lost, as far as nobody else has them. Reading them is an error until
    /// they are written anew. Blocks of which only the lost device could tell are used as they are. Replace the lost device
    /// afterwards. Ends with 1 if something is lost.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pacing: Pacing,
}

/// The two devices.
struct Two {
    first: DeviceId,
    /// The one that is lost.
    lost: DeviceId,
    /// The array's state by which this is so.
    state: ArrayState,
}

/// Reports, or brings the device back.
pub fn run(args: &Args) -> Ended {
    let file = args.which.file()?;
    if file.layout.redundancy == Redundancy::Raid6 {
        return refused(
            "an array with two parities does not use old blocks of a device: `lockify array rebuild` brings a device back while \
             no more than two of its group are missing, and `lockify array replace --accept-loss` goes on without the content of \
             more"
                .to_owned(),
        );
    }
    let examined = examine(&args.file).or_fail(Code::Unreadable)?;
    let device = device_of(args, &file, &examined)?;
    let two = look(args, &file, device)?;
    if two.state.is_rebuilding(device) {
        return go_on(args, &file, &two);
    }
    let whole_to = time_of(args, &file, &two.state, device)?;
    let array = args.which.open(&file)?;
    let pace = args.pacing.pace(&file.layout)?;
    let bar = bar(stripes_of(&array, device), "stripes looked at");
    let found = survey(&array, device, whole_to, two.lost, &pace, &|| bar.inc(1));
    bar.finish_and_clear();
    let found = found.or_fail(Code::Failed)?;
    print(&in_words(&two, &found))?;
    if args.force {
        give_up(&array, &two, whole_to)?;
        return rebuild(args, &file, &array, &two, true);
    }
    array.leave(FAREWELL);
    print(&format!(
        "nothing is changed: bring device {0} back if that is possible; otherwise --force gives device {0} up, and brings device \
         {1} back\n",
        two.lost.0, two.first.0
    ))?;
    Ok(if is_clean(&found) { ExitCode::SUCCESS } else { Code::Violated.into() })
}

fn refused<T>(what: String) -> Result<T, Failure> {
    Err(Failure::new(Code::Failed, what))
}

/// The device of the array whose medium a file is.
fn device_of(args: &Args, file: &ArrayFile, examined: &Examined) -> Result<DeviceId, Failure> {
    let (path, id) = (args.file.display(), examined.device);
    let unfit = |what: String| Err(Failure::new(Code::Unreadable, format!("{path}: {what}")));
    if examined.array != file.id {
        return unfit(format!("it belongs to another array, {}", examined.array));
    }
    if file.is_witness(DeviceId(id)) {
        return unfit(format!("it is that of witness {id}, and has no blocks"));
    }
    if !examined.in_service || examined.record.is_none() {
        return unfit(format!(
            "it has nothing of device {id}: have it take the device's place by `lockify array replace --id {id} --accept-loss`"
        ));
    }
    if !examined.in_use {
        return refused(format!(
            "{path}: no process serves it: start `lockify array device {path} --array {} --id {id}`",
            args.which.array.display()
        ));
    }
    Ok(DeviceId(id))
}

/// Waits until the device serves, and finds the lost one.
fn look(args: &Args, file: &ArrayFile, device: DeviceId) -> Result<Two, Failure> {
    let end = Instant::now() + patience(file);
    loop {
        let identity = args.which.secure.identity()?;
        let answers = ask(file, identity, Duration::from_secs(3)).or_fail(Code::Failed)?;
        let state = answers.newest();
        let serves = |answer: Option<&Answer>| matches!(answer, Some(Ok(report)) if report.serving);
        if let Some(state) = state.filter(|_| serves(answers.of(device))) {
            may_come_back(state, device)?;
            let lost = lost_one(file, &answers, state, device)?;
            return Ok(Two { first: device, lost, state: state.clone() });
        }
        if Instant::now() > end {
            let why = match answers.of(device) {
                Some(Ok(report)) => report.waits.clone().unwrap_or_default(),
                Some(Err(why)) => why.clone(),
                None => String::new(),
            };
            return refused(format!("device {} does not become ready: {why}", device.0));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Refuses a device whose medium is the array's anyway, or never had everything.
fn may_come_back(state: &ArrayState, device: DeviceId) -> Result<(), Failure> {
    let id = device.0;
    match state.condition(device) {
        Some(Condition::Failed) => Ok(()),
        Some(condition) if condition.whole_to().is_some() => Ok(()),
        Some(Condition::Good) => refused(format!(
            "device {id} is good, and its content counts: there is nothing to bring back"
        )),
        Some(Condition::Rebuilding { .. } | Condition::Returning { .. }) => refused(format!(
            "device {id} is being rebuilt already, so that its old content does not count any more: go on with `lockify array \
             rebuild --id {id}`, or with `lockify array replace --id {id} --accept-loss`"
        )),
        Some(Condition::Unfinished) | None => refused(format!(
            "device {id} has failed before it was rebuilt, so that its medium never had everything: `lockify array replace --id \
             {id} --accept-loss` goes on without its content"
        )),
    }
}

/// The one other device of the group that is not there.
fn lost_one(
    file: &ArrayFile,
    answers: &Answers,
    state: &ArrayState,
    device: DeviceId,
) -> Result<DeviceId, Failure> {
    let id = device.0;
    let is_there = |other: &DeviceId| {
        let answer = answers.of(*other);
        state.is_good(*other) && matches!(answer, Some(Ok(report)) if report.in_service)
    };
    let lost: Vec<DeviceId> =
        file.layout.grown(state).beside(device).filter(|other| !is_there(other)).collect();
    if let Some(other) = lost.iter().find(|other| state.is_rebuilding(**other)) {
        return refused(format!(
            "device {0} is being rebuilt: let that end first (`lockify array rebuild --id {0}`)",
            other.0
        ));
    }
    match lost[..] {
        [lost] => Ok(lost),
        [] => refused(format!(
            "all other devices of its group are there: `lockify array rebuild --id {id}` brings device {id} back, and nothing is \
             lost"
        )),
        _ => {
            let names: Vec<String> = lost.iter().map(|device| device.0.to_string()).collect();
            refused(format!(
                "devices {} of its group are gone as well, which is more than the content of device {id} can make up for: bring all \
                 but one of them back, or go on by `lockify array replace --id {id} --accept-loss`",
                names.join(", ")
            ))
        }
    }
}

/// Up to which timestamp the medium has every write. The process must serve that medium.
fn time_of(
    args: &Args,
    file: &ArrayFile,
    state: &ArrayState,
    device: DeviceId,
) -> Result<Time, Failure> {
    let examined = examine(&args.file).or_fail(Code::Unreadable)?;
    let is_it = |record: &&RecordView| {
        let numbers = [record.key, record.asked];
        let is_known = state.is_unnumbered(device) || numbers.contains(&state.key(device));
        record.term == state.term(device) && is_known
    };
    let Some(record) = examined.record.as_ref().filter(is_it) else {
        return refused(format!(
            "{}: device {} is served from another file, or starts again just now",
            args.file.display(),
            device.0
        ));
    };
    let bar = bar(examined.blocks, "blocks read");
    let blocks = examine_blocks(&args.file, &examined, &|read| bar.set_position(read));
    bar.finish_and_clear();
    let newest = blocks.or_fail(Code::Unreadable)?.newest;
    Ok(whole_to(file, record.flushed_to, newest))
}

/// The array goes on without the lost device, and with the old blocks of the other one.
fn give_up(array: &Array, two: &Two, whole_to: Time) -> Result<(), Failure> {
    if !two.state.is_failed(two.lost) {
        array.change(two.state.without_at_a_loss(two.lost)).or_fail(Code::Failed)?;
    }
    array.change(two.state.with_old_blocks(two.first, whole_to)).or_fail(Code::Failed)
}

/// An earlier process has begun to bring the device back.
fn go_on(args: &Args, file: &ArrayFile, two: &Two) -> Ended {
    if !args.force {
        return refused(format!(
            "an earlier command has begun to bring device {} back: give --force to go on",
            two.first.0
        ));
    }
    let array = args.which.open(file)?;
    rebuild(args, file, &array, two, false)
}

/// `begun`: this process has just begun it.
fn rebuild(args: &Args, file: &ArrayFile, array: &Array, two: &Two, begun: bool) -> Ended {
    let code = rebuild_device(array, two.first, begun, &args.pacing.pace(&file.layout)?)?;
    print(&format!(
        "device {0} is given up: replace it now (`lockify array device NEWFILE --create --id {0}`, then `lockify array replace --id \
         {0}`)\n",
        two.lost.0
    ))?;
    Ok(code)
}

/// Returns true if nothing is lost, and everything is certainly the newest content.
fn is_clean(found: &Survey) -> bool {
    let Outlook { may_be_old, outdated, gone, other_may_be_old, other_lost, .. } = found.outlook;
    [may_be_old, outdated, gone, other_may_be_old, other_lost, found.failed] == [0; 6]
}

/// The findings, for people.
fn in_words(two: &Two, found: &Survey) -> String {
    let Outlook { current, may_be_old, outdated, gone, .. } = found.outlook;
    let Outlook { other_current, other_may_be_old, other_lost, .. } = found.outlook;
    let (first, lost) = (two.first.0, two.lost.0);
    let failed = found.failure.as_ref().map_or_else(String::new, |(stripe, error)| {
        format!(
            "{} stripes could not be looked at, the first of them stripe {stripe}: {error}\n",
            found.failed
        )
    });
    format!(
        "device {first} has left with its data blocks:\n  {current} are the newest content\n  {may_be_old} may be older than the \
         newest content, which only device {lost} could tell\n  {outdated} are lost, because they were written since, as far as \
         anybody knows\n  {gone} are lost, because its medium does not have them\n\
         of the data blocks of device {lost}:\n  {other_current} can be made of the others\n  {other_may_be_old} can be made of the \
         others, and may be older than the newest content\n  {other_lost} are lost\n{failed}"
    )
}
