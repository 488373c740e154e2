//! `lockify demo`: the cost of a creation under each way of finding a lock's master.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lockify_core::Policy;
use lockify_demo::{Options, Program, Source};

use crate::exit::{Code, Ended, OrFail as _};
use crate::output::print;

/// Create a directory tree on a real cluster of processes and compare the ways to find a master
///
/// Starts five nodes on the loopback interface, one process each, and replays the creation of a real
/// tree as a shared-disk file system locks it: every entry is really created, with its content,
/// permissions and times (with --mdtest: empty). Prints a table, the expectations and results, and
/// the number of checked lock events; writes the result rows and a page with plots. Timing never
/// changes the exit code; violations and errors do.
#[derive(clap::Args)]
pub struct Args {
    /// The tree to replay
    #[arg(long, value_name = "DIR", default_value = "/usr/share", conflicts_with = "mdtest")]
    tree: PathBuf,
    /// 35,000 entries, as in the paper, instead of 5,000
    #[arg(long)]
    full: bool,
    /// The paper's shape instead of a real tree: mdtest -z 2 -b 2 -I 5000
    #[arg(long, conflicts_with = "full")]
    mdtest: bool,
    /// Rounds; medians and spreads are over them
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Delay added to every message; several as a list or by repeating
    #[arg(long, value_name = "D", value_delimiter = ',', value_parser = humantime::parse_duration,
          default_value = "0s,100us,1ms")]
    delay: Vec<Duration>,
    /// Policies to compare
    #[arg(long, value_name = "P", value_delimiter = ',', value_parser = parse_policy,
          default_value = "directory,claim,broadcast,home")]
    policy: Vec<String>,
    /// Longest time of one run; slow cases create fewer entries
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration, default_value = "200ms")]
    budget: Duration,
    /// Keep the parent's lock at least this long, as GFS2 does, when several nodes create
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration, default_value = "0s")]
    hold: Duration,
    /// Gather claims at most this long, or until there are 512 or somebody waits for them
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration, default_value = "50ms")]
    batch_age: Duration,
    /// Create the shared folder in this directory, on the file system to measure on (/dev/shm: in
    /// memory, where all but locking costs the least) [default: that of --out]
    #[arg(long, value_name = "DIR")]
    shared: Option<PathBuf>,
    /// Where results go
    #[arg(long, value_name = "DIR", default_value = "target/demo")]
    out: PathBuf,
}

/// Entries by default, and with `--full`.
const ENTRIES: (usize, usize) = (5_000, 35_000);

/// mdtest's `-I`.
const ITEMS: u32 = 5_000;

fn parse_policy(name: &str) -> Result<String, String> {
    let known = name.parse::<Policy>().map_err(|e| e.to_string())?;
    Ok(known.name().to_owned())
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let entries = if args.full { ENTRIES.1 } else { ENTRIES.0 };
    let source =
        if args.mdtest { Source::Mdtest(ITEMS) } else { Source::Tree(args.tree.clone(), entries) };
    let outcome = lockify_demo::run(&Options {
        source,
        policies: args.policy.clone(),
        delays: args.delay.clone(),
        rounds: args.rounds,
        budget: args.budget,
        hold: args.hold,
        batch_age: args.batch_age,
        out: args.out.clone(),
        shared: args.shared.clone(),
        worker: Program {
            program: std::env::current_exe().or_fail(Code::Failed)?,
            args: vec!["demo-worker".into()],
        },
    })
    .or_fail(Code::Failed)?;
    print(&outcome.text)?;
    Ok(if outcome.violations == 0 { ExitCode::SUCCESS } else { Code::Violated.into() })
}

/// A node's process, started by the demo.
pub fn worker() -> Ended {
    lockify_demo::worker::run().or_fail(Code::Failed)?;
    Ok(ExitCode::SUCCESS)
}
