//! An array gets another group of devices while hosts use it. The processes' histories are the evidence.

use std::path::Path;
use std::time::Duration;

use lockify_volume::ArrayFile;

use crate::common::array::{Array, BLOCK, Export};
use crate::common::relay::Place;
use crate::common::traffic::{SHARED, content, device, judge, work};
use crate::common::{code, stderr, stdout, wait_for};

fn end_of(array: &Array) -> usize {
    let status = stdout(&array.lockify("status", &["--json"]));
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    usize::try_from(status["bytes"].as_u64().unwrap()).unwrap() / BLOCK
}

fn grow(array: &Array, more: &[&str]) -> String {
    let grown = array.lockify("grow", more);
    assert_eq!(code(&grown), 0, "{}{}", stderr(&grown), stdout(&array.lockify("status", &[])));
    stdout(&grown)
}

/// Devices tell hosts of the new size, which takes a moment. A client has the size of when it has connected.
fn wait_until_known(host: &Export, end: usize) {
    wait_for(|| {
        let mut blocks = host.connect();
        blocks.0.request((0, 0), 8, ((end - 1) * BLOCK) as u64, BLOCK as u32);
        blocks.0.reply() == (0, 8)
    });
}

/// Of the last blocks before the former end, and of the first ones behind it.
fn write_over(host: &Export, former: usize) -> Vec<u8> {
    let data = content(SHARED);
    host.connect().write(former - SHARED / 2, &data);
    data
}

fn reads(host: &Export, former: usize) -> Vec<u8> {
    host.connect().read(former - SHARED / 2, SHARED)
}

fn start_group(array: &mut Array, ids: &[usize]) {
    for id in ids {
        array.start(*id, &format!("disk{id}"), &["--create"]);
    }
}

fn replace(array: &mut Array, id: usize) {
    array.start(id, &format!("new{id}"), &["--create"]);
    let replaced = array.lockify("replace", &["--id", &id.to_string()]);
    assert_eq!(code(&replaced), 0, "{}", stderr(&replaced));
}

fn lose(array: &mut Array, id: usize) {
    array.devices[id].take().unwrap().kill();
    wait_for(|| device(array, id)["condition"] == "failed");
}

fn a_group_comes_while_hosts_work(scheme: &str) {
    let mut array = Array::with_witnesses(3, 1, &["--scheme", scheme]);
    array.recorded = true;
    array.start_all();
    // They go on with the file as it is now.
    let mut hosts: Vec<Export> = (1..=2).map(|number| array.export(number)).collect();
    let former = end_of(&array);
    let old_file = std::fs::read_to_string(array.file()).unwrap();
    let ids = array.describe_group(3);
    assert_eq!(ids, [4, 5, 6]);
    start_group(&mut array, &ids);
    std::thread::scope(|scope| {
        for (seed, host) in (1..).zip(&hosts) {
            scope.spawn(move || work(host, seed, 60));
        }
        let says = grow(&array, &["--group"]);
        assert!(says.contains("clients of an export get that size"), "{says}");
    });
    let all = end_of(&array);
    assert_eq!(all, 2 * former);
    array.wait_until_healthy();
    hosts.iter().for_each(|host| wait_until_known(host, all));
    let data = write_over(&hosts[0], former);
    assert!(reads(&hosts[1], former) == data);
    // One of each group is lost, and replaced.
    lose(&mut array, 5);
    lose(&mut array, 0);
    assert!(reads(&hosts[1], former) == data);
    let data = write_over(&hosts[1], former);
    replace(&mut array, 5);
    replace(&mut array, 0);
    array.wait_until_healthy();
    lose(&mut array, 6);
    assert!(reads(&hosts[0], former) == data);
    replace(&mut array, 6);
    array.wait_until_healthy();
    array.assert_clean();
    for host in &mut hosts {
        assert_eq!(host.process.end(), Some(0));
    }
    // Another witness would have the number of a device.
    array.devices[2].take().unwrap().kill();
    let file = std::fs::read_to_string(array.file()).unwrap();
    let mut other = ArrayFile::read(Path::new(&array.file())).unwrap();
    other.witnesses.clear();
    other.added.clear();
    std::fs::remove_file(array.file()).unwrap();
    other.create(Path::new(&array.file())).unwrap();
    let disk = array.disk("disk2");
    let refused = array.lockify("device", &[disk.to_str().unwrap(), "--id", "2"]);
    assert!(stderr(&refused).contains("devices from number 4 on"), "{}", stderr(&refused));
    std::fs::write(array.file(), file).unwrap();
    array.start(2, "disk2", &[]);
    array.wait_until_back();
    // All begin again, those that were made with the former file by that file.
    array.end();
    std::fs::write(array.file(), &old_file).unwrap();
    for (id, disk) in [(0, "new0"), (1, "disk1"), (2, "disk2"), (3, "disk3")] {
        array.start(id, disk, &[]);
    }
    if old_file.contains("[lock_server]") {
        array.start_lock_server(&[]);
    }
    array.describe_group_again();
    for (id, disk) in [(4, "disk4"), (5, "new5"), (6, "new6")] {
        array.start(id, disk, &[]);
    }
    std::fs::write(array.file(), &old_file).unwrap();
    array.wait_until_healthy();
    hosts.push(array.export(3));
    assert!(reads(&hosts[2], former) == data);
    work(&hosts[2], 5, 20);
    array.assert_clean();
    hosts.drain(..2);
    judge(array, hosts);
}

#[test]
fn a_group_comes_under_timestamp_ordering() {
    a_group_comes_while_hosts_work("timestamp-ordering");
}

#[test]
fn a_group_comes_under_callback_locking() {
    a_group_comes_while_hosts_work("callback-locking");
}

/// The last group grows, and another one comes.
#[test]
fn an_array_with_a_group_grows_by_its_last_group() {
    let mut array = Array::create(3, &[]);
    array.start_all();
    let former = end_of(&array);
    let host = array.export(1);
    let ids = array.describe_group(3);
    start_group(&mut array, &ids);
    grow(&array, &["--group", "--device-size", "3MiB"]);
    let with_group = end_of(&array);
    assert!(with_group > former && with_group < 2 * former);
    grow(&array, &["--device-size", "6MiB"]);
    let larger = end_of(&array);
    assert!(larger > 2 * former);
    let smaller = array.lockify("grow", &["--device-size", "4MiB"]);
    assert!(stderr(&smaller).contains("it cannot become smaller"), "{}", stderr(&smaller));
    wait_until_known(&host, larger);
    let data = write_over(&host, with_group);
    let ids = array.describe_group(3);
    assert_eq!(ids, [6, 7, 8]);
    start_group(&mut array, &ids);
    grow(&array, &["--group"]);
    assert_eq!(end_of(&array), larger + former);
    wait_until_known(&host, larger + former);
    let last = write_over(&host, larger);
    for id in [1, 4, 8] {
        lose(&mut array, id);
    }
    assert!(reads(&host, with_group) == data && reads(&host, larger) == last);
    // Nobody knows if a device that is gone has room.
    let refused = array.lockify("grow", &["--device-size", "8MiB"]);
    assert!(stderr(&refused).contains("is not good"), "{}", stderr(&refused));
}

#[test]
fn a_group_that_cannot_come_changes_nothing() {
    let mut array = Array::create(3, &[]);
    let hold = |array: &Array, version: Option<u16>| {
        let mut file = ArrayFile::read(Path::new(&array.file())).unwrap();
        file.spoken.newest = version.unwrap_or(lockify_volume::SPOKEN.newest);
        std::fs::remove_file(array.file()).unwrap();
        file.create(Path::new(&array.file())).unwrap();
    };
    hold(&array, Some(lockify_volume::HAS_GROUPS - 1));
    array.start(0, "disk0", &["--create"]);
    hold(&array, None);
    for id in [1, 2] {
        array.start(id, &format!("disk{id}"), &["--create"]);
    }
    array.wait_until_healthy();
    let former = end_of(&array);
    let refused = |array: &Array, why: &str| {
        let refused = array.lockify("grow", &["--group"]);
        assert_ne!(code(&refused), 0);
        assert!(stderr(&refused).contains(why), "{}", stderr(&refused));
    };
    refused(&array, "has no devices 3 to 5");
    let ids = array.describe_group(3);
    refused(&array, "device 3: ");
    start_group(&mut array, &ids);
    wait_for(|| {
        array.log(Place::Device(3)).contains("does not connect here") || {
            array.log(Place::Device(3)).contains("the array has no device 3 yet")
        }
    });
    refused(&array, "device 0 speaks version 14 of arrays at most");
    assert_eq!(end_of(&array), former);
    // Now it does, and a host that is too old comes afterwards: it is refused.
    array.devices[0].take().unwrap().kill();
    array.start(0, "disk0", &[]);
    array.wait_until_back();
    let host = array.export(1);
    grow(&array, &["--group"]);
    assert_eq!(end_of(&array), 2 * former);
    hold(&array, Some(lockify_volume::HAS_GROUPS - 1));
    let old = array.lockify("scrub", &[]);
    assert_ne!(code(&old), 0);
    assert!(stderr(&old).contains("upgrade it"), "{}", stderr(&old));
    hold(&array, None);
    wait_until_known(&host, 2 * former);
    let data = write_over(&host, former);
    assert!(reads(&host, former) == data);
    array.assert_clean();
}

/// The operator's process is killed after the devices have agreed on the group.
#[test]
fn a_group_whose_coming_was_interrupted_comes_by_another_call() {
    let mut array = Array::create(3, &[]);
    array.start_all();
    let former = end_of(&array);
    let host = array.export(1);
    let ids = array.describe_group(3);
    // One of them is not there, so that it has to wait.
    start_group(&mut array, &ids[..2]);
    array.start(5, "disk5", &["--create"]);
    let mut first = array
        .user
        .command(&array.args("grow", &["--group"]).iter().map(String::as_str).collect::<Vec<_>>());
    let mut first = first.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    first.kill().unwrap();
    first.wait().unwrap();
    wait_for(|| {
        array.lockify("grow", &["--group"]);
        end_of(&array) >= 2 * former
    });
    wait_until_known(&host, end_of(&array));
    let data = write_over(&host, former);
    lose(&mut array, 4);
    assert!(reads(&host, former) == data);
}
