//! Lockify beside etcd, Redis, ZooKeeper and the kernel's DLM.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lockify_peers::{Effort, Kernel, Options};
use lockify_report::Writer;

use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::print;
use crate::progress;

/// Measure Lockify beside etcd, Redis and ZooKeeper
///
/// Starts each of them in a temporary folder, on the loopback interface, with one node and with
/// three, and has them all do the same in alternating turns: uncontended locks, re-locks,
/// hand-overs, readers and writers, creation. Prints a table, the goals with results, and missing
/// programs. docs/peers.md describes how each is used, and why that is fair. Speed never changes
/// the exit code; a service that fails does.
#[derive(clap::Args)]
pub struct Args {
    /// Fewer and shorter rounds: about three minutes
    #[arg(long)]
    quick: bool,
    /// One very short round, to see that everything works: within a minute
    #[arg(long, conflicts_with = "quick")]
    smoke: bool,
    /// Also measure the kernel's lock manager, through libdlm, in nodes of the lab: as root, in a
    /// checkout, after `labs/kernels/lab setup`, `labs/kernels/lab build` and `make lib`
    #[arg(long)]
    kernel: bool,
    /// Fail if one of them is not installed
    #[arg(long)]
    strict: bool,
    /// The folder for the servers' data and created files during the run [default: the system's
    /// folder for temporary files]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Where result rows and a page with plots go
    #[arg(long, value_name = "DIR", default_value = "target/peers")]
    out: PathBuf,
}

/// Re-lock on an embedded node: what `labs/kernels/lab bench locks` runs beside the kernel's lock manager.
#[derive(clap::Args)]
pub struct Relock {
    /// How long
    #[arg(value_parser = clap::value_parser!(f64))]
    seconds: f64,
}

/// Prints pairs per second, and the 50th and 99th percentile of a pair's time in microseconds.
pub fn relock(args: &Relock) -> Ended {
    let length = Duration::try_from_secs_f64(args.seconds).or_fail(Code::Unreadable)?;
    let [per_second, median, tail] =
        lockify_peers::relock_embedded(length).or_fail(Code::Failed)?;
    print(&format!("{per_second} {median} {tail}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let (rounds, turn, minutes) = match (args.smoke, args.quick) {
        (true, _) => (1, 100, 2),
        (_, true) => (5, 300, 10),
        _ => (9, 1000, 60),
    };
    std::fs::create_dir_all(&args.out).or_fail(Code::Failed)?;
    let lockify = std::env::current_exe().or_fail(Code::Failed)?;
    // `make lib` puts libraries beside the program.
    let libraries = lockify.with_file_name("lib");
    let options = Options {
        kernel: args.kernel.then(|| Kernel { lab: "labs/kernels/lab".into(), libraries }),
        lockify,
        effort: Effort { rounds, turn: Duration::from_millis(turn) },
        limit: Duration::from_secs(60 * minutes),
        folder: args.folder.clone(),
    };
    let bar = progress::bar(0, "starting");
    let started = |title: &str, turns: usize| {
        bar.inc_length(turns as u64);
        bar.set_message(title.to_owned());
    };
    let outcome = lockify_peers::run(&options, &started, &|| bar.inc(1));
    bar.finish_and_clear();
    let outcome = outcome.or_fail(Code::Failed)?;
    let mut writer = Writer::create(args.out.join("report.jsonl")).or_fail(Code::Failed)?;
    outcome.rows.iter().try_for_each(|row| writer.write(row)).or_fail(Code::Failed)?;
    let page = args.out.join("report.html");
    std::fs::write(&page, outcome.page).or_fail(Code::Failed)?;
    print(&format!("{}\nPlots: {}\n", outcome.text, page.display()))?;
    match outcome.failures.len() {
        0 if args.strict && outcome.lacks_peers => {
            Err(Failure::new(Code::Failed, "not everything is installed, see above"))
        }
        0 => Ok(ExitCode::SUCCESS),
        count => {
            let what = format!("{count} parts failed, see above; the rest was measured");
            Err(Failure::new(Code::Failed, what))
        }
    }
}
