//! The devices of an array agree on the present ones, and keep that on their media. These tests kill them, start them in
//! any order and with any clocks, and lose media.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;

use crate::common::array::{Array, Blocks, Export};
use crate::common::ports::free_address;
use crate::common::relay::Place;
use crate::common::traffic::{SHARED, content, device};
use crate::common::wall::Wall;
use crate::common::{code, stderr, stdout, wait_for};
use serde_json::Value;

const HOUR: i64 = 3_600_000;
/// Lives that the log hands out are below this number. The random number of a process without a
/// life is not.
const VISITS: u64 = 1 << 63;
/// The two places of the membership's state on a medium.
const KEPT: [u64; 2] = [8192 + (768 << 10), 8192 + (1792 << 10)];
const KEPT_BYTES: usize = 256 << 10;

fn status(array: &Array) -> Value {
    let status = array.lockify("status", &["--json"]);
    serde_json::from_str(&stdout(&status)).unwrap()
}

/// The number of a later view that has all devices, and their lives from the log, if there is one.
fn view_of_all(array: &Array, after: u64) -> Option<(u64, Vec<u64>)> {
    let status = status(array);
    let devices = status["devices"].as_array().unwrap();
    let lives: Option<Vec<u64>> = devices.iter().map(|d| d["life"].as_u64()).collect();
    let lives = lives.filter(|lives| lives.iter().all(|life| *life < VISITS))?;
    let all = devices.iter().all(|d| d["out"].is_null());
    status["view"].as_u64().filter(|view| *view > after && all).map(|view| (view, lives))
}

/// Waits until all devices are in a later view.
fn next_view(array: &Array, after: u64) -> (u64, Vec<u64>) {
    wait_for(|| view_of_all(array, after).is_some());
    view_of_all(array, after).unwrap()
}

fn kill(array: &mut Array, id: usize) {
    array.devices[id].take().unwrap().kill();
}

fn start(array: &mut Array, id: usize) {
    array.start(id, &format!("disk{id}"), &[]);
}

/// Changes a device's medium without its process: this writes zeros, and `spoil` changes a byte.
fn zero(array: &Array, id: usize, at: u64, count: usize) {
    let disk = OpenOptions::new().write(true).open(array.disk(&format!("disk{id}"))).unwrap();
    disk.write_all_at(&vec![0; count], at).unwrap();
}

fn spoil(array: &Array, id: usize, at: u64) {
    let disk = array.disk(&format!("disk{id}"));
    let disk = OpenOptions::new().read(true).write(true).open(disk).unwrap();
    let mut byte = [0];
    disk.read_exact_at(&mut byte, at).unwrap();
    disk.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// The place of the older of a medium's two states.
fn older(array: &Array, id: usize) -> u64 {
    let disk = std::fs::File::open(array.disk(&format!("disk{id}"))).unwrap();
    let sequence = |at: &u64| {
        let mut number = [0; 8];
        disk.read_exact_at(&mut number, at + 8).unwrap();
        u64::from_le_bytes(number)
    };
    KEPT.into_iter().min_by_key(sequence).unwrap()
}

/// Three devices, and a host whose blocks have been written.
fn of_three() -> (Array, Export, Blocks, Vec<u8>) {
    let mut array = Array::create(3, &[]);
    array.start_all();
    let host = array.export(1);
    let mut blocks = host.connect();
    let written = content(SHARED);
    blocks.write(0, &written);
    (array, host, blocks, written)
}

/// The same after a stop of all, without a state of the membership: earlier releases have zeros in its places. Devices 0 and
/// 2 have started.
fn of_an_earlier_release() -> (Array, Export, Blocks, Vec<u8>) {
    let (mut array, host, blocks, written) = of_three();
    for id in 0..3 {
        kill(&mut array, id);
        KEPT.into_iter().for_each(|at| zero(&array, id, at, KEPT_BYTES));
    }
    start(&mut array, 0);
    start(&mut array, 2);
    (array, host, blocks, written)
}

fn assert_content(blocks: &mut Blocks, written: &[u8]) {
    assert!(blocks.read(0, SHARED) == written);
}

#[test]
fn views_and_lives_grow_over_restarts_of_all_in_any_order_with_any_clocks() {
    let mut array = Array::create(3, &[]);
    for id in 0..3 {
        let wall = Wall::new(array.user.dir(), &format!("wall{id}"));
        array.walls.insert(Place::Device(id), wall);
    }
    array.start_all();
    let host = array.export(1);
    let written = content(SHARED);
    host.connect().write(0, &written);
    let (mut view, lives) = next_view(&array, 0);
    let mut newest = lives.into_iter().max().unwrap();
    for (clocks, order) in [
        ([-HOUR, -HOUR, -HOUR], [2, 0, 1]),
        ([HOUR, 0, -HOUR], [1, 2, 0]),
        ([-HOUR, HOUR, 24 * HOUR], [0, 2, 1]),
        ([0, 0, 0], [1, 0, 2]),
    ] {
        (0..3).for_each(|id| kill(&mut array, id));
        for id in order {
            array.walls[&Place::Device(id)].set(clocks[id]);
            start(&mut array, id);
        }
        let (next, lives) = next_view(&array, view);
        assert!(lives.iter().all(|life| *life > newest), "{lives:?} after {newest}");
        (view, newest) = (next, lives.into_iter().max().unwrap());
    }
    array.wait_until_healthy();
    assert_content(&mut host.connect(), &written);
}

#[test]
fn views_grow_while_devices_restart_one_after_the_other() {
    let mut array = Array::create(3, &[]);
    array.start_all();
    let host = array.export(1);
    let mut blocks = host.connect();
    let (mut view, _) = next_view(&array, 0);
    for id in [1, 0, 2] {
        let written = content(SHARED);
        blocks.write(0, &written);
        kill(&mut array, id);
        start(&mut array, id);
        (view, _) = next_view(&array, view);
        array.wait_until_back();
        assert_content(&mut blocks, &written);
    }
}

/// The new medium votes: with it, and without another one, there is a majority.
#[test]
fn a_lost_medium_is_replaced_by_one_that_votes() {
    let (mut array, _host, mut blocks, written) = of_three();
    let (view, _) = next_view(&array, 0);
    kill(&mut array, 1);
    std::fs::remove_file(array.disk("disk1")).unwrap();
    array.start(1, "disk1", &["--create"]);
    let replaced = array.lockify("replace", &["--id", "1"]);
    assert_eq!(code(&replaced), 0, "{}", stderr(&replaced));
    array.wait_until_healthy();
    assert!(next_view(&array, view).0 > view);
    kill(&mut array, 0);
    wait_for(|| device(&array, 0)["condition"] == "failed");
    let out = device(&array, 0)["out"].to_string();
    assert!(out.contains("no member hears it"), "{out}");
    assert_content(&mut blocks, &written);
}

/// With one of two media the majority is lost: nothing goes on until an operator says that it may.
#[test]
fn a_lost_majority_is_waited_for_until_an_operator_begins_a_new_era() {
    let mut array = Array::create(2, &["--mirror"]);
    array.start_all();
    let host = array.export(1);
    let mut blocks = host.connect();
    let written = content(SHARED);
    blocks.write(0, &written);
    let (view, lives) = next_view(&array, 0);
    let refused = array.lockify("recover", &["--id", "0"]);
    assert_eq!(code(&refused), 3);
    assert!(stderr(&refused).contains("nothing is to be recovered"), "{}", stderr(&refused));
    assert_eq!(code(&array.lockify("recover", &["--id", "2"])), 2);
    kill(&mut array, 1);
    array.start(1, "disk1-new", &["--create"]);
    wait_for(|| {
        let why = device(&array, 0)["why"].to_string();
        why.contains("device 1 has lost what was agreed on")
    });
    wait_for(|| {
        let why = device(&array, 1)["why"].to_string();
        why.contains("device 1 has lost what was agreed on")
    });
    let begun = array.lockify("recover", &["--id", "0"]);
    assert_eq!(code(&begun), 0, "{}", stderr(&begun));
    let (next, next_lives) = next_view(&array, view);
    // Eras are four million views apart.
    assert!(next >= view + (1 << 21), "{next} after {view}");
    assert!(next_lives.iter().min() > lives.iter().max(), "{next_lives:?} after {lives:?}");
    let replaced = array.lockify("replace", &["--id", "1"]);
    assert_eq!(code(&replaced), 0, "{}", stderr(&replaced));
    array.wait_until_healthy();
    assert_content(&mut blocks, &written);
}

#[test]
fn an_array_of_an_earlier_release_is_taken_over() {
    let (mut array, _host, mut blocks, written) = of_an_earlier_release();
    let why = |id| device(&array, id)["why"].to_string();
    wait_for(|| why(2).contains("(device 1 is not reached); to begin without one"));
    start(&mut array, 1);
    array.wait_until_healthy();
    assert_content(&mut blocks, &written);
}

/// One of its devices is lost for good.
#[test]
fn an_array_of_an_earlier_release_begins_without_a_device_when_an_operator_says_so() {
    let (array, _host, mut blocks, written) = of_an_earlier_release();
    wait_for(|| device(&array, 0)["why"].to_string().contains("lockify array recover --id 0"));
    let begun = array.lockify("recover", &["--id", "0"]);
    assert_eq!(code(&begun), 0, "{}", stderr(&begun));
    wait_for(|| [0, 2].into_iter().all(|id| device(&array, id)["out"].is_null()));
    wait_for(|| device(&array, 1)["condition"] == "failed");
    assert_content(&mut blocks, &written);
}

/// A write that was cut short leaves the former copy. A medium with both copies damaged counts as lost. Its content is
/// there.
#[test]
fn what_is_damaged_on_a_minority_of_the_media_is_learnt_again() {
    let (mut array, _host, mut blocks, written) = of_three();
    let (view, _) = next_view(&array, 0);
    (0..3).for_each(|id| kill(&mut array, id));
    // The newer one alone would be missed: a medium that goes back to an older state has lost its vote.
    spoil(&array, 0, older(&array, 0) + 30);
    KEPT.into_iter().for_each(|at| spoil(&array, 1, at + 30));
    (0..3).for_each(|id| start(&mut array, id));
    next_view(&array, view);
    array.wait_until_healthy();
    assert!(array.log(Place::Device(1)).contains("is damaged: it begins as one whose medium"));
    assert!(!array.log(Place::Device(0)).contains("is damaged"));
    assert_content(&mut blocks, &written);
}

/// A new witness in the array's file votes, too. Then a mirror continues without one of its devices.
#[test]
fn a_witness_that_is_added_to_the_arrays_file_votes() {
    let mut array = Array::create(2, &["--mirror"]);
    array.start_all();
    let mut host = array.export(1);
    let written = content(SHARED);
    host.connect().write(0, &written);
    assert_eq!(host.process.end(), Some(0));
    array.end();
    let address = free_address();
    let text = std::fs::read_to_string(array.file()).unwrap();
    let with_witness = format!("{text}\n[[witness]]\nid = 2\naddress = \"{address}\"\n");
    std::fs::write(array.file(), with_witness).unwrap();
    array.devices.push(None);
    start(&mut array, 0);
    start(&mut array, 1);
    array.start(2, "disk2", &["--create"]);
    array.wait_until_healthy();
    // No device is given up beside one that does not yet know the unfinished writes.
    wait_for(|| (0..2).all(|id| device(&array, id)["unsettled"] == false));
    wait_for(|| (0..2).all(|id| device(&array, id)["unchecked"] == 0));
    kill(&mut array, 1);
    wait_for(|| device(&array, 1)["condition"] == "failed");
    let host = array.export(2);
    assert_content(&mut host.connect(), &written);
}

/// All processes have the new file when they are started again.
#[test]
fn a_new_lease_in_the_arrays_file_becomes_that_of_the_devices() {
    let mut array = Array::create(3, &[]);
    array.start_all();
    let (view, _) = next_view(&array, 0);
    array.end();
    array.change_lease(3000);
    (0..3).for_each(|id| start(&mut array, id));
    next_view(&array, view);
    array.wait_until_healthy();
}
