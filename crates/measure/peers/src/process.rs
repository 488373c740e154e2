//! Servers that are started and ended, also when this program is told to end.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lockify_bench::locks::on_other_processor;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{During as _, Error};
use crate::service::START;

/// Running processes, for a quick end.
static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<Pid>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which processors a server may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// The second one: servers with one event loop, whose clients have the first.
    Other,
    /// All: servers with many threads.
    Anywhere,
}

/// A server.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; its output goes to the file `log`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(mut command: Command, log: &Path, place: Place) -> Result<Process, Error> {
        let what = format!("cannot start {}", command.get_program().to_string_lossy());
        let file = File::create(log).during(&what)?;
        command.stdin(Stdio::null()).stderr(file.try_clone().during(&what)?).stdout(file);
        // Ctrl-C is for this program, which ends its servers itself.
        command.process_group(0);
        die_with_parent(&mut command);
        let mut all = running();
        let child = match place {
            Place::Other => on_other_processor(|| command.spawn()),
            Place::Anywhere => command.spawn(),
        };
        let child = child.during(&what)?;
        all.push(Pid::from_child(&child));
        drop(all);
        Ok(Process { child, log: log.to_owned() })
    }

    /// Waits until `ready` succeeds.
    ///
    /// # Errors
    /// The server ends, or it takes longer than [`START`]: the end of its output.
    pub fn await_ready(&mut self, mut ready: impl FnMut() -> bool) -> Result<(), Error> {
        let end = Instant::now() + START;
        while !ready() {
            let ended = self.child.try_wait().during("cannot wait for a server")?;
            if ended.is_some() || Instant::now() > end {
                let how = if ended.is_some() { "ended" } else { "is not ready in time" };
                return Err(self.failed(how));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits until it has ended by itself.
    ///
    /// # Errors
    /// It fails, or takes longer than `limit`: the end of its output.
    pub fn await_end(&mut self, limit: Duration) -> Result<(), Error> {
        let end = Instant::now() + limit;
        loop {
            match self.child.try_wait().during("cannot wait for a process")? {
                Some(status) if status.success() => return Ok(()),
                Some(_) => return Err(self.failed("failed")),
                None if Instant::now() > end => return Err(self.failed("did not end in time")),
                None => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    fn failed(&self, how: &str) -> Error {
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        let end = lines[lines.len().saturating_sub(5)..].join("\n");
        let name = self.log.file_stem().unwrap_or_default().to_string_lossy();
        Error::new(format!("{name} {how}; it said:\n{end}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // All data are temporary: nothing needs an orderly end. Its number is not reused before it
        // has been waited for, and by then nobody ends it by its number any more.
        let mut all = running();
        let pid = Pid::from_child(&self.child);
        let _ = self.child.kill();
        let _ = self.child.wait();
        all.retain(|other| *other != pid);
    }
}

/// Has a server killed if the thread that started it ends without doing so.
#[allow(unsafe_code)]
fn die_with_parent(command: &mut Command) {
    let die = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: between fork and exec only async-signal-safe functions may be called, and nothing
    // may allocate: this is one prctl.
    unsafe {
        command.pre_exec(die);
    }
}

/// From now on, a signal to end, or the end of the time given, ends all servers, removes the folder
/// and ends this program: with 128 + the signal's number, or with 3.
///
/// # Errors
/// Signals cannot be had.
pub fn end_in_time(folder: PathBuf, limit: Duration) -> Result<(), Error> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).during("cannot wait for signals")?;
    let end = Instant::now() + limit;
    let watch = move || {
        let code = loop {
            if let Some(signal) = signals.pending().next() {
                break 128 + signal;
            }
            if Instant::now() > end {
                eprintln!("lockify: not done within {} s; ending", limit.as_secs());
                break 3;
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        end_now(&folder, code);
    };
    std::thread::Builder::new().name("end".into()).spawn(watch).during("cannot start a thread")?;
    Ok(())
}

fn end_now(folder: &Path, code: i32) {
    // Kept locked: nothing is started any more.
    let all = running();
    for pid in all.iter() {
        let _ = kill_process(*pid, Signal::KILL);
    }
    let _ = std::fs::remove_dir_all(folder);
    std::process::exit(code);
}

/// A port on the loopback interface that nobody uses just now.
///
/// # Errors
/// There is none.
pub fn free_port() -> Result<u16, Error> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let port = || -> io::Result<u16> { Ok(TcpListener::bind(any)?.local_addr()?.port()) };
    port().during("no free port on the loopback interface")
}
