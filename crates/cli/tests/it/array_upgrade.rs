//! An array is upgraded while hosts work: its processes go from one version of their messages to the next, one after the other.

use lockify_volume::SPOKEN;

use crate::common::array::Array;
use crate::common::traffic::{SHARED, content, judge, work};
use crate::common::{code, stderr, stdout, wait_for};

fn said(array: &Array) -> String {
    stdout(&array.lockify("status", &[]))
}

/// The array's file has all processes that start from now on speak this version at most, or the newest.
fn hold(array: &Array, version: Option<u16>) {
    let text = std::fs::read_to_string(array.file()).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("wire_version"));
    let held = version.map(|version| format!("wire_version = {version}\n")).unwrap_or_default();
    let rest: String = lines.map(|line| format!("{line}\n")).collect();
    std::fs::write(array.file(), held + &rest).unwrap();
}

#[test]
fn the_processes_of_an_array_are_upgraded_one_after_the_other() {
    // Nobody may be taken for dead here, however busy the machine is.
    let mut array = Array::with_standby("callback-locking", "4s");
    array.recorded = true;
    hold(&array, Some(SPOKEN.oldest));
    array.start_all();
    let behind = format!("speaks version {} at most", SPOKEN.oldest);
    assert_eq!(said(&array).matches(&behind).count(), 5, "{}", said(&array));
    let old = array.export(1);
    old.connect().write(0, &content(SHARED));
    hold(&array, None);
    // A host of the newer version comes before the devices' have it.
    let new = array.export(2);
    std::thread::scope(|scope| {
        for (seed, host) in [(1, &old), (2, &new)] {
            scope.spawn(move || work(host, seed, 60));
        }
        for id in 0..3 {
            array.devices[id].take().unwrap().kill();
            array.start(id, &format!("disk{id}"), &[]);
            array.wait_until_back();
            wait_for(|| !said(&array).contains(&format!("device {id} (release")));
        }
        array.lock_server.take().unwrap().kill();
        array.start_lock_server(&[]);
        array.wait_until_healthy();
        array.standby.take().unwrap().kill();
        array.start_standby(&[]);
        array.wait_until_healthy();
    });
    wait_for(|| said(&array).matches(&behind).count() == 1);
    assert!(said(&array).contains("host "), "{}", said(&array));
    let (mut old, mut hosts) = (old, vec![new]);
    assert_eq!(old.process.end(), Some(0));
    hosts.push(array.export(3));
    work(&hosts[1], 3, 20);
    wait_for(|| !said(&array).contains(&behind));
    judge(array, hosts);
}

#[test]
fn a_version_that_this_release_does_not_speak_is_refused() {
    let array = Array::create(3, &[]);
    hold(&array, Some(SPOKEN.newest + 1));
    let refused = array.lockify("status", &[]);
    assert_eq!(code(&refused), 2);
    let why = format!("wire_version = {}: this release speaks {SPOKEN}", SPOKEN.newest + 1);
    assert!(stderr(&refused).contains(&why), "{}", stderr(&refused));
}
