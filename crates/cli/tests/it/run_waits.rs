//! `lockify run` before it has the lock and when it gives it back: time-outs, flock(1)'s options.

use std::os::unix::process::ExitStatusExt as _;

use crate::common::{Process, User, code, stderr, stdout, wait_for};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, connect, listen, socket};
use rustix::process::Signal;

/// A lock `x` that somebody holds.
fn held(user: &User, options: &[&str]) -> Process {
    let flag = user.dir().join("held");
    let script = format!("touch {}; exec sleep 600", flag.display());
    let args = [&["run"], options, &["x", "sh", "-c", &script]].concat();
    let run = Process(user.command(&args).spawn().unwrap());
    wait_for(|| flag.exists());
    run
}

#[test]
fn time_outs_are_kept_when_the_daemon_is_stopped() {
    let user = User::new();
    let daemon = user.daemon();
    daemon.signal(Signal::STOP);
    for option in [["-w", "0.3"], ["--timeout", "300ms"], ["--nb", "--notify"]] {
        let out = user.lockify(&[&["run"], &option[..], &["x", "true"]].concat());
        assert_eq!(code(&out), 124, "{option:?}: {out:?}");
        assert!(stderr(&out).contains("does not answer"), "{option:?}: {out:?}");
    }
    daemon.signal(Signal::CONT);
    // No part of the request has been left.
    let out = user.lockify(&["run", "-w", "20", "x", "true"]);
    assert_eq!(code(&out), 0, "{out:?}");
}

#[test]
fn time_outs_are_kept_when_the_daemon_has_no_room_for_one_more() {
    let user = User::new();
    let path = user.dir().join("full.sock");
    let address = SocketAddrUnix::new(&path).unwrap();
    let new = || socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let (full, first) = (new(), new());
    bind(&full, &address).unwrap();
    listen(&full, 0).unwrap();
    connect(&first, &address).unwrap();
    let args = ["run", "--socket", path.to_str().unwrap(), "-w", "0.3", "x", "true"];
    let out = user.lockify(&args);
    assert_eq!(code(&out), 124, "{out:?}");
}

#[test]
fn a_stopped_daemon_keeps_nobody_from_ending() {
    let user = User::new();
    let daemon = user.daemon();
    let flag = user.dir().join("runs");
    let script =
        format!("touch {0}; while [ -e {0} ]; do sleep 0.02; done; exit 3", flag.display());
    let mut run = Process(user.command(&["run", "x", "sh", "-c", &script]).spawn().unwrap());
    wait_for(|| flag.exists());
    daemon.signal(Signal::STOP);
    std::fs::remove_file(&flag).unwrap();
    assert_eq!(run.ended().code(), Some(3));
    daemon.signal(Signal::CONT);
    let out = user.lockify(&["run", "-w", "20", "x", "true"]);
    assert_eq!(code(&out), 0, "{out:?}");
}

#[test]
fn a_signal_ends_who_waits_and_leaves_no_request() {
    let user = User::new();
    let daemon = user.daemon();
    let mut holder = held(&user, &[]);
    for stopped in [false, true] {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            let waits = user.command(&["run", "x", "touch", "granted"]).spawn().unwrap();
            let mut waits = Process(waits);
            let waiting = format!("pid {} waits for EX", waits.0.id());
            wait_for(|| stdout(&user.lockify(&["who", "x"])).contains(&waiting));
            if stopped {
                daemon.signal(Signal::STOP);
            }
            waits.signal(signal);
            assert_eq!(waits.ended().signal(), Some(signal.as_raw()));
            daemon.signal(Signal::CONT);
            wait_for(|| !stdout(&user.lockify(&["who", "x"])).contains("waits"));
        }
    }
    holder.signal(Signal::TERM);
    assert_eq!(holder.ended().code(), Some(143));
}

#[test]
fn options_are_those_of_flock() {
    let user = User::new();
    let _daemon = user.daemon();
    let codes = |cases: &[(&str, i32)]| {
        for (line, expected) in cases {
            let words: Vec<&str> = ["run"].into_iter().chain(line.split(' ')).collect();
            let out = user.lockify(&words);
            assert_eq!(code(&out), *expected, "{line}: {out:?}");
        }
    };
    let mut shared = held(&user, &["-s"]);
    codes(&[
        ("-sn x true", 0),
        ("--shared -n x -- true", 0),
        ("-n x true", 124),
        ("-xn x true", 124),
        ("-e --nb x true", 124),
        ("-s -x -n x true", 124),
        ("-n -E 1 x true", 1),
        ("-w 0.1 --conflict-exit-code 0 x false", 0),
        ("--wait 0.1 x true", 124),
        ("-w 0 x true", 124),
        ("x -n true", 124),
    ]);
    shared.signal(Signal::TERM);
    shared.ended();
    codes(&[("y test -n y", 0), ("y -- test -z y", 1), ("y -c true", 0), ("y -c false", 1)]);
    for bad in ["-n -w 3 x true", "--mode PR -x x true", "-E 256 x true", "-c true x true"] {
        let words: Vec<&str> = ["run"].into_iter().chain(bad.split(' ')).collect();
        assert_eq!(code(&user.lockify(&words)), 2, "{bad}");
    }
}

#[test]
fn the_commands_own_words_stay_as_they_are() {
    let user = User::new();
    let _daemon = user.daemon();
    let said = |words: &[&str]| {
        let out = user.lockify(words);
        (code(&out), stdout(&out))
    };
    let all = ["run", "x", "echo", "-n", "--", "--timeout", "x", "-s"];
    assert_eq!(said(&all), (0, "-- --timeout x -s".into()));
    let all = ["run", "-w", "9", "x", "--", "echo", "-n", "--", "a"];
    assert_eq!(said(&all), (0, "-- a".into()));
    let all = ["run", "x", "-c", "echo $LOCKIFY_NAME; exit 3"];
    assert_eq!(said(&all), (3, "x\n".into()));
}
