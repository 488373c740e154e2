//! Blocking calls that their own thread can interrupt, for runtimes whose signal handlers run only
//! when the thread asks for them (Python's).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// How often a call that waits asks whether it is interrupted.
pub(crate) const INTERVAL: Duration = Duration::from_millis(50);

type Check = Rc<dyn Fn() -> bool>;

thread_local! {
    static CHECK: RefCell<Option<Check>> = const { RefCell::new(None) };
}

/// Makes `call`, whose blocking calls ask `check` about every 50 ms whether to go on waiting. When
/// it returns true, they fail with [`Error::Interrupted`](crate::Error::Interrupted), and take back
/// what they asked for: a request or conversion is cancelled (and a lock that was granted all the
/// same released), a release that is under way goes on.
///
/// `check` may make calls itself, of the same session, too.
pub fn interruptible<T>(check: impl Fn() -> bool + 'static, call: impl FnOnce() -> T) -> T {
    let _outer = Outer(CHECK.replace(Some(Rc::new(check))));
    call()
}

/// What this thread's calls ask, if anything.
pub(crate) fn check() -> Option<Check> {
    CHECK.with_borrow(Clone::clone)
}

/// The check to go back to.
struct Outer(Option<Check>);

impl Drop for Outer {
    fn drop(&mut self) {
        CHECK.set(self.0.take());
    }
}
