//! The transport to a daemon: a Unix socket.

use std::io::{self, ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::codec::{self, Inbox};
use crate::dialing;
use crate::error::Error;
use crate::interrupt::timespec;
use crate::protocol::{Event, Goodbye, Greeting, OLDEST, Request, VERSION};
use crate::transport::{Drive, Submit};

/// How long a daemon may take to greet.
const GREETING_PATIENCE: Duration = Duration::from_secs(10);

/// The socket of one shard: the configured path for shard 0, with `.N` appended for shard N.
pub fn shard_path(socket: &Path, shard: u16) -> PathBuf {
    match shard {
        0 => socket.to_owned(),
        n => {
            let mut path = socket.as_os_str().to_owned();
            path.push(format!(".{n}"));
            path.into()
        }
    }
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
        let no_daemon = |e: io::Error| Error::NoDaemon { socket: path.clone(), why: e.to_string() };
        let mut stream = dialing::connect(&path).map_err(no_daemon)?;
        let greeting = greet(&mut stream, shard, offer).map_err(no_daemon)?;
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

fn greet(stream: &mut UnixStream, shard: u16, version: u16) -> io::Result<Option<Greeting>> {
    stream.set_read_timeout(Some(GREETING_PATIENCE))?;
    let ours = Greeting { version, shard, pid: std::process::id() };
    // A daemon that refuses this client has said why, and may have hung up already.
    let _ = send_all(stream, &ours.encode());
    let mut reply = [0; Greeting::LEN];
    stream.read_exact(&mut reply).map_err(|e| match e.kind() {
        ErrorKind::UnexpectedEof => io::Error::other("it hung up without a greeting"),
        ErrorKind::WouldBlock => io::Error::other("it has not greeted in time"),
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
    /// Whether there is something to read within `timeout`, and before the bell rings.
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
