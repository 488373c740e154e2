//! `lockify who`, `locks`, `status` and `check`, and a configured cluster.

use std::process::Stdio;

use crate::common::ports::free_address;
use crate::common::{Process, User, code, output, stderr, stdout, wait_for};

#[test]
fn who_names_holder_and_waiter_and_whom_it_waits_for() {
    let user = User::new();
    let _daemon = user.daemon();
    let run = |mode: &str| {
        let args = ["run", "--mode", mode, "db", "--", "sleep", "60"];
        Process(user.command(&args).stderr(Stdio::null()).spawn().unwrap())
    };
    let says = |args: &[&str], what: &str| stdout(&user.lockify(args)).contains(what);
    let holder = run("EX");
    wait_for(|| says(&["who", "db"], "holds EX"));
    let waiter = run("PR");
    wait_for(|| says(&["who", "db"], "waits for PR"));
    let text = stdout(&user.lockify(&["who", "db"]));
    let (holder, waiter) = (holder.0.id(), waiter.0.id());
    assert!(text.contains(&format!("pid {holder} holds EX since 2")), "{text}");
    assert!(text.contains(&format!("pid {waiter} waits for PR since 2")), "{text}");
    assert!(text.contains(&format!("for node 1 pid {holder}")), "{text}");
    let json = stdout(&user.lockify(&["who", "db", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let db = &json["resources"][0];
    assert_eq!(db["holders"][0]["pid"], holder);
    assert_eq!(db["waiters"][0]["waits_for"][0]["pid"], holder);
    let table = stdout(&user.lockify(&["locks"]));
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(says(&["who", "free"], "nobody"));
}

#[test]
fn without_a_daemon_they_say_how_to_get_one() {
    let user = User::new();
    for command in ["status", "locks", "who"] {
        let args = if command == "who" { vec!["who", "db"] } else { vec![command] };
        let out = user.lockify(&args);
        assert_eq!(code(&out), 3, "{out:?}");
        assert!(stderr(&out).contains("lockify serve"), "{out:?}");
    }
}

#[test]
fn an_unknown_lockspace_is_named_with_the_known_ones() {
    let user = User::new();
    let _daemon = user.daemon();
    let out = user.lockify(&["locks", "--space", "other"]);
    assert_eq!(code(&out), 3, "{out:?}");
    assert!(stderr(&out).contains("other") && stderr(&out).contains("default"), "{out:?}");
}

/// Two nodes on free ports of the loopback interface.
fn two_nodes(user: &User) -> Vec<(std::path::PathBuf, Process)> {
    let ports = [free_address(), free_address()].map(|address| address.port());
    let start = |node: usize| {
        let socket = user.dir().join(format!("node{node}.sock"));
        let config = user.dir().join(format!("node{node}.toml"));
        let text = format!(
            "node = {node}\nsocket = {socket:?}\nnodes = [{{ id = 1, address = \"127.0.0.1:{}\" }}, \
             {{ id = 2, address = \"127.0.0.1:{}\" }}]\n",
            ports[0], ports[1]
        );
        std::fs::write(&config, text).unwrap();
        let args = ["serve", "--config", config.to_str().unwrap()];
        let daemon = user.command(&args).stderr(Stdio::null()).spawn().unwrap();
        // It is there before anybody listens.
        wait_for(|| std::os::unix::net::UnixStream::connect(&socket).is_ok());
        (socket, Process(daemon))
    };
    vec![start(1), start(2)]
}

#[test]
fn a_cluster_of_two_shows_both_nodes_locks_at_each() {
    let user = User::new();
    let nodes = two_nodes(&user);
    let sockets: Vec<&str> = nodes.iter().map(|(s, _)| s.to_str().unwrap()).collect();
    let on = |socket: usize, args: &[&str]| {
        stdout(&output(user.command(args).env("LOCKIFY_SOCKET", sockets[socket])))
    };
    let args = ["run", "--socket", sockets[0], "db", "--", "sleep", "60"];
    let _holder = Process(user.command(&args).spawn().unwrap());
    wait_for(|| on(1, &["who", "db"]).contains("node 1 pid"));
    let status = on(1, &["status"]);
    assert_eq!(status.matches("runs").count(), 2, "{status}");
    let timed = ["run", "--timeout", "100ms", "db", "--", "true"];
    let out = output(user.command(&timed).env("LOCKIFY_SOCKET", sockets[1]));
    assert_eq!(code(&out), 124, "{out:?}");
}

#[test]
fn a_configuration_that_cannot_be_used_says_where_and_why() {
    let user = User::new();
    let config = user.dir().join("bad.toml");
    let out = user.lockify(&["serve", "--config", config.to_str().unwrap()]);
    assert_eq!(code(&out), 2, "{out:?}");
    assert!(stderr(&out).contains("bad.toml"), "{out:?}");
    std::fs::write(&config, "node = 1\nnodse = []\n").unwrap();
    let out = user.lockify(&["serve", "--config", config.to_str().unwrap()]);
    assert_eq!(code(&out), 2, "{out:?}");
    assert!(stderr(&out).contains("nodse"), "{out:?}");
}

#[test]
fn check_tells_clean_violated_and_unreadable_apart() {
    let user = User::new();
    let file = user.dir().join("history.jsonl");
    let grant = |t: u64, node: u32| {
        format!(
            "{{\"t\":{t},\"node\":{node},\"lock\":1,\"resource\":\"r\",\"event\":\"request\",\"mode\":\"EX\"}}\n\
             {{\"t\":{t},\"node\":{node},\"lock\":1,\"resource\":\"r\",\"event\":\"grant\",\"mode\":\"EX\",\"status\":0}}\n"
        )
    };
    let array = |tag: u64| {
        format!(
            "{{\"t\":0,\"event\":\"begin\",\"scheme\":\"timestamp-ordering\",\"array\":{{\"redundancy\":\"raid5\",\
             \"data\":2,\"groups\":1,\"unit\":1,\"block_size\":16,\"stripes\":1}}}}\n\
             {{\"t\":1,\"event\":\"read\",\"host\":1,\"incarnation\":1,\"op\":1,\"start\":0,\"count\":1}}\n\
             {{\"t\":2,\"event\":\"done\",\"host\":1,\"incarnation\":1,\"op\":1,\"tags\":[{tag}]}}\n"
        )
    };
    let cases = [
        (grant(1, 1), 0, "clean"),
        (grant(1, 1) + &grant(2, 2), 1, "compatible_grants"),
        (array(0), 0, "clean"),
        (array(7), 1, "nobody had written"),
        ("{\"t\":1}\n".to_owned(), 2, "line 1"),
    ];
    for (text, expected, says) in cases {
        std::fs::write(&file, text).unwrap();
        let out = user.lockify(&["check", file.to_str().unwrap()]);
        assert_eq!(code(&out), expected, "{out:?}");
        assert!(stdout(&out).contains(says), "{out:?}");
        let out = user.lockify(&["check", "--json", file.to_str().unwrap()]);
        let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(json["outcome"], ["clean", "violated", "unreadable"][expected as usize]);
    }
    let out = user.lockify(&["check", "/no/such/file"]);
    assert_eq!(code(&out), 2, "{out:?}");
}
