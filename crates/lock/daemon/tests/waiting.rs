//! A waiting client sleeps until it is woken. Counted are the times that its threads have been put
//! to sleep by the kernel, or have been woken: as many as on a slow machine, or fewer.

// This test looks at all threads of its process: in `it`, others would have theirs there.
#[path = "it/common/mod.rs"]
mod common;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use common::{Alone, block_on, eventually};
use lockify_client::{
    Client, EmbeddedConfig, Error, Interrupt, Lockspace, Mode, NodeConfig, SpaceConfig,
    interruptible,
};
use lockify_core::{ClaimMode, Policy};
use rustix::event::{EventfdFlags, eventfd};

/// How long waits are watched: a thread that looks every 100 ms would look twenty times.
const WATCHED: Duration = Duration::from_secs(2);

/// How often a thread may wake meanwhile: earlier work may still end.
const MOST: u64 = 3;

/// The same of one that drives a node, which has leases to look after.
const OF_A_NODE: u64 = 20;

/// A thread of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Task(i32);

impl Task {
    fn here() -> Task {
        Task(rustix::thread::gettid().as_raw_nonzero().get())
    }

    /// Threads of this name.
    fn named(name: &str) -> Vec<Task> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let ids = tasks.filter_map(|task| task.unwrap().file_name().to_str()?.parse().ok());
        ids.map(Task).filter(|task| task.read("comm").trim() == name).collect()
    }

    fn read(self, file: &str) -> String {
        // A thread that has ended is nobody that wakes.
        std::fs::read_to_string(format!("/proc/self/task/{}/{file}", self.0)).unwrap_or_default()
    }

    /// How often it has left the processor.
    fn switches(self) -> u64 {
        let status = self.read("status");
        let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
        counts.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok()).sum()
    }
}

/// Fails if one of these threads wakes while nothing happens.
fn sleep_soundly(tasks: &[Task], most: u64) {
    // Late events are over when nobody has moved for a while.
    let all = || tasks.iter().map(|task| task.switches()).collect::<Vec<_>>();
    let mut before = all();
    eventually("rest", || {
        std::thread::sleep(Duration::from_millis(100));
        let now = all();
        std::mem::replace(&mut before, now.clone()) == now
            || before.iter().zip(&now).all(|(b, n)| n - b <= most)
    });
    let before = all();
    std::thread::sleep(WATCHED);
    for ((task, before), after) in tasks.iter().zip(before).zip(all()) {
        let woken = after - before;
        assert!(woken <= most, "{} woke {woken} times", task.read("comm").trim());
    }
}

/// Waits on a thread of its own, which says who it is.
fn waiting(
    wait: impl FnOnce() -> Result<(), Error> + Send + 'static,
) -> (Task, JoinHandle<Result<(), Error>>) {
    let (tell, told) = channel();
    let thread = std::thread::spawn(move || {
        tell.send(Task::here()).unwrap();
        wait()
    });
    (told.recv().unwrap(), thread)
}

fn lock(space: &Lockspace) -> impl FnOnce() -> Result<(), Error> + Send + use<> {
    let space = space.clone();
    move || space.lock("r", Mode::EX)?.unlock()
}

/// Locks of which that many wait.
fn queue(space: &Lockspace, length: usize) {
    eventually("the queue", || {
        space.who("r").unwrap().resources.first().is_some_and(|r| r.locks.len() == length + 1)
    });
}

fn background() -> Vec<Task> {
    Task::named("lockify-client")
}

/// These tests look at all threads of this process: one after the other.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn clients_that_wait_sleep_and_so_do_holders() {
    let _alone = alone();
    let daemon = Alone::start("");
    let open = || daemon.client().lockspace("default").unwrap();
    let holder = open();
    let held = holder.lock("r", Mode::EX).unwrap();
    let (mut tasks, mut threads): (Vec<_>, Vec<_>) = (0..8).map(|_| waiting(lock(&open()))).unzip();
    // One session of several threads.
    let shared = open();
    for _ in 0..4 {
        let (task, thread) = waiting(lock(&shared));
        tasks.push(task);
        threads.push(thread);
    }
    queue(&holder, 12);
    tasks.extend(background());
    sleep_soundly(&tasks, MOST);
    held.unlock().unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
}

#[test]
fn tasks_that_wait_sleep() {
    let _alone = alone();
    let daemon = Alone::start("");
    let space = daemon.client().lockspace("default").unwrap();
    let held = space.lock("r", Mode::EX).unwrap();
    let asked = daemon.client().lockspace("default").unwrap();
    let (task, thread) = waiting(move || block_on(asked.lock_async("r", Mode::EX)).map(drop));
    queue(&space, 1);
    sleep_soundly(&[vec![task], background()].concat(), MOST);
    held.unlock().unwrap();
    thread.join().unwrap().unwrap();
}

/// A thread that rings, when told.
fn bell() -> (Arc<OwnedFd>, Sender<()>) {
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
    let (ring, rung) = channel();
    let rings = bell.clone();
    std::thread::spawn(move || {
        for () in rung {
            rustix::io::write(&rings, &1_u64.to_ne_bytes()).unwrap();
        }
    });
    (bell, ring)
}

fn interruptibly(space: &Lockspace, bell: &Arc<OwnedFd>) -> Result<(), Error> {
    let heard = bell.clone();
    let check = move || rustix::io::read(&heard, &mut [0; 8]).is_ok();
    let interrupt = Interrupt { bell: Some(bell.clone()), until: None, check: Box::new(check) };
    interruptible(interrupt, || space.lock("r", Mode::EX)?.unlock())
}

/// The bell ends the wait of one that drives the session, and of one that does not.
fn bells_end_waits(holder: &Lockspace, shared: &Lockspace, most: u64) {
    let held = holder.lock("r", Mode::EX).unwrap();
    let (mut tasks, mut rest) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let ((bell, ring), space) = (bell(), shared.clone());
        let (task, thread) = waiting(move || interruptibly(&space, &bell));
        tasks.push(task);
        rest.push((ring, thread));
    }
    queue(holder, 2);
    sleep_soundly(&[tasks, background()].concat(), most);
    for (ring, thread) in rest {
        ring.send(()).unwrap();
        assert!(matches!(thread.join().unwrap(), Err(Error::Interrupted)));
    }
    held.unlock().unwrap();
}

#[test]
fn interruptible_waits_sleep_until_the_bell_rings() {
    let _alone = alone();
    let daemon = Alone::start("");
    let open = || daemon.client().lockspace("default").unwrap();
    bells_end_waits(&open(), &open(), MOST);
}

/// Somebody reads the session when those who have waited are done, whatever they did meanwhile.
#[test]
fn the_last_one_that_waits_hands_the_session_over() {
    let _alone = alone();
    let daemon = Alone::start("");
    let open = || daemon.client().lockspace("default").unwrap();
    let (holder, shared) = (open(), open());
    let (tell, told) = channel();
    let blocked = move |mode| tell.send(mode).unwrap();
    let guard = shared.request("third", Mode::EX).on_block(blocked).lock().unwrap();
    let names = ["first", "second"];
    let held = names.map(|name| holder.lock(name, Mode::EX).unwrap());
    let (keep, kept) = channel();
    let waiting = names.map(|name| {
        let (space, keep) = (shared.clone(), keep.clone());
        let take = move || {
            keep.send(space.lock(name, Mode::EX)?).unwrap();
            Ok(())
        };
        let (_, thread) = waiting(take);
        let queued = || holder.who(name).unwrap().resources[0].locks.len() == 2;
        eventually("the queue", queued);
        thread
    });
    sleep_soundly(&background(), MOST);
    // The one that reads the session ends first, the one that follows it then.
    for (guard, thread) in held.into_iter().zip(waiting) {
        guard.unlock().unwrap();
        thread.join().unwrap().unwrap();
    }
    // Nobody calls any more.
    let asks = open();
    let asking = std::thread::spawn(move || asks.lock("third", Mode::PR)?.unlock());
    assert_eq!(told.recv_timeout(common::PATIENCE), Ok(Mode::PR));
    guard.unlock().unwrap();
    asking.join().unwrap().unwrap();
    drop(kept);
}

/// The thread that drives the node's engine wakes for the node's own sake, a few times a second: no
/// other thread does.
#[test]
fn an_embedded_node_sleeps_while_its_clients_wait() {
    let _alone = alone();
    let config = SpaceConfig::new(Policy::Claim(ClaimMode::Optimistic));
    let config = EmbeddedConfig::new(NodeConfig::alone(), vec![("test".into(), config)]);
    let client = Client::embedded(config).unwrap();
    let space = client.lockspace("test").unwrap();
    let held = space.lock("r", Mode::EX).unwrap();
    let (tasks, threads): (Vec<_>, Vec<_>) = (0..4).map(|_| waiting(lock(&space))).unzip();
    queue(&space, 4);
    sleep_soundly(&[tasks, background()].concat(), OF_A_NODE);
    held.unlock().unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
    bells_end_waits(&space, &space, OF_A_NODE);
}
