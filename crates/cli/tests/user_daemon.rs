//! The daemon that starts itself.

mod common;

use std::process::Stdio;

use common::{User, code, stderr, wait_for};

#[test]
fn two_that_start_at_once_share_one_daemon() {
    let user = User::new();
    let run = |n: usize| {
        let script = format!(
            "echo {n} >> {0}/order; sleep 0.05; echo {n} >> {0}/order",
            user.dir().display()
        );
        user.command(&["run", "db", "--", "sh", "-c", &script])
            .env("LOCKIFY_IDLE", "500ms")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let runs: Vec<_> = (0..4).map(run).collect();
    for run in runs {
        let out = run.wait_with_output().unwrap();
        assert_eq!(code(&out), 0, "{out:?}");
    }
    let order = std::fs::read_to_string(user.dir().join("order")).unwrap();
    let lines: Vec<&str> = order.lines().collect();
    assert_eq!(lines.len(), 8);
    assert!(lines.chunks(2).all(|two| two[0] == two[1]), "one at a time: {lines:?}");
    // The daemon that they have started ends by itself.
    wait_for(|| !user.dir().join("lockify/lockify.sock").exists());
}

#[test]
fn an_unused_daemon_ends() {
    let user = User::new();
    let out = user.lockify(&["serve", "--user", "--idle", "50ms"]);
    assert_eq!(code(&out), 0, "{out:?}");
    assert!(!user.dir().join("lockify/lockify.sock").exists());
}

#[test]
fn a_second_daemon_says_that_there_is_one() {
    let user = User::new();
    let _first = user.daemon();
    let out = user.lockify(&["serve", "--user"]);
    assert_eq!(code(&out), 3, "{out:?}");
    assert!(stderr(&out).contains("another lock daemon"), "{out:?}");
}

#[test]
fn a_directory_that_others_may_enter_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let user = User::new();
    let dir = user.dir().join("lockify");
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let out = user.lockify(&["run", "db", "--", "true"]);
    assert_eq!(code(&out), 125, "{out:?}");
    assert!(stderr(&out).contains("open to others"), "{out:?}");
}
