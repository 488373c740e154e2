//! The command that `lockify run` runs.

use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};

use rustix::process::{
    Pid, Signal, kill_process, kill_process_group, set_parent_process_death_signal,
};

use crate::exit::{Code, Failure};

/// A command that runs. Only this type waits for it, so its number is not reused while it can be
/// signalled.
///
/// It has a process group of its own, so that signals reach what it has started as well. Only at a
/// terminal it stays in ours: another group could not read from it.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    own_group: bool,
}

impl Child {
    /// Starts `words` with additional environment variables.
    ///
    /// # Errors
    /// A [`Failure`] with the codes that shells use: 126 and 127.
    pub fn start(words: &[OsString], env: &[(&str, String)]) -> Result<Child, Failure> {
        let Some((program, args)) = words.split_first() else {
            return Err(Failure::new(Code::Unreadable, "no command given: add one after --"));
        };
        let mut command = Command::new(program);
        command.args(args).envs(env.iter().map(|(k, v)| (k, v)));
        die_with_parent(&mut command);
        let own_group = !std::io::stdin().is_terminal();
        if own_group {
            command.process_group(0);
        }
        command.spawn().map(|process| Child { process, own_group }).map_err(|e| {
            let (code, hint) = match e.kind() {
                ErrorKind::NotFound => (Code::NotFound, "check its name and PATH"),
                _ => (Code::NotExecutable, "check its permissions"),
            };
            Failure::new(code, format!("cannot run {}: {e}; {hint}", program.to_string_lossy()))
        })
    }

    /// How it ended, if it has; does not wait.
    pub fn ended(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.process.try_wait()
    }

    /// Whether signals of the terminal do not reach it by themselves.
    pub fn own_group(&self) -> bool {
        self.own_group
    }

    /// Sends it a signal. It may have ended just now, which is no error.
    pub fn signal(&self, signal: i32) {
        let pid = Pid::from_child(&self.process);
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        let _ = if self.own_group {
            kill_process_group(pid, signal)
        } else {
            kill_process(pid, signal)
        };
    }
}

/// The exit code that a shell would give.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|s| 128 + s));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// Has the command killed if this process is killed: the lock would be gone, and nobody would know.
#[allow(unsafe_code)]
fn die_with_parent(command: &mut Command) {
    let die = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: between fork and exec only async-signal-safe functions may be called, and nothing
    // may allocate: this is one prctl.
    unsafe {
        command.pre_exec(die);
    }
}
