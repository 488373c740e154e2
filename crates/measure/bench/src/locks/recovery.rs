//! The cost of a node's death for the others when one of them has very many locks: time, memory, and
//! the longest turn of their event loops, which heartbeats wait for.
//!
//! Each node is a process of its own, so that the dead one is dead as by `kill -9` and memory is
//! that of one node. A node's peak is that of its whole process since the others were told.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use lockify_core::{ClientId, Input, LockArgs, Mode, Name, NodeId, Policy, Status};
use lockify_node::{
    CallError, HostEvent, NodeAddress, NodeConfig, NodeEngine, SpaceConfig, SpaceId, StateDir,
};
use lockify_report::crew::{Failure, Program, Worker, WorkerError, reply, work};
use lockify_report::{Metric, Row};
use mio::Waker;
use serde::{Deserialize, Serialize};

/// From the death of a node until the others' locks can be used again.
const RECOVERY_S: Metric = Metric {
    name: "recovery_s",
    unit: "s",
    title: "time from a node's death to the end of recovery",
};
/// A survivor's memory before.
const RESIDENT_MB: Metric = Metric { name: "resident_mb", unit: "MB", title: "memory before" };
/// Its peak relative to that.
const PEAK_RATIO: Metric =
    Metric { name: "peak_ratio", unit: "1", title: "peak memory relative to before" };
/// The longest turn of a survivor's event loop since it started.
const LONGEST_TURN_MS: Metric =
    Metric { name: "longest_turn_ms", unit: "ms", title: "longest turn of an event loop" };
/// Locks that are not there any more.
const LOCKS_LOST: Metric = Metric { name: "locks_lost", unit: "1", title: "locks lost" };
/// Times that a survivor lost its quorum.
const QUORUM_LOSSES: Metric = Metric { name: "quorum_losses", unit: "1", title: "quorum losses" };

/// How long a step may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(1800);
/// Locks that are asked for between two turns.
const VOLLEY: u32 = 256;
const NODES: u32 = 3;

/// The task of a process.
#[derive(Serialize, Deserialize)]
struct Job {
    node: u32,
    nodes: Vec<SocketAddr>,
    policy: String,
}

/// The later orders: to take so many locks (the order is their number), ... ... to say how it is
/// and forget its peak, ...
const REST: &str = "rest";
/// ... to say how it is when the next recovery is done.
const RECOVER: &str = "recover";

/// How it is.
#[derive(Debug, Serialize, Deserialize)]
struct Figures {
    resident: u64,
    peak: u64,
    longest_turn_ns: u64,
    locks: u64,
    quorum_losses: u64,
}

/// Kills one node of three, of which another one has that many locks. `step` is told what goes on.
///
/// # Errors
/// A process cannot be started, has failed, or is stuck.
pub fn measure(
    how: &Program,
    locks: u32,
    policy: Policy,
    step: impl Fn(&str),
) -> Result<Vec<Row>, WorkerError> {
    let mut nodes = start(how, policy)?;
    step("taking locks");
    nodes[0].send_line(&locks.to_string())?;
    nodes[0].hear::<Figures>(PATIENCE)?;
    let mut before = Vec::new();
    for node in &mut nodes {
        node.send_line(REST)?;
        before.push(node.hear::<Figures>(PATIENCE)?);
    }
    step("recovering");
    let mut dead = nodes.pop();
    for node in &mut nodes {
        node.send_line(RECOVER)?;
    }
    dead.as_mut().map_or(Ok(()), Worker::kill)?;
    let died = Instant::now();
    let mut after = Vec::new();
    for node in &mut nodes {
        after.push(node.hear::<Figures>(PATIENCE)?);
    }
    let took = died.elapsed().as_secs_f64();
    let case = |row: Row| row.with("locks", locks).with("policy", policy.name());
    let mut rows = vec![case(Row::of("recovery", &RECOVERY_S, &[took]))];
    for (i, (before, after)) in before.iter().zip(&after).enumerate() {
        let lost = before.locks.saturating_sub(after.locks);
        let ratio = after.peak as f64 / before.resident.max(1) as f64;
        for (metric, value) in [
            (&RESIDENT_MB, before.resident as f64 / 1e6),
            (&PEAK_RATIO, ratio),
            (&LONGEST_TURN_MS, after.longest_turn_ns as f64 / 1e6),
            (&LOCKS_LOST, lost as f64),
            (&QUORUM_LOSSES, after.quorum_losses as f64),
        ] {
            rows.push(case(Row::of("recovery", metric, &[value]).with("node", i + 1)));
        }
    }
    Ok(rows)
}

fn start(how: &Program, policy: Policy) -> Result<Vec<Worker>, WorkerError> {
    let failed = |error| WorkerError::Start { program: how.program.clone(), error };
    let ports: Vec<TcpListener> = (0..NODES)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    let nodes: Vec<SocketAddr> =
        ports.iter().map(TcpListener::local_addr).collect::<Result<_, _>>().map_err(failed)?;
    drop(ports);
    let mut workers = Vec::new();
    for node in 1..=NODES {
        let job = Job { node, nodes: nodes.clone(), policy: policy.name().to_owned() };
        workers.push(Worker::start(how, format!("node {node}"), &job)?);
    }
    for worker in &mut workers {
        worker.hear::<()>(PATIENCE)?;
    }
    Ok(workers)
}

/// A process's main function.
///
/// # Errors
/// Standard output cannot be written.
pub fn worker() -> std::io::Result<()> {
    work(|job: Job| serve(&job).map(|()| None::<()>))
}

fn serve(job: &Job) -> Result<(), Failure> {
    let mut node = Node::new(job)?;
    while node.members < NODES as usize || !node.engine.is_running(node.space) {
        node.turn(Duration::from_millis(100))?;
    }
    let orders = listen(node.engine.waker())?;
    reply(&())?;
    loop {
        match orders.try_recv() {
            Ok(line) => {
                let figures = node.obey(line.trim())?;
                reply(&figures)?;
            }
            Err(TryRecvError::Empty) => node.turn(Duration::from_secs(1))?,
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
    }
}

/// Reads the parent's commands while the node runs.
fn listen(waker: Arc<Waker>) -> Result<Receiver<String>, Failure> {
    let (sender, orders) = channel();
    let read = move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
            // Without it, the node looks a second later.
            let _ = waker.wake();
        }
    };
    std::thread::Builder::new().name("parent".into()).spawn(read)?;
    Ok(orders)
}

struct Node {
    engine: NodeEngine,
    space: SpaceId,
    granted: u32,
    members: usize,
    /// The view whose recovery was done last.
    view: u64,
    quorum_losses: u64,
    events: Vec<HostEvent>,
}

impl Node {
    fn new(job: &Job) -> Result<Node, Failure> {
        let address = |(i, address): (usize, &SocketAddr)| NodeAddress {
            node: NodeId(i as u32 + 1),
            address: *address,
        };
        let list = job.nodes.iter().enumerate().map(address).collect();
        let mut config = NodeConfig::new("bench", NodeId(job.node), list);
        config.state_dir = StateDir::Memory;
        let mut engine = NodeEngine::new(config)?;
        let space = engine.join("bench", SpaceConfig::new(job.policy.parse()?))?;
        let (granted, members, view, quorum_losses) = (0, 0, 0, 0);
        Ok(Node { engine, space, granted, members, view, quorum_losses, events: Vec::new() })
    }

    fn turn(&mut self, timeout: Duration) -> Result<(), Failure> {
        self.engine.run_once(Some(timeout), &mut self.events)?;
        for event in self.events.drain(..) {
            match event {
                HostEvent::Completed { completion, .. } => {
                    self.granted += u32::from(completion.status == Status::Granted);
                }
                HostEvent::View(view) => self.members = view.members.len(),
                HostEvent::Running { view, .. } => self.view = view,
                HostEvent::QuorumLost => self.quorum_losses += 1,
                _ => {}
            }
        }
        Ok(())
    }

    fn obey(&mut self, order: &str) -> Result<Figures, Failure> {
        match order {
            REST => {
                for _ in 0..20 {
                    self.turn(Duration::from_millis(50))?;
                }
                // Of the kernel's documentation, proc(5): the peak is the present size from here on.
                std::fs::write("/proc/self/clear_refs", "5")?;
            }
            RECOVER => {
                let before = self.view;
                while self.view == before || !self.engine.is_running(self.space) {
                    self.turn(Duration::from_millis(100))?;
                }
            }
            locks => self.lock(locks.parse()?)?,
        }
        Ok(Figures {
            resident: memory("VmRSS:")?,
            peak: memory("VmHWM:")?,
            longest_turn_ns: self.engine.stats().longest_turn,
            locks: self.engine.own_locks(self.space) as u64,
            quorum_losses: self.quorum_losses,
        })
    }

    fn lock(&mut self, locks: u32) -> Result<(), Failure> {
        let mut asked = 0;
        while self.granted < locks {
            for _ in 0..VOLLEY {
                let full = asked == locks || asked > self.granted + 16 * VOLLEY;
                if full || !self.ask(asked)? {
                    break;
                }
                asked += 1;
            }
            self.turn(Duration::from_millis(100))?;
        }
        Ok(())
    }

    /// False if the node takes no more for now.
    fn ask(&mut self, number: u32) -> Result<bool, Failure> {
        let args = LockArgs {
            tag: u64::from(number),
            ..LockArgs::new(Name::new(format!("lock-{number:08}"))?, Mode::EX)
        };
        match self.engine.handle(self.space, Input::Lock { client: ClientId(1), args }) {
            Ok(_) => Ok(true),
            Err(CallError::WouldBlock(_)) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

/// A line of /proc/self/status, in bytes.
fn memory(field: &str) -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.ok_or_else(|| format!("/proc/self/status has no {field}"))? * 1024)
}
