//! A worker: the process of one node. It does what its parent tells it, sleeps otherwise, and ends
//! when its parent does.

use std::collections::HashMap;
use std::fs::File;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use lockify_core::{NodeId, Policy};
use lockify_node::{
    HostEvent, NodeAddress, NodeConfig, NodeEngine, SpaceConfig, SpaceId, StateDir,
};
use lockify_report::crew::{self, Failure};
use rustix::thread::CpuSet;

use crate::creator::Run;
use crate::glock::Allocator;
use crate::image::{Contents, Image};
use crate::locks::Locks;
use crate::tree::Entry;
use crate::wire::{Command, Prepare, Reply};
use crate::{pingpong, place};

/// How long the nodes may take to find each other.
const JOIN_PATIENCE: Duration = Duration::from_secs(30);

/// Unused resources are dropped this soon after a run's locks are released, so that the messages
/// that this takes are over before the next run.
const TOSS_AFTER_NS: u64 = 5_000_000;

/// A silent node is taken for dead after twice this; the machine may be busy with other things.
const LEASE: Duration = Duration::from_secs(10);

/// Long enough for an answer without added delay.
const BUSY_POLL: Duration = Duration::from_micros(200);

/// Runs a worker on standard input and output until its input ends.
///
/// # Errors
/// Standard output cannot be written; all else is told to the parent.
pub fn run() -> std::io::Result<()> {
    crew::work(|(): ()| work().map(|()| None::<Reply>))
}

fn work() -> Result<(), Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    crew::reply(&Reply::Listening(listener.local_addr()?))?;
    let waker = Arc::new(std::sync::Mutex::new(None));
    let commands = read_commands(waker.clone());
    let allowed = place::allowed();
    let mut worker = Worker { listener: Some(listener), waker, allowed, node: None };
    while let Some(command) = worker.next(&commands)? {
        crew::reply(&worker.obey(command)?)?;
    }
    Ok(())
}

type SharedWaker = Arc<std::sync::Mutex<Option<Arc<mio::Waker>>>>;

/// Reads commands on a thread of its own, which wakes the node's event loop for each.
fn read_commands(waker: SharedWaker) -> Receiver<Result<Command, String>> {
    let (send, commands) = channel();
    std::thread::spawn(move || {
        loop {
            let command = match crew::line() {
                Ok(line) => serde_json::from_str(&line)
                    .map_err(|e| format!("not a command ({e}): {}", line.trim_end())),
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => break,
                Err(e) => Err(e.to_string()),
            };
            let unread = command.is_err();
            if send.send(command).is_err() || unread {
                break;
            }
            wake(&waker);
        }
        drop(send);
        wake(&waker);
    });
    commands
}

fn wake(waker: &SharedWaker) {
    let waker = waker.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(waker) = waker.as_ref() {
        // Fails only if the event loop is gone; then there is nobody to wake.
        let _ = waker.wake();
    }
}

struct Worker {
    listener: Option<TcpListener>,
    waker: SharedWaker,
    /// The processors that it may use.
    allowed: CpuSet,
    node: Option<Node>,
}

/// The node, once it has joined.
struct Node {
    number: u32,
    locks: Locks,
    spaces: HashMap<String, SpaceId>,
    numbers: Allocator,
    run: Option<Run>,
    /// The run pauses: nothing may happen here, as another cluster creates meanwhile.
    paused: bool,
    entries: EntryFiles,
    contents: Contents,
}

/// Files of entries that were read already.
#[derive(Default)]
struct EntryFiles(HashMap<PathBuf, Vec<Entry>>);

impl EntryFiles {
    fn read(&mut self, file: &Path) -> Result<&[Entry], Failure> {
        if !self.0.contains_key(file) {
            self.0.insert(file.to_owned(), serde_json::from_slice(&std::fs::read(file)?)?);
        }
        Ok(&self.0[file])
    }
}

impl Worker {
    /// The next command; `None` when the parent has closed its end. The node works meanwhile.
    fn next(
        &mut self,
        commands: &Receiver<Result<Command, String>>,
    ) -> Result<Option<Command>, Failure> {
        loop {
            let Some(node) = self.node.as_mut().filter(|n| !n.paused) else {
                return Ok(commands.recv().ok().transpose()?);
            };
            match commands.try_recv() {
                Ok(command) => return Ok(Some(command?)),
                Err(TryRecvError::Disconnected) => return Ok(None),
                Err(TryRecvError::Empty) => node.locks.idle()?,
            }
        }
    }

    fn obey(&mut self, command: Command) -> Result<Reply, Failure> {
        match command {
            Command::Join { node, nodes, delay_ns, policies, batch_age_ns } => {
                let delay = Duration::from_nanos(delay_ns);
                self.join(node, &nodes, delay, &policies, batch_age_ns)
            }
            Command::Place(place) => {
                place::go(place, &self.allowed);
                Ok(Reply::Placed)
            }
            Command::Echo { delay_ns } => {
                Ok(Reply::Echoing(pingpong::echo(Duration::from_nanos(delay_ns))?))
            }
            command => {
                let busy_poll = self.busy_poll();
                let node = self.node.as_mut().ok_or("this worker has not joined a cluster yet")?;
                match command {
                    Command::Ping { peers, delay_ns, entries, count, folder } => {
                        let folder = File::open(folder)?;
                        let images = node.images(&entries, count)?;
                        let delay = Duration::from_nanos(delay_ns);
                        let trips = pingpong::measure(&peers, delay, busy_poll, &folder, &images)?;
                        Ok(Reply::Pinged(trips))
                    }
                    command => node.obey(command),
                }
            }
        }
    }

    /// How long this process polls before it sleeps, as a node and as a pinger: with only one
    /// processor, the answering process needs it.
    fn busy_poll(&self) -> Duration {
        if self.allowed.count() > 1 { BUSY_POLL } else { Duration::ZERO }
    }

    fn join(
        &mut self,
        number: u32,
        addresses: &[SocketAddr],
        delay: Duration,
        policies: &[String],
        batch_age_ns: u64,
    ) -> Result<Reply, Failure> {
        let nodes = (1..).map(NodeId).zip(addresses);
        let nodes = nodes.map(|(node, &address)| NodeAddress { node, address }).collect();
        let mut config = NodeConfig::new("lockify-demo", NodeId(number), nodes);
        config.listener = self.listener.take();
        config.state_dir = StateDir::Memory;
        config.delay = delay;
        config.lease = LEASE;
        config.busy_poll = self.busy_poll();
        let mut engine = NodeEngine::new(config)?;
        *self.waker.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
            Some(engine.waker());
        let mut spaces = HashMap::new();
        for name in policies {
            let mut config = SpaceConfig::new(name.parse::<Policy>()?);
            config.core.toss_after = TOSS_AFTER_NS;
            config.core.batch_age = batch_age_ns;
            spaces.insert(name.clone(), engine.join(name, config)?);
        }
        wait_until_running(&mut engine, &spaces, addresses.len())?;
        let first = *spaces.values().next().ok_or("no policy is to be measured")?;
        self.node = Some(Node {
            number,
            locks: Locks::new(engine, first),
            spaces,
            numbers: Allocator::new(number),
            run: None,
            paused: false,
            entries: EntryFiles::default(),
            contents: Contents::default(),
        });
        Ok(Reply::Joined)
    }
}

/// Waits until every lockspace runs with all nodes in it.
fn wait_until_running(
    engine: &mut NodeEngine,
    spaces: &HashMap<String, SpaceId>,
    nodes: usize,
) -> Result<(), Failure> {
    let deadline = Instant::now() + JOIN_PATIENCE;
    let mut events: Vec<HostEvent> = Vec::new();
    loop {
        let status = engine.status();
        let complete = status.spaces.iter().filter(|s| s.running && s.members.len() == nodes);
        if complete.count() == spaces.len() {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!(
                "the nodes did not find each other within {JOIN_PATIENCE:?}: is the loopback \
                 interface up, and is nothing filtering it? (view {}, members {:?})",
                status.view, status.members
            )
            .into());
        }
        engine.run_once(Some(left), &mut events)?;
        events.clear();
    }
}

impl Node {
    fn obey(&mut self, command: Command) -> Result<Reply, Failure> {
        match command {
            Command::Prepare(p) => self.prepare(&p),
            Command::Go(portion) => {
                let run = self.run.as_mut().ok_or("no run is prepared")?;
                let made = run.create(&mut self.numbers, portion, &mut self.locks)?;
                self.paused = !made.over;
                Ok(Reply::Created(made))
            }
            Command::Release { history } => self.release(&history),
            Command::Stats { policy } => {
                let space = self.space(&policy)?;
                let stats = self.locks.engine().space_stats(space).unwrap_or_default();
                Ok(Reply::Stats(Box::new(stats)))
            }
            _ => Err("this worker has joined a cluster already".into()),
        }
    }

    fn space(&self, policy: &str) -> Result<SpaceId, Failure> {
        let space = self.spaces.get(policy).copied();
        Ok(space.ok_or_else(|| format!("this worker has no lockspace for policy {policy}"))?)
    }

    fn prepare(&mut self, p: &Prepare) -> Result<Reply, Failure> {
        let space = self.space(&p.policy)?;
        self.locks.switch(space);
        let entries = self.entries.read(&p.entries)?;
        self.run = Some(Run::prepare(p, entries, &mut self.contents, &mut self.locks)?);
        Ok(Reply::Prepared)
    }

    /// The first entries of a file, ready to be created.
    fn images(&mut self, entries: &Path, count: u32) -> Result<Vec<Image>, Failure> {
        let entries = self.entries.read(entries)?.iter().take(count as usize);
        Ok(entries.map(|e| Image::load(e, &mut self.contents)).collect::<Result<_, _>>()?)
    }

    fn release(&mut self, history: &Path) -> Result<Reply, Failure> {
        if let Some(run) = self.run.take() {
            self.locks.unlock_all(run.into_locks())?;
        }
        let events = self.locks.recorder.write(self.number, history)?;
        Ok(Reply::Released { events })
    }
}
