//! One session with one shard, and the thread that drives it.
//!
//! Only one thread at a time may drive the transport (wait for events and hand them out): the
//! holder of the *role*. A thread that waits for its own operation takes the role if it is free, so
//! that an uncontended lock costs no hop between threads: it sends, it waits, it has the answer.
//! Other threads that wait meanwhile are followers: the driver hands them their outcomes, and when
//! it is done, wakes one of them to drive on.
//!
//! A background thread drives when nobody else does, for blocking notices, losses, peers' messages
//! and timers of an embedded node, and async operations. It stands aside for [`STAND_ASIDE`] after
//! each blocking operation, because another one is likely to follow. While a blocking operation
//! waits, it sleeps: the thread that gives up the role wakes it.
//!
//! Every waiting thread sleeps until it is woken: the driver in the transport, followers and the
//! background thread by others. No thread polls.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::task::{Context, Poll};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use lockify_session::protocol::{Answer, Event, Query, Request};

use crate::callbacks::Callbacks;
use crate::error::{Error, unexpected};
use crate::interrupt::{self, Interrupt};
use crate::sleeper::Sleeper;
use crate::slot::Slot;
use crate::table::Table;
use crate::transport::{Drive, Submit};

/// How long the background thread stands aside after a blocking operation. Events that come while
/// no operation waits are delayed by at most about twice this.
const STAND_ASIDE: Duration = Duration::from_millis(1);

/// The driver's state. The thread that has it locked is the driver.
struct Role {
    drive: Box<dyn Drive>,
    events: Vec<Event>,
    replies: Vec<Request>,
}

pub(crate) struct Channel {
    submit: Arc<dyn Submit>,
    role: Mutex<Role>,
    table: Mutex<Table>,
    /// Blocking operations that wait without the role.
    followers: Mutex<Followers>,
    /// Blocking operations so far.
    activity: AtomicU64,
    /// Async operations that wait.
    tasks: AtomicU64,
    closed: AtomicBool,
    background: OnceLock<Thread>,
    /// The background thread sleeps until the role is given up.
    background_sleeps: AtomicBool,
}

/// Threads that wait without the role, by the numbers that they have got when they came.
#[derive(Default)]
struct Followers {
    last: u64,
    sleepers: BTreeMap<u64, Sleeper>,
}

impl Channel {
    /// Starts to serve a transport; join the thread after [`Channel::close`].
    pub(crate) fn start(
        submit: Arc<dyn Submit>,
        drive: Box<dyn Drive>,
        callbacks: Arc<Callbacks>,
    ) -> Result<(Arc<Channel>, JoinHandle<()>), Error> {
        let channel = Arc::new(Channel {
            submit,
            role: Mutex::new(Role { drive, events: Vec::new(), replies: Vec::new() }),
            table: Mutex::new(Table::new(callbacks)),
            followers: Mutex::default(),
            activity: AtomicU64::new(0),
            tasks: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            background: OnceLock::new(),
            background_sleeps: AtomicBool::new(false),
        });
        let served = channel.clone();
        let thread = std::thread::Builder::new()
            .name("lockify-client".into())
            .spawn(move || served.background())
            .map_err(|e| Error::Node(format!("cannot start a thread: {e}")))?;
        let _ = channel.background.set(thread.thread().clone());
        Ok((channel, thread))
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the session: everything that waits fails.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // Before the transport says that its end has come: the program knows why.
        self.table().fail(Error::Disconnected("this program closed it".into()));
        self.submit.close();
        self.wake_background();
    }

    /// The session's socket, if it has one.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.submit.descriptor()
    }

    /// Sends a request whose outcome somebody waits for.
    pub(crate) fn submit(&self, request: Request) {
        self.submit.submit(request);
    }

    /// Sends a request that nobody waits for.
    pub(crate) fn post(&self, request: Request) {
        self.submit.submit(request);
        if self.submit.queued() {
            self.drive_now();
        }
    }

    /// Asks and waits for the answer's parts.
    pub(crate) fn ask(&self, query: Query) -> Result<Vec<Answer>, Error> {
        let (id, slot) = self.table().query()?;
        self.submit(Request::Query { id, query });
        self.wait(&slot)
    }

    /// Asks for something to be done, and waits until it is.
    pub(crate) fn ask_done(&self, query: Query) -> Result<(), Error> {
        for answer in self.ask(query)? {
            match answer {
                Answer::Done => {}
                Answer::Refused(why) => return Err(why.into()),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(())
    }

    /// Waits for an outcome, driving if nobody else does.
    ///
    /// # Errors
    /// Those of the outcome; [`Error::Interrupted`] ([`interrupt`]).
    pub(crate) fn wait<T>(&self, slot: &Slot<Result<T, Error>>) -> Result<T, Error> {
        self.activity.fetch_add(1, Ordering::Relaxed);
        let interrupt = interrupt::current();
        loop {
            if let Some(outcome) = self.wait_until(slot, interrupt.as_deref()) {
                return outcome;
            }
            // Without the role: the check may run anything, also calls of this session.
            if interrupt.as_ref().is_some_and(|interrupt| interrupt.ends()) {
                return Err(Error::Interrupted);
            }
        }
    }

    /// Waits for an outcome; `None` if the interrupt is due before.
    fn wait_until<T>(&self, slot: &Slot<T>, interrupt: Option<&Interrupt>) -> Option<T> {
        if let Some(role) = self.try_role() {
            return self.lead(role, slot, interrupt);
        }
        let sleeper = Sleeper::here(interrupt);
        let following = Following::new(self, &sleeper);
        loop {
            let outcome = slot.take_or_wake(&sleeper);
            if outcome.is_some() || interrupt.is_some_and(Interrupt::is_due) {
                drop(following);
                // The call to drive on may have reached this thread: pass it on.
                self.hand_over();
                return outcome;
            }
            if let Some(role) = self.try_role() {
                // No follower any more: the role is handed over to somebody else than itself.
                drop(following);
                return self.lead(role, slot, interrupt);
            }
            sleeper.sleep(interrupt);
        }
    }

    /// Drives until the outcome is there or the interrupt is due.
    fn lead<T>(
        &self,
        mut role: MutexGuard<'_, Role>,
        slot: &Slot<T>,
        interrupt: Option<&Interrupt>,
    ) -> Option<T> {
        let outcome = loop {
            let outcome = slot.take();
            if outcome.is_some() || interrupt.is_some_and(Interrupt::is_due) {
                break outcome;
            }
            let bell = interrupt.and_then(|interrupt| interrupt.bell.as_ref());
            let left = interrupt.and_then(Interrupt::left);
            self.drive(&mut role, left, bell.map(|bell| bell.as_fd()));
        };
        drop(role);
        self.hand_over();
        outcome
    }

    /// Polls an async operation. Something that needs no network, as a claim in an embedded node,
    /// is ready at the first poll; else the background thread drives.
    pub(crate) fn poll<T>(&self, slot: &Slot<T>, cx: &mut Context<'_>) -> Poll<T> {
        if self.submit.queued() {
            self.drive_now();
        }
        let outcome = slot.poll(cx);
        if outcome.is_pending() {
            self.wake_background();
        }
        outcome
    }

    /// Counts an async operation as waiting, for as long as the result lives.
    pub(crate) fn task(self: &Arc<Self>) -> Task {
        self.tasks.fetch_add(1, Ordering::SeqCst);
        Task(self.clone())
    }

    /// Handles the queued requests, without waiting. If another thread has the role, that thread
    /// does it.
    fn drive_now(&self) {
        if let Some(mut role) = self.try_role() {
            self.drive(&mut role, Some(Duration::ZERO), None);
            drop(role);
            self.hand_over();
        }
    }

    fn try_role(&self) -> Option<MutexGuard<'_, Role>> {
        match self.role.try_lock() {
            Ok(role) => Some(role),
            Err(TryLockError::Poisoned(role)) => Some(role.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// One round: wait for events, hand them out, send the resulting requests.
    fn drive(&self, role: &mut Role, timeout: Option<Duration>, bell: Option<BorrowedFd<'_>>) {
        let polled = role.drive.poll_once(timeout, bell, &mut role.events);
        {
            let mut table = self.table();
            for event in role.events.drain(..) {
                table.event(event, &mut role.replies);
            }
            if let Err(e) = polled {
                table.fail(e);
            }
        }
        for reply in role.replies.drain(..) {
            self.submit.submit(reply);
        }
    }

    /// After giving up the role: a waiting thread must drive on. The last waiter wakes the
    /// background thread.
    fn hand_over(&self) {
        // Either this sees that the background thread sleeps, or that sees that the role is free.
        fence(Ordering::SeqCst);
        if !self.wake_follower()
            && (self.background_sleeps.load(Ordering::SeqCst) || self.needs_background())
        {
            self.wake_background();
        }
    }

    fn needs_background(&self) -> bool {
        self.tasks.load(Ordering::SeqCst) > 0 || self.submit.queued()
    }

    fn wake_background(&self) {
        if let Some(thread) = self.background.get() {
            thread.unpark();
        }
    }

    fn is_over(&self) -> bool {
        self.closed.load(Ordering::SeqCst) || self.table().down().is_some()
    }

    fn background(&self) {
        let mut seen = 0;
        while !self.is_over() {
            let activity = self.activity.load(Ordering::Relaxed);
            if activity != seen && !self.needs_background() {
                seen = activity;
                std::thread::park_timeout(STAND_ASIDE);
                continue;
            }
            match self.role_or_sleep() {
                Some(mut role) => self.drive_alone(&mut role, &mut seen),
                // A thread that has just ended an operation is likely to begin another one.
                None => seen = activity.wrapping_sub(1),
            }
            self.wake_follower();
        }
    }

    /// The role for the background thread; without it, that has slept until it may be free.
    fn role_or_sleep(&self) -> Option<MutexGuard<'_, Role>> {
        self.background_sleeps.store(true, Ordering::SeqCst);
        // As in `hand_over`.
        fence(Ordering::SeqCst);
        let role = self.try_role();
        if role.is_none() {
            std::thread::park();
        }
        self.background_sleeps.store(false, Ordering::SeqCst);
        role
    }

    /// Drives until a blocking operation comes.
    fn drive_alone(&self, role: &mut Role, seen: &mut u64) {
        loop {
            self.drive(role, None, None);
            let activity = self.activity.load(Ordering::Relaxed);
            if activity != *seen || self.is_over() {
                return;
            }
        }
    }

    fn followers(&self) -> MutexGuard<'_, Followers> {
        self.followers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_follower(&self) -> bool {
        let followers = self.followers();
        followers.sleepers.last_key_value().inspect(|(_, follower)| follower.wake()).is_some()
    }
}

/// An async operation that waits.
pub(crate) struct Task(Arc<Channel>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.tasks.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A thread's entry among the followers.
struct Following<'a> {
    channel: &'a Channel,
    number: u64,
}

impl Following<'_> {
    fn new<'a>(channel: &'a Channel, sleeper: &Sleeper) -> Following<'a> {
        let mut followers = channel.followers();
        followers.last += 1;
        let number = followers.last;
        followers.sleepers.insert(number, sleeper.clone());
        Following { channel, number }
    }
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        self.channel.followers().sleepers.remove(&self.number);
    }
}
