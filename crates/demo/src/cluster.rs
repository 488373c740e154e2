//! The parent's end of its workers: one process per node.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command as Process, Stdio};
use std::time::Duration;

use lockify_core::Stats;

use crate::wire::{Command, Created, Place, Prepare, Reply};

/// Why the workers did not do what they were told.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// A worker cannot be started.
    #[error("cannot start a worker ({program}): {error}")]
    Start {
        /// The program.
        program: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A worker ended, or said something that is no reply.
    #[error("the worker of node {node} {what}; its own messages are above")]
    Gone {
        /// Which.
        node: u32,
        /// What happened.
        what: String,
    },
    /// A worker could not do what it was told.
    #[error("node {node}: {why}")]
    Failed {
        /// Which.
        node: u32,
        /// Why.
        why: String,
    },
}

/// How to start a worker: a program that calls [`crate::worker::run`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerProgram {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
}

/// One worker. Its process ends when this is dropped.
#[derive(Debug)]
struct Worker {
    node: u32,
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(node: u32, how: &WorkerProgram) -> Result<Worker, WorkerError> {
        let started = Process::new(&how.program)
            .args(&how.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let failed = |error| WorkerError::Start { program: how.program.clone(), error };
        let mut process = started.map_err(failed)?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let output = output.ok_or_else(|| failed(std::io::ErrorKind::BrokenPipe.into()))?;
        Ok(Worker { node, process, input, output: BufReader::new(output) })
    }

    fn tell(&mut self, command: &Command) -> Result<(), WorkerError> {
        let node = self.node;
        let gone = |e: &dyn std::fmt::Display| WorkerError::Gone {
            node,
            what: format!("does not take commands ({e})"),
        };
        let mut line = serde_json::to_vec(command).map_err(|e| gone(&e))?;
        line.push(b'\n');
        let input = self.input.as_mut().ok_or_else(|| gone(&"closed"))?;
        input.write_all(&line).map_err(|e| gone(&e))
    }

    fn hear(&mut self) -> Result<Reply, WorkerError> {
        let node = self.node;
        let gone = |what: String| WorkerError::Gone { node, what };
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        if read.map_err(|e| gone(format!("cannot be heard ({e})")))? == 0 {
            let status = self.process.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
            return Err(gone(format!("ended unexpectedly ({status})")));
        }
        match serde_json::from_str(&line) {
            Ok(Reply::Failed(why)) => Err(WorkerError::Failed { node, why }),
            Ok(reply) => Ok(reply),
            Err(e) => Err(gone(format!("gave no proper reply ({e})"))),
        }
    }

    fn unexpected(&self, reply: &Reply) -> WorkerError {
        WorkerError::Gone { node: self.node, what: format!("gave the wrong reply ({reply:?})") }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The end of its input tells a worker to end; a hung one must not survive us.
        drop(self.input.take());
        for _ in 0..50 {
            if let Ok(Some(_)) = self.process.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The workers of one cluster, by node from 1.
#[derive(Debug)]
pub struct Cluster {
    workers: Vec<Worker>,
}

macro_rules! expect {
    ($worker:expr, $pattern:pat => $value:expr) => {
        match $worker.hear()? {
            $pattern => $value,
            other => return Err($worker.unexpected(&other)),
        }
    };
}

impl Cluster {
    /// Starts `nodes` workers and has them form a cluster with one lockspace per policy.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn start(
        nodes: u32,
        delay: Duration,
        batch_age: Duration,
        policies: &[String],
        how: &WorkerProgram,
    ) -> Result<Cluster, WorkerError> {
        let workers = (1..=nodes).map(|node| Worker::start(node, how));
        let mut workers = workers.collect::<Result<Vec<_>, _>>()?;
        let mut addresses = Vec::new();
        for worker in &mut workers {
            addresses.push(expect!(worker, Reply::Listening(address) => address));
        }
        let delay_ns = delay.as_nanos() as u64;
        let batch_age_ns = batch_age.as_nanos() as u64;
        for worker in &mut workers {
            let (node, nodes) = (worker.node, addresses.clone());
            let policies = policies.to_vec();
            worker.tell(&Command::Join { node, nodes, delay_ns, policies, batch_age_ns })?;
        }
        for worker in &mut workers {
            expect!(worker, Reply::Joined => ());
        }
        Ok(Cluster { workers })
    }

    /// Gives the first worker a processor for itself, or has all run anywhere.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn place(&mut self, first_alone: bool) -> Result<(), WorkerError> {
        for worker in &mut self.workers {
            let place = match (first_alone, worker.node) {
                (false, _) => Place::Anywhere,
                (true, 1) => Place::First,
                (true, _) => Place::Others,
            };
            worker.tell(&Command::Place(place))?;
            expect!(worker, Reply::Placed => ());
        }
        Ok(())
    }

    /// Gets the first `active` nodes ready to create, each its share.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn prepare(&mut self, active: u32, prepare: &Prepare) -> Result<(), WorkerError> {
        let creators = &mut self.workers[..active as usize];
        for (worker, first) in creators.iter_mut().zip(0..) {
            worker
                .tell(&Command::Prepare(Prepare { share: (first, active), ..prepare.clone() }))?;
        }
        for worker in creators {
            expect!(worker, Reply::Prepared => ());
        }
        Ok(())
    }

    /// Has the first `active` nodes create, all at the same time.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn create(
        &mut self,
        active: u32,
        budget: Duration,
        min: u32,
    ) -> Result<Vec<Created>, WorkerError> {
        let creators = &mut self.workers[..active as usize];
        for worker in creators.iter_mut() {
            worker.tell(&Command::Go { budget_ns: budget.as_nanos() as u64, min })?;
        }
        let mut all = Vec::new();
        for worker in creators {
            all.push(expect!(worker, Reply::Created(created) => created));
        }
        Ok(all)
    }

    /// Has the first `active` nodes release their locks; says where their histories are.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn release(&mut self, active: u32, dir: &Path) -> Result<Vec<PathBuf>, WorkerError> {
        let creators = &mut self.workers[..active as usize];
        let file = |node| dir.join(format!("node-{node}.jsonl"));
        for worker in creators.iter_mut() {
            worker.tell(&Command::Release { history: file(worker.node) })?;
        }
        let mut files = Vec::new();
        for worker in creators {
            expect!(worker, Reply::Released { .. } => ());
            files.push(file(worker.node));
        }
        Ok(files)
    }

    /// Every node's counters in a policy's lockspace.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn stats(&mut self, policy: &str) -> Result<Vec<Stats>, WorkerError> {
        for worker in &mut self.workers {
            worker.tell(&Command::Stats { policy: policy.to_owned() })?;
        }
        let mut all = Vec::new();
        for worker in &mut self.workers {
            all.push(expect!(worker, Reply::Stats(stats) => *stats));
        }
        Ok(all)
    }

    /// Bare round trips from the first worker to the others in turn, nanoseconds, with work between
    /// them for `pause`.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn ping(
        &mut self,
        delay: Duration,
        pause: Duration,
        count: u32,
    ) -> Result<Vec<u64>, WorkerError> {
        let delay_ns = delay.as_nanos() as u64;
        let Some((first, others)) = self.workers.split_first_mut() else { return Ok(Vec::new()) };
        let mut peers: Vec<SocketAddr> = Vec::new();
        for worker in others {
            worker.tell(&Command::Echo { delay_ns })?;
            peers.push(expect!(worker, Reply::Echoing(address) => address));
        }
        let pause_ns = pause.as_nanos() as u64;
        first.tell(&Command::Ping { peers, delay_ns, pause_ns, count })?;
        Ok(expect!(first, Reply::Pinged(trips) => trips))
    }
}
