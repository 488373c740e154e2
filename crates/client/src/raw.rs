//! Requests and events without guards: for programs with very many locks, and for other languages.
//!
//! A [`Session`] belongs to one thread, which submits requests in any number and polls for their
//! outcomes; tags tell them apart ([`crate::protocol`]).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::embedded::{self, EmbeddedConfig};
use crate::error::Error;
use crate::protocol::{Event, Request};
use crate::socket;
use crate::transport::{Drive, Submit};

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
    /// [`Error::NoDaemon`], [`Error::NotADaemon`], [`Error::Version`].
    pub fn connect(socket: impl AsRef<Path>, shard: u16) -> Result<(Session, u16), Error> {
        let (submit, receiver, shards) = socket::connect(socket.as_ref(), shard)?;
        Ok((Session { submit, drive: Box::new(receiver) }, shards))
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
        self.drive.poll_once(timeout, events)
    }
}
