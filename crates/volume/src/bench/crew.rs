//! Workers, as their parent sees them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::worker::{Job, MARK, Reply};
use super::{BenchError, Program};

/// How long a worker may take beyond its job.
const PATIENCE: Duration = Duration::from_secs(30);

/// A worker; it ends when this is dropped.
pub(super) struct Worker {
    name: String,
    process: Child,
    input: Option<ChildStdin>,
    replies: Receiver<String>,
}

impl Worker {
    /// Starts one. It is not ready yet.
    pub fn start(how: &Program, name: String, job: &Job) -> Result<Worker, BenchError> {
        let failed = |error| BenchError::Start { program: how.program.clone(), error };
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
        let mut worker = Worker { name, process, input, replies };
        let job = serde_json::to_string(job).map_err(|e| failed(e.into()))?;
        worker.tell(&job)?;
        Ok(worker)
    }

    fn gone(&self, what: impl ToString) -> BenchError {
        BenchError::Worker { name: self.name.clone(), what: what.to_string() }
    }

    /// Tells it a line.
    pub fn tell(&mut self, line: &str) -> Result<(), BenchError> {
        let told = self.input.as_mut().map(|input| writeln!(input, "{line}"));
        told.unwrap_or_else(|| Err(std::io::ErrorKind::BrokenPipe.into()))
            .map_err(|e| self.gone(format!("does not listen ({e})")))
    }

    /// Its next reply, which may take so long.
    pub fn hear(&mut self, time: Duration) -> Result<Reply, BenchError> {
        let line = self.replies.recv_timeout(time + PATIENCE).map_err(|e| match e {
            RecvTimeoutError::Timeout => self.gone("has not answered in time; report this defect"),
            RecvTimeoutError::Disconnected => {
                let how = self.process.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
                self.gone(format!("ended ({how}); its own messages are above"))
            }
        })?;
        match serde_json::from_str(&line) {
            Ok(Reply::Failed(why)) => Err(self.gone(why)),
            Ok(reply) => Ok(reply),
            Err(e) => Err(self.gone(format!("gave no proper reply ({e})"))),
        }
    }

    /// Waits until it is ready.
    pub fn ready(&mut self) -> Result<(), BenchError> {
        match self.hear(Duration::ZERO)? {
            Reply::Ready => Ok(()),
            other => Err(self.gone(format!("gave the wrong reply ({other:?})"))),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
