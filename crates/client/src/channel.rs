//! One session with one shard, and who drives it.
//!
//! Only one thread at a time may drive the transport (wait for events and hand them out): the
//! holder of the *role*. A thread that waits for its own operation takes the role if it is free, so
//! that an uncontended lock costs no hop between threads: it sends, it waits, it has the answer.
//! Other threads that wait meanwhile are followers: the driver hands them their outcomes, and when
//! it is done, wakes one of them to drive on.
//!
//! A background thread drives when nobody else does, for blocking notices, losses, peers'
//! messages and timers of an embedded node, and async operations. It stands aside for
//! [`STAND_ASIDE`] after each blocking operation, because another one is likely to follow.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::task::{Context, Poll};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::callbacks::Callbacks;
use crate::client::unexpected;
use crate::error::Error;
use crate::interrupt;
use crate::protocol::{Answer, Event, Query, Request};
use crate::slot::Slot;
use crate::table::Table;
use crate::transport::{Drive, Submit};

/// How long the background thread stands aside after a blocking operation. Events that come while
/// no operation waits are delayed by at most about twice this.
const STAND_ASIDE: Duration = Duration::from_millis(1);

/// Safety net of parked threads; every transition unparks whom it concerns.
const PARK: Duration = Duration::from_millis(100);

/// What the driver needs; having it locked is the role.
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
    followers: Mutex<Vec<Thread>>,
    /// Blocking operations so far.
    activity: AtomicU64,
    /// Async operations that wait.
    tasks: AtomicU64,
    closed: AtomicBool,
    background: OnceLock<Thread>,
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
        let Some(interrupted) = interrupt::check() else {
            // Ends without an outcome only at a deadline, and there is none.
            return self.wait_until(slot, None).unwrap_or(Err(Error::Interrupted));
        };
        loop {
            let end = Instant::now() + interrupt::INTERVAL;
            if let Some(outcome) = self.wait_until(slot, Some(end)) {
                return outcome;
            }
            // Without the role: the check may run anything, also calls of this session.
            if interrupted() {
                return Err(Error::Interrupted);
            }
        }
    }

    fn wait_until<T>(&self, slot: &Slot<T>, end: Option<Instant>) -> Option<T> {
        let left = || end.map(|end| end.saturating_duration_since(Instant::now()));
        if let Some(outcome) = self.lead(slot, &left) {
            return Some(outcome);
        }
        let following = Following::new(self);
        loop {
            let outcome = slot.take_or_unpark();
            let left_now = left();
            if outcome.is_some() || left_now == Some(Duration::ZERO) {
                drop(following);
                // The call to drive on may have reached this thread: pass it on.
                self.hand_over();
                return outcome;
            }
            if let Some(outcome) = self.lead(slot, &left) {
                return Some(outcome);
            }
            std::thread::park_timeout(left_now.map_or(PARK, |left| left.min(PARK)));
        }
    }

    /// Drives until the outcome is there or no time is left, if the role is free.
    fn lead<T>(&self, slot: &Slot<T>, left: &impl Fn() -> Option<Duration>) -> Option<T> {
        let mut role = self.try_role()?;
        let outcome = loop {
            let outcome = slot.take();
            let left = left();
            if outcome.is_some() || left == Some(Duration::ZERO) {
                break outcome;
            }
            self.drive(&mut role, left);
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

    /// Handles what is queued, without waiting. If somebody else has the role, he does.
    fn drive_now(&self) {
        if let Some(mut role) = self.try_role() {
            self.drive(&mut role, Some(Duration::ZERO));
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

    /// One round: wait for events, hand them out, send what they entail.
    fn drive(&self, role: &mut Role, timeout: Option<Duration>) {
        let polled = role.drive.poll_once(timeout, &mut role.events);
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

    /// After giving up the role: whoever still waits must drive on.
    fn hand_over(&self) {
        if !self.wake_follower() && self.needs_background() {
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
            match self.try_role() {
                Some(mut role) => self.drive_alone(&mut role, &mut seen),
                None => std::thread::park_timeout(STAND_ASIDE),
            }
            self.wake_follower();
        }
    }

    /// Drives until a blocking operation comes.
    fn drive_alone(&self, role: &mut Role, seen: &mut u64) {
        loop {
            self.drive(role, None);
            let activity = self.activity.load(Ordering::Relaxed);
            if activity != *seen || self.is_over() {
                return;
            }
        }
    }

    fn wake_follower(&self) -> bool {
        let followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        followers.last().inspect(|follower| follower.unpark()).is_some()
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
struct Following<'a>(&'a Channel);

impl Following<'_> {
    fn new(channel: &Channel) -> Following<'_> {
        let mut followers = channel.followers.lock().unwrap_or_else(PoisonError::into_inner);
        followers.push(std::thread::current());
        Following(channel)
    }
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        let me = std::thread::current().id();
        let mut followers = self.0.followers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(i) = followers.iter().position(|t| t.id() == me) {
            followers.swap_remove(i);
        }
    }
}
