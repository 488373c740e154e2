//! Daemons for tests: threads of this process, sockets in temporary directories.
#![allow(dead_code, reason = "each test program uses a part")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockify_client::Client;
use lockify_daemon::{Config, Daemon, Log};

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
