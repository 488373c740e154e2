//! The common parts of the command line's tests.

pub mod array;
pub mod cluster;
pub mod fuse;
pub mod machine;
#[allow(dead_code, reason = "the array's own tests use the rest")]
#[path = "../../../../array/service/src/nbd/testing/client.rs"]
pub mod nbd;
pub mod preload;
pub mod relay;
pub mod traffic;
pub mod wall;

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longest time that anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A user of a machine without a cluster.
pub struct User {
    home: tempfile::TempDir,
}

impl User {
    pub fn new() -> User {
        User { home: tempfile::tempdir().unwrap() }
    }

    pub fn dir(&self) -> &Path {
        self.home.path()
    }

    /// `lockify` with these arguments.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockify"));
        // A daemon for each test, not the one that the machine's user has.
        command.args(args).env("LOCKIFY_SOCKET", self.socket()).env_remove("LOCKIFY_SPACE");
        command
    }

    /// Runs it to its end.
    pub fn lockify(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().unwrap()
    }

    /// Where this test's daemon listens.
    pub fn socket(&self) -> PathBuf {
        self.dir().join("lockify.sock")
    }

    /// Runs this test's daemon.
    pub fn daemon(&self) -> Process {
        let socket = self.socket();
        let args = ["serve", "--user", "--socket", socket.to_str().unwrap()];
        let daemon = self.command(&args).stderr(Stdio::piped()).spawn().unwrap();
        wait_for(|| UnixStream::connect(&socket).is_ok());
        Process(daemon)
    }
}

/// A process that does not outlive its test.
pub struct Process(pub Child);

impl Process {
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Ends it in order; its exit code.
    pub fn end(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.0.wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until something is so.
pub fn wait_for(so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "waited for nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
