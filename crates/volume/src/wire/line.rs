//! One connection: TCP, perhaps TLS in it, and frames in that. Nothing here waits.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use lockify_trust::{Reading, Secured, rustls};
use mio::net::TcpStream;
use rustix::net::sockopt;

use super::frame::{
    Frame, FrameError, HEAD, PREFIX, VERSION, decode, decode_head, encode, encode_head, length,
};

/// What is read at once.
const READ: usize = 256 * 1024;
/// A buffer that has become larger than this is given back when it is empty.
const KEPT: usize = 4 << 20;

/// Why nothing more can be heard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum End {
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

pub(crate) struct Line {
    pub stream: TcpStream,
    secured: Option<Box<Secured>>,
    /// Bytes that came and were not understood yet: `input[start..end]`.
    input: Vec<u8>,
    start: usize,
    end: usize,
    /// The other side's version, once its head is there.
    version: Option<u16>,
    /// It has introduced itself, and may say more at once.
    greeted: bool,
    ended: Option<End>,
    /// Bytes for the socket: those from `sent` on it has not taken.
    out: Vec<u8>,
    sent: usize,
    /// When it took some, or there were none.
    progress: Instant,
}

impl Line {
    /// A connection that does not block. Its head is the first thing to be written. `silence`: how long the other machine may
    /// not answer.
    pub fn new(stream: TcpStream, session: Option<rustls::Connection>, silence: Duration) -> Line {
        // Without these a machine that vanishes is noticed late, which is no reason not to talk.
        let _ = watch(&stream, silence);
        let secured = session.map(|session| Box::new(Secured::new(session)));
        let mut out = Vec::new();
        encode_head(&mut out);
        Line {
            stream,
            secured,
            input: Vec::new(),
            start: 0,
            end: 0,
            version: None,
            greeted: false,
            ended: None,
            out,
            sent: 0,
            progress: Instant::now(),
        }
    }

    /// Whether the other side has proved to be this node; without keys nobody has to.
    pub fn proves(&self, cluster: &str, node: u32) -> bool {
        self.secured.as_ref().is_none_or(|secured| secured.proves(cluster, node))
    }

    /// The other side has introduced itself.
    pub fn greeted(&mut self) {
        self.greeted = true;
    }

    /// Adds a frame to what is to be written.
    pub fn say(&mut self, frame: &Frame) {
        if self.unsent() == 0 {
            self.progress = Instant::now();
        }
        encode(&mut self.out, frame);
    }

    /// Bytes that were said and not written.
    pub fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    fn wants_write(&self) -> bool {
        self.unsent() > 0 || self.secured.as_ref().is_some_and(|s| s.wants_write())
    }

    /// How long the socket has taken nothing of what is there for it.
    pub fn stuck_for(&self) -> Duration {
        if self.unsent() == 0 { Duration::ZERO } else { self.progress.elapsed() }
    }

    /// Writes what the socket takes. If it breaks, `hear` tells, after what came before.
    pub fn flush(&mut self) {
        if !self.wants_write() {
            return;
        }
        let (taken, result) = match &mut self.secured {
            Some(secured) => secured.write(&mut self.stream, &self.out[self.sent..]),
            None => write(&mut self.stream, &self.out[self.sent..]),
        };
        self.sent += taken;
        if taken > 0 {
            self.progress = Instant::now();
        }
        if let (Err(kind), None) = (&result, self.version) {
            // Nothing came before, and the system says only once why.
            self.ended = Some(End::Closed(Some(*kind)));
        }
        // If it broke, nobody will read the rest.
        if result.is_err() || self.unsent() == 0 {
            self.sent = 0;
            self.out.clear();
            self.out.shrink_to(KEPT);
        } else if self.sent > KEPT {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
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
                let Some(version) = decode_head(&self.input[self.start..self.end])? else {
                    return Ok(None);
                };
                self.start += HEAD;
                *self.version.insert(version)
            }
        };
        let found = decode(&self.input[self.start..self.end], self.greeted);
        // Of another version, a refusal is all that can be understood.
        if version != VERSION && !matches!(found, Ok(None | Some((Frame::Refused(_), _)))) {
            return Err(FrameError::Version(version));
        }
        let Some((frame, used)) = found? else { return Ok(None) };
        self.start += used;
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
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.input.len() > KEPT {
                self.input = Vec::new();
            }
        } else if self.start > 0 && self.end + READ > self.input.len() {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        // What is there may be the beginning of a long frame, whose length was looked at.
        let frame = length(&self.input[self.start..self.end]).filter(|_| self.greeted);
        let needed = frame.map_or(0, |frame| self.start + PREFIX + frame);
        let room = needed.max(self.end + READ);
        if self.input.len() < room {
            self.input.resize(room, 0);
        }
        let (came, reading) = match &mut self.secured {
            Some(secured) => secured.read(&mut self.stream, &mut self.input[self.end..]),
            None => read(&mut self.stream, &mut self.input[self.end..]),
        };
        self.end += came;
        self.ended = match reading {
            Reading::Drained => return came > 0,
            Reading::More => return true,
            Reading::Closed(error) => Some(End::Closed(error)),
            Reading::Distrusted(why) => Some(End::Distrusted(why)),
        };
        true
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

/// Has the system ask whether the other side is there, and end a connection whose other side does not answer (tcp(7)).
fn watch(stream: &TcpStream, silence: Duration) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    // Whole seconds are all that it takes.
    let third = (silence / 3).max(Duration::from_secs(1));
    sockopt::set_tcp_keepidle(stream, third)?;
    sockopt::set_tcp_keepintvl(stream, third)?;
    sockopt::set_tcp_keepcnt(stream, 2)?;
    sockopt::set_tcp_user_timeout(stream, silence.as_millis() as u32)
}
