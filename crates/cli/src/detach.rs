//! `lockify serve --user --detach`: starts this user's daemon, so that it is no other process's
//! child and inherits nothing from its first user.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockify_client::domain::{Choice, Domain, PATIENCE, state_dir};
use rustix::process::setsid;

use crate::exit::{Code, Failure, OrFail as _};

/// Between two looks whether it listens.
const RETRY: Duration = Duration::from_millis(5);

/// The kept amount of its messages; older ones go with the next start.
const LOG: u64 = 1 << 20;

/// Of its last messages, this much is told.
const TOLD: u64 = 2000;

/// Starts the daemon and waits until it, or another one of this user, listens.
pub fn start(idle: Duration) -> Result<(), Failure> {
    let domain = Domain::find(&Choice::Local).or_fail(Code::Failed)?;
    let log = state_dir().or_fail(Code::Failed)?.join("daemon.log");
    // Ctrl-C, and the end of the session, are for the program that happened to start it. Fails for
    // the leader of a group, as in an interactive shell: then the daemon's own group has to do.
    let _ = setsid();
    keep_descriptors_back();
    let deadline = Instant::now() + PATIENCE;
    let mut daemon = Started::new(&log, idle)?;
    while !domain.is_served().or_fail(Code::Failed)? {
        if Instant::now() >= deadline {
            return Err(daemon.explain(&domain));
        }
        std::thread::sleep(RETRY);
        // It finds the name taken also if the one before it is just about to end.
        if daemon.child.try_wait().or_fail(Code::Failed)?.is_some() {
            daemon = Started::new(&log, idle)?;
        }
    }
    Ok(())
}

/// A daemon that was started, and where its messages begin.
struct Started {
    child: Child,
    log: PathBuf,
    begins: u64,
}

impl Started {
    fn new(log: &Path, idle: Duration) -> Result<Started, Failure> {
        let unusable = |e: std::io::Error| {
            let what = format!("its messages cannot be written to {}: {e}", log.display());
            Failure::new(Code::Failed, what)
        };
        let file = open(log).map_err(unusable)?;
        let begins = file.metadata().map_err(unusable)?.len();
        let child = Command::new(std::env::current_exe().or_fail(Code::Failed)?)
            .args(["serve", "--user", "--idle"])
            .arg(humantime::format_duration(idle).to_string())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .process_group(0)
            .spawn()
            .or_fail(Code::Failed)?;
        Ok(Started { child, log: log.to_owned(), begins })
    }

    fn explain(&mut self, domain: &Domain) -> Failure {
        let ended = self.child.try_wait().ok().flatten();
        let how = ended.map_or_else(|| "it still runs".to_owned(), |status| status.to_string());
        let mut said = String::new();
        // Without its words, the file's name has to do.
        let _ = File::open(&self.log).and_then(|mut log| {
            log.seek(SeekFrom::Start(self.begins))?;
            log.take(TOLD).read_to_string(&mut said)
        });
        let what = format!(
            "it does not listen on {} after {PATIENCE:?} ({how}; its messages are in {}): {}",
            domain.socket().display(),
            self.log.display(),
            said.trim()
        );
        Failure::new(Code::Failed, what)
    }
}

fn open(log: &Path) -> std::io::Result<File> {
    if std::fs::metadata(log).is_ok_and(|found| found.len() > LOG) {
        std::fs::rename(log, log.with_extension("log.old"))?;
    }
    OpenOptions::new().create(true).append(true).open(log)
}

/// Closes a script's descriptors (a pipe that a reader drains, a lock of flock(1)) in a daemon that
/// outlives the script.
#[allow(unsafe_code, reason = "a system call that rustix and nix do not offer")]
fn keep_descriptors_back() {
    // SAFETY: only sets the flag of descriptors; none is closed or used. A kernel before 5.11 refuses.
    unsafe {
        nix::libc::close_range(3, u32::MAX, nix::libc::CLOSE_RANGE_CLOEXEC as i32);
    }
}
