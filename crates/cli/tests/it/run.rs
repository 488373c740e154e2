//! `lockify run`: the lock, the environment, exit codes, signals, and the loss of the daemon.

use std::process::{Command, Stdio};

use crate::common::{Process, User, all_of, code, stderr, stdout, wait_for};

/// A command under a lock that has told it runs, by making `flag`.
fn hold(user: &User, args: &[&str], then: &str) -> Process {
    let flag = user.dir().join("holds");
    let script = format!("touch {}; {then}", flag.display());
    let all = [&["run"], args, &["--", "sh", "-c", &script]].concat();
    let run = user.command(&all).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    wait_for(|| flag.exists());
    Process(run)
}

fn end(mut run: Process) -> std::process::Output {
    let (stdout, stderr) = (run.0.stdout.take().unwrap(), run.0.stderr.take().unwrap());
    let status = run.ended();
    std::process::Output { status, stdout: all_of(stdout), stderr: all_of(stderr) }
}

fn signal(name: &str, process: &Process) {
    let pid = process.0.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
}

#[test]
fn the_command_has_token_name_and_mode_and_its_exit_code_counts() {
    let user = User::new();
    let _daemon = user.daemon();
    let show = "echo $LOCKIFY_TOKEN $LOCKIFY_NAME $LOCKIFY_MODE; exit 7";
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let out = user.lockify(&["run", "db", "--", "sh", "-c", show]);
        assert_eq!(code(&out), 7, "{out:?}");
        let said = stdout(&out);
        let words: Vec<&str> = said.split_whitespace().collect();
        assert_eq!(words[1..], ["db", "EX"]);
        tokens.push(words[0].parse::<u64>().unwrap());
    }
    assert!(tokens[0] > 0 && tokens[1] > tokens[0], "fencing tokens grow: {tokens:?}");
    let out = user.lockify(&["run", "--mode", "pr", "db", "--", "sh", "-c", show]);
    assert!(stdout(&out).contains("0 db PR"), "a shared lock has no token: {out:?}");
}

#[test]
fn a_held_lock_keeps_others_out_until_it_is_released() {
    let user = User::new();
    let _daemon = user.daemon();
    let mut holder = hold(&user, &["db"], "sleep 60");
    for timeout in ["100ms", "0s"] {
        let out = user.lockify(&["run", "--timeout", timeout, "db", "--", "true"]);
        assert_eq!(code(&out), 124, "{out:?}");
        assert!(stderr(&out).contains("lockify who db"), "{out:?}");
    }
    let out = user.lockify(&["run", "--timeout", "10s", "another", "--", "true"]);
    assert_eq!(code(&out), 0, "{out:?}");
    holder.kill();
    let out = user.lockify(&["run", "--timeout", "20s", "db", "--", "true"]);
    assert_eq!(code(&out), 0, "a killed holder's lock is free: {out:?}");
}

#[test]
fn a_killed_run_takes_its_command_with_it() {
    let user = User::new();
    let _daemon = user.daemon();
    let pid = user.dir().join("pid");
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 60", pid.display());
    let run = user.command(&["run", "db", "--", "sh", "-c", &script]).spawn().unwrap();
    let mut run = Process(run);
    wait_for(|| pid.exists());
    let pid = std::fs::read_to_string(pid).unwrap();
    run.kill();
    let stat = format!("/proc/{}/stat", pid.trim());
    // Gone, or a zombie until its new parent looks.
    wait_for(|| std::fs::read_to_string(&stat).map_or(true, |s| s.contains(") Z ")));
}

#[test]
fn commands_that_cannot_run_and_signals_end_as_in_a_shell() {
    let user = User::new();
    let _daemon = user.daemon();
    let cases: [(&[&str], i32, &str); 4] = [
        (&["no-such-command"], 127, "PATH"),
        (&["/etc/passwd"], 126, "permissions"),
        (&["sh", "-c", "kill -9 $$"], 137, ""),
        (&["sh", "-c", "exit 3"], 3, ""),
    ];
    for (command, expected, hint) in cases {
        let out = user.lockify(&[&["run", "db", "--"], command].concat());
        assert_eq!(code(&out), expected, "{command:?}: {out:?}");
        assert!(stderr(&out).contains(hint), "{command:?}: {out:?}");
    }
}

#[test]
fn signals_are_passed_on() {
    let user = User::new();
    let _daemon = user.daemon();
    let run = hold(&user, &["db"], "trap 'exit 41' USR1; while :; do sleep 0.02; done");
    // The trap may not be set yet; the signal's default would end the shell with another code.
    std::thread::sleep(std::time::Duration::from_millis(300));
    signal("USR1", &run);
    assert_eq!(code(&end(run)), 41);
}

#[test]
fn the_daemons_death_kills_the_command_or_tells_it_or_only_says_so() {
    let trap = "trap 'exit 0' TERM; while :; do sleep 0.02; done";
    let cases = [
        ("kill", "sleep 60", 123, "killed"),
        ("signal", trap, 123, "SIGTERM"),
        ("ignore", "sleep 1; exit 5", 5, "goes on"),
    ];
    for (on_lost, then, expected, says) in cases {
        let user = User::new();
        let mut daemon = user.daemon();
        let run = hold(&user, &["--on-lost", on_lost, "db"], then);
        std::thread::sleep(std::time::Duration::from_millis(200));
        daemon.kill();
        let out = end(run);
        assert_eq!(code(&out), expected, "{on_lost}: {out:?}");
        assert!(stderr(&out).contains(says), "{on_lost}: {out:?}");
        assert!(stderr(&out).contains("lost"), "{on_lost}: {out:?}");
    }
}

#[test]
fn a_bad_command_line_says_what_is_possible() {
    let user = User::new();
    let cases: [(&[&str], &str); 4] = [
        (&["run", "--mode", "XX", "db", "--", "true"], "NL, CR, CW, PR, PW or EX"),
        (&["run", "--timeout", "soon", "db", "--", "true"], "--timeout"),
        (&["run", "db"], "CMD"),
        (&["frobnicate"], "--help"),
    ];
    for (args, says) in cases {
        let out = user.lockify(args);
        assert_eq!(code(&out), 2, "{args:?}: {out:?}");
        assert!(stderr(&out).contains(says), "{args:?}: {out:?}");
    }
    let _daemon = user.daemon();
    let long = "x".repeat(65);
    let out = user.lockify(&["run", &long, "--", "true"]);
    assert_eq!(code(&out), 125, "{out:?}");
    assert!(stderr(&out).contains("1 to 64 bytes"), "{out:?}");
}
