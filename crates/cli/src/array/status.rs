//! `lockify array status`: how an array stands.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

use lockify_array::{Condition, DeviceId, LockService, ServerId};
use lockify_trust::Identity;
use lockify_volume::status::{Answer, Answers, ask};
use lockify_volume::{
    ArrayFile, BLOCK, LockServerEntry, Peer, Report, SPOKEN, Software, TELLS_SOFTWARE,
};
use serde::Serialize;

use super::{Which, metrics, word};
use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::{columns, print, print_json};

/// The version of what `--json` prints.
const SCHEMA: u32 = 1;

/// Show how an array stands
///
/// Ends with 1 if a device is missing or not good, has unreadable blocks, or no lock server serves, or one that stands by is
/// missing or does not have every lock.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// As one line of JSON
    #[arg(long, conflicts_with = "metrics")]
    json: bool,
    /// As metrics in the text format of OpenMetrics, for Prometheus
    #[arg(long)]
    metrics: bool,
    /// How long devices and lock servers may take to answer
    #[arg(long, value_name = "D", default_value = "3s", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

#[derive(Serialize)]
pub(super) struct Status {
    schema: u32,
    pub array: String,
    pub scheme: String,
    pub bytes: u64,
    pub epoch: u64,
    /// The number of the newest view. It is none where no majority has agreed on one.
    pub view: Option<u64>,
    /// All devices are good and there. If the scheme has lock servers, one serves, and the others have every lock.
    pub healthy: bool,
    pub devices: Vec<Device>,
    /// The lock server that serves, or else the first one; nothing if the scheme has none.
    pub lock_server: Option<LockServer>,
    /// All lock servers.
    pub lock_servers: Vec<LockServer>,
    /// How often a lock server has begun to serve.
    pub lock_term: u64,
    /// The nodes that hosts have been on.
    pub nodes: Vec<Node>,
    /// The software of devices, witnesses and lock servers that answer.
    software: Vec<Process>,
}

/// One process's release, and the versions of arrays' messages that it speaks (`docs/compatibility.md`).
#[derive(Serialize)]
struct Process {
    process: String,
    /// None of a process whose version does not tell, or which was not asked in a version that does.
    release: Option<String>,
    /// The newest version that it speaks.
    newest: Option<u16>,
    /// The version that it speaks with each that is connected to it.
    spoken: BTreeMap<String, u16>,
}

impl Process {
    fn of(peer: Peer, software: Option<&Software>) -> Process {
        let spoken = software.iter().flat_map(|software| &software.spoken);
        Process {
            process: peer.to_string(),
            release: software.map(|software| software.release.clone()),
            newest: software.map(|software| software.newest),
            spoken: spoken.map(|(peer, version)| (peer.to_string(), *version)).collect(),
        }
    }

    /// The reason why the array does not speak the newest version, if this process does.
    fn is_behind(&self) -> Option<String> {
        let Process { process, release, newest, spoken } = self;
        let Some(newest) = newest else {
            return Some(format!("{process} speaks version {} at most", TELLS_SOFTWARE - 1));
        };
        if *newest < SPOKEN.newest {
            let release = release.as_deref().unwrap_or_default();
            return Some(format!("{process} (release {release}) speaks version {newest} at most"));
        }
        let hosts = spoken.iter().filter(|(peer, _)| peer.starts_with("host"));
        let (host, version) = hosts.min_by_key(|(_, version)| **version)?;
        (*version < SPOKEN.newest).then(|| format!("{host} speaks version {version} at most"))
    }
}

#[derive(Serialize)]
pub(super) struct Node {
    pub name: String,
    /// Hosts that have neither ended in order nor been fenced.
    pub hosts: Vec<u32>,
}

#[derive(Clone, Serialize)]
pub(super) struct LockServer {
    pub id: u16,
    pub address: String,
    /// It serves hosts, by the array's state.
    pub serving: bool,
    /// It is there and has every lock: it may serve next, if it does not serve.
    pub complete: bool,
    /// Why it does not serve.
    pub why: Option<String>,
    /// Hosts that are connected to it.
    pub hosts: Vec<u32>,
    pub requests: Option<u64>,
}

#[derive(Serialize)]
pub(super) struct Device {
    pub id: u16,
    pub address: String,
    pub witness: bool,
    /// `good`, `failed`, `rebuilding`; `new` if its medium has nothing of the array; nothing for a witness.
    pub condition: Option<&'static str>,
    /// Of a device that is being rebuilt: stripes that are done, of all groups.
    pub done: Option<u64>,
    /// It serves hosts.
    pub serving: bool,
    /// Why it does not, or is not there.
    pub why: Option<String>,
    /// The reason why the others have it out of their view.
    pub out: Option<String>,
    /// The number by which the others know its process.
    pub life: Option<u64>,
    /// Hosts that are connected to it.
    pub hosts: Vec<u32>,
    pub requests: Option<u64>,
    /// Stripes that may have been written in when it stopped: it checks them in the background.
    pub unchecked: Option<u64>,
    /// How often its medium has not returned a block, since its process began.
    pub errors: Option<u64>,
    /// Blocks that its medium does not return now.
    pub unreadable: Option<u64>,
    /// Blocks that were written anew after such an error or loss.
    pub rewritten: Option<u64>,
    /// How often its medium has returned an older state of a block than was written last.
    pub lost_writes: Option<u64>,
    /// It has restarted and does not know hosts' unfinished writes yet: no other of its group is given up.
    pub unsettled: Option<bool>,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let file = args.which.file()?;
    let status = of(&file, args.which.secure.identity()?, args.timeout)?;
    if args.json {
        print_json(&status)?;
    } else if args.metrics {
        print(&metrics::text(&status).or_fail(Code::Failed)?)?;
    } else {
        print(&text(&status))?;
    }
    Ok(if status.healthy { ExitCode::SUCCESS } else { Code::Violated.into() })
}

/// An array's status, from everybody who answers in time.
pub(super) fn of(
    file: &ArrayFile,
    identity: Identity,
    timeout: Duration,
) -> Result<Status, Failure> {
    let answers = ask(file, identity, timeout).or_fail(Code::Failed)?;
    Ok(status(file, &answers))
}

/// The condition of a device whose medium has nothing of the array.
const NEW: &str = "new";

/// Why such a device does not serve, beside others with content.
fn is_empty(id: u16) -> String {
    format!(
        "its medium is empty: it is out until it is rebuilt (`lockify array replace --id {id}`); the old medium is better if it is \
         whole"
    )
}

/// Returns the report of a member of the newest view.
fn newest_view(answers: &[Answer]) -> Option<&Report> {
    answers.iter().flatten().filter(|report| report.view.is_some()).max_by_key(|report| report.view)
}

fn status(file: &ArrayFile, answers: &Answers) -> Status {
    let state = answers.newest();
    let view = newest_view(&answers.voters);
    let out = |id: u16| {
        let out = view.iter().flat_map(|report| &report.out).find(|(device, _)| *device == id);
        out.map(|(_, why)| why.clone())
    };
    let device = |(id, answer): (DeviceId, &Answer)| {
        let by_file = file.entry(id).map(|entry| entry.address.to_string());
        let agreed = || answers.added.get(&id).map(|(address, _)| address.to_string());
        let address = by_file.or_else(agreed).unwrap_or_default();
        let condition = state.and_then(|state| state.condition(id));
        let is_new = answer.as_ref().is_ok_and(|report| !report.in_service);
        let word = match condition {
            Some(Condition::Good) if is_new => Some(NEW),
            condition => condition.map(word),
        };
        let report = answer.as_ref().ok();
        let why = match answer {
            Ok(report) if word == Some(NEW) && report.waits.is_none() => Some(is_empty(id.0)),
            Ok(report) => report.waits.clone(),
            Err(why) => Some(why.clone()),
        };
        Device {
            id: id.0,
            address,
            witness: file.is_witness(id),
            condition: word,
            done: condition.and_then(Condition::rebuilt_to),
            serving: word != Some(NEW) && report.is_some_and(|report| report.serving),
            why,
            out: out(id.0),
            life: report.map(|report| report.life),
            hosts: hosts(answer),
            requests: report.map(|report| report.requests),
            unchecked: report.map(|report| report.unchecked),
            errors: report.map(|report| report.errors),
            unreadable: report.map(|report| report.unreadable),
            rewritten: report.map(|report| report.rewritten),
            lost_writes: report.map(|report| report.lost_writes),
            unsettled: report.map(|report| report.unsettled),
        }
    };
    // One that the file has, and the array not yet, is no part of it.
    let is_part = |id: &DeviceId| {
        file.voter(*id).is_some() || state.is_some_and(|state| state.condition(*id).is_some())
    };
    let parts: Vec<(DeviceId, &Answer)> = answers.devices().filter(|(id, _)| is_part(id)).collect();
    let devices: Vec<Device> = parts.iter().copied().map(device).collect();
    let locks = state.map(|state| state.locks.clone()).unwrap_or_default();
    let lock_servers = lock_servers(file, answers, &locks);
    let serving = lock_servers.iter().find(|server| server.serving);
    let lock_server = serving.or(lock_servers.first()).cloned();
    let nodes = state.iter().flat_map(|state| state.nodes.iter());
    let parts = parts.into_iter().map(|(id, answer)| (Peer::Device(id.0), answer));
    let servers = (0..).map(Peer::LockServer).zip(&answers.lock_servers);
    let software = parts.chain(servers).filter(|(_, answer)| answer.is_ok());
    let software = software.map(|(peer, _)| Process::of(peer, answers.software.get(&peer)));
    let node = |node: &lockify_array::Node| Node {
        name: node.name.to_string(),
        hosts: node.hosts().collect(),
    };
    let readable = |d: &Device| d.unreadable.unwrap_or(0) == 0;
    let good = |d: &Device| d.serving && readable(d) && (d.witness || d.condition == Some("good"));
    let layout = state.map_or(file.layout, |state| file.layout.grown(state));
    Status {
        schema: SCHEMA,
        array: file.id.to_string(),
        scheme: file.scheme.to_string(),
        bytes: layout.blocks() * u64::from(BLOCK),
        epoch: state.map_or(0, |state| state.epoch.0),
        view: view.and_then(|report| report.view),
        healthy: devices.iter().all(good)
            && lock_server.as_ref().is_none_or(|s| s.serving)
            && lock_servers.iter().all(|s| s.complete),
        devices,
        lock_server,
        lock_servers,
        lock_term: locks.term,
        nodes: nodes.map(node).collect(),
        software: software.collect(),
    }
}

/// A former lock server may not have heard that another one serves. The array's state decides.
fn lock_servers(file: &ArrayFile, answers: &Answers, locks: &LockService) -> Vec<LockServer> {
    let server = |(id, (entry, answer)): (u16, (&LockServerEntry, &Answer))| {
        let report = answer.as_ref().ok();
        let is_named = locks.serving == ServerId(id);
        // It may have lost its log since the array's state listed it.
        let has_every_lock = report.is_some_and(|report| report.in_service);
        let complete = has_every_lock && locks.complete.contains_key(&ServerId(id));
        LockServer {
            id,
            address: entry.address.to_string(),
            serving: is_named && report.is_some_and(|report| report.serving),
            complete,
            why: match answer {
                Ok(report) if report.serving && !is_named => {
                    Some(format!("{} serves, and it has not heard of that yet", locks.serving))
                }
                Ok(report) => report.waits.clone(),
                Err(why) => Some(why.clone()),
            },
            hosts: hosts(answer),
            requests: report.map(|report| report.requests),
        }
    };
    (0..).zip(file.lock_servers().zip(&answers.lock_servers)).map(server).collect()
}

/// What a device's medium has done wrong, for the end of a sentence.
fn of_medium(device: &Device) -> String {
    let some = |count: Option<u64>| count.filter(|count| *count > 0);
    let unreadable = some(device.unreadable).map(|n| format!("; {n} blocks are unreadable"));
    let errors = some(device.errors).map(|n| format!("; {n} read errors"));
    let lost = some(device.lost_writes).map(|n| format!("; {n} times a write was lost"));
    [unreadable, errors, lost].into_iter().flatten().collect()
}

/// A device beside which no other of its group is given up, for the end of a sentence.
fn of_unsettled(device: &Device) -> &'static str {
    match device.serving && device.unsettled == Some(true) {
        true => ", and until then the array cannot go on without another device",
        false => "",
    }
}

fn hosts(answer: &Answer) -> Vec<u32> {
    answer.iter().flat_map(|report| &report.hosts).map(|(host, _)| *host).collect()
}

fn text(status: &Status) -> String {
    let Status { array, scheme, bytes, epoch, devices, lock_servers, .. } = status;
    let count = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let stands = |why: &Option<String>| why.clone().unwrap_or_else(|| "serves".to_owned());
    let with_others = |stands: String, d: &Device| match &d.out {
        Some(out) => format!("{stands}; out, say the others: {out}"),
        None => stands,
    };
    let row = |d: &Device| {
        let condition = match (d.witness, d.condition, d.done) {
            (true, ..) => "witness".to_owned(),
            (_, Some(word), Some(done)) => format!("{word}, up to stripe {done}"),
            (_, word, _) => word.unwrap_or("unknown").to_owned(),
        };
        let hosts = d.requests.map(|_| d.hosts.len() as u64);
        vec![
            d.id.to_string(),
            d.address.clone(),
            condition,
            count(hosts),
            count(d.requests),
            match (&d.why, d.unchecked) {
                (None, Some(left @ 1..)) => {
                    let (medium, unsettled) = (of_medium(d), of_unsettled(d));
                    format!("serves; {left} stripes to be checked{unsettled}{medium}")
                }
                _ => with_others(stands(&d.why) + &of_medium(d), d),
            },
        ]
    };
    let server_row = |s: &LockServer| {
        let hosts = s.requests.map(|_| s.hosts.len() as u64);
        // An id is shown where there are several.
        let name = if lock_servers.len() > 1 { s.id.to_string() } else { "-".to_owned() };
        let kind = "lock server".to_owned();
        vec![name, s.address.clone(), kind, count(hosts), count(s.requests), stands(&s.why)]
    };
    let rows: Vec<Vec<String>> =
        devices.iter().map(row).chain(lock_servers.iter().map(server_row)).collect();
    let heading = ["DEVICE", "ADDRESS", "CONDITION", "HOSTS", "REQUESTS", "STATUS"];
    let behind: BTreeSet<String> = status.software.iter().filter_map(Process::is_behind).collect();
    let behind: String = behind.iter().map(|what| format!("{what}\n")).collect();
    format!(
        "array {array}, {scheme}, {bytes} bytes, epoch {epoch}\n{}{behind}",
        columns(&heading, &rows)
    )
}
