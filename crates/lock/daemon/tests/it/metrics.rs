//! Metrics of a real daemon, read as Prometheus reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::common::{Alone, alone_config, eventually, recording, within};
use lockify_client::{Client, LockFlags, Mode};
use lockify_daemon::Config;

/// Sends bytes and reads all that comes.
fn exchange(mut stream: impl Read + Write + Send + 'static, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    within("an answer and its end", move || {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    })
}

fn get(socket: &Path) -> BTreeMap<String, f64> {
    let answer =
        exchange(UnixStream::connect(socket).unwrap(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    let samples = body.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    samples.map(sample).collect()
}

/// A daemon, its metrics' socket, and the socket's directory.
fn with_socket() -> (Alone, std::path::PathBuf, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("metrics.sock");
    let extra = format!("metrics = {{ socket = {socket:?} }}\nshards = 2");
    let daemon = Alone::start(&extra);
    eventually("a node that is a member", || get(&socket)["lockify_members"] == 1.0);
    (daemon, socket, dir)
}

#[test]
fn locks_waits_claims_and_sessions_are_counted() {
    let (daemon, socket, _dir) = with_socket();
    let space = daemon.client().lockspace("default").unwrap();
    let held = space.lock("a", Mode::EX).unwrap();
    space.request("new", Mode::EX).notify().lock().unwrap().unlock().unwrap();
    assert!(space.try_lock("a", Mode::PR).is_err());
    let other = daemon.client().lockspace("default").unwrap();
    let waits = std::thread::spawn(move || other.lock("a", Mode::PR).map(drop));
    eventually("a waiter", || get(&socket)["lockify_waiting_locks{lockspace=\"default\"}"] == 1.0);
    let before = get(&socket);
    assert_eq!(before["lockify_operations_total{outcome=\"granted\"}"], 2.0);
    assert_eq!(before["lockify_operations_total{outcome=\"again\"}"], 1.0);
    assert_eq!(before["lockify_grant_duration_seconds_count"], 2.0);
    assert_eq!(before["lockify_wait_duration_seconds_count"], 0.0);
    assert_eq!(before["lockify_shards{state=\"answered\"}"], 2.0);
    assert!(before["lockify_sessions"] >= 2.0);
    held.unlock().unwrap();
    waits.join().unwrap().unwrap();
    let after = get(&socket);
    assert_eq!(after["lockify_wait_duration_seconds_count"], 1.0);
    assert_eq!(after["lockify_wait_duration_seconds_bucket{le=\"+Inf\"}"], 1.0);
    assert!(after["lockify_wait_duration_seconds_sum"] > 0.0);
    assert_eq!(after["lockify_master_queued_total{lockspace=\"default\"}"], 1.0);
    assert!(after["lockify_session_bytes_total{direction=\"received\"}"] > 100.0);
    assert!(after["lockify_recoveries_total{lockspace=\"default\"}"] >= 1.0);
    assert!(
        after.contains_key("lockify_recovery_seconds_total{lockspace=\"default\",step=\"locks\"}")
    );
    assert_eq!(after["lockify_members"], 1.0);
    assert_eq!(after["lockify_era"], 448.0);
}

#[test]
fn a_cancelled_wait_and_a_client_that_dies_leave_nothing_open() {
    let (daemon, socket, _dir) = with_socket();
    let space = daemon.client().lockspace("default").unwrap();
    let held = space.lock("a", Mode::EX).unwrap();
    let timed = space.request("a", Mode::PR).timeout(std::time::Duration::from_millis(10)).lock();
    assert!(timed.is_err());
    let other = daemon.client().lockspace("default").unwrap();
    drop(other.request("a", Mode::PR).flags(LockFlags::NOORDER).lock_async());
    drop(other);
    let waiting = "lockify_waiting_locks{lockspace=\"default\"}";
    eventually("no waiters", || get(&socket)[waiting] == 0.0);
    assert_eq!(get(&socket)["lockify_operations_total{outcome=\"timed_out\"}"], 1.0);
    held.unlock().unwrap();
}

#[test]
fn nonsense_and_slow_readers_harm_nobody() {
    let (daemon, socket, _dir) = with_socket();
    let mut silent = UnixStream::connect(&socket).unwrap();
    silent.write_all(b"GET /met").unwrap();
    drop(silent);
    for (request, answer) in [
        ("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 404"),
        ("\0\0\0\0 nonsense\r\n\r\n", "HTTP/1.1 400"),
    ] {
        let got = exchange(UnixStream::connect(&socket).unwrap(), request);
        assert!(got.starts_with(answer), "{request:?}: {got}");
    }
    assert!(get(&socket)["lockify_members"] == 1.0);
    drop(daemon);
    assert!(!socket.exists());
}

/// A reader that connects and is silent, or does not take its answer, delays nobody. Served one after the other, each of
/// these would cost the next one five seconds: 64 of them more than the others' patience.
#[test]
fn silent_readers_do_not_hold_up_the_others() {
    let (_daemon, socket, _dir) = with_socket();
    let silent: Vec<_> = (0..64)
        .map(|i| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            // One half asks and never reads.
            let says: &[u8] =
                if i % 2 == 0 { b"GET /met" } else { b"GET /metrics HTTP/1.1\r\n\r\n" };
            stream.write_all(says).unwrap();
            stream
        })
        .collect();
    for _ in 0..10 {
        assert_eq!(get(&socket)["lockify_members"], 1.0);
    }
    drop(silent);
}

#[test]
fn they_are_served_on_the_loopback_interface_if_asked_for_and_nowhere_else() {
    let dir = tempfile::tempdir().unwrap();
    let config = alone_config(dir.path(), "metrics = { address = \"127.0.0.1:0\" }");
    let (log, lines) = recording();
    let daemon = lockify_daemon::Daemon::start(&config, &log).unwrap();
    let line = lines.lock().unwrap().iter().find(|l| l.contains("http://")).unwrap().clone();
    let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
    let got = exchange(TcpStream::connect(&address).unwrap(), "GET /metrics HTTP/1.0\r\n\r\n");
    assert!(got.contains("lockify_sessions 0"), "{got}");
    let _client = Client::connect(&config.socket).unwrap();
    daemon.handle().stop();
    daemon.wait().unwrap();
    assert!(TcpStream::connect(&address).is_err());
    for (metrics, says) in [
        ("{ address = \"192.0.2.1:9464\" }", "loopback"),
        ("{ address = \"127.0.0.1:1\", socket = \"/x\" }", "not both"),
        ("{ adress = \"127.0.0.1:1\" }", "adress"),
    ] {
        let text = format!(
            "node = 1\nmetrics = {metrics}\n[[nodes]]\nid = 1\naddress = \"127.0.0.1:0\"\n"
        );
        let error = Config::parse(&text, Path::new("x.toml")).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn what_is_served_is_what_the_documentation_lists() {
    // With keys, there are certificates.
    let dir = tempfile::tempdir().unwrap();
    let [socket, key] = ["metrics.sock", "cluster.key"].map(|name| dir.path().join(name));
    lockify_trust::generate_key_file(&key).unwrap();
    let keys = format!("security = {{ cluster_key = {key:?} }}\n");
    let _daemon = Alone::start(&format!("{keys}metrics = {{ socket = {socket:?} }}\nshards = 2"));
    // The end of the year 9999: a key has no end.
    let end = get(&socket)["lockify_certificate_end_timestamp_seconds{node=\"1\"}"];
    assert!(end > 2.5e11, "{end}");
    let page = include_str!("../../../../../docs/observing.md");
    // The page also has those of the kernel.
    let page = page.split("\n## Metrics\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let page = page.unwrap();
    let first_cells =
        page.lines().filter_map(|line| line.strip_prefix("| `lockify_")?.split('|').next());
    let names = first_cells.flat_map(|cell| cell.split(['`', ',', ' ']));
    let documented: BTreeSet<String> = names
        .map(|name| format!("lockify_{}", name.strip_prefix("lockify_").unwrap_or(name)))
        .filter(|name| name != "lockify_")
        .collect();
    let served: BTreeSet<String> = get(&socket)
        .into_keys()
        .map(|sample| {
            let name = sample.split('{').next().unwrap();
            let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s));
            histogram.unwrap_or(name).to_owned()
        })
        .collect();
    // In a sentence above the table.
    let above = ["lockify_shards".to_owned()];
    assert!(page.contains("lockify_shards{state=\"silent\"}"));
    let documented: BTreeSet<String> = documented.into_iter().chain(above).collect();
    assert_eq!(served, documented);
}
