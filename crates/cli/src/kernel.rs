//! `lockify kernel`: the claim in this machine's kernel (kernel/README.md).

use std::process::ExitCode;

use clap::Subcommand;

use crate::exit::Ended;

mod metrics;
mod status;

/// Look at the claims of this machine's kernel
///
/// For kernels whose lock manager has the claim: GFS2 and OCFS2 use it. kernel/INSTALL.md says how to install it and switch it on.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Status(status::Args),
}

pub fn run(args: &Args) -> Ended {
    match &args.command {
        Command::Status(args) => status::run(args).map(ExitCode::from),
    }
}
