//! More devices of a group are gone than its redundancy bears: what clients, `status` and the commands say, and the ways back.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::array::{Array, BLOCK, Blocks};
use crate::common::relay::Place;
use crate::common::traffic::{content, device, tear};
use crate::common::{code, signals, stderr, stdout, wait_for};
use rustix::process::{Pid, Signal};

/// Blocks of the stripes that tests use: 4 data units of 4 blocks each in five devices.
const STRIPE: usize = 16;
/// Most operations wait until a device is given up.
const SHORT: [&str; 2] = ["--lease", "1s"];
/// Eight such leases, one more for a later operation, and some for a busy machine.
const BOUND: Duration = Duration::from_secs(25);

fn five() -> Array {
    let mut array = Array::create(5, &SHORT);
    array.start_all();
    array
}

/// The error of a read; 0 if there is none.
fn read(blocks: &mut Blocks, block: usize) -> u32 {
    blocks.0.request((0, 0), 9, (block * BLOCK) as u64, BLOCK as u32);
    let (error, _) = blocks.0.reply();
    if error == 0 {
        blocks.0.get(BLOCK);
    }
    error
}

fn write(blocks: &mut Blocks, block: usize) -> u32 {
    blocks.begin_write(3, block, &content(1));
    blocks.0.reply().0
}

/// Until an operation succeeds.
fn until_ok(mut operation: impl FnMut() -> u32) {
    let began = Instant::now();
    while operation() != 0 {
        assert!(began.elapsed() < 2 * BOUND, "it goes on failing");
    }
}

fn status_line(array: &Array, id: usize) -> String {
    let status = array.lockify("status", &[]);
    assert_eq!(code(&status), 1, "{}", stdout(&status));
    let text = stdout(&status);
    text.lines().find(|line| line.starts_with(&format!("{id} "))).unwrap().to_owned()
}

/// A device is ended and given up, and another one's blocks are torn. Then the rebuild of the first one cannot have
/// everything.
fn beside_a_torn_one(array: &mut Array) {
    let mut host = array.export(1);
    host.connect().write(0, &content(4 * STRIPE));
    assert_eq!(host.process.end(), Some(0));
    array.devices[1].take().unwrap().end();
    wait_for(|| device(array, 1)["condition"] == "failed");
    array.devices[2].take().unwrap().end();
    tear(&array.disk("disk2"), 0..2);
    array.start(2, "disk2", &[]);
    wait_for(|| device(array, 2)["serving"] == true);
    array.start(1, "disk1-new", &["--create"]);
}

/// The others agree on a new process after some leases, whatever their length is.
#[test]
fn a_device_is_replaced_with_a_long_lease() {
    let mut array = Array::create(3, &["--lease", "8s"]);
    array.start_all();
    array.devices[0].take().unwrap().kill();
    array.start(0, "disk0-new", &["--create"]);
    let replaced = array.lockify("replace", &["--id", "0"]);
    assert_eq!(code(&replaced), 0, "{}{}", stdout(&replaced), stderr(&replaced));
}

#[test]
fn a_rebuild_that_loses_blocks_says_which_and_ends_with_1() {
    // The restarted device may fence the host that has left. The repair for that may lose the blocks before the rebuild comes
    // there, so that they are no news.
    let rebuilt = || {
        let mut array = five();
        beside_a_torn_one(&mut array);
        let replaced = array.lockify("replace", &["--id", "1"]);
        (array, replaced)
    };
    let (mut array, replaced) =
        (0..5).map(|_| rebuilt()).find(|(_, replaced)| code(replaced) != 0).unwrap();
    let text = stdout(&replaced);
    assert_eq!(code(&replaced), 1, "{text}{}", stderr(&replaced));
    assert!(text.contains("lost, because the other devices do not yield them"), "{text}");
    assert!(text.contains("in stripe 0") && !text.contains("good"), "{text}");
    wait_for(|| (0..5).all(|id| device(&array, id)["unchecked"] == 0));
    // Those that were lost before are no news.
    array.devices[3].take().unwrap().end();
    wait_for(|| device(&array, 3)["condition"] == "failed");
    array.start(3, "disk3-new", &["--create"]);
    let replaced = array.lockify("replace", &["--id", "3"]);
    assert_eq!(code(&replaced), 0, "{}{}", stdout(&replaced), stderr(&replaced));
    assert!(stdout(&replaced).contains("device 3 is rebuilt and good"));
    let scrub = array.lockify("scrub", &[]);
    assert_eq!(code(&scrub), 1, "{}", stdout(&scrub));
    assert!(stdout(&scrub).contains("blocks are lost") && stdout(&scrub).contains("(stripe 0)"));
    let scrub = array.lockify("scrub", &["--json"]);
    let found: serde_json::Value = serde_json::from_str(&stdout(&scrub)).unwrap();
    assert_eq!(found["lost"], serde_json::json!({ "count": 1, "first": [0] }), "{found}");
    assert_eq!(found["lost_blocks"], 4, "{found}");
    assert_eq!((&found["unfit"]["count"], &found["next"]), (&0.into(), &().into()), "{found}");
    // The others' stripes are fine.
    let rest = array.lockify("scrub", &["--from", "1"]);
    assert_eq!(code(&rest), 0, "{}{}", stdout(&rest), stderr(&rest));
    assert_eq!(code(&array.lockify("scrub", &["--from", "1000000"])), 2);
}

/// A scrub that would take hours is stopped, and says where to go on; so is a rebuild.
#[test]
fn work_on_all_stripes_has_a_rate_and_is_stopped_in_order() {
    let mut array = five();
    let args = array.args("scrub", &["--rate", "1KiB"]);
    let mut command = array.user.command(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let scrub = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    catches(&scrub, Signal::INT);
    signals::send(Pid::from_child(&scrub), Signal::INT);
    let ended = scrub.wait_with_output().unwrap();
    assert_eq!(code(&ended), 3);
    assert!(stderr(&ended).contains("go on with --from "), "{}", stderr(&ended));
    array.devices[1].take().unwrap().kill();
    wait_for(|| device(&array, 1)["condition"] == "failed");
    array.start(1, "disk1", &[]);
    wait_for(|| device(&array, 1)["serving"] == true);
    let args = array.args("rebuild", &["--id", "1", "--rate", "1KiB"]);
    let mut command = array.user.command(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let rebuild = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for(|| device(&array, 1)["condition"] == "rebuilding");
    catches(&rebuild, Signal::TERM);
    signals::send(Pid::from_child(&rebuild), Signal::TERM);
    let ended = rebuild.wait_with_output().unwrap();
    assert_eq!(code(&ended), 3);
    assert!(stderr(&ended).contains("continues it"), "{}", stderr(&ended));
    let rebuilt = array.lockify("rebuild", &["--id", "1"]);
    assert_eq!(code(&rebuilt), 0, "{}{}", stdout(&rebuilt), stderr(&rebuilt));
    array.wait_until_healthy();
}

/// Waits until a process handles a signal (proc(5), `SigCgt`).
fn catches(child: &Child, signal: Signal) {
    let status = format!("/proc/{}/status", child.id());
    wait_for(|| {
        let text = std::fs::read_to_string(&status).unwrap();
        let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(mask, 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
    });
}

/// Two devices are gone, and so nobody is given up. What needs them is an error in time, and the rest goes on. When they are
/// back, so is everything, for the same host.
fn two_are_gone(scheme: &str) {
    let mut array = Array::create(5, &[&["--scheme", scheme], &SHORT[..]].concat());
    array.start_all();
    let mut host = array.export(1);
    let mut blocks = host.connect();
    let before = content(4 * STRIPE);
    blocks.write(0, &before);
    array.devices[0].take().unwrap().kill();
    array.devices[1].take().unwrap().kill();
    let began = Instant::now();
    // All at once, and more than one round of them.
    let mut errors = vec![0; STRIPE];
    for block in 0..STRIPE {
        blocks.0.request((0, 0), block as u64, (block * BLOCK) as u64, BLOCK as u32);
    }
    for _ in 0..STRIPE {
        let (error, cookie) = blocks.0.reply();
        errors[cookie as usize] = error;
        if error == 0 {
            let at = cookie as usize * BLOCK;
            assert!(blocks.0.get(BLOCK) == before[at..at + BLOCK]);
        }
    }
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    assert!(errors.iter().all(|error| [0, 5].contains(error)), "{errors:?}");
    // Two of five units are gone: one of them may be parity's.
    assert!((4..=8).contains(&errors.iter().filter(|error| **error == 5).count()), "{errors:?}");
    // A write that has begun on some devices may take effect or not; it is no silence either.
    let began = Instant::now();
    let failed = errors.iter().position(|error| *error == 5).unwrap();
    assert_eq!(write(&mut blocks, failed), 5);
    assert_eq!(read(&mut blocks, failed), 5);
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    let log = array.log(Place::Host(1));
    assert!(log.contains("the array does not answer: "), "{log}");
    array.start(0, "disk0", &[]);
    array.start(1, "disk1", &[]);
    until_ok(|| read(&mut blocks, failed));
    until_ok(|| write(&mut blocks, failed));
    blocks.write(0, &content(4 * STRIPE));
    array.wait_until_healthy();
    array.assert_clean();
    assert_eq!(host.process.end(), Some(0));
}

#[test]
fn two_devices_are_gone_under_timestamp_ordering() {
    two_are_gone("timestamp-ordering");
}

#[test]
fn two_devices_are_gone_under_device_locking() {
    two_are_gone("device-locking");
}

#[test]
fn two_devices_are_gone_under_callback_locking() {
    two_are_gone("callback-locking");
}

/// One device is gone, and the other one's file was replaced. `status` calls nothing good that is empty, and the documented
/// way out works.
#[test]
fn an_empty_device_beside_a_missing_one() {
    let mut array = five();
    let host = array.export(1);
    let mut blocks = host.connect();
    let before = content(4 * STRIPE);
    blocks.write(0, &before);
    array.devices[0].take().unwrap().kill();
    array.devices[1].take().unwrap().kill();
    array.start(1, "disk1-new", &["--create"]);
    wait_for(|| {
        let line = status_line(&array, 1);
        assert!(!line.contains(" good "), "{line}");
        line.contains("its medium is empty")
    });
    assert_eq!(device(&array, 1)["condition"], "new");
    assert_eq!(device(&array, 1)["serving"], false);
    let began = Instant::now();
    let errors: Vec<u32> = (0..STRIPE).map(|block| read(&mut blocks, block)).collect();
    assert!(errors.contains(&5) && errors.contains(&0), "{errors:?}");
    assert!(began.elapsed() < 2 * BOUND, "{:?}", began.elapsed());
    let refused = array.lockify("replace", &["--id", "1"]);
    assert_eq!(code(&refused), 3);
    let text = stderr(&refused);
    assert!(
        text.contains("since device 0 does not answer") && text.contains("--accept-loss"),
        "{text}"
    );
    let replaced = array.lockify("replace", &["--id", "1", "--accept-loss"]);
    let text = stdout(&replaced) + &stderr(&replaced);
    assert_eq!(code(&replaced), 1, "{text}");
    assert!(text.contains("device 0 is given up as well") && text.contains("lost"), "{text}");
    array.start(0, "disk0-new", &["--create"]);
    let replaced = array.lockify("replace", &["--id", "0"]);
    assert_eq!(code(&replaced), 1, "{}{}", stdout(&replaced), stderr(&replaced));
    array.wait_until_healthy();
    // The others' content is there; the rest is an error, and never wrong data.
    let mut lost = 0;
    for block in 0..4 * STRIPE {
        blocks.0.request((0, 0), 9, (block * BLOCK) as u64, BLOCK as u32);
        match blocks.0.reply() {
            (0, 9) => assert!(blocks.0.get(BLOCK) == before[block * BLOCK..][..BLOCK], "{block}"),
            (error, _) => {
                assert_eq!(error, 5, "EIO");
                lost += 1;
            }
        }
    }
    assert!((STRIPE..=2 * STRIPE).contains(&lost), "{lost}");
    blocks.write(0, &content(20 * STRIPE));
    let whole = array.lockify("scrub", &["--repair"]);
    assert!(stdout(&whole).contains("stripes"), "{}", stderr(&whole));
}

/// A device that is gone has its content; the other one's file was replaced. The first one is not given up for that, whichever of the two
/// is lower. When it is back, nothing is lost.
#[test]
fn a_missing_device_is_kept_beside_an_empty_one() {
    for (gone, empty) in [(3, 4), (4, 3), (0, 4)] {
        let mut array = five();
        let host = array.export(1);
        let mut blocks = host.connect();
        let before = content(4 * STRIPE);
        blocks.write(0, &before);
        array.devices[gone].take().unwrap().kill();
        array.devices[empty].take().unwrap().kill();
        array.start(empty, "new", &["--create"]);
        wait_for(|| device(&array, empty)["condition"] == "new");
        // A client's error tells that more than a lease has passed.
        let began = Instant::now();
        while (0..STRIPE).all(|block| read(&mut blocks, block) == 0) {
            assert!(began.elapsed() < 2 * BOUND, "no read fails");
        }
        assert_eq!(device(&array, gone)["condition"], "good", "{gone} beside {empty}");
        array.start(gone, &format!("disk{gone}"), &[]);
        wait_for(|| device(&array, empty)["condition"] == "failed");
        let replaced = array.lockify("replace", &["--id", &empty.to_string()]);
        assert_eq!(code(&replaced), 0, "{}{}", stdout(&replaced), stderr(&replaced));
        array.wait_until_healthy();
        assert!(blocks.read(0, before.len() / BLOCK) == before, "{gone} beside {empty}");
    }
}

/// A group of which a device was given up loses another one.
#[test]
fn a_device_is_lost_beside_one_that_has_failed() {
    let mut array = five();
    let host = array.export(1);
    host.connect().write(0, &content(2 * STRIPE));
    array.devices[0].take().unwrap().kill();
    wait_for(|| device(&array, 0)["condition"] == "failed");
    array.start(0, "disk0-new", &["--create"]);
    array.devices[1].take().unwrap().kill();
    array.start(1, "disk1-new", &["--create"]);
    wait_for(|| device(&array, 1)["condition"] == "new");
    let refused = array.lockify("replace", &["--id", "1"]);
    assert_eq!(code(&refused), 3);
    assert!(stderr(&refused).contains("the blocks of both would be lost"), "{}", stderr(&refused));
    let replaced = array.lockify("replace", &["--id", "1", "--accept-loss"]);
    assert_eq!(code(&replaced), 1, "{}{}", stdout(&replaced), stderr(&replaced));
    let replaced = array.lockify("replace", &["--id", "0"]);
    assert_eq!(code(&replaced), 1, "{}{}", stdout(&replaced), stderr(&replaced));
    array.wait_until_healthy();
}

/// `assemble` with the file of a device: its exit code, and all that it says.
fn assemble(array: &Array, disk: &str, more: &[&str]) -> (i32, String) {
    let disk = array.disk(disk);
    let found = array.lockify("assemble", &[&[disk.to_str().unwrap()], more].concat());
    (code(&found), stdout(&found) + &stderr(&found))
}

/// What a client gets of each block: an error, or its content.
fn read_all(blocks: &mut Blocks, count: usize) -> Vec<Option<Vec<u8>>> {
    let read = |block: usize| {
        blocks.0.request((0, 0), 9, (block * BLOCK) as u64, BLOCK as u32);
        match blocks.0.reply() {
            (0, 9) => Some(blocks.0.get(BLOCK)),
            (error, _) => {
                assert_eq!(error, 5, "EIO");
                None
            }
        }
    };
    (0..count).map(read).collect()
}

/// A device went out, and hosts wrote on. Then another one is lost. The file of the first one brings back what was not written
/// since, of both.
#[test]
fn a_device_comes_back_with_its_content_beside_a_lost_one() {
    let mut array = five();
    let mut host = array.export(1);
    let mut blocks = host.connect();
    let before = content(4 * STRIPE);
    blocks.write(0, &before);
    let (ended, text) = assemble(&array, "disk0", &[]);
    assert!(ended == 3 && text.contains("device 0 is good"), "{text}");
    array.devices[0].take().unwrap().kill();
    wait_for(|| device(&array, 0)["condition"] == "failed");
    let since = vec![0x5a; STRIPE * BLOCK];
    blocks.write(0, &since);
    let (ended, text) = assemble(&array, "disk0", &[]);
    assert!(ended == 3 && text.contains("no process serves it"), "{text}");
    array.start(0, "disk0", &[]);
    let (ended, text) = assemble(&array, "disk0", &["--force"]);
    assert!(ended == 3 && text.contains("`lockify array rebuild --id 0`"), "{text}");
    array.devices[1].take().unwrap().kill();
    std::fs::remove_file(array.disk("disk1")).unwrap();
    let (ended, text) = assemble(&array, "disk0", &[]);
    assert!(ended == 1 && text.contains("nothing is changed"), "{text}");
    assert!(text.contains("device 0 has left with its data blocks:"), "{text}");
    let conditions = [0, 1].map(|id| device(&array, id)["condition"].clone());
    assert_eq!(conditions, ["failed", "good"]);
    let (ended, text) = assemble(&array, "disk0", &["--force"]);
    assert!(ended == 1 && text.contains("device 1 is given up: replace it now"), "{text}");
    assert_eq!(device(&array, 0)["condition"], "good");
    array.start(1, "disk1-new", &["--create"]);
    let replaced = array.lockify("replace", &["--id", "1"]);
    assert!(code(&replaced) < 2, "{}{}", stdout(&replaced), stderr(&replaced));
    array.wait_until_healthy();
    let found = read_all(&mut blocks, 4 * STRIPE);
    let lost = found.iter().filter(|block| block.is_none()).count();
    // Of the first stripe, what either device had. Nobody has written in the others since.
    assert!((4..=8).contains(&lost), "{lost}");
    assert!(found[STRIPE..].iter().all(Option::is_some));
    for (block, data) in found.iter().enumerate() {
        let range = block * BLOCK..(block + 1) * BLOCK;
        let newest = if block < STRIPE { &since[range] } else { &before[range] };
        assert!(data.as_ref().is_none_or(|data| data == newest), "block {block}");
    }
    blocks.write(0, &before);
    assert_eq!(host.process.end(), Some(0));
}

/// Media that cannot help are refused with the reason, and the right command is named.
#[test]
fn media_that_cannot_bring_a_device_back_are_refused() {
    let mut array = five();
    let mut host = array.export(1);
    host.connect().write(0, &content(STRIPE));
    assert_eq!(host.process.end(), Some(0));
    std::fs::write(array.disk("nonsense"), [7; 9000]).unwrap();
    let (ended, text) = assemble(&array, "nonsense", &["--force"]);
    assert!(ended == 2 && text.contains("no device of an array"), "{text}");
    assert_eq!(assemble(&array, "nowhere", &[]).0, 2);
    array.devices[0].take().unwrap().kill();
    wait_for(|| device(&array, 0)["condition"] == "failed");
    let (ended, text) = assemble(&array, "disk0", &["--force"]);
    assert!(ended == 3 && text.contains("no process serves it"), "{text}");
    array.start(0, "disk0", &[]);
    wait_for(|| device(&array, 0)["serving"] == true);
    // Two others of the group are gone, and one of them is there again without content.
    for id in [1, 2] {
        array.devices[id].take().unwrap().kill();
    }
    array.start(1, "disk1-new", &["--create"]);
    let (ended, text) = assemble(&array, "disk1-new", &["--force"]);
    assert!(ended == 2 && text.contains("it has nothing of device 1"), "{text}");
    let (ended, text) = assemble(&array, "disk0", &["--force"]);
    assert!(ended == 3 && text.contains("devices 1, 2 of its group are gone as well"), "{text}");
    let other = Array::create(3, &[]);
    let (ended, text) = assemble(&other, array.disk("disk0").to_str().unwrap(), &[]);
    assert!(ended == 2 && text.contains("another array"), "{text}");
}
