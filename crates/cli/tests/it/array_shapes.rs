//! Mirrors, several groups, witnesses, and the block devices' real clients, with a process for each device and host.

use std::process::{Command, Stdio};

use crate::common::array::{Array, BLOCK, Export};
use crate::common::relay::Place;
use crate::common::traffic::{SHARED, content, device, judge, work};
use crate::common::{code, stderr, stdout, wait_for};

/// Devices are killed while hosts work; the array goes on without them, and has them again when they are rebuilt.
fn goes_on_without(mut array: Array, killed: &[usize]) {
    array.recorded = true;
    array.start_all();
    let hosts: Vec<Export> = (1..=2).map(|number| array.export(number)).collect();
    std::thread::scope(|scope| {
        for (seed, host) in (1..).zip(&hosts) {
            scope.spawn(move || work(host, seed, 60));
        }
        for id in killed {
            array.devices[*id].take().unwrap().kill();
        }
    });
    for id in killed {
        wait_for(|| device(&array, *id)["condition"] == "failed");
    }
    let written = content(SHARED);
    hosts[0].connect().write(0, &written);
    assert!(hosts[1].connect().read(0, SHARED) == written);
    for id in killed {
        array.start(*id, &format!("disk{id}"), &[]);
        let number = id.to_string();
        // It waits until the others have let the device in.
        let rebuilt = array.lockify("rebuild", &["--id", &number]);
        assert_eq!(code(&rebuilt), 0, "{}", stderr(&rebuilt));
    }
    array.wait_until_healthy();
    assert!(hosts[1].connect().read(0, SHARED) == written);
    judge(array, hosts);
}

#[test]
fn a_mirror_with_a_witness_goes_on_without_a_device() {
    goes_on_without(Array::with_witnesses(2, 1, &["--mirror"]), &[1]);
}

#[test]
fn two_mirrors_go_on_without_a_device_each() {
    goes_on_without(Array::with_witnesses(4, 1, &["--mirror", "--groups", "2"]), &[0, 3]);
}

#[test]
fn two_groups_go_on_without_a_device_each() {
    goes_on_without(Array::with_witnesses(6, 0, &["--groups", "2"]), &[2, 3]);
}

/// Two devices of a group at once.
#[test]
fn with_two_parities_an_array_goes_on_without_two_devices_of_a_group() {
    goes_on_without(Array::create(5, &["--raid6"]), &[1, 3]);
}

/// Two devices and their files are lost for good, while hosts write. New ones take their places, one after the other.
#[test]
fn two_lost_devices_of_a_group_are_replaced_while_hosts_write() {
    let mut array = Array::create(5, &["--raid6"]);
    array.recorded = true;
    array.start_all();
    let hosts: Vec<Export> = (1..=2).map(|number| array.export(number)).collect();
    let written = content(SHARED);
    hosts[0].connect().write(0, &written);
    for id in [0, 2] {
        array.devices[id].take().unwrap().kill();
    }
    for id in [0, 2] {
        wait_for(|| device(&array, id)["condition"] == "failed");
    }
    assert!(hosts[1].connect().read(0, SHARED) == written);
    for id in [0, 2] {
        array.start(id, &format!("new{id}"), &["--create"]);
    }
    std::thread::scope(|scope| {
        for (seed, host) in (1..).zip(&hosts) {
            scope.spawn(move || work(host, seed, 60));
        }
        for id in ["0", "2"] {
            let replaced = array.lockify("replace", &["--id", id]);
            assert_eq!(code(&replaced), 0, "{}{}", stdout(&replaced), stderr(&replaced));
        }
    });
    array.wait_until_healthy();
    let written = content(SHARED);
    hosts[1].connect().write(0, &written);
    assert!(hosts[0].connect().read(0, SHARED) == written);
    judge(array, hosts);
}

/// Of two devices alone neither has a majority: they stop, and nothing is lost.
#[test]
fn a_mirror_without_a_witness_waits() {
    let mut array = Array::create(2, &["--mirror"]);
    array.start_all();
    let host = array.export(1);
    let written = content(SHARED);
    host.connect().write(0, &written);
    array.devices[1].take().unwrap().kill();
    wait_for(|| array.log(Place::Device(0)).contains("no majority"));
    assert_eq!(device(&array, 1)["condition"], "good");
    array.start(1, "disk1", &[]);
    array.wait_until_healthy();
    assert!(host.connect().read(0, SHARED) == written);
}

/// Runs a client of block devices that succeeds, for its output.
fn run(package: &str, program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|e| {
        panic!("{program} cannot be started ({e}); install it: apt-get install {package}")
    });
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {text}{}", stderr(&output));
    text
}

/// nbdinfo, nbdcopy and qemu-io. Each reads at another host than the data was written at.
#[test]
fn block_devices_clients_use_an_array_by_two_hosts() {
    if std::env::var_os("LOCKIFY_TEST_NBD").is_none() {
        return eprintln!(
            "not run: apt-get install libnbd-bin qemu-utils, and LOCKIFY_TEST_NBD=1 runs it"
        );
    }
    let mut array = Array::create(3, &[]);
    array.start_all();
    let (one, two) = (array.export(1), array.export(2));
    let size: usize = run("libnbd-bin", "nbdinfo", &["--size", &two.uri()]).trim().parse().unwrap();
    assert_eq!(size % BLOCK, 0);
    let (there, back) = (array.user.dir().join("there"), array.user.dir().join("back"));
    let bytes = content(size / BLOCK);
    std::fs::write(&there, &bytes).unwrap();
    let (there, back) = (there.to_str().unwrap(), back.to_str().unwrap());
    run("libnbd-bin", "nbdcopy", &["--connections=4", "--flush", there, &one.uri()]);
    run("libnbd-bin", "nbdcopy", &["--connections=4", &two.uri(), back]);
    assert!(std::fs::read(back).unwrap() == bytes);
    let qemu = |host: &Export, commands: &[&str]| {
        let mut args = vec!["-f", "raw", "-t", "none"];
        args.extend(commands.iter().flat_map(|command| ["-c", command]));
        let uri = host.uri();
        args.push(&uri);
        let text = run("qemu-utils", "qemu-io", &args);
        assert!(!text.contains("failed") && !text.contains("error"), "{text}");
    };
    qemu(&one, &["write -P 1 0 1M", "write -f -P 2 1M 512k", "write -P 3 1000 5000", "flush"]);
    qemu(&two, &["read -P 3 1000 5000", "read -P 1 6000 500", "read -P 2 1M 512k"]);
    array.assert_clean();
}
