//! Requests and events without guards: for programs with very many locks, and for other languages.
//!
//! A [`Session`] belongs to one thread, which submits requests in any number and polls for their
//! outcomes; tags tell them apart ([`crate::protocol`]).

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockify_session::protocol::{Event, Request};

use crate::embedded::{self, EmbeddedConfig};
use crate::error::Error;
use crate::socket;
use crate::transport::{Drive, Submit};

/// Submits requests to a session, from any thread.
#[derive(Clone)]
pub struct Sender(Arc<dyn Submit>);

impl Sender {
    /// As [`Session::submit`].
    pub fn submit(&self, request: Request) {
        self.0.submit(request);
    }
}

/// A session with one shard.
pub struct Session {
    submit: Arc<dyn Submit>,
    drive: Box<dyn Drive>,
}

impl Session {
    /// Connects to one shard of the daemon that listens on `socket`; tells also how many shards
    /// there are.
    ///
    /// A daemon drops a session that does not read its events: poll as well as submit.
    ///
    /// # Errors
    /// As [`Client::connect`](crate::Client::connect).
    pub fn connect(socket: impl AsRef<Path>, shard: u16) -> Result<(Session, u16), Error> {
        let socket::Connected { sender, receiver, shards, .. } =
            socket::connect(socket.as_ref(), shard)?;
        Ok((Session { submit: sender, drive: Box::new(receiver) }, shards))
    }

    /// Starts a node inside this process. It runs in [`Session::poll`] only, and leaves the
    /// cluster in order when the session is dropped.
    ///
    /// # Errors
    /// [`Error::Node`].
    pub fn embedded(config: EmbeddedConfig) -> Result<Session, Error> {
        let (submit, driver) = embedded::start(config)?;
        Ok(Session { submit, drive: Box::new(driver) })
    }

    /// Sends a request, or with an embedded node, queues it for the next poll.
    pub fn submit(&self, request: Request) {
        self.submit.submit(request);
    }

    /// A copy of [`Session::submit`]'s sender, for other threads than the session's.
    pub fn sender(&self) -> Sender {
        Sender(self.submit.clone())
    }

    /// Readable when [`Session::poll`] has something to do; `None` with an embedded node, which
    /// has timers as well.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.drive.descriptor()
    }

    /// Ends the session and waits, for at most `patience`, until the daemon has released its locks
    /// (or made them orphans).
    pub fn end(mut self, patience: Duration) {
        self.submit.finish();
        let end = Instant::now() + patience;
        let mut events = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            // The daemon hangs up when it has done so.
            if left.is_zero() || self.poll(Some(left), &mut events).is_err() {
                return;
            }
            events.clear();
        }
    }

    /// Handles what was submitted and appends events; waits for one for at most `timeout`
    /// (`None`: as long as it takes). May return without any.
    ///
    /// # Errors
    /// When the session has ended; every lock of it is lost.
    pub fn poll(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<Event>,
    ) -> Result<(), Error> {
        self.drive.poll_once(timeout, None, events)
    }
}
