//! Datagrams: messages without connection, order or guarantee.

use crate::delay::chance;
use crate::filter::Verdict;
use crate::machine::{Input, Machine};
use crate::world::{Event, World};
use crate::{Nanos, NodeId};

/// The faults of datagrams; by default only different latencies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DatagramConfig {
    /// Probability that one is lost.
    pub lose: f64,
    /// Probability that one arrives twice.
    pub duplicate: f64,
    /// Probability that one is held back by `hold_back`, so that later ones overtake it.
    pub reorder: f64,
    /// How long.
    pub hold_back: Nanos,
}

impl<M: Machine> World<M> {
    pub fn send_datagram(&mut self, from: NodeId, to: NodeId, msg: M::Msg) {
        self.stats.sent += 1;
        self.look_at_send(from, to, &msg);
        self.trace_node(from, || format!("-> {to} (datagram): {msg:?}"));
        let config = self.net.datagram.clone();
        let (later, second) = match self.ask_filters(from, to, true, &msg) {
            Verdict::Pass => (0, None),
            Verdict::Delay(by) => (by, None),
            Verdict::Duplicate => (0, Some(0)),
            Verdict::DuplicateLater(by) => (0, Some(by)),
            Verdict::Lose | Verdict::Break => return self.lose(from, to, "filter"),
        };
        if chance(&mut self.streams.network, config.lose) {
            return self.lose(from, to, "datagram loss");
        }
        let third = chance(&mut self.streams.network, config.duplicate).then_some(later);
        let copies: Vec<Nanos> = [Some(later), second, third].into_iter().flatten().collect();
        self.stats.duplicated += copies.len() as u64 - 1;
        let messages = std::iter::repeat_n(msg, copies.len());
        for (msg, later) in messages.zip(copies) {
            let held = if chance(&mut self.streams.network, config.reorder) {
                config.hold_back
            } else {
                0
            };
            self.transmit_datagram(from, to, msg, later.saturating_add(held));
        }
    }

    fn transmit_datagram(&mut self, from: NodeId, to: NodeId, msg: M::Msg, later: Nanos) {
        let id = self.link_between(from, to);
        let link = self.links.get(id);
        let side = link.side(from);
        let size = M::size_of(&msg);
        let arrival =
            link.lanes[side].transmit(self.now, size, &self.net.link, &mut self.streams.network);
        self.queue.push(arrival.saturating_add(later), Event::Datagram { from, to, msg });
    }

    pub fn datagram_arrives(
        &mut self,
        from: NodeId,
        to: NodeId,
        msg: M::Msg,
    ) -> Option<(NodeId, Input<M>)> {
        if self.partitions.blocks(from, to) {
            self.lose(from, to, "partition");
            return None;
        }
        if !self.is_alive(to) {
            self.lose(from, to, "receiver is down");
            return None;
        }
        self.stats.delivered += 1;
        Some((to, Input::Message { from, msg }))
    }
}
