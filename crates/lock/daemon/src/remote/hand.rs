//! Threads that wait for locks of a table, and one that looks whether the table is there.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use lockify_fabric::shm::{Owner, now};
use lockify_onesided::{Guard, LockId, Mode, Table};
use lockify_remote::Remote;
use lockify_trust::Mailbox;

use super::spawn;

/// How often the keeper looks.
const PERIOD: Duration = Duration::from_millis(250);

/// An order to a hand.
#[derive(Debug)]
pub enum Order {
    Take { spot: u64, exclusive: bool },
    Give,
}

/// A message of these threads to the shard.
#[derive(Debug)]
pub enum HandLetter {
    /// The table can be reached.
    Up(Standing),
    /// It cannot, and why.
    Down(String),
    /// A hand has got its lock, until then (on the clock of all), with this fencing token.
    Taken {
        hand: usize,
        exclusive: bool,
        until: u64,
        token: u64,
    },
    Given {
        hand: usize,
    },
    Failed {
        hand: usize,
        why: String,
    },
}

/// The properties of a table.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    pub table: Table,
    pub protocol: &'static str,
    /// The length of a lease, in nanoseconds.
    pub lease: u64,
}

/// A client of the table that holds or waits for one lock at a time. Dropped, it keeps its lock until the lease is over.
pub struct Hand {
    orders: Sender<Order>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hand {
    pub fn start(
        number: usize,
        path: &Path,
        leaving: &Arc<AtomicBool>,
        post: impl Fn(HandLetter) + Send + 'static,
    ) -> io::Result<Hand> {
        let (orders, received) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (stops, path, leaving) = (stop.clone(), path.to_owned(), leaving.clone());
        let work = move || {
            let mut worker = Worker { number, path, stop: stops, leaving, remote: None };
            worker.run(&received, post);
        };
        Ok(Hand { orders, stop, thread: Some(spawn("lockify-hand", work)?) })
    }

    pub fn send_order(&self, order: Order) {
        // A hand that has failed for good says nothing; the keeper finds out why.
        let _ = self.orders.send(order);
    }

    /// Waits until it has returned its lock.
    pub fn end(mut self) {
        let thread = self.thread.take();
        drop(self);
        if let Some(thread) = thread {
            // It has panicked, or ended.
            let _ = thread.join();
        }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
    }
}

struct Worker {
    number: usize,
    path: PathBuf,
    stop: Arc<AtomicBool>,
    leaving: Arc<AtomicBool>,
    /// The connection, kept for the next order.
    remote: Option<Remote>,
}

impl Worker {
    fn run(&mut self, orders: &Receiver<Order>, post: impl Fn(HandLetter)) {
        let hand = self.number;
        while let Ok(order) = orders.recv() {
            let Order::Take { spot, exclusive } = order else { continue };
            match self.take(LockId(spot), exclusive) {
                Ok(Some(guard)) => {
                    let (until, token) = (guard.valid_until(), guard.token().unwrap_or(0));
                    post(HandLetter::Taken { hand, exclusive, until, token });
                    let told = orders.recv();
                    if told.is_err() && !self.leaving.load(SeqCst) {
                        std::thread::sleep(Duration::from_nanos(until.saturating_sub(now())));
                    }
                    self.give(guard);
                    if told.is_err() {
                        return;
                    }
                    post(HandLetter::Given { hand });
                }
                Ok(None) => return,
                Err(why) => {
                    self.remote = None;
                    post(HandLetter::Failed { hand, why });
                }
            }
        }
    }

    /// Waits for a lock, unless it is told to stop.
    fn take(&mut self, lock: LockId, exclusive: bool) -> Result<Option<Guard>, String> {
        let remote = match &mut self.remote {
            Some(remote) => remote,
            none => none.insert(Remote::connect(&self.path, Owner::Me).map_err(|e| e.to_string())?),
        };
        let mode = if exclusive { Mode::Exclusive } else { Mode::Shared };
        remote.lock_unless(lock, mode, &self.stop).map_err(|e| e.to_string())
    }

    fn give(&mut self, guard: Guard) {
        let Some(remote) = &mut self.remote else { return };
        // It is known without it if the lease was over. A connection that fails is made anew.
        if remote.unlock(guard).is_err() {
            self.remote = None;
        }
    }
}

/// Looks whether the table is there, until this is dropped.
pub struct Keeper {
    _stop: Sender<()>,
}

impl Keeper {
    pub fn start(path: &Path, letters: Mailbox<(u64, HandLetter)>) -> io::Result<Keeper> {
        let (stop, stopped) = channel::<()>();
        let path = path.to_owned();
        spawn("lockify-keeper", move || keep(&path, &letters, &stopped))?;
        Ok(Keeper { _stop: stop })
    }
}

fn keep(path: &Path, letters: &Mailbox<(u64, HandLetter)>, stopped: &Receiver<()>) {
    let (mut known, mut said) = (None::<Remote>, String::new());
    loop {
        let news = match &known {
            Some(remote) if remote.is_served() => None,
            Some(_) => {
                known = None;
                Some(Err(format!("the memory server of {} has ended", path.display())))
            }
            None => Some(look(path).map(|(remote, standing)| {
                known = Some(remote);
                standing
            })),
        };
        match news {
            Some(Ok(standing)) => {
                said.clear();
                letters.post((0, HandLetter::Up(standing)));
            }
            Some(Err(why)) if why != said => {
                said.clone_from(&why);
                letters.post((0, HandLetter::Down(why)));
            }
            _ => {}
        }
        if stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

fn look(path: &Path) -> Result<(Remote, Standing), String> {
    let remote = Remote::connect(path, Owner::Me).map_err(|e| e.to_string())?;
    if !remote.is_served() {
        return Err(format!(
            "{}: its memory server is gone; start it again when nobody uses what it has left",
            path.display()
        ));
    }
    let options = remote.options();
    let lease = options.lease.ok_or_else(|| {
        format!(
            "{}: the table has no leases, and what a daemon holds that is killed would never be free: serve it with \
             --lease",
            path.display()
        )
    })?;
    let standing = Standing { table: remote.table(), protocol: options.protocol.name(), lease };
    Ok((remote, standing))
}
