//! One connection: TCP, perhaps TLS in it, and frames in that.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use lockify_trust::{Reading, Secured, rustls};
use mio::net::TcpStream;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt;

use super::SILENCE;
use super::frame::{Frame, FrameError, HEAD, VERSION, decode, decode_head, encode, encode_head};

/// What is read at once.
const READ: usize = 16 * 1024;

/// Why nothing more can be heard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum End {
    Closed(Option<ErrorKind>),
    Distrusted(String),
    Foreign(FrameError),
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Closed(None) => f.write_str("it closed the connection"),
            End::Closed(Some(kind)) => write!(f, "{kind}"),
            End::Distrusted(why) => f.write_str(why),
            End::Foreign(why) => write!(f, "{why}"),
        }
    }
}

pub(super) struct Line {
    pub stream: TcpStream,
    secured: Option<Box<Secured>>,
    /// Bytes that came and are no whole frame yet.
    input: Vec<u8>,
    /// The other side's version, once its head is there.
    version: Option<u16>,
    ended: Option<End>,
    /// Bytes that the socket has not taken.
    out: Vec<u8>,
    /// When it took some, or there were none.
    progress: Instant,
}

impl Line {
    /// A connection that does not block. Its head is the first thing to be written.
    pub fn new(stream: TcpStream, session: Option<rustls::Connection>) -> Line {
        // Without these a machine that vanishes is noticed late, which is no reason not to talk.
        let _ = watch(&stream);
        let secured = session.map(|session| Box::new(Secured::new(session)));
        let mut out = Vec::new();
        encode_head(&mut out);
        let (input, progress) = (Vec::new(), Instant::now());
        Line { stream, secured, input, version: None, ended: None, out, progress }
    }

    /// Whether the other side has proved to be this node; without keys nobody has to.
    pub fn proves(&self, cluster: &str, node: u32) -> bool {
        self.secured.as_ref().is_none_or(|secured| secured.proves(cluster, node))
    }

    /// Adds a frame to what is to be written.
    pub fn say(&mut self, frame: &Frame) {
        if self.out.is_empty() {
            self.progress = Instant::now();
        }
        encode(&mut self.out, frame);
    }

    /// Bytes that were said and not written.
    pub fn unsent(&self) -> usize {
        self.out.len()
    }

    pub fn wants_write(&self) -> bool {
        !self.out.is_empty() || self.secured.as_ref().is_some_and(|s| s.wants_write())
    }

    /// How long the socket has taken nothing of what is there for it.
    pub fn stuck_for(&self) -> Duration {
        if self.out.is_empty() { Duration::ZERO } else { self.progress.elapsed() }
    }

    /// Writes what the socket takes; whether that was something. If it breaks, `hear` tells, after what came before.
    pub fn flush(&mut self) -> bool {
        if !self.wants_write() {
            return false;
        }
        let (taken, result) = match &mut self.secured {
            Some(secured) => secured.write(&mut self.stream, &self.out),
            None => write(&mut self.stream, &self.out),
        };
        self.out.drain(..taken);
        if taken > 0 {
            self.progress = Instant::now();
        }
        if result.is_err() {
            // Nobody will read it.
            self.out.clear();
        }
        taken > 0
    }

    /// Nothing more will be said.
    pub fn finish(&mut self) {
        self.flush();
        // Fails if it is closed already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// The next frame; `None` if it is not there yet, and everything that is has been read.
    pub fn hear(&mut self) -> Result<Option<Frame>, End> {
        loop {
            if let Some(frame) = self.frame().map_err(End::Foreign)? {
                return Ok(Some(frame));
            }
            if let Some(end) = &self.ended {
                return Err(end.clone());
            }
            if !self.read() {
                return Ok(None);
            }
        }
    }

    fn frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let version = match self.version {
            Some(version) => version,
            None => {
                let Some(version) = decode_head(&self.input)? else { return Ok(None) };
                self.input.drain(..HEAD);
                *self.version.insert(version)
            }
        };
        let found = decode(&self.input);
        // Of another version, a refusal is all that can be understood.
        if version != VERSION && !matches!(found, Ok(None | Some((Frame::Refused(_), _)))) {
            return Err(FrameError::Version(version));
        }
        let Some((frame, used)) = found? else { return Ok(None) };
        self.input.drain(..used);
        Ok(Some(frame))
    }

    /// Takes what the other side still says and forgets it; whether it has closed. Who closes a connection with something
    /// unread in it may take back what it has said (RFC 1122, 4.2.2.13).
    pub fn discard(&mut self) -> bool {
        let mut room = [0; 4096];
        loop {
            match read(&mut self.stream, &mut room) {
                (_, Reading::More) => {}
                (_, Reading::Drained) => return false,
                _ => return true,
            }
        }
    }

    /// Reads once; whether there may be something new.
    fn read(&mut self) -> bool {
        let have = self.input.len();
        self.input.resize(have + READ, 0);
        let (came, reading) = match &mut self.secured {
            Some(secured) => secured.read(&mut self.stream, &mut self.input[have..]),
            None => read(&mut self.stream, &mut self.input[have..]),
        };
        self.input.truncate(have + came);
        self.ended = match reading {
            Reading::Drained => return came > 0,
            Reading::More => return true,
            Reading::Closed(error) => Some(End::Closed(error)),
            Reading::Distrusted(why) => Some(End::Distrusted(why)),
        };
        true
    }

    /// Waits until it can be written, if there is something to write, or read, if that is wanted; a signal ends it, too.
    pub fn wait(&self, read: bool, most: Duration) {
        let mut flags = if read { PollFlags::IN } else { PollFlags::empty() };
        if self.wants_write() {
            flags |= PollFlags::OUT;
        }
        let mut fds = [PollFd::new(&self.stream, flags)];
        let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        // Whoever waits looks again anyway.
        let _ = rustix::event::poll(&mut fds, Some(&most));
    }
}

/// As [`Secured::read`].
fn read(stream: &mut TcpStream, room: &mut [u8]) -> (usize, Reading) {
    loop {
        match stream.read(room) {
            Ok(0) => return (0, Reading::Closed(None)),
            Ok(n) => return (n, Reading::More),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return (0, Reading::Drained),
            Err(e) => return (0, Reading::Closed(Some(e.kind()))),
        }
    }
}

/// As [`Secured::write`].
fn write(stream: &mut TcpStream, out: &[u8]) -> (usize, Result<bool, ErrorKind>) {
    let mut taken = 0;
    while taken < out.len() {
        match stream.write(&out[taken..]) {
            Ok(n) => taken += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return (taken, Ok(true)),
            Err(e) => return (taken, Err(e.kind())),
        }
    }
    (taken, Ok(false))
}

/// Has the system ask whether the other side is there, and end a connection whose other side does not answer for
/// [`SILENCE`] (tcp(7)).
fn watch(stream: &TcpStream) -> rustix::io::Result<()> {
    let third = SILENCE / 3;
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, third)?;
    sockopt::set_tcp_keepintvl(stream, third / 2)?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    sockopt::set_tcp_user_timeout(stream, SILENCE.as_millis() as u32)
}
