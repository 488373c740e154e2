//! Daemons as processes of their own, and their messages.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockify_check::{Checker, Options, Report};
use lockify_client::Client;
use lockify_history::{Reader, Writer, merge};
use rustix::process::{Pid, Signal};

use super::ports::free_address;
use super::{PATIENCE, eventually, signals};

/// The output of a daemon when clients can connect.
pub const SERVES: &str = "serves clients";
/// The list of nodes of a daemon that is a cluster of its own.
pub const ALONE: &str = "[[nodes]]\nid = 1\naddress = \"127.0.0.1:0\"\n";

/// A daemon process and its messages; killed on drop.
pub struct Process {
    pub child: Child,
    pub socket: PathBuf,
    pub said: Arc<Mutex<Vec<String>>>,
}

impl Process {
    pub fn start(dir: &Path, node: u32, config: &str) -> Process {
        Process::spawn(Command::new(env!("CARGO_BIN_EXE_lockifyd")), dir, node, config)
    }

    /// Starts a daemon and waits until clients can connect.
    pub fn serving(dir: &Path, node: u32, config: &str) -> Process {
        let process = Process::start(dir, node, config);
        process.wait_for(SERVES);
        process
    }

    /// One that serves, and is a cluster of its own.
    pub fn alone(dir: &Path, config: &str) -> Process {
        Process::serving(dir, 1, &format!("{config}\n{ALONE}"))
    }

    pub fn spawn(mut command: Command, dir: &Path, node: u32, config: &str) -> Process {
        let socket = dir.join(format!("{node}.sock"));
        let path = dir.join(format!("{node}.toml"));
        let text = format!("node = {node}\nsocket = \"{}\"\n{config}", socket.display());
        std::fs::write(&path, text).unwrap();
        let mut child = command.arg(&path).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let said = Arc::new(Mutex::new(Vec::new()));
        let sink = said.clone();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| sink.lock().unwrap().push(line));
        });
        Process { child, socket, said }
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.socket).unwrap()
    }

    pub fn heard(&self, text: &str) -> usize {
        self.said.lock().unwrap().iter().filter(|line| line.contains(text)).count()
    }

    pub fn wait_for(&self, text: &str) {
        eventually(&format!("{text} in {:?}", self.said.lock().unwrap()), || self.heard(text) > 0);
    }

    pub fn signal(&self, signal: Signal) {
        signals::send(Pid::from_child(&self.child), signal);
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The list of nodes.
pub fn nodes(count: u32) -> String {
    let node = |id| format!("[[nodes]]\nid = {id}\naddress = \"{}\"\n", free_address());
    (1..=count).map(node).collect()
}

/// How many nodes are in the daemon's lockspaces; 0 if it does not answer.
pub fn members(daemon: &Process) -> usize {
    let status = Client::connect(&daemon.socket).and_then(|c| c.status());
    let own = |s: &lockify_client::ClusterStatus| {
        s.nodes.iter().flat_map(|n| &n.spaces).map(|s| s.members.len()).min()
    };
    status.ok().as_ref().and_then(own).unwrap_or(0)
}

/// Merges the histories of a cluster, and finds nothing wrong in them.
pub fn judge<'a>(dir: &Path, histories: impl IntoIterator<Item = &'a PathBuf>) -> Report {
    let readers: Vec<_> = histories.into_iter().map(|path| Reader::open(path).unwrap()).collect();
    let merged = dir.join("all.jsonl");
    let mut writer = Writer::create(&merged).unwrap();
    merge(readers, &mut writer).unwrap();
    writer.flush().unwrap();
    let mut checker = Checker::new(Options::whole());
    for event in Reader::open(&merged).unwrap() {
        checker.observe(&event.unwrap()).unwrap_or_else(|v| panic!("{v:?}"));
    }
    let report = checker.finish();
    assert!(report.is_clean(), "{report:?}");
    report
}
