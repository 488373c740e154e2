//! Accepts clients, and ends in order.

use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockify_array::OpError;
use lockify_trust::Keyring;
use rustix::event::{PollFd, PollFlags, poll};

use super::CONNECTIONS;
use super::channel::Channel;
use super::error::ListenError;
use super::handshake::{Agreed, Negotiated, Tls, greet, negotiate, turn_away};
use super::session::{self, Served};
use super::stream::{Listen, Listener, Stream, Until};
use crate::door::{Backend, Export, SPLIT, Stopper};

/// How long a client may take for its greeting.
const GREETING: Duration = Duration::from_secs(10);
/// How long clients' operations may take after the server was stopped.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long nobody is accepted after the system refused to.
const RESPITE: Duration = Duration::from_millis(100);
/// Clients that are told at a time why they are not served; further ones are hung up on.
const TURNED_AWAY: usize = 8;
/// Failed operations that are reported, of each connection.
const REPORTED: usize = 8;

/// Why a server ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It was stopped, and clients' operations are done.
    Stopped,
    /// It was stopped, and after ten seconds some of clients' operations were still under way.
    Abandoned,
    /// This host was fenced: another life of it, or a new process, has to be started.
    Fenced,
}

/// Serves an export.
pub struct Server {
    listener: Listener,
    export: Arc<Export>,
    shared: Arc<Shared>,
    wakes: UnixStream,
}

struct Shared {
    clients: Mutex<Clients>,
    left: Condvar,
    stopper: Stopper,
    /// Clients prove who they are to these.
    keys: Option<Arc<Keyring>>,
    fenced: AtomicBool,
    stopping: Arc<AtomicBool>,
    log: fn(&str),
}

#[derive(Default)]
struct Clients {
    last: u64,
    streams: HashMap<u64, Stream>,
    /// Those that are being told why they are not served.
    turned_away: usize,
}

impl Shared {
    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Listens. Clients are answered when it [runs](Server::run). With keys, they have to begin TLS and prove that they are
    /// nodes of the keys' cluster. `log` is told what an operator should know.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(
        listen: &Listen,
        export: Export,
        keys: Option<Arc<Keyring>>,
        log: fn(&str),
    ) -> Result<Server, ListenError> {
        let block = export.block_size;
        if block == 0 || block > SPLIT || !export.size.is_multiple_of(block.into()) {
            return Err(ListenError::Export("an export has whole blocks of at most a mebibyte"));
        }
        if !export.stripe.is_multiple_of(block.into()) || export.stripe == 0 {
            return Err(ListenError::Export("stripes are whole blocks"));
        }
        if export.name.len() > 1024 || export.description.len() > 1024 {
            return Err(ListenError::Export("a name or description has at most 1024 bytes"));
        }
        let listener = Listener::bind(listen)?;
        let failed = |error| ListenError::Bind { place: listen.to_string(), error };
        let (stopper, wakes) = Stopper::pair().map_err(failed)?;
        let shared = Shared {
            clients: Mutex::default(),
            left: Condvar::new(),
            stopper,
            keys,
            fenced: AtomicBool::new(false),
            stopping: Arc::default(),
            log,
        };
        Ok(Server { listener, export: Arc::new(export), shared: Arc::new(shared), wakes })
    }

    /// How clients name the export.
    ///
    /// # Errors
    /// The system does not say where it listens.
    pub fn uri(&self) -> io::Result<String> {
        self.listener.uri(&self.export.name, self.shared.keys.is_some())
    }

    /// The handle that stops it.
    ///
    /// # Errors
    /// The system refuses.
    pub fn stopper(&self) -> io::Result<Stopper> {
        self.shared.stopper.try_clone()
    }

    /// Serves until it is stopped, or the backend was fenced. Then it accepts no client and reads no further requests. It
    /// finishes and answers those under way.
    ///
    /// # Errors
    /// The system does not let it wait for clients.
    pub fn run(self, backend: Arc<dyn Backend>) -> io::Result<Ended> {
        let Server { listener, export, shared, wakes } = self;
        while !stopped(&listener, &wakes)? {
            let accepted = listener.accept().and_then(|stream| {
                let served = (Arc::clone(&export), Arc::clone(&backend));
                welcome(stream, served, &shared)
            });
            if let Err(error) = accepted {
                (shared.log)(&format!("cannot serve a client: {error}"));
                std::thread::sleep(RESPITE);
            }
        }
        // Nobody finds the socket any more.
        drop(listener);
        shared.stopping.store(true, Relaxed);
        let clients = shared.clients();
        clients.streams.values().for_each(|stream| stream.shutdown(Shutdown::Read));
        let (clients, timeout) = shared
            .left
            .wait_timeout_while(clients, PATIENCE, |clients| !clients.streams.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        clients.streams.values().for_each(|stream| stream.shutdown(Shutdown::Both));
        Ok(match shared.fenced.load(Relaxed) {
            true => Ended::Fenced,
            false if timeout.timed_out() => Ended::Abandoned,
            false => Ended::Stopped,
        })
    }
}

/// Waits for a client, or for being stopped.
fn stopped(listener: &Listener, wakes: &UnixStream) -> io::Result<bool> {
    let mut fds = [PollFd::new(wakes, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
    loop {
        match poll(&mut fds, None) {
            Ok(_) => return Ok(!fds[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Serves a client on a thread of its own.
fn welcome(
    stream: Stream,
    (export, backend): (Arc<Export>, Arc<dyn Backend>),
    shared: &Arc<Shared>,
) -> io::Result<()> {
    let mut clients = shared.clients();
    if clients.streams.len() >= CONNECTIONS {
        (shared.log)(&format!("a client was turned away: there are {CONNECTIONS} connections"));
        if clients.turned_away >= TURNED_AWAY {
            return Ok(());
        }
        clients.turned_away += 1;
        drop(clients);
        return refuse(stream, Arc::clone(shared));
    }
    clients.last += 1;
    let number = clients.last;
    clients.streams.insert(number, stream.try_clone()?);
    drop(clients);
    let guest = Guest { number, shared: Arc::clone(shared) };
    let reports = Arc::new(Mutex::new(0));
    let failed = {
        let shared = Arc::clone(shared);
        move |error: &OpError| report(&shared, &reports, number, error)
    };
    let export = export.now(&*backend);
    let stopping = Arc::clone(&shared.stopping);
    let served = Served { export, backend, failed: Arc::new(failed), stopping };
    let work = move || {
        if let Err(error) = attend(&stream, &served, guest.shared.keys.as_deref()) {
            guest.log_end(&error);
        }
        stream.shutdown(Shutdown::Both);
    };
    std::thread::Builder::new().name("nbd-client".into()).spawn(work)?;
    Ok(())
}

/// Tells a client on a thread of its own that there is no place for it.
fn refuse(stream: Stream, shared: Arc<Shared>) -> io::Result<()> {
    let place = Refused(shared);
    let work = move || {
        let why = format!("all {CONNECTIONS} connections are in use: try again when one has ended");
        // It may hang up as it likes.
        let _ = turn_away(&mut &Until::new(&stream, GREETING), &why);
        stream.shutdown(Shutdown::Both);
        drop(place);
    };
    std::thread::Builder::new().name("nbd-refusal".into()).spawn(work)?;
    Ok(())
}

fn attend(stream: &Stream, served: &Served, keys: Option<&Keyring>) -> io::Result<()> {
    let channel = Channel::plain(Until::new(stream, GREETING));
    let Some((channel, agreed)) = receive(channel, &served.export, keys)? else { return Ok(()) };
    channel.forever()?;
    session::serve(&channel, served, agreed)
}

/// The handshake, with TLS in it if there are keys; `None` if the client took its leave.
fn receive<'a>(
    mut channel: Channel<'a>,
    export: &Export,
    keys: Option<&Keyring>,
) -> io::Result<Option<(Channel<'a>, Agreed)>> {
    let zeroes = greet(&mut &channel)?;
    let tls = if keys.is_some() { Tls::Required } else { Tls::Absent };
    let mut negotiated = negotiate(&mut &channel, export, zeroes, tls)?;
    if let (Negotiated::StartTls, Some(keys)) = (negotiated, keys) {
        channel = channel.secure(&keys.current())?;
        negotiated = negotiate(&mut &channel, export, zeroes, Tls::Begun)?;
    }
    Ok(match negotiated {
        Negotiated::Agreed(agreed) => Some((channel, agreed)),
        Negotiated::StartTls | Negotiated::Left => None,
    })
}

fn report(shared: &Shared, reports: &Mutex<usize>, client: u64, error: &OpError) {
    if *error == OpError::Fenced && !shared.fenced.swap(true, Relaxed) {
        shared.stopper.stop();
    }
    let mut reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
    *reports += 1;
    if *reports <= REPORTED {
        let last = if *reports == REPORTED { " (further ones are not reported)" } else { "" };
        (shared.log)(&format!("client {client}: an operation failed: {error}{last}"));
    }
}

/// A client's place, until its thread ends in whatever way.
struct Guest {
    number: u64,
    shared: Arc<Shared>,
}

impl Guest {
    /// Reports a connection's end that an operator should know. Clients often just hang up.
    fn log_end(&self, error: &io::Error) {
        let what = match error.kind() {
            io::ErrorKind::InvalidData => error.to_string(),
            io::ErrorKind::UnexpectedEof => "hung up in the middle of a message".to_owned(),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                format!("said nothing for {} s: does it speak NBD?", GREETING.as_secs())
            }
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => return,
            _ => error.to_string(),
        };
        (self.shared.log)(&format!("client {} {what}", self.number));
    }
}

/// One of the clients that are being turned away.
struct Refused(Arc<Shared>);

impl Drop for Refused {
    fn drop(&mut self) {
        self.0.clients().turned_away -= 1;
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.shared.clients().streams.remove(&self.number);
        self.shared.left.notify_all();
    }
}
