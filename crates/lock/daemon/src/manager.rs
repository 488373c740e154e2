//! Messages to the service manager (sd_notify(3)): the daemon serves, its status, it reads its configuration again or
//! ends, and it is alive. A thread sends them, so that nothing waits for a manager that does not listen.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use lockify_node::NodeView;
use sd_notify::NotifyState;

use crate::log::Log;

/// Words that may wait for the manager; further ones are left out.
const ROOM: usize = 64;

/// How often a living daemon says so within the manager's patience.
const BEATS: u32 = 3;

/// A message to the manager.
enum Word {
    Status(String),
    Reloading,
    Ready,
    /// Whoever says it hears when it has been passed on.
    Stopping(SyncSender<()>),
}

/// The way to the manager; without one, nobody hears it.
#[derive(Clone, Default)]
pub(crate) struct Manager(Option<SyncSender<Word>>);

impl Manager {
    /// Sets the daemon's status.
    pub(crate) fn status(&self, text: String) {
        self.notify(Word::Status(text));
    }

    /// In this view, the daemon is at this.
    pub(crate) fn view(&self, view: &NodeView) {
        let members: Vec<String> = view.members.iter().map(|m| m.node.to_string()).collect();
        self.status(format!("serves clients, in view {} of nodes {}", view.seq, members.join(" ")));
    }

    /// The configuration is being read, or another program is to go on.
    pub(crate) fn reloading(&self) {
        self.notify(Word::Reloading);
    }

    /// It has been, or not.
    pub(crate) fn ready(&self) {
        self.notify(Word::Ready);
    }

    /// The daemon leaves the cluster. The receiver hears, or is closed, when the manager has been told.
    pub(crate) fn stopping(&self) -> Receiver<()> {
        let (to, told) = sync_channel(1);
        self.notify(Word::Stopping(to));
        told
    }

    fn notify(&self, word: Word) {
        if let Some(to) = &self.0 {
            // Full: the manager has not listened for long.
            let _ = to.try_send(word);
        }
    }
}

/// A shard's turns, which say that it lives.
#[derive(Clone, Default)]
pub(crate) struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// On the shard's thread.
    pub(crate) fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A shard's pulse, and how to have it turn.
pub(crate) type Heart = (Pulse, Arc<mio::Waker>);

/// The messages from before there is a shard.
pub(crate) struct Words {
    manager: Manager,
    words: Option<Receiver<Word>>,
}

impl Words {
    /// Words for the manager, if there is one.
    pub(crate) fn new() -> Words {
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            return Words { manager: Manager::default(), words: None };
        }
        let (to, words) = sync_channel(ROOM);
        Words { manager: Manager(Some(to)), words: Some(words) }
    }

    pub(crate) fn manager(&self) -> Manager {
        self.manager.clone()
    }

    /// Tells the manager that the daemon serves, and from now on all else.
    pub(crate) fn start(self, hearts: Vec<Heart>, log: &Log) {
        // One that cannot be told is logged.
        if let Err(e) = sd_notify::notify(false, &[NotifyState::Ready]) {
            log.warning(format!("cannot tell the service manager that the daemon is ready: {e}"));
        }
        let Some(words) = self.words else { return };
        let mut patience = 0;
        let watched = sd_notify::watchdog_enabled(false, &mut patience) && patience > 0;
        let every = watched.then(|| Duration::from_micros(patience) / BEATS);
        let thread = std::thread::Builder::new().name("lockify-manager".into());
        let spawned = thread.spawn(move || listen(&words, hearts, every));
        if let Err(e) = spawned {
            log.warning(format!("the service manager is told nothing more: no thread: {e}"));
        }
    }
}

/// Passes words on, and tells the watchdog that all shards turn.
fn listen(words: &Receiver<Word>, hearts: Vec<Heart>, every: Option<Duration>) {
    let mut next = every.map(|every| (Instant::now() + every, counted(&hearts)));
    loop {
        let word = match &next {
            Some((at, _)) => words.recv_timeout(at.saturating_duration_since(Instant::now())),
            None => words.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match word {
            Ok(word) => pass_on(&word),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                if let (Some((_, before)), Some(every)) = (next, every) {
                    let now = counted(&hearts);
                    if before.iter().zip(&now).all(|(before, now)| before != now) {
                        say(&[NotifyState::Watchdog]);
                    }
                    next = Some((Instant::now() + every, now));
                } else {
                    return;
                }
            }
        }
    }
}

/// How often each shard has turned. An idle one is woken, to be seen to turn until the next time.
fn counted(hearts: &[Heart]) -> Vec<u64> {
    let count = |(pulse, waker): &Heart| {
        let turns = pulse.0.load(Ordering::Relaxed);
        // A shard that has ended has no event queue.
        let _ = waker.wake();
        turns
    };
    hearts.iter().map(count).collect()
}

fn pass_on(word: &Word) {
    match word {
        Word::Status(text) => say(&[NotifyState::Status(text)]),
        Word::Ready => say(&[NotifyState::Ready]),
        Word::Stopping(told) => {
            say(&[NotifyState::Stopping]);
            // The process may have gone on to its end.
            let _ = told.try_send(());
        }
        Word::Reloading => match NotifyState::monotonic_usec_now() {
            Ok(now) => say(&[NotifyState::Reloading, now]),
            Err(_) => say(&[NotifyState::Reloading]),
        },
    }
}

/// A manager that has gone is no reason to do anything else.
fn say(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(false, states);
}
