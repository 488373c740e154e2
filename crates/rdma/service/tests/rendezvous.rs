//! A home and participants over TCP: the right to take part, the messages, and the fate of misbehaving peers.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use lockify_remote::rendezvous::{
    Event, Hosting, Identity, MAX_BYTES, Rendezvous, RendezvousError, RendezvousHost, Welcome,
};
use lockify_trust::{CaFolder, Lifetime, NodeFiles, Source, generate_key_file};

/// No test waits this long for an expected event.
const SOON: Duration = Duration::from_secs(30);
const YEAR: Lifetime = Lifetime::Days(365);

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn plain() -> Identity {
    Identity::loopback("lockify", 0)
}

fn hosting(identity: Identity) -> Hosting {
    Hosting { address: any(), identity, places: 8, offer: b"the table".to_vec(), log: |_| () }
}

fn open(identity: Identity) -> RendezvousHost {
    RendezvousHost::open(hosting(identity)).unwrap()
}

fn join(host: &RendezvousHost) -> (Rendezvous, Welcome) {
    Rendezvous::join(host.address(), &plain(), 0).unwrap()
}

fn told(from: u16, bytes: &[u8]) -> Event {
    Event::Told { from, bytes: bytes.to_vec() }
}

/// The error of an attempt to join.
fn refused(address: SocketAddr, identity: &Identity, server: u32) -> String {
    Rendezvous::join(address, identity, server).map(|_| ()).unwrap_err().to_string()
}

fn keys(files: &NodeFiles) -> Source {
    Source::Certificates { ca: files.ca.clone(), identity: files.identity.clone() }
}

fn shared(path: &Path) -> Source {
    generate_key_file(path).unwrap();
    Source::SharedKey(path.to_owned())
}

#[test]
fn everybody_hears_of_everybody_and_can_tell_everybody() {
    let host = open(plain());
    let (mut a, welcome) = join(&host);
    assert_eq!(welcome, Welcome { rank: 1, offer: b"the table".to_vec() });
    assert_eq!(host.next(SOON).unwrap(), Some(Event::Joined { rank: 1 }));
    let (mut b, welcome) = join(&host);
    assert_eq!((welcome.rank, b.rank(), host.rank()), (2, 2, 0));
    assert_eq!(b.next(SOON).unwrap(), Some(Event::Joined { rank: 1 }));
    assert_eq!(a.next(SOON).unwrap(), Some(Event::Joined { rank: 2 }));
    assert_eq!(host.next(SOON).unwrap(), Some(Event::Joined { rank: 2 }));

    let long = vec![7; MAX_BYTES];
    a.send(2, b"from a").unwrap();
    a.send(2, &long).unwrap();
    a.send(0, b"to the home").unwrap();
    assert_eq!(b.next(SOON).unwrap(), Some(told(1, b"from a")));
    assert_eq!(b.next(SOON).unwrap(), Some(told(1, &long)));
    assert_eq!(host.next(SOON).unwrap(), Some(told(1, b"to the home")));
    host.send(2, b"from the home").unwrap();
    assert_eq!(b.next(SOON).unwrap(), Some(told(0, b"from the home")));
    assert_eq!(b.next(Duration::ZERO).unwrap(), None);

    assert!(matches!(a.send(0, &[0; MAX_BYTES + 1]), Err(RendezvousError::TooLong(_))));
    for nobody in [1, 3] {
        assert!(matches!(a.send(nobody, b"?"), Err(RendezvousError::Nobody(_))));
    }
    assert!(matches!(host.send(0, b"?"), Err(RendezvousError::Nobody(0))));
}

#[test]
fn who_leaves_is_gone_and_its_rank_is_nobody_for_long() {
    let host = open(plain());
    let (a, _) = join(&host);
    let (mut b, _) = join(&host);
    assert_eq!(b.next(SOON).unwrap(), Some(Event::Joined { rank: 1 }));
    drop(a);
    // B has not heard yet that rank 1 is gone: its message reaches nobody.
    b.send(1, b"lost").unwrap();
    assert_eq!(b.next(SOON).unwrap(), Some(Event::Gone { rank: 1 }));
    assert!(matches!(b.send(1, b"?"), Err(RendezvousError::Nobody(1))));
    let (c, welcome) = join(&host);
    assert_eq!(welcome.rank, 3);
    drop(c);
    let seen: Vec<_> = (0..5).map(|_| host.next(SOON).unwrap().unwrap()).collect();
    let joined = |rank| Event::Joined { rank };
    let gone = |rank| Event::Gone { rank };
    assert_eq!(seen, [joined(1), joined(2), gone(1), joined(3), gone(3)]);
}

#[test]
fn the_home_says_that_it_ends_and_a_killed_one_says_nothing() {
    let host = open(plain());
    let (mut a, _) = join(&host);
    drop(host);
    assert_eq!(a.next(SOON).unwrap(), Some(Event::Ended));
    let error = a.next(SOON).unwrap_err().to_string();
    assert_eq!(error, "the connection with the memory server is over: it has ended; join again");
    assert!(matches!(a.send(0, b"?"), Err(RendezvousError::Over(_))));

    // A host that welcomes and dies.
    let listener = TcpListener::bind(any()).unwrap();
    let address = listener.local_addr().unwrap();
    let dying = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // A head, and Welcome { rank: 1, offer: [] }.
        stream.write_all(b"LOCKIFYR\x01\0\x03\0\0\0\x02\x01\0").unwrap();
        stream.read_exact(&mut [0; 20]).unwrap();
    });
    let (mut b, _) = Rendezvous::join(address, &plain(), 0).unwrap();
    dying.join().unwrap();
    assert!(matches!(b.next(SOON), Err(RendezvousError::Over(_))));
}

#[test]
fn places_are_limited_and_come_free() {
    let host = RendezvousHost::open(Hosting { places: 1, ..hosting(plain()) }).unwrap();
    let (a, _) = join(&host);
    let error = refused(host.address(), &plain(), 0);
    assert!(error.contains("all 1 places are taken") && error.contains("--clients"), "{error}");
    drop(a);
    let end = Instant::now() + SOON;
    let again = loop {
        match Rendezvous::join(host.address(), &plain(), 0) {
            Ok((_, welcome)) => break welcome,
            Err(e) => assert!(Instant::now() < end, "{e}"),
        }
    };
    assert_eq!(again.rank, 2);
}

#[test]
fn both_sides_prove_who_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let ca = CaFolder::init(&at("ca"), "lockify", YEAR).unwrap();
    let [one, two] = [1, 2].map(|node| keys(&ca.add_node(node, YEAR).unwrap()));
    let other = CaFolder::init(&at("other"), "lockify", YEAR).unwrap();
    let stranger = keys(&other.add_node(2, YEAR).unwrap());
    static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let log = |line: &str| LOG.lock().unwrap().push(line.to_owned());
    let identity = Identity::tls("lockify", 1, &one).unwrap();
    let host = RendezvousHost::open(Hosting { log, ..hosting(identity) }).unwrap();

    let me = Identity::tls("lockify", 2, &two).unwrap();
    let (mut a, _) = Rendezvous::join(host.address(), &me, 1).unwrap();
    assert_eq!(host.next(SOON).unwrap(), Some(Event::Joined { rank: 1 }));
    a.send(0, &[1; MAX_BYTES]).unwrap();
    assert_eq!(host.next(SOON).unwrap(), Some(told(1, &[1; MAX_BYTES])));
    host.send(1, b"secret").unwrap();
    assert_eq!(a.next(SOON).unwrap(), Some(told(0, b"secret")));

    let stranger = Identity::tls("lockify", 2, &stranger).unwrap();
    let shared = Identity::tls("lockify", 2, &shared(&at("key"))).unwrap();
    for (who, server, says) in [
        (&stranger, 1, "is not signed by an authority that this node trusts"),
        (&shared, 1, "is not signed by an authority that this node trusts"),
        // The certificate of node 1 is not that of node 3.
        (&me, 3, "is that of another node or cluster"),
        (&plain(), 1, "it speaks TLS and this side does not: give both the same keys"),
    ] {
        let error = refused(host.address(), who, server);
        assert!(error.contains(says), "{error}");
    }
    // Whom the client trusts, but who does not trust the client: node 2 believes both authorities.
    let both =
        [at("ca").join("ca.pem"), at("other").join("ca.pem")].map(|p| std::fs::read(p).unwrap());
    let bundle = at("both.pem");
    std::fs::write(&bundle, both.concat()).unwrap();
    let gullible = other.add_node(3, YEAR).unwrap();
    let source = Source::Certificates { ca: bundle, identity: gullible.identity };
    let error = refused(host.address(), &Identity::tls("lockify", 3, &source).unwrap(), 1);
    assert!(error.contains("does not trust this node's authority: see its log"), "{error}");
    let found =
        LOG.lock().unwrap().iter().any(|line| line.contains("its certificate is not signed"));
    assert!(found, "{:?}", LOG.lock().unwrap());

    // Keys where the host has none.
    let open = open(Identity::loopback("lockify", 1));
    let error = refused(open.address(), &me, 1);
    assert!(error.contains("it does not speak TLS"), "{error}");
    // Nobody new with the old keys, once they are replaced.
    let dir = tempfile::tempdir().unwrap();
    let next = CaFolder::init(&dir.path().join("ca"), "lockify", YEAR).unwrap();
    let next = keys(&next.add_node(1, YEAR).unwrap()).read("lockify", 1).unwrap();
    let identity = Identity::tls("lockify", 1, &one).unwrap();
    let host = RendezvousHost::open(hosting(identity.clone())).unwrap();
    assert!(Rendezvous::join(host.address(), &me, 1).is_ok());
    identity.keyring().unwrap().replace(next);
    assert!(refused(host.address(), &me, 1).contains("not signed by an authority"));
}

#[test]
fn a_shared_key_will_do() {
    let dir = tempfile::tempdir().unwrap();
    let key = shared(&dir.path().join("key"));
    let host = open(Identity::tls("lockify", 1, &key).unwrap());
    let (_, welcome) =
        Rendezvous::join(host.address(), &Identity::tls("lockify", 9, &key).unwrap(), 1).unwrap();
    assert_eq!(welcome.rank, 1);
}

#[test]
fn errors_say_what_to_do() {
    let free = TcpListener::bind(any()).unwrap().local_addr().unwrap();
    let error = refused(free, &plain(), 0);
    assert!(error.contains("cannot reach") && error.contains("--listen"), "{error}");

    let host = open(plain());
    let error = refused(host.address(), &Identity::loopback("another", 0), 0);
    assert!(error.contains("of cluster \"lockify\", not of \"another\""), "{error}");
    let error = refused(host.address(), &plain(), 5);
    assert!(error.contains("this is node 0, not 5"), "{error}");

    let far: SocketAddr = "192.0.2.1:7430".parse().unwrap();
    for error in [
        refused(far, &plain(), 0),
        RendezvousHost::open(Hosting { address: far, ..hosting(plain()) })
            .err()
            .unwrap()
            .to_string(),
    ] {
        assert!(error.contains("--ca and --identity") && error.contains("--plain-text"), "{error}");
    }
    let taken = Hosting { address: host.address(), ..hosting(plain()) };
    let error = RendezvousHost::open(taken).err().unwrap().to_string();
    assert!(error.contains("cannot listen at"), "{error}");
    assert!(RendezvousHost::open(Hosting { places: 0, ..hosting(plain()) }).is_err());
    assert!(
        RendezvousHost::open(Hosting { offer: vec![0; MAX_BYTES + 1], ..hosting(plain()) })
            .is_err()
    );
}

/// Sends these bytes to a host, and returns its answer until it closes.
fn say(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // A reset is an answer, too.
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn strangers_are_told_what_is_wrong_and_harm_nobody() {
    let host = open(plain());
    let (mut a, _) = join(&host);
    let (mut b, _) = join(&host);
    b.next(SOON).unwrap();
    a.next(SOON).unwrap();
    let long = [b"LOCKIFYR\x01\0".as_slice(), &u32::MAX.to_le_bytes()].concat();
    for (bytes, says) in [
        (b"GET / HTTP/1.1\r\n\r\n".as_slice(), "no memory server's set-up"),
        (b"LOCKIFYR\0\0\x01\0\0\0\x07", "speaks version 0 of the set-up and this side version 1"),
        // A newer release speaks the version that both know, if it knows an old one.
        (b"LOCKIFYR\x02\0\x01\0\0\0\x07", "cannot be said now"),
        (b"\x16\x03\x01\x02\0", "it speaks TLS and this side does not"),
        (b"LOCKIFYR\x01\0\x01\0\0\0\x07", "cannot be said now"),
        (b"LOCKIFYR\x01\0\x01\0\0\0\x63", "a frame of 1 bytes that is not understood"),
        (&long, "a frame of 4294967295 bytes, where at most"),
    ] {
        let answer = say(host.address(), bytes);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("LOCKIFYR\u{1}\0") && answer.contains(says), "{answer:?}");
    }
    // A participant that talks nonsense is gone; a newer host says so in words that are understood.
    let mut broken = TcpStream::connect(host.address()).unwrap();
    broken.write_all(b"LOCKIFYR\x01\0\x0b\0\0\0\x01\x07lockify\0\0").unwrap();
    assert_eq!(a.next(SOON).unwrap(), Some(Event::Joined { rank: 3 }));
    broken.write_all(&[0xff; 64]).unwrap();
    assert_eq!(a.next(SOON).unwrap(), Some(Event::Gone { rank: 3 }));
    a.send(2, b"still here").unwrap();
    assert_eq!(b.next(SOON).unwrap(), Some(Event::Joined { rank: 3 }));
    assert_eq!(b.next(SOON).unwrap(), Some(Event::Gone { rank: 3 }));
    assert_eq!(b.next(SOON).unwrap(), Some(told(1, b"still here")));

    let listener = TcpListener::bind(any()).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"LOCKIFYR\x09\0\x05\0\0\0\0\x03old").unwrap();
        std::thread::sleep(Duration::from_millis(100));
    });
    let error = refused(address, &plain(), 0);
    assert!(error.contains("refuses: old"), "{error}");
}

/// More than all queues and sockets keep goes through, because senders wait.
#[test]
fn who_is_told_too_much_holds_up_who_tells() {
    const MESSAGES: usize = 1000;
    let host = open(plain());
    let (mut a, _) = join(&host);
    let (mut b, _) = join(&host);
    b.next(SOON).unwrap();
    a.next(SOON).unwrap();
    let message = |n: usize| [&n.to_le_bytes()[..], &[3; MAX_BYTES - 8]].concat();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..MESSAGES {
                a.send(2, &message(n)).unwrap();
            }
        });
        // B begins late: A fills what there is.
        std::thread::sleep(Duration::from_millis(300));
        for n in 0..MESSAGES {
            assert!(b.next(SOON).unwrap().unwrap() == told(1, &message(n)), "message {n}");
        }
    });
}

#[test]
fn who_takes_nothing_is_put_out_and_holds_up_nobody_for_long() {
    let host = open(plain());
    let (mut a, _) = join(&host);
    let (_deaf, _) = join(&host);
    a.next(SOON).unwrap();
    // All that is kept for it, and in sockets on the way, is less than this.
    for _ in 0..4000 {
        a.send(2, &[0; MAX_BYTES]).unwrap();
    }
    assert_eq!(a.next(SOON).unwrap(), Some(Event::Gone { rank: 2 }));
}
