//! `lockify manual`: the manual pages, written from what `--help` says. For those who make packages.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::exit::{Code, Ended, OrFail as _};

/// Write the manual pages into a folder
#[derive(clap::Args)]
pub struct Args {
    /// Must exist; gets lockify.1, lockify-run.1 and so on, and fence_lockify.8
    folder: PathBuf,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    clap_mangen::generate_to(crate::Cli::command(), &args.folder).or_fail(Code::Failed)?;
    let agent = clap_mangen::Man::new(crate::fence_lockify::command()).section("8");
    let page = std::fs::File::create(args.folder.join("fence_lockify.8"));
    page.and_then(|mut page| agent.render(&mut page)).or_fail(Code::Failed)?;
    Ok(ExitCode::SUCCESS)
}
