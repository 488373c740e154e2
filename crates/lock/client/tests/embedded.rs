//! The node inside the process: alone, and three of them over loopback.

use std::cell::Cell;
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockify_client::protocol::{Answer, Event, LockRequest, Query, Request, Space, UnlockRequest};
use lockify_client::{
    Client, EmbeddedConfig, Error, Guard, Interrupt, Lockspace, Mode, Name, NodeAddress,
    NodeConfig, NodeId, SpaceConfig, StateDir, UnlockFlags, interruptible, protocol, raw,
};
use lockify_core::{ClaimMode, LockArgs, LockFlags, Policy};
use rustix::event::{EventfdFlags, eventfd};

/// Much longer than anything takes; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

fn spaces() -> Vec<(String, SpaceConfig)> {
    vec![("test".into(), SpaceConfig::new(Policy::Claim(ClaimMode::Optimistic)))]
}

fn alone() -> EmbeddedConfig {
    EmbeddedConfig::new(NodeConfig::alone(), spaces())
}

/// Nodes of one cluster in this process, with a short lease.
fn cluster(size: u32) -> Vec<Client> {
    let listeners: Vec<_> = (0..size).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let nodes: Vec<_> = (1..)
        .zip(&listeners)
        .map(|(id, l)| NodeAddress { node: NodeId(id), address: l.local_addr().unwrap() })
        .collect();
    let configs = (1..).zip(listeners).map(|(id, listener)| NodeConfig {
        listener: Some(listener),
        state_dir: StateDir::Memory,
        lease: Duration::from_millis(500),
        ..NodeConfig::new("test", NodeId(id), nodes.clone())
    });
    let clients: Vec<_> = configs
        .map(|node| Client::embedded(EmbeddedConfig::new(node, spaces())).unwrap())
        .collect();
    eventually("all nodes in the lockspace", || {
        let joined = |c: &Client| {
            let status = c.status().unwrap();
            status.nodes.len() == size as usize
                && status
                    .nodes
                    .iter()
                    .all(|n| n.spaces.iter().all(|s| s.running && s.members.len() == size as usize))
        };
        clients.iter().all(joined)
    });
    clients
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "in vain waited for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut cx = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    let end = Instant::now() + PATIENCE;
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        assert!(Instant::now() < end, "the future was not woken");
        std::thread::park_timeout(PATIENCE);
    }
}

#[test]
fn a_node_alone_locks() {
    let space = Client::embedded(alone()).unwrap().lockspace("test").unwrap();
    let mut guard = space.lock("a", Mode::EX).unwrap();
    assert!(guard.token() > 0);
    guard.convert(Mode::PR).unwrap();
    guard.unlock().unwrap();
    block_on(async {
        let guard = space.lock_async("a", Mode::EX).await.unwrap();
        guard.unlock_async().await.unwrap();
    });
    assert_eq!(space.who("a").unwrap().resources.len(), 0);
}

#[test]
fn threads_of_a_process_exclude_each_other() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 300;
    let space = Client::embedded(alone()).unwrap().lockspace("test").unwrap();
    let counter = Arc::new(Mutex::new(0));
    let threads: Vec<_> = (0..THREADS)
        .map(|i| {
            let (space, counter) = (space.clone(), counter.clone());
            std::thread::spawn(move || {
                for _ in 0..ROUNDS {
                    // Blocking and async callers share the driver.
                    let guard = if i % 2 == 0 {
                        space.lock("counter", Mode::EX).unwrap()
                    } else {
                        block_on(space.lock_async("counter", Mode::EX)).unwrap()
                    };
                    *counter.try_lock().expect("two holders") += 1;
                    drop(guard);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(*counter.lock().unwrap(), THREADS * ROUNDS);
}

#[test]
fn a_dropped_guard_releases_though_nobody_calls() {
    let space = Client::embedded(alone()).unwrap().lockspace("test").unwrap();
    let guard = space.lock("a", Mode::EX).unwrap();
    let waiting = std::thread::spawn({
        let space = space.clone();
        move || space.lock("a", Mode::EX).map(|g| g.mode())
    });
    eventually("the waiter in the queue", || space.who("a").unwrap().resources[0].locks.len() == 2);
    drop(guard);
    assert_eq!(waiting.join().unwrap().unwrap(), Mode::EX);
}

/// The check makes calls of the same session, as a signal handler may.
#[test]
fn a_thread_interrupts_its_own_waits() {
    let client = Client::embedded(alone()).unwrap();
    let space = client.lockspace("test").unwrap();
    let held = space.lock("r", Mode::PR).unwrap();
    // Rings three times: its counter is taken down one by one.
    let bell = eventfd(3, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE).unwrap();
    let bell = Arc::new(bell);
    let (asked, calling, rung) = (Cell::new(0), space.clone(), bell.clone());
    let check = move || {
        rustix::io::read(&rung, &mut [0; 8]).unwrap();
        calling.lock("of the check", Mode::EX).unwrap().unlock().unwrap();
        asked.replace(asked.get() + 1) == 2
    };
    let interrupt = Interrupt { bell: Some(bell), until: None, check: Box::new(check) };
    let outcome = interruptible(interrupt, || space.lock("r", Mode::EX).map(drop));
    assert!(matches!(outcome, Err(Error::Interrupted)), "{outcome:?}");
    // The request is gone, and with it the operation that it delayed.
    eventually("a second reader", || space.try_lock("r", Mode::PR).is_ok());

    let mut second = space.lock("r", Mode::PR).unwrap();
    let at_once = Interrupt { bell: None, until: Some(Instant::now()), check: Box::new(|| true) };
    let converted = interruptible(at_once, || second.convert(Mode::EX));
    assert!(matches!(converted, Err(Error::Interrupted)), "{converted:?}");
    assert_eq!(second.mode(), Mode::PR);
    held.unlock().unwrap();
    eventually("the end of the conversion", || second.try_convert(Mode::EX).is_ok());
}

#[test]
fn a_guard_can_be_released_while_it_is_converted() {
    let client = Client::embedded(alone()).unwrap();
    let space = client.lockspace("test").unwrap();
    let (first, mut second) =
        (space.lock("r", Mode::PR).unwrap(), space.lock("r", Mode::PR).unwrap());
    let conversion = second.conversion(Mode::EX).start().unwrap();
    assert_eq!(second.mode(), Mode::PR);
    second.unlock().unwrap();
    assert!(matches!(conversion.wait(), Err(Error::Canceled)));
    let mut first = first;
    let conversion = first.conversion(Mode::EX).start().unwrap();
    first.converted(conversion.wait().unwrap());
    assert_eq!(first.mode(), Mode::EX);
}

#[test]
fn a_closed_session_says_who_closed_it() {
    let client = Client::embedded(alone()).unwrap();
    let space = client.lockspace("test").unwrap();
    let guard = space.lock("r", Mode::EX).unwrap();
    client.close();
    for outcome in [guard.check(), space.lock("s", Mode::EX).map(drop), space.locks().map(drop)] {
        assert!(matches!(outcome, Err(Error::Disconnected(_))), "{outcome:?}");
    }
}

#[test]
fn a_raw_session_needs_no_threads() {
    let mut session = raw::Session::embedded(alone()).unwrap();
    let name = |i: u64| Name::new(format!("n{i}")).unwrap();
    session.submit(Request::Query { id: 1, query: Query::Open("test".into()) });
    let mut events = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    let space = 'opened: loop {
        assert!(Instant::now() < deadline);
        session.poll(Some(PATIENCE), &mut events).unwrap();
        for event in events.drain(..) {
            if let Event::Answer { id: 1, answer: Answer::Opened { space, .. }, .. } = event {
                break 'opened space;
            }
        }
    };
    assert_eq!(space, Space(0));
    let mut locks = Vec::new();
    for tag in 0..100 {
        session.submit(Request::Lock(LockRequest {
            space,
            args: LockArgs {
                tag,
                flags: LockFlags::NOTIFY,
                bast: true,
                ..LockArgs::new(name(tag), Mode::EX)
            },
        }));
    }
    while locks.len() < 100 {
        assert!(Instant::now() < deadline);
        session.poll(Some(PATIENCE), &mut events).unwrap();
        for event in events.drain(..) {
            if let Event::Completed(done) = event {
                assert_eq!(done.mode, Some(Mode::EX));
                let lock = protocol::LockRef { space, life: 0, lock: done.lock };
                locks.push((done.tag, lock));
            }
        }
    }
    for (tag, lock) in &locks {
        let (tag, lock) = (*tag, *lock);
        let flags = UnlockFlags::empty();
        session.submit(Request::Unlock(UnlockRequest { lock, tag, flags, lvb: None }));
    }
    let mut unlocked = 0;
    while unlocked < 100 {
        assert!(Instant::now() < deadline);
        session.poll(Some(PATIENCE), &mut events).unwrap();
        unlocked += events
            .drain(..)
            .filter(|e| matches!(e, Event::Completed(d) if d.mode.is_none()))
            .count();
    }
}

fn lockspaces(clients: &[Client]) -> Vec<Lockspace> {
    clients.iter().map(|c| c.lockspace("test").unwrap()).collect()
}

#[test]
fn nodes_hand_a_contended_lock_over() {
    const ROUNDS: usize = 50;
    let clients = cluster(3);
    let counter = Arc::new(Mutex::new(0_u64));
    let threads: Vec<_> = lockspaces(&clients)
        .into_iter()
        .map(|space| {
            let counter = counter.clone();
            std::thread::spawn(move || {
                for _ in 0..ROUNDS {
                    let guard = space.lock("counter", Mode::EX).unwrap();
                    let mut last = counter.try_lock().expect("two holders");
                    assert!(guard.token() > *last, "the fencing token did not grow");
                    *last = guard.token();
                    drop(last);
                    guard.unlock().unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn a_cached_lock_is_given_up_for_another_node() {
    let clients = cluster(2);
    let spaces = lockspaces(&clients);
    let cache: Arc<Mutex<Option<Guard>>> = Arc::default();
    let cached = cache.clone();
    let guard = spaces[0]
        .request("directory", Mode::EX)
        .on_block(move |_| drop(cached.lock().unwrap().take()))
        .lock()
        .unwrap();
    *cache.lock().unwrap() = Some(guard);
    let other = spaces[1].request("directory", Mode::EX).timeout(PATIENCE).lock().unwrap();
    assert_eq!(other.mode(), Mode::EX);
    assert!(cache.lock().unwrap().is_none());
}

#[test]
fn a_claim_is_provisional_until_it_is_confirmed() {
    let clients = cluster(2);
    let spaces = lockspaces(&clients);
    // Some of the names have their directory on the other node.
    let guards: Vec<_> = (0..20)
        .map(|i| spaces[0].request(format!("new {i}"), Mode::EX).notify().lock().unwrap())
        .collect();
    eventually("all claims confirmed", || guards.iter().all(|g| !g.provisional()));
    assert!(guards.iter().all(|g| g.token() > 0 && !g.is_lost()));
    let e = spaces[1].try_lock("new 3", Mode::PR).unwrap_err();
    assert!(matches!(e, lockify_client::Error::WouldBlock), "{e}");
}

#[test]
fn locks_are_lost_with_the_quorum() {
    let mut clients = cluster(3);
    let spaces = lockspaces(&clients);
    let (lost, losses) = channel();
    spaces[0].on_lost(move |l| lost.send(l.clone()).unwrap());
    let guard = spaces[0].lock("a", Mode::EX).unwrap();
    drop(spaces);
    // Both others go: what remains is no majority.
    clients.truncate(1);
    let loss = losses.recv_timeout(PATIENCE).unwrap();
    assert_eq!(loss.name.as_bytes(), b"a");
    assert!(loss.why.contains("quorum"), "{}", loss.why);
    assert!(guard.is_lost());
    assert!(guard.unlock().is_err());
}

#[test]
fn a_node_that_leaves_takes_nothing_with_it() {
    let mut clients = cluster(3);
    let spaces = lockspaces(&clients);
    let held = spaces[2].lock("a", Mode::EX).unwrap();
    let before = held.token();
    drop(held);
    let _leftover = spaces[2].lock("b", Mode::EX).unwrap();
    let one = spaces[0].clone();
    drop((spaces, _leftover));
    clients.pop();
    let guard = one.request("b", Mode::EX).timeout(PATIENCE).lock().unwrap();
    assert_eq!(guard.mode(), Mode::EX);
    let guard = one.request("a", Mode::EX).timeout(PATIENCE).lock().unwrap();
    assert!(guard.token() > before);
}

#[test]
fn the_whole_cluster_is_asked() {
    let clients = cluster(3);
    let spaces = lockspaces(&clients);
    let holder = spaces[1].lock("a", Mode::PR).unwrap();
    let also = spaces[2].lock("a", Mode::PR).unwrap();
    let waiter = spaces[0].request("a", Mode::EX).lock_async();
    eventually("all three locks seen from everywhere", || {
        spaces.iter().all(|s| {
            let seen = s.who("a").unwrap();
            seen.resources.iter().map(|r| r.locks.len()).max() == Some(3)
        })
    });
    drop((holder, also));
    let guard = block_on(waiter).unwrap();
    assert_eq!(guard.mode(), Mode::EX);
}
