//! `lockify array examine`: a device's medium says what it is, and gives the array's file back.

use std::os::unix::fs::FileExt as _;

use crate::common::array::{Array, LEASE};
use crate::common::traffic::{content, device};
use crate::common::{code, stderr, stdout, wait_for};

fn examine(array: &Array, disk: &str, more: &[&str]) -> std::process::Output {
    let disk = array.disk(disk);
    let args = [&["array", "examine", disk.to_str().unwrap()], more].concat();
    array.user.lockify(&args)
}

fn json(array: &Array, disk: &str, more: &[&str]) -> serde_json::Value {
    let found = examine(array, disk, &[&["--json"], more].concat());
    assert!(code(&found) < 2, "{}", stderr(&found));
    serde_json::from_str(&stdout(&found)).unwrap()
}

/// Changes the bytes of a file at some place.
fn spoil(array: &Array, disk: &str, places: &[u64]) {
    let file = std::fs::File::options().read(true).write(true).open(array.disk(disk)).unwrap();
    for place in places {
        let mut byte = [0];
        file.read_exact_at(&mut byte, *place).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], *place).unwrap();
    }
}

/// While it is served and afterwards. The restored file is as good as the first one.
#[test]
fn a_device_gives_the_arrays_file_back() {
    let mut array = Array::create(3, &["--scheme", "device-locking", "--durable-on-flush"]);
    array.start_all();
    let mut host = array.export(1);
    host.connect().write(0, &content(20));
    assert_eq!(host.process.end(), Some(0));
    let found = json(&array, "disk1", &["--blocks"]);
    assert_eq!((&found["in_use"], &found["device"]), (&true.into(), &1.into()));
    assert_eq!(found["scheme"], "device-locking");
    assert_eq!(found["durable_on_flush"], true);
    assert_eq!(found["timing"]["lease_ms"], LEASE.as_millis() as u64);
    assert_eq!(found["record"]["devices"][2]["condition"], "good");
    assert!(found["content"]["whole"].as_u64().unwrap() > 0, "{found}");
    assert_eq!(found["problems"], serde_json::json!([]));
    array.devices[2].take().unwrap().kill();
    wait_for(|| device(&array, 2)["condition"] == "failed");
    let found = json(&array, "disk1", &[]);
    assert_eq!(found["record"]["devices"][2]["condition"], "failed");
    array.end();
    let text = stdout(&examine(&array, "disk1", &[]));
    assert!(text.contains("no process serves it") && text.contains("2 failed"), "{text}");
    let out = array.user.dir().join("again.toml");
    let restored = examine(&array, "disk2", &["--array-file", out.to_str().unwrap()]);
    assert_eq!(code(&restored), 0, "{}", stderr(&restored));
    let first = std::fs::read_to_string(array.file()).unwrap();
    assert_eq!(std::fs::read_to_string(&out).unwrap(), first);
    // Nothing is overwritten.
    let again = examine(&array, "disk2", &["--array-file", out.to_str().unwrap()]);
    assert_eq!(code(&again), 3);
    assert!(stderr(&again).contains("exists"), "{}", stderr(&again));
}

/// An address that was changed is on the medium when the device is served with it.
#[test]
fn a_changed_array_file_is_kept_when_the_device_is_served() {
    let mut array = Array::create(3, &[]);
    array.start_all();
    array.end();
    array.change_lease(1500);
    for id in 0..3 {
        array.start(id, &format!("disk{id}"), &[]);
    }
    array.wait_until_healthy();
    assert_eq!(json(&array, "disk0", &[])["timing"]["lease_ms"], 1500);
}

#[test]
fn damage_is_named_and_what_is_no_device_is_refused() {
    let mut array = Array::create(3, &[]);
    array.start_all();
    array.end();
    for (name, bytes) in [("empty", vec![]), ("short", vec![7; 100]), ("other", vec![7; 9000])] {
        std::fs::write(array.disk(name), bytes).unwrap();
        let refused = examine(&array, name, &[]);
        assert_eq!(code(&refused), 2, "{name}");
        assert!(stderr(&refused).contains("no device of an array"), "{}", stderr(&refused));
    }
    assert_eq!(code(&examine(&array, "nowhere", &[])), 2);
    assert_eq!(code(&examine(&array, ".", &[])), 2);
    let copy = |name: &str| std::fs::copy(array.disk("disk0"), array.disk(name)).unwrap();
    let problems = |name: &str| {
        let found = json(&array, name, &[]);
        assert_eq!(code(&examine(&array, name, &[])), 1, "{found}");
        found["problems"].to_string()
    };
    copy("cut");
    let cut = std::fs::File::options().write(true).open(array.disk("cut")).unwrap();
    cut.set_len(3 << 20).unwrap();
    assert!(problems("cut").contains("it was cut"));
    // Even within the records.
    cut.set_len(1 << 20).unwrap();
    assert!(problems("cut").contains("it was cut"));
    copy("one");
    spoil(&array, "one", &[20]);
    assert!(problems("one").contains("copies of the superblock differ: damaged, number"));
    copy("both");
    spoil(&array, "both", &[20, 4096 + 20]);
    let refused = examine(&array, "both", &[]);
    assert_eq!(code(&refused), 2);
    assert!(stderr(&refused).contains("both copies of its superblock are damaged"));
    copy("record");
    spoil(&array, "record", &[8192 + 30, 8192 + (1 << 20) + 30]);
    assert!(problems("record").contains("no copy of the record is whole"));
}

/// A medium of an earlier release does not have the array's file: addresses and timing come from the command line.
#[test]
fn a_medium_without_the_arrays_file_takes_addresses() {
    let mut array = Array::create(3, &[]);
    array.start_all();
    array.end();
    let disk = std::fs::File::options().write(true).open(array.disk("disk0")).unwrap();
    for slot in [8192 + (704 << 10), 8192 + (1 << 20) + (704 << 10)] {
        disk.write_all_at(&vec![0; 64 << 10], slot).unwrap();
    }
    let out = array.user.dir().join("again.toml");
    let out = out.to_str().unwrap();
    assert_eq!(json(&array, "disk0", &[])["scheme"], serde_json::Value::Null);
    let refused = examine(&array, "disk0", &["--array-file", out]);
    assert_eq!(code(&refused), 3);
    assert!(stderr(&refused).contains("give --device ADDR:PORT for each of the 3 devices"));
    let file = lockify_volume::ArrayFile::read(std::path::Path::new(&array.file())).unwrap();
    let lease = format!("{}s", LEASE.as_secs());
    let mut more = vec!["--array-file".to_owned(), out.to_owned(), "--lease".into(), lease];
    for entry in &file.devices {
        more.extend(["--device".to_owned(), entry.address.to_string()]);
    }
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let restored = examine(&array, "disk0", &more);
    assert_eq!(code(&restored), 0, "{}", stderr(&restored));
    let again = lockify_volume::ArrayFile::read(std::path::Path::new(out)).unwrap();
    assert_eq!(again, file);
}
