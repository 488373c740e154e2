//! Lockspaces that are made and released while the daemon runs.

use std::path::Path;
use std::sync::mpsc::channel;

use crate::common::process::nodes;
use crate::common::{Alone, PATIENCE, recording};
use lockify_client::{Client, Error, LockFlags, Mode};
use lockify_daemon::{Config, Daemon};
use lockify_session::protocol::Refusal;

fn refusal<T>(result: Result<T, Error>) -> Refusal {
    match result {
        Err(Error::Refused(why)) => why,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was not refused"),
    }
}

#[test]
fn made_used_and_released() {
    for shards in ["shards = 1", "shards = 3"] {
        let alone = Alone::start(shards);
        let (one, other) = (alone.client(), alone.client());
        assert!(matches!(refusal(other.lockspace("new")), Refusal::NoSuchSpace { .. }));
        let made = one.create_lockspace("new", true).unwrap();
        assert_eq!(made.lvb_len(), 32);
        // It runs already: what does not wait is not refused.
        let held = made.try_lock("a", Mode::EX).unwrap();
        let opened = other.lockspace("new").unwrap();
        assert!(matches!(opened.try_lock("a", Mode::PR), Err(Error::WouldBlock)));
        // The same name elsewhere has nothing to do with it.
        let default = other.lockspace("default").unwrap();
        default.try_lock("a", Mode::EX).unwrap().unlock().unwrap();
        held.unlock().unwrap();
        one.release_lockspace("new", false).unwrap();
        // A call that meets the end fails with it; those that come later are refused.
        assert!(opened.try_lock("a", Mode::PR).is_err());
        assert!(matches!(refusal(opened.try_lock("a", Mode::PR)), Refusal::NotOpen));
        assert!(matches!(refusal(other.lockspace("new")), Refusal::NoSuchSpace { .. }));
    }
}

#[test]
fn exists_until_released_as_often_as_made() {
    let alone = Alone::start("");
    let client = alone.client();
    for _ in 0..3 {
        client.create_lockspace("new", false).unwrap();
    }
    assert!(matches!(refusal(client.create_lockspace("new", true)), Refusal::SpaceExists(_)));
    for _ in 0..3 {
        client.lockspace("new").unwrap();
        client.release_lockspace("new", false).unwrap();
    }
    assert!(matches!(refusal(client.release_lockspace("new", false)), Refusal::NoSuchSpace { .. }));
    // And again, with nothing left of its former life.
    for _ in 0..20 {
        let space = client.create_lockspace("new", true).unwrap();
        space.try_lock("a", Mode::EX).unwrap().unlock().unwrap();
        client.release_lockspace("new", false).unwrap();
    }
}

#[test]
fn a_configured_lockspace_stays() {
    let alone = Alone::start("");
    let client = alone.client();
    let held = client.create_lockspace("default", false).unwrap().lock("a", Mode::EX).unwrap();
    client.release_lockspace("default", true).unwrap();
    held.check().unwrap();
    held.unlock().unwrap();
}

#[test]
fn locks_keep_a_lockspace_unless_it_is_forced() {
    let alone = Alone::start("");
    let (one, other) = (alone.client(), alone.client());
    let made = one.create_lockspace("new", false).unwrap();
    let (tell, told) = channel();
    made.on_lost(move |lost| tell.send(lost.name).unwrap());
    let held = made.lock("a", Mode::PR).unwrap();
    // An orphan is a lock, too.
    let orphan = other.lockspace("new").unwrap().request("b", Mode::EX);
    orphan.flags(LockFlags::PERSISTENT).lock().unwrap().keep();
    drop(other);
    assert!(matches!(refusal(one.release_lockspace("new", false)), Refusal::SpaceBusy(_, 2)));
    one.release_lockspace("new", true).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().as_bytes(), b"a");
    assert!(held.is_lost());
    let again = one.create_lockspace("new", true).unwrap();
    again.try_lock("b", Mode::EX).unwrap().unlock().unwrap();
}

#[test]
fn one_that_is_in_use_stays_whole_in_all_shards() {
    let alone = Alone::start("shards = 3");
    let client = alone.client();
    let made = client.create_lockspace("new", true).unwrap();
    // Each is in one shard, and some are in each.
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for name in names {
        let held = made.lock(name, Mode::EX).unwrap();
        let why = refusal(client.release_lockspace("new", false));
        assert!(matches!(why, Refusal::SpaceBusy(_, 1)), "{why}");
        held.unlock().unwrap();
        for name in names {
            made.try_lock(name, Mode::EX).unwrap().unlock().unwrap();
        }
    }
    client.release_lockspace("new", false).unwrap();
    let why = refusal(client.release_lockspace("new", false));
    assert!(matches!(why, Refusal::NoSuchSpace { .. }), "{why}");
}

#[test]
fn names_have_limits() {
    let alone = Alone::start("");
    let client = alone.client();
    for name in ["", &"x".repeat(65)] {
        let why = refusal(client.create_lockspace(name, false)).to_string();
        assert!(why.contains("1 to 64 bytes"), "{why}");
    }
    client.create_lockspace(&"x".repeat(64), false).unwrap();
}

fn cluster(dir: &Path, lockspaces: [&str; 2]) -> Vec<(Daemon, Client)> {
    let nodes = nodes(2);
    let start = |(i, spaces): (usize, &str)| {
        let socket = dir.join(format!("{i}.sock"));
        let text = format!("node = {}\nsocket = {socket:?}\n{nodes}{spaces}", i + 1);
        let config = Config::parse(&text, &dir.join("lockify.toml")).unwrap();
        let daemon = Daemon::start(&config, &recording().0).unwrap();
        (daemon, Client::connect(socket).unwrap())
    };
    lockspaces.into_iter().enumerate().map(start).collect()
}

#[test]
fn nodes_that_make_the_same_name_share_it() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), ["", ""]);
    let spaces: Vec<_> =
        nodes.iter().map(|(_, c)| c.create_lockspace("new", false).unwrap()).collect();
    let held = spaces[0].lock("a", Mode::EX).unwrap();
    assert!(matches!(spaces[1].try_lock("a", Mode::PR), Err(Error::WouldBlock)));
    // The other goes; its lock is free.
    drop(held);
    let mine = spaces[0].lock("b", Mode::EX).unwrap();
    nodes[0].1.release_lockspace("new", true).unwrap();
    assert!(mine.is_lost());
    let taken = spaces[1].lock("b", Mode::EX).unwrap();
    // It comes back to the lock that is held now.
    let back = nodes[0].1.create_lockspace("new", false).unwrap();
    assert!(matches!(back.try_lock("b", Mode::PR), Err(Error::WouldBlock)));
    taken.unlock().unwrap();
    back.lock("b", Mode::PR).unwrap().unlock().unwrap();
}

#[test]
fn what_another_node_uses_differently_cannot_be_made() {
    let dir = tempfile::tempdir().unwrap();
    let other = "[[lockspace]]\nname = \"new\"\npolicy = \"home\"\n";
    let nodes = cluster(dir.path(), [other, ""]);
    let space = nodes[0].1.lockspace("new").unwrap();
    space.lock("a", Mode::EX).unwrap().unlock().unwrap();
    let why = refusal(nodes[1].1.create_lockspace("new", false)).to_string();
    assert!(why.contains("another policy"), "{why}");
}
