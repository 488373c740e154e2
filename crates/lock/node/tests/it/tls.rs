//! Nodes that prove who they are, and what happens to those that cannot.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::common::*;
use lockify_core::{Mode, NodeId};
use lockify_node::wire::{Greeting, MAX_GREETING, decode_greeting};
use lockify_node::{HostEvent, NodeConfig, NodeEngine, Security, StateDir};
use lockify_trust::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use lockify_trust::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use lockify_trust::rustls::{
    self, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, SignatureScheme,
};
use lockify_trust::{Authority, Credentials, Keyring, Lifetime, SharedKey};

const YEAR: Lifetime = Lifetime::Days(365);

fn authority() -> Authority {
    Authority::new("test", YEAR).unwrap()
}

/// A node's credentials: the first authority signs its certificate, and it trusts all of them.
fn credentials(authorities: &[&Authority], node: u32) -> Credentials {
    let trusted: String = authorities.iter().map(|a| a.certificate()).collect();
    let own = authorities[0].issue("test", node, YEAR).unwrap();
    Credentials::new("test", node, &own, &trusted).unwrap()
}

fn keyring(authorities: &[&Authority], node: u32) -> Arc<Keyring> {
    Arc::new(Keyring::new(credentials(authorities, node)))
}

fn secure(c: &mut Cluster, authority: &Authority) {
    let nodes = 1..=c.nodes.len() as u32;
    c.security = nodes.map(|n| Security::Tls(keyring(&[authority], n))).collect();
}

/// Nodes 1 and 2 of three run, with TLS; the test plays node 3, or says that it does.
fn two_of_three(authority: &Authority) -> (Cluster, TcpListener) {
    let mut c = Cluster::with(3, |c| secure(c, authority));
    c.kill(2);
    let third = TcpListener::bind(c.address(2)).unwrap();
    c.wait("a view of two", |c| c.runs_with(&[0, 1]));
    c.forget_notices();
    (c, third)
}

#[track_caller]
fn unharmed(c: &mut Cluster) {
    c.wait("a view of two", |c| c.runs_with(&[0, 1]));
    assert!(!c.noticed(0, &["connected to node 3"]), "the stranger got in");
    let (id, _) = c.lock(1, "still", Mode::EX);
    c.unlock(1, id);
}

/// The other end of a connection to a node, in the test's hands.
struct Peer {
    stream: TcpStream,
    session: Connection,
    /// All that was put on the wire.
    sent: Vec<u8>,
    /// All that the node said.
    heard: Vec<u8>,
    open: bool,
}

impl Peer {
    fn dial(c: &Cluster, session: Connection) -> Peer {
        Peer::new(TcpStream::connect(c.address(0)).unwrap(), session)
    }

    fn new(stream: TcpStream, session: Connection) -> Peer {
        stream.set_nonblocking(true).unwrap();
        Peer { stream, session, sent: Vec::new(), heard: Vec::new(), open: true }
    }

    fn say(&mut self, bytes: &[u8]) {
        self.session.writer().write_all(bytes).unwrap();
    }

    /// Writes and reads what can be, and lets the nodes have a turn.
    fn turn(&mut self, c: &mut Cluster) {
        while self.session.wants_write() {
            let before = self.sent.len();
            self.session.write_tls(&mut self.sent).unwrap();
            // The node may have hung up.
            self.open &= self.stream.write_all(&self.sent[before..]).is_ok();
        }
        c.turn();
        match self.session.read_tls(&mut self.stream) {
            Ok(0) => self.open = false,
            Ok(_) => self.open &= self.session.process_new_packets().is_ok(),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.open = false,
        }
        let mut plain = [0; 4096];
        while let Ok(n @ 1..) = self.session.reader().read(&mut plain) {
            self.heard.extend_from_slice(&plain[..n]);
        }
    }

    /// Goes on until the node hangs up.
    #[track_caller]
    fn until_closed(&mut self, c: &mut Cluster) {
        let start = Instant::now();
        while self.open {
            self.turn(c);
            assert!(start.elapsed() < LONG, "the connection stays open");
        }
    }

    #[track_caller]
    fn until(&mut self, c: &mut Cluster, what: &str, done: impl Fn(&Cluster) -> bool) {
        let start = Instant::now();
        while !done(c) {
            self.turn(c);
            assert!(start.elapsed() < LONG, "waited in vain: {what}");
        }
    }

    fn refusal(&self) -> String {
        match decode_greeting(&self.heard) {
            Ok(Some((Greeting::Refusal(text), _))) => text,
            other => panic!("no refusal: {other:?}"),
        }
    }
}

/// Node 3 itself, connected to node 1.
#[track_caller]
fn true_node(c: &mut Cluster, authority: &Authority) -> Peer {
    let mut peer = Peer::dial(c, credentials(&[authority], 3).dial(1).unwrap());
    peer.say(&greeting(introduction(3, 1)));
    peer.until(c, "the true node", |c| c.noticed(0, &["connected to node 3"]));
    peer
}

/// Ends node 3's connection, and forgets what node 1 said until then.
#[track_caller]
fn hang_up(c: &mut Cluster, peer: Peer) {
    drop(peer);
    c.wait("its end", |c| !connected(c));
    c.nodes[0].events.clear();
}

/// Returns true if node 1 is connected to node 3.
fn connected(c: &Cluster) -> bool {
    c.nodes[0].engine.as_ref().unwrap().status().peers[1].connected
}

/// Believes every server: an attacker does not care whom it attacks.
#[derive(Debug)]
struct Gullible;

impl ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

/// An attacker's session, that shows this identity or nothing.
fn attack(identity: Option<&str>) -> Connection {
    use rustls::pki_types::PrivateKeyDer;
    use rustls::pki_types::pem::PemObject as _;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Gullible));
    let config = match identity {
        None => config.with_no_client_auth(),
        Some(pem) => {
            let chain = CertificateDer::pem_slice_iter(pem.as_bytes());
            let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
            let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let name = ServerName::try_from("victim.example").unwrap();
    ClientConnection::new(Arc::new(config), name).unwrap().into()
}

#[test]
fn a_cluster_with_certificates_locks_and_recovers() {
    let authority = authority();
    let mut c = Cluster::with(3, |c| secure(c, &authority));
    let (id, token) = c.lock(0, "a", Mode::EX);
    c.unlock(0, id);
    let (_, later) = c.lock(2, "a", Mode::EX);
    assert!(later > token);
    c.kill(2);
    c.wait("a view of two", |c| c.runs_with(&[0, 1]));
    c.lock(1, "a", Mode::EX);
    c.start(2, None);
    c.wait("a view of three", |c| c.runs_with(&[0, 1, 2]));
}

/// More than a TLS record, than its buffers and than a socket takes at once, in both directions.
#[test]
fn much_comes_through_whole_and_in_order() {
    let authority = authority();
    let mut c = Cluster::with(2, |c| {
        secure(c, &authority);
        c.lease = LONG;
    });
    let mut waiting = Vec::new();
    for k in 0..20_000 {
        let node = k % 2;
        waiting.push((node, c.call(node, lock(&format!("resource {k}"), Mode::PR)).unwrap()));
    }
    let granted = |c: &Cluster| {
        let completed = |n: &Node| {
            let done = |e: &&HostEvent| matches!(e, HostEvent::Completed { .. });
            n.events.iter().filter(done).count()
        };
        c.nodes.iter().map(completed).sum::<usize>()
    };
    c.wait("all grants", |c| granted(c) == waiting.len());
    // An answer of megabytes, in parts that wait for the socket. Without pages, a node tells of 16,384 at most.
    let query = lockify_node::Query::Locks { space: "s".into() };
    c.engine(0).query(query, LONG);
    c.wait("the answer", |c| {
        c.saw(0, |e| match e {
            HostEvent::Answered { answer, .. } => {
                assert!(answer.resources.len() >= 16_000, "{}", answer.resources.len());
                true
            }
            _ => false,
        })
    });
    assert_eq!(c.engine(0).stats().refused, 0);
}

#[test]
fn a_cluster_with_a_shared_key_locks_and_another_key_does_not_get_in() {
    let key = SharedKey::generate().unwrap().authority("test").unwrap();
    let (mut c, _third) = two_of_three(&key);
    c.lock(0, "a", Mode::EX);
    let other = SharedKey::generate().unwrap().authority("test").unwrap();
    let stranger = other.issue("test", 3, Lifetime::Endless).unwrap();
    let mut peer = Peer::dial(&c, attack(Some(&stranger)));
    peer.say(&greeting(introduction(3, 1)));
    peer.until_closed(&mut c);
    assert!(c.noticed(0, &["was refused", "not signed by an authority", "cluster key"]));
    unharmed(&mut c);
}

#[test]
fn who_shows_no_good_certificate_is_refused() {
    let ours = authority();
    let other = authority();
    let now = SystemTime::now();
    let day = Duration::from_secs(24 * 3600);
    let expired = Lifetime::Between(now - 3 * day, now - day);
    let early = Lifetime::Between(now + day, now + 3 * day);
    let cases: [(Option<String>, &[&str]); 4] = [
        (None, &["no certificate", "add-node"]),
        (Some(other.issue("test", 3, YEAR).unwrap()), &["not signed by an authority", "ca.pem"]),
        (Some(ours.issue("test", 3, expired).unwrap()), &["expired", "renew"]),
        (Some(ours.issue("test", 3, early).unwrap()), &["not valid yet", "clocks"]),
    ];
    let (mut c, _third) = two_of_three(&ours);
    for (identity, texts) in cases {
        c.nodes[0].events.clear();
        let mut peer = Peer::dial(&c, attack(identity.as_deref()));
        peer.say(&greeting(introduction(3, 1)));
        peer.until_closed(&mut c);
        assert!(peer.heard.is_empty(), "a stranger was told something: {:?}", peer.heard);
        let texts = [&["was refused"], texts].concat();
        assert!(c.noticed(0, &texts), "{texts:?}: {:?}", c.nodes[0].events);
        unharmed(&mut c);
    }
}

#[test]
fn a_node_cannot_introduce_itself_as_another_one() {
    let ours = authority();
    let cases = [
        // Node 2's own certificate, and those of the same authority for other clusters and nodes.
        (ours.issue("test", 2, YEAR).unwrap(), 3),
        (ours.issue("test", 33, YEAR).unwrap(), 3),
        (ours.issue("TEST", 3, YEAR).unwrap(), 3),
        (ours.issue("test", 3, YEAR).unwrap(), 2),
    ];
    let (mut c, _third) = two_of_three(&ours);
    for (identity, node) in cases {
        c.nodes[0].events.clear();
        let mut peer = Peer::dial(&c, attack(Some(&identity)));
        peer.say(&greeting(introduction(node, 1)));
        peer.until_closed(&mut c);
        let text = peer.refusal();
        assert!(text.contains("certificate of another node"), "{text}");
        assert!(c.noticed(0, &["was refused", "certificate of another node"]));
        unharmed(&mut c);
    }
}

/// Node 1 dials node 3, and somebody else has its address.
#[test]
fn who_answers_at_a_nodes_address_must_be_that_node() {
    let (ours, other) = (authority(), authority());
    let wrong_node = credentials(&[&ours], 2);
    let wrong_authority = credentials(&[&other], 3);
    for (impostor, texts) in [
        (wrong_node, ["another node", "list of nodes"]),
        (wrong_authority, ["not signed by an authority", "ca.pem"]),
    ] {
        let (mut c, third) = two_of_three(&ours);
        third.set_nonblocking(true).unwrap();
        // Nodes 1 and 2 both dial, and have done so before somebody answered.
        let complained = |c: &Cluster| {
            (0..2).any(|i| c.noticed(i, &["node 3", "was refused", texts[0], texts[1]]))
        };
        let mut victims = Vec::new();
        let start = Instant::now();
        while !complained(&c) {
            c.turn();
            if let Ok((stream, _)) = third.accept() {
                victims.push(Peer::new(stream, impostor.accept().unwrap()));
            }
            victims.iter_mut().filter(|v| v.open).for_each(|v| v.turn(&mut c));
            assert!(start.elapsed() < LONG, "nobody complains: {:?}", c.nodes[0].events);
        }
        assert!(victims.iter().all(|v| v.heard.is_empty()), "the impostor was told something");
        unharmed(&mut c);
    }
}

#[test]
fn who_speaks_plain_text_is_refused_by_tls_and_the_other_way_round() {
    let ours = authority();
    let (mut c, _third) = two_of_three(&ours);
    let mut stream = TcpStream::connect(c.address(0)).unwrap();
    stream.write_all(&greeting(introduction(3, 1))).unwrap();
    c.wait("a complaint", |c| c.noticed(0, &["was refused", "does not speak TLS", "[security]"]));
    unharmed(&mut c);

    let mut c = Cluster::new(2);
    let mut peer = Peer::dial(&c, attack(None));
    peer.until_closed(&mut c);
    assert!(c.noticed(0, &["was refused", "speaks TLS", "[security]"]));
}

#[test]
fn a_second_process_with_a_stolen_certificate_is_refused_while_the_first_is_there() {
    let ours = authority();
    let mut c = Cluster::with(3, |c| secure(c, &ours));
    let mut peer = Peer::dial(&c, credentials(&[&ours], 3).dial(1).unwrap());
    peer.say(&greeting(introduction(3, 1)));
    peer.until_closed(&mut c);
    assert!(peer.refusal().contains("two processes have one id"));
    assert!(c.runs_with(&[0, 1, 2]));
    c.lock(2, "still", Mode::EX);
}

/// Everything that node 3 has said once, said again.
#[test]
fn recorded_bytes_are_worth_nothing() {
    let ours = authority();
    let (mut c, _third) = two_of_three(&ours);
    let mut peer = true_node(&mut c, &ours);
    let recorded = std::mem::take(&mut peer.sent);
    assert!(recorded.len() > 500, "{}", recorded.len());
    hang_up(&mut c, peer);

    let refused = c.engine(0).stats().refused;
    // At once, and as the answers come.
    for piece in [recorded.len(), 300] {
        let mut stream = TcpStream::connect(c.address(0)).unwrap();
        for bytes in recorded.chunks(piece) {
            // The node may have hung up already.
            let _ = stream.write_all(bytes);
            (0..20).for_each(|_| c.turn());
            assert!(!connected(&c), "a recording got in");
        }
        stream.set_nonblocking(true).unwrap();
        let start = Instant::now();
        while matches!(stream.read(&mut [0; 4096]), Err(e) if e.kind() == ErrorKind::WouldBlock)
            || matches!(stream.read(&mut [0; 4096]), Ok(1..))
        {
            c.turn();
            assert!(start.elapsed() < LONG, "the connection stays open");
        }
    }
    assert_eq!(c.engine(0).stats().refused, refused + 2);
    c.wait("a view of two", |c| c.runs_with(&[0, 1]));
    unharmed(&mut c);
}

/// Handshakes and sessions that are cut, late or damaged anywhere.
#[test]
fn damaged_and_truncated_tls_does_no_harm() {
    let ours = authority();
    let (mut c, _third) = two_of_three(&ours);
    let mut peer = true_node(&mut c, &ours);
    let recorded = peer.sent.clone();
    // In the middle of a record of an established session.
    peer.say(&[1; 1000]);
    let mut record = Vec::new();
    peer.session.write_tls(&mut record).unwrap();
    peer.stream.write_all(&record[..500]).unwrap();
    c.turn();
    hang_up(&mut c, peer);

    let mut seed = 0x5851_f42d_4c95_7f2d_u64;
    let mut below = |n: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % n as u64) as usize
    };
    for _ in 0..300 {
        let mut bytes = recorded.clone();
        match below(3) {
            0 => bytes.truncate(below(bytes.len())),
            1 => (0..=below(4)).for_each(|_| bytes[below(recorded.len())] = below(256) as u8),
            _ => bytes = (0..below(300)).map(|_| below(256) as u8).collect(),
        }
        let mut stream = TcpStream::connect(c.address(0)).unwrap();
        let _ = stream.write_all(&bytes);
        c.turn();
        c.turn();
        c.nodes[0].events.retain(|e| {
            !matches!(e, HostEvent::Notice(n)
            if n.text.contains("was refused") || n.text.contains("left out")
                || n.text.contains("too many"))
        });
    }
    c.wait("a view of two", |c| c.runs_with(&[0, 1]));
    unharmed(&mut c);
}

/// An established, damaged session ends; what came before the damage counts, nothing after it.
#[test]
fn a_changed_byte_ends_the_session() {
    let ours = authority();
    let (mut c, _third) = two_of_three(&ours);
    let mut peer = true_node(&mut c, &ours);
    peer.say(&[7; 100]);
    let mut record = Vec::new();
    peer.session.write_tls(&mut record).unwrap();
    record[60] ^= 1;
    peer.stream.write_all(&record).unwrap();
    peer.until_closed(&mut c);
    assert!(c.noticed(0, &["node 3", "was refused", "TLS failed"]), "{:?}", c.nodes[0].events);
    assert_eq!(c.engine(0).stats().rejected, 0, "the frame was looked at");
}

#[test]
fn who_dawdles_in_the_handshake_or_with_the_introduction_is_dropped_in_time() {
    let ours = authority();
    let (mut c, _third) = two_of_three(&ours);
    let mut hello = Vec::new();
    attack(None).write_tls(&mut hello).unwrap();
    // A byte now and then: each is progress, and none resets the time.
    let mut slow = TcpStream::connect(c.address(0)).unwrap();
    slow.set_nonblocking(true).unwrap();
    let start = Instant::now();
    for byte in hello.iter().cycle().take(100_000) {
        if slow.write_all(&[*byte]).is_err() || matches!(slow.read(&mut [0]), Ok(0)) {
            break;
        }
        let pause = Instant::now();
        while pause.elapsed() < Duration::from_millis(30) {
            c.turn();
        }
        assert!(start.elapsed() < LONG, "the dawdler stays");
    }
    // A node of the cluster that has proved who it is, and then says nothing.
    let mut silent = Peer::dial(&c, credentials(&[&ours], 3).dial(1).unwrap());
    silent.until_closed(&mut c);
    // And one that announces an introduction that never ends.
    let mut huge = Peer::dial(&c, credentials(&[&ours], 3).dial(1).unwrap());
    let mut head = greeting(introduction(3, 1))[..15].to_vec();
    head[11..15].copy_from_slice(&(MAX_GREETING as u32 + 1).to_le_bytes());
    huge.say(&head);
    huge.until_closed(&mut c);
    assert!(c.noticed(0, &["was refused", "malformed"]));
    unharmed(&mut c);
}

#[test]
fn floods_of_connections_keep_nobody_out() {
    let ours = authority();
    let (mut c, third) = two_of_three(&ours);
    let mut flood = Vec::new();
    let start = Instant::now();
    let mut hello = Vec::new();
    attack(None).write_tls(&mut hello).unwrap();
    for k in 0..1500 {
        let mut stream = TcpStream::connect(c.address(0)).unwrap();
        // Some say nothing, some half of a handshake's beginning, some all of it.
        let _ = stream.write_all(&hello[..hello.len() * (k % 3) / 2]);
        flood.push(stream);
        c.turn();
        if flood.len() > 200 {
            flood.remove(0);
        }
    }
    let stats = c.engine(0).stats();
    assert!(stats.turned_away > 0 && stats.connections < 1500, "{stats:?}");
    let lines = |c: &Cluster| {
        let notice = |e: &&HostEvent| matches!(e, HostEvent::Notice(_));
        c.nodes[0].events.iter().filter(notice).count()
    };
    // Some lines a second, however many connections.
    let most = 50 + 20 * start.elapsed().as_secs() as usize;
    assert!(lines(&c) < most, "{} lines in the log", lines(&c));
    // The true node 3 comes while the flood's connections are still there.
    c.start(2, Some(third));
    c.wait("a view of three", |c| c.runs_with(&[0, 1, 2]));
    c.lock(2, "still", Mode::EX);
}

#[test]
fn keys_and_authorities_are_replaced_without_a_stop() {
    let (old, new) = (authority(), authority());
    let (mut c, listeners) = Cluster::empty(3);
    let rings: Vec<_> = (1..=3).map(|n| keyring(&[&old], n)).collect();
    c.security = rings.iter().map(|r| Security::Tls(r.clone())).collect();
    // Longer than a loaded machine may stop: a halt would make connections anew.
    c.lease = Duration::from_secs(20);
    for (i, l) in listeners.into_iter().enumerate() {
        c.start(i, Some(l));
    }
    c.wait("a view of three", |c| c.runs_with(&[0, 1, 2]));
    let (id, _) = c.lock(0, "held all the time", Mode::EX);
    let before: Vec<u64> = (0..3).map(|i| c.engine(i).stats().connections).collect();
    let use_now = |authorities: &[&Authority]| {
        for (node, ring) in (1..).zip(&rings) {
            ring.replace(credentials(authorities, node));
        }
    };
    // Both are trusted; then all show certificates of the new one; then the old one is forgotten.
    for authorities in [&[&old, &new][..], &[&new, &old], &[&new]] {
        use_now(authorities);
        (0..50).for_each(|_| c.turn());
        c.lock(1, "meanwhile", Mode::PR);
    }
    assert_eq!((0..3).map(|i| c.engine(i).stats().connections).collect::<Vec<_>>(), before);
    c.unlock(0, id);
    // A node that comes now finds its place with the new ones only.
    c.kill(2);
    c.wait("a view of two", |c| c.runs_with(&[0, 1]));
    let current = std::mem::replace(&mut c.security[2], Security::Tls(keyring(&[&old], 3)));
    c.start(2, None);
    c.wait("the old one is refused", |c| {
        c.nodes[2].engine.as_ref().unwrap().status().peers.iter().all(|p| p.error.is_some())
            || c.noticed(0, &["node 3", "was refused"])
    });
    assert!(c.runs_with(&[0, 1]));
    c.kill(2);
    c.security[2] = current;
    c.start(2, None);
    c.wait("a view of three", |c| c.runs_with(&[0, 1, 2]));
}

#[test]
fn plain_text_leaves_the_machine_only_if_that_is_said() {
    let (mut list, _listeners) = listeners(2);
    let config = |list: &[lockify_node::NodeAddress]| NodeConfig {
        state_dir: StateDir::Memory,
        ..NodeConfig::new("test", NodeId(1), list.to_vec())
    };
    list[1].address = "192.0.2.7:7430".parse().unwrap();
    let e = NodeEngine::new(config(&list)).unwrap_err().to_string();
    for text in ["node 2", "192.0.2.7", "lockify cluster", "[security]"] {
        assert!(e.contains(text), "no {text:?} in: {e}");
    }
    drop(_listeners);
    let mut said = config(&list);
    said.security = Security::PlainText;
    NodeEngine::new(said).unwrap();
}
