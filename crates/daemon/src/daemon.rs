//! Starting and stopping all shards.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use lockify_client::host::Host;
use lockify_client::shard_path;
use lockify_node::{CallError, Engine, NodeError, ShardGroup};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::Config;
use crate::listener::{Listener, SocketError};
use crate::log::Log;
use crate::shard::{Shard, ShardSetup};

/// Why the daemon does not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket for clients cannot be had.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The node cannot start or go on.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A lockspace cannot be joined.
    #[error("cannot join the lockspaces: {0}")]
    Join(#[from] CallError),
    /// The system refused something.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        error: std::io::Error,
    },
    /// A shard ended by a defect.
    #[error("a thread of the daemon panicked: report it with the lines above")]
    Panicked,
}

/// A daemon that runs: one thread per shard. Dropped, it stops.
pub struct Daemon {
    handle: Handle,
    threads: Vec<JoinHandle<Result<(), NodeError>>>,
}

/// Stops a daemon from anywhere.
#[derive(Clone)]
pub struct Handle {
    stop: Arc<AtomicBool>,
    wakers: Arc<[Arc<mio::Waker>]>,
}

impl Handle {
    /// Tells every shard to leave the cluster in order and end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        for waker in self.wakers.iter() {
            // A shard that has ended already has no event queue.
            let _ = waker.wake();
        }
    }
}

impl Daemon {
    /// Starts the daemon; when this returns, clients can connect.
    ///
    /// # Errors
    /// [`Error`].
    pub fn start(config: &Config, log: &Log) -> Result<Daemon, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let group = ShardGroup::new(config.shards.into());
        // All or none: nothing runs before everything could be had.
        let mut shards = Vec::new();
        let mut wakers = Vec::new();
        for index in 0..config.shards {
            let (shard, waker) = make_shard(config, index, &group, &stop, log)?;
            shards.push(shard);
            wakers.push(waker);
        }
        let mut daemon =
            Daemon { handle: Handle { stop, wakers: wakers.into() }, threads: Vec::new() };
        for (index, shard) in shards.into_iter().enumerate() {
            let handle = daemon.handle.clone();
            let thread = std::thread::Builder::new().name(format!("lockify-shard-{index}"));
            // A shard that ends takes the others with it: a node is whole or not there.
            let spawned = thread.spawn(move || {
                let _stop_all = StopOnDrop(handle);
                shard.run()
            });
            let what = "cannot start a thread";
            daemon.threads.push(spawned.map_err(|error| Error::System { what, error })?);
        }
        log.info(format!("node {} serves clients on {}", config.node, config.socket.display()));
        Ok(daemon)
    }

    /// Stops it, from anywhere.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until it has stopped.
    ///
    /// # Errors
    /// What ended it, if nobody stopped it.
    pub fn wait(mut self) -> Result<(), Error> {
        let mut result = Ok(());
        for thread in std::mem::take(&mut self.threads) {
            let ended = match thread.join() {
                Ok(ended) => ended.map_err(Error::from),
                Err(_) => Err(Error::Panicked),
            };
            result = result.and(ended);
        }
        result
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.handle.stop();
        for thread in std::mem::take(&mut self.threads) {
            // Who wants to know how it ended calls `wait`.
            let _ = thread.join();
        }
    }
}

struct StopOnDrop(Handle);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn make_shard(
    config: &Config,
    index: u16,
    group: &Arc<ShardGroup>,
    stop: &Arc<AtomicBool>,
    log: &Log,
) -> Result<(Shard, Arc<mio::Waker>), Error> {
    let listener = Listener::bind(&shard_path(&config.socket, index), config.socket_mode)?;
    let mut node = config.node_config();
    node.shard = (config.shards > 1).then(|| group.clone());
    node.shard_index = index.into();
    node.history = config.history.as_ref().map(|path| shard_history(path, index));
    let mut engine = Engine::new(node)?;
    let host = Host::join(&mut engine, &config.space_configs())?;
    let setup = ShardSetup {
        index,
        shards: config.shards,
        limits: config.limits.clone(),
        shutdown_grace: config.shutdown_grace,
        // Every client has a session with every shard, so one of them can tell.
        idle_exit: config.idle_exit.filter(|_| index == 0),
        stop: stop.clone(),
        log: log.clone(),
    };
    let waker = engine.waker();
    let what = "cannot watch the clients' socket";
    let shard = Shard::new(setup, engine, host, listener);
    Ok((shard.map_err(|error| Error::System { what, error })?, waker))
}

fn shard_history(path: &std::path::Path, index: u16) -> PathBuf {
    shard_path(path, index)
}

/// Runs a daemon until it is stopped by SIGTERM or SIGINT; a second signal ends the process at
/// once, with the status that a shell gives it (128 + its number).
///
/// # Errors
/// [`Error`].
pub fn run(config: &Config, log: &Log) -> Result<(), Error> {
    let what = "cannot handle signals";
    let mut signals =
        Signals::new([SIGTERM, SIGINT]).map_err(|error| Error::System { what, error })?;
    let watched = signals.handle();
    let daemon = Daemon::start(config, log)?;
    let handle = daemon.handle();
    let logged = log.clone();
    let watcher = std::thread::spawn(move || {
        let mut signals = signals.forever();
        if signals.next().is_some() {
            logged.info("leaving the cluster; another signal ends the daemon at once");
            handle.stop();
        }
        if let Some(signal) = signals.next() {
            std::process::exit(128 + signal);
        }
    });
    let result = daemon.wait();
    watched.close();
    // It only waits for signals, of which there are no more.
    let _ = watcher.join();
    result
}
