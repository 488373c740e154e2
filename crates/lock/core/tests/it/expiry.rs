//! A time-out holds even if a node does not answer or a recovery does not end. A later grant is
//! unlocked, or converted back.

use crate::common::{Cluster, MS, name, node};
use lockify_core::*;

const TIMEOUT: Time = 100 * MS;

/// The client of [`Cluster`]'s own calls.
const CLIENT: ClientId = ClientId(1);

/// Asks for `r` at a node, with a time-out; messages stay on their wires.
fn ask(cluster: &mut Cluster, at: NodeId, tag: u64, mode: Mode) -> LockId {
    // Without blocking notices: with them, policy `claim` would grant it here and now.
    let args = LockArgs { tag, timeout: Some(TIMEOUT), ..LockArgs::new(name("r"), mode) };
    cluster.input(at, Input::Lock { client: ClientId(9), args }).unwrap().unwrap()
}

/// Lets time pass at a node without any message arriving anywhere.
fn wait(cluster: &mut Cluster, at: NodeId, time: Time) {
    cluster.now += time;
    cluster.tick(at);
}

/// The events of the client that asks.
fn told(cluster: &Cluster) -> Vec<(Status, Option<Mode>)> {
    let ends = cluster.told.iter().filter_map(|(_, output)| match output {
        Output::Complete(c) if c.client == ClientId(9) => Some((c.status, c.mode)),
        _ => None,
    });
    ends.collect()
}

const TIMED_OUT: [(Status, Option<Mode>); 1] = [(Status::TimedOut, None)];

/// The time-out passes now, and not before; what follows leaves `locks` locks of `r`.
fn times_out(mut cluster: Cluster, at: NodeId, locks: usize) {
    wait(&mut cluster, at, TIMEOUT - 1);
    assert_eq!(told(&cluster), []);
    wait(&mut cluster, at, 1);
    assert_eq!(told(&cluster), TIMED_OUT);
    cluster.run();
    assert_eq!(told(&cluster), TIMED_OUT, "nothing is told of it any more");
    for space in cluster.nodes.values() {
        let known = space.resource(&name("r")).map_or(0, |r| r.locks.len());
        assert!(known <= locks, "{:#?}", space.resource(&name("r")));
    }
}

fn policies() -> [Policy; 4] {
    let claim = Policy::Claim(ClaimMode::Optimistic);
    [Policy::Directory, claim, Policy::Broadcast, Policy::Home]
}

/// A cluster in which `r` is mastered, and held in PR, at the first node returned; the second one
/// has heard of nothing.
fn held(policy: Policy) -> (Cluster, NodeId, NodeId) {
    let mut cluster = Cluster::new(3, policy);
    cluster.request(node(1), "r", Mode::PR);
    cluster.run();
    let is_master = |n: &u32| {
        let info = cluster.nodes[&node(*n)].resource(&name("r"));
        info.is_some_and(|r| r.master == Some(node(*n)))
    };
    let master = node((1..=3).find(is_master).unwrap());
    let asker = node((2..=3).find(|n| node(*n) != master).unwrap());
    (cluster, master, asker)
}

#[test]
fn while_nobody_has_answered() {
    for policy in policies() {
        let (mut cluster, _, asker) = held(policy);
        ask(&mut cluster, asker, 1, Mode::PR);
        times_out(cluster, asker, 1);
    }
}

#[test]
fn while_the_master_does_not_answer() {
    for policy in policies() {
        let (mut cluster, _, asker) = held(policy);
        // So that the asker knows the master.
        cluster.request(asker, "r", Mode::PR);
        cluster.run();
        ask(&mut cluster, asker, 1, Mode::PR);
        times_out(cluster, asker, 2);
    }
}

#[test]
fn while_a_cancel_cannot_reach_the_master() {
    for policy in policies() {
        let (mut cluster, _, asker) = held(policy);
        ask(&mut cluster, asker, 1, Mode::EX);
        cluster.run();
        assert_eq!(told(&cluster), [], "it waits in the master's queue");
        times_out(cluster, asker, 1);
    }
}

#[test]
fn while_the_grant_is_on_its_way() {
    let (mut cluster, master, asker) = held(Policy::Directory);
    cluster.request(asker, "r", Mode::PR);
    cluster.run();
    ask(&mut cluster, asker, 1, Mode::PR);
    assert!(cluster.deliver(asker, master));
    times_out(cluster, asker, 2);
}

#[test]
fn while_a_recovery_runs() {
    for policy in policies() {
        let (mut cluster, master, asker) = held(policy);
        cluster.request(asker, "r", Mode::PR);
        cluster.run();
        cluster.kill(master);
        cluster.view();
        ask(&mut cluster, asker, 1, Mode::PR);
        times_out(cluster, asker, 2);
    }
}

#[test]
fn while_a_recovery_holds_the_grant_back() {
    let (mut cluster, master, asker) = held(Policy::Directory);
    cluster.request(asker, "r", Mode::PR);
    cluster.run();
    ask(&mut cluster, asker, 1, Mode::PR);
    assert!(cluster.deliver(asker, master));
    cluster.view();
    assert!(cluster.deliver(master, asker));
    times_out(cluster, asker, 2);
}

#[test]
fn what_was_granted_in_time_stays() {
    let (mut cluster, _, asker) = held(Policy::Directory);
    ask(&mut cluster, asker, 1, Mode::PR);
    cluster.run();
    cluster.view();
    wait(&mut cluster, asker, TIMEOUT);
    cluster.run();
    assert_eq!(told(&cluster), [(Status::Granted, Some(Mode::PR))]);
}

#[test]
fn a_late_grant_does_not_invalidate_the_value_block() {
    let (mut cluster, _, asker) = held(Policy::Directory);
    ask(&mut cluster, asker, 1, Mode::PW);
    cluster.run();
    wait(&mut cluster, asker, TIMEOUT);
    cluster.run();
    let invalid = |s: &Lockspace| s.resource(&name("r")).is_some_and(|r| r.lvb_invalid);
    assert!(!cluster.nodes.values().any(invalid));
}

#[test]
fn a_client_that_asks_again_and_again_does_not_fill_the_memory() {
    let (mut cluster, _, asker) = held(Policy::Directory);
    const MOST: usize = 10_000;
    for tag in 0..MOST as u64 + 5 {
        ask(&mut cluster, asker, tag, Mode::EX);
    }
    wait(&mut cluster, asker, TIMEOUT);
    assert_eq!(told(&cluster).len(), MOST, "the others wait for their answers");
    cluster.run();
    assert_eq!(told(&cluster).len(), MOST + 5);
    assert!(told(&cluster).iter().all(|end| *end == TIMED_OUT[0]));
    // And it is as before.
    ask(&mut cluster, asker, 0, Mode::EX);
    wait(&mut cluster, asker, TIMEOUT);
    assert_eq!(told(&cluster).len(), MOST + 6);
}

/// A cluster in which the asker holds `r` in CR, the master something, and the asker's client
/// converts to `mode` with a time-out; messages stay on their wires.
fn converting(policy: Policy, mode: Mode, flags: LockFlags) -> (Cluster, NodeId, NodeId, LockId) {
    let (mut cluster, master, asker) = held(policy);
    let lock = cluster.request(asker, "r", Mode::CR);
    cluster.run();
    cluster.completions(asker, lock);
    convert(&mut cluster, asker, lock, mode, flags).unwrap();
    (cluster, master, asker, lock)
}

fn convert(
    cluster: &mut Cluster,
    at: NodeId,
    lock: LockId,
    mode: Mode,
    flags: LockFlags,
) -> Result<(), Error> {
    let (client, tag, lvb, timeout) = (CLIENT, 7, None, Some(TIMEOUT));
    let args = ConvertArgs { client, lock, tag, mode, flags, lvb, timeout };
    cluster.input(at, Input::Convert(args)).map(drop)
}

const KEPT: [(Status, Option<Mode>); 1] = [(Status::TimedOut, Some(Mode::CR))];

fn ends(cluster: &mut Cluster, at: NodeId, lock: LockId) -> Vec<(Status, Option<Mode>)> {
    cluster.completions(at, lock).iter().map(|c| (c.status, c.mode)).collect()
}

/// The conversion's time-out passes now; then the lock is in CR, for all that anybody knows.
fn stays_in_cr(mut cluster: Cluster, at: NodeId, lock: LockId) -> Cluster {
    wait(&mut cluster, at, TIMEOUT - 1);
    assert_eq!(ends(&mut cluster, at, lock), []);
    wait(&mut cluster, at, 1);
    assert_eq!(ends(&mut cluster, at, lock), KEPT);
    assert_eq!(convert(&mut cluster, at, lock, Mode::PR, NONE), Err(Error::Busy));
    cluster.run();
    assert_eq!(ends(&mut cluster, at, lock), [], "nothing is told of it any more");
    for space in cluster.nodes.values() {
        let known = space.resource(&name("r")).map(|r| r.locks).unwrap_or_default();
        let own: Vec<_> = known.iter().filter(|l| (l.node, l.lock) == (at, lock)).collect();
        assert!(own.iter().all(|l| (l.granted, l.requested) == (Some(Mode::CR), None)), "{own:#?}");
    }
    cluster.assert_sound();
    cluster
}

const NONE: LockFlags = LockFlags::empty();

#[test]
fn a_conversion_while_the_master_does_not_answer() {
    for policy in policies() {
        let (cluster, _, asker, lock) = converting(policy, Mode::PR, NONE);
        let mut cluster = stays_in_cr(cluster, asker, lock);
        // As before: it can be converted, and waited for.
        convert(&mut cluster, asker, lock, Mode::PR, NONE).unwrap();
        cluster.run();
        assert_eq!(ends(&mut cluster, asker, lock), [(Status::Granted, Some(Mode::PR))]);
    }
}

#[test]
fn a_conversion_while_a_cancel_cannot_reach_the_master() {
    for policy in policies() {
        let (mut cluster, _, asker, lock) = converting(policy, Mode::EX, NONE);
        cluster.run();
        stays_in_cr(cluster, asker, lock);
    }
}

#[test]
fn a_conversion_while_the_grant_is_on_its_way() {
    for policy in policies() {
        let (mut cluster, master, asker, lock) = converting(policy, Mode::PR, NONE);
        assert!(cluster.deliver(asker, master));
        let mut cluster = stays_in_cr(cluster, asker, lock);
        // A late grant excludes nobody.
        let other = cluster.request(master, "r", Mode::PR);
        cluster.run();
        assert_eq!(cluster.status(master, other), Status::Granted);
    }
}

#[test]
fn a_conversion_while_a_recovery_runs() {
    for policy in policies() {
        // On its way to the master that dies; in its queue; and granted there.
        for (mode, delivered) in [(Mode::PR, 0), (Mode::EX, 9), (Mode::PR, 1)] {
            let (mut cluster, master, asker, lock) = converting(policy, mode, NONE);
            match delivered {
                9 => cluster.run(),
                n => (0..n).for_each(|_| assert!(cluster.deliver(asker, master))),
            }
            cluster.kill(master);
            cluster.view();
            stays_in_cr(cluster, asker, lock);
        }
    }
}

#[test]
fn a_conversion_begun_in_a_recovery() {
    for policy in policies() {
        let (mut cluster, master, asker) = held(policy);
        let lock = cluster.request(asker, "r", Mode::CR);
        cluster.run();
        cluster.completions(asker, lock);
        cluster.kill(master);
        cluster.view();
        convert(&mut cluster, asker, lock, Mode::EX, NONE).unwrap();
        stays_in_cr(cluster, asker, lock);
    }
}

#[test]
fn a_conversion_while_a_recovery_holds_the_grant_back() {
    let (mut cluster, master, asker, lock) = converting(Policy::Directory, Mode::PR, NONE);
    assert!(cluster.deliver(asker, master));
    cluster.view();
    assert!(cluster.deliver(master, asker));
    stays_in_cr(cluster, asker, lock);
}

#[test]
fn a_lock_whose_conversion_has_timed_out_can_be_unlocked() {
    for policy in policies() {
        for deliver in [false, true] {
            let (mut cluster, master, asker, lock) = converting(policy, Mode::PR, NONE);
            if deliver {
                assert!(cluster.deliver(asker, master));
            }
            wait(&mut cluster, asker, TIMEOUT);
            assert_eq!(ends(&mut cluster, asker, lock), KEPT);
            cluster.unlock(asker, lock).unwrap();
            cluster.run();
            assert_eq!(ends(&mut cluster, asker, lock), [(Status::Unlocked, None)]);
            cluster.assert_sound();
        }
    }
}

#[test]
fn what_was_granted_too_late_writes_no_value_block() {
    let (mut cluster, master, asker) = held(Policy::Directory);
    let lock = cluster.request(asker, "r", Mode::CR);
    cluster.run();
    cluster.completions(asker, lock);
    let holder = cluster.nodes[&master].resource(&name("r")).unwrap().locks;
    let holder = holder.iter().find(|l| l.granted == Some(Mode::PR)).unwrap();
    cluster.unlock(holder.node, holder.lock).unwrap();
    cluster.run();
    convert(&mut cluster, asker, lock, Mode::EX, NONE).unwrap();
    assert!(cluster.deliver(asker, master));
    wait(&mut cluster, asker, TIMEOUT);
    let lvb = Some([9; 32].as_slice().into());
    let flags = UnlockFlags::VALBLK;
    let args = UnlockArgs { client: CLIENT, lock, tag: 8, flags, lvb };
    cluster.input(asker, Input::Unlock(args)).unwrap();
    let other = cluster.request(master, "r", Mode::NL);
    cluster.run();
    let known = cluster.nodes[&master].resource(&name("r")).unwrap();
    assert!(!known.lvb_invalid && known.lvb.is_none_or(|(value, _)| value != [9; 32]));
    assert_eq!(cluster.status(master, other), Status::Granted);
}

/// Only the master knows their result: the mode in force, or the value block, may be another one.
#[test]
fn conversions_that_their_old_mode_does_not_undo_wait_for_the_master() {
    let flags = [LockFlags::CONVDEADLK, LockFlags::ALTCW, LockFlags::IVVALBLK];
    for flags in flags {
        let (mut cluster, _, asker, lock) = converting(Policy::Directory, Mode::PR, flags);
        wait(&mut cluster, asker, TIMEOUT);
        assert_eq!(ends(&mut cluster, asker, lock), [], "{flags:?}");
    }
    let (mut cluster, _, asker) = held(Policy::Directory);
    let lock = cluster.request(asker, "r", Mode::PR);
    cluster.run();
    cluster.completions(asker, lock);
    convert(&mut cluster, asker, lock, Mode::CW, NONE).unwrap();
    wait(&mut cluster, asker, TIMEOUT);
    assert_eq!(ends(&mut cluster, asker, lock), []);
    cluster.run();
    assert_eq!(ends(&mut cluster, asker, lock), [(Status::TimedOut, Some(Mode::PR))]);
}
