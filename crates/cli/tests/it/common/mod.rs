//! The common parts of the command line's tests.

pub mod array;
pub mod cluster;
pub mod fuse;
pub mod machine;
#[allow(dead_code, reason = "the array's own tests use the rest")]
#[path = "../../../../array/service/src/nbd/testing/client.rs"]
pub mod nbd;
#[path = "../../../../lock/daemon/tests/it/common/ports.rs"]
pub mod ports;
pub mod preload;
#[path = "../../../../lock/daemon/tests/it/common/programs.rs"]
pub mod programs;
pub mod relay;
#[path = "../../../../lock/daemon/tests/it/common/signals.rs"]
pub mod signals;
pub mod traffic;
pub mod wall;

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};

/// Longest time that anything may take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Longest time that a process may take to its end: benchmarks are among them.
const LIFE: Duration = Duration::from_secs(300);

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
        output(&mut self.command(args))
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
        signals::send(Pid::from_child(&self.0), signal);
    }

    /// Ends it in order; its exit code.
    pub fn end(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.ended().code()
    }

    /// Waits for its end. Many end only when they get a lock, and a test would wait with them for ever.
    pub fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + LIFE;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "process {} does not end", self.0.id());
            std::thread::sleep(Duration::from_millis(2));
        }
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
    let mut pause = Duration::from_millis(5);
    while !so() {
        assert!(Instant::now() < deadline, "waited for nothing");
        std::thread::sleep(pause);
        // Most start a process that looks: many of these take the time that others need to keep their leases.
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Waits on another thread, because what blocks has no time limit of its own.
pub fn within<T: Send + 'static>(
    patience: Duration,
    what: &str,
    wait: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(wait()));
    told.recv_timeout(patience).unwrap_or_else(|e| panic!("in vain waited for {what}: {e}"))
}

/// The first line that a process says.
pub fn first_line(pipe: impl Read + Send + 'static) -> String {
    within(PATIENCE, "the first line of a process", move || {
        let mut line = String::new();
        BufReader::new(pipe).read_line(&mut line).unwrap();
        line
    })
}

/// What comes from a pipe until its last writer is gone, which need not be the process that the test has started.
pub fn all_of(mut pipe: impl Read + Send + 'static) -> Vec<u8> {
    within(LIFE, "the end of a process's output", move || {
        let mut all = Vec::new();
        pipe.read_to_end(&mut all).unwrap();
        all
    })
}

/// Runs a command to its end, without input.
pub fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process(command.spawn().unwrap());
    let (stdout, stderr) = (process.0.stdout.take().unwrap(), process.0.stderr.take().unwrap());
    // Both at once, or the process would wait for a reader of the second.
    let stderr = std::thread::spawn(move || all_of(stderr));
    let stdout = all_of(stdout);
    Output { status: process.ended(), stdout, stderr: stderr.join().unwrap() }
}

/// Reads what programs say at their terminal until it has this.
pub fn read_until(terminal: &mut File, said: &mut String, what: &str) {
    let deadline = Instant::now() + PATIENCE;
    let mut part = [0; 4096];
    while !said.contains(what) {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).unwrap();
        let ready = poll(&mut [PollFd::new(&*terminal, PollFlags::IN)], Some(&left)).unwrap();
        assert!(ready > 0, "in vain waited for {what:?} at the terminal: {said:?}");
        let n = terminal.read(&mut part).unwrap_or(0);
        assert!(n > 0, "the terminal ended before {what:?}: {said:?}");
        said.push_str(&String::from_utf8_lossy(&part[..n]));
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
