//! One open lockspace: the sessions with the daemon's shards, their reader, and callbacks.

use std::ffi::c_int;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use lockify_client::protocol::{Event, Query, Request};
use lockify_client::raw::{Sender, Session};
use lockify_client::{Name, NodeId};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};

use crate::errno;
use crate::locks::{Due, Ended, Locks, Op};
use crate::sleepers::{Concern, Sleepers};

/// How long a daemon may take to accept a call, to make a lockspace or to leave it. A longer call
/// fails with ETIMEDOUT. Waiting for a lock has no limit of its own.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How long the end of a session may take.
const PARTING: Duration = Duration::from_secs(5);

/// An open lockspace: what `dlm_lshandle_t` stands for.
pub struct Handle {
    pub(crate) name: String,
    /// The node that the daemon is.
    pub(crate) node: NodeId,
    senders: Vec<Sender>,
    /// Readable when there is something to dispatch: the program polls it.
    epoll: OwnedFd,
    /// Readable when callbacks are due that no session will speak of again.
    bell: OwnedFd,
    /// Readable when the handle is being closed: ends the reader's wait.
    stop: OwnedFd,
    state: Mutex<State>,
    /// Used by the reader only.
    sessions: Mutex<Vec<Session>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) locks: Locks,
    next_query: u64,
    next_waiter: u64,
    /// Some thread reads the sessions, or waits for them to be readable.
    reading: bool,
    /// Threads that sleep until their news has come, or until nobody reads any more.
    sleepers: Sleepers,
    closing: bool,
    /// A session has ended.
    over: bool,
    dispatcher: Option<ThreadId>,
}

impl State {
    /// A new number for a waiter for an operation's end.
    pub(crate) fn waiter(&mut self) -> u64 {
        self.next_waiter += 1;
        self.next_waiter
    }

    /// Wakes whom the news concern.
    fn tell_sleepers(&mut self) {
        let news = std::mem::take(&mut self.locks.news);
        if !news.is_empty() || self.locks.any_due() {
            self.sleepers.wake(Concern::Any);
        }
        news.into_iter().for_each(|concern| self.sleepers.wake(concern));
    }
}

impl Handle {
    pub(crate) fn new(
        name: &str,
        node: NodeId,
        sessions: Vec<Session>,
        locks: Locks,
    ) -> Result<Handle, c_int> {
        let system = |e: rustix::io::Errno| e.raw_os_error();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (bell, stop) = (eventfd(0, flags).map_err(system)?, eventfd(0, flags).map_err(system)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, &bell, data, epoll::EventFlags::IN).map_err(system)?;
        for descriptor in sessions.iter().filter_map(Session::descriptor) {
            epoll::add(&epoll, descriptor, data, epoll::EventFlags::IN).map_err(system)?;
        }
        Ok(Handle {
            name: name.to_owned(),
            node,
            senders: sessions.iter().map(Session::sender).collect(),
            epoll,
            bell,
            stop,
            state: Mutex::new(State { locks, ..State::default() }),
            sessions: Mutex::new(sessions),
            thread: Mutex::default(),
        })
    }

    /// The descriptor that the program may poll and dispatch.
    pub fn descriptor(&self) -> c_int {
        self.epoll.as_raw_fd()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn shards(&self) -> usize {
        self.senders.len()
    }

    /// The shard of a name.
    pub(crate) fn shard_of(&self, name: &Name) -> usize {
        lockify_client::shard_of(name, self.senders.len() as u32) as usize
    }

    pub(crate) fn submit(&self, shard: usize, request: Request) {
        self.senders[shard].submit(request);
    }

    /// Asks one shard for something to be done, and waits until it is.
    pub(crate) fn ask(&self, shard: usize, query: Query) -> Result<(), c_int> {
        let id = {
            let mut state = self.state();
            state.next_query += 1;
            state.next_query
        };
        self.submit(shard, Request::Query { id, query });
        self.wait(Some(PATIENCE), Concern::Answer(id), |state| state.locks.answers.remove(&id))?
    }

    /// Waits until `ready` succeeds, reading the sessions if no other thread does.
    ///
    /// # Errors
    /// ETIMEDOUT after `patience`; ENOTCONN when the session has ended.
    pub(crate) fn wait<T>(
        &self,
        patience: Option<Duration>,
        concern: Concern,
        ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, c_int> {
        self.wait_and_dispatch(patience, false, concern, ready)
    }

    /// As [`Handle::wait`]; calls the program back meanwhile if it `dispatches`: then anything is its
    /// concern.
    fn wait_and_dispatch<T>(
        &self,
        patience: Option<Duration>,
        dispatches: bool,
        concern: Concern,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, c_int> {
        let end = patience.map(|p| Instant::now() + p);
        let concern = if dispatches { Concern::Any } else { concern };
        let mut state = self.state();
        let mut reader = false;
        let result = loop {
            if let Some(found) = ready(&mut state) {
                break Ok(found);
            }
            if dispatches
                && !state.closing
                && let Some(due) = state.locks.next_due()
            {
                // A callback may take long, or wait for something itself.
                if std::mem::take(&mut reader) {
                    self.let_others_read(&mut state);
                }
                drop(state);
                call_back(due);
                state = self.state();
                continue;
            }
            if state.over || state.closing {
                break Err(libc::ENOTCONN);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break Err(libc::ETIMEDOUT);
            }
            if state.reading && !reader {
                // The reader wakes whom its news concern, and somebody when it goes.
                state = self.sleep(state, concern, left);
            } else {
                reader = true;
                state = self.read(state, left);
            }
        };
        if reader {
            self.let_others_read(&mut state);
        } else if !state.reading {
            // It may have been woken to read, and has its own news: the reading goes on to another.
            state.sleepers.wake_one();
        }
        result
    }

    /// Sleeps until the concern has come, or somebody has to read; without a limit as long as it
    /// takes.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        concern: Concern,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        let (number, bell) = state.sleepers.add(concern);
        let mut state = match limit {
            Some(limit) => {
                let waited = bell.wait_timeout(state, limit);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => bell.wait(state).unwrap_or_else(PoisonError::into_inner),
        };
        state.sleepers.remove(number);
        state
    }

    /// The reader goes, and one of those who sleep may take its place.
    fn let_others_read(&self, state: &mut State) {
        state.reading = false;
        state.sleepers.wake_one();
    }

    /// Reads the sessions once, waiting for something to read for at most `timeout`. The caller
    /// is the reader then.
    fn read<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        timeout: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        state.reading = true;
        drop(state);
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = timeout == Some(Duration::ZERO) || self.await_sessions(&sessions, timeout);
        let mut requests = Vec::new();
        for (shard, session) in sessions.iter_mut().enumerate().filter(|_| ready) {
            let mut events = Vec::new();
            let polled = session.poll(Some(Duration::ZERO), &mut events);
            let mut state = self.state();
            let over =
                polled.is_err() || events.iter().any(|event| matches!(event, Event::Goodbye(_)));
            for event in events {
                state.locks.event(shard, event, &mut requests);
            }
            if over && !state.closing && !std::mem::replace(&mut state.over, true) {
                state.locks.over();
                state.sleepers.wake_all();
            }
        }
        drop(sessions);
        for (shard, request) in requests {
            self.submit(shard, request);
        }
        let mut state = self.state();
        if std::mem::take(&mut state.locks.losses) > 0 {
            lost(&self.name);
        }
        if state.locks.any_due() && state.dispatcher.is_none() {
            // Fails only if it rings already.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
        state.tell_sleepers();
        state
    }

    /// Returns true if a session can be read, or the handle is being closed, within `timeout`.
    fn await_sessions(&self, sessions: &[Session], timeout: Option<Duration>) -> bool {
        let descriptors = sessions.iter().filter_map(Session::descriptor);
        let mut fds: Vec<PollFd<'_>> = descriptors
            .chain([self.stop.as_fd()])
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let timeout = timeout.map(|t| Timespec {
            tv_sec: t.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        // A signal is as good as a readable session: the caller looks again.
        poll(&mut fds, timeout.as_ref()).is_ok_and(|n| n > 0)
    }

    /// Reads present input, unless another thread is about to.
    fn catch_up(&self) {
        let state = self.state();
        if !state.reading && !state.over && !state.closing {
            let mut state = self.read(state, Some(Duration::ZERO));
            self.let_others_read(&mut state);
        }
    }

    /// The same, before a call for this lock is judged. A lock at rest cannot have relevant input.
    pub(crate) fn catch_up_with(&self, lkid: u32) {
        let at_rest = self.state().locks.get(lkid).is_some_and(|lock| lock.op == Op::None);
        if !at_rest {
            self.catch_up();
        }
    }

    /// Calls the program back for everything that has come.
    ///
    /// # Errors
    /// ENOTCONN if the session has ended and there is nothing more to tell.
    pub fn dispatch(&self) -> Result<(), c_int> {
        let mut told = false;
        loop {
            self.catch_up();
            let mut state = self.state();
            let Some(due) = state.locks.next_due() else {
                // In this order: what comes from now on rings again.
                let _ = rustix::io::read(&self.bell, &mut [0; 8]);
                return if state.over && !told { Err(libc::ENOTCONN) } else { Ok(()) };
            };
            drop(state);
            told = true;
            call_back(due);
        }
    }

    /// Starts the thread that calls the program back.
    ///
    /// # Errors
    /// EEXIST if there is one; EAGAIN if the system has no more threads.
    pub fn start_thread(self: &Arc<Handle>) -> Result<(), c_int> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_some() {
            return Err(libc::EEXIST);
        }
        let handle = self.clone();
        let builder = std::thread::Builder::new().name("lockify-dlm".into());
        let started = builder.spawn(move || {
            handle.state().dispatcher = Some(std::thread::current().id());
            // Until the session or the handle ends.
            let _ = handle.wait_and_dispatch(None, true, Concern::Any, |_| None::<()>);
        });
        *thread = Some(started.map_err(|_| libc::EAGAIN)?);
        Ok(())
    }

    /// Ends the handle: its locks are released (or become orphans), callbacks that are due are
    /// dropped, and waiting threads fail with ENOTCONN.
    pub fn close(&self) {
        {
            let mut state = self.state();
            state.closing = true;
            state.sleepers.wake_all();
        }
        // Fails only if it rings already.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A callback may close its own lockspace: the thread ends when it returns.
        if let Some(thread) = thread.filter(|t| t.thread().id() != std::thread::current().id()) {
            // A thread that panicked has nothing more to say.
            let _ = thread.join();
        }
        let mut state = self.state();
        while state.reading {
            state = self.sleep(state, Concern::Any, Some(PARTING));
        }
        state.locks.drop_due();
        drop(state);
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let end = Instant::now() + PARTING;
        for session in sessions.drain(..) {
            session.end(end.saturating_duration_since(Instant::now()));
        }
    }

    /// An operation's end, for the waiter with this number. Callbacks that are due run meanwhile on
    /// the thread that dispatches, and without threads (`alone`): the end may depend on them.
    pub(crate) fn wait_for_end(&self, waiter: u64, alone: bool) -> Result<Ended, c_int> {
        let dispatches = alone || self.state().dispatcher == Some(std::thread::current().id());
        let ended = Concern::End(waiter);
        self.wait_and_dispatch(None, dispatches, ended, |state| {
            state.locks.take_end(waiter, dispatches)
        })
    }
}

/// Calls the program back. No lock of this library is held: the callback may make any call.
fn call_back(due: Due) {
    match due {
        Due::Cast(target, ended) => {
            // SAFETY: the program gave this status block for this operation.
            unsafe { ended.write(target.lksb) };
            if let Some(cast) = target.cast {
                // SAFETY: the program gave this function and argument to be called at this end.
                unsafe { cast(target.arg) };
            }
        }
        // SAFETY: the program gave this function and argument for blocking notices.
        Due::Bast(blocking) => unsafe { (blocking.bast)(blocking.arg) },
    }
}

/// Locks that the program holds are no longer its own, and libdlm has no way to say so. In the
/// kernel's lock manager the node would be fenced: the whole machine would stop.
fn lost(space: &str) {
    if std::env::var_os("LOCKIFY_ON_LOST").is_some_and(|what| what == "report") {
        return;
    }
    let text = format!(
        "lockify: locks in lockspace {space} were lost: this process is killed before it uses what \
         they protect (LOCKIFY_ON_LOST=report has it told by blocking notices instead)\n"
    );
    // Nothing more can be done about a closed standard error.
    let _ = std::io::stderr().write_all(text.as_bytes());
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

/// The errno of a client's error.
pub(crate) fn failed(e: lockify_client::Error) -> c_int {
    errno::of(&e)
}
