//! Arrays under every scheme with a process for each device, host and lock server, some of which are killed or stopped.
//! The processes' histories are the evidence.

use crate::common::array::{Array, BLOCK, Export, LEASE};
use crate::common::relay::Place;
use crate::common::traffic::{
    SHARED, a_device_comes_back, a_host_is_fenced, array, content, device, judge, pile, tear, work,
};
use crate::common::{code, stderr, stdout, wait_for};
use rustix::process::Signal;

/// Three hosts on the same stripes, and the fate of one of them while the others work. Its locks are free then, wherever
/// they were.
fn one_of_three(scheme: &str, becomes: impl FnOnce(&mut Array, &mut Export)) {
    let mut array = array(scheme);
    let mut hosts: Vec<Export> = (1..=3).map(|number| array.export(number)).collect();
    let mut doomed = hosts.pop().unwrap();
    std::thread::scope(|scope| {
        for (seed, host) in (1..).zip(&hosts) {
            scope.spawn(move || work(host, seed, 40));
        }
        becomes(&mut array, &mut doomed);
    });
    hosts[0].connect().write(0, &content(SHARED));
    judge(array, hosts);
}

/// It is killed with writes under way.
fn a_killed_host(scheme: &str) {
    one_of_three(scheme, |_, doomed| {
        work(doomed, 9, 5);
        pile(&mut doomed.connect(), 10, 24);
        doomed.process.kill();
    });
}

#[test]
fn a_killed_host_under_timestamp_ordering() {
    a_killed_host("timestamp-ordering");
}

#[test]
fn a_killed_host_under_device_locking() {
    a_killed_host("device-locking");
}

#[test]
fn a_killed_host_under_server_locking() {
    a_killed_host("server-locking");
}

#[test]
fn a_killed_host_under_callback_locking() {
    a_killed_host("callback-locking");
}

/// Hosts wait for the server; a host that died while it was away is found, by what the log says that it held.
fn a_killed_lock_server(scheme: &str) {
    one_of_three(scheme, |array, doomed| {
        for _ in 0..3 {
            work(doomed, 9, 3);
            array.lock_server.take().unwrap().kill();
            array.start_lock_server(&[]);
        }
        pile(&mut doomed.connect(), 10, 24);
        array.lock_server.take().unwrap().kill();
        doomed.process.kill();
        array.start_lock_server(&[]);
    });
}

#[test]
fn a_killed_lock_server_under_server_locking() {
    a_killed_lock_server("server-locking");
}

#[test]
fn a_killed_lock_server_under_callback_locking() {
    a_killed_lock_server("callback-locking");
}

/// A host that is stopped for longer than a lease, in the middle of writes.
fn a_stopped_host(scheme: &str) {
    let stop = |_: &Array, host: &Export| host.process.signal(Signal::STOP);
    a_host_is_fenced(array(scheme), stop, |_, host| host.process.signal(Signal::CONT));
}

#[test]
fn a_stopped_host_under_timestamp_ordering() {
    a_stopped_host("timestamp-ordering");
}

#[test]
fn a_stopped_host_under_device_locking() {
    a_stopped_host("device-locking");
}

#[test]
fn a_stopped_host_under_server_locking() {
    a_stopped_host("server-locking");
}

#[test]
fn a_stopped_host_under_callback_locking() {
    a_stopped_host("callback-locking");
}

/// The array goes on without a device that stands still; when it moves again, it is not read before it has been rebuilt.
fn a_stopped_device(scheme: &str) {
    let mut array = array(scheme);
    let host = array.export(1);
    let mut blocks = host.connect();
    blocks.write(0, &content(SHARED));
    array.devices[1].as_ref().unwrap().signal(Signal::STOP);
    blocks.write(3, &content(9));
    let before = blocks.read(0, SHARED);
    assert_eq!(device(&array, 1)["condition"], "failed");
    array.devices[1].as_ref().unwrap().signal(Signal::CONT);
    assert!(blocks.read(0, SHARED) == before);
    a_device_comes_back(&mut array, &mut blocks, 1);
    judge(array, vec![host]);
}

#[test]
fn a_stopped_device_under_timestamp_ordering() {
    a_stopped_device("timestamp-ordering");
}

#[test]
fn a_stopped_device_under_callback_locking() {
    a_stopped_device("callback-locking");
}

/// Writes that were under way when all devices were killed are checked, even in unused stripes.
fn killed_devices(scheme: &str) {
    let mut array = array(scheme);
    let host = array.export(1);
    let mut blocks = host.connect();
    blocks.write(0, &content(SHARED));
    pile(&mut blocks, 11, 24);
    array.devices.iter_mut().for_each(|device| device.take().unwrap().kill());
    for id in 0..3 {
        array.start(id, &format!("disk{id}"), &[]);
    }
    assert_ne!(device(&array, 0)["unchecked"], 0);
    for _ in 0..24 {
        assert_eq!(blocks.0.reply().0, 0);
    }
    wait_for(|| (0..3).all(|id| device(&array, id)["unchecked"] == 0));
    wait_for(|| {
        let logs = (0..3).map(|id| array.log(Place::Device(id)));
        logs.into_iter().all(|log| log.contains("all these stripes have been checked"))
    });
    blocks.read(0, SHARED);
    judge(array, vec![host]);
}

#[test]
fn killed_devices_under_timestamp_ordering() {
    killed_devices("timestamp-ordering");
}

#[test]
fn killed_devices_under_callback_locking() {
    killed_devices("callback-locking");
}

/// A device is killed with a host that has writes under way there, and is back when another device is gone. Only that one
/// may have what the host has written, so that nobody gives it up.
fn one_is_gone_beside_an_unsettled_one(array: &mut Array) -> Export {
    let host = array.export(1);
    host.connect().write(0, &content(SHARED));
    let mut lost = array.export(2);
    let mut blocks = lost.connect();
    pile(&mut blocks, 12, 24);
    // The others are under way.
    blocks.0.reply();
    lost.process.kill();
    array.devices[1].take().unwrap().kill();
    array.devices[2].take().unwrap().kill();
    array.start(1, "disk1", &[]);
    wait_for(|| array.log(Place::Device(0)).contains("the array waits for device 2, since device"));
    assert_eq!(device(array, 1)["unsettled"], true);
    // As long as it takes to give one up beside settled ones, and twice that.
    std::thread::sleep(3 * LEASE);
    assert_eq!(device(array, 2)["condition"], "good");
    host
}

#[test]
fn no_device_is_given_up_beside_an_unsettled_one() {
    let mut array = array("device-locking");
    let host = one_is_gone_beside_an_unsettled_one(&mut array);
    array.start(2, "disk2", &[]);
    array.wait_until_healthy();
    host.connect().write(0, &content(SHARED));
    host.connect().read(0, SHARED);
    judge(array, vec![host]);
}

#[test]
fn a_device_beside_an_unsettled_one_is_replaced_when_an_operator_says_so() {
    let mut array = Array::create(3, &[]);
    array.start_all();
    let _host = one_is_gone_beside_an_unsettled_one(&mut array);
    array.start(2, "disk2-new", &["--create"]);
    let refused = array.lockify("replace", &["--id", "2"]);
    assert_eq!(code(&refused), 3);
    assert!(stderr(&refused).contains("or give --accept-loss"), "{}", stderr(&refused));
    assert_eq!(device(&array, 2)["condition"], "new");
    let replaced = array.lockify("replace", &["--id", "2", "--accept-loss"]);
    // Device 1 was killed amid writes: with their half on the old device 2, some blocks may be lost, and it must say so.
    let lost = stdout(&replaced).contains("lost, because the other devices do not yield them");
    assert_eq!(code(&replaced), i32::from(lost), "{}{}", stdout(&replaced), stderr(&replaced));
    array.wait_until_healthy();
}

/// One whose devices may be away for longer than a busy machine needs to start them again.
fn patient_array() -> Array {
    let more = ["--scheme", "timestamp-ordering", "--lease", "10s"];
    let mut array = Array::create(3, &more);
    array.recorded = true;
    array.start_all();
    array
}

/// A device is ended, and its first four blocks are torn.
fn end_and_tear(array: &mut Array, id: usize) {
    array.devices[id].take().unwrap().end();
    let name = format!("disk{id}");
    tear(&array.disk(&name), 0..4);
    array.start(id, &name, &[]);
}

/// Two units of a stripe are torn: nobody knows what was there. Reading it is an error, a scrub says so and ends with 1, and
/// what is written anew is there again.
#[test]
fn content_that_cannot_be_known_is_an_error_and_not_data() {
    let mut array = patient_array();
    let host = array.export(1);
    let mut blocks = host.connect();
    let written = content(SHARED);
    blocks.write(0, &written);
    end_and_tear(&mut array, 0);
    array.wait_until_healthy();
    end_and_tear(&mut array, 1);
    array.wait_until_healthy();
    let mut lost = Vec::new();
    for block in 0..SHARED {
        blocks.0.request((0, 0), 9, (block * BLOCK) as u64, BLOCK as u32);
        match blocks.0.reply() {
            (0, 9) => assert!(blocks.0.get(BLOCK) == written[block * BLOCK..][..BLOCK]),
            (error, _) => {
                assert_eq!(error, 5, "EIO");
                lost.push(block);
            }
        }
    }
    assert!(!lost.is_empty() && lost.iter().all(|block| *block < 8), "{lost:?}");
    let scrub = array.lockify("scrub", &["--repair"]);
    assert_eq!(code(&scrub), 1, "{}", stderr(&scrub));
    assert!(stdout(&scrub).contains("lost"), "{}", stdout(&scrub));
    let anew = content(SHARED);
    blocks.write(0, &anew);
    assert!(blocks.read(0, SHARED) == anew);
    array.assert_clean();
}

/// A backup puts a device's file back, several times. The device is left out, whoever notices first, and then rebuilt.
fn a_medium_is_an_older_copy(id: usize) {
    let mut array = array("timestamp-ordering");
    let host = array.export(1);
    let mut blocks = host.connect();
    let name = format!("disk{id}");
    for round in 0..5 {
        let (disk, older) = (array.disk(&name), array.disk("older"));
        blocks.write(0, &content(SHARED));
        array.devices[id].take().unwrap().kill();
        std::fs::copy(&disk, &older).unwrap();
        array.start(id, &name, &[]);
        array.wait_until_back();
        let newest = content(SHARED);
        blocks.write(0, &newest);
        array.devices[id].take().unwrap().kill();
        std::fs::rename(&older, &disk).unwrap();
        array.start(id, &name, &[]);
        assert!(blocks.read(0, SHARED) == newest, "round {round}");
        wait_for(|| device(&array, id)["condition"] == "failed");
        array.wait_until_back();
        assert!(blocks.read(0, SHARED) == newest, "round {round}");
    }
    judge(array, vec![host]);
}

#[test]
fn a_medium_that_is_an_older_copy_is_rebuilt() {
    a_medium_is_an_older_copy(1);
}

/// The lowest device otherwise decides who is given up.
#[test]
fn the_first_devices_medium_that_is_an_older_copy_is_rebuilt() {
    a_medium_is_an_older_copy(0);
}

/// Nobody has to say that an empty medium is none of the array's.
#[test]
fn the_array_goes_on_without_a_first_device_whose_medium_is_empty() {
    let mut array = array("device-locking");
    let host = array.export(1);
    let mut blocks = host.connect();
    let written = content(SHARED);
    blocks.write(0, &written);
    array.devices[0].take().unwrap().kill();
    array.start(0, "disk0-new", &["--create"]);
    assert!(blocks.read(0, SHARED) == written);
    wait_for(|| device(&array, 0)["condition"] == "failed");
    let replaced = array.lockify("replace", &["--id", "0"]);
    assert_eq!(code(&replaced), 0, "{}{}", stdout(&replaced), stderr(&replaced));
    array.wait_until_healthy();
    assert!(blocks.read(0, SHARED) == written);
    judge(array, vec![host]);
}

/// A block whose checksum is wrong is not returned: its content comes from the others, and a scrub writes it anew.
#[test]
fn a_torn_block_is_read_from_the_others() {
    let mut array = patient_array();
    let host = array.export(1);
    let mut blocks = host.connect();
    blocks.write(0, &content(SHARED));
    let before = blocks.read(0, SHARED);
    end_and_tear(&mut array, 1);
    array.wait_until_healthy();
    assert!(blocks.read(0, SHARED) == before);
    let scrub = array.lockify("scrub", &["--repair"]);
    assert!(code(&scrub) <= 1, "{}", stderr(&scrub));
    assert!(blocks.read(0, SHARED) == before);
    judge(array, vec![host]);
}

/// Wrong files for histories, before anything is served.
#[test]
fn a_history_that_cannot_be_written_is_refused_with_a_reason() {
    let mut array = Array::create(3, &[]);
    array.start_all();
    let file = array.file();
    let socket = array.user.dir().join("socket");
    for (path, words) in [
        ("/nowhere/history", "leave --history away"),
        ("/dev/full", "is full"),
        (file.as_str(), "name another file"),
    ] {
        let args = ["array", "export", &file, "--history", path, "--socket"];
        let refused = array.user.lockify(&[&args[..], &[socket.to_str().unwrap()]].concat());
        assert_eq!(code(&refused), 3);
        assert!(stderr(&refused).contains(words), "{}", stderr(&refused));
    }
}

/// A cluster manager cuts a host off: from then on no write of it takes effect, and nobody waits for it.
#[test]
fn a_host_is_fenced_when_an_operator_says_so() {
    let mut array = array("device-locking");
    let (one, two) = (array.export(1), array.export(2));
    let (mut blocks, mut others) = (one.connect(), two.connect());
    blocks.write(0, &content(SHARED));
    let hosts = device(&array, 0)["hosts"].as_array().unwrap().clone();
    let number = |host: &serde_json::Value| host.as_u64().unwrap();
    let first = hosts.iter().map(number).min().unwrap().to_string();
    let fenced = array.lockify("fence", &["--host", &first]);
    assert_eq!(code(&fenced), 0, "{}", stderr(&fenced));
    others.write(0, &content(SHARED));
    // The export ends by itself. Until it has, clients get errors.
    if blocks.try_begin_write(1, 0, &content(1)).is_ok() {
        let answer = blocks.0.reply_unless_over();
        assert!(answer.as_ref().map_or(true, |(error, _)| *error != 0), "{answer:?}");
    }
    for unknown in ["0", "4000000"] {
        let refused = array.lockify("fence", &["--host", unknown]);
        assert_eq!(code(&refused), 2);
        assert!(stderr(&refused).contains("hosts so far are 1 to"), "{}", stderr(&refused));
    }
}
