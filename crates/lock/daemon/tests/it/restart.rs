//! Daemons that become another program, with real processes: no lock is lost, or it is said which.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::process::{ALONE, Process, SERVES, judge, nodes};
use crate::common::{PATIENCE, as_user, eventually, may_be_others, open_to_all, programs};
use lockify_client::{Client, Error, Guard, LockFlags, Lockspace, Mode, NodeId};
use lockify_session::protocol::Refusal;
use rustix::process::Signal;

/// A daemon with a program file of its own, which can be replaced.
struct Replaceable {
    process: Process,
    program: PathBuf,
    history: PathBuf,
}

impl Replaceable {
    fn start(dir: &Path, node: u32, config: &str) -> Replaceable {
        let (program, history) =
            (dir.join(format!("lockifyd{node}")), dir.join(format!("history{node}")));
        install(Path::new(env!("CARGO_BIN_EXE_lockifyd")), &program);
        let mut command = Command::new(&program);
        command.stdin(Stdio::null());
        let config = format!("history = {history:?}\n{config}");
        let process = Process::spawn(command, dir, node, &config);
        process.wait_for(SERVES);
        Replaceable { process, program, history }
    }

    fn alone(dir: &Path, config: &str) -> Replaceable {
        Replaceable::start(dir, 1, &format!("{config}\n{ALONE}"))
    }

    fn space(&self) -> Lockspace {
        self.client().lockspace("default").unwrap()
    }

    /// Restarts it as an administrator does.
    fn restart(&self) {
        self.client().restart().unwrap();
    }

    /// Puts a script where its program is.
    fn replace(&self, mode: u32, script: &str) {
        let new = self.program.with_extension("new");
        programs::script(&new, script, mode);
        std::fs::rename(&new, &self.program).unwrap();
    }

    fn stop(&mut self) {
        self.signal(Signal::TERM);
        self.process.ended();
    }
}

impl Deref for Replaceable {
    type Target = Process;
    fn deref(&self) -> &Process {
        &self.process
    }
}

fn install(from: &Path, to: &Path) {
    if std::fs::hard_link(from, to).is_err() {
        programs::copy(from, to);
    }
}

/// The last state that holders of a name under EX have seen: its token, and the count in its value
/// block.
#[derive(Default)]
struct Last {
    token: AtomicU64,
    count: AtomicU64,
}

/// Takes and gives back locks until it is told to stop; returns how often. Under EX, it compares the
/// fencing token with the last one, and counts in the value block.
fn work(space: &Lockspace, names: &[Last], stop: &AtomicBool, number: usize) -> u64 {
    let mut done = 0;
    while !stop.load(Ordering::SeqCst) {
        let at = (done as usize + number) % names.len();
        let (name, last) = (format!("r{at}"), &names[at]);
        if done % 3 == 2 {
            drop(space.request(name, Mode::PR).timeout(4 * PATIENCE).lock().unwrap());
        } else {
            let request = space.request(name, Mode::EX).read_lvb();
            let guard = request.timeout(4 * PATIENCE).lock().unwrap();
            let before = last.token.swap(guard.token(), Ordering::SeqCst);
            assert!(before < guard.token(), "token {} after {before}", guard.token());
            let mut block = guard.lvb().map_or_else(|| vec![0; space.lvb_len()], <[u8]>::to_vec);
            let count = u64::from_le_bytes(*block.first_chunk().unwrap());
            assert_eq!(
                last.count.fetch_add(1, Ordering::SeqCst),
                count,
                "the value block of r{at}"
            );
            block[..8].copy_from_slice(&(count + 1).to_le_bytes());
            guard.release().lvb(&block).unlock().unwrap();
        }
        // Something new, which is claimed.
        let new = space.request(format!("new {number} {done}"), Mode::EX).notify();
        new.timeout(4 * PATIENCE).lock().unwrap().unlock().unwrap();
        done += 1;
    }
    done
}

#[test]
fn daemons_of_a_cluster_restart_under_load_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    // The lease is long: the machine may pause the paused process, too.
    let config = format!("lease = \"20s\"\n{}", nodes(3));
    let mut daemons: Vec<_> =
        (1..=3).map(|node| Replaceable::start(dir.path(), node, &config)).collect();
    let pids: Vec<u32> = daemons.iter().map(|d| d.child.id()).collect();
    // Held throughout, by a client of each node; and a waiter for one of them on another node.
    let spaces: Vec<Lockspace> = daemons.iter().map(Replaceable::space).collect();
    let lost = Arc::new(AtomicBool::new(false));
    for space in &spaces {
        let lost = lost.clone();
        space.on_lost(move |_| lost.store(true, Ordering::SeqCst));
    }
    let held: Vec<Guard> = (0..3)
        .flat_map(|i| {
            let own = spaces[i].lock(format!("held {i}"), Mode::EX).unwrap();
            let shared = spaces[i].lock("shared", Mode::PR).unwrap();
            [own, shared]
        })
        .collect();
    let waiter = std::thread::spawn({
        let space = spaces[1].clone();
        move || space.request("held 0", Mode::EX).timeout(4 * PATIENCE).lock().map(|g| g.token())
    });
    eventually("the waiter in the queue", || {
        let seen = spaces[2].who("held 0").unwrap();
        seen.resources.iter().map(|r| r.locks.len()).max() == Some(2)
    });
    let views = |daemons: &[Replaceable]| -> Vec<usize> {
        daemons.iter().map(|d| d.heard("view ")).collect()
    };
    let before = views(&daemons);
    let names: Arc<Vec<Last>> = Arc::new((0..5).map(|_| Last::default()).collect());
    // A value block lasts as long as somebody has a lock.
    let lasting: Vec<Guard> =
        (0..names.len()).map(|i| spaces[1].lock(format!("r{i}"), Mode::NL).unwrap()).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..6)
        .map(|number| {
            let (names, stop) = (names.clone(), stop.clone());
            let space = daemons[number % 3].space();
            std::thread::spawn(move || work(&space, &names, &stop, number))
        })
        .collect();
    for round in 0..9 {
        let daemon = &daemons[[0, 1, 2, 1, 0, 0, 2, 1, 1][round]];
        let before = daemon.heard("went on with all");
        // The others have heard of the last one's return by then, or not.
        std::thread::sleep(std::time::Duration::from_millis(20 * (round as u64 % 4)));
        daemon.restart();
        eventually("the new program's word", || daemon.heard("went on with all") > before);
        assert!(!lost.load(Ordering::SeqCst) && held.iter().all(|g| g.check().is_ok()));
    }
    stop.store(true, Ordering::SeqCst);
    assert!(workers.into_iter().all(|w| w.join().unwrap() > 0));
    // Others cannot have the held lock, and the waiter gets it at its release.
    for i in 0..3 {
        let other = &spaces[(i + 1) % 3];
        assert!(matches!(other.try_lock(format!("held {i}"), Mode::PR), Err(Error::WouldBlock)));
    }
    let mut held = held.into_iter();
    let first = held.next().unwrap();
    let token = first.token();
    first.unlock().unwrap();
    assert!(waiter.join().unwrap().unwrap() > token);
    held.chain(lasting).for_each(|guard| guard.unlock().unwrap());
    for (daemon, pid) in daemons.iter().zip(pids) {
        assert_eq!(daemon.child.id(), pid);
        assert_eq!(daemon.heard("lost"), 0, "{:?}", daemon.said.lock().unwrap());
    }
    assert_eq!(views(&daemons), before, "nobody was taken for dead");
    drop(spaces);
    daemons.iter_mut().for_each(Replaceable::stop);
    judge(dir.path(), daemons.iter().map(|d| &d.history));
}

#[test]
fn every_shard_goes_along() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Replaceable::alone(dir.path(), "shards = 3");
    let space = daemon.space();
    let held: Vec<Guard> =
        (0..100).map(|i| space.lock(format!("r{i}"), Mode::EX).unwrap()).collect();
    let other = daemon.space();
    let waiter = std::thread::spawn(move || {
        other.request("r7", Mode::EX).timeout(4 * PATIENCE).lock().map(drop)
    });
    eventually("the waiter", || space.who("r7").unwrap().resources[0].locks.len() == 2);
    for _ in 0..3 {
        daemon.restart();
    }
    assert!(held.iter().all(|g| g.check().is_ok()));
    let third = daemon.space();
    for i in 0..100 {
        assert!(matches!(third.try_lock(format!("r{i}"), Mode::PR), Err(Error::WouldBlock)));
    }
    drop(held);
    waiter.join().unwrap().unwrap();
    eventually("three times", || daemon.heard("went on with all 100 locks") == 3);
}

#[test]
fn signals_in_a_hurry_end_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = Replaceable::alone(dir.path(), "");
    let space = daemon.space();
    let guard = space.lock("a", Mode::EX).unwrap();
    for _ in 0..20 {
        daemon.signal(Signal::USR2);
        daemon.signal(Signal::HUP);
        std::thread::sleep(std::time::Duration::from_millis(3));
    }
    daemon.wait_for("went on with all 1 locks");
    guard.unlock().unwrap();
    daemon.stop();
    assert!(!daemon.socket.exists());
}

#[test]
fn a_program_that_cannot_go_on_is_not_started() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Replaceable::alone(dir.path(), "");
    let space = daemon.space();
    let guard = space.lock("a", Mode::EX).unwrap();
    let refused = |mode: u32, script: &str, why: &str| {
        daemon.replace(mode, script);
        let error = daemon.client().restart().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        daemon.wait_for(why);
        guard.check().unwrap();
        assert!(matches!(daemon.space().try_lock("a", Mode::PR), Err(Error::WouldBlock)));
    };
    refused(0o644, "no program", "cannot be tried");
    refused(0o755, "#!/bin/sh\nexit 0\n", "says nothing");
    refused(0o755, "#!/bin/sh\necho of another version >&2\nexit 1\n", "of another version");
    // It says that it can, and is gone when it is to go on.
    refused(
        0o755,
        &format!("#!/bin/sh\nrm $0\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_lockifyd")),
        "cannot be run",
    );
    guard.unlock().unwrap();
}

#[test]
fn a_configuration_that_does_not_fit_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Replaceable::alone(dir.path(), "");
    let path = dir.path().join("1.toml");
    let before = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("weight = 2\n{before}")).unwrap();
    let error = daemon.client().restart().unwrap_err().to_string();
    assert!(error.contains("`weight`"), "{error}");
    std::fs::write(&path, before).unwrap();
    daemon.restart();
}

#[test]
fn what_cannot_be_taken_is_lost_and_listed() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Replaceable::alone(dir.path(), "");
    let client = daemon.client();
    let space = client.lockspace("default").unwrap();
    let losses = Arc::new(Mutex::new(Vec::new()));
    let sink = losses.clone();
    space.on_lost(move |lost| sink.lock().unwrap().push((lost.name, lost.mode)));
    let a = space.lock("a", Mode::EX).unwrap();
    let b = space.lock("b", Mode::PR).unwrap();
    // Takes away the first state, which has the sockets of a shard; then continues as usual.
    let take = "[ -n \"$LOCKIFY_RESTART_CHECK\" ] || dd bs=64 count=1 of=/dev/null 2>/dev/null";
    let program = env!("CARGO_BIN_EXE_lockifyd");
    daemon.replace(0o755, &format!("#!/bin/sh\n{take}\nexec {program} \"$@\"\n"));
    assert!(matches!(client.restart(), Err(Error::Disconnected(_))));
    eventually("the losses", || losses.lock().unwrap().len() == 2);
    let mut told = losses.lock().unwrap().clone();
    told.sort();
    let told: Vec<_> = told.iter().map(|(name, mode)| (name.to_string(), *mode)).collect();
    assert_eq!(told, [("a".to_owned(), Mode::EX), ("b".to_owned(), Mode::PR)]);
    assert!(a.is_lost() && b.is_lost());
    let pid = std::process::id();
    daemon.wait_for("cannot go on where the program before has stopped");
    daemon.wait_for(&format!("lost: EX \"a\" in lockspace default, of process {pid}"));
    daemon.wait_for(&format!("lost: PR \"b\" in lockspace default, of process {pid}"));
    // The node has begun anew, in the same process.
    eventually("the new daemon", || Client::connect(&daemon.socket).is_ok());
    drop(daemon.space().lock("a", Mode::EX).unwrap());
}

/// The locks of gone clients still count as their user's afterwards.
#[test]
fn locks_that_outlive_their_session_are_still_counted() {
    if !may_be_others() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    open_to_all(dir.path());
    let config = "socket_mode = \"666\"\nlimits.max_locks_per_user = 2";
    let daemon = Replaceable::alone(dir.path(), config);
    let leave = |name: u8| {
        as_user(64_001, 1, &[], || {
            let request = daemon.space().request([name], Mode::PR);
            request.flags(LockFlags::PERSISTENT).lock().map(Guard::keep)
        })
    };
    let is_the_limit =
        |result| matches!(result, Err(Error::Refused(Refusal::TooManyLocksOfUser(2))));
    (1..=2).for_each(|name| leave(name).unwrap());
    for _ in 0..2 {
        daemon.restart();
        assert!(is_the_limit(leave(3)));
    }
    daemon.space().purge(NodeId(1), None).unwrap();
    (1..=2).for_each(|name| leave(name).unwrap());
    assert!(is_the_limit(leave(3)));
}
