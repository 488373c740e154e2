//! The copy of the lock value block that an owner keeps: after its master's death it becomes the block
//! (docs/design/semantics.md 9.7).

use lockify_core::*;

use crate::common::{Cluster, MS, name, node};

const SEVEN: [u8; 32] = [7; 32];
const NINE: [u8; 32] = [9; 32];
const BATCH_AGE: Time = 50 * MS;

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
    master_dies_at(cluster, node(2));
}

fn master_dies_at(cluster: &mut Cluster, master: NodeId) {
    cluster.kill(master);
    cluster.view();
    cluster.run();
}

/// The block as node 3 reads it, and VALNOTVALID.
fn read(cluster: &mut Cluster, resource: &str) -> (Option<Vec<u8>>, bool) {
    read_at(cluster, node(3), resource)
}

fn read_at(cluster: &mut Cluster, at: NodeId, resource: &str) -> (Option<Vec<u8>>, bool) {
    let reader = cluster.request_with(at, resource, Mode::NL, LockFlags::VALBLK);
    cluster.run();
    let done = cluster.completions(at, reader);
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

/// The home moves away and comes back. Somebody has written meanwhile.
#[test]
fn an_earlier_home_forgets_that_the_block_was_invalid() {
    let mut c = Cluster::new(4, Policy::Home);
    let resource = (0..).map(|i| format!("r{i}")).find(|r| home(r, 4) == 4 && home(r, 3) == 1);
    let resource = resource.unwrap();
    let absent = c.nodes.remove(&node(4)).unwrap();
    c.view();
    c.run();
    c.request(node(1), &resource, Mode::NL);
    let lock = c.request(node(2), &resource, Mode::EX);
    c.run();
    c.convert_with(node(2), lock, Mode::EX, LockFlags::VALBLK, Some(&SEVEN)).unwrap();
    c.run();
    c.convert_with(node(2), lock, Mode::EX, LockFlags::IVVALBLK, None).unwrap();
    c.run();
    assert_eq!(read(&mut c, &resource), (Some(SEVEN.to_vec()), true));
    let config = Config::new(node(4), absent.config().incarnation + 1, Policy::Home);
    c.nodes.insert(node(4), Lockspace::new(config));
    c.view();
    c.run();
    c.convert_with(node(2), lock, Mode::EX, LockFlags::VALBLK, Some(&NINE)).unwrap();
    c.run();
    assert_eq!(read(&mut c, &resource), (Some(NINE.to_vec()), false));
    master_dies_at(&mut c, node(4));
    assert_eq!(read(&mut c, &resource), (Some(NINE.to_vec()), false));
}

/// The home of a name among nodes 1 to `nodes`.
fn home(resource: &str, nodes: usize) -> usize {
    (name(resource).hash64() >> 16) as usize % nodes + 1
}

/// The master that a claim was refused for has left already. So the claimer stays the master.
#[test]
fn a_merge_that_fails_leaves_the_block() {
    let mut c = Cluster::new(3, Policy::Claim(ClaimMode::Optimistic));
    let resource = c.name_at(node(2));
    let first = c.request(node(3), &resource, Mode::NL);
    c.run();
    c.unlock(node(3), first).unwrap();
    c.run();
    c.now += 10_000 * MS;
    c.tick(node(3));
    let lock = c.request_with(node(1), &resource, Mode::EX, LockFlags::NOTIFY);
    assert_eq!(c.granted(node(1), lock), Mode::EX);
    c.convert_with(node(1), lock, Mode::EX, LockFlags::VALBLK, Some(&SEVEN)).unwrap();
    assert_eq!(c.granted(node(1), lock), Mode::EX);
    c.now += BATCH_AGE;
    c.tick(node(1));
    assert!(c.deliver(node(1), node(2)), "the claim, before the REMOVE");
    c.run();
    let stats = c.nodes[&node(1)].stats();
    assert_eq!((stats.refusals, stats.merges, stats.confirmed), (1, 0, 1));
    assert_eq!(read(&mut c, &resource), (Some(SEVEN.to_vec()), false));
}

/// The master had a block from the name's earlier life, and keeps it.
#[test]
fn a_merged_lock_has_no_other_block_than_its_master() {
    for flags in [LockFlags::empty(), LockFlags::VALBLK] {
        let mut c = Cluster::new(3, Policy::Claim(ClaimMode::Optimistic));
        let resource = c.name_at(node(2));
        let first = c.request(node(3), &resource, Mode::EX);
        c.run();
        c.convert_with(node(3), first, Mode::NL, LockFlags::VALBLK, Some(&NINE)).unwrap();
        c.run();
        let lock = c.request_with(node(1), &resource, Mode::EX, LockFlags::NOTIFY);
        c.convert_with(node(1), lock, Mode::EX, LockFlags::VALBLK, Some(&SEVEN)).unwrap();
        let value = flags.contains(LockFlags::VALBLK).then_some(&SEVEN[..]);
        c.convert_with(node(1), lock, Mode::EX, flags, value).unwrap();
        c.pass(BATCH_AGE);
        assert_eq!(c.nodes[&node(1)].stats().merges, 1);
        let before = read_at(&mut c, node(2), &resource);
        assert_eq!(before, (Some(NINE.to_vec()), false));
        master_dies_at(&mut c, node(3));
        assert_eq!(read_at(&mut c, node(2), &resource), before, "{flags:?}");
    }
}

/// The claimer had made its block invalid.
#[test]
fn a_merged_block_stays_invalid() {
    let mut c = Cluster::new(3, Policy::Claim(ClaimMode::Optimistic));
    let resource = c.name_at(node(2));
    let first = c.request(node(3), &resource, Mode::NL);
    c.run();
    assert_eq!(c.granted(node(3), first), Mode::NL);
    let lock = c.request_with(node(1), &resource, Mode::EX, LockFlags::NOTIFY);
    for (flags, value) in [(LockFlags::VALBLK, Some(&SEVEN[..])), (LockFlags::IVVALBLK, None)] {
        c.convert_with(node(1), lock, Mode::EX, flags, value).unwrap();
    }
    c.convert(node(1), lock, Mode::EX).unwrap();
    c.pass(BATCH_AGE);
    assert_eq!(c.nodes[&node(1)].stats().merges, 1);
    assert_eq!(read(&mut c, &resource), (Some(SEVEN.to_vec()), true));
    master_dies_at(&mut c, node(3));
    assert_eq!(read_at(&mut c, node(2), &resource), (Some(SEVEN.to_vec()), true));
}

/// Node 1's conversion waits when its master dies. Later it is granted in its alternative mode, which writes.
#[test]
fn a_conversion_that_moves_to_another_master_still_writes() {
    let mut c = Cluster::new(3, Policy::Home);
    let resource = (0..).map(|i| format!("r{i}")).find(|r| home(r, 3) == 2 && home(r, 2) == 2);
    let resource = resource.unwrap();
    let lock = c.request(node(1), &resource, Mode::PW);
    c.run();
    let in_the_way = c.request(node(3), &resource, Mode::CR);
    let ahead = c.request(node(3), &resource, Mode::NL);
    c.run();
    assert_eq!(c.granted(node(3), in_the_way), Mode::CR);
    c.convert(node(3), ahead, Mode::PR).unwrap();
    c.run();
    let flags = LockFlags::VALBLK | LockFlags::ALTCW | LockFlags::QUECVT | LockFlags::NODLCKWT;
    c.completions(node(1), lock);
    c.convert_with(node(1), lock, Mode::EX, flags, Some(&SEVEN)).unwrap();
    c.run();
    master_dies_at(&mut c, node(2));
    assert_eq!(c.completions(node(1), lock), []);
    c.input(node(3), Input::Cancel { client: ClientId(1), lock: ahead }).unwrap();
    c.run();
    assert_eq!(c.granted(node(1), lock), Mode::CW);
    assert_eq!(read(&mut c, &resource), (Some(SEVEN.to_vec()), false));
}
