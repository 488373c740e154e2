//! `lockify demo`: the cost of a creation under each way of finding a lock's master.

use std::process::ExitCode;

pub use lockify_demo::command::Args;

use crate::exit::{Code, Ended, OrFail as _};
use crate::output::print;

/// Runs the subcommand.
pub fn run(args: Args) -> Ended {
    let this = std::env::current_exe().or_fail(Code::Failed)?;
    let outcome = lockify_demo::run(&args.options(this)).or_fail(Code::Failed)?;
    print(&outcome.text)?;
    Ok(if outcome.violations == 0 { ExitCode::SUCCESS } else { Code::Violated.into() })
}

/// A node's process, started by the demo.
pub fn worker() -> Ended {
    lockify_demo::worker::run().or_fail(Code::Failed)?;
    Ok(ExitCode::SUCCESS)
}
