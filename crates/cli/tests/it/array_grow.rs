//! An array grows while hosts use it. The processes' histories are the evidence.

use crate::common::array::{Array, BLOCK, Blocks, Export};
use crate::common::traffic::{SHARED, content, device, judge, work};
use crate::common::{code, stderr, stdout, wait_for};

fn bytes(array: &Array) -> u64 {
    let status = stdout(&array.lockify("status", &["--json"]));
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    status["bytes"].as_u64().unwrap()
}

fn grow(array: &Array, size: &str) -> String {
    let grown = array.lockify("grow", &["--device-size", size]);
    assert_eq!(code(&grown), 0, "{}", stderr(&grown));
    stdout(&grown)
}

/// Returns true if the block is in the export that this client has.
fn has(blocks: &mut Blocks, start: usize) -> bool {
    blocks.0.request((0, 0), 8, (start * BLOCK) as u64, BLOCK as u32);
    let has = blocks.0.reply() == (0, 8);
    if has {
        blocks.0.get(BLOCK);
    }
    has
}

fn end_of(array: &Array) -> usize {
    usize::try_from(bytes(array)).unwrap() / BLOCK
}

/// The last blocks before the former end and the first ones behind it, in one operation.
fn write_over(host: &Export, former: usize) -> Vec<u8> {
    let data = content(SHARED);
    host.connect().write(former - SHARED / 2, &data);
    data
}

fn grows_while_hosts_work(scheme: &str) {
    let mut array = crate::common::traffic::array(scheme);
    let hosts: Vec<Export> = (1..=2).map(|number| array.export(number)).collect();
    let former = end_of(&array);
    let mut old = hosts[0].connect();
    assert!(has(&mut old, former - 1) && !has(&mut old, former));
    std::thread::scope(|scope| {
        for (seed, host) in (1..).zip(&hosts) {
            scope.spawn(move || work(host, seed, 60));
        }
        let says = grow(&array, "6MiB");
        assert!(says.contains("clients of an export get that size"), "{says}");
    });
    let all = end_of(&array);
    assert!(all > former);
    // The client has the size that it was told.
    assert!(!has(&mut old, former));
    let data = write_over(&hosts[0], former);
    assert!(hosts[1].connect().read(former - SHARED / 2, SHARED) == data);
    let mut new = hosts[1].connect();
    assert!(has(&mut new, all - 1) && !has(&mut new, all));
    assert!(grow(&array, "6MiB").contains("already"));
    // Whoever starts again, with the file as it was made, has the new size.
    array.devices[1].take().unwrap().kill();
    array.start(1, "disk1", &[]);
    array.wait_until_back();
    let mut third = array.export(3);
    assert!(third.connect().read(former - SHARED / 2, SHARED) == data);
    assert_eq!(third.process.end(), Some(0));
    array.assert_clean();
    judge(array, hosts);
}

#[test]
fn an_array_grows_under_timestamp_ordering() {
    grows_while_hosts_work("timestamp-ordering");
}

#[test]
fn an_array_grows_under_callback_locking() {
    grows_while_hosts_work("callback-locking");
}

/// A new medium is made by the array's file, which tells the former size.
#[test]
fn a_device_that_is_replaced_afterwards_gets_the_room() {
    let mut array = Array::create(3, &[]);
    array.start_all();
    let former = end_of(&array);
    grow(&array, "6MiB");
    let host = array.export(1);
    let data = write_over(&host, former);
    array.devices[0].take().unwrap().kill();
    wait_for(|| device(&array, 0)["condition"] == "failed");
    // Nobody knows if a device that is gone has room.
    let refused = array.lockify("grow", &["--device-size", "8MiB"]);
    assert_eq!(code(&refused), 3);
    assert!(stderr(&refused).contains("device 0 is not good"), "{}", stderr(&refused));
    array.start(0, "new", &["--create"]);
    let replaced = array.lockify("replace", &["--id", "0"]);
    assert_eq!(code(&replaced), 0, "{}", stderr(&replaced));
    array.wait_until_healthy();
    array.devices[1].take().unwrap().kill();
    assert!(host.connect().read(former - SHARED / 2, SHARED) == data);
}

#[test]
fn what_cannot_be_had_changes_nothing() {
    let mut array = Array::create(3, &[]);
    array.start_all();
    let former = bytes(&array);
    let smaller = array.lockify("grow", &["--device-size", "3MiB"]);
    assert_eq!(code(&smaller), 2);
    assert!(stderr(&smaller).contains("it cannot become smaller"), "{}", stderr(&smaller));
    // A file cannot be that long.
    let larger = array.lockify("grow", &["--device-size", "2000000TiB"]);
    assert_ne!(code(&larger), 0);
    assert!(array.is_healthy());
    assert_eq!(bytes(&array), former);
}
