//! One way to a lock manager: a daemon's socket, or a node in this process.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use lockify_session::protocol::{Event, Request};

use crate::error::Error;

/// The half that any thread may use.
pub(crate) trait Submit: Send + Sync {
    /// Sends a request, or queues it for the next driver of the receiving half. A transport that is
    /// broken drops it: the receiving half reports why.
    fn submit(&self, request: Request);

    /// Returns true if requests wait for the receiving half to be driven.
    fn queued(&self) -> bool;

    /// Announces that no more requests will come; sent ones are still handled.
    fn finish(&self);

    /// The descriptor that it sends on, if it is one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Ends the transport; [`Drive::poll_once`] then fails, also one that is waiting.
    fn close(&self);
}

/// The half that one thread at a time drives.
pub(crate) trait Drive: Send {
    /// Handles queued requests, then waits for events for at most `timeout` (`None`: until there
    /// is something to do) and appends them to `events`. May return without any, also because
    /// `bell` has become readable.
    ///
    /// # Errors
    /// When the transport is broken or closed; it stays so.
    fn poll_once(
        &mut self,
        timeout: Option<Duration>,
        bell: Option<BorrowedFd<'_>>,
        events: &mut Vec<Event>,
    ) -> Result<(), Error>;

    /// Readable when there is something to do, if one descriptor can tell.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}
