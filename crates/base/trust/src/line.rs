//! One connection: a socket, and frames of one kind of processes in it.

use std::io::ErrorKind;
use std::marker::PhantomData;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt;

use crate::Versions;
use crate::inbox::KEPT;
use crate::secured::Reading;
use crate::socket::Socket;
use crate::speech::{Framed, HEAD, SpeechError, decode, decode_head, encode, encode_head};

/// Why nothing more can be heard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// The connection is closed, or broke.
    Closed(Option<ErrorKind>),
    /// The other side has not proved who it is; why, and what to do.
    Distrusted(String),
    /// It speaks something else.
    Foreign(SpeechError),
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

/// A connection between two processes that say `F` to each other. Nothing waits but [`Line::wait`].
#[derive(Debug)]
pub struct Line<F> {
    socket: Socket,
    /// The versions that this side speaks.
    spoken: Versions,
    /// The version of this connection, once the other side's head is there.
    version: Option<u16>,
    /// It has introduced itself, and may say more at once.
    greeted: bool,
    /// The last read took all that the socket had.
    drained: bool,
    /// The socket's end has been seen: a read that takes all there is does not mean that nothing is left.
    closing: bool,
    ended: Option<End>,
    /// Why nothing more can be written, of which the system tells only once.
    broke: Option<ErrorKind>,
    /// Bytes for the socket: those from `sent` on it has not taken.
    out: Vec<u8>,
    sent: usize,
    /// When it took some, or there were none.
    progress: Instant,
    frames: PhantomData<fn(F) -> F>,
}

impl<F: Framed> Line<F> {
    /// A connection that does not block. Its head is the first thing to be written. `silence`: how long the other machine may
    /// not answer. `spoken`: no more than [`Framed::SPOKEN`].
    pub fn new(
        stream: TcpStream,
        session: Option<rustls::Connection>,
        silence: Duration,
        spoken: Versions,
    ) -> Line<F> {
        // Without these a machine that vanishes is noticed late, which is no reason not to talk.
        let _ = watch(&stream, silence);
        let mut socket = Socket::new(stream);
        if let Some(session) = session {
            socket.secure(session);
        }
        let mut out = Vec::new();
        encode_head::<F>(&mut out, spoken.newest);
        Line {
            socket,
            spoken,
            version: None,
            greeted: false,
            drained: false,
            closing: false,
            ended: None,
            broke: None,
            out,
            sent: 0,
            progress: Instant::now(),
            frames: PhantomData,
        }
    }

    /// Returns true if the other side has proved to be this node; without keys none has to.
    pub fn proves(&self, cluster: &str, node: u32) -> bool {
        self.socket.proves(cluster, node)
    }

    /// The version that both sides speak, once the other side has said anything.
    pub fn version(&self) -> Option<u16> {
        self.version
    }

    /// The other side has introduced itself.
    pub fn greeted(&mut self) {
        self.greeted = true;
    }

    /// Adds a frame to what is to be written.
    pub fn say(&mut self, frame: &F) {
        if self.unsent() == 0 {
            self.progress = Instant::now();
        }
        encode(&mut self.out, frame);
    }

    /// Bytes that were said and not written.
    pub fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Returns true if there is something to write, of TLS's handshake if nothing was sent.
    pub fn wants_write(&self) -> bool {
        self.unsent() > 0 || self.socket.wants_write()
    }

    /// How long the socket has taken nothing of what is there for it.
    pub fn stuck_for(&self) -> Duration {
        if self.unsent() == 0 { Duration::ZERO } else { self.progress.elapsed() }
    }

    /// Writes what the socket takes; whether that was something. If it breaks, `hear` tells, after what came before.
    pub fn flush(&mut self) -> bool {
        if !self.wants_write() {
            return false;
        }
        let (taken, result) = self.socket.write(&self.out[self.sent..]);
        self.sent += taken;
        if taken > 0 {
            self.progress = Instant::now();
        }
        if let Err(kind) = &result {
            // The received bytes may say more: a refusal, for example. The socket may not tell of it again.
            self.broke = Some(*kind);
            self.woken(true);
        }
        // If it broke, nobody will read the rest.
        if result.is_err() || self.unsent() == 0 {
            self.sent = 0;
            self.out.clear();
            self.out.shrink_to(KEPT);
        } else if self.sent > self.unsent() {
            // No more is moved than was written.
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        taken > 0
    }

    /// Nothing more will be said.
    pub fn finish(&mut self) {
        self.flush();
        // Fails if it is closed already.
        let _ = self.socket.stream().shutdown(Shutdown::Write);
    }

    /// The socket has told that there is something to read. A caller that is told only once (epoll(7), "edge-triggered")
    /// has to pass it on each time. `closing`: it has told of its end, too, which may come with data before it, as one
    /// event.
    pub fn woken(&mut self, closing: bool) {
        self.drained = false;
        self.closing |= closing;
    }

    /// The next frame; `None` if it is not there yet, and everything that is has been read.
    ///
    /// # Errors
    /// Nothing more can be heard.
    pub fn hear(&mut self) -> Result<Option<F>, End> {
        loop {
            if let Some(frame) = self.frame().map_err(End::Foreign)? {
                return Ok(Some(frame));
            }
            if let Some(end) = &self.ended {
                return Err(end.clone());
            }
            // That nothing is left need not be asked of the socket.
            if std::mem::take(&mut self.drained) || !self.read() {
                return Ok(None);
            }
        }
    }

    fn frame(&mut self) -> Result<Option<F>, SpeechError> {
        let inbox = &mut self.socket.inbox;
        let newest = match self.version {
            Some(version) => version,
            None => {
                let Some(theirs) = decode_head::<F>(inbox.rest())? else { return Ok(None) };
                inbox.skip(HEAD);
                // A side that is too new to speak this one's versions says so itself.
                *self.version.insert(theirs.min(self.spoken.newest))
            }
        };
        let found = decode::<F>(inbox.rest(), self.greeted);
        // Of an older version, a refusal is all that can be understood.
        let refusal = |(frame, _): &(F, usize)| frame.refused().is_some();
        let understood = found.as_ref().is_ok_and(|found| found.as_ref().is_none_or(refusal));
        if newest < self.spoken.oldest && !understood {
            let (subject, ours) = (F::SUBJECT, self.spoken);
            return Err(SpeechError::Version { subject, theirs: newest, ours });
        }
        let Some((frame, used)) = found? else { return Ok(None) };
        inbox.skip(used);
        Ok(Some(frame))
    }

    /// As [`Socket::discard`].
    pub fn discard(&mut self) -> bool {
        self.socket.discard()
    }

    /// Reads once; whether there may be something new.
    fn read(&mut self) -> bool {
        // A stranger's length gets no memory.
        let longest = if self.greeted { F::MAX_FRAME } else { 0 };
        let (came, reading) = self.socket.read(F::READ, longest);
        self.ended = match reading {
            Reading::Drained => {
                self.drained = came > 0 && !self.closing;
                return came > 0;
            }
            Reading::More => return true,
            Reading::Closed(error) => {
                // A peer that was introduced has gone, whatever could not be written to it.
                let first = self.broke.filter(|_| self.version.is_none());
                Some(End::Closed(first.or(error)))
            }
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
        let mut fds = [PollFd::new(self.socket.stream(), flags)];
        let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        // Whoever waits looks again anyway.
        let _ = rustix::event::poll(&mut fds, Some(&most));
    }
}

/// For who waits for other things, too.
impl<F> AsFd for Line<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.stream().as_fd()
    }
}

/// Has the system ask whether the other side is there, and end a connection whose other side does not answer (tcp(7)).
fn watch(stream: &TcpStream, silence: Duration) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    // Whole seconds are all that it takes.
    let third = (silence / 3).max(Duration::from_secs(1));
    sockopt::set_tcp_keepidle(stream, third)?;
    sockopt::set_tcp_keepintvl(stream, (third / 2).max(Duration::from_secs(1)))?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    sockopt::set_tcp_user_timeout(stream, silence.as_millis() as u32)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{Ipv4Addr, TcpListener, TcpStream as Plain};

    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::frame::BadFrame;
    use crate::speech::{MAX_TEXT, printable};

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    enum Word {
        No(String),
        Yes(Vec<u8>),
    }

    impl Framed for Word {
        const MAGIC: [u8; 8] = *b"LOCKIFY?";
        const SPOKEN: Versions = Versions { oldest: 3, newest: 5 };
        const SPEAKER: &'static str = "test";
        const SUBJECT: &'static str = "tests";
        const MAX_GREETING: usize = 64;
        const MAX_FRAME: usize = 8 << 20;
        const READ: usize = 32;

        fn refusal(why: String) -> Word {
            Word::No(why)
        }

        fn refused(&self) -> Option<&str> {
            match self {
                Word::No(why) => Some(why),
                Word::Yes(_) => None,
            }
        }

        fn received(self) -> Result<Word, &'static str> {
            match self {
                Word::No(why) => Ok(Word::No(printable(&why))),
                Word::Yes(bytes) if bytes.first() == Some(&13) => Err("an unlucky word"),
                yes => Ok(yes),
            }
        }
    }

    /// Much longer than anything takes.
    const LONG: Duration = Duration::from_secs(60);

    /// Both ends of a connection on loopback.
    fn connected() -> (Plain, Line<Word>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let there = Plain::connect(listener.local_addr().unwrap()).unwrap();
        (there, line(listener.accept().unwrap().0))
    }

    fn line(socket: Plain) -> Line<Word> {
        socket.set_nonblocking(true).unwrap();
        Line::new(TcpStream::from_std(socket), None, Duration::from_secs(10), Word::SPOKEN)
    }

    fn head(version: u16) -> Vec<u8> {
        let mut bytes = Word::MAGIC.to_vec();
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes
    }

    fn framed(word: &Word) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&mut bytes, word);
        bytes
    }

    /// Hears until there is a word, or the end.
    fn word(line: &mut Line<Word>) -> Result<Word, End> {
        let end = Instant::now() + LONG;
        loop {
            assert!(Instant::now() < end, "in vain waited for a word");
            if let Some(word) = line.hear()? {
                return Ok(word);
            }
            line.wait(true, Duration::from_secs(1));
        }
    }

    #[test]
    fn what_is_said_is_heard_however_the_network_cuts_it() {
        let (mut there, mut here) = connected();
        let words = [Word::Yes(vec![7; 40]), Word::No("later".into()), Word::Yes(vec![])];
        let bytes: Vec<u8> = head(3).into_iter().chain(words.iter().flat_map(framed)).collect();
        let before_the_first = HEAD + framed(&words[0]).len() - 1;
        for &byte in &bytes[..before_the_first] {
            there.write_all(&[byte]).unwrap();
            assert_eq!(here.hear(), Ok(None));
        }
        there.write_all(&bytes[before_the_first..]).unwrap();
        words.iter().for_each(|said| assert_eq!(word(&mut here).as_ref(), Ok(said)));
        drop(there);
        assert_eq!(word(&mut here), Err(End::Closed(None)));
    }

    /// A caller that is told only once (epoll's edges) gets the data that came with the end, as one event, and then the
    /// end.
    #[test]
    fn the_end_is_heard_that_came_with_the_last_word() {
        let (mut there, mut here) = connected();
        let mut poll = mio::Poll::new().unwrap();
        let both = mio::Interest::READABLE | mio::Interest::WRITABLE;
        poll.registry().register(&mut here.socket, mio::Token(0), both).unwrap();
        let mut events = mio::Events::with_capacity(8);
        let mut woken = |here: &mut Line<Word>, wanted: fn(&mio::event::Event) -> bool| {
            while !events.iter().any(wanted) {
                poll.poll(&mut events, Some(LONG)).unwrap();
                assert!(!events.is_empty(), "in vain waited for an event");
            }
            here.woken(events.iter().any(|event| event.is_read_closed()));
            events.clear();
        };
        there.write_all(&[head(3), framed(&Word::Yes(vec![1]))].concat()).unwrap();
        woken(&mut here, |event| event.is_readable());
        assert_eq!(here.hear(), Ok(Some(Word::Yes(vec![1]))));
        assert_eq!(here.hear(), Ok(None));
        there.write_all(&framed(&Word::Yes(vec![2]))).unwrap();
        drop(there);
        woken(&mut here, |event| event.is_read_closed());
        assert_eq!(here.hear(), Ok(Some(Word::Yes(vec![2]))));
        assert_eq!(here.hear(), Err(End::Closed(None)));
    }

    /// More than a socket takes at once, and more than is kept: both sides have to go on by turns.
    #[test]
    fn a_long_word_passes_in_pieces() {
        let (there, mut here) = connected();
        let mut there = line(there);
        let long = Word::Yes(vec![5; 7 << 20]);
        here.greeted();
        there.say(&Word::Yes(vec![1]));
        there.say(&long);
        there.say(&Word::Yes(vec![2]));
        let (mut heard, end) = (Vec::new(), Instant::now() + LONG);
        while heard.len() < 3 {
            assert!(Instant::now() < end, "in vain waited for the word's last piece");
            there.flush();
            heard.extend(here.hear().unwrap());
        }
        assert_eq!(heard, [Word::Yes(vec![1]), long, Word::Yes(vec![2])]);
        assert_eq!((there.unsent(), there.stuck_for()), (0, Duration::ZERO));
    }

    #[test]
    fn strangers_are_not_given_memory_and_an_older_version_is_heard_only_when_it_refuses() {
        let ends = |version, bytes: &[u8]| {
            let (mut there, mut here) = connected();
            there.write_all(&[&head(version), bytes].concat()).unwrap();
            word(&mut here)
        };
        let foreign = |why| Err(End::Foreign(why));
        let (longest, length) = (MAX_TEXT + 16, MAX_TEXT + 17);
        let too_long = foreign(BadFrame::TooLong { length, longest }.into());
        assert_eq!(ends(3, &(length as u32).to_le_bytes()), too_long);
        let unlucky = foreign(SpeechError::Malformed("an unlucky word"));
        assert_eq!(ends(3, &framed(&Word::Yes(vec![13]))), unlucky);
        let other = SpeechError::Version { subject: "tests", theirs: 2, ours: Word::SPOKEN };
        assert_eq!(
            other.to_string(),
            "it speaks version 2 of tests and this side versions 3 to 5: upgrade the older side"
        );
        assert_eq!(ends(2, &framed(&Word::Yes(vec![1]))), Err(End::Foreign(other)));
        assert_eq!(
            ends(2, &framed(&Word::No("too\nold".into()))),
            Ok(Word::No("too\\nold".into()))
        );
        // A greeting has at most 64 bytes here, and yet the longest refusal is no frame that is too long.
        let long = Word::No("x".repeat(MAX_TEXT));
        assert_eq!(ends(2, &framed(&long)), Ok(long));
    }

    #[test]
    fn both_sides_speak_the_newest_version_that_both_know() {
        for (theirs, common) in [(3, 3), (4, 4), (5, 5), (9, 5)] {
            let (mut there, mut here) = connected();
            assert_eq!(here.version(), None);
            there.write_all(&[head(theirs), framed(&Word::Yes(vec![1]))].concat()).unwrap();
            assert_eq!(word(&mut here), Ok(Word::Yes(vec![1])));
            assert_eq!(here.version(), Some(common));
        }
    }

    /// A refusing side hangs up. Further output of this side is answered with a reset, and the refusal has come before.
    #[test]
    fn a_refusal_is_heard_although_nothing_can_be_written_any_more() {
        let (mut there, mut here) = connected();
        there.write_all(&[head(3), framed(&Word::No("not you".into()))].concat()).unwrap();
        drop(there);
        here.say(&Word::Yes(vec![1; 64]));
        let broke = std::iter::repeat_with(|| {
            here.flush();
            here.say(&Word::Yes(vec![1; 64]));
            here.broke
        });
        broke.take(1 << 20).find(Option::is_some).expect("the socket takes bytes for ever");
        assert_eq!(word(&mut here), Ok(Word::No("not you".into())));
        assert!(matches!(word(&mut here), Err(End::Closed(_))));
    }
}
