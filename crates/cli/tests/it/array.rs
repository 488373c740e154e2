//! `lockify array` with a process per device on loopback: users' work, and their errors.

use crate::common::array::Array;
use crate::common::{User, code, stderr, stdout, wait_for};

#[test]
fn an_array_is_made_served_looked_at_and_scrubbed() {
    let mut array = Array::create(3, &["--lease", "10s"]);
    // Nobody is there yet.
    let status = array.lockify("status", &[]);
    assert_eq!(code(&status), 1);
    // A process that another test starts may hold our listeners for a moment.
    wait_for(|| stdout(&array.lockify("status", &[])).contains("nothing listens at"));
    array.start_all();
    let status = array.lockify("status", &["--json"]);
    let status: serde_json::Value = serde_json::from_str(&stdout(&status)).unwrap();
    assert_eq!(status["schema"], 1);
    assert_eq!(status["healthy"], true);
    assert_eq!(status["scheme"], "timestamp-ordering");
    assert_eq!(status["devices"].as_array().unwrap().len(), 3);
    assert_eq!(status["devices"][2]["condition"], "good");
    // A device that is killed and comes back within a lease is still good.
    array.devices[1].take().unwrap().kill();
    array.start(1, "disk1", &[]);
    array.wait_until_healthy();
}

#[test]
fn what_does_not_belong_together_is_refused_with_a_reason() {
    let mut array = Array::create(3, &[]);
    array.start(0, "disk0", &["--create"]);
    let disk = |name: &str| array.disk(name).to_str().unwrap().to_owned();
    let said = |args: &[&str], wanted: i32, words: &str| {
        let output = array.lockify("device", args);
        assert_eq!(code(&output), wanted, "{}", stderr(&output));
        assert!(stderr(&output).contains(words), "{words:?} is not in {}", stderr(&output));
    };
    let (zero, one, two) = (disk("disk0"), disk("disk1"), disk("disk2"));
    said(&[&zero, "--id", "0"], 3, "another process uses it");
    said(&[&one, "--id", "7", "--create"], 2, "correct --id");
    said(&[&one, "--id", "1"], 3, "cannot open it");
    std::fs::write(&two, "a letter").unwrap();
    said(&[&two, "--id", "2", "--create"], 3, "not empty");
    said(&[&two, "--id", "2"], 3, "--create");
    std::fs::copy(&zero, &one).unwrap();
    said(&[&one, "--id", "1"], 3, "were devices swapped? give --id 0");
    // The device of another array, and the file of another array.
    let other = Array::create(3, &[]);
    let output = other.lockify("device", &[&one, "--id", "0"]);
    assert!(stderr(&output).contains("it belongs to array"), "{}", stderr(&output));
    // The same array, changed.
    let text = std::fs::read_to_string(array.file()).unwrap();
    array.change_lease(3000);
    let status = array.lockify("status", &[]);
    assert!(stdout(&status).contains("the array's files differ"), "{}", stdout(&status));
    std::fs::write(array.file(), text.replace("unit_bytes = 16384", "unit_bytes = 100")).unwrap();
    let status = array.lockify("status", &[]);
    assert_eq!(code(&status), 2);
    assert!(stderr(&status).contains("layout.unit_bytes = 100"), "{}", stderr(&status));
}

/// A repair holds a stripe in memory.
#[test]
fn units_that_repairs_cannot_manage_are_refused_with_the_limit() {
    let user = User::new();
    let create = |unit: &str| {
        let file = user.dir().join(unit);
        let mut args = vec!["array", "create", file.to_str().unwrap()];
        args.extend(["--device-size", "1GiB", "--unit", unit]);
        args.extend([
            "--device",
            "127.0.0.1:1",
            "--device",
            "127.0.0.1:2",
            "--device",
            "127.0.0.1:3",
        ]);
        user.lockify(&args)
    };
    for unit in ["17MiB", "64MiB", "512MiB", "16TiB"] {
        let refused = create(unit);
        assert_eq!(code(&refused), 2, "{unit}");
        let why = stderr(&refused);
        assert!(
            why.contains("may be 16 MiB at most") || why.contains("too large"),
            "{unit}: {why}"
        );
    }
    for unit in ["4KiB", "16MiB"] {
        assert_eq!(code(&create(unit)), 0, "{unit}");
    }
}
