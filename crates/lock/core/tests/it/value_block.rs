//! The copy of the lock value block that an owner keeps: after its master's death it becomes the block
//! (docs/design/semantics.md 9.7).

use lockify_core::*;

use crate::common::{Cluster, node};

const SEVEN: [u8; 32] = [7; 32];
const NINE: [u8; 32] = [9; 32];

/// Node 1 holds a lock in `mode`. The master is node 2, which has no other lock of the name.
fn held(policy: Policy, mode: Mode) -> (Cluster, String, LockId) {
    let mut cluster = Cluster::new(3, policy);
    let resource = cluster.name_at(node(2));
    let first = cluster.request(node(2), &resource, Mode::NL);
    cluster.run();
    let lock = cluster.request(node(1), &resource, mode);
    cluster.run();
    assert_eq!(cluster.granted(node(1), lock), mode);
    cluster.unlock(node(2), first).unwrap();
    cluster.run();
    (cluster, resource, lock)
}

fn convert(cluster: &mut Cluster, lock: LockId, mode: Mode, flags: LockFlags, value: &[u8]) {
    let value = flags.contains(LockFlags::VALBLK).then_some(value);
    cluster.convert_with(node(1), lock, mode, flags, value).unwrap();
    cluster.run();
    assert_eq!(cluster.granted(node(1), lock), mode);
}

fn master_dies(cluster: &mut Cluster) {
    cluster.kill(node(2));
    cluster.view();
    cluster.run();
}

/// The block as node 3 reads it, and VALNOTVALID.
fn read(cluster: &mut Cluster, resource: &str) -> (Option<Vec<u8>>, bool) {
    let reader = cluster.request_with(node(3), resource, Mode::NL, LockFlags::VALBLK);
    cluster.run();
    let done = cluster.completions(node(3), reader);
    assert_eq!((done.len(), done[0].status), (1, Status::Granted));
    let invalid = done[0].status_flags.contains(SbFlags::VALNOTVALID);
    (done[0].lvb.as_deref().map(<[u8]>::to_vec), invalid)
}

/// PW to EX reads, and brings a value all the same. It reads nothing if there is no block.
#[test]
fn a_value_brought_by_a_conversion_that_reads_is_not_the_block() {
    for policy in Policy::ALL {
        let (mut c, resource, lock) = held(policy, Mode::PW);
        convert(&mut c, lock, Mode::EX, LockFlags::VALBLK, &SEVEN);
        assert_eq!(read(&mut c, &resource), (None, false), "{policy:?}");
        master_dies(&mut c);
        assert_eq!(read(&mut c, &resource), (None, false), "{policy:?}");
    }
}

#[test]
fn a_value_that_a_conversion_wrote_is_the_block() {
    for policy in Policy::ALL {
        let (mut c, resource, lock) = held(policy, Mode::EX);
        convert(&mut c, lock, Mode::EX, LockFlags::VALBLK, &SEVEN);
        assert_eq!(read(&mut c, &resource), (Some(SEVEN.to_vec()), false), "{policy:?}");
        master_dies(&mut c);
        assert_eq!(read(&mut c, &resource), (Some(SEVEN.to_vec()), false), "{policy:?}");
    }
}

#[test]
fn what_a_conversion_invalidated_stays_invalid() {
    for policy in Policy::ALL {
        let (mut c, resource, lock) = held(policy, Mode::EX);
        convert(&mut c, lock, Mode::EX, LockFlags::VALBLK, &SEVEN);
        convert(&mut c, lock, Mode::EX, LockFlags::IVVALBLK, &SEVEN);
        assert_eq!(read(&mut c, &resource), (Some(SEVEN.to_vec()), true), "{policy:?}");
        master_dies(&mut c);
        assert_eq!(read(&mut c, &resource), (Some(SEVEN.to_vec()), true), "{policy:?}");
    }
}

/// A forced unlock waits for a claim. Meanwhile the conversion is granted whose place it took.
#[test]
fn a_grant_does_not_use_up_the_value_of_an_unlock_that_waits() {
    let (mut c, resource, lock) = held(Policy::Claim(ClaimMode::Optimistic), Mode::PW);
    let reader = c.request(node(3), &resource, Mode::CR);
    c.run();
    assert_eq!(c.granted(node(3), reader), Mode::CR);
    c.convert(node(1), lock, Mode::EX).unwrap();
    c.run();
    assert_eq!(c.completions(node(1), lock), []);
    let claimed = c.name_at(node(3));
    c.request_with(node(1), &claimed, Mode::EX, LockFlags::NOTIFY);
    let flags = UnlockFlags::FORCE | UnlockFlags::VALBLK;
    c.unlock_with(node(1), lock, flags, Some(&NINE)).unwrap();
    assert_eq!(c.nodes[&node(1)].stats().barrier_waits, 1);
    c.unlock(node(3), reader).unwrap();
    assert!(c.deliver(node(3), node(2)), "the reader's unlock");
    assert!(c.deliver(node(2), node(1)), "the grant");
    assert_eq!(c.nodes[&node(1)].unsettled_claims(), 1);
    let keeps = c.request(node(2), &resource, Mode::NL);
    c.run();
    assert_eq!(c.status(node(1), lock), Status::Unlocked);
    assert_eq!(c.granted(node(2), keeps), Mode::NL);
    assert_eq!(read(&mut c, &resource), (Some(NINE.to_vec()), false));
}
