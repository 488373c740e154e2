//! Daemons as processes of their own: signals, sudden deaths, a cluster.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::SystemTime;

use crate::common::process::{Process, members, nodes};
use crate::common::{PATIENCE, eventually, within};
use lockify_client::{Client, Error, Mode};
use rustix::process::Signal;

#[test]
fn a_killed_daemon_means_lost_locks_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Process::alone(dir.path(), "");
    let client = daemon.client();
    let space = client.lockspace("default").unwrap();
    let (lost, losses) = channel();
    space.on_lost(move |l| lost.send(l.clone()).unwrap());
    let guard = space.lock("a", Mode::EX).unwrap();
    // Somebody waits in a call, too.
    let other = daemon.client().lockspace("default").unwrap();
    let waiting = std::thread::spawn(move || other.lock("a", Mode::EX).map(drop));
    eventually("the waiter in the queue", || space.who("a").unwrap().resources[0].locks.len() == 2);
    daemon.signal(Signal::KILL);
    let loss = losses.recv_timeout(PATIENCE).unwrap();
    assert_eq!((loss.name.as_bytes(), loss.mode), (&b"a"[..], Mode::EX));
    assert!(loss.why.contains("connect again"), "{}", loss.why);
    assert!(matches!(guard.check(), Err(Error::Disconnected(_))));
    assert!(matches!(waiting.join().unwrap(), Err(Error::Disconnected(_))));
    assert!(matches!(guard.unlock(), Err(Error::Disconnected(_))));
    // A new daemon finds the socket left behind, and serves.
    drop(daemon);
    let again = Process::alone(dir.path(), "");
    drop(again.client().lockspace("default").unwrap().lock("a", Mode::EX).unwrap());
}

#[test]
fn a_terminated_daemon_leaves_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = Process::alone(dir.path(), "");
    let client = daemon.client();
    client.lockspace("default").unwrap();
    daemon.signal(Signal::TERM);
    assert!(daemon.ended().success());
    assert!(!daemon.socket.exists());
    assert!(client.lockspace("default").is_err());
}

#[test]
fn a_second_signal_ends_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = Process::alone(dir.path(), "shutdown_grace = \"1h\"");
    let space = daemon.client().lockspace("default").unwrap();
    let (lost, losses) = channel();
    space.on_lost(move |l| lost.send(l.clone()).unwrap());
    let _guard = space.lock("a", Mode::EX).unwrap();
    daemon.signal(Signal::INT);
    // It waits for this client, which has been told.
    losses.recv_timeout(PATIENCE).unwrap();
    assert!(daemon.child.try_wait().unwrap().is_none());
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended().code(), Some(128 + 15));
}

#[test]
fn a_killed_client_releases_its_locks() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Process::alone(dir.path(), "");
    // The client is another process: this test program, told to hold a lock until it is killed.
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::hold_until_killed", "--nocapture"])
        .env("LOCKIFY_TEST_HOLD", &daemon.socket)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    let says = move || lines.any(|line| line.unwrap().contains("holding"));
    assert!(within("the holder's lock", says), "the holder ended");
    let space = daemon.client().lockspace("default").unwrap();
    assert!(matches!(space.try_lock("a", Mode::PR), Err(Error::WouldBlock)));
    let owner = space.who("a").unwrap().resources[0].locks[0].client.unwrap();
    assert_eq!(lockify_session::protocol::pid_of(owner), holder.id());
    holder.kill().unwrap();
    holder.wait().unwrap();
    space.request("a", Mode::EX).timeout(PATIENCE).lock().unwrap().unlock().unwrap();
}

/// The other process of [`a_killed_client_releases_its_locks`]; on its own, it checks that the
/// lock it would hold can be had.
#[test]
fn hold_until_killed() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, _daemon) = match std::env::var_os("LOCKIFY_TEST_HOLD") {
        Some(socket) => (PathBuf::from(socket), None),
        None => {
            let daemon = Process::alone(dir.path(), "");
            (daemon.socket.clone(), Some(daemon))
        }
    };
    let space = Client::connect(socket).unwrap().lockspace("default").unwrap();
    let guard = space.lock("a", Mode::EX).unwrap();
    if _daemon.is_none() {
        println!("holding");
        std::thread::sleep(PATIENCE * 10);
    }
    guard.unlock().unwrap();
}

#[test]
fn a_wrong_configuration_ends_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.toml");
    std::fs::write(&path, "node = 1\nsockets = \"x\"\n").unwrap();
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_lockifyd"));
    daemon.arg(&path);
    let output = within("the daemon's end", move || daemon.output().unwrap());
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text.contains("bad.toml") && text.contains("line 2"), "{text}");
}

/// Earlier releases numbered views by the seconds since 1970, and had neither `state_dir` nor a log.
#[test]
fn a_cluster_of_an_earlier_release_is_taken_over_by_its_list() {
    let dir = tempfile::tempdir().unwrap();
    let config = format!("cluster = \"old\"\nlease = \"500ms\"\n{}", nodes(3));
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let mut token = seconds << 32;
    // The whole cluster is stopped and started, the second time in another order.
    for order in [[1, 2, 3], [3, 1, 2]] {
        let mut daemons = order.map(|node| Process::serving(dir.path(), node, &config));
        for daemon in &daemons {
            eventually("three members", || members(daemon) == 3);
            let space = daemon.client().lockspace("default").unwrap();
            let guard = space.request("a", Mode::EX).timeout(PATIENCE).lock().unwrap();
            assert!(guard.token() > token, "{} after {token}", guard.token());
            token = guard.token();
        }
        daemons.iter_mut().for_each(|d| d.signal(Signal::TERM));
        assert!(daemons.iter_mut().all(|d| d.ended().success()));
    }
    assert!(dir.path().join("state.old.3/membership.0").exists());
}

#[test]
fn a_cluster_of_daemons_survives_a_killed_one() {
    let dir = tempfile::tempdir().unwrap();
    let config = format!("lease = \"500ms\"\n{}", nodes(3));
    let mut daemons: Vec<_> =
        (1..=3).map(|node| Process::serving(dir.path(), node, &config)).collect();
    let spaces: Vec<_> = daemons.iter().map(|d| d.client().lockspace("default").unwrap()).collect();
    let guard = spaces[2].lock("a", Mode::EX).unwrap();
    // A lock that may wait also waits for its node to be a member.
    let _ = spaces[0].lock("another", Mode::NL).unwrap();
    let tried = spaces[0].try_lock("a", Mode::PR).map(drop);
    assert!(matches!(tried, Err(Error::WouldBlock)), "{tried:?}");
    let waiting = std::thread::spawn({
        let space = spaces[0].clone();
        move || space.request("a", Mode::EX).timeout(PATIENCE).lock().map(|g| g.token())
    });
    eventually("the waiter in the queue", || {
        let seen = spaces[1].who("a").unwrap();
        seen.resources.iter().map(|r| r.locks.len()).max() == Some(2)
    });
    daemons.pop().unwrap().signal(Signal::KILL);
    assert!(waiting.join().unwrap().unwrap() > guard.token());
    eventually("the loss", || guard.is_lost());
    // Two of three are a majority: they go on.
    spaces[1].request("a", Mode::EX).timeout(PATIENCE).lock().unwrap().unlock().unwrap();
    daemons.iter_mut().for_each(|d| d.signal(Signal::TERM));
    assert!(daemons.iter_mut().all(|d| d.ended().success()));
}
