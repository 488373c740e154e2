//! `lockify check`: judges a recorded history.

use std::path::PathBuf;

use crate::exit::Ended;
use crate::output::print;

/// Check a history of locks or of a shared array: exit code 0 clean, 1 a rule is violated, 2 it cannot be read
///
/// Histories are JSON lines, written by `lockify serve` (history = … in its configuration), by
/// the simulator and by the demo. That of an array begins with its layout. Fields that a history does not have switch off only the rules
/// that need them; the output says which.
#[derive(clap::Args)]
pub struct Args {
    /// The history
    file: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let outcome = lockify_check::check_any(&args.file);
    let text = if args.json { outcome.json() + "\n" } else { outcome.text() };
    print(&text)?;
    Ok(outcome.exit_code().into())
}
