//! Starting this user's own daemon.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::error::Error;

/// How long the daemon may take to listen.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The variable with the time after which a daemon that nobody uses ends.
pub const IDLE: &str = "LOCKIFY_IDLE";

/// The command that runs it.
const PROGRAM: &str = "lockify";

/// Where it is installed. Not where PATH says: the daemon serves all processes of the user.
const INSTALLED: [&str; 2] = ["/usr/local/bin", "/usr/bin"];

/// Starts this user's daemon and waits until it listens.
///
/// A process in between ends as soon as the daemon listens. So the daemon is no child of this
/// program, which may wait for unknown children.
///
/// # Errors
/// [`Error::NotStarted`] with the daemon's message.
pub(super) fn start() -> Result<(), Error> {
    let program = program()?;
    let failed = |e: &dyn std::fmt::Display| {
        Error::NotStarted(format!("{} serve --user: {e}", program.display()))
    };
    let child = Command::new(&program)
        .args(["serve", "--user", "--detach"])
        .current_dir("/")
        .env_clear()
        .envs(std::env::var_os(IDLE).map(|idle| (IDLE, idle)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed(&e))?;
    match child.wait_with_output() {
        Ok(output) if !output.status.success() => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(failed(&said.trim().trim_start_matches("lockify: ")))
        }
        Ok(_) => Ok(()),
        // A program that has no interest in its children's ends (SIGCHLD ignored) is not told.
        Err(_) => Ok(()),
    }
}

/// The command: beside this program, or where it is installed.
fn program() -> Result<PathBuf, Error> {
    let here = std::env::current_exe().ok();
    let beside = here.as_deref().and_then(Path::parent).map(Path::to_owned);
    let places = beside.into_iter().chain(INSTALLED.map(PathBuf::from));
    let mut programs = places.map(|dir| dir.join(PROGRAM));
    programs.find(|program| program.is_file()).ok_or_else(|| {
        Error::NotStarted(format!(
            "the command `{PROGRAM}` is neither beside this program nor in {}: install it there, run \
             `lockify serve --user`, or name a daemon by LOCKIFY_SOCKET",
            INSTALLED.join(" or ")
        ))
    })
}
