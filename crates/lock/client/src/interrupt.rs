//! Blocking calls that their own thread can interrupt, for runtimes whose signal handlers run only
//! when the thread asks for them (Python's).

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// An interruption of the waits of a thread's calls.
pub struct Interrupt {
    /// Readable when `check` is to be asked, which empties it.
    pub bell: Option<Arc<OwnedFd>>,
    /// When to give up in any case.
    pub until: Option<Instant>,
    /// Returns true to give up waiting. It may make calls itself, of the same session, too.
    pub check: Box<dyn Fn() -> bool>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Interrupt>>> = const { RefCell::new(None) };
}

/// Makes `call`, whose blocking calls ask `interrupt.check` when its bell rings whether to give up.
/// When it returns true, or the interrupt's time has come, they fail with
/// [`Error::Interrupted`](crate::Error::Interrupted), and withdraw their operation: a request or
/// conversion is cancelled (and a lock that was granted all the same released), a release that is
/// under way goes on.
///
/// Between the bell and the time, the thread sleeps: waiting costs nothing.
pub fn interruptible<T>(interrupt: Interrupt, call: impl FnOnce() -> T) -> T {
    let _outer = Outer(CURRENT.replace(Some(Rc::new(interrupt))));
    call()
}

/// The interruption of this thread's calls, if there is one.
pub(crate) fn current() -> Option<Rc<Interrupt>> {
    CURRENT.with_borrow(Clone::clone)
}

impl Interrupt {
    /// Returns true if the bell rings, or the time has come.
    pub(crate) fn is_due(&self) -> bool {
        let rings = |bell: &Arc<OwnedFd>| readable(&[bell.as_fd()], Some(Duration::ZERO));
        self.is_over() || self.bell.as_ref().is_some_and(rings)
    }

    /// Returns true if the call has to give up.
    pub(crate) fn ends(&self) -> bool {
        // Calls of the check wait for their own sake.
        let _outer = Outer(CURRENT.replace(None));
        (self.check)() || self.is_over()
    }

    fn is_over(&self) -> bool {
        self.left() == Some(Duration::ZERO)
    }

    /// Until its time comes.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }
}

/// Waits until one of the descriptors is readable; false after `timeout`, or a signal.
pub(crate) fn readable(descriptors: &[BorrowedFd<'_>], timeout: Option<Duration>) -> bool {
    let watched = descriptors.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
    let mut fds: Vec<PollFd<'_>> = watched.collect();
    poll(&mut fds, timeout.map(timespec).as_ref()).is_ok_and(|ready| ready > 0)
}

/// A time limit as the system wants it.
pub(crate) fn timespec(limit: Duration) -> Timespec {
    Timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    }
}

/// The former interruption.
struct Outer(Option<Rc<Interrupt>>);

impl Drop for Outer {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}
