//! A service manager's view of the daemon, which is a process of its own here.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Instant;

use crate::common::PATIENCE;
use crate::common::process::{ALONE, Process, SERVES};
use rustix::process::Signal;

/// Stands in for the manager's end of its socket.
struct Manager {
    socket: UnixDatagram,
    dir: tempfile::TempDir,
}

impl Manager {
    fn new() -> Manager {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Manager { socket, dir }
    }

    /// A daemon that is told of the manager, and that it is watched.
    fn daemon(&self) -> Process {
        let mut command = Command::new("sh");
        let script = "export WATCHDOG_PID=$$; exec \"$0\" \"$@\"";
        command.args(["-c", script, env!("CARGO_BIN_EXE_lockifyd")]);
        command.env("NOTIFY_SOCKET", self.dir.path().join("notify"));
        command.env("WATCHDOG_USEC", "300000");
        let daemon = Process::spawn(command, self.dir.path(), 1, ALONE);
        daemon.wait_for(SERVES);
        daemon
    }

    fn hear(&self) -> String {
        let mut buffer = [0; 4096];
        let n = self.socket.recv(&mut buffer).expect("the manager hears nothing");
        String::from_utf8(buffer[..n].to_vec()).unwrap()
    }

    /// Hears until there is this.
    fn hear_of(&self, what: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            // A watched daemon always says something.
            assert!(Instant::now() < end, "in vain waited for: {what}");
            let heard = self.hear();
            if heard.lines().any(|line| line.starts_with(what)) {
                return heard;
            }
        }
    }
}

#[test]
fn the_manager_hears_what_the_daemon_is_at() {
    let manager = Manager::new();
    let mut daemon = manager.daemon();
    assert_eq!(manager.hear(), "READY=1\n");
    let status = manager.hear_of("STATUS=");
    assert!(status.contains("serves clients, in view ") && status.contains("nodes 1"), "{status}");
    daemon.signal(Signal::HUP);
    assert!(manager.hear_of("RELOADING=1").contains("MONOTONIC_USEC="));
    manager.hear_of("READY=1");
    daemon.signal(Signal::TERM);
    manager.hear_of("STOPPING=1");
    assert!(daemon.ended().success());
}

#[test]
fn a_watched_daemon_says_that_it_lives_as_long_as_it_turns() {
    let manager = Manager::new();
    let daemon = manager.daemon();
    // Idle: nothing else has it turn.
    for _ in 0..3 {
        manager.hear_of("WATCHDOG=1");
    }
    // Stopped, it says nothing more, and then goes on.
    daemon.signal(Signal::STOP);
    while manager.socket.set_nonblocking(true).is_ok() && manager.socket.recv(&mut [0; 64]).is_ok()
    {
    }
    manager.socket.set_nonblocking(false).unwrap();
    daemon.signal(Signal::CONT);
    manager.hear_of("WATCHDOG=1");
}

/// A manager that does not read fills its socket; the daemon serves all the same.
#[test]
fn nobody_waits_for_a_manager_that_does_not_listen() {
    let manager = Manager::new();
    let daemon = manager.daemon();
    let client = daemon.client();
    for _ in 0..400 {
        // Each is told of twice.
        client.reload().unwrap();
    }
    drop(client.lockspace("default").unwrap().lock("a", lockify_client::Mode::EX).unwrap());
}
