//! The thread that talks to corosync for an engine.
//!
//! Corosync's libraries wait without limit for a daemon that does not answer, so the engine never
//! calls them: it reads events from its [`Mailbox`], and leaves messages in a queue. A connection
//! that breaks is made anew for as long as the engine lives.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockify_core::NodeId;
use lockify_corosync::{Error, Event as Said, Nodes, Session};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

mod addresses;

use crate::config::NodeAddress;
use crate::error::NodeError;
use crate::membership::ClusterEvent;
use crate::news::News;
use crate::notice::{Level, Notice};
use lockify_trust::Mailbox;

/// Between two attempts to connect, or to send what corosync had no room for.
const PAUSE: Duration = Duration::from_millis(100);
/// Messages that wait for corosync; more are not worth sending when it is back.
const MOST_WAITING: usize = 1024;

/// The cluster as corosync on this node has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterList {
    /// This node.
    pub node: NodeId,
    /// The cluster's name, `totem.cluster_name` of corosync.conf.
    pub cluster: Option<String>,
    /// Every node, by id: its address with the port that was asked for, its name and votes.
    pub nodes: Vec<ClusterNode>,
    /// The time-out of corosync's token, if it tells.
    pub token: Option<Duration>,
}

/// A node of corosync's list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterNode {
    /// Where it listens on the first of its links.
    pub address: NodeAddress,
    /// Where else it listens: on its other links.
    pub others: Vec<SocketAddr>,
    /// Its name; its first address in corosync.conf if it has none.
    pub name: String,
    /// Its votes.
    pub votes: u32,
}

impl ClusterList {
    /// Asks corosync on this node, which may take `patience`.
    ///
    /// # Errors
    /// Corosync is not installed, not running, does not answer in time or has no list of nodes; a
    /// name in it has no address, or only one that other machines cannot reach.
    pub fn read(port: u16, patience: Duration) -> Result<ClusterList, NodeError> {
        let (send, receive) = std::sync::mpsc::channel();
        let end = Instant::now() + patience;
        let thread = std::thread::Builder::new().name("lockify-nodelist".into());
        // It may hang in corosync's library: then it is left behind.
        let spawned = thread.spawn(move || {
            let list = loop {
                let list = Session::open()
                    .and_then(|s| s.nodes())
                    .map_err(|e| (e.is_temporary(), e.to_string()));
                match list {
                    Err((true, _)) if Instant::now() < end => std::thread::sleep(PAUSE),
                    other => break other.map_err(|(_, e)| e).and_then(|n| resolve(n, port)),
                }
            };
            // Nobody waits any more if it took too long.
            let _ = send.send(list);
        });
        let what = "cannot start a thread";
        spawned.map_err(|error| NodeError::System { what, error })?;
        match receive.recv_timeout(patience) {
            Ok(list) => list.map_err(NodeError::Corosync),
            Err(_) => Err(NodeError::Corosync(format!(
                "corosync has not answered for {} s: is it stopped, or forming a ring all the time?",
                patience.as_secs()
            ))),
        }
    }

    /// The addresses of all nodes.
    pub fn addresses(&self) -> Vec<NodeAddress> {
        self.nodes.iter().map(|n| n.address).collect()
    }
}

fn resolve(nodes: Nodes, port: u16) -> Result<ClusterList, String> {
    let mut all = Vec::new();
    for node in nodes.nodes {
        let (first, others) = addresses::of(&node, port, addresses::look_up)?;
        all.push(ClusterNode {
            address: NodeAddress { node: NodeId(node.id), address: first },
            others,
            name: node.name.unwrap_or_else(|| node.links[0].address.clone()),
            votes: node.votes,
        });
    }
    let token = nodes.token.map(|ms| Duration::from_millis(ms.into()));
    Ok(ClusterList { node: NodeId(nodes.me), cluster: nodes.cluster, nodes: all, token })
}

/// An engine's end: leaves the group when it is dropped.
#[derive(Debug)]
pub(crate) struct Cluster {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    outgoing: Mutex<VecDeque<Vec<u8>>>,
    bell: OwnedFd,
    ended: AtomicBool,
}

impl Shared {
    fn ring(&self) {
        // Full only if it has rung already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn queue(&self) -> std::sync::MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cluster {
    /// Begins to talk to corosync; everything that it says comes to the mailbox.
    pub(crate) fn start(group: String, mailbox: Mailbox<News>) -> Result<Cluster, NodeError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| {
            NodeError::System { what: "cannot make an event counter", error: e.into() }
        })?;
        let (outgoing, ended) = (Mutex::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { outgoing, bell, ended });
        let mut talker =
            Talker { group, mailbox, shared: shared.clone(), complaint: String::new() };
        let thread = std::thread::Builder::new().name("lockify-corosync".into());
        let what = "cannot start a thread";
        thread.spawn(move || talker.run()).map_err(|error| NodeError::System { what, error })?;
        Ok(Cluster { shared })
    }

    /// Sends to the group, in order.
    pub(crate) fn cast(&self, bytes: Vec<u8>) {
        let mut queue = self.shared.queue();
        if queue.len() < MOST_WAITING {
            queue.push_back(bytes);
        }
        drop(queue);
        self.shared.ring();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The thread is not waited for: it may hang in corosync's library.
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.ring();
    }
}

/// The thread.
struct Talker {
    group: String,
    mailbox: Mailbox<News>,
    shared: Arc<Shared>,
    /// The last complaint, so that it is not repeated.
    complaint: String,
}

impl Talker {
    fn run(&mut self) {
        while !self.ended() {
            match self.connect() {
                Ok(session) => {
                    self.complaint.clear();
                    let error = self.talk(session);
                    self.mailbox.post(News::Cluster(ClusterEvent::Parted));
                    if let Err(e) = error {
                        self.complain(&e);
                    }
                }
                Err(e) => self.complain(&e),
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn ended(&self) -> bool {
        self.shared.ended.load(Ordering::SeqCst)
    }

    fn complain(&mut self, e: &Error) {
        let text = format!("{e}; trying again");
        if !e.is_temporary() && !self.ended() && self.complaint != text {
            self.complaint.clone_from(&text);
            self.mailbox.post(News::Notice(Notice { level: Level::Warning, text }));
        }
    }

    fn connect(&self) -> Result<Session, Error> {
        let mut session = Session::open()?;
        let nodes = session.nodes()?;
        loop {
            match session.join(&self.group) {
                Err(e) if e.is_temporary() && !self.ended() => std::thread::sleep(PAUSE),
                other => break other?,
            }
        }
        // Messages for an earlier ring mean nothing to this one.
        self.shared.queue().clear();
        self.mailbox.post(News::Cluster(votes(&nodes)));
        self.mailbox.post(News::Cluster(ClusterEvent::Minorities(nodes.minorities)));
        self.mailbox.post(News::Cluster(ClusterEvent::Joined));
        let text = format!("connected to corosync as node {}", nodes.me);
        self.mailbox.post(News::Notice(Notice { level: Level::Info, text }));
        Ok(session)
    }

    /// Carries events and messages until the connection breaks or the engine has ended.
    fn talk(&self, mut session: Session) -> Result<(), Error> {
        let mut events = Vec::new();
        while !self.ended() {
            let result = session.dispatch(&mut events);
            for event in events.drain(..) {
                match event {
                    Said::Nodes => {
                        if let Ok(nodes) = session.nodes() {
                            self.mailbox.post(News::Cluster(votes(&nodes)));
                            let minorities = ClusterEvent::Minorities(nodes.minorities);
                            self.mailbox.post(News::Cluster(minorities));
                        }
                    }
                    event => self.mailbox.post(News::Cluster(ClusterEvent::Said(event))),
                }
            }
            result?;
            let stuck = !self.say(&session)?;
            self.wait(&session, stuck)?;
        }
        // Says to the others that this process goes in order.
        let _ = session.leave(&self.group);
        Ok(())
    }

    /// Sends what waits; false if corosync takes no more now.
    fn say(&self, session: &Session) -> Result<bool, Error> {
        loop {
            let Some(bytes) = self.shared.queue().pop_front() else { return Ok(true) };
            match session.cast(&bytes) {
                Ok(()) => {}
                Err(e) if e.is_temporary() => {
                    self.shared.queue().push_front(bytes);
                    return Ok(false);
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn wait(&self, session: &Session, stuck: bool) -> Result<(), Error> {
        let mut fds = session.fds()?;
        fds.push(self.shared.bell.as_fd());
        let mut polled: Vec<PollFd<'_>> =
            fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let pause = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        // Interrupted or not: everything is looked at again.
        let _ = poll(&mut polled, stuck.then_some(&pause));
        let mut rung = [0; 8];
        let _ = rustix::io::read(&self.shared.bell, &mut rung);
        Ok(())
    }
}

fn votes(nodes: &Nodes) -> ClusterEvent {
    let votes: BTreeMap<NodeId, u32> =
        nodes.nodes.iter().map(|n| (NodeId(n.id), n.votes)).collect();
    ClusterEvent::Votes(votes)
}
