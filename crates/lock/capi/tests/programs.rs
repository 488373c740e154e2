//! C programs with `lockify.h` and `liblockify.so`: the examples, one that makes every call, and one
//! that unlocks while it is called back.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

// This makes cargo build the shared library.
use lockify as _;
use lockify_daemon::{Config, Daemon, Log};

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// `liblockify.so` as cargo has built it, beside this program.
fn library() -> PathBuf {
    let path = std::env::current_exe().unwrap().parent().unwrap().join("liblockify.so");
    assert!(path.exists(), "{} was not built", path.display());
    path
}

fn said(output: Output) -> String {
    let (out, err) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    out
}

/// Compiles a program and runs it with a daemon of its own; an alarm ends one that hangs.
fn prints(source: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    for name in ["liblockify.so", "liblockify.so.0"] {
        symlink(library(), dir.path().join(name)).unwrap();
    }
    let program = dir.path().join("program");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program).arg("-I");
    cc.arg(folder().join("include")).arg(folder().join(source)).arg("-L").arg(dir.path());
    said(cc.args(["-llockify", "-pthread"]).output().unwrap());
    let socket = dir.path().join("lockify.sock");
    let text =
        format!("node = 1\nsocket = {socket:?}\n[[nodes]]\nid = 1\naddress = \"127.0.0.1:0\"\n");
    let config = Config::parse(&text, &dir.path().join("lockify.toml")).unwrap();
    let _daemon = Daemon::start(&config, &Log::new(|_| ())).unwrap();
    let mut command = Command::new("timeout");
    command.arg("60").arg(&program).env("LD_LIBRARY_PATH", dir.path());
    said(command.env("LOCKIFY_SOCKET", &socket).output().unwrap())
}

#[test]
fn example_lock() {
    let said = prints("examples/lock.c");
    let token = said.trim_end().strip_prefix("working on example with fencing token ").unwrap();
    assert!(token.parse::<u64>().unwrap() > 0);
}

#[test]
fn example_cache() {
    let expected = "two reads: written by one\none reads: written by two\n";
    assert_eq!(prints("examples/cache.c"), expected);
}

#[test]
fn every_call() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(prints("tests/everything.c"), format!("version {version}\ndone\n"));
}

#[test]
fn unlock_race() {
    assert_eq!(prints("tests/unlock_race.c"), "1000 of 1000 gave way\n");
}

/// The library exports exactly the header's declarations.
#[test]
fn header_and_symbols() {
    let header = std::fs::read_to_string(folder().join("include/lockify.h")).unwrap();
    let declared = header.lines().filter(|line| !line.starts_with([' ', '\t', '*', '#', '/']));
    let declared = declared.filter_map(|line| line.split_once('('));
    let mut declared: Vec<&str> = declared
        .filter_map(|(before, _)| before.split([' ', '*']).next_back())
        .filter(|name| name.starts_with("lockify_"))
        .collect();
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output();
    let output = said(output.unwrap());
    let mut exported: Vec<&str> =
        output.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    declared.sort_unstable();
    exported.sort_unstable();
    assert_eq!(exported, declared);
    assert_eq!(declared.len(), 22);
}
