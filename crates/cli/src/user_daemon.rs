//! The daemon of one user, for machines on which nobody has set up a cluster: it starts when
//! `lockify run` needs it and ends when nobody has used it for a while.
//!
//! It locks for the processes of this user on this machine, as one node that has no others.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockify_client::{Client, Error};

/// How long a daemon may take to start.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two attempts to connect to it.
const RETRY: Duration = Duration::from_millis(5);

/// Why there is no place for this user's daemon.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The directory cannot be made or looked at.
    #[error("cannot use {path}: {error}; set XDG_RUNTIME_DIR to a directory of your own")]
    System {
        /// The directory.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The directory is somebody else's, or open to others.
    #[error(
        "{0} belongs to another user or is open to others, so it is not safe: remove it, or set \
         XDG_RUNTIME_DIR to a directory of your own"
    )]
    Unsafe(PathBuf),
}

/// Where this user's daemon listens; makes the directory if it is not there.
pub fn socket() -> Result<PathBuf, PlaceError> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let dir = match runtime.filter(|dir| dir.is_absolute() && dir.is_dir()) {
        Some(dir) => dir.join("lockify"),
        // Not $TMPDIR: every process of the user must find the same daemon.
        None => PathBuf::from(format!("/tmp/lockify-{}", rustix::process::geteuid().as_raw())),
    };
    make_private(&dir)?;
    Ok(dir.join("lockify.sock"))
}

/// Makes a directory that is this user's alone, or checks that it is.
fn make_private(dir: &Path) -> Result<(), PlaceError> {
    let system = |error| PlaceError::System { path: dir.to_owned(), error };
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(system(e)),
        _ => {}
    }
    // Not following links: in /tmp, anybody may have put one there.
    let found = std::fs::symlink_metadata(dir).map_err(system)?;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    if found.is_dir() && own && found.mode() & 0o077 == 0 {
        Ok(())
    } else {
        Err(PlaceError::Unsafe(dir.to_owned()))
    }
}

/// Connects to this user's daemon, if it runs.
pub fn connect() -> Result<Client, Error> {
    Client::connect(place()?)
}

/// Connects to this user's daemon; starts it if it does not run.
///
/// Two programs that start it at the same time start two, of which one finds the other's socket
/// locked and ends; both programs connect to the one that stays.
pub fn connect_or_start() -> Result<Client, Error> {
    let socket = place()?;
    match Client::connect(&socket) {
        Err(Error::NoDaemon { .. }) => {}
        connected => return connected,
    }
    let log = socket.with_extension("log");
    let failed = |e| Error::Node(format!("cannot start this user's lock daemon: {e}"));
    let mut daemon = start(&log).map_err(failed)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Client::connect(&socket) {
            Err(Error::NoDaemon { .. }) if Instant::now() < deadline => {}
            connected => return connected.map_err(|e| explain(&e, &mut daemon, &log)),
        }
        std::thread::sleep(RETRY);
        // It finds the socket locked also if the one before it is just about to end.
        if daemon.try_wait().map_err(failed)?.is_some() {
            daemon = start(&log).map_err(failed)?;
        }
    }
}

fn place() -> Result<PathBuf, Error> {
    socket().map_err(|e| Error::Node(e.to_string()))
}

fn start(log: &Path) -> std::io::Result<Child> {
    let log: File = OpenOptions::new().create(true).append(true).open(log)?;
    Command::new(std::env::current_exe()?)
        .args(["serve", "--user"])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        // Ctrl-C in the terminal is for the program that happened to start it.
        .process_group(0)
        .spawn()
}

fn explain(e: &Error, daemon: &mut Child, log: &Path) -> Error {
    let ended = daemon.try_wait().ok().flatten();
    let how = ended.map_or_else(|| "it still runs".to_owned(), |status| status.to_string());
    Error::Node(format!(
        "this user's lock daemon does not answer ({e}; {how}): its messages are in {}",
        log.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn makes_a_directory_that_nobody_else_may_enter() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("own");
        make_private(&path).unwrap();
        make_private(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn refuses_a_directory_that_others_may_enter_and_links() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(make_private(&open), Err(PlaceError::Unsafe(_))));
        let (own, link) = (dir.path().join("own"), dir.path().join("link"));
        make_private(&own).unwrap();
        symlink(&own, &link).unwrap();
        assert!(matches!(make_private(&link), Err(PlaceError::Unsafe(_))));
    }
}
