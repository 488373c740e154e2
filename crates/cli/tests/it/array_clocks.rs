//! Arrays of real processes, one of which has a wrong wall clock, or one that is stepped while everybody writes. The
//! processes' histories are the evidence.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::Scope;
use std::time::Duration;

use crate::common::array::{Array, Export, LEASE};
use crate::common::relay::Place;
use crate::common::traffic::{
    Busy, SHARED, a_device_comes_back, content, device, judge, start, work,
};
use crate::common::wait_for;
use crate::common::wall::Wall;

const HOUR: i64 = 3_600_000;
/// How long everybody goes on after the last step: longer than a lease.
const AFTERWARDS: Duration = Duration::from_millis(LEASE.as_millis() as u64 * 3 / 2);

/// A clock of its own for one process.
fn array(scheme: &str, place: Place) -> Array {
    start(scheme, |array| {
        let wall = Wall::new(array.user.dir(), "wall");
        array.walls.insert(place, wall);
    })
}

fn set(array: &Array, place: Place, ahead_ms: i64) {
    array.walls[&place].set(ahead_ms);
}

/// Hosts read and write.
fn keep_busy<'scope>(
    scope: &'scope Scope<'scope, '_>,
    hosts: &'scope [Export],
    over: &'scope AtomicBool,
) -> Busy<'scope> {
    for (seed, host) in (1..).zip(hosts) {
        scope.spawn(move || {
            while !over.load(Relaxed) {
                work(host, seed, 10);
                // So that there is not too much to judge.
                std::thread::sleep(Duration::from_millis(10));
            }
        });
    }
    Busy(over)
}

/// Everybody writes while a clock is stepped.
fn steps(scheme: &str, place: Place, steps: &[i64]) {
    let mut array = array(scheme, place);
    let hosts: Vec<Export> = (1..=3).map(|number| array.export(number)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _busy = keep_busy(scope, &hosts, &over);
        for &step in steps {
            std::thread::sleep(Duration::from_millis(300));
            set(&array, place, step);
        }
        std::thread::sleep(AFTERWARDS);
    });
    hosts[0].connect().write(0, &content(SHARED));
    judge(array, hosts);
}

/// Nobody's operations fail, or wait for ever.
#[test]
fn a_hosts_clock_is_stepped_by_a_second_under_timestamp_ordering() {
    steps("timestamp-ordering", Place::Host(2), &[1000, 0, -1000, 0]);
}

#[test]
fn a_hosts_clock_is_stepped_by_a_second_under_device_locking() {
    steps("device-locking", Place::Host(2), &[1000, 0, -1000, 0]);
}

/// It holds locks for a time.
#[test]
fn a_hosts_clock_is_stepped_by_an_hour_under_callback_locking() {
    steps("callback-locking", Place::Host(2), &[-HOUR]);
}

#[test]
fn a_devices_clock_is_stepped_by_a_second_under_timestamp_ordering() {
    steps("timestamp-ordering", Place::Device(1), &[1000, 0, -1000, 0]);
}

#[test]
fn a_devices_clock_is_stepped_by_a_second_under_device_locking() {
    steps("device-locking", Place::Device(1), &[1000, 0, -1000, 0]);
}

/// It measures leases by another clock.
#[test]
fn a_lock_servers_clock_is_stepped_by_an_hour() {
    steps("server-locking", Place::Server, &[HOUR, -HOUR]);
}

/// A host whose clock is behind writes as the others do.
#[test]
fn a_host_is_an_hour_behind() {
    let mut array = array("timestamp-ordering", Place::Host(2));
    set(&array, Place::Host(2), -HOUR);
    let hosts: Vec<Export> = (1..=3).map(|number| array.export(number)).collect();
    std::thread::scope(|scope| {
        for (seed, host) in (1..).zip(&hosts) {
            scope.spawn(move || work(host, seed, 100));
        }
    });
    judge(array, hosts);
}

/// A host whose clock is far ahead is refused with a reason, and nobody else hears of it; when its clock is right, it is started
/// again.
fn a_host_is_an_hour_ahead(scheme: &str) {
    let place = Place::Host(2);
    let mut array = array(scheme, place);
    set(&array, place, HOUR);
    let (host, mut wrong) = (array.export(1), array.export(2));
    std::thread::scope(|scope| {
        scope.spawn(|| work(&host, 3, 60));
        let mut blocks = wrong.connect();
        for cookie in 0..20 {
            blocks.begin_write(cookie, cookie as usize, &content(1));
            // EIO.
            assert_eq!(blocks.0.reply(), (5, cookie));
        }
    });
    let log = array.log(place);
    assert!(log.contains("ms ahead of a device's"), "{log}");
    assert!(log.contains("start this host again"), "{log}");
    assert_eq!(wrong.process.end(), Some(0));
    set(&array, place, 0);
    let right = array.export(2);
    work(&right, 4, 20);
    judge(array, vec![host, right]);
}

#[test]
fn a_host_is_an_hour_ahead_under_timestamp_ordering() {
    a_host_is_an_hour_ahead("timestamp-ordering");
}

#[test]
fn a_host_is_an_hour_ahead_under_device_locking() {
    a_host_is_an_hour_ahead("device-locking");
}

/// It is not followed at once, and right again before it matters.
#[test]
fn a_hosts_clock_is_stepped_by_an_hour_for_a_moment() {
    steps("timestamp-ordering", Place::Host(2), &[HOUR, 0]);
}

/// A device whose clock is wrong says so, and serves nobody; the others go on without it.
fn a_devices_clock_is_stepped_by_an_hour(scheme: &str, step: i64) {
    let place = Place::Device(1);
    let mut array = array(scheme, place);
    let hosts = [array.export(1), array.export(2)];
    hosts[0].connect().write(0, &content(SHARED));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _busy = keep_busy(scope, &hosts, &over);
        set(&array, place, step);
        wait_for(|| device(&array, 1)["condition"] == "failed");
    });
    let side = if step < 0 { "s behind the others'" } else { "s ahead of the others'" };
    let why = device(&array, 1)["why"].to_string();
    assert!(why.contains("this device's clock is 3") && why.contains(side), "{why}");
    assert!(array.log(Place::Device(0)).contains("the clock of device 1 is"));
    // Nor does it serve anybody when it is started again with a wrong clock.
    array.devices[1].take().unwrap().kill();
    array.start(1, "disk1", &[]);
    wait_for(|| device(&array, 1)["why"].to_string().contains(side));
    array.devices[1].take().unwrap().kill();
    set(&array, place, 0);
    array.start(1, "disk1", &[]);
    wait_for(|| device(&array, 1)["serving"] == true);
    a_device_comes_back(&mut array, &mut hosts[0].connect(), 1);
    judge(array, hosts.into());
}

#[test]
fn a_devices_clock_is_stepped_by_an_hour_under_timestamp_ordering() {
    a_devices_clock_is_stepped_by_an_hour("timestamp-ordering", HOUR);
}

#[test]
fn a_devices_clock_is_set_back_by_an_hour_under_timestamp_ordering() {
    a_devices_clock_is_stepped_by_an_hour("timestamp-ordering", -HOUR);
}

#[test]
fn a_devices_clock_is_set_back_by_an_hour_under_server_locking() {
    a_devices_clock_is_stepped_by_an_hour("server-locking", -HOUR);
}
