//! Histories that nodes write: judged by the checker, and surviving a full disk.

use std::fs::File;
use std::io::BufReader;

use crate::common::*;
use lockify_check::{Checker, Options, Outcome, check_file};
use lockify_core::{ClaimMode, LockArgs, LockFlags, LockId, Mode, Policy};
use lockify_history::{Reader, merge};
use lockify_node::{HostEvent, NodeConfig, NodeEngine, SpaceConfig};

fn create(resource: &str) -> lockify_core::Input {
    let lockify_core::Input::Lock { client, args } = lock(resource, Mode::EX) else {
        unreachable!()
    };
    let args = LockArgs { flags: LockFlags::NOTIFY, ..args };
    lockify_core::Input::Lock { client, args }
}

#[test]
fn histories_of_three_nodes_are_clean_together() {
    let dir = tempfile::tempdir().unwrap();
    let path = |i: usize| dir.path().join(format!("node{i}.jsonl"));
    let (mut c, listeners) = Cluster::empty(3);
    c.policy = Policy::Claim(ClaimMode::Optimistic);
    for (i, listener) in listeners.into_iter().enumerate() {
        let mut config = c.config(i);
        (config.listener, config.history) = (Some(listener), Some(path(i)));
        c.start_with(i, config);
    }
    c.wait("the lockspace", |c| c.runs_with(&[0, 1, 2]));
    for round in 0..30 {
        let (parent, _) = c.lock(round % 3, "parent", Mode::EX);
        let new = c.call(round % 3, create(&format!("new{round}"))).unwrap();
        let other = c.call((round + 1) % 3, lock("parent", Mode::PR)).unwrap();
        c.unlock(round % 3, parent);
        c.wait("the next holder", |c| c.completion((round + 1) % 3, other).is_some());
        c.unlock((round + 1) % 3, other);
        c.unlock(round % 3, new);
        c.nodes.iter_mut().for_each(|n| n.events.clear());
    }
    c.kill(2);
    c.wait("recovery", |c| c.runs_with(&[0, 1]));
    c.lock(0, "parent", Mode::EX);
    drop(c);
    let readers =
        (0..3).map(|i| Reader::open(path(i)).unwrap()).collect::<Vec<Reader<BufReader<File>>>>();
    let merged = dir.path().join("all.jsonl");
    let mut writer = lockify_history::Writer::create(&merged).unwrap();
    merge(readers, &mut writer).unwrap();
    writer.flush().unwrap();
    let mut checker = Checker::new(Options::whole());
    let mut grants = 0;
    for event in Reader::open(&merged).unwrap() {
        let event = event.unwrap();
        grants += usize::from(event.kind == lockify_history::Kind::Grant);
        checker.observe(&event).unwrap_or_else(|v| panic!("{v:?}"));
    }
    assert_eq!(grants, 3 * 30 + 1);
    let report = checker.finish();
    assert!(report.violations.is_empty(), "{report:?}");
}

#[test]
fn nobody_hears_of_what_the_record_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node0.jsonl");
    let (mut c, listeners) = Cluster::empty(2);
    for (i, listener) in listeners.into_iter().enumerate() {
        let mut config = c.config(i);
        config.listener = Some(listener);
        config.history = (i == 0).then(|| path.clone());
        c.start_with(i, config);
    }
    c.wait("the lockspace", |c| c.runs_with(&[0, 1]));
    for round in 1..=10 {
        let (held, _) = c.lock(0, "name", Mode::EX);
        let next = c.call(1, lock("name", Mode::EX)).unwrap();
        c.unlock(0, held);
        c.wait("the next holder", |c| c.completion(1, next).is_some());
        // The history that a kill of node 0 would leave now.
        let unlocks = Reader::open(&path).unwrap().filter(|event| {
            event.as_ref().is_ok_and(|event| event.kind == lockify_history::Kind::Unlock)
        });
        assert_eq!(unlocks.count(), round);
        c.unlock(1, next);
    }
}

#[test]
fn a_full_disk_ends_the_history_and_not_the_locking() {
    let mut config = NodeConfig::alone();
    config.history = Some("/dev/full".into());
    let mut engine = NodeEngine::new(config).unwrap();
    let space = engine.join("s", SpaceConfig::new(Policy::Directory)).unwrap();
    let mut events = Vec::new();
    let told = |events: &[HostEvent]| {
        events.iter().any(|e| {
            matches!(e, HostEvent::Notice(n) if n.text.contains("disk") && n.text.contains("locking goes on"))
        })
    };
    let mut ids: Vec<LockId> = Vec::new();
    while !told(&events) {
        assert!(ids.len() < 100_000, "nobody noticed");
        ids.extend(engine.handle(space, lock(&format!("r{}", ids.len()), Mode::EX)).unwrap());
        engine.take_events(&mut events);
    }
    events.clear();
    engine.handle(space, unlock(ids[0])).unwrap();
    engine.take_events(&mut events);
    assert!(events.iter().any(|e| matches!(e, HostEvent::Completed { .. })));
}

#[test]
fn a_second_lockspace_has_a_file_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.jsonl");
    let mut config = NodeConfig::alone();
    config.history = Some(path.clone());
    let mut engine = NodeEngine::new(config).unwrap();
    for space in ["one", "two/../%"] {
        let space = engine.join(space, SpaceConfig::new(Policy::Directory)).unwrap();
        let id = engine.handle(space, lock("r", Mode::EX)).unwrap().unwrap();
        engine.handle(space, unlock(id)).unwrap();
    }
    drop(engine);
    for file in [path, dir.path().join("history.jsonl.two%2F%2E%2E%2F%25")] {
        match check_file(&file) {
            Outcome::Checked(report) => assert!(report.is_clean(), "{report:?}"),
            other => panic!("{}: {other:?}", file.display()),
        }
    }
}

#[test]
fn a_history_that_cannot_be_made_is_an_error_at_once() {
    let mut config = NodeConfig::alone();
    config.history = Some("/nonexistent/history.jsonl".into());
    let mut engine = NodeEngine::new(config).unwrap();
    let error = engine.join("s", SpaceConfig::new(Policy::Directory)).unwrap_err().to_string();
    assert!(
        error.contains("/nonexistent/history.jsonl") && error.contains("another file"),
        "{error}"
    );
}

#[test]
fn a_history_in_a_pipe_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    let mut config = NodeConfig::alone();
    config.history = Some(path);
    let mut engine = NodeEngine::new(config).unwrap();
    let error = engine.join("s", SpaceConfig::new(Policy::Directory)).unwrap_err().to_string();
    assert!(error.contains("pipe") && error.contains("give a file"), "{error}");
}
