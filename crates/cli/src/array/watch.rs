//! `lockify array watch`: says what changes in an array.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lockify_volume::upkeep::wait_until;

use super::status::{self, Device, LockServer, Status};
use super::{Which, announce, say, stop};
use crate::exit::{Code, Ended, Failure};
use crate::output::print;

/// How long a program may run that is told of a change.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks if the program has ended.
const NAP: Duration = Duration::from_millis(50);

/// Follow an array: print each change of it, and run a program for it
///
/// A line has the subject (`array`, `device 2`, `lock server`, or `lock server 1` of several), its former and its new condition, and the reason. Conditions are
/// `good`, `away`, `failed`, `new`, `rebuilding`, `unreadable` (of a device that serves), `unknown`; `standby` of a lock server that
/// may serve next; of the array `healthy`, `degraded`, `away`. At the start, all that is not well is a change. SIGTERM or SIGINT ends it.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Run this program at each change, with subject, former condition, new condition and reason as arguments. It may take a
    /// minute, and further changes wait for it
    #[arg(long, value_name = "PROGRAM")]
    on_event: Option<PathBuf>,
    /// How often to look
    #[arg(long, value_name = "D", default_value = "5s", value_parser = humantime::parse_duration)]
    interval: Duration,
    /// How long devices and lock server may take to answer
    #[arg(long, value_name = "D", default_value = "3s", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

/// The condition of something, and its reason.
type Conditions = BTreeMap<String, (&'static str, String)>;

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let file = args.which.file()?;
    let identity = args.which.secure.renewed_identity(say)?;
    if let Some(program) = &args.on_event {
        check(program)?;
    }
    let stop = stop()?;
    let look = || status::of(&file, identity.clone(), args.timeout).map(|s| conditions(&s));
    let mut now = look()?;
    announce(&format!("watching array {}\n", file.id))?;
    let mut before = Conditions::new();
    while !stop.load(Relaxed) {
        for (subject, (condition, reason)) in &now {
            let former = before.get(subject).map(|(former, _)| *former);
            let is_news = match former {
                None => !["good", "healthy"].contains(condition),
                Some(former) => former != *condition,
            };
            if !is_news {
                continue;
            }
            let former = former.unwrap_or("unknown");
            let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            print(&format!("{subject}: {former} -> {condition}{why}\n"))?;
            if let Some(program) = &args.on_event {
                tell(program, [subject, former, condition, reason], &stop);
            }
        }
        wait_until(Instant::now() + args.interval, &stop);
        before = std::mem::replace(&mut now, look()?);
    }
    Ok(ExitCode::SUCCESS)
}

/// A program that cannot be run is better known before it is needed.
fn check(program: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt as _;
    let wrong = |why: String| {
        let what = format!("--on-event {}: {why}; give the path of a program", program.display());
        Failure::new(Code::Unreadable, what)
    };
    let there = std::fs::metadata(program).map_err(|e| wrong(e.to_string()))?;
    match there.is_file() && there.permissions().mode() & 0o111 != 0 {
        true => Ok(()),
        false => Err(wrong("it is no file that can be run".into())),
    }
}

fn conditions(status: &Status) -> Conditions {
    let reached = status.devices.iter().any(|d| d.life.is_some());
    let array = match (status.healthy, reached) {
        (true, _) => "healthy",
        (false, true) => "degraded",
        (false, false) => "away",
    };
    let mut all = Conditions::from([("array".to_owned(), (array, String::new()))]);
    for device in &status.devices {
        let reason = device.out.clone().or_else(|| device.why.clone());
        all.insert(
            format!("device {}", device.id),
            (condition(device), reason.unwrap_or_default()),
        );
    }
    for server in &status.lock_servers {
        let whom = match status.lock_servers.len() {
            1 => "lock server".to_owned(),
            _ => format!("lock server {}", server.id),
        };
        let reason = server.why.clone().unwrap_or_default();
        all.insert(whom, (condition_of_server(server), reason));
    }
    all
}

fn condition_of_server(server: &LockServer) -> &'static str {
    match (server.serving, server.complete) {
        (true, _) => "good",
        (false, true) => "standby",
        (false, false) => "away",
    }
}

fn condition(device: &Device) -> &'static str {
    match device.condition {
        _ if device.witness && device.serving => "good",
        _ if device.witness => "away",
        Some("good") if !device.serving => "away",
        Some("good") if device.unreadable.unwrap_or(0) > 0 => "unreadable",
        Some(word) => word,
        None => "unknown",
    }
}

/// Runs the program for a change. Whatever it does, the watch goes on.
fn tell(program: &Path, args: [&str; 4], stop: &AtomicBool) {
    let name = program.display();
    let mut child = match Command::new(program).args(args).stdin(Stdio::null()).spawn() {
        Ok(child) => child,
        Err(error) => return say(&format!("{name} cannot be run: {error}")),
    };
    let end = Instant::now() + PATIENCE;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return,
            Ok(Some(status)) => return say(&format!("{name} has ended with {status}")),
            Ok(None) if Instant::now() < end && !stop.load(Relaxed) => std::thread::sleep(NAP),
            _ => break,
        }
    }
    say(&format!("{name} is ended: it has run for {} s, or this watch ends", PATIENCE.as_secs()));
    // It may have ended by itself just now.
    let _ = child.kill();
    let _ = child.wait();
}
