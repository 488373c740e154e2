//! Filters: the host decides about single messages.

use crate::machine::Machine;
use crate::world::World;
use crate::{Nanos, NodeId};

/// A message at the moment of sending, as filters see it.
#[derive(Debug)]
pub struct Envelope<'a, Msg> {
    /// Virtual time.
    pub at: Nanos,
    /// The sending node.
    pub from: NodeId,
    /// The receiving node.
    pub to: NodeId,
    /// True if it is a datagram, false if it goes by connection.
    pub datagram: bool,
    /// The message.
    pub msg: &'a Msg,
}

/// A filter's decision about a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: the next filter is asked.
    #[default]
    Pass,
    /// It is lost, as if sending had failed; even on a connection, which stays up.
    Lose,
    /// It leaves later; on a connection all that follow do too.
    Delay(Nanos),
    /// It is sent twice, even on a connection.
    Duplicate,
    /// It is sent twice, the second copy so much later; on a connection, whose order stays, as [`Verdict::Duplicate`].
    DuplicateLater(Nanos),
    /// The connection breaks with this message: it is lost, and so may be those in flight before it. A datagram is lost.
    Break,
}

/// A function that the host installs to decide about single messages; see [`Sim::add_filter`](crate::Sim::add_filter).
pub type Filter<Msg> = Box<dyn FnMut(&Envelope<'_, Msg>) -> Verdict>;

/// Names an installed filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterId(pub(crate) u64);

impl<M: Machine> World<M> {
    /// The decision of the first filter that cares about a message.
    pub fn ask_filters(
        &mut self,
        from: NodeId,
        to: NodeId,
        datagram: bool,
        msg: &M::Msg,
    ) -> Verdict {
        let envelope = Envelope { at: self.now, from, to, datagram, msg };
        let mut verdicts = self.filters.iter_mut().map(|(_, filter)| filter(&envelope));
        verdicts.find(|verdict| *verdict != Verdict::Pass).unwrap_or_default()
    }
}
