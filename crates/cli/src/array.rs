//! `lockify array`: shared arrays of devices without a controller.

mod export;

use crate::exit::Ended;

/// Shared arrays: several hosts use the same devices, and none is in charge
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Export(export::Args),
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    match &args.what {
        What::Export(args) => export::run(args),
    }
}
