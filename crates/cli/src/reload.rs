//! `lockify reload`: has the daemon read its configuration again.

use std::process::ExitCode;

use crate::connect::{Connection, Missing, failed};
use crate::exit::Ended;
use crate::output::print;

/// Have the daemon of this node read its configuration and keys again
///
/// If all changed keys can change at run time, they do. Otherwise, or after a mistake, nothing
/// changes and the reason is printed (exit code 3). For root and the user that the daemon runs as.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let client = args.connection.client(Missing::Fail).map_err(failed)?;
    let told = client.reload().map_err(failed)?;
    print(&(args.connection.headline()? + &told + "\n"))?;
    Ok(ExitCode::SUCCESS)
}
