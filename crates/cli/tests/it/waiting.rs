//! Many `lockify run` of one name: all end, and waiting ones sleep.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Process, User, wait_for};

/// A daemon whose socket only these tests know.
fn daemon(user: &User) -> (Process, PathBuf) {
    let (socket, config) = (user.dir().join("own.sock"), user.dir().join("lockify.toml"));
    let text = format!(
        "node = 1\nsocket = {socket:?}\nnodes = [{{ id = 1, address = \"127.0.0.1:0\" }}]\n"
    );
    std::fs::write(&config, text).unwrap();
    let args = ["serve", "--config", config.to_str().unwrap()];
    let daemon = user.command(&args).stderr(Stdio::null()).spawn().unwrap();
    wait_for(|| socket.exists());
    (Process(daemon), socket)
}

fn run(user: &User, socket: &std::path::Path, command: &[&str]) -> Process {
    let all = [&["run", "--socket", socket.to_str().unwrap(), "same", "--"], command].concat();
    let mut run: Command = user.command(&all);
    Process(run.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
}

/// How often the threads of a process have left the processor.
fn switches(process: &Process) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.0.id())).unwrap();
    let status = |task: PathBuf| std::fs::read_to_string(task.join("status")).unwrap_or_default();
    let all: String = tasks.map(|task| status(task.unwrap().path())).collect();
    let counts = all.lines().filter(|line| line.contains("ctxt_switches"));
    counts.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok()).sum()
}

#[test]
fn hundreds_of_runs_of_one_name_all_end() {
    const RUNS: usize = 300;
    let user = User::new();
    let (_daemon, socket) = daemon(&user);
    let count = user.dir().join("count");
    // Without the lock, additions would be lost.
    let add = format!("n=$(cat {0}); echo $((n + 1)) > {0}", count.display());
    std::fs::write(&count, "0").unwrap();
    let runs: Vec<Process> = (0..RUNS).map(|_| run(&user, &socket, &["sh", "-c", &add])).collect();
    for mut run in runs {
        assert_eq!(run.ended().code(), Some(0));
    }
    assert_eq!(std::fs::read_to_string(count).unwrap().trim(), RUNS.to_string());
}

#[test]
fn runs_that_wait_or_hold_sleep() {
    const WATCHED: Duration = Duration::from_secs(2);
    const MOST: u64 = 5;
    let user = User::new();
    let (_daemon, socket) = daemon(&user);
    let flag = user.dir().join("holds");
    let hold = format!("touch {}; exec sleep 100", flag.display());
    let mut holder = run(&user, &socket, &["sh", "-c", &hold]);
    wait_for(|| flag.exists());
    let waiters: Vec<Process> = (0..5).map(|_| run(&user, &socket, &["true"])).collect();
    let queued = || {
        let args = ["who", "--socket", socket.to_str().unwrap(), "same", "--json"];
        let said = String::from_utf8(user.lockify(&args).stdout).unwrap();
        said.matches("\"queue\"").count() >= waiters.len()
    };
    wait_for(queued);
    let all: Vec<&Process> = waiters.iter().chain([&holder]).collect();
    let rest = || all.iter().map(|process| switches(process)).sum::<u64>();
    // Until nobody is on the way to sleep any more.
    wait_for(|| {
        let before = rest();
        std::thread::sleep(Duration::from_millis(200));
        rest() - before <= MOST
    });
    let before: Vec<u64> = all.iter().map(|process| switches(process)).collect();
    std::thread::sleep(WATCHED);
    for (process, before) in all.iter().zip(before) {
        let woken = switches(process) - before;
        assert!(woken <= MOST, "process {} woke {woken} times", process.0.id());
    }
    drop(all);
    // Its command ends with it, and the others get their turn.
    holder.end();
}
