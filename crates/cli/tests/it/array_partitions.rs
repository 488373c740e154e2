//! Arrays of real processes that are cut off from each other, and meet again: messages from that time arrive then, or its
//! connections are broken. The processes' histories are the evidence.

use std::time::Duration;

use crate::common::array::{Array, BLOCK, LEASE};
use crate::common::relay::{Link, Network, Place};
use crate::common::traffic::{
    SHARED, a_device_comes_back, a_host_is_fenced, content, device, judge, pile, start, work,
};
use crate::common::wait_for;

const DEVICES: [Place; 3] = [Place::Device(0), Place::Device(1), Place::Device(2)];
/// Longer than a lease and whatever follows from its end.
const OUTAGE: Duration = LEASE.saturating_mul(3);

fn array(scheme: &str) -> Array {
    start(scheme, |array| array.network = Some(Network::default()))
}

fn set(array: &Array, these: &[Place], those: &[Place], link: Link) {
    array.network.as_ref().unwrap().set(these, those, link);
}

fn heal(array: &Array) {
    array.network.as_ref().unwrap().heal();
}

/// A host that is cut off in the middle of writes.
fn a_host_is_cut_off(scheme: &str, from: &[Place], link: Link) {
    let away = |array: &Array, _: &_| set(array, &[Place::Host(2)], from, link);
    a_host_is_fenced(array(scheme), away, |array, _| heal(array));
}

/// Its messages to devices arrive when others have repaired its writes.
#[test]
fn a_host_is_cut_off_under_timestamp_ordering() {
    a_host_is_cut_off("timestamp-ordering", &DEVICES, Link::Silent);
}

#[test]
fn a_host_is_cut_off_under_device_locking() {
    a_host_is_cut_off("device-locking", &DEVICES, Link::Silent);
}

#[test]
fn a_host_is_cut_off_and_connects_again() {
    a_host_is_cut_off("timestamp-ordering", &DEVICES, Link::Broken);
}

/// Devices hear it all the time.
#[test]
fn a_host_is_cut_off_from_its_lock_server() {
    a_host_is_cut_off("server-locking", &[Place::Server], Link::Silent);
}

#[test]
fn a_host_that_keeps_locks_is_cut_off_from_everybody() {
    let [a, b, c] = DEVICES;
    a_host_is_cut_off("callback-locking", &[a, b, c, Place::Server], Link::Silent);
}

/// Operations wait for a device that the others see and a host does not. If the host had something under way there, that device
/// has it fenced; if not, it goes on. Others are not kept from anything for longer than that takes.
fn a_device_is_out_of_reach_of_a_host(scheme: &str) {
    let mut array = array(scheme);
    let hosts = [array.export(1), array.export(2)];
    let mut theirs = hosts[1].connect();
    pile(&mut theirs, 3, 24);
    assert_eq!(theirs.0.reply().0, 0);
    set(&array, &[Place::Host(2)], &[Place::Device(1)], Link::Silent);
    std::thread::scope(|scope| {
        scope.spawn(|| work(&hosts[0], 1, 40));
        std::thread::sleep(OUTAGE);
        heal(&array);
    });
    let fenced = (1..24).any(|_| theirs.0.reply_unless_over().is_ok_and(|(e, _)| e != 0));
    let [one, mut two] = hosts;
    one.connect().write(0, &content(SHARED));
    if fenced {
        assert_eq!(two.process.ended().code(), Some(3));
        judge(array, vec![one]);
    } else {
        two.connect().write(0, &content(SHARED));
        judge(array, vec![one, two]);
    }
}

#[test]
fn a_device_is_out_of_reach_of_a_host_under_timestamp_ordering() {
    a_device_is_out_of_reach_of_a_host("timestamp-ordering");
}

#[test]
fn a_device_is_out_of_reach_of_a_host_under_device_locking() {
    a_device_is_out_of_reach_of_a_host("device-locking");
}

#[test]
fn a_device_is_out_of_reach_of_a_host_under_server_locking() {
    a_device_is_out_of_reach_of_a_host("server-locking");
}

/// A device that is cut off from the other devices stops serving before they go on without it, whether hosts reach it or not.
fn a_device_is_cut_off(scheme: &str, hosts_too: bool, link: Link) {
    let mut array = array(scheme);
    let hosts = [array.export(1), array.export(2)];
    hosts[0].connect().write(0, &content(SHARED));
    std::thread::scope(|scope| {
        for (seed, host) in (1..).zip(&hosts) {
            scope.spawn(move || work(host, seed, 60));
        }
        set(&array, &[Place::Device(1)], &[Place::Device(0), Place::Device(2)], link);
        if hosts_too {
            set(&array, &[Place::Device(1)], &[Place::Host(1), Place::Host(2)], link);
        }
        wait_for(|| device(&array, 1)["condition"] == "failed");
    });
    let why = device(&array, 1)["why"].to_string();
    assert!(why.contains("until it has agreed with more than half"), "{why}");
    heal(&array);
    a_device_comes_back(&mut array, &mut hosts[0].connect(), 1);
    judge(array, hosts.into());
}

#[test]
fn a_device_is_cut_off_from_devices_under_timestamp_ordering() {
    a_device_is_cut_off("timestamp-ordering", false, Link::Silent);
}

#[test]
fn a_device_is_cut_off_from_devices_under_device_locking() {
    a_device_is_cut_off("device-locking", false, Link::Silent);
}

#[test]
fn a_device_is_cut_off_from_devices_under_server_locking() {
    a_device_is_cut_off("server-locking", false, Link::Broken);
}

#[test]
fn a_device_is_cut_off_from_everybody() {
    a_device_is_cut_off("timestamp-ordering", true, Link::Silent);
}

/// A host and a device that only see each other are no array: the host reads nothing there that the others have written anew.
#[test]
fn a_host_and_a_device_are_cut_off_together() {
    let mut array = array("timestamp-ordering");
    let (one, mut two) = (array.export(1), array.export(2));
    let (mut blocks, mut theirs) = (one.connect(), two.connect());
    blocks.write(0, &content(SHARED));
    theirs.read(0, SHARED);
    let apart = [Place::Device(1), Place::Host(2)];
    set(&array, &apart, &[Place::Device(0), Place::Device(2), Place::Host(1)], Link::Silent);
    wait_for(|| device(&array, 1)["condition"] == "failed");
    let new = content(SHARED);
    blocks.write(0, &new);
    // One by one: some are on that device alone.
    for block in 0..SHARED {
        theirs.0.request((0, 0), block as u64, (block * BLOCK) as u64, BLOCK as u32);
    }
    std::thread::sleep(OUTAGE / 3);
    heal(&array);
    for _ in 0..SHARED {
        let (error, block) = theirs.0.reply();
        let start = block as usize * BLOCK;
        assert_eq!(error, 0);
        assert!(theirs.0.get(BLOCK) == new[start..start + BLOCK], "block {block} is an old one");
    }
    assert_eq!(two.process.end(), Some(0));
    a_device_comes_back(&mut array, &mut blocks, 1);
    judge(array, vec![one]);
}

/// A life that has to be fenced when the lock server reaches no device is fenced later.
#[test]
fn a_lock_server_is_cut_off_from_the_devices() {
    let mut array = array("server-locking");
    let (host, mut doomed) = (array.export(1), array.export(2));
    let mut blocks = host.connect();
    blocks.write(0, &content(SHARED));
    set(&array, &[Place::Server], &DEVICES, Link::Broken);
    pile(&mut doomed.connect(), 5, 48);
    doomed.process.kill();
    blocks.begin_write(7, 0, &content(SHARED));
    std::thread::sleep(OUTAGE);
    heal(&array);
    assert_eq!(blocks.0.reply(), (0, 7));
    blocks.read(0, SHARED);
    judge(array, vec![host]);
}
