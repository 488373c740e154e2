//! Every protocol with real processes on the fabric of shared memory; every history is checked.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockify_bench::onesided::Crew;
use lockify_bench::onesided::proof::{Part, check};
use lockify_bench::onesided::worker::{Job, Place};
use lockify_history::{Kind, Reader};
use lockify_onesided::{Options, Protocol};
use lockify_remote::{ServeError, Server, Settings};
use lockify_report::crew::Program;

#[test]
#[ignore = "a process that the other tests start"]
fn a_worker() {
    // Without a job on its standard input, it says so and nobody listens.
    lockify_bench::onesided::worker::run().unwrap();
}

fn program() -> Program {
    let args =
        ["onesided::a_worker", "--exact", "--ignored", "--nocapture"].map(str::to_owned).to_vec();
    Program { program: std::env::current_exe().unwrap(), args }
}

/// A server on a thread of its own, as its fabric belongs to one thread.
struct Home {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Home {
    fn start(path: &Path, options: Options) -> Home {
        let settings =
            Settings { path: path.to_owned(), locks: 16, clients: 16, mode: 0o600, options };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || Server::start(&settings)?.run(&stopped));
        let end = Instant::now() + Duration::from_secs(10);
        while lockify_remote::Remote::connect(path, lockify_fabric::shm::Owner::Me).is_err() {
            assert!(Instant::now() < end && !thread.is_finished(), "the server does not start");
            std::thread::sleep(Duration::from_millis(1));
        }
        Home { stop, thread: Some(thread) }
    }

    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

fn job(dir: &Path, name: &str, number: u64) -> Job {
    Job {
        table: Place::Segment(dir.join("segment")),
        locks: 3,
        skew: 0.0,
        shared: 0.4,
        hold_ns: if number.is_multiple_of(2) { 0 } else { 2000 },
        duration_ns: 300_000_000,
        seed: number,
        history: Some(dir.join(format!("{name}.jsonl"))),
    }
}

fn history(job: &Job) -> PathBuf {
    job.history.clone().unwrap()
}

/// One at a time: each has more processes than the machine has processors already.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// No leases, nobody dies: the published protocols. Many processes on few locks.
fn undisturbed(protocol: Protocol) {
    let _alone = alone();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let home = Home::start(&dir.path().join("segment"), Options::new(protocol));
    let jobs: Vec<Job> = (0..5).map(|n| job(dir.path(), &n.to_string(), n)).collect();
    let parts: Vec<Part> =
        jobs.iter().map(|job| Part { file: history(job), killed: None }).collect();
    let mut crew = Crew::start(&program(), jobs).unwrap();
    crew.go().unwrap();
    let done = crew.done().unwrap();
    home.end();
    // Leases by the clock end, too, when their holder is not let run for a millisecond.
    let ended = |revoked: u64| revoked == 0 || protocol.needs_clock();
    assert!(done.iter().all(|d| d.pairs > 0 && ended(d.revoked)), "{}: {done:?}", protocol.name());
    let report = check(&parts).unwrap();
    assert!(report.is_clean(), "{}: {report}", protocol.name());
    assert_eq!(report.counts.grants, done.iter().map(|d| d.pairs).sum::<u64>());
}

/// Leases are refused where they would be worth nothing. That `killed` is left out there.
fn refuses_leases(protocol: Protocol) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let options = Options::new(protocol).with_lease(20_000_000);
    let path = dir.path().join("segment");
    let settings = Settings { path, locks: 16, clients: 16, mode: 0o600, options };
    let error = Server::start(&settings).err().unwrap();
    assert!(error.to_string().contains("cannot repair what a dead client leaves"), "{error}");
}

/// Leases; holders, waiters and random clients are killed again and again: the others go on, no two hold one lock.
fn killed(protocol: Protocol) {
    let _alone = alone();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    // Long enough that who lives is rarely evicted because the machine is busy.
    let options = Options::new(protocol).with_lease(20_000_000);
    let home = Home::start(&dir.path().join("segment"), options);
    let long = |mut job: Job| {
        job.duration_ns = 3_500_000_000;
        // A quarter of the time in holds: the victim is often a holder.
        job.hold_ns = 200_000;
        job
    };
    let mut jobs: Vec<Job> = (0..4).map(|n| long(job(dir.path(), &n.to_string(), n))).collect();
    let mut crew = Crew::start(&program(), jobs.clone()).unwrap();
    crew.go().unwrap();
    let (mut parts, mut last) = (Vec::new(), 0);
    let end = Instant::now() + Duration::from_secs(1);
    for n in (0..20_u64).take_while(|_| Instant::now() < end) {
        std::thread::sleep(Duration::from_millis(40 + n * 7 % 30));
        // The first two live on, and have to be given locks that the others take with them.
        let victim = 2 + (n % 2) as usize;
        let next = long(job(dir.path(), &format!("after-{n}"), 100 + n));
        let file = history(&jobs[victim]);
        let dead = crew.replace(victim, &program(), &next).unwrap();
        parts.push(Part { file, killed: Some(dead) });
        last = dead.1;
        jobs[victim] = next;
    }
    let done = crew.done().unwrap();
    home.end();
    parts.extend(jobs.iter().map(|job| Part { file: history(job), killed: None }));
    let report = check(&parts).unwrap();
    assert!(report.is_clean(), "{}: {report}", protocol.name());
    assert!(parts.len() > 6, "{}: only {} histories", protocol.name(), parts.len());
    assert_eq!(done.len(), 4);
    for job in &jobs {
        assert!(
            grants_after(&history(job), last),
            "{}: {:?} got nothing more",
            protocol.name(),
            job.history
        );
    }
}

/// Returns true if a worker was granted locks after this time.
fn grants_after(file: &Path, t: u64) -> bool {
    let mut reader = Reader::open(file).unwrap();
    std::iter::from_fn(|| reader.read().unwrap())
        .any(|event| event.kind == Kind::Grant && event.t > t)
}

macro_rules! each_protocol {
    ($($name:ident $protocol:ident,)*) => {
        $(mod $name {
            use super::*;

            #[test]
            fn undisturbed() {
                super::undisturbed(Protocol::$protocol);
            }

            #[test]
            fn killed() {
                match Protocol::$protocol.repairs() {
                    true => super::killed(Protocol::$protocol),
                    false => super::refuses_leases(Protocol::$protocol),
                }
            }
        })*

        #[test]
        fn no_protocol_is_left_out() {
            assert_eq!([$(Protocol::$protocol),*].len(), Protocol::ALL.len());
        }
    };
}

each_protocol! {
    srsl Srsl,
    dqnl Dqnl,
    n_cosed NCosed,
    cas_spin Spin,
    dslr Dslr,
    mcs Mcs,
    shiftlock ShiftLock,
    shiftlock_plus ShiftLockPlus,
    rma_rw RmaRw,
    drtm Drtm,
    shiftlock_s ShiftLockS,
}
