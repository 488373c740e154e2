//! Peers that send forbidden messages are refused with a clear line, and without harm.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::common::*;
use lockify_core::{Mode, NodeId};
use lockify_node::wire::{
    Greeting, Introduction, MAGIC, MAX_FRAME, Packet, Payload, SPOKEN, decode_greeting,
    encode_greeting, encode_packet,
};
use lockify_node::{NodeConfig, NodeEngine, NodeError, ShardGroup};

/// Nodes 1 and 2 of three run; the test plays node 3, which both dial and which would be accepted.
fn two_of_three() -> (Cluster, TcpListener) {
    let mut c = Cluster::with(3, |c| c.lease = Duration::from_millis(500));
    c.kill(2);
    let third = TcpListener::bind(c.address(2)).unwrap();
    c.wait("a view of two", |c| c.runs_with(&[0, 1]));
    c.forget_notices();
    (c, third)
}

fn dial(c: &Cluster, i: usize) -> TcpStream {
    let stream = TcpStream::connect(c.address(i)).unwrap();
    stream.set_nonblocking(true).unwrap();
    stream
}

/// Everything that comes until the other side closes.
fn until_closed(c: &mut Cluster, stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let start = std::time::Instant::now();
    loop {
        c.turn();
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer) {
            Ok(0) => return all,
            Ok(n) => all.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            // Closed with something of ours unread.
            Err(_) => return all,
        }
        assert!(start.elapsed() < LONG, "the connection stays open");
    }
}

fn refusal(bytes: &[u8]) -> String {
    match decode_greeting(bytes) {
        Ok(Some((Greeting::Refusal(text), _))) => text,
        other => panic!("no refusal: {other:?}"),
    }
}

/// Says `bytes`, expects to be refused with, and the node to log, all of these texts.
#[track_caller]
fn refused(bytes: &[u8], texts: &[&str]) {
    let (mut c, _third) = two_of_three();
    let mut stream = dial(&c, 0);
    stream.write_all(bytes).unwrap();
    let text = refusal(&until_closed(&mut c, &mut stream));
    texts.iter().for_each(|t| assert!(text.contains(t), "no \"{t}\" in: {text}"));
    assert!(c.noticed(0, &["was refused"]));
    unharmed(&mut c);
}

#[track_caller]
fn unharmed(c: &mut Cluster) {
    assert!(c.runs_with(&[0, 1]));
    c.lock(1, "still", Mode::EX);
}

type Change = fn(&mut Introduction);

#[test]
fn a_peer_of_another_version_is_told_both_versions() {
    let mut bytes = greeting(introduction(3, 1));
    bytes[8] = 9;
    let ours = SPOKEN.to_string();
    refused(&bytes, &["node 3", "version 9", "node 1", &ours, "upgrade node 1"]);
    // One of before introductions were as they are now.
    bytes[8] = 2;
    refused(&bytes, &["node 1", "version 2", &ours, "upgrade the older"]);
}

#[test]
fn strangers_are_told_what_is_wrong_and_what_to_do() {
    let make = |change: Change| {
        let (c, _third) = two_of_three();
        let mut i = introduction(3, 1);
        change(&mut i);
        (c, _third, greeting(i))
    };
    let cases: [(Change, &[&str]); 6] = [
        (|i| i.cluster = "other".into(), &["\"other\"", "\"test\"", "correct"]),
        (|i| i.to = NodeId(2), &["node 3", "looked for node 2", "node 1", "correct the list"]),
        (|i| i.membership ^= 1, &["node 3", "node 1", "different kinds", "same key"]),
        (|i| i.shards = 4, &["shard 0 of 4", "shard 0 of 1", "same number of shards"]),
        (|i| i.node = NodeId(1), &["node 1", "same id", "its own"]),
        (|i| i.node = NodeId(9), &["node 9", "cluster join 9", "add it"]),
    ];
    for (change, texts) in cases {
        let (mut c, _third, bytes) = make(change);
        let mut stream = dial(&c, 0);
        stream.write_all(&bytes).unwrap();
        let text = refusal(&until_closed(&mut c, &mut stream));
        texts.iter().for_each(|t| assert!(text.contains(t), "no \"{t}\" in: {text}"));
        assert!(c.noticed(0, &["was refused"]));
        unharmed(&mut c);
    }
}

/// A node may be admitted and not admit the other: its refusal comes where frames would follow.
#[test]
fn a_refusal_after_the_introductions_is_heard_as_what_it_is() {
    let (mut c, _third) = two_of_three();
    let mut stream = dial(&c, 0);
    stream.write_all(&greeting(introduction(3, 1))).unwrap();
    c.wait("the connection", |c| c.noticed(0, &["connected to node 3"]));
    let mut no = Vec::new();
    encode_greeting(&mut no, &Greeting::Refusal("node 3 wants nobody\u{1b}[2J".into()));
    // However the network cuts it.
    for byte in &no {
        stream.write_all(&[*byte]).unwrap();
        c.turn();
    }
    until_closed(&mut c, &mut stream);
    assert!(c.noticed(0, &["node 3 refuses this node", "wants nobody\\u{1b}[2J"]));
    assert!(!c.noticed(0, &["a frame of"]), "the refusal was taken for a frame");
    let error = c.nodes[0].engine.as_ref().unwrap().status().peers[1].error.clone();
    assert!(error.is_some_and(|e| e.contains("refused by node 3: node 3 wants nobody")));
    unharmed(&mut c);
}

/// Both sides of a refusal may have something on the way. A side that closes with unread input discards its own last
/// output.
#[test]
fn a_refusal_is_read_by_who_goes_on_talking() {
    let (mut c, _third) = two_of_three();
    let mut stream = dial(&c, 0);
    let mut i = introduction(3, 1);
    i.membership ^= 1;
    stream.write_all(&greeting(i)).unwrap();
    c.wait("the refusal", |c| c.noticed(0, &["was refused"]));
    for _ in 0..3 {
        // Comes after the refusal was written, and is unread when it is.
        stream.write_all(&[0; 512]).unwrap();
        c.turn();
    }
    assert!(refusal(&until_closed(&mut c, &mut stream)).contains("same key"));
}

/// Every machine that reaches the port names its cluster, and that name goes into the log.
#[test]
fn the_name_of_a_strangers_cluster_is_shown_as_text() {
    let (mut c, _third) = two_of_three();
    let mut i = introduction(3, 1);
    i.cluster = format!("\u{1b}[2J\nerror: all is lost\u{202e}{}", "x".repeat(3000));
    let mut stream = dial(&c, 0);
    stream.write_all(&greeting(i)).unwrap();
    let text = refusal(&until_closed(&mut c, &mut stream));
    assert!(text.contains("\\u{1b}[2J\\nerror") && text.len() < 400, "{text}");
    let notices = c.nodes[0].events.iter().filter_map(|e| match e {
        lockify_node::HostEvent::Notice(n) => Some(&n.text),
        _ => None,
    });
    for text in notices {
        assert_eq!(*text, lockify_trust::printable(text));
    }
}

/// Without keys, anybody may come and go as a node: he does not fill the log.
#[test]
fn who_comes_again_and_again_is_not_told_of_each_time() {
    let (mut c, listeners) = Cluster::empty(3);
    c.lease = 10 * LONG;
    c.start(0, listeners.into_iter().next());
    let began = std::time::Instant::now();
    let connected = |c: &Cluster| c.nodes[0].engine.as_ref().unwrap().status().peers[1].connected;
    // No more at once than the limits admit.
    for _ in 0..40 {
        let mut stream = dial(&c, 0);
        stream.write_all(&greeting(introduction(3, 1))).unwrap();
        c.wait("the connection", connected);
        drop(stream);
        c.wait("its end", |c| !connected(c));
    }
    let told = c.nodes[0].events.iter().filter(
        |e| matches!(e, lockify_node::HostEvent::Notice(n) if n.text.contains("connected to node")),
    );
    // Eight at once, and as many a second.
    assert!(told.count() as u64 <= 9 + 8 * began.elapsed().as_secs());
}

#[test]
fn a_second_process_with_the_id_of_a_connected_node_is_refused() {
    let mut c = Cluster::new(3);
    let mut stream = dial(&c, 0);
    stream.write_all(&greeting(introduction(3, 1))).unwrap();
    let text = refusal(&until_closed(&mut c, &mut stream));
    for t in ["node 3", "node 1", "connected", "two processes have one id", "its own"] {
        assert!(text.contains(t), "no \"{t}\" in: {text}");
    }
    assert!(c.noticed(0, &["was refused", "two processes have one id"]));
    assert!(c.runs_with(&[0, 1, 2]));
    c.lock(2, "still", Mode::EX);
}

#[test]
fn one_address_cannot_be_used_twice() {
    let c = Cluster::new(2);
    match NodeEngine::new(c.config(0)) {
        Err(e @ NodeError::Listen { .. }) => {
            assert!(e.to_string().contains("running already"), "{e}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_does_not_speak_the_protocol_is_closed_and_logged() {
    let ours = SPOKEN.oldest.to_le_bytes();
    let long = [&MAGIC[..], &ours, &[0, 255, 255, 255, 255]].concat();
    let unknown = [&MAGIC[..], &ours, &[7, 0, 0, 0, 0]].concat();
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0xff; 100_000], long, unknown] {
        let (mut c, _third) = two_of_three();
        let mut stream = dial(&c, 0);
        // The node may have closed before all is written.
        let _ = stream.write_all(&bytes);
        until_closed(&mut c, &mut stream);
        assert!(c.noticed(0, &["was refused", "is the address right"]));
        unharmed(&mut c);
    }
}

#[test]
fn half_a_greeting_and_silence_is_closed_in_time() {
    let (mut c, _third) = two_of_three();
    let mut stream = dial(&c, 0);
    stream.write_all(&MAGIC[..5]).unwrap();
    assert!(until_closed(&mut c, &mut stream).is_empty());
    unharmed(&mut c);
}

/// Introduces itself as node 3, then says `bytes`, and expects a log line with these texts.
#[track_caller]
fn rejected(bytes: &[u8], texts: &[&str]) {
    let (mut c, _third) = two_of_three();
    let mut stream = dial(&c, 0);
    stream.write_all(&greeting(introduction(3, 1))).unwrap();
    c.wait("the connection", |c| c.noticed(0, &["connected to node 3"]));
    stream.write_all(bytes).unwrap();
    let answer = until_closed(&mut c, &mut stream);
    assert!(matches!(decode_greeting(&answer), Ok(Some((Greeting::Introduction(_), _)))));
    let texts = [&["node 3 sent", "connection was closed"], texts].concat();
    assert!(c.noticed(0, &texts), "{texts:?}: {:?}", c.nodes[0].events);
    unharmed(&mut c);
}

#[test]
fn oversized_frames_close_the_connection() {
    rejected(&u32::MAX.to_le_bytes(), &["4294967295 bytes", "at most"]);
    rejected(&(MAX_FRAME as u32 + 1).to_le_bytes(), &["at most"]);
}

#[test]
fn frames_that_are_no_packet_close_the_connection() {
    let mut bytes = 40u32.to_le_bytes().to_vec();
    bytes.extend([0xee; 40]);
    rejected(&bytes, &["40 bytes", "not understood"]);
    let mut long = Vec::new();
    encode_packet(&mut long, &Packet::<Payload>::Ack { ack: 0 }).unwrap();
    long[0] += 1;
    long.push(0);
    rejected(&long, &["1 bytes too many"]);
}

#[test]
fn frames_that_the_link_refuses_close_the_connection() {
    let open = || Payload::Open { space: 1, name: "s".into() };
    let mut gap = Vec::new();
    encode_packet(&mut gap, &Packet::Data { seq: 5, ack: 0, payload: open() }).unwrap();
    rejected(&gap, &["message 5", "1 was expected"]);
    let mut nonsense = Vec::new();
    encode_packet(&mut nonsense, &Packet::<Payload>::Ack { ack: 99 }).unwrap();
    rejected(&nonsense, &["99"]);
}

#[test]
fn a_truncated_frame_and_a_broken_connection_do_no_harm() {
    let (mut c, _third) = two_of_three();
    let mut stream = dial(&c, 0);
    stream.write_all(&greeting(introduction(3, 1))).unwrap();
    stream.write_all(&100u32.to_le_bytes()).unwrap();
    stream.write_all(&[1; 50]).unwrap();
    c.wait("the connection", |c| c.noticed(0, &["connected to node 3"]));
    drop(stream);
    c.wait("its end", |c| !c.nodes[0].engine.as_ref().unwrap().status().peers[1].connected);
    c.wait("a view of two", |c| c.runs_with(&[0, 1]));
    unharmed(&mut c);
}

#[test]
fn contradictory_configurations_are_refused() {
    let (list, _listeners) = listeners(2);
    let text = |config: NodeConfig| NodeEngine::new(config).unwrap_err().to_string();
    assert!(text(NodeConfig::new("c", NodeId(1), list.clone())).contains("state_dir is missing"));
    let missing = NodeConfig::new("c", NodeId(9), list.clone());
    assert!(text(missing).contains("node 9 is not in the list"));
    let mut twice = list.clone();
    twice[1].node = NodeId(1);
    assert!(text(NodeConfig::new("c", NodeId(1), twice)).contains("two nodes"));
    assert!(text(NodeConfig::new("", NodeId(1), list.clone())).contains("1 to 64 bytes"));
    let mut shards = NodeConfig::new("c", NodeId(1), list);
    (shards.shard, shards.shard_index) = (Some(ShardGroup::new(2)), 2);
    assert!(text(shards).contains("shard 2 of 2"));
}

/// Data and the end of a connection that come together are one event.
#[test]
fn the_end_of_a_connection_is_seen_behind_the_last_data() {
    let (mut c, listeners) = Cluster::empty(3);
    c.lease = 10 * LONG;
    c.start(0, listeners.into_iter().next());
    for _ in 0..20 {
        let mut stream = dial(&c, 0);
        stream.write_all(&greeting(introduction(3, 1))).unwrap();
        c.wait("the connection", |c| {
            c.nodes[0].engine.as_ref().unwrap().status().peers[1].connected
        });
        let mut bytes = Vec::new();
        encode_packet(&mut bytes, &Packet::<Payload>::Ack { ack: 0 }).unwrap();
        stream.write_all(&bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let start = std::time::Instant::now();
        while c.nodes[0].engine.as_ref().unwrap().status().peers[1].connected {
            c.engine(0).run_once(Some(Duration::from_millis(1)), &mut Vec::new()).unwrap();
            // Long before any timer would have the socket read again (a quarter of the lease).
            assert!(start.elapsed() < LONG, "the end was not seen");
        }
    }
}
