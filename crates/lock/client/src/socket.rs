//! The transport to a daemon: a Unix socket.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockify_session::codec::{self, Inbox};
use lockify_session::protocol::{Event, Goodbye, Greeting, OLDEST, Request, VERSION};
use lockify_session::{Named, is_abstract, names_of, shard_path};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, bind, recv, send};

use crate::dialing;
use crate::domain::expected_user;
use crate::error::{Error, START};
use crate::interrupt::timespec;
use crate::transport::{Drive, Submit};

/// How long a daemon may take to greet.
const GREETING_PATIENCE: Duration = Duration::from_secs(10);

/// Connects to a socket, and to nobody but the user that it is for.
pub(crate) fn dial(path: &Path) -> Result<UnixStream, Error> {
    let no_daemon = |e: io::Error| Error::NoDaemon {
        socket: path.to_owned(),
        why: e.to_string(),
        then: START.into(),
    };
    let stream = dialing::connect(path).map_err(no_daemon)?;
    if is_abstract(path) {
        check_user(&stream, path)?;
    }
    Ok(stream)
}

/// An abstract name belongs to the first process that takes it.
fn check_user(stream: &UnixStream, socket: &Path) -> Result<(), Error> {
    let Some(expected) = expected_user(socket) else { return Ok(()) };
    let known = getsockopt(stream, PeerCredentials);
    let known = known.map_err(|e| no_answer(socket, &e.into()))?;
    if known.uid() == expected {
        return Ok(());
    }
    let pid = u32::try_from(known.pid()).unwrap_or(0);
    Err(Error::NotOurs { socket: socket.to_owned(), expected, found: known.uid(), pid })
}

/// Gives something a name below a daemon's, before there is anything to lose.
pub(crate) fn name(fd: impl AsFd, socket: &Path, what: Named) -> io::Result<()> {
    let names = names_of(socket, what);
    let pid = std::process::id();
    loop {
        let random = RandomState::new().hash_one(pid);
        let name = format!("{}{pid}.{random:016x}", &names[1..]);
        match bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?) {
            // Of 2^64 names: somebody else has luck at most once.
            Err(rustix::io::Errno::ADDRINUSE) => {}
            bound => return Ok(bound?),
        }
    }
}

fn no_answer(socket: &Path, e: &io::Error) -> Error {
    Error::NoAnswer { socket: socket.to_owned(), why: e.to_string() }
}

/// A session with one shard.
pub(crate) struct Connected {
    pub(crate) sender: Arc<SocketSender>,
    pub(crate) receiver: SocketReceiver,
    /// How many shards the daemon has.
    pub(crate) shards: u16,
    /// The version of the session protocol.
    pub(crate) version: u16,
}

/// Connects to one shard, in the newest version that both sides speak.
pub(crate) fn connect(socket: &Path, shard: u16) -> Result<Connected, Error> {
    let path = shard_path(socket, shard);
    let connect = |offer| {
        let mut stream = dial(&path)?;
        if is_abstract(&path) {
            name(&stream, &path, Named::Session).map_err(|e| no_answer(&path, &e))?;
        }
        let greeting = greet(&mut stream, shard, offer).map_err(|e| not_greeted(&path, &e))?;
        let greeting = greeting.ok_or_else(|| Error::NotADaemon(path.clone()))?;
        Ok::<_, Error>((stream, greeting))
    };
    let (mut stream, mut greeting) = connect(VERSION)?;
    if greeting.version < VERSION
        && let Some(why) = farewell(&mut stream)
    {
        return Err(Error::NotServed(why));
    }
    if (OLDEST..VERSION).contains(&greeting.version) {
        // An older daemon: it has closed, and waits for its own version.
        let version = greeting.version;
        (stream, greeting) = connect(version)?;
        if greeting.version != version {
            return Err(Error::Version(greeting.version));
        }
    } else if greeting.version != VERSION {
        return Err(Error::Version(greeting.version));
    }
    let stream = Arc::new(stream);
    let sender = Arc::new(SocketSender { stream: stream.clone(), buffer: Mutex::default() });
    let receiver = SocketReceiver { stream, inbox: Inbox::default() };
    Ok(Connected { sender, receiver, shards: greeting.shard, version: greeting.version })
}

/// A daemon that hangs up before it greets has ended, or is about to.
fn not_greeted(socket: &Path, e: &io::Error) -> Error {
    match e.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            let (socket, why) = (socket.to_owned(), e.to_string());
            let user = rustix::process::geteuid().as_raw();
            match expected_user(&socket).filter(|owner| user != 0 && user != *owner) {
                Some(owner) => Error::NotYours { socket, owner, user },
                None => Error::NoDaemon { socket, why, then: START.into() },
            }
        }
        _ => no_answer(socket, e),
    }
}

fn greet(stream: &mut UnixStream, shard: u16, version: u16) -> io::Result<Option<Greeting>> {
    stream.set_read_timeout(Some(GREETING_PATIENCE))?;
    let ours = Greeting { version, shard, pid: std::process::id() };
    // A daemon that refuses this client has said why, and may have hung up already.
    let _ = send_all(stream, &ours.encode());
    let mut reply = [0; Greeting::LEN];
    stream.read_exact(&mut reply).map_err(|e| match e.kind() {
        ErrorKind::UnexpectedEof => io::Error::new(e.kind(), "it hung up without a greeting"),
        ErrorKind::WouldBlock => io::Error::new(e.kind(), "it has not greeted in time"),
        _ => e,
    })?;
    stream.set_read_timeout(None)?;
    Ok(Greeting::decode(&reply))
}

/// Why the daemon does not serve this client, if it says that after its greeting; of an older version, it says nothing.
fn farewell(stream: &mut UnixStream) -> Option<Goodbye> {
    stream.set_read_timeout(Some(GREETING_PATIENCE)).ok()?;
    let mut inbox = Inbox::default();
    loop {
        match inbox.next_frame() {
            Ok(Some(Event::Goodbye(why))) => return Some(why),
            Ok(None) => {}
            _ => return None,
        }
        // Its end, or silence.
        if !matches!(inbox.fill(stream), Ok(1..)) {
            return None;
        }
    }
}

/// Writes everything, without a SIGPIPE for programs that did not turn it off.
fn send_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match send(stream, bytes, SendFlags::NOSIGNAL) {
            Ok(n) => bytes = &bytes[n..],
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// The sending half. A daemon that does not read makes [`Submit::submit`] wait: that is its
/// back-pressure.
pub(crate) struct SocketSender {
    stream: Arc<UnixStream>,
    buffer: Mutex<Vec<u8>>,
}

impl Submit for SocketSender {
    fn submit(&self, request: Request) {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        buffer.clear();
        let sent = codec::encode(&request, &mut buffer).map_err(io::Error::other);
        if sent.and_then(|()| send_all(&self.stream, &buffer)).is_err() {
            // The receiving half finds the daemon's last words, then the end.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    fn queued(&self) -> bool {
        false
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.as_fd())
    }

    fn finish(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// The receiving half.
pub(crate) struct SocketReceiver {
    stream: Arc<UnixStream>,
    inbox: Inbox,
}

impl SocketReceiver {
    /// Returns true if there is something to read within `timeout`, and before the bell rings.
    fn readable(
        &self,
        timeout: Option<Duration>,
        bell: Option<BorrowedFd<'_>>,
    ) -> Result<bool, Error> {
        let stream = self.stream.as_fd();
        // Without a bell, the stream takes its place: one array does for both.
        let bell = bell.unwrap_or(stream);
        let mut fds = [stream, bell].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut fds, timeout.map(timespec).as_ref()) {
            Ok(_) => Ok(!fds[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(e) => Err(Error::disconnected(&e.into())),
        }
    }

    fn receive(&mut self, flags: RecvFlags) -> Result<(), Error> {
        match self.inbox.fill(&mut Receiving(&self.stream, flags)) {
            Ok(0) => Err(Error::Disconnected("the daemon is gone".into())),
            Ok(_) => Ok(()),
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => Ok(()),
            Err(e) => Err(Error::disconnected(&e)),
        }
    }

    fn decode(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        while let Some(event) =
            self.inbox.next_frame().map_err(|e| Error::Disconnected(format!("it sent {e}")))?
        {
            events.push(event);
        }
        Ok(())
    }
}

struct Receiving<'a>(&'a UnixStream, RecvFlags);

impl Read for Receiving<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(recv(self.0, buffer, self.1).map(|(n, _)| n)?)
    }
}

impl Drive for SocketReceiver {
    fn poll_once(
        &mut self,
        timeout: Option<Duration>,
        bell: Option<BorrowedFd<'_>>,
        events: &mut Vec<Event>,
    ) -> Result<(), Error> {
        // The read itself waits, or looks whether there is something: one system call, not two.
        let flags = match (timeout, bell) {
            (Some(Duration::ZERO), _) => RecvFlags::DONTWAIT,
            (None, None) => RecvFlags::empty(),
            _ if !self.readable(timeout, bell)? => return Ok(()),
            _ => RecvFlags::DONTWAIT,
        };
        self.receive(flags)?;
        self.decode(events)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.as_fd())
    }
}
