//! A device's disk as its state machine sees it. Threads of the disk answer requests in any order.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use lockify_array::{DiskAnswer, DiskAsk, DiskError, DiskToken};

use super::Store;

/// Threads that read and write.
const WORKERS: usize = 4;

/// The function that gets each answer, on one of the disk's threads.
pub type Answered = Box<dyn Fn(DiskToken, Result<DiskAnswer, DiskError>) + Send + Sync>;

/// One of the disk's threads calls it once the membership's state is on the medium, or cannot be.
pub type Kept = Box<dyn FnOnce(Result<(), DiskError>) + Send>;

/// A disk. Dropping it waits for the operations under way.
pub struct Disk {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    syncer: Option<JoinHandle<()>>,
}

struct Shared {
    store: Store,
    answered: Answered,
    state: Mutex<State>,
    /// There is something to read or write.
    work: Condvar,
    /// There is something to sync.
    sync: Condvar,
}

#[derive(Default)]
struct State {
    asks: VecDeque<DiskAsk>,
    /// Written or to be saved, and not durable.
    unsynced: Vec<Unsynced>,
    /// The reason why nothing is written any more. After a failed sync, the medium's content is
    /// unknown.
    failed: Option<DiskError>,
    /// The threads that read and write end when nothing is left to do.
    stop: bool,
    /// They have ended, and so does the one that syncs.
    stop_sync: bool,
}

enum Unsynced {
    Written(DiskToken),
    Save(DiskToken, bytes::Bytes),
    Keep(Vec<u8>, Kept),
}

impl Disk {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has no more.
    pub fn start(store: Store, answered: Answered) -> std::io::Result<Disk> {
        let shared = Arc::new(Shared {
            store,
            answered,
            state: Mutex::default(),
            work: Condvar::new(),
            sync: Condvar::new(),
        });
        let mut disk = Disk { shared, workers: Vec::new(), syncer: None };
        for _ in 0..WORKERS {
            disk.workers.push(disk.thread("disk", work)?);
        }
        disk.syncer = Some(disk.thread("disk-sync", sync)?);
        Ok(disk)
    }

    fn thread(&self, name: &str, run: fn(&Shared)) -> std::io::Result<JoinHandle<()>> {
        let shared = self.shared.clone();
        std::thread::Builder::new().name(name.into()).spawn(move || run(&shared))
    }

    /// The file.
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Has something done.
    pub fn ask(&self, ask: DiskAsk) {
        let mut state = self.shared.state();
        match ask {
            DiskAsk::Flush { token } => {
                state.unsynced.push(Unsynced::Written(token));
                self.shared.sync.notify_one();
            }
            DiskAsk::Save { token, record } => {
                state.unsynced.push(Unsynced::Save(token, record));
                self.shared.sync.notify_one();
            }
            ask => {
                state.asks.push_back(ask);
                self.shared.work.notify_one();
            }
        }
    }
}

impl Disk {
    /// Replaces the membership's state ([`Store::keep`]). A state longer than [`LONGEST_KEPT`](super::LONGEST_KEPT) bytes counts
    /// as a failure of the disk.
    pub fn keep(&self, image: Vec<u8>, kept: Kept) {
        self.shared.state().unsynced.push(Unsynced::Keep(image, kept));
        self.shared.sync.notify_one();
    }

    /// Makes room for so many stripes ([`Store::grow`]), on a thread of its own, which calls `done`. One at a time.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn grow(
        &mut self,
        stripes: u64,
        done: impl FnOnce(Result<(), String>) + Send + 'static,
    ) -> std::io::Result<()> {
        let shared = self.shared.clone();
        let work = move || done(shared.store.grow(stripes).map_err(|error| error.to_string()));
        let thread = std::thread::Builder::new().name("disk-grow".into()).spawn(work)?;
        self.workers.push(thread);
        Ok(())
    }

    /// Waits for the operations under way; nothing more is done.
    pub fn settle(&mut self) {
        self.shared.state().stop = true;
        self.shared.work.notify_all();
        // They end by themselves; if one has panicked there is nothing to wait for.
        self.workers.drain(..).for_each(|thread| drop(thread.join()));
        self.shared.state().stop_sync = true;
        self.shared.sync.notify_all();
        self.syncer.take().map(JoinHandle::join);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.settle();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self) -> Option<DiskError> {
        self.state().failed.clone()
    }
}

fn work(shared: &Shared) {
    loop {
        let mut state = shared.state();
        let ask = loop {
            if let Some(ask) = state.asks.pop_front() {
                break ask;
            }
            if state.stop {
                return;
            }
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        match ask {
            DiskAsk::Read { token, extent } => {
                let read = shared.store.read(extent).map(DiskAnswer::Read);
                (shared.answered)(token, read.map_err(|e| error("reading", &e)));
            }
            DiskAsk::Write { token, start, blocks, durable } => {
                let written = match shared.failed() {
                    Some(why) => Err(why),
                    None => shared.store.write(start, &blocks).map_err(|e| error("writing", &e)),
                };
                if written.is_ok() && durable {
                    shared.state().unsynced.push(Unsynced::Written(token));
                    shared.sync.notify_one();
                } else {
                    (shared.answered)(token, written.map(|()| DiskAnswer::Done));
                }
            }
            // They go to the other thread at once.
            DiskAsk::Flush { .. } | DiskAsk::Save { .. } => {}
        }
    }
}

/// Group commit: everything that was written while one sync ran shares the next one.
fn sync(shared: &Shared) {
    loop {
        let mut state = shared.state();
        while state.unsynced.is_empty() {
            if state.stop_sync {
                return;
            }
            state = shared.sync.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let all = std::mem::take(&mut state.unsynced);
        let mut failed = state.failed.clone();
        drop(state);
        let mut done = Vec::with_capacity(all.len());
        let mut kept = Vec::new();
        let mut is_synced = false;
        for one in all {
            match one {
                Unsynced::Written(token) => done.push(token),
                Unsynced::Save(token, record) => {
                    if failed.is_none() {
                        // Syncs, too, and with it everything written before.
                        match shared.store.save(&record) {
                            Ok(()) => is_synced = true,
                            Err(e) => failed = Some(error("saving the record", &e)),
                        }
                    }
                    done.push(token);
                }
                Unsynced::Keep(image, answer) => {
                    if failed.is_none() {
                        match shared.store.keep(&image) {
                            Ok(()) => is_synced = true,
                            Err(e) => failed = Some(error("saving who is there", &e)),
                        }
                    }
                    kept.push(answer);
                }
            }
        }
        if failed.is_none() && !is_synced {
            failed = shared.store.sync().err().map(|e| error("syncing", &e));
        }
        if failed.is_some() {
            shared.state().failed.clone_from(&failed);
        }
        for token in done {
            (shared.answered)(token, failed.clone().map_or(Ok(DiskAnswer::Done), Err));
        }
        for answer in kept {
            answer(failed.clone().map_or(Ok(()), Err));
        }
    }
}

fn error(what: &str, error: &std::io::Error) -> DiskError {
    let remedy = match super::is_full(error) {
        true => ", since its file system is full; make space there, and start the device again",
        false => "",
    };
    DiskError(format!("{what} failed: {error}{remedy}"))
}
