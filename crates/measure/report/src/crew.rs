//! Processes that a benchmark measures: how their parent starts them, tells them and hears them, and how they answer.
//!
//! A worker's first line of input is its job, as JSON; what the parent says later is lines, too. The worker says replies, as
//! JSON behind `MARK`, so that they can be told from what else a program prints. It ends when its input does, that is, also
//! when its parent has died; the parent kills it when it drops it.

use std::fmt::Debug;
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};

/// Distinguishes replies from other output of a program.
const MARK: &str = "lockify-worker: ";

/// How to start a worker: a program that does its [`work`] when it has these arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
}

/// Why a worker did not do its job.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// It cannot be started.
    #[error("cannot start a worker ({}): {error}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// It ended early, or says something that is no reply.
    #[error("{name} {what}; its own messages are above")]
    Gone {
        /// The name of the worker.
        name: String,
        /// The event.
        what: String,
    },
    /// It could not do its job.
    #[error("{name}: {why}")]
    Failed {
        /// The name of the worker.
        name: String,
        /// The reason.
        why: String,
    },
    /// It has not answered in time.
    #[error("{name} has not answered for {patience:?}; report this defect")]
    Stuck {
        /// The name of the worker.
        name: String,
        /// How long.
        patience: Duration,
    },
}

/// A worker, as its parent sees it; it is killed when this is dropped.
#[derive(Debug)]
pub struct Worker {
    name: String,
    process: Child,
    input: Option<ChildStdin>,
    replies: Receiver<String>,
}

impl Worker {
    /// Starts one and tells it its job.
    ///
    /// # Errors
    /// It cannot be started, or ended at once.
    pub fn start(how: &Program, name: String, job: &impl Serialize) -> Result<Worker, WorkerError> {
        let failed = |error| WorkerError::Start { program: how.program.clone(), error };
        let started = Command::new(&how.program)
            .args(&how.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut process = started.map_err(failed)?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let (sender, replies) = channel();
        let mut worker = Worker { name, process, input, replies };
        let output = output.ok_or_else(|| failed(ErrorKind::BrokenPipe.into()))?;
        let listen = move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            let marked = lines.filter_map(|line| line.strip_prefix(MARK).map(str::to_owned));
            // Nobody listens to a worker that was given up.
            marked.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
        };
        std::thread::Builder::new().name("listener".into()).spawn(listen).map_err(failed)?;
        worker.command(job)?;
        Ok(worker)
    }

    fn gone(&self, what: String) -> WorkerError {
        WorkerError::Gone { name: self.name.clone(), what }
    }

    /// Tells it a line.
    ///
    /// # Errors
    /// It does not listen any more.
    pub fn send_line(&mut self, line: &str) -> Result<(), WorkerError> {
        let told = self.input.as_mut().map(|input| writeln!(input, "{line}"));
        told.unwrap_or_else(|| Err(ErrorKind::BrokenPipe.into()))
            .map_err(|e| self.gone(format!("does not listen ({e})")))
    }

    /// Tells it something in JSON.
    ///
    /// # Errors
    /// It does not listen any more.
    pub fn command(&mut self, command: &impl Serialize) -> Result<(), WorkerError> {
        let line = serde_json::to_string(command);
        self.send_line(&line.map_err(|e| self.gone(format!("cannot be told ({e})")))?)
    }

    /// Its next reply, which may take so long.
    ///
    /// # Errors
    /// It has failed, ended, or not answered.
    pub fn hear<R: DeserializeOwned>(&mut self, patience: Duration) -> Result<R, WorkerError> {
        let line = self.replies.recv_timeout(patience).map_err(|e| match e {
            RecvTimeoutError::Timeout => WorkerError::Stuck { name: self.name.clone(), patience },
            RecvTimeoutError::Disconnected => {
                let how = self.process.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
                self.gone(format!("ended ({how})"))
            }
        })?;
        match serde_json::from_str(&line) {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(why)) => Err(WorkerError::Failed { name: self.name.clone(), why }),
            Err(e) => Err(self.gone(format!("gave no proper reply ({e})"))),
        }
    }

    /// It has sent something that is no answer to its command.
    pub fn unexpected(&self, reply: &impl Debug) -> WorkerError {
        self.gone(format!("gave the wrong reply ({reply:?})"))
    }

    /// As the function [`processor_time`].
    pub fn processor_time(&self) -> Duration {
        processor_time(self.process.id())
    }

    /// Kills it. When this returns, it is dead.
    ///
    /// # Errors
    /// It cannot be killed.
    pub fn kill(&mut self) -> Result<(), WorkerError> {
        let killed = self.process.kill().and_then(|()| self.process.wait());
        killed.map(drop).map_err(|e| self.gone(format!("cannot be killed ({e})")))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.kill();
    }
}

/// The processor time of a process's threads so far. Threads that have ended do not count. Zero where the system does not tell.
pub fn processor_time(process: u32) -> Duration {
    let time = |thread: std::fs::DirEntry| {
        // proc(5): nanoseconds on a processor, then others.
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    let threads = threads.into_iter().flatten().filter_map(Result::ok);
    Duration::from_nanos(threads.filter_map(time).sum())
}

/// Any failure of a worker, for its parent to show.
pub type Failure = Box<dyn std::error::Error>;

/// A worker's main function: does the job that its parent tells, and tells why not. With a value at the end, that is the last
/// reply.
///
/// # Errors
/// Standard output cannot be written; all else is told to the parent.
pub fn work<J: DeserializeOwned, R: Serialize>(
    job: impl FnOnce(J) -> Result<Option<R>, Failure>,
) -> std::io::Result<()> {
    let told = line().map_err(Failure::from).and_then(|line| Ok(serde_json::from_str(&line)?));
    match told.and_then(job) {
        Ok(Some(done)) => reply(&done),
        Ok(None) => Ok(()),
        Err(e) => say(&Err::<R, _>(e.to_string())),
    }
}

/// A worker hears what its parent tells next.
///
/// # Errors
/// Its parent has ended, or does not want it any more.
pub fn line() -> std::io::Result<String> {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line)? {
        0 => Err(std::io::Error::new(ErrorKind::UnexpectedEof, "its parent has ended")),
        _ => Ok(line),
    }
}

/// A worker tells its parent something.
///
/// # Errors
/// Standard output cannot be written.
pub fn reply(reply: &impl Serialize) -> std::io::Result<()> {
    say(&Ok::<_, String>(reply))
}

fn say<R: Serialize>(reply: &Result<R, String>) -> std::io::Result<()> {
    let text = serde_json::to_string(reply)?;
    let mut out = std::io::stdout().lock();
    // Other output may not have ended its line.
    writeln!(out, "\n{MARK}{text}")?;
    out.flush()
}

/// In a worker: becomes true when its parent wants no more, or has died. Takes all further lines.
///
/// # Errors
/// There is no thread for it.
pub fn until_the_parent_ends() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let its_stop = Arc::clone(&stop);
    let listen = move || {
        // An error, too, means that nobody is there.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        its_stop.store(true, Ordering::Relaxed);
    };
    std::thread::Builder::new().name("parent".into()).spawn(listen)?;
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    #[ignore = "a process that the other tests start"]
    fn a_worker() {
        work(|job: String| match job.as_str() {
            "add" => {
                let numbers = line()?;
                print!("not a reply");
                reply(&numbers.split_whitespace().count())?;
                let numbers = numbers.trim().split(' ').map(str::parse::<usize>);
                let sum: usize = numbers.sum::<Result<_, _>>()?;
                Ok(Some(sum))
            }
            _ => Ok(None),
        })
        .unwrap();
    }

    fn start(job: &str) -> Worker {
        let name = format!("{}::a_worker", module_path!().split_once("::").unwrap().1);
        let args = [name.as_str(), "--exact", "--ignored", "--nocapture"];
        let args = args.map(str::to_owned).to_vec();
        let program = std::env::current_exe().unwrap();
        Worker::start(&Program { program, args }, "worker 1".into(), &job).unwrap()
    }

    #[test]
    fn a_worker_does_what_it_is_told_and_says_why_it_cannot() {
        let mut adds = start("add");
        adds.send_line("17 4").unwrap();
        assert_eq!(adds.hear::<usize>(PATIENCE).unwrap(), 2);
        assert_eq!(adds.hear::<usize>(PATIENCE).unwrap(), 21);
        let mut fails = start("add");
        fails.send_line("seventeen").unwrap();
        assert_eq!(fails.hear::<usize>(PATIENCE).unwrap(), 1);
        let error = fails.hear::<usize>(PATIENCE).unwrap_err();
        assert!(matches!(&error, WorkerError::Failed { .. }), "{error}");
        assert!(error.to_string().starts_with("worker 1: invalid digit"), "{error}");
    }

    #[test]
    fn one_that_ends_or_is_killed_is_not_waited_for() {
        let error = start("nothing").hear::<usize>(PATIENCE).unwrap_err();
        assert!(matches!(&error, WorkerError::Gone { what, .. } if what.starts_with("ended")));
        let mut killed = start("add");
        killed.kill().unwrap();
        let error = killed.hear::<usize>(PATIENCE).unwrap_err();
        assert!(error.to_string().contains("ended (signal: 9"), "{error}");
        let waits = start("add").hear::<usize>(Duration::from_millis(1)).unwrap_err();
        assert!(matches!(waits, WorkerError::Stuck { .. }), "{waits}");
    }

    #[test]
    fn what_cannot_be_started_says_which() {
        let how = Program { program: "/nowhere/lockify".into(), args: Vec::new() };
        let error = Worker::start(&how, "worker 1".into(), &"add").unwrap_err();
        assert!(error.to_string().starts_with("cannot start a worker (/nowhere/lockify): "));
    }
}
