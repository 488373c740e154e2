//! Lockspaces whose locks are words in remote memory: daemons as processes over one table, programs as their clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::eventually;
use crate::common::process::{Process, judge};
use lockify_client::{Client, Error, LockFlags, Lockspace, Mode};
use lockify_daemon::Config;
use lockify_onesided::{Options, Protocol};
use lockify_remote::{Server, Settings};
use rustix::process::Signal;

/// A memory server in this process.
struct Table {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Table {
    fn serve(dir: &Path, protocol: Protocol, lease: Duration) -> Table {
        let path = dir.join("table");
        let options = Options::new(protocol).with_lease(lease.as_nanos() as u64);
        let settings =
            Settings { path: path.clone(), locks: 64, clients: 40, mode: 0o600, options };
        let stop = Arc::new(AtomicBool::new(false));
        let (stops, (ready, started)) = (stop.clone(), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            // A server is of one thread.
            let server = Server::start(&settings).unwrap();
            ready.send(()).unwrap();
            server.run(&stops).unwrap();
        });
        started.recv().unwrap();
        Table { path, stop, thread: Some(thread) }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        let _ = self.thread.take().unwrap().join();
    }
}

fn config(node: u32, table: &Path, extra: &str) -> String {
    format!(
        "{extra}\n[[lockspace]]\nname = \"fast\"\npolicy = \"home\"\nfabric = \"shm\"\ntable = {table:?}\nhands = 4\n\
         [[nodes]]\nid = {node}\naddress = \"127.0.0.1:0\"\n"
    )
}

/// A daemon over a table, that is otherwise a cluster of its own.
fn daemon(dir: &Path, node: u32, table: &Table) -> Process {
    let history = format!("history = {:?}", dir.join(format!("{node}.jsonl")));
    Process::serving(dir, node, &config(node, &table.path, &history))
}

fn space(daemon: &Process) -> Lockspace {
    Client::connect(&daemon.socket).unwrap().lockspace("fast").unwrap()
}

/// Ends daemons in order, and has their histories judged.
fn judged(dir: &Path, daemons: Vec<Process>) {
    for mut daemon in daemons {
        daemon.signal(Signal::TERM);
        assert!(daemon.ended().success(), "{:?}", daemon.said.lock().unwrap());
    }
    let histories = [1, 2].map(|node| dir.join(format!("{node}.jsonl.fast")));
    assert!(judge(dir, &histories).counts.grants > 10);
}

const LONG: Duration = Duration::from_secs(60);

fn programs_exclude_each_other(protocol: Protocol) {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::serve(dir.path(), protocol, LONG);
    let daemons: Vec<_> = (1..=2).map(|node| daemon(dir.path(), node, &table)).collect();
    let (inside, count) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for (who, daemon) in daemons.iter().chain(&daemons).enumerate() {
            let (inside, count) = (&inside, &count);
            scope.spawn(move || {
                let space = space(daemon);
                for round in 0..25 {
                    if round % 5 == who % 5 {
                        let guard = space.lock("counted", Mode::PR).unwrap();
                        assert_eq!((inside.load(SeqCst), guard.token()), (0, 0));
                        guard.unlock().unwrap();
                        continue;
                    }
                    let guard = space.lock("counted", Mode::EX).unwrap();
                    assert_eq!(inside.fetch_add(1, SeqCst), 0);
                    // Not atomic.
                    let read = count.load(SeqCst);
                    std::thread::yield_now();
                    count.store(read + 1, SeqCst);
                    inside.fetch_sub(1, SeqCst);
                    assert!(guard.token() > 0);
                    guard.unlock().unwrap();
                }
            });
        }
    });
    assert_eq!(count.load(SeqCst), 80);
    judged(dir.path(), daemons);
}

#[test]
fn programs_of_two_daemons_exclude_each_other() {
    programs_exclude_each_other(Protocol::ShiftLockS);
}

/// With the protocol whose daemons these are modelled on, which needs the memory server's answers.
#[test]
fn also_by_n_cosed() {
    programs_exclude_each_other(Protocol::NCosed);
}

#[test]
fn modes_and_ways_to_ask() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::serve(dir.path(), Protocol::ShiftLockPlus, LONG);
    let daemons: Vec<_> = (1..=2).map(|node| daemon(dir.path(), node, &table)).collect();
    let [here, also_here, there] = [0, 0, 1].map(|i| space(&daemons[i]));

    // Readers of both daemons at a time, and no writer.
    let readers = [&here, &also_here, &there].map(|s| s.lock("a", Mode::PR).unwrap());
    for space in [&here, &there] {
        assert!(matches!(space.try_lock("a", Mode::EX), Err(Error::WouldBlock)));
        let asked = space.request("a", Mode::PW).timeout(Duration::from_millis(50)).lock();
        assert!(matches!(asked, Err(Error::TimedOut)));
    }
    readers.into_iter().for_each(|guard| guard.unlock().unwrap());
    let first = there.lock("a", Mode::PW).unwrap();
    assert!(matches!(here.try_lock("a", Mode::PR), Err(Error::WouldBlock)));
    let token = first.token();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| here.lock("a", Mode::EX).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        first.unlock().unwrap();
        let second = waits.join().unwrap();
        assert!(second.token() > token);
        // The next one of the same daemon has a token of its own.
        let token = second.token();
        let waits = scope.spawn(|| also_here.lock("a", Mode::EX).unwrap());
        second.unlock().unwrap();
        let third = waits.join().unwrap();
        assert!(third.token() > token);
        third.unlock().unwrap();
    });
    // Free again, so that it is had at once.
    drop(there.try_lock("a", Mode::EX).unwrap());
    here.lock("a", Mode::NL).unwrap().unlock().unwrap();

    // A failed request says so, and changes nothing.
    let says = |result: Result<(), Error>, text: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    };
    says(here.lock("a", Mode::CW).map(drop), "use PR or PW");
    says(here.request("a", Mode::EX).flags(LockFlags::PERSISTENT).lock().map(drop), "PERSISTENT");
    says(here.who("a").map(drop), "words in remote memory");
    let mut guard = here.lock("a", Mode::EX).unwrap();
    says(guard.convert(Mode::PR).map(drop), "are not converted");
    drop(guard);
    drop(there.lock("a", Mode::EX).unwrap());

    // Four hands: a session does not wait for what only it can give back.
    let mut held = Vec::new();
    let refused = (0..40).find_map(|n| match here.lock(format!("n{n}"), Mode::EX) {
        Ok(guard) => {
            held.push(guard);
            None
        }
        // Two names share one of 64 locks.
        Err(Error::Deadlock) => None,
        Err(e) => Some(e.to_string()),
    });
    assert_eq!(held.len(), 4);
    assert!(refused.clone().is_some_and(|e| e.contains("its 4 hands are busy")), "{refused:?}");

    // Its locks cannot be handed over to another program.
    daemons[0].signal(Signal::USR2);
    daemons[0].wait_for("not restarted");
    assert!(daemons[0].heard("are this process's, in remote memory") > 0);
    drop(held);
    drop((here, also_here, there));
    judged(dir.path(), daemons);
}

#[test]
fn a_lease_ends_a_hold_and_its_client_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::serve(dir.path(), Protocol::ShiftLockS, Duration::from_millis(400));
    let daemons: Vec<_> = (1..=2).map(|node| daemon(dir.path(), node, &table)).collect();
    let [here, there] = [0, 1].map(|i| space(&daemons[i]));
    let guard = here.lock("a", Mode::EX).unwrap();
    let lost = Arc::new(AtomicBool::new(false));
    let told = lost.clone();
    here.on_lost(move |lock| {
        assert_eq!(lock.name.as_bytes(), b"a");
        told.store(true, SeqCst);
    });
    let next = there.lock("a", Mode::EX).unwrap();
    // Told before somebody else was granted, up to how long that takes to be heard.
    eventually("the loss", || lost.load(SeqCst));
    assert!(guard.check().is_err());
    assert!(matches!(guard.unlock(), Err(Error::Lost(_))));
    next.unlock().unwrap();
    here.lock("a", Mode::EX).unwrap().unlock().unwrap();
    for mut daemon in daemons {
        daemon.signal(Signal::TERM);
        daemon.ended();
    }
    judge(dir.path(), &[1, 2].map(|node| dir.path().join(format!("{node}.jsonl.fast"))));
}

#[test]
fn what_a_killed_daemon_holds_is_free_when_the_lease_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let lease = Duration::from_secs(1);
    let table = Table::serve(dir.path(), Protocol::ShiftLockS, lease);
    let mut daemons: Vec<_> = (1..=2).map(|node| daemon(dir.path(), node, &table)).collect();
    let there = space(&daemons[1]);
    let (begin, first) = (Instant::now(), space(&daemons[0]).lock("a", Mode::EX).unwrap());
    daemons[0].child.kill().unwrap();
    let second = there.lock("a", Mode::EX).unwrap();
    assert!(begin.elapsed() >= lease, "granted {:?} after the other", begin.elapsed());
    assert!(second.token() > first.token());
    // Its client's session is over, and the lock with it.
    assert!(first.check().is_err());
}

#[test]
fn without_the_memory_server_all_is_lost_and_requests_wait() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("table");
    // The daemon serves its other clients before the table is there.
    let daemon = Process::serving(dir.path(), 1, &config(1, &path, ""));
    daemon.wait_for("lockspace fast: cannot open");
    let space = space(&daemon);
    let asked = space.request("a", Mode::EX).timeout(Duration::from_millis(50)).lock();
    assert!(matches!(asked, Err(Error::TimedOut)));
    let table = Table::serve(dir.path(), Protocol::ShiftLockS, LONG);
    let guard = space.lock("a", Mode::EX).unwrap();
    daemon.wait_for("by shiftlock-s, with leases of 1m");
    drop(table);
    eventually("the loss", || guard.check().is_err());
    daemon.wait_for("its requests wait until the table can be reached");
    // Not there any more, and then another one.
    let table = std::thread::scope(|scope| {
        let waits = scope.spawn(|| space.lock("a", Mode::EX).unwrap().unlock().unwrap());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        Table::serve(dir.path(), Protocol::Mcs, LONG)
    });
    drop(table);
}

#[test]
fn bad_configurations_and_tables_are_told() {
    let parse = |text: &str| {
        let text = format!(
            "node = 1\n[[nodes]]\nid = 1\naddress = \"127.0.0.1:0\"\n[[lockspace]]\n{text}"
        );
        Config::parse(&text, Path::new("/etc/x/lockify.toml"))
            .map(|c| c.lockspaces[0].table.clone())
    };
    let good = "name = \"s\"\npolicy = \"home\"\nfabric = \"shm\"\ntable = \"t\"\n";
    assert_eq!(parse(good).unwrap(), Some("/etc/x/t".into()));
    for (text, says) in [
        (
            good.replace("policy = \"home\"\n", ""),
            "line 5, column 1: lockspace \"s\": locks in remote memory",
        ),
        (good.replace("table = \"t\"\n", ""), "table is missing"),
        (good.replace("fabric = \"shm\"\n", ""), "write fabric = \"shm\""),
        (good.replace("shm", "smoke"), "expected `shm`"),
        (format!("{good}hands = 0\n"), "hands is 1 to 256"),
        (format!("{good}deadlock_after = \"1s\"\n"), "remove deadlock_after"),
    ] {
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("table");
    std::fs::write(&path, [7; 8192]).unwrap();
    let daemon = Process::serving(dir.path(), 1, &config(1, &path, ""));
    daemon.wait_for("is no segment of a memory server");
    std::fs::remove_file(&path).unwrap();
    let options = Options::new(Protocol::ShiftLockS);
    let settings = Settings { path, locks: 8, clients: 4, mode: 0o600, options };
    let server = Server::start(&settings).unwrap();
    daemon.wait_for("the table has no leases");
    drop(server);
}
