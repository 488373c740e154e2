//! `lockify array examine`: what a device's medium says of itself.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lockify_array::{ArrayState, Condition, DeviceId, Scheme};
use lockify_volume::store::{Blocks, Examined, Stored, examine, examine_blocks};
use lockify_volume::{ArrayFile, DeviceEntry, Durability, Timing};
use serde::Serialize;

use super::create::Member;
use super::word;
use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::{print, print_json};
use crate::progress::bar;

/// The version of what `--json` prints.
const SCHEMA: u32 = 1;

/// Show what a device's file or block device says of itself and of its array
///
/// Nothing is written there, so the device may be served meanwhile. Ends with 1 if something on it is damaged, and with 2 if it is no
/// device.
#[derive(clap::Args)]
pub struct Args {
    /// The device's file, or a block device
    file: PathBuf,
    /// As one line of JSON
    #[arg(long)]
    json: bool,
    /// Also read all blocks, and count lost and damaged ones
    #[arg(long)]
    blocks: bool,
    /// Write the array's file, as the device was served with it last, to a new file
    #[arg(long, value_name = "OUT.toml")]
    array_file: Option<PathBuf>,
    #[command(flatten)]
    lacking: Lacking,
}

/// For a device that has no array's file: earlier releases did not keep it there.
#[derive(clap::Args)]
#[command(next_help_heading = "For --array-file, where the medium does not have it")]
struct Lacking {
    /// Where each device listens, by number, as for `create`
    #[arg(long = "device", value_name = "ADDR:PORT[@NODE]", requires = "array_file")]
    devices: Vec<Member>,
    /// Where each witness listens
    #[arg(long = "witness", value_name = "ADDR:PORT[@NODE]", requires = "array_file")]
    witnesses: Vec<Member>,
    /// Where the lock server listens. Given again: where another one stands by
    #[arg(long = "lock-server", value_name = "ADDR:PORT[@NODE]", requires = "array_file")]
    lock_servers: Vec<Member>,
    /// The scheme of the array
    #[arg(long, default_value = "timestamp-ordering", requires = "array_file")]
    scheme: Scheme,
    /// The array's lease
    #[arg(long, value_name = "D", default_value = "4s", value_parser = humantime::parse_duration)]
    lease: Duration,
    /// The array was made with `--durable-on-flush`
    #[arg(long, requires = "array_file")]
    durable_on_flush: bool,
}

#[derive(Serialize)]
struct Report {
    schema: u32,
    file: String,
    block_device: bool,
    /// A process serves it now.
    in_use: bool,
    array: String,
    device: u16,
    witness: bool,
    /// It has served: its blocks are the array's.
    in_service: bool,
    format: u32,
    bytes: u64,
    bytes_needed: u64,
    blocks: u64,
    sector_bytes: u32,
    layout: Layout,
    /// None where the medium does not have the array's file.
    scheme: Option<String>,
    durable_on_flush: Option<bool>,
    timing: Option<Timing>,
    superblock_copies: [String; 2],
    record_copies: [String; 2],
    member_copies: [String; 2],
    array_file_copies: [String; 2],
    record: Option<Record>,
    /// The newest view of the members that it knows.
    view: Option<u64>,
    /// With `--blocks`.
    content: Option<Content>,
    problems: Vec<String>,
}

#[derive(Serialize)]
struct Layout {
    redundancy: lockify_array::Redundancy,
    data: u16,
    groups: u16,
    unit_bytes: u64,
    stripes: u64,
}

#[derive(Serialize)]
struct Record {
    format: u32,
    epoch: u64,
    /// An epoch for which it has voted, and of which it does not know if that was decided.
    voted_for: Option<u64>,
    /// The devices of the array, as this one knows them.
    devices: Vec<Known>,
    /// Its own term; it serves in the one that the array has of it.
    term: u64,
    /// An older copy of the medium has another number than the array.
    medium: String,
    /// Hosts that have attached so far.
    hosts: u64,
    fenced: Vec<u32>,
    /// Hosts that may have unfinished writes there.
    holders: Vec<u32>,
    /// Regions in which writes may have been under way.
    dirty_regions: u64,
}

#[derive(Serialize)]
struct Known {
    id: usize,
    condition: &'static str,
    done: Option<u64>,
    term: u64,
}

#[derive(Serialize)]
struct Content {
    whole: u64,
    never_written: u64,
    lost: u64,
    first_lost: Vec<u64>,
    torn: u64,
    unreadable: u64,
    /// The time of the newest write, seconds since 1970.
    newest: u64,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let examined = examine(&args.file).or_fail(Code::Unreadable)?;
    let content = args.blocks.then(|| look_at_blocks(args, &examined)).transpose()?;
    let restored = args.array_file.as_ref().map(|_| restore(&examined, &args.lacking)).transpose();
    let restored = restored
        .map_err(|what| Failure::new(Code::Failed, format!("{}: {what}", args.file.display())))?;
    let mut report = report(args, &examined, content.as_ref());
    if let Some(content) = content.filter(|content| content.torn + content.unreadable > 0) {
        let Blocks { torn, unreadable, .. } = content;
        report.problems.push(format!(
            "{torn} blocks have wrong checksums, and {unreadable} cannot be read: `lockify array scrub --repair` makes them anew"
        ));
    }
    match args.json {
        true => print_json(&report)?,
        false => print(&text(&report))?,
    }
    if let (Some(file), Some(path)) = (restored, &args.array_file) {
        file.create(path).or_fail(Code::Failed)?;
        if !args.json {
            print(&format!("the array's file is in {}\n", path.display()))?;
        }
    }
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { Code::Violated.into() })
}

fn look_at_blocks(args: &Args, examined: &Examined) -> Result<Blocks, Failure> {
    let bar = bar(examined.blocks, "blocks read");
    let found = examine_blocks(&args.file, examined, &|done| bar.set_position(done));
    bar.finish_and_clear();
    found.or_fail(Code::Failed)
}

/// The array's file as the medium has it; else of the superblock and the command line.
fn restore(examined: &Examined, lacking: &Lacking) -> Result<ArrayFile, String> {
    if let Some(file) = &examined.file {
        if !lacking.devices.is_empty() {
            return Err(
                "it has the array's file: leave --device away, and correct addresses in the new file".into()
            );
        }
        return Ok(file.clone());
    }
    let Lacking { devices, witnesses, lock_servers, scheme, lease, durable_on_flush } = lacking;
    let needed = examined.layout.devices();
    if devices.len() != usize::from(needed) {
        return Err(format!(
            "it does not have the array's file, because it was last served by an earlier release or that copy is damaged: give \
             --device ADDR:PORT for each of the {needed} devices, in the order of their numbers (there are {}); and --witness, \
             --lock-server, --scheme, --lease and --durable-on-flush as the array was made with",
            devices.len()
        ));
    }
    let entry = |(id, member): (u16, &Member)| member.entry(id);
    let file = ArrayFile {
        spoken: lockify_volume::SPOKEN,
        id: examined.array,
        scheme: *scheme,
        durability: if *durable_on_flush { Durability::Flush } else { Durability::Write },
        layout: examined.layout,
        sector: examined.sector,
        timing: Timing { lease_ms: lease.as_millis() as u64, ..Timing::default() },
        devices: (0..).zip(devices).map(entry).collect::<Vec<DeviceEntry>>(),
        witnesses: (needed..).zip(witnesses).map(entry).collect(),
        added: Vec::new(),
        lock_server: lock_servers.first().map(Member::lock_server),
        standbys: lock_servers.iter().skip(1).map(Member::lock_server).collect(),
    };
    file.check()?;
    Ok(file)
}

fn report(args: &Args, examined: &Examined, content: Option<&Blocks>) -> Report {
    let words = |copies: [Stored; 2]| copies.map(|copy| copy.to_string());
    let layout = examined.layout;
    let file = examined.file.as_ref();
    Report {
        schema: SCHEMA,
        file: args.file.display().to_string(),
        block_device: examined.is_block_device,
        in_use: examined.in_use,
        array: examined.array.to_string(),
        device: examined.device,
        witness: examined.blocks == 0,
        in_service: examined.in_service,
        format: examined.version,
        bytes: examined.length,
        bytes_needed: examined.needed,
        blocks: examined.blocks,
        sector_bytes: examined.sector,
        layout: Layout {
            redundancy: layout.redundancy,
            data: layout.data,
            groups: layout.groups,
            unit_bytes: u64::from(layout.unit) * u64::from(layout.block_size),
            stripes: layout.stripes,
        },
        scheme: file.map(|file| file.scheme.to_string()),
        durable_on_flush: file.map(|file| file.durability == Durability::Flush),
        timing: file.map(|file| file.timing),
        superblock_copies: words(examined.superblocks),
        record_copies: words(examined.records),
        member_copies: words(examined.members),
        array_file_copies: words(examined.files),
        record: examined.record.as_ref().map(record),
        view: examined.view,
        content: content.map(|found| Content {
            whole: found.whole,
            never_written: found.never_written,
            lost: found.lost,
            first_lost: found.first_lost.clone(),
            torn: found.torn,
            unreadable: found.unreadable,
            newest: found.newest / 1_000_000_000,
        }),
        problems: examined.problems.clone(),
    }
}

fn record(view: &lockify_array::RecordView) -> Record {
    Record {
        format: view.format,
        epoch: view.state.epoch.0,
        voted_for: view.accepted.map(|epoch| epoch.0),
        devices: known(&view.state),
        term: view.term,
        medium: format!("{:016x}", view.key),
        hosts: view.state.hosts,
        fenced: view.fenced.iter().map(|life| life.host.0).collect(),
        holders: view.holders.iter().map(|life| life.host.0).collect(),
        dirty_regions: view.dirty,
    }
}

fn known(state: &ArrayState) -> Vec<Known> {
    let each = |((id, condition), term): ((DeviceId, Condition), &u64)| {
        let (condition, done) = (word(condition), condition.rebuilt_to());
        Known { id: id.0.into(), condition, done, term: *term }
    };
    state.conditions().zip(&state.terms).map(each).collect()
}

fn text(report: &Report) -> String {
    let Report { layout, array, device, blocks, sector_bytes, .. } = report;
    let what = if report.witness { "witness" } else { "device" };
    let used = if report.in_use { "a process serves it now" } else { "no process serves it" };
    let served = match report.in_service {
        true => "its blocks are the array's",
        false => "it is new: its blocks are not the array's",
    };
    let redundancy = match layout.redundancy {
        lockify_array::Redundancy::Raid5 => "RAID-5",
        lockify_array::Redundancy::Mirror => "mirror",
        lockify_array::Redundancy::Raid6 => "RAID-6",
    };
    let more = if layout.redundancy.parities() == 1 { "one" } else { "two" };
    let mut lines = vec![
        format!("{what} {device} of array {array}; {used}; {served}"),
        format!(
            "format {}: {} bytes, of which its {blocks} blocks need {}, with sectors of {sector_bytes} bytes",
            report.format, report.bytes, report.bytes_needed
        ),
        format!(
            "{redundancy}: {} group(s) of {} data units and {more} more, units of {} bytes, {} stripes",
            layout.groups, layout.data, layout.unit_bytes, layout.stripes
        ),
    ];
    lines.push(match (&report.scheme, report.timing, report.durable_on_flush) {
        (Some(scheme), Some(Timing { lease_ms, clock_ms, forget_ms }), Some(flush)) => format!(
            "{scheme}; durable with each {}; lease {lease_ms} ms, clocks {clock_ms} ms, timestamps {forget_ms} ms",
            if flush { "flush" } else { "write" }
        ),
        _ => "it does not have the array's file, which has scheme, timing and addresses".to_owned(),
    });
    lines.extend(report.record.as_ref().map(of_record).into_iter().flatten());
    lines.extend(
        report.view.map(|view| format!("the newest view of the members that it knows: {view}")),
    );
    for (name, [one, other]) in [
        ("superblock", &report.superblock_copies),
        ("record", &report.record_copies),
        ("state of the members", &report.member_copies),
        ("array's file", &report.array_file_copies),
    ] {
        lines.push(format!("copies of the {name}: {one}, {other}"));
    }
    lines.extend(report.content.as_ref().map(of_content));
    lines.extend(report.problems.iter().map(|problem| format!("PROBLEM: {problem}")));
    lines.join("\n") + "\n"
}

fn of_record(record: &Record) -> Vec<String> {
    let each = |known: &Known| match known.done {
        Some(done) => format!("{} rebuilding, up to stripe {done}", known.id),
        None => format!("{} {}", known.id, known.condition),
    };
    let devices: Vec<String> = record.devices.iter().map(each).collect();
    let voted = record.voted_for.map(|epoch| format!("; it has voted for epoch {epoch}"));
    let list = |hosts: &[u32]| match hosts {
        [] => "none".to_owned(),
        some => some.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
    };
    vec![
        format!(
            "epoch {}{}, as it knows: devices {}",
            record.epoch,
            voted.unwrap_or_default(),
            devices.join(", ")
        ),
        format!(
            "its term {}, its medium's number {}; {} hosts have attached; fenced: {}",
            record.term,
            record.medium,
            record.hosts,
            list(&record.fenced)
        ),
        format!(
            "hosts that may have unfinished writes there: {}; regions to be checked: {}",
            list(&record.holders),
            record.dirty_regions
        ),
    ]
}

fn of_content(content: &Content) -> String {
    let Content { whole, never_written, lost, first_lost, torn, unreadable, newest } = content;
    let first: Vec<String> = first_lost.iter().map(u64::to_string).collect();
    let lost = match lost {
        0 => "none is lost".to_owned(),
        n => format!("{n} of them are marked as lost, the first ones at {}", first.join(", ")),
    };
    let time = std::time::UNIX_EPOCH + Duration::from_secs(*newest);
    let newest = match whole {
        0 => String::new(),
        _ => format!(", the newest of {}", humantime::format_rfc3339_seconds(time)),
    };
    format!(
        "blocks: {whole} whole{newest}, {lost}; {never_written} never written; {torn} with wrong checksums; {unreadable} unreadable"
    )
}
