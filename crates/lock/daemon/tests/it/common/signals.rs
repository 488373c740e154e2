//! Signals that have had their effect.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Far beyond what it takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends a signal. A process that is stopped runs no more then: the kernel has one of its threads stop the others, and on a
/// busy machine these go on for a while.
pub fn send(pid: Pid, signal: Signal) {
    kill_process(pid, signal).unwrap();
    let end = Instant::now() + PATIENCE;
    while signal == Signal::STOP && !is_stopped(pid) {
        assert!(Instant::now() < end, "process {pid:?} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns true if no thread runs (proc(5), `/proc/PID/task/TID/stat`).
fn is_stopped(pid: Pid) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap();
    tasks.flatten().all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // The name before the state may have any characters.
        stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with('T') || rest.is_empty())
    })
}
