//! Reading the configuration again while the daemon runs: all that is different, or nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use lockify_core::ClientId;
use lockify_trust::Mailbox;

use crate::config::{Access, Config, Fencing, Limits, QuorumLost};
use crate::keys::Keys;
use crate::log::Log;
use crate::manager::Manager;

/// How long the shards may take to change; they do when they come to it, in any case.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long the asking client waits: the files may be on a file system that hangs.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The settings of a shard that can change.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    /// The permissions of each lockspace, in the order of the start.
    pub(crate) access: Arc<[Access]>,
    pub(crate) deadlock_after: Vec<(String, Option<Duration>)>,
    pub(crate) shutdown_grace: Duration,
    pub(crate) idle_exit: Option<Duration>,
    pub(crate) quorum_lost: QuorumLost,
    pub(crate) fencing: Fencing,
    pub(crate) busy_poll: Duration,
    pub(crate) newest_version: u16,
}

/// A message of other threads to a shard.
pub(crate) enum ReloadLetter {
    /// Use these settings, and say so.
    Change(Arc<Settings>, SyncSender<()>),
    /// A client's [`lockify_session::protocol::Query::Reload`] has ended so.
    Outcome { client: ClientId, query: u64, outcome: Result<String, String> },
}

/// Changes a daemon's settings.
pub(crate) struct Reloader {
    /// As the file says it.
    running: Mutex<Config>,
    /// Somebody waits to read the file after the reading that is under way.
    follows: AtomicBool,
    keys: Keys,
    shards: Vec<Mailbox<ReloadLetter>>,
    log: Log,
    manager: Manager,
}

impl Reloader {
    pub(crate) fn new(
        config: Config,
        keys: Keys,
        shards: Vec<Mailbox<ReloadLetter>>,
        log: Log,
        manager: Manager,
    ) -> Reloader {
        Reloader {
            running: Mutex::new(config),
            follows: AtomicBool::new(false),
            keys,
            shards,
            log,
            manager,
        }
    }

    /// Reads the configuration and the keys; returns the changes, or the reason why there are none.
    /// The log gets both, too.
    pub(crate) fn reload(&self) -> Result<String, String> {
        self.manager.reloading();
        let outcome = self.try_reload().map_err(|why| format!("nothing was changed: {why}"));
        match &outcome {
            Ok(what) => self.log.info(format!("the configuration was read again: {what}")),
            Err(why) => self.log.warning(format!("the configuration was read again, and {why}")),
        }
        self.manager.ready();
        outcome
    }

    /// As [`Reloader::reload`], on a thread of its own.
    pub(crate) fn start(self: &Arc<Reloader>) -> Result<Receiver<Result<String, String>>, String> {
        let (to, ended) = sync_channel(1);
        let reloader = self.clone();
        let thread = std::thread::Builder::new().name("lockify-reload".into());
        // Perhaps nobody waits any more.
        let spawned = thread.spawn(move || drop(to.send(reloader.reload())));
        spawned.map_err(|e| format!("nothing was changed: cannot start a thread: {e}"))?;
        Ok(ended)
    }

    /// As [`Reloader::reload`], but waits a limited time.
    pub(crate) fn reload_in_time(self: &Arc<Reloader>) -> Result<String, String> {
        let ended = self.start()?;
        let late = |e: RecvTimeoutError| match e {
            RecvTimeoutError::Timeout => format!(
                "the configuration has not been read after {} s: is its file system there? The \
                 daemon's log will tell what becomes of it",
                TIME_LIMIT.as_secs()
            ),
            RecvTimeoutError::Disconnected => {
                "reading the configuration failed: see the log".into()
            }
        };
        ended.recv_timeout(TIME_LIMIT).map_err(late)?
    }

    fn try_reload(&self) -> Result<String, String> {
        let mut running = match self.running.try_lock() {
            Ok(running) => running,
            Err(TryLockError::Poisoned(running)) => running.into_inner(),
            Err(TryLockError::WouldBlock) => self.follow()?,
        };
        let Some(path) = running.file() else {
            return Err("this daemon was started without a configuration file".into());
        };
        let new = Config::read(path).map_err(|e| e.to_string())?;
        let changes = running.changes(&new);
        if !changes.restart.is_empty() {
            return Err(format!(
                "{}: this cannot change while the daemon runs: restart it, or change it back",
                changes.restart.join(", ")
            ));
        }
        let keys = self.keys.read_again(&new).map_err(|e| e.to_string())?;
        let settings = settings(&running, &new)?;
        // From here on nothing can fail.
        let mut told = match changes.possible.is_empty() {
            true => "nothing in it has changed".to_owned(),
            false => format!("changed {}", changes.possible.join(", ")),
        };
        if let Some(keys) = keys {
            keys.use_now(&self.log);
            told += "; the keys were read again";
        }
        *running = new;
        match self.tell_shards(settings) {
            0 => {}
            busy => told += &format!("; {busy} busy shards will follow"),
        }
        Ok(told)
    }

    /// Waits for the end of the reading that is under way: the file may have changed since it was opened. One waits at
    /// most, for that one reads what all others want to be read.
    fn follow(&self) -> Result<MutexGuard<'_, Config>, String> {
        if self.follows.swap(true, Ordering::SeqCst) {
            return Err("it is being read already, and is read once more after that".into());
        }
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        self.follows.store(false, Ordering::SeqCst);
        Ok(running)
    }

    /// Returns how many have not said in time that they use them.
    fn tell_shards(&self, settings: Settings) -> usize {
        let (done, answers) = sync_channel(self.shards.len());
        let settings = Arc::new(settings);
        for shard in &self.shards {
            shard.post(ReloadLetter::Change(settings.clone(), done.clone()));
        }
        drop(done);
        let end = Instant::now() + PATIENCE;
        let mut missing = self.shards.len();
        while missing > 0
            && answers.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok()
        {
            missing -= 1;
        }
        missing
    }
}

fn settings(running: &Config, new: &Config) -> Result<Settings, String> {
    let (access, mut in_order) = (new.access().map_err(|e| e.to_string())?, Vec::new());
    for space in &running.lockspaces {
        let at = new.lockspaces.iter().position(|s| s.name == space.name);
        in_order.extend(at.and_then(|at| access.get(at)).copied());
    }
    Ok(Settings {
        limits: new.limits.clone(),
        access: in_order.into(),
        deadlock_after: (new.lockspaces.iter())
            .map(|s| (s.name.clone(), s.deadlock_after))
            .collect(),
        shutdown_grace: new.shutdown_grace,
        idle_exit: new.idle_exit,
        quorum_lost: new.quorum_lost.clone(),
        fencing: new.fencing.clone(),
        busy_poll: new.busy_poll,
        newest_version: new.newest_version(),
    })
}
