//! lvmlockd of Debian's lvm2-lockd, unchanged, on two nodes: its requests to the lock manager for volume groups
//! and logical volumes. Requests go to its socket as LVM's commands send them, so that no device-mapper is needed.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Compiler, Running};

const PROGRAM: &str = "/usr/sbin/lvmlockd";
const PATIENCE: Duration = Duration::from_secs(60);

/// The end of a request, and of an answer.
const END: &str = "\n##\n";

/// The group as its metadata describe it: lvmlockd compares the cluster's name with the kernel's.
const GROUP: &str = "vg_name=\"pool\"\nvg_lock_type=\"dlm\"\nvg_lock_args=\"1.0.0:trial\"";
const GRANTED: i32 = 0;
/// Said after some seconds: lvmlockd asks again a few times.
const EXCLUDED: i32 = -libc::EAGAIN;

/// Returns true if it can be tried here: it is installed, and may have files that stand in for the kernel's.
fn possible() -> bool {
    let possible = Path::new(PROGRAM).exists() && rustix::process::geteuid().is_root();
    let required = std::env::var_os("LOCKIFY_TEST_LIBDLM").is_some();
    assert!(possible || !required, "install lvm2-lockd, and run this as root");
    if !possible {
        eprintln!("not run: needs lvm2-lockd, and root; LOCKIFY_TEST_LIBDLM=1 insists");
    }
    possible
}

/// A lvmlockd on one node; killed on drop.
struct Lvmlockd {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Lvmlockd {
    fn start(dir: &Path, node: &Running, number: u32) -> Lvmlockd {
        let file = |kind: &str| dir.join(format!("lvmlockd{number}.{kind}"));
        let (socket, log) = (file("socket"), file("log"));
        // It asks the kernel's configuration file system for the cluster's name.
        let script = "mount -t tmpfs tmpfs /sys/kernel && mkdir -p /sys/kernel/config/dlm/cluster && \
                      echo trial >/sys/kernel/config/dlm/cluster/cluster_name && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh", PROGRAM, "-f", "-D", "-g", "dlm", "-s"]);
        command.arg(&socket).arg("-p").arg(file("pid"));
        command.env("LD_LIBRARY_PATH", dir.join("lib")).env("LOCKIFY_SOCKET", &node.socket);
        let output = std::fs::File::create(&log).unwrap();
        command.stdin(Stdio::null()).stderr(output.try_clone().unwrap()).stdout(output);
        let child = command.spawn().unwrap();
        let mut daemon = Lvmlockd { child, socket, log };
        let end = Instant::now() + PATIENCE;
        while UnixStream::connect(&daemon.socket).is_err() {
            let ended = daemon.child.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < end, "{ended:?}: {}", daemon.said());
            std::thread::sleep(Duration::from_millis(10));
        }
        daemon
    }

    fn said(&self) -> String {
        said(&self.log)
    }

    fn client(&self) -> Client {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { stream, log: self.log.clone() }
    }

    /// The libraries that it has loaded.
    fn loaded(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/maps", self.child.id())).unwrap()
    }
}

fn said(log: &Path) -> String {
    std::fs::read_to_string(log).unwrap_or_default()
}

impl Drop for Lvmlockd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command of LVM, in lvmlockd's eyes. Its locks, but those of logical volumes, go with its connection.
struct Client {
    stream: UnixStream,
    /// Its daemon's.
    log: PathBuf,
}

impl Client {
    /// How a request ended: 0 or a negative error number.
    fn ask(&mut self, request: &str, more: &str) -> i32 {
        let pid = std::process::id();
        let text = format!("request=\"{request}\"\ncmd=\"test\"\npid={pid}\n{more}{END}");
        self.stream.write_all(text.as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(END.as_bytes()) {
            let mut byte = [0];
            let read = self.stream.read(&mut byte);
            assert!(matches!(read, Ok(1)), "{request}: {read:?}\n{}", said(&self.log));
            answer.push(byte[0]);
        }
        let answer = String::from_utf8(answer).unwrap();
        let result = answer.lines().find_map(|line| line.strip_prefix("op_result"));
        let number = result.map(|text| text.trim_matches([' ', '=']).parse());
        match number {
            Some(Ok(number)) => number,
            _ => panic!("{request}: {answer}\n{}", said(&self.log)),
        }
    }

    /// Joins the group's lockspace and the global one.
    fn start_group(&mut self) {
        let more = "vg_uuid=\"f3Vn9S-vqkY-sGQs-tqhr-dxMS-PwGb-iHVBk0\"\nversion=1\nhost_id=0\nopts=\"none\"";
        assert_eq!(self.ask("start_vg", &format!("{GROUP}\n{more}")), 0, "{}", said(&self.log));
        assert_eq!(self.ask("start_wait", ""), 0, "{}", said(&self.log));
    }

    fn global(&mut self, mode: &str) -> i32 {
        self.ask("lock_gl", &format!("mode=\"{mode}\"\nopts=\"none\"\nvg_lock_type=\"dlm\""))
    }

    fn group(&mut self, mode: &str) -> i32 {
        self.ask("lock_vg", &format!("mode=\"{mode}\"\nopts=\"none\"\n{GROUP}"))
    }

    /// A logical volume's lock is held for as long as the volume is active: by no command.
    fn volume(&mut self, mode: &str) -> i32 {
        let volume = "lv_name=\"data\"\nlv_uuid=\"Pq0Dv1-mBLr-8ZuR-0nZQ-6bCk-mB4K-2ZzR7d\"\nlv_lock_args=\"dlm\"";
        self.ask("lock_lv", &format!("mode=\"{mode}\"\nopts=\"persistent\"\n{GROUP}\n{volume}"))
    }
}

#[test]
fn lvmlockds_of_two_nodes_exclude_each_other() {
    if !possible() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Puts our libraries where its loader looks.
    let _ = Compiler::ours(dir.path());
    let [node, other_node] = Running::two(dir.path());
    let (one, two) =
        (Lvmlockd::start(dir.path(), &node, 1), Lvmlockd::start(dir.path(), &other_node, 2));
    let ours = dir.path().join("lib/libdlm_lt.so.3");
    assert!(one.loaded().contains(ours.to_str().unwrap()), "{}", one.loaded());
    let (mut a, mut b) = (one.client(), two.client());
    a.start_group();
    b.start_group();

    for lock in [Client::global, Client::group] {
        assert_eq!(lock(&mut a, "ex"), GRANTED, "{}", one.said());
        assert_eq!(lock(&mut b, "sh"), EXCLUDED, "{}", two.said());
        assert_eq!(lock(&mut a, "un"), GRANTED, "{}", one.said());
        assert_eq!(lock(&mut b, "sh"), GRANTED, "{}", two.said());
        assert_eq!(lock(&mut a, "sh"), GRANTED, "{}", one.said());
        assert_eq!(lock(&mut b, "un"), GRANTED, "{}", two.said());
        assert_eq!(lock(&mut a, "un"), GRANTED, "{}", one.said());
        assert_eq!(lock(&mut b, "ex"), GRANTED, "{}", two.said());
        assert_eq!(lock(&mut b, "un"), GRANTED, "{}", two.said());
    }

    assert_eq!(a.volume("ex"), GRANTED, "{}", one.said());
    assert_eq!(b.volume("ex"), EXCLUDED, "{}", two.said());
    assert_eq!(a.volume("un"), GRANTED, "{}", one.said());
    assert_eq!(b.volume("sh"), GRANTED, "{}", two.said());
    assert_eq!(a.volume("sh"), GRANTED, "{}", one.said());
    assert_eq!(a.volume("ex"), EXCLUDED, "shared with the other node: {}", one.said());
    assert_eq!(b.volume("un"), GRANTED, "{}", two.said());
    assert_eq!(a.volume("ex"), GRANTED, "{}", one.said());

    // The volume is still active on a node whose lvmlockd has died.
    drop(a);
    drop(one);
    assert_eq!(b.volume("sh"), EXCLUDED, "{}", two.said());
}
