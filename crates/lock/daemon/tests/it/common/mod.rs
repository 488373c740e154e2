//! Daemons for tests: threads of this process, sockets in temporary directories.
#![allow(dead_code, reason = "`waiting.rs` uses a part")]

pub mod ports;
pub mod process;
pub mod programs;
pub mod signals;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockify_client::Client;
use lockify_daemon::{Config, Daemon, Log};
use lockify_session::protocol::{Greeting, VERSION};

/// Much longer than anything takes; a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A daemon that is a cluster of its own.
pub struct Alone {
    pub daemon: Option<Daemon>,
    pub socket: PathBuf,
    pub lines: Arc<Mutex<Vec<String>>>,
    pub dir: tempfile::TempDir,
}

impl Alone {
    pub fn start(extra: &str) -> Alone {
        let dir = tempfile::tempdir().unwrap();
        let config = alone_config(dir.path(), extra);
        let (log, lines) = recording();
        let daemon = Daemon::start(&config, &log).unwrap();
        Alone { daemon: Some(daemon), socket: config.socket, lines, dir }
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.socket).unwrap()
    }

    /// A session by hand, greeted with this process id.
    pub fn session(&self, pid: u32) -> UnixStream {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&Greeting { version: VERSION, shard: 0, pid }.encode()).unwrap();
        let mut greeting = [0; Greeting::LEN];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(Greeting::decode(&greeting).unwrap().version, VERSION);
        stream
    }

    /// Waits until the log has a line with this text.
    pub fn logged(&self, text: &str) {
        eventually(text, || self.lines.lock().unwrap().iter().any(|l| l.contains(text)));
    }
}

pub fn alone_config(dir: &Path, extra: &str) -> Config {
    let text = format!(
        "{extra}\nnode = 1\nsocket = \"{}\"\n[[nodes]]\nid = 1\naddress = \"127.0.0.1:0\"\n",
        dir.join("lockify.sock").display()
    );
    Config::parse(&text, &dir.join("lockify.toml")).unwrap()
}

/// A log that keeps its lines.
pub fn recording() -> (Log, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = lines.clone();
    (Log::new(move |notice| sink.lock().unwrap().push(notice.to_string())), lines)
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "in vain waited for: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits on another thread, because what blocks has no time limit of its own.
pub fn within<T: Send + 'static>(what: &str, wait: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(wait()));
    told.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("in vain waited for {what}: {e}"))
}

/// Drives a future to its end on this thread: the client needs no particular runtime.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut cx = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    let end = Instant::now() + PATIENCE;
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        assert!(Instant::now() < end, "the future was not woken");
        std::thread::park_timeout(PATIENCE);
    }
}

/// Returns true if this test may become other users, as only root can. Elsewhere it ends at once,
/// unless `LOCKIFY_TEST_AS_ROOT` is set, as where a change is accepted.
pub fn may_be_others() -> bool {
    let root = rustix::process::geteuid().is_root();
    let must = std::env::var_os("LOCKIFY_TEST_AS_ROOT").is_some();
    assert!(root || !must, "LOCKIFY_TEST_AS_ROOT is set: run this as root");
    if !root {
        eprintln!("not run: only root can be other users; LOCKIFY_TEST_AS_ROOT=1 insists");
    }
    root
}

/// Runs `act` as another user, with these groups: a thread has credentials of its own, and the
/// kernel tells the other end of a socket those of the thread that connects.
pub fn as_user<T: Send>(uid: u32, gid: u32, groups: &[u32], act: impl FnOnce() -> T + Send) -> T {
    use rustix::process::{Gid, Uid};
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let groups: Vec<Gid> = groups.iter().map(|g| Gid::from_raw(*g)).collect();
    let become_and_act = || {
        set_thread_groups(&groups).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        act()
    };
    std::thread::scope(|scope| scope.spawn(become_and_act).join().unwrap())
}

/// Lets every user enter a directory.
pub fn open_to_all(dir: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
}
