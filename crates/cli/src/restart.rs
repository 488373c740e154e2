//! `lockify restart`: the daemon becomes the program that is installed now.

use std::process::ExitCode;
use std::time::Instant;

use crate::connect::{Connection, Missing, failed};
use crate::exit::Ended;
use crate::output::print;

/// Have the daemon become the program that is installed now, without losing a lock
///
/// Its process stays, and its clients notice nothing but a pause. If the installed program cannot go
/// on with their locks, nothing is changed and this says why. For root and the daemon's own user.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let client = args.connection.client(Missing::Fail).map_err(failed)?;
    let began = Instant::now();
    client.restart().map_err(failed)?;
    let took = began.elapsed().as_millis();
    print(&(args.connection.headline()? + &format!("restarted with all locks, in {took} ms\n")))?;
    Ok(ExitCode::SUCCESS)
}
