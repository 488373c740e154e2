//! Lockspaces whose locks are words in remote memory: this daemon takes them for its clients (spec 2.3, N-CoSED's daemon of a node).
//!
//! [`queue`] decides, and [`hand`] acts: it has the threads that wait for locks of the table. Here both meet, in the shard's loop,
//! which they wake. While the table cannot be reached, the lockspace does not run, as without a quorum.

mod hand;
mod queue;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lockify_core::{
    ClientId, Error, Input, LockArgs, LockFlags, LockId, Mode, Output, Status, Time, UnlockArgs,
    UnlockFlags,
};
use lockify_history::{Kind, WriteError};
use lockify_host::{ExternalEvent, ExternalLockspace};
use lockify_node::{History, Level, Notice, history_file};
use lockify_remote::lock_of;
use lockify_session::protocol::Refusal;
use lockify_trust::Mailbox;

use crate::config::RemoteTable;
use hand::{Hand, HandLetter, Keeper, Order, Standing};
use queue::{Action, Queue};

/// Flags of a request that change nothing here.
const HARMLESS: LockFlags = LockFlags::NOQUEUE
    .union(LockFlags::NODLCKWT)
    .union(LockFlags::NODLCKBLK)
    .union(LockFlags::EXPEDITE)
    .union(LockFlags::NOTIFY);

pub(crate) struct RemoteSpace {
    name: String,
    table: RemoteTable,
    letters: Mailbox<(u64, HandLetter)>,
    /// Looks after the table, as long as it is there.
    _keeper: Keeper,
    /// The daemon ends: nobody waits for leases.
    leaving: Arc<AtomicBool>,
    up: Option<Up>,
    /// Counts how often the table was reached.
    epoch: u64,
    /// The last lock that was made.
    last: u64,
    events: Vec<ExternalEvent>,
    history: Option<History>,
}

/// While the table can be reached.
struct Up {
    standing: Standing,
    queue: Queue,
    /// Those that were needed so far.
    hands: Vec<Hand>,
}

impl RemoteSpace {
    /// Begins to look for the table.
    pub(crate) fn start(
        name: &str,
        node: u32,
        table: RemoteTable,
        waker: Arc<mio::Waker>,
        history: Option<PathBuf>,
    ) -> io::Result<RemoteSpace> {
        let life = lockify_fabric::shm::now();
        let history = history.map(|path| {
            let path = history_file(&path, false, name);
            History::create(&path, node, life).map_err(io::Error::other)
        });
        let history = history.transpose()?;
        let letters = Mailbox::new(waker);
        let _keeper = Keeper::start(&table.path, letters.clone())?;
        let (name, leaving, up) = (name.to_owned(), Arc::default(), None);
        let (epoch, last, events) = (0, 0, Vec::new());
        Ok(RemoteSpace { name, table, letters, _keeper, leaving, up, epoch, last, events, history })
    }

    fn receive(&mut self, epoch: u64, letter: HandLetter, now: Time) {
        match letter {
            HandLetter::Up(standing) => self.begin(standing),
            HandLetter::Down(why) => self.halt(&why),
            _ if epoch != self.epoch => {}
            HandLetter::Taken { hand, exclusive, until, token } => {
                self.decide(|queue| queue.taken(hand, exclusive, until, token, now));
            }
            HandLetter::Given { hand } => {
                self.decide(|queue| queue.given(hand, now));
            }
            HandLetter::Failed { hand, why } => {
                self.notice(Level::Warning, format!("a lock was not taken: {why}"));
                self.decide(|queue| queue.failed(hand, now));
            }
        }
    }

    fn begin(&mut self, standing: Standing) {
        self.epoch += 1;
        let Standing { protocol, lease, .. } = standing;
        let text = format!(
            "takes its locks from {}, by {protocol}, with leases of {}",
            self.table.path.display(),
            humantime::format_duration(std::time::Duration::from_nanos(lease)),
        );
        self.notice(Level::Info, text);
        let queue = Queue::new(self.table.hands, lease, self.last);
        self.up = Some(Up { standing, queue, hands: Vec::new() });
        self.events.push(ExternalEvent::Running);
    }

    /// The table cannot be reached (any more): all that it gave is lost. Hands that hold locks of it keep them until their
    /// leases are over, for clients to hear of it before others are granted.
    fn halt(&mut self, why: &str) {
        let text = format!("{why}; its requests wait until the table can be reached");
        self.notice(Level::Warning, text);
        if self.up.is_none() {
            return;
        }
        self.decide(Queue::halt);
        self.last = self.up.take().map_or(self.last, |up| up.queue.last());
        self.events.push(ExternalEvent::Halted);
        self.epoch += 1;
        self.record(|history| {
            history.ended(Kind::Crash)?;
            history.begin_life(lockify_fabric::shm::now());
            Ok(())
        });
    }

    /// Has the queue decide something, and does what follows.
    fn decide<T>(&mut self, decide: impl FnOnce(&mut Queue) -> T) -> Option<T> {
        let decided = decide(&mut self.up.as_mut()?.queue);
        while let Some(action) = self.up.as_mut().and_then(|up| up.queue.poll()) {
            self.act(action);
        }
        Some(decided)
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Take { hand, spot, exclusive } => {
                self.order(hand, Order::Take { spot, exclusive })
            }
            Action::Give { hand } => self.order(hand, Order::Give),
            Action::Complete(completion) => {
                self.record(|history| history.said(&Output::Complete(completion.clone())));
                self.events.push(ExternalEvent::Completed(completion));
            }
            Action::Lost { client, lock, tag } => {
                let reason = queue::LOST;
                self.record(|history| history.said(&Output::Lost { client, lock, tag, reason }));
                self.events.push(ExternalEvent::Lost { client, lock, tag, reason });
            }
        }
    }

    fn order(&mut self, hand: usize, order: Order) {
        let Some(up) = &mut self.up else { return };
        // The queue takes the first that is free.
        while up.hands.len() <= hand {
            let (number, epoch, letters) = (up.hands.len(), self.epoch, self.letters.clone());
            let post = move |letter| letters.post((epoch, letter));
            match Hand::start(number, &self.table.path, &self.leaving, post) {
                Ok(new) => up.hands.push(new),
                Err(e) => {
                    let why = format!("no thread for it: {e}");
                    return self.letters.post((self.epoch, HandLetter::Failed { hand, why }));
                }
            }
        }
        up.hands[hand].send_order(order);
    }

    fn notice(&mut self, level: Level, text: String) {
        let text = format!("lockspace {}: {text}", self.name);
        self.events.push(ExternalEvent::Notice(Notice { level, text }));
    }

    /// A failure ends the history, not the locking.
    fn record(&mut self, write: impl FnOnce(&mut History) -> Result<(), WriteError>) {
        let Some(history) = &mut self.history else { return };
        if let Err(e) = write(history) {
            self.history = None;
            self.notice(Level::Error, format!("its history ends here: {e}; locking goes on"));
        }
    }

    fn waits(&self, client: ClientId, lock: LockId) -> Result<bool, Error> {
        self.up.as_ref().ok_or(Error::NotMember)?.queue.waits(client, lock)
    }

    /// Takes a request back.
    fn cancel(&mut self, input: &Input, client: ClientId, lock: LockId, status: Status, now: Time) {
        if self.waits(client, lock) == Ok(true) {
            self.record(|history| history.called(input, None));
            self.decide(|queue| queue.cancel(client, lock, status, now));
        }
    }

    fn unlock(&mut self, args: &UnlockArgs, now: Time) -> Result<(), Refusal> {
        if args.flags.contains(UnlockFlags::VALBLK) {
            let why = "locks in remote memory have no value blocks: unlock without one";
            return Err(Refusal::Failed(why.into()));
        }
        let UnlockArgs { client, lock, tag, .. } = *args;
        // Before others can be granted.
        if self.waits(client, lock) == Ok(false) {
            self.record(|history| history.called(&Input::Unlock(args.clone()), None));
        }
        let unlocked = self.decide(|queue| queue.unlock(client, lock, tag, now));
        unlocked.unwrap_or(Err(Error::Lost)).map_err(Refusal::Core)
    }
}

impl ExternalLockspace for RemoteSpace {
    fn check(&self, client: ClientId, args: &LockArgs) -> Result<(), String> {
        let LockArgs { mode, flags, bast, lvb, name, .. } = args;
        let refuse =
            |what: &str| Err(format!("lockspace {:?} is in remote memory: {what}", self.name));
        if matches!(mode, Mode::CR | Mode::CW) {
            return refuse("its modes are NL, PR, PW and EX; use PR or PW");
        }
        if *bast {
            return refuse("nobody is told whom he blocks; ask without blocking notices");
        }
        if lvb.is_some() || flags.contains(LockFlags::VALBLK) {
            return refuse("there are no value blocks; ask without one");
        }
        let others = flags.difference(HARMLESS);
        if !others.is_empty() {
            return refuse(&format!("there is no {others:?}; ask without"));
        }
        let Some(up) = &self.up else { return Ok(()) };
        let spot = lock_of(&up.standing.table, name.as_bytes()).0;
        match *mode != Mode::NL && up.queue.would_starve(client, spot) {
            false => Ok(()),
            true => refuse(&format!(
                "its {} hands are busy, and some for this session: unlock something, or raise `hands` in the daemon's \
                 configuration",
                self.table.hands
            )),
        }
    }

    fn handle(&mut self, input: Input, now: Time) -> Result<Option<LockId>, Refusal> {
        let Some(up) = &self.up else { return Err(Refusal::Core(Error::NotMember)) };
        match &input {
            Input::Lock { client, args } => {
                let spot = lock_of(&up.standing.table, args.name.as_bytes()).0;
                let next = LockId(up.queue.last() + 1);
                self.record(|history| history.called(&input, Some(next)));
                return Ok(self.decide(|queue| queue.lock(*client, args, spot, now)));
            }
            Input::Convert(_) => {
                let why = "locks in remote memory are not converted: unlock, and lock again";
                return Err(Refusal::Failed(why.into()));
            }
            Input::Unlock(args) => self.unlock(args, now)?,
            Input::Cancel { client, lock } => {
                self.cancel(&input, *client, *lock, Status::Canceled, now);
            }
            Input::BreakDeadlock { client, lock } => {
                self.cancel(&input, *client, *lock, Status::Deadlock, now);
            }
            Input::ClientGone(client) => {
                self.record(|history| history.called(&input, None));
                self.decide(|queue| queue.client_gone(*client, now));
            }
            // There are no orphans.
            Input::Purge { .. } => {}
            _ => return Err(Refusal::Failed("this is no call of a client".into())),
        }
        Ok(None)
    }

    fn turn(&mut self, now: Time, events: &mut Vec<ExternalEvent>) {
        for (epoch, letter) in self.letters.take() {
            self.receive(epoch, letter, now);
        }
        self.decide(|queue| queue.tick(now));
        self.record(History::flush);
        events.append(&mut self.events);
    }

    fn next_timer(&self) -> Option<Time> {
        self.up.as_ref().and_then(|up| up.queue.next_timer())
    }
}

/// In order: what clients had is given back before the process ends.
impl Drop for RemoteSpace {
    fn drop(&mut self) {
        self.leaving.store(true, std::sync::atomic::Ordering::SeqCst);
        let hands = self.up.take().map(|up| up.hands).unwrap_or_default();
        hands.into_iter().for_each(Hand::end);
        self.record(|history| history.ended(Kind::Leave));
    }
}

/// For [`Hand`] and [`Keeper`].
fn spawn(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(run)
}
