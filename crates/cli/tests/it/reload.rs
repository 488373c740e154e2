//! `lockify serve --check` and `lockify reload`: their output, and their exit codes.

use std::process::Stdio;

use crate::common::{Process, User, code, stderr, stdout, wait_for};

#[test]
fn a_configuration_is_checked_and_changed_while_the_daemon_runs() {
    let user = User::new();
    let (file, socket) = (user.dir().join("lockify.toml"), user.dir().join("lockify.sock"));
    let write = |extra: &str| {
        let node = "node = 1\n[[nodes]]\nid = 1\naddress = \"127.0.0.1:0\"\n";
        std::fs::write(&file, format!("socket = {socket:?}\n{extra}\n{node}")).unwrap();
    };
    let (config, at) = (file.to_str().unwrap(), socket.to_str().unwrap());
    let check = || user.lockify(&["serve", "--check", "--config", config]);
    write("limits.max_locks = 0");
    let out = check();
    assert_eq!(code(&out), 2, "{out:?}");
    assert!(stderr(&out).contains("lockify.toml: line 2, column 8: limits: max_locks"), "{out:?}");
    write("security = { ca = \"ca.pem\", identity = \"node.pem\" }");
    let out = check();
    assert_eq!(code(&out), 2, "{out:?}");
    assert!(stderr(&out).contains("node.pem") || stderr(&out).contains("ca.pem"), "{out:?}");
    write("");
    let out = check();
    assert_eq!(code(&out), 0, "{out:?}");
    assert!(stdout(&out).contains("good: node 1 of 1 in cluster \"lockify\""), "{out:?}");
    assert!(!socket.exists(), "nothing was started");

    let mut daemon = user.command(&["serve", "--config", config]);
    let _daemon = Process(daemon.stderr(Stdio::null()).spawn().unwrap());
    // It is there before anybody listens.
    wait_for(|| std::os::unix::net::UnixStream::connect(&socket).is_ok());
    let reload = || user.lockify(&["reload", "--socket", at]);
    write("limits.max_locks = 5");
    let out = reload();
    let said = format!("daemon: {at}, as asked for\nchanged limits.max_locks\n");
    assert_eq!((code(&out), stdout(&out)), (0, said));
    write("shards = 2");
    let out = reload();
    assert_eq!(code(&out), 3, "{out:?}");
    let why = stderr(&out);
    assert!(why.contains("nothing was changed: shards: "), "{why}");
    assert!(why.contains("restart"), "{why}");
}

/// A daemon of one user has no file.
#[test]
fn without_a_configuration_there_is_nothing_to_read_again() {
    let user = User::new();
    let _daemon = user.daemon();
    let out = user.lockify(&["reload"]);
    assert_eq!(code(&out), 3, "{out:?}");
    assert!(stderr(&out).contains("without a configuration file"), "{out:?}");
}
