//! Clients that are broken, greedy or strangers, and daemons that go.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::channel;

use crate::common::{Alone, PATIENCE, alone_config, eventually, recording};
use lockify_client::{Client, Error, Mode};
use lockify_daemon::{Daemon, SocketError};
use lockify_session::codec;
use lockify_session::protocol::{Greeting, OLDEST, Query, Request, VERSION};

/// Everything the daemon still sends before it closes.
fn last_words(mut stream: UnixStream) -> Vec<u8> {
    let mut words = Vec::new();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A reset after the last words is an end, too.
    let _ = stream.read_to_end(&mut words);
    words
}

fn still_serves(alone: &Alone) {
    let space = alone.client().lockspace("default").unwrap();
    space.lock("still here", Mode::EX).unwrap().unlock().unwrap();
}

#[test]
fn garbage_ends_the_session_and_no_other() {
    let alone = Alone::start("");
    let holder = alone.client().lockspace("default").unwrap();
    let guard = holder.lock("a", Mode::EX).unwrap();
    for garbage in [&[0xff; 64][..], &[0, 0, 0, 0], &[1, 0, 0, 0, 250], &[0, 1, 0, 16]] {
        let mut stream = alone.session(7);
        stream.write_all(garbage).unwrap();
        let words = last_words(stream);
        let goodbye = codec::decode::<lockify_session::protocol::Event>(&words).unwrap().unwrap();
        let text = format!("{goodbye:?}");
        assert!(text.contains("BadRequest"), "{text}");
    }
    alone.logged("could not read a request");
    guard.check().unwrap();
    still_serves(&alone);
}

#[test]
fn random_sessions_do_not_hurt() {
    let alone = Alone::start("");
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for round in 0..200 {
        let mut stream = if round % 2 == 0 {
            alone.session(7)
        } else {
            UnixStream::connect(&alone.socket).unwrap()
        };
        let bytes: Vec<u8> = (0..next() % 300)
            .flat_map(|i| {
                if i % 5 == 0 { vec![next() as u8 % 40, 0, 0, 0] } else { vec![next() as u8] }
            })
            .collect();
        // The daemon may have hung up already.
        let _ = stream.write_all(&bytes);
    }
    still_serves(&alone);
}

#[test]
fn another_version_is_told() {
    let alone = Alone::start("");
    let mut stream = UnixStream::connect(&alone.socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&Greeting { version: OLDEST - 1, shard: 0, pid: 1 }.encode()).unwrap();
    let words = last_words(stream);
    let theirs = Greeting::decode(words.first_chunk().unwrap()).unwrap();
    assert_eq!(theirs.version, OLDEST);
    alone.logged("a version that is too old");
    // A newer one is told what to come back with, and that is all.
    let mut stream = UnixStream::connect(&alone.socket).unwrap();
    stream.write_all(&Greeting { version: VERSION + 1, shard: 0, pid: 1 }.encode()).unwrap();
    let words = last_words(stream);
    assert_eq!(words.len(), Greeting::LEN);
    assert_eq!(Greeting::decode(words.first_chunk().unwrap()).unwrap().version, VERSION);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("newer.sock");
    let newer = UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = newer.accept().unwrap();
        stream.write_all(&Greeting { version: 99, shard: 1, pid: 1 }.encode()).unwrap();
        last_words(stream);
    });
    let e = Client::connect(&path).err().unwrap();
    assert!(matches!(e, Error::Version(99)), "{e}");
    thread.join().unwrap();
}

#[test]
fn strangers_are_told_apart() {
    let alone = Alone::start("");
    let mut stream = UnixStream::connect(&alone.socket).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    last_words(stream);
    alone.logged("does not speak the session protocol");
    still_serves(&alone);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.sock");
    let other = UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        stream.write_all(b"220 mail.example ESMTP\r\n").unwrap();
        last_words(stream);
    });
    assert!(matches!(Client::connect(&path), Err(Error::NotADaemon(_))));
    thread.join().unwrap();
    let nobody = dir.path().join("nobody.sock");
    let e = Client::connect(&nobody).err().unwrap().to_string();
    assert!(e.contains("nobody.sock") && e.contains("lockify serve"), "{e}");
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let alone = Alone::start("limits.max_unread = 100000");
    let mut stream = alone.session(7);
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut request = Vec::new();
    codec::encode(&Request::Query { id: 1, query: Query::Open("x".repeat(60)) }, &mut request)
        .unwrap();
    let many = request.repeat(100);
    // The daemon hangs up when its patience is over.
    for _ in 0..100_000 {
        if stream.write_all(&many).is_err() {
            alone.logged("did not read");
            still_serves(&alone);
            return;
        }
    }
    panic!("the daemon never lost its patience");
}

#[test]
fn a_session_has_a_limited_number_of_locks() {
    let alone = Alone::start("limits.max_locks = 3");
    let space = alone.client().lockspace("default").unwrap();
    let mut guards: Vec<_> = (0..3).map(|i| space.lock([i + 1], Mode::PR).unwrap()).collect();
    let e = space.lock("one more", Mode::PR).unwrap_err().to_string();
    assert!(e.contains("3 locks") && e.contains("max_locks"), "{e}");
    guards.pop().unwrap().unlock().unwrap();
    guards.push(space.lock("one more", Mode::PR).unwrap());
}

#[test]
fn the_number_of_sessions_is_limited() {
    let alone = Alone::start("limits.max_sessions = 2");
    let (one, _two) = (alone.client(), alone.client());
    one.lockspace("default").unwrap();
    let e = Client::connect(&alone.socket).err().unwrap();
    assert!(matches!(e, Error::NotServed(_)) && e.to_string().contains("max_sessions"), "{e}");
    drop(one);
    eventually("room for another session", || {
        Client::connect(&alone.socket).is_ok_and(|c| c.lockspace("default").is_ok())
    });
}

/// Every refusal is a line in the log, and anybody may ask to be refused.
#[test]
fn a_client_cannot_fill_the_log() {
    let alone = Alone::start("limits.max_sessions = 1");
    let one = alone.client();
    let began = std::time::Instant::now();
    for _ in 0..500 {
        assert!(Client::connect(&alone.socket).is_err());
    }
    drop(one);
    for _ in 0..500 {
        eventually("room", || Client::connect(&alone.socket).is_ok());
        let mut stream = UnixStream::connect(&alone.socket).unwrap();
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        last_words(stream);
    }
    let warned = alone.lines.lock().unwrap().iter().filter(|l| l.contains("client")).count() as u64;
    // Eight at once, as many a second, and with each the number of those left out.
    assert!(warned <= 2 * (9 + 8 * began.elapsed().as_secs()), "{warned}");
}

#[test]
fn the_socket_is_the_owners_alone() {
    let alone = Alone::start("");
    let mode = std::fs::metadata(&alone.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // A process that could open it could lock it, and keep the next daemon from its socket.
    let lock = alone.dir.path().join("lockify.sock.lock");
    assert_eq!(std::fs::metadata(&lock).unwrap().permissions().mode() & 0o777, 0o600);
    drop(alone);
    let open = Alone::start("socket_mode = \"666\"");
    let mode = std::fs::metadata(&open.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666);
}

#[test]
fn a_second_daemon_on_the_socket_is_refused() {
    let alone = Alone::start("");
    let config = alone_config(alone.dir.path(), "");
    let e = Daemon::start(&config, &recording().0).err().unwrap();
    assert!(matches!(e, lockify_daemon::Error::Socket(SocketError::InUse(_))), "{e}");
    still_serves(&alone);
}

#[test]
fn a_socket_left_behind_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let config = alone_config(dir.path(), "");
    drop(UnixListener::bind(&config.socket).unwrap());
    assert!(config.socket.exists());
    let daemon = Daemon::start(&config, &recording().0).unwrap();
    Client::connect(&config.socket).unwrap().lockspace("default").unwrap();
    drop(daemon);
    assert!(!config.socket.exists(), "the socket's file stays behind");
    std::fs::write(&config.socket, "precious").unwrap();
    let e = Daemon::start(&config, &recording().0).err().unwrap();
    assert!(matches!(e, lockify_daemon::Error::Socket(SocketError::NoSocket(_))), "{e}");
    assert_eq!(std::fs::read(&config.socket).unwrap(), b"precious");
}

#[test]
fn a_stopped_daemon_tells_its_clients() {
    let mut alone = Alone::start("shutdown_grace = \"50ms\"");
    let space = alone.client().lockspace("default").unwrap();
    let (lost, losses) = channel();
    space.on_lost(move |l| lost.send(l.clone()).unwrap());
    let guard = space.lock("a", Mode::EX).unwrap();
    let daemon = alone.daemon.take().unwrap();
    daemon.handle().stop();
    daemon.wait().unwrap();
    let loss = losses.recv_timeout(PATIENCE).unwrap();
    assert_eq!((loss.name.as_bytes(), loss.mode), (&b"a"[..], Mode::EX));
    assert!(loss.why.contains("shutting down"), "{}", loss.why);
    assert!(guard.is_lost());
    let e = space.lock("b", Mode::EX).unwrap_err();
    assert!(matches!(e, Error::Disconnected(_)), "{e}");
    let e = guard.unlock().unwrap_err();
    assert!(matches!(e, Error::Disconnected(_)), "{e}");
}
