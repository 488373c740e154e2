//! `lockify completions`: the data that a shell needs to complete our command lines.

use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::exit::{Code, Ended, OrFail as _};
use crate::output::print;

/// Print a shell's completions for this command
#[derive(clap::Args)]
pub struct Args {
    /// For example: `lockify completions bash >/usr/share/bash-completion/completions/lockify`
    shell: Shell,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "lockify", &mut script);
    print(&String::from_utf8(script).or_fail(Code::Failed)?)?;
    Ok(ExitCode::SUCCESS)
}
