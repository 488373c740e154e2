//! A device whose medium fails goes on with its spare.

use crate::common::array::{Array, BLOCK, Blocks};
use crate::common::fuse::{Fuse, Moment};
use crate::common::relay::Place;
use crate::common::traffic::{SHARED, content, device};
use crate::common::{code, stderr, wait_for};

/// Three devices. The first one has a spare. With two witnesses, the array can do without two media.
fn with_a_spare(witnesses: usize) -> Array {
    let mut array = Array::with_witnesses(3, witnesses, &[]);
    let fuse = Fuse::new(array.user.dir(), "fuse");
    array.fuses.insert(Place::Device(0), fuse);
    start_with_spare(&mut array, &["--create"]);
    for id in 1..3 + witnesses {
        array.start(id, &format!("disk{id}"), &["--create"]);
    }
    array.wait_until_healthy();
    array
}

fn start_with_spare(array: &mut Array, more: &[&str]) {
    let spare = array.disk("spare");
    let spare = ["--spare", spare.to_str().unwrap(), "--rate", "100MiB"];
    array.start(0, "disk0", &[&spare, more].concat());
}

/// The first device's medium fails at its next write but one.
fn break_it(array: &Array) {
    array.fuses[&Place::Device(0)].light(2, Moment::NoMoreWrites);
}

/// None if it is an error.
fn read(blocks: &mut Blocks, start: usize) -> Option<Vec<u8>> {
    blocks.0.request((0, 0), 8, (start * BLOCK) as u64, (SHARED * BLOCK) as u32);
    let good = blocks.0.reply() == (0, 8);
    good.then(|| blocks.0.get(SHARED * BLOCK))
}

fn says(array: &Array, what: &str) -> bool {
    array.log(Place::Device(0)).contains(what)
}

fn fail(array: &mut Array, id: usize) {
    array.devices[id].as_mut().unwrap().kill();
    wait_for(|| device(array, id)["condition"] == "failed");
}

#[test]
fn a_device_goes_on_with_its_spare_and_is_rebuilt() {
    let mut array = with_a_spare(0);
    let host = array.export(1);
    let mut blocks = host.connect();
    let all: Vec<Vec<u8>> = (0..12).map(|_| content(SHARED)).collect();
    for (place, data) in all.iter().enumerate() {
        if place == 6 {
            break_it(&array);
        }
        blocks.write(place * SHARED, data);
    }
    wait_for(|| says(&array, "device 0 is rebuilt on its spare, and good"));
    assert!(says(&array, "disk0 has failed: ") && says(&array, "it goes on with its spare"));
    array.wait_until_healthy();
    array.assert_clean();
    // It has everything: another device is not needed.
    fail(&mut array, 2);
    for (place, data) in all.iter().enumerate() {
        assert!(blocks.read(place * SHARED, SHARED) == *data, "{place}");
    }
    // It is the device's from now on, also for a new process.
    array.devices[0].as_mut().unwrap().kill();
    start_with_spare(&mut array, &[]);
    assert!(says(&array, "disk0 is not used any more"));
    wait_for(|| read(&mut host.connect(), 0).as_ref() == Some(&all[0]));
    // Nobody begins anew on it by accident.
    array.devices[0].as_mut().unwrap().kill();
    let (disk, spare) = (array.disk("other"), array.disk("spare"));
    let (disk, spare) = (disk.to_str().unwrap(), spare.to_str().unwrap());
    let refused = array.lockify("device", &[disk, "--id", "0", "--create", "--spare", spare]);
    assert_eq!(code(&refused), 2, "{}", stderr(&refused));
    assert!(stderr(&refused).contains("it has taken the device's place before"));
}

/// The array has gone on without another device. Then the failed medium has what nobody else has, and no spare takes its place.
#[test]
fn a_spare_does_not_take_the_place_of_the_only_good_medium() {
    let mut array = with_a_spare(2);
    let host = array.export(1);
    let before = content(SHARED);
    let mut blocks = host.connect();
    blocks.write(0, &before);
    fail(&mut array, 2);
    break_it(&array);
    // In other stripes. What is missing of these may be lost: a write was cut short beside a missing device.
    blocks.begin_write(7, 4 * SHARED, &content(SHARED));
    let why =
        "cannot be rebuilt on its spare yet: what hosts have written may be on the old device 0";
    wait_for(|| says(&array, "disk0 has failed: ") && says(&array, why));
    // Its own medium works again in a new process, and has everything.
    array.devices[0].as_mut().unwrap().kill();
    start_with_spare(&mut array, &[]);
    assert!(!says(&array, "is not used any more"));
    wait_for(|| read(&mut host.connect(), 0).is_some());
    assert!(read(&mut host.connect(), 0) == Some(before));
}

#[test]
fn unfit_spares_are_refused_at_once() {
    let array = Array::with_witnesses(2, 1, &["--mirror"]);
    let disk = array.disk("disk0");
    let disk = disk.to_str().unwrap();
    let other = array.disk("text");
    std::fs::write(&other, vec![1; 3 * BLOCK]).unwrap();
    let refused = |id: &str, spare: &str, why: &str| {
        let out = array.lockify("device", &[disk, "--create", "--id", id, "--spare", spare]);
        assert_ne!(code(&out), 0);
        assert!(stderr(&out).contains(why), "{spare}: {}", stderr(&out));
    };
    refused("0", other.to_str().unwrap(), "this is no device of an array");
    refused("0", array.disk("no/such/folder").to_str().unwrap(), "cannot make it");
    refused("2", array.disk("spare").to_str().unwrap(), "witness 2 needs no spare");
    assert!(!array.disk("disk0").exists(), "nothing is made if the spare is unfit");
}
