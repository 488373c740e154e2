//! The parent's end of its workers: one process per node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockify_core::Stats;
use lockify_report::crew::{Program, Worker, WorkerError};

use crate::wire::{Command, Created, Place, Portion, Prepare, Reply};

/// How long a worker may take for work outside a run: more than the nodes have to find each other.
const PATIENCE: Duration = Duration::from_secs(600);

/// The workers of one cluster, by node from 1.
#[derive(Debug)]
pub struct Cluster {
    workers: Vec<Worker>,
}

macro_rules! expect {
    ($worker:expr, $pattern:pat => $value:expr) => {
        expect!($worker, PATIENCE, $pattern => $value)
    };
    ($worker:expr, $patience:expr, $pattern:pat => $value:expr) => {
        match $worker.hear::<Reply>($patience)? {
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
        how: &Program,
    ) -> Result<Cluster, WorkerError> {
        let name = |node| format!("the worker of node {node}");
        let workers = (1..=nodes).map(|node| Worker::start(how, name(node), &()));
        let mut workers = workers.collect::<Result<Vec<_>, _>>()?;
        let mut addresses = Vec::new();
        for worker in &mut workers {
            addresses.push(expect!(worker, Reply::Listening(address) => address));
        }
        let delay_ns = delay.as_nanos() as u64;
        let batch_age_ns = batch_age.as_nanos() as u64;
        for (worker, node) in workers.iter_mut().zip(1..) {
            let (nodes, policies) = (addresses.clone(), policies.to_vec());
            worker.command(&Command::Join { node, nodes, delay_ns, policies, batch_age_ns })?;
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
        for (worker, node) in self.workers.iter_mut().zip(1..) {
            let place = match (first_alone, node) {
                (false, _) => Place::Anywhere,
                (true, 1) => Place::First,
                (true, _) => Place::Others,
            };
            worker.command(&Command::Place(place))?;
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
            let prepare = Prepare { share: (first, active), ..prepare.clone() };
            worker.command(&Command::Prepare(prepare))?;
        }
        for worker in creators {
            expect!(worker, Reply::Prepared => ());
        }
        Ok(())
    }

    /// Has the first `active` nodes create a portion, all at the same time.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn create(&mut self, active: u32, portion: Portion) -> Result<Vec<Created>, WorkerError> {
        let patience = PATIENCE + Duration::from_nanos(portion.budget_ns);
        let creators = &mut self.workers[..active as usize];
        for worker in creators.iter_mut() {
            worker.command(&Command::Go(portion))?;
        }
        let mut all = Vec::new();
        for worker in creators {
            all.push(expect!(worker, patience, Reply::Created(created) => created));
        }
        Ok(all)
    }

    /// Has the first `active` nodes release their locks; says where their histories are.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn release(&mut self, active: u32, dir: &Path) -> Result<Vec<PathBuf>, WorkerError> {
        let creators = &mut self.workers[..active as usize];
        let file = |node: u32| dir.join(format!("node-{node}.jsonl"));
        for (worker, node) in creators.iter_mut().zip(1..) {
            worker.command(&Command::Release { history: file(node) })?;
        }
        let mut files = Vec::new();
        for (worker, node) in creators.iter_mut().zip(1..) {
            expect!(worker, Reply::Released { .. } => ());
            files.push(file(node));
        }
        Ok(files)
    }

    /// Every node's counters in a policy's lockspace.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn stats(&mut self, policy: &str) -> Result<Vec<Stats>, WorkerError> {
        for worker in &mut self.workers {
            worker.command(&Command::Stats { policy: policy.to_owned() })?;
        }
        let mut all = Vec::new();
        for worker in &mut self.workers {
            all.push(expect!(worker, Reply::Stats(stats) => *stats));
        }
        Ok(all)
    }

    /// Bare round trips from the first worker to the others in turn, nanoseconds, between `count`
    /// creations in a folder.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn ping(
        &mut self,
        delay: Duration,
        entries: &Path,
        count: u32,
        folder: &Path,
    ) -> Result<Vec<u64>, WorkerError> {
        let delay_ns = delay.as_nanos() as u64;
        let Some((first, others)) = self.workers.split_first_mut() else { return Ok(Vec::new()) };
        let mut peers: Vec<SocketAddr> = Vec::new();
        for worker in others {
            worker.command(&Command::Echo { delay_ns })?;
            peers.push(expect!(worker, Reply::Echoing(address) => address));
        }
        let (entries, folder) = (entries.to_owned(), folder.to_owned());
        first.command(&Command::Ping { peers, delay_ns, entries, count, folder })?;
        Ok(expect!(first, Reply::Pinged(trips) => trips))
    }
}
