//! `lockify status` for a monitor: its exit code is 1 if there is a problem. And `serve --check` of a configuration.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;
use std::process::Stdio;

use crate::common::cluster::Cluster;
use crate::common::{Process, User, code, stderr, stdout, wait_for};
use lockify_trust::{CaFolder, Lifetime};
use serde_json::Value;

/// The problems in the output of `--json`.
fn problems(cluster: &Cluster, node: usize) -> Vec<(String, u64)> {
    let out = cluster.lockify(node, &["status", "--json"]);
    let said: Value = serde_json::from_slice(&out.stdout).unwrap();
    let all = said["problems"].as_array().unwrap();
    assert_eq!(code(&out), i32::from(!all.is_empty()), "{said}");
    let one = |p: &Value| (p["kind"].as_str().unwrap().into(), p["nodes"][0].as_u64().unwrap());
    all.iter().map(one).collect()
}

#[test]
fn a_missing_node_and_a_lost_quorum_are_told_by_the_exit_code() {
    let mut cluster = Cluster::start("lease = \"1s\"");
    wait_for(|| code(&cluster.lockify(1, &["status"])) == 0);
    cluster.nodes[2].1 = None;
    wait_for(|| problems(&cluster, 1).contains(&("no_answer".into(), 3)));
    let out = cluster.lockify(1, &["status"]);
    assert_eq!(code(&out), 1, "{out:?}");
    let text = stdout(&out);
    assert!(text.contains("! node 3 does not answer. Node 3 is out because node 1"), "{text}");
    cluster.nodes[1].1 = None;
    wait_for(|| problems(&cluster, 1).contains(&("no_quorum".into(), 1)));
    let text = stdout(&cluster.lockify(1, &["status"]));
    assert!(text.contains("node 1 has no quorum: no lock is granted there"), "{text}");
    // Without a daemon, nothing is known.
    cluster.nodes[0].1 = None;
    wait_for(|| code(&cluster.lockify(1, &["status"])) == 3);
}

/// A node with keys, in a folder that others may enter.
struct Keyed {
    user: User,
    config: PathBuf,
    identity: PathBuf,
    socket: PathBuf,
}

impl Keyed {
    fn new(days: u32, extra: &str) -> Keyed {
        let user = User::new();
        let ca = CaFolder::init(&user.dir().join("ca"), "c", Lifetime::Days(900)).unwrap();
        let files = ca.add_node(1, Lifetime::Days(days)).unwrap();
        let [config, identity, trusted, socket] =
            ["lockify.toml", "node.pem", "ca.pem", "sock"].map(|name| user.dir().join(name));
        std::fs::copy(files.identity, &identity).unwrap();
        std::fs::copy(files.ca, &trusted).unwrap();
        let text = format!(
            "cluster = \"c\"\nnode = 1\nsocket = {socket:?}\nnodes = [{{ id = 1, address = \"127.0.0.1:0\" }}]\n\
             [security]\nca = {trusted:?}\nidentity = {identity:?}\n{extra}"
        );
        std::fs::write(&config, text).unwrap();
        std::fs::set_permissions(user.dir(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Keyed { user, config, identity, socket }
    }
}

#[test]
fn a_certificate_that_ends_soon_is_told_by_the_exit_code() {
    for (extra, expected) in [("", 1), ("warn_days = 5", 0), ("warn_days = 11", 1)] {
        let node = Keyed::new(10, extra);
        let args = ["serve", "--config", node.config.to_str().unwrap()];
        let daemon = node.user.command(&args).stderr(Stdio::null()).spawn().unwrap();
        let _daemon = Process(daemon);
        wait_for(|| node.socket.exists());
        let out = node.user.lockify(&["status", "--socket", node.socket.to_str().unwrap()]);
        assert_eq!(code(&out), expected, "{extra}: {out:?}");
        let said = stdout(&out).contains("the certificate of node 1, or the authority");
        assert_eq!(said, expected == 1, "{out:?}");
    }
}

/// Root, who may read everything, asks for a daemon that may not, and gets no advice that would break it.
#[test]
fn a_check_sees_what_the_daemons_user_sees() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        let out = User::new().lockify(&["serve", "--check", "--as", "root"]);
        assert!(code(&out) == 2 && stderr(&out).contains("only root can look as user"), "{out:?}");
        return;
    }
    let node = Keyed::new(900, "");
    let check = || {
        let config = node.config.to_str().unwrap();
        node.user.lockify(&["serve", "--check", "--as", "nobody", "--config", config])
    };
    // Root's alone: the daemon could not start.
    let out = check();
    let said = stderr(&out);
    assert_eq!(code(&out), 2, "{out:?}");
    assert!(said.contains(&format!("chown {NOBODY} ")) && !said.contains("chown 0"), "{said}");
    // The socket's folder is not that user's either.
    assert!(said.contains("socket: user 65534 cannot make"), "{said}");
    chown(&node.identity, Some(NOBODY), None).unwrap();
    chown(node.user.dir(), Some(NOBODY), None).unwrap();
    let out = check();
    assert_eq!(code(&out), 0, "{out:?}");
    assert!(stdout(&out).contains("judged as user \"nobody\""), "{out:?}");
    let out = node.user.lockify(&["serve", "--check", "--as", "nobody at all"]);
    assert!(code(&out) == 2 && stderr(&out).contains("not known on this machine"), "{out:?}");
}
