//! Who may knock, and how often: connections whose peers have not introduced themselves cost
//! memory and, with TLS, a signature each. Whoever can reach the port can make them, so there is a
//! limit to how many there are and how fast they come; for addresses that are not in the list of
//! nodes one of their own, so that they cannot use up what is left for nodes.

use std::net::{IpAddr, SocketAddr};

use lockify_core::Time;

use super::{Engine, MS};
use crate::conn::{Conn, Origin, Stage};

/// Connections of strangers that may be open, and new ones in a second.
const STRANGERS: u64 = 64;
/// Connections from addresses in the list that may be open and have not been introduced, for each
/// node of the list; and new ones in a second. A node dials at most about ten times a second.
const PER_NODE: u64 = 16;
/// Complaints in a second: each is a line in the operator's log.
const COMPLAINTS: u64 = 8;

/// Lets so much through in a second, evenly or at once.
#[derive(Debug)]
pub(super) struct Pace {
    interval: Time,
    burst: Time,
    next: Time,
}

impl Pace {
    pub(super) fn per_second(n: u64) -> Pace {
        let interval = 1000 * MS / n.max(1);
        Pace { interval, burst: 1000 * MS - interval, next: 0 }
    }

    /// Whether one more may pass.
    pub(super) fn admits(&mut self, now: Time) -> bool {
        let next = self.next.max(now);
        let passes = next - now <= self.burst;
        if passes {
            self.next = next + self.interval;
        }
        passes
    }
}

/// Limits of what comes in.
#[derive(Debug)]
pub(super) struct Door {
    addresses: Vec<IpAddr>,
    most_known: usize,
    known: Pace,
    strange: Pace,
    /// Of the log.
    pub(super) complaints: Pace,
    /// Complaints that have been left out since the last one.
    pub(super) left_out: u64,
}

impl Door {
    /// For a list of nodes with these addresses.
    pub(super) fn new(addresses: &[SocketAddr]) -> Door {
        let known = PER_NODE * addresses.len() as u64;
        let mut addresses: Vec<IpAddr> = addresses.iter().map(|a| a.ip().to_canonical()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        Door {
            addresses,
            most_known: known as usize,
            known: Pace::per_second(known),
            strange: Pace::per_second(STRANGERS),
            complaints: Pace::per_second(COMPLAINTS),
            left_out: 0,
        }
    }

    fn origin(&self, address: IpAddr) -> Origin {
        let known = self.addresses.binary_search(&address.to_canonical()).is_ok();
        if known { Origin::Known } else { Origin::Strange }
    }
}

impl Engine {
    /// Whether a connection from there may be made now. If there are too many, the oldest that has
    /// got nowhere makes room: an honest peer needs its place for some milliseconds only.
    pub(super) fn may_enter(&mut self, address: IpAddr, now: Time) -> Option<Origin> {
        let origin = self.door.origin(address);
        let (pace, most) = match origin {
            Origin::Strange => (&mut self.door.strange, STRANGERS as usize),
            _ => (&mut self.door.known, self.door.most_known),
        };
        if !pace.admits(now) {
            return None;
        }
        let waits = |c: &Conn| c.origin == origin && !matches!(c.stage, Stage::Up { .. });
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
    fn a_pace_lets_through_what_it_says_and_no_more() {
        let mut pace = Pace::per_second(10);
        let start = 5_000 * MS;
        let burst = (0..100).filter(|_| pace.admits(start)).count();
        assert_eq!(burst, 10);
        // Then one in a tenth of a second, however often it is asked.
        let later = (1..=1000).filter(|ms| pace.admits(start + ms * MS)).count();
        assert_eq!(later, 10);
        // After a rest, as at the start.
        let rested = (0..100).filter(|_| pace.admits(start + 9_000 * MS)).count();
        assert_eq!(rested, 10);
    }

    #[test]
    fn nodes_are_told_from_strangers_by_their_address() {
        let nodes = ["192.0.2.1:7430", "192.0.2.9:7430"].map(|a| a.parse().unwrap());
        let door = Door::new(&nodes);
        assert_eq!(door.origin("192.0.2.9".parse().unwrap()), Origin::Known);
        // A socket of both families shows IPv4 so.
        assert_eq!(door.origin("::ffff:192.0.2.9".parse().unwrap()), Origin::Known);
        assert_eq!(door.origin("192.0.2.2".parse().unwrap()), Origin::Strange);
    }
}
