//! The cost of waiting: wake-ups of a waiting client, and the time that a queue takes.

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use lockify_client::{Client, Error, Lockspace};
use lockify_core::Mode;
use lockify_report::{Metric, Row, metric};

use super::{NAME, failed};

/// How often a waiting client wakes, which has nothing to do.
pub const WAKEUPS_PER_S: Metric =
    Metric { name: "wakeups_per_s", unit: "1/s", title: "wake-ups of a waiting client per second" };

/// Sessions that waiters share, if they are more.
const MOST_SESSIONS: usize = 100;

/// A waiter does not need more.
const STACK: usize = 64 * 1024;

/// How long to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitEffort {
    /// Rounds; results are their medians.
    pub rounds: usize,
    /// How long waiters are watched in a round.
    pub watch: Duration,
}

/// Threads that wait for one name through a daemon, in as many sessions but at most a hundred. It
/// counts the wake-ups of these threads, and of their sessions' other threads, while nothing
/// happens. After the holder's release, it measures the time until each has had the lock, by
/// waiter.
///
/// # Errors
/// Those of connecting and locking; threads that the system refuses.
pub fn waits(
    socket: &Path,
    space: &str,
    waiters: usize,
    effort: WaitEffort,
) -> Result<Vec<Row>, Error> {
    let open = || Client::connect(socket)?.lockspace(space);
    let holder = open()?;
    let sessions: Vec<Lockspace> =
        (0..waiters.min(MOST_SESSIONS)).map(|_| open()).collect::<Result<_, _>>()?;
    let (mut wakeups, mut grants) = (Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        let (woken, took) = round(&holder, &sessions, waiters, effort.watch)?;
        wakeups.push(woken);
        grants.push(took.as_secs_f64() * 1e6 / waiters as f64);
    }
    let row = |metric, rounds: &[f64]| {
        Row::of("wait", metric, rounds).with("where", "daemon").with("waiters", waiters)
    };
    Ok(vec![row(&WAKEUPS_PER_S, &wakeups), row(&metric::LATENCY_US, &grants).with("of", "grant")])
}

/// Wake-ups a second of each waiter, and the time until all have had the lock.
fn round(
    holder: &Lockspace,
    sessions: &[Lockspace],
    waiters: usize,
    watch: Duration,
) -> Result<(f64, Duration), Error> {
    let held = holder.lock(NAME, Mode::EX)?;
    std::thread::scope(|scope| {
        // Dropped before the threads are joined, also after an error.
        let held = held;
        let (tell, told) = channel();
        let mut threads = Vec::with_capacity(waiters);
        for space in sessions.iter().cycle().take(waiters) {
            let tell = tell.clone();
            let wait = move || {
                // Nobody listens any more only after an error.
                let _ = tell.send(rustix::thread::gettid());
                space.lock(NAME, Mode::EX)?.unlock()
            };
            let builder = std::thread::Builder::new().stack_size(STACK);
            threads.push(builder.spawn_scoped(scope, wait).map_err(failed)?);
        }
        let mut tasks: Vec<i32> =
            told.iter().take(waiters).map(|task| task.as_raw_nonzero().get()).collect();
        await_queue(holder, waiters)?;
        tasks.extend(background()?);
        let before = switches(&tasks)?;
        std::thread::sleep(watch);
        let woken = (switches(&tasks)? - before) as f64 / waiters as f64 / watch.as_secs_f64();
        let begin = Instant::now();
        held.unlock()?;
        for thread in threads {
            thread.join().map_err(|_| Error::Node("a waiter panicked".into()))??;
        }
        Ok((woken, begin.elapsed()))
    })
}

/// Waits until so many are in the queue, and have gone to sleep.
fn await_queue(holder: &Lockspace, waiters: usize) -> Result<(), Error> {
    const PATIENCE: Duration = Duration::from_secs(120);
    const PAUSE: Duration = Duration::from_millis(100);
    let end = Instant::now() + PATIENCE;
    loop {
        let seen = holder.who(NAME)?;
        // An answer has only so many of a resource's locks, and says how many more there are.
        let told = seen.resources.first().map_or(0, |r| r.locks.len());
        let locks = told as u64 + seen.omitted;
        if locks > waiters as u64 {
            std::thread::sleep(PAUSE);
            return Ok(());
        }
        if Instant::now() > end {
            return Err(Error::Node(format!("only {locks} of {waiters} waiters are queued")));
        }
        std::thread::sleep(PAUSE);
    }
}

/// The threads of sessions that drive when nobody waits.
fn background() -> Result<Vec<i32>, Error> {
    let mut found = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").map_err(unreadable)? {
        let task = task.map_err(unreadable)?;
        // A thread that has ended meanwhile has no name.
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let id: Option<i32> = task.file_name().to_str().and_then(|id| id.parse().ok());
        found.extend(id.filter(|_| name.trim() == "lockify-client"));
    }
    Ok(found)
}

/// How often these threads have left the processor.
fn switches(tasks: &[i32]) -> Result<u64, Error> {
    let mut all = 0;
    for task in tasks {
        let status = std::fs::read_to_string(format!("/proc/self/task/{task}/status"));
        let status = status.map_err(unreadable)?;
        let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
        all += counts.filter_map(|l| l.split_whitespace().last()?.parse::<u64>().ok()).sum::<u64>();
    }
    Ok(all)
}

fn unreadable(e: std::io::Error) -> Error {
    Error::Node(format!("cannot count context switches in /proc/self/task: {e}"))
}
