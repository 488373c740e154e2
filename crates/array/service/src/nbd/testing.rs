//! The common parts of the server's tests: a server of an array in memory, and a client that sends any bytes.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use lockify_trust::Keyring;

pub use client::{Client, Tls, head};

use super::{Ended, Listen, Server};
use crate::door::testing::Memory;
use crate::door::{Export, Stopper};

// The tests of the command line include it, too.
mod client;

/// A server of an array in memory, until it is dropped.
pub struct Running {
    pub memory: Arc<Memory>,
    pub uri: String,
    pub socket: PathBuf,
    stopper: Stopper,
    thread: Option<JoinHandle<io::Result<Ended>>>,
    _dir: tempfile::TempDir,
}

impl Running {
    pub fn of(export: Export) -> Running {
        Running::with(export, None)
    }

    /// With keys, by TLS only.
    pub fn with(export: Export, keys: Option<Arc<Keyring>>) -> Running {
        let memory = Memory::new(export.size);
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("nbd");
        let log = |what: &str| eprintln!("server: {what}");
        let listen = Listen::Unix { path: socket.clone(), mode: 0o600, group: None };
        let server = Server::listen(&listen, export, keys, log).unwrap();
        let (uri, stopper) = (server.uri().unwrap(), server.stopper().unwrap());
        let backend = Arc::clone(&memory);
        let thread = Some(std::thread::spawn(move || server.run(backend)));
        Running { memory, uri, socket, stopper, thread, _dir: dir }
    }

    /// Has it end.
    pub fn stop(&self) {
        self.stopper.stop();
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) -> Ended {
        self.thread.take().unwrap().join().unwrap().unwrap()
    }

    /// A client that has not said anything.
    pub fn stranger(&self) -> Client {
        let stream = UnixStream::connect(&self.socket).unwrap();
        // Far beyond a test's duration: one that waits in vain fails instead of hanging.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Client(stream)
    }

    /// A client that is past the handshake, without structured replies or with them.
    pub fn client(&self, structured: bool) -> Client {
        let mut client = self.stranger();
        client.greet(structured);
        client
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
