//! `lockify serve`: the daemon.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lockify_client::domain::{IDLE, state_dir, user_name};
use lockify_daemon::{Config, Log, MembershipKind, become_daemons_user};

use crate::detach;
use crate::exit::{Code, Ended, Failure, OrFail as _};
use crate::output::print;

/// Run the lock daemon of this node, in the foreground
///
/// SIGTERM or SIGINT has it leave the cluster in order; a second one ends it at once. SIGHUP has it
/// read its configuration and keys again, as `lockify reload` does; SIGUSR2 is `lockify restart`.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration: this node, all nodes and their addresses, the lockspaces
    #[arg(
        long,
        value_name = "FILE",
        env = "LOCKIFY_CONFIG",
        default_value = lockify_client::domain::CONFIGURATION,
        conflicts_with = "user"
    )]
    config: PathBuf,
    /// Only say whether the configuration, and the keys, folders and programs that it names, are good;
    /// start nothing
    #[arg(long, conflicts_with = "user")]
    check: bool,
    /// With --check: judge as this user, the daemon's [default: the user of the packaged service if
    /// root asks, else the caller]
    #[arg(long = "as", value_name = "USER", requires = "check")]
    judge: Option<String>,
    /// Serve this user's processes on this machine only, without configuration; ends when unused
    #[arg(long)]
    user: bool,
    /// With --user: listen there, not where this user's programs look by themselves; a path, or @NAME
    #[arg(long, value_name = "SOCKET", requires = "user")]
    socket: Option<PathBuf>,
    /// With --user: go to the background, and return when programs can connect
    #[arg(long, requires = "user", conflicts_with = "socket")]
    detach: bool,
    /// With --user: end after this long without clients
    #[arg(
        long,
        value_name = "D",
        env = IDLE,
        value_parser = humantime::parse_duration,
        default_value = "5m"
    )]
    idle: Duration,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    if args.check {
        return check(args);
    }
    if args.detach {
        detach::start(args.idle)?;
        return Ok(ExitCode::SUCCESS);
    }
    let config = match args.user {
        true => user_config(args)?,
        false => Config::read(&args.config).map_err(unreadable)?,
    };
    let log = Log::install(&config.log).or_fail(Code::Unreadable)?;
    match lockify_daemon::run(&config, &log) {
        Ok(()) => {
            log.flush();
            Ok(ExitCode::SUCCESS)
        }
        Err(e) => {
            // The log's reader may have stopped: that is no reason to stay.
            log.end_with(&format!("lockify: {e}"));
            Ok(Code::Failed.into())
        }
    }
}

/// Prints the meaning of the configuration, or all its errors. Only the daemon's user can see what
/// that user may read and write.
fn check(args: &Args) -> Ended {
    let judge = become_daemons_user(args.judge.as_deref()).or_fail(Code::Unreadable)?;
    let whose = judge.map(|user| format!(" (judged as user {user:?}, see --as)"));
    let whose = whose.unwrap_or_default();
    let wrong = |what: String| Failure::new(Code::Unreadable, what + &whose);
    let config = Config::read(&args.config).map_err(|e| wrong(unreadable(e).to_string()))?;
    let log = Log::install(&config.log).or_fail(Code::Unreadable)?;
    let obstacles = lockify_daemon::obstacles(&config, &log);
    log.flush();
    if !obstacles.is_empty() {
        return Err(wrong(obstacles.join("\nlockify: ")));
    }
    let spaces: Vec<_> = config.lockspaces.iter().map(|s| s.name.as_str()).collect();
    let nodes = match config.membership {
        MembershipKind::Static => format!("node {} of {}", config.node, config.nodes.len()),
        MembershipKind::Corosync => "a node of corosync's list".into(),
    };
    print(&format!(
        "{}: good: {nodes} in cluster {:?}, lockspaces {}{whose}\n",
        args.config.display(),
        config.cluster,
        spaces.join(", ")
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn unreadable(e: lockify_daemon::ConfigError) -> Failure {
    let hint = "a configuration names this node, every node's address and the lockspaces; \
                docs/configuration.md has an example, and `lockify serve --user` needs none";
    Failure::new(Code::Unreadable, format!("{e} ({hint})"))
}

/// One node that has no others, with one lockspace.
fn user_config(args: &Args) -> Result<Config, Failure> {
    let socket = match &args.socket {
        Some(socket) => socket.clone(),
        None => user_name().or_fail(Code::Failed)?,
    };
    let mut config = Config::alone(socket);
    config.idle_exit = Some(args.idle);
    config.state_dir = match &args.socket {
        // Beside the socket.
        Some(socket) if !socket.as_os_str().as_encoded_bytes().starts_with(b"@") => None,
        // A name is no folder's: each has a place among the user's states.
        Some(name) => Some(state_dir().or_fail(Code::Failed)?.join(name)),
        None => Some(state_dir().or_fail(Code::Failed)?),
    };
    Ok(config)
}
