//! `lockify doctor` on real clusters: each reason why a lock waits, brought about.

use std::time::Instant;

use rustix::process::Signal;

use crate::common::cluster::Cluster;
use crate::common::{PATIENCE, code, stderr, stdout, wait_for};
use lockify_client::{Error, Guard, Lockspace, Mode};
use serde_json::Value;

impl Cluster {
    fn doctor(&self, node: usize, name: &str) -> Value {
        let out = self.lockify(node, &["doctor", "--json", name]);
        assert_eq!(code(&out), 0, "{}", stderr(&out));
        serde_json::from_slice(&out.stdout).unwrap()
    }

    /// Asks the doctor until a finding of this kind is about this node.
    fn finds(&self, asked: usize, name: &str, kind: &str, node: u32) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = self.doctor(asked, name);
            let mut all = said["findings"].as_array().unwrap().iter();
            if let Some(found) = all.find(|f| f["kind"] == kind && f["nodes"][0] == node) {
                return found.clone();
            }
            assert!(Instant::now() < deadline, "no {kind} of node {node} in {said}");
        }
    }
}

/// Asks for a lock on a thread of its own.
fn asks(space: &Lockspace, name: &str) -> std::thread::JoinHandle<Result<Guard, Error>> {
    let (space, name) = (space.clone(), name.to_owned());
    std::thread::spawn(move || space.lock(name, Mode::EX))
}

#[test]
fn a_chain_of_holders_is_followed_across_nodes_and_a_circle_is_named() {
    let cluster = Cluster::start("");
    let [one, two, three] = [1, 2, 3].map(|n| cluster.space(n));
    let (x, y) = (one.lock("x", Mode::EX).unwrap(), two.lock("y", Mode::EX).unwrap());
    let three_x = asks(&three, "x");
    let one_y = asks(&one, "y");
    wait_for(|| {
        cluster.doctor(3, "x")["waits"][0]["chain"].as_array().is_some_and(|c| c.len() == 2)
    });
    let said = cluster.doctor(3, "x");
    let chain = &said["waits"][0]["chain"];
    assert_eq!((&chain[0]["blocker"]["node"], &chain[0]["state"]), (&1.into(), &"waits".into()));
    assert_eq!((&chain[1]["blocker"]["node"], &chain[1]["state"]), (&2.into(), &"holds".into()));
    assert_eq!(said["findings"], Value::Array(Vec::new()));
    // Now the holder of y wants x: a circle.
    let two_x = asks(&two, "x");
    let found = cluster.finds(3, "x", "deadlock", 1);
    assert_eq!(found["circle"].as_array().unwrap().len(), 2, "{found}");
    let text = stdout(&cluster.lockify(2, &["doctor"]));
    assert!(text.contains("deadlock") && text.contains("deadlock_after"), "{text}");
    assert!(stdout(&cluster.lockify(1, &["doctor", "free"])).contains("nobody waits"));
    drop(x);
    // Requests for x wait in order: 3, then 2.
    drop(three_x.join().unwrap().unwrap());
    drop(two_x.join().unwrap().unwrap());
    drop(y);
    drop(one_y.join().unwrap().unwrap());
}

#[test]
fn a_deadlock_that_is_searched_for_ends_for_the_younger_wait() {
    let cluster = Cluster::start("[[lockspace]]\nname = \"default\"\ndeadlock_after = \"100ms\"\n");
    let (one, two) = (cluster.space(1), cluster.space(2));
    let (x, y) = (one.lock("x", Mode::EX).unwrap(), two.lock("y", Mode::EX).unwrap());
    let one_y = asks(&one, "y");
    wait_for(|| !two.who("y").unwrap().resources[0].locks[1..].is_empty());
    // Nodes' clocks are compared by a message, so that ages are known as exactly as messages are fast.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let refused = two.lock("x", Mode::EX);
    assert!(matches!(refused, Err(Error::Deadlock)), "{refused:?}");
    y.unlock().unwrap();
    one_y.join().unwrap().unwrap().unlock().unwrap();
    x.unlock().unwrap();
    let status = cluster.client(1).status().unwrap();
    let ended: u64 = status.nodes.iter().flat_map(|n| &n.spaces).map(|s| s.stats.deadlocks).sum();
    assert_eq!(ended, 1);
}

#[test]
fn a_dead_node_and_the_wait_for_its_lease_are_named() {
    let cluster = Cluster::start("lease = \"12s\"");
    let [one, three] = [1, 3].map(|n| cluster.space(n));
    // Mastered by a node that lives.
    let _master = one.lock("x", Mode::NL).unwrap();
    let _held = three.lock("x", Mode::EX).unwrap();
    let waits = asks(&one, "x");
    cluster.signal(3, Signal::STOP);
    let found = cluster.finds(1, "x", "no_answer", 3);
    assert!(found["text"].as_str().unwrap().contains("node 3 does not answer"), "{found}");
    let said = cluster.doctor(1, "x");
    if let Some(link) = said["waits"][0]["chain"].get(0) {
        assert_eq!((&link["blocker"]["node"], &link["state"]), (&3.into(), &"silent".into()));
    }
    cluster.finds(1, "x", "unfenced", 3);
    // When the lease has run out, the lock is recovered.
    waits.join().unwrap().unwrap().unlock().unwrap();
}

#[test]
fn a_node_without_quorum_says_so() {
    let mut cluster = Cluster::start("lease = \"1s\"");
    cluster.nodes[1].1 = None;
    cluster.nodes[2].1 = None;
    let found = cluster.finds(1, "x", "no_quorum", 1);
    assert!(found["text"].as_str().unwrap().contains("no majority"), "{found}");
}

#[test]
fn a_recovery_that_runs_is_named() {
    // Its four barriers take several of these.
    let mut cluster = Cluster::start("delay = \"300ms\"\nlease = \"20s\"");
    let mut seen = false;
    for _ in 0..10 {
        cluster.nodes[2].1 = None;
        let found = || cluster.doctor(1, "x")["findings"].as_array().unwrap().clone();
        wait_for(|| {
            let recovers = found().iter().any(|f| f["kind"] == "recovery");
            recovers || cluster.members(1) == 2
        });
        seen |= found()
            .iter()
            .any(|f| f["kind"] == "recovery" && f["text"].as_str().unwrap().contains("step"));
        if seen {
            break;
        }
        cluster.boot(3);
        wait_for(|| cluster.members(1) == 3);
    }
    assert!(seen);
}

/// The directory node stands still, so that claims stay unsettled and the barrier closed.
#[test]
fn a_release_that_waits_for_claims_is_named() {
    let cluster = Cluster::start("lease = \"100s\"");
    let [one, two] = [1, 2].map(|n| cluster.space(n));
    let _master = one.lock("dir", Mode::NL).unwrap();
    let held = one.lock("dir", Mode::EX).unwrap();
    let waits = asks(&two, "dir");
    wait_for(|| two.who("dir").unwrap().resources[0].locks.len() == 3);
    cluster.signal(3, Signal::STOP);
    // About a third of the names have their directory at node 3.
    let new: Vec<_> = (0..40)
        .map(|i| one.request(format!("new{i}"), Mode::EX).notify().lock().unwrap())
        .collect();
    let release = std::thread::spawn(move || held.unlock());
    let found = cluster.finds(1, "dir", "claims", 1);
    assert!(found["text"].as_str().unwrap().contains("unsettled claims"), "{found}");
    let said = cluster.doctor(1, "dir");
    assert_eq!(said["waits"][0]["chain"][0]["state"], "claims", "{said}");
    cluster.signal(3, Signal::CONT);
    release.join().unwrap().unwrap();
    waits.join().unwrap().unwrap().unlock().unwrap();
    drop(new);
}
