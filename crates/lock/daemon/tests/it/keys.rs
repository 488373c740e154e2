//! Daemons as processes that prove to each other who they are, and get new keys while they run.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use crate::common::process::{Process, members, nodes};
use crate::common::{eventually, may_be_others, open_to_all, programs};
use lockify_client::{Client, Mode};
use lockify_trust::{CaFolder, Lifetime, NodeFiles, generate_key_file};
use rustix::process::Signal;

const YEAR: Lifetime = Lifetime::Days(365);

fn certificates(files: &NodeFiles, nodes: &str) -> String {
    format!("security = {{ ca = {:?}, identity = {:?} }}\n{nodes}", files.ca, files.identity)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// Has it read its keys, and waits until it has done so `times` in its life.
fn reload(daemon: &Process, times: usize) {
    daemon.signal(Signal::HUP);
    // Its last words about it: until then, it refuses to read them once more.
    eventually("the new keys", || daemon.heard("the keys were read again") == times);
}

#[test]
fn an_authority_is_replaced_in_a_cluster_that_runs() {
    let dir = tempfile::tempdir().unwrap();
    let ca = CaFolder::init(&dir.path().join("ca"), "lockify", YEAR).unwrap();
    let files: Vec<_> = (1..=3).map(|n| ca.add_node(n, YEAR).unwrap()).collect();
    let list = nodes(3);
    let start =
        |i: usize| Process::start(dir.path(), i as u32 + 1, &certificates(&files[i], &list));
    let mut daemons: Vec<_> = (0..3).map(start).collect();
    eventually("three members", || daemons.iter().all(|d| members(d) == 3));
    let space = Client::connect(&daemons[0].socket).unwrap().lockspace("default").unwrap();
    let guard = space.lock("held all the time", Mode::EX).unwrap();
    let connected = || daemons.iter().map(|d| d.heard("connected to node")).sum::<usize>();
    let before = connected();

    // Unusable keys do not replace the present ones.
    let good = std::fs::read(&files[0].identity).unwrap();
    std::fs::write(&files[0].identity, "nonsense").unwrap();
    daemons[0].signal(Signal::HUP);
    daemons[0].wait_for("nothing was changed: ");
    std::fs::write(&files[0].identity, good).unwrap();

    let spread = |bundle: &Path| files.iter().for_each(|f| drop(std::fs::copy(bundle, &f.ca)));
    spread(&ca.roll_over(YEAR).unwrap());
    daemons.iter().for_each(|d| reload(d, 1));
    for node in 1..=3 {
        ca.renew(node, YEAR).unwrap();
    }
    daemons.iter().for_each(|d| reload(d, 2));
    spread(&ca.retire().unwrap());
    daemons.iter().for_each(|d| reload(d, 3));
    guard.check().unwrap();
    assert_eq!(connected(), before, "a connection was lost");

    // New connections use the new ones, and the others do, too.
    drop(daemons.pop());
    eventually("two members", || members(&daemons[0]) == 2);
    daemons.push(start(2));
    eventually("three members", || daemons.iter().all(|d| members(d) == 3));
    guard.unlock().unwrap();
}

#[test]
fn a_shared_key_is_enough_and_another_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (dir.path().join("cluster.key"), dir.path().join("other.key"));
    generate_key_file(&ours).unwrap();
    generate_key_file(&other).unwrap();
    let list = nodes(3);
    // Beside the configuration: relative paths are seen from there.
    let with = |key: &str| format!("lease = \"1s\"\n[security]\ncluster_key = {key:?}\n{list}");
    let mut daemons: Vec<_> =
        (1..=3).map(|n| Process::start(dir.path(), n, &with("cluster.key"))).collect();
    eventually("three members", || daemons.iter().all(|d| members(d) == 3));
    drop(daemons.pop());
    let stranger = Process::start(dir.path(), 3, &with("other.key"));
    eventually("two members", || daemons.iter().all(|d| members(d) == 2));
    daemons[0].wait_for("was refused: its certificate is not signed");
    assert_eq!(members(&stranger), 0);
    assert_eq!(stranger.heard("connected to node"), 0);
    // The key is replaced by the stranger's, and then it gets in.
    let (old, new) = (read(&ours), read(&other));
    for (times, keys) in [(1, format!("{old}{new}")), (2, format!("{new}{old}")), (3, new)] {
        std::fs::write(&ours, keys).unwrap();
        daemons.iter().for_each(|d| reload(d, times));
    }
    eventually("three members", || members(&stranger) == 3);
}

#[test]
fn unsafe_and_missing_keys_are_named_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let ca = CaFolder::init(&dir.path().join("ca"), "lockify", YEAR).unwrap();
    let files = ca.add_node(1, YEAR).unwrap();
    let list = nodes(2);
    let fails = |files: &NodeFiles, texts: &[&str]| {
        let mut daemon = Process::start(dir.path(), 1, &certificates(files, &list));
        assert_eq!(daemon.ended().code(), Some(1));
        texts.iter().for_each(|text| daemon.wait_for(text));
    };
    std::fs::set_permissions(&files.identity, std::fs::Permissions::from_mode(0o644)).unwrap();
    fails(&files, &["node.pem is a secret", "chmod 600"]);
    std::fs::set_permissions(&files.identity, std::fs::Permissions::from_mode(0o600)).unwrap();
    let other = ca.add_node(2, YEAR).unwrap();
    fails(&other, &["another node"]);
    let missing = NodeFiles { ca: files.ca, identity: dir.path().join("none.pem") };
    fails(&missing, &["none.pem", "No such file"]);
}

/// The real program, as a user that owns nothing but its folder and has no capability.
#[test]
fn the_daemon_runs_unprivileged() {
    if !may_be_others() {
        return;
    }
    const USER: u32 = 64_011;
    let dir = tempfile::tempdir().unwrap();
    open_to_all(dir.path());
    // Where that user can find it.
    let program = dir.path().join("lockifyd");
    programs::copy(Path::new(env!("CARGO_BIN_EXE_lockifyd")), &program);
    let ca = CaFolder::init(&dir.path().join("ca"), "lockify", YEAR).unwrap();
    let list = nodes(2);
    let start = |node: u32| {
        let own = dir.path().join(format!("own-{node}"));
        std::fs::create_dir(&own).unwrap();
        let made = ca.add_node(node, YEAR).unwrap();
        let files = NodeFiles { ca: own.join("ca.pem"), identity: own.join("node.pem") };
        std::fs::copy(made.ca, &files.ca).unwrap();
        std::fs::copy(made.identity, &files.identity).unwrap();
        for path in [&own, &files.identity] {
            std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
        }
        let mut command = Command::new(&program);
        command.uid(USER).gid(USER);
        Process::spawn(command, &own, node, &certificates(&files, &list))
    };
    let daemons = [start(1), start(2)];
    eventually("two members", || daemons.iter().all(|d| members(d) == 2));
    let space = Client::connect(&daemons[0].socket).unwrap().lockspace("default").unwrap();
    space.lock("a", Mode::EX).unwrap().unlock().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemons[0].child.id()));
    let status = status.unwrap();
    assert!(status.contains(&format!("Uid:\t{USER}\t{USER}")), "{status}");
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
}
