//! Directory mastery with messages that cross a recovery.

use lockify_core::{ClientId, Input, LockArgs, Mode, Policy, Status, UnlockFlags};

use crate::common::{Cluster, MS, name, node};

/// The master forgets a name while the directory node has a request for it that waits for the end of the recovery.
/// If that request ends there, no other is sent to the master.
#[test]
fn a_request_that_is_never_sent_keeps_no_record() {
    for ends in [false, true] {
        let mut cluster = Cluster::with(3, Policy::Directory, |config| config.toss_after = 5);
        let (one, two, three) = (node(1), node(2), node(3));
        let what = cluster.name_at(three);
        let held = cluster.request(two, &what, Mode::EX);
        cluster.run();
        assert_eq!(cluster.granted(two, held), Mode::EX);
        cluster.view();
        // Node 3 is the last to hear that the recovery is over.
        while !cluster.nodes[&two].is_running() {
            for (from, to) in [(one, two), (two, one), (three, one), (two, three), (three, two)] {
                cluster.deliver(from, to);
            }
            if !cluster.nodes[&one].is_running() {
                cluster.deliver(one, three);
            }
        }
        assert!(!cluster.nodes[&three].is_running());
        let timeout = ends.then_some(MS);
        let args = LockArgs { timeout, ..LockArgs::new(name(&what), Mode::PR) };
        let lock = Input::Lock { client: ClientId(1), args };
        let waits = cluster.input(three, lock).unwrap().unwrap();
        cluster.unlock(two, held).unwrap();
        cluster.now += 10;
        cluster.tick(two);
        while cluster.deliver(two, three) {}
        cluster.now += 2 * MS;
        cluster.tick(three);
        cluster.run();
        match ends {
            true => assert_eq!(cluster.status(three, waits), Status::TimedOut),
            false => assert_eq!(cluster.granted(three, waits), Mode::PR),
        }
        let next = cluster.request(one, &what, Mode::PR);
        // Each answer that sends a request elsewhere is one turn.
        for _ in 0..20 {
            for from in [one, two, three] {
                for to in [one, two, three] {
                    cluster.deliver(from, to);
                }
            }
        }
        assert_eq!(cluster.granted(one, next), Mode::PR, "ends: {ends}");
        cluster.assert_sound();
    }
}

/// A former master sends a request away while a later one of the same node asks the directory: the earlier one goes first.
#[test]
fn requests_that_wait_for_the_master_go_in_the_order_of_their_calls() {
    let mut cluster = Cluster::with(4, Policy::Directory, |config| config.toss_after = 5);
    let (one, two, three, four) = (node(1), node(2), node(3), node(4));
    let what = cluster.name_at(one);
    for at in [two, three] {
        let lock = cluster.request(at, &what, Mode::PR);
        cluster.run();
        cluster.unlock(at, lock).unwrap();
        cluster.run();
    }
    // Node 3 still remembers node 2, which has forgotten the name; node 4 masters it now.
    cluster.now += 10;
    cluster.tick(two);
    cluster.run();
    let held = cluster.request(four, &what, Mode::CR);
    cluster.run();
    assert_eq!(cluster.granted(four, held), Mode::CR);
    let given_up = cluster.request(three, &what, Mode::EX);
    cluster.unlock_with(three, given_up, UnlockFlags::FORCE, None).unwrap();
    let earlier = cluster.request(three, &what, Mode::CW);
    cluster.deliver(three, two);
    cluster.deliver(three, two);
    // The first answer makes node 3 forget node 2.
    cluster.deliver(two, three);
    let later = cluster.request(three, &what, Mode::PR);
    cluster.deliver(two, three);
    cluster.run();
    assert_eq!(cluster.granted(three, earlier), Mode::CW);
    assert!(cluster.completions(three, later).is_empty(), "CW and PR exclude each other");
    cluster.unlock(three, earlier).unwrap();
    cluster.run();
    assert_eq!(cluster.granted(three, later), Mode::PR);
}
