//! The processes of a command: its descendants in any group or session. This process is their
//! subreaper, so a process that loses its parent becomes a child of this one.

use std::collections::{HashMap, HashSet};
use std::fmt;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process, pidfd_open,
    pidfd_send_signal, wait,
};

/// How often a look at all processes is repeated because one has ended meanwhile.
const LOOKS: usize = 16;

/// A process, as /proc showed it.
#[derive(Clone, Debug)]
pub struct Process {
    pid: Pid,
    parent: i32,
    name: String,
    state: char,
    ended: bool,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.pid.as_raw_nonzero(), self.name.escape_default())
    }
}

/// A process that still runs, and why.
pub struct Survivor {
    process: Process,
    refused: Option<Errno>,
}

impl Survivor {
    /// Returns true if the system does not let this user end it.
    pub fn refused(&self) -> bool {
        self.refused.is_some()
    }
}

impl fmt::Display for Survivor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = &self.process;
        match self.refused {
            Some(why) => write!(f, "process {process} cannot be killed: {why}"),
            None => write!(
                f,
                "process {process} has got SIGKILL and has not ended: its state is {}",
                process.state
            ),
        }
    }
}

/// The descendants of this process.
pub struct Tree {
    command: Option<Pid>,
    status: Option<WaitStatus>,
    /// Children that are not the command's.
    others: Vec<Pid>,
    childless: bool,
}

impl Tree {
    /// The tree of a command that is a child of this process. `others` are children, too, and not
    /// the command's.
    pub fn new(command: Option<Pid>, others: Vec<Pid>) -> Tree {
        Tree { command, status: None, others, childless: false }
    }

    /// How the command has ended, if it has.
    pub fn status(&self) -> Option<WaitStatus> {
        self.status
    }

    /// Takes note of children that have ended; whether there were any.
    pub fn reap(&mut self) -> bool {
        let mut any = false;
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    any = true;
                    if Some(pid) == self.command {
                        self.status = Some(status);
                    }
                }
                Ok(None) => return any,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.childless = true;
                    return any;
                }
            }
        }
    }

    /// Those that have not ended.
    pub fn living(&mut self) -> Vec<Process> {
        let mut living = Vec::new();
        for _ in 0..LOOKS {
            self.reap();
            if self.childless {
                return Vec::new();
            }
            living = descendants(&self.others, self.command.filter(|_| self.status.is_none()));
            // A process that lost its parent during the look may have been overlooked.
            if !self.reap() {
                break;
            }
        }
        living
    }

    /// Sends all of them a signal, once; returns those that do not get it, and why.
    pub fn signal(&mut self, signal: Signal) -> Vec<Survivor> {
        let (mut told, mut refused) = (HashSet::new(), Vec::new());
        for _ in 0..LOOKS {
            let living = self.living().into_iter();
            let new: Vec<Process> = living.filter(|process| told.insert(process.pid)).collect();
            if new.is_empty() {
                break;
            }
            refused.extend(new.into_iter().filter_map(|process| process.survives(signal)));
        }
        refused
    }

    /// Sends the command alone a signal.
    pub fn signal_command(&self, signal: Signal) -> Result<(), Errno> {
        match self.command {
            // Its number is not another's: this process has not waited for it.
            Some(pid) if self.status.is_none() => kill_process(pid, signal),
            _ => Ok(()),
        }
    }

    /// Kills all of them once; those that are still there, and why.
    pub fn kill(&mut self) -> Vec<Survivor> {
        let refused = self.signal(Signal::KILL);
        let why: HashMap<Pid, Option<Errno>> =
            refused.iter().map(|survivor| (survivor.process.pid, survivor.refused)).collect();
        let survivor = |process: Process| Survivor {
            refused: why.get(&process.pid).copied().flatten(),
            process,
        };
        self.living().into_iter().map(survivor).collect()
    }
}

impl Process {
    /// A child that /proc does not show.
    fn hidden(pid: Pid) -> Process {
        Process { pid, parent: own_number(), name: "hidden".into(), state: '?', ended: false }
    }

    /// Sends it a signal; itself, if the system refuses that.
    fn survives(self, signal: Signal) -> Option<Survivor> {
        match self.signal(signal) {
            Ok(()) | Err(Errno::SRCH) => None,
            Err(why) => Some(Survivor { process: self, refused: Some(why) }),
        }
    }

    /// Sends it a signal, if it is still a process of the tree.
    fn signal(&self, signal: Signal) -> Result<(), Errno> {
        if self.pid == getpid() {
            return Ok(());
        }
        let handle = match pidfd_open(self.pid, PidfdFlags::empty()) {
            Ok(handle) => Some(handle),
            Err(Errno::SRCH) => return Ok(()),
            // Before Linux 5.3, or no descriptors left.
            Err(_) => None,
        };
        if !self.is_still_ours() {
            return Ok(());
        }
        match handle {
            Some(handle) => pidfd_send_signal(handle, signal),
            None => kill_process(self.pid, signal),
        }
    }

    /// Returns true if the number has not become another process's. A child keeps it until it is
    /// waited for.
    fn is_still_ours(&self) -> bool {
        let me = own_number();
        let now = || look_at(self.pid.as_raw_nonzero().get());
        self.parent == me || now().is_some_and(|now| now.parent == self.parent || now.parent == me)
    }
}

/// Children that this process has now.
pub fn children_of_this_process() -> Vec<Pid> {
    listed_children().unwrap_or_else(|| {
        let me = own_number();
        all().into_iter().filter(|p| p.parent == me).map(|p| p.pid).collect()
    })
}

/// As the kernel lists them, also those that /proc hides; `None` if it has no such list.
fn listed_children() -> Option<Vec<Pid>> {
    let pids = std::fs::read_to_string("/proc/thread-self/children").ok()?;
    Some(pids.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect())
}

fn own_number() -> i32 {
    getpid().as_raw_nonzero().get()
}

/// For a process that has children.
fn descendants(others: &[Pid], command: Option<Pid>) -> Vec<Process> {
    let me = own_number();
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for process in all() {
        children.entry(process.parent).or_default().push(process);
    }
    let own = children.entry(me).or_default();
    let listed = listed_children().unwrap_or_else(|| command.into_iter().collect());
    let hidden = listed.into_iter().filter(|pid| own.iter().all(|seen| seen.pid != *pid));
    own.extend(hidden.map(Process::hidden).collect::<Vec<_>>());
    if own.is_empty() {
        // There are some, wherever they are.
        own.push(Process::hidden(getpid()));
    }
    let mut found = below(me, children, |process| {
        let is_command = Some(process.pid) == command;
        others.contains(&process.pid) || (!is_command && is_lock_daemon(process.pid))
    });
    found.retain(|process| !process.ended);
    found
}

/// All below `root`, without excluded processes and their descendants.
fn below(
    root: i32,
    mut children: HashMap<i32, Vec<Process>>,
    left_out: impl Fn(&Process) -> bool,
) -> Vec<Process> {
    let (mut parents, mut found) = (vec![root], Vec::new());
    while let Some(parent) = parents.pop() {
        let counted = children.remove(&parent).into_iter().flatten().filter(|p| !left_out(p));
        for process in counted {
            parents.push(process.pid.as_raw_nonzero().get());
            found.push(process);
        }
    }
    found
}

/// Returns true if it is this user's lock daemon. Its first user starts it, and it serves others.
fn is_lock_daemon(pid: Pid) -> bool {
    let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0).skip(1);
    words.next() == Some(b"serve") && words.any(|word| word == b"--user")
}

fn all() -> Vec<Process> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(look_at).collect()
}

fn look_at(pid: i32) -> Option<Process> {
    // A name may be any bytes.
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(&String::from_utf8_lossy(&stat))
}

/// A line of /proc/PID/stat; the name in it may contain anything.
fn parse(stat: &str) -> Option<Process> {
    let (pid, rest) = stat.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let state = fields.first()?.chars().next()?;
    // A process whose first thread has ended shows as a zombie, and its other threads run on.
    let threads: u32 = fields.get(17)?.parse().ok()?;
    Some(Process {
        pid: Pid::from_raw(pid.parse().ok()?)?,
        parent: fields.get(1)?.parse().ok()?,
        name: name.to_owned(),
        state,
        ended: matches!(state, 'Z' | 'X') && threads <= 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_name_is() {
        let rest = "1 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0";
        let process = parse(&format!("42 (a) S (b) ) R {rest}")).unwrap();
        assert_eq!((process.pid.as_raw_nonzero().get(), process.parent), (42, 1));
        assert_eq!((process.name.as_str(), process.ended), ("a) S (b) ", false));
        assert!(parse(&format!("42 (x) Z {rest}")).unwrap().ended);
        let threads = rest.replace("20 0 1", "20 0 3");
        assert!(!parse(&format!("42 (x) Z {threads}")).unwrap().ended);
        assert!(parse("42 (x").is_none());
    }

    #[test]
    fn every_process_has_a_line_that_is_understood() {
        let me = getpid();
        assert!(all().iter().any(|process| process.pid == me));
    }
}
