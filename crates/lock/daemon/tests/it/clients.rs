//! Local clients of one daemon: locks, guards, notices, deaths.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Alone, PATIENCE, alone_config, block_on, eventually, recording};
use lockify_client::{Client, Error, LockFlags, Mode};
use lockify_daemon::Daemon;

#[test]
fn locks_convert_and_unlock() {
    let alone = Alone::start("");
    let space = alone.client().lockspace("default").unwrap();
    let mut guard = space.lock("a", Mode::EX).unwrap();
    assert_eq!(guard.mode(), Mode::EX);
    let first = guard.token();
    assert!(first > 0);
    guard.convert(Mode::PR).unwrap();
    assert_eq!((guard.mode(), guard.token()), (Mode::PR, 0));
    guard.try_convert(Mode::EX).unwrap();
    assert!(guard.token() > first);
    guard.unlock().unwrap();
    let again = space.lock("a", Mode::PW).unwrap();
    assert!(again.token() > first);
}

#[test]
fn incompatible_locks_exclude_each_other() {
    let alone = Alone::start("");
    let (one, other) = (alone.client(), alone.client());
    let (one, other) = (one.lockspace("default").unwrap(), other.lockspace("default").unwrap());
    let shared = one.lock("a", Mode::PR).unwrap();
    let also = other.try_lock("a", Mode::PR).unwrap();
    assert!(matches!(other.try_lock("a", Mode::EX), Err(Error::WouldBlock)));
    drop((shared, also));
    // Drops do not wait, but later requests of the same session come later.
    let _exclusive = other.lock("a", Mode::EX).unwrap();
    assert!(matches!(one.try_lock("a", Mode::PR), Err(Error::WouldBlock)));
}

#[test]
fn a_dropped_guard_releases() {
    let alone = Alone::start("");
    let (one, other) = (alone.client(), alone.client());
    let (one, other) = (one.lockspace("default").unwrap(), other.lockspace("default").unwrap());
    for _ in 0..100 {
        drop(one.lock("a", Mode::EX).unwrap());
        drop(other.lock("a", Mode::EX).unwrap());
    }
}

#[test]
fn a_waiting_lock_is_handed_over() {
    let alone = Alone::start("");
    let holder = alone.client().lockspace("default").unwrap();
    let waiter = alone.client().lockspace("default").unwrap();
    let guard = holder.lock("a", Mode::EX).unwrap();
    let (asked, asking) = channel();
    let thread = std::thread::spawn(move || {
        asked.send(()).unwrap();
        waiter.lock("a", Mode::EX).map(|g| g.token())
    });
    asking.recv_timeout(PATIENCE).unwrap();
    let who = || holder.who("a").unwrap();
    eventually("the waiter in the queue", || who().resources.iter().any(|r| r.locks.len() == 2));
    let before = guard.token();
    guard.unlock().unwrap();
    assert!(thread.join().unwrap().unwrap() > before);
}

#[test]
fn many_threads_of_one_client_take_turns() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 200;
    let alone = Alone::start("");
    let client = alone.client();
    let counter = Arc::new(Mutex::new(0));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let space = client.lockspace("default").unwrap();
            let counter = counter.clone();
            std::thread::spawn(move || {
                for _ in 0..ROUNDS {
                    let guard = space.lock("counter", Mode::EX).unwrap();
                    // Fails if somebody else is inside.
                    *counter.try_lock().expect("two holders") += 1;
                    guard.unlock().unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(*counter.lock().unwrap(), THREADS * ROUNDS);
}

#[test]
fn a_holder_hears_that_it_blocks() {
    let alone = Alone::start("");
    let (holder, waiter) = (alone.client(), alone.client());
    let (holder, waiter) =
        (holder.lockspace("default").unwrap(), waiter.lockspace("default").unwrap());
    let (notices, noticed) = channel();
    let held = Arc::new(Mutex::new(None));
    let to_release = held.clone();
    let guard = holder
        .request("a", Mode::EX)
        .on_block(move |mode| {
            // Blocking calls are allowed in callbacks.
            let guard: Option<lockify_client::Guard> = to_release.lock().unwrap().take();
            notices.send((mode, guard.map(lockify_client::Guard::unlock))).unwrap();
        })
        .lock()
        .unwrap();
    *held.lock().unwrap() = Some(guard);
    // Nobody calls anything on the holder's side: the background thread hears it.
    let taken = waiter.request("a", Mode::PR).timeout(PATIENCE).lock().unwrap();
    let (mode, unlocked) = noticed.recv_timeout(PATIENCE).unwrap();
    assert_eq!(mode, Mode::PR);
    assert!(matches!(unlocked, Some(Ok(()))), "{unlocked:?}");
    assert_eq!(taken.mode(), Mode::PR);
}

#[test]
fn a_lock_that_does_not_come_in_time_is_given_up() {
    let alone = Alone::start("");
    let (one, other) = (alone.client(), alone.client());
    let (one, other) = (one.lockspace("default").unwrap(), other.lockspace("default").unwrap());
    let mut guard = one.lock("a", Mode::PR).unwrap();
    let shared = other.lock("a", Mode::PR).unwrap();
    let late = other.request("a", Mode::EX).timeout(Duration::from_millis(20)).lock();
    assert!(matches!(late, Err(Error::TimedOut)), "{late:?}");
    let late = guard.conversion(Mode::EX).timeout(Duration::from_millis(20)).convert();
    assert!(matches!(late, Err(Error::TimedOut)), "{late:?}");
    assert_eq!(guard.mode(), Mode::PR);
    drop(shared);
    guard.convert(Mode::EX).unwrap();
}

#[test]
fn async_calls_need_no_runtime() {
    let alone = Alone::start("");
    let space = alone.client().lockspace("default").unwrap();
    block_on(async {
        let mut guard = space.lock_async("a", Mode::EX).await.unwrap();
        guard.convert_async(Mode::CR).await.unwrap();
        assert_eq!(guard.mode(), Mode::CR);
        guard.unlock_async().await.unwrap();
    });
    // Several on their way at once.
    let pending: Vec<_> =
        (0..50).map(|i| space.request(format!("n{i}"), Mode::EX).lock_async()).collect();
    let guards = block_on(async {
        let mut guards = Vec::new();
        for lock in pending {
            guards.push(lock.await.unwrap());
        }
        guards
    });
    assert_eq!(guards.len(), 50);
}

#[test]
fn a_dropped_future_takes_its_request_back() {
    let alone = Alone::start("");
    let (one, other) = (alone.client(), alone.client());
    let (one, other) = (one.lockspace("default").unwrap(), other.lockspace("default").unwrap());
    let guard = one.lock("a", Mode::EX).unwrap();
    let waiting = other.request("a", Mode::EX).lock_async();
    eventually("the waiter in the queue", || one.who("a").unwrap().resources[0].locks.len() == 2);
    drop(waiting);
    eventually("the waiter gone", || one.who("a").unwrap().resources[0].locks.len() == 1);
    // And one that is granted before its future is ever polled.
    let granted = other.request("b", Mode::EX).lock_async();
    eventually("the grant", || one.who("b").unwrap().resources.len() == 1);
    drop(granted);
    drop(one.request("b", Mode::EX).timeout(PATIENCE).lock().unwrap());
    guard.unlock().unwrap();
}

#[test]
fn lock_value_blocks_travel() {
    let alone = Alone::start("");
    let space = alone.client().lockspace("default").unwrap();
    let guard = space.lock("a", Mode::EX).unwrap();
    let keep = space.lock("a", Mode::NL).unwrap();
    let text = *b"0123456789abcdef0123456789abcdef";
    assert_eq!(space.lvb_len(), text.len());
    guard.release().lvb(&text).unlock().unwrap();
    let guard = space.request("a", Mode::PR).read_lvb().lock().unwrap();
    assert_eq!(guard.lvb(), Some(&text[..]));
    assert!(guard.lvb_valid());
    let short = space.lock("b", Mode::EX).unwrap().release().lvb(b"short").unlock();
    assert!(matches!(short, Err(Error::Refused(_))), "{short:?}");
    drop(keep);
}

#[test]
fn a_client_that_ends_leaves_nothing() {
    let alone = Alone::start("");
    let client = alone.client();
    let space = client.lockspace("default").unwrap();
    space.lock("a", Mode::EX).unwrap().keep();
    drop((client, space));
    let other = alone.client().lockspace("default").unwrap();
    let guard = other.request("a", Mode::EX).timeout(PATIENCE).read_lvb().lock().unwrap();
    assert_eq!(guard.mode(), Mode::EX);
}

#[test]
fn calls_that_make_no_sense_are_refused() {
    let alone = Alone::start("");
    let client = alone.client();
    let e = client.lockspace("nowhere").err().unwrap().to_string();
    assert!(e.contains("nowhere") && e.contains("default"), "{e}");
    let space = client.lockspace("default").unwrap();
    assert!(matches!(space.lock("", Mode::EX), Err(Error::Name(_))));
    assert!(matches!(space.lock([0; 65], Mode::EX), Err(Error::Name(_))));
    let unknown = LockFlags::from_bits_retain(1 << 30);
    let e = space.request("a", Mode::EX).flags(unknown).lock().unwrap_err().to_string();
    assert!(e.contains("unknown flags"), "{e}");
    let e = space.request("a", Mode::EX).flags(LockFlags::CONVDEADLK).lock().unwrap_err();
    assert!(e.to_string().contains("conversions only"), "{e}");
}

#[test]
fn tokens_grow_over_restarts_with_other_numbers_of_shards() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = [0; 20];
    for shards in [1, 1, 1, 3, 2, 3, 1, 4] {
        let config = alone_config(dir.path(), &format!("shards = {shards}"));
        let daemon = Daemon::start(&config, &recording().0).unwrap();
        let client = Client::connect(&config.socket).unwrap();
        let space = client.lockspace("default").unwrap();
        for (i, last) in last.iter_mut().enumerate() {
            let token = space.lock(format!("n{i}"), Mode::EX).unwrap().token();
            assert!(token > *last, "n{i} with {shards} shards: {token} after {last}");
            *last = token;
        }
        drop(daemon);
    }
}

#[test]
fn shards_share_the_names() {
    let alone = Alone::start("shards = 3");
    let (one, other) = (alone.client(), alone.client());
    let (one, other) = (one.lockspace("default").unwrap(), other.lockspace("default").unwrap());
    let guards: Vec<_> = (0..60).map(|i| one.lock(format!("n{i}"), Mode::EX).unwrap()).collect();
    for i in 0..60 {
        assert!(matches!(other.try_lock(format!("n{i}"), Mode::EX), Err(Error::WouldBlock)));
    }
    let seen = other.locks().unwrap();
    assert_eq!(seen.resources.len(), 60);
    drop(guards);
}
