//! A simulated client's interface to its node.

use std::collections::VecDeque;

use lockify_core::{
    ClientId, Completion, Error, Input, LockId, Lockspace, LostReason, Mode, NodeId, Output, Time,
};
use lockify_sim::Random;

use crate::note::Note;

/// A client's way to act: valid during one call of a [`Client`] method.
pub struct Port<'a> {
    /// The client's node.
    pub node: NodeId,
    /// The node's monotonic clock.
    pub now: Time,
    /// Random numbers for the client's choices.
    pub random: &'a mut Random,
    pub(crate) space: &'a mut Lockspace,
    pub(crate) notes: &'a mut Vec<Note>,
    pub(crate) wakes: &'a mut Vec<(Time, usize, u64)>,
    pub(crate) outputs: &'a mut VecDeque<Output>,
    pub(crate) counter: &'a mut u64,
    pub(crate) index: usize,
}

impl Port<'_> {
    /// Calls the lockspace, as a library call would.
    ///
    /// # Errors
    /// Whatever the lockspace refuses; nothing was started then.
    pub fn call(&mut self, input: Input) -> Result<Option<LockId>, Error> {
        let result = self.space.handle(self.now, input.clone());
        self.notes.push(Note::Called { input, result });
        while let Some(output) = self.space.poll() {
            self.outputs.push_back(output);
        }
        result
    }

    /// Has [`Client::wake`] called with `token` after that many nanoseconds.
    pub fn wake(&mut self, after: Time, token: u64) {
        self.wakes.push((after, self.index, token));
    }

    /// A client id that was never used on this node.
    pub fn new_client(&mut self) -> ClientId {
        ClientId(self.unique())
    }

    /// A number that was never used on this node, for the tag of an operation.
    pub fn unique(&mut self) -> u64 {
        *self.counter += 1;
        *self.counter
    }

    /// Reports something that must never happen, as seen by the client.
    pub fn broken(&mut self, what: String) {
        self.notes.push(Note::Broken(what));
    }
}

/// A simulated client: a state machine like everything else in a run.
pub trait Client {
    /// The node runs: begin.
    fn start(&mut self, port: &mut Port<'_>);
    /// A wake-up that was asked for.
    fn wake(&mut self, port: &mut Port<'_>, token: u64);
    /// An operation ended.
    fn complete(&mut self, port: &mut Port<'_>, done: &Completion);
    /// A lock blocks somebody.
    fn bast(&mut self, port: &mut Port<'_>, lock: LockId, mode: Mode);
    /// A lock was lost.
    fn lost(&mut self, port: &mut Port<'_>, lock: LockId, reason: LostReason);
    /// Returns true if outputs for this client id are its own.
    fn is(&self, client: ClientId) -> bool;
    /// From now on as told; called again until [`Client::is_idle`].
    fn enter(&mut self, port: &mut Port<'_>, phase: Phase);
    /// Nothing of it is under way; after [`Phase::Drain`] it holds no lock either.
    fn is_idle(&self) -> bool;
}

/// A phase of a client's run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Work: take and release locks.
    Run,
    /// Begin nothing new; keep the present locks.
    Settle,
    /// Release everything.
    Drain,
}
