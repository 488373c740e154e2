//! Processes of an array that die at a certain step: before, within and after a write to a device's file, and between two
//! things that they send. The histories are the evidence.

use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use crate::common::array::Array;
use crate::common::fuse::{Fuse, Moment};
use crate::common::relay::Place;
use crate::common::traffic::{SHARED, content, judge, pile, pile_while_it_lives, start};
use crate::common::{Process, wait_for};

/// Longest time until a fuse has burnt down.
const PATIENCE: Duration = Duration::from_secs(30);

/// It has died of its fuse, and of nothing else.
fn dies(process: &mut Process, what: &str) {
    let start = Instant::now();
    loop {
        if let Some(status) = process.0.try_wait().unwrap() {
            assert_eq!(status.signal(), Some(9), "{what}: {status}");
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: it lives");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn with_fuses(scheme: &str, places: &[Place]) -> Array {
    start(scheme, |array| {
        for &place in places {
            let fuse = Fuse::new(array.user.dir(), &format!("fuse-{place:?}"));
            array.fuses.insert(place, fuse);
        }
    })
}

/// Devices by turns, each at one more step than the one before. They are back within a lease, so that the array goes on
/// with all of them: the writes under way are to be checked.
fn devices_die(scheme: &str) {
    let devices = [0, 1, 2].map(Place::Device);
    let mut array = with_fuses(scheme, &devices);
    let host = array.export(1);
    let mut blocks = host.connect();
    blocks.write(0, &content(SHARED));
    use Moment::{AfterWrite, BeforeSend, BeforeWrite, WithinWrite};
    let mut seed = 100;
    for moment in [BeforeWrite, WithinWrite, AfterWrite, BeforeSend] {
        for nth in 1..=4 {
            seed += 1;
            let id = seed as usize % 3;
            array.fuses[&devices[id]].light(nth, moment);
            pile(&mut blocks, seed, 16);
            let what = format!("device {id}, {moment:?} {nth}");
            dies(array.devices[id].as_mut().unwrap(), &what);
            array.start(id, &format!("disk{id}"), &[]);
            for _ in 0..16 {
                assert_eq!(blocks.0.reply().0, 0, "{what}");
            }
            array.wait_until_back();
        }
    }
    blocks.read(0, SHARED);
    judge(array, vec![host]);
}

#[test]
fn devices_die_at_their_steps_under_timestamp_ordering() {
    devices_die("timestamp-ordering");
}

#[test]
fn devices_die_at_their_steps_under_device_locking() {
    devices_die("device-locking");
}

#[test]
fn devices_die_at_their_steps_under_server_locking() {
    devices_die("server-locking");
}

#[test]
fn devices_die_at_their_steps_under_callback_locking() {
    devices_die("callback-locking");
}

/// All of them at once, as when the power fails, each at another step; then one of them again while it checks what was being
/// written.
#[test]
fn all_devices_die_at_a_step_each() {
    let devices = [0, 1, 2].map(Place::Device);
    let mut array = with_fuses("timestamp-ordering", &devices);
    let host = array.export(1);
    let mut blocks = host.connect();
    blocks.write(0, &content(SHARED));
    for (seed, moment) in (0..).zip([Moment::BeforeWrite, Moment::WithinWrite, Moment::AfterWrite])
    {
        for (nth, device) in (2..).zip(&devices) {
            array.fuses[device].light(nth, moment);
        }
        pile(&mut blocks, seed, 24);
        // The others do not get so far when one is gone.
        wait_for(|| devices.iter().any(|device| array.fuses[device].has_burnt_down()));
        for (id, place) in devices.iter().enumerate() {
            let mut device = array.devices[id].take().unwrap();
            match array.fuses[place].has_burnt_down() {
                true => dies(&mut device, &format!("device {id}, {moment:?}")),
                false => device.kill(),
            }
            array.fuses[place].light(0, moment);
        }
        // It writes the membership first, then its record, then the stripes to check.
        array.fuses[&devices[0]].light(3, moment);
        for id in 0..3 {
            array.start(id, &format!("disk{id}"), &[]);
        }
        dies(array.devices[0].as_mut().unwrap(), &format!("device 0 again, {moment:?}"));
        array.start(0, "disk0", &[]);
        for _ in 0..24 {
            assert_eq!(blocks.0.reply().0, 0, "{moment:?}");
        }
        array.wait_until_healthy();
    }
    blocks.read(0, SHARED);
    judge(array, vec![host]);
}

/// A host dies when it has told some of the devices, and others nothing yet: what it was writing is made whole, or undone, before
/// anybody reads it.
fn a_host_dies(scheme: &str) {
    let doomed = Place::Host(2);
    let mut array = with_fuses(scheme, &[doomed]);
    let host = array.export(1);
    let mut blocks = host.connect();
    blocks.write(0, &content(SHARED));
    for (seed, nth) in (0..).zip([1, 2, 3, 4, 6, 9]) {
        array.fuses[&doomed].light(0, Moment::BeforeSend);
        let mut lost = array.export(2);
        let mut theirs = lost.connect();
        // Connections are made by then, and the lock server has been asked for something.
        theirs.write(0, &content(4));
        array.fuses[&doomed].light(nth, Moment::BeforeSend);
        pile_while_it_lives(&mut theirs, seed, 8);
        dies(&mut lost.process, &format!("send {nth}"));
        blocks.write(0, &content(SHARED));
        blocks.read(0, SHARED);
    }
    judge(array, vec![host]);
}

#[test]
fn a_host_dies_between_two_messages_under_timestamp_ordering() {
    a_host_dies("timestamp-ordering");
}

#[test]
fn a_host_dies_between_two_messages_under_device_locking() {
    a_host_dies("device-locking");
}

#[test]
fn a_host_dies_between_two_messages_under_server_locking() {
    a_host_dies("server-locking");
}

#[test]
fn a_host_dies_between_two_messages_under_callback_locking() {
    a_host_dies("callback-locking");
}
