//! The protocols of locks in remote memory, by real processes.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lockify_bench::onesided::{Effort, cases, measure, page, rows};
use lockify_report::Writer;
use lockify_report::crew::Program;

use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::print;
use crate::progress;

/// Measure locks in remote memory: every protocol, by real processes in shared memory
///
/// Goodput, percentiles of the time to get a lock, verbs and messages per lock, next to bare atomics on one word and to
/// waking a sleeper by a futex. The protocols take turns in every round. Speed never changes the exit code.
#[derive(clap::Args)]
pub struct Args {
    /// Also other numbers of clients and locks, and other shares of readers
    #[arg(long)]
    all: bool,
    /// Fewer and shorter rounds: with --all, about three minutes
    #[arg(long)]
    quick: bool,
    /// Also write report.jsonl and report.html into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let (rounds, millis) = if args.quick { (3, 200) } else { (7, 500) };
    let effort = Effort { rounds, duration: Duration::from_millis(millis), all: args.all };
    let program = std::env::current_exe().or_fail(Code::Failed)?;
    let how = Program { program, args: vec!["remote-worker".into()] };
    let bar = progress::bar(u64::from(rounds) * cases(effort).len() as u64, "measurements");
    let results = measure(effort, &how, || bar.inc(1)).or_fail(Code::Failed)?;
    bar.finish_and_clear();
    let rows = rows(&results);
    print(&lockify_report::table(&rows).to_string())?;
    if let Some(dir) = &args.out {
        let cannot = |e: &dyn std::fmt::Display| {
            let what = format!("cannot write into {}: {e}; give a folder with room", dir.display());
            Failure::new(Code::Failed, what)
        };
        std::fs::create_dir_all(dir).map_err(|e| cannot(&e))?;
        let mut writer = Writer::create(dir.join("report.jsonl")).map_err(|e| cannot(&e))?;
        rows.iter().try_for_each(|row| writer.write(row)).map_err(|e| cannot(&e))?;
        page(&results, &rows).write(dir.join("report.html")).map_err(|e| cannot(&e))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a worker, as this benchmark starts them.
pub fn worker() -> Ended {
    lockify_bench::onesided::worker::run().or_fail(Code::Failed)?;
    Ok(ExitCode::SUCCESS)
}
