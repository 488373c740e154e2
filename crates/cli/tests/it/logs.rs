//! The daemon's log: a request can be followed from node to node.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;

use crate::common::ports::free_address;
use crate::common::{Process, User, wait_for};
use lockify_client::{Client, Mode};
use serde_json::Value;

/// Two nodes that log every request, as JSON, into files.
fn two_nodes(user: &User) -> Vec<(PathBuf, PathBuf, Process)> {
    let ports = [free_address(), free_address()].map(|address| address.port());
    let start = |node: usize| {
        let path = |end: &str| user.dir().join(format!("node{node}.{end}"));
        let (socket, config, log) = (path("sock"), path("toml"), path("log"));
        let text = format!(
            "node = {node}\nsocket = {socket:?}\nnodes = [{{ id = 1, address = \"127.0.0.1:{}\" }}, \
             {{ id = 2, address = \"127.0.0.1:{}\" }}]\n\
             log = {{ format = \"json\", level = \"info,lockify::request=debug\" }}\n",
            ports[0], ports[1]
        );
        std::fs::write(&config, text).unwrap();
        let args = ["serve", "--config", config.to_str().unwrap()];
        let mut daemon = user.command(&args);
        daemon.stderr(File::create(&log).unwrap());
        let daemon = Process(daemon.spawn().unwrap());
        // It is there before anybody listens.
        wait_for(|| Client::connect(&socket).is_ok());
        (socket, log, daemon)
    };
    vec![start(1), start(2)]
}

fn lines(log: &PathBuf) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap();
    // The last line may be half written.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

fn has(log: &PathBuf, wanted: &[(&str, &Value)]) -> bool {
    lines(log).iter().any(|line| wanted.iter().all(|(key, value)| line[*key] == **value))
}

#[test]
fn a_request_has_one_id_on_all_nodes_from_the_call_to_the_grant() {
    let user = User::new();
    let nodes = two_nodes(&user);
    let spaces: Vec<_> = nodes
        .iter()
        .map(|(socket, ..)| Client::connect(socket).unwrap().lockspace("default").unwrap())
        .collect();
    // Node 1 masters it.
    let held = spaces[0].lock("db", Mode::EX).unwrap();
    let asks = {
        let space = spaces[1].clone();
        std::thread::spawn(move || space.lock("db", Mode::PR).unwrap().unlock())
    };
    let called = || {
        let lines = lines(&nodes[1].1);
        let mut calls = lines.into_iter().filter(|l| l["message"] == "lock" && l["name"] == "db");
        calls.next().map(|l| l["lock"].clone())
    };
    wait_for(|| called().is_some());
    let id = called().unwrap();
    assert!(id.as_str().unwrap().starts_with("default/2.0/"), "{id}");
    let (one, two) = (&nodes[0].1, &nodes[1].1);
    // The directory's or the master's side of it.
    let from_two = [("lock", &id), ("node", &1.into()), ("from", &2.into())];
    wait_for(|| has(one, &from_two));
    held.unlock().unwrap();
    asks.join().unwrap().unwrap();
    let granted = Value::from("grant");
    wait_for(|| has(one, &[("lock", &id), ("message", &granted), ("to", &2.into())]));
    wait_for(|| has(two, &[("lock", &id), ("message", &granted), ("from", &1.into())]));
    let ended = Value::from("ended");
    let status = Value::from("Granted");
    wait_for(|| has(two, &[("lock", &id), ("message", &ended), ("status", &status)]));
}

#[test]
fn a_daemon_outlives_whoever_reads_its_log() {
    for format in ["json", "human"] {
        let user = User::new();
        let (socket, config) = (user.dir().join("sock"), user.dir().join("toml"));
        let text = format!(
            "node = 1\nsocket = {socket:?}\n\
             log = {{ format = {format:?}, level = \"debug\" }}\n\
             nodes = [{{ id = 1, address = \"127.0.0.1:0\" }}]\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut daemon = user.command(&["serve", "--config", config.to_str().unwrap()]);
        let mut daemon = Process(daemon.stderr(Stdio::piped()).spawn().unwrap());
        drop(daemon.0.stderr.take());
        wait_for(|| Client::connect(&socket).is_ok());
        let space = Client::connect(&socket).unwrap().lockspace("default").unwrap();
        space.lock("db", Mode::EX).unwrap().unlock().unwrap();
        assert!(daemon.0.try_wait().unwrap().is_none());
    }
}
