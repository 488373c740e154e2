//! The work that a device's or lock server's process does as a host. It fences hosts that seem dead. It lets the array continue
//! without a dead device, or with a returned one. It checks the writes that were under way when a device stopped.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use lockify_array::{Change, DeviceId, HostAnswer, Life, LockChange, OpError, Term, Usage, Work};
use lockify_trust::{Identity, Mailbox};

use crate::ArrayFile;
use crate::host::{Array, Joining, VISITORS, this_node};

/// How long it may take until devices can be reached; then it is tried again.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a visitor may take to end.
const FAREWELL: Duration = Duration::from_secs(2);

/// A visitor without work leaves after this time: at rest, devices have no other hosts than those of users. Jobs mostly come
/// several at a time, and share one.
const IDLE: Duration = Duration::from_secs(1);

/// A piece of work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Job {
    Fence(Life),
    /// A host has been fenced: its node need not be fenced for its sake.
    Detach(u32),
    /// That was last let in for this term.
    Fail(DeviceId, u64),
    /// For this term.
    LetIn(DeviceId, Term),
    /// A stripe, and repair it.
    Check(u64),
    /// Of the lock servers.
    Locks(LockChange),
}

/// A piece of work, and what came of it.
pub(crate) type Ended = (Job, Result<HostAnswer, String>);

/// Begins jobs on a thread of its own. Many run at once. The fencing of a host may wait for that of another host, or for the
/// array to continue without a device.
pub(crate) struct Repairs {
    jobs: Sender<Job>,
    under_way: BTreeSet<Job>,
    ended: Mailbox<Ended>,
    /// The reason why this device was not let in, or this lock server does not serve, as it was logged last.
    refused: String,
    log: fn(&str),
}

struct Worker {
    file: ArrayFile,
    joining: Joining,
    ended: Mailbox<Ended>,
    /// The others have taken this host for dead: it has to begin anew.
    fenced: Arc<AtomicBool>,
    /// As many references as there are jobs under way, and this one.
    under_way: Arc<()>,
}

impl Repairs {
    /// Begins with nothing.
    pub fn start(
        file: &ArrayFile,
        identity: Identity,
        waker: Arc<mio::Waker>,
        log: fn(&str),
    ) -> std::io::Result<Repairs> {
        let (jobs, next) = channel();
        let ended = Mailbox::new(waker);
        let joining = Joining {
            memory: None,
            node: this_node(),
            usage: Usage::Upkeep,
            identity,
            patience: PATIENCE,
            log,
        };
        let worker = Worker {
            file: file.clone(),
            joining,
            ended: ended.clone(),
            fenced: Arc::default(),
            under_way: Arc::default(),
        };
        std::thread::Builder::new().name("repairs".into()).spawn(move || worker.run(&next))?;
        Ok(Repairs { jobs, under_way: BTreeSet::new(), ended, refused: String::new(), log })
    }

    /// Has something done, unless it is being done.
    pub fn ask(&mut self, job: Job) {
        if self.under_way.insert(job) {
            match job {
                Job::Fence(life) => {
                    (self.log)(&format!("host {} is silent: it is fenced", life.host.0));
                }
                Job::Fail(device, _) => {
                    (self.log)(&format!("going on without device {}", device.0));
                }
                Job::Detach(_) | Job::LetIn(..) | Job::Check(_) | Job::Locks(_) => {}
            }
            // The thread ends after this.
            let _ = self.jobs.send(job);
        }
    }

    /// Takes the finished jobs. The caller repeats failed ones: it notices again that a device is gone or wants to be let in.
    pub fn look(&mut self) -> Vec<Ended> {
        let ended = self.ended.take();
        let mut detached = Vec::new();
        for (job, result) in &ended {
            self.under_way.remove(job);
            if let (&Job::Fence(Life { host, .. }), Ok(_)) = (job, result)
                && host.0 < VISITORS
            {
                detached.push(host.0);
            }
            if let Err(why) = result {
                let what = match job {
                    Job::Fence(life) => format!("fence host {}", life.host.0),
                    // It stays listed, which does no harm.
                    Job::Detach(_) => continue,
                    Job::Fail(device, _) => format!("go on without device {}", device.0),
                    // It asks every second. The log has each reason once.
                    Job::LetIn(..) | Job::Locks(_) if *why == self.refused => continue,
                    Job::LetIn(..) => {
                        self.refused.clone_from(why);
                        "have this device serve again".to_owned()
                    }
                    Job::Locks(_) => {
                        self.refused.clone_from(why);
                        "agree with the devices on who has the locks".to_owned()
                    }
                    // There may be many: who asked says it once.
                    Job::Check(_) => continue,
                };
                (self.log)(&format!("cannot {what}: {why}; it is tried again"));
            }
        }
        detached.into_iter().for_each(|host| self.ask(Job::Detach(host)));
        ended
    }
}

impl Worker {
    fn run(&self, jobs: &Receiver<Job>) {
        let mut array = None;
        while let Some(job) = self.next(jobs, &mut array) {
            if matches!(job, Job::Locks(_)) {
                self.agree(job);
                continue;
            }
            let own =
                |array: &Array| matches!(job, Job::Fence(life) if life.host.0 == array.number());
            // As another host: nobody fences himself.
            if self.fenced.swap(false, Relaxed) || array.as_ref().is_some_and(own) {
                array = None;
            }
            if let Err(why) = self.begin(&mut array, job) {
                self.ended.post((job, Err(why)));
            }
        }
    }

    /// `None` at the end. The visitor leaves while there is nothing to do.
    fn next(&self, jobs: &Receiver<Job>, array: &mut Option<Array>) -> Option<Job> {
        while array.is_some() {
            match jobs.recv_timeout(IDLE) {
                Ok(job) => return Some(job),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if Arc::strong_count(&self.under_way) > 1 => {}
                Err(RecvTimeoutError::Timeout) => {
                    let visitor = array.take();
                    let leave = move || visitor.iter().for_each(|visitor| visitor.leave(FAREWELL));
                    // Where there is no thread, it is closed and nobody waits for it.
                    let _ = std::thread::Builder::new().name("leave".into()).spawn(leave);
                }
            }
        }
        jobs.recv().ok()
    }

    /// By a visitor of its own, which leaves at once.
    fn agree(&self, job: Job) {
        let (file, joining, ended) = (self.file.clone(), self.joining.clone(), self.ended.clone());
        let agree = move || {
            let visitor = match Array::open_to_repair(&file, &joining) {
                Ok(visitor) => visitor,
                Err(why) => return ended.post((job, Err(why.to_string()))),
            };
            let result = visitor.perform_until(work_of(job), Instant::now() + PATIENCE);
            ended.post((job, result.map(|()| HostAnswer::Done).map_err(|e| e.to_string())));
            visitor.leave(FAREWELL);
        };
        if let Err(why) = std::thread::Builder::new().name("agree".into()).spawn(agree) {
            self.ended.post((job, Err(format!("the system refuses a thread: {why}"))));
        }
    }

    fn begin(&self, array: &mut Option<Array>, job: Job) -> Result<(), String> {
        let open = match array.take() {
            Some(open) => open,
            None => Array::open_to_repair(&self.file, &self.joining).map_err(|e| e.to_string())?,
        };
        let open = array.insert(open);
        let (ended, fenced) = (self.ended.clone(), Arc::clone(&self.fenced));
        let under_way = Arc::clone(&self.under_way);
        let done = move |result: Result<HostAnswer, OpError>| {
            if result == Err(OpError::Fenced) {
                fenced.store(true, Relaxed);
            }
            ended.post((job, result.map_err(|e| e.to_string())));
            drop(under_way);
        };
        open.submit(work_of(job), Box::new(done));
        Ok(())
    }
}

fn work_of(job: Job) -> Work {
    match job {
        Job::Fence(life) => Work::Fence { life },
        Job::Detach(host) => Work::Change { change: Change::Detach { host } },
        Job::LetIn(device, term) => Work::Change { change: Change::LetIn(device, term) },
        Job::Check(stripe) => Work::Scrub { stripe, repair: true },
        Job::Fail(device, term) => Work::Change { change: Change::Fail(device, term) },
        Job::Locks(change) => Work::Change { change: Change::Locks(change) },
    }
}
