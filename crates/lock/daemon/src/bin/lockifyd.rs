//! The lock daemon on its own, for service managers: `lockifyd CONFIG`. `lockify serve` is the
//! same with the rest of the command line around it.
//!
//! Exit status: 0 after an orderly stop, 1 if the daemon failed, 2 if its command line or
//! configuration is wrong, 128 + N if a second signal N cut the stop short.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use lockify_daemon::{Config, Log, run};

/// The lock daemon of a node, in the foreground
///
/// SIGTERM or SIGINT has it leave the cluster in order; a second one ends it at once. SIGHUP has it
/// read its configuration and keys again; SIGUSR2 go on as the program that is installed now.
#[derive(Parser)]
#[command(name = "lockifyd", version, after_help = AFTER)]
struct Args {
    /// The configuration file, as /etc/lockify/lockify.toml; `lockify serve --check --config FILE`
    /// says whether it is good
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
}

const AFTER: &str = "\
Exit status:
  0        after an orderly stop
  1        the daemon failed
  2        the command line or the configuration is wrong
  128 + N  a second signal N cut the stop short
See lockifyd(8), and docs/configuration.md for every key of the configuration.";

fn main() -> ExitCode {
    let args = Args::parse();
    let wrong = |what: String| {
        eprintln!("lockifyd: {}", lockify_trust::printable_lines(&what));
        ExitCode::from(2)
    };
    let config = match Config::read(&args.config) {
        Ok(config) => config,
        Err(e) => return wrong(e.to_string()),
    };
    let log = match Log::install(&config.log) {
        Ok(log) => log,
        Err(e) => return wrong(e),
    };
    match run(&config, &log) {
        Ok(()) => {
            log.flush();
            ExitCode::SUCCESS
        }
        Err(e) => {
            log.end_with(&format!("lockifyd: {e}"));
            ExitCode::FAILURE
        }
    }
}
