//! Workers, as their parent sees them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use lockify_fabric::shm::now;

use crate::worker::{Done, Job, MARK, Reply};

/// Why workers did not do their jobs.
#[derive(Debug, thiserror::Error)]
pub enum CrewError {
    /// One cannot be started.
    #[error("cannot start a worker ({}): {error}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// One ended early, or says something that is no reply.
    #[error("worker {number} {what}; its own messages are above")]
    Gone {
        /// Which.
        number: usize,
        /// What happened.
        what: String,
    },
    /// One could not do its job.
    #[error("worker {number}: {why}")]
    Failed {
        /// Which.
        number: usize,
        /// Why.
        why: String,
    },
    /// One has not answered in time.
    #[error(
        "worker {number} has not answered for {patience:?}: it waits for a lock that nobody gives it; report this defect"
    )]
    Stuck {
        /// Which.
        number: usize,
        /// How long.
        patience: Duration,
    },
}

/// How to start a worker: a program that calls [`crate::worker::run`].
#[derive(Clone, Debug)]
pub struct Program {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
}

/// How long a worker may take beyond its job.
const PATIENCE: Duration = Duration::from_secs(20);

struct Worker {
    number: usize,
    process: Child,
    input: Option<ChildStdin>,
    replies: Receiver<String>,
    peer: u16,
    job: Job,
}

impl Worker {
    fn start(number: usize, how: &Program, job: Job) -> Result<Worker, CrewError> {
        let failed = |error| CrewError::Start { program: how.program.clone(), error };
        let started = Command::new(&how.program)
            .args(&how.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut process = started.map_err(failed)?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let output = output.ok_or_else(|| failed(std::io::ErrorKind::BrokenPipe.into()))?;
        let (sender, replies) = channel();
        let listen = move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            let marked = lines.filter_map(|line| line.strip_prefix(MARK).map(str::to_owned));
            // Nobody listens to a worker that was given up.
            marked.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
        };
        std::thread::Builder::new().name("listener".into()).spawn(listen).map_err(failed)?;
        let mut worker = Worker { number, process, input, replies, peer: 0, job };
        let job = serde_json::to_string(&worker.job).map_err(|e| failed(e.into()))?;
        worker.tell(&job)?;
        Ok(worker)
    }

    fn tell(&mut self, line: &str) -> Result<(), CrewError> {
        let number = self.number;
        let gone =
            |e: std::io::Error| CrewError::Gone { number, what: format!("does not listen ({e})") };
        let input =
            self.input.as_mut().ok_or_else(|| gone(std::io::ErrorKind::BrokenPipe.into()))?;
        writeln!(input, "{line}").map_err(gone)
    }

    fn hear(&mut self, patience: Duration) -> Result<Reply, CrewError> {
        let number = self.number;
        let gone = |what: String| CrewError::Gone { number, what };
        let line = self.replies.recv_timeout(patience).map_err(|e| match e {
            RecvTimeoutError::Timeout => CrewError::Stuck { number, patience },
            RecvTimeoutError::Disconnected => {
                gone(self.process.wait().map_or_else(|e| e.to_string(), |s| format!("ended ({s})")))
            }
        })?;
        match serde_json::from_str(&line) {
            Ok(Reply::Failed(why)) => Err(CrewError::Failed { number, why }),
            Ok(reply) => Ok(reply),
            Err(e) => Err(gone(format!("gave no proper reply ({e})"))),
        }
    }

    fn get_ready(&mut self) -> Result<(), CrewError> {
        match self.hear(PATIENCE)? {
            Reply::Ready(peer) => {
                self.peer = peer;
                Ok(())
            }
            reply => Err(self.unexpected(&reply)),
        }
    }

    fn done(&mut self) -> Result<Done, CrewError> {
        match self.hear(PATIENCE + Duration::from_nanos(self.job.duration_ns))? {
            Reply::Done(done) => Ok(done),
            reply => Err(self.unexpected(&reply)),
        }
    }

    fn unexpected(&self, reply: &Reply) -> CrewError {
        CrewError::Gone { number: self.number, what: format!("gave the wrong reply ({reply:?})") }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Workers that begin together.
pub struct Crew {
    workers: Vec<Worker>,
}

impl Crew {
    /// Starts a worker for each job, and waits until all are connected.
    ///
    /// # Errors
    /// [`CrewError`].
    pub fn start(how: &Program, jobs: impl IntoIterator<Item = Job>) -> Result<Crew, CrewError> {
        let workers =
            jobs.into_iter().enumerate().map(|(number, job)| Worker::start(number, how, job));
        let mut crew = Crew { workers: workers.collect::<Result<_, _>>()? };
        crew.workers.iter_mut().try_for_each(Worker::get_ready)?;
        Ok(crew)
    }

    /// Has all begin.
    ///
    /// # Errors
    /// [`CrewError`].
    pub fn go(&mut self) -> Result<(), CrewError> {
        self.workers.iter_mut().try_for_each(|worker| worker.tell("go"))
    }

    /// Kills a worker and has another begin this job. Of the one that was killed: its peer's number, and a time at which
    /// it was dead.
    ///
    /// # Errors
    /// [`CrewError`].
    pub fn replace(
        &mut self,
        number: usize,
        how: &Program,
        job: Job,
    ) -> Result<(u16, u64), CrewError> {
        let gone = || CrewError::Gone { number, what: "is not there".into() };
        let place = self.workers.get_mut(number).ok_or_else(gone)?;
        let killed = place.process.kill().and_then(|()| place.process.wait());
        killed.map_err(|e| CrewError::Gone { number, what: format!("cannot be killed ({e})") })?;
        let dead = (place.peer, now());
        *place = Worker::start(number, how, job)?;
        place.get_ready()?;
        place.tell("go")?;
        Ok(dead)
    }

    /// Waits until all have done their jobs.
    ///
    /// # Errors
    /// [`CrewError`].
    pub fn done(mut self) -> Result<Vec<Done>, CrewError> {
        self.workers.iter_mut().map(Worker::done).collect()
    }
}
