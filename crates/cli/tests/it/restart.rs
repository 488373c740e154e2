//! `lockify restart`.

use std::process::Stdio;

use crate::common::{Process, User, code, stderr, stdout, wait_for};

#[test]
fn the_daemon_restarts_while_a_command_holds_its_lock() {
    let user = User::new();
    let mut daemon = user.daemon();
    let go = user.dir().join("go");
    let script = format!("until [ -e {} ]; do sleep 0.01; done", go.display());
    let mut held = user.command(&["run", "backup", "--", "sh", "-c", &script]);
    let mut held = Process(held.stdin(Stdio::null()).spawn().unwrap());
    let locked = || stdout(&user.lockify(&["who", "backup"])).contains("EX");
    wait_for(locked);
    let restarted = user.lockify(&["restart"]);
    assert_eq!(code(&restarted), 0, "{}", stderr(&restarted));
    assert!(stdout(&restarted).contains("restarted with all locks"), "{}", stdout(&restarted));
    assert!(locked());
    std::fs::write(&go, "").unwrap();
    assert!(held.ended().success());
    daemon.kill();
    assert_eq!(code(&user.lockify(&["restart"])), 3);
}
