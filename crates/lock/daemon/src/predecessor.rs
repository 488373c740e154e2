//! The remaining clients of the former daemon, which was killed perhaps. Until they are gone, its
//! locks are not granted to others.
//!
//! A client of a daemon with an abstract name has names below that ([`lockify_session::names_of`]),
//! and the kernel lists a name until the last descriptor is closed. A client that hears of a loss
//! abandons its protected work, then closes.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockify_session::{Named, names_of};

use crate::log::Log;

/// Where the kernel lists the names of this thread's network namespace.
const NAMES: &str = "/proc/thread-self/net/unix";

/// How long programs have to abandon their lost locks' work: as long as nodes wait for one that may
/// still run, with the usual lease. For commands, the daemon waits until they have ended.
const PATIENCE: Duration = Duration::from_secs(4);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// The remaining clients of former daemons.
#[derive(Debug)]
pub(crate) struct Before {
    socket: PathBuf,
    /// The names that there were when this daemon took its own.
    names: io::Result<Vec<String>>,
}

impl Before {
    /// Looks for it: after the daemon's name has been taken, before anybody can connect.
    pub(crate) fn look(socket: &Path) -> Before {
        Before { socket: socket.to_owned(), names: names_below(socket) }
    }

    /// Waits until clients have put it away, or `stopped` says that this daemon is to end.
    pub(crate) fn wait(self, log: &Log, stopped: impl Fn() -> bool) {
        let names = self.names.as_deref().unwrap_or_default();
        if self.names.is_ok() && names.is_empty() {
            return;
        }
        log.info(self.described());
        let end = Instant::now() + PATIENCE;
        while !stopped() {
            let in_time = Instant::now() < end;
            let left = names_below(&self.socket);
            let is_left = |name: &String| left.as_ref().map_or(in_time, |left| left.contains(name));
            if !in_time && !names.iter().any(|name| is_command(&self.socket, name) && is_left(name))
            {
                return log.warning(format!(
                    "goes on after {PATIENCE:?}: programs have been told that the daemon before this \
                     one is gone, and may not have put its locks away"
                ));
            }
            if self.names.is_ok() && !names.iter().any(is_left) {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn described(&self) -> String {
        match &self.names {
            Ok(names) => format!(
                "waits until {} sessions or commands of the daemon before this one have ended (the \
                 first is of process {})",
                names.len(),
                names.first().map(|name| process(name)).unwrap_or_default()
            ),
            Err(e) => format!(
                "waits for {PATIENCE:?}, as {NAMES} does not say who still has locks of the daemon \
                 before this one: {e}"
            ),
        }
    }
}

/// All names below a daemon's.
fn names_below(socket: &Path) -> io::Result<Vec<String>> {
    let list = String::from_utf8_lossy(&std::fs::read(NAMES)?).into_owned();
    let names = list.lines().filter_map(|line| line.split_whitespace().nth(7));
    let kinds = [Named::Session, Named::Command].map(|kind| names_of(socket, kind));
    let is_below = |name: &&str| kinds.iter().any(|kind| name.starts_with(kind));
    Ok(names.filter(is_below).map(str::to_owned).collect())
}

fn is_command(socket: &Path, name: &str) -> bool {
    name.starts_with(&names_of(socket, Named::Command))
}

/// The process that a name tells of: others than clients may take such names, too.
fn process(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or_default();
    last.chars().take_while(char::is_ascii_digit).take(10).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};
    use std::sync::{Arc, Mutex};

    fn socket(name: &str) -> PathBuf {
        format!("@lockify-test-{}-{name}", std::process::id()).into()
    }

    fn take(socket: &Path, kind: Named, name: &str) -> UnixListener {
        let name = format!("{}{name}", &names_of(socket, kind)[1..]);
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
    }

    fn log() -> (Log, Arc<Mutex<String>>) {
        let said = Arc::new(Mutex::new(String::new()));
        let heard = said.clone();
        (Log::new(move |notice| *heard.lock().unwrap() += &notice.to_string()), said)
    }

    #[test]
    fn what_was_there_before_is_waited_for_and_what_comes_later_is_not() {
        let socket = socket("wait");
        let session = take(&socket, Named::Session, "1.a");
        let before = Before::look(&socket);
        let _later = take(&socket, Named::Command, "2.b");
        let ended = std::thread::spawn(move || drop(session));
        let (log, said) = log();
        before.wait(&log, || false);
        ended.join().unwrap();
        let said = said.lock().unwrap();
        assert!(said.contains("waits until 1 ") && said.contains("process 1)"), "{said}");
    }

    #[test]
    fn programs_are_not_waited_for_for_ever_and_commands_are() {
        let socket = socket("patience");
        let _program = take(&socket, Named::Session, "77.c");
        let (log, said) = log();
        Before::look(&socket).wait(&log, || false);
        assert!(said.lock().unwrap().contains("goes on after"));
        let command = take(&socket, Named::Command, "78.d");
        let began = Instant::now();
        let stopped = || began.elapsed() > PATIENCE + 10 * PAUSE;
        said.lock().unwrap().clear();
        Before::look(&socket).wait(&log, stopped);
        assert!(
            stopped() && !said.lock().unwrap().contains("goes on"),
            "it waits until it is stopped"
        );
        drop(command);
    }

    #[test]
    fn nobody_there_means_no_wait() {
        let (log, said) = log();
        Before::look(&socket("nobody")).wait(&log, || panic!("it waits"));
        assert!(said.lock().unwrap().is_empty());
    }
}
