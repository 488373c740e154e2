//! The daemon's log, and a reader that stops; and the output of `lockifyd` about itself.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::Instant;

use crate::common::process::ALONE;
use crate::common::{PATIENCE, eventually};
use lockify_client::{Client, Mode};
use rustix::process::{Pid, Signal, kill_process};

/// A daemon that logs every request there; killed on drop.
struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    fn start(dir: &Path, log: Stdio) -> Daemon {
        let (socket, path) = (dir.join("sock"), dir.join("lockify.toml"));
        let text = format!(
            "node = 1\nsocket = {socket:?}\nlog.level = \"info,lockify::request=debug\"\n{ALONE}"
        );
        std::fs::write(&path, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockifyd"));
        let child = command.arg(&path).stderr(log).spawn().unwrap();
        let daemon = Daemon { child, socket };
        eventually("a daemon", || Client::connect(&daemon.socket).is_ok());
        daemon
    }

    /// Takes locks, some lines in the log for each; more than a pipe and all buffers have room for.
    fn work(&self) {
        let (socket, (done, ended)) = (self.socket.clone(), channel());
        std::thread::spawn(move || {
            let space = Client::connect(&socket).unwrap().lockspace("default").unwrap();
            for i in 0..5000_u32 {
                space.lock(i.to_le_bytes(), Mode::EX).unwrap().unlock().unwrap();
            }
            done.send(()).unwrap();
        });
        ended.recv_timeout(2 * PATIENCE).expect("the daemon waits for whoever reads its log");
    }

    fn ended(&mut self) -> ExitStatus {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), Signal::TERM).unwrap();
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "the daemon does not end");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn nobody_waits_for_a_log_that_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start(dir.path(), Stdio::piped());
    daemon.work();
    // Neither does its end.
    assert!(daemon.ended().success());
}

#[test]
fn a_full_disk_ends_the_log_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut daemon = Daemon::start(dir.path(), full.into());
    daemon.work();
    assert!(daemon.ended().success());
}

/// Dropped lines are missing, and a line says so.
#[test]
fn a_reader_that_comes_back_is_told_how_much_is_missing() {
    use std::io::Read as _;
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start(dir.path(), Stdio::piped());
    daemon.work();
    let mut log = daemon.child.stderr.take().unwrap();
    let reads = std::thread::spawn(move || {
        let mut text = String::new();
        log.read_to_string(&mut text).map(|_| text).unwrap()
    });
    daemon.work();
    assert!(daemon.ended().success());
    let text = reads.join().unwrap();
    assert!(text.contains("lines were left out here"), "{} lines", text.lines().count());
    assert!(text.contains("leaving the cluster"), "what matters has room");
}

#[test]
fn lockifyd_says_what_it_is() {
    let lockifyd = |args: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_lockifyd")).args(args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (out.status.code().unwrap(), text(out.stdout), text(out.stderr))
    };
    let (code, out, _) = lockifyd(&["--version"]);
    assert_eq!((code, out), (0, format!("lockifyd {}\n", env!("CARGO_PKG_VERSION"))));
    let (code, out, _) = lockifyd(&["--help"]);
    assert!(code == 0 && out.contains("Usage: lockifyd <CONFIG>"), "{out}");
    for wrong in [&[][..], &["a", "b"], &["--nonsense"]] {
        let (code, _, err) = lockifyd(wrong);
        assert!(code == 2 && err.contains("Usage"), "{wrong:?}: {err}");
    }
    let (code, _, err) = lockifyd(&["/no/such\u{1b}[2J"]);
    assert!(code == 2 && err.contains("/no/such\\u{1b}[2J"), "{err}");
}
