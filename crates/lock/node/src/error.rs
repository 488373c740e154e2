//! The reasons why the engine cannot execute a request.

use lockify_core::NodeId;

/// The engine could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The configuration makes no sense.
    #[error("configuration: {0}")]
    Config(String),
    /// The node's address cannot be bound.
    #[error(
        "node {node} cannot listen at {address}: {error}; is it running already, or is the address of another machine?"
    )]
    Listen {
        /// This node.
        node: NodeId,
        /// The address.
        address: std::net::SocketAddr,
        /// The system's error.
        error: std::io::Error,
    },
    /// Corosync cannot be used.
    #[error("{0}")]
    Corosync(String),
    /// The quorum was lost, and the configuration has the node end then.
    #[error("the quorum was lost, which quorum_lost.action = \"exit\" makes the end")]
    QuorumLost,
    /// The operating system refused something that the event loop needs.
    #[error("{what}: {error}")]
    System {
        /// The attempted step.
        what: &'static str,
        /// Why it failed.
        error: std::io::Error,
    },
}

/// A call was refused: nothing was started.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// The lock manager refused it.
    #[error(transparent)]
    Lock(#[from] lockify_core::Error),
    /// No such lockspace on this node.
    #[error("this node has not joined that lockspace: join it first")]
    NoSpace,
    /// The name is no lockspace's name.
    #[error("a lockspace name has 1 to 64 bytes, this one has {0}")]
    BadSpaceName(usize),
    /// The lock value blocks are too long.
    #[error("lock value blocks of {0} bytes, where at most {1} are supported")]
    BadLvbLength(usize, usize),
    /// The lockspace's history cannot be made.
    #[error("{0}; name another file or switch the history off")]
    History(String),
    /// The input is not one that clients may give.
    #[error("only lock, convert, unlock, cancel, break-deadlock, client-gone and purge are calls")]
    NotACall,
    /// The lockspace is joined already.
    #[error(
        "lockspace {0} is joined already, with another configuration: leave it first, or use the same"
    )]
    Joined(String),
    /// A peer is slower than the calls: call again when [`crate::NodeEngine::congested`] says no.
    #[error("node {0} does not keep up: wait until its backlog has drained, then try again")]
    WouldBlock(NodeId),
}
