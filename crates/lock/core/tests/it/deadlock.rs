//! The search for deadlocks over several resources and nodes (docs/design/semantics.md 8.3).

use crate::common::{Cluster, MS, name, node};

use lockify_core::*;

const AFTER: Time = 100 * MS;

fn searching(nodes: u32) -> Cluster {
    Cluster::with(nodes, Policy::Directory, |config| config.deadlock_after = Some(AFTER))
}

/// Time for searches: one begins, and none finds more.
fn search(c: &mut Cluster) {
    for _ in 0..6 {
        c.pass(AFTER);
    }
}

struct Crossed {
    c: Cluster,
    held: [LockId; 2],
    waits: [LockId; 2],
}

/// Node 1 holds what node 2 wants, and the other way about; the second wait is younger.
fn crossed(flags: [LockFlags; 2]) -> Crossed {
    let mut c = searching(3);
    let (x, y) = (c.name_at(node(3)), c.name_at(node(2)));
    let held = [c.request(node(1), &x, Mode::EX), c.request(node(2), &y, Mode::EX)];
    c.run();
    for (n, lock) in [(1, held[0]), (2, held[1])] {
        c.granted(node(n), lock);
    }
    let first = c.request_with(node(1), &y, Mode::PR, flags[0]);
    c.run();
    c.now += MS;
    let second = c.request_with(node(2), &x, Mode::EX, flags[1]);
    c.run();
    Crossed { c, held, waits: [first, second] }
}

const NONE: LockFlags = LockFlags::empty();

#[test]
fn the_younger_of_two_crossed_waits_ends() {
    let Crossed { mut c, held, waits } = crossed([NONE; 2]);
    search(&mut c);
    assert_eq!(c.status(node(2), waits[1]), Status::Deadlock);
    assert_eq!(c.completions(node(1), waits[0]), [], "the other one goes on waiting");
    c.unlock(node(2), held[1]).unwrap();
    c.run();
    assert_eq!(c.granted(node(1), waits[0]), Mode::PR);
    let searches: u64 = c.nodes.values().map(|s| s.stats().deadlock_searches).sum();
    assert!(searches >= 1);
    assert_eq!(c.nodes.values().map(|s| s.stats().deadlocks).sum::<u64>(), 1);
}

#[test]
fn without_the_setting_nobody_searches() {
    let mut c = Cluster::new(2, Policy::Directory);
    let a = c.request(node(1), "x", Mode::EX);
    let b = c.request(node(2), "y", Mode::EX);
    c.run();
    c.granted(node(1), a);
    c.granted(node(2), b);
    let a = c.request(node(1), "y", Mode::EX);
    let b = c.request(node(2), "x", Mode::EX);
    c.run();
    search(&mut c);
    assert_eq!(c.completions(node(1), a), []);
    assert_eq!(c.completions(node(2), b), []);
}

/// Waits of before a change count; a longer time is as good as none for a while.
#[test]
fn the_setting_changes_while_locks_wait() {
    let Crossed { mut c, waits, .. } = crossed([NONE; 2]);
    let set = |c: &mut Cluster, after| {
        for n in 1..=3 {
            c.input(node(n), Input::SearchAfter(after)).unwrap();
        }
        c.run();
    };
    for after in [None, Some(1000 * AFTER)] {
        set(&mut c, after);
        search(&mut c);
        assert_eq!(c.completions(node(2), waits[1]), []);
    }
    set(&mut c, Some(AFTER));
    search(&mut c);
    assert_eq!(c.status(node(2), waits[1]), Status::Deadlock);
    assert_eq!(c.completions(node(1), waits[0]), []);
}

#[test]
fn who_is_not_to_be_ended_is_not() {
    let Crossed { mut c, waits, .. } = crossed([NONE, LockFlags::NODLCKWT]);
    search(&mut c);
    for (n, lock) in [(1, waits[0]), (2, waits[1])] {
        assert_eq!(c.completions(node(n), lock), []);
    }
}

#[test]
fn a_lock_that_yields_is_in_nobodys_way() {
    let mut c = searching(2);
    let x = c.request_with(node(1), "x", Mode::EX, LockFlags::NODLCKBLK);
    let y = c.request(node(2), "y", Mode::EX);
    c.run();
    c.granted(node(1), x);
    c.granted(node(2), y);
    let (a, b) = (c.request(node(1), "y", Mode::EX), c.request(node(2), "x", Mode::EX));
    c.run();
    search(&mut c);
    assert_eq!(c.basts(node(1), x), [Mode::EX]);
    c.unlock(node(1), x).unwrap();
    c.run();
    assert_eq!(c.granted(node(2), b), Mode::EX);
    assert_eq!(c.completions(node(1), a), []);
}

/// A conversion keeps its old mode.
#[test]
fn a_conversion_that_is_ended_keeps_what_it_holds() {
    let mut c = searching(2);
    let y = c.request(node(2), "y", Mode::EX);
    let (a, b) = (c.request(node(1), "x", Mode::PR), c.request(node(2), "x", Mode::PR));
    c.run();
    c.granted(node(2), y);
    c.granted(node(1), a);
    c.granted(node(2), b);
    let waits = c.request(node(1), "y", Mode::PR);
    c.run();
    c.now += MS;
    c.convert(node(2), b, Mode::EX).unwrap();
    c.run();
    search(&mut c);
    let done = c.completions(node(2), b);
    assert_eq!((done[0].status, done[0].mode), (Status::Deadlock, Some(Mode::PR)));
    assert_eq!(c.completions(node(1), waits), []);
}

/// The waits of three nodes, each mastered by another, make one circle.
#[test]
fn a_circle_of_three_nodes_is_found() {
    let mut c = searching(4);
    let names: Vec<String> = (1..=3).map(|n| c.name_at(node(n + 1))).collect();
    let held: Vec<LockId> =
        (0..3).map(|i| c.request(node(i as u32 + 1), &names[i], Mode::EX)).collect();
    c.run();
    for (n, lock) in (1..).zip(&held) {
        c.granted(node(n), *lock);
    }
    let mut waits = Vec::new();
    for i in 0..3 {
        waits.push(c.request(node(i as u32 + 1), &names[(i + 1) % 3], Mode::EX));
        c.run();
        c.now += MS;
    }
    search(&mut c);
    assert_eq!(c.status(node(3), waits[2]), Status::Deadlock);
    assert_eq!(c.completions(node(1), waits[0]), []);
    assert_eq!(c.completions(node(2), waits[1]), []);
}

fn lock(c: &mut Cluster, n: u32, client: u64, what: &str, transaction: u64) -> LockId {
    let args = LockArgs { transaction, ..LockArgs::new(name(what), Mode::EX) };
    let id = c.input(node(n), Input::Lock { client: ClientId(client), args }).unwrap().unwrap();
    c.run();
    id
}

/// One transaction holds on one node and waits on another: neither client waits for itself.
#[test]
fn a_transaction_is_one_on_all_nodes() {
    for (transaction, ended) in [(0, false), (7, true)] {
        let mut c = searching(2);
        lock(&mut c, 1, 1, "x", transaction);
        lock(&mut c, 1, 2, "y", 0);
        let old = lock(&mut c, 1, 2, "x", 0);
        c.now += MS;
        let young = lock(&mut c, 2, 3, "y", transaction);
        search(&mut c);
        assert_eq!(c.completions(node(1), old), []);
        let statuses: Vec<Status> =
            c.completions(node(2), young).iter().map(|done| done.status).collect();
        assert_eq!(statuses, if ended { vec![Status::Deadlock] } else { vec![] });
    }
}

/// A release that is on its way is no lock in the way: its owner says so.
#[test]
fn a_release_under_way_is_seen_by_its_owner() {
    let mut c = searching(3);
    // Node 3 masters both names.
    let kept = [c.request(node(3), "x", Mode::NL), c.request(node(3), "y", Mode::NL)];
    c.run();
    for lock in kept {
        c.granted(node(3), lock);
    }
    let (x, y) = (c.request(node(1), "x", Mode::EX), c.request(node(2), "y", Mode::EX));
    c.run();
    c.granted(node(1), x);
    c.granted(node(2), y);
    let (a, b) = (c.request(node(1), "y", Mode::EX), c.request(node(2), "x", Mode::EX));
    c.run();
    // Node 2 gives y up; the master has not heard of it when it is asked what waits.
    c.unlock(node(2), y).unwrap();
    let others = [(1, 2), (2, 1), (1, 3), (3, 1), (3, 2)];
    for _ in 0..4 {
        c.now += AFTER;
        for n in 1..=3 {
            c.input(node(n), Input::Tick).unwrap();
        }
        while others.into_iter().any(|(from, to)| c.deliver(node(from), node(to))) {}
    }
    let searches: u64 = c.nodes.values().map(|s| s.stats().deadlock_searches).sum();
    assert!(searches > 0);
    c.run();
    search(&mut c);
    assert_eq!(c.nodes.values().map(|s| s.stats().deadlocks).sum::<u64>(), 0);
    assert_eq!(c.granted(node(1), a), Mode::EX);
    assert_eq!(c.completions(node(2), b), [], "x is node 1's, and it does not wait any more");
}

/// A deadlock from before a recovery is found after it, at its new masters.
#[test]
fn a_deadlock_outlives_the_death_of_its_master() {
    let Crossed { mut c, waits, .. } = crossed([NONE; 2]);
    c.kill(node(3));
    c.view();
    c.run();
    search(&mut c);
    let ended: Vec<Status> = [(1, waits[0]), (2, waits[1])]
        .into_iter()
        .flat_map(|(n, lock)| c.completions(node(n), lock))
        .map(|done| done.status)
        .collect();
    assert_eq!(ended, [Status::Deadlock]);
}
