//! The process that becomes the command once the lock is held.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use nix::errno::Errno;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::caller::Caller;
use super::link::{Link, ToCommand};
use super::say;
use crate::exit::Code;

/// The first number of the lock's descriptors in the command: scripts use lower ones themselves.
const FIRST: i32 = 100;

/// Waits for the word to start, and becomes the command.
pub fn become_command(words: &[OsString], caller: &Caller, link: &Link, guardian: Pid) -> ! {
    // Without the guardian nobody watches the lock.
    let bound = set_parent_process_death_signal(Some(Signal::KILL));
    if bound.is_err() || getppid() != Some(guardian) {
        std::process::exit(Code::NotLocked as i32);
    }
    let Ok(Some((start, keeps))) = link.receive::<ToCommand>() else {
        std::process::exit(Code::NotLocked as i32);
    };
    let _inherited: Vec<OwnedFd> = keeps.into_iter().map(inheritable).collect();
    let error = execute(words, start.environment, caller);
    std::process::exit(refused(words, error) as i32)
}

/// A descriptor under a number that no script uses, for the command and all that it starts.
fn inheritable(keeps: OwnedFd) -> OwnedFd {
    // A process that may only have fewer descriptors keeps the number that it got.
    let keeps = fcntl_dupfd_cloexec(keeps.as_fd(), FIRST).unwrap_or(keeps);
    if let Err(e) = fcntl_setfd(&keeps, FdFlags::empty()) {
        say(format_args!("the command does not inherit the lock: {e}"));
    }
    keeps
}

/// Returns only if it fails.
fn execute(words: &[OsString], environment: Vec<(String, String)>, caller: &Caller) -> Errno {
    let words: Vec<CString> = words.iter().filter_map(|word| text(word.as_bytes())).collect();
    let environment = merged(environment);
    let Some(program) = words.first() else { return Errno::ENOENT };
    if let Err(e) = caller.restore() {
        return e;
    }
    let Err(e) = nix::unistd::execvpe(program, &words, &environment);
    e
}

/// This process's environment with additional variables.
fn merged(more: Vec<(String, String)>) -> Vec<CString> {
    let new = |name: &OsStr| more.iter().any(|(new, _)| OsStr::new(new) == name);
    let old = std::env::vars_os().filter(|(name, _)| !new(name));
    let all = old.map(|(name, value)| (name.into_vec(), value.into_vec()));
    let more = more.iter().map(|(name, value)| (name.clone().into(), value.clone().into()));
    let all: Vec<(Vec<u8>, Vec<u8>)> = all.chain(more).collect();
    all.into_iter().filter_map(|(name, value)| text(&[&name, &b"="[..], &value].concat())).collect()
}

/// For the system; nothing that comes from it has a zero byte inside.
fn text(bytes: &[u8]) -> Option<CString> {
    CString::new(bytes).ok()
}

/// Says why the command did not start; the codes are those of shells.
fn refused(words: &[OsString], error: Errno) -> Code {
    let (code, hint) = match error {
        Errno::ENOENT | Errno::ENOTDIR => (Code::NotFound, "check its name and PATH"),
        _ => (Code::NotExecutable, "check its permissions"),
    };
    let program = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    say(format_args!("cannot run {program}: {}; {hint}", error.desc()));
    code
}
