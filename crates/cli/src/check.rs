//! `lockify check`: judges a recorded history.

use std::path::PathBuf;

use lockify_check::Outcome;
use lockify_check::array::check_parts;
use lockify_history::WriteError;
use lockify_history::array::{MergeError, Reader, Writer};

use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::print;

/// Check a history of locks or of a shared array: exit code 0 clean, 1 a rule is violated, 2 it cannot be read
///
/// Histories are JSON lines, written by `lockify serve` (history = … in its configuration), by
/// the simulator and by the demo. That of an array begins with its layout. Fields that a history does not have switch off only the rules
/// that need them; the output says which. The processes of an array write one each (`lockify array device` and `export`,
/// --history); all of a machine are judged together.
#[derive(clap::Args)]
pub struct Args {
    /// The history; of an array also those of its processes
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Write the histories of an array's processes as one, to which the lines in the report belong
    #[arg(long, value_name = "FILE")]
    merged: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    if let ([file], None) = (&args.files[..], &args.merged) {
        let outcome = lockify_check::check_any(file);
        let text = if args.json { outcome.json() + "\n" } else { outcome.text() };
        print(&text)?;
        return Ok(outcome.exit_code().into());
    }
    let outcome = together(args)?;
    let text = if args.json { outcome.json() + "\n" } else { outcome.text() };
    print(&text)?;
    Ok(outcome.exit_code().into())
}

/// Judges the histories of an array's processes.
fn together(args: &Args) -> Result<Outcome<lockify_check::array::Counts>, Failure> {
    let unreadable = |file: usize, what: &dyn std::fmt::Display| {
        let name = args.files.get(file).map(|file| file.display().to_string());
        Failure::new(Code::Unreadable, format!("{}: {what}", name.unwrap_or_default()))
    };
    let mut readers = Vec::new();
    for (number, file) in args.files.iter().enumerate() {
        readers.push(Reader::open(file).map_err(|e| unreadable(number, &e))?);
    }
    let mut merged = args.merged.as_ref().map(Writer::create).transpose().or_fail(Code::Failed)?;
    let take = |event: &_| merged.as_mut().map_or(Ok(()), |merged| merged.write(event));
    let report =
        check_parts(readers, take).map_err(|e: MergeError<WriteError>| match e.part() {
            Some(number) => unreadable(number, &e),
            None => Failure::new(Code::Failed, e),
        })?;
    merged.as_mut().map_or(Ok(()), Writer::flush).or_fail(Code::Failed)?;
    Ok(Outcome::Checked(report))
}
