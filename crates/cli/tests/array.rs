//! `lockify array` with a process per device on loopback: what users do, and what they do wrong.

mod common;

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Output, Stdio};

use common::{Process, User, code, stderr, stdout, wait_for};

struct Array {
    user: User,
    /// Devices' files: on a disk, since what is in memory may refuse direct I/O.
    disks: tempfile::TempDir,
    security: Vec<String>,
    devices: Vec<Option<Process>>,
}

impl Array {
    fn create(devices: usize, more: &[&str]) -> Array {
        // Held until all are known, so that none is given twice.
        let held: Vec<_> =
            (0..devices).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let here = std::env::current_exe().unwrap();
        let disks = tempfile::tempdir_in(here.parent().unwrap()).unwrap();
        let array = Array {
            user: User::new(),
            disks,
            security: Vec::new(),
            devices: (0..devices).map(|_| None).collect(),
        };
        let file = array.file();
        let mut args = vec!["array".to_owned(), "create".into(), file];
        args.extend(
            ["--device-size", "4MiB", "--unit", "16KiB", "--lease", "1s"].map(str::to_owned),
        );
        for listener in &held {
            args.extend(["--device".to_owned(), listener.local_addr().unwrap().to_string()]);
        }
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let made = array.user.lockify(&args);
        assert_eq!(code(&made), 0, "{}", stderr(&made));
        assert!(stdout(&made).contains("lockify array device"), "{}", stdout(&made));
        array
    }

    fn file(&self) -> String {
        self.user.dir().join("array.toml").to_str().unwrap().to_owned()
    }

    fn disk(&self, name: &str) -> PathBuf {
        self.disks.path().join(name)
    }

    /// The arguments of a subcommand about this array.
    fn args(&self, subcommand: &str, more: &[&str]) -> Vec<String> {
        let mut args = vec!["array".to_owned(), subcommand.to_owned()];
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        args.extend(["--array".to_owned(), self.file()]);
        args.extend(self.security.clone());
        args
    }

    fn lockify(&self, subcommand: &str, more: &[&str]) -> Output {
        let args = self.args(subcommand, more);
        self.user.lockify(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn start(&mut self, id: usize, disk: &str, more: &[&str]) {
        let (disk, number) = (self.disk(disk), id.to_string());
        let mut all = vec![disk.to_str().unwrap(), "--id", &number];
        all.extend(more);
        let args = self.args("device", &all);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut device = self.user.command(&args).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(device.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with(&format!("device {id} of array")), "it said {line:?}");
        self.devices[id] = Some(Process(device));
    }

    fn start_all(&mut self) {
        for id in 0..self.devices.len() {
            self.start(id, &format!("disk{id}"), &["--create"]);
        }
        self.wait_until_healthy();
    }

    fn is_healthy(&self) -> bool {
        code(&self.lockify("status", &[])) == 0
    }

    fn wait_until_healthy(&self) {
        wait_for(|| self.is_healthy());
    }
}

#[test]
fn an_array_is_made_served_looked_at_and_scrubbed() {
    let mut array = Array::create(3, &[]);
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
    let changed = text.replace("lease_ms = 1000", "lease_ms = 2000");
    assert_ne!(text, changed);
    std::fs::write(array.file(), changed).unwrap();
    let status = array.lockify("status", &[]);
    assert!(stdout(&status).contains("the array's files differ"), "{}", stdout(&status));
    std::fs::write(array.file(), text.replace("unit_bytes = 16384", "unit_bytes = 100")).unwrap();
    let status = array.lockify("status", &[]);
    assert_eq!(code(&status), 2);
    assert!(stderr(&status).contains("layout.unit_bytes = 100"), "{}", stderr(&status));
}

#[test]
fn with_keys_only_those_who_have_them_take_part() {
    let mut array = Array::create(3, &[]);
    let key = array.user.dir().join("key");
    for name in ["key", "other"] {
        let path = array.user.dir().join(name);
        let made = array.user.lockify(&["cluster", "key", path.to_str().unwrap()]);
        assert_eq!(code(&made), 0, "{}", stderr(&made));
    }
    let keys = |key: &PathBuf| {
        ["--cluster-key", key.to_str().unwrap(), "--node", "0"].map(str::to_owned).to_vec()
    };
    array.security = keys(&key);
    array.start_all();
    array.security = keys(&array.user.dir().join("other"));
    let status = array.lockify("status", &[]);
    assert_eq!(code(&status), 1);
    assert!(!stdout(&status).contains("serves"), "{}", stdout(&status));
    array.security = Vec::new();
    let status = array.lockify("status", &[]);
    assert_eq!(code(&status), 1);
    assert!(!stdout(&status).contains("serves"), "{}", stdout(&status));
    let scrub = array.lockify("scrub", &[]);
    assert_eq!(code(&scrub), 3);
    assert!(stderr(&scrub).contains("TLS"), "{}", stderr(&scrub));
}
