//! Several engines in one process, on loopback, driven by one thread.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use lockify_core::link::Hello;
use lockify_core::{
    ClientId, ConvertArgs, Input, LockArgs, LockFlags, LockId, Mode, Name, NodeId, Policy, Status,
    UnlockArgs, UnlockFlags,
};
use lockify_node::wire::{Greeting, Introduction, LOG, SPOKEN, Versions, encode_greeting};
use lockify_node::{
    HostEvent, NodeAddress, NodeConfig, NodeEngine, Security, SpaceConfig, SpaceId, StateDir,
};

/// Long enough for anything on a loaded machine.
pub const LONG: Duration = Duration::from_secs(60);
pub const CLIENT: ClientId = ClientId(7);

pub struct Node {
    pub engine: Option<NodeEngine>,
    pub id: NodeId,
    pub space: SpaceId,
    pub events: Vec<HostEvent>,
}

pub struct Cluster {
    pub nodes: Vec<Node>,
    pub list: Vec<NodeAddress>,
    pub lease: Duration,
    pub delay: Duration,
    pub policy: Policy,
    /// Of the nodes, in their order; loopback for those that are not there.
    pub security: Vec<Security>,
    /// The versions of the nodes, in their order; this release's for those that are not there.
    pub versions: Vec<Versions>,
    /// Where the nodes keep their states.
    pub states: tempfile::TempDir,
}

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub fn lock(resource: &str, mode: Mode) -> Input {
    let args = LockArgs { tag: 1, bast: true, ..LockArgs::new(name(resource), mode) };
    Input::Lock { client: CLIENT, args }
}

pub fn unlock(lock: LockId) -> Input {
    Input::Unlock(UnlockArgs {
        client: CLIENT,
        lock,
        tag: 2,
        flags: UnlockFlags::empty(),
        lvb: None,
    })
}

pub fn convert(lock: LockId, mode: Mode) -> Input {
    let (flags, lvb, timeout) = (LockFlags::empty(), None, None);
    Input::Convert(ConvertArgs { client: CLIENT, lock, tag: 3, mode, flags, lvb, timeout })
}

/// Free ports, and listeners that hold them.
pub fn listeners(n: u32) -> (Vec<NodeAddress>, Vec<TcpListener>) {
    let listeners: Vec<_> = (0..n).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let list = (1..=n)
        .zip(&listeners)
        .map(|(i, l)| NodeAddress { node: NodeId(i), address: l.local_addr().unwrap() })
        .collect();
    (list, listeners)
}

impl Cluster {
    pub fn new(n: u32) -> Cluster {
        Cluster::with(n, |_| {})
    }

    /// `n` nodes that have not started.
    pub fn empty(n: u32) -> (Cluster, Vec<TcpListener>) {
        let (list, listeners) = listeners(n);
        let nodes = (1..=n)
            .map(|i| Node { engine: None, id: NodeId(i), space: SpaceId(0), events: Vec::new() })
            .collect();
        let (lease, delay, policy) = (Duration::from_secs(2), Duration::ZERO, Policy::Directory);
        let (security, versions) = (Vec::new(), Vec::new());
        let states = tempfile::tempdir().unwrap();
        (Cluster { nodes, list, lease, delay, policy, security, versions, states }, listeners)
    }

    pub fn with(n: u32, change: impl Fn(&mut Cluster)) -> Cluster {
        let (mut c, listeners) = Cluster::empty(n);
        change(&mut c);
        for (i, listener) in listeners.into_iter().enumerate() {
            c.start(i, Some(listener));
        }
        c.wait("the lockspace runs everywhere", |c| {
            c.runs_with(&(0..n as usize).collect::<Vec<_>>())
        });
        c
    }

    pub fn config(&self, i: usize) -> NodeConfig {
        let mut config = NodeConfig::new("test", self.nodes[i].id, self.list.clone());
        (config.lease, config.delay) = (self.lease, self.delay);
        config.state_dir = StateDir::At(self.states.path().join(i.to_string()));
        config.security = self.security.get(i).cloned().unwrap_or_default();
        config.versions = self.versions.get(i).copied().unwrap_or(SPOKEN);
        config
    }

    pub fn start(&mut self, i: usize, listener: Option<TcpListener>) {
        let mut config = self.config(i);
        config.listener = listener;
        self.start_with(i, config);
    }

    pub fn start_with(&mut self, i: usize, config: NodeConfig) {
        let mut engine = NodeEngine::new(config).unwrap();
        self.nodes[i].space = engine.join("s", SpaceConfig::new(self.policy)).unwrap();
        self.nodes[i].engine = Some(engine);
    }

    /// Earlier notices are not looked at any more.
    pub fn forget_notices(&mut self) {
        self.nodes.iter_mut().for_each(|n| n.events.clear());
    }

    /// As SIGKILL would: the sockets close, and nothing is said.
    pub fn kill(&mut self, i: usize) {
        self.nodes[i].engine = None;
    }

    pub fn engine(&mut self, i: usize) -> &mut NodeEngine {
        self.nodes[i].engine.as_mut().unwrap()
    }

    pub fn address(&self, i: usize) -> SocketAddr {
        self.list[i].address
    }

    pub fn turn(&mut self) {
        for node in &mut self.nodes {
            if let Some(engine) = &mut node.engine {
                engine.run_once(Some(Duration::from_micros(200)), &mut node.events).unwrap();
            }
        }
    }

    #[track_caller]
    pub fn wait(&mut self, what: &str, done: impl Fn(&Cluster) -> bool) {
        let start = Instant::now();
        while !done(self) {
            if start.elapsed() > LONG {
                for n in &self.nodes {
                    eprintln!("node {}: {:#?}", n.id, n.engine.as_ref().map(NodeEngine::status));
                    eprintln!("{:?}", n.events);
                }
                panic!("waited in vain: {what}");
            }
            self.turn();
        }
    }

    /// Every one of these nodes has the lockspace running with just these members.
    pub fn runs_with(&self, who: &[usize]) -> bool {
        let ids: Vec<NodeId> = who.iter().map(|&i| self.nodes[i].id).collect();
        who.iter().all(|&i| {
            self.nodes[i].engine.as_ref().is_some_and(|e| {
                e.status().spaces.iter().any(|s| s.name == "s" && s.running && s.members == ids)
            })
        })
    }

    pub fn call(&mut self, i: usize, input: Input) -> Option<LockId> {
        let space = self.nodes[i].space;
        self.engine(i).handle(space, input).unwrap()
    }

    /// Locks, and waits for the grant; returns the lock and its fencing token.
    #[track_caller]
    pub fn lock(&mut self, i: usize, resource: &str, mode: Mode) -> (LockId, u64) {
        let id = self.call(i, lock(resource, mode)).unwrap();
        self.wait("a grant", |c| c.completion(i, id).is_some());
        let (status, token) = self.completion(i, id).unwrap();
        assert_eq!(status, Status::Granted);
        (id, token)
    }

    #[track_caller]
    pub fn unlock(&mut self, i: usize, id: LockId) {
        self.call(i, unlock(id));
        self.wait("an unlock", |c| c.completion(i, id).is_some_and(|(s, _)| s == Status::Unlocked));
    }

    /// The last completion of a lock.
    pub fn completion(&self, i: usize, id: LockId) -> Option<(Status, u64)> {
        self.nodes[i].events.iter().rev().find_map(|e| match e {
            HostEvent::Completed { completion: c, .. } if c.lock == id => Some((c.status, c.token)),
            _ => None,
        })
    }

    pub fn saw(&self, i: usize, what: impl Fn(&HostEvent) -> bool) -> bool {
        self.nodes[i].events.iter().any(what)
    }

    /// A notice that contains all of these texts.
    pub fn noticed(&self, i: usize, texts: &[&str]) -> bool {
        self.saw(
            i,
            |e| matches!(e, HostEvent::Notice(n) if texts.iter().all(|t| n.text.contains(t))),
        )
    }
}

/// The first message of node `node` to node `to`.
pub fn introduction(node: u32, to: u32) -> Introduction {
    Introduction {
        cluster: "test".into(),
        node: NodeId(node),
        to: NodeId(to),
        shard: 0,
        shards: 1,
        membership: LOG,
        newest: SPOKEN.newest,
        link: Hello { from: 1 << 62, to: None, received: 0 },
        oldest: SPOKEN.oldest,
    }
}

/// The same as bytes.
pub fn greeting(i: Introduction) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_greeting(&mut bytes, &Greeting::Introduction(i));
    bytes
}
