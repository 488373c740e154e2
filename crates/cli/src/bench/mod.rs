//! `lockify bench`: the cost of locks, next to the unavoidable costs.

mod array;
mod core;
mod locks;
mod memory;
mod onesided;
mod peers;
mod recovery;
mod simulator;
mod wait;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use lockify_report::{Metric, Row, Writer};

use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::print;
use crate::progress;

/// Resident memory per simulated node.
const BYTES_PER_NODE: Metric =
    Metric { name: "bytes_per_node", unit: "B", title: "memory per simulated node" };
/// Resident memory per lock.
const BYTES_PER_LOCK: Metric =
    Metric { name: "bytes_per_lock", unit: "B", title: "memory per lock" };
/// Resident memory per resource.
const BYTES_PER_RESOURCE: Metric =
    Metric { name: "bytes_per_resource", unit: "B", title: "memory per resource" };

/// Measure locks: in the core, through the daemon, at another node; waiting; simulator speed and memory
///
/// Each figure is the median of several rounds and stands next to its baseline, measured in the same
/// run. Use a release build on an idle machine.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    others: Option<Others>,
    /// The subject of the measurement
    #[arg(value_enum, default_value = "all")]
    what: What,
    /// Fewer and shorter rounds
    #[arg(long)]
    quick: bool,
    /// Also write the result rows to this file (.jsonl)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Subjects that have options of their own, and are not among all.
#[derive(clap::Subcommand)]
enum Others {
    Peers(peers::Args),
    Onesided(onesided::Args),
    Array(array::Args),
    Recovery(recovery::Args),
    #[command(hide = true)]
    Relock(peers::Relock),
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Uncontended lock and unlock in the state machine, next to a hash map
    Core,
    /// Lock and unlock through the daemon, next to a bare Unix-socket ping-pong
    Daemon,
    /// Lock and unlock at another node, embedded and through daemons, next to bare ping-pongs; with
    /// TLS, next to plain text
    // `remote` is its old name: `lockify remote-lock` is about remote memory.
    #[value(alias = "remote")]
    OtherNode,
    /// Events per second and memory of the simulator, bare and with the lock manager on each node
    Sim,
    /// Memory per lock and per resource
    Memory,
    /// Waiting: wake-ups a second of each waiting client, and the time per grant, with 1, 100 and
    /// 10,000 waiters of one name
    Wait,
    /// All of them
    All,
}

pub use array::worker as array_worker;
pub use onesided::worker as remote_worker;
pub use recovery::worker as recovery_worker;

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds of each figure.
    pub rounds: usize,
    /// A round is this many times shorter than it could be.
    pub shorter: usize,
}

/// The rows of a part of the benchmark.
type Measured = Result<Vec<Row>, Failure>;

/// A part of the benchmark.
type Part = (What, fn(Effort) -> Measured);

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    match &args.others {
        Some(Others::Peers(args)) => return peers::run(args),
        Some(Others::Onesided(args)) => return onesided::run(args),
        Some(Others::Array(args)) => return array::run(args),
        Some(Others::Recovery(args)) => return recovery::run(args),
        Some(Others::Relock(args)) => return peers::relock(args),
        None => {}
    }
    let effort = if args.quick {
        Effort { rounds: 3, shorter: 10 }
    } else {
        Effort { rounds: 9, shorter: 1 }
    };
    let all: [Part; 6] = [
        (What::Core, core::measure),
        (What::Daemon, locks::daemon),
        (What::OtherNode, locks::other_node),
        (What::Sim, simulator::measure),
        (What::Memory, memory::measure),
        (What::Wait, wait::measure),
    ];
    let wanted = all.iter().filter(|(what, _)| args.what == What::All || args.what == *what);
    let bar = progress::bar(wanted.clone().count() as u64, "benchmarks");
    let mut rows = Vec::new();
    for (_, measure) in wanted {
        let measured = measure(effort)?;
        bar.suspend(|| print(&format!("{}\n", lockify_report::table(&measured))))?;
        rows.extend(measured);
        bar.inc(1);
    }
    bar.finish_and_clear();
    if let Some(path) = &args.out {
        let mut writer = Writer::create(path).or_fail(Code::Failed)?;
        rows.iter().try_for_each(|row| writer.write(row)).or_fail(Code::Failed)?;
    }
    Ok(ExitCode::SUCCESS)
}
