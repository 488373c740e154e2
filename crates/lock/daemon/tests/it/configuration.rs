//! The configuration file: its content is understood, and errors are named with their place.

use std::path::Path;
use std::time::Duration;

use lockify_core::Policy;
use lockify_daemon::{Config, Fence, MembershipKind, QuorumLostAction};

const GOOD: &str = r#"
cluster = "test"
node = 2
socket = "/tmp/lockify.sock"
socket_mode = "660"
shards = 2
lease = "1500ms"
delay = "10us"
history = "history.jsonl"

[limits]
max_sessions = 5

[[nodes]]
id = 1
address = "127.0.0.1:7430"

[[nodes]]
id = 2
address = "127.0.0.1:7440"

[[lockspace]]
name = "files"
policy = "directory"
lvb_len = 64
"#;

fn refusal(text: &str) -> String {
    match Config::parse(text, Path::new("lockify.toml")) {
        Ok(config) => panic!("accepted {config:?}"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn a_full_file_is_understood() {
    let config = Config::parse(GOOD, Path::new("lockify.toml")).unwrap();
    assert_eq!((config.node, config.shards, config.socket_mode), (2, 2, 0o660));
    assert_eq!(config.lease, Duration::from_millis(1500));
    assert_eq!(config.delay, Duration::from_micros(10));
    assert_eq!(config.limits.max_sessions, 5);
    assert_eq!(config.lockspaces[0].policy, Policy::Directory);
    assert_eq!(config.lockspaces[0].lvb_len, 64);
    assert_eq!(config.nodes[1].address.port(), 7440);
}

#[test]
fn what_may_be_left_out_has_defaults() {
    let text = "node = 1\n[[nodes]]\nid = 1\naddress = \"127.0.0.1:0\"\n";
    let config = Config::parse(text, Path::new("x")).unwrap();
    assert_eq!((config.shards, config.socket_mode), (1, 0o600));
    assert_eq!(config.lockspaces[0].name, "default");
    assert_eq!(config.lockspaces[0].policy.name(), "claim");
}

#[test]
fn the_nodes_may_have_a_file_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = "[[nodes]]\nid = 1\naddress = \"127.0.0.1:7430\"\n";
    std::fs::write(dir.path().join("nodes.toml"), nodes).unwrap();
    let path = dir.path().join("lockify.toml");
    std::fs::write(&path, "node = 1\nnodes_file = \"nodes.toml\"\n").unwrap();
    let config = Config::read(&path).unwrap();
    assert_eq!(config.nodes.len(), 1);

    std::fs::write(dir.path().join("nodes.toml"), "[[nodes]]\nid = \"one\"\n").unwrap();
    let e = Config::read(&path).unwrap_err().to_string();
    assert!(e.contains("nodes.toml") && e.contains("line 2"), "{e}");
}

#[test]
fn mistakes_are_named_with_their_line() {
    for (from, to, line, what) in [
        (
            "shards = 2",
            "shards = \"two\"",
            6,
            "expected: a number, 1 to 64, for example `shards = 4`",
        ),
        ("lease = \"1500ms\"", "lease = \"soon\"", 7, "write a time as"),
        ("socket_mode = \"660\"", "socket_mode = \"rw\"", 5, "three octal digits"),
        ("policy = \"directory\"", "policy = \"guess\"", 24, "use directory, claim"),
        ("delay = \"10us\"", "dealy = \"10us\"", 8, "no key `dealy` here: did you mean `delay`?"),
        ("delay = \"10us\"", "security.key = \"x\"", 8, "no key `key` here: the keys here are ca"),
        ("delay = \"10us\"", "max_lock = 5", 8, "did you mean `max_locks` of [limits]?"),
        ("id = 2", "", 18, "id is missing; expected: a number"),
        ("lvb_len = 64", "lvb_len = -1", 25, "integer `-1`; expected: a number of bytes"),
        ("lvb_len = 64", "mode = \"rw\"", 25, "three octal digits"),
        ("address = \"127.0.0.1:7440\"", "address = \"localhost\"", 20, "address"),
        ("node = 2", "node = ", 3, "this is no TOML"),
    ] {
        let text = GOOD.replace(from, to);
        assert_ne!(text, GOOD, "{from}");
        let e = refusal(&text);
        assert!(e.starts_with("lockify.toml: "), "{e}");
        assert!(e.contains(&format!("line {line},")) && e.contains(what), "{from}: {e}");
    }
}

/// The author of a wrong value reads the value, the permitted ones, and an example, on one line.
#[test]
fn messages_say_what_is_written_and_what_could_be() {
    let list = "node = 1\n[[nodes]]\nid = 1\naddress = \"127.0.0.1:0\"\n";
    for (line, written, example) in [
        ("lease = \"9h\"", "9h", "`lease = \"4s\"`"),
        ("lease = 4", "`4`", "`lease = \"4s\"`"),
        ("cluster = \"\"", "`cluster = \"\"`", "`cluster = \"production\"`"),
        ("cluster = 7", "`7`", "`cluster = \"production\"`"),
        ("socket_mode = 660", "`660`", "`socket_mode = \"660\"`"),
        ("socket_mode = \"999\"", "`socket_mode = \"999\"`", "`socket_mode = \"660\"`"),
        ("fence = \"leese\"", "leese", "`fence = \"lease\"`"),
        ("wire_version = 99", "`wire_version = 99`", "`wire_version = 4`"),
        ("log.level = \"loud\"", "loud", "`level = \"info,lockify::request=debug\"`"),
        ("log.format = \"xml\"", "xml", "`format = \"json\"`"),
        ("limits.max_locks = 0", "max_locks = 0", "`max_locks = 1_000_000`"),
        ("limits.max_locks = -4", "-4", "`max_locks = 1_000_000`"),
        ("metrics.address = \"0.0.0.0:9464\"", "0.0.0.0:9464", "`address = \"127.0.0.1:9464\"`"),
        ("metrics.address = \"here\"", "here", "`address = \"127.0.0.1:9464\"`"),
        ("security.warn_days = 4000", "warn_days = 4000", "`warn_days = 30`"),
        ("fencing.time_limit = \"0s\"", "0s", "`time_limit = \"60s\"`"),
        ("quorum_lost.action = \"panic\"", "panic", "`action = \"rejoin\"`"),
        ("lockspace = [{ name = \"a\", lvb_len = 0 }]", "lvb_len = 0", "`lvb_len = 32`"),
        ("lockspace = [{ name = \"a\", policy = \"best\" }]", "best", "`policy = \"claim\"`"),
    ] {
        let e = refusal(&format!("{line}\n{list}"));
        assert!(e.starts_with("lockify.toml: line 1, column "), "{line}: {e}");
        let all = [written, example, "expected: "];
        all.iter().for_each(|part| assert!(e.contains(part), "{line}: no {part} in {e}"));
        assert!(!e.contains('\n'), "{e}");
    }
    // Bytes of the file are shown as text.
    let e = refusal("cluster = 1\n\"\\u001b[2J\" = 1\n");
    assert_eq!(e, lockify_trust::printable(&e));
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let long = format!("history = \"h\"\nsocket = \"/{}\"", "x".repeat(107));
    for (from, to, line, what) in [
        ("node = 2", "node = 3", 3, "add node 3 to nodes"),
        ("id = 1", "id = 2", 19, "two nodes have the id 2 (the other is in line 15)"),
        (":7440", ":7430", 20, "share ports at 127.0.0.1 (the other is in line 16)"),
        (":7440", ":7431", 20, "each uses 2, from its own on"),
        (":7440", ":65535", 20, "no 2 ports"),
        ("127.0.0.1:7440", "0.0.0.0:7440", 20, "no address that others can reach"),
        ("shards = 2", "shards = 0", 6, "use 1 to 64"),
        ("lvb_len = 64", "lvb_len = 0", 25, "1 to 4096"),
        ("name = \"files\"", "name = \"\"", 23, "1 to 64 bytes"),
        ("cluster = \"test\"", "cluster = \"\"", 2, "1 to 64 bytes"),
        ("shards = 2", "nodes_file = \"x\"", 6, "both nodes and nodes_file"),
        ("lvb_len = 64", "owner = \"no such user\"", 25, "no such user\" is not known"),
        ("lvb_len = 64", "group = \"no such group\"", 25, "no such group\" is not known"),
        ("lvb_len = 64", "mode = \"755\"", 25, "not executed"),
        ("lvb_len = 64", "deadlock_after = \"1ms\"", 25, "10ms to 1day"),
        ("shards = 2", "security.ca = \"x\"", 6, "identity is missing"),
        ("shards = 2", "security.identity = \"x\"", 6, "ca is missing"),
        ("shards = 2", "security.plain_text = \"yes\"", 6, "write plain_text = \"anybody who"),
        (
            "shards = 2",
            "security = { ca = \"x\", identity = \"y\", cluster_key = \"z\" }",
            6,
            "remove the others",
        ),
        ("lease = \"1500ms\"", "lease = \"1ms\"", 7, "use 10ms to 1h"),
        ("delay = \"10us\"", "delay = \"2s\"", 8, "shorter than the lease"),
        ("delay = \"10us\"", "log.level = \"loud\"", 8, "no level"),
        ("delay = \"10us\"", "wire_version = 2", 8, "speaks versions 3 to 5"),
        ("delay = \"10us\"", "busy_poll = \"2s\"", 8, "use 0s to 1s"),
        ("delay = \"10us\"", "shutdown_grace = \"2days\"", 8, "to 1day"),
        ("delay = \"10us\"", "fencing.time_limit = \"0s\"", 8, "use 10ms"),
        ("delay = \"10us\"", "quorum_lost.time_limit = \"0s\"", 8, "use 10ms"),
        ("history = \"history.jsonl\"", &long, 10, "a Unix socket's path has at most"),
        ("max_sessions = 5", "max_sessions = 0", 12, "lets nobody in"),
        ("max_sessions = 5", "max_unread = 0", 12, "lets nobody in"),
        ("shards = 2", "metrics.address = \"127.0.0.1:7440\"", 6, "listens for others"),
        ("shards = 2", "metrics.address = \"192.0.2.1:9464\"", 6, "loopback"),
    ] {
        let text = GOOD.replace("socket = \"/tmp/lockify.sock\"\n", "\n").replace(from, to);
        assert!(text.contains(to), "{from}");
        let e = refusal(&text);
        assert!(e.starts_with(&format!("lockify.toml: line {line}, column ")), "{from}: {e}");
        assert!(e.contains(what), "{from}: {e}");
    }
    let twice = GOOD.to_owned() + "[[lockspace]]\nname = \"files\"\n";
    let e = refusal(&twice);
    assert!(e.contains("line 27, column 1: ") && e.contains("there twice"), "{e}");
}

/// A port twice, without shards; and keys that are missing from the file.
#[test]
fn what_is_missing_is_named() {
    let node = |id: u32| format!("[[nodes]]\nid = {id}\naddress = \"127.0.0.1:7430\"\n");
    let e = refusal(&format!("node = 1\n{}{}", node(1), node(2)));
    let says = "line 7, column 1: nodes 1 and 2 have the address 127.0.0.1:7430 (the other is in \
                line 4)";
    assert!(e.contains(says), "{e}");
    let e = refusal(&node(1));
    assert!(e.contains("node is missing: write which of nodes"), "{e}");
    let e = refusal("node = 1\n");
    assert!(e.contains("line 1, column 1: the list of nodes is missing"), "{e}");
}

#[test]
fn mistakes_in_the_file_of_nodes_have_its_name_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let node = "[[nodes]]\nid = 1\naddress = \"127.0.0.1:7430\"\n";
    std::fs::write(dir.path().join("nodes.toml"), format!("{node}{node}")).unwrap();
    let path = dir.path().join("lockify.toml");
    std::fs::write(&path, "node = 1\nnodes_file = \"nodes.toml\"\n").unwrap();
    let e = Config::read(&path).unwrap_err().to_string();
    assert!(e.contains("nodes.toml: line 5, column 1: two nodes have the id 1"), "{e}");
    assert!(e.contains("(the other is in line 2)"), "{e}");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let e = Config::read(Path::new("/nonexistent/lockify.toml")).unwrap_err().to_string();
    assert!(e.contains("/nonexistent/lockify.toml"), "{e}");
}

const CLUSTER: &str = r#"
membership = "corosync"
port = 7000
fence = "command"

[fencing]
command = ["/sbin/agent", "{node}"]
time_limit = "5s"

[quorum_lost]
action = "exit"
command = ["/bin/true"]
"#;

#[test]
fn corosync_has_the_list_of_nodes() {
    let config = Config::parse(CLUSTER, Path::new("x")).unwrap();
    assert_eq!((config.membership, config.fence), (MembershipKind::Corosync, Fence::Command));
    assert_eq!((config.node, config.port, config.nodes.len()), (0, 7000, 0));
    assert_eq!(config.fencing.command, ["/sbin/agent", "{node}"]);
    assert_eq!(config.fencing.time_limit, Duration::from_secs(5));
    assert_eq!(config.fencing.startup_wait, Duration::from_secs(30));
    assert_eq!(config.quorum_lost.action, QuorumLostAction::Exit);
    let plain = Config::parse("membership = \"corosync\"", Path::new("x")).unwrap();
    assert_eq!((plain.fence, plain.port), (Fence::Lease, 7430));
    assert_eq!(plain.quorum_lost.action, QuorumLostAction::Rejoin);
}

#[test]
fn what_does_not_fit_the_membership_is_refused() {
    let list = "node = 1\n[[nodes]]\nid = 1\naddress = \"127.0.0.1:0\"\n";
    let corosync = "membership = \"corosync\"\n";
    for (text, says) in [
        (format!("{corosync}{list}"), "remove this one"),
        (format!("fence = \"command\"\n{list}"), "fencing.command"),
        (format!("{corosync}fence = \"command\"\n"), "fencing.command"),
        (format!("{corosync}[fencing]\ncommand = [\"x\"]\n"), "fencing.command"),
        (format!("{corosync}port = 0\n"), "port = 0"),
        (format!("{corosync}port = 65535\nshards = 2\n"), "2 ports"),
        (format!("{corosync}[fencing]\ntime_limit = \"soon\"\n"), "line 3"),
        ("membership = \"gossip\"\n".into(), "line 1"),
        (format!("{corosync}fence = \"maybe\"\n"), "line 2"),
        (format!("{corosync}[quorum_lost]\naction = \"panic\"\n"), "line 3"),
        (format!("{corosync}[quorum_lost]\nactions = \"exit\"\n"), "line 3"),
    ] {
        let refused = refusal(&text);
        assert!(refused.contains(says), "{text}: {refused}");
    }
}

#[test]
fn keys_are_named_from_where_the_configuration_is() {
    let base = Path::new("/etc/lockify/lockify.toml");
    let node = "node = 1\nnodes = [{ id = 1, address = \"192.0.2.1:7430\" }]\n";
    let read =
        |security: &str| Config::parse(&(security.to_owned() + node), base).unwrap().security;
    let paths = read("security = { ca = \"ca.pem\", identity = \"/run/keys/node.pem\" }\n");
    assert_eq!(paths.ca.as_deref(), Some(Path::new("/etc/lockify/ca.pem")));
    assert_eq!(paths.identity.as_deref(), Some(Path::new("/run/keys/node.pem")));
    let key = read("security.cluster_key = \"cluster.key\"\n").cluster_key;
    assert_eq!(key.as_deref(), Some(Path::new("/etc/lockify/cluster.key")));
    let words = "anybody who reaches the network may take and break locks";
    read(&format!("security.plain_text = {words:?}\n"));
}

/// Two nodes that others can reach, and nothing about keys.
#[test]
fn plain_text_between_machines_is_not_the_default() {
    let nodes = "[[nodes]]\nid = 1\naddress = \"192.0.2.1:7430\"\n\
                 [[nodes]]\nid = 2\naddress = \"192.0.2.2:7430\"\n";
    let e = refusal(&format!("node = 1\n{nodes}"));
    assert!(
        e.contains("line 4, column 1: node 1 is at 192.0.2.1") && e.contains("[security]"),
        "{e}"
    );
}
