//! The interface of a hosted state machine.

use crate::disk::{DiskDone, DiskId, DiskOp, DiskRequest};
use crate::world::World;
use crate::{Nanos, Random};
use std::fmt;

/// A node of the simulated cluster; numbered from 0 in the order of joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl NodeId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// A state machine that the engine can host: one function in, effects out through the [`Context`].
///
/// It must follow from its inputs alone: no clock, thread, socket or random number of its own, and no iteration over
/// containers whose order differs between runs (`std`'s `HashMap` with its default hasher). Else a seed does not replay.
pub trait Machine: Sized {
    /// The messages between nodes. Cloned when the network duplicates.
    type Msg: Clone + fmt::Debug;
    /// The value that comes back when a timer expires.
    type Timer: fmt::Debug;
    /// The machine's reports to its host: completions, steps of a protocol, violations.
    type Note: fmt::Debug;

    /// Handles one input. Everything that it does takes no virtual time.
    fn handle(&mut self, input: Input<Self>, cx: &mut Context<'_, Self>);

    /// Bytes that the message occupies on the network, for bandwidth.
    fn size_of(_msg: &Self::Msg) -> usize {
        0
    }
}

/// An input of a machine.
pub enum Input<M: Machine> {
    /// First input of every incarnation; [`Context::incarnation`] above 1 means a restart.
    Start,
    /// A message arrived.
    Message {
        /// Its sender.
        from: NodeId,
        /// Its content.
        msg: M::Msg,
    },
    /// A timer expired.
    Timer(M::Timer),
    /// The connection with a peer came up or went down. Between the two, messages arrive in the order of sending.
    Link {
        /// The other end.
        peer: NodeId,
        /// Its new state.
        state: LinkState,
    },
    /// A disk operation ended.
    Disk(DiskDone),
}

impl<M: Machine> fmt::Debug for Input<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Input::Start => write!(f, "start"),
            Input::Message { from, msg } => write!(f, "<- {from}: {msg:?}"),
            Input::Timer(timer) => write!(f, "timer {timer:?}"),
            Input::Link { peer, state } => write!(f, "connection with {peer}: {state:?}"),
            Input::Disk(done) => write!(f, "{done:?}"),
        }
    }
}

/// State of a connection, as one end is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Messages pass.
    Up {
        /// Incarnation of the peer: a new one has forgotten everything.
        incarnation: u32,
    },
    /// The connection broke, or could not be made. Messages sent from the break until the next `Up` are lost; the
    /// engine reconnects by itself as soon as it can.
    Down,
}

/// Names a timer that was set, to cancel it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId {
    pub(crate) slot: usize,
    pub(crate) number: u64,
}

/// A machine's way to act on its world; valid during one call of [`Machine::handle`].
pub struct Context<'a, M: Machine> {
    pub(crate) world: &'a mut World<M>,
    pub(crate) node: NodeId,
}

impl<M: Machine> Context<'_, M> {
    /// The node that the machine runs on.
    pub fn id(&self) -> NodeId {
        self.node
    }

    /// How often this node was started, from 1.
    pub fn incarnation(&self) -> u32 {
        self.world.nodes[self.node.index()].incarnation
    }

    /// The node's own clock, which may be wrong.
    pub fn now(&self) -> Nanos {
        self.world.nodes[self.node.index()].clock.local(self.world.now)
    }

    /// Sends on the connection with `to`, which is made first if this incarnation has none: until its first
    /// [`LinkState::Up`] or `Down` messages wait; while it is down they are lost. A node reaches itself at once.
    pub fn send(&mut self, to: NodeId, msg: M::Msg) {
        self.world.send(self.node, to, msg);
    }

    /// Sends without connection: may be lost, doubled and overtaken; may reach a later incarnation of `to`.
    pub fn send_datagram(&mut self, to: NodeId, msg: M::Msg) {
        self.world.send_datagram(self.node, to, msg);
    }

    /// Makes a connection without sending; [`Input::Link`] tells the outcome. Does nothing if it exists.
    pub fn connect(&mut self, to: NodeId) {
        self.world.connect(self.node, to);
    }

    /// Breaks the connection with `to`, if there is one: both ends are told, and the engine makes it anew.
    pub fn disconnect(&mut self, to: NodeId) {
        self.world.break_connection(self.node, to);
    }

    /// Sets a timer `after` nanoseconds of the node's own clock.
    pub fn set_timer(&mut self, after: Nanos, timer: M::Timer) -> TimerId {
        self.set_timer_at(self.now().saturating_add(after), timer)
    }

    /// Sets a timer for a point in the node's own time. If the clock is stepped, the timer follows the clock.
    pub fn set_timer_at(&mut self, local: Nanos, timer: M::Timer) -> TimerId {
        self.world.set_timer(self.node, local, timer)
    }

    /// Cancels a timer; false if it has already expired or was cancelled.
    pub fn cancel_timer(&mut self, id: TimerId) -> bool {
        self.world.cancel_timer(self.node, id)
    }

    /// Starts to read `count` sectors; the answer comes as [`Input::Disk`] with `tag`, errors included.
    pub fn read(&mut self, disk: DiskId, sector: u64, count: u64, tag: u64) {
        self.world.submit(self.node, disk, DiskRequest { tag, op: DiskOp::Read { sector, count } });
    }

    /// Starts to write `data`, a whole number of sectors. Written data is in the disk's volatile cache until a flush.
    pub fn write(&mut self, disk: DiskId, sector: u64, data: Vec<u8>, tag: u64) {
        self.world.submit(self.node, disk, DiskRequest { tag, op: DiskOp::Write { sector, data } });
    }

    /// Starts to make durable all writes submitted before; a barrier in the disk's queue.
    pub fn flush(&mut self, disk: DiskId, tag: u64) {
        self.world.submit(self.node, disk, DiskRequest { tag, op: DiskOp::Flush });
    }

    /// Tells the host something; it comes out of [`Sim::next_report`](crate::Sim::next_report).
    pub fn note(&mut self, note: M::Note) {
        self.world.note(self.node, note);
    }

    /// Writes a line to the trace; the closure runs only if the trace is on.
    pub fn trace(&mut self, text: impl FnOnce() -> String) {
        self.world.trace_node(self.node, text);
    }

    /// Random numbers for the machine's own choices (back-off, sampling), from a stream of their own.
    pub fn random(&mut self) -> &mut Random {
        &mut self.world.streams.machines
    }
}
