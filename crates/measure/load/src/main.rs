//! `lockify-load`: loads for shared file systems, with the parameters of mdtest and Filebench.
//!
//! These are generators of our own: their figures compare with each other, not with those of the
//! programs whose parameters they take. Results go to standard output as one line of JSON.
#![forbid(unsafe_code)]

mod barrier;
mod exec;
mod failure;
mod fileset;
mod latency;
mod outcome;
mod page;
mod profile;
mod start;
mod tree;
mod witness;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::Failure;

/// Loads for shared file systems.
#[derive(Parser)]
#[command(
    version,
    after_help = "Exit codes: 0 success; 2 wrong arguments; 3 the file system or the network failed."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Tree(tree::Args),
    Fileserver(profile::FileserverArgs),
    Webproxy(profile::WebproxyArgs),
    Exec(exec::Args),
    Witness(witness::Args),
    Page(page::Args),
}

fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Tree(args) => tree::run(&args),
        Command::Fileserver(args) => profile::fileserver(&args),
        Command::Webproxy(args) => profile::webproxy(&args),
        Command::Exec(args) => exec::run(&args),
        Command::Witness(args) => witness::run(&args),
        Command::Page(args) => page::run(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("lockify-load: {failure}");
            ExitCode::from(3)
        }
    }
}

/// The result of a subcommand.
type Ended = Result<(), Failure>;
