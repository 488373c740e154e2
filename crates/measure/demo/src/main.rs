//! `make run`: the demo without the rest of `lockify`, which takes twice as long to compile.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

use clap::Parser;
use lockify_demo::command::Args;
use lockify_trust::printable_lines;

#[derive(Parser)]
#[command(name = "lockify-demo", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    args: Args,
    #[command(subcommand)]
    worker: Option<Worker>,
}

#[derive(clap::Subcommand)]
enum Worker {
    /// A node's process, started by the demo
    #[command(hide = true)]
    DemoWorker,
}

/// Ends as `lockify demo` does: with 1 for a violation, 3 for an error.
fn main() -> ExitCode {
    run(Cli::parse()).unwrap_or_else(|error| {
        eprintln!("lockify-demo: {}", printable_lines(&error.to_string()));
        ExitCode::from(3)
    })
}

fn run(cli: Cli) -> Result<ExitCode, Box<dyn Error>> {
    if let Some(Worker::DemoWorker) = cli.worker {
        lockify_demo::worker::run()?;
        return Ok(ExitCode::SUCCESS);
    }
    let outcome = lockify_demo::run(&cli.args.options(std::env::current_exe()?))?;
    match std::io::stdout().write_all(printable_lines(&outcome.text).as_bytes()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => return Err(e.into()),
        _ => {}
    }
    Ok(ExitCode::from(u8::from(outcome.violations > 0)))
}
