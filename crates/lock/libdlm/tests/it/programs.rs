//! C programs that use every call, run with our libraries.
//!
//! `programs/*.expected` is their output with the kernel's lock manager and Debian's libdlm
//! (`labs/kernels/tests/test_libdlm.py` runs them there); that of `own.c` is Lockify's alone.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use crate::common::ports::free_address;
use crate::common::{Compiler, Running, debian, said, within};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

/// Compiles and runs a program, with one shard and with three, and compares its output.
fn prints(program: &str, library: &str) {
    let expected = std::fs::read_to_string(folder().join(format!("{program}.expected"))).unwrap();
    let source = folder().join(format!("{program}.c"));
    let dir = tempfile::tempdir().unwrap();
    let mut compilers = vec![("ours", Compiler::ours(dir.path()))];
    // Lockify's own programs need more than Debian's header has, or are not about it.
    if debian().is_some() && !["own", "many"].contains(&program) {
        compilers.push(("debian", Compiler::debian(dir.path())));
    }
    for (name, compiler) in compilers {
        let compiled = compiler.compile(&source, name, library);
        for shards in [1, 3] {
            let daemon = Running::start(dir.path(), &format!("shards = {shards}"));
            let mut command = compiler.command(&compiled);
            let said = said(command.env("LOCKIFY_SOCKET", &daemon.socket));
            assert_eq!(said, expected, "{program} with {library}, {name}, {shards} shards");
        }
    }
}

#[test]
fn polling_and_dispatching() {
    prints("poll", "libdlm");
}

#[test]
fn polling_and_dispatching_without_threads() {
    prints("poll", "libdlm_lt");
}

#[test]
fn threads_and_the_default_lockspace() {
    prints("threads", "libdlm");
}

#[test]
fn waiting_without_threads() {
    prints("light", "libdlm_lt");
}

#[test]
fn orphans_and_purging() {
    prints("orphans", "libdlm");
}

#[test]
fn what_is_refused() {
    prints("errors", "libdlm");
}

#[test]
fn grants_and_value_blocks() {
    prints("grants", "libdlm");
}

#[test]
fn what_is_lockifys_own() {
    prints("own", "libdlm");
}

#[test]
fn many_threads_and_handles() {
    prints("many", "libdlm");
}

/// Compared with nothing: the kernel does not use them.
#[test]
fn transactions() {
    let dir = tempfile::tempdir().unwrap();
    let compiler = Compiler::ours(dir.path());
    let compiled = compiler.compile(&folder().join("xid.c"), "xid", "libdlm");
    let space = "[[lockspace]]\nname = \"default\"\ndeadlock_after = \"50ms\"";
    let daemon = Running::start(dir.path(), space);
    let expected = std::fs::read_to_string(folder().join("xid.expected")).unwrap();
    assert_eq!(said(compiler.command(&compiled).env("LOCKIFY_SOCKET", &daemon.socket)), expected);
}

#[test]
fn two_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let mut compilers = vec![("ours", Compiler::ours(dir.path()))];
    compilers.extend(debian().map(|_| ("debian", Compiler::debian(dir.path()))));
    let expected = std::fs::read_to_string(folder().join("nodes.expected")).unwrap();
    for (name, compiler) in compilers {
        let compiled = compiler.compile(&folder().join("nodes.c"), name, "libdlm_lt");
        let [one, two] = Running::two(dir.path());
        let port = free_address().port().to_string();
        let client = |role, node: &Running| {
            let mut command = compiler.command(&compiled);
            command.args([role, "127.0.0.1", &port]).env("LOCKIFY_SOCKET", &node.socket);
            command
        };
        let other = std::thread::spawn({
            let mut command = client("two", &two);
            move || said(&mut command)
        });
        assert_eq!(said(&mut client("one", &one)), expected, "{name}");
        other.join().unwrap();
    }
}

/// Runs a program that loses its locks: the daemon goes as soon as it waits.
fn loses(on_lost: Option<&str>) -> (ExitStatus, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let compiler = Compiler::ours(dir.path());
    let compiled = compiler.compile(&folder().join("loss.c"), "loss", "libdlm");
    let mut daemon = Running::start(dir.path(), "shutdown_grace = \"1s\"");
    let mut command = compiler.command(&compiled);
    command.env("LOCKIFY_SOCKET", &daemon.socket).env_remove("LOCKIFY_ON_LOST");
    command.envs(on_lost.map(|what| ("LOCKIFY_ON_LOST", what)));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut out = within("the program's wait", move || {
        let mut text = String::new();
        while !text.contains("wait: 0\n") {
            assert!(out.read_line(&mut text).unwrap() > 0, "{text}");
        }
        out
    });
    drop(daemon.daemon.take());
    within("the program's end", move || {
        let mut told = String::new();
        out.read_to_string(&mut told).unwrap();
        let err = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
        (child.wait().unwrap(), told, err)
    })
}

#[test]
fn who_loses_a_lock_is_killed() {
    let (status, told, err) = loses(None);
    assert_eq!((status.signal(), told.as_str()), (Some(9), ""), "{err}");
    assert!(err.contains("locks in lockspace loss were lost"), "{err}");
}

#[test]
fn or_told_if_that_is_asked_for() {
    let (status, told, _) = loses(Some("report"));
    let expected = std::fs::read_to_string(folder().join("loss.expected")).unwrap();
    assert_eq!((status.code(), told), (Some(0), expected));
}

/// Somebody else than root and the daemon's user. Only root can become somebody else: for others
/// there is nobody to refuse.
#[test]
fn making_lockspaces_is_a_privilege() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let compiler = Compiler::ours(dir.path());
    let compiled = compiler.compile(&folder().join("stranger.c"), "stranger", "libdlm");
    let daemon = Running::start(dir.path(), "socket_mode = \"666\"");
    let mut command = compiler.command(&compiled);
    command.env("LOCKIFY_SOCKET", &daemon.socket).uid(65534).gid(65534);
    let expected = std::fs::read_to_string(folder().join("stranger.expected")).unwrap();
    assert_eq!(said(&mut command), expected);
}
