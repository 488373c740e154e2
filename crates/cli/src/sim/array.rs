//! `lockify sim array`: shared arrays without a controller.

use std::path::PathBuf;
use std::process::ExitCode;

use lockify_array::{Redundancy, Scheme};
use lockify_array_trials::every_step::{self, Victim};
use lockify_array_trials::measure::{Case, SCHEMES, measure};
use lockify_array_trials::paper::{self, reading::Reading};
use lockify_array_trials::profile::{Calibration, Profile, handling, window};
use lockify_array_trials::scenario::Faults;
use lockify_array_trials::seeds::{self, CONTROLLED};
use lockify_array_trials::setting::{Turns, Variants};
use lockify_array_trials::workload::{Alignment, Mix};
use lockify_report::Writer;

use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::print;
use crate::progress;
use crate::sim::{Span, span};

/// Simulate a shared array: hosts, devices, and concurrency controls
///
/// Hosts ask for 37.5 operations per second each, as in the published baseline, and do not wait for answers before they
/// ask again. With --paper: our figure 6 beside the published one, and the sweeps of figures 5, 8, 10, 11 and 12, with
/// expectations; a missed one does not change the exit code; and an array ten times the size, checked. With --seeds: each
/// seed is a small array with other faults, and all accesses of hosts and devices are checked; a failing seed prints the
/// command that repeats it. With --every-step: a small piece of work, again and again, with a crash at another step each
/// time, checked likewise.
#[derive(clap::Args)]
pub struct Args {
    /// How operations are kept apart; several as a list or by repeating [default: all that can be simulated]
    #[arg(long, value_name = "S", value_delimiter = ',', value_parser = scheme)]
    scheme: Vec<Scheme>,
    /// The number of hosts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), default_value_t = 16)]
    hosts: u32,
    /// Devices, in groups of five
    #[arg(long, value_name = "N", default_value_t = 20)]
    devices: u16,
    /// Where operations begin and end: within a stripe, or free
    #[arg(long, value_name = "A", value_parser = alignment, default_value = "stripe")]
    alignment: Alignment,
    /// Percent of operations that read
    #[arg(long, value_name = "P", value_parser = percent, default_value = "70")]
    reads: f64,
    /// Percent of the array that is used
    #[arg(long, value_name = "P", value_parser = percent, default_value = "100")]
    used: f64,
    /// Percent of disk reads that a cache serves
    #[arg(long, value_name = "P", value_parser = percent, default_value = "0")]
    hits: f64,
    /// Longest time of a message; the shortest is 1 ms
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration, default_value = "2ms")]
    window: std::time::Duration,
    /// Mean positioning time of a disk [default: as for the published peak]
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration)]
    positioning: Option<std::time::Duration>,
    /// The lock server's time for each message, on average [default: 750us, Table 1's]
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration)]
    serving: Option<std::time::Duration>,
    /// Device locking: a fixed time-out of locks [default: five times the median of the host's last latencies]
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration)]
    lock_wait: Option<std::time::Duration>,
    /// When devices handle requests: at-once, in-turn (when their disk gets to it), or strict (and nothing behind one that waits
    /// for a lock)
    #[arg(long, value_name = "T", value_parser = turns, default_value = "at-once")]
    turns: Turns,
    /// Timestamp ordering without its optimisation: a write waits for all reads with smaller timestamps
    #[arg(long)]
    basic: bool,
    /// How half a stripe is written: read-modify-write, or reconstruct [default: with seeds reconstruct, else by the alignment: within
    /// a stripe read-modify-write, as the published messages say]
    #[arg(long, value_name = "HOW", value_parser = half_stripe)]
    half_stripe: Option<bool>,
    /// How much simulated time is counted
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration, default_value = "40s")]
    length: std::time::Duration,
    /// Decides everything that is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The published experiments instead
    #[arg(long, conflicts_with_all = ["scheme", "hosts", "devices", "alignment", "reads", "used", "hits", "window",
          "positioning", "serving", "lock_wait", "turns", "basic", "half_stripe", "length", "seed"])]
    paper: bool,
    /// With --paper: tries every combination of what the paper does not say, for one that brings the results that differ
    #[arg(long, requires = "paper", conflicts_with = "out")]
    search: bool,
    /// With --paper: a choice of what the paper does not say: fixed, or a list of grant, constant, rounded, together and wide [default:
    /// fixed]. With --search several, as options of their own [default: all]
    #[arg(long, value_name = "R", value_parser = reading, requires = "paper")]
    reading: Vec<Reading>,
    /// Seeds from A up to, but without, B, instead of a load
    #[arg(long, value_name = "A..B", value_parser = span::<u64>, conflicts_with_all = LOAD)]
    seeds: Option<Span<u64>>,
    /// With --seeds: go on after a failing seed, and list all that fail
    #[arg(long, requires = "seeds")]
    keep_going: bool,
    /// A crash after every message, and around every use of a disk, of everybody or of: host, server, device, writing,
    /// writing-power, written, written-power, cache (of a device that answers writes before they are durable); and a sector that
    /// fails at every use of a disk: sector
    #[arg(long, value_name = "WHO", value_parser = victim, num_args = 0..=1, require_equals = true,
          conflicts_with_all = ["seeds", "basic", "half_stripe"], conflicts_with_all = LOAD)]
    every_step: Option<Option<Victim>>,
    /// This seed, or step, only, with a trace if it fails
    #[arg(long, value_name = "N", conflicts_with = "seeds", conflicts_with_all = LOAD)]
    replay: Option<u64>,
    /// Which faults the seeds have: none, interruptions, restarts, all, lock-servers (all, and several lock servers that fail), growth
    /// (all, and the array grows) or nodes (a host and a device end together) [default: all], or, for a crash at every step,
    /// if the victim just comes back (restarts) or is fenced before (all) [default: both]
    #[arg(long, value_name = "F", value_parser = faults)]
    faults: Option<Faults>,
    /// The redundancy of the seeds' arrays: raid5, mirror or raid6 [default: each seed has raid5 or mirror]
    #[arg(long, value_name = "R", value_parser = redundancy, conflicts_with_all = ["every_step"], conflicts_with_all = LOAD)]
    redundancy: Option<Redundancy>,
    /// Where the results go [default: with --paper target/array, else nowhere]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The options that seeds decide by themselves, or do not have.
const LOAD: [&str; 13] = [
    "paper",
    "hosts",
    "devices",
    "alignment",
    "reads",
    "used",
    "hits",
    "window",
    "positioning",
    "serving",
    "length",
    "seed",
    "out",
];

fn faults(name: &str) -> Result<Faults, String> {
    let found = Faults::ALL.into_iter().find(|faults| faults.name() == name);
    found.ok_or_else(|| format!("there are {}", Faults::ALL.map(Faults::name).join(", ")))
}

fn redundancy(name: &str) -> Result<Redundancy, String> {
    let found = Redundancy::ALL.into_iter().find(|redundancy| redundancy.name() == name);
    found.ok_or_else(|| format!("there are {}", Redundancy::ALL.map(Redundancy::name).join(", ")))
}

/// Returns true if half a stripe is written by read-modify-write.
fn half_stripe(name: &str) -> Result<bool, String> {
    match name {
        "read-modify-write" => Ok(true),
        "reconstruct" => Ok(false),
        _ => Err("there are read-modify-write and reconstruct".into()),
    }
}

fn turns(name: &str) -> Result<Turns, String> {
    let found = Turns::ALL.into_iter().find(|turns| turns.name() == name);
    found.ok_or_else(|| "there are at-once, in-turn and strict".into())
}

fn victim(name: &str) -> Result<Victim, String> {
    name.parse().map_err(|e: every_step::UnknownVictim| e.to_string())
}

fn scheme(name: &str) -> Result<Scheme, String> {
    name.parse().map_err(|e: lockify_array::UnknownScheme| e.to_string())
}

fn alignment(name: &str) -> Result<Alignment, String> {
    name.parse().map_err(|e: lockify_array_trials::workload::UnknownAlignment| e.to_string())
}

fn reading(text: &str) -> Result<Reading, String> {
    text.parse().map_err(|e: paper::reading::UnknownChoice| e.to_string())
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent: &f64| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "write a number from 0 to 100".into())
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    if args.paper {
        return paper(args);
    }
    if let Some(victim) = args.every_step {
        return crash_at_every_step(args, victim);
    }
    match (args.replay, &args.seeds) {
        (Some(seed), _) => return check_seeds(args, seed..seed.saturating_add(1)),
        (None, Some(Span(from, to))) => return check_seeds(args, *from..*to),
        (None, None) if args.faults.is_some() => {
            let what = "--faults goes with --seeds, --replay or --every-step: a load has no faults";
            return Err(Failure::new(Code::Unreadable, what));
        }
        (None, None) if args.redundancy.is_some() => {
            let what = "--redundancy goes with --seeds or --replay: a load has RAID-5";
            return Err(Failure::new(Code::Unreadable, what));
        }
        (None, None) => {}
    }
    let schemes = if args.scheme.is_empty() { SCHEMES.to_vec() } else { args.scheme.clone() };
    let bar = progress::bar(schemes.len() as u64, "schemes");
    let mut rows = Vec::new();
    for scheme in schemes {
        let case = case(args, scheme);
        let found = measure(&case, args.seed).or_fail(Code::Failed)?;
        rows.extend(found.rows().into_iter().map(|row| {
            row.with("scheme", scheme.name())
                .with("hosts", args.hosts)
                .with("devices", u32::from(args.devices))
                .with("alignment", args.alignment.name())
        }));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut text = lockify_report::table(&rows).to_string();
    if let Some(dir) = &args.out {
        let file = dir.join("array.jsonl");
        let cannot = |e: String| {
            let what = format!(
                "cannot write {}: {e}; choose another directory with --out",
                file.display()
            );
            Failure::new(Code::Failed, what)
        };
        std::fs::create_dir_all(dir).map_err(|e| cannot(e.to_string()))?;
        let mut writer = Writer::create(&file).map_err(|e| cannot(e.to_string()))?;
        for row in &rows {
            writer.write(row).map_err(|e| cannot(e.to_string()))?;
        }
        text += &format!("\nresults: {}\n", file.display());
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn check_seeds(args: &Args, seeds: std::ops::Range<u64>) -> Ended {
    let schemes = if args.scheme.is_empty() { &CONTROLLED[..] } else { &args.scheme };
    let mut clean = true;
    for &scheme in schemes {
        let bar = progress::bar(seeds.end - seeds.start, &format!("seeds, {scheme}"));
        let mut run = seeds::Run::new(scheme, seeds.clone());
        run.faults = args.faults.unwrap_or(run.faults);
        run.trace = args.replay.is_some();
        run.keep_going = args.keep_going;
        run.redundancy = args.redundancy;
        run.variants = variants(args, run.variants);
        let summary = seeds::run(&run, |done| bar.set_position(done));
        bar.finish_and_clear();
        clean &= summary.failures.is_empty();
        print(&format!("{summary}\n"))?;
    }
    Ok(if clean { ExitCode::SUCCESS } else { Code::Violated.into() })
}

fn crash_at_every_step(args: &Args, victim: Option<Victim>) -> Ended {
    let all: Vec<Scheme> = SCHEMES.into_iter().filter(|s| *s != Scheme::ZeroOverhead).collect();
    let schemes = if args.scheme.is_empty() { &all } else { &args.scheme };
    let victims = victim.map_or(Victim::ALL.to_vec(), |victim| vec![victim]);
    let faults = args.faults.map_or(vec![Faults::Restarts, Faults::All], |faults| vec![faults]);
    if let Some(nth) = args.replay {
        let ([scheme], [victim], [faults]) = (&schemes[..], &victims[..], &faults[..]) else {
            let what = "--replay of a step needs one --scheme, one --every-step=WHO and one of --faults restarts and all";
            return Err(Failure::new(Code::Unreadable, what));
        };
        let scenario = every_step::scenario(*scheme, *faults, *victim);
        return Ok(match every_step::crash_at(&scenario, *victim, nth, true) {
            Ok(outcome) => {
                print(&format!("step {nth}: nothing is wrong after {} events\n", outcome.events))?;
                ExitCode::SUCCESS
            }
            Err(failure) => {
                print(&format!("{}\n{}\n", failure.trace.trim_end(), failure.message))?;
                Code::Violated.into()
            }
        });
    }
    let mut runs = Vec::new();
    for &scheme in schemes {
        for &faults in &faults {
            let here = victims.iter().filter(|victim| victim.is_in(scheme, faults));
            runs.extend(here.map(|&victim| (scheme, faults, victim)));
        }
    }
    if runs.is_empty() {
        let what = "nobody of these crashes with these --faults: hosts and lock servers do with all, devices with restarts, too";
        return Err(Failure::new(Code::Unreadable, what));
    }
    let mut clean = true;
    for (scheme, faults, victim) in runs {
        let summary = every_step::run(scheme, faults, victim, |_| {}).or_fail(Code::Violated)?;
        clean &= summary.failures.is_empty();
        print(&format!("{summary}\n"))?;
    }
    Ok(if clean { ExitCode::SUCCESS } else { Code::Violated.into() })
}

fn case(args: &Args, scheme: Scheme) -> Case {
    let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4);
    let positioning = match args.positioning {
        Some(time) => nanos(time),
        None => Calibration::Peak.positioning(args.alignment),
    };
    let mut profile = Profile::table_1(positioning);
    profile.hits = args.hits / 100.0;
    profile.message = window(nanos(args.window));
    if let Some(time) = args.serving {
        profile.serving = handling(nanos(time));
    }
    let mix =
        Mix { reads: args.reads / 100.0, used: args.used / 100.0, ..Mix::table_1(args.alignment) };
    let mut case = Case::table_1(scheme, args.hosts, mix, profile);
    case.devices = args.devices;
    case.lock_wait = args.lock_wait.map(nanos);
    case.turns = args.turns;
    case.variants = variants(args, case.variants);
    case.length = nanos(args.length).max(1);
    case
}

/// The choices that the schemes leave open, where the options differ from the default.
fn variants(args: &Args, default: Variants) -> Variants {
    let delta_at_half = args.half_stripe.unwrap_or(default.delta_at_half);
    Variants { basic: args.basic, delta_at_half }
}

fn paper(args: &Args) -> Ended {
    if args.search {
        let all = if args.reading.is_empty() { Reading::all() } else { args.reading.clone() };
        let bar = progress::bar(paper::search::steps(&all), "steps");
        let found =
            paper::search::run(&all, |done| bar.set_position(done)).or_fail(Code::Failed)?;
        bar.finish_and_clear();
        print(&found)?;
        return Ok(ExitCode::SUCCESS);
    }
    let reading = match args.reading[..] {
        [] => Reading::FIXED,
        [reading] => reading,
        _ => {
            let what = "one --reading: several are for --search, which compares them";
            return Err(Failure::new(Code::Unreadable, what));
        }
    };
    let dir = args.out.clone().unwrap_or_else(|| PathBuf::from("target/array"));
    let bar = progress::bar(paper::count(), "measurements");
    let rows = paper::run(reading, |done| bar.set_position(done)).or_fail(Code::Failed)?;
    bar.finish_and_clear();
    let (jsonl, html) = paper::write(&rows, &dir).map_err(|(path, e)| {
        let what =
            format!("cannot write {}: {e}; choose another directory with --out", path.display());
        Failure::new(Code::Failed, what)
    })?;
    let files = format!("\nresults: {}\npage: {}\n", jsonl.display(), html.display());
    print(&(paper::text(&rows) + &files))?;
    Ok(ExitCode::SUCCESS)
}
