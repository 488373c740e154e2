//! Limits for connections whose peers have not introduced themselves. They cost memory and, with
//! TLS, a signature each. Every machine that can reach the port can make them. So there is a limit
//! for their number and for their rate. Addresses outside the list of nodes have a limit of their
//! own, so that they cannot use up the nodes' share.

use std::net::{IpAddr, SocketAddr};

use lockify_core::Time;

use super::NodeEngine;
use crate::conn::{Conn, ConnStage, Origin};
use crate::pace::Pace;

/// Connections of strangers that may be open, and new ones in a second.
const STRANGERS: u64 = 64;
/// Connections from addresses in the list that may be open and have not been introduced, for each
/// node of the list; and new ones in a second. A node dials at most about ten times a second.
const PER_NODE: u64 = 16;
/// Complaints in a second, each a line in the operator's log; and connections that are told of, but for as many as there are
/// nodes.
const COMPLAINTS: u64 = 8;

/// Limits of what comes in.
#[derive(Debug)]
pub(super) struct AdmissionLimits {
    addresses: Vec<IpAddr>,
    most_known: usize,
    known: Pace,
    strange: Pace,
    /// Of the log.
    pub(super) complaints: Pace,
    /// Of the log, too: nodes that have connected.
    pub(super) arrivals: Pace,
    /// Complaints that have been left out since the last one.
    pub(super) left_out: u64,
}

impl AdmissionLimits {
    /// A node has this address, too.
    pub(super) fn knows(&mut self, address: IpAddr) {
        let address = address.to_canonical();
        if let Err(at) = self.addresses.binary_search(&address) {
            self.addresses.insert(at, address);
        }
    }

    /// For a list of nodes with these addresses.
    pub(super) fn new(addresses: &[SocketAddr]) -> AdmissionLimits {
        let nodes = addresses.len() as u64;
        let known = PER_NODE * nodes;
        let mut addresses: Vec<IpAddr> = addresses.iter().map(|a| a.ip().to_canonical()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        AdmissionLimits {
            addresses,
            most_known: known as usize,
            known: Pace::per_second(known),
            strange: Pace::per_second(STRANGERS),
            complaints: Pace::per_second(COMPLAINTS),
            arrivals: Pace::per_second(nodes.max(COMPLAINTS)),
            left_out: 0,
        }
    }

    fn origin(&self, address: IpAddr) -> Origin {
        let known = self.addresses.binary_search(&address.to_canonical()).is_ok();
        if known { Origin::Known } else { Origin::Strange }
    }
}

impl NodeEngine {
    /// The kind of an address if it may connect now. If there are too many connections, the oldest
    /// that has got nowhere makes room: an honest peer needs its place for some milliseconds only.
    pub(super) fn may_enter(&mut self, address: IpAddr, now: Time) -> Option<Origin> {
        let origin = self.admission.origin(address);
        let (pace, most) = match origin {
            Origin::Strange => (&mut self.admission.strange, STRANGERS as usize),
            _ => (&mut self.admission.known, self.admission.most_known),
        };
        if !pace.admits(now) {
            return None;
        }
        let waits = |c: &Conn| c.origin == origin && !matches!(c.stage, ConnStage::Up { .. });
        let waiting = || self.conns.iter().filter(|(_, c)| waits(c));
        if waiting().count() >= most
            && let Some((oldest, _)) = waiting().min_by_key(|(_, c)| c.since)
        {
            self.close(oldest, String::new(), now);
        }
        Some(origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_told_from_strangers_by_their_address() {
        let nodes = ["192.0.2.1:7430", "192.0.2.9:7430"].map(|a| a.parse().unwrap());
        let limits = AdmissionLimits::new(&nodes);
        assert_eq!(limits.origin("192.0.2.9".parse().unwrap()), Origin::Known);
        // A socket of both families shows IPv4 so.
        assert_eq!(limits.origin("::ffff:192.0.2.9".parse().unwrap()), Origin::Known);
        assert_eq!(limits.origin("192.0.2.2".parse().unwrap()), Origin::Strange);
    }
}
