//! Nodes that speak different versions of the protocol.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::common::*;
use lockify_core::{Mode, NodeId};
use lockify_node::wire::{MAX_GREETING, SPOKEN, Versions};

fn versions(oldest: u16, newest: u16) -> Versions {
    Versions { oldest, newest }
}

fn error(c: &Cluster, i: usize, peer: u32) -> String {
    let peers = c.nodes[i].engine.as_ref().unwrap().status().peers;
    let found = peers.into_iter().find(|p| p.node == NodeId(peer)).unwrap();
    assert!(!found.connected);
    found.error.unwrap_or_default()
}

/// The version that a node speaks with another one.
fn spoken(c: &Cluster, i: usize, peer: u32) -> Option<u16> {
    let software = c.nodes[i].engine.as_ref().unwrap().status().software.unwrap();
    software.spoken.iter().find(|(node, _)| node.0 == peer).map(|(_, version)| *version)
}

#[test]
fn ranges_that_do_not_meet_are_told_by_both_sides() {
    let (mut c, listeners) = Cluster::empty(3);
    c.versions = vec![versions(3, 3), versions(4, 4), versions(3, 4)];
    for (i, listener) in listeners.into_iter().enumerate() {
        c.start(i, Some(listener));
    }
    let texts = ["version 3", "version 4", "upgrade node 1", "raise its wire_version"];
    // Node 3 speaks both: each of them connects to it, in the version that it has.
    c.wait("the refusal in both logs", |c| c.noticed(0, &texts) && c.noticed(1, &texts));
    c.wait("the refusal in the status", |c| {
        let all = [error(c, 0, 2), error(c, 1, 1)];
        all.iter().all(|e| texts.iter().all(|t| e.contains(t)))
    });
    c.wait("the connections to node 3", |c| {
        (spoken(c, 2, 1), spoken(c, 2, 2)) == (Some(3), Some(4))
    });
}

/// The bytes of version 3 from before there was anything to agree on: 0 in the place of the newest
/// version.
#[test]
fn a_node_of_before_is_understood() {
    let mut c = Cluster::with(3, |_| {});
    c.kill(2);
    c.wait("a view of two", |c| c.runs_with(&[0, 1]));
    c.forget_notices();
    let mut old = introduction(3, 1);
    old.newest = 0;
    let mut stream = TcpStream::connect(c.address(0)).unwrap();
    stream.write_all(&greeting(old)).unwrap();
    c.wait("the connection", |c| spoken(c, 0, 3).is_some());
    assert_eq!(spoken(&c, 0, 3), Some(3));
    assert!(c.noticed(0, &["connected to node 3", "version 3"]));
    // Its own greeting is one that such a node reads: the head says 3.
    // Nobody turns the node while this reads.
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut head = [0; 15];
    stream.read_exact(&mut head).unwrap();
    assert_eq!((head[8], head[9], head[10]), (3, 0, 0));
    c.lock(0, "still", Mode::EX);
}

/// One of years to come, which says more than this release knows.
#[test]
fn a_longer_introduction_is_read_as_far_as_it_is_known() {
    let (mut c, listeners) = Cluster::empty(3);
    c.start(0, listeners.into_iter().next());
    let mut new = introduction(3, 1);
    (new.oldest, new.newest) = (4, 900);
    let mut bytes = greeting(new.clone());
    bytes.extend([7; 50]);
    let length = (bytes.len() - 15) as u32;
    assert!((length as usize) < MAX_GREETING);
    bytes[11..15].copy_from_slice(&length.to_le_bytes());
    let mut stream = TcpStream::connect(c.address(0)).unwrap();
    stream.write_all(&bytes).unwrap();
    let newest = SPOKEN.newest;
    c.wait("the connection", |c| spoken(c, 0, 3) == Some(newest));
    // One that knows nothing newer has nothing to add.
    new.newest = newest;
    let mut bytes = greeting(new);
    bytes.push(0);
    bytes[11] += 1;
    let mut stream = TcpStream::connect(c.address(0)).unwrap();
    stream.write_all(&bytes).unwrap();
    c.wait("the refusal", |c| c.noticed(0, &["was refused", "malformed"]));
}

#[test]
fn connections_are_made_anew_when_a_version_is_raised() {
    let mut c = Cluster::with(3, |c| c.versions = vec![versions(3, 3); 3]);
    let (held, _) = c.lock(0, "held", Mode::EX);
    for (raised, expected) in [(0, 3), (1, 4), (2, 4)] {
        c.engine(raised).raise_newest_version(4);
        c.wait("the version", |c| spoken(c, 0, 2) == Some(expected));
        // Nothing is lost on the way.
        let (lock, _) = c.lock(raised, "wanted by all", Mode::EX);
        c.unlock(raised, lock);
    }
    c.wait("the newest everywhere", |c| {
        (0..3).all(|i| (1..=3).all(|n| n == i as u32 + 1 || spoken(c, i, n) == Some(4)))
    });
    assert!(c.runs_with(&[0, 1, 2]));
    c.unlock(0, held);
}
