//! Lockify: daemons, as processes of their own, and nodes in this process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lockify_bench::locks::{SPACE, await_members, embedded_cluster};
use lockify_client::{Guard, Lockspace, Mode};

use crate::error::{During as _, Error};
use crate::process::{Place, Process, free_port};
use crate::service::{Client, PATIENCE, Service};

const DURABILITY: &str = "memory of the nodes; a node's death is recovered from";

/// Daemons of one cluster.
pub struct Daemons {
    sockets: Vec<PathBuf>,
    delay: Duration,
    /// For as long as they are wanted.
    _processes: Vec<Process>,
}

impl Daemons {
    /// Starts so many in `folder`: `lockify` is the program. Each message between them is delayed
    /// by `delay`.
    ///
    /// # Errors
    /// They do not start, or do not find each other.
    pub fn start(
        lockify: &Path,
        folder: &Path,
        nodes: usize,
        delay: Duration,
    ) -> Result<Daemons, Error> {
        let ports = (0..nodes).map(|_| free_port()).collect::<Result<Vec<u16>, Error>>()?;
        let list: Vec<String> = (1..)
            .zip(&ports)
            .map(|(id, port)| format!("{{ id = {id}, address = \"127.0.0.1:{port}\" }}"))
            .collect();
        let mut processes = Vec::new();
        let mut sockets = Vec::new();
        for id in 1..=nodes {
            let name = format!("lockify-{nodes}-{id}-{}us", delay.as_micros());
            let socket = folder.join(format!("{name}.sock"));
            let config = folder.join(format!("{name}.toml"));
            let text = format!(
                "node = {id}\nsocket = {socket:?}\nstate_dir = \"{name}.state\"\ndelay = \"{}us\"\nnodes = [{}]\n\
                 [[lockspace]]\nname = \"{SPACE}\"\n",
                delay.as_micros(),
                list.join(", ")
            );
            std::fs::write(&config, text).during("cannot write a configuration")?;
            let mut command = Command::new(lockify);
            command.arg("serve").arg("--config").arg(&config);
            let log = folder.join(format!("{name}.log"));
            processes.push(Process::start(command, &log, Place::Other)?);
            sockets.push(socket);
        }
        for (process, socket) in processes.iter_mut().zip(&sockets) {
            process.await_ready(|| lockify_client::Client::connect(socket).is_ok())?;
        }
        let clients = sockets.iter().map(lockify_client::Client::connect);
        let clients = clients.collect::<Result<Vec<_>, _>>().during("lockify")?;
        await_members(&clients).during("lockify")?;
        Ok(Daemons { sockets, delay, _processes: processes })
    }
}

impl Service for Daemons {
    fn name(&self) -> &str {
        if self.delay.is_zero() { "lockify" } else { "lockify, delayed" }
    }

    fn socket(&self) -> &'static str {
        if self.sockets.len() == 1 { "unix" } else { "unix + tcp" }
    }

    fn durability(&self) -> &'static str {
        DURABILITY
    }

    fn delay(&self) -> Duration {
        self.delay
    }

    fn client(&self, number: usize) -> Result<Box<dyn Client>, Error> {
        let socket = &self.sockets[number % self.sockets.len()];
        let client = lockify_client::Client::connect(socket).during("lockify")?;
        User::of(&client)
    }
}

/// Nodes in this process.
pub struct Embedded {
    nodes: Vec<lockify_client::Client>,
    delay: Duration,
}

impl Embedded {
    /// So many nodes of one cluster; each message between them is delayed by `delay`.
    ///
    /// # Errors
    /// They do not start, or do not find each other.
    pub fn start(nodes: u32, delay: Duration) -> Result<Embedded, Error> {
        let nodes = embedded_cluster(nodes, delay).during("lockify")?;
        Ok(Embedded { nodes, delay })
    }
}

impl Service for Embedded {
    fn name(&self) -> &str {
        if self.delay.is_zero() { "lockify embedded" } else { "lockify embedded, delayed" }
    }

    fn socket(&self) -> &'static str {
        if self.nodes.len() == 1 { "none" } else { "tcp" }
    }

    fn durability(&self) -> &'static str {
        DURABILITY
    }

    fn delay(&self) -> Duration {
        self.delay
    }

    fn client(&self, number: usize) -> Result<Box<dyn Client>, Error> {
        User::of(&self.nodes[number % self.nodes.len()])
    }
}

/// A client of either.
struct User {
    space: Lockspace,
    held: Option<Guard>,
    created: Vec<Guard>,
    mastered: Vec<Guard>,
}

impl User {
    fn of(client: &lockify_client::Client) -> Result<Box<dyn Client>, Error> {
        let space = client.lockspace(SPACE).during("lockify")?;
        Ok(Box::new(User { space, held: None, created: Vec::new(), mastered: Vec::new() }))
    }
}

impl Client for User {
    fn lock(&mut self, name: &str) -> Result<(), Error> {
        self.lock_as(name, false)
    }

    fn lock_as(&mut self, name: &str, shared: bool) -> Result<(), Error> {
        let mode = if shared { Mode::PR } else { Mode::EX };
        let guard = self.space.request(name, mode).timeout(PATIENCE).lock();
        self.held = Some(guard.during("lockify: lock")?);
        Ok(())
    }

    fn unlock(&mut self) -> Result<(), Error> {
        match self.held.take() {
            Some(guard) => guard.unlock().during("lockify: unlock"),
            None => Ok(()),
        }
    }

    fn create(&mut self, name: &str) -> Result<(), Error> {
        let guard = self.space.request(name, Mode::EX).notify().timeout(PATIENCE).lock();
        self.created.push(guard.during("lockify: create")?);
        Ok(())
    }

    /// A release waits for all claims made before it.
    fn settle(&mut self) -> Result<(), Error> {
        match self.created.pop() {
            Some(last) => last.unlock().during("lockify: settle"),
            None => Ok(()),
        }
    }

    fn decide_about(&mut self, name: &str) -> Result<(), Error> {
        self.mastered.push(self.space.lock(name, Mode::NL).during("lockify: lock")?);
        Ok(())
    }
}
