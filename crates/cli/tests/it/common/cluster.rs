//! Three nodes in processes of their own.

use std::process::Stdio;

use lockify_client::{Client, Lockspace};
use rustix::process::Signal;

use super::ports::free_address;
use super::{Process, User, output, wait_for};

/// Three daemons on free ports of the loopback interface.
pub struct Cluster {
    pub user: User,
    pub nodes: Vec<(std::path::PathBuf, Option<Process>)>,
    ports: Vec<u16>,
    extra: String,
}

impl Cluster {
    pub fn start(extra: &str) -> Cluster {
        let ports = (0..3).map(|_| free_address().port()).collect();
        let mut cluster =
            Cluster { user: User::new(), nodes: Vec::new(), ports, extra: extra.into() };
        for node in 1..=3 {
            let socket = cluster.user.dir().join(format!("node{node}.sock"));
            cluster.nodes.push((socket, None));
            cluster.boot(node);
        }
        wait_for(|| (1..=3).all(|n| cluster.members(n) == 3));
        cluster
    }

    pub fn boot(&mut self, node: usize) {
        let Cluster { user, ports, extra, .. } = self;
        let socket = self.nodes[node - 1].0.clone();
        let config = user.dir().join(format!("node{node}.toml"));
        let mut text = format!("node = {node}\nsocket = {socket:?}\n{extra}\n");
        for (i, port) in ports.iter().enumerate() {
            text += &format!("[[nodes]]\nid = {}\naddress = \"127.0.0.1:{port}\"\n", i + 1);
        }
        std::fs::write(&config, text).unwrap();
        let args = ["serve", "--config", config.to_str().unwrap()];
        let daemon = user.command(&args).stderr(Stdio::null()).spawn().unwrap();
        self.nodes[node - 1].1 = Some(Process(daemon));
        wait_for(|| Client::connect(&socket).is_ok());
    }

    pub fn client(&self, node: usize) -> Client {
        Client::connect(&self.nodes[node - 1].0).unwrap()
    }

    pub fn space(&self, node: usize) -> Lockspace {
        self.client(node).lockspace("default").unwrap()
    }

    /// Members of the lockspace as a node sees them, if it runs there.
    pub fn members(&self, node: usize) -> usize {
        let Ok(status) = self.client(node).status() else { return 0 };
        let mine = status.nodes.iter().find(|n| n.node.0 as usize == node);
        let space = mine.and_then(|n| n.spaces.first()).filter(|s| s.running);
        space.map_or(0, |s| s.members.len())
    }

    pub fn lockify(&self, node: usize, args: &[&str]) -> std::process::Output {
        let mut command = self.user.command(args);
        output(command.env("LOCKIFY_SOCKET", &self.nodes[node - 1].0))
    }

    pub fn signal(&self, node: usize, signal: Signal) {
        self.nodes[node - 1].1.as_ref().unwrap().signal(signal);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in 1..=self.nodes.len() {
            if self.nodes[node - 1].1.is_some() {
                self.signal(node, Signal::CONT);
            }
        }
    }
}
