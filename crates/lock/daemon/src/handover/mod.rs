//! Restarting without losing a lock: the daemon's process becomes another program (execve(2)), which
//! goes on with its locks, sessions and links.
//!
//! ```text
//! preflight   the installed program is run beside this one: can it, would its configuration fit?
//! stand still every shard comes to rest; none does anything from now on
//! write       each shard writes its state, and sends its sockets (parcel.rs)
//! exec        the program is replaced; clients and peers notice nothing but a pause
//! resume      the new program reads all that, and every shard goes on
//! ```
//!
//! Up to the exec, every failure leaves the daemon running as before. After it, an unreadable state
//! is not guessed at: every session ends, so that clients hear of each lost lock, the log lists
//! these locks, and the node begins a new life.

mod facts;
mod parcel;
mod pause;
#[cfg(test)]
mod shape;

use std::collections::BTreeMap;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::time::{ClockId, clock_gettime};

use crate::config::Config;
use crate::log::Log;
use parcel::State;

pub(crate) use parcel::Outlet;
pub(crate) use pause::{Order, Restart, Written};

/// The version of the state that this program writes and reads. It must become another one whenever
/// a type in it changes (docs/restart.md has the rule).
pub(crate) const VERSION: u32 = 9;

/// Asks a program whether it can go on where another one is; the facts are its standard input.
const CHECK: &str = "LOCKIFY_RESTART_CHECK";

/// The output of a program that can.
const READY: &str = "lockify: ready to go on";

/// How long the installed program may take to say so.
const CHECK_PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait for a moment at which all shards can stand still.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the change to another program waits for the log's reader.
const FLUSH: Duration = Duration::from_millis(100);

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// The program that is to go on, as this one was started.
#[derive(Clone)]
pub(crate) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// This one. To be asked early: when another file has taken its place, the system knows the
    /// old one only as deleted.
    pub(crate) fn this() -> std::io::Result<Program> {
        let path = std::env::current_exe()?;
        Ok(Program { path, arguments: std::env::args_os().collect() })
    }

    /// Runs it to see whether it can go on where this one is.
    fn check(&self, facts: &str) -> Result<(), String> {
        let name = self.path.display();
        let system = |e: std::io::Error| format!("{name} cannot be tried: {e}");
        let memory = || memfd_create("lockify-check", MemfdFlags::CLOEXEC).map(File::from);
        let mut input = memory().map_err(|e| system(e.into()))?;
        let mut said = memory().map_err(|e| system(e.into()))?;
        input.write_all(facts.as_bytes()).and_then(|()| input.rewind()).map_err(system)?;
        let output = || said.try_clone().map(Stdio::from).map_err(system);
        let mut child = Command::new(&self.path)
            .args(self.arguments.iter().skip(1))
            .env(CHECK, "1")
            .stdin(input)
            .stdout(output()?)
            .stderr(output()?)
            .process_group(0)
            .spawn()
            .map_err(system)?;
        let began = Instant::now();
        let status = loop {
            match child.try_wait().map_err(system)? {
                Some(status) => break status,
                None if began.elapsed() < CHECK_PATIENCE => std::thread::sleep(PAUSE / 5),
                None => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("{name} did not say in time whether it can go on"));
                }
            }
        };
        let mut text = String::new();
        let _ = said.rewind().and_then(|()| said.take(64 * 1024).read_to_string(&mut text));
        if status.success() && text.lines().any(|line| line == READY) {
            return Ok(());
        }
        let last = text.lines().rev().find(|line| !line.is_empty()).unwrap_or("it says nothing");
        Err(format!("{name} cannot go on here ({status}): {last}"))
    }

    /// Becomes this program. Returns only if that fails, or if `stopped` says that the daemon is to
    /// end: signals that this program has heard of, the next one will not.
    fn become_it(&self, inlet: &OwnedFd, stopped: &mut dyn FnMut() -> bool) -> String {
        let name = self.path.display();
        let c = |text: Vec<u8>| CString::new(text).map_err(|e| format!("{name}: {e}"));
        let mut go = || -> Result<(), String> {
            let path = c(self.path.as_os_str().as_bytes().to_vec())?;
            let arguments: Vec<CString> =
                self.arguments.iter().map(|a| c(a.clone().into_vec())).collect::<Result<_, _>>()?;
            let environment = std::env::vars_os()
                .map(|(key, value)| c([key.into_vec(), b"=".to_vec(), value.into_vec()].concat()));
            let environment: Vec<CString> = environment.collect::<Result<_, _>>()?;
            let failed = |e: rustix::io::Errno| format!("standard input cannot be replaced: {e}");
            let stdin = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3).map_err(failed)?;
            rustix::stdio::dup2_stdin(inlet).map_err(failed)?;
            // Until the new program handles them, they would end it.
            hold_signals();
            let result = match stopped() {
                true => Err("the daemon was told to stop".into()),
                false => nix::unistd::execve(&path, &arguments, &environment)
                    .map(drop)
                    .map_err(|e| format!("{name} cannot be run: {e}")),
            };
            release_signals();
            rustix::stdio::dup2_stdin(&stdin).map_err(failed)?;
            result
        };
        go().err().unwrap_or_default()
    }
}

/// The signals that a daemon handles.
fn signals() -> SigSet {
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR2].into_iter().collect()
}

/// From now on these signals wait, as far as this thread and those that it starts are concerned, and
/// also in a program that it becomes.
pub(crate) fn hold_signals() {
    // Refuses only other values of the first argument.
    let _ = pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&signals()), None);
}

/// Starts threads, say, that take no signals: those that wait are the watcher's.
pub(crate) fn without_signals<T>(act: impl FnOnce() -> T) -> T {
    let before = SigSet::thread_get_mask();
    hold_signals();
    let done = act();
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    done
}

/// From now on this thread handles them, and those that have waited.
pub(crate) fn release_signals() {
    let _ = pthread_sigmask(SigmaskHow::SIG_UNBLOCK, Some(&signals()), None);
}

fn monotonic() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Has the installed program go on in this one's place, with what the daemon was started with, nodes
/// that corosync named included. Returns only if that is not possible; then
/// nothing has changed.
pub(crate) fn restart(
    config: &Config,
    program: &Program,
    pause: &Restart,
    wake: &dyn Fn(),
    stopped: &mut dyn FnMut() -> bool,
    log: &Log,
) -> String {
    // Known beforehand: no reason to stand still first.
    if let Some(space) = config.lockspaces.iter().find(|space| space.fabric.is_some()) {
        return format!(
            "the locks of lockspace {:?} are this process's, in remote memory: stop and start the daemon instead",
            space.name
        );
    }
    let facts = facts::facts(config).to_string();
    if let Err(why) = program.check(&facts) {
        return why;
    }
    let began = Instant::now();
    loop {
        let result = pause.stand_still(wake, parcel::way, |outlet, inlet, written| {
            let sessions: usize = written.iter().map(|w| w.sessions).sum();
            let state = State {
                facts: facts.clone(),
                held: written.iter().map(|w| w.held.as_str()).collect(),
                stopped: monotonic(),
                shards: written.into_iter().map(|w| w.image).collect(),
            };
            let locks = state.held.lines().count();
            let sent = state.write().map_err(|e| format!("the state cannot be written: {e}"));
            if let Err(why) = sent.and_then(|state| outlet.send_state(&state)) {
                return why;
            }
            log.info(format!(
                "becomes {} with {sessions} sessions and {locks} locks of theirs",
                program.path.display()
            ));
            // The next program does not know what waits here.
            log.flush_within(FLUSH);
            program.become_it(inlet, stopped)
        });
        match result {
            Ok(why) => return why,
            Err(why) if began.elapsed() >= PATIENCE => return why,
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// The answer of a program that was only asked if it could replace another one; `None` for any
/// other program.
///
/// # Errors
/// The reason why it could not.
pub(crate) fn answer_check(config: &Config) -> Option<Result<(), String>> {
    std::env::var_os(CHECK)?;
    let mut before = String::new();
    let read = std::io::stdin().take(1 << 20).read_to_string(&mut before);
    let read = read.map_err(|e| format!("standard input cannot be read: {e}"));
    let answer = read.and_then(|_| agree(config, &before));
    if answer.is_ok() {
        println!("{READY}");
    }
    Some(answer)
}

/// Checks that a program with this configuration can replace one with those facts.
fn agree(config: &Config, before: &str) -> Result<(), String> {
    // Which node this is, and which others there are, corosync may know.
    let (config, _) = config.resolved().map_err(|e| e.to_string())?;
    facts::agree(&facts::facts(&config), before)
}

/// The state that the former program has left, per shard.
pub(crate) struct Inheritance {
    /// When it stopped to work.
    stopped: u64,
    /// The locks that its clients hold, a line each.
    held: String,
    shards: Vec<Vec<u8>>,
    descriptors: BTreeMap<u16, Vec<OwnedFd>>,
}

impl Inheritance {
    /// The state that the former program has left in this process, if there was one. `Err`: it
    /// cannot be used; the log has the reason and the losses. Every session has ended then.
    pub(crate) fn take(config: &Config, log: &Log) -> Option<Inheritance> {
        if !parcel::is_left_here() {
            return None;
        }
        let received = parcel::receive().unwrap_or_else(|e| {
            log.warning(format!("the program before has left what cannot be taken: {e}"));
            Default::default()
        });
        let (state, read) = State::read(&received.state);
        let State { facts, held, stopped, shards } = state;
        let agreed = read.and_then(|()| agree(config, &facts));
        let inheritance = Inheritance { stopped, held, shards, descriptors: received.descriptors };
        match agreed {
            Ok(()) if inheritance.shards.len() == usize::from(config.shards) => Some(inheritance),
            Ok(()) => inheritance.give_up("the state of a shard is missing", log),
            Err(why) => inheritance.give_up(&why, log),
        }
    }

    /// The state of one shard.
    pub(crate) fn shard(&mut self, index: u16) -> (Vec<u8>, Vec<OwnedFd>) {
        let image = self.shards.get_mut(usize::from(index)).map(std::mem::take);
        (image.unwrap_or_default(), self.descriptors.remove(&index).unwrap_or_default())
    }

    /// Ends every session that has not been taken, and tells the operator the consequence.
    pub(crate) fn give_up<T>(self, why: &str, log: &Log) -> Option<T> {
        log.error(format!(
            "cannot go on where the program before has stopped ({why}): this node begins anew, every \
             session has ended, and its clients are told that their locks are lost"
        ));
        match self.held.as_str() {
            "" => log.error("which locks those are is not known here, or there were none"),
            held => held.lines().for_each(|lock| log.error(format!("lost: {lock}"))),
        }
        None
    }

    /// It has been taken.
    pub(crate) fn taken(&self, log: &Log) {
        let (locks, paused) = (self.held.lines().count(), monotonic().saturating_sub(self.stopped));
        log.info(format!(
            "went on with all {locks} locks of this node's clients after {} ms",
            paused / 1_000_000
        ));
    }
}
