//! A participant.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use lockify_trust::speech::{Framed as _, SpeechError};
use lockify_trust::{End, Line, Security};

use super::error::RendezvousError;
use super::frame::{Frame, MAX_BYTES};
use super::queue::Incoming;
use super::{Event, GREETING, HOME, Identity, PATIENCE, SILENCE, Welcome, allow};

/// How long one who leaves waits for the host to have heard all.
const LEAVING: Duration = Duration::from_secs(1);

/// A participant's end. Dropping it leaves; messages from just before may be lost then, which [`Rendezvous::leave`]
/// avoids.
pub struct Rendezvous {
    line: Line<Frame>,
    rank: u16,
    incoming: Incoming,
    /// Why nothing more will come.
    over: Option<String>,
}

impl Rendezvous {
    /// Joins the rendezvous of a host at this address, on this node of the cluster. Without keys, nodes' numbers prove
    /// nothing, but both sides must agree on them.
    ///
    /// # Errors
    /// Nobody answers, one of both does not trust the other, or the host refuses.
    pub fn join(
        address: SocketAddr,
        identity: &Identity,
        server: u32,
    ) -> Result<(Rendezvous, Welcome), RendezvousError> {
        allow(identity, address)?;
        let failed = |error| RendezvousError::Connect { address, error };
        let stream = TcpStream::connect_timeout(&address, GREETING).map_err(failed)?;
        stream.set_nonblocking(true).map_err(failed)?;
        let session = match identity.security() {
            Security::Tls(keyring) => Some(keyring.current().dial(server)?),
            Security::Loopback | Security::PlainText => None,
        };
        let mut line =
            Line::new(mio::net::TcpStream::from_std(stream), session, SILENCE, Frame::SPOKEN);
        let (cluster, node) = (identity.cluster().to_owned(), identity.node());
        line.say(&Frame::Hello { cluster, node, to: server });
        let welcome = greet(&mut line, address)?;
        let rank = welcome.rank;
        Ok((Rendezvous { line, rank, incoming: Incoming::default(), over: None }, welcome))
    }

    /// This participant's rank.
    pub fn rank(&self) -> u16 {
        self.rank
    }

    /// Sends a message to a participant. Waits while the host takes nothing, because it, or the receiver, has too much
    /// already.
    ///
    /// # Errors
    /// There is nobody of this rank, by the events so far; it is too long; or the rendezvous is over.
    pub fn send(&mut self, rank: u16, bytes: &[u8]) -> Result<(), RendezvousError> {
        if bytes.len() > MAX_BYTES {
            return Err(RendezvousError::TooLong(bytes.len()));
        }
        self.check()?;
        if rank == self.rank {
            return Err(RendezvousError::Nobody(rank));
        }
        let to = self.incoming.who(rank)?;
        self.line.say(&Frame::Tell { to, bytes: bytes.to_vec() });
        while self.line.flush() || self.line.wants_write() {
            // The other side may wait for this one to read before it does.
            while !self.incoming.is_full() && self.hear() {}
            self.check()?;
            if self.line.stuck_for() > 2 * PATIENCE {
                let error = RendezvousError::Stuck;
                // Half of it may have been written: nothing can follow.
                self.over = Some(error.to_string());
                return Err(error);
            }
            if self.line.wants_write() {
                self.line.wait(!self.incoming.is_full(), PATIENCE);
            }
        }
        self.check()
    }

    /// The next event; `None` if there is none in this time.
    ///
    /// # Errors
    /// The rendezvous is over.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Event>, RendezvousError> {
        let end = Instant::now().checked_add(timeout);
        loop {
            if let Some(event) = self.incoming.take() {
                return Ok(Some(event));
            }
            self.check()?;
            self.line.flush();
            if self.hear() {
                continue;
            }
            let left = end.map_or(PATIENCE, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            self.line.wait(true, left);
        }
    }

    /// Ends taking part. The others hear earlier messages: this waits until the host has all of them, a second at most.
    pub fn leave(mut self) {
        self.line.finish();
        let begin = Instant::now();
        while !self.line.discard() {
            match LEAVING.checked_sub(begin.elapsed()) {
                Some(left) => self.line.wait(true, left),
                None => return,
            }
        }
    }

    fn check(&self) -> Result<(), RendezvousError> {
        self.over.as_ref().map_or(Ok(()), |why| Err(RendezvousError::Over(why.clone())))
    }

    /// Reads a frame, if one is there; whether there was, or the end.
    fn hear(&mut self) -> bool {
        if self.over.is_some() {
            return false;
        }
        match self.line.hear() {
            Ok(None) => return false,
            Ok(Some(
                frame @ (Frame::Told { .. } | Frame::Joined(_) | Frame::Gone { .. } | Frame::Ended),
            )) => {
                if frame == Frame::Ended {
                    self.over = Some("it has ended".into());
                }
                self.incoming.add(frame);
            }
            Ok(Some(Frame::Refused(why))) => self.over = Some(why),
            Ok(Some(_)) => self.over = Some("it says what only a greeting is".into()),
            Err(end) => self.over = Some(end.to_string()),
        }
        true
    }
}

/// Readable when [`Rendezvous::next`] has new events after it had none, for callers that wait for other descriptors, too.
impl AsFd for Rendezvous {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}

/// Waits for the host's answer.
fn greet(line: &mut Line<Frame>, address: SocketAddr) -> Result<Welcome, RendezvousError> {
    let begin = Instant::now();
    let foreign = |why: String| RendezvousError::Foreign { address, why };
    loop {
        line.flush();
        match line.hear() {
            Ok(Some(Frame::Welcome { rank, offer })) if rank != HOME => {
                return Ok(Welcome { rank, offer });
            }
            Ok(Some(Frame::Refused(why))) => return Err(RendezvousError::Refused { address, why }),
            Ok(Some(_)) => {
                let why = SpeechError::Malformed("no welcome").to_string();
                return Err(foreign(why));
            }
            Ok(None) => {}
            Err(End::Distrusted(why)) => return Err(RendezvousError::Distrusted { address, why }),
            Err(End::Foreign(why)) => return Err(foreign(why.to_string())),
            Err(End::Closed(_)) => {
                let why = "it closed the connection before it answered: is it a memory server, does it run the same \
                           release, and do both have keys, or none?";
                return Err(foreign(why.into()));
            }
        }
        match GREETING.checked_sub(begin.elapsed()) {
            Some(left) => line.wait(true, left),
            None => return Err(RendezvousError::Silent { address }),
        }
    }
}
