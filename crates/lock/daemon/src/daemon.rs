//! Starting and stopping all shards.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::Duration;

use lockify_host::ClientHost;
use lockify_node::{CallError, CorosyncConfig, NodeEngine, NodeError, ShardGroup};
use lockify_session::{is_abstract, shard_path};
use lockify_trust::{Mailbox, TrustError};
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::config::{Access, Config, Fence};
use crate::handover::{self, Inheritance, Program, Restart};
use crate::keys::Keys;
use crate::listener::{Listener, SocketError};
use crate::log::Log;
use crate::manager::{Heart, Manager, Pulse, Words};
use crate::metrics::{Reader, Server, SnapshotCell};
use crate::reload::Reloader;
use crate::remote::RemoteSpace;
use crate::shard::{Reloading, Shard, ShardSetup};

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
    /// The node's keys cannot be used.
    #[error(transparent)]
    Keys(#[from] TrustError),
    /// The system refused something.
    #[error("{what}: {error}")]
    System {
        /// The attempted step.
        what: &'static str,
        /// Why it failed.
        error: std::io::Error,
    },
    /// This program was asked whether it can go on where another one is, and cannot.
    #[error("{0}")]
    CannotGoOn(String),
    /// A shard ended by a defect.
    #[error("a thread of the daemon panicked: report it with the lines above")]
    Panicked,
}

/// A daemon that runs: one thread per shard. Dropped, it stops.
pub struct Daemon {
    handle: Handle,
    reloader: Arc<Reloader>,
    /// Its initial configuration, and corosync's answer at that time.
    config: Config,
    threads: Vec<JoinHandle<Result<(), NodeError>>>,
    /// By which a service manager sees that it lives.
    hearts: Vec<Heart>,
    /// Serves metrics as long as it is there.
    _metrics: Option<Server>,
}

/// Stops a daemon from anywhere.
#[derive(Clone)]
pub struct Handle {
    restart: Arc<Restart>,
    stop: Arc<AtomicBool>,
    wakers: Arc<[Arc<mio::Waker>]>,
}

impl Handle {
    /// Tells every shard to leave the cluster in order and end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        for waker in self.wakers.iter() {
            // A shard that has ended already has no event queue.
            let _ = waker.wake();
        }
    }
}

/// Each session takes a descriptor, and the soft limit of most shells is 1024.
fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Refused: then there are as many sessions as before, and the others wait to be accepted.
    let _ = setrlimit(Resource::Nofile, limit);
}

impl Daemon {
    /// Starts the daemon; when this returns, clients can connect.
    ///
    /// # Errors
    /// [`Error`].
    pub fn start(config: &Config, log: &Log) -> Result<Daemon, Error> {
        Daemon::begin(config, log, Restart::impossible, None, &Manager::default())
    }

    /// Starts the daemon, where another program has stopped if it has left something.
    fn begin(
        config: &Config,
        log: &Log,
        restart: fn(u16) -> Restart,
        left: Option<&mut Inheritance>,
        manager: &Manager,
    ) -> Result<Daemon, Error> {
        raise_descriptors();
        let mut left = left;
        let written = config;
        let (config, corosync) = config.resolved()?;
        if config.fence == Fence::None {
            log.warning(
                "fence = \"none\": the locks of a node that does not answer are given to others \
                 at once, also if it still uses them",
            );
        }
        let stop = Arc::new(AtomicBool::new(false));
        let group = ShardGroup::new(config.shards.into());
        let keys = Keys::read(&config, log)?;
        let access = config.access().map_err(|e| TrustError::Asked(e.to_string()))?.into();
        let restart = Arc::new(restart(config.shards));
        let (group, stop, keys) = (&group, &stop, &keys);
        let config = &config;
        let common =
            Common { config, corosync, group, stop, restart: &restart, log, keys, access, manager };
        // All or none: nothing runs before all resources are there.
        let mut shards = Vec::new();
        let mut wakers = Vec::new();
        let mut cells = Vec::new();
        let mut hearts = Vec::new();
        for index in 0..config.shards {
            let snapshot_cell = SnapshotCell::default();
            let left = left.as_deref_mut().map(|left| left.shard(index));
            let pulse = Pulse::default();
            let (shard, waker) = make_shard(&common, index, &snapshot_cell, &pulse, left)?;
            hearts.push((pulse, waker.clone()));
            shards.push(shard);
            cells.push((snapshot_cell, waker.clone()));
            wakers.push(waker);
        }
        let metrics = Server::start(config, Reader::new(cells), log)?;
        let letters: Vec<_> = wakers.iter().cloned().map(Mailbox::new).collect();
        let reloader = Reloader::new(
            written.clone(),
            keys.clone(),
            letters.clone(),
            log.clone(),
            manager.clone(),
        );
        let reloader = Arc::new(reloader);
        let mut daemon = Daemon {
            handle: Handle { restart, stop: stop.clone(), wakers: wakers.into() },
            reloader: reloader.clone(),
            config: config.clone(),
            threads: Vec::new(),
            hearts,
            _metrics: metrics,
        };
        for (index, (mut shard, letters)) in shards.into_iter().zip(letters).enumerate() {
            shard.set_reloading(Reloading::new(letters, reloader.clone()));
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

    /// Reads the configuration's file again, and the node's keys, for connections that are made from
    /// now on; returns the changes, which the log has, too.
    ///
    /// # Errors
    /// The reason why nothing was changed: the file, or a key that cannot change while it runs.
    pub fn reload(&self) -> Result<String, String> {
        self.reloader.reload()
    }

    /// Waits until it has stopped.
    ///
    /// # Errors
    /// The cause of its end, if nobody stopped it.
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
            // A caller that wants the reason of its end calls `wait`.
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

/// The common parameters of all shards.
struct Common<'a> {
    config: &'a Config,
    corosync: Option<CorosyncConfig>,
    group: &'a Arc<ShardGroup>,
    stop: &'a Arc<AtomicBool>,
    restart: &'a Arc<Restart>,
    log: &'a Log,
    keys: &'a Keys,
    access: Arc<[Access]>,
    manager: &'a Manager,
}

/// Makes a shard, or goes on with one of which this is the state.
fn make_shard(
    common: &Common<'_>,
    index: u16,
    snapshot_cell: &SnapshotCell,
    pulse: &Pulse,
    left: Option<(Vec<u8>, Vec<OwnedFd>)>,
) -> Result<(Shard, Arc<mio::Waker>), Error> {
    let Common { config, corosync, group, stop, restart, log, keys, access, manager } = common;
    let mut node = config.node_config();
    node.security = keys.security.clone();
    node.shard = (config.shards > 1).then(|| Arc::clone(group));
    node.shard_index = index.into();
    node.corosync = corosync.clone();
    node.history = config.history.as_ref().map(|path| shard_history(path, index));
    let setup = ShardSetup {
        index,
        shards: config.shards,
        limits: config.limits.clone(),
        shutdown_grace: config.shutdown_grace,
        // Every client has a session with every shard, so one of them can tell.
        idle_exit: config.idle_exit.filter(|_| index == 0),
        alone: config.nodes.len() == 1 && corosync.is_none(),
        quorum_lost: config.quorum_lost.clone(),
        access: access.clone(),
        door: is_abstract(&config.socket).then(|| Access {
            owner: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
            mode: config.socket_mode,
        }),
        stop: Arc::clone(stop),
        restart: Arc::clone(restart),
        snapshot_cell: snapshot_cell.clone(),
        pulse: pulse.clone(),
        manager: Manager::clone(manager),
        log: Log::clone(log),
    };
    let path = shard_path(&config.socket, index);
    let mut shard = match left {
        None => {
            let listener = Listener::bind(&path, config.socket_mode)?;
            let mut engine = NodeEngine::new(node)?;
            let mut host = ClientHost::join(&mut engine, &config.space_configs())?;
            for (place, space) in config.lockspaces.iter().enumerate() {
                let table = space.remote().map_err(|e| TrustError::Asked(e.to_string()))?;
                let Some(table) = table else { continue };
                let history = config.history.as_ref().map(|path| shard_history(path, index));
                let remote =
                    RemoteSpace::start(&space.name, config.node, table, engine.waker(), history);
                let what = "cannot have locks in remote memory";
                let remote = remote.map_err(|error| Error::System { what, error })?;
                host.add_external(place, &space.name, space.lvb_len as u32, Box::new(remote));
            }
            let what = "cannot watch the clients' socket";
            let shard = Shard::new(setup, engine, host, listener);
            shard.map_err(|error| Error::System { what, error })?
        }
        Some((image, descriptors)) => {
            Shard::resume(setup, node, &path, &image, descriptors).map_err(Error::CannotGoOn)?
        }
    };
    if config.metrics.wanted() {
        shard.measure();
    }
    let waker = shard.waker();
    Ok((shard, waker))
}

fn shard_history(path: &std::path::Path, index: u16) -> PathBuf {
    shard_path(path, index)
}

/// Runs a daemon until it is stopped by SIGTERM or SIGINT; a second one ends the process at once,
/// with the status that a shell gives it (128 + its number). SIGHUP has it read its configuration and
/// keys again, SIGUSR2 become the program that is installed now, with all its locks and sessions.
///
/// # Errors
/// [`Error`].
pub fn run(config: &Config, log: &Log) -> Result<(), Error> {
    if let Some(answer) = handover::answer_check(config) {
        return answer.map_err(Error::CannotGoOn);
    }
    let what = "cannot handle signals";
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR2]);
    let signals = signals.map_err(|error| Error::System { what, error })?;
    let watched = signals.handle();
    // One thread takes them, so that it can hold all of them back.
    handover::hold_signals();
    let program = Program::this();
    let words = Words::new();
    let manager = words.manager();
    let mut daemon = begin_or_go_on(config, log, &manager)?;
    words.start(std::mem::take(&mut daemon.hearts), log);
    let (handle, reloader) = (daemon.handle(), daemon.reloader.clone());
    let (log, config) = (log.clone(), daemon.config.clone());
    let stopping = None;
    let watcher = Watcher { signals, program, handle, reloader, config, log, manager, stopping };
    let watcher = std::thread::spawn(move || watcher.run());
    let result = daemon.wait();
    watched.close();
    // It only waits for signals, of which there are no more.
    if let Ok(Some(told)) = watcher.join() {
        // The end of the process would end the thread that tells the manager.
        let _ = told.recv_timeout(LAST_WORDS);
    }
    result
}

/// The time that a service manager has to take the last message.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Signals that end the daemon.
const ENDS: [i32; 2] = [SIGTERM, SIGINT];

/// Does what signals say.
struct Watcher {
    signals: Signals,
    program: std::io::Result<Program>,
    handle: Handle,
    reloader: Arc<Reloader>,
    config: Config,
    log: Log,
    manager: Manager,
    /// Hears when the manager knows of the end; `None` before there is one.
    stopping: Option<Receiver<()>>,
}

impl Watcher {
    fn run(mut self) -> Option<Receiver<()>> {
        handover::release_signals();
        while !self.signals.handle().is_closed() {
            let mut came: Vec<i32> = self.signals.wait().collect();
            // A restart forgets those that come after it.
            came.sort_by_key(|signal| !ENDS.contains(signal));
            for signal in came {
                match signal {
                    SIGHUP => self.reload(),
                    SIGUSR2 if self.stopping.is_some() => {}
                    SIGUSR2 => self.restart(),
                    signal => self.stop(signal),
                }
            }
        }
        self.stopping
    }

    /// It tells the log how it ends. Not waited for: a signal to stop may come.
    fn reload(&self) {
        if let Err(e) = self.reloader.start() {
            self.log.warning(e);
        }
    }

    fn stop(&mut self, signal: i32) {
        if self.stopping.is_some() {
            std::process::exit(128 + signal);
        }
        self.log.info("leaving the cluster; another signal ends the daemon at once");
        self.stopping = Some(self.manager.stopping());
        self.handle.stop();
    }

    /// If it goes well, this does not come back.
    fn restart(&mut self) {
        // The next program says that it is ready.
        self.manager.reloading();
        let (restart, handle) = (self.handle.restart.clone(), self.handle.clone());
        let wake = || handle.wake();
        let mut end = None;
        let mut stopped = || {
            end = end.or_else(|| self.signals.pending().find(|signal| ENDS.contains(signal)));
            end.is_some()
        };
        let why = match &self.program {
            Ok(program) => {
                let (config, log) = (&self.config, &self.log);
                handover::restart(config, program, &restart, &wake, &mut stopped, log)
            }
            Err(e) => format!("where this program is installed is not known: {e}"),
        };
        self.log.warning(format!("not restarted, everything goes on as before: {why}"));
        restart.refuse(&why, &wake);
        self.manager.ready();
        if let Some(signal) = end {
            self.stop(signal);
        }
    }
}

/// Goes on where the program before this one has stopped, if there was one and that is possible.
fn begin_or_go_on(config: &Config, log: &Log, manager: &Manager) -> Result<Daemon, Error> {
    let Some(mut left) = Inheritance::take(config, log) else {
        return Daemon::begin(config, log, Restart::possible, None, manager);
    };
    match Daemon::begin(config, log, Restart::possible, Some(&mut left), manager) {
        Ok(daemon) => {
            left.taken(log);
            Ok(daemon)
        }
        Err(why) => {
            left.give_up::<()>(&why.to_string(), log);
            Daemon::begin(config, log, Restart::possible, None, manager)
        }
    }
}
