//! ZooKeeper: the lock recipes of its manual, with ephemeral sequential nodes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::error::{During as _, Error};
use crate::jute::{Kind, Session};
use crate::process::{Place, Process, free_port};
use crate::service::{Client, PATIENCE, RECOVERY, Service};

/// An ensemble.
pub struct ZooKeeper {
    addresses: Vec<String>,
    _processes: Vec<Process>,
}

impl ZooKeeper {
    /// Starts so many servers in `folder`, of Debian's classes in `jar`.
    ///
    /// # Errors
    /// They do not start, or do not elect a leader.
    pub fn start(java: &Path, jar: &Path, folder: &Path, nodes: usize) -> Result<ZooKeeper, Error> {
        let ports = || (0..nodes).map(|_| free_port()).collect::<Result<Vec<u16>, Error>>();
        let (clients, peers, elections) = (ports()?, ports()?, ports()?);
        let mut servers = String::new();
        if nodes > 1 {
            for (id, (peer, election)) in (1..).zip(peers.iter().zip(&elections)) {
                servers += &format!("server.{id}=127.0.0.1:{peer}:{election}\n");
            }
        }
        let mut processes = Vec::new();
        for (id, port) in (1..).zip(&clients) {
            let name = format!("zookeeper-{nodes}-{id}");
            let data = folder.join(format!("{name}.data"));
            let what = "cannot write a configuration";
            std::fs::create_dir(&data).during(what)?;
            std::fs::write(data.join("myid"), format!("{id}\n")).during(what)?;
            let config = folder.join(format!("{name}.cfg"));
            // The values of the sample configuration; `forceSync` is left as it is shipped: yes.
            let text = format!(
                "tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={}\nclientPort={port}\n\
                 clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n{servers}",
                data.display()
            );
            std::fs::write(&config, text).during(what)?;
            let mut command = Command::new(java);
            command.arg("-Xmx512m").arg("-Dzookeeper.jmx.log4j.disable=true");
            command.arg("-cp").arg(jar);
            command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(&config);
            let log = folder.join(format!("{name}.log"));
            processes.push(Process::start(command, &log, Place::Anywhere)?);
        }
        let addresses: Vec<String> =
            clients.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        for (process, address) in processes.iter_mut().zip(&addresses) {
            process.await_ready(|| Session::open(address, Duration::from_secs(2)).is_ok())?;
        }
        Ok(ZooKeeper { addresses, _processes: processes })
    }
}

impl Service for ZooKeeper {
    fn name(&self) -> &str {
        "zookeeper"
    }

    fn socket(&self) -> &'static str {
        "tcp"
    }

    fn durability(&self) -> &'static str {
        match self.addresses.len() {
            1 => "synced to disk before the answer",
            _ => "synced to disk by a majority before the answer",
        }
    }

    fn recovery(&self) -> Duration {
        RECOVERY
    }

    fn client(&self, number: usize) -> Result<Box<dyn Client>, Error> {
        let address = &self.addresses[number % self.addresses.len()];
        Ok(Box::new(User { session: Session::open(address, PATIENCE)?, held: None }))
    }
}

struct User {
    session: Session,
    held: Option<String>,
}

const READ: &str = "read-";
const WRITE: &str = "lock-";

impl User {
    /// Makes a node of one's own in the lock's folder, which is made first if need be, as Curator
    /// does; then waits for those before it that exclude it, one after the other.
    fn enter(&mut self, name: &str, kind: &str) -> Result<(), Error> {
        let folder = format!("/{name}");
        let path = format!("{folder}/{kind}");
        let mut node = self.session.create(&path, Kind::EphemeralSequential)?;
        if node.is_none() {
            self.session.create(&folder, Kind::Container)?;
            node = self.session.create(&path, Kind::EphemeralSequential)?;
        }
        let node = node.ok_or_else(|| Error::new("zookeeper: a lock's folder does not stay"))?;
        let mine = number(&node).ok_or_else(|| Error::new("zookeeper: a node without number"))?;
        self.held = Some(node);
        while let Some(before) = predecessor(&self.session.children(&folder)?, mine, kind) {
            self.session.await_deletion(&format!("{folder}/{before}"))?;
        }
        Ok(())
    }
}

/// The number at a node's end.
fn number(node: &str) -> Option<i64> {
    node.rsplit('-').next()?.parse().ok()
}

/// The last node before number `mine` that excludes one of `kind`: readers wait for writers only.
fn predecessor(nodes: &[String], mine: i64, kind: &str) -> Option<String> {
    let excluding = nodes.iter().filter(|node| kind == WRITE || node.starts_with(WRITE));
    let numbered = excluding.filter_map(|node| {
        let number = number(node)?;
        (number < mine).then_some((number, node))
    });
    numbered.max().map(|(_, node)| node.clone())
}

impl Client for User {
    fn lock(&mut self, name: &str) -> Result<(), Error> {
        self.enter(name, WRITE)
    }

    fn lock_as(&mut self, name: &str, shared: bool) -> Result<(), Error> {
        self.enter(name, if shared { READ } else { WRITE })
    }

    fn unlock(&mut self) -> Result<(), Error> {
        match self.held.take() {
            Some(node) => self.session.delete(&node),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{READ, WRITE, predecessor};

    #[test]
    fn readers_wait_for_writers_and_writers_for_all() {
        let nodes = ["lock-0000000001", "read-0000000002", "read-0000000003", "lock-0000000004"];
        let nodes = nodes.map(str::to_owned);
        let before = |mine, kind| predecessor(&nodes, mine, kind);
        assert_eq!(before(3, READ).as_deref(), Some("lock-0000000001"));
        assert_eq!(before(4, WRITE).as_deref(), Some("read-0000000003"));
        assert_eq!(before(2, WRITE).as_deref(), Some("lock-0000000001"));
        assert_eq!(before(1, WRITE), None);
    }
}
