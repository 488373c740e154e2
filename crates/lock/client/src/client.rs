//! Connections to a lock manager.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use lockify_core::NodeId;
use lockify_node::NodeStatus;
use lockify_node::membership::{ClusterState, Request};
use lockify_session::protocol::{
    Answer, CHANGES_CLUSTERS, KNOWS_RELOAD, Query, Refusal, Space, VERSION,
};

use crate::callbacks::Callbacks;
use crate::channel::Channel;
use crate::domain::{Choice, Domain};
use crate::error::{Error, unexpected};
use crate::socket;
use crate::space::Lockspace;

/// A session with a lock manager: a daemon, or a node inside this process.
///
/// Cheap to clone; the session lasts until the last clone, [`Lockspace`] and
/// [`Guard`](crate::Guard) of it is dropped. Every call may be made from any thread.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

/// The state that all handles of a session share.
pub(crate) struct Inner {
    /// One per shard; a resource's name says which.
    pub(crate) shards: Vec<Arc<Channel>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    callbacks: Arc<Callbacks>,
    /// Of the session protocol.
    pub(crate) version: u16,
}

impl Client {
    /// Connects to the daemon of this process. LOCKIFY_SOCKET names it, or it is the cluster's on a
    /// machine that belongs to one, or else this user's own. The last one is started if it does not
    /// run ([`domain`](crate::domain)).
    ///
    /// # Errors
    /// Those of [`Domain::find`] and [`Domain::connect_or_start`].
    pub fn open() -> Result<Client, Error> {
        Domain::find(&Choice::Found)?.connect_or_start()
    }

    /// Connects to the daemon that listens on the Unix socket `socket`: a path, or `@NAME` in the
    /// abstract namespace.
    ///
    /// # Errors
    /// [`Error::NoDaemon`], [`Error::NotServed`], [`Error::NoAnswer`], [`Error::NotOurs`],
    /// [`Error::NotADaemon`], [`Error::Version`].
    pub fn connect(socket: impl AsRef<Path>) -> Result<Client, Error> {
        let socket = socket.as_ref();
        let mut inner = Inner::new();
        let socket::Connected { sender, receiver, shards, version } = socket::connect(socket, 0)?;
        inner.version = version;
        inner.add(sender, Box::new(receiver))?;
        for shard in 1..shards {
            let socket::Connected { sender, receiver, .. } = socket::connect(socket, shard)?;
            inner.add(sender, Box::new(receiver))?;
        }
        Ok(Client { inner: Arc::new(inner) })
    }

    /// Uses a lockspace that the node is a member of: configured, or made at run time.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is not; [`Error::Disconnected`].
    pub fn lockspace(&self, name: &str) -> Result<Lockspace, Error> {
        let mut opened = Opened::default();
        for shard in &self.inner.shards {
            opened.ask(shard, Query::Open(name.into()))?;
        }
        Ok(Lockspace::new(self.inner.clone(), name, opened.spaces, opened.lvb_len))
    }

    /// Makes a lockspace on this node, or uses the one of that name that exists unless `exclusive`;
    /// waits until it runs. Nodes that make (or are configured with) the same name share it. It has
    /// policy `claim` and value blocks of 32 bytes, and stays until it has been released as often
    /// as it was made ([`Client::release_lockspace`]) or the daemon ends. On this node it belongs to
    /// this process's user and group, with mode 0600.
    ///
    /// # Errors
    /// [`Error::Refused`] unless this program runs as root or the daemon's user, or if it exists
    /// and `exclusive` was asked for; [`Error::Disconnected`].
    pub fn create_lockspace(&self, name: &str, exclusive: bool) -> Result<Lockspace, Error> {
        self.create(name, exclusive, |name, exclusive| Query::Create { name, exclusive })
    }

    /// As [`Client::create_lockspace`], with the given permission bits for users of this node: 4 to
    /// see locks, 6 to take them. An existing lockspace keeps its own.
    ///
    /// # Errors
    /// As [`Client::create_lockspace`]; [`Error::Refused`] for bits that are not in 0666;
    /// [`Error::TooOld`].
    pub fn create_lockspace_with_mode(
        &self,
        name: &str,
        exclusive: bool,
        mode: u32,
    ) -> Result<Lockspace, Error> {
        self.knows(KNOWS_RELOAD)?;
        let query = |name, exclusive| Query::CreateWithMode { name, exclusive, mode };
        self.create(name, exclusive, query)
    }

    fn create(
        &self,
        name: &str,
        exclusive: bool,
        query: impl Fn(String, bool) -> Query,
    ) -> Result<Lockspace, Error> {
        let mut opened = Opened::default();
        for (made, shard) in self.inner.shards.iter().enumerate() {
            // Shard 0 has decided about `exclusive`.
            let query = query(name.into(), exclusive && made == 0);
            if let Err(e) = opened.ask(shard, query) {
                for shard in &self.inner.shards[..made] {
                    // Every further problem is that it could not be made.
                    let _ = shard.ask_done(Query::Release { name: name.into(), force: false });
                }
                return Err(e);
            }
        }
        Ok(Lockspace::new(self.inner.clone(), name, opened.spaces, opened.lvb_len))
    }

    /// Undoes [`Client::create_lockspace`]. The last release leaves the lockspace, and waits for
    /// it; with `force`, locks that clients of this node have in it are lost.
    ///
    /// # Errors
    /// [`Error::Refused`] if this node's clients have locks in it and `force` is not given, if it
    /// was not made at run time, or for lack of permission: then it is unchanged. If a client locks
    /// in it at this very moment, a part of its names may have been left. Another release does the
    /// rest. [`Error::Disconnected`].
    pub fn release_lockspace(&self, name: &str, force: bool) -> Result<(), Error> {
        // No shard knows of the others' locks.
        if !force && self.inner.shards.len() > 1 && self.knows(KNOWS_RELOAD).is_ok() {
            self.ask_those_with(&Query::MayRelease(name.into()))?;
        }
        self.ask_those_with(&Query::Release { name: name.into(), force })
    }

    /// Asks all shards about a lockspace. One that has left it already does not count, unless all
    /// have.
    fn ask_those_with(&self, query: &Query) -> Result<(), Error> {
        let (mut found, mut result, mut missing) = (false, Ok(()), Ok(()));
        for shard in &self.inner.shards {
            match shard.ask_done(query.clone()) {
                Err(e @ Error::Refused(Refusal::NoSuchSpace { .. })) => missing = Err(e),
                answer => {
                    found |= answer.is_ok();
                    result = result.and(answer);
                }
            }
        }
        if found { result } else { result.and(missing) }
    }

    /// Fails if the daemon does not know the additions of a version.
    fn knows(&self, needed: u16) -> Result<(), Error> {
        let spoken = self.inner.version;
        if spoken < needed { Err(Error::TooOld { spoken, needed }) } else { Ok(()) }
    }

    /// Has the daemon read its configuration file and keys again; returns the changes.
    ///
    /// # Errors
    /// [`Error::Refused`] if nothing was changed, with the reason: the file, or a key that cannot
    /// change while the daemon runs, or lack of permission. [`Error::TooOld`],
    /// [`Error::Disconnected`].
    pub fn reload(&self) -> Result<String, Error> {
        // One for all shards: the daemon has one configuration.
        self.knows(KNOWS_RELOAD)?;
        let shard = self.inner.shards.first();
        match shard.map_or_else(|| Ok(Vec::new()), |shard| shard.ask(Query::Reload))?.pop() {
            Some(Answer::Reloaded(what)) => Ok(what),
            Some(Answer::Refused(why)) => Err(why.into()),
            other => Err(unexpected(&other.unwrap_or(Answer::Done))),
        }
    }

    /// The agreed state of the cluster, as this node knows it.
    ///
    /// # Errors
    /// [`Error::Refused`] if this node does not know it, or corosync does; [`Error::TooOld`],
    /// [`Error::Disconnected`].
    pub fn cluster(&self) -> Result<ClusterState, Error> {
        self.knows(CHANGES_CLUSTERS)?;
        let shard = self.inner.shards.first();
        match shard.map_or_else(|| Ok(Vec::new()), |shard| shard.ask(Query::Cluster))?.pop() {
            Some(Answer::Cluster(state)) => Ok(*state),
            Some(Answer::Refused(why)) => Err(why.into()),
            other => Err(unexpected(&other.unwrap_or(Answer::Done))),
        }
    }

    /// Changes the agreed state of the cluster, in every shard; returns the changes. Repeat it if
    /// it fails: a change that is already there stays.
    ///
    /// # Errors
    /// [`Error::Refused`] if nothing was changed, with the reason, or for lack of permission.
    /// [`Error::TooOld`], [`Error::Disconnected`].
    pub fn change_cluster(&self, request: &Request) -> Result<String, Error> {
        self.knows(CHANGES_CLUSTERS)?;
        let (mut done, mut refused) = (None, None);
        for shard in &self.inner.shards {
            match shard.ask(Query::Change(request.clone()))?.pop() {
                Some(Answer::Changed(what)) => done = Some(what),
                // A shard that lost nothing says so; another one may have.
                Some(Answer::Refused(why)) if *request == Request::Recover => refused = Some(why),
                Some(Answer::Refused(why)) => return Err(why.into()),
                other => return Err(unexpected(&other.unwrap_or(Answer::Done))),
            }
        }
        match (done, refused) {
            (None, Some(why)) => Err(why.into()),
            (done, _) => Ok(done.unwrap_or_default()),
        }
    }

    /// Ends the session now: its locks are released (PERSISTENT ones become orphans), and calls of
    /// its handles fail with [`Error::Disconnected`].
    pub fn close(&self) {
        for shard in &self.inner.shards {
            shard.close();
        }
    }

    /// The sockets of the session; none with an embedded node. The child of a fork must close them:
    /// as long as a process has them open, the session is alive for the daemon.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.inner.shards.iter().filter_map(|shard| shard.descriptor())
    }

    /// Has the daemon hand its locks and sessions over to the program that is installed now; returns
    /// when that program serves them.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason, if the daemon goes on as it was;
    /// [`Error::Disconnected`] if the new program could not take them. [`Error::TooOld`].
    pub fn restart(&self) -> Result<(), Error> {
        self.knows(KNOWS_RELOAD)?;
        // One for all shards: the daemon is one process.
        self.inner.shards.first().map_or(Ok(()), |shard| shard.ask_done(Query::Restart))
    }

    /// The status of every node of the cluster, one entry per node and shard.
    ///
    /// # Errors
    /// [`Error::Disconnected`].
    pub fn status(&self) -> Result<ClusterStatus, Error> {
        let mut status = ClusterStatus::default();
        for shard in &self.inner.shards {
            for answer in shard.ask(Query::Status)? {
                match answer {
                    Answer::Status(node) => status.nodes.push(*node),
                    Answer::Software { node, shard, software } => {
                        status.of(node, shard, |status| status.software = Some(software));
                    }
                    Answer::Certificates { node, shard, certificates } => {
                        status.of(node, shard, |status| status.certificates = certificates);
                    }
                    Answer::Silent(nodes) => status.silent.extend(nodes),
                    Answer::Done => {}
                    Answer::Refused(why) => return Err(why.into()),
                    other => return Err(unexpected(&other)),
                }
            }
        }
        Ok(status)
    }
}

/// The nodes' reports about themselves.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ClusterStatus {
    /// Each node (and shard) that answered.
    pub nodes: Vec<NodeStatus>,
    /// Nodes that did not answer in time.
    pub silent: Vec<NodeId>,
}

impl ClusterStatus {
    /// Adds a shard's separate reports.
    fn of(&mut self, node: NodeId, shard: u32, add: impl FnOnce(&mut NodeStatus)) {
        let of = |n: &&mut NodeStatus| (n.node, n.shard) == (node, shard);
        if let Some(status) = self.nodes.iter_mut().find(of) {
            add(status);
        }
    }
}

/// The shards' answers about a lockspace that is opened or made.
#[derive(Default)]
struct Opened {
    spaces: Vec<Space>,
    lvb_len: usize,
}

impl Opened {
    fn ask(&mut self, shard: &Channel, query: Query) -> Result<(), Error> {
        for answer in shard.ask(query)? {
            match answer {
                Answer::Opened { space, life, lvb_len, .. } => {
                    shard.table().opened(space, life);
                    self.spaces.push(space);
                    self.lvb_len = lvb_len as usize;
                }
                Answer::Refused(why) => return Err(why.into()),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(())
    }
}

impl Inner {
    pub(crate) fn new() -> Inner {
        Inner {
            shards: Vec::new(),
            threads: Mutex::default(),
            callbacks: Arc::default(),
            version: VERSION,
        }
    }

    pub(crate) fn add(
        &mut self,
        submit: Arc<dyn crate::transport::Submit>,
        drive: Box<dyn crate::transport::Drive>,
    ) -> Result<(), Error> {
        let (channel, thread) = Channel::start(submit, drive, self.callbacks.clone())?;
        self.shards.push(channel);
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for shard in &self.shards {
            shard.close();
        }
        let threads =
            std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A thread that panicked has nothing left to close.
            let _ = thread.join();
        }
    }
}
