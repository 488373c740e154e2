//! A simulated node's reports to the run's observer.

use lockify_core::{Error, Input, LockId, NodeId, Output};
use lockify_membership::NodeView;

use crate::coverage::Transition;

/// One thing that a node did or saw; its time is the engine's.
#[derive(Clone, Debug)]
pub enum Note {
    /// A client called the lockspace.
    Called {
        /// The call.
        input: Input,
        /// Its answer.
        result: Result<Option<LockId>, Error>,
    },
    /// The lockspace said something to a client or to the history; messages excluded.
    Said(Output),
    /// The claim protocol took a step.
    Step(Transition),
    /// The membership service has given the node this life.
    Lives(u64),
    /// The membership service has installed a view.
    Installed(NodeView),
    /// The membership service says this to its group in corosync.
    Cast(Vec<u8>),
    /// The membership service wants an agent to fence a node.
    Agent(NodeId),
    /// A client saw something that must never happen.
    Broken(String),
}
