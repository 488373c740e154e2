//! The death of a node, where another one has very many locks.

use std::path::PathBuf;
use std::process::ExitCode;

use lockify_bench::locks::recovery;
use lockify_core::Policy;
use lockify_report::Writer;
use lockify_report::crew::Program;

use crate::exit::{Code, Ended, OrFail as _};
use crate::output::print;
use crate::progress;

/// Measure the recovery from a node's death, where another node has very many locks
///
/// Three nodes, a process each; one takes the locks, another one is killed. Prints the time until
/// the locks can be used again, the others' memory before and their peak relative to it, the
/// longest turn of their event loops (heartbeats wait for no more), and the losses.
#[derive(clap::Args)]
pub struct Args {
    /// How many locks
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    locks: u32,
    /// How masters are found: with home, locks of the dead node's third move
    #[arg(long, default_value = "directory")]
    policy: Policy,
    /// Also write the result rows to this file (.jsonl)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let program = std::env::current_exe().or_fail(Code::Failed)?;
    let how = Program { program, args: vec!["recovery-worker".into()] };
    let bar = progress::bar(2, "steps");
    let step = |what: &str| {
        bar.set_message(what.to_owned());
        bar.inc(1);
    };
    let rows = recovery::measure(&how, args.locks, args.policy, step).or_fail(Code::Failed)?;
    bar.finish_and_clear();
    print(&lockify_report::table(&rows).to_string())?;
    if let Some(path) = &args.out {
        let mut writer = Writer::create(path).or_fail(Code::Failed)?;
        rows.iter().try_for_each(|row| writer.write(row)).or_fail(Code::Failed)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a worker, as this benchmark starts them.
pub fn worker() -> Ended {
    recovery::worker().or_fail(Code::Failed)?;
    Ok(ExitCode::SUCCESS)
}
