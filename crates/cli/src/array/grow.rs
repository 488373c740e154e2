//! `lockify array grow`: an array uses more of its devices' media, or gets another group of devices.

use std::process::ExitCode;
use std::time::Duration;

use lockify_array::{Change, DeviceId, Group, Layout, Member};
use lockify_volume::host::Array;
use lockify_volume::status::{Answer, Answers, ask, make_room};
use lockify_volume::store::blocks_in;
use lockify_volume::upkeep;
use lockify_volume::{ArrayFile, BLOCK, DeviceEntry, HAS_GROUPS, Peer, Software};

use super::create::parse_size;
use super::upkeep::{JOBS, pace};
use super::{FAREWELL, Which, stop};
use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::print;

/// Have an array grow while it is in use
///
/// Each device's file becomes as large as --device-size says. A block device must be as large already. All devices have to be
/// good. Hosts use the new space when all devices have room for it and more than half of the voters have agreed. A client of an
/// export gets the new size when it connects again. An array cannot become smaller.
///
/// With --group, the array gets another group of devices instead. They run already, by an array's file with their entries. An
/// array that has got a group grows by its last group: --device-size is then the size of these devices.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Bytes of each device's file or block device from now on (as 512MiB, 10GiB, 2TiB). With --group, as large as they were
    /// made if it is left out
    #[arg(long, value_name = "SIZE", value_parser = parse_size, required_unless_present = "group")]
    device_size: Option<u64>,
    /// The array gets the next group of devices of the array's file
    #[arg(long)]
    group: bool,
    /// The longest time for a device to make room: zeros may have to be written
    #[arg(long, value_name = "D", default_value = "1h", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

/// How long processes may take to answer a question.
const QUESTION: Duration = Duration::from_secs(3);
/// How long a new device may take to be there with the others.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let file = args.which.file()?;
    let array = args.which.open(&file)?;
    let this = Growing { args, file: &file, array: &array };
    let grown = if args.group { this.by_group() } else { this.by_size() };
    array.leave(FAREWELL);
    print(&grown?)?;
    Ok(ExitCode::SUCCESS)
}

struct Growing<'a> {
    args: &'a Args,
    file: &'a ArrayFile,
    array: &'a Array,
}

fn failed<T>(what: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::new(Code::Failed, what.into()))
}

fn bytes(layout: &Layout) -> u64 {
    layout.blocks() * u64::from(BLOCK)
}

impl Growing<'_> {
    /// The devices have larger media. In an array that has got groups, these are the devices of the last one.
    fn by_size(&self) -> Result<String, Failure> {
        let now = self.array.layout();
        let size = self.args.device_size.unwrap_or_default();
        if let Some(unused) = self.array.status().state.unused_group() {
            return failed(format!(
                "the group of device {} has no stripes yet: `lockify array grow --group` goes on with it",
                unused.first.0
            ));
        }
        let wanted = Layout { stripes: self.stripes(&now, size), ..now };
        if wanted.stripes == now.stripes {
            return Ok(format!("the array has {} bytes already\n", bytes(&now)));
        }
        if wanted.stripes < now.stripes {
            let what = format!(
                "--device-size {size}: that is an array of {} bytes, and this one has {}: it cannot become smaller",
                bytes(&wanted),
                bytes(&now)
            );
            return Err(Failure::new(Code::Unreadable, what));
        }
        let too_large = |why| format!("--device-size {size}: {why}");
        wanted.check().map_err(|why| Failure::new(Code::Unreadable, too_large(why)))?;
        self.all_are_good()?;
        self.make_room_everywhere(&grown_devices(&now), wanted.stripes)?;
        self.use_stripes(&now, wanted)
    }

    /// The array gets the next group of the file. If an earlier call was interrupted, it goes on.
    fn by_group(&self) -> Result<String, Failure> {
        let now = self.array.layout();
        let state = self.array.status().state;
        let unused = state.unused_group().cloned();
        let group = match &unused {
            Some(group) => group.clone(),
            None => self.next_group(&now)?,
        };
        let devices: Vec<DeviceId> = group.devices().map(|(device, _)| device).collect();
        let rows = match self.args.device_size {
            Some(size) => rows(self.file, size),
            None => self.file.layout.device_blocks() / u64::from(self.file.layout.unit),
        };
        let wanted = Layout { stripes: now.stripes.saturating_add(rows), ..now };
        let unfit = |why: String| Failure::new(Code::Unreadable, why);
        if rows == 0 {
            return Err(unfit("--device-size: that is not enough for a stripe unit".into()));
        }
        wanted.check().map_err(|why| unfit(format!("the array would be too large: {why}")))?;
        self.all_know_groups(&devices)?;
        if unused.is_none() {
            self.all_are_good()?;
            // As long as the array does not have them, their length is that of the first devices of an array.
            let stripes = rows.saturating_mul(now.groups.into());
            self.make_room_everywhere(&devices, stripes)?;
            let change = Change::Add { after: state.stripes, group };
            self.array.change(change).or_fail(Code::Failed)?;
        }
        let identity = self.args.which.secure.identity()?;
        let pace = pace(JOBS, None, &self.file.layout, stop()?);
        for device in &devices {
            let patience = PATIENCE.max(super::patience(self.file));
            let brought =
                upkeep::bring_in(self.array, self.file, &identity, *device, &pace, patience);
            brought.map_err(|why| {
                let what = format!("{why}; then call this command again, which goes on");
                Failure::new(Code::Failed, what)
            })?;
        }
        let now = self.array.layout();
        self.make_room_everywhere(&devices, wanted.stripes)?;
        self.use_stripes(&now, wanted)
    }

    fn use_stripes(&self, now: &Layout, wanted: Layout) -> Result<String, Failure> {
        let after = self.array.status().state.stripes;
        let groups = now.added.iter().count();
        let change = Change::Grow { after, groups, stripes: wanted.stripes };
        self.array.change(change).or_fail(Code::Failed)?;
        Ok(format!(
            "the array has {} bytes now, {} more; clients of an export get that size when they connect again\n",
            bytes(&wanted),
            bytes(&wanted) - bytes(now)
        ))
    }

    /// As many as the devices that grow have room for.
    fn stripes(&self, layout: &Layout, device_size: u64) -> u64 {
        let rows = rows(self.file, device_size);
        match layout.added.last() {
            Some(last) => last.from.saturating_add(rows),
            None => rows.saturating_mul(layout.groups.into()),
        }
    }

    fn all_are_good(&self) -> Result<(), Failure> {
        let state = self.array.status().state;
        let Some(bad) = state.ids().find(|device| !state.is_good(*device)) else { return Ok(()) };
        failed(format!(
            "device {0} is not good, and the array grows when all devices are: see `lockify array status`, and `lockify array \
             rebuild --id {0}`",
            bad.0
        ))
    }

    /// The group whose devices the file has behind those that the array has.
    fn next_group(&self, layout: &Layout) -> Result<Group, Failure> {
        let size = usize::from(layout.group_size());
        let known = size * layout.added.iter().count();
        let voters = self.file.voters().count();
        let entries: Vec<&DeviceEntry> = self.file.added.iter().skip(known).take(size).collect();
        let (Some(first), true) = (entries.first(), entries.len() == size) else {
            let (from, to) = (voters + known, voters + known + size - 1);
            let what = format!(
                "{} has no devices {from} to {to}: give each of them a [[device]] entry there, and start it with `lockify array \
                 device FILE --create --id N`",
                self.args.which.array.display()
            );
            return Err(Failure::new(Code::Unreadable, what));
        };
        let member =
            |entry: &&DeviceEntry| Member { address: entry.address.to_string(), node: entry.node };
        let members = entries.iter().map(member).collect();
        Ok(Group { from: layout.stripes, first: DeviceId(first.id), members })
    }

    /// A process of an older release could not be told the array's state. A new device must have nothing yet.
    fn all_know_groups(&self, devices: &[DeviceId]) -> Result<(), Failure> {
        let answers = self.ask()?;
        let servers = (0..).map(Peer::LockServer).zip(&answers.lock_servers);
        let all = answers.devices().map(|(device, answer)| (Peer::Device(device.0), answer));
        let all: Vec<(Peer, &Answer)> = all.chain(servers).collect();
        if let Some((peer, Err(why))) = all.iter().find(|(_, answer)| answer.is_err()) {
            return failed(format!(
                "{peer}: {why}: every process has to answer, because one of an older release cannot be told of another group"
            ));
        }
        let mut behind =
            all.iter().filter_map(|(peer, _)| speaks_older(*peer, answers.software.get(peer)));
        if let Some(why) = behind.next() {
            return failed(format!("{why}, and version {HAS_GROUPS} is needed: upgrade it first"));
        }
        for device in devices {
            let has_content = |answer: &Answer| {
                let report = answer.as_ref().ok();
                report.is_some_and(|r| r.in_service && r.state.condition(*device).is_none())
            };
            match answers.of(*device) {
                None => return failed(format!("device {} does not answer", device.0)),
                Some(answer) if has_content(answer) => {
                    return failed(format!(
                        "device {0} has served before: give it an empty medium, by `lockify array device FILE --create --id {0}`",
                        device.0
                    ));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn ask(&self) -> Result<Answers, Failure> {
        ask(self.file, self.args.which.secure.identity()?, QUESTION).or_fail(Code::Failed)
    }

    /// All at the same time: it may take long. Nothing is lost if some cannot.
    fn make_room_everywhere(&self, devices: &[DeviceId], stripes: u64) -> Result<(), Failure> {
        let identity = self.args.which.secure.identity()?;
        let (file, timeout) = (self.file, self.args.timeout);
        let refused: Vec<String> = std::thread::scope(|scope| {
            let ask = |device: &DeviceId| {
                let (device, identity) = (*device, identity.clone());
                let asked =
                    scope.spawn(move || make_room(file, identity, device, stripes, timeout));
                (device, asked)
            };
            let all: Vec<_> = devices.iter().map(ask).collect();
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
        failed(format!("the array is as before: {}", refused.join("; ")))
    }
}

/// The rows that a device of this size has room for.
fn rows(file: &ArrayFile, device_size: u64) -> u64 {
    blocks_in(device_size, file.sector) / u64::from(file.layout.unit)
}

/// The devices that get more stripes when the array does.
fn grown_devices(layout: &Layout) -> Vec<DeviceId> {
    let last = layout.added.last();
    let is_last = |device: &DeviceId| last.is_none_or(|last| *device >= last.first);
    layout.all_devices().filter(is_last).collect()
}

/// Why the array's state cannot have groups, if this process or a host of it speaks an older version.
fn speaks_older(peer: Peer, software: Option<&Software>) -> Option<String> {
    let older = |newest: u16| newest < HAS_GROUPS;
    let Some(software) = software else {
        return Some(format!("{peer} does not say which version of arrays it speaks"));
    };
    if older(software.newest) {
        return Some(format!("{peer} speaks version {} of arrays at most", software.newest));
    }
    let mut hosts = software.spoken.iter().filter(|(peer, _)| matches!(peer, Peer::Host(_)));
    let (host, version) = hosts.find(|(_, version)| older(*version))?;
    Some(format!("{host} speaks version {version} of arrays at most"))
}
