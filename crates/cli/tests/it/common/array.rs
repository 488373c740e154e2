//! An array of real processes on loopback: devices, a lock server, hosts that export it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use lockify_volume::{ArrayFile, DeviceEntry};

use super::fuse::Fuse;
use super::nbd::{Client, head};
use super::ports::free_address;
use super::relay::{Network, Place};
use super::wall::Wall;
use super::{Process, User, code, first_line, stderr, stdout, wait_for};

/// Bytes per block.
pub const BLOCK: usize = 4096;

pub struct Array {
    pub user: User,
    /// Devices' files: on a disk, because files in memory may refuse direct I/O.
    disks: tempfile::TempDir,
    pub security: Vec<String>,
    pub devices: Vec<Option<Process>>,
    /// The entries of devices that came later.
    added: Vec<DeviceEntry>,
    pub lock_server: Option<Process>,
    /// Another lock server, which stands by at first.
    pub standby: Option<Process>,
    /// The lock server's log, where it is not among the devices' files.
    pub lock_log: Option<PathBuf>,
    /// True if processes write histories; and the histories that they have begun.
    pub recorded: bool,
    histories: Vec<PathBuf>,
    /// If processes meet by way of relays.
    pub network: Option<Network>,
    /// Wall clocks of those that have one of their own.
    pub walls: BTreeMap<Place, Wall>,
    /// The fuses of processes that die at a step that the test chooses; processes with a clock of
    /// their own have none.
    pub fuses: BTreeMap<Place, Fuse>,
}

/// The lease of arrays, unless a test says another one. Processes have to run so often on a busy machine.
pub const LEASE: Duration = Duration::from_secs(2);

impl Array {
    pub fn create(devices: usize, more: &[&str]) -> Array {
        Array::with_witnesses(devices, 0, more)
    }

    /// Three devices and two lock servers.
    pub fn with_standby(scheme: &str, lease: &str) -> Array {
        let standby = free_address().to_string();
        Array::create(3, &["--scheme", scheme, "--lock-server", &standby, "--lease", lease])
    }

    /// Witnesses come after the devices, and are started as they are.
    pub fn with_witnesses(devices: usize, witnesses: usize, more: &[&str]) -> Array {
        Array::describe(devices, witnesses, |_| String::new(), more)
    }

    /// Each device has to prove that it is a node of its own, and so has the lock server: 1 and so on, in this order.
    pub fn of_nodes(devices: usize, more: &[&str]) -> Array {
        Array::describe(devices, 0, |index| format!("@{}", index + 1), more)
    }

    fn describe(
        devices: usize,
        witnesses: usize,
        node: impl Fn(usize) -> String,
        more: &[&str],
    ) -> Array {
        let voters = devices + witnesses;
        let place = |index: usize| format!("{}{}", free_address(), node(index));
        let here = std::env::current_exe().unwrap();
        let disks = tempfile::tempdir_in(here.parent().unwrap()).unwrap();
        let array = Array {
            user: User::new(),
            disks,
            security: Vec::new(),
            devices: (0..voters).map(|_| None).collect(),
            added: Vec::new(),
            lock_server: None,
            standby: None,
            lock_log: None,
            recorded: false,
            histories: Vec::new(),
            network: None,
            walls: BTreeMap::new(),
            fuses: BTreeMap::new(),
        };
        let file = array.file();
        let mut args = vec!["array".to_owned(), "create".into(), file];
        args.extend(["--device-size", "4MiB", "--unit", "16KiB"].map(str::to_owned));
        if !more.contains(&"--lease") {
            args.extend(["--lease".to_owned(), format!("{}s", LEASE.as_secs())]);
        }
        for device in 0..devices {
            args.extend(["--device".to_owned(), place(device)]);
        }
        for witness in devices..voters {
            args.extend(["--witness".to_owned(), place(witness)]);
        }
        if more.iter().any(|arg| ["server-locking", "callback-locking"].contains(arg)) {
            args.extend(["--lock-server".to_owned(), place(voters)]);
        }
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let made = array.user.lockify(&args);
        assert_eq!(code(&made), 0, "{}", stderr(&made));
        assert!(stdout(&made).contains("lockify array device"), "{}", stdout(&made));
        array
    }

    pub fn file(&self) -> String {
        self.user.dir().join("array.toml").to_str().unwrap().to_owned()
    }

    /// Gives the array's file another lease.
    pub fn change_lease(&self, millis: u64) {
        let text = std::fs::read_to_string(self.file()).unwrap();
        let lease = |millis: u128| format!("lease_ms = {millis}");
        let changed = text.replace(&lease(LEASE.as_millis()), &lease(millis.into()));
        assert_ne!(text, changed);
        std::fs::write(self.file(), changed).unwrap();
    }

    /// Gives the array's file entries of another group of devices. Returns their numbers.
    pub fn describe_group(&mut self, devices: usize) -> Vec<usize> {
        let mut file = ArrayFile::read(Path::new(&self.file())).unwrap();
        let first = self.devices.len();
        for id in first..first + devices {
            let address = free_address().into();
            file.added.push(DeviceEntry { id: id as u16, address, node: 0 });
            self.devices.push(None);
        }
        self.added.clone_from(&file.added);
        self.describe_group_again();
        (first..first + devices).collect()
    }

    /// The array's file has the entries of all groups that came later.
    pub fn describe_group_again(&self) {
        let mut file = ArrayFile::read(Path::new(&self.file())).unwrap();
        file.added.clone_from(&self.added);
        std::fs::remove_file(self.file()).unwrap();
        file.create(Path::new(&self.file())).unwrap();
    }

    /// The array's file as a process needs it: where it finds the others.
    fn file_of(&mut self, place: Place) -> String {
        let Some(network) = &mut self.network else { return self.file() };
        let mut file = ArrayFile::read(self.user.dir().join("array.toml").as_path()).unwrap();
        let others =
            file.devices.iter_mut().map(|entry| (usize::from(entry.id), &mut entry.address));
        let others = others.map(|(id, address)| (Place::Device(id), address));
        let server = file.lock_server.iter_mut().map(|entry| (Place::Server, &mut entry.address));
        let standby = file.standbys.iter_mut().map(|entry| (Place::Standby, &mut entry.address));
        for (other, address) in
            others.chain(server).chain(standby).filter(|(other, _)| *other != place)
        {
            *address = network.way(place, other, address.socket().unwrap()).into();
        }
        let path = self.user.dir().join(format!("{place:?}.toml"));
        if !path.exists() {
            file.create(&path).unwrap();
        }
        path.to_str().unwrap().to_owned()
    }

    /// The messages of a place's processes to operators.
    pub fn log(&self, place: Place) -> String {
        std::fs::read_to_string(self.log_file(place)).unwrap_or_default()
    }

    fn log_file(&self, place: Place) -> PathBuf {
        self.user.dir().join(format!("{place:?}.log"))
    }

    pub fn disk(&self, name: &str) -> PathBuf {
        self.disks.path().join(name)
    }

    /// The arguments of a subcommand about this array.
    pub fn args(&self, subcommand: &str, more: &[&str]) -> Vec<String> {
        self.args_with(&self.file(), subcommand, more)
    }

    fn args_with(&self, file: &str, subcommand: &str, more: &[&str]) -> Vec<String> {
        let mut args = vec!["array".to_owned(), subcommand.to_owned()];
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        args.extend(["--array".to_owned(), file.to_owned()]);
        args.extend(self.security.clone());
        args
    }

    pub fn lockify(&self, subcommand: &str, more: &[&str]) -> Output {
        let args = self.args(subcommand, more);
        self.user.lockify(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Starts a process that tells in a line that it is ready.
    fn spawn(&mut self, place: Place, mut args: Vec<String>, says: &str) -> Process {
        if self.recorded {
            let history = self.user.dir().join(format!("history{}", self.histories.len()));
            args.extend(["--history".to_owned(), history.to_str().unwrap().to_owned()]);
            self.histories.push(history);
        }
        self.spawn_plain(place, &args, says)
    }

    fn spawn_plain(&self, place: Place, args: &[String], says: &str) -> Process {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let log = File::options().create(true).append(true).open(self.log_file(place)).unwrap();
        let mut command = self.user.command(&args);
        command.stdout(Stdio::piped()).stderr(log);
        command.envs(self.walls.get(&place).iter().flat_map(|wall| wall.environment()));
        command.envs(self.fuses.get(&place).iter().flat_map(|fuse| fuse.environment()));
        let mut process = Process(command.spawn().unwrap());
        let line = first_line(process.0.stdout.take().unwrap());
        assert!(line.contains(says), "it said {line:?}");
        process
    }

    pub fn start(&mut self, id: usize, disk: &str, more: &[&str]) {
        let (disk, number) = (self.disk(disk), id.to_string());
        let mut all = vec![disk.to_str().unwrap(), "--id", &number];
        all.extend(more);
        let place = Place::Device(id);
        let file = self.file_of(place);
        let args = self.args_with(&file, "device", &all);
        self.devices[id] = Some(self.spawn(place, args, &format!("device {id} of array")));
    }

    pub fn start_lock_server(&mut self, more: &[&str]) {
        let log = self.lock_log.clone().unwrap_or_else(|| self.disk("locks"));
        let file = self.file_of(Place::Server);
        let args = self.args_with(&file, "lock-server", &[&[log.to_str().unwrap()], more].concat());
        let process = self.spawn_plain(Place::Server, &args, "lock server of array");
        self.lock_server = Some(process);
    }

    pub fn start_standby(&mut self, more: &[&str]) {
        let log = self.disk("standby");
        let file = self.file_of(Place::Standby);
        let more = [&[log.to_str().unwrap(), "--id", "1"], more].concat();
        let args = self.args_with(&file, "lock-server", &more);
        let process = self.spawn_plain(Place::Standby, &args, "lock server of array");
        self.standby = Some(process);
    }

    pub fn start_all(&mut self) {
        for id in 0..self.devices.len() {
            self.start(id, &format!("disk{id}"), &["--create"]);
        }
        let file = std::fs::read_to_string(self.file()).unwrap();
        if file.contains("[lock_server]") {
            self.start_lock_server(&["--create"]);
        }
        if file.contains("[[standby]]") {
            self.start_standby(&["--create"]);
        }
        self.wait_until_healthy();
    }

    pub fn is_healthy(&self) -> bool {
        code(&self.lockify("status", &[])) == 0
    }

    pub fn wait_until_healthy(&self) {
        wait_for(|| self.is_healthy());
    }

    /// Devices were started again. A busy machine may need longer for that than a lease, or not let one run for as long: then
    /// the others went on without it.
    pub fn wait_until_back(&self) {
        wait_for(|| {
            let status = super::traffic::status(self);
            let devices = status["devices"].as_array().into_iter().flatten();
            for device in devices.filter(|device| device["condition"] == "failed") {
                self.lockify("rebuild", &["--id", &device["id"].to_string()]);
            }
            self.is_healthy()
        });
    }

    /// Starts a host that exports the array.
    pub fn export(&mut self, number: u32) -> Export {
        self.export_with(number, &[])
    }

    pub fn export_with(&mut self, number: u32, more: &[&str]) -> Export {
        let socket = self.user.dir().join(format!("host{number}-{}", self.histories.len()));
        let place = Place::Host(number);
        let file = self.file_of(place);
        let args = ["array", "export", &file, "--name", "array", "--socket"];
        let mut args: Vec<String> = args.map(str::to_owned).to_vec();
        args.push(socket.to_str().unwrap().to_owned());
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        args.extend(self.security.clone());
        Export { process: self.spawn(place, args, "serves the array"), socket }
    }

    /// Has all stripes checked: none may be unfit or lost.
    pub fn assert_clean(&self) {
        let scrub = self.lockify("scrub", &[]);
        assert_eq!(code(&scrub), 0, "{}{}", stdout(&scrub), stderr(&scrub));
    }

    /// Ends devices and lock servers in order.
    pub fn end(&mut self) {
        for mut process in self.devices.iter_mut().filter_map(Option::take) {
            assert_eq!(process.end(), Some(0));
        }
        for mut process in self.lock_server.take().into_iter().chain(self.standby.take()) {
            assert_eq!(process.end(), Some(0));
        }
    }

    /// Has the histories of all processes judged together, which writes them as one.
    pub fn check(&self, merged: &Path) -> Output {
        let mut args = vec!["check", "--merged", merged.to_str().unwrap()];
        args.extend(self.histories.iter().map(|path| path.to_str().unwrap()));
        self.user.lockify(&args)
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let files = std::fs::read_dir(self.user.dir()).into_iter().flatten().flatten();
        for path in
            files.map(|file| file.path()).filter(|p| p.extension().is_some_and(|e| e == "log"))
        {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            eprintln!("{}:\n{text}", path.display());
        }
    }
}

/// A host that exports the array.
pub struct Export {
    pub process: Process,
    socket: PathBuf,
}

impl Export {
    /// Where clients of block devices find it.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///array?socket={}", self.socket.display())
    }

    /// A client that has said nothing yet.
    pub fn connect_unanswered(&self) -> UnixStream {
        UnixStream::connect(&self.socket).unwrap()
    }

    pub fn connect(&self) -> Blocks {
        let stream = self.connect_unanswered();
        // Far beyond a test's duration: one that waits in vain fails instead of hanging.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut client = Client(stream);
        client.greet(false);
        Blocks(client)
    }
}

/// A client that reads and writes blocks.
pub struct Blocks(pub Client);

impl Blocks {
    /// Begins with a write; it is not answered yet.
    pub fn begin_write(&mut self, cookie: u64, start: usize, data: &[u8]) {
        self.try_begin_write(cookie, start, data).unwrap();
    }

    /// The same; an error if the host is gone.
    pub fn try_begin_write(
        &mut self,
        cookie: u64,
        start: usize,
        data: &[u8],
    ) -> std::io::Result<()> {
        let mut request = head((0, 1), cookie, (start * BLOCK) as u64, data.len() as u32);
        request.extend(data);
        self.0.0.write_all(&request)
    }

    pub fn write(&mut self, start: usize, data: &[u8]) {
        self.begin_write(7, start, data);
        assert_eq!(self.0.reply(), (0, 7));
    }

    pub fn read(&mut self, start: usize, count: usize) -> Vec<u8> {
        self.0.request((0, 0), 8, (start * BLOCK) as u64, (count * BLOCK) as u32);
        assert_eq!(self.0.reply(), (0, 8));
        self.0.get(count * BLOCK)
    }
}
