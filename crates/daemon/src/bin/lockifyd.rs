//! The lock daemon on its own, for service managers: `lockifyd CONFIG`. `lockify serve` is the
//! same with the rest of the command line around it.
//!
//! Exit status: 0 after an orderly stop, 1 if the daemon failed, 2 if its command line or
//! configuration is wrong, 128 + N if a second signal N cut the stop short.

use std::path::Path;
use std::process::ExitCode;

use lockify_daemon::{Config, Log, run};

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let (Some(path), None) = (args.next(), args.next()) else {
        eprintln!("usage: lockifyd CONFIG (a configuration file; see the manual of lockify serve)");
        return ExitCode::from(2);
    };
    let config = match Config::read(Path::new(&path)) {
        Ok(config) => config,
        Err(e) => {
            eprintln!("lockifyd: {e}");
            return ExitCode::from(2);
        }
    };
    let log = match Log::install(&config.log) {
        Ok(log) => log,
        Err(e) => {
            eprintln!("lockifyd: {e}");
            return ExitCode::from(2);
        }
    };
    match run(&config, &log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("lockifyd: {e}");
            ExitCode::FAILURE
        }
    }
}
