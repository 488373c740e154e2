//! Workers that begin together, as their parent sees them.

use std::time::Duration;

use lockify_fabric::shm::now;
use lockify_report::crew::{Program, WorkerError};

use super::worker::{Done, Job, Reply};

/// How long a worker may take beyond its job.
const PATIENCE: Duration = Duration::from_secs(20);

struct Worker {
    process: lockify_report::crew::Worker,
    peer: u16,
    duration: Duration,
}

impl Worker {
    fn start(number: usize, how: &Program, job: &Job) -> Result<Worker, WorkerError> {
        let process = lockify_report::crew::Worker::start(how, format!("worker {number}"), job)?;
        Ok(Worker { process, peer: 0, duration: Duration::from_nanos(job.duration_ns) })
    }

    fn get_ready(&mut self) -> Result<(), WorkerError> {
        match self.process.hear(PATIENCE)? {
            Reply::Ready(peer) => {
                self.peer = peer;
                Ok(())
            }
            reply => Err(self.process.unexpected(&reply)),
        }
    }

    fn done(&mut self) -> Result<Done, WorkerError> {
        match self.process.hear(PATIENCE + self.duration)? {
            Reply::Done(done) => Ok(done),
            reply => Err(self.process.unexpected(&reply)),
        }
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
    /// [`WorkerError`].
    pub fn start(how: &Program, jobs: impl IntoIterator<Item = Job>) -> Result<Crew, WorkerError> {
        let workers =
            jobs.into_iter().enumerate().map(|(number, job)| Worker::start(number, how, &job));
        let mut crew = Crew { workers: workers.collect::<Result<_, _>>()? };
        crew.workers.iter_mut().try_for_each(Worker::get_ready)?;
        Ok(crew)
    }

    /// Has all begin.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn go(&mut self) -> Result<(), WorkerError> {
        self.workers.iter_mut().try_for_each(|worker| worker.process.send_line("go"))
    }

    /// Kills a worker and has another begin this job. Of the one that was killed: its peer's number, and a time at which
    /// it was dead.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn replace(
        &mut self,
        number: usize,
        how: &Program,
        job: &Job,
    ) -> Result<(u16, u64), WorkerError> {
        let gone =
            || WorkerError::Gone { name: format!("worker {number}"), what: "is not there".into() };
        let place = self.workers.get_mut(number).ok_or_else(gone)?;
        place.process.kill()?;
        let dead = (place.peer, now());
        *place = Worker::start(number, how, job)?;
        place.get_ready()?;
        place.process.send_line("go")?;
        Ok(dead)
    }

    /// Waits until all have done their jobs.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn done(mut self) -> Result<Vec<Done>, WorkerError> {
        self.workers.iter_mut().map(Worker::done).collect()
    }
}
