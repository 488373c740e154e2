//! `lockify serve`: the daemon.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lockify_daemon::{Config, Log};

use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::user_daemon;

/// Run the lock daemon of this node, in the foreground
///
/// SIGTERM or SIGINT has it leave the cluster in order; a second one ends it at once.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration: this node, all nodes and their addresses, the lockspaces
    #[arg(
        long,
        value_name = "FILE",
        env = "LOCKIFY_CONFIG",
        default_value = "/etc/lockify/lockify.toml",
        conflicts_with = "user"
    )]
    config: PathBuf,
    /// Serve this user's processes on this machine only, without configuration; ends when unused
    #[arg(long)]
    user: bool,
    /// With --user: end after this long without clients
    #[arg(
        long,
        value_name = "D",
        env = "LOCKIFY_IDLE",
        value_parser = humantime::parse_duration,
        default_value = "5m"
    )]
    idle: Duration,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let log = Log::stderr();
    if args.user {
        let config = user_config(args.idle)?;
        lockify_daemon::run(&config, &log).or_fail(Code::Failed)?;
    } else {
        let config = Config::read(&args.config).map_err(unreadable)?;
        lockify_daemon::run(&config, &log).or_fail(Code::Failed)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn unreadable(e: lockify_daemon::ConfigError) -> Failure {
    let hint = "a configuration names this node, every node's address and the lockspaces; \
                README.md has an example, and `lockify serve --user` needs none";
    Failure::new(Code::Unreadable, format!("{e} ({hint})"))
}

/// One node that has no others, with one lockspace.
fn user_config(idle: Duration) -> Result<Config, Failure> {
    let socket = user_daemon::socket().or_fail(Code::Failed)?;
    let mut config = Config::alone(socket);
    config.idle_exit = Some(idle);
    Ok(config)
}
