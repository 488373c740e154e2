//! The configuration file: what it says is understood, and what is wrong is named with its place.

use std::path::Path;
use std::time::Duration;

use lockify_core::Policy;
use lockify_daemon::Config;

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
        ("shards = 2", "shards = \"two\"", 6, "u16"),
        ("lease = \"1500ms\"", "lease = \"soon\"", 7, "write a time as"),
        ("socket_mode = \"660\"", "socket_mode = \"rw\"", 5, "three octal digits"),
        ("policy = \"directory\"", "policy = \"guess\"", 24, "use directory, claim"),
        ("delay = \"10us\"", "dealy = \"10us\"", 8, "unknown field"),
        ("address = \"127.0.0.1:7440\"", "address = \"localhost\"", 20, "address"),
        ("node = 2", "node = ", 3, "TOML parse error"),
    ] {
        let text = GOOD.replace(from, to);
        assert_ne!(text, GOOD, "{from}");
        let e = refusal(&text);
        assert!(e.starts_with("lockify.toml: "), "{e}");
        assert!(e.contains(&format!("line {line},")) && e.contains(what), "{from}: {e}");
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    for (from, to, what) in [
        ("node = 2", "node = 3", "add node 3 to nodes"),
        ("id = 1", "id = 2", "two nodes have the id 2"),
        (":7440", ":7430", "give each its own"),
        (":7440", ":65535", "no 2 ports"),
        ("127.0.0.1:7440", "0.0.0.0:7440", "no address that others can reach"),
        ("shards = 2", "shards = 0", "use 1 to 64"),
        ("lvb_len = 64", "lvb_len = 0", "1 to 4096"),
        ("name = \"files\"", "name = \"\"", "1 to 64 bytes"),
        ("cluster = \"test\"", "cluster = \"\"", "1 to 64 bytes"),
        ("shards = 2", "nodes_file = \"x\"", "both nodes and nodes_file"),
    ] {
        let text = GOOD.replace(from, to);
        assert_ne!(text, GOOD, "{from}");
        let e = refusal(&text);
        assert!(e.contains(what), "{from}: {e}");
    }
    let twice = GOOD.to_owned() + "[[lockspace]]\nname = \"files\"\n";
    assert!(refusal(&twice).contains("there twice"));
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let e = Config::read(Path::new("/nonexistent/lockify.toml")).unwrap_err().to_string();
    assert!(e.contains("/nonexistent/lockify.toml"), "{e}");
}
