//! Processes of an array that prove to each other who they are, and what becomes of those who cannot.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Output, Stdio};

use crate::common::array::{Array, BLOCK, Export};
use crate::common::nbd::{Client, head};
use crate::common::ports::free_address;
use crate::common::relay::Place;
use crate::common::traffic::{SHARED, content, device, work};
use crate::common::{Process, User, code, stderr, stdout, wait_for};
use lockify_trust::{Address, CaFolder, Lifetime, NodeFiles, Source};
use lockify_volume::ArrayFile;
use rustix::process::Signal;

const YEAR: Lifetime = Lifetime::Days(365);

/// Behind those of three devices: the lock server's node, and one that nothing in the array's file belongs to.
const SERVER: u32 = 4;
const OTHER: u32 = 5;

/// Certificates for all nodes, by an authority.
struct Certificates {
    authority: CaFolder,
    files: Vec<NodeFiles>,
}

impl Certificates {
    fn make(folder: &Path) -> Certificates {
        let authority = CaFolder::init(folder, "lockify", YEAR).unwrap();
        let files = (1..=OTHER).map(|node| authority.add_node(node, YEAR).unwrap()).collect();
        Certificates { authority, files }
    }

    fn of(&self, node: u32) -> &NodeFiles {
        &self.files[node as usize - 1]
    }

    /// The arguments of a process of this node.
    fn args(&self, node: u32) -> Vec<String> {
        args(self.of(node), node)
    }
}

fn args(files: &NodeFiles, node: u32) -> Vec<String> {
    let (ca, identity) = (files.ca.to_str().unwrap(), files.identity.to_str().unwrap());
    let node = node.to_string();
    ["--ca", ca, "--identity", identity, "--node", &node].map(str::to_owned).to_vec()
}

/// Starts all of an array's processes that others connect to, each with the keys of its node. The next process or command
/// has the other node's keys.
fn start(array: &mut Array, keys: &dyn Fn(u32) -> Vec<String>) {
    for id in 0..3 {
        array.security = keys(id as u32 + 1);
        array.start(id, &format!("disk{id}"), &["--create"]);
    }
    if has_server(array) {
        array.security = keys(SERVER);
        array.start_lock_server(&["--create"]);
    }
    array.security = keys(OTHER);
    array.wait_until_healthy();
}

fn has_server(array: &Array) -> bool {
    std::fs::read_to_string(array.file()).unwrap().contains("[lock_server]")
}

/// A device, with the keys of its node.
fn restart(
    array: &mut Array,
    keys: &dyn Fn(u32) -> Vec<String>,
    id: usize,
    disk: &str,
    create: bool,
) {
    array.security = keys(id as u32 + 1);
    array.start(id, disk, if create { &["--create"] } else { &[] });
    array.security = keys(OTHER);
}

/// The life of an array with these keys.
fn lives(mut array: Array, keys: &dyn Fn(u32) -> Vec<String>) {
    start(&mut array, keys);
    let one = array.export(1);
    // Any node of the cluster may be a host, also that of a device.
    array.security = keys(1);
    let two = array.export(2);
    array.security = keys(OTHER);
    std::thread::scope(|scope| {
        for (seed, host) in (1..).zip([&one, &two]) {
            scope.spawn(move || work(host, seed, 20));
        }
    });
    // One that is out is rebuilt, and one that is new takes the place of another.
    array.devices[1].take().unwrap().kill();
    wait_for(|| device(&array, 1)["condition"] == "failed");
    let written = content(SHARED);
    one.connect().write(0, &written);
    restart(&mut array, keys, 1, "disk1", false);
    wait_for(|| code(&array.lockify("rebuild", &["--id", "1"])) == 0);
    array.wait_until_healthy();
    array.devices[2].take().unwrap().kill();
    restart(&mut array, keys, 2, "disk2-new", true);
    let replaced = array.lockify("replace", &["--id", "2"]);
    assert_eq!(code(&replaced), 0, "{}", stderr(&replaced));
    array.wait_until_healthy();
    if let Some(mut server) = array.lock_server.take() {
        server.kill();
        array.security = keys(SERVER);
        array.start_lock_server(&[]);
        array.security = keys(OTHER);
        array.wait_until_healthy();
    }
    assert!(two.connect().read(0, SHARED) == written);
    two.connect().write(3, &content(5));
    array.assert_clean();
    ended(array, vec![one, two]);
}

fn ended(mut array: Array, hosts: Vec<Export>) {
    for mut host in hosts {
        assert_eq!(host.process.end(), Some(0));
    }
    array.end();
}

#[test]
fn an_array_lives_with_certificates() {
    let array = Array::of_nodes(3, &[]);
    let certificates = Certificates::make(&array.user.dir().join("ca"));
    lives(array, &|node| certificates.args(node));
}

#[test]
fn an_array_with_a_lock_server_lives_with_certificates() {
    let array = Array::of_nodes(3, &["--scheme", "server-locking"]);
    let certificates = Certificates::make(&array.user.dir().join("ca"));
    lives(array, &|node| certificates.args(node));
}

/// Clients of a block device prove who they are, too.
#[test]
fn an_export_by_tls_wants_certificates_from_its_clients() {
    let mut array = Array::of_nodes(3, &[]);
    let certificates = Certificates::make(&array.user.dir().join("ca"));
    start(&mut array, &|node| certificates.args(node));
    let host = array.export_with(1, &["--tls"]);
    let mut stranger = Client(host.connect_unanswered());
    stranger.get(18);
    stranger.put(&3u32.to_be_bytes());
    stranger.option(3, &[]);
    assert_eq!(stranger.answer().1, 0x8000_0005);
    let NodeFiles { ca, identity, .. } = certificates.of(2);
    let keys = Source::Certificates { ca: ca.clone(), identity: identity.clone() };
    let own = keys.read("lockify", 2).unwrap();
    let mut client = Client(host.connect_unanswered());
    client.begin_tls();
    let mut client = client.with_tls(own.dial(OTHER).unwrap());
    client.option(1, b"array");
    client.get(10);
    let written = content(2);
    client.put(&head((0, 1), 1, 0, written.len() as u32));
    client.put(&written);
    assert_eq!(client.reply(), (0, 1));
    client.request((0, 0), 2, 0, written.len() as u32);
    assert_eq!(client.reply(), (0, 2));
    assert!(client.get(written.len()) == written);
    ended(array, vec![host]);
}

#[test]
fn tls_without_certificates_is_refused() {
    let array = Array::create(3, &[]);
    let output = array.user.lockify(&["array", "export", &array.file(), "--socket", "x", "--tls"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("--ca"), "{}", stderr(&output));
}

fn cluster_key(user: &User, name: &str) -> String {
    let path = user.dir().join(name).to_str().unwrap().to_owned();
    let made = user.lockify(&["cluster", "key", &path]);
    assert_eq!(code(&made), 0, "{}", stderr(&made));
    path
}

fn with_key(path: &str, node: u32) -> Vec<String> {
    ["--cluster-key", path, "--node", &node.to_string()].map(str::to_owned).to_vec()
}

#[test]
fn an_array_with_a_lock_server_lives_with_a_shared_key() {
    let array = Array::of_nodes(3, &["--scheme", "callback-locking"]);
    let key = cluster_key(&array.user, "key");
    lives(array, &|node| with_key(&key, node));
}

/// Refused identities: as a host, and with each command that asks or repairs. The refused side gets `words`.
fn is_kept_out(array: &Array, words: &str) {
    let status = array.lockify("status", &["--json"]);
    assert_eq!(code(&status), 1);
    let status: serde_json::Value = serde_json::from_str(&stdout(&status)).unwrap();
    let mut all = status["devices"].as_array().unwrap().clone();
    all.extend(Some(status["lock_server"].clone()).filter(|server| !server.is_null()));
    for one in all {
        let why = one["why"].as_str().unwrap();
        assert!(why.contains(words), "{words:?} is not in {why}");
        assert_eq!(one["serving"], false);
    }
    let refused = |output: &Output| {
        assert_eq!(code(output), 3, "{}{}", stdout(output), stderr(output));
        assert!(stderr(output).contains(words), "{words:?} is not in {}", stderr(output));
    };
    refused(&array.lockify("scrub", &["--repair"]));
    refused(&array.lockify("rebuild", &["--id", "1"]));
    refused(&array.lockify("replace", &["--id", "1", "--accept-loss"]));
    refused(&export(array, &array.file()));
}

/// A host that is not to begin.
fn export(array: &Array, file: &str) -> Output {
    let socket = array.user.dir().join("refused");
    let mut args = vec!["array", "export", file, "--socket", socket.to_str().unwrap()];
    args.extend(array.security.iter().map(String::as_str));
    array.user.lockify(&args)
}

/// The array is as it was: everybody is there, nobody has lost a connection, and all fits.
fn is_unharmed(array: &Array, host: &Export, written: &[u8]) {
    for place in (0..3).map(Place::Device) {
        let log = array.log(place);
        assert!(!log.contains("connected again"), "{log}");
        assert!(!log.contains("going on without"), "{log}");
    }
    assert!(array.is_healthy());
    let mut blocks = host.connect();
    assert!(blocks.read(0, written.len() / BLOCK) == written);
    blocks.write(0, written);
    array.assert_clean();
}

#[test]
fn who_has_another_authority_or_key_or_none_is_kept_out() {
    for scheme in ["timestamp-ordering", "callback-locking"] {
        let mut array = Array::of_nodes(3, &["--scheme", scheme]);
        let certificates = Certificates::make(&array.user.dir().join("ca"));
        let others = Certificates::make(&array.user.dir().join("other-ca"));
        let key = cluster_key(&array.user, "key");
        start(&mut array, &|node| certificates.args(node));
        let host = array.export(1);
        let written = content(SHARED);
        host.connect().write(0, &written);
        let strangers = [
            (others.args(OTHER), "not signed by an authority"),
            (with_key(&key, OTHER), "not signed by an authority"),
            (Vec::new(), "TLS"),
        ];
        for (keys, words) in strangers {
            array.security = keys;
            is_kept_out(&array, words);
        }
        // A process with an untrusted certificate that accepts any.
        let files = NodeFiles {
            ca: certificates.of(OTHER).ca.clone(),
            identity: others.of(OTHER).identity.clone(),
        };
        array.security = args(&files, OTHER);
        assert_eq!(code(&array.lockify("status", &[])), 2, "what does not fit is not used");
        array.security = certificates.args(OTHER);
        is_unharmed(&array, &host, &written);
        ended(array, vec![host]);
    }
}

#[test]
fn another_shared_key_is_kept_out_by_devices_and_lock_server() {
    let mut array = Array::of_nodes(3, &["--scheme", "callback-locking"]);
    let (key, other) = (cluster_key(&array.user, "key"), cluster_key(&array.user, "other"));
    start(&mut array, &|node| with_key(&key, node));
    let host = array.export(1);
    let written = content(SHARED);
    host.connect().write(0, &written);
    for (keys, words) in
        [(with_key(&other, OTHER), "not signed by an authority"), (Vec::new(), "TLS")]
    {
        array.security = keys;
        is_kept_out(&array, words);
    }
    for place in (0..3).map(Place::Device).chain([Place::Server]) {
        wait_for(|| array.log(place).contains("does not speak TLS"));
        wait_for(|| array.log(place).contains("does not trust this node's authority"));
    }
    array.security = with_key(&key, OTHER);
    is_unharmed(&array, &host, &written);
    ended(array, vec![host]);
}

/// Keys that cannot be right are named at the start, before a file is made or a port taken.
#[test]
fn keys_that_do_not_fit_are_refused_at_the_start() {
    let mut array = Array::of_nodes(3, &["--scheme", "server-locking"]);
    let certificates = Certificates::make(&array.user.dir().join("ca"));
    let disk = array.disk("disk1");
    let path = disk.to_str().unwrap().to_owned();
    let all = |array: &Array, words: &str| {
        let device = array.lockify("device", &[&path, "--id", "1", "--create"]);
        let server = array.lockify("lock-server", &[&path, "--create"]);
        let said = |output: Output| {
            assert_eq!(code(&output), 2, "{}", stderr(&output));
            assert!(stderr(&output).contains(words), "{words:?} is not in {}", stderr(&output));
        };
        said(device);
        said(server);
        assert!(!disk.exists());
    };
    array.security = certificates.args(OTHER);
    let device = array.lockify("device", &[&path, "--id", "1", "--create"]);
    assert_eq!(code(&device), 2);
    let words = "device 1 is node 2's, and --node is 5";
    assert!(stderr(&device).contains(words), "{}", stderr(&device));
    all(&array, "and --node is 5: correct `node` there");
    // Another node's certificate under this node's number.
    array.security = args(certificates.of(OTHER), 2);
    all(&array, "another node");
    array.security = certificates.args(2);
    array.security.extend(["--cluster".to_owned(), "elsewhere".into()]);
    all(&array, "another node or cluster");
    let identity = &certificates.of(2).identity;
    std::fs::set_permissions(identity, std::fs::Permissions::from_mode(0o644)).unwrap();
    array.security = certificates.args(2);
    all(&array, "is a secret");
    std::fs::remove_file(identity).unwrap();
    all(&array, "No such file");
}

/// An array's file in which these are another node's.
fn forged(array: &Array, name: &str, change: impl FnOnce(&mut ArrayFile)) -> String {
    let mut file = ArrayFile::read(Path::new(&array.file())).unwrap();
    change(&mut file);
    let path = array.user.dir().join(name);
    file.create(&path).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A process that the array's file does not name. It ends with the test; its messages are in its log.
fn impostor(array: &Array, args: &[&str], log: &str) -> Process {
    let log = File::create(array.user.dir().join(log)).unwrap();
    let mut all = vec!["array"];
    all.extend(args);
    all.extend(array.security.iter().map(String::as_str));
    Process(array.user.command(&all).stdout(Stdio::null()).stderr(log).spawn().unwrap())
}

/// A node of the cluster with a device's file says that it is a device: it would have the device's vote, and its place in the
/// view.
#[test]
fn a_node_does_not_pass_for_a_device_of_another_one() {
    let mut array = Array::of_nodes(3, &[]);
    let certificates = Certificates::make(&array.user.dir().join("ca"));
    let keys = |node| certificates.args(node);
    start(&mut array, &keys);
    let host = array.export(1);
    let written = content(SHARED);
    host.connect().write(0, &written);
    let elsewhere = free_address();
    let file = forged(&array, "elsewhere.toml", |file| {
        file.devices[2].node = OTHER;
        file.devices[2].address = elsewhere.into();
    });
    let disk = array.disk("forged");
    let disk = disk.to_str().unwrap();
    let create = ["device", disk, "--create", "--id", "2", "--array", &file];
    let mut false_one = impostor(&array, &create, "impostor.log");
    for place in (0..2).map(Place::Device) {
        wait_for(|| array.log(place).contains("device 2 is node 3's here, and this is node 5"));
    }
    let told = || std::fs::read_to_string(array.user.dir().join("impostor.log")).unwrap();
    wait_for(|| told().contains("it refuses: device 2 is node 3's here"));
    is_unharmed(&array, &host, &written);
    false_one.kill();

    // At the address of the true one, which is gone: nobody who looks for node 3 believes it.
    array.devices[2].take().unwrap().kill();
    let file = forged(&array, "there.toml", |file| file.devices[2].node = OTHER);
    let serve = ["device", disk, "--id", "2", "--array", &file];
    let mut false_one = impostor(&array, &serve, "impostor.log");
    wait_for(|| {
        let why = device(&array, 2)["why"].as_str().unwrap_or_default().to_owned();
        why.contains("its certificate is that of another node")
    });
    wait_for(|| device(&array, 2)["condition"] == "failed");
    let after = content(SHARED);
    host.connect().write(0, &after);
    wait_for(|| array.log(Place::Host(1)).contains("certificate is that of another node"));
    let rebuilt = array.lockify("rebuild", &["--id", "2"]);
    assert_eq!(code(&rebuilt), 3, "{}", stderr(&rebuilt));
    false_one.kill();
    restart(&mut array, &keys, 2, "disk2", false);
    wait_for(|| code(&array.lockify("rebuild", &["--id", "2"])) == 0);
    array.wait_until_healthy();
    assert!(host.connect().read(0, SHARED) == after);
    array.assert_clean();
    ended(array, vec![host]);
}

#[test]
fn a_node_does_not_pass_for_the_lock_server_of_another_one() {
    let mut array = Array::of_nodes(3, &["--scheme", "server-locking"]);
    let certificates = Certificates::make(&array.user.dir().join("ca"));
    let keys = |node| certificates.args(node);
    start(&mut array, &keys);
    let host = array.export(1);
    host.connect().write(0, &content(SHARED));
    array.lock_server.take().unwrap().kill();
    let file = forged(&array, "there.toml", |file| {
        file.lock_server.as_mut().unwrap().node = OTHER;
    });
    let log = array.disk("forged");
    let serve = ["lock-server", log.to_str().unwrap(), "--create", "--array", &file];
    let mut false_one = impostor(&array, &serve, "impostor.log");
    wait_for(|| {
        let status = array.lockify("status", &[]);
        stdout(&status).contains("its certificate is that of another node")
    });
    // A write waits for the true one; nobody is given locks by the other.
    let mut blocks = host.connect();
    let written = content(SHARED);
    blocks.begin_write(7, 0, &written);
    wait_for(|| {
        array.log(Place::Host(1)).contains("lock server 0: its certificate is that of another node")
    });
    let refused = export(&array, &array.file());
    assert_eq!(code(&refused), 3, "{}", stderr(&refused));
    assert!(stderr(&refused).contains("another node"), "{}", stderr(&refused));
    false_one.kill();
    array.security = keys(SERVER);
    array.start_lock_server(&[]);
    array.security = keys(OTHER);
    assert_eq!(blocks.0.reply(), (0, 7));
    assert!(blocks.read(0, SHARED) == written);
    array.wait_until_healthy();
    array.assert_clean();
    ended(array, vec![host]);
}

/// An authority is replaced while hosts work, as docs/security.md says for daemons.
#[test]
fn keys_are_replaced_while_an_array_runs() {
    let mut array = Array::of_nodes(3, &["--scheme", "callback-locking"]);
    let certificates = Certificates::make(&array.user.dir().join("ca"));
    let keys = |node| certificates.args(node);
    start(&mut array, &keys);
    let host = array.export(1);
    let mut blocks = host.connect();
    blocks.write(0, &content(SHARED));
    let old = NodeFiles {
        ca: array.user.dir().join("old-ca.pem"),
        identity: array.user.dir().join("old-node.pem"),
    };
    std::fs::copy(&certificates.of(OTHER).ca, &old.ca).unwrap();
    std::fs::copy(&certificates.of(OTHER).identity, &old.identity).unwrap();
    let places = [0, 1, 2].map(Place::Device).into_iter().chain([Place::Server, Place::Host(1)]);
    let places: Vec<Place> = places.collect();
    let read_again = |array: &Array, host: &Export, words: &str, times: usize| {
        let devices = array.devices.iter().flatten();
        let processes = devices.chain(&array.lock_server).chain([&host.process]);
        processes.for_each(|process| process.signal(Signal::HUP));
        for place in &places {
            wait_for(|| array.log(*place).matches(words).count() == times);
        }
    };

    // Unusable keys change nothing.
    let good: Vec<Vec<u8>> =
        certificates.files.iter().map(|files| std::fs::read(&files.identity).unwrap()).collect();
    certificates.files.iter().for_each(|f| std::fs::write(&f.identity, "nonsense").unwrap());
    read_again(&array, &host, "the keys stay as they are", 1);
    for (files, good) in certificates.files.iter().zip(good) {
        std::fs::write(&files.identity, good).unwrap();
    }
    assert!(array.is_healthy());

    let again = "the keys have been read again";
    let spread = |bundle: &Path| {
        certificates.files.iter().for_each(|files| {
            std::fs::copy(bundle, &files.ca).unwrap();
        });
    };
    spread(&certificates.authority.roll_over(YEAR).unwrap());
    read_again(&array, &host, again, 1);
    for node in 1..=OTHER {
        certificates.authority.renew(node, YEAR).unwrap();
    }
    read_again(&array, &host, again, 2);
    spread(&certificates.authority.retire().unwrap());
    read_again(&array, &host, again, 3);

    // Connections that were there have stayed; new ones use the new keys.
    blocks.write(0, &content(SHARED));
    assert!(!array.log(Place::Host(1)).contains("is back"), "{}", array.log(Place::Host(1)));
    array.wait_until_healthy();
    array.devices[1].take().unwrap().kill();
    restart(&mut array, &keys, 1, "disk1", false);
    array.wait_until_back();
    let second = array.export(2);
    let written = content(SHARED);
    second.connect().write(0, &written);
    assert!(blocks.read(0, SHARED) == written);
    array.security = args(&old, OTHER);
    is_kept_out(&array, "not signed by an authority");
    array.security = keys(OTHER);
    array.assert_clean();
    ended(array, vec![host, second]);
}

/// Others can reach these addresses, and nothing says how anybody proves who he is.
#[test]
fn without_keys_only_loopback_is_served_and_used() {
    let user = User::new();
    let file = user.dir().join("array.toml");
    let file = file.to_str().unwrap();
    let mut create = vec!["array", "create", file, "--device-size", "4MiB"];
    create.extend(["--scheme", "callback-locking", "--lock-server", "192.0.2.4:7100"]);
    for address in ["192.0.2.1:7100", "192.0.2.2:7100", "192.0.2.3:7100"] {
        create.extend(["--device", address]);
    }
    let made = user.lockify(&create);
    assert_eq!(code(&made), 0, "{}", stderr(&made));
    let path = user.dir().join("new");
    let path = path.to_str().unwrap();
    for (args, status) in [
        (&["device", path, "--create", "--id", "0", "--array", file][..], 2),
        (&["lock-server", path, "--create", "--array", file], 2),
        (&["export", file, "--socket", path], 3),
        (&["export", file, "--host", "1", "--socket", path], 3),
        (&["status", "--array", file], 3),
        (&["scrub", "--array", file], 3),
        (&["rebuild", "--id", "0", "--array", file], 3),
        (&["replace", "--id", "0", "--array", file], 3),
    ] {
        let refused = user.lockify(&[&["array"], args].concat());
        assert_eq!(code(&refused), status, "{args:?}: {}", stderr(&refused));
        for words in ["is not loopback", "--ca", "--cluster-key"] {
            assert!(stderr(&refused).contains(words), "{args:?}: {}", stderr(&refused));
        }
        assert!(!Path::new(path).exists(), "{args:?}");
        let refused = user.lockify(&[&["array"], args, &["--plain-text", "yes"]].concat());
        assert_eq!(code(&refused), 2, "{args:?}: {}", stderr(&refused));
        assert!(stderr(&refused).contains("for plain text"), "{args:?}: {}", stderr(&refused));
    }
}

/// Processes that the array's file names by a machine's name are looked up at each connection.
#[test]
fn members_are_found_by_name() {
    let mut array = Array::of_nodes(3, &["--scheme", "callback-locking"]);
    let certificates = Certificates::make(&array.user.dir().join("ca"));
    let keys = |node| certificates.args(node);
    let path = array.file();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("127.0.0.1:", "localhost:")).unwrap();
    // At all of a machine's addresses they would be reached by others, too.
    let file = ArrayFile::read(Path::new(&path)).unwrap();
    let here = |address: &Address| format!("127.0.0.1:{}", address.port());
    for (id, entry) in file.devices.iter().enumerate() {
        array.security = keys(entry.node);
        let listen = here(&entry.address);
        array.start(id, &format!("disk{id}"), &["--create", "--listen", &listen]);
    }
    array.security = keys(SERVER);
    let listen = here(&file.lock_server.unwrap().address);
    array.start_lock_server(&["--create", "--listen", &listen]);
    array.security = keys(OTHER);
    array.wait_until_healthy();
    let host = array.export(1);
    work(&host, 1, 20);
    // One that went comes back under the same name.
    array.devices[1].take().unwrap().kill();
    array.security = keys(2);
    array.start(1, "disk1", &["--listen", &here(&file.devices[1].address)]);
    array.security = keys(OTHER);
    array.wait_until_back();
    array.assert_clean();

    let nobody = forged(&array, "nobody.toml", |file| {
        file.devices[2].address = "disk3.invalid:7100".parse().unwrap();
    });
    let mut status = vec!["array", "status", "--array", &nobody];
    status.extend(array.security.iter().map(String::as_str));
    let told = array.user.lockify(&status);
    assert_eq!(code(&told), 1, "{}", stdout(&told));
    assert!(stdout(&told).contains("cannot look up disk3.invalid"), "{}", stdout(&told));
    ended(array, vec![host]);
}

/// A name may become the address of another machine.
#[test]
fn without_keys_names_are_refused() {
    let user = User::new();
    let file = user.dir().join("array.toml");
    let file = file.to_str().unwrap();
    let mut create = vec!["array", "create", file, "--device-size", "4MiB"];
    for address in ["localhost:7101", "localhost:7102", "localhost:7103"] {
        create.extend(["--device", address]);
    }
    let made = user.lockify(&create);
    assert_eq!(code(&made), 0, "{}", stderr(&made));
    let refused = user.lockify(&["array", "status", "--array", file]);
    assert_eq!(code(&refused), 3, "{}", stderr(&refused));
    assert!(stderr(&refused).contains("localhost:7101 is not loopback"), "{}", stderr(&refused));
    for (wrong, why) in
        [("0.0.0.0:7101", "nobody can connect"), ("disk1", "ADDR:PORT"), (":7", "ADDR:PORT")]
    {
        let other = user.dir().join("other.toml");
        let create = ["array", "create", other.to_str().unwrap(), "--device-size", "4MiB"];
        let devices = ["--device", "disk1:1", "--device", "disk2:1", "--device", wrong];
        let refused = user.lockify(&[&create[..], &devices].concat());
        assert_eq!(code(&refused), 2, "{wrong}: {}", stderr(&refused));
        assert!(stderr(&refused).contains(why), "{wrong}: {}", stderr(&refused));
    }
}
