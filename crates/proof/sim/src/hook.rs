//! Hooks: faults at exactly the step of a protocol that a test wants to hit.

use crate::machine::{Input, Machine};
use crate::{Fault, Nanos, NodeId};

/// The view of a hook.
pub struct Observed<'a, M: Machine> {
    /// Virtual time.
    pub at: Nanos,
    /// The node that it happens on.
    pub node: NodeId,
    /// The present step.
    pub step: Step<'a, M>,
}

/// One step of a node.
pub enum Step<'a, M: Machine> {
    /// It is about to get an input.
    Input(&'a Input<M>),
    /// It sends a message.
    Send {
        /// The receiving node.
        to: NodeId,
        /// The message.
        msg: &'a M::Msg,
    },
    /// It tells the host something.
    Note(&'a M::Note),
}

/// An injection that a hook wants, and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inject {
    /// Before the node handles the input: a crashed node never gets it, a paused one gets it later.
    /// For [`Step::Send`] and [`Step::Note`] the same as `After`.
    Before(Fault),
    /// As soon as the node has handled the input, with all messages sent.
    After(Fault),
}

/// A function that sees every step and may inject faults; see [`Sim::add_hook`](crate::Sim::add_hook).
pub type Hook<M> = Box<dyn FnMut(&Observed<'_, M>) -> Option<Inject>>;

/// A hook that injects at the `n`-th step (from 1) for which `is_it` holds, once.
pub fn at_nth<M: Machine>(
    n: u64,
    mut is_it: impl FnMut(&Observed<'_, M>) -> bool + 'static,
    mut inject: impl FnMut(&Observed<'_, M>) -> Inject + 'static,
) -> Hook<M> {
    let mut seen = 0;
    Box::new(move |observed| {
        if seen >= n || !is_it(observed) {
            return None;
        }
        seen += 1;
        (seen == n).then(|| inject(observed))
    })
}
