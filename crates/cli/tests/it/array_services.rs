//! The shipped units of an array's processes: what systemd would start with them lives, and comes back.

use std::collections::BTreeMap;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::array::Array;
use crate::common::{Process, code, first_line, stderr, wait_for};

const DEVICE: &str = include_str!("../../../../packaging/lockify-array-device@.service");
const EXPORT: &str = include_str!("../../../../packaging/lockify-array-export@.service");
const LOCK_SERVER: &str = include_str!("../../../../packaging/lockify-array-lock-server@.service");

/// A unit's setting.
fn setting<'a>(unit: &'a str, key: &str) -> &'a str {
    let mut values = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.next().unwrap_or_else(|| panic!("no {key}"))
}

/// Stands in for systemd.
struct Manager {
    socket: UnixDatagram,
    array: Array,
}

impl Manager {
    fn of(array: Array) -> Manager {
        let socket = UnixDatagram::bind(array.user.dir().join("notify")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Manager { socket, array }
    }

    /// Starts what the unit says, with these lines in its file of variables; it serves then.
    fn start(&self, unit: &str, instance: &str, variables: &[(&str, &str)]) -> Process {
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        let state = self.array.user.dir().to_str().unwrap().to_owned();
        let mut words = setting(unit, "ExecStart").split(' ');
        assert_eq!(words.next(), Some("/usr/bin/lockify"));
        let args = words.flat_map(|word| match word.strip_prefix('$') {
            // One argument in braces, and as many as there are words without them (systemd.service(5), "Command lines").
            Some(name) if name.starts_with('{') => {
                vec![variables[name.trim_matches(['{', '}'])].to_owned()]
            }
            Some(name) => variables[name].split_whitespace().map(str::to_owned).collect(),
            None => vec![word.replace("%S/lockify-array", &state).replace("%i", instance)],
        });
        let mut command: Command = self.array.user.command(&[]);
        command.args(args).env("NOTIFY_SOCKET", self.array.user.dir().join("notify"));
        let mut process = Process(command.stdout(Stdio::piped()).spawn().unwrap());
        first_line(process.0.stdout.take().unwrap());
        let mut heard = [0; 64];
        let length = self.socket.recv(&mut heard).expect("the manager hears nothing");
        assert_eq!(&heard[..length], b"READY=1\n");
        process
    }
}

#[test]
fn units_start_what_they_say_and_a_fenced_host_comes_back() {
    let manager = Manager::of(Array::create(3, &["--scheme", "server-locking"]));
    let (file, disks) = (manager.array.file(), manager.array.disk(""));
    let path = |name: &str| disks.join(name).to_str().unwrap().to_owned();
    let device = |id: &str, options: &str| {
        let disk = path(&format!("disk{id}"));
        let variables = [("FILE", &*disk), ("ARRAY", &file), ("ID", id), ("OPTIONS", options)];
        manager.start(DEVICE, id, &variables)
    };
    let mut devices: Vec<_> = ["0", "1", "2"].map(|id| device(id, "--create --sparse")).into();
    let locks = path("locks");
    let server = [("LOG", &*locks), ("ARRAY", &*file), ("OPTIONS", "--create")];
    let _server = manager.start(LOCK_SERVER, "one", &server);
    manager.array.wait_until_healthy();
    let options = format!("--socket {}", manager.array.user.dir().join("nbd").display());
    let export = || manager.start(EXPORT, "one", &[("ARRAY", &file), ("OPTIONS", &options)]);
    let mut host = export();
    // It ends with a code that has systemd start it again, as another host.
    let fenced = manager.array.lockify("fence", &["--host", "1"]);
    assert_eq!(code(&fenced), 0, "{}", stderr(&fenced));
    let ended = host.ended().code().unwrap();
    assert_ne!(ended, 0);
    assert_ne!(setting(EXPORT, "RestartPreventExitStatus"), ended.to_string());
    let mut host = export();
    assert_eq!(host.end(), Some(0));
    devices[0].kill();
    devices[0] = device("0", "");
    wait_for(|| manager.array.is_healthy());
}

#[test]
fn units_start_again_and_are_closed_enough() {
    for unit in [DEVICE, EXPORT, LOCK_SERVER] {
        for (key, value) in
            [("Type", "notify"), ("Restart", "on-failure"), ("StartLimitIntervalSec", "0")]
        {
            assert_eq!(setting(unit, key), value);
        }
        assert_eq!(setting(unit, "RestartPreventExitStatus"), "2");
    }
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    for name in ["device", "export", "lock-server"] {
        let mut command = Command::new("systemd-analyze");
        // The score is 10 times the shown value: 3.0.
        command.args(["security", "--no-pager", "--offline=true", "--threshold=30"]);
        match command.arg(folder.join(format!("lockify-array-{name}@.service"))).output() {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("not run: there is no systemd-analyze here");
            }
            out => assert!(out.as_ref().unwrap().status.success(), "{out:?}"),
        }
    }
}
