//! The node inside the process.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockify_host::{ClientHost, HostedClient, Outbox, Quota};
use lockify_node::{
    HOST_TOKENS, HostEvent, Level, Lines, NodeConfig, NodeEngine, Notice, SpaceConfig, Weight,
};
use lockify_session::protocol::{Event, Request, client_id};
use mio::unix::SourceFd;
use mio::{Interest, Token};

use crate::client::{Client, Inner};
use crate::error::Error;
use crate::transport::{Drive, Submit};

/// The event that interrupts a waiting thread.
const BELL: Token = Token(HOST_TOKENS);

/// How long the last drop of a client may take to leave the cluster in order.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);

/// An embedded node's configuration.
pub struct EmbeddedConfig {
    /// The node. It has one shard.
    pub node: NodeConfig,
    /// The lockspaces that it joins, by name.
    pub spaces: Vec<(String, SpaceConfig)>,
    /// Called with what an operator should see, on the thread that drives the node: it must not
    /// call the client. By default, warnings and errors go to standard error.
    pub on_notice: Box<dyn FnMut(Notice) + Send>,
}

impl EmbeddedConfig {
    /// A node with these lockspaces.
    pub fn new(node: NodeConfig, spaces: Vec<(String, SpaceConfig)>) -> EmbeddedConfig {
        let mut lines = None;
        let on_notice = Box::new(move |notice: Notice| {
            if notice.level > Level::Info {
                // The thread that drives the node must not wait for a reader.
                let lines = lines.get_or_insert_with(|| Lines::to_stderr(left_out).ok());
                let line = format!("lockify: {}\n", lockify_trust::printable(&notice.text));
                lines.iter().for_each(|l| l.say(line.clone().into_bytes(), Weight::Notice));
            }
        });
        EmbeddedConfig { node, spaces, on_notice }
    }
}

fn left_out(lines: u64) -> Vec<u8> {
    format!("lockify: {lines} messages were left out, as standard error did not take them\n").into()
}

impl Client {
    /// Starts a node inside this process and uses it. When the last handle of the client is
    /// dropped, the node leaves the cluster in order, for which it takes at most five seconds.
    ///
    /// # Errors
    /// [`Error::Node`].
    pub fn embedded(config: EmbeddedConfig) -> Result<Client, Error> {
        let (sender, driver) = start(config)?;
        let mut inner = Inner::new();
        inner.add(sender, Box::new(driver))?;
        Ok(Client { inner: Arc::new(inner) })
    }
}

/// Starts the node; returns both halves of the way to it.
pub(crate) fn start(
    config: EmbeddedConfig,
) -> Result<(Arc<EmbeddedSender>, EmbeddedDriver), Error> {
    if config.node.shard.is_some() {
        return Err(Error::Node("an embedded node has one shard: leave `shard` at None".into()));
    }
    let failed = |e: &dyn std::fmt::Display| Error::Node(e.to_string());
    let mut engine = NodeEngine::new(config.node).map_err(|e| failed(&e))?;
    let host = ClientHost::join(&mut engine, &config.spaces).map_err(|e| failed(&e))?;
    let sender = Arc::new(EmbeddedSender {
        queue: Mutex::default(),
        polling: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        waker: engine.waker(),
    });
    let id = client_id(std::process::id(), 0);
    // The node is this program's own.
    let mut client = HostedClient::new(id, Quota::unlimited());
    client.privileged = true;
    let driver = EmbeddedDriver {
        sender: sender.clone(),
        engine,
        host,
        client,
        on_notice: config.on_notice,
        requests: Vec::new(),
        out: Vec::new(),
        rest: Vec::new(),
        bell: None,
    };
    Ok((sender, driver))
}

/// The half that any thread may use: a queue for the driver.
pub(crate) struct EmbeddedSender {
    queue: Mutex<Vec<Request>>,
    /// The driver is waiting, or about to, and must be woken for the queue's sake.
    polling: AtomicBool,
    closed: AtomicBool,
    waker: Arc<mio::Waker>,
}

impl EmbeddedSender {
    fn wake(&self) {
        if self.polling.load(Ordering::SeqCst) {
            // Fails only if the event queue is gone, and its driver with it.
            let _ = self.waker.wake();
        }
    }
}

impl Submit for EmbeddedSender {
    fn submit(&self, request: Request) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        self.wake();
    }

    fn queued(&self) -> bool {
        !self.queue.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn finish(&self) {
        self.close();
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.wake();
    }
}

/// The half that one thread at a time drives: the node itself.
pub(crate) struct EmbeddedDriver {
    sender: Arc<EmbeddedSender>,
    engine: NodeEngine,
    host: ClientHost,
    client: HostedClient,
    on_notice: Box<dyn FnMut(Notice) + Send>,
    requests: Vec<Request>,
    out: Outbox,
    rest: Vec<HostEvent>,
    /// The bell that the engine listens for.
    bell: Option<RawFd>,
}

impl EmbeddedDriver {
    /// Hands queued requests to the engine, unless its peers do not keep up.
    fn handle_queue(&mut self) {
        if self.engine.congested() {
            return;
        }
        {
            let mut queue = self.sender.queue.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut *queue, &mut self.requests);
        }
        for request in self.requests.drain(..) {
            self.host.request(&mut self.engine, &mut self.client, request, &mut self.out);
        }
    }

    /// Has the bell end the engine's waits, too. It rings there once each time; a waiting thread
    /// looks at it before.
    fn listen_for(&mut self, bell: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        let Some(bell) = bell.map(|bell| bell.as_raw_fd()).filter(|fd| self.bell != Some(*fd))
        else {
            return Ok(());
        };
        let registry = self.engine.registry();
        match registry.register(&mut SourceFd(&bell), BELL, Interest::READABLE) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                return Err(Error::Node(format!("cannot watch for interrupts: {e}")));
            }
            _ => self.bell = Some(bell),
        }
        Ok(())
    }

    fn turn(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        let ran = self.host.turn(&mut self.engine, timeout, &mut self.out, &mut self.rest);
        for event in self.rest.drain(..) {
            if let HostEvent::Notice(notice) = event {
                (self.on_notice)(notice);
            }
        }
        ran.map_err(|e| Error::Node(e.to_string()))
    }
}

impl Drive for EmbeddedDriver {
    fn poll_once(
        &mut self,
        timeout: Option<Duration>,
        bell: Option<BorrowedFd<'_>>,
        events: &mut Vec<Event>,
    ) -> Result<(), Error> {
        self.listen_for(bell)?;
        // In this order: a request that comes after the look into the queue wakes the poll.
        self.sender.polling.store(true, Ordering::SeqCst);
        if self.sender.closed.load(Ordering::SeqCst) {
            return Err(Error::Disconnected("this program closed it".into()));
        }
        self.handle_queue();
        // Events that are already there need not wait for the network.
        if self.out.is_empty() || timeout == Some(Duration::ZERO) {
            let turned = self.turn(timeout);
            self.sender.polling.store(false, Ordering::SeqCst);
            turned?;
        }
        self.sender.polling.store(false, Ordering::SeqCst);
        for (_, event) in self.out.drain(..) {
            self.client.told(&event);
            events.push(event);
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for EmbeddedDriver {
    /// Leaves in order, so that the others need not recover this node's locks.
    fn drop(&mut self) {
        let end = Instant::now() + LEAVE_PATIENCE;
        let mut left = self.host.leave(&mut self.engine);
        while left > 0 {
            let patience = end.saturating_duration_since(Instant::now());
            let turned =
                self.host.turn(&mut self.engine, Some(patience), &mut self.out, &mut self.rest);
            self.out.clear();
            left -= self.rest.drain(..).filter(|e| matches!(e, HostEvent::Left { .. })).count();
            if turned.is_err() || patience.is_zero() {
                break;
            }
        }
        self.engine.goodbye();
    }
}
