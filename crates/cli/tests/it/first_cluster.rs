//! The commands of docs/security.md, from nothing to a cluster, as they stand there.

use std::path::Path;
use std::process::Command;

const PAGE: &str = include_str!("../../../../docs/security.md");

/// The first block of commands under a heading.
fn commands(heading: &str) -> &'static str {
    let (_, section) = PAGE.split_once(&format!("## {heading}\n")).expect("the heading");
    let (_, block) = section.split_once("```sh\n").expect("a block of commands");
    block.split_once("```").expect("its end").0
}

#[test]
fn the_pages_commands_make_a_cluster_of_three_namespaces() {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let must = std::env::var_os("LOCKIFY_TEST_AS_ROOT").is_some();
        assert!(!must, "LOCKIFY_TEST_AS_ROOT is set: run this as root");
        eprintln!("not run: only root can make network namespaces; LOCKIFY_TEST_AS_ROOT=1 insists");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Namespaces of its own for all that the commands make: it goes with them. The daemons go with
    // the first process of theirs.
    let script = format!(
        "set -eu\nmount -t tmpfs tmpfs /run\nmount -t proc proc /proc\n{}\
         grep -c 'prove to each other' node?/log\n",
        commands("From nothing to a cluster")
    );
    let program = Path::new(env!("CARGO_BIN_EXE_lockify")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let output = Command::new("timeout")
        .args(["--kill-after=5", "120", "unshare", "--mount", "--net", "--pid", "--fork"])
        .args(["--kill-child", "--propagation=private", "sh", "-c", &script])
        .current_dir(dir.path())
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .env_remove("LOCKIFY_SOCKET")
        .env_remove("LOCKIFY_SPACE")
        .output()
        .unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let logs: Vec<String> = (1..=3)
        .map(|n| std::fs::read_to_string(dir.path().join(format!("node{n}/log"))))
        .map(Result::unwrap_or_default)
        .collect();
    assert!(output.status.success(), "{out}\n{err}\n{logs:#?}");
    // The holder on node 1, seen from node 3.
    assert!(out.contains("backup") && out.contains("EX"), "{out}");
    for n in 1..=3 {
        assert!(out.contains(&format!("node{n}/log:1")), "node {n} has no keys: {out}");
    }
}

/// `lockify cluster`: its output, and its refusal of harmful commands.
#[test]
fn keys_are_made_once_and_replaced_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let lockify = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockify"));
        let output = command.arg("cluster").args(args).current_dir(dir.path()).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    };
    let says = |args: &[&str], code: i32, texts: &[&str]| {
        let (ended, text) = lockify(args);
        assert_eq!(ended, code, "{args:?}: {text}");
        texts.iter().for_each(|t| assert!(text.contains(t), "{args:?}: no {t:?} in: {text}"));
    };
    says(&["init", "ca", "--name", "demo"], 0, &["\"demo\"", "add-node ca"]);
    says(&["init", "ca", "--name", "demo"], 3, &["ca exists"]);
    says(&["add-node", "ca", "1", "2"], 0, &["node-1/node.pem", "node-2/ca.pem"]);
    says(&["add-node", "ca", "3", "2"], 3, &["node 3: copy", "node-2 exists"]);
    let identity = dir.path().join("ca/node-1/node.pem");
    let before = std::fs::read(&identity).unwrap();
    says(&["renew", "ca", "1"], 0, &["node 1: copy", "SIGHUP"]);
    assert_ne!(std::fs::read(&identity).unwrap(), before);
    says(&["renew", "ca", "9"], 3, &["node-9"]);
    says(&["roll-over", "ca"], 0, &["1. copy ca/ca.pem", "renew ca", "retire ca"]);
    says(&["roll-over", "ca"], 3, &["two authorities already"]);
    says(&["retire", "ca"], 0, &["only the newest"]);
    says(&["key", "cluster.key"], 0, &["cluster_key"]);
    says(&["key", "cluster.key"], 3, &["not overwritten"]);
    says(&["add-node", "nowhere", "1"], 3, &["nowhere"]);
    says(&["add-node", "ca", "one"], 2, &["one"]);
    says(&["add-node", "ca"], 2, &[]);
    says(&["init", "other", "--days", "0"], 3, &["1 to 36525 days"]);
    says(&["init", "other", "--name", ""], 3, &["1 to 64 bytes"]);
    assert!(!dir.path().join("other").exists());
}
