//! Connections to a lock manager.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use lockify_core::NodeId;
use lockify_node::NodeStatus;

use crate::callbacks::Callbacks;
use crate::channel::Channel;
use crate::error::Error;
use crate::protocol::{Answer, Query};
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

/// What all handles of a session share.
pub(crate) struct Inner {
    /// One per shard; a resource's name says which.
    pub(crate) shards: Vec<Arc<Channel>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    callbacks: Arc<Callbacks>,
}

impl Client {
    /// Connects to the daemon that listens on the Unix socket `socket`.
    ///
    /// # Errors
    /// [`Error::NoDaemon`], [`Error::NotADaemon`], [`Error::Version`].
    pub fn connect(socket: impl AsRef<Path>) -> Result<Client, Error> {
        let socket = socket.as_ref();
        let mut inner = Inner::new();
        let (sender, receiver, shards) = socket::connect(socket, 0)?;
        inner.add(sender, Box::new(receiver))?;
        for shard in 1..shards {
            let (sender, receiver, _) = socket::connect(socket, shard)?;
            inner.add(sender, Box::new(receiver))?;
        }
        Ok(Client { inner: Arc::new(inner) })
    }

    /// Uses a lockspace that the node is configured to be a member of.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is not; [`Error::Disconnected`].
    pub fn lockspace(&self, name: &str) -> Result<Lockspace, Error> {
        let mut spaces = Vec::with_capacity(self.inner.shards.len());
        let mut length = 0;
        for shard in &self.inner.shards {
            for answer in shard.ask(Query::Open(name.into()))? {
                match answer {
                    Answer::Opened { space, life, lvb_len } => {
                        shard.table().opened(space, life);
                        spaces.push(space);
                        length = lvb_len as usize;
                    }
                    Answer::Refused(why) => return Err(why.into()),
                    other => return Err(unexpected(&other)),
                }
            }
        }
        Ok(Lockspace::new(self.inner.clone(), name, spaces, length))
    }

    /// What every node of the cluster says of itself, one entry per node and shard.
    ///
    /// # Errors
    /// [`Error::Disconnected`].
    pub fn status(&self) -> Result<ClusterStatus, Error> {
        let mut status = ClusterStatus::default();
        for shard in &self.inner.shards {
            for answer in shard.ask(Query::Status)? {
                match answer {
                    Answer::Status(node) => status.nodes.push(node),
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

/// What the nodes of the cluster say of themselves.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ClusterStatus {
    /// Each node (and shard) that answered.
    pub nodes: Vec<NodeStatus>,
    /// Nodes that did not answer in time.
    pub silent: Vec<NodeId>,
}

/// The error for an answer to another question.
pub(crate) fn unexpected(answer: &Answer) -> Error {
    Error::Disconnected(format!("it answered another question: {answer:?}"))
}

impl Inner {
    pub(crate) fn new() -> Inner {
        Inner { shards: Vec::new(), threads: Mutex::default(), callbacks: Arc::default() }
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
